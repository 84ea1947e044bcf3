"""Results that backward needs, and what is written over them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.activations import submodule
from ...facts.flow import Definition, FunctionFlow
from ...facts.guards import gradient_unwanted
from ...facts.saved import maker_of, saved_result, saves_in_place, saving_call
from ...facts.saved_by_functions import keeps_output
from ...facts.training import reaches_result
from ...facts.walk import walk
from ...facts.writes import (
    METHODS,
    UNNOTICED,
    Write,
    attribute_of,
    in_callers,
    is_element,
    root_of,
    roots,
)
from ...findings import Fix
from .harm import Harm
from .savers import saved_in_place

if TYPE_CHECKING:
    from ...engine import Options

_CODES = re.compile(r"\b_int_mm\(|\.to\(\s*(?:dtype\s*=\s*)?torch\.u?int8\b|\.char\(\)")


def quantizes(module: ModuleFacts, function: ast.stmt) -> bool:
    """Whether a function makes integer codes of what it is given: no gradient gets past those.

    What it overwrites on the way, a scale, is not what keeps it from being trained through.
    """
    return _CODES.search(module.source(function)) is not None


@dataclass(frozen=True)
class _Made:
    """The operation that saved its result, by its name; ``call`` where that shows.

    ``kept`` says that a list or a tuple holds the result, where a new value would not be.
    """

    name: str
    call: ast.expr | None = None
    kept: bool = False
    others: tuple[ast.expr, ...] = ()
    """More of the elements of a list that saved their results, each of which may be written."""
    shared: bool = False
    """Whether another name has the same tensor, and may be read after the write."""
    in_place: bool = False
    """Whether it wrote its result over another tensor, so that no clone of it can be saved."""


def overwrite(module: ModuleFacts, options: Options, statement: ast.stmt) -> Harm | None:
    """``t.mul_(...)`` or ``t[:n] *= ...`` after an operation that saved ``t``, its result."""
    write = module.writes.get(statement)
    harm = overwritten(module, write) if write is not None else None
    if write is None or harm is None:
        return None
    message, made = harm
    from ...rewrite.out_of_place import (
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
    cloned = made.call is not None and not made.in_place and not is_hidden(write)
    if change is None and not fixes and cloned:
        assert made.call is not None
        change = result_clone(module, made.call, *made.others)
    return Harm("TRN403", message, statement, made.call, change, fixes)


def chained(module: ModuleFacts, statement: ast.stmt) -> Harm | None:
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


def unless_zero(module: ModuleFacts, writer: ast.Call) -> str:
    """Dropout leaves its input alone where its probability is 0."""
    name = submodule(module, writer.func) or module.source(writer.func).rpartition(".")[2]
    return " unless its probability is 0" if "dropout" in name.lower() else ""


def overwritten(module: ModuleFacts, write: Write) -> tuple[str, _Made] | None:
    """What is wrong with a write, and the operation that it harms."""
    text = module.source(write.target)
    made = _made_by(module, write) if write.name is not None else _nameless(module, write)
    saver = saved_in_place(module, write)
    if saver is not None:
        made = _Made(saver.text, saver.call, shared=saver.shared, in_place=True)
    elif made is not None and made.call is not None and not reaches_result(module, made.call):
        return None  # a metric, a statistic, the inside of a straight-through estimator
    if made is not None:
        if made.call is not None and module.statement(made.call) is write.statement:
            text = f"The result of `{made.name}`"
            return f"{text} is overwritten in place, but saved for backward, which raises.", made
        unless = unless_zero(module, write.call) if write.call is not None else ""
        kept = isinstance(made.call, ast.Call) and keeps_output(module, made.call)
        harm = f"which {UNNOTICED if kept or write.is_unnoticed else f'raises{unless}'}"
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
    storages = roots(module, flow, name, write.statement)
    found = sorted((root.definition for root in storages), key=_place)
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
        owners = map(maker_of, _elements(flow, definition, write))
        saving = [(s, owner) for owner in owners if (s := saving_call(module, owner)) is not None]
        if saving:
            (saver, first), *more = saving
            return _Made(saver, first, kept=True, others=tuple(owner for _, owner in more))
    return None


def _place(definition: Definition) -> tuple[int, int]:
    made = definition.statement
    return (made.lineno, made.col_offset) if made is not None else (0, 0)


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


def _elements(flow: FunctionFlow, definition: Definition, write: Write) -> Iterator[ast.expr]:
    """What ``ys[0].mul_(2)``, or ``y.mul_(2)`` in ``for y in ys``, writes into: elements of it."""
    held, made, index = definition.value, definition.statement, None
    if isinstance(made, (ast.For, ast.AsyncFor)):
        held = _gone_through(made, definition.name)
        if isinstance(held, ast.Name):
            only = flow.only_definition(held.id, made)
            held = only.value if only is not None and only.index is None else None
            made = only.statement if only is not None else None
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
            yield from (_value(flow, each, made) for each in held.elts)
        elif isinstance(index.value, int) and -len(held.elts) <= index.value < len(held.elts):
            yield held.elts[index.value]


def _gone_through(loop: ast.For | ast.AsyncFor, name: str) -> ast.expr | None:
    """What a name stands for the elements of: ``for y in ys``, ``for i, y in enumerate(ys)``."""
    if isinstance(loop.target, ast.Name):
        return loop.iter
    call, target = loop.iter, loop.target
    if not isinstance(call, ast.Call) or not isinstance(target, ast.Tuple) or not call.args:
        return None
    last = target.elts[-1]
    numbered = isinstance(call.func, ast.Name) and call.func.id == "enumerate"
    return call.args[0] if numbered and isinstance(last, ast.Name) and last.id == name else None


def _value(flow: FunctionFlow, element: ast.expr, at: ast.stmt | None) -> ast.expr:
    """What a name in a display of tensors holds there, where one statement gave it a value."""
    if not isinstance(element, ast.Name) or at is None:
        return element
    made = flow.only_definition(element.id, at)
    if made is None or made.value is None:
        return element
    return made.value if made.index is None else element
