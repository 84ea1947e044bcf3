"""TRN402, TRN403: in-place writes that autograd refuses, or that destroy what backward needs."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..facts import ModuleFacts, places, words
from ..facts.activations import submodule
from ..facts.constants import is_constant
from ..facts.flow import Definition, FunctionFlow, is_allocation
from ..facts.guards import gradient_unwanted, serves_backward
from ..facts.memo import once
from ..facts.names import default_of, is_none
from ..facts.overwriting import without_asking
from ..facts.rows import overwriting_rows
from ..facts.saved import RESULT_SAVED, maker_of, saved_result, saves_in_place, saving_call
from ..facts.training import reaches_result, trains
from ..facts.walk import walk
from ..facts.writes import (
    METHODS,
    UNNOTICED,
    Write,
    attribute_of,
    in_callers,
    in_network,
    is_element,
    root_of,
    roots,
)
from ..findings import STRATEGIES, Edit, Finding, Fix, Related
from . import Look, Needle, Rule, is_wanted, not_rewritten

if TYPE_CHECKING:
    from ..engine import Options
    from ..rewrite.branch import Change

RULES = (
    Rule(
        code="TRN402",
        name="out-argument",
        summary="A torch function writes into out=, which has no derivative.",
        why=(
            "Functions with out=... arguments do not support automatic differentiation: the "
            "forward raises as soon as an argument requires grad."
        ),
        before="""\
import torch
from torch import nn


class Head(nn.Module):
    def forward(self, logits):
        torch.tanh(logits, out=logits)
        return logits
""",
        after="""\
import torch
from torch import nn


class Head(nn.Module):
    def forward(self, logits):
        if torch.is_grad_enabled() and logits.requires_grad:
            logits = torch.tanh(logits)
        else:
            torch.tanh(logits, out=logits)
        return logits
""",
    ),
    Rule(
        code="TRN403",
        name="in-place-on-saved-result",
        summary="A result that backward needs is overwritten in place.",
        why=(
            "tanh, sigmoid, relu, exp, softmax and their like save their result for backward. "
            "Overwriting it, with a method, an operator, `inplace=True` or a module that was made "
            "so, makes backward raise: one of the variables needed for gradient computation has "
            "been modified by an inplace operation. What a convolution, a linear layer or a norm "
            "returns is saved by nobody: relu may overwrite that."
        ),
        before="""\
import torch
from torch import nn


class Head(nn.Module):
    def forward(self, logits):
        logits = torch.tanh(logits)
        logits.mul_(30.0)
        return logits
""",
        after="""\
import torch
from torch import nn


class Head(nn.Module):
    def forward(self, logits):
        logits = torch.tanh(logits)
        if torch.is_grad_enabled() and logits.requires_grad:
            logits = logits * 30.0
        else:
            logits.mul_(30.0)
        return logits
