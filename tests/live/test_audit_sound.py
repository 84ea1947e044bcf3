"""No false alarm: models that are right are found right."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import faults  # isort: skip  (in this folder)
import sound  # isort: skip
from trainify.live.audit.run import audit


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("layer", sound.LAYERS, ids=lambda each: each.__name__)
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
