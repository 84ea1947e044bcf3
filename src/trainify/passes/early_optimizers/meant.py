"""Signs that an optimizer is meant to leave out what it does not hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from ...facts import ModuleFacts
from ...facts.names import last_name, parameters, passed
from ...facts.walk import walk
from .given import Given
from .late import Late, is_within, overlap, told, unfrozen

_MAKES_OPTIMIZER = re.compile(r"optim|adam|sgd|lion|muon|rmsprop|adagrad|lamb$", re.IGNORECASE)
_NAMES_OPTIMIZER = re.compile(r"^(?:optim|opts?(?:_|$))|_opt(?:im|s?$)", re.IGNORECASE)
_FREEZES = re.compile(r"(?<!un)freeze|toggle|(?:set_|^)requires_grad(?!_)|set_grad", re.IGNORECASE)
_HOLDS_NO_ONE = re.compile(r"^(?:sum|any|all|len|print|clip_grad\w*|parameters_to_vector)$")
"""Calls that get parameters to count them, or to look at their gradients."""
_CHANGES = re.compile(r"add|group|param|layer|freez|rebuild|reset|update|callback|hook|set_")
"""Names of functions that may give an optimizer more to hold."""
_TRAINS = re.compile(r"step|train|update|optimize|fit")
_STEPS_NOTHING = re.compile(
    r"sched|warmup|lr|scaler|accelerator|prof|bar|env|timer|ema|swa", re.IGNORECASE
)
"""What has a ``step`` besides optimizers."""


def is_mended(module: ModuleFacts, given: Given) -> bool:
    """Whether the optimizer gets the parameters later, or is built again."""
    for node in _around(module, given):
        if isinstance(node, ast.Attribute) and node.attr in ("add_param_group", "param_groups"):
            if ast.unparse(node.value) == given.optimizer:
                return True
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node) == given.optimizer and not _is_same(module, node, given):
                return True
    return False


def _is_same(module: ModuleFacts, target: ast.expr, given: Given) -> bool:
    """Whether what is assigned is the optimizer: ``opt, data = accelerator.prepare(opt, data)``."""
    statement = module.statement(target)
    if statement is given.statement:
        return True
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Tuple)
        and any(
            isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == given.optimizer
            for node in walk(statement.value)
        )
    )


def has_another(module: ModuleFacts, given: Given, late: Late) -> bool:
    """Whether what comes late is given to something else: ``SGD(model.disc.parameters())``.

    Where the weights were there before, as with a discriminator that is frozen while the optimizer
    of the generator is built, that may be in any function of the file.
    """
    if late.part == given.model:
        return any(
            isinstance(node, ast.Call)
            and node is not given.statement.value
            and _MAKES_OPTIMIZER.search(last_name(node.func))
            and any(_is_part(n, given.model) for a in passed(node) for n in walk(a))
            for node in _around(module, given)
        )
    last = re.sub(r"\[.*?\]", "", late.part).rpartition(".")[2]
    name = re.compile(rf"\b{re.escape(last)}\b")
    places = module.calls_named("parameters"), module.calls_named("named_parameters")
    around = None if late.unfreezes else set(_around(module, given))
    return any(
        isinstance(call.func, ast.Attribute)
        and name.search(ast.unparse(call.func.value))
        and (around is None or call in around)
        and ast.unparse(call.func.value) != given.model
        and _is_held(module, call)
        for calls in places
        for call in calls
    )


def _is_part(node: ast.AST, model: str) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr in ("parameters", "named_parameters"):
        return False
    text = ast.unparse(node)
    return text != model and is_within(text, model)


def _is_held(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether ``x.parameters()`` may get to an optimizer: no loop, no ``clip_grad_norm_``."""
    for node in module.ancestors(call):
        if isinstance(node, ast.stmt):
            return not (isinstance(node, ast.For) and call in walk(node.iter))
        if isinstance(node, ast.Call) and _HOLDS_NO_ONE.match(last_name(node.func)):
            return False
    return True


def _around(module: ModuleFacts, given: Given) -> Iterator[ast.AST]:
    """All that is in the function that builds an optimizer; in its class, for ``self.opt``."""
    function = module.function(given.statement)
    scope: ast.AST = function or module.tree
    cls = module.method_class(function)
    if cls is not None and isinstance(given.statement.targets[0], ast.Attribute):
        scope = cls
    return walk(scope)


def was_frozen(module: ModuleFacts, given: Given, late: Late) -> bool:
    """Whether the function that builds an optimizer froze before what it unfreezes later."""
    first = _first_line(module, given)
    return any(
        first <= node.lineno < given.statement.lineno
        and module.function(node) is module.function(given.statement)
        and overlap(_owner(node), late.part)
        for node in module.frozen_places
    )


