"""TRN408: values that are kept for the next call, and their graph with them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeGuard

from ..facts import ModuleFacts, places, words
from ..facts.graph import Graph
from ..facts.guards import gradient_unwanted, is_forward
from ..facts.kept import (
    handed_out,
    is_kept_buffer,
    is_made_anew,
    is_same,
    registering,
    surely_takes_over,
    takes_over,
)
from ..facts.memo import once
from ..facts.names import is_none, passed
from ..facts.saved import carries
from ..facts.trainable import is_buffer, local_class, makes_weights, trained_submodules
from ..facts.words import declare
from ..facts.writes import Write, callers, in_network, root_of
from ..findings import STRATEGIES, Finding, Fix, Safety
from . import Look, Needle, Rule
from .caches import detached, names_cache

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN408",
        name="state-keeps-graph",
        summary="A value is kept for the next call, and its graph with it.",
        why=(
            "What is written into a buffer, or joined to what the call before left, makes the kept "
            "tensor part of the graph. Where the next step reads it, backward walks into the step "
            "before, which is freed: 'Trying to backward through the graph a second time'. Where "
            "none does, the graphs of all steps stay in memory. Keep detached values: running "
            "statistics, memories and caches need no gradient."
        ),
        before="""\
import torch
from torch import nn


class Centered(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, d)
        self.register_buffer("mean", torch.zeros(d))

    def forward(self, x):
        h = self.proj(x)
        mean = h.mean(0)
        self.mean.mul_(0.9).add_(0.1 * mean)
        return h - mean
""",
        after="""\
import torch
from torch import nn


class Centered(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, d)
        self.register_buffer("mean", torch.zeros(d))

    def forward(self, x):
        h = self.proj(x)
        mean = h.mean(0)
        self.mean.mul_(0.9).add_((0.1 * mean).detach())
        return h - mean