""",
    ),
)


_FUNCTIONS = words.declare(
    *(f".{name}(".encode() for name in [*sorted(RESULT_SAVED), "leaky_relu"])
)
_OF_TENSORS = re.compile(rb"(?<!\bmath)(?<!\bself)\.")
_SAVERS = words.declare(b"LU(", b"Sigmoid(", b"Tanh(", b"Softmax(", b"Softmin(")
_HOLDS = re.compile(rb"self\.(\w+)(?:: [\w.]+)? = [\w.]*$")
_METHODS = tuple(f"{name}_(".encode() for name in sorted(RESULT_SAVED))


(_OUT,) = words.declare(b", out=")


def _has_out(data: bytes) -> bool:
    return any(places.may_be_trained(data, at) for at in words.places(data, _OUT))


def _saves_result(data: bytes, begin: int, end: int) -> bool:
    """Whether a function, or a module that the file makes, may save its result there."""
    found = _saving(data)
    first = bisect_left(found, begin)
    return first < len(found) and found[first] < end


@lru_cache(maxsize=2)
def _saving(data: bytes) -> list[int]:
    """Where something is called that may save its result, in order."""
    found = [at for name in _modules(data) for at in words.undeclared(data, b"self.%s(" % name)]
    found += (
        at for word in _FUNCTIONS for at in words.places(data, word) if _OF_TENSORS.match(data, at)
    )
    return sorted(found)


@lru_cache(maxsize=2)
def _modules(data: bytes) -> frozenset[bytes]:
    """The attributes that hold a module which may save its result."""
    made = (
        _HOLDS.search(data, data.rfind(b"\n", 0, at) + 1, at)
        for word in _SAVERS
        for at in words.places(data, word)
    )
    return frozenset(match[1] for match in made if match is not None)


def _may_concern(data: bytes) -> bool:
    return (
        places.overwrites(data, _saves_result, _METHODS)
        or places.chained(data, _saves_result, _METHODS)
        or places.in_a_row(data)
    )


NEEDLES: tuple[Needle, ...] = (Look((_OUT,), _has_out), Look(places.SIGNS, _may_concern))
_FACTORIES = frozenset(
    "eye arange linspace logspace full zeros ones empty rand randn randint randperm normal "
    "bernoulli multinomial argmax argmin argsort".split()
)


@dataclass(frozen=True, eq=False)
class Harm:
    """A statement that writes where autograd does not allow it, and what could stand there."""

    rule: str
    message: str
    statement: ast.stmt
    operation: ast.expr | None = None
    """The operation that autograd has to go back through."""
    change: Change | None = None
    fixes: Mapping[str, Fix] = field(default_factory=dict)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    yield from _rows(module)
    found: list[Harm] = []
    for statement in module.statements:
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)):
            continue
        hit = (
            _out(module, statement)
            or _overwrite(module, options, statement)
            or _chained(module, statement)
        )
        function = module.function(statement)
        if hit is None or gradient_unwanted(module, statement):
            continue
        if not in_network(module, function) and not _is_trained(module, hit):
            continue
        if function is not None and hit.rule == "TRN403" and quantizes(module, function):
            continue
        if function is None or not serves_backward(module, function):
            if not _comes_second(module, found, hit):
                found.append(_behind_clone(module, found, hit))
    if not found:
        return
    from ..rewrite import branch

    vocabulary = branch.Vocabulary(module)
    changes: dict[ast.stmt, Change] = {}
    for harm in found:
        if not is_wanted(module, options, harm.rule, harm.statement):
            continue
        if harm.change is not None and harm.change.lines:
            changes.setdefault(harm.change.first, harm.change)
    fixes: dict[ast.stmt, Mapping[str, Fix]] = {}
    reasons: dict[ast.stmt, str] = {}
    for run in branch.group(module, list(changes.values())):
        try:
            both = branch.fixes(module, vocabulary, run, options.flag)
        except branch.CannotPlace as error:
            reasons.update((change.first, not_rewritten(error)) for change in run)
            continue
        both["attach"] = both["flag"]  # there is no kernel to keep
        fixes.update((change.first, both) for change in run)
    for harm in found:
        known = fixes.get(harm.change.first, {}) if harm.change is not None else harm.fixes
        message = harm.message
        if harm.change is not None and not known:
            message += reasons.get(harm.change.first, "")
        yield module.finding(harm.rule, message, harm.statement, known, _saved(module, harm))


def _saved(module: ModuleFacts, harm: Harm) -> list[Related]:
    """Where the result was made that is overwritten, if that is elsewhere."""
    made = harm.operation if harm.rule == "TRN403" else None
    if made is None or module.statement(made) is harm.statement:
        return []
    return [module.related("This result is saved for backward.", made)]


def _comes_second(module: ModuleFacts, found: list[Harm], hit: Harm) -> bool:
    """Whether a call overwrites a name that has a new value from an earlier harm's fix on."""
    write = module.writes.get(hit.statement)
    if write is None or write.call is None or write.name is None:
        return False
    return any(
        earlier.operation is hit.operation is not None
        and (first := module.writes.get(earlier.statement)) is not None
        and first.name is not None
        and first.name.id == write.name.id
        and earlier.change is not None
        and earlier.change.first is earlier.statement
        for earlier in found
    )


