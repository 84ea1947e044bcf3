"""Fused ops under names that only another file of the project says are theirs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.each import in_turn
from trainify.engine import FileReport, Options, check_paths, fix_paths
from trainify.findings import STRATEGIES

KERNELS = """\
from functools import partial
import sgl_kernel
from sgl_kernel import rmsnorm
from sgl_kernel import silu_and_mul as act_by_import

SMALL = 1e-3
act = sgl_kernel.silu_and_mul
norm = partial(rmsnorm, eps=SMALL)
TABLE = {"act": sgl_kernel.silu_and_mul, "own": own}
number = len("rmsnorm")


def own(x):
    return x * 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("fast.py").write_text(KERNELS)
    return tmp_path


def calls(imports: str, call: str, first: str = "from sgl_kernel import gelu_and_mul") -> str:
    return f"{first}\n{imports}\n\n\ndef f(x, w):\n    return {call}\n"


def found(reports: object) -> list[tuple[str, str]]:
    assert not isinstance(reports, FileReport)
    listed = list(reports)  # type: ignore[call-overload]
    assert not [r.problem for r in listed if r.problem]
    return [(Path(f.path).name, f.rule) for r in listed for f in r.findings]


CALLS = [
    ("from fast import act", "act(x)"),
    ("from fast import act as silu", "silu(x)"),
    ("from fast import act_by_import", "act_by_import(x)"),
    ("from fast import norm", "norm(x, w)"),
    ("from fast import TABLE", 'TABLE["act"](x)'),
]
OTHERS = [
    ("from fast import own as act", "act(x)"),
    ("from fast import own, number", "own(number)"),
    ("from fast import TABLE", 'TABLE["own"](x)'),
    ("import fast", "act(x)"),
    ("from others import act", "act(x)"),
]


@pytest.mark.parametrize(("imports", "call"), CALLS)
def test_found(folder: Path, imports: str, call: str) -> None:
    Path("user.py").write_text(calls(imports, call, "import torch"))
    expected = [("user.py", "TRN101")]
    assert found(check_paths(["."])) == expected
    assert found(check_paths(["user.py"])) == expected


@pytest.mark.parametrize(("imports", "call"), OTHERS)
def test_others(folder: Path, imports: str, call: str) -> None:
    Path("user.py").write_text(calls(imports, call, "import torch"))
    assert found(check_paths(["."])) == found(check_paths(["user.py"])) == []


# Files that name a library are read for that; what they call may come through packages.
PACKAGE = {
    "pk/__init__.py": "from .impl import norm as rms, act\nfrom .sub import *\nfrom . import impl\n",
    "pk/impl.py": KERNELS,
    "pk/sub/__init__.py": "from .more import gelu\n",
    "pk/sub/more.py": "import sgl_kernel\ngelu = sgl_kernel.gelu_and_mul\n",
}


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from pk import rms", "rms(x, w)"),
        ("import pk as P", "P.rms(x, w)"),
        ("from pk import rms as r", "r(x, w)"),
        ("from pk import *", "act(x)"),
        ("from pk import gelu", "gelu(x)"),
        ("from pk.sub import gelu as g", "g(x)"),
        ("from pk import impl", "impl.norm(x, w)"),
        ("import pk.impl", "pk.impl.norm(x, w)"),
    ],
)
def test_through_packages(folder: Path, imports: str, call: str) -> None:
    write(PACKAGE)
    Path("user.py").write_text(calls(imports, call))
    assert found(check_paths(["."])) == found(check_paths(["user.py"])) == [("user.py", "TRN101")]


def test_from_the_package_itself(folder: Path) -> None:
    write(
        {
            **PACKAGE,
            "pk/user.py": calls("from . import rms\nfrom .impl import act", "act(rms(x, w))"),
        }
    )
    both = [("user.py", "TRN101")] * 2
    assert found(check_paths(["."])) == found(check_paths(["pk/user.py"])) == both


def write(files: dict[str, str]) -> None:
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
        os.utime(path, (1e9, 1e9))


# -- what `partial` binds there ---------------------------------------------------------------------


def rmsnorm(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w).detach()


