"""What backward refuses although no value shows it: writes of the same values, inference tensors."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify


class Base(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)


class Temperature(Base):
    def forward(self, x: Tensor) -> Tensor:
        p = torch.softmax(self.a(x), -1)
        p.div_(1.0)
        return self.b(p)


class Mask(Base):
    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.a(x))
        p.masked_fill_(torch.zeros(8, dtype=torch.bool), 0.0)
        return self.b(p)


class Clamp(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)).clamp_(-10, 10))


class Inplace(Base):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU6(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(torch.sigmoid(self.a(x))))


class Weight(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(F.linear(x, self.a.weight))
        y = self.b(h)
        with torch.no_grad():
            self.b.weight.mul_(1.0)
        return y


class Inference(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            mask = (x > 0).float()
        return self.b(self.a(x) * mask)


REFUSED = [Temperature, Mask, Clamp, Inplace, Weight, Inference]


@pytest.mark.parametrize("model", REFUSED)
def test_the_audit_says_what_training_would_raise(model: type[Base]) -> None:
    net, x = model(), torch.randn(5, 8)
    with pytest.raises(RuntimeError) as raised:
        net(x).square().mean().backward()
    net.zero_grad()
    report = trainify.audit(net, x)
    assert not report.ok
    assert str(raised.value).partition(": [")[0] in report.error


class Same(Base):
    """Writes that nothing needs the old value of, and what inference_mode keeps to itself."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h.mul_(1.0)
        p = torch.relu(h)
        q = p.exp()
        q.detach().add_(0)  # exp has saved q, and nothing goes back through it
        with torch.inference_mode():
            self.scale = float(x.abs().max())
        return self.b(p) / self.scale


def test_what_backward_does_not_refuse_is_right() -> None:
    net, x = Same(), torch.randn(5, 8)
    net(x).sum().backward()
    assert trainify.audit(net, x).ok


def test_a_temperature_of_one_is_rewritten() -> None:
    net, x = Temperature(), torch.randn(5, 8)
    right = torch.autograd.grad(net.b(torch.softmax(net.a(x), -1)).sum(), [*net.parameters()])
    trainify.trainify(net, x)
    found = torch.autograd.grad(net(x).sum(), [*net.parameters()])
    torch.testing.assert_close(found, right)


class Remembered(Base):
    """A table that is made under inference_mode, once."""

    @functools.cache  # noqa: B019
    def table(self, n: int) -> Tensor:
        with torch.inference_mode():
            return torch.linspace(0, 1, n * 8).view(n, 8).cos()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) * self.table(len(x)))


@functools.lru_cache(maxsize=2)
@torch.inference_mode()
def table(n: int) -> tuple[Tensor, float]:
    return torch.linspace(0, 1, n * 8).view(n, 8).cos(), 1.0


def looked_up(x: Tensor) -> Tensor:
    return table(len(x))[0]


class RememberedBeside(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) * looked_up(x))


@pytest.mark.parametrize("model", [Remembered, RememberedBeside])
@pytest.mark.parametrize("served", [False, True])
def test_a_table_that_inference_mode_has_made_and_a_cache_keeps(
    model: type[Base], served: bool
) -> None:
    net, x = model(), torch.randn(5, 8)
    table.cache_clear()
    if served:
        with torch.no_grad():
            net(x)
    report = trainify.audit(net, x)
    line = model.forward.__code__.co_firstlineno + 1
    assert "Inference tensors" in report.error and f"{__file__}:{line}" in report.error
    with pytest.raises(RuntimeError, match="Inference tensors"):  # the audit has left none of its
        net(x).sum().backward()
    with pytest.raises(trainify.NotTrainable, match=f":{line}"):
        trainify.trainify(net, x)


class Plain(Base):
    """Remembered, and made anew by each run; what is no tensor is made once."""

    @functools.cache  # noqa: B019
    def table(self, n: int) -> Tensor:
        return torch.linspace(0, 1, n * 8).view(n, 8).cos()

    @functools.cache  # noqa: B019
    def compiled(self) -> object:
        COMPILED.append(self)
        return torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.compiled()(self.a(x) * self.table(len(x))))


COMPILED: list[Plain] = []


def test_functions_that_remember_are_no_fault() -> None:
    net, x = Plain(), torch.randn(5, 8)
    assert trainify.audit(net, x).ok
    assert len(COMPILED) == 1


class MadeAnew(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(x @ nn.Parameter(self.a.weight))


def test_a_parameter_that_is_made_anew_in_each_forward() -> None:
    net, x = MadeAnew(), torch.randn(5, 8)
    before = net.a.weight.detach().clone()
    report = trainify.audit(net, x)
    (cut,) = report.cuts
    assert report.missing == ("a.weight",) and not report.error
    assert "torch.nn.Parameter makes a leaf" in cut.message
    assert cut.line == MadeAnew.forward.__code__.co_firstlineno + 1
    assert torch.equal(net.a.weight, before)
