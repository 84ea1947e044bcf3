"""Where a project makes an array of what a fused op gives, with gradients on.

A kernel's result has no graph, so ``model(x).numpy()`` needs no scope as long as a kernel comes
last. With a gradient it raises: the fix is right, and that place has to be looked at.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.array_ways import array_ways, buffer_loads, makes_arrays
from ...facts.frozen import freezes
from ...facts.grad_mode import scope_around
from ...facts.instances import ClassId, Instances, class_id, instances_of
from ...facts.layers import bases_of, made_by, may_be_module, own_class
from ...facts.learning import is_tensor_method
from ...facts.memo import once
from ...facts.models import values_of
from ...facts.names import last_name, passed
from ...facts.trainable import could_learn
from ...facts.walk import walk
from .site import Site

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_MAX_CALLS = 5
_MAX_CALLERS = 3
_MODES = re.compile(r"\b(?:no_grad|set_grad_enabled|inference_mode)\b")
_MAX_NAMES = 3


@dataclass(frozen=True)
class Served:
    """A run of a model whose result becomes an array, or is copied, with gradients on.

    ``evaluated`` says that the model is in evaluation mode there.
    """

    path: str
    line: int
    label: str
    made: str
    evaluated: bool

    def look_at(self, here: str) -> str:
        """What a person has to look at, seen from a file."""
        line = f"line {self.line}" if self.path == here else f"{self.path}:{self.line}"
        does = {"copy": "copies the result"}.get(self.made, "makes an array of the result")
        return (
            f"{self.label} ({line}) {does} with gradients on, which raises once it has a graph: "
            "put that run under torch.no_grad(), or detach() the result"
        )


class ServedPlaces:
    """Where results of the fused ops of one file become arrays, as far as one run of a pass asks.

    It holds the file, which must not remember it in turn.
    """

    def __init__(self) -> None:
        self._found: dict[FunctionNode, Served | None] = {}
        self._known: dict[ClassId, Instances | None] = {}

    def first(self, site: Site) -> Served | None:
        """The first that needs a result of a site to have no graph; None where none shows."""
        module, function = site.module, site.module.function(site.call)
        if function is None or _is_scoped(module, site.call):
            return None  # a forward's own scope is TRN201's to move
        values: list[ast.expr] = [site.call]
        fresh = (a.name for a in site.op.signature.written if a.name not in site.in_place)
        for node in (site.bound[name] for name in fresh):
            values += buffer_loads(module, site.call, node) if node is not None else ()
        if not any(end == "returned" for value in values for end, _ in array_ways(module, value)):
            return None
        if not _is_needed_plain(module):
            return None
        if function not in self._found:
            self._found[function] = next(_places(module, function, _Way(), self, {}), None)
        return self._found[function]

    def instances(self, module: ModuleFacts, cls: ast.ClassDef) -> Instances | None:
        """The objects of a class; None where gradients are off for them, or one is frozen."""
        made = class_id(module, cls)
        if made not in self._known:
            self._known[made] = _instances(module, cls)
        return self._known[made]


@once
def _is_needed_plain(module: ModuleFacts) -> bool:
    """Whether a file of the project makes an array of what something gives outside of scopes."""
    if _may_make_arrays(module.text.encode()) and _makes_arrays(module):
        return True
    return any(module.project.summaries(module.path, _makes_arrays, _may_make_arrays))


def _may_make_arrays(data: bytes) -> bool:
    """The same, told by bytes."""
    return (
        (b".numpy()" in data and _TO_NUMPY.search(data) is not None)
        or (b"deepcopy(" in data and _COPIES.search(data) is not None)
        or _GIVEN_TO_LIBRARIES.search(data) is not None
        or (b"] = " in data and _ROWS.search(data) is not None)
    )


_TO_NUMPY = re.compile(rb"^(?!.*\bdetach\(\)).*\.numpy\(\)", re.M)
_ROWS = re.compile(rb"\b(?:np|numpy)\.(?:zeros|ones|empty|full)\(")
_COPIES = re.compile(rb"\bdeepcopy\((?!self\)|[\w.]*(?:config|cfg|args|params|tokenizer))")
_GIVEN_TO_LIBRARIES = re.compile(rb"\b(?:np|numpy|plt|pyplot)\.[\w.]+\(\s*[A-Za-z_][\w.]*[(),.\[]")


def _makes_arrays(module: ModuleFacts) -> bool:
    values = [
        c.func.value for c in module.calls_named("numpy") if isinstance(c.func, ast.Attribute)
    ]
    values += [c.args[0] for c in module.calls_named("deepcopy") if c.args]
    values += [
        argument
        for call in module.calls
        if call.args and any(makes_arrays(t.name) for t in module.resolve(call.func))
        for argument in call.args
    ]
    if _ROWS.search(module.text.encode()):
        values += [
            statement.value
            for statement in module.statements
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript)
        ]
    return any(_is_of_a_run(module, value) for value in values)


def _is_of_a_run(module: ModuleFacts, value: ast.expr, depth: int = 0) -> bool:
    """Whether a value comes, by names and methods, of the call of something that may be a model."""
    while True:
        if isinstance(value, ast.Call) and _may_run_a_model(module, value):
            return not _is_scoped(module, value)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            library = module.resolve(value.func)
            value = value.args[0] if library and value.args else value.func.value
        elif isinstance(value, (ast.ListComp, ast.GeneratorExp)):
            value = value.elt
        elif isinstance(value, (ast.Subscript, ast.BinOp)):
            value = value.value if isinstance(value, ast.Subscript) else value.left
        elif isinstance(value, ast.Await) or (
            isinstance(value, ast.Attribute) and module.names.self_class(value.value) is None
        ):
            value = value.value
        else:
            break
    if isinstance(value, ast.Attribute):
        return True
    if not isinstance(value, ast.Name) or depth == _MAX_NAMES:
        return False
    for around in module.ancestors(value):
        for part in getattr(around, "generators", ()):
            if any(isinstance(n, ast.Name) and n.id == value.id for n in walk(part.target)):
                return _is_of_a_run(module, part.iter, depth + 1)
        if isinstance(around, ast.stmt):
            break
    flow = module.flow(module.function(value) or module.tree)
    for definition in flow.reaching(value.id, module.statement(value)):
        made = definition.value
        if definition.is_parameter:
            return True  # who calls it may have run a model
        if made is None:
            continue
        if isinstance(made, ast.List) and not made.elts:
            return True  # what is collected in it
        if _is_of_a_run(module, made, depth + 1):
            return True
    return False


def _may_run_a_model(module: ModuleFacts, call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute) and (
        is_tensor_method(function.attr) or function.attr in ("detach", "argmax")
    ):
        return False
    names = [target.name for target in module.resolve(function)]
    if any(name.startswith(("torch.", "numpy.", "copy.")) for name in names):
        return False
    if isinstance(function, ast.Name) and function.id != "map":
        return not hasattr(builtins, function.id) and own_class(module, function) is None
    return True


@dataclass(frozen=True)
class _Way:
    """The functions that hand a result on, and whether weights are among what it comes from."""

    passed: frozenset[tuple[str, int]] = frozenset()
    has_weights: bool = False


def _places(
    module: ModuleFacts,
    function: FunctionNode,
    way: _Way,
    served: ServedPlaces,
    seen: dict[tuple[str, int, bool], int],
) -> Iterator[Served]:
    """The places that make an array of what a function gives.

    Many ways lead to one function: ``seen`` are those that were followed from no later a call.
    """
    here = module.path, function.lineno
    if here in way.passed or len(way.passed) == _MAX_CALLS:
        return
    before = seen.get((*here, way.has_weights), _MAX_CALLS)
    if before <= len(way.passed):
        return
    seen[(*here, way.has_weights)] = len(way.passed)
    cls = module.method_class(function)
    if cls is not None and may_be_module(module, cls) and could_learn(module, cls):
        way = replace(way, has_weights=True)
    way = replace(way, passed=way.passed | {here})
    for other, call, evaluated in _runs(module, function, served):
        if _is_scoped(other, call):
            continue
        caller = other.function(call)
        for end in dict.fromkeys(end for end, _ in array_ways(other, call)):
            if end == "returned":
                yield from _places(other, caller, way, served, seen) if caller is not None else ()
            elif (way.has_weights or _given_a_graph(other, call)) and not _is_called_scoped(
                other, caller
            ):
                label = f"`{caller.name}`" if caller is not None else "the top level"
                yield Served(other.path, call.lineno, label, end, evaluated)


def _runs(
    module: ModuleFacts, function: FunctionNode, served: ServedPlaces
) -> Iterator[tuple[ModuleFacts, ast.Call, bool]]:
    """The calls that run a function, and whether its object is in evaluation mode there."""
    cls = module.method_class(function)
    if cls is None:
        for other, call in module.project.calls_of(module, function):
            yield other, call, False
        return
    instances = served.instances(module, cls)
    if instances is None:
        return
    is_forward = function.name.startswith(("forward", "__call__"))
    made = class_id(module, cls)
    for other in instances.files:
        for call in other.calls:
            callee = call.func
            if isinstance(callee, ast.Attribute) and (
                callee.attr == function.name or (is_forward and callee.attr == "forward")
            ):
                callee = callee.value
            elif not is_forward:
                continue
            held = instances.origins(other, callee)
            if held:
                yield other, call, all(o.evaluated for o in held) or instances.is_evaluated(made)
        for call in other.calls_named(function.name):
            if _is_of_super(call) and _derives(other, call, made):
                yield other, call, instances.is_evaluated(made)
        for call in (c for name in _HANDED if is_forward for c in other.calls_named(name)):
            held = [origin for given in call.args for origin in instances.origins(other, given)]
            if held:
                yield other, call, all(o.evaluated for o in held) or instances.is_evaluated(made)


_HANDED = ("map", "submit", "run_in_executor", "to_thread", "run_sync", "run_in_threadpool")
"""What runs a model that it is given, and gives its result, or something that will."""


def _is_of_super(call: ast.Call) -> bool:
    """``super().forward(x)``."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(owner, ast.Call) and last_name(owner.func) == "super"


