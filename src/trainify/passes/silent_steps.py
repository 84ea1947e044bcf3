"""TRN601, TRN602: training steps that do nothing, without a word, when there is no gradient."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.names import is_none, last_name
from ..facts.walk import walk
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN601",
        name="backward-only-if-possible",
        summary="backward() is skipped in silence where the loss has no graph.",
        why=(
            "A loss without a graph is the sign that everything before it was cut off. The test "
            "hides what backward() would have said, and the loop goes through all its steps with "
            "no parameter changed. Let it raise; `trainify.backward(loss, model)` also names the "
            "parameters that got nothing."
        ),
        before="""\
def train(model, batches, optimizer):
    for batch in batches:
        loss = model(batch).mean()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
""",
        after="",
    ),
    Rule(
        code="TRN602",
        name="update-only-if-possible",
        summary="A hand-written update skips, in silence, parameters that have no gradient.",
        why=(
            "An optimizer has to skip them, since it also holds what is unused in this step. In "
            "a training loop of one's own, a parameter without a gradient is one that never "
            "learns. `trainify.require_gradients(model)` before the update names them."
        ),
        before="""\
import torch


def step(model, loss, lr):
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= lr * p.grad
""",
        after="",
    ),
)

_TEST = re.compile(
    rb"if [^\n]*(?:\.requires_grad|\.grad_fn)\b[^\n]*:[ \t]*(?:#[^\n]*)?\n?[^\n]*backward\("
)
_SKIP = re.compile(rb"for [^\n]*:\n(?:[^\n]*\n){0,4}[^\n]*\bif \w+\.grad is (?:not )?None\b")


def _may_concern(data: bytes) -> bool:
    if b".grad is " in data and _SKIP.search(data):
        return True
    return b"backward(" in data and _TEST.search(data) is not None


NEEDLES: tuple[Needle, ...] = (Look((b".grad is ", b"backward("), _may_concern),)

_TITLE = "Raise where there is no gradient"
_CHANGES = frozenset({"add_", "sub_", "copy_", "addcmul_", "addcdiv_"})


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for statement in module.statements:
        if isinstance(statement, ast.If):
            yield from _guarded_backward(module, statement)
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            yield from _skipping_update(module, statement)


# -- TRN601 ---------------------------------------------------------------------------------------


def _guarded_backward(module: ModuleFacts, test: ast.If) -> Iterator[Finding]:
    """``if loss.requires_grad: loss.backward()`` and nothing else said."""
    loss = _tested(test.test)
    if loss is None or test.orelse:
        return
    call = next((c for s in test.body for c in _backwards(s) if _is_of(c, loss)), None)
    if call is None or _goes_back_otherwise(module, test):
        return
    message = (
        f"where `{loss}` has no graph, backward() is skipped without a word: no parameter learns, "
        "and nothing fails."
    )
    why = '"the loss has no graph: no parameter would learn"'
    fix = _or_raise(module, test, why, "a loss without a graph, passed over until now, raises")
    yield module.finding("TRN601", message, test.test, fix)


def _goes_back_otherwise(module: ModuleFacts, test: ast.If) -> bool:
    """Whether the function differentiates something else as well: this loss is one more."""
    function = module.function(test)
    return function is not None and any(
        test not in module.ancestors(call) for call in _backwards(function)
    )


def _tested(test: ast.expr) -> str | None:
    """The tensor that a test asks for a graph: ``loss`` in ``loss.requires_grad``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return next(filter(None, map(_tested, test.values)), None)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and is_none(test.comparators[0]):
        if isinstance(test.ops[0], ast.IsNot) and isinstance(test.left, ast.Attribute):
            return ast.unparse(test.left.value) if test.left.attr == "grad_fn" else None
    if isinstance(test, ast.Attribute) and test.attr == "requires_grad":
        return ast.unparse(test.value)
    return None


def _backwards(statement: ast.AST) -> Iterator[ast.Call]:
    """Every call in a statement of something called ``backward`` or ``manual_backward``."""
    for node in walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("backward", "manual_backward"):
                yield node


def _is_of(call: ast.Call, loss: str) -> bool:
    """``loss.backward()``, ``scaler.scale(loss).backward()``, ``accelerator.backward(loss)``."""
    assert isinstance(call.func, ast.Attribute)
    held = [call.func.value, *call.args]
    if isinstance(call.func.value, ast.Call):
        held += call.func.value.args
    return any(ast.unparse(each) == loss for each in held)


