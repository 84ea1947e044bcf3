"""Writes of PyTorch's own into what autograd keeps for backward: it keeps copies instead."""

from __future__ import annotations

import operator
from contextlib import suppress
from functools import partial

from torch import nn
from torch.fx import Graph, Node

from ...facts.saved import RESULT_SAVED
from .aliases import aliases_of, places_of, roots, spare_readers
from .calls import called_module, op_name
from .pieces import slice_pieces
from .writes import is_alias, keeps_what_it_writes, written_into


def spare_saved(graph: Graph) -> None:
    """Copy what has been saved by the time that a node writes into it.

    Those that have read it before read a copy; of an operation that keeps its result, as ``exp``
    does, all others get one, and one that does so in place works on a copy.  What is written into
    the pieces of a split is written into slices.
    """
    for node in list(graph.nodes):
        target = written_into(node)
        if target is None:
            continue
        places = places_of(graph)
        for root in roots(graph, target):
            with suppress(ValueError):  # then forward raises, as it does by itself
                target = slice_pieces(graph, root, node, places).get(target, target)
        for root in roots(graph, target):
            readers = [user for each in (root, *aliases_of(root, root)) for user in each.users]
            for user in dict.fromkeys(readers):
                if places.get(user, -1) < places[node] and keeps_what_it_writes(user):
                    _work_on_copy(graph, user)
            if _keeps_result(root):
                with graph.inserting_after(root):
                    copied = graph.call_method("clone", (root,))
                root.replace_all_uses_with(copied, delete_user_cb=partial(operator.is_not, copied))
                target = copied if target is root else target
        spare_readers(graph, target, node, places_of(graph))


def _work_on_copy(graph: Graph, node: Node) -> None:
    """Let a node write into a copy, which is then copied to where it wrote."""
    target = node.args[0]
    assert isinstance(target, Node)
    with graph.inserting_before(node):
        node.args = (graph.call_method("clone", (target,)), *node.args[1:])
    with graph.inserting_after(node):
        copied = graph.call_method("copy_", (target, node))
    node.replace_all_uses_with(copied, delete_user_cb=partial(operator.is_not, copied))


def _keeps_result(node: Node) -> bool:
    """Whether autograd may keep what a node returns."""
    if is_alias(node):
        return False
    if node.op == "call_module":
        made = type(called_module(node)).__name__
        return made.lower() in _KEEPING or not hasattr(nn, made)
    if node.op == "call_function":
        module = getattr(node.target, "__module__", None) or ""
        if module.startswith("trainify."):
            return True
    elif node.op != "call_method":
        return False
    return op_name(node).lstrip("_") in RESULT_SAVED


_KEEPING = {name.replace("_", "") for name in RESULT_SAVED}