BOUND = {
    "a name": ("from fast import norm", "norm(x, w)"),
    "its module": ("import fast", "fast.norm(x, w)"),
    "given anew": ("import fast", "fast.norm(x, w, eps=0.5)"),
    "bound again": (
        "import functools\nimport fast\n\nf3 = functools.partial(fast.norm, eps=2.0)",
        "f3(x, w)",
    ),
    "two": ("from fast import norm, norm2", "norm(x, w) * norm2(x, w)"),
}


@pytest.mark.parametrize(("imports", "call", "strategy"), in_turn(BOUND, STRATEGIES))
def test_what_is_bound_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, imports: str, call: str
) -> None:
    """It is kept: the values are those of the kernel, which has another ``eps`` by default."""
    Path("fast.py").write_text(
        "from functools import partial\nfrom sgl_kernel import rmsnorm\n\nSMALL = 0.25\n"
        "norm = partial(rmsnorm, eps=SMALL)\nnorm2 = partial(rmsnorm, eps=1.5)\n"
    )
    Path("user.py").write_text(calls(f"import torch\n{imports}", call))
    (report,) = [r for r in fix_paths(["."], Options(strategy=strategy)) if r.applied or r.problem]
    assert report.problem is None
    sgl = ModuleType("sgl_kernel")
    sgl.rmsnorm = sgl.gelu_and_mul = rmsnorm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sgl_kernel", sgl)
    fast = ModuleType("fast")
    exec(Path("fast.py").read_text(), fast.__dict__)
    monkeypatch.setitem(sys.modules, "fast", fast)
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    exec(Path("user.py").read_text(), before)
    exec(report.text, after)
    torch.manual_seed(0)
    x, w = torch.randn(3, 4), torch.randn(4)
    expected = before["f"](x, w)  # type: ignore[operator]
    torch.testing.assert_close(after["f"](x, w), expected)  # type: ignore[operator]
    w.requires_grad_()
    got = after["f"](x, w)  # type: ignore[operator]
    torch.testing.assert_close(got, expected)
    got.sum().backward()
    assert w.grad is not None


@pytest.mark.parametrize("value", ["make()", "CONFIG.eps", "[1e-5]"])
def test_what_cannot_be_said_here_is_left_alone(folder: Path, value: str) -> None:
    Path("fast.py").write_text(KERNELS.replace("eps=SMALL", f"eps={value}"))
    Path("user.py").write_text(calls("from fast import norm", "norm(x, w)"))
    (report,) = [r for r in fix_paths(["."], Options(unsafe=True)) if r.findings or r.applied]
    assert [f.rule for f in report.findings] == ["TRN103"]
    assert not report.applied


@pytest.mark.parametrize(
    "fast",
    [
        "act = sgl_kernel.silu_and_mul if FAST else own\n",
        "act = own\nif FAST:\n    act = sgl_kernel.silu_and_mul\n",
        "act = sgl_kernel.silu_and_mul\nif SLOW:\n    def act(x): return x\n",
    ],
)
def test_what_may_be_something_else(folder: Path, fast: str) -> None:
    Path("fast.py").write_text(f"import sgl_kernel\nfrom own import own\n{fast}")
    Path("user.py").write_text(calls("from fast import act", "act(x)", "import torch"))
    assert found(check_paths(["."])) == [("user.py", "TRN103")]


def test_what_is_remembered_follows(folder: Path) -> None:
    """A file that nobody had to read is read once another hands it a kernel, and no longer."""

    def again() -> list[tuple[str, str]]:
        return found(check_paths(["."], use_cache=True))

    none = KERNELS.replace("act = sgl_kernel.silu_and_mul", "act = own")
    expected = [("user.py", "TRN101")]
    write(
        {
            "pyproject.toml": "",
            "fast.py": none,
            "user.py": calls("from fast import act", "act(x)", "import torch"),
        }
    )
    assert again() == again() == []
    write({"fast.py": KERNELS})
    assert again() == again() == expected
    write({"another.py": "x = 1\n"})
    assert again() == again() == expected
    write({"fast.py": none})
    assert again() == again() == []
    write({"fast.py": KERNELS, "user.py": "def f(x):\n    return x\n"})
    assert again() == again() == []
