"""Statements that give a model parameters, or let some of them train."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ...facts import ModuleFacts
from ...facts.layers import made_by
from ...facts.names import passed
from ...facts.trainable import makes_weights
from ...facts.walk import walk
from .given import Given

_ADDS = frozenset({"resize_token_embeddings", "add_adapter", "load_adapter", "add_module"})
_INJECTS = frozenset({"get_peft_model", "inject_adapter_in_model"})
_APART = re.compile(r"teacher|target|ema|momentum|frozen|old|ref", re.IGNORECASE)
"""Networks that are copies of what is trained, kept out of the optimizer on purpose."""


@dataclass(frozen=True)
class Late:
    """A statement with which parameters come, or begin to train."""

    statement: ast.stmt
    part: str
    """The text of what they belong to: the model, or a part of it."""
    unfreezes: bool
    """Whether they were there before, and did not require a gradient."""


def late_in(module: ModuleFacts, statement: ast.stmt, given: Given) -> Late | None:
    """What a statement brings that an optimizer does not hold which was built before it."""
    if given.filtered:
        part = unfrozen(statement)
        if part is not None:
            return Late(statement, part, True) if is_within(part, given.model) else None
    part = _added(module, statement, given.model)
    return None if part is None else Late(statement, part, False)


def _added(module: ModuleFacts, statement: ast.stmt, model: str) -> str | None:
    """What of a model gets parameters."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
    if not isinstance(value, ast.Call):
        return None
    made = value.func
    if isinstance(made, ast.Attribute) and made.attr == "load_state_dict":
        # which replaces the parameters, instead of writing into them
        owner = ast.unparse(made.value)
        assigns = any(
            k.arg == "assign" and isinstance(k.value, ast.Constant) and k.value.value is True
            for k in value.keywords
        )
        return owner if assigns and is_within(owner, model) else None
    if isinstance(statement, ast.Assign):
        if injects(value):
            return model if any(ast.unparse(a) == model for a in value.args) else None
        for target in statement.targets:
            if ast.unparse(target) == model and _makes_another(module, value, model):
                return model
            part = target.value if isinstance(target, ast.Subscript) else target  # model.head[6]
            if (
                isinstance(part, ast.Attribute)
                and is_within(ast.unparse(part.value), model)
                and not _APART.search(part.attr)
                and (makes_weights(module, value) or made_by(module, value) == "weights")
            ):
                return ast.unparse(target)
        return None
    if isinstance(made, ast.Name) and made.id == "setattr" and len(value.args) == 3:
        return ast.unparse(value) if _sets_weights(module, value, model) else None
    if not isinstance(made, ast.Attribute) or made.attr not in _ADDS:
        return None
    owner = ast.unparse(made.value)
    return owner if is_within(owner, model) else None


def injects(value: ast.expr) -> bool:
    """``get_peft_model(model, config)``: the model goes on in what takes its place."""
    return isinstance(value, ast.Call) and _name(value) in _INJECTS


def _sets_weights(module: ModuleFacts, call: ast.Call, model: str) -> bool:
    """``setattr(model, "head", nn.Linear(8, 3))``."""
    owner, name, value = call.args
    return (
        is_within(ast.unparse(owner), model)
        and isinstance(name, ast.Constant)
        and isinstance(name.value, str)
        and not _APART.search(name.value)
        and isinstance(value, ast.Call)
        and makes_weights(module, value)
    )


def _makes_another(module: ModuleFacts, value: ast.Call, model: str) -> bool:
    """Whether a call gives a model of its own: a copy, one that is loaded, or made anew."""
    has_it = any(ast.unparse(n) == model for a in passed(value) for n in walk(a))
    if module.is_name(value.func, "copy.deepcopy"):
        return has_it
    if has_it:
        return False  # wrapped, maybe
    if module.is_name(value.func, "torch.load") or _name(value) == "from_pretrained":
        return True
    return makes_weights(module, value) or made_by(module, value) == "weights"


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def unfrozen(statement: ast.stmt) -> str | None:
    """What begins to train: by ``model.encoder.requires_grad_(True)``, or by a loop that says so.

    ``for p in model.encoder.parameters(): p.requires_grad = True``.
    """
    if isinstance(statement, ast.For):
        return _unfrozen_by_loop(statement)
    found = told(statement)
    if found is None or not found[1] or not isinstance(statement, ast.Expr):
        return None
    return ast.unparse(found[0])


def _unfrozen_by_loop(loop: ast.For) -> str | None:
    source = loop.iter
    while isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
        if source.func.attr in ("parameters", "named_parameters"):
            break
        source = source.func.value
    if not isinstance(source, ast.Call) or not isinstance(source.func, ast.Attribute):
        return None
    names = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    each = [found for n in walk(loop) if isinstance(n, ast.stmt) and (found := told(n))]
    if not only_freezes(loop):
        return None
    if not any(isinstance(t, ast.Name) and t.id in names and on for t, on in each):
        return None
    return ast.unparse(source.func.value)


def only_freezes(loop: ast.For) -> bool:
    """``for p in model.parameters(): p.requires_grad = False``, or True, under any test."""
    return all(
        isinstance(n, ast.If) or told(n) is not None or isinstance(n, (ast.Pass, ast.Continue))
        for n in walk(loop)
        if isinstance(n, ast.stmt) and n is not loop
    )


def told(statement: ast.stmt) -> tuple[ast.expr, bool] | None:
    """What a statement tells to require a gradient, or not to: ``p.requires_grad = True``."""
    found: ast.expr | None = None
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
        target = statement.targets[0]
        if target.attr == "requires_grad":
            found, value = target.value, statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
            given = passed(call)
            found, value = call.func.value, given[0] if given else ast.Constant(True)
    if found is None:
        return None
    return found, isinstance(value, ast.Constant) and value.value is True


def is_within(part: str, model: str) -> bool:
    """Whether the text of something is that of a model, or of a part of it."""
    return part == model or part.startswith((f"{model}.", f"{model}["))


def overlap(a: str, b: str) -> bool:
    """Whether one of two is the other, or a part of it."""
    return is_within(a, b) or is_within(b, a)
