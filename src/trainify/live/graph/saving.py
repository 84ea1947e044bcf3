"""What autograd surely keeps for backward in a graph, and the writes over it."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterator

from torch import nn
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ...facts.constants import NO_GRADIENT
from ...facts.saved import RESULT_SAVED
from ...facts.saving_ops import INPUT_SAVED, WHOLE_SAVED
from .calls import HOST, called_module, detached, is_known, is_view, op_name
from .pieces import is_piece
from .writes import is_alias, keeps_what_it_writes, written_into

_PRODUCTS = {
    **dict.fromkeys("mul multiply matmul mm bmm mv dot outer linear".split(), (0, 1)),
    **dict.fromkeys("conv1d conv2d conv3d convolution".split(), (0, 1)),
    **dict.fromkeys("addmm addbmm addmv baddbmm".split(), (1, 2)),
}
"""Which arguments they multiply by one another: each is kept for the gradient of the other."""

_BY_MODULE = {name.replace("_", ""): name for name in INPUT_SAVED | RESULT_SAVED}
_WEIGHTED = re.compile(r"(Linear|Norm(\dd)?|Conv\dd)$")
_COPIES = frozenset(
    "bfloat16 contiguous cpu cuda double flatten float half ravel reshape to type type_as".split()
)
"""Views that may be copies."""


def passes_history(node: Node) -> bool:
    """Whether what a node returns has the history of what it reads, as far as its name says."""
    name = op_name(node)
    if name == "broadcast_tensors":  # of each as of all
        return False
    if node.target is getattr and not is_view(node):  # its dtype
        return False
    return detached(node) is None and name not in NO_GRADIENT and name not in HOST


def overwritten(nodes: list[Node], live: Collection[Node]) -> Iterator[tuple[Node, Node]]:
    """Each node that writes into what a node before it keeps for backward, and that node.

    A piece of a split, which may not be written into at all, is given with what splits it.  What
    may be a copy is left out.  ``live`` are those with a history.
    """
    kept: list[tuple[Node, Node]] = []
    for node in nodes:
        target = written_into(node)
        keeps = list(_kept(node, live))
        if target is not None:
            root = _root(target)
            own = any(value is not node and _root(value) is root for value in keeps)  # x.mul_(x)
            found = next((keeper for value, keeper in kept if value is root), node if own else None)
            found = found or (_splitting(target) if target in live else None)
            if found is not None:
                yield node, found
        kept += ((_root(value), node) for value in keeps)


def _kept(node: Node, live: Collection[Node]) -> Iterator[Node]:
    """What a node keeps, of what it reads and what it returns."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return
    if is_view(node) and written_into(node) is None:
        return
    name = op_name(node).removeprefix("_").removeprefix("native_")
    if node.op == "call_module":
        kind = type(called_module(node))
        name = _BY_MODULE.get(kind.__name__.lower(), "") if hasattr(nn, kind.__name__) else ""
    elif not (node.op == "call_method" or is_known(node)):
        return
    if node in live and (keeps_what_it_writes(node) or name in RESULT_SAVED):
        yield node
    read = [*node.args, *node.kwargs.values()]
    first = read[0] if read else None
    if not isinstance(first, Node):
        return
    if written_into(node) is not None:
        name, other = name.strip("_").removeprefix("i"), read[1] if len(read) > 1 else None
        if name in ("mul", "div", "truediv") and isinstance(other, Node) and first in live:
            yield other
        return
    if name in _PRODUCTS:
        pair = [read[i] if i < len(read) else None for i in _PRODUCTS[name]]
        for one, other in (pair, pair[::-1]):
            if isinstance(one, Node) and other in live:
                yield one
    elif name in ("div", "true_divide", "truediv"):
        over = read[1] if len(read) > 1 else None
        if isinstance(over, Node):
            if over in live:
                yield first
            if node in live:
                yield over
    elif name == "scaled_dot_product_attention":
        yield from (each for each in read[:3] if isinstance(each, Node) and node in live)
    elif node.op == "call_module" and _is_weighted(called_module(node)):
        yield first
    elif name in INPUT_SAVED or (name in WHOLE_SAVED and len(read) == 1):
        if first in live:
            yield first


def _is_weighted(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    named = type(module).__module__.startswith("torch.nn.") and type(module).__name__
    return bool(named and _WEIGHTED.search(named) and weight is not None and weight.requires_grad)


def _root(node: Node) -> Node:
    """What a value surely is a view of."""
    while is_alias(node) and _is_no_copy(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _is_no_copy(node: Node) -> bool:
    if not node.args or (node.op == "call_module" and written_into(node) is None):
        return False
    if node.target is operator.getitem:
        of = node.args[0]
        whole = tree_leaves(node.args[1])
        basic = all(isinstance(each, (int, slice, type(None), type(...))) for each in whole)
        return isinstance(of, Node) and basic and not isinstance(node.args[1], list)
    return op_name(node) not in _COPIES


def _splitting(node: Node) -> Node | None:
    """What gave the piece that a value is a view of."""
    while is_view(node) and _is_no_copy(node) and isinstance(node.args[0], Node):
        if is_piece(node):
            return node.args[0]
        node = node.args[0]
    return None
