"""Where gradients end in a graph, found without running it."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ..audit.report import Cause, Cut
from .aliases import owner_of
from .calls import (
    HOST,
    branches,
    called_module,
    detached,
    fused_call,
    grad_mode,
    is_view,
    module_of,
    op_name,
    parameters_of,
    root_of,
    unknown_op,
)
from .pieces import is_dividing
from .saving import overwritten, passes_history
from .told import told_of
from .writes import written_into


def check(graph_module: GraphModule | ExportedProgram) -> tuple[Cut, ...]:
    """The gradient cuts in a graph, in the order of its nodes; no kernel runs.

    A cut is a node that a parameter's value goes through on its way to the output, and its gradient
    does not come back through: a fused op, a registered op that autograd knows nothing of, a
    detached value, a number taken out of a tensor, a region without gradients.  An op that writes
    into what already has a history makes gradients wrong; a write of PyTorch's own over what
    another operation surely keeps for backward has that raise.  Places are those that the graph
    keeps (``torch.export`` does, ``symbolic_trace`` does not).  Parameters are those that it holds;
    what is an input is none.

    Raises:
        TypeError: That is no graph.
    """
    return tuple(_cuts(module_of(graph_module), {}))


def _cuts(source: GraphModule, given: dict[Node, frozenset[str]], off: bool = False) -> list[Cut]:
    """The cuts in a graph whose inputs come from these parameters, under a mode."""
    nodes = list(source.graph.nodes)
    memory = _Memory(nodes)
    reaching = _reaching(nodes, memory)
    names: dict[Node, frozenset[str]] = {}
    held: dict[Node, frozenset[str]] = {}  # by what has been written there
    parameters = parameters_of(nodes)
    learning = {node for node in nodes if node in parameters or given.get(node)}
    needed = dict(overwritten(nodes, _live(nodes, learning, memory)))
    cuts: list[Cut] = []
    for node in nodes:
        if node.target is torch._C._set_grad_enabled:
            off = not node.args[0]
        own = {parameters[node]} if node in parameters else set()
        own |= given.get(node, frozenset())
        read = node.all_input_nodes
        before = own.union(
            *(names.get(each, frozenset()) for each in read),
            *(held.get(memory(each), frozenset()) for each in read),
        )
        if node.op == "call_module":
            before |= {f"{node.target}.{name}" for name in _learning(node)}
        names[node] = frozenset(before)
        for written in _written(node):
            at = memory(written)
            held[at] = held.get(at, frozenset()) | names[node]
        keeper = needed.get(node)
        if keeper is not None and (keeper in reaching or is_dividing(keeper)):
            cuts.append(_placed(node, *_saved(node, keeper), tuple(sorted(names[keeper]))))
        if not before or node.op not in ("call_function", "call_method") or node not in reaching:
            continue
        for _, inner, inputs in branches(node):
            cuts += _cuts(inner, {each: names[of] for each, of in inputs.items()}, off)
        found = _cut(node, off)
        if found is not None:
            cause, kind, op, message = found
            cuts.append(_placed(node, cause, kind, op, message, tuple(sorted(before))))
    return cuts


def _cut(node: Node, off: bool) -> tuple[Cause, str, str | None, str] | None:
    call = fused_call(node)
    if call is not None and call.row.cuts:
        if any(_has_history(each) for each in _written(node)):
            message = f"{call.name} writes into a value that keeps its history: gradients go wrong"
            return Cause.IN_PLACE, "wrong", call.name, f"{message}."
        return Cause.KERNEL, "missing", call.name, f"{call.name} records no backward."
    unknown = unknown_op(node)
    if unknown is not None:
        return Cause.KERNEL, "missing", unknown, f"{unknown} records no backward."
    if grad_mode(node) is False or (off and not is_view(node)):
        return Cause.GRAD_MODE, "missing", None, "What is computed here passes no gradient on."
    if detached(node) is not None:
        cause = Cause.DATA if node.target is getattr else Cause.DETACH
        if not _is_argument(node):  # else the cut of the call that it is an argument of
            return cause, "missing", None, "The value is detached: its gradient ends here."
    name = op_name(node)
    if name in HOST:
        return Cause.HOST, "missing", name, "A number taken out of a tensor has no gradient."
    return None


def _saved(node: Node, keeper: Node) -> tuple[Cause, str, str | None, str]:
    """A write of PyTorch's own over what another operation needs."""
    by, of = (op_name(each) or str(each.target) for each in (node, keeper))
    message = f"{by} writes over what {of} keeps for backward, which raises."
    if is_dividing(keeper):
        message = f"{by} writes into a piece of what {of} gives, which autograd refuses."
    return Cause.SAVED, "wrong", by, message


