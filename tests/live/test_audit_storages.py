"""``trainify.audit``: the memory of tensors, which is resized, shared and set."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x).tanh()) + self.seen).square().mean()

    def between(self, y: Tensor) -> Tensor:
        return y


class Resized(Layers):
    def between(self, y):
        out = torch.zeros(1)
        out.resize_(12, 8)
        torch.cat([y.detach(), y.detach()], out=out)
        return y + 0 * out[:6]


@pytest.mark.parametrize("cls", [Layers, Resized])
def test_memory_can_be_resized_during_it_and_afterwards(cls: type[nn.Module]) -> None:
    """As FSDP does with what it shards; a tensor that NumPy has seen cannot be."""
    model, x = cls(), X.clone()
    assert trainify.audit(model, x).ok
    for tensor in (x, *model.parameters(), *model.buffers()):
        assert tensor.untyped_storage().resizable()


class Set(Layers):
    def between(self, y):
        out = torch.empty(0)
        out.set_(y.untyped_storage(), 0, y.shape, y.stride())
        return out


class SetLater(Layers):
    def between(self, y):
        out, other = torch.empty(0), y.detach()
        out.set_(other)
        return out


class Copied(Layers):
    """Which is a leaf, in the same memory."""

    def between(self, y):
        return copy.copy(y)


@pytest.mark.parametrize(
    ("cls", "line"),
    [(Set, "out.set_(y.un"), (SetLater, "y.detach()\n    "), (Copied, "copy.copy(y)")],
)
def test_what_is_set_has_a_place(cls: type[nn.Module], line: str) -> None:
    report = trainify.audit(cls(), X)
    assert report.missing == ("a.weight", "a.bias"), str(report)
    (cut,) = report.cuts
    text = Path(__file__).read_text()
    assert cut.line == text[: text.index(line)].count("\n") + 1
    assert cut.parameters and "set_" not in vars(Tensor)