def _behind_clone(module: ModuleFacts, found: list[Harm], hit: Harm) -> Harm:
    """The harm, with an earlier one's fix where that leaves a clone to this write as well."""
    write = module.writes.get(hit.statement)
    if not hit.fixes or write is None or write.name is None:
        return hit
    block = module.block(hit.statement)
    for earlier in found:
        if earlier.fixes and earlier.operation is hit.operation and earlier.statement in block:
            first = module.writes[earlier.statement]
            if first.name is not None and first.name.id == write.name.id:
                return replace(hit, fixes=earlier.fixes)
    return hit


def _rows(module: ModuleFacts) -> Iterator[Finding]:
    """``nn.Sequential(nn.Sigmoid(), nn.Dropout(0.1, inplace=True))``."""
    for saver, writer in overwriting_rows(module):
        message = (
            f"`{module.source(writer)}` overwrites what `{module.source(saver)}` saved for "
            f"backward, which raises{_unless(module, writer)}."
        )
        text = without_asking(module, writer)
        fixes = {}
        if text is not None:
            edit = Edit(module.start(writer), module.end(writer), text)
            fixes = dict.fromkeys(STRATEGIES, Fix("Do not overwrite the result", (edit,)))
        related = module.related("This result is saved for backward.", saver)
        yield module.finding("TRN403", message, writer, fixes, [related])


_CODES = re.compile(r"\b_int_mm\(|\.to\(\s*(?:dtype\s*=\s*)?torch\.u?int8\b|\.char\(\)")


def quantizes(module: ModuleFacts, function: ast.stmt) -> bool:
    """Whether a function makes integer codes of what it is given: no gradient gets past those.

    What it overwrites on the way, a scale, is not what keeps it from being trained through.
    """
    return _CODES.search(module.source(function)) is not None


def _is_trained(module: ModuleFacts, harm: Harm) -> bool:
    return harm.operation is not None and trains(module, harm.operation)


def _out(module: ModuleFacts, statement: ast.stmt) -> Harm | None:
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
    from ..rewrite.branch import Change
    from ..rewrite.functionalize import CannotFunctionalize, functionalize
    from ..rewrite.out_of_place import keep_dtype

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
    change = Change([statement], [], wants=_tensors(module, call), title=text)
    if isinstance(keyword.value, (ast.Tuple, ast.List)):
        _bind_each(module, statement, call, keyword.value.elts, value, change)
        return Harm("TRN402", message, statement, call, change)
    if is_allocation(keyword.value) and not isinstance(statement, ast.Expr):
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
    if write.allocation is None and isinstance(keyword.value, ast.Name):
        value = keep_dtype(module, value, keyword.value, text.rpartition(".")[2], call.args)
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
    from ..rewrite.functionalize import CannotFunctionalize, functionalize

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
    return _OUT_KEYWORD.search(module.text) is not None


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


def _tensors(module: ModuleFacts, call: ast.Call) -> list[str] | None:
    names = []
    for argument in call.args:
        if isinstance(argument, ast.Name):
            names.append(argument.id)
        elif not isinstance(argument, ast.Constant):
            return None
    return names or None


@dataclass(frozen=True)
class _Made:
    """The operation that saved its result, by its name; ``call`` where that shows.

    ``kept`` says that a list or a tuple holds the result, where a new value would not be.
    """

    name: str
    call: ast.expr | None = None
    kept: bool = False
    shared: bool = False
    """Whether another name has the same tensor, and may be read after the write."""


def _overwrite(module: ModuleFacts, options: Options, statement: ast.stmt) -> Harm | None:
    """``t.mul_(...)`` or ``t[:n] *= ...`` after an operation that saved ``t``, its result."""
    write = module.writes.get(statement)
    harm = overwritten(module, write) if write is not None else None
    if write is None or harm is None:
        return None
    message, made = harm
    from ..rewrite.out_of_place import (
        clone_first,
        is_hidden,
        new_result,
        new_value,
        result_clone,
    )

    change = None
    fixes: Mapping[str, Fix] = {}
    if write.unseen or made.shared:
        return Harm("TRN403", message, statement, made.call)
    if made.kept:
        pass
    elif write.name is not None:
        change = new_value(module, write, [write.name.id])
        fixes = clone_first(module, write, options, [write.name.id]) if change is None else {}
    elif made.call is not None and module.statement(made.call) is statement:
        change = new_result(module, write)
    if change is None and not fixes and made.call is not None and not is_hidden(write):
        change = result_clone(module, made.call)
    return Harm("TRN403", message, statement, made.call, change, fixes)