""",
    ),
)

# -- the bytes ------------------------------------------------------------------------------------

_REGISTERS, *_MEMOIZES = declare(
    *(b"register_buffer(", b".setdefault(", b"lru_cache", b"functools.cache"),
    *(b"] = torch.empty(", b"] = torch.zeros("),
)
_MAKES = declare(b"= torch.zeros(", b"= torch.ones(", b"= torch.empty(")
_ATTRIBUTE = re.compile(rb"\s*self\.(\w+) $")
_JOINS = declare(b"torch.cat(", b"torch.concat(", b"torch.roll(")
_NOT_A_STEP_BYTES = re.compile(rb"def \w*(?:init|reset|clear|load|build|setup)")
_JOINED = re.compile(rb"torch\.(?:(?:cat|concat)\(\s*[\[(]|roll\()\s*self\.(\w+)")
_REGISTERED = re.compile(rb"register_buffer\(\s*[\"'](\w+)[\"']")
_MEMOIZED = re.compile(rb"torch\.(?:empty|zeros|ones|full)\(")
_NEAR = 400
"""Bytes after ``lru_cache`` within which the function has its result, and a call its callee."""
_CALL = re.compile(rb"(?<!def )\b(\w+)\s*\(")


def _writes_buffer(data: bytes) -> bool:
    """Whether a file writes into what it registers as a buffer, or updates that."""
    registered = {
        m[1] for at in words.places(data, _REGISTERS) if (m := _REGISTERED.match(data, at))
    }
    made = {m[1] for word in _MAKES for at in words.places(data, word) if (m := _made(data, at))}
    kept = {name for name in registered | made if not names_cache(name.decode())}
    written = places.writes(data)
    if any(
        name in kept and _is_attribute(data, at, name) and places.may_be_trained(data, at)
        for at, name in written
    ):
        return True
    if written and any(b"= self.%s\n" % name in data for name in kept):
        return True
    return any(_is_updated(data, b"self.%s" % name) for name in registered | made)


def _made(data: bytes, at: int) -> re.Match[bytes] | None:
    """``self.name`` before ``= torch.zeros(``, where an object is made."""
    found = _ATTRIBUTE.match(data, data.rfind(b"\n", 0, at) + 1, at)
    function = places.function_around(data, at) if found is not None else -1
    return found if data.startswith(b"def __init__(", function) else None


def _is_attribute(data: bytes, at: int, name: bytes) -> bool:
    """Whether what is written at a place is an attribute, not a local name."""
    return data.find(b".%s" % name, data.rfind(b"\n", 0, at) + 1, at) >= 0


def _is_updated(data: bytes, attribute: bytes) -> bool:
    return any(
        data.find(attribute, at + len(attribute), data.find(b"\n", at)) >= 0
        for at in words.undeclared(data, attribute + b" = ")
    )


def _writes_memoized(data: bytes) -> bool:
    starts = (at for word in _MEMOIZES for at in words.places(data, word))
    return any(_MEMOIZED.search(data, at, at + _NEAR) for at in starts) and any(
        _is_handed_out(data, name) for name in {name for _, name in places.writes(data)}
    )


def _is_handed_out(data: bytes, name: bytes) -> bool:
    """Whether a name is given what ``setdefault``, or a function of the file, returns."""
    return any(
        call[1] == b"setdefault" or b"def %s(" % call[1] in data
        for bound in re.finditer(rb"\b%s(?:: [^\n=]+)?\s*:?=(?!=)" % name, data)
        for call in _CALL.finditer(data, bound.end(), _end_of_value(data, bound.end()))
    )


def _end_of_value(data: bytes, at: int) -> int:
    """Where what is assigned ends, at the earliest: with its line, or soon after an open one."""
    end = data.find(b"\n", at)
    if end < 0 or data[at:end].rstrip().endswith((b"(", b"[", b"\\", b"if", b"else", b"or")):
        return at + _NEAR
    return end


def _joins_kept(data: bytes) -> bool:
    """Whether a step sets an attribute where it has joined something to it."""
    joined = (_JOINED.match(data, at) for word in _JOINS for at in words.places(data, word))
    return any(
        match is not None and places.may_be_trained(data, match.start()) and _is_set(data, match)
        for match in joined
    )


def _step(data: bytes, at: int) -> int:
    """Where the function around a place begins, if its name lets it run in each step; else -1."""
    function = places.function_around(data, at)
    if function < 0 or _NOT_A_STEP_BYTES.match(data, function):
        return -1
    return function


def _is_set(data: bytes, joined: re.Match[bytes]) -> bool:
    step = _step(data, joined.start())
    if step < 0:
        return False
    ends = [at for word in _NEXT if (at := data.find(word, joined.end())) >= 0]
    function = data[step : min(ends, default=len(data))]
    return any(
        not function.startswith((b"nn.Buffer(", b"nn.Parameter("), found.end())
        for found in re.finditer(_SET % joined[1], function)
    )


_NEXT = (b"\n    def ", b"\ndef ", b"\nclass ")
_SET = rb"self\.%s(?:, *[\w.]+)* = "


_RECURRENT = declare(b"LSTM(", b"GRU(", b"RNN(", b"LSTMCell(", b"GRUCell(", b"RNNCell(")
_STATE = re.compile(rb"self\.(\w+)[ \t]*(?:=[^=]|,[^\n=()]*\)?[ \t]*=[^=])")


def _keeps_state(data: bytes) -> bool:
    """Whether a file has a recurrent layer, and gives something it keeps to a call."""
    return any(
        re.search(rb"\([^\n()]*\([^\n]*self\." + name + rb"\)|, *self\." + name + rb"\)", data)
        for name in {m[1] for m in _STATE.finditer(data) if _step(data, m.start()) >= 0}
    )


(_IF_OWN,) = declare(b"if self.")
_ASKED = re.compile(rb"if self\.(\w+) is (?:not )?None\b")


def _goes_on(data: bytes) -> bool:
    """Whether a step sets an attribute that it has asked for, as in the first step there is none.

    ``h = self.h if self.h is not None else zeros``, and ``self.h = h`` afterwards.
    """
    if b"def forward" not in data:
        return False
    for at in words.places(data, _IF_OWN):
        asked = _ASKED.match(data, at)
        if asked is None or data.find(b"self.%s = " % asked[1], at, at + _LONG) < 0:
            continue
        function = places.function_around(data, at)
        if not data.startswith(b"def forward", function) or names_cache(asked[1].decode()):
            continue
        ends = [end for word in _NEXT if (end := data.find(word, at)) >= 0]
        body = data[function : min(ends, default=len(data))]
        if re.search(_GOES_ON.replace(b"NAME", asked[1]), body):
            return True
    return False


_LONG = 4000
"""Bytes of a forward, at most, between where it asks for a state and where it sets it."""
_GOES_ON = (
    rb"self\.NAME\b(?! is |\s*=[^=])[^\0]*\n\s+self\.NAME = (?!None\b)"
    rb"|self\.NAME = [^\n]*self\.NAME\b"
)
_HOLDERS = declare(b" = {}\n", b" = []\n", b" = dict()\n", b" = list()\n", b" = [None] * ")
_HOLDER = re.compile(rb"[ \t]*self\.(\w+)(?:: [^\n=]+)?$")


def _fills_holder(data: bytes) -> bool:
    """Whether a step puts something into a list or a dict that an object is made with."""
    for word in _HOLDERS:
        for at in words.places(data, word):
            found = _HOLDER.match(data, data.rfind(b"\n", 0, at) + 1, at)
            if found is None or not data.startswith(b"def __init__(", _function(data, at)):
                continue
            filled = rb"self\.%s(?:\.append\(|\[[^\n\]]+\] = )" % found[1]
            if any(
                places.may_be_trained(data, m.start()) and _step(data, m.start()) >= 0
                for m in re.finditer(filled, data)
            ):
                return True
    return False


def _function(data: bytes, at: int) -> int:
    return max(places.function_around(data, at), 0)


NEEDLES: tuple[Needle, ...] = (
    Look(_RECURRENT, _keeps_state),
    Look(_HOLDERS, _fills_holder),
    Look((_IF_OWN,), _goes_on),
    Look((_REGISTERS, *_MAKES), _writes_buffer),
    Look(tuple(_MEMOIZES), _writes_memoized),
    Look(_JOINS, _joins_kept),
)

# -- findings -------------------------------------------------------------------------------------

_NOT_A_STEP = re.compile(r"__init__|init|reset|clear|load|build|setup")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for statement, write in module.writes.items():
        function = module.function(statement)
        if function is None or write.unseen:
            continue
        if write.name is None:
            yield from _buffer(module, function, write)
        else:
            yield from _memoized(module, options, function, write)
    yield from _joined(module)
    yield from _held(module)


def _is_step(module: ModuleFacts, function: FunctionNode, statement: ast.stmt) -> bool:
    """Whether a statement runs in each forward where a gradient is wanted."""
    if _NOT_A_STEP.search(function.name) or gradient_unwanted(module, statement):
        return False
    if not in_network(module, function):
        return False
    if is_forward(function) or module.method_class(function) is None:
        return True
    return any(not gradient_unwanted(module, call) for call in callers(module, function))


# -- buffers --------------------------------------------------------------------------------------


def _buffer(module: ModuleFacts, function: FunctionNode, write: Write) -> Iterator[Finding]:
    """``self.mean.add_(h.mean())``, where ``mean`` is a buffer."""
    owners = [write.target]
    while isinstance(owners[-1], (ast.Call, ast.Subscript)):
        inner = owners[-1]
        owners.append(inner.func if isinstance(inner, ast.Call) else inner.value)
        if isinstance(owners[-1], ast.Attribute) and isinstance(inner, ast.Call):
            owners.append(owners[-1].value)
    owner = owners[-1]
    if any(isinstance(n, ast.Attribute) and n.attr in ("detach", "data") for n in owners):
        return
    if isinstance(owner, ast.Attribute):
        yield from _into(module, function, owner, write)


def _into(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute, write: Write
) -> Iterator[Finding]:
    """A write into a buffer, by its own name or by a local one."""
    if names_cache(owner.attr) or not is_kept_buffer(module, owner):
        return
    if not _is_step(module, function, write.statement):
        return
    values = [v for v in _written(write) if _has_graph(module, function, v)]
    if not values:
        return
    text = module.source(owner)
    message = f"`{text}` outlives the step, and keeps the graph of `{module.source(values[0])}`: "
    message += _consequence(module, owner)
    fixes: dict[str, Fix] = {}
    name = write.name.id if write.name is not None else ""
    read = bool(name) and module.flow(function).read_after(name, write.statement)
    if not read and not _read_later(module, function, owner, write.statement):
        edits = tuple(edit for value in values for edit in detached(module, value))
        fixes = dict.fromkeys(STRATEGIES, Fix(f"Keep detached values in {text}", edits))
    yield module.finding("TRN408", message, write.statement, fixes)


def _consequence(module: ModuleFacts, owner: ast.Attribute) -> str:
    """What comes of a kept graph: that depends on whether a loss is computed from it again."""
    assert isinstance(owner.value, ast.Name)
    cls = module.names.self_class(owner.value)
    for node in ast.walk(cls) if cls is not None else ():
        if is_same(node, owner) and node is not owner:
            statement = module.statement(node)
            if statement in module.writes or _is_updated_by(statement, owner.attr):
                continue
            if not _is_cut(module, node) and not gradient_unwanted(module, node):
                return "the next backward walks into it and fails."
    return "those of all steps stay in memory, which grows."


def _is_cut(module: ModuleFacts, node: ast.expr) -> bool:
    """``self.mean.detach()``, which reads the numbers alone."""
    parent = module.parent(node)
    return isinstance(parent, ast.Attribute) and parent.attr in ("detach", "data")


def _is_updated_by(statement: ast.stmt, name: str) -> bool:
    return isinstance(statement, ast.Assign) and any(
        isinstance(t, ast.Attribute) and t.attr == name for t in statement.targets
    )


def _written(write: Write) -> list[ast.expr]:
    """The values that a statement writes: the arguments of each method of a chain."""
    if not isinstance(write.statement, ast.Expr):
        return list(write.inputs)
    return [
        argument
        for node in ast.walk(write.statement)
        if isinstance(node, ast.Call) and root_of(node)[1][-1:] == root_of(write.target)[1][-1:]
        for argument in passed(node)
    ] or list(write.inputs)


def _read_later(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute, statement: ast.stmt
) -> bool:
    """Whether the function reads a buffer after a write, and a gradient may be wanted there."""
    written = module.statement(owner)
    return any(
        is_same(node, owner)
        and isinstance(node.ctx, ast.Load)
        and node.lineno > statement.lineno
        and module.statement(node) is not written
        and module.statement(node) not in module.writes
        and not gradient_unwanted(module, node)
        for node in ast.walk(function)
    )


_GIVEN = re.compile(r"(x?[kv]|keys?|values?|key_states|value_states)$")
_LAYER = re.compile(r"(Batch|Instance|Group|Layer|RMS)Norm")


def _has_graph(module: ModuleFacts, function: FunctionNode, value: ast.expr) -> bool:
    """Whether a value surely comes from weights, or from what such a layer is given."""
    if not carries(module, value):
        return False
    cls = module.method_class(function)
    layer = cls is not None and (
        _LAYER.search(cls.name) is not None or _is_behind_weights(module, cls)
    )
    for step in Graph(module, function).back_from([(value, module.statement(value))]):
        if step.cut is not None:
            continue
        node = step.node
        if isinstance(node, ast.Name):
            if node.id in module.flow(function).parameters and (layer or _GIVEN.match(node.id)):
                return True
        elif _is_own(module, node) and carries(module, node):
            return True
    return False


@once
def _is_behind_weights(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a network of the file has something with weights ahead of such a layer.

    ``nn.Sequential(nn.Linear(2, 2), RunningNorm(2))``
    """
    for call in module.calls_named(cls.name):
        row = module.parent(call)
        if not isinstance(row, ast.Call) or call not in row.args:
            continue
        if module.is_name(row.func, "torch.nn.Sequential") and any(
            makes_weights(module, each)
            for each in row.args[: row.args.index(call)]
            if isinstance(each, ast.Call)
        ):
            return True
    return False


def _is_own(module: ModuleFacts, node: ast.expr) -> bool:
    """``self.weight``, ``self.layer(x)``."""
    owner = node.func if isinstance(node, ast.Call) else node
    return (
        isinstance(owner, ast.Attribute)
        and isinstance(owner.value, ast.Name)
        and module.names.self_class(owner.value) is not None
    )


# -- memoized buffers -----------------------------------------------------------------------------


def _memoized(
    module: ModuleFacts, options: Options, function: FunctionNode, write: Write
) -> Iterator[Finding]:
    """A write into what ``POOL.setdefault(shape, torch.empty(shape))`` gave."""
    assert write.name is not None
    definition = module.flow(function).only_definition(write.name.id, write.statement)
    if definition is not None and isinstance(definition.value, ast.Attribute):
        yield from _into(module, function, definition.value, write)  # buffer = self.buffer
        return
    call = handed_out(module, function, definition) if definition is not None else None
    if call is None or not _is_step(module, function, write.statement):
        return
    if not any(_has_graph(module, function, v) for v in write.inputs):
        return
    from ..rewrite import branch
    from ..rewrite.out_of_place import result_clone

    message = (
        f"`{module.source(call)}` gives the same tensor again in the next step, and this write "
        "makes it part of the graph: the next backward walks into it and fails."
    )
    change = result_clone(module, call)
    fixes: dict[str, Fix] = {}
    if change is not None:
        try:
            fixes = branch.fixes(module, branch.Vocabulary(module), [change], options.flag)
            fixes["attach"] = fixes["flag"]
        except branch.CannotPlace:
            fixes = {}
    yield module.finding("TRN408", message, write.statement, fixes)


# -- joined to what was there ---------------------------------------------------------------------


_CATS = ("torch.cat", "torch.concat", "torch.roll")


def _joined(module: ModuleFacts) -> Iterator[Finding]:
    """``self.past = (k, v)`` after ``k = torch.cat((self.past[0], k))``."""
    for statement in module.statements:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        for owner, value in _assigned(statement.targets[0], statement.value):
            function = module.function(statement)
            if function is None or module.names.self_class(owner.value) is None:  # type: ignore[arg-type]
                continue
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
            joined = [part for part in parts if _joins(module, function, part, statement, owner)]
            state = None if joined else _next_state(module, function, parts, statement, owner)
            joined = parts if state is not None else joined
            own = not joined and _is_own_state(module, function, value, statement, owner)
            joined = parts if own else joined
            if not joined or not _is_step(module, function, statement):
                continue
            if _is_left_alone(module, owner, function) or _is_switched(module, statement, owner):
                continue
            if is_made_anew(module, function, owner, statement):
                continue
            has_graph = _may_have_graph if own else _has_graph
            if state is None and not any(has_graph(module, function, p) for p in joined):
                # What is written into it by its index is a cache's: TRN401.
                joined = [] if own else _written_later(module, function, owner, statement)
                if not joined:
                    continue
            text = module.source(owner)
            message = f"`{text}` keeps the graph of this step, and the next one is joined to it: "
            message += _consequence(module, owner)
            fixes: dict[str, Fix] = {}
            if state != "unknown" and not _read_later(module, function, owner, statement):
                edits = tuple(edit for part in joined for edit in detached(module, part))
                fix = Fix(f"Keep detached values in {text}", edits)
                if own:
                    fix = replace(fix, safety=Safety.UNSAFE, look_at=_ONE_LOSS)
                fixes = dict.fromkeys(STRATEGIES, fix)
            yield module.finding("TRN408", message, statement, fixes)


_ONE_LOSS = "where one loss spans several calls, set the state back between two sequences instead"


def _is_own_state(
    module: ModuleFacts,
    function: FunctionNode,
    value: ast.expr,
    at: ast.stmt,
    owner: ast.Attribute,
) -> bool:
    """``self.h = torch.tanh(x + self.h)``, of an attribute that nothing in sight sets back."""
    if is_buffer(module, owner) or isinstance(value, ast.Constant):
        return False
    if _NOT_A_STEP.search(function.name) or "retain_graph" in module.text:
        return False
    if not any(is_same(n, owner) and isinstance(n.ctx, ast.Load) for n in ast.walk(function)):
        return False
    if not surely_takes_over(module, function, value, at, owner):
        return False
    assert isinstance(owner.value, ast.Name)
    cls = module.names.self_class(owner.value)
    for other in module.classes:
        bound = module.names.attributes(other).get(owner.attr, ()) if other is not cls else ()
        if bound and any(getattr(module.function(b.node), "name", "") != "__init__" for b in bound):
            return False
    name = re.escape(owner.attr)
    if cls is None or re.search(rf"\bdel [^\n]*\.{name}\b", module.text):
        return False
    if module.project.says(module, rf"\.{name}\s*=[^=]".encode()):
        return False
    return all(
        any(t.name.startswith("torch.nn.") for t in module.resolve(base, cls))
        or local_class(module, base) is not None
        for base in cls.bases
    )


def _may_have_graph(module: ModuleFacts, function: FunctionNode, value: ast.expr) -> bool:
    """Whether a value comes from weights in one of the ways that it can be made."""
    if not isinstance(value, ast.Name):
        return _has_graph(module, function, value)
    reaching = module.flow(function).reaching(value.id, module.statement(value))
    return any(d.value is not None and _has_graph(module, function, d.value) for d in reaching)


def _written_later(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute, statement: ast.stmt
) -> list[ast.expr]:
    """The values with a graph that go into an attribute: ``self.past[:, -1] = h``."""
    found: list[ast.expr] = []
    for later, write in module.writes.items():
        if module.function(later) is not function or later.lineno < statement.lineno:
            continue
        within = list(ast.walk(write.target))
        if any(isinstance(n, ast.Attribute) and n.attr in ("data", "detach") for n in within):
            continue
        if any(is_same(node, owner) for node in within):
            found += [v for v in _written(write) if _has_graph(module, function, v)]
    return found


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """``self.k`` and ``k`` of ``self.k, self.v = k, v``."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        yield target, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, part in zip(target.elts, value.elts, strict=False):
            yield from _assigned(each, part)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
        for each in target.elts:  # out, self.state = self.rnn(x, self.state)
            yield from _assigned(each, value)


def _is_left_alone(module: ModuleFacts, owner: ast.Attribute, function: FunctionNode) -> bool:
    """Whether others may set the attribute between two steps, or detach it."""
    assert isinstance(owner.value, ast.Name)
    cls = module.names.self_class(owner.value)
    if cls is None or owner.attr in module.rebound:
        return True
    if f"{owner.attr}.detach" in module.text or f"{owner.attr}[0].detach" in module.text:
        return True
    setters = {module.function(b.node) for b in module.names.attributes(cls).get(owner.attr, ())}
    setters |= registering(module, cls, owner.attr)
    return any(f is not None and f is not function and f.name != "__init__" for f in setters)


def _is_switched(module: ModuleFacts, statement: ast.stmt, owner: ast.Attribute) -> bool:
    """Whether an option decides that the statement runs: anything but the attribute itself.

    Statistics in buffers are kept by every module that is trained, whatever its settings.
    """
    buffer = is_buffer(module, owner)
    for around in module.ancestors(statement):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if isinstance(around, (ast.If, ast.While)):
            if _asks_for_none(around.test):
                continue  # as in the first step
            for node in ast.walk(around.test):
                if isinstance(node, ast.Attribute):
                    if not buffer and node.attr not in (owner.attr, "training"):
                        return True
                elif isinstance(node, ast.Name) and module.names.self_class(node) is None:
                    return True
    return False


def _asks_for_none(test: ast.expr) -> bool:
    """``self.k is not None``, of an attribute that is kept beside the one in question."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Attribute)
        and isinstance(test.ops[0], (ast.Is, ast.IsNot))
        and is_none(test.comparators[0])
    )


