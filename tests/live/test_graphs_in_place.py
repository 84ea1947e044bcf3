"""``trainify.fx.rewrite``: writes of PyTorch's own over what backward needs."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trainify


def doubled(q: Tensor) -> Tensor:
    k = torch.sigmoid(q)
    k.mul_(2)
    return k


def normed(q: Tensor) -> Tensor:
    k = q.exp()
    k.div_(k.sum(-1, keepdim=True))
    return k


def masked(q: Tensor) -> Tensor:
    k = q.softmax(-1)
    k.select(1, 0).zero_()
    return k


def squared(q: Tensor) -> Tensor:
    y = q * q
    q.mul_(2)
    return y + q


def halves(q: Tensor) -> Tensor:
    a, b = q.chunk(2, -1)
    a.mul_(2)
    return a * b


def through_a_view(q: Tensor) -> Tensor:
    k = torch.sigmoid(q)
    t = k.view(-1, 2, 4)
    t.select(1, 1).add_(1.0)
    return k


def read_before(q: Tensor) -> Tensor:
    k = torch.tanh(q)
    y = k.view(-1).square().sum() + k.sin().sum()
    k.add_(1).mul_(3)
    return k * y


def activated(q: Tensor) -> Tensor:
    y = q * q.cos()
    return y + F.relu(q, inplace=True)


def kept_in_place(q: Tensor) -> Tensor:
    q.exp_()
    q.mul_(2)
    return q


def multiplied(q: Tensor) -> Tensor:
    y = q.cos()
    y.mul_(q)
    q.add_(1)
    return y + q


def by_itself(q: Tensor) -> Tensor:
    q.mul_(q)
    return q


def through_what_it_returns(q: Tensor) -> Tensor:
    half = q.view(6, 8)[:, :4]
    y = q.add_(1)
    z = half.square().sum()
    y.mul_(2)
    return y * z


def halves_of_what_was_written(q: Tensor) -> Tensor:
    q = q.add_(1)
    a, b = q.chunk(2, -1)
    a.mul_(2)
    return a * b


FORMS: dict[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = {
    doubled: lambda q: 2 * torch.sigmoid(q),
    normed: lambda q: q.softmax(-1),
    masked: lambda q: torch.cat((torch.zeros_like(q[:, :1]), q.softmax(-1)[:, 1:]), 1),
    squared: lambda q: q * q + 2 * q,
    halves: lambda q: 2 * q[:, :4] * q[:, 4:],
    through_a_view: lambda q: torch.sigmoid(q) + torch.cat((torch.zeros(4), torch.ones(4))),
    read_before: lambda q: (q.tanh() + 1) * 3 * (q.tanh().square() + q.tanh().sin()).sum(),
    kept_in_place: lambda q: 2 * q.exp(),
    multiplied: lambda q: q.cos() * q + q + 1,
    by_itself: torch.square,
    through_what_it_returns: lambda q: 2 * (q + 1) * (q + 1)[:, :4].square().sum(),
    halves_of_what_was_written: lambda q: 2 * (q + 1)[:, :4] * (q + 1)[:, 4:],
    activated: lambda q: q * q.cos() + torch.relu(q),
}
X = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.q = nn.Linear(8, 8, dtype=torch.float64)
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self.q(x))


def assert_equal(rewritten: nn.Module, right: nn.Module, x: Tensor) -> None:
    """In what they compute, and in every gradient."""
    out, expected = rewritten(x), right(x)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    found = dict(rewritten.named_parameters())
    for name, parameter in right.named_parameters():
        torch.testing.assert_close(found[name].grad, parameter.grad)


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_is_saved_is_not_overwritten(form: Callable[[Tensor], Tensor], exported: bool) -> None:
    model, right = Model(form), Model(FORMS[form])
    with pytest.raises(RuntimeError, match="inplace"):
        model(X).square().sum().backward()
    with torch.no_grad():
        graph = torch.export.export(model, (X,)) if exported else torch.fx.symbolic_trace(model)
    cuts = trainify.fx.check(graph)
    assert {(cut.cause, cut.kind, cut.parameters) for cut in cuts} == {
        (trainify.Cause.SAVED, "wrong", ("q.bias", "q.weight"))
    }
    rewritten = trainify.fx.rewrite(graph)
    assert trainify.fx.check(rewritten) == ()
    with torch.no_grad():
        torch.testing.assert_close(rewritten(X), model(X), rtol=0, atol=0)
    assert_equal(rewritten, right, X)


def test_what_is_not_saved_is_not_copied() -> None:
    def added(q: Tensor) -> Tensor:
        y = q + 1
        q.mul_(2)
        return y + q

    rewritten = trainify.fx.rewrite(torch.fx.symbolic_trace(Model(added)))
    assert not rewritten.graph.find_nodes(op="call_method", target="clone")


def stopped(q: Tensor) -> Tensor:
    scale = q.detach().exp()
    y = scale.sum() + q
    scale.mul_(2)
    return y * scale


def dead(q: Tensor) -> Tensor:
    y = q * 2
    q.exp_()
    q.mul_(2)
    return y.exp()


def evaluated(q: Tensor) -> Tensor:
    return F.dropout(q.relu(), training=False, inplace=True)


def compared(q: Tensor) -> Tensor:
    mask = (q > 0).to(q.dtype)
    y = mask.square() + q.sum(-1, keepdim=True)
    mask.mul_(2)
    return y


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("form", [stopped, dead, evaluated, compared], ids=lambda f: f.__name__)
def test_what_backward_does_not_need(form: Callable[[Tensor], Tensor], exported: bool) -> None:
    model = Model(form)
    model(X).square().sum().backward()
    graph = torch.export.export(model, (X,)) if exported else torch.fx.symbolic_trace(model)
    cuts = trainify.fx.check(graph)
    assert trainify.Cause.SAVED not in [cut.cause for cut in cuts]


def test_the_write_is_named() -> None:
    (cut,) = trainify.fx.check(torch.export.export(Model(normed), (X,)))
    assert "self.form(self.q(x))" in linecache.getline(cut.path, cut.line), "as far as is known"
    assert cut.message == "div_ writes over what exp keeps for backward, which raises."


ALIASES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_": lambda h: h.relu_(),
    "F.relu": lambda h: F.relu(h, inplace=True),
    "torch.relu_": lambda h: torch.relu_(h),
    "mul_": lambda h: h.mul_(2),
    "silu": lambda h: F.silu(h, inplace=True),
    "dropout in eval": lambda h: F.dropout(h, 0.1, False),
    "requires_grad_": lambda h: h.requires_grad_(),
    "atleast_2d": lambda h: torch.atleast_2d(h),
    "resolve_conj": lambda h: h.resolve_conj(),
}


class Added(nn.Module):
    """A fused op writes into what is another name of ``h``, which is read afterwards."""

    def __init__(self, alias: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.q = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.rand(8))
        self.alias = alias

    def forward(self, x: Tensor) -> Tensor:
        h, residual = self.q(x), x.clone()
        alias = self.alias(h)
        torch.ops._C.fused_add_rms_norm(alias, residual, self.weight, 1e-6)
        return h * residual


class Right(Added):
    def forward(self, x: Tensor) -> Tensor:
        residual = self.alias(self.q(x)).reshape(x.shape) + x
        return F.rms_norm(residual, (8,), self.weight, 1e-6) * residual


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
def test_what_a_write_returns_is_what_it_wrote(alias: Callable[[Tensor], Tensor]) -> None:
    graph = torch.fx.symbolic_trace(Added(alias))
    assert {(cut.cause, cut.op) for cut in trainify.fx.check(graph)} == {
        (trainify.Cause.IN_PLACE, "_C::fused_add_rms_norm")
    }
    rewritten = trainify.fx.rewrite(graph)
    assert trainify.fx.check(rewritten) == ()
    assert_equal(rewritten, Right(alias), X.float())
