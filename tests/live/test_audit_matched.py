"""``trainify.audit``: what is only chosen by values, as predictions are matched with targets."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trainify
from trainify.live.audit.digest import digest

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


class Matched(nn.Module):
    """Each prediction is held against the target that it is given, as a cost has it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)
        self.register_buffer("targets", torch.randn(6, 4).sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        boxes = self.b(torch.tanh(self.a(x))).sigmoid()
        chosen = self.targets[self.order(boxes)]
        left, top, width, height = chosen.unbind(-1)
        corners = torch.stack([left, top, left + 0.5 * width, top + 0.5 * height], dim=-1)
        return (boxes - corners).square().sum()

    @torch.no_grad()
    def order(self, boxes: Tensor) -> Tensor:
        cost = np.asarray(torch.cdist(boxes, self.targets))
        taken = []
        for row in cost:
            taken.append(min(set(range(len(row))) - set(taken), key=lambda i: row[i]))
        return torch.as_tensor(taken)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_matched_is_right(seed: int) -> None:
    report = trainify.audit(Matched(seed), X)
    assert report.ok, str(report)


class Weighed(Matched):
    """The cost itself is in the loss, and comes back as a constant."""

    def forward(self, x: Tensor) -> Tensor:
        boxes = self.b(torch.tanh(self.a(x))).sigmoid()
        with torch.no_grad():
            cost = np.asarray(torch.cdist(boxes, self.targets))
        return super().forward(x) * torch.from_numpy(cost.min(1)).mean()


def test_a_cost_in_the_loss_is_told() -> None:
    report = trainify.audit(Weighed(), X)
    assert not report.ok and set(report.wrong) == {"a.weight", "a.bias", "b.weight", "b.bias"}


class Ranked(nn.Module):
    """A scale that takes one of two values, by a comparison, far from where it changes."""

    def __init__(self, size: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        scale = 1.0 + self.size * (h.abs().max().item() * 1.3 > self.limit)
        return scale * self.b(torch.tanh(h)).square().mean() + 4


@pytest.mark.parametrize("size", [3e-4, 3e-3, 3e-2])
def test_small_steps_are_steps(size: float) -> None:
    model = Ranked(size)
    model.limit = model.a(X).abs().max().item() * 1.5
    assert trainify.audit(model, X).ok


class Ties(nn.Module):
    """Two values are the same of which the larger one is taken."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(8, 8)
        self.token = nn.Parameter(torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.token.max(0).values + x).square().mean()


def test_a_kink_where_the_parameters_are_accuses_nobody() -> None:
    report = trainify.audit(Ties(), X)
    assert report.ok
    assert not any("is not the derivative" in each for each in report.notes), report.notes


@pytest.mark.parametrize("shape", [(6, 8), (40, 33), (3, 500, 16), (300, 2000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_rows_in_another_order_are_another_value(shape: tuple[int, ...], dtype) -> None:
    tensor = torch.randn(shape).mul(100).to(dtype)
    assert digest(tensor) == digest(tensor.clone())
    assert digest(tensor) != digest(tensor.flip(0))
    across = tensor.transpose(0, -1)
    assert digest(across) == digest(across.clone(memory_format=torch.preserve_format))
    assert digest(tensor[..., 0]) != digest(tensor[..., 0].flip(0))