def _is_join(module: ModuleFacts, value: ast.expr) -> bool:
    """``torch.cat(...)``, or what is left of it: ``torch.cat((self.k, k), 1)[:, -window:]``."""
    while isinstance(value, ast.Subscript) or (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("contiguous", "narrow", "clone")
    ):
        value = value.value if isinstance(value, ast.Subscript) else value.func.value  # type: ignore[attr-defined]
    return isinstance(value, ast.Call) and module.is_name(value.func, *_CATS)


_LAYERS = re.compile(r"torch\.nn\.(?:modules\.rnn\.)?(?:LSTM|GRU|RNN)(?:Cell)?$")


def _next_state(
    module: ModuleFacts,
    function: FunctionNode,
    parts: list[ast.expr],
    at: ast.Assign,
    owner: ast.Attribute,
) -> Literal["tensors", "unknown"] | None:
    """What values are that a recurrent layer made of what the attribute held: ``(h, c)``.

    An LSTM gives a tuple, which has no ``detach``.
    """
    made: set[ast.expr | None] = set()
    for part in parts:
        if isinstance(part, ast.Name):
            reaching = module.flow(function).reaching(part.id, at)
            made |= {getattr(d.statement, "value", None) for d in reaching}
        else:
            made.add(part)
    call = made.pop() if len(made) == 1 else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    given = passed(call)
    layer = call.func
    cls = module.names.self_class(layer.value) if isinstance(layer.value, ast.Name) else None
    bindings = module.names.attributes(cls).get(layer.attr, ()) if cls is not None else ()
    names = [
        target.name
        for binding in bindings
        if isinstance(binding.value, ast.Call)
        for target in module.resolve(binding.value.func)
    ]
    if not any(map(_LAYERS.match, names)) or not any(is_same(a, owner) for a in given):
        return None
    named = all(isinstance(part, ast.Name) for part in parts)
    one = len(parts) == 1 and any("LSTM" in name for name in names)
    return "tensors" if named and not one else "unknown"


