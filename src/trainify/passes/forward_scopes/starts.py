"""Where inference starts: which functions do, which models they run, under which scopes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.backpropagated import trained_through
from ...facts.grad_mode import decorator_scope, scope_inside
from ...facts.guards import inference_entries, runs_model
from ...facts.instances import annotated, class_id, named
from ...facts.layers import is_module_class
from ...facts.memo import once
from ...facts.names import last_name, self_name
from ...facts.walk import walk
from .bodies import can_be_scoped
from .cover import label_of

if TYPE_CHECKING:
    from ...facts import Project
    from ...facts.module import FunctionNode


@dataclass(frozen=True)
class Start:
    """A function that starts inference; ``scoped`` where it has a scope of its own already.

    ``any_model`` says that it runs what it was given, ``runs`` names the classes of what it runs
    otherwise; empty where that does not show.  ``narrow`` says that a scope cannot cover it whole.
    """

    path: str
    line: int
    label: str
    scoped: bool
    any_model: bool
    runs: frozenset[str] = frozenset()
    narrow: bool = False


def starts_in(module: ModuleFacts) -> tuple[Start, ...]:
    """The functions of a file that start inference, as a summary for other files."""
    return tuple(
        Start(
            *(module.path, f.lineno, label_of(module, f)),
            *(is_scoped(module, f), runs_any_model(module, f), classes_run(module, f)),
            not can_be_scoped(module, f),
        )
        for f in inference_functions(module)
    )


@once
def inference_functions(module: ModuleFacts) -> list[FunctionNode]:
    """The functions of a file that start inference, and that no loss is computed by."""
    return [f for f in inference_entries(module) if not trained_through(module, f)]


def may_run(project: Project, start: Start, forward: str, classes: frozenset[str]) -> bool:
    """Whether a start of inference may run the model of another file, by its ``classes``.

    A library has more models than one: imports have to tie the two together, or they stand side by
    side and the start runs what it is given.
    """
    if not _are_among(start.any_model, start.runs, classes):
        return False
    beside = start.any_model and Path(start.path).parent == Path(forward).parent
    return beside or project.linked(start.path, forward)


def can_run(module: ModuleFacts, function: FunctionNode, classes: frozenset[str]) -> bool:
    """Whether a start of inference may run one of the ``classes`` of its own file."""
    return _are_among(runs_any_model(module, function), classes_run(module, function), classes)


def _are_among(any_model: bool, runs: frozenset[str], classes: frozenset[str]) -> bool:
    """Whether what a start runs may be one of the classes, told by files where both show."""
    if any_model or not runs:
        return True
    return any(
        one == other if "::" in one and "::" in other else _plain(one) == _plain(other)
        for one in runs
        for other in classes
    )


def _plain(name: str) -> str:
    return name.rpartition("::")[2]


@once
def runs_any_model(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function runs a model that it, or its object, was given: not one made here."""
    me = self_name(function)
    flow = module.flow(function)
    for call in walk(function):
        if not isinstance(call, ast.Call) or not runs_model(call, me):
            continue
        node = model_of(call)
        if isinstance(node, ast.Name) and node.id in flow.parameters and node.id != me:
            if not annotated(module, function, node.id):
                return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            cls = module.names.self_class(node.value)
            made = module.names.attributes(cls).get(node.attr, ()) if cls is not None else ()
            if any(_comes_from_outside(module, binding.value) for binding in made):
                return True
    return False


