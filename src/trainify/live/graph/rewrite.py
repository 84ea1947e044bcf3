"""A graph in which fused ops are what the catalog has for them."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from ...catalog import RETURNED
from ...verify.equivalent import Equivalent, reference_functions, value_of
from ...verify.kernels import Libraries
from ..derivative import unknown_for
from .aliases import aliases_of, owner_of, places_of, roots, spare_readers
from .calls import (
    FusedCall,
    attribute_of,
    branches,
    detached,
    fused_call,
    grad_mode,
    is_functionalized,
    is_view,
    module_of,
    op_name,
    root_of,
    unknown_op,
)
from .in_place import spare_saved
from .pieces import slice_pieces
from .told import told_of
from .writes import is_alias


def rewrite(graph_module: GraphModule | ExportedProgram) -> GraphModule:
    """A graph module that can be trained; its parameters are those of the one that is given.

    A call of a fused op becomes calls of the reference functions that the catalog gives for it.
    What the op would have written replaces what was written into; where another view of that is
    still read, or it came from outside of the graph, it is written there in a way that autograd
    sees, and who has read it before reads a copy, since autograd may keep what is read.
    ``auto_functionalized`` nodes are fused calls too.  A detached argument of such a call is
    attached again, and regions without gradients become part of the graph around them.  Other
    ``detach()`` stay: they may be meant, and :func:`check` finds them.

    Where PyTorch's own operations write over what backward needs, it needs a copy (``exp`` and then
    ``mul_``).

    Args:
        graph_module: From ``symbolic_trace``, or exported.

    Raises:
        TypeError: That is no graph.
        ValueError: A fused op is called in a way that its equivalent does not cover, at a place.
    """
    source = module_of(graph_module)
    graph = _without_modes(source)
    _write_copies(graph)
    places = places_of(graph)
    put_back = _put_back(graph)
    for node in list(graph.nodes):
        call = fused_call(node)
        if call is not None and call.row.equivalent is not None:
            _replace(graph, call, places)
        elif is_functionalized(node) and (op := unknown_op(node)):
            raise ValueError(
                f"{told_of(node)}: {op} is functional here, and the catalog has nothing for it, or "
                "it writes into a view of which nothing is known. `trainify.register` adds an op "
                "of your own"
            )
    for node in put_back:
        _let_go_at_first(graph, node.args[0], node)  # type: ignore[arg-type]
        spare_readers(graph, node.args[0], node, places)  # type: ignore[arg-type]
    spare_saved(graph)
    graph.lint()
    result = GraphModule(source, graph)
    for node in list(result.graph.nodes):
        for holder, inner, _ in branches(node):
            name = f"{str(holder.target).replace('.', '_')}_trained"
            if not hasattr(result, name):
                setattr(result, name, rewrite(inner))
            with result.graph.inserting_before(node):
                node.replace_input_with(holder, result.graph.get_attr(name))
            if not holder.users:
                result.graph.erase_node(holder)
    result.recompile()
    return result


# -- grad modes -----------------------------------------------------------------------------------


def _without_modes(source: GraphModule) -> Graph:
    """A copy of a graph in which regions with a mode of their own are part of what is around."""
    graph = copy.deepcopy(source.graph)
    graph.owning_module = source  # what it calls is looked up there
    for node in list(graph.nodes):
        if grad_mode(node) is None:
            continue
        if node.target is torch._C._set_grad_enabled:
            graph.erase_node(node)
            continue
        held = node.args[1]
        inner = _without_modes(source.get_submodule(str(held.target)))  # type: ignore[arg-type]
        for each in inner.nodes:
            if each.op in ("get_attr", "call_module"):
                each.target = f"{held.target}.{each.target}"
        inputs = [each for each in inner.nodes if each.op == "placeholder"]
        with graph.inserting_before(node):
            results: Any = graph.graph_copy(inner, dict(zip(inputs, node.args[2:], strict=True)))
        for user in list(node.users):
            user.replace_all_uses_with(results[_index(user)])
            graph.erase_node(user)
        graph.erase_node(node)
        if not held.users:
            graph.erase_node(held)
    return graph


def _write_copies(graph: Graph) -> None:
    """Give the copies of a graph that was decomposed a derivative, which ``aten.copy`` lacks."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy.default):
        with graph.inserting_before(node):
            made = graph.call_function(torch.empty_like, node.args[:1])
            copied = graph.call_method("copy_", (made, *node.args[1:]))
        copied.meta = dict(node.meta)
        node.replace_all_uses_with(copied)
        graph.erase_node(node)