def _joins(
    module: ModuleFacts,
    function: FunctionNode,
    part: ast.expr,
    at: ast.stmt,
    owner: ast.Attribute,
) -> bool:
    """Whether a value may be joined to what the attribute held: by ``cat``, a buffer by any way."""
    buffer = is_buffer(module, owner)
    values = [(part, at)]
    if isinstance(part, ast.Name):
        reaching = module.flow(function).reaching(part.id, at)
        values = [(d.value, d.statement) for d in reaching if d.value and d.statement]
    return any(
        (buffer or _is_join(module, value))
        and any(is_same(node, owner) for node in ast.walk(value))
        and not any(isinstance(n, ast.Attribute) and n.attr == "detach" for n in ast.walk(value))
        and takes_over(module, function, value, made, owner)
        for value, made in values
    )


# -- held in a list or a dict ---------------------------------------------------------------------


def _held(module: ModuleFacts) -> Iterator[Finding]:
    """``self.keys[layer] = k`` and ``self.keys.append(k)``, of what the next step reads again."""
    for statement in module.statements:
        owner, value, index = _put(statement)
        function = module.function(statement)
        if owner is None or value is None or function is None:
            continue
        if not _is_holder(module, owner) or not _is_step(module, function, statement):
            continue
        if _is_left_alone(module, owner, function) or _is_emptied(module, owner):
            continue
        if _is_switched(module, statement, owner) or not (
            _has_graph(module, function, value) or _is_of_layers(module, function, value)
        ):
            continue
        before, after = _reads_of(module, function, owner, statement)
        if not before and not after:
            continue
        if is_made_anew(module, function, owner, statement):
            continue
        text = module.source(owner)
        message = (
            f"`{text}` outlives the step, and keeps the graph of `{module.source(value)}`: the "
            "next step reads it, and its backward walks into the graph of this one and fails."
        )
        fixes: dict[str, Fix] = {}
        if not after and (index is None or _is_of_turn(module, function, statement, index)):
            edits = detached(module, value)
            fixes = dict.fromkeys(STRATEGIES, Fix(f"Keep detached values in {text}", tuple(edits)))
        yield module.finding("TRN408", message, statement, fixes)


