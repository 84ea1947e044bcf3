"""TRN205: tensors made under ``inference_mode`` that training meets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_bytes import Mention, mentions
from ...facts.grad_mode import (
    Scope,
    decorator_scope,
    own_nodes,
    scope_around,
    scope_inside,
    scope_of_value,
)
from ...facts.graph import Entry, Graph, calls_any, results, under_scopes
from ...facts.guards import gradient_unwanted, is_forward, is_inference_entry
from ...facts.layers import is_module_class
from ...facts.learning import LOSS_CALL, backward_values, may_learn
from ...facts.metadata import METADATA
from ...facts.names import default_of, is_none, last_name, parameters, self_name
from ...facts.none import tested_not_none
from ...facts.trainable import holds_weights, trained_submodules
from ...facts.walk import walk
from ...findings import STRATEGIES, Finding, Fix
from .. import Look, Needle, Rule
from .made import looked_through
from .saved import given, trained_on

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN205",
        name="inference-tensor-in-training",
        summary="A tensor made under inference_mode is used where gradients are recorded.",
        why=(
            "Such a tensor can never be saved for backward (Inference tensors cannot be saved for "
            "backward), also after the scope has ended: features for a trainable head, "
            "samples that a policy is trained on, new parameters, cached tables. Under no_grad "
            "the same numbers are ordinary tensors."
        ),
        before="""\
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, image):
        with torch.inference_mode():
            features = self.backbone(image)
        return self.head(features)
""",
        after="""\
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, image):
        with torch.no_grad():
            features = self.backbone(image)
        return self.head(features)
