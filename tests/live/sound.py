"""Small models whose gradients are right, however they look."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

D = 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(D) + 0.5)


class Dropout(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * self.weight, 0.3, training=self.training)


class OwnGenerator(Layer):
    """Noise from a generator that the model keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + torch.randn(x.shape, generator=self.generator)


class HostNoise(Layer):
    def forward(self, x: Tensor) -> Tensor:
        noise = numpy.random.standard_normal(D).astype("float32")
        return x * self.weight * random.uniform(0.5, 2) + torch.from_numpy(noise)


class LayerDrop(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return x if random.random() < 0.5 else x * self.weight


class Norms(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(D), nn.LayerNorm(D), nn.RMSNorm(D), nn.BatchNorm1d(D))


class FrozenStatistics(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(D).eval(), nn.Linear(D, D))


class NormedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.norm(x).sin())


class Checkpointed(Layer):
    def scaled(self, x: Tensor) -> Tensor:
        return F.dropout((x * self.weight).sin(), 0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.scaled, x, use_reentrant=False)
        return checkpoint(self.scaled, x, use_reentrant=True)


class CheckpointedSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fcs = nn.Sequential(*(nn.Linear(D, D) for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.fcs, 2, x, use_reentrant=True)


class OneHot(Layer):
    def forward(self, x: Tensor) -> Tensor:
        chosen = F.one_hot(x.argmax(-1), D).to(x.dtype)
        return x * self.weight + chosen * x


class Sampled(Layer):
    """What is chosen under no_grad is chosen by values; nothing flows through a choice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(D, D)

    @torch.no_grad()
    def choose(self, x: Tensor) -> Tensor:
        return (x * self.weight).argmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(self.choose(x)) + x * self.weight


class Masked(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).masked_fill(x > 0.5, 0.0) + torch.where(x < 0, x, x * x)


class TopK(Layer):
    def forward(self, x: Tensor) -> Tensor:
        values, indices = (x * self.weight).topk(4, -1)
        return torch.zeros_like(x).scatter(-1, indices, values.softmax(-1)) + x


class Gumbel(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.gumbel_softmax(x * self.weight, hard=True) * x


class StraightThrough(Layer):
    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        return x + (x.round() - x).detach()


def ternary(weight: Tensor) -> Tensor:
    scale = weight.abs().mean()
    return (weight / scale).round().clamp(-1, 1) * scale.detach()


class Ternary(Layer):
    """What is stopped before something that is stopped on purpose."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + (ternary(self.weight) - self.weight).detach()
        return x * weight


class SaidToStop(Layer):
    def forward(self, x: Tensor) -> Tensor:
        target = x.detach()  # trainify: stop-grad
        return x * self.weight - target


class SaidToIgnore(Layer):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():  # trainify: ignore[TRN202]
            target = x * 2
        return x * self.weight - target


class Logging(Layer):
    """What is looked at, printed and kept is not what is computed with."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        self.norm = y.detach().norm().item()
        self.last = y.detach().cpu().numpy().tolist()
        self.kept = y.data
        with torch.no_grad():
            self.share = (y > 0).float().mean()
        if float(y.abs().max()) > 1e6 or y.isnan().any():
            raise ValueError("too large")
        return y


class MaximumSubtracted(Layer):
    """A softmax does not depend on what is subtracted from all of its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        e = (x - x.amax(-1, keepdim=True).detach()).exp()
        return e / e.sum(-1, keepdim=True)


class MovingAverage(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        y = (x - self.mean) * self.weight
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return y


class Codebook(Layer):
    """Vector quantization, its codes learned by averaging."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(8, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        nearest = torch.cdist(x, self.codes).argmin(-1)
        quantized = self.codes[nearest]
        if self.training:
            with torch.no_grad():
                self.codes.data[nearest] = self.codes[nearest] * 0.9 + x * 0.1
        return x + (quantized - x).detach()


class Constrained(Layer):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(0.6, 1.2)
        self.weight.data.clamp_(0.7, 1.1)
        return x * self.weight


class Spectral(nn.Sequential):
    def __init__(self) -> None:
        new = nn.utils.parametrizations
        super().__init__(
            new.spectral_norm(nn.Linear(D, D)),
            nn.utils.spectral_norm(nn.Linear(D, D)),
            new.weight_norm(nn.Linear(D, D)),
        )


class Rotary(Layer):
    """A table under no_grad depends on no parameter."""

    @torch.no_grad()
    def table(self, x: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(len(x)).float(), 1 / 100 ** torch.linspace(0, 1, D // 2))
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.table(x)
        a, b = (x * self.weight).chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class InPlace(Layer):
    """In place where autograd follows."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        y = y.add_(1).relu_() * x
        y[:, :4] *= 2
        y[:, 4:8] = x[:, :4]
        out = torch.empty_like(y)
        out[:] = y
        out.copy_(out * 2)
        return out


class Cache(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, D))

    def forward(self, x: Tensor) -> Tensor:
        cache = self.cache.clone()
        cache.index_copy_(0, torch.arange(len(x)), x * self.weight)
        self.cache[: len(x)] = x.detach()
        return cache[: len(x)]


class LoRA(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(D, D)
        self.base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, D))
        self.b = nn.Parameter(torch.zeros(D, 2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.base(x) + x @ self.a.T @ self.b.T) * self.weight


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(D, 4)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.router(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            if len(rows):
                out.index_add_(0, rows, expert(x[rows]) * shares[rows, slots, None])
        return out


class Momentum(Layer):
    """A teacher that is frozen, and follows elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(D, D).requires_grad_(False)
        self.register_buffer("fixed", torch.randn(3, D))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.teacher(self.fixed)
        return x * self.weight - target


class Following(nn.Module):
    """A teacher that follows within the forward, and is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(D, D)
        self.teacher = nn.Linear(D, D).requires_grad_(False)
        self.late = nn.Linear(D, D).requires_grad_(False)
        self.register_buffer("view", torch.randn(3, D))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
            for mine, theirs in pairs:
                mine.mul_(0.9).add_(theirs, alpha=0.1)
            for mine, theirs in zip(self.late.parameters(), self.student.parameters(), strict=True):
                mine.data = mine.data * 0.9 + theirs.data * 0.1
            target = self.teacher(self.view) + self.late(self.view)
        return self.student(x) * target


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(D, 2 * D, bias=False)
        self.down = nn.Linear(2 * D, D, bias=False)
        self.again = nn.Linear(D, 2 * D, bias=False)
        self.again.weight = self.up.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x) * self.again(x.sin()))


class RightFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, other: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0), None  # the third is not looked at


class OwnBackward(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return RightFunction.apply(x, self.weight, x * 3)


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return -grad


class GradientReversal(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return Reversal.apply(x * self.weight)


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad


class RoundingFunction(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return Rounding.apply(x * self.weight * 8) / 8


@torch.library.custom_op("audit_sound::scale", mutates_args=())
def scale(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def _backward(ctx: Any, grad: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    return grad * weight, (grad * x).sum(0)


scale.register_autograd(
    _backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


class OwnOp(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return scale(x, self.weight)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(D, D, batch_first=True)
        self.lstm = nn.LSTM(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.gru(x[None])[0])[0][0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(D, 2, 2 * D, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[None])[0]


class Vmapped(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: (row * self.weight).sin())(x)


class Iterated(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row * self.weight for row in x])


class Integers(Layer):
    """Positions are found by rounding, and looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, D)

    def forward(self, x: Tensor) -> Tensor:
        bucket = ((x.sum(-1).tanh() + 1) * 15).to(torch.int32)
        return self.table(bucket) + x * self.weight


class Interpolated(Layer):
    """Between the nearest entries of a table: the shares have a gradient, whole numbers none."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(34, D)

    def forward(self, x: Tensor) -> Tensor:
        at = (x.sum(-1).tanh() + 1) * 15
        low = at.floor().long()
        share = (at - low.type_as(at)).unsqueeze(-1)
        return self.table(low) * (1 - share) + self.table(low + 1) * share + x * self.weight


class InterpolatedBy32Bits(Interpolated):
    def forward(self, x: Tensor) -> Tensor:
        at = (x.sum(-1).tanh() + 1) * 15
        low = at.int()
        share = (at - low).unsqueeze(-1)
        return self.table(low) * (1 - share) + self.table(low + 1) * share + x * self.weight


class Buckets(Layer):
    """A bucket is chosen, and said by ones and zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand(32, D))

    def forward(self, x: Tensor) -> Tensor:
        bucket = ((x.sum(-1).tanh() + 1) * 15).long().clamp(0, 31)
        return F.one_hot(bucket, 32).float() @ self.table + x * self.weight


class LeafOfItsOwn(Layer):
    """A leaf that is made in each step, and of nothing that learns."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + nn.Parameter(torch.ones(D)) * 2


class Hooked(Layer):
    """The gradient of a value is made smaller on its way."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.5)
        return x


class HookedInPlace(Layer):
    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        if x.requires_grad:
            x.register_hook(_halve)
        return x


def _halve(gradient: Tensor) -> None:
    gradient.mul_(0.5)


class Unused(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.rand(D))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


LAYERS = [
    each
    for each in list(globals().values())
    if isinstance(each, type)
    and issubclass(each, nn.Module)
    and each.__module__ == __name__
    and each is not Layer
]
