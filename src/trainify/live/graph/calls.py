"""The nodes of a graph that call fused ops."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from ...catalog import FusedOp, lookup
from ...catalog.own import registered
from ..attach import CannotAttach, has_backward, row_of
from ..reach import addresses
from .functionalized import View, view_of

_HIGHER = torch.ops.higher_order
_FUNCTIONALIZED = (_HIGHER.auto_functionalized, _HIGHER.auto_functionalized_v2)


def module_of(graph_module: GraphModule | ExportedProgram) -> GraphModule:
    """What was traced or exported, as a module; raises TypeError for anything else."""
    source: Any = graph_module
    if isinstance(source, ExportedProgram):
        source = source.module()
    if not isinstance(source, GraphModule):
        raise TypeError(
            f"that is {type(source).__name__}, not a torch.fx.GraphModule (of symbolic_trace) nor "
            "a torch.export.ExportedProgram"
        )
    return source


@dataclass(frozen=True)
class FusedCall:
    """A call of an op that the catalog knows, by the names that the row gives its arguments.

    ``results`` say where a node that does not write into its arguments (``auto_functionalized``)
    gives what it would have written: by the argument's name, the index in the tuple it returns.
    ``views`` are those of the arguments that are views there of what it gives.
    """

    node: Node
    name: str
    row: FusedOp
    values: dict[str, Any]
    results: dict[str, int] | None = None
    views: dict[str, View] = field(default_factory=dict)


def fused_call(node: Node) -> FusedCall | None:
    """What a node calls, if that is a fused op without a backward."""
    if node.op != "call_function":
        return None
    if node.target in _FUNCTIONALIZED:
        return _functionalized(node)
    if isinstance(node.target, (OpOverload, OpOverloadPacket)):
        found = _registered(node.target)
        if found is None:
            return None
        op, row = found
        names = [argument.name for argument in op._schema.arguments]
        given = dict(zip(names, node.args, strict=False)) | node.kwargs
        return FusedCall(node, op._schema.name, row, _renamed(op, row, given))
    for module, name in addresses(node.target, "", ""):
        found_row = lookup(f"{module}.{name}", registered())
        if found_row is not None and found_row.cuts:
            names = [a.name for a in found_row.signature.arguments if not a.kwarg_only]
            values = dict(zip(names, node.args, strict=False)) | node.kwargs
            return FusedCall(node, f"{module}.{name}", found_row, values)
    return None


def is_functionalized(node: Node) -> bool:
    """Whether a node calls an op that writes, on copies of what it writes into."""
    return node.target in _FUNCTIONALIZED


def unknown_op(node: Node) -> str | None:
    """The name of a registered op that neither the catalog knows nor autograd."""
    target = node.args[0] if node.target in _FUNCTIONALIZED else node.target
    if not isinstance(target, (OpOverload, OpOverloadPacket)):
        return None
    op = getattr(target, target.overloads()[0]) if isinstance(target, OpOverloadPacket) else target
    if op.namespace in ("aten", "prims", "higher_order") or has_backward(op):
        return None
    return str(op._schema.name)


def _registered(op: OpOverload | OpOverloadPacket) -> tuple[OpOverload, FusedOp] | None:
    try:
        overload, row = row_of(op)
    except CannotAttach:
        return None
    if overload.namespace in ("aten", "prims") or has_backward(overload):
        return None
    return overload, row


def _renamed(op: OpOverload, row: FusedOp, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an op as it is registered, by the names of the row."""
    pairs = zip(op._schema.arguments, row.signature.arguments, strict=False)
    return {ours.name: given[theirs.name] for theirs, ours in pairs if theirs.name in given}