""",
    ),
)

_STORES = re.compile(
    rb"\bParameter\(|\bregister_(?:buffer|parameter)\(|\bself\.\w+ = |\bself\.\w+, "
)
_ENTRY = re.compile(
    rb"_?(?:generate|sample|predict|evaluate|infer|complet|chat|stream|main|run|test)|forward"
)


def _may_concern(data: bytes) -> bool:
    """Whether an inference_mode stands where its tensors could be kept, or be trained on."""
    return any(_matters(data, m) for m in mentions(data) if m.mode == b"inference_mode")


def _matters(data: bytes, mention: Mention) -> bool:
    if mention.kind == "decorator":
        return not _ENTRY.match(mention.function) or b".backward(" in data
    if mention.kind == "with":
        trains = (b"def forward", b"backward(", b".parameters()")
        return any(w in data for w in trains) or _STORES.search(mention.block) is not None
    return b" as " in mention.line or b"return" in mention.line


NEEDLES: tuple[Needle, ...] = (Look((b"inference_mode",), _may_concern),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    seen: set[ast.expr] = set()
    for scope, message in _faults(module):
        if scope.mode == "inference_mode" and scope.node not in seen:
            seen.add(scope.node)
            yield _finding(module, scope, message)


def _faults(module: ModuleFacts) -> Iterator[tuple[Scope, str]]:
    scoped = module.scoped_functions
    without = frozenset(function.name for function in under_scopes(module))
    for function in module.functions:
        if function in scoped or calls_any(module, function, without):
            if is_forward(function):
                yield from _in_forward(module, function)
            yield from _in_step(module, function)
            yield from trained_on(module, function)
        yield from given(module, function)
        if function in scoped or function.decorator_list:
            yield from _kept(module, function)
    yield from _in_step(module, module.tree)
    yield from trained_on(module, module.tree)
    yield from _constructed(module)


# -- features -------------------------------------------------------------------------------------


def _in_forward(module: ModuleFacts, function: FunctionNode) -> Iterator[tuple[Scope, str]]:
    """What a trainable module is given, in a forward."""
    cls = module.method_class(function)
    if cls is None or decorator_scope(module, function):
        return
    trained = trained_submodules(module, cls)
    graph = Graph(module, function)
    graph.back_from(results(function))
    for entry in graph.entries:
        through = entry.through
        if not isinstance(through, ast.Call) or gradient_unwanted(module, through):
            continue
        if _is_of_outside(module, function, entry) or _has_cache(module, function, entry):
            continue
        name = graph.attribute(through, module.statement(through))
        if name in trained:
            yield (
                entry.scope,
                f"`self.{name}` of `{cls.name}` is trained on what is computed under",
            )
        elif _saves(through):
            yield entry.scope, f"`{module.source(through.func)}` is given what is computed under"


_CACHE = re.compile(r"(^|_)(kv|cache[sd]?|past)(_|$)|cache$")


def _has_cache(module: ModuleFacts, function: FunctionNode, entry: Entry) -> bool:
    """Whether a scope is only entered with a cache, which is given where tokens are generated."""
    return any(
        _CACHE.search(argument.arg)
        and is_none(default_of(function.args, argument.arg))
        and tested_not_none(module, entry.at, argument.arg)
        for argument in parameters(function.args)
    )


def _in_step(
    module: ModuleFacts, function: FunctionNode | ast.Module
) -> Iterator[tuple[Scope, str]]:
    """What a loss is computed from, in a function that differentiates it."""
    values = list(backward_values(module, function))
    if not values:
        return
    graph = Graph(module, function)
    steps = graph.back_from((value, module.statement(call)) for value, call in values)
    if not any(s.cut is None and _learns(module, s.node) for s in steps):
        return  # nothing records anything: TRN202
    for entry in graph.entries:
        through = entry.through
        if _is_of_outside(module, function, entry):
            continue
        if isinstance(through, ast.Call) and (_saves(through) or may_learn(module, through)):
            yield entry.scope, f"`{module.source(through.func)}` is given what is computed under"


def _is_of_outside(module: ModuleFacts, function: FunctionNode | ast.Module, entry: Entry) -> bool:
    """Whether a scope only looks at a part of what it is given: ``part = ids[:, :2]``.

    A view of an ordinary tensor is an ordinary one.
    """
    if not isinstance(entry.at, ast.Assign) or scope_inside(module, entry.at, function) is None:
        return False
    root, _ = looked_through(entry.at.value, None)
    return (
        isinstance(root, ast.Name)
        and root is not entry.at.value
        and all(
            d.statement is None or scope_inside(module, d.statement, function) is None
            for d in module.flow(function).reaching(root.id, entry.at)
        )
    )


def _learns(module: ModuleFacts, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and may_learn(module, node)


def _saves(call: ast.Call) -> bool:
    """Whether a function keeps its arguments for the backward pass: a loss, a linear map."""
    name = last_name(call.func)
    return bool(LOSS_CALL.search(name)) or name in ("linear", "conv1d", "conv2d", "conv3d")


# -- tensors that stay ----------------------------------------------------------------------------


def _kept(module: ModuleFacts, function: FunctionNode) -> Iterator[tuple[Scope, str]]:
    """Parameters, buffers and tables that are made in a scope and outlive it."""
    if is_inference_entry(module, function):
        return
    cls = module.method_class(function)
    for node in own_nodes(function):
        if isinstance(node, ast.Call):
            what = _registers(module, node)
            scope = scope_around(module, node) if what else None
            if scope is not None and not _is_buffer_at_rest(module, cls, node):
                yield scope, f"{what} is made under"
        elif isinstance(node, ast.Assign) and cls is not None and not is_forward(function):
            name = _own_attribute(node, self_name(function))
            if name is None or not isinstance(node.value, (ast.Call, ast.Tuple, ast.BinOp)):
                continue
            scope = scope_around(module, node)
            if scope is not None and _is_read_in_training(module, cls, name):
                yield scope, f"`self.{name}`, which `{cls.name}.forward` uses, is made under"


def _registers(module: ModuleFacts, call: ast.Call) -> str:
    if module.is_name(call.func, "torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        given = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "requires_grad")]
        off = any(isinstance(v, ast.Constant) and v.value is False for v in given)
        return "" if off else "a parameter"
    if isinstance(call.func, ast.Attribute) and call.func.attr in (
        "register_buffer",
        "register_parameter",
    ):
        return "a " + call.func.attr.rpartition("_")[2]
    return ""


def _own_attribute(statement: ast.Assign, me: str | None) -> str | None:
    for target in statement.targets:
        first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        if isinstance(first, ast.Attribute) and isinstance(first.value, ast.Name):
            if first.value.id == me:
                return first.attr
    return None


def _is_buffer_at_rest(module: ModuleFacts, cls: ast.ClassDef | None, call: ast.Call) -> bool:
    """``self.register_buffer("order", ...)`` of a class whose methods only copy ``self.order``."""
    if cls is None or getattr(call.func, "attr", "") != "register_buffer" or not call.args:
        return False
    name = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
    reads = [n for n in walk(cls) if isinstance(n, ast.Attribute) and n.attr == name]
    return bool(reads) and not any(_may_be_saved(module, node) for node in reads)


def _is_read_in_training(module: ModuleFacts, cls: ast.ClassDef, name: str) -> bool:
    """Whether a module's forward, where gradients are recorded, works with an attribute."""
    if not is_module_class(module, cls):
        return False
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and _may_be_saved(module, node)
        for function in module.functions
        if is_forward(function) and module.method_class(function) is cls
        for node in own_nodes(function)
    )