def _live(nodes: list[Node], learning: set[Node], memory: _Memory) -> set[Node]:
    """The nodes with a history, once what takes it is rewritten; a ``detach()`` may be meant."""
    live = set(learning)
    held: set[Node] = set()
    for node in nodes:
        read = node.all_input_nodes
        if any(each in live or memory(each) in held for each in read):
            if passes_history(node):
                live.add(node)
        elif node.op == "call_module" and _learning(node):
            live.add(node)
        if node in live:
            held.update(map(memory, _written(node)))
    return live


def _learning(node: Node) -> list[str]:
    """The parameters of the module that a node calls which require a gradient."""
    return [n for n, p in called_module(node).named_parameters() if p.requires_grad]


def _is_argument(node: Node) -> bool:
    return bool(node.users) and all(fused_call(user) is not None for user in node.users)


def _has_history(node: Node) -> bool:
    """Whether a value was computed, and not merely allocated."""
    root = root_of(node)
    made = str(root.target) if root.op == "call_method" else getattr(root.target, "__name__", "")
    return root.op.startswith("call_") and not any(each in made for each in _ALLOCATIONS)


_ALLOCATIONS = ("empty", "zeros", "ones", "full")


def _written(node: Node) -> list[Node]:
    """The values that a node writes into."""
    call = fused_call(node)
    if call is not None and call.results is None:
        values = [call.values.get(argument.name) for argument in call.row.signature.written]
        return [value for value in values if isinstance(value, Node)]
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        target = written_into(node)
        return [] if target is None else [target]
    pairs = zip(schema.arguments, node.args, strict=False)
    return [
        value
        for argument, value in pairs
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and isinstance(value, Node)
    ]


def _reaching(nodes: list[Node], memory: _Memory) -> set[Node]:
    """The nodes on which the output depends, by what they return or by what they write into.

    What is written into memory from outside of the graph may be read by the next call.
    """
    places = {node: i for i, node in enumerate(nodes)}
    writers: dict[Node, list[Node]] = {}
    for node in nodes:
        for written in _written(node):
            writers.setdefault(memory(written), []).append(node)
    found: set[Node] = set()
    waiting = [node for node in nodes if node.op == "output"]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
            for at in {memory(each) for each in (node, *node.all_input_nodes)}:
                lasts = at.op in ("get_attr", "placeholder")
                waiting += (w for w in writers.get(at, ()) if lasts or places[w] < places[node])
    return found


class _Memory:
    """One node for all that is written into with it: its views, and who reads the same buffer."""

    def __init__(self, nodes: list[Node]) -> None:
        self._first: dict[str, Node] = {}
        for node in nodes:
            if node.op == "get_attr":
                self._first.setdefault(str(node.target), node)

    def __call__(self, node: Node) -> Node:
        root = owner_of(node)
        return self._first[str(root.target)] if root.op == "get_attr" else root


def _placed(
    node: Node, cause: Cause, kind: str, op: str | None, message: str, names: tuple[str, ...]
) -> Cut:
    told = told_of(node)
    return Cut(
        cause=cause,
        kind=kind,
        op=op,
        path=told.path,
        line=told.line,
        function=told.function,
        message=message,
        modules=told.modules[-1:],
        parameters=names,
    )
