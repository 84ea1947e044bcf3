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
from ...facts.names import last_name, self_name
from .cover import label_of

if TYPE_CHECKING:
    from ...facts import Project
    from ...facts.module import FunctionNode


@dataclass(frozen=True)
class Start:
    """A function that starts inference; ``scoped`` where it has a scope of its own already.

    ``any_model`` says that it runs what it was given, ``runs`` names the classes of what it runs
    otherwise; empty where that does not show.
    """

    path: str
    line: int
    label: str
    scoped: bool
    any_model: bool
    runs: frozenset[str] = frozenset()


def starts_in(module: ModuleFacts) -> tuple[Start, ...]:
    """The functions of a file that start inference, as a summary for other files."""
    return tuple(
        Start(
            *(module.path, f.lineno, label_of(module, f)),
            *(is_scoped(module, f), runs_any_model(module, f), classes_run(module, f)),
        )
        for f in inference_functions(module)
    )


def inference_functions(module: ModuleFacts) -> list[FunctionNode]:
    """The functions of a file that start inference, and that no loss is computed by."""
    return [f for f in inference_entries(module) if not trained_through(module, f)]


def may_run(project: Project, start: Start, forward: str, classes: frozenset[str]) -> bool:
    """Whether a start of inference may run the model of another file, by its ``classes``.

    A library has more models than one: imports have to tie the two together, or they stand side by
    side and the start runs what it is given.
    """
    if not start.any_model and start.runs and start.runs.isdisjoint(classes):
        return False
    beside = start.any_model and Path(start.path).parent == Path(forward).parent
    return beside or project.linked(start.path, forward)


def runs_any_model(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function runs a model that it, or its object, was given: not one made here."""
    me = self_name(function)
    flow = module.flow(function)
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not runs_model(call, me):
            continue
        node = _model_of(call)
        if isinstance(node, ast.Name) and node.id in flow.parameters and node.id != me:
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            cls = module.names.self_class(node.value)
            made = module.names.attributes(cls).get(node.attr, ()) if cls is not None else ()
            if any(_comes_from_outside(module, binding.value) for binding in made):
                return True
    return False


def _model_of(call: ast.Call) -> ast.expr:
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
    return made is None or made.is_parameter or not isinstance(made.value, ast.Call)


def classes_run(module: ModuleFacts, function: FunctionNode) -> frozenset[str]:
    """The names of the classes whose objects a function runs; empty where one does not show."""
    me, flow = self_name(function), module.flow(function)
    names: set[str] = set()
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not runs_model(call, me):
            continue
        node = _model_of(call)
        cls = module.method_class(function)
        made: list[ast.expr | None] = []
        if isinstance(node, ast.Name) and node.id == me and cls is not None:
            names |= classes_around(module, cls)
            continue
        if isinstance(node, ast.Name):
            made = [d.value for d in flow.reaching(node.id, module.statement(call))]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = module.names.self_class(node.value)
            found = module.names.attributes(owner).get(node.attr, ()) if owner is not None else ()
            made = [_made_of(module, binding.value) for binding in found]
        called = {last_name(v.func) if isinstance(v, ast.Call) else "" for v in made}
        if not called or not all(name[:1].isupper() for name in called):
            return frozenset()
        names |= called
    return frozenset(names)


def _made_of(module: ModuleFacts, value: ast.expr | None) -> ast.expr | None:
    """The call behind a name: ``model = LlamaModel(config)``, then ``self.model = model``."""
    if not isinstance(value, ast.Name):
        return value
    flow = module.flow(module.function(value) or module.tree)
    made = flow.only_definition(value.id, module.statement(value))
    return made.value if made is not None else None


def classes_around(module: ModuleFacts, cls: ast.ClassDef) -> frozenset[str]:
    """The name of a class, those of its bases, and of the classes of its file that hold one."""
    names = {cls.name, *(last_name(base) for base in cls.bases)} - {"Module", ""}
    holders = [cls.name]
    for name in holders:
        for other in module.classes:
            if other.name not in holders and f"{name}(" in module.source(other):
                holders.append(other.name)
    return frozenset(names | set(holders))


def is_scoped(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether every run of the model in a function has gradients switched off already."""
    if decorator_scope(module, function) is not None or is_off_on_import(module):
        return True
    me = self_name(function)
    runs = [c for c in ast.walk(function) if isinstance(c, ast.Call) and runs_model(c, me)]
    return bool(runs) and all(scope_inside(module, call, function) for call in runs)


def is_off_on_import(module: ModuleFacts) -> bool:
    """Whether importing the file switches gradients off: no function of it needs a scope."""
    switched = (module.grad_switches.get(s) for s in module.tree.body)
    return any(found is not None and found.mode is not None for found in switched)