def _chained(module: ModuleFacts, statement: ast.stmt) -> Harm | None:
    """``y.exp_().mul_(2)``: the first method saves the result that the second one overwrites."""
    value = getattr(statement, "value", None)
    for call in walk(value) if isinstance(value, ast.Call) else ():
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        made = maker_of(call.func.value) if call.func.attr in METHODS else None
        if not isinstance(made, ast.Call) or not saves_in_place(made):
            continue
        root, _ = root_of(made)
        flow = module.flow(module.function(statement) or module.tree)
        kept = root is not None and flow.read_after(root.id, statement)
        if kept or reaches_result(module, made):
            message = (
                f"The result of `{module.source(made.func)}` is overwritten in place by "
                f"`{call.func.attr}`, but saved for backward, which raises."
            )
            return Harm("TRN403", message, statement, made)
    return None


def _unless(module: ModuleFacts, writer: ast.Call) -> str:
    """Dropout leaves its input alone where its probability is 0."""
    name = submodule(module, writer.func) or module.source(writer.func).rpartition(".")[2]
    return " unless its probability is 0" if "dropout" in name.lower() else ""


def overwritten(module: ModuleFacts, write: Write) -> tuple[str, _Made] | None:
    """What is wrong with a write, and the operation that it harms."""
    text = module.source(write.target)
    made = _made_by(module, write) if write.name is not None else _nameless(module, write)
    if write.name is not None:
        saver = _saver(module, write.statement, write.name.id)
        made = _Made(saver) if saver is not None else made
    if made is not None and made.call is not None and not reaches_result(module, made.call):
        return None  # a metric, a statistic, the inside of a straight-through estimator
    if made is not None:
        if made.call is not None and module.statement(made.call) is write.statement:
            text = f"The result of `{made.name}`"
            return f"{text} is overwritten in place, but saved for backward, which raises.", made
        unless = _unless(module, write.call) if write.call is not None else ""
        harm = f"which {UNNOTICED if write.is_unnoticed else f'raises{unless}'}"
        return (
            f"`{text}` is overwritten in place, but `{made.name}` saved it for backward, {harm}."
        ), made
    for passed in in_callers(module, write):
        named = passed.name is not None
        made = _made_by(module, passed) if named else _nameless(module, passed)
        if made is not None and not gradient_unwanted(module, passed.statement):
            return (
                f"`{text}` is overwritten in place, but line {passed.statement.lineno} passes what "
                f"`{made.name}` saved for backward, which raises."
            ), _Made(made.name)
    return None


def _nameless(module: ModuleFacts, write: Write) -> _Made | None:
    """The same of a result that is written at once, ``torch.exp(x).add_(1)``; of ``self.state``."""
    owner = maker_of(write.target)
    if isinstance(owner, ast.Attribute):
        made = _last_assigned(module, owner, write.statement)
        owner = maker_of(made) if made is not None else owner
    saver = saving_call(module, owner)
    return _Made(saver, owner) if saver is not None else None


def _last_assigned(module: ModuleFacts, owner: ast.Attribute, at: ast.stmt) -> ast.expr | None:
    """What ``self.state`` was given for sure before a statement of the same function."""
    key = ast.dump(owner.value), owner.attr
    inner: ast.AST | None = at
    while isinstance(inner, ast.stmt) and not isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
        block = module.block(inner)
        for made in reversed(block[: block.index(inner)]):
            for node in walk(made):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    if (ast.dump(node.value), node.attr) == key:
                        whole = isinstance(made, ast.Assign) and node in made.targets
                        return made.value if whole else None  # type: ignore[attr-defined]
        inner = module.parent(inner)
    return None