def _put_back(graph: Graph) -> list[Node]:
    """The nodes that write, at the end, where a model writes of which the graph is functional."""
    if not any(is_functionalized(node) for node in graph.nodes):
        return []
    return [
        node
        for node in graph.nodes
        if node.target is torch.ops.aten.copy_.default
        and isinstance(node.args[0], Node)
        and node.args[0].op in ("placeholder", "get_attr")
    ]


# -- calls ----------------------------------------------------------------------------------------


def _replace(graph: Graph, call: FusedCall, places: dict[Node, int]) -> None:
    node = call.node
    call = _writable(graph, call, places)
    equivalent = Equivalent(call.row, Libraries())
    defaults = {a.name: a.default for a in call.row.signature.arguments}
    for name in call.row.unsupported:
        text = defaults[name]
        default = None if text is None else value_of(text)
        if call.values.get(name) is not None and call.values[name] != default:
            reason = unknown_for(call.name, name, call.values[name])
            raise ValueError(f"{told_of(node)}: {reason}")
    written = _written(call)
    if any(map(_is_of_bits, call.values.values())):
        raise ValueError(
            f"{told_of(node)}: {call.name} is given the bits of numbers as others "
            "(view(torch.int32)), which no gradient goes through"
        )
    in_place = call.results is None
    copied = {
        name for name, target in written.items() if in_place and not _is_own(target, node, places)
    }
    with graph.inserting_before(node):
        call.values.update({name: view.taken(graph) for name, view in call.views.items()})
        tracer = GraphAppendingTracer(graph)

        def given(name: str, value: Any) -> Any:
            value = detached(value) or value
            if not isinstance(value, Node):
                return _map(value, lambda node: Proxy(node, tracer))
            proxy = Proxy(value, tracer)
            overwritten = any(value is written[each] for each in copied)
            return proxy.clone() if overwritten and name in equivalent.reads else proxy

        values = {name: given(name, value) for name, value in call.values.items()}
        results = _evaluate(equivalent, values, tracer)
        outputs = equivalent.outputs or [RETURNED] * len(results)
        by_name: dict[str, Node] = {}
        returned: list[Node] = []
        for name, result in zip(outputs, results, strict=True):
            if name == RETURNED:
                returned.append(result.node)
            elif result is not None:
                by_name[name] = result.node
        for name in written:
            # ``out=`` takes what is returned.
            by_name.setdefault(name, returned[0] if returned else results[0].node)
        for name in copied:
            spare_readers(graph, written[name], node, places)
            _let_go_at_first(graph, root_of(written[name]), written[name])
            if written[name].op == "get_attr" and attribute_of(written[name])._is_view():
                raise ValueError(
                    f"{told_of(node)}: {call.name} writes into a part of a tensor that was made "
                    "once, when this was traced. Make it of what is given there, as by "
                    "torch.empty_like(x), or use torch.export"
                )
            if written[name].op == "get_attr" and name not in equivalent.reads:
                graph.call_method("detach_", (written[name],))  # the history of the last call goes
            graph.call_method("copy_", (written[name], by_name[name]))
    if call.results is not None:
        with graph.inserting_before(node):
            _hand_out(graph, call, _together(graph, call, by_name), returned)
    else:
        for name, target in written.items():
            if name not in copied:
                _instead(target, by_name[name], node, places)
        values_of_node = returned or [by_name[name] for name in written]
        if node.users:
            if len(call.row.signature.returns) > 1:
                for user in list(node.users):
                    user.replace_all_uses_with(values_of_node[_index(user)])
                    graph.erase_node(user)
            else:
                node.replace_all_uses_with(values_of_node[0])
        graph.erase_node(node)
    for value in {v for v in call.values.values() if isinstance(v, Node)}:
        _erase_unused(graph, value)


def _let_go_at_first(graph: Graph, root: Node, part: Node) -> None:
    """Have a buffer that is written in part begin without the history of the last call."""
    if root.op != "get_attr" or root is part:
        return
    if isinstance(attribute_of(root), nn.Parameter) or attribute_of(root)._is_view():
        return
    first = next(node for node in graph.nodes if node.op != "placeholder")
    if first.target != root.target or "lets_go" not in first.meta:
        with graph.inserting_before(first):
            held = graph.get_attr(str(root.target))
            graph.call_method("detach_", (held,))
        held.meta["lets_go"] = True


def _written(call: FusedCall) -> dict[str, Node]:
    """What a call writes into, by the names of its arguments."""
    values = ((each.name, call.values.get(each.name)) for each in call.row.signature.written)
    return {name: value for name, value in values if isinstance(value, Node)}