def _functionalized(node: Node) -> FusedCall | None:
    op: Any = node.args[0]
    found = _registered(op)
    if found is None:
        return None
    op, row = found
    given = dict(node.kwargs)
    returns = max(len(op._schema.returns), 1)
    written = [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    views: dict[str, View] = {}
    if node.target is _HIGHER.auto_functionalized:
        indices = {name: returns + i for i, name in enumerate(written)}
    else:
        indices = {}
        for name in written:
            index: Any = given.get(f"_{name}_base_index")
            view = view_of(name, given) if isinstance(index, int) else None
            if index is None and f"_{name}_base_index" in given:
                given[name] = None
                continue
            if view is None:
                return None
            indices[name], given[name] = returns + index, view.base
            if not view.is_whole:
                views[name] = view
    renamed = _renamed(op, row, {name: name for name in indices})
    results = {ours: indices[theirs] for ours, theirs in renamed.items()}
    views = {ours: views[theirs] for ours, theirs in renamed.items() if theirs in views}
    return FusedCall(node, op._schema.name, row, _renamed(op, row, given), results, views)


def is_view(node: Node) -> bool:
    """Whether the value of a node may share memory with its first argument."""
    if node.op == "call_method":
        return str(node.target) in _VIEWS
    if node.op == "call_module":
        return not _computes(node)
    if node.target is getattr:
        return node.args[1] in _VIEWS_BY_NAME
    if node.op != "call_function":
        return False
    if is_idle(node):
        return True
    if isinstance(node.target, OpOverload):
        returns = node.target._schema.returns
        if node.target._schema.name.startswith(("aten::unsafe_split", "aten::unsafe_chunk")):
            return True  # though the schema denies it
        return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    if node.target is operator.getitem:
        of = node.args[0]
        return not isinstance(of, Node) or of.target not in _FUNCTIONALIZED
    return getattr(node.target, "__name__", "") in _VIEWS


def is_idle(node: Node) -> bool:
    """Whether a node is a dropout that gives back what it is given, whatever its schema says."""
    asked = (*node.args[2:3], node.kwargs.get("training"), node.kwargs.get("train"))
    return "dropout" in op_name(node) and False in asked


def root_of(node: Node) -> Node:
    """What a value is a view of, or may be."""
    while is_view(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def called_module(node: Node) -> Any:
    """The module that a node calls."""
    assert node.graph.owning_module is not None
    return node.graph.owning_module.get_submodule(str(node.target))


def op_name(node: Node) -> str:
    """``softmax`` for a method, a function, an attribute and an op of that name."""
    if node.op == "call_method":
        return str(node.target)
    if node.target is getattr:
        return str(node.args[1])
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.partition("::")[2]
    return str(getattr(node.target, "__name__", ""))


def _computes(node: Node) -> bool:
    """Whether a node calls a module of torch that gives a tensor of its own, whatever it gets."""
    if node.graph.owning_module is None:
        return False
    module = called_module(node)
    is_theirs = type(module).forward in _COMPUTING and "forward" not in vars(module)
    return is_theirs and not module._forward_hooks and not getattr(module, "inplace", False)


_COMPUTING = frozenset(
    getattr(nn, name).forward
    for name in """
    BatchNorm1d Bilinear Conv1d Conv2d Conv3d Embedding GELU GroupNorm LayerNorm Linear LogSoftmax
    ReLU RMSNorm Sigmoid SiLU Softmax Tanh
    """.split()
)

# The functions and methods of torch that may return a view; ATen's overloads say so themselves.
_VIEWS = frozenset(
    """
    adjoint as_strided atleast_1d atleast_2d atleast_3d bfloat16 broadcast_to chunk contiguous cpu
    cuda detach diagonal double dsplit expand expand_as flatten float half hsplit imag moveaxis
    movedim narrow permute positive ravel real requires_grad_ reshape resolve_conj resolve_neg
    select split split_with_sizes squeeze swapaxes swapdims t tensor_split to transpose type
    type_as unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze
    view view_as view_as_complex view_as_real vsplit
    """.split()
)
_VIEWS_BY_NAME = frozenset("data H imag mH mT real T".split())
"""The attributes of a tensor that are views of it; its shape is none."""


def is_known(node: Node) -> bool:
    """Whether a node calls a function of torch, of Python's, or one of the references."""
    module = getattr(node.target, "__module__", None) or ""
    return module.partition(".")[0] in ("torch", "_operator", "trainify")


def may_keep(node: Node) -> bool:
    """Whether a node computes something of which autograd may keep what it read.

    Not so for views, for what writes, and for functions of which nobody knows whether they write.
    """
    if is_view(node) or "out" in node.kwargs or node.kwargs.get("inplace"):
        return False
    if node.op == "call_module":
        return True
    target = node.target
    if isinstance(target, OpOverloadPacket):
        return all(_keeps(getattr(target, name)) for name in target.overloads())
    if isinstance(target, OpOverload):
        return _keeps(target)
    name = str(target) if node.op == "call_method" else getattr(target, "__name__", "")
    if node.op == "call_function":
        if not is_known(node):
            return False
        if getattr(target, "__module__", None) == "torch.nn.functional" and any(
            given is True for given in node.args
        ):
            return False  # F.relu(x, True)
    is_writing = name.endswith(("_", "setitem")) or is_augmented(name)
    return not (is_writing or name.endswith("_like") or name in KEEPING_NOTHING)


def _keeps(op: OpOverload) -> bool:
    known = op.namespace in ("aten", "prims") or has_backward(op)
    name = op._schema.name.partition("::")[2]
    return known and not op._schema.is_mutable and name not in KEEPING_NOTHING


def is_augmented(name: str) -> bool:
    """Whether a function is that of an operator which writes: ``iadd``, of ``x += y``."""
    return name[:1] == "i" and name[1:] in _OPERATORS


_OPERATORS = frozenset(dir(operator))
KEEPING_NOTHING = frozenset("add sub neg clone cat stack size dim numel empty_like".split())
DETACHING = frozenset({"detach", "detach_", "data"})
HOST = frozenset({"item", "tolist", "numpy", "_local_scalar_dense"})
"""What takes values out of a tensor."""


def detached(node: Any) -> Node | None:
    """What a node detaches: ``x.detach()``, ``x.data``; None for other nodes."""
    if not isinstance(node, Node) or not node.args or not isinstance(node.args[0], Node):
        return None
    if node.op == "call_method":
        name = str(node.target)
    elif node.target is getattr:
        name = str(node.args[1])
    elif isinstance(node.target, (OpOverload, OpOverloadPacket)):
        name = str(node.target).split(".")[1]
    else:
        name = getattr(node.target, "__name__", "")
    return node.args[0] if name in DETACHING else None


def grad_mode(node: Node) -> bool | None:
    """The mode that a node switches to, for a region or from there on; None where it does not."""
    if node.target in (_HIGHER.wrap_with_set_grad_enabled, torch._C._set_grad_enabled):
        return bool(node.args[0])
    return None


def branches(node: Node) -> Iterator[tuple[Node, GraphModule, dict[Node, Node]]]:
    """The graphs that a node runs, as ``torch.cond`` does: who holds each, and what it is given.

    Not the regions of a grad mode, which are part of the graph around them.
    """
    module: Any = node.graph.owning_module
    if node.op != "call_function" or module is None or grad_mode(node) is not None:
        return
    given: list[Node] = []
    held: list[tuple[Node, GraphModule]] = []
    for each in tree_leaves((node.args, node.kwargs)):
        if isinstance(each, Node):
            value = attribute_of(each) if each.op == "get_attr" else None
            if isinstance(value, GraphModule):
                held.append((each, value))
            else:
                given.append(each)
    for holder, inner in held:
        inputs = [each for each in inner.graph.nodes if each.op == "placeholder"]
        last = given[max(0, len(given) - len(inputs)) :]  # what decides comes before
        yield holder, inner, dict(zip(inputs, last, strict=False))


def attribute_of(node: Node) -> Any:
    """What a node reads from the module of its graph; None where that is not known."""
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    return found


def parameters_of(nodes: Iterable[Node]) -> dict[Node, str]:
    """The nodes that read a parameter which requires a gradient, with its name."""
    found = {}
    for node in nodes:
        if node.op == "get_attr":
            value = attribute_of(node)
            if isinstance(value, torch.nn.Parameter) and value.requires_grad:
                found[node] = str(node.target)
    return found
