"""What is joined to what the call before left: ``self.past = torch.cat((self.past, k))``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from ...facts import ModuleFacts
from ...facts.kept import is_made_anew, is_same, surely_takes_over, takes_over
from ...facts.names import passed
from ...facts.trainable import is_buffer, local_class
from ...facts.walk import walk
from ...findings import STRATEGIES, Finding, Fix
from .only_kept import kept_detached
from .reads import read_later
from .steps import NOT_A_STEP, consequence, is_left_alone, is_step, is_switched
from .values import has_graph, may_have_graph, written_later

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_CATS = ("torch.cat", "torch.concat", "torch.roll")


def joined_to_kept(module: ModuleFacts) -> Iterator[Finding]:
    """``self.past = (k, v)`` after ``k = torch.cat((self.past[0], k))``."""
    for statement in module.statements:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        for owner, value in _assigned(statement.targets[0], statement.value):
            function = module.function(statement)
            if function is None or module.names.self_class(owner.value) is None:
                continue
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
            joined = [part for part in parts if _joins(module, function, part, statement, owner)]
            state = None if joined else _next_state(module, function, parts, statement, owner)
            joined = parts if state is not None else joined
            own = not joined and _is_own_state(module, function, value, statement, owner)
            joined = parts if own else joined
            if not joined or not is_step(module, function, statement):
                continue
            if is_left_alone(module, owner, function) or is_switched(module, statement, owner):
                continue
            if is_made_anew(module, function, owner, statement):
                continue
            may_have = may_have_graph if own else has_graph
            if state is None and not any(may_have(module, function, p) for p in joined):
                # What is written into it by its index is a cache's: TRN401.
                joined = [] if own else written_later(module, function, owner, statement)
                if not joined:
                    continue
            text = module.source(owner)
            message = f"`{text}` keeps the graph of this step, and the next one is joined to it: "
            message += consequence(module, owner)
            fixes: dict[str, Fix] = {}
            if state != "unknown" and not read_later(module, function, owner, statement):
                fix = kept_detached(module, function, statement, owner, joined)
                if own:
                    fix = fix.unsafe(_ONE_LOSS)
                fixes = dict.fromkeys(STRATEGIES, fix)
            yield module.finding("TRN408", message, statement, fixes)


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


def _is_join(module: ModuleFacts, value: ast.expr) -> bool:
    """``torch.cat(...)``, or what is left of it: ``torch.cat((self.k, k), 1)[:, -window:]``."""
    while isinstance(value, ast.Subscript) or (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("contiguous", "narrow", "clone")
    ):
        value = value.value if isinstance(value, ast.Subscript) else value.func.value  # type: ignore[attr-defined]
    return isinstance(value, ast.Call) and module.is_name(value.func, *_CATS)


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
        and any(is_same(node, owner) for node in walk(value))
        and not any(isinstance(n, ast.Attribute) and n.attr == "detach" for n in walk(value))
        and takes_over(module, function, value, made, owner)
        for value, made in values
    )


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
    cls = module.names.self_class(layer.value)
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
    if NOT_A_STEP.search(function.name) or "retain_graph" in module.usual:
        return False
    if not any(is_same(n, owner) and isinstance(n.ctx, ast.Load) for n in walk(function)):
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
    if cls is None or re.search(rf"\bdel [^\n]*\.{name}\b", module.usual):
        return False
    if module.project.says(module, rf"\.{name}\s*=[^=]".encode()):
        return False
    return all(
        any(t.name.startswith("torch.nn.") for t in module.resolve(base, cls))
        or local_class(module, base) is not None
        for base in cls.bases
    )


_ONE_LOSS = "where one loss spans several calls, set the state back between two sequences instead"
