"""TRN405: in-place writes into a piece that a split gave."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts, places
from ..facts.activations import carries
from ..facts.destroyed import destroyed
from ..facts.guards import gradient_unwanted
from ..facts.training import trains
from ..facts.walk import walk
from ..facts.writes import Write, in_network, roots
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule, is_wanted, not_rewritten
from .inplace.results import overwritten

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
    splits: list[ast.Call] = []
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
            splits.append(split)
            messages.append(
                f"`{module.source(write.target)}` is overwritten in place, but is one of several "
                f"views from `{module.source(split.func)}`: forward raises."
            )
    if not harms:
        return
    from ..rewrite.out_of_place import fixes_for

    fixes = fixes_for(module, options, [(write, None) for write in harms])
    for write, split, message, each in zip(harms, splits, messages, fixes, strict=True):
        fixed = each.fixes or _sliced(module, write, split)
        if not fixed and each.reason:
            message += not_rewritten(each.reason)
        yield module.finding("TRN405", message, write.statement, fixed)


def _sliced(module: ModuleFacts, write: Write, split: ast.Call) -> dict[str, Fix]:
    """``tensor_split`` in the place of a split: what it gives are slices, which may be written.

    The whole tensor sees the write, as before.  Not where backward needs what is overwritten.
    """
    found = _as_slices(module, split)
    if found is None or destroyed(module, write) is not None or overwritten(module, write):
        return {}
    text, look_at = found
    assert isinstance(split.func, ast.Attribute)
    start = module.end(split.func) - len(split.func.attr)
    whole = split.args[0] if _is_function(split) else None
    sizes = split.args[1 if whole is not None else 0]
    edits = (
        Edit(start, module.end(split.func), "tensor_split"),
        Edit(module.start(sizes), module.end(sizes), text),
    )
    safety = Safety.UNSAFE if look_at else Safety.SAFE
    fix = Fix("Split into slices, which may be written", edits, safety, look_at)
    return dict.fromkeys(STRATEGIES, fix)


def _is_function(split: ast.Call) -> bool:
    """``torch.chunk(x, 2)``, not ``x.chunk(2)``."""
    assert isinstance(split.func, ast.Attribute)
    return isinstance(split.func.value, ast.Name) and split.func.value.id == "torch"


def _as_slices(module: ModuleFacts, split: ast.Call) -> tuple[str, str] | None:
    """What ``tensor_split`` is given for the same pieces, and what to look at for that."""
    assert isinstance(split.func, ast.Attribute)
    given = split.args[1:] if _is_function(split) else split.args
    if not given or any(keyword.arg != "dim" for keyword in split.keywords):
        return None
    sizes, text = given[0], module.source(given[0])
    if split.func.attr == "chunk":
        if not isinstance(sizes, ast.Constant) or not isinstance(sizes.value, int):
            return None
        look_at = f"that {text} divides what is split: other pieces would have other sizes"
        return text, "" if sizes.value == 2 else look_at
    if split.func.attr != "split":
        return None
    from ..rewrite import layout

    if any(isinstance(node, (ast.Call, ast.Starred)) for node in walk(sizes)):
        return None
    if isinstance(sizes, (ast.List, ast.Tuple)):
        parts = [layout.operand(module, each) for each in sizes.elts]
        ends = [" + ".join(parts[:n]) for n in range(1, len(parts))]
    elif isinstance(sizes, ast.Constant) or (
        isinstance(sizes, ast.BinOp) and isinstance(sizes.op, ast.FloorDiv)
    ):  # by its name, a number may be a list of them
        pieces = _unpacked(module, split)
        part = layout.operand(module, sizes)
        ends = [part if n == 1 else f"{n} * {part}" for n in range(1, pieces)]
    else:
        return None
    if not ends or len(ends) > _MOST or any("\n" in end for end in ends):
        return None
    return f"({', '.join(ends)}{',' if len(ends) == 1 else ''})", ""


_MOST = 4


def _unpacked(module: ModuleFacts, split: ast.Call) -> int:
    """How many pieces are told apart: by names, or by their places; 0 where that does not show."""
    statement = module.statement(split)
    if not isinstance(statement, ast.Assign) or statement.value is not split:
        return 0
    target = statement.targets[0]
    if len(statement.targets) > 1:
        return 0
    if isinstance(target, ast.Name):
        return _by_place(module, target)
    starred = any(isinstance(each, ast.Starred) for each in walk(target))
    return len(target.elts) if isinstance(target, (ast.Tuple, ast.List)) and not starred else 0


def _by_place(module: ModuleFacts, name: ast.Name) -> int:
    """The same of ``parts``, of which ``parts[0]`` and the like are used: one more is the rest."""
    last = -1
    for node in walk(module.function(name) or module.tree):
        if isinstance(node, ast.Name) and node.id == name.id and node is not name:
            held = module.parent(node)
            place = held.slice if isinstance(held, ast.Subscript) and held.value is node else None
            if not isinstance(place, ast.Constant) or not isinstance(place.value, int):
                return 0
            last = max(last, place.value)
    return last + 2


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