def _writable(graph: Graph, call: FusedCall, places: dict[Node, int]) -> FusedCall:
    """A call whose arguments can be written into as autograd sees it.

    By views that keep the history of what they are views of, and are no pieces of a split.
    """
    if call.results is not None:
        return call
    values = dict(call.values)
    with graph.inserting_before(call.node):
        for name, target in _written(call).items():
            if root_of(target).op != "get_attr":
                values[name] = _attached(graph, target, places)
    for target in _written(replace(call, values=values)).values():
        if not _is_own(target, call.node, places):
            for root in roots(graph, target):
                slices = slice_pieces(graph, root, call.node, places)
                values = {
                    name: _map(value, partial(_or_same, slices)) for name, value in values.items()
                }
    return replace(call, values=values)


def _is_of_bits(value: Any) -> bool:
    """Whether a value is floating point that went through a view as integers."""
    while isinstance(value, Node) and is_view(value):
        if op_name(value) == "view":
            types = [each for each in value.args if isinstance(each, torch.dtype)]
            if any(not (each.is_floating_point or each.is_complex) for each in types):
                return True
        value = value.args[0] if value.args else None
    return False


def _or_same(slices: dict[Node, Node], node: Node) -> Node:
    return slices.get(node, node)


def _attached(graph: Graph, view: Node, places: dict[Node, int]) -> Node:
    """A view without the ``detach()`` in it."""
    source = detached(view)
    if source is not None:
        return _attached(graph, source, places)
    if not is_view(view) or not isinstance(view.args[0], Node):
        return view
    base = _attached(graph, view.args[0], places)
    if base is view.args[0]:
        return view
    copied = graph.node_copy(view, lambda node: base if node is view.args[0] else node)
    places[copied] = places.get(view, -1)
    return copied


def _evaluate(
    equivalent: Equivalent, values: dict[str, Any], tracer: GraphAppendingTracer
) -> list[Any]:
    """The equivalent as nodes: a call of each reference function in it, not what is in those."""

    def leaf(function: Any) -> Any:
        return lambda *args, **kwargs: tracer.create_proxy("call_function", function, args, kwargs)

    functions = {name: leaf(function) for name, function in reference_functions().items()}
    result = equivalent.evaluate(values, functions)
    if isinstance(result, (tuple, list)):
        return list(result)
    count = len(equivalent.outputs) or len(equivalent.op.signature.returns)
    return [result[i] for i in range(count)] if count > 1 else [result]


def _together(graph: Graph, call: FusedCall, by_name: dict[str, Node]) -> dict[str, Node]:
    """What an ``auto_functionalized`` node gives for what it writes: bases with the views in."""
    assert call.results is not None
    bases: dict[int, Node] = {}
    for name, index in call.results.items():
        if name in call.views:
            view = call.views[name]
            bases[index] = view.put_into(graph, bases.get(index, view.base), by_name[name])
        else:
            bases[index] = by_name[name]
    return {name: bases[index] for name, index in call.results.items()}


def _hand_out(
    graph: Graph, call: FusedCall, by_name: dict[str, Node], returned: list[Node]
) -> None:
    """Give the results of an ``auto_functionalized`` node to those who take them from its tuple."""
    assert call.results is not None
    by_index = {index: by_name[name] for name, index in call.results.items()}
    by_index |= {i: value for i, value in enumerate(returned) if i not in by_index}
    for user in list(call.node.users):
        user.replace_all_uses_with(by_index[_index(user)])
        graph.erase_node(user)
    graph.erase_node(call.node)


def _index(user: Node) -> int:
    """The index by which a node takes its value from a tuple."""
    index = user.args[1]
    assert user.target is operator.getitem and isinstance(index, int)
    return index


def _map(value: Any, to: Callable[[Node], Any]) -> Any:
    """A value with its nodes replaced, in lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(_map(each, to) for each in value)
    return to(value) if isinstance(value, Node) else value


def _is_own(target: Node, at: Node, places: dict[Node, int]) -> bool:
    """Whether nobody sees, other than by its node, that a value is written into."""
    root = owner_of(target)
    if root.op in ("placeholder", "get_attr") or is_alias(root):
        return False
    return not any(
        places.get(user, -1) > places[at]
        for alias in aliases_of(root, target)
        for user in alias.users
        if user is not at
    )


def _instead(target: Node, result: Node, at: Node, places: dict[Node, int]) -> None:
    """Let those who read a value after ``at`` read the result."""
    for user in list(target.users):
        if user is not at and places.get(user, -1) > places[at]:
            user.replace_input_with(target, result)


def _erase_unused(graph: Graph, node: Node) -> None:
    """Erase what only the kernel needed: an empty buffer, a detached weight."""
    pure = is_view(node) or node.target is getattr or "empty" in str(node.target)
    if node.op in ("call_function", "call_method") and pure and not node.users:
        inputs = node.all_input_nodes
        graph.erase_node(node)
        for each in inputs:
            _erase_unused(graph, each)
