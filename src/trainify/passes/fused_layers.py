"""TRN109: library layers whose forward is fused, and which own a differentiable twin."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..catalog.layers import LAYERS, FusedLayer, lookup_layer
from ..facts import ModuleFacts
from ..facts.elements import elements_of, looped_over
from ..facts.guards import gradient_unwanted
from ..facts.names import is_none, last_name
from ..facts.rebound import set_by_others
from ..facts.walk import walk
from ..findings import Finding, Fix
from . import Rule, is_wanted, not_rewritten
from .fused_calls.messages import release_of

if TYPE_CHECKING:
    from ..engine import Options
    from ..rewrite.branch import Change

RULES = (
    Rule(
        code="TRN109",
        name="fused-layer",
        summary="A library's layer runs a kernel without a backward; its native twin has one.",
        why=(
            "The layer picks a fused kernel by platform, also in training. What comes before it "
            "gets no gradient, or a wrong one where the kernel works in place. The same class "
            "computes the same in plain PyTorch under another name."
        ),
        before="""\
import torch
from torch import nn
from vllm.model_executor.layers.activation import SiluAndMul


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = SiluAndMul()

    def forward(self, x):
        return self.down(self.act(x))
""",
        after="""\
import torch
from torch import nn
from vllm.model_executor.layers.activation import SiluAndMul


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = SiluAndMul()

    def forward(self, x):
        if torch.is_grad_enabled() and x.requires_grad:
            return self.down(self.act.forward_native(x))
        return self.down(self.act(x))
""",
    ),
)


def _needle(layer: FusedLayer) -> bytes:
    if layer.module.startswith("kernels."):
        return b"get_kernel"
    return ".".join(layer.module.split(".")[:3]).encode()


_MAX_DEPTH = 4

NEEDLES = tuple(dict.fromkeys(map(_needle, LAYERS)))


@dataclass(frozen=True)
class _Use:
    """A call that runs a fused layer, by the expression ``node`` that holds it there.

    ``kept`` says why it stays as it is; empty where its twin can be called.  ``look_at`` is what a
    person should check then.
    """

    call: ast.Call
    node: ast.expr
    name: str
    layer: FusedLayer
    kept: str = ""
    look_at: tuple[str, ...] = ()


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    found: dict[ast.stmt, list[_Use]] = {}
    for call in module.calls:
        use = _use(module, call, options)
        if use is None or not is_wanted(module, options, "TRN109", call):
            continue
        if not gradient_unwanted(module, call):
            found.setdefault(module.statement(call), []).append(use)
    if not found:
        return
    from ..rewrite import branch

    changes = [_change(module, statement, uses) for statement, uses in found.items()]
    changed = [change for change in changes if change.lines or change.expressions]
    fixes: dict[ast.stmt, dict[str, Fix]] = {}
    reasons: dict[ast.stmt, str] = {}
    vocabulary = branch.Vocabulary(module)
    for run in branch.group(module, changed):
        try:
            of_run = branch.fixes(module, vocabulary, run, options.flag)
        except branch.CannotPlace as error:
            reasons.update((change.first, not_rewritten(error)) for change in run)
            continue
        of_run["attach"] = of_run["flag"]  # the kernel is the library's to call
        fixes.update((change.first, of_run) for change in run)
    for statement, uses in found.items():
        for use in uses:
            message = _message(module, use) + release_of(use.layer, options)
            message += reasons.get(statement, "")
            told = module.finding("TRN109", message, use.call, fixes.get(statement, {}))
            yield replace(told, op=use.name)


def _use(module: ModuleFacts, call: ast.Call, options: Options) -> _Use | None:
    from ..rewrite.overwritten_arguments import StillRead, overwritten_before

    node = call.func
    if last_name(node) == "checkpoint" and call.args:  # which runs what it is given
        node = call.args[0]
    layers = _layers(module, node, options)
    known = [each for each in layers if each is not None]
    if not known:
        return None
    name, layer = known[0]
    kept = next((other.cut for _, other in known if other.cut), "")
    if not kept and (None in layers or any(other.twin != layer.twin for _, other in known)):
        kept = "it may be something that has no such twin"
    kept = kept or _set_elsewhere(module, node, options)
    doubts = dict.fromkeys(other.look_at for _, other in known if other.look_at)
    try:
        doubts.update(dict.fromkeys(() if kept else overwritten_before(module, call, node, layer)))
    except StillRead as error:
        kept = str(error)
    return _Use(call, node, name, layer, kept, tuple(doubts))


def _layers(
    module: ModuleFacts, node: ast.expr, options: Options, depth: int = 0
) -> list[tuple[str, FusedLayer] | None]:
    """What an expression may hold: fused layers, each with its class, and None for all others."""
    if depth > _MAX_DEPTH:
        return [None]
    if isinstance(node, ast.Call):
        for target in module.resolve(node.func):
            layer = lookup_layer(target.name, options.releases)
            if layer is not None and not _is_here(module, layer, target.name):
                return [(target.name, layer)]
        return [None]
    values: list[ast.expr | None] = []
    if isinstance(node, ast.Subscript):
        values = elements_of(module, node)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
        bindings = module.names.attributes(cls).get(node.attr, ()) if cls is not None else ()
        values = [binding.value for binding in bindings if not is_none(binding.value)]
    elif isinstance(node, ast.Name):
        for binding in module.names.bindings(module.scope(node)).get(node.id, ()):
            if isinstance(binding.node, (ast.For, ast.AsyncFor)):
                values += looped_over(module, binding.node, node.id)
            else:
                values.append(binding.value)
    return [
        layer
        for value in values
        for layer in (_layers(module, value, options, depth + 1) if value is not None else [None])
    ]


def _is_here(module: ModuleFacts, layer: FusedLayer, qualified_name: str) -> bool:
    """Whether the project holds the library's own source: the layer is judged there, once."""
    path = module.project.find_module(module, layer.module)
    owner = module.project.load(path) if path is not None else None
    name = qualified_name.rpartition(".")[2]
    return owner is not None and name in owner.names.bindings(owner.tree)


