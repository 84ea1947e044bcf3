"""Lines that only served a call go with it, under ``replace`` and ``attach``; nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import becomes, fix

from trainify.engine import Options, fix_text
from trainify.facts import Project

TORCH = "import torch\nimport torch.nn.functional as F\n"
HEAD = f"{TORCH}from vllm import _custom_ops as ops\n\n\n"

NORM = (
    HEAD
    + """\
def f(self, x, w: torch.Tensor):
{before}
    out = torch.empty(shape, dtype=x.dtype)
    ops.rms_norm(out, x, w, 1e-6)
    return out
"""
)
REPLACED = (
    TORCH
    + """\


def f(self, x, w: torch.Tensor):
{before}    out = F.rms_norm(x, x.shape[-1:], w, 1e-6)
    return out
"""
)


@pytest.mark.parametrize(
    "before",
    [
        "    shape = x.shape",
        "    d = x.shape[-1] // 2\n    shape = x.shape[:-1] + (d, )",
        "    d = x.size(-1)\n    shape = (*x.shape[:-1], d)",
        "    n = max(len(x), self.config.rows)\n    shape = [n, self.width]",
        "    rows, width = x.shape\n    shape = rows, width",
        "    shape = x.shape\n",  # with a blank line below
        "    if self.flat:\n        shape = x.shape[:1]\n    else:\n        shape = x.shape",
    ],
)
def test_shapes_that_nobody_reads(before: str) -> None:
    becomes(NORM.format(before=before), REPLACED.format(before=""), strategy="replace")


@pytest.mark.parametrize(
    "before",
    [
        "    shape = self.plan(x)",  # who knows what that does
        "    shape = x.shape\n    print(shape)",
        "    shape = x.shape\n    self.sizes.append(lambda: shape)",
        "    shape = x.shape  # as it came",
        "    # as it came\n    shape = x.shape",
        "    shape = x.shape\n    log(**locals())",
        "    global shape\n    shape = x.shape",
        "    shape = x.shape\n    if self.flat:\n        shape = x.shape[1:]",
        "    shape = x.shape[0], next(self.widths)",
        "    self.shape = shape = x.shape",
        "    shape = self.shapes.pop()",
        "    if self.flat:\n        # all in one\n        shape = x.shape[1:]\n    else:\n        shape = 1",
        "    if self.flat():\n        shape = x.shape[1:]",
        "    if self.flat:\n        shape = x.shape[1:]\n    else:\n        raise ValueError(shape)",
        "    import kernels_of_ours",  # for what importing it does
        "    from vllm._custom_ops import silu_and_mul",
        "    rows = len(x)",
    ],
)
def test_what_stays(before: str) -> None:
    becomes(NORM.format(before=before), REPLACED.format(before=before + "\n"), strategy="replace")


def test_buffers_that_one_of_two_branches_makes() -> None:
    before = """\
import torch
from lmdeploy.pytorch.kernels.cuda import apply_rotary_pos_emb as rotate


def f(q, k, cos, sin, inplace):
    if inplace:
        q_embed, k_embed = q, k
    else:
        q_embed = torch.empty_like(q)
        k_embed = torch.empty_like(k)
    return rotate(q, k, cos, sin, q_embed, k_embed)