_FRESH = frozenset("clone tolist item numpy new_tensor".split())
"""Methods whose result is a new tensor outside of the scope, or none."""


def _may_be_saved(module: ModuleFacts, node: ast.Attribute) -> bool:
    """Whether a read of a tensor is no copy, and stands where gradients are recorded."""
    if not isinstance(node.ctx, ast.Load) or scope_around(module, node) is not None:
        return False
    parent = module.parent(node)
    if isinstance(parent, ast.Call) and node in parent.args:
        return not module.is_name(parent.func, "torch.clone", "torch.tensor")
    return not (
        (isinstance(parent, ast.Attribute) and parent.attr in _FRESH | METADATA)
        or _indexes_constant(module, node)
    )


def _indexes_constant(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether a tensor is the index of something that has no gradient: ``z[:, self.order]``."""
    around = module.parent(node)
    while isinstance(around, (ast.Tuple, ast.Slice)):
        node, around = around, module.parent(around)
    function = module.function(node)
    if not isinstance(around, ast.Subscript) or around.slice is not node or function is None:
        return False
    return scope_of_value(module, function, around.value, module.statement(around)) is not None


_TRAINED = re.compile(r"\b(\w+)\.parameters\(\)")


def _constructed(module: ModuleFacts) -> Iterator[tuple[Scope, str]]:
    """Models that are built in a scope: by a decorated class, or under a ``with`` and trained."""
    for cls in module.classes:
        for decorator in cls.decorator_list:
            scope = decorator_scope(module, cls)
            if scope is not None and scope.node is decorator and holds_weights(module, cls):
                yield scope, f"the parameters of `{cls.name}` are made under"
    handed = set(_handed_to_optimizers(module))
    told = _TRAINED.findall(module.usual) if ".parameters()" in module.usual else ()
    trained = {name for _, name in handed} | set(told)
    for statement in module.statements if trained else ():
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or target.id not in trained:
            continue
        scope = scope_around(module, statement)
        function = module.function(statement) or module.tree
        if scope is not None and (
            (function, target.id) in handed or _is_trained(module, function, target.id)
        ):
            yield scope, f"`{target.id}`, which is trained, is made under"


def _handed_to_optimizers(module: ModuleFacts) -> Iterator[tuple[ast.AST, str]]:
    """The names of tensors in ``SGD([scale, bias])`` and in ``Adam([{"params": [scale]}])``.

    Each comes with the function, or the module, that calls the optimizer.
    """
    for call in module.calls if "optim" in module.usual else ():
        if not any(t.name.startswith("torch.optim.") for t in module.resolve(call.func)):
            continue
        if not call.args or scope_around(module, call) is not None:
            continue
        function = module.function(call) or module.tree
        for node in walk(call.args[0]):
            if isinstance(node, ast.List):
                yield from ((function, n.id) for n in node.elts if isinstance(n, ast.Name))


def _is_trained(module: ModuleFacts, function: ast.AST, name: str) -> bool:
    """Whether a model is put into training mode, or its parameters are handed to an optimizer."""
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            text = module.source(node)
            if node.func.attr == "train" and text == f"{name}.train()":
                return scope_around(module, node) is None
            if f"{name}.parameters()" in text and "optim" in module.source(node.func).lower():
                return scope_around(module, node) is None
    return False


# -- the fix --------------------------------------------------------------------------------------


def _finding(module: ModuleFacts, scope: Scope, what: str) -> Finding:
    from ...rewrite.scopes import as_no_grad

    text = module.source(scope.node)
    message = (
        f"{what[:1].upper()}{what[1:]} `{text}`: an inference tensor can never be saved for "
        "backward. Under `no_grad` it is an ordinary one."
    )
    call = scope.node.func if isinstance(scope.node, ast.Call) else scope.node
    direct = any(t.name.endswith(".inference_mode") for t in module.resolve(call, scope.owner))
    if not direct:  # a helper of the project's
        return module.finding("TRN205", message, scope.node)
    edits = as_no_grad(module, scope.node, scope.node in getattr(scope.owner, "decorator_list", ()))
    fix = Fix("Use no_grad", tuple(edits))
    return module.finding("TRN205", message, scope.node, dict.fromkeys(STRATEGIES, fix))
