"""Raw launches in helpers: what an autograd.Function is made of, wherever that stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainify.engine import check_paths
from trainify.facts import project

HELPER = """\
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, y_ptr, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y_ptr + i, tl.load(x_ptr + i) * 2)


def scale(x):
    y = torch.empty_like(x)
    scale_kernel[(1,)](x, y, x.numel())
    return y
"""
FUNCTION = """\
import torch
from pkg.{module} import {helper}


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return {helper}(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2
"""
BETWEEN = """\
from pkg.ops.scale import scale


def scale_twice(x):
    return scale(scale(x))
"""
REGISTERED = """\
from backends import register
from pkg.ops.common import scale
{0}

@register(scale, backend="other")
def scale_other(x):
    y = torch.empty_like(x)
    scale_kernel[(1,)](x, y, x.numel())
    return y
"""
COMMON = "def scale(x):\n    return x * 2\n"
KERNEL = HELPER[: HELPER.index("\n\ndef scale(")]
PACKAGES = {
    "the function": {"function.py": FUNCTION.format(module="ops.scale", helper="scale")},
    "a helper of it": {
        "ops/twice.py": BETWEEN,
        "function.py": FUNCTION.format(module="ops.twice", helper="scale_twice"),
    },
    "another form": {
        "ops/common.py": COMMON,
        "ops/scale.py": REGISTERED.format(KERNEL),
        "function.py": FUNCTION.format(module="ops.common", helper="scale"),
    },
}
BACKEND = """\
from backends import Backend, register


@register("scale")
class OtherBackend(Backend):
    def scale(self, *args, **kwargs):
        from pkg.ops.scale import scale_other
        return scale_other(*args, **kwargs)
"""
PACKAGES["a method in its place"] = {
    "common.py": f"from backends import dispatch\n\n\n@dispatch('scale')\n{COMMON}",
    "ops/backend.py": BACKEND,
    "ops/scale.py": HELPER.replace("def scale(", "def scale_other("),
    "function.py": FUNCTION.format(module="common", helper="scale"),
}
GIVEN = """\
import torch
from pkg.ops.scale import scale


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kernel):
        return kernel(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


def double(x):
    return Scale.apply(x, scale)
"""
PACKAGES["what it is given"] = {"function.py": GIVEN}


def found(folder: Path, files: dict[str, str]) -> list[str]:
    for name, text in {
        "__init__.py": "",
        "ops/__init__.py": "",
        "ops/scale.py": HELPER,
        **files,
    }.items():
        path = folder / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [f.rule for r in check_paths([str(folder / "pkg")]) for f in r.findings]


@pytest.mark.parametrize("most", [300, 3], ids=["small", "big"])
@pytest.mark.parametrize("files", PACKAGES.values(), ids=PACKAGES.keys())
def test_what_a_function_with_a_backward_is_made_of(
    tmp_path: Path, files: dict[str, str], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a package too big to be read for one question as well."""
    monkeypatch.setattr(project, "_MAX_NEIGHBOURS", most)
    assert found(tmp_path, files) == []


@pytest.mark.parametrize("most", [300, 3], ids=["small", "big"])
def test_what_others_call_as_well(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "_MAX_NEIGHBOURS", most)
    layer = "from pkg.ops.scale import scale\n\n\ndef double(x):\n    return scale(x)\n"
    files = {"ops/double.py": layer}
    assert found(tmp_path, files) == ["TRN104"]
    files["function.py"] = FUNCTION.format(module="ops.scale", helper="scale") + layer
    assert found(tmp_path, files) == ["TRN104"]
