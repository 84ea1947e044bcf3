"""Fused ops that a file of the package hands on, by a name or in a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainify.engine import Options, check_paths, fix_paths, passes_for
from trainify.facts import Project
from trainify.passes import handed_on

KERNELS = """\
import flashinfer
from flashinfer import rmsnorm as rn

OPS = {"act": flashinfer.silu_and_mul, "own": own}
"""
HEAD = "from flashinfer import rmsnorm\nimport torch\nfrom .kernels import rn, OPS, own\n\n\ndef f(x, w):\n    return "


def lines(folder: Path, call: str, kernels: str = KERNELS) -> list[tuple[str, str]]:
    (folder / "__init__.py").write_text("")
    (folder / "kernels.py").write_text(kernels)
    (folder / "layer.py").write_text(f"{HEAD}{call}\n")
    reports = check_paths([str(folder)], Options())
    return [(Path(f.path).name, f.rule) for report in reports for f in report.findings]


@pytest.mark.parametrize("call", ["rn(x, w, 1e-6)", 'OPS["act"](x)'])
def test_a_name_of_the_package(tmp_path: Path, call: str) -> None:
    assert lines(tmp_path, call) == [("layer.py", "TRN101")]


@pytest.mark.parametrize(
    ("call", "kernels"),
    [
        ("own(x, w)", KERNELS),
        ('OPS["own"](x)', KERNELS),
        ('OPS["act"](x)', KERNELS + 'OPS["act"] = own\n'),
        ('OPS["act"](x)', KERNELS.replace('"own": own', "**own")),
        ("rn(x, w, 1e-6)", KERNELS.replace("rmsnorm as rn", "rmsnorm as rm")),
        ("rn(x, w, 1e-6)", "def rn(x, w, eps):\n    return x * w\n"),
    ],
)
def test_what_is_no_kernel_for_all_we_know(tmp_path: Path, call: str, kernels: str) -> None:
    assert lines(tmp_path, call, kernels) == []


@pytest.mark.parametrize("strategy", ["flag", "attach"])
def test_an_entry_of_a_table_is_rewritten(tmp_path: Path, strategy: str) -> None:
    assert lines(tmp_path, 'OPS["act"](x)')
    (report,) = [r for r in fix_paths([str(tmp_path)], Options(strategy=strategy)) if r.applied]
    assert "F.silu(gate)" in report.text
    assert 'return OPS["act"](' in report.text


# -- in files that name no library themselves -----------------------------------------------------

PLAIN = "import torch\n{}\n\n\ndef f(x, w):\n    return {}\n"


@pytest.mark.parametrize(
    ("imported", "call"),
    [
        ("from .kernels import rn", "rn(x, w, 1e-6)"),
        ("from .kernels import (\n    rn as norm,\n)", "norm(x, w, 1e-6)"),
        ("from .kernels import OPS", 'OPS["act"](x)'),
        ("from . import kernels", "kernels.rn(x, w, 1e-6)"),
        ("from {folder}.kernels import rn", "rn(x, w, 1e-6)"),
        ("from {folder} import kernels as k", "k.rn(x, w, 1e-6)"),
        ("import {folder}.kernels", "{folder}.kernels.rn(x, w, 1e-6)"),
        ("import numpy, {folder}.kernels as k", "k.rn(x, w, 1e-6)"),
        ("import {folder}.kernels as k", 'k.OPS["act"](x)'),
        ("from .kernels import *", "rn(x, w, 1e-6)"),
        ("from {folder}.kernels import *", "rn(x, w, 1e-6)"),
    ],
)
def test_a_file_that_names_no_library(tmp_path: Path, imported: str, call: str) -> None:
    folder = tmp_path / "pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "kernels.py").write_text(KERNELS)
    text = PLAIN.format(imported, call).replace("{folder}", "pkg")
    (folder / "layer.py").write_text(text)
    (found,) = [f for r in check_paths([str(folder / "layer.py")], Options()) for f in r.findings]
    assert (found.rule, found.line > 4) == ("TRN101", True)
    assert found.fixes


@pytest.mark.parametrize("line", ["import kernels", "from kernels import *"])
def test_a_module_beside_it(tmp_path: Path, line: str) -> None:
    """That the first line imports, without a package around."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    call = "rn" if "*" in line else "kernels.rn"
    text = f"{line}\nimport torch\n\n\ndef f(x, w):\n    return {call}(x, w, 1e-6)\n"
    (tmp_path / "layer.py").write_text(text)
    reports = list(fix_paths([str(tmp_path / "layer.py")], Options()))
    (report,) = [r for r in reports if r.applied]
    assert "        return F.rms_norm(x, x.shape[-1:], w, 1e-6)\n" in report.text


@pytest.mark.parametrize(
    ("imported", "call"),
    [
        ("from .kernels import Norm", "Norm(x)"),
        ("import kernels", "x"),
        ("import kernels", "kernels.own(x)"),
        ("import others", "others.rn(x)"),
        ("from .kernels import *", "own(x)"),
        ("from .kernels import *", "x.rn(w)"),
        ("from .kernels import own", "own(x)"),
        ("from .kernels import rn", "x"),
        ("from . import kernels", "kernels.own(x)"),
        ("from .others import rn", "rn(x, w, 1e-6)"),
    ],
)
def test_what_is_not_read_for_it(tmp_path: Path, imported: str, call: str) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "kernels.py").write_text(KERNELS + "\n\ndef own(x):\n    return x\n")
    data, path = PLAIN.format(imported, call).encode(), str(tmp_path / "layer.py")
    assert passes_for(data, Options())  # it may have something of another file
    assert not handed_on.concerns(data, path, Project([tmp_path]), Options())
