"""What a step keeps for the next one outside of the model: in globals, closures, classes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from kept_steps import D, Model, assert_named_at_its_line, assert_trains_on
from torch import Tensor

import trainify
from trainify.live.audit.run import audit

CACHE = [torch.zeros(16, D) for _ in range(2)]
LOOKED_AT = [torch.zeros(16, D)]
LAST: Tensor | None = None


class Pool:
    """What a server keeps of all its requests."""

    def __init__(self) -> None:
        self.slots = torch.zeros(16, D)
        self.log: list[Tensor] = []


POOL = Pool()
POOLS = {"a": Pool()}
FREED = [torch.zeros(16, D)]


def attended(h: Tensor, past: Tensor) -> Tensor:
    return torch.softmax(h @ past.T, -1) @ past


class InAList(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        CACHE[1][: len(x)] = h  # <- cut
        return self.head(attended(h, CACHE[1]))


class InAGlobal(Model):
    def forward(self, x: Tensor) -> Tensor:
        global LAST
        h = self.fc(x)
        if LAST is not None:
            h = h + LAST.mean(0)
        h = h.tanh()  # <- cut
        LAST = h
        return self.head(h)


class InAnObject(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        POOL.slots[: len(x)] = h  # <- cut
        return self.head(attended(h, POOL.slots))


class InTheClass(Model):
    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        if InTheClass.last is not None:
            h = h + InTheClass.last.mean(0)
        h = h.tanh()  # <- cut
        InTheClass.last = h
        return self.head(h)


def remembered(h: Tensor) -> Tensor:
    POOLS["a"].log.append(h)
    return torch.cat(POOLS["a"].log)


class ByAFunction(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)  # <- cut
        return self.head(attended(h, remembered(h)))


def remembering() -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
    log: list[Tensor] = []

    def all_so_far(h: Tensor) -> Tensor:
        log.append(h)
        return torch.cat(log)

    return all_so_far, log


all_so_far, REMEMBERED = remembering()


class InAClosure(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)  # <- cut
        return self.head(attended(h, all_so_far(h)))


class Detached(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x) + CACHE[0].mean(0)
        CACHE[0][: len(x)] = h.detach()
        return self.head(h)


class LookedAt(Model):
    """Kept with its history, for whoever wants to look at it; the next step makes it anew."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        LOOKED_AT[0] = h
        POOL.log[:] = [h.tanh()]
        return self.head(h)


def reset_cache() -> None:
    FREED[0] = torch.zeros(16, D)


class Freed(Model):
    """Between steps, a training loop resets it."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        FREED[0][: len(x)] = h
        return self.head(attended(h, FREED[0]))


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    """What a test of a step has left would be in the way of the next."""
    global LAST
    LAST = InTheClass.last = None
    for each in (CACHE, LOOKED_AT, FREED):
        each[:] = [torch.zeros(16, D) for _ in each]
    for pool in (POOL, POOLS["a"]):
        vars(pool).update(vars(Pool()))
    REMEMBERED.clear()


CASES = {
    InAList: "CACHE",
    InAGlobal: "LAST",
    InAnObject: "POOL",
    InTheClass: "InTheClass",
    ByAFunction: "POOLS",
    InAClosure: "",
}


@pytest.mark.parametrize("cls", CASES)
def test_a_graph_kept_outside_is_named_at_its_line(cls: type[Model]) -> None:
    report = assert_named_at_its_line(cls)
    assert report.cuts[0].message.startswith(CASES[cls] or "What is computed here is kept")


@pytest.mark.parametrize("cls", [Detached, LookedAt])
def test_what_is_kept_outside_and_not_gone_back_through(cls: type[Model]) -> None:
    assert_trains_on(cls)


def test_what_a_function_lets_go_of() -> None:
    report = audit(Freed(), torch.randn(3, D), proof=False)
    assert report.ok, str(report)
    (note,) = report.notes
    assert note.startswith("FREED keeps its graph") and "reset_cache()" in note


COUNTED: list[int] = []
VIEWED = torch.zeros(2, 16, D)
FIRST = VIEWED[0]


class Counting(Model):
    """Keeps what is no tensor, as a library that it loads."""

    def forward(self, x: Tensor) -> Tensor:
        COUNTED.append(len(COUNTED))
        return self.head(self.fc(x))


class InAView(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        FIRST[: len(x)] = h.detach()
        return self.head(h)


@pytest.mark.parametrize("cls", [*CASES, LookedAt, InAView])
def test_what_is_held_outside_is_put_back(cls: type[Model]) -> None:
    def all_held() -> list[Tensor | None]:
        pools = [each for p in (POOL, POOLS["a"]) for each in (p.slots, *p.log)]
        return [*CACHE, *LOOKED_AT, VIEWED, LAST, InTheClass.last, *REMEMBERED, *pools]

    held = all_held()
    before = [each if each is None else each.detach().clone() for each in held]
    histories = [each if each is None else each.grad_fn for each in held]
    audit(cls(), torch.randn(3, D), proof=False)
    after = all_held()
    assert len(after) == len(held) and all(a is b for a, b in zip(after, held, strict=True))
    for values, each in zip(before, after, strict=True):
        assert (values is None) is (each is None)
        assert values is None or each is None or torch.equal(values, each.detach())
    assert histories == [each if each is None else each.grad_fn for each in after]


def test_what_is_no_tensor_stays() -> None:
    audit(Counting(), torch.randn(3, D), proof=False)
    assert COUNTED


def test_trainify_does_not_accept_what_trains_once() -> None:
    x = torch.randn(3, D)
    with pytest.raises(trainify.NotTrainable, match="LAST is kept for the next step"):
        trainify.trainify(InAGlobal(), x)


@pytest.mark.parametrize("cls", [InAList, InAnObject])
def test_what_is_written_and_read_of_a_global_is_read_fresh(cls: type[Model]) -> None:
    """By whatever name: that it is a cache shows the second step."""
    model, x = cls(), torch.randn(3, D)
    CACHE[1] = POOL.slots = held = torch.rand(16, D)
    before = held.clone()
    trainify.trainify(model, x)
    assert torch.equal(held, before)
    for _ in range(3):
        model.zero_grad()
        model.step(x)
    gradients = [p.grad for p in model.parameters()]
    assert held.grad_fn is None and torch.equal(held[:3], model.fc(x))
    h = model.fc(x)
    past = torch.cat((h, before[3:]))
    loss = F.mse_loss(model.head(attended(h, past)), torch.zeros(3, D))
    right = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(gradients, list(right))
    trainify.restore(model)
