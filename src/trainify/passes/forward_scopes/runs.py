"""Where the project runs a model outside of training, and what becomes of its output there."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.backpropagated import called_by_losses
from ...facts.grad_mode import scope_around
from ...facts.guards import is_forward
from ...facts.instances import ClassId, Instances
from ...facts.instances.origins import Origin
from ...facts.learning import backward_values, is_tensor_method
from ...facts.metadata import METADATA
from ...facts.names import last_name, self_name
from ...facts.walk import walk
from .beside import is_named_for_training
from .cover import label_of
from .starts import is_off_on_import, model_of

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

Place = tuple[str, int]
"""The path of a file, and the line of a function in it."""

_NUMBERS = frozenset("numpy tolist item argmax decode batch_decode".split())
_GIVEN = "return"
_MAX_DEPTH = 3
_LIBRARIES = ("torch.", "numpy.", "math.", "PIL.", "einops.", "json.", "time.", "logging.")


@dataclass(frozen=True)
class Caller:
    """A function of a file, by its line, with those of the file that call it without a scope."""

    line: int
    callers: tuple[Caller, ...] = ()


@dataclass(frozen=True)
class Run:
    """A call of a model in a place that has no scope and serves no loss.

    ``models`` are the classes that it may be of. ``evaluated`` says that these are in evaluation
    mode there, ``to_array`` that NumPy gets at the output, ``infers`` that nothing but numbers
    comes of it, so that its ``function`` can have the scope. ``caller`` is that function with those
    that call it.
    """

    path: str
    line: int
    label: str
    function: FunctionNode | None
    models: frozenset[ClassId]
    evaluated: bool
    to_array: bool
    infers: bool
    caller: Caller


def bare_runs(instances: Instances) -> list[Run]:
    """The runs of models that record a graph for nothing once their forwards have no scope."""
    return [run for module in instances.files for run in _runs_in(module, instances)]


def scoped_runs(instances: Instances) -> frozenset[ClassId]:
    """The models that are run somewhere under a scope of who runs them."""
    found: set[ClassId] = set()
    for module in instances.files:
        for call, held in _calls_of_models(module, instances):
            if scope_around(module, call) is not None:
                function = module.function(call)
                if function is None or not is_forward(function):
                    found |= _made(held)
    return frozenset(found)


def _calls_of_models(
    module: ModuleFacts, instances: Instances
) -> Iterator[tuple[ast.Call, Collection[Origin]]]:
    """The calls of a file that run models of the project, with where these may come from."""
    for call in module.calls:
        model = model_of(call)
        if not isinstance(model, ast.Attribute) or not is_tensor_method(model.attr):
            held = instances.origins(module, model)
            if held:
                yield call, held


def _made(held: Collection[Origin]) -> frozenset[ClassId]:
    return frozenset(origin.made for origin in held if origin.made is not None)


def _runs_in(module: ModuleFacts, instances: Instances) -> Iterator[Run]:
    if is_off_on_import(module):
        return
    for call, held in _calls_of_models(module, instances):
        if scope_around(module, call) is not None:
            continue
        run = run_of(module, call, _made(held))
        if run is not None:
            yield replace(
                run,
                evaluated=all(origin.evaluated for origin in held),
                infers=run.function is not None
                and _only_infers(module, run.function, _ends(module, call), instances),
            )


def run_of(
    module: ModuleFacts, call: ast.Call, models: frozenset[ClassId], *, later: bool = False
) -> Run | None:
    """A call of a model, of ``models`` as far as that shows; None where it needs no scope.

    Where the model runs ``later``, in a thread or by who gets it, no scope around holds.
    """
    function = module.function(call)
    if function is not None and is_forward(function):
        return None
    if not later and scope_around(module, call) is not None:
        return None
    ends = _ends(module, call)
    to_array = any("numpy" in end for end in ends)
    if not to_array and (
        is_test(module.path) or _is_harmless(ends) or _serves_training(module, function)
    ):
        return None
    return Run(
        *(module.path, call.lineno),
        f"`{label_of(module, function)}`" if function is not None else "the top level",
        function,
        models,
        evaluated=False,
        to_array=to_array,
        infers=False,
        caller=Caller(0) if later else _caller(module, function),
    )


def parts_in_losses(instances: Instances, names: Collection[str]) -> dict[ClassId, dict[str, str]]:
    """The parts of models, by ``names``, that losses run without the forward, each with where.

    ``self.agent.pi(obs)`` in a trainer.
    """
    found: dict[ClassId, dict[str, str]] = {}
    for module in instances.files:
        for call in (call for name in names for call in module.calls_named(name)):
            callee, function = call.func, module.function(call)
            if not isinstance(callee, ast.Attribute) or function is None:
                continue
            if _is_part_of_self(callee, function):
                continue
            held = instances.origins(module, callee.value)
            if not held or scope_around(module, call) is not None:
                continue
            if _serves_training(module, function):
                for made in (origin.made for origin in held if origin.made is not None):
                    place = f"`{label_of(module, function)}`"
                    found.setdefault(made, {}).setdefault(callee.attr, place)
    return found


def _is_part_of_self(callee: ast.Attribute, function: FunctionNode) -> bool:
    """Whether a method runs a part of its own object."""
    return isinstance(callee.value, ast.Name) and callee.value.id == self_name(function)


def is_scoped_by(run: Run, scoped: Collection[Place]) -> bool:
    """Whether a run stands in a function that gets a scope, or that only such functions call."""
    return _is_scoped(run.path, run.caller, scoped)


def _is_scoped(path: str, caller: Caller, scoped: Collection[Place]) -> bool:
    if (path, caller.line) in scoped:
        return True
    return bool(caller.callers) and all(_is_scoped(path, c, scoped) for c in caller.callers)


def _caller(module: ModuleFacts, function: FunctionNode | None, depth: int = 0) -> Caller:
    if function is None:
        return Caller(0)
    calls = module.calls_named(function.name) if depth < _MAX_DEPTH else ()
    callers = {
        module.function(call)
        for call in calls
        if scope_around(module, call) is None and module.function(call) is not function
    }
    return Caller(function.lineno, tuple(_caller(module, each, depth + 1) for each in callers))


def _serves_training(module: ModuleFacts, function: FunctionNode | None) -> bool:
    if any(backward_values(module, function or module.tree)):
        return True
    if function is None:
        return False
    return is_named_for_training(function) or called_by_losses(module, function)


_TESTS = re.compile(r"(^|[/\\])(tests?[/\\]|test_[^/\\]*$)")


def _is_harmless(ends: list[frozenset[str]]) -> bool:
    """Whether a run is there to learn a shape."""
    return bool(ends) and all(end & METADATA for end in ends)


def _only_infers(
    module: ModuleFacts,
    function: FunctionNode,
    ends: list[frozenset[str]],
    instances: Instances,
) -> bool:
    """Whether a function turns all that a model gives into numbers, and does nothing beside."""
    if not any(end & _NUMBERS for end in ends):
        return False
    if any(_GIVEN in end and not end & _NUMBERS for end in ends):
        return False
    if _serves_training(module, function):
        return False
    for node in walk(function):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(node, ast.Call) and not _is_plain(module, function, node, instances):
            return False
    return True


_LEARNS = re.compile(r"train|fit|step|backward|update|optim|learn|grad", re.IGNORECASE)


def _is_plain(
    module: ModuleFacts, function: FunctionNode, call: ast.Call, instances: Instances
) -> bool:
    """Whether a call surely trains nothing: of the model, of a library, of a value."""
    if instances.origins(module, model_of(call)):
        return True
    targets = [t.name for t in module.resolve(call.func)]
    if targets and all(name.startswith(_LIBRARIES) for name in targets):
        return not any("grad" in name for name in targets)
    if isinstance(call.func, ast.Name):
        return not module.names.visible(call.func)  # a builtin
    if not isinstance(call.func, ast.Attribute) or _LEARNS.search(call.func.attr):
        return False
    holder = call.func.value
    return not (isinstance(holder, ast.Name) and holder.id == self_name(function))


def _ends(module: ModuleFacts, node: ast.expr, depth: int = 0) -> list[frozenset[str]]:
    """What is done with a value on each of its ways: the names of what is called on it, or with it.

    ``return`` is one where the function gives it.
    """
    done: set[str] = set()
    child: ast.AST = node
    parent = module.parent(child)
    while isinstance(parent, (ast.expr, ast.keyword, ast.comprehension)):
        if isinstance(parent, ast.Attribute):
            done.add(parent.attr)
        elif isinstance(parent, ast.Call) and child is not parent.func:
            done.add(last_name(parent.func))
        child, parent = parent, module.parent(parent)
    if isinstance(parent, (ast.Return, ast.Expr)):
        given = isinstance(parent, ast.Return)
        return [frozenset(done | {_GIVEN} if given else done)]
    if isinstance(parent, (ast.Assign, ast.AnnAssign)) and depth < _MAX_DEPTH:
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        names = {n.id for t in targets for n in walk(t) if isinstance(n, ast.Name)}
        function = module.function(parent)
        flow = module.flow(function or module.tree)
        found = []
        for load in walk(function or module.tree):
            if not isinstance(load, ast.Name) or not isinstance(load.ctx, ast.Load):
                continue
            if load.id not in names:
                continue
            at = module.statement(load)
            if at is parent or module.function(load) is not function:
                continue
            if any(d.statement is parent for d in flow.reaching(load.id, at)):
                found += [frozenset(done | end) for end in _ends(module, load, depth + 1)]
        return found or [frozenset(done)]
    return [frozenset(done)]


def is_test(path: str) -> bool:
    """Whether a file is one of tests, where a graph more does no harm."""
    return _TESTS.search(path) is not None


def place_of(run: Run, here: str) -> str:
    """``Server.step`` (serve.py:14): where somebody has to look."""
    known = run.path == here
    return f"{run.label} (line {run.line})" if known else f"{run.label} ({run.path}:{run.line})"