def model_of(call: ast.Call) -> ast.expr:
    """What a call runs: ``model`` of ``model(x)`` and of ``model.forward(x)``."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "forward":
        return function.value
    return function


def _comes_from_outside(module: ModuleFacts, value: ast.expr | None) -> bool:
    """Whether a name is a parameter, or is made of what its function does not show."""
    if not isinstance(value, ast.Name):
        return False
    flow = module.flow(module.function(value) or module.tree)
    made = flow.only_definition(value.id, module.statement(value))
    if made is not None and made.is_parameter:
        function = module.function(value)
        return function is None or not annotated(module, function, value.id)
    return made is None or not isinstance(made.value, ast.Call)


@once
def classes_run(module: ModuleFacts, function: FunctionNode) -> frozenset[str]:
    """The names of the classes whose objects a function runs; empty where one does not show.

    With the file of those that the project has.
    """
    me, flow = self_name(function), module.flow(function)
    names: set[str] = set()
    for call in walk(function):
        if not isinstance(call, ast.Call) or not runs_model(call, me):
            continue
        node = model_of(call)
        cls = module.method_class(function)
        made: list[ast.expr | None] = []
        called: set[str] = set()
        if isinstance(node, ast.Name) and node.id == me and cls is not None:
            names |= classes_around(module, cls)
            continue
        if isinstance(node, ast.Name):
            reaching = flow.reaching(node.id, module.statement(call))
            made = [d.value for d in reaching if not d.is_parameter]
            if any(d.is_parameter for d in reaching):
                called |= _declared(module, function, node.id)
        elif cls is not None and is_module_class(module, cls) and _is_of_part(node, me):
            # self.encodec.encoder(x) runs what self.encodec is made with, no model around it
            assert isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
            held = module.names.attributes(cls).get(node.value.attr, ())
            made = [binding.value for binding in held]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = module.names.self_class(node.value)
            found = module.names.attributes(owner).get(node.attr, ()) if owner is not None else ()
            for binding in found:
                value = _made_of(module, binding.value)
                given = module.function(value) if isinstance(value, ast.Name) else None
                if isinstance(value, ast.Name) and given is not None:
                    called |= _declared(module, given, value.id)
                else:
                    made.append(value)
        called |= {_class_of(module, v.func) if isinstance(v, ast.Call) else "" for v in made}
        if not called or not all(_plain(name)[:1].isupper() for name in called):
            return frozenset()
        names |= called
    return frozenset(names)


def _is_of_part(node: ast.expr, me: str | None) -> bool:
    """``self.encodec.encoder``: a part of a part of a method's object."""
    part = node.value if isinstance(node, ast.Attribute) else None
    return (
        isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == me
    )


def _declared(module: ModuleFacts, function: FunctionNode, name: str) -> set[str]:
    """What a parameter is declared to be; an empty name where that is no class."""
    declared = annotated(module, function, name)
    return {f"{path}::{cls}" if path else cls.title() for path, cls in declared} or {""}


def _class_of(module: ModuleFacts, node: ast.expr) -> str:
    """The class that a name stands for, with its file where the project has it."""
    made = named(module, node)
    return "::".join(made) if made is not None else last_name(node)


def _made_of(module: ModuleFacts, value: ast.expr | None) -> ast.expr | None:
    """The call behind a name: ``model = LlamaModel(config)``, then ``self.model = model``."""
    if not isinstance(value, ast.Name):
        return value
    flow = module.flow(module.function(value) or module.tree)
    made = flow.only_definition(value.id, module.statement(value))
    if made is not None and made.is_parameter:
        return value
    return made.value if made is not None else None


@once
def classes_around(module: ModuleFacts, cls: ast.ClassDef) -> frozenset[str]:
    """The name of a class, those of its bases, and of the classes of its file that hold one.

    With the file of those that the project has.
    """
    names = {_class_of(module, base) for base in cls.bases if last_name(base) != "Module"} - {""}
    holders = [cls.name]
    for name in holders:
        for other in module.classes:
            if other.name not in holders and f"{name}(" in module.source(other):
                holders.append(other.name)
    around = [class_id(module, c) for c in module.classes if c.name in holders]
    return frozenset(names | {"::".join(each) for each in around})


@once
def is_scoped(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether every run of the model in a function has gradients switched off already."""
    if decorator_scope(module, function) is not None or is_off_on_import(module):
        return True
    me = self_name(function)
    runs = [c for c in walk(function) if isinstance(c, ast.Call) and runs_model(c, me)]
    return bool(runs) and all(scope_inside(module, call, function) for call in runs)


def is_off_on_import(module: ModuleFacts) -> bool:
    """Whether importing the file switches gradients off: no function of it needs a scope."""
    switched = (module.grad_switches.get(s) for s in module.tree.body)
    return any(found is not None and found.mode is not None for found in switched)
