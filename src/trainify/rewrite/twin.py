"""A layer's own ``forward_native``, taken in place of its kernel where a gradient is wanted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..catalog import CONSTANTS
from ..facts import ModuleFacts
from ..facts.called import method_of
from ..facts.comments import with_comments
from ..facts.layers import PICKS_FORWARD
from ..facts.module import FunctionNode
from ..facts.names import default_of, is_none, parameters, self_name
from ..facts.pure import why_not_differentiable
from ..facts.trainable import holds_weights
from ..facts.walk import walk
from ..findings import STRATEGIES, Edit, Fix, Safety
from . import layout
from .branch import Change, condition

TWIN = "forward_native"

_FORWARD = re.compile(r"_?forward(_\w+)?")


def fixes(module: ModuleFacts, call: ast.Call, flag: str) -> dict[str, Fix]:
    """The fix of a call in a method that has such a twin; empty where it has none."""
    function = module.function(call)
    cls = module.method_class(function)
    if function is None or cls is None or not _FORWARD.fullmatch(function.name):
        return {}
    twin = method_of(cls, TWIN)
    if twin is None or twin is function or list(_names(twin)) != list(_names(function)):
        return {}
    if function.args.vararg or function.args.kwarg or why_not_differentiable(module, twin):
        return {}
    if not any(isinstance(n, ast.Return) and n.value is not None for n in walk(twin)):
        return {}  # only announced: `pass`, or NotImplementedError
    edit = _edit(module, cls, function, flag)
    if edit is None:
        return {}
    instead = _edit_in_place(module, function)
    # All that may be picked are to compute what ``forward_native`` does.
    picked = any(PICKS_FORWARD.search(module.source(base)) for base in cls.bases)
    look_at = "" if picked else f"`{TWIN}` must compute the same as `{function.name}`"
    safety = Safety.SAFE if picked else Safety.UNSAFE
    fix = Fix(f"Run {TWIN} when a gradient is wanted", (edit,), safety, look_at)
    found = dict.fromkeys(STRATEGIES, fix)
    if instead is not None:
        found["replace"] = Fix(f"Always run {TWIN}", (instead,), safety, look_at)
    return found


def _names(function: FunctionNode) -> Iterator[str]:
    return (argument.arg for argument in parameters(function.args))


def _edit(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode, flag: str) -> Edit | None:
    """The twin, called first of all."""
    if layout.bound_at_top(module, "torch") is None:
        return None
    body = _body(function)
    if not body:
        return None
    try:
        room = layout.room(module, body[0], body[0])
    except layout.CannotPlace:
        return None
    change = Change([body[0]], [])
    if not holds_weights(module, cls):
        change.wants, change.optional = _tensors(module, function)
    test = condition(module, [change], flag)
    ind, unit, width = room.indentation, module.indent_unit, layout.width(module)
    lines = layout.fit(f"if {test}:", ind, unit, width)
    lines += layout.fit(f"return {_call(function)}", ind + unit, unit, width)
    if room.opening:
        lines.append(layout.moved(module, body[0], body[0], room, ind))
        text = room.opening + module.newline.join(lines) + room.closing
        return Edit(room.begin, room.end, text)
    offset = _start(module, body[0])
    return Edit(offset, offset, module.newline.join(lines) + module.newline)


def _edit_in_place(module: ModuleFacts, function: FunctionNode) -> Edit | None:
    """The twin, and nothing else; None where a comment would go with the author's lines."""
    body = _body(function)
    text, end = f"return {_call(function)}", layout.line_end(module, body[-1])
    if layout.starts_line(module, body[0]):
        begin, ind, unit = _start(module, body[0]), module.indentation(body[0]), module.indent_unit
        text = module.newline.join(layout.fit(text, ind, unit, layout.width(module)))
    else:
        begin = module.start(body[0])
    return None if "#" in module.text[begin:end] else Edit(begin, end, text)


def _body(function: FunctionNode) -> list[ast.stmt]:
    return function.body[1:] if ast.get_docstring(function, clean=False) else function.body


def _start(module: ModuleFacts, statement: ast.stmt) -> int:
    """Where the lines of a statement start; comments above it belong to it."""
    first = module.position(layout.line_start(module, statement))[0]
    return module.line_starts[with_comments(module, first) - 1]


def _call(function: FunctionNode) -> str:
    me, *names = _names(function)
    named = {a.arg for a in function.args.kwonlyargs}
    passed = ", ".join(f"{n}={n}" if n in named else n for n in names)
    return f"{me}.{TWIN}({passed})"


def _tensors(
    module: ModuleFacts, function: FunctionNode
) -> tuple[list[str] | None, frozenset[str]]:
    """The parameters that are tensors, and those of them that may be None.

    None where it does not show which these are.
    """
    me = self_name(function)
    found, optional = [], set()
    for argument in parameters(function.args):
        if argument.arg == me or argument.arg in CONSTANTS:
            continue
        if argument.annotation is None:
            return None, frozenset()
        text = module.source(argument.annotation)
        plain = module.is_name(argument.annotation, "torch.Tensor")
        if plain or _OR_NONE.fullmatch(text):
            found.append(argument.arg)
            if not plain or is_none(default_of(function.args, argument.arg)):
                optional.add(argument.arg)
        elif "Tensor" in text:
            return None, frozenset()
    return found or None, frozenset(optional)


_TENSOR = r"(torch\.)?Tensor"
_OR_NONE = re.compile(
    rf"(typing\.)?Optional\[{_TENSOR}\]|{_TENSOR}\s*\|\s*None|None\s*\|\s*{_TENSOR}"
)
