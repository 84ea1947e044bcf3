"""``torch.f(..., out=t)``: what has no derivative, as what returns its result."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.constants import is_constant
from ...facts.dtypes import has_dtype_of, is_float32, is_number
from ...facts.memo import once
from ...facts.names import default_of, is_none, last_name
from ...facts.views import is_allocation
from ...facts.walk import walk
from ...facts.writes import (
    root_of,
)
from .harm import Harm

if TYPE_CHECKING:
    from ...rewrite.branch import Change

_FACTORIES = frozenset(
    "eye arange linspace logspace full zeros ones empty rand randn randint randperm normal "
    "bernoulli multinomial argmax argmin argsort".split()
)


def out_argument(module: ModuleFacts, statement: ast.stmt) -> Harm | None:
    """``torch.f(..., out=t)`` as a statement, assigned, or in an expression."""
    call, keyword = next(_with_out(module, statement), (None, None))
    if call is None or keyword is None or isinstance(keyword.value, ast.Constant):
        return None
    names = [t.name for t in module.resolve(call.func)]
    if not any(n.startswith("torch.") and not n.startswith("torch.ops.") for n in names):
        return None
    if any(n.rpartition(".")[2] in _FACTORIES for n in names):
        return None
    if call.args and all(is_constant(module, argument) for argument in call.args):
        return None
    if _is_asked_for(module, statement, keyword.value) or _is_index(module, keyword.value):
        return None
    if _is_no_activation(module, statement, keyword.value):
        return None
    from ...rewrite.branch import Change
    from ...rewrite.functionalize import CannotFunctionalize, functionalize
    from ...rewrite.out_of_place import keep_dtype

    text = module.source(call.func)
    message = (
        f"`{text}(..., out=...)` does not support automatic differentiation: forward raises when "
        "an argument requires grad."
    )
    kept = [module.source(a) for a in call.args]
    kept += [
        f"{k.arg}={module.source(k.value)}" for k in call.keywords if k.arg not in ("out", None)
    ]
    value = f"{text}({', '.join(' '.join(part.split()) for part in kept)})"
    change = Change([statement], [], wants=_tensors(call), title=text)
    if isinstance(keyword.value, (ast.Tuple, ast.List)):
        _bind_each(module, statement, call, keyword.value.elts, value, change)
        return Harm("TRN402", message, statement, call, change)
    if is_allocation(keyword.value) and not isinstance(statement, ast.Expr):
        value = _in_dtype_of(module, value, call, keyword.value)
        change.lines = _exchanged(module, statement, call, value)  # nobody else has the buffer
        return Harm("TRN402", message, statement, call, change)
    try:
        write = functionalize(module, statement, keyword.value)
    except CannotFunctionalize:
        return Harm("TRN402", message, statement, call, change)
    if not isinstance(statement, (ast.Expr, ast.Assign)) or statement.value is not call:
        flow = module.flow(module.function(statement) or module.tree)
        buffer = write.place.text
        local = write.place.kind == "assign" and buffer.isidentifier() and not write.followers
        if local and not flow.read_after(buffer, statement):
            change.look_at += [write.look_at] if write.look_at else []
            change.lines = _exchanged(module, statement, call, value)
        return Harm("TRN402", message, statement, call, change)
    if write.place.shape_of:
        return Harm("TRN402", message, statement, call, change)  # the result has the view's shape
    if write.allocation is not None and isinstance(write.allocation, (ast.Assign, ast.AnnAssign)):
        value = _in_dtype_of(module, value, call, write.allocation.value)
    elif isinstance(keyword.value, ast.Name):
        same = keep_dtype(module, value, keyword.value, text.rpartition(".")[2], call.args)
        value = same if same != value else _cast(module, value, call, keyword.value)
    if write.allocation is not None:
        change.dropped.append(write.allocation)
    if write.look_at:
        change.look_at.append(write.look_at)
        change.copies = frozenset({write.look_at} if write.only_copies else ())
    if isinstance(statement, ast.Assign):
        targets = " = ".join(module.source(t) for t in statement.targets)
        change.lines = [f"{targets} = {value}"]
        flow = module.flow(module.function(statement) or module.tree)
        buffer = write.place.text
        if buffer.isidentifier() and buffer != targets and flow.read_after(buffer, statement):
            change.lines.append(f"{buffer} = {targets}")
    elif write.place.kind == "copy":
        change.lines = [f"{write.place.text}.copy_({value})"]
    else:
        change.lines = [f"{write.place.text} = {value}"]
    change.lines += write.followers
    return Harm("TRN402", message, statement, call, change)


def _is_asked_for(module: ModuleFacts, statement: ast.stmt, buffer: ast.expr) -> bool:
    """Whether who calls a function gave it the buffer, and could have left that out.

    As with torch's own ``out=``.  ``states[0]`` of what a function is given is the caller's too.
    """
    function = module.function(statement)
    root, path = root_of(buffer)
    if function is None or root is None:
        return False
    element = any(
        isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant) for n in path[-1:]
    )
    definitions = module.flow(function).reaching(root.id, statement)
    return bool(definitions) and all(
        definition.is_parameter and (element or is_none(default_of(function.args, root.id)))
        for definition in definitions
    )


def _is_index(module: ModuleFacts, buffer: ast.expr) -> bool:
    """Whether a buffer holds numbers of places: others are indexed by it."""
    function = module.function(buffer)
    return isinstance(buffer, ast.Name) and any(
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Name)
        and node.slice.id == buffer.id
        for node in walk(function or module.tree)
    )


_INTEGER = re.compile(r"torch\.(u?int(8|16|32|64)|long|int|bool)$")


def _is_no_activation(module: ModuleFacts, statement: ast.stmt, buffer: ast.expr) -> bool:
    """Whether a buffer is made for integers, or in pinned memory, from which data is copied."""
    root, _ = root_of(buffer)
    if root is None:
        return False
    flow = module.flow(module.function(statement) or module.tree)
    made = flow.only_definition(root.id, statement)
    if made is None or not isinstance(made.value, ast.Call) or not is_allocation(made.value):
        return False
    return any(
        keyword.arg == "pin_memory"
        or (keyword.arg == "dtype" and _INTEGER.match(module.source(keyword.value)))
        for keyword in made.value.keywords
    )


def _bind_each(
    module: ModuleFacts,
    statement: ast.stmt,
    call: ast.Call,
    buffers: list[ast.expr],
    value: str,
    change: Change,
) -> None:
    """``values, indices = torch.max(x, 1)`` for ``torch.max(x, 1, out=(values, indices))``."""
    from ...rewrite.functionalize import CannotFunctionalize, functionalize

    try:
        writes = [functionalize(module, statement, buffer) for buffer in buffers]
    except CannotFunctionalize:
        return
    texts = [write.place.text for write in writes]
    if any(w.place.kind != "assign" or w.followers for w in writes) or len(set(texts)) < len(texts):
        return
    targets = ", ".join(texts)
    if isinstance(statement, ast.Assign) and statement.value is call:
        if [module.source(t).strip("()") for t in statement.targets] != [targets]:
            return
    elif not isinstance(statement, ast.Expr) or statement.value is not call:
        return
    change.lines = [f"{targets} = {value}"]
    change.dropped += [w.allocation for w in writes if w.allocation is not None]
    change.look_at += [w.look_at for w in writes if w.look_at]


_OUT_KEYWORD = re.compile(r"(?:[(,\\]|#[^\n]*)\s*\bout\s*=(?!=)")
"""``f(x, out=y)``; not ``out = f(x)``."""


@once
def _names_out(module: ModuleFacts) -> bool:
    return _OUT_KEYWORD.search(module.usual) is not None


def _with_out(module: ModuleFacts, statement: ast.stmt) -> Iterator[tuple[ast.Call, ast.keyword]]:
    """The calls with ``out=`` that a statement makes to compute its value."""
    value = getattr(statement, "value", None)
    within = walk(value) if isinstance(value, ast.expr) and _names_out(module) else ()
    for node in within:
        if isinstance(node, ast.Call):
            yield from ((node, k) for k in node.keywords if k.arg == "out")


def _exchanged(module: ModuleFacts, statement: ast.stmt, call: ast.Call, value: str) -> list[str]:
    """A statement with ``value`` in the place of a call; none where it cannot be on one line."""
    text, start = module.source(statement), module.start(statement)
    line = text[: module.start(call) - start] + value + text[module.end(call) - start :]
    if "\n" in line and any(mark in line for mark in "#'\""):
        return []
    return [" ".join(line.split()) if "\n" in line else line]


_EQUAL = frozenset("matmul mm bmm mv dot addmm addbmm baddbmm addmv addr topk sort".split())
"""Functions that want ``out`` to have the dtype of their arguments; all others convert to it."""


def _in_dtype_of(module: ModuleFacts, value: str, call: ast.Call, made: ast.expr | None) -> str:
    """A result in the dtype of the buffer that it would have been written into."""
    if not isinstance(made, ast.Call) or last_name(call.func) in _EQUAL:
        return value
    dtype = next((k.value for k in made.keywords if k.arg == "dtype"), None)
    if dtype is not None:
        if isinstance(dtype, ast.Attribute) and dtype.attr == "dtype":
            if isinstance(dtype.value, ast.Name):
                return _cast(module, value, call, dtype.value)
        if module.is_name(dtype, "torch.float32", "torch.float"):
            if all(is_number(module, a) or is_float32(module, a) for a in call.args):
                return value
        return value if is_none(dtype) else f"{value}.to({module.source(dtype)})"
    like = made.args[0] if last_name(made.func).endswith("_like") and made.args else None
    if isinstance(made.func, ast.Attribute) and made.func.attr.startswith("new_"):
        like = made.func.value
    return _cast(module, value, call, like) if isinstance(like, ast.Name) else value


def _cast(module: ModuleFacts, value: str, call: ast.Call, like: ast.Name) -> str:
    """A result in the dtype of ``like``, unless all that it is computed from has that."""
    if last_name(call.func) in _EQUAL:
        return value
    float32 = is_float32(module, like)
    tensors = [a for a in call.args if not is_number(module, a)]
    if all(has_dtype_of(module, each, like, float32=float32) for each in tensors):
        return value
    return f"{value}.to({like.id}.dtype)"


def _tensors(call: ast.Call) -> list[str] | None:
    names = []
    for argument in call.args:
        if isinstance(argument, ast.Name):
            names.append(argument.id)
        elif not isinstance(argument, ast.Constant):
            return None
    return names or None
