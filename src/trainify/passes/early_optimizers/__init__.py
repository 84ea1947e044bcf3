"""TRN604: optimizers built before the parameters they should hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.comments import with_comments
from ...facts.names import passed
from ...facts.walk import statements, walk
from ...findings import STRATEGIES, Edit, Finding, Fix, Safety
from .. import Look, Needle, Rule
from .given import Given, given_to
from .late import Late, injects, is_within, late_in, only_freezes, unfrozen
from .meant import (
    freezes_again,
    has_another,
    is_mended,
    is_shared,
    of_all,
    steps,
    steps_alone,
    trained_before,
    was_frozen,
)

if TYPE_CHECKING:
    from ...engine import Options

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


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for statement in module.statements:
        given = given_to(module, statement)
        if given is not None and not is_mended(module, given):
            finding = _too_early(module, given) or _too_narrow(module, given)
            if finding is not None:
                yield finding


def _too_early(module: ModuleFacts, given: Given) -> Finding | None:
    """An optimizer that no step is taken with until the last of its parameters are there."""
    block = module.block(given.statement)
    after = block[block.index(given.statement) + 1 :]
    late = [
        found
        for s in after
        if (found := late_in(module, s, given)) and not _is_left_out(module, given, found)
    ]
    if not late or not _goes_on(given, late[0], after):
        return None
    if any(_may_train(s, given.optimizer) for s in after[: after.index(late[0].statement)]):
        return None  # a phase of its own, without what comes later
    unfreezes = all(each.unfreezes for each in late)
    alone = steps_alone(module, given) and not (unfreezes and is_shared(module, given))
    if unfreezes and not alone and any(was_frozen(module, given, each) for each in late):
        return None  # frozen for as long as it took to build the optimizer
    what = ast.unparse(late[0].statement).partition("\n")[0]
    message = (
        f"`{given.optimizer}` is built before `{what}`: it does not hold those parameters, and no "
        "step changes them."
    )
    between = after[: after.index(late[-1].statement) + 1]
    look_at = ""
    if not alone and any(each.unfreezes for each in late):
        look_at = f"`{given.optimizer}` holds what is unfrozen: no other optimizer is to have it"
    fixes = _moved(module, given, between, look_at)
    return module.finding("TRN604", message, given.statement, fixes)


def _goes_on(given: Given, late: Late, after: Sequence[ast.stmt]) -> bool:
    """Whether the optimizer takes steps behind a statement that puts another model in place."""
    statement = late.statement
    if late.part != given.model or not isinstance(statement, ast.Assign):
        return True
    if injects(statement.value):
        return True
    behind = after[after.index(statement) + 1 :]
    return any(steps(node, given.optimizer) for each in behind for node in walk(each))


def _too_narrow(module: ModuleFacts, given: Given) -> Finding | None:
    """An optimizer of what trains first, which takes steps after more of the model is unfrozen."""
    if not steps_alone(module, given) or of_all(module, given) or is_shared(module, given):
        return None
    for late in _unfrozen_later(module, given):
        if was_frozen(module, given, late) and not _is_left_out(module, given, late):
            message = (
                f"`{given.optimizer}` holds what trained when it was built: no step changes what "
                f"line {late.statement.lineno} unfreezes."
            )
            related = module.related("This is in no optimizer.", late.statement)
            fixes = _widened(module, given) if given.filtered else {}
            return module.finding("TRN604", message, given.statement, fixes, [related])
    return None


def _unfrozen_later(module: ModuleFacts, given: Given) -> Iterator[Late]:
    """What is unfrozen after an optimizer may have taken steps, and before it takes others."""
    block = module.block(given.statement)
    after = block[block.index(given.statement) + 1 :]
    for at, outer in enumerate(after):
        loops = isinstance(outer, (ast.For, ast.While)) and not unfrozen(outer)
        around = [outer] if loops else after[at + 1 :]
        if not any(steps(n, given.optimizer) for s in around for n in walk(s)):
            continue
        for statement in (outer, *statements(outer)):
            part = unfrozen(statement)
            if part is None or not _lacks(given, part):
                continue
            late = Late(statement, part, True)
            beside = module.block(statement)
            guarded = beside is not block and beside is not getattr(outer, "body", None)
            if not (guarded and any(_mentions(s, given.optimizer) for s in beside)):
                yield late


def _lacks(given: Given, part: str) -> bool:
    """Whether an optimizer does not hold a part of its model that did not train so far."""
    if given.filtered:
        return is_within(part, given.model)
    root, _, inner = given.model.partition(".")
    return (
        bool(inner)
        and root != "self"
        and is_within(part, root)
        and not is_within(part, given.model)
    )


def _mentions(statement: ast.stmt, optimizer: str) -> bool:
    return any(
        ast.unparse(n) == optimizer
        for n in walk(statement)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _is_left_out(module: ModuleFacts, given: Given, late: Late) -> bool:
    """Whether an optimizer is not to hold what comes late."""
    if has_another(module, given, late):
        return True
    if not late.unfreezes:
        return False
    return trained_before(module, given, late) or freezes_again(module, given, late)


def _may_train(statement: ast.stmt, optimizer: str) -> bool:
    """Whether a statement may run steps: a loop, or whatever gets the optimizer."""
    for node in walk(statement):
        if isinstance(node, (ast.While, ast.AsyncFor)):
            return True
        if isinstance(node, ast.For) and not only_freezes(node):
            return True
    calls = [n for n in walk(statement) if isinstance(n, ast.Call)]
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


def _moved(
    module: ModuleFacts, given: Given, between: Sequence[ast.stmt], look_at: str
) -> dict[str, Fix]:
    """Build the optimizer after the last of the statements that follow it."""
    from ...rewrite import layout

    statement, last = given.statement, between[-1]
    if not all(layout.owns_lines(module, s) for s in (statement, last)):
        return {}
    if any(given.optimizer in ast.unparse(s) for s in between):
        return {}
    used = {n.id for n in walk(statement.value) if isinstance(n, ast.Name)}
    used -= {n.arg for n in walk(statement.value) if isinstance(n, ast.arg)}
    used -= {
        n.id
        for each in walk(statement.value)
        if isinstance(each, ast.comprehension)
        for n in walk(each.target)
        if isinstance(n, ast.Name)
    }
    used.discard(given.model)  # get_peft_model may bind it again
    if any(
        isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in used
        for s in between
        for n in walk(s)
    ):
        return {}
    first = with_comments(module, statement.lineno)  # a comment above it goes with it
    start = module.line_starts[first - 1]
    end, at = layout.line_end(module, statement), layout.line_end(module, last)
    edits = (
        Edit(start, end + len(module.newline), ""),
        Edit(at, at, module.newline + module.text[start:end]),
    )
    safety = Safety.UNSAFE if look_at else Safety.SAFE
    return dict.fromkeys(
        STRATEGIES, Fix(f"Build `{given.optimizer}` afterwards", edits, safety, look_at)
    )


def _widened(module: ModuleFacts, given: Given) -> dict[str, Fix]:
    """Give the optimizer all of the model: what has no gradient yet is passed over by a step."""
    start, end = module.start(given.parameters), module.end(given.parameters)
    if "#" in module.text[start:end]:
        return {}
    fix = Fix(
        f"Give `{given.optimizer}` all parameters of `{given.model}`",
        (Edit(start, end, f"{given.model}.parameters()"),),
        Safety.UNSAFE,
        "what is unfrozen learns from then on, at the same rate as the rest",
    )
    return dict.fromkeys(STRATEGIES, fix)