"""
    text = fix(before, strategy="replace", unsafe=True)
    assert "def f(q, k, cos, sin, inplace):\n    cos_, sin_ = cos.chunk(2, dim=-1)[0], " in text
    assert "    if inplace:\n" in fix(before, unsafe=True)


def test_one_of_two_names_is_read() -> None:
    before = "    rows, width = x.shape\n    shape = x.shape"
    text = NORM.format(before=before).replace("return out", "return out, rows")
    assert "    rows, width = x.shape\n    out = F" in fix(text, strategy="replace")


def test_what_the_new_line_reads_stays() -> None:
    becomes(
        HEAD + "def f(x, w: torch.Tensor):\n    eps = 1e-6\n    out = torch.empty_like(x)\n"
        "    ops.rms_norm(out, x, w, eps)\n    return out\n",
        TORCH + "\n\ndef f(x, w: torch.Tensor):\n    eps = 1e-6\n"
        "    out = F.rms_norm(x, x.shape[-1:], w, eps)\n    return out\n",
        strategy="replace",
    )


def test_what_stood_between_blank_lines() -> None:
    text = NORM.format(before="    rows = len(x)\n\n    shape = x.shape\n\n    print(rows)\n")
    assert "    rows = len(x)\n\n    print(rows)\n\n    out = F" in fix(text, strategy="replace")


def test_the_flag_keeps_the_author_s_lines() -> None:
    before = "    d = x.shape[-1]\n    shape = x.shape[:-1] + (d,)"
    assert f"{before}\n    if torch" in fix(NORM.format(before=before))


def test_a_class_body_has_attributes() -> None:
    text = (
        HEAD
        + """\
def f(x, w: torch.Tensor):
    class Result:
        shape = x.shape
        out = torch.empty(shape)
        ops.rms_norm(out, x, w, 1e-6)
    return Result
"""
    )
    assert "        shape = x.shape\n" in fix(text, strategy="replace")


# -- imports --------------------------------------------------------------------------------------

LAZY = """\
import torch
import torch.nn.functional as F


def f(x, w: torch.Tensor):
    {imports}

    out = torch.empty_like(x)
    {ops}.rms_norm(out, x, w, 1e-6)
    return out
"""


@pytest.mark.parametrize(
    ("imports", "ops"),
    [
        ("from vllm import _custom_ops as ops", "ops"),
        ("import vllm._custom_ops as ops", "ops"),
        ("from vllm import _custom_ops", "_custom_ops"),
    ],
)
def test_an_import_for_one_call(imports: str, ops: str) -> None:
    text = fix(LAZY.format(imports=imports, ops=ops), strategy="replace")
    assert "def f(x, w: torch.Tensor):\n    out = F" in text
    assert imports not in text


def test_an_import_that_registers_what_is_replaced_too() -> None:
    text = LAZY.format(imports="from vllm import _custom_ops as ops", ops="ops")
    text += (
        "\n\ndef g(out, x: torch.Tensor):\n    torch.ops._C.silu_and_mul(out, x)\n    return out\n"
    )
    text = fix(text, strategy="replace")
    assert "def f(x, w: torch.Tensor):\n    out = F" in text


@pytest.mark.parametrize(
    ("imports", "ops"),
    [
        ("import vllm._custom_ops", "vllm._custom_ops"),
        ("from vllm import _custom_ops as ops; torch.ops._C.silu_and_mul", "ops"),
        ("from vllm import _custom_ops as ops; torch.ops.aten.relu", "ops"),
        ("from vllm import _custom_ops as ops\n    print(ops)", "ops"),
    ],
)
def test_an_import_that_does_more(imports: str, ops: str) -> None:
    text = fix(LAZY.format(imports=imports, ops=ops), strategy="replace")
    assert f"    {imports}\n\n    out = F" in text


def test_an_import_for_one_call_among_others() -> None:
    text = fix(
        LAZY.format(imports="from vllm import _custom_ops as ops, envs", ops="ops"),
        strategy="replace",
    )
    assert "    from vllm import envs\n\n    out = F" in text


# -- imports of the file --------------------------------------------------------------------------

CALL = """

def f(x, w: torch.Tensor):
    out = torch.empty_like(x)
    {ops}.rms_norm(out, x, w, 1e-6)
    return out