def _made_by(module: ModuleFacts, write: Write) -> _Made | None:
    """The operation that made what is overwritten, and saved it."""
    if write.name is None:
        return None
    function = module.function(write.statement)
    name, flow = write.name.id, module.flow(function or module.tree)
    found = [root.definition for root in roots(module, flow, name, write.statement)]
    given = flow.only_definition(name, write.statement)
    if given is not None and given.value is not None and given not in found:
        made_in_place = maker_of(given.value)
        if isinstance(made_in_place, ast.Call) and saves_in_place(made_in_place):
            return _made_in_place(module, flow, given, write, found)
    outer = module.function(function) if function is not None else None
    if not found and outer is not None:  # a closure writes what the function around it made once
        made = module.flow(outer).all_definitions(name)
        found = made if len(made) == 1 else []
    for definition in found:
        at = definition.statement
        if write.call is not None and at is not None and at.lineno >= write.statement.lineno:
            continue  # of the turn before, if no branch between gives a new value
        saver = saved_result(module, definition)
        if saver is not None and definition.value is not None:
            return _Made(saver, maker_of(definition.value))
        for element in _elements(module, flow, definition, write):
            owner = maker_of(element)
            saver = saving_call(module, owner)
            if saver is not None:
                return _Made(saver, owner, kept=True)
    return None


def _made_in_place(
    module: ModuleFacts,
    flow: FunctionFlow,
    given: Definition,
    write: Write,
    roots_of_it: list[Definition],
) -> _Made | None:
    """The same for ``e = h.exp_()``: ``e`` is ``h``, which holds the result that was saved."""
    assert given.value is not None
    saver = saved_result(module, given)
    if saver is None or gradient_unwanted(module, given.value):
        return None
    root, _ = root_of(given.value)
    shared = root is not None and (
        flow.read_after(root.id, write.statement)
        or any(d.is_parameter or d.name != root.id for d in roots_of_it)
    )
    return _Made(
        saver, maker_of(given.value), shared=shared or attribute_of(given.value) is not None
    )


def _elements(
    module: ModuleFacts, flow: FunctionFlow, definition: Definition, write: Write
) -> Iterator[ast.expr]:
    """What ``ys[0].mul_(2)``, or ``y.mul_(2)`` in ``for y in ys``, writes into: elements of it."""
    held, made, index = definition.value, definition.statement, None
    if isinstance(made, (ast.For, ast.AsyncFor)) and isinstance(made.target, ast.Name):
        held = made.iter
        if isinstance(held, ast.Name):
            only = flow.only_definition(held.id, made)
            held = only.value if only is not None and only.index is None else None
    elif definition.index is None:
        node = write.target
        while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                if not is_element(node) or not isinstance(write.statement, ast.Expr):
                    return
                index = node.slice
            node = node.func if isinstance(node, ast.Call) else node.value
        if index is None:
            return
    if isinstance(held, (ast.ListComp, ast.GeneratorExp)):
        yield held.elt
    elif isinstance(held, (ast.List, ast.Tuple)):
        if not isinstance(index, ast.Constant):
            yield from held.elts
        elif isinstance(index.value, int) and -len(held.elts) <= index.value < len(held.elts):
            yield held.elts[index.value]


def _saver(module: ModuleFacts, statement: ast.stmt, name: str) -> str | None:
    """The operation that wrote its result into ``name``, and saved it: ``torch.tanh(x, out=x)``."""
    block = module.block(statement)
    for previous in reversed(block[: block.index(statement)]):
        call = previous.value if isinstance(previous, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            text = module.source(call.func)
            out = next((k.value for k in call.keywords if k.arg == "out"), None)
            if isinstance(out, ast.Name) and out.id == name:
                return text if call.func.attr in RESULT_SAVED else None
            if isinstance(call.func.value, ast.Name) and call.func.value.id == name:
                if call.func.attr.endswith("_"):
                    return text if call.func.attr[:-1] in RESULT_SAVED else None
        elif any(isinstance(n, ast.Name) and n.id == name for n in walk(previous)):
            return None
    return None
