"""No false alarm: models that are right are found right."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import faults  # isort: skip  (in this folder)
import sound  # isort: skip
from tests.each import some
from trainify.live.audit.run import audit

CASES = [(layer, training) for layer in sound.LAYERS for training in (True, False)]
OTHERWISE = (sound.Dropout, sound.Norms, sound.FrozenStatistics, sound.NormedTwice, sound.Codebook,
             sound.Attention)  # fmt: skip
"""Layers that do something else in eval."""


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else "train" if value else "eval"


@pytest.mark.parametrize(
    ("layer", "training"),
    some([case for case in CASES if case[1] or case[0] in OTHERWISE], CASES),
    ids=named,
)
def test_sound_model_is_ok(layer: type[nn.Module], training: bool) -> None:
    model = faults.Model(layer).train(training)
    report = audit(model, torch.randn(3, sound.D))
    assert report.ok, str(report)
    assert not [note for note in report.notes if "cannot be judged" in note]
    assert set(report.unused) <= {
        f"layers.{i}.{name}" for i in (0, 1) for name in ("other", "weight", *experts())
    }


def experts() -> list[str]:
    return [f"experts.{i}.{name}" for i in range(4) for name in ("weight", "bias")]
