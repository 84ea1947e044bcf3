"""Writing less in place: what autograd saved stays as it was.

A whole tensor gets a new value (``x = x * y``), a tensor of which a piece is written becomes a
clone first, and where neither can be, the operation that saves it saves a clone.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..facts import ModuleFacts
from ..facts.carried import detached
from ..facts.dtypes import AUTOCAST, has_dtype_of, is_float32, is_number
from ..facts.names import passed
from ..facts.overwriting import asked_in_place, without_asking
from ..facts.saved import Saver
from ..facts.walk import walk
from ..facts.writes import METHODS, Write, root_of
from ..findings import Fix
from . import branch, layout
from .functionalize import CannotFunctionalize, functionalize

if TYPE_CHECKING:
    from ..engine import Options

_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_SIGN_OF_METHOD = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/"}
_METHOD_OF_SIGN = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_PROMOTING = frozenset(
    "add addcdiv addcmul clamp clamp_max clamp_min div divide floor_divide fmod lerp mul multiply "
    "pow remainder sub subtract true_divide xlogy".split()
)
_WITHOUT_FUNCTION = frozenset({"copy_", "fill_", "zero_", "put_"})


class Found(NamedTuple):
    """The fixes of a write, or why that which was found for it has no place."""

    fixes: dict[str, Fix]
    reason: str = ""


def fixes_for(
    module: ModuleFacts, options: Options, harms: Sequence[tuple[Write, Saver | None]]
) -> list[Found]:
    """The fixes for each write that destroys something, given the operation that had saved it."""
    changes: list[branch.Change | None] = []
    clones: dict[ast.stmt, branch.Change | None] = {}
    result: list[Found] = []
    first: dict[tuple[str, ast.expr], int] = {}
    """The write from which on a name has a new value: those after it no longer harm."""
    for i, (write, saver) in enumerate(harms):
        wants = [write.name.id] if write.name and (saver is None or saver.alone) else None
        change = new_value(module, write, wants)
        fixes: dict[str, Fix] = {}
        key = (write.name.id, saver.node) if write.name and saver else None
        if change is not None and key is not None:
            first.setdefault(key, i)
        elif key in first:
            changes.append(changes[first[key]])
            result.append(Found({}))
            continue
        if change is None and not (saver and _comes_again(module, write, saver)):
            fixes = clone_first(module, write, options, wants)
        if change is None and not fixes and saver is not None and not is_hidden(write):
            statement = module.statement(saver.node)
            if statement not in clones:
                clones[statement] = saved_clone(module, saver)
            change = clones[statement]
        changes.append(change)
        result.append(Found(fixes))
    vocabulary = branch.Vocabulary(module)
    for run in branch.group(module, list(dict.fromkeys(c for c in changes if c))):
        try:
            fixes = branch.fixes(module, vocabulary, run, options.flag)
            fixes["attach"] = fixes["flag"]  # there is no kernel to keep
            found = Found(fixes)
        except layout.CannotPlace as error:
            found = Found({}, str(error))
        for i, change in enumerate(changes):
            if change in run:
                result[i] = found
    return result


def _comes_again(module: ModuleFacts, write: Write, saver: Saver) -> bool:
    """Whether the write runs after each of many savings, so that these are cheaper to clone."""
    statement = module.statement(saver.node)
    if (statement.lineno, statement.col_offset) > (write.statement.lineno, 0):
        return True
    loops = (ast.For, ast.AsyncFor, ast.While)
    around = list(module.ancestors(statement))
    return any(isinstance(a, loops) and a in around for a in module.ancestors(write.statement))


def new_value(module: ModuleFacts, write: Write, wants: list[str] | None) -> branch.Change | None:
    """``x = x * y`` for ``x *= y`` or ``x.mul_(y)``; None where the name cannot be bound anew.

    ``wants`` as in :class:`~trainify.rewrite.branch.Change`.
    """
    if write.name is None:
        return None
    if is_hidden(write):
        return _recorded(module, write, wants)
    if write.part or not isinstance(write.target, ast.Name):
        return None
    if not isinstance(write.statement, (ast.Expr, ast.AugAssign)):
        return _functional_call(module, write, wants)
    value = _value(module, write)
    if value is None:
        return None
    rebound = _rebound(module, write)
    if rebound is None:
        return None
    change = branch.Change([write.statement], [f"{write.name.id} = {value}", *rebound[0]])
    change.look_at += rebound[1]
    change.wants = wants
    change.title = "out-of-place form"
    return change


_STRAIGHT_THROUGH = frozenset("round_ sign_ sgn_ floor_ ceil_ trunc_ bernoulli_".split())
"""Writes that autograd would only learn a gradient of zero from."""


def is_hidden(write: Write) -> bool:
    """``x.data.mul_(y)``, ``x.detach()[mask] = 0``: writes that autograd is not to record.

    Those that it learns nothing from are left to pass the gradient on, ``x.data.round_()``.
    """
    return not _is_estimate(write) and any(
        detached(node) is not None for node in root_of(write.target)[1]
    )


def _recorded(module: ModuleFacts, write: Write, wants: list[str] | None) -> branch.Change | None:
    """``x = x.mul(y)`` for ``x.data.mul_(y)``: autograd has to go back through what was written.

    A clone that is written behind its back would pass on the gradient of the values before.
    """
    statement, path = write.statement, root_of(write.target)[1]
    assert write.name is not None
    name, lines = write.name.id, None
    if detached(write.target) is write.name and not isinstance(statement, (ast.Assign, ast.Return)):
        value = _value(module, write)
        lines = [f"{name} = {value}"] if value is not None else None
    elif _is_whole(write):
        text = _seen(module, statement, path)
        lines = [f"{name} = {name}.clone()", text] if text is not None else None
    rebound = _rebound(module, write) if lines is not None else None
    if lines is None or rebound is None:
        return None
    hidden = next(node for node in path if detached(node) is not None)
    look_at = (
        f"the gradient goes through this write now; where it is to pass by, `{name} = "
        f"{name}.clone()` goes before, and `{module.source(hidden)}` stays"
    )
    change = branch.Change([statement], [*lines, *rebound[0]], wants=wants)
    change.look_at += [*rebound[1], look_at]
    change.title = "write"
    return change


def _is_whole(write: Write) -> bool:
    """Whether a statement does nothing but write: ``x.data[i] = y``, ``x.data[i].add_(y)``."""
    statement = write.statement
    if isinstance(statement, ast.Assign):
        return statement.targets == [write.target]
    return isinstance(statement, ast.AugAssign) or (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and statement.value.func.value is write.target
    )


def _seen(module: ModuleFacts, statement: ast.stmt, path: Sequence[ast.expr]) -> str | None:
    """A statement without the ``.data`` and ``.detach()`` on the way to what it writes."""
    text, start = module.source(statement), module.start(statement)
    for node in path:  # from the last to the first
        inner = detached(node)
        if inner is not None:
            text = text[: module.end(inner) - start] + text[module.end(node) - start :]
    if "\n" not in text:
        return text
    return None if any(mark in text for mark in "#'\"") else " ".join(text.split())


def _is_estimate(write: Write) -> bool:
    """Whether a write is hidden so that the gradient passes by: ``x.data.round_()``."""
    call = write.statement.value if isinstance(write.statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _STRAIGHT_THROUGH
    )


def _rebound(module: ModuleFacts, write: Write) -> tuple[list[str], list[str]] | None:
    """What else has to follow when the written name is bound anew, and what to look at."""
    assert write.name is not None
    name = ast.copy_location(ast.Name(id=write.name.id, ctx=ast.Load()), write.name)
    try:
        found = functionalize(module, write.statement, name)
    except CannotFunctionalize:
        return None
    if found.place.kind != "assign" or found.place.text != write.name.id:
        return None
    return list(found.followers), [found.look_at] if found.look_at else []


def _value(module: ModuleFacts, write: Write) -> str | None:
    statement = write.statement
    assert write.name is not None
    if isinstance(statement, ast.AugAssign):
        sign = _SIGNS.get(type(statement.op))
        return _infix(module, write.name, sign, statement.value) if sign else None
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    call = statement.value
    if write.call is not None:
        return without_asking(module, call) if write.call is call else None
    if not isinstance(call.func, ast.Attribute) or call.func.value is not write.target:
        return _chain(module, statement.value)
    method = call.func.attr
    if method in _SIGN_OF_METHOD and len(call.args) == 1 and not call.keywords:
        return _infix(module, write.name, _SIGN_OF_METHOD[method], call.args[0])
    return _chain(module, call)


def _infix(module: ModuleFacts, name: ast.Name, sign: str, node: ast.expr) -> str:
    value = f"{name.id} {sign} {_operand(module, node, sign)}"
    return keep_dtype(module, value, name, _METHOD_OF_SIGN[sign], [node])


def keep_dtype(
    module: ModuleFacts, value: str, name: ast.Name, method: str, inputs: Sequence[ast.expr]
) -> str:
    """A new value in the dtype of what is written, which no write promotes."""
    float32 = is_float32(module, name)
    if method in _PROMOTING or (method in AUTOCAST and not float32):
        if (method in AUTOCAST and not float32) or not all(
            is_number(module, n) or has_dtype_of(module, n, name, float32=float32) for n in inputs
        ):
            call = isinstance(ast.parse(value, mode="eval").body, ast.Call)
            return f"{value if call else f'({value})'}.to({name.id}.dtype)"
    return value


def _operand(module: ModuleFacts, node: ast.expr, sign: str) -> str:
    """The right operand of ``sign``, in brackets where it binds no tighter."""
    text = " ".join(module.source(node).split())
    if isinstance(node, ast.BinOp):
        products = (ast.Mult, ast.Div, ast.MatMult)
        if isinstance(node.op, ast.Pow) or (sign in "+-" and isinstance(node.op, products)):
            return text
        return f"({text})"
    if isinstance(node, (ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.NamedExpr)):
        return f"({text})"
    return text


def _chain(module: ModuleFacts, node: ast.expr) -> str | None:
    """``x.mul(a).add(b)`` of ``x.mul_(a).add_(b)``."""
    if isinstance(node, ast.Name):
        return node.id
    hidden = detached(node)
    if hidden is not None:
        return _chain(module, hidden)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if isinstance(asked_in_place(node), ast.Name):
        return without_asking(module, node)
    method = node.func.attr
    owner = _chain(module, node.func.value)
    if owner is None or method not in METHODS or method in _WITHOUT_FUNCTION:
        return None
    arguments = module.text[module.end(node.func) : module.end(node)]
    value = f"{owner}.{method[:-1]}{' '.join(arguments.split())}"
    name, _ = root_of(node)
    assert name is not None  # each link of the chain is a write into it
    inputs = passed(node)
    return keep_dtype(module, value, name, method[:-1], inputs)


def _functional_call(
    module: ModuleFacts, write: Write, wants: list[str] | None
) -> branch.Change | None:
    """``y = x.mul(w)`` of ``y = x.mul_(w)`` where nobody sees that ``x`` stays as it was."""
    statement = write.statement
    assert write.name is not None and isinstance(statement, (ast.Assign, ast.Return))
    if statement.value is None:
        return None
    if write.call is None:
        value = _chain(module, statement.value)
    else:
        value = without_asking(module, write.call) if write.call is statement.value else None
    rebound = _rebound(module, write) if value is not None else None
    if value is None or rebound is None or rebound[0]:
        return None
    flow = module.flow(module.function(statement) or module.tree)
    if isinstance(statement, ast.Return):
        line = f"return {value}"
    else:
        targets = [module.source(t) for t in statement.targets]
        if write.name.id not in targets and flow.read_after(write.name.id, statement):
            targets.append(write.name.id)
        line = " = ".join([*targets, value])
    change = branch.Change([statement], [line], wants=wants, title="out-of-place form")
    change.look_at += rebound[1]
    return change


def new_result(module: ModuleFacts, write: Write) -> branch.Change | None:
    """``torch.exp(x).add(1)`` for ``torch.exp(x).add_(1)``: nobody else has that result."""
    if write.call is not None:
        return None
    statement = write.statement
    text, start = module.source(statement), module.start(statement)
    change = branch.Change([statement], [], title="out-of-place form")
    for call in _methods_on(write):  # from the last to the first
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr in _WITHOUT_FUNCTION:
            return None
        method = call.func.attr[:-1]
        inputs = passed(call)
        if method in AUTOCAST or not all(is_number(module, n) for n in inputs):
            change.look_at.append(f"`{method}_` keeps the dtype of its tensor, `{method}` may not")
        at = module.end(call.func) - start
        text = f"{text[: at - 1]}{text[at:]}"
    if "\n" in text:
        if any(mark in text for mark in "#'\""):
            return None
        text = " ".join(text.split())
    change.lines = [text]
    return change


def _methods_on(write: Write) -> list[ast.Call]:
    """The methods that write into a result without a name, the last one first."""
    _, path = root_of(write.target)
    made = path[-1] if path else write.target
    return [
        node
        for node in walk(write.statement)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in METHODS
        and root_of(node)[1][-1] is made
    ]


def result_clone(module: ModuleFacts, *calls: ast.expr) -> branch.Change | None:
    """The statement of operations with clones of their results, which they save."""
    line = _cloned(module, *calls)
    if line is None:
        return None
    title = "clone of a result" if len(calls) == 1 else "clone of each result"
    return branch.Change([module.statement(calls[0])], [line], title=title)


def clone_first(
    module: ModuleFacts, write: Write, options: Options, wants: list[str] | None
) -> dict[str, Fix]:
    """``x = x.clone()`` before a piece of ``x`` is written."""
    if write.name is None or is_hidden(write):
        return {}
    statement, name = write.statement, write.name.id
    names = [write.name, *_written_beside(statement, name)]
    looks: list[str] = []
    for each in names:  # q[:, :1], k[:, :1] = a, b
        rebound = _rebound(module, replace(write, name=each))
        if rebound is None or rebound[0]:
            return {}
        looks += rebound[1]
    if not layout.owns_lines(module, statement):
        return {}
    if wants is not None:
        wants = [*wants, *(each.id for each in names[1:])]
    lines = [f"{each.id} = {each.id}.clone()" for each in names]
    change = branch.Change([statement], lines, wants=wants)
    change.look_at += looks
    change.title = " and ".join(f"clone of `{each.id}`" for each in names)
    indent, unit = module.indentation(statement), module.indent_unit
    start = module.line_starts[statement.lineno - 1]
    test = branch.condition(module, [change], options.flag)
    guarded = [*layout.fit(f"if {test}:", indent, unit, layout.width(module))]
    guarded += [f"{indent}{unit}{line}" for line in lines]
    texts = {"flag": guarded, "replace": [indent + line for line in lines]}
    fixes = {
        strategy: branch.fix(
            [change],
            [branch.insertion(start, [*text, ""], module.newline)],
            "Write into a {}" + (" when a gradient is wanted" if strategy == "flag" else ""),
        )
        for strategy, text in texts.items()
    }
    return {**fixes, "attach": fixes["flag"]}


def _written_beside(statement: ast.stmt, name: str) -> list[ast.Name]:
    """The other tensors of which a tuple assignment writes pieces as well."""
    found: dict[str, ast.Name] = {}
    targets = list(statement.targets) if isinstance(statement, ast.Assign) else []
    while targets:
        target = targets.pop(0)
        if isinstance(target, (ast.Tuple, ast.List)):
            targets = [*target.elts, *targets]
        elif isinstance(target, ast.Subscript):
            root, _ = root_of(target)
            if root is not None and root.id != name:
                found.setdefault(root.id, root)
    return list(found.values())


def saved_clone(module: ModuleFacts, saver: Saver) -> branch.Change | None:
    """The statement of an operation with a clone of what it saves."""
    operand = saver.operand
    if not isinstance(operand, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
        return None
    line = _cloned(module, operand)
    if line is None:
        return None
    return branch.Change([module.statement(saver.node)], [line], title="operation on a clone")


def _cloned(module: ModuleFacts, *nodes: ast.expr) -> str | None:
    """The statement of expressions with ``.clone()`` behind each; None where it has no line."""
    statement = module.statement(nodes[0])
    if any(module.statement(node) is not statement for node in nodes):
        return None
    text = module.source(statement)
    if any(mark in text for mark in ("#", '"', "'")) and "\n" in text:
        return None
    if not isinstance(statement, (ast.Assign, ast.Return, ast.Expr, ast.AugAssign)):
        return None
    line = text
    for cut in sorted((module.end(node) - module.start(statement) for node in nodes), reverse=True):
        line = f"{line[:cut]}.clone(){line[cut:]}"
    return line if "\n" not in line else " ".join(line.split())
