"""Modes that a helper of another file switches on, whatever it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainify import Options, engine

HELPERS = """\
import contextlib
import functools

import torch

serving = torch.no_grad()


@contextlib.contextmanager
def still():
    with torch.inference_mode():
        yield


def quiet(function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        with torch.no_grad():
            return function(*args, **kwargs)

    return run


def switched(on=False):
    return torch.inference_mode()


def timed(function):
    return function


def asks(function):
    def run(*args):
        return function(*args) if torch.is_inference_mode_enabled() else None

    return run
"""
MODEL = """\
import torch
from torch import nn

{imports}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    @{decorator}
    def forward(self, x):
        return self.layer(x)
"""


def reported(folder: Path, imports: str, decorator: str) -> list[str]:
    """The rules that are reported for ``pkg/nets/model.py``."""
    package = folder / "pkg"
    (package / "nets").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "helpers.py": HELPERS,
        "nets/__init__.py": "",
        "nets/model.py": MODEL.format(imports=imports, decorator=decorator),
    }
    for name, text in files.items():
        (package / name).write_text(text)
    reports = engine.check_paths([str(package)], Options(select=("TRN2",)))
    return [f.rule for report in reports for f in report.findings]


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("from ..helpers import quiet", "quiet"),
        ("from pkg.helpers import (\n    serving,\n    quiet,\n)", "quiet"),
        ("from ..helpers import serving", "serving"),
        ("from ..helpers import switched", "switched()"),
        ("from .. import helpers", "helpers.quiet"),
        ("from pkg import helpers", "helpers.switched()"),
    ],
)
def test_a_decorator_of_any_name(tmp_path: Path, imports: str, decorator: str) -> None:
    assert reported(tmp_path, imports, decorator) == ["TRN201"]


def test_an_import_from_above_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported(tmp_path, "from ..helpers import quiet", "quiet")
    monkeypatch.chdir(tmp_path / "pkg" / "nets")
    assert [report.problem for report in engine.check_paths(["."])] == [None, None]


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("from ..helpers import timed", "timed"),
        ("from ..helpers import asks", "asks"),
        ("from elsewhere import quiet", "quiet"),
        ("from .. import helpers", "helpers.timed"),
    ],
)
def test_a_decorator_that_switches_nothing_off(
    tmp_path: Path, imports: str, decorator: str
) -> None:
    assert reported(tmp_path, imports, decorator) == []


STEP = """\
import torch.nn.functional as F
{imports}


def step(model, optimizer, x, y):
    with {context}:
        logits = model(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("imports", "context", "expected"),
    [
        ("from helpers import still", "still()", ["TRN202"]),
        ("from helpers import serving", "serving", ["TRN202"]),
        ("from helpers import switched as off", "switched()", []),
        ("import helpers", "helpers.still()", ["TRN202"]),
        ("import helpers", "helpers.timed()", []),
        ("import elsewhere as helpers", "helpers.still()", []),
    ],
)
def test_a_context_around_a_loss(
    tmp_path: Path, imports: str, context: str, expected: list[str]
) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "step.py").write_text(STEP.format(imports=imports, context=context))
    reports = engine.check_paths([str(tmp_path)], Options(select=("TRN202",)))
    assert [f.rule for report in reports for f in report.findings] == expected