def _or_raise(
    module: ModuleFacts, test: ast.If, why: str, look_at: str, otherwise: str = "else"
) -> dict[str, Fix]:
    """The same test, which raises otherwise; ``why`` is an expression."""
    from ..rewrite import layout

    if isinstance(test.test, ast.BoolOp) or not layout.owns_lines(module, test.body[-1]):
        return {}
    line, indentation = module.newline, module.indentation(test)
    raises = f"{indentation}{module.indent_unit}raise RuntimeError({why})"
    at = layout.line_end(module, test.body[-1])
    edit = Edit(at, at, f"{line}{indentation}{otherwise}:{line}{raises}")
    return dict.fromkeys(STRATEGIES, Fix(_TITLE, (edit,), Safety.DISPLAY, look_at))


# -- TRN602 ---------------------------------------------------------------------------------------


def _skipping_update(module: ModuleFacts, loop: ast.For | ast.AsyncFor) -> Iterator[Finding]:
    """A loop over parameters that updates those with a gradient, outside of an optimizer."""
    for test in loop.body:
        if not isinstance(test, ast.If) or test.orelse:
            continue
        parameter, skips = _asked_for_gradient(test.test)
        if parameter is None or parameter not in _names(loop.target):
            continue
        if skips:
            if not isinstance(test.body[-1], ast.Continue) or len(test.body) > 1:
                continue
            updates = loop.body[loop.body.index(test) + 1 :]
        else:
            updates = test.body
        if not any(_updates(s, parameter) for s in updates) or _in_optimizer(module, loop):
            continue
        message = (
            f"a parameter without a gradient is skipped without a word: if `{parameter}` is cut "
            "off from the loss, it never learns, and nothing fails."
        )
        why = _has_no_gradient(loop, parameter)
        look_at = "a parameter that is unused in this step, skipped until now, raises"
        if skips:
            fix = _raise_first(module, test, f"if {parameter}.requires_grad", why, look_at)
        else:
            fix = _or_raise(module, test, why, look_at, f"elif {parameter}.requires_grad")
        yield module.finding("TRN602", message, test.test, fix)
        return


def _has_no_gradient(loop: ast.For | ast.AsyncFor, parameter: str) -> str:
    """What to say of a parameter: its name where the loop has it, else its shape."""
    named = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "named_parameters"
    if named and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
        return f'f"{{{loop.target.elts[0].id}}} has no gradient"'
    return f'f"a parameter of shape {{tuple({parameter}.shape)}} has no gradient"'


def _raise_first(
    module: ModuleFacts, test: ast.If, condition: str, why: str, look_at: str
) -> dict[str, Fix]:
    """Raise in front of the ``continue`` that a test leads to."""
    from ..rewrite import layout

    skip = test.body[0]
    if not layout.owns_lines(module, skip) or skip.lineno == test.lineno:
        return {}
    line, indentation = module.newline, module.indentation(skip)
    raises = f"{indentation}{module.indent_unit}raise RuntimeError({why}){line}{indentation}"
    edit = Edit(module.start(skip), module.start(skip), f"{condition}:{line}{raises}")
    return dict.fromkeys(STRATEGIES, Fix(_TITLE, (edit,), Safety.DISPLAY, look_at))


def _asked_for_gradient(test: ast.expr) -> tuple[str | None, bool]:
    """The name in ``p.grad is None``, and whether that skips; the whole test is that."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and is_none(test.comparators[0]):
        left = test.left
        if isinstance(left, ast.Attribute) and left.attr == "grad":
            if isinstance(left.value, ast.Name):
                return left.value.id, isinstance(test.ops[0], ast.Is)
    return None, False


def _updates(statement: ast.stmt, parameter: str) -> bool:
    """Whether a statement changes the values of a parameter by its gradient."""
    target: ast.expr
    for node in walk(statement):
        if isinstance(node, ast.AugAssign):
            target = node.target
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in _CHANGES:
                continue
            target = node.func.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
        else:
            continue
        if isinstance(target, ast.Attribute) and target.attr == "data":
            target = target.value
        if isinstance(target, ast.Name) and target.id == parameter:
            if f"{parameter}.grad" in ast.unparse(node):
                return True
    return False


def _in_optimizer(module: ModuleFacts, node: ast.AST) -> bool:
    """Whether a loop belongs to an optimizer, whose contract is to skip."""
    function = module.function(node)
    cls = module.method_class(function)
    if function is None or cls is None:
        return False
    bases = " ".join(map(ast.unparse, cls.bases))
    return function.name.endswith("step") or "Optim" in bases + cls.name


def _names(target: ast.expr) -> set[str]:
    return {n.id for n in walk(target) if isinstance(n, ast.Name)}
