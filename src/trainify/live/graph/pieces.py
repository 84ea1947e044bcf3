"""Slices instead of what ``split`` gives, which autograd lets nobody write into."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from .calls import is_view, op_name
from .writes import is_alias

_DIVIDING = frozenset(
    "chunk split split_with_sizes unbind unsafe_chunk unsafe_split unsafe_split_with_sizes".split()
)
"""Not ``tensor_split`` and ``hsplit``: their pieces are slices already."""


def slice_pieces(graph: Graph, root: Node, at: Node, places: dict[Node, int]) -> dict[Node, Node]:
    """Make a slice of each piece that a value, or a view of it, is split into.

    The pieces of ``split`` are not to be written into, nor to be read once what was split is
    written into, as it is at ``at``; those of ``unsafe_split`` are, and what was split does not
    know.  Returns the slices by the nodes that they replace.

    Raises:
        ValueError: A piece cannot be told from what the graph holds.
    """
    replaced: dict[Node, Node] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for user in list(node.users):
            if not is_alias(user) or user.args[:1] != (node,):
                continue
            waiting.append(user)
            if user.target is operator.getitem and is_dividing(node):
                waiting[-1] = _slice_of(graph, node, user)
                places[waiting[-1]] = places.get(user, -1)
                replaced[user] = waiting[-1]
                user.replace_all_uses_with(waiting[-1])
                graph.erase_node(user)
            elif is_dividing(node):
                raise ValueError(f"what {node} is split into is written into, and not read by item")
        if is_dividing(node):
            if any(places.get(user, -1) > places[at] for user in node.users):
                raise ValueError(f"what {node} is split into is read after a part is written into")
            if not node.users:
                graph.erase_node(node)
    return replaced


def is_piece(node: Node) -> bool:
    """Whether a node takes what autograd lets nobody write into."""
    if node.target is not operator.getitem or not isinstance(node.args[0], Node):
        return False
    return is_dividing(node.args[0]) and not op_name(node.args[0]).startswith("unsafe_")


def is_dividing(node: Node) -> bool:
    """Whether a node gives pieces of what it is given."""
    return op_name(node) in _DIVIDING and is_view(node)


def _slice_of(graph: Graph, node: Node, piece: Node) -> Node:
    """A piece as a slice of what is split."""
    index = piece.args[1]
    if not isinstance(index, int) or index < 0:
        raise ValueError(f"{piece}: which part is written into cannot be told from its index")
    name = op_name(node)
    given = list(node.args[1:])
    whole = node.args[0]
    dim: Any = node.kwargs.get("dim", given[0 if name == "unbind" else 1 :][:1] or 0)
    dim = dim[0] if isinstance(dim, list) else dim
    with graph.inserting_before(piece):
        if name == "unbind":
            return graph.call_function(torch.select, (whole, dim, index))
        others = [
            value for key, value in node.kwargs.items() if key not in ("dim", "input", "self")
        ]
        size: Any = (given[:1] or others)[0]
        if isinstance(size, (list, tuple)):
            start = _sum(graph, size[:index])
            end = _sum(graph, size[: index + 1])
        else:
            if name.endswith("chunk"):
                length = graph.call_method("size", (whole, dim))
                more = graph.call_function(operator.add, (length, size - 1))
                size = graph.call_function(operator.floordiv, (more, size))
            start, end = (_product(graph, size, each) for each in (index, index + 1))
        return graph.call_function(torch.ops.aten.slice.Tensor, (whole, dim, start, end))


def _sum(graph: Graph, sizes: Any) -> Any:
    total: Any = 0
    for each in sizes:
        if isinstance(total, Node) or isinstance(each, Node):
            total = graph.call_function(operator.add, (total, each))
        else:
            total += each
    return total


def _product(graph: Graph, size: Any, count: int) -> Any:
    if isinstance(size, Node):
        return graph.call_function(operator.mul, (size, count))
    return size * count