def _derives(module: ModuleFacts, node: ast.AST, made: ClassId) -> bool:
    """Whether a node stands in a class that derives from another one."""
    cls = module.method_class(module.function(node))
    return cls is not None and any(class_id(*base) == made for base in bases_of(module, cls))


def _instances(module: ModuleFacts, cls: ast.ClassDef) -> Instances | None:
    instances = instances_of(module, cls)
    for other in instances.files:
        if any(s is not None and s.mode is not None for s in other.grad_switches.values()):
            return None
        for node in other.frozen_places:
            while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func.value  # of model.parameters()
            if instances.origins(other, node):
                return None
        for call in other.calls_named("requires_grad_"):
            if freezes(call) and isinstance(call.func, ast.Attribute):
                if instances.origins(other, call.func.value):
                    return None
    return instances


def _is_scoped(module: ModuleFacts, call: ast.Call) -> bool:
    around = (item for a in module.ancestors(call) for item in getattr(a, "items", ()))
    if any(_MODES.search(module.source(item.context_expr)) for item in around):
        return True  # ``set_grad_enabled(self.training)`` as well
    return scope_around(module, call) is not None or any(
        switch is not None and switch.mode is not None
        for switch in map(module.grad_switches.get, module.tree.body)
    )


def _is_called_scoped(module: ModuleFacts, function: FunctionNode | None, depth: int = 0) -> bool:
    """Whether all that calls a function, as far as it shows, has gradients off."""
    if function is None or depth == _MAX_CALLERS:
        return False
    calls = list(module.project.calls_of(module, function))
    return bool(calls) and all(
        _is_scoped(other, call) or _is_called_scoped(other, other.function(call), depth + 1)
        for other, call in calls
    )


