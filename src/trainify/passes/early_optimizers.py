"""TRN604: optimizers built before the parameters they should hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.comments import with_comments
from ..facts.layers import made_by
from ..facts.names import passed
from ..facts.trainable import makes_weights
from ..findings import STRATEGIES, Edit, Finding, Fix
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN604",
        name="optimizer-before-parameters",
        summary="An optimizer is built before parameters of its model exist, or before they train.",
        why=(
            "An optimizer keeps the parameters it was given. A head that is attached afterwards, "
            "an embedding that is resized, adapters that are injected, weights that are unfrozen "
            "after a filter by requires_grad: they get gradients, and no step ever changes them."
        ),
        before="""\
import torch
from torch import nn


def prepare(model, classes):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.head = nn.Linear(model.width, classes)
    return model, optimizer
""",
        after="""\
import torch
from torch import nn


def prepare(model, classes):
    model.head = nn.Linear(model.width, classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer
""",
    ),
)

_OPTIMIZER = re.compile(rb"\boptim(?:\.[A-Z]\w+\(|(?:\.\w+)* import )")


def _may_concern(data: bytes) -> bool:
    return b"parameters()" in data and _OPTIMIZER.search(data) is not None


NEEDLES: tuple[Needle, ...] = (Look((b"optim.", b"optim import"), _may_concern),)

_ADDS = frozenset({"resize_token_embeddings", "add_adapter", "load_adapter", "add_module"})
_INJECTS = frozenset({"get_peft_model", "inject_adapter_in_model"})
_APART = re.compile(r"teacher|target|ema|momentum|frozen|old|ref", re.IGNORECASE)
"""Networks that are copies of what is trained, kept out of the optimizer on purpose."""


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for statement in module.statements:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        model, filtered = _optimized(module, statement)
        if model is None:
            continue
        block = module.block(statement)
        after = block[block.index(statement) + 1 :]
        late = [s for s in after if _adds_parameters(module, s, model, filtered)]
        optimizer = ast.unparse(statement.targets[0])
        if not late or _is_mended(module, statement, optimizer):
            continue
        if any(_may_train(s, optimizer) for s in after[: after.index(late[0])]):
            continue  # a phase of its own, without what comes later
        what = ast.unparse(late[0]).partition("\n")[0]
        message = (
            f"`{optimizer}` is built before `{what}`: it does not hold those parameters, and no "
            "step changes them."
        )
        fixes = _moved(module, statement, after[: after.index(late[-1]) + 1], optimizer, model)
        yield module.finding("TRN604", message, statement, fixes)


def _may_train(statement: ast.stmt, optimizer: str) -> bool:
    """Whether a statement may run steps: a loop, or whatever gets the optimizer."""
    for node in ast.walk(statement):
        if isinstance(node, (ast.While, ast.AsyncFor)):
            return True
        if isinstance(node, ast.For) and not _only_freezes(node):
            return True
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
    if not calls or all(_prepares(call, optimizer) for call in calls):
        return False
    text = ast.unparse(statement)
    return optimizer in text and re.search("schedul|_lr|LR", text) is None


_PREPARES = frozenset("load_state_dict state_dict zero_grad load requires_grad_".split())


def _prepares(call: ast.Call, optimizer: str) -> bool:
    """``optimizer.load_state_dict(torch.load(path))``: no step, and nothing else gets it."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _PREPARES:
        return False
    given = passed(call)
    return not any(ast.unparse(a) == optimizer for a in given)


def _only_freezes(loop: ast.For) -> bool:
    """``for p in model.parameters(): p.requires_grad = False``, or True, under any test."""
    return all(
        isinstance(n, ast.If) or _told(n) is not None or isinstance(n, (ast.Pass, ast.Continue))
        for n in ast.walk(loop)
        if isinstance(n, ast.stmt) and n is not loop
    )


def _told(statement: ast.stmt) -> tuple[ast.expr, bool] | None:
    """What a statement tells to require a gradient, or not to: ``p.requires_grad = True``."""
    told: ast.expr | None = None
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
        target = statement.targets[0]
        if target.attr == "requires_grad":
            told, value = target.value, statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
            given = passed(call)
            told, value = call.func.value, given[0] if given else ast.Constant(True)
    if told is None:
        return None
    return told, isinstance(value, ast.Constant) and value.value is True


def _optimized(module: ModuleFacts, statement: ast.Assign) -> tuple[str | None, bool]:
    """The model whose parameters an optimizer gets, and whether it gets those that train only."""
    call = statement.value
    if not isinstance(call, ast.Call) or not (call.args or call.keywords):
        return None, False
    if not any(t.name.startswith("torch.optim.") for t in module.resolve(call.func, statement)):
        return None, False
    given: ast.expr = call.args[0] if call.args else call.keywords[0].value
    filtered = False
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Name):
        taken = given.func.id
        if taken == "filter" and len(given.args) == 2:
            filtered = "requires_grad" in ast.unparse(given.args[0])
            given = given.args[1]
        elif taken == "list" and len(given.args) == 1:
            given = given.args[0]
    if isinstance(given, (ast.ListComp, ast.GeneratorExp)) and len(given.generators) == 1:
        tests = given.generators[0].ifs
        filtered = len(tests) == 1 and ast.unparse(tests[0]).endswith(".requires_grad")
        if tests and not filtered:
            return None, False
        given = given.generators[0].iter
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        if given.func.attr in ("parameters", "named_parameters") and not given.args:
            owner = given.func.value
            if isinstance(owner, (ast.Name, ast.Attribute)):
                return ast.unparse(owner), filtered
    return None, False


