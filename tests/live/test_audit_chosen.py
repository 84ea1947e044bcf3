"""``trainify.audit``: what a loss depends on by a choice alone, of which there may be many."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(2, 3, 16, 16, generator=GENERATOR)
MASKS = (torch.rand(2, 1, 16, 16, generator=GENERATOR) > 0.5).float()


class Points(nn.Module):
    """The loss of a mask is taken where that is the least certain, of very many points."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mask = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))

    def at(self, masks: Tensor, points: Tensor) -> Tensor:
        return F.grid_sample(masks, 2 * points[:, None] - 1, align_corners=False)[:, 0, 0]

    def points(self, logits: Tensor) -> Tensor:
        points = torch.rand(2, 6000, 2)
        chosen = (-self.at(logits, points).abs()).topk(2000, dim=1).indices
        chosen += 6000 * torch.arange(2)[:, None]
        return points.view(-1, 2)[chosen.view(-1)].view(2, 2000, 2)

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        logits = 20 * self.mask(x)
        with torch.no_grad():
            points = self.points(logits)
            labels = self.at(masks, points)
        masked = self.at(logits, points).sigmoid()
        return 1 - 2 * (masked * labels).sum() / (masked.sum() + labels.sum())


class Sorted(Points):
    """They are chosen by NumPy."""

    def points(self, logits: Tensor) -> Tensor:
        points = torch.rand(2, 6000, 2)
        uncertain = self.at(logits, points).abs().numpy()
        chosen = torch.as_tensor(np.argsort(uncertain, axis=1)[:, :2000].copy())
        return points.gather(1, chosen[..., None].expand(-1, -1, 2))


@pytest.mark.parametrize("cls", [Points, Sorted])
def test_nothing_is_lost_by_it(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X, MASKS)
    assert report.ok, str(report)


class Weighted(Points):
    """What is sampled where gradients are off is a factor as well."""

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        logits = 20 * self.mask(x)
        with torch.no_grad():
            points = self.points(logits)
            weights = self.at(logits, points).sigmoid()
        return (weights * self.at(logits, points)).square().mean()


class Rounded(Points):
    """Nothing is chosen by integers that are computed with."""

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        logits = self.mask(x)
        whole = torch.as_tensor((logits.detach().numpy() * 1000).astype("int64"))
        return (whole * 0.001 + x).square().mean() + logits.mean()


@pytest.mark.parametrize("cls", [Weighted, Rounded])
def test_what_is_computed_with_is_no_choice(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X, MASKS)
    assert not report.ok, str(report)
    assert report.cuts and report.wrong, str(report)