"""


@pytest.mark.parametrize(
    ("imports", "left", "ops"),
    [
        ("from vllm import _custom_ops as ops\n", "", "ops"),
        ("import vllm._custom_ops as ops\n", "", "ops"),
        ("\nfrom vllm import _custom_ops as ops\n", "", "ops"),
        (
            "from vllm import _custom_ops as ops\nfrom mine import x\n",
            "from mine import x\n",
            "ops",
        ),
        ("from vllm import a, _custom_ops as ops\n", "from vllm import a\n", "ops"),
        ("from vllm import _custom_ops as ops, a\n", "from vllm import a\n", "ops"),
        (
            "from vllm import (\n    a,\n    _custom_ops as ops,\n)\n",
            "from vllm import (\n    a,\n)\n",
            "ops",
        ),
    ],
)
def test_an_import_that_only_the_calls_used(imports: str, left: str, ops: str) -> None:
    text = fix(TORCH + imports + CALL.format(ops=ops), strategy="replace")
    assert text.startswith(TORCH + left + "\n\ndef f")


@pytest.mark.parametrize(
    ("imports", "rest"),
    [
        ("from vllm import _custom_ops as ops  # registers more\n", ""),
        ("# registers more\nfrom vllm import _custom_ops as ops\n", ""),
        ("from vllm import _custom_ops as ops\n", "\n\nprint(ops)\n"),
        ("from vllm import _custom_ops as ops\n", "\n\n__all__ = ['f', 'ops']\n"),
        ("from vllm import _custom_ops as ops\n", "\n\ndef g(x: 'ops.Kind'): ...\n"),
        ("from vllm import _custom_ops as ops\n", "\n\ndef g(name):\n    return globals()[name]\n"),
        ("from vllm import _custom_ops as ops\n", "\n\nRELU = torch.ops._C.silu_and_mul\n"),
        ("from vllm import _custom_ops as ops\nfrom mine import ops\n", "\n\nops = None\n"),
        ("from mine import x as y\nfrom vllm import _custom_ops as ops; print(y)\n", ""),
    ],
)
def test_an_import_that_may_be_wanted(imports: str, rest: str) -> None:
    text = fix(TORCH + imports + CALL.format(ops="ops") + rest, strategy="replace")
    assert TORCH + imports in text


@pytest.mark.parametrize("strategy", ["flag", "attach"])
def test_an_import_of_a_kernel_that_stays(strategy: str) -> None:
    assert "as ops\n" in fix(HEAD + CALL.format(ops="ops").lstrip(), strategy=strategy)


@pytest.mark.parametrize(
    ("other", "goes"),
    [
        ("from layer import f\n", True),
        ("from .layer import f, ops\n", False),
        ("from pkg.layer import (\n    f,\n    ops,\n)\n", False),
        ("import layer\n\nlayer.ops.rms_norm\n", False),
        ("import torch\n\ntorch.ops.vllm.relu\n", False),
        ("import torch\n\ntorch.ops.aten.relu\n", True),
    ],
)
def test_an_import_that_another_file_takes_from_here(
    tmp_path: Path, other: str, goes: bool
) -> None:
    (tmp_path / "other.py").write_text(other)
    text = TORCH + "from vllm import _custom_ops as ops\n" + CALL.format(ops="ops")
    options, project = Options(strategy="replace"), Project((tmp_path,))
    fixed = fix_text(text, str(tmp_path / "layer.py"), options, project).text
    assert ("as ops\n" not in fixed) == goes
    assert "as ops\n" in fix_text(text, str(tmp_path / "__init__.py"), options, project).text


def test_imports_of_two_functions_that_stand_for_one_op() -> None:
    """At first another call needs the ops that the library registers, then none does."""
    text = """\
import torch


class Act(torch.nn.Module):
    def one(self, x):
        from vllm import _custom_ops as ops

        out = torch.empty_like(x)
        ops.silu_and_mul(out, x)
        return out

    def two(self, x):
        out = torch.empty_like(x)
        torch.ops._C.silu_and_mul(out, x)
        return out
"""
    assert "import _custom_ops" not in fix(text, strategy="replace")
    assert "import _custom_ops" in fix(text)
