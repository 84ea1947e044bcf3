"""TRN408: values that are kept for the next call, and their graph with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...findings import Finding
from .. import Rule
from .buffers import in_arguments, in_buffers, in_pools
from .holders import in_holders
from .joined import joined_to_kept
from .words import NEEDLES

if TYPE_CHECKING:
    from ...engine import Options

__all__ = ["NEEDLES", "RULES", "find"]

RULES = (
    Rule(
        code="TRN408",
        name="state-keeps-graph",
        summary="A value is kept for the next call, and its graph with it.",
        why=(
            "What is written into a buffer, or joined to what the call before left, makes the kept "
            "tensor part of the graph. Where the next step reads it, backward walks into the step "
            "before, which is freed: 'Trying to backward through the graph a second time'. Where "
            "none does, the graphs of all steps stay in memory. Keep detached values: running "
            "statistics, memories and caches need no gradient."
        ),
        before="""\
import torch
from torch import nn


class Centered(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, d)
        self.register_buffer("mean", torch.zeros(d))

    def forward(self, x):
        h = self.proj(x)
        mean = h.mean(0)
        self.mean.mul_(0.9).add_(0.1 * mean)
        return h - mean
""",
        after="""\
import torch
from torch import nn


class Centered(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, d)
        self.register_buffer("mean", torch.zeros(d))

    def forward(self, x):
        h = self.proj(x)
        mean = h.mean(0)
        self.mean.mul_(0.9).add_((0.1 * mean).detach())
        return h - mean
""",
    ),
)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for statement, write in module.writes.items():
        function = module.function(statement)
        if function is None or write.unseen:
            continue
        if write.name is None:
            yield from in_buffers(module, options, function, write)
        else:
            yield from in_pools(module, options, function, write)
            yield from in_arguments(module, options, function, write)
    yield from joined_to_kept(module)
    yield from in_holders(module)