def _given_a_graph(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether an argument plainly requires a gradient: ``torch.randn(3, requires_grad=True)``.

    Or is a model whose weights do.
    """
    flow = module.flow(module.function(call) or module.tree)
    bound = [node for target in module.resolve(call.func) for node in target.bound]
    for argument in (*passed(call), *bound):
        if _has_weights(module, argument):
            return True
        value: ast.expr | None = argument
        if isinstance(argument, ast.Name):
            made = flow.only_definition(argument.id, module.statement(call))
            value = made.value if made is not None and made.index is None else None
        if not isinstance(value, ast.Call):
            continue
        if isinstance(value.func, ast.Attribute) and value.func.attr == "requires_grad_":
            return not value.args and not value.keywords
        if module.is_name(value.func, "torch.nn.Parameter", "torch.nn.parameter.Parameter"):
            return not value.keywords and len(value.args) == 1
        if any(
            k.arg == "requires_grad" and isinstance(k.value, ast.Constant) and k.value.value is True
            for k in value.keywords
        ):
            return True
    return False


def _has_weights(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an argument is a model that is made with weights, where nothing is frozen."""
    if module.frozen_places or any(map(freezes, module.calls_named("requires_grad_"))):
        return False
    for made in [node] if isinstance(node, ast.Call) else values_of(module, node):
        value = made
        while isinstance(value, ast.Call) and last_name(value.func) in ("eval", "train"):
            value = getattr(value.func, "value", node)
        if isinstance(value, ast.expr) and made_by(module, value) == "weights":
            return True
    return False
