"""What is a view of what in a graph, and who reads it when."""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch.fx import Graph, Node

from .calls import is_view, may_keep
from .writes import is_alias, may_keep_others


def places_of(graph: Graph) -> dict[Node, int]:
    """The order of the nodes."""
    return {node: i for i, node in enumerate(graph.nodes)}


def owner_of(node: Node) -> Node:
    """The value in whose memory another one may lie: what it views, or is written into and is."""
    while is_alias(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def roots(graph: Graph, target: Node) -> list[Node]:
    """What a value is a view of; a buffer by all nodes that read it."""
    root = owner_of(target)
    if root.op != "get_attr":
        return [root]
    return [node for node in graph.nodes if node.op == "get_attr" and node.target == root.target]


def spare_readers(graph: Graph, target: Node, at: Node, places: dict[Node, int]) -> None:
    """Let those who read a value before it is written at ``at`` read copies of what it was.

    What writes reads one too: ``x.mul_(x)`` keeps what it multiplies by.
    """
    aliases = [target, *(a for root in roots(graph, target) for a in aliases_of(root, target))]
    for alias in dict.fromkeys(aliases):
        for user in list(alias.users):
            if places.get(user, -1) > places[at]:
                continue
            if user is not at and may_keep(user):
                with graph.inserting_before(user):
                    user.replace_input_with(alias, graph.call_method("clone", (alias,)))
            elif alias in user.args[1:] and may_keep_others(user):
                with graph.inserting_before(user):
                    copied = graph.call_method("clone", (alias,))
                user.args = (user.args[0], *(copied if a is alias else a for a in user.args[1:]))


def aliases_of(root: Node, but: Node) -> Iterator[Node]:
    """A value and its views, less one of them, and less other parts of what that was split into."""
    if root is not but:
        yield root
    for user in root.users:
        if not is_alias(user) or user.args[0] is not root:
            continue
        apart = (
            user is not but
            and user.target is operator.getitem is but.target
            and user.args[0] is but.args[0]
            and isinstance(user.args[1], int)
            and user.args[1] != but.args[1]
            and is_view(root)
        )
        if not apart:
            yield from aliases_of(user, but)