def _set_elsewhere(module: ModuleFacts, callee: ast.expr, options: Options) -> str:
    """Where others put something into ``self.act`` that need not have a twin; empty if nowhere."""
    callee = _attribute_behind(module, callee)
    if not isinstance(callee, ast.Attribute) or not isinstance(callee.value, ast.Name):
        return ""
    cls = module.names.self_class(callee.value)
    for other, value, line in set_by_others(module, cls, callee.attr) if cls is not None else ():
        made = value.func if isinstance(value, ast.Call) else None
        targets = other.names.resolve(made) if made is not None else ()
        layers = [lookup_layer(target.name, options.releases) for target in targets]
        if not layers or any(layer is None or layer.cut for layer in layers):
            place = f"line {line}" if other is module else f"{other.path}:{line}"
            return f"what {place} sets it to may have no twin"
    return ""


def _attribute_behind(module: ModuleFacts, node: ast.expr) -> ast.expr:
    """``self.norms`` of ``self.norms[0]``, and of ``norm`` in a loop over them."""
    for _ in range(_MAX_DEPTH):
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Name):
            for binding in module.names.bindings(module.scope(node)).get(node.id, ()):
                held = binding.value or getattr(binding.node, "iter", None)
                inside = walk(held) if held is not None else ()
                node = next((n for n in inside if isinstance(n, ast.Attribute)), node)
    return node


def _message(module: ModuleFacts, use: _Use) -> str:
    name = module.source(use.node)
    said = f"`{name}` runs a kernel without a backward"
    if use.kept:
        return f"{said}.{not_rewritten(use.kept)}"
    return f"{said}; `{name}.{use.layer.twin}` is differentiable."


def _change(module: ModuleFacts, statement: ast.stmt, uses: list[_Use]) -> Change:
    """The statement with the twins called instead; no lines where one is kept as it is."""
    from ..rewrite.branch import Change, Exchange
    from .fused_calls.site import runs_later

    look_at = list(dict.fromkeys(doubt for use in uses for doubt in use.look_at))
    change = Change([statement], [], wants=_wants(uses), look_at=look_at)
    change.title = uses[0].layer.twin
    if any(use.kept for use in uses):
        return change
    simple = isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return))
    if not simple or any(runs_later(module, use.call) for use in uses):
        change.expressions = [
            Exchange(use.call, _twin_call(module, use), _wants([use])) for use in uses
        ]
        return change
    start = module.start(statement)
    text = module.source(statement)
    for use in sorted(uses, key=lambda use: module.end(use.node), reverse=True):
        place = module.end(use.node) - start
        text = f"{text[:place]}.{use.layer.twin}{text[place:]}"
    change.lines = [" ".join(line.strip() for line in text.splitlines())]
    return change


def _twin_call(module: ModuleFacts, use: _Use) -> str:
    text = module.source(use.call)
    place = module.end(use.node) - module.start(use.call)
    return f"{text[:place]}.{use.layer.twin}{text[place:]}"


def _wants(uses: list[_Use]) -> list[str] | None:
    """The tensors handed to activations; layers with weights ask the grad mode only."""
    names: list[str] = []
    for use in uses:
        if not use.layer.module.endswith("activation"):
            return None
        for argument in use.call.args:
            if not isinstance(argument, ast.Name):
                return None
            names.append(argument.id)
    return list(dict.fromkeys(names))
