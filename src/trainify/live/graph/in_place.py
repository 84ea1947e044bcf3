"""Writes of PyTorch's own into what autograd keeps for backward: it keeps copies instead."""

from __future__ import annotations

import operator
from contextlib import suppress
from functools import partial

from torch import nn
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ...facts.saved import RESULT_SAVED
from .aliases import places_of, roots, spare_readers
from .calls import is_augmented, is_view
from .pieces import slice_pieces

_NOT_VALUES = frozenset("requires_grad_ detach_ share_memory_ resize_ set_ retain_grad".split())


def spare_saved(graph: Graph) -> None:
    """Copy what has been saved by the time that a node writes into it.

    Those that have read it before read a copy; of an operation that keeps its result, as ``exp``
    does, all others get one.  What is written into the pieces of a split is written into slices.
    """
    for node in list(graph.nodes):
        target = _target(graph, node)
        if target is None:
            continue
        places = places_of(graph)
        for root in roots(graph, target):
            with suppress(ValueError):  # then forward raises, as it does by itself
                target = slice_pieces(graph, root, node, places).get(target, target)
        for root in roots(graph, target):
            if _keeps_result(graph, root):
                with graph.inserting_after(root):
                    copied = graph.call_method("clone", (root,))
                root.replace_all_uses_with(copied, delete_user_cb=partial(operator.is_not, copied))
                target = copied if target is root else target
        spare_readers(graph, target, node, places_of(graph))


def _target(graph: Graph, node: Node) -> Node | None:
    """What a node writes into; None for one that writes into nothing, or is no op of PyTorch's."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node) or first.op == "get_attr":
        return None
    if node.op == "call_module":
        writes = bool(getattr(_module(graph, node), "inplace", False))
    elif node.op == "call_method":
        writes = _is_in_place(str(node.target))
    elif isinstance(node.target, OpOverload):
        schema = node.target._schema
        alias = schema.arguments[0].alias_info if schema.arguments else None
        writes = node.target.namespace == "aten" and alias is not None and alias.is_write
        writes = writes and _is_in_place(schema.name.partition("::")[2])
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        writes = node.target is operator.setitem or node.kwargs.get("inplace") is True
        writes = writes or is_augmented(name)
        writes = writes or (_is_in_place(name) and _is_of_torch(node))
    else:
        return None
    return first if writes else None


def _is_in_place(name: str) -> bool:
    """``mul_``, by its name."""
    return name.endswith("_") and not name.endswith("__") and name not in _NOT_VALUES


def _is_of_torch(node: Node) -> bool:
    module = getattr(node.target, "__module__", None) or ""
    return bool(module.partition(".")[0] == "torch")


def _keeps_result(graph: Graph, node: Node) -> bool:
    """Whether autograd may keep what a node returns."""
    if is_view(node):
        return False
    if node.op == "call_module":
        made = type(_module(graph, node)).__name__
        return made.lower() in _KEEPING or not hasattr(nn, made)
    if node.op == "call_method":
        return str(node.target) in RESULT_SAVED
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.partition("::")[2].lstrip("_") in RESULT_SAVED
    module = getattr(node.target, "__module__", None) or ""
    return module.startswith("trainify.") or getattr(node.target, "__name__", "") in RESULT_SAVED


_KEEPING = {name.replace("_", "") for name in RESULT_SAVED}


def _module(graph: Graph, node: Node) -> nn.Module:
    assert graph.owning_module is not None
    return graph.owning_module.get_submodule(str(node.target))