def trained_before(module: ModuleFacts, given: Given, late: Late) -> bool:
    """Whether what is unfrozen had been unfrozen before the optimizer was built, which has it."""
    block = module.block(given.statement)
    before = block[: block.index(given.statement)]
    return any(
        (part := unfrozen(statement)) is not None and is_within(late.part, part)
        for statement in before
    )


def _first_line(module: ModuleFacts, given: Given) -> int:
    function = module.function(given.statement)
    return 0 if function is None else function.lineno


def _owner(node: ast.expr) -> str:
    """``model.disc`` of ``model.disc.parameters()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in ("parameters", "named_parameters", "modules", "children"):
            break
        node = node.func.value
    return ast.unparse(node)


def freezes_again(module: ModuleFacts, given: Given, late: Late) -> bool:
    """Whether what was unfrozen is frozen again until the next thing that has the optimizer.

    In a loop, anywhere in it.
    """
    block = module.block(late.statement)
    after: Sequence[ast.stmt] = block[block.index(late.statement) + 1 :]
    for outer in module.ancestors(late.statement):
        if isinstance(outer, (ast.For, ast.While)):
            after = [outer]
        elif isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
    for statement in after:
        for node in walk(statement):
            if isinstance(node, ast.stmt):
                found = told(node)
                if found is not None and not found[1]:
                    loops = [n for n in module.ancestors(node) if isinstance(n, ast.For)]
                    parts = [found[0], *(loop.iter for loop in loops)]
                    if any(overlap(_owner(part), late.part) for part in parts):
                        return True
            if isinstance(node, ast.Call) and _FREEZES.search(last_name(node.func)):
                owners = [node.func.value] if isinstance(node.func, ast.Attribute) else []
                if any(overlap(_owner(a), late.part) for a in (*owners, *passed(node))):
                    return not _is_told_true(node)
        if given.optimizer in {ast.unparse(n) for n in _names(statement)}:
            return False
    return False


def _is_told_true(call: ast.Call) -> bool:
    """``set_requires_grad(model.disc, True)``."""
    return any(isinstance(a, ast.Constant) and a.value is True for a in passed(call))


def _names(node: ast.AST) -> Iterator[ast.expr]:
    for each in walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)):
            yield each


def steps_alone(module: ModuleFacts, given: Given) -> bool:
    """Whether an optimizer takes steps where it is built, and no other that may hold the rest.

    One for all of the model that is built there too, for a phase of its own, comes on top.
    """
    around = list(_around(module, given))
    if not any(steps(node, given.optimizer) for node in around):
        return False
    function = module.function(given.statement)
    if function is not None and any(
        _NAMES_OPTIMIZER.search(each.arg) for each in parameters(function.args)
    ):
        return False
    others = {
        ast.unparse(node.func.value)
        for node in around
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
    }
    others -= {given.optimizer, *of_all(module, given)}
    return all(_STEPS_NOTHING.search(other) for other in others)


def is_shared(module: ModuleFacts, given: Given) -> bool:
    """Whether something else has the optimizer, or trains beside it, of which nothing is known.

    ``State(optimizer=opt)``, ``add_layers(opt, model.body)``, ``d_step(x)``.
    """
    if not isinstance(given.statement.targets[0], ast.Name):
        return True
    for node in _around(module, given):
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if _has(passed(node), given):
                if _CHANGES.search(name) or (name[:1].isupper() and not name.endswith("LR")):
                    return True
            elif _TRAINS.search(name) and not _is_step(node):
                return True
        elif isinstance(node, ast.Dict):
            if _has(node.values, given):
                return True
        elif isinstance(node, (ast.List, ast.Set)):
            if _has(node.elts, given):
                return True
        elif isinstance(node, ast.Assign) and _has([node.value], given):
            return True
    return False


def _has(values: Iterable[ast.expr | None], given: Given) -> bool:
    return any(isinstance(v, ast.Name) and v.id == given.optimizer for v in values)


def _is_step(call: ast.Call) -> bool:
    """``opt.step()`` and others of that name, which are looked at by themselves."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("step", "update", "train")


def of_all(module: ModuleFacts, given: Given) -> set[str]:
    """The other optimizers that are built in the same place, for all of the model."""
    return {
        ast.unparse(target)
        for node in _around(module, given)
        if isinstance(node, ast.Assign)
        and node is not given.statement
        and isinstance(node.value, ast.Call)
        and _MAKES_OPTIMIZER.search(last_name(node.value.func))
        and any(ast.unparse(a) == f"{given.model}.parameters()" for a in passed(node.value))
        for target in node.targets
    }


def steps(node: ast.AST, optimizer: str) -> bool:
    """Whether a call is a step of an optimizer, or gives it to what may take some."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "step":
        if ast.unparse(node.func.value) == optimizer:
            return True
    if not any(ast.unparse(a) == optimizer for a in passed(node)):
        return False
    return re.search("sched|lr", ast.unparse(node.func), re.IGNORECASE) is None
