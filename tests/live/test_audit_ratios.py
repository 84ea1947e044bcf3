"""``trainify.audit``: a value that is divided by itself, stopped, on whatever way it comes there."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def stopped(x: Tensor) -> Tensor:
    return x.detach()


def clipped(log: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    ratio = (log - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        logs = self.a(self.b(x).tanh()).log_softmax(-1)
        return self.loss(logs[:, 0], x[:, 0], x[:, 1] > 0)


class Masked(Policy):
    def loss(self, log, advantage, mask):
        old = log.detach().clone()
        return clipped(log[mask], old[mask], advantage[mask])


class Selected(Policy):
    def loss(self, log, advantage, mask):
        old = torch.masked_select(stopped(log), mask)
        return clipped(torch.masked_select(log, mask), old, advantage[mask])


class Filled(Policy):
    def loss(self, log, advantage, mask):
        with torch.no_grad():
            old = torch.where(mask, log, 0.0)
        return clipped(torch.where(mask, log, 0.0), old, advantage)


class PlusZero(Policy):
    def loss(self, log, advantage, mask):
        old = log.detach()
        old = old + 0
        return clipped(log, old, advantage)


class OfSequences(Policy):
    def loss(self, log, advantage, mask):
        both, old = torch.stack([log, log * 2], 1), torch.stack([stopped(log), stopped(log * 2)], 1)
        return clipped(both.sum(-1), old.sum(-1), advantage)


class Divided(Policy):
    def loss(self, log, advantage, mask):
        p, old = log.exp(), log.exp().detach()[mask]
        return -(p[mask] / old * advantage[mask]).mean()


class InPlace(Policy):
    def loss(self, log, advantage, mask):
        old, ratio = log.data.clone(), log * 1
        ratio -= old
        return -(ratio.exp() * advantage).mean()


class WithMetrics(Policy):
    def loss(self, log, advantage, mask):
        old = log.detach()
        return {"loss": clipped(log, old, advantage), "old": old.mean()}


class ByNumPy(Policy):
    def loss(self, log, advantage, mask):
        return clipped(log, torch.from_numpy(log.detach().cpu().numpy().copy()), advantage)


class PickedByNumPy(Policy):
    def loss(self, log, advantage, mask):
        old = np.asarray(log.detach())[mask.numpy()]
        return clipped(log[mask], torch.as_tensor(old), advantage[mask])


class ByRows(Policy):
    def loss(self, log, advantage, mask):
        rollout = [{"old": float(each)} for each in log.detach()]
        old = torch.tensor([each["old"] for each in rollout])
        return clipped(log, old, advantage)


class ByAnArray(Policy):
    def loss(self, log, advantage, mask):
        rollout = np.zeros((2, 6), dtype=np.float32)
        rollout[1] = log.tolist()
        return clipped(log, torch.from_numpy(rollout)[1], advantage)


class Written(Policy):
    def loss(self, log, advantage, mask):
        rollout = torch.zeros(2, 6)
        rollout[0].copy_(log.detach())
        return clipped(log, rollout[0], advantage)


class WrittenByRows(Policy):
    def loss(self, log, advantage, mask):
        rollout = torch.zeros(6)
        for i in range(6):
            rollout[i] = log[i].detach()
        return clipped(log, rollout, advantage)


class WrittenWithoutGradients(Policy):
    def loss(self, log, advantage, mask):
        rollout = torch.zeros(6)
        with torch.no_grad():
            rollout.copy_(log)
        return clipped(log, rollout, advantage)


class Buffer(Policy):
    def __init__(self):
        super().__init__()
        self.register_buffer("rollout", torch.zeros(6))

    def loss(self, log, advantage, mask):
        self.rollout[:] = log.detach()
        return clipped(log, self.rollout, advantage)


class BufferData(Buffer):
    """Written past autograd, which does not count it."""

    def loss(self, log, advantage, mask):
        self.rollout.data.copy_(log.data)
        return clipped(log, self.rollout, advantage)


class BufferDataByRows(Buffer):
    def loss(self, log, advantage, mask):
        for i in range(6):
            self.rollout.data[i] = log.data[i]
        return clipped(log[mask], self.rollout[mask], advantage[mask])


class BufferDataWithoutGradients(Buffer):
    def loss(self, log, advantage, mask):
        with torch.no_grad():
            self.rollout.data.copy_(log)
        return clipped(log, self.rollout, advantage)


class BufferSet(Buffer):
    def loss(self, log, advantage, mask):
        self.rollout.set_(log.detach().clone())
        return clipped(log, self.rollout, advantage)


class BufferWithOtherData(Buffer):
    def loss(self, log, advantage, mask):
        self.rollout.data = log.data
        return clipped(log, self.rollout, advantage)


class OfASequence(Policy):
    """The ratio of a sequence, with the gradient of each token."""

    def loss(self, log, advantage, mask):
        mean = (log + 2.0).mean(0, keepdim=True)
        ratio = (mean.detach() + log - log.detach()).exp()
        return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


@pytest.mark.parametrize(
    "cls",
    [
        OfASequence, Masked, Selected, Filled, PlusZero, OfSequences, Divided, InPlace, WithMetrics, ByNumPy,
        PickedByNumPy, ByRows, ByAnArray, Written, WrittenByRows, WrittenWithoutGradients, Buffer,
        BufferData, BufferDataByRows, BufferDataWithoutGradients, BufferSet, BufferWithOtherData,
    ],
)  # fmt: skip
def test_it_is_meant(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)
    assert not report.missing and not report.wrong


class ValueToo(Policy):
    """The same is a value as well, which lacks its gradient."""

    def loss(self, log, advantage, mask):
        old = log.detach().clone()
        ratio = (log[mask] - old[mask]).exp()
        return (ratio * old[mask].tanh() * advantage[mask]).mean()


class OfAnother(Policy):
    """What has no gradient is made by a layer of its own."""

    def loss(self, log, advantage, mask):
        other = self.c(log[:, None].expand(-1, 8)).mean(-1)
        return -((other.detach() + log - log.detach()).tanh() * advantage).mean() + other.mean()


class OfMore(Policy):
    def loss(self, log, advantage, mask):
        other = log + self.b.weight.mean()
        return -((other.detach() + log - log.detach()).tanh() * advantage).mean()


class Integers(Policy):
    def loss(self, log, advantage, mask):
        old = log.detach()
        small = (old * 100).to(torch.int32)
        return ((log[mask] - old[mask]).exp() + log[mask] * (small / 100)[mask]).square().mean()


class Other(Policy):
    def loss(self, log, advantage, mask):
        old, scale = log.detach(), log.square().detach()
        return ((log[mask] - old[mask]).exp() * scale[mask] * log[mask]).tanh().mean()


class Output(Policy):
    """What is returned goes on to who knows where."""

    def loss(self, log, advantage, mask):
        old = log.detach().clone()
        return (log[mask] - old[mask]).exp() * log[mask], old


class MeanOfOne(Policy):
    """Of one row the mean is the row; it is taken of what it divides."""

    def forward(self, x):
        h = self.b(x[:1])
        return self.a(h / h.mean(0, keepdim=True).detach()).square().mean()


class Scaled(Policy):
    """Half of it is taken away, and the gradient of that half lost."""

    def forward(self, x):
        h = self.b(x)
        return self.a(torch.sub(h, stopped(h), alpha=0.5)).square().mean()


class EqualInputs(Policy):
    """Two results are equal because they were given the same."""

    def forward(self, x):
        return self.a(self.b(x) - stopped(self.b(x.clone())) + x).square().mean()


class EqualRows(Policy):
    """As above, of a table."""

    def forward(self, x):
        rows = torch.arange(6)
        embedded = nn.functional.embedding(rows, self.b.weight)
        other = stopped(nn.functional.embedding(rows.clone(), self.b.weight))
        return self.a(embedded - other + x).square().mean()


class Router(Policy):
    def forward(self, x):
        weights = self.b(x).softmax(-1)
        weights = stopped(weights).clone()[:]
        return self.a(x * weights).square().mean()


class Residual(Policy):
    def forward(self, x):
        h = self.a(x)
        more = torch.stack([stopped(self.b(h))])[0]
        return self.c(h + more).square().mean()


class ValueByNumPy(Policy):
    """As the same, and as a value."""

    def loss(self, log, advantage, mask):
        old = torch.from_numpy(log.detach().numpy().copy())
        return clipped(log, old, advantage) + (old.sin() * log).mean()


class OneOfTwo(Policy):
    def loss(self, log, advantage, mask):
        old, scale = torch.tensor(log.tolist()), torch.tensor((log * 2).tolist())
        return clipped(log, old, advantage) + (scale * log).sin().mean()


class NumberToo(Policy):
    def loss(self, log, advantage, mask):
        old = torch.tensor(log.tolist())
        mean = log.mean().item()
        return clipped(log, old, advantage) * mean


class WrittenAndRead(Policy):
    def loss(self, log, advantage, mask):
        rollout = torch.zeros(6)
        rollout.copy_(log.detach())
        return clipped(log, rollout, advantage) + (rollout.sin() * log).mean()


class WrittenBeside(Policy):
    def loss(self, log, advantage, mask):
        rollout = torch.zeros(2, 6)
        rollout[0], rollout[1] = log.detach(), log.square().detach()
        return clipped(log, rollout[0], advantage) + (rollout[1] * log).sin().mean()


class ReadThroughAView(Policy):
    def loss(self, log, advantage, mask):
        rollout = torch.zeros(2, 6)
        flat, old = rollout.view(-1), rollout[0]
        old.copy_(log.detach())
        return clipped(log, old, advantage) + (flat[:6] * log).sin().mean()


class BufferDataToo(Buffer):
    def loss(self, log, advantage, mask):
        self.rollout.data.copy_(log.data)
        return clipped(log, self.rollout, advantage) + (self.rollout.sin() * log).mean()


class OtherBufferData(Buffer):
    """What is written is not what it is taken from."""

    def loss(self, log, advantage, mask):
        self.rollout.data.copy_(2 * log.data)
        return clipped(log, self.rollout, advantage)


class Term(Policy):
    """It is a term of the loss as well, which teaches nothing."""

    def loss(self, log, advantage, mask):
        old = log.detach()
        return clipped(log, old, advantage) + (old.exp() * advantage).mean()


class BufferDataAsATerm(Buffer):
    def loss(self, log, advantage, mask):
        self.rollout.data.copy_(log.data)
        return clipped(log, self.rollout, advantage) + (self.rollout.exp() * advantage).mean()


@pytest.mark.parametrize(
    "cls",
    [
        BufferDataToo,
        OtherBufferData,
        Term,
        BufferDataAsATerm,
        OfAnother,
        OfMore,
        ValueToo,
        Integers,
        Other,
        Output,
        MeanOfOne,
        Scaled,
        EqualInputs,
        EqualRows,
        Router,
        Residual,
        ValueByNumPy,
        OneOfTwo,
        NumberToo,
        WrittenAndRead,
        WrittenBeside,
        ReadThroughAView,
    ],
)
def test_it_is_not(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert not report.ok, str(report)
    assert "b.weight" in {*report.missing, *report.wrong}