def _adds_parameters(module: ModuleFacts, statement: ast.stmt, model: str, filtered: bool) -> bool:
    """Whether a statement gives the model parameters, or lets some train that did not."""
    if filtered and isinstance(statement, ast.For):
        return _unfreezes(statement, model)
    value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
    if not isinstance(value, ast.Call):
        return False
    made = value.func
    if isinstance(made, ast.Attribute) and made.attr == "load_state_dict":
        # which replaces the parameters, instead of writing into them
        return _within(made.value, model) and any(
            k.arg == "assign" and isinstance(k.value, ast.Constant) and k.value.value is True
            for k in value.keywords
        )
    if isinstance(statement, ast.Assign):
        if ast.unparse(made).rpartition(".")[2] in _INJECTS:
            return any(ast.unparse(a) == model for a in value.args)
        return any(
            isinstance(target, ast.Attribute)
            and _within(target.value, model)
            and not _APART.search(target.attr)
            and (makes_weights(module, value) or made_by(module, value) == "weights")
            for target in statement.targets
        )
    if not isinstance(made, ast.Attribute) or not _within(made.value, model):
        return False
    if made.attr == "requires_grad_":
        on = passed(value)
        return filtered and all(isinstance(a, ast.Constant) and a.value is True for a in on)
    return made.attr in _ADDS


def _unfreezes(loop: ast.For, model: str) -> bool:
    """``for p in model.encoder.parameters(): p.requires_grad = True``."""
    source = loop.iter
    while isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
        if source.func.attr in ("parameters", "named_parameters"):
            break
        source = source.func.value
    if not isinstance(source, ast.Call) or not isinstance(source.func, ast.Attribute):
        return False
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    told = [found for n in ast.walk(loop) if isinstance(n, ast.stmt) and (found := _told(n))]
    return (
        _within(source.func.value, model)
        and _only_freezes(loop)
        and any(isinstance(t, ast.Name) and t.id in names and on for t, on in told)
    )


def _within(node: ast.expr, model: str) -> bool:
    text = ast.unparse(node)
    return text == model or text.startswith((f"{model}.", f"{model}["))


def _is_mended(module: ModuleFacts, statement: ast.Assign, optimizer: str) -> bool:
    """Whether the optimizer gets the parameters later, or is built again."""
    function = module.function(statement)
    scope: ast.AST = function or module.tree
    cls = module.method_class(function)
    if cls is not None and isinstance(statement.targets[0], ast.Attribute):
        scope = cls
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and node.attr in ("add_param_group", "param_groups"):
            if ast.unparse(node.value) == optimizer:
                return True
        if isinstance(node, ast.Assign) and node is not statement:
            if any(ast.unparse(t) == optimizer for t in node.targets):
                return True
    return False


def _moved(
    module: ModuleFacts,
    statement: ast.Assign,
    between: Sequence[ast.stmt],
    optimizer: str,
    model: str,
) -> dict[str, Fix]:
    """Build the optimizer after the last of the statements that follow it."""
    from ..rewrite import layout

    last = between[-1]
    if not all(layout.owns_lines(module, s) for s in (statement, last)):
        return {}
    if any(optimizer in ast.unparse(s) for s in between):
        return {}
    used = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
    used -= {n.arg for n in ast.walk(statement.value) if isinstance(n, ast.arg)}
    used -= {
        n.id
        for each in ast.walk(statement.value)
        if isinstance(each, ast.comprehension)
        for n in ast.walk(each.target)
        if isinstance(n, ast.Name)
    }
    used.discard(model)  # get_peft_model may bind it again
    if any(
        isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in used
        for s in between
        for n in ast.walk(s)
    ):
        return {}
    first = with_comments(module, statement.lineno)  # a comment above it goes with it
    start = module.line_starts[first - 1]
    end, at = layout.line_end(module, statement), layout.line_end(module, last)
    edits = (
        Edit(start, end + len(module.newline), ""),
        Edit(at, at, module.newline + module.text[start:end]),
    )
    return dict.fromkeys(STRATEGIES, Fix(f"Build `{optimizer}` afterwards", edits))
