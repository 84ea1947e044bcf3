"""Training scripts in the style of real repositories: right as they stand, nothing to report.

Each is run: it takes a few steps, and all that is to be trained has changed.
"""

from __future__ import annotations

import copy
import runpy
from pathlib import Path

import pytest
import torch

from trainify.engine import check_text

SCRIPTS = sorted((Path(__file__).parent / "training_scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_nothing_to_report(script: Path) -> None:
    found = check_text(script.read_text(), str(script))
    assert not found, [f"{f.line}: {f.rule} {f.message}" for f in found]


def idle(script: Path) -> list[str]:
    """The parameters that a run of a script was to train, and did not."""
    torch.manual_seed(0)
    scope = runpy.run_path(str(script))
    model = scope["build"]()
    before = copy.deepcopy(dict(model.named_parameters()))
    scope["train"](model)
    return [
        name
        for name, parameter in model.named_parameters()
        if name in before and parameter.requires_grad and torch.equal(parameter, before[name])
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_trains(script: Path) -> None:
    assert idle(script) == []
