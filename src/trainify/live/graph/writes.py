"""What PyTorch's own operations write into."""

from __future__ import annotations

import operator

from torch._ops import OpOverload
from torch.fx import Node

from ...facts.saved import RESULT_SAVED, RESULT_SAVED_IN_PLACE
from .calls import KEEPING_NOTHING, called_module, is_augmented, is_idle, is_view, op_name

_NOT_VALUES = frozenset("requires_grad_ detach_ share_memory_ resize_ set_ retain_grad".split())


def written_into(node: Node) -> Node | None:
    """What a node writes into; None for one that writes into nothing, or is no op of PyTorch's."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node) or first.op == "get_attr":
        return None
    if node.op == "call_module":
        writes = bool(getattr(called_module(node), "inplace", False))
    elif node.op == "call_method":
        writes = _is_in_place(str(node.target))
    elif isinstance(node.target, OpOverload):
        schema = node.target._schema
        alias = schema.arguments[0].alias_info if schema.arguments else None
        writes = node.target.namespace == "aten" and alias is not None and alias.is_write
        writes = writes and _is_in_place(schema.name.partition("::")[2])
        writes = writes and not is_idle(node)
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        writes = node.target is operator.setitem
        writes = writes or (node.kwargs.get("inplace") is True and not is_idle(node))
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


def is_alias(node: Node) -> bool:
    """Whether the value of a node may share memory with its first argument; it may have written."""
    return is_view(node) or (written_into(node) is not None and node.target is not operator.setitem)


def keeps_what_it_writes(node: Node) -> bool:
    """Whether a node writes a result that autograd keeps, as ``exp_`` does."""
    if written_into(node) is None:
        return False
    if node.op == "call_module":
        return type(called_module(node)).__name__.lower() in _MODULES
    return op_name(node).strip("_") in _KEEPING


_KEEPING = RESULT_SAVED | RESULT_SAVED_IN_PLACE
_MODULES = frozenset(name.replace("_", "") for name in _KEEPING)


def may_keep_others(node: Node) -> bool:
    """Whether autograd may keep what else is read by a node that writes, as by ``mul_``."""
    if written_into(node) is None or node.target is operator.setitem:
        return False
    name = op_name(node)
    return name.strip("_") not in _NO_OTHERS and name.lstrip("i") not in _NO_OTHERS


_NO_OTHERS = KEEPING_NOTHING | {"copy", "index_put", "scatter", "masked_scatter"}
