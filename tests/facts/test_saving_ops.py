"""Each operation that is said to save its input, run: backward raises once that is overwritten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainify.facts.saving_ops import INPUT_SAVED, WHOLE_SAVED

OTHER = torch.linspace(0.2, 0.8, 16, dtype=torch.float64).view(4, 4)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("amax", "amin", "std", "var", "var_mean", "std_mean"), (-1,)),
    **dict.fromkeys(("logsumexp", "logcumsumexp", "cumprod", "prod", "nansum", "glu"), (-1,)),
    **dict.fromkeys(("maximum", "minimum", "logaddexp", "atan2", "hypot"), (OTHER,)),
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss"), (OTHER,)),
    **dict.fromkeys(("binary_cross_entropy", "cosine_similarity"), (OTHER,)),
    "binary_cross_entropy_with_logits": (OTHER,),
    **{f"{kind}_pool{n}d": (2,) for kind in ("max", "avg") for n in (1, 2, 3)},
    **dict.fromkeys(("layer_norm", "rms_norm"), ((4,),)),
    "pow": (2,),
    "clamp": (0.0, 1.0),
    "clamp_min": (0.0,),
    "clamp_max": (1.0,),
    "group_norm": (2,),
    "batch_norm": (None, None, None, None, True),
    "prelu": (torch.ones(1, dtype=torch.float64),),
    **dict.fromkeys(("cumsum", "sum", "mean", "sort", "softmax", "flip", "diff"), (-1,)),
    **dict.fromkeys(("topk", "kthvalue"), (2, -1)),
    "l1_loss": (OTHER,),
}
SHAPES = {
    **dict.fromkeys(("instance_norm", "max_pool1d", "avg_pool1d", "group_norm"), (1, 4, 4)),
    **dict.fromkeys(("max_pool2d", "avg_pool2d"), (1, 4, 4)),
    **dict.fromkeys(("max_pool3d", "avg_pool3d"), (1, 2, 2, 4)),
}
HOMES = (F, torch, torch.special, torch.linalg)


def overwritten_after(name: str, *given: Any) -> None:
    """Go back through an operation whose input has been overwritten since."""
    function = next(getattr(home, name) for home in HOMES if hasattr(home, name))
    leaf = OTHER.flip(0).clone().requires_grad_()
    value = (leaf + (1 if name == "acosh" else 0)).view(SHAPES.get(name, (4, 4)))
    result = function(value, *(given or ARGUMENTS.get(name, ())))
    result = result if isinstance(result, Tensor) else result[0]
    value.sub_(0.1)
    result.sum().backward()


@pytest.mark.parametrize("name", sorted(INPUT_SAVED | WHOLE_SAVED))
def test_saves_its_input(name: str) -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        overwritten_after(name)


@pytest.mark.parametrize("name", "cumsum sum mean sort topk kthvalue l1_loss softmax exp".split())
def test_saves_none_of_its_input(name: str) -> None:
    assert name not in INPUT_SAVED | WHOLE_SAVED
    overwritten_after(name)


@pytest.mark.parametrize("name", sorted(WHOLE_SAVED))
def test_saves_only_indices_along_a_dimension(name: str) -> None:
    overwritten_after(name, -1)