def _is_of_layers(module: ModuleFacts, function: FunctionNode, value: ast.expr) -> bool:
    """Whether a value comes from layers of the object, in a loop over them too."""
    cls = module.method_class(function)
    trained = trained_submodules(module, cls) if cls is not None else frozenset[str]()
    graph = Graph(module, function)
    return bool(trained) and any(
        step.cut is None and graph.attribute(step.node, step.at) in trained
        for step in graph.back_from([(value, module.statement(value))])
    )


def _put(
    statement: ast.stmt,
) -> tuple[ast.Attribute | None, ast.expr | None, ast.expr | None]:
    """The list or dict that a statement puts a value into, the value, and the index."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Subscript) and _is_attribute_of_name(target.value):
            if not isinstance(target.slice, ast.Slice):
                return target.value, statement.value, target.slice
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and call.args:
            if _is_attribute_of_name(call.func.value):
                return call.func.value, call.args[0], None
    return None, None, None


def _is_attribute_of_name(node: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)


def _is_holder(module: ModuleFacts, owner: ast.Attribute) -> bool:
    """Whether an attribute is a list or a dict from the start, and nothing else later."""
    assert isinstance(owner.value, ast.Name)
    cls = module.names.self_class(owner.value)
    made = module.names.attributes(cls).get(owner.attr, []) if cls is not None else []
    return bool(made) and all(_makes_holder(binding.value) for binding in made)


def _makes_holder(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in ("dict", "list")
    if isinstance(value, ast.BinOp):  # [None] * layers
        return isinstance(value.left, ast.List)
    return (isinstance(value, ast.List) and not value.elts) or (
        isinstance(value, ast.Dict) and not value.keys
    )


def _is_emptied(module: ModuleFacts, owner: ast.Attribute) -> bool:
    """Whether somebody empties a list or a dict, or takes out what was put in."""
    name = re.escape(owner.attr)
    taken = (
        rf"\.{name}(?:\.(?:clear|pop|popitem|popleft)\b|\[:\])"
        rf"|\bdel [^\n]*\.{name}\b|(?<!self)\.{name} = "
    )
    return re.search(taken, module.text) is not None or module.project.says(module, taken.encode())


def _reads_of(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute, statement: ast.stmt
) -> tuple[bool, bool]:
    """Whether a step reads values of a list or a dict before it puts one in, and afterwards."""
    before = after = False
    for node in ast.walk(function):
        if not is_same(node, owner) or not isinstance(node.ctx, ast.Load):
            continue
        at, parent = module.statement(node), module.parent(node)
        if at is statement or isinstance(parent, ast.Compare) or gradient_unwanted(module, node):
            continue  # i in self.keys
        if isinstance(at, (ast.If, ast.While)) or _put(at)[0] is node:
            continue
        if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "len":
            continue
        before, after = (
            before or node.lineno < statement.lineno,
            after or (node.lineno > statement.lineno),
        )
    return before, after


def _is_of_turn(
    module: ModuleFacts, function: FunctionNode, statement: ast.stmt, index: ast.expr
) -> bool:
    """Whether each turn of the loops around a statement has an index of its own."""
    used = {n.id for n in ast.walk(index) if isinstance(n, ast.Name)}
    for around in module.ancestors(statement):
        if around is function:
            return True
        if isinstance(around, (ast.For, ast.AsyncFor)):
            names = {n.id for n in ast.walk(around.target) if isinstance(n, ast.Name)}
            if not names & used:
                return False
        elif isinstance(around, ast.While):
            return False
    return True
