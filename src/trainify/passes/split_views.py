"""TRN405: in-place writes into a piece that a split gave."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts, places
from ..facts.guards import gradient_unwanted
from ..facts.saved import carries
from ..facts.training import trains
from ..facts.writes import Write, in_network, roots
from ..findings import Finding
from . import Look, Needle, Rule, is_wanted

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN405",
        name="in-place-on-split",
        summary="A piece that chunk, split or unbind gave is overwritten in place.",
        why=(
            "These functions return several views of one tensor, and autograd does not allow an "
            "in-place write into any of them: forward raises as soon as the tensor is part of the "
            "graph. Slices of it, and tensor_split, are allowed."
        ),
        before="""\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q *= q.shape[-1] ** -0.5
        return (q @ k.mT).softmax(-1) @ v
""",
        after="""\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if torch.is_grad_enabled() and q.requires_grad:
            q = q * q.shape[-1] ** -0.5
        else:
            q *= q.shape[-1] ** -0.5
        return (q @ k.mT).softmax(-1) @ v
""",
    ),
)
_SPLITS = (b"chunk(", b"split(", b"unbind(", b"split_with_sizes(")
_SPLIT = re.compile(b"|".join(map(re.escape, _SPLITS)))


def _may_concern(data: bytes) -> bool:
    return places.overwrites(data, _SPLIT.search)


NEEDLES: tuple[Needle, ...] = (Look(_SPLITS, _may_concern),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    harms: list[Write] = []
    messages: list[str] = []
    for statement, write in module.writes.items():
        if write.name is None or write.unseen:
            continue
        if not is_wanted(module, options, "TRN405", statement):
            continue
        split = _split(module, write)
        if split is None or gradient_unwanted(module, statement):
            continue
        if in_network(module, module.function(statement)) or trains(module, split):
            harms.append(write)
            messages.append(
                f"`{module.source(write.target)}` is overwritten in place, but is one of several "
                f"views from `{module.source(split.func)}`: forward raises."
            )
    if not harms:
        return
    from ..rewrite.out_of_place import fixes_for

    fixes = fixes_for(module, options, [(write, None) for write in harms])
    for write, message, each in zip(harms, messages, fixes, strict=True):
        yield module.finding("TRN405", message, write.statement, each)


def _split(module: ModuleFacts, write: Write) -> ast.Call | None:
    """The split of a tensor with a gradient that gave what is overwritten."""
    function = module.function(write.statement)
    if function is None or write.name is None:
        return None
    for root in roots(module, module.flow(function), write.name.id, write.statement):
        if root.split is None:
            continue
        assert isinstance(root.split.func, ast.Attribute)
        whole = root.split.func.value
        if isinstance(whole, ast.Name) and whole.id == "torch" and root.split.args:
            whole = root.split.args[0]
        if carries(module, whole):
            return root.split
    return None
