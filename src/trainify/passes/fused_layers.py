"""TRN109: library layers whose forward is fused, and which own a differentiable twin."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..catalog.layers import LAYERS, FusedLayer, lookup_layer
from ..facts import ModuleFacts
from ..facts.guards import gradient_unwanted
from ..facts.rebound import set_by_others
from ..findings import Finding, Fix
from . import Rule, is_wanted
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


NEEDLES = tuple(dict.fromkeys(map(_needle, LAYERS)))


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    found: dict[ast.stmt, list[tuple[ast.Call, FusedLayer]]] = {}
    names: dict[ast.Call, str] = {}
    kept: dict[ast.Call, str] = {}
    for call in module.calls:
        name, layer = _layer(module, call.func, options)
        if layer is None or not is_wanted(module, options, "TRN109", call):
            continue
        if not gradient_unwanted(module, call):
            names[call] = name
            kept[call] = layer.cut or _set_elsewhere(module, call.func, options)
            found.setdefault(module.statement(call), []).append((call, layer))
    if not found:
        return
    from ..rewrite import branch

    changes = [
        _change(module, statement, calls, any(kept[call] for call, _ in calls))
        for statement, calls in found.items()
    ]
    vocabulary = branch.Vocabulary(module)
    for run in branch.group(module, changes):
        fixes: dict[str, Fix] = {}
        if all(change.lines or change.expressions for change in run):
            try:
                fixes = branch.fixes(module, vocabulary, run, options.flag)
                fixes["attach"] = fixes["flag"]  # the kernel is the library's to call
            except branch.CannotPlace:
                fixes = {}
        for change in run:
            for call, layer in found[change.first]:
                message = _message(module, call, layer, kept[call]) + release_of(layer, options)
                told = module.finding("TRN109", message, call, fixes)
                yield replace(told, op=names[call])


def _layer(module: ModuleFacts, node: ast.expr, options: Options) -> tuple[str, FusedLayer | None]:
    """The class and the fused layer that a callee is of: ``self.norm`` made by ``RMSNorm(...)``."""
    bindings = None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
        if cls is not None:
            bindings = module.names.attributes(cls).get(node.attr)
    elif isinstance(node, ast.Name):
        bindings = module.names.bindings(module.scope(node)).get(node.id)
    for binding in bindings or ():
        if isinstance(binding.value, ast.Call):
            for target in module.resolve(binding.value.func):
                layer = lookup_layer(target.name, options.releases)
                if layer is not None and not _is_here(module, layer, target.name):
                    return target.name, layer
    return "", None


def _is_here(module: ModuleFacts, layer: FusedLayer, qualified_name: str) -> bool:
    """Whether the project holds the library's own source: the class is judged there, once."""
    path = module.project.find_module(module, layer.module)
    owner = module.project.load(path) if path is not None else None
    name = qualified_name.rpartition(".")[2]
    return owner is not None and any(cls.name == name for cls in owner.classes)


def _set_elsewhere(module: ModuleFacts, callee: ast.expr, options: Options) -> str:
    """Where others put something into ``self.act`` that need not have a twin; empty if nowhere."""
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


def _message(module: ModuleFacts, call: ast.Call, layer: FusedLayer, kept: str) -> str:
    name = module.source(call.func)
    if kept:
        return f"`{name}` runs a kernel without a backward. Not rewritten: {kept}."
    return f"`{name}` runs a kernel without a backward; `{name}.{layer.twin}` is differentiable."


def _change(
    module: ModuleFacts,
    statement: ast.stmt,
    calls: list[tuple[ast.Call, FusedLayer]],
    kept: bool,
) -> Change:
    """The statement with the twins called instead; no lines where it is ``kept`` as it is."""
    from ..rewrite.branch import Change, Exchange
    from .fused_calls.site import runs_later

    change = Change([statement], [], wants=_wants(calls), title=calls[0][1].twin)
    if kept:
        return change
    simple = isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return))
    if not simple or any(runs_later(module, call) for call, _ in calls):
        change.expressions = [
            Exchange(call, _twin_call(module, call, layer), _wants([(call, layer)]))
            for call, layer in calls
        ]
        return change
    start = module.start(statement)
    text = module.source(statement)
    for call, layer in sorted(calls, key=lambda pair: module.end(pair[0].func), reverse=True):
        place = module.end(call.func) - start
        text = f"{text[:place]}.{layer.twin}{text[place:]}"
    change.lines = [" ".join(line.strip() for line in text.splitlines())]
    return change


def _twin_call(module: ModuleFacts, call: ast.Call, layer: FusedLayer) -> str:
    text = module.source(call)
    place = module.end(call.func) - module.start(call)
    return f"{text[:place]}.{layer.twin}{text[place:]}"


def _wants(calls: list[tuple[ast.Call, FusedLayer]]) -> list[str] | None:
    """The tensors handed to activations; layers with weights ask the grad mode only."""
    names: list[str] = []
    for call, layer in calls:
        if not layer.module.endswith("activation"):
            return None
        for argument in call.args:
            if not isinstance(argument, ast.Name):
                return None
            names.append(argument.id)
    return list(dict.fromkeys(names))
