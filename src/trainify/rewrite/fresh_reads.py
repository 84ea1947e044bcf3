"""A cache that a method writes and reads again: detached values in it, fresh ones in what is read.

self.k_cache[:, start:end] = self.wk(x)       new_k_cache = self.wk(x)
keys = self.k_cache[:, :end]                  self.k_cache[:, start:end] = new_k_cache.detach()
                                              fresh_k_cache = self.k_cache
                                              if torch.is_grad_enabled() and ...:
                                                  fresh_k_cache = self.k_cache.clone()
                                                  fresh_k_cache[:, start:end] = new_k_cache
                                              keys = fresh_k_cache[:, :end]

Where all that is read is the prefix that the write completes, it is put together of the old values
and the new ones, which is less to copy.  Of several caches, ``self.caches[layer]``, it is one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.broadcasts import may_broadcast
from ..facts.cache_readers import is_about, readers_of
from ..facts.cache_writes import are_apart
from ..facts.cached import addresses_tensor, as_write, dumped, prefix_before
from ..facts.kept import is_container, is_kept_buffer, is_same
from ..facts.names import last_name, passed
from ..facts.order import evaluated_before, order_matters
from ..facts.views import VIEW_ATTRIBUTES, is_allocation, is_view_method
from ..facts.walk import statements, walk
from ..findings import Edit, Fix, Safety
from . import branch, layout

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.cached import Write
    from ..facts.module import FunctionNode

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_STOPS = (ast.Yield, ast.YieldFrom, ast.Await)
_PASSED_ON = (ast.Attribute, ast.Call, ast.Subscript, ast.keyword, ast.Starred, ast.Tuple, ast.List)
_SIMPLE = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.operator, ast.expr_context)
_NO_VALUE = (ast.NamedExpr, ast.Tuple, ast.List, ast.Starred, *_STOPS)


_EARLIER = "what earlier calls of the same step have cached passes no gradient on"


class CannotRead(Exception):
    """Why what is read cannot be the fresh values; the message goes on from "Not rewritten: "."""


def fresh_reads(
    module: ModuleFacts, options: Options, function: FunctionNode, write: Write
) -> Fix | None:
    """The fix for a write into what outlives the call and is read after it: ``self.k_cache``.

    None where it reads nothing.  Raises :class:`CannotRead` where it is not certain that what it
    reads then is the same.
    """
    whole = write.base
    write = one_of_several(module, function, write)
    reads = reads_behind(module, function, write)
    if not reads:
        return None
    if write.base is whole and isinstance(whole, ast.Attribute) and is_container(module, whole):
        raise CannotRead(f"`{module.source(whole)}` holds several tensors")
    _refuse_what_runs_again(module, function, write)
    _refuse_other_writes(module, function, write, reads)
    _refuse_what_cannot_be_said_again(module, write)
    _refuse_what_is_another_one_then(module, function, write)
    doubts = [
        *_doubts_about_the_cache(module, write),
        *_doubts_about_calls(module, reads),
        *_doubts_about_results(module, function, reads),
        *_doubts_about_others(module, function, write, whole),
    ]
    try:
        edits = _edits(module, options, function, write, reads)
    except layout.CannotPlace as reason:
        raise CannotRead(str(reason)) from None
    look_at = "; ".join(dict.fromkeys(doubts))
    safety = Safety.UNSAFE if look_at else Safety.SAFE
    return Fix("Read fresh values when a gradient is wanted", tuple(edits), safety, look_at)


def one_of_several(module: ModuleFacts, function: FunctionNode, write: Write) -> Write:
    """The same write with ``self.caches[i]`` as its base, where the function uses no other one."""
    element = module.parent(write.base)
    written = module.parent(element) if element is not None else None
    if not isinstance(element, ast.Subscript) or element.value is not write.base:
        return write
    if not isinstance(written, ast.Subscript) or written.value is not element:
        return write
    if not all(isinstance(node, _SIMPLE) for node in walk(element.slice)):
        return write
    for node in walk(function):
        if not is_same(node, write.base) or is_about(module, node):
            continue
        around = module.parent(node)
        if isinstance(around, ast.Call) and last_name(around.func) == "len":
            continue
        if not isinstance(around, ast.Subscript) or around.value is not node:
            return write
        if not is_same(around, element) and not _are_other_keys(around.slice, element.slice):
            return write
    return replace(write, base=element)


def _are_other_keys(one: ast.expr, other: ast.expr) -> bool:
    """``["k"]`` and ``["v"]``, ``[0]`` and ``[1]``."""
    if not isinstance(one, ast.Constant) or not isinstance(other, ast.Constant):
        return False
    return type(one.value) is type(other.value) and one.value != other.value


def _edits(
    module: ModuleFacts,
    options: Options,
    function: FunctionNode,
    write: Write,
    reads: list[ast.expr],
) -> list[Edit]:
    statement, base = write.statement, module.source(write.base)
    if not layout.owns_lines(module, statement):
        raise CannotRead("the write shares its line with other code")
    fresh, value = _new_name(module, function, write, "fresh"), module.source(write.value)
    bound = []
    if not isinstance(write.value, ast.Name):
        value = _new_name(module, function, write, "new")
        bound = [f"{value} = {_one_line(module, write.value)}"]
    prefix = _prefix(module, function, write, reads, value)
    if prefix is not None:
        whole, joined = prefix
        places: list[ast.expr] = [_subscript(module, read) for read in reads]
        lines, wanted = [f"{fresh} = {whole}"], [f"{fresh} = {joined}"]
    else:
        places = list(reads)
        lines = [f"{fresh} = {base}"]
        wanted = [f"{fresh} = {base}.clone()", _again(module, write, fresh, value)]
    asked = branch.condition(module, [branch.Change([statement], [], wants=[value])], options.flag)
    vocabulary = branch.Vocabulary(module)
    vocabulary.refuse_shadowed(statement, "\n".join([*wanted, asked]))
    limit, unit, newline = layout.width(module), module.indent_unit, module.newline
    indentation = module.indentation(statement)

    def laid_out(texts: list[str], depth: str) -> list[str]:
        return [line for text in texts for line in layout.fit(text, depth, unit, limit)]

    after = laid_out(lines, indentation)
    after += layout.fit(f"if {asked}:", indentation, unit, limit)
    after += laid_out(wanted, indentation + unit)
    edits = [
        Edit(module.start(write.value), module.end(write.value), f"{value}.detach()"),
        branch.insertion(layout.line_end(module, statement), ["", *after], newline),
        *(Edit(module.start(place), module.end(place), fresh) for place in places),
        *vocabulary.support([*wanted, asked], []),
    ]
    if bound:
        start = layout.line_start(module, statement)
        edits.append(branch.insertion(start, [*laid_out(bound, indentation), ""], newline))
    return edits


def _again(module: ModuleFacts, write: Write, fresh: str, value: str) -> str:
    """The write once more, of a value into fresh values."""
    text, start = module.source(write.statement), module.start(write.statement)
    for node, new in sorted(
        ((write.base, fresh), (write.value, value)), key=lambda each: -module.start(each[0])
    ):
        text = text[: module.start(node) - start] + new + text[module.end(node) - start :]
    return " ".join(text.split())


def _one_line(module: ModuleFacts, node: ast.expr) -> str:
    return " ".join(module.source(node).split())


def _new_name(module: ModuleFacts, function: FunctionNode, write: Write, what: str) -> str:
    name = f"{what}_{_word(module, write.base)}"
    others = (
        one_of_several(module, function, other)
        for statement in module.writes
        if module.function(statement) is function and (other := as_write(statement)) is not None
    )
    if name in module.flow(function).identifiers or any(
        _word(module, other.base) == _word(module, write.base)
        and not is_same(other.base, write.base)
        for other in others
    ):
        raise CannotRead(f"the method has the name `{name}` for something else")
    return name


def _word(module: ModuleFacts, cache: ast.expr) -> str:
    """A cache in a word: ``k_cache`` for ``self.k_cache``, ``cache_k`` for ``self.cache["k"]``."""
    if isinstance(cache, ast.Subscript):
        whole, key = _word(module, cache.value), cache.slice
        text = f"{whole}_{ast.unparse(key)}" if isinstance(key, ast.Constant) else whole
    elif isinstance(cache, ast.Attribute) and module.names.self_class(cache.value) is not None:
        text = cache.attr
    else:
        text = ast.unparse(cache)
    return re.sub(r"[\W_]+", "_", text).strip("_").lower()


def _subscript(module: ModuleFacts, read: ast.expr) -> ast.Subscript:
    parent = module.parent(read)
    assert isinstance(parent, ast.Subscript)
    return parent


def _prefix(
    module: ModuleFacts,
    function: FunctionNode,
    write: Write,
    reads: list[ast.expr],
    value: str,
) -> tuple[str, str] | None:
    """What is read, where that is what the write completes, and the same put together."""
    read = module.parent(reads[0])
    if not isinstance(read, ast.Subscript) or may_broadcast(module, write.value):
        return None  # a copy of the cache has it as often as the cache
    key = ast.dump(read)
    for each in reads:
        parent = module.parent(each)
        if not isinstance(parent, ast.Subscript) or parent.value is not each:
            return None
        if ast.dump(parent) != key:
            return None
    found = prefix_before(module, write, read)
    names = {n.id for n in walk(read) if isinstance(n, ast.Name)}
    last = max(node.lineno for node in reads)
    if found is None or any(
        (isinstance(n, ast.Attribute) and n is not read.value) or isinstance(n, ast.Call)
        for part in (
            read.slice,
            write.target.slice if isinstance(write.target, ast.Subscript) else read,
        )
        for n in walk(part)
    ):
        return None
    for node in walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
            if write.statement.lineno < node.lineno <= last:
                return None
    before, dim = found
    torch = layout.bound_at_top(module, "torch") or "torch"
    return _one_line(module, read), f"{torch}.cat(({before}, {value}), dim={dim})"


# -- what is read ---------------------------------------------------------------------------------


def reads_behind(module: ModuleFacts, function: FunctionNode, write: Write) -> list[ast.expr]:
    """The places behind the write, in its block, at which the method reads the cache.

    Refuses those at which it may read what was written in another way.
    """
    inside = {node for statement in _behind(module, write.statement) for node in walk(statement)}
    value = set(walk(write.value))
    found: list[ast.expr] = []
    refused = ""
    for node in walk(function):
        if not is_same(node, write.base) or node is write.base or is_about(module, node):
            continue
        statement = module.statement(node)
        if node in inside:
            found.append(node)
        elif statement is write.statement:
            if node not in value:
                refused = "the write itself reads the cache to find its place"
        elif are_apart(module, write.statement, statement):
            continue
        elif statement.lineno > write.statement.lineno:
            raise CannotRead("the cache is also read, or set, where the write may not have run")
        elif (other := module.writes.get(statement)) and node in set(walk(other.target)):
            refused = "the method writes into the cache more than once"
        elif not _is_set_to_itself(module, node):
            refused = "the method has looked at the cache before, and may read it by another name"
    if found and refused:
        raise CannotRead(refused)
    for node in found:
        _refuse_read(module, function, node)
    return found


def _behind(module: ModuleFacts, statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements that only run after one, in its block and behind ``with`` around it."""
    around: ast.AST | None = statement
    while isinstance(around, ast.stmt):
        block = module.block(around)
        yield from block[block.index(around) + 1 :]
        around = module.parent(around)
        if not isinstance(around, (ast.With, ast.AsyncWith)):
            return


def _is_set_to_itself(module: ModuleFacts, node: ast.expr) -> bool:
    """``self.cache = self.cache.to(x)``, of which either side is asked for."""
    statement = module.statement(node)
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and is_same(statement.targets[0], node)
    )


def _refuse_read(module: ModuleFacts, function: FunctionNode, node: ast.expr) -> None:
    """Refuse a read that is none of this call's, or that lets the cache itself out of it."""
    if not isinstance(getattr(node, "ctx", None), ast.Load):
        raise CannotRead("the method sets the cache afterwards")
    for around in _around(module, function, node):
        if isinstance(around, _SCOPES):
            raise CannotRead("a function within this one reads the cache, whenever it runs")
        if isinstance(around, ast.JoinedStr):
            raise CannotRead("a text is made of the cache")  # of which Python has no places
    last: ast.AST = node
    for around in _around(module, function, node):
        if isinstance(around, (ast.Tuple, ast.List)):
            outer = module.parent(around)
            if isinstance(outer, ast.Call) or getattr(outer, "slice", None) is around:
                return  # torch.cat((self.cache, x)), x[self.cache, 0]
            if isinstance(outer, ast.Assign) and _named_by(outer, last) is not None:
                return  # k, v = self.k_cache[:n], self.v_cache[:n]
        if isinstance(around, (ast.Return, ast.Tuple, ast.List, ast.Dict)):
            raise CannotRead("the cache itself is handed on")
        if isinstance(around, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = around.targets if isinstance(around, ast.Assign) else [around.target]
            if last in targets or not all(isinstance(t, (ast.Name, ast.Tuple)) for t in targets):
                raise CannotRead("the cache is written again, or kept under another name")
            return
        is_view = isinstance(around, ast.Attribute) and _gives_view(around)
        is_called = isinstance(around, ast.Call) and last is around.func
        is_indexed = isinstance(around, ast.Subscript) and last is around.value
        if not (is_view or is_called or is_indexed):
            return
        last = around


def _named_by(assign: ast.Assign, value: ast.AST) -> ast.expr | None:
    """The name that gets one of several values: ``b`` for ``y`` in ``a, b = x, y``."""
    target = assign.targets[0]
    if len(assign.targets) > 1 or not isinstance(target, (ast.Tuple, ast.List)):
        return None
    values = assign.value.elts if isinstance(assign.value, (ast.Tuple, ast.List)) else []
    if len(values) != len(target.elts) or not all(isinstance(t, ast.Name) for t in target.elts):
        return None
    return next((t for t, each in zip(target.elts, values, strict=True) if each is value), None)


def _around(module: ModuleFacts, function: FunctionNode, node: ast.AST) -> Iterator[ast.AST]:
    for around in module.ancestors(node):
        if around is function:
            return
        yield around


# -- what must not be -----------------------------------------------------------------------------


def _refuse_what_runs_again(module: ModuleFacts, function: FunctionNode, write: Write) -> None:
    loops = [a for a in _around(module, function, write.statement) if isinstance(a, _LOOPS)]
    if loops and not (len(loops) == 1 and _is_another_each_turn(loops[0], write)):
        raise CannotRead("the write stands in a loop, which may read what its other turns wrote")
    if any(isinstance(node, _STOPS) for node in walk(function)):
        raise CannotRead("other code runs in the middle of this function")


def _is_another_each_turn(loop: ast.AST, write: Write) -> bool:
    """``caches[i]`` in ``for i in range(n)`` and in ``for i, layer in enumerate(layers)``."""
    if not isinstance(loop, ast.For) or not isinstance(write.base, ast.Subscript):
        return False
    target, counted = loop.target, last_name(getattr(loop.iter, "func", loop.iter))
    if counted == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    elif counted != "range":
        return False
    index = write.base.slice
    return isinstance(target, ast.Name) and isinstance(index, ast.Name) and index.id == target.id


def _refuse_what_is_another_one_then(
    module: ModuleFacts, function: FunctionNode, write: Write
) -> None:
    """Refuse where ``i`` or ``self.i`` of ``caches[self.i]`` is set after the write."""
    inside = {id(node) for node in walk(write.base)}
    parts = [n for n in walk(write.base) if isinstance(n, (ast.Name, ast.Attribute))]
    named = {dumped(part) for part in parts if part is not write.base}
    for node in walk(function):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(
            node.ctx, (ast.Store, ast.Del)
        ):
            if node.lineno > write.statement.lineno and id(node) not in inside:
                if dumped(node) in named:
                    raise CannotRead(f"`{module.source(node)}` is set after the write")


def _refuse_other_writes(
    module: ModuleFacts, function: FunctionNode, write: Write, reads: list[ast.expr]
) -> None:
    """Refuse a second write into the cache, by whatever name."""
    names = {
        name.id
        for read in reads
        if isinstance(made := module.statement(read), ast.Assign)
        for target in made.targets
        for name in walk(target)
        if isinstance(name, ast.Name)
    }
    for statement, other in module.writes.items():
        if statement is write.statement or module.function(statement) is not function:
            continue
        same = any(is_same(node, write.base) for node in walk(other.target))
        if same and not are_apart(module, write.statement, statement):
            raise CannotRead("the method writes into the cache more than once")
        if other.name is not None and other.name.id in names:
            raise CannotRead("the method writes into what it has read of the cache")


def _refuse_what_cannot_be_said_again(module: ModuleFacts, write: Write) -> None:
    """Refuse what would run twice, or in another order."""
    parts = [write.target]
    if isinstance(write.statement, ast.Expr) and isinstance(write.statement.value, ast.Call):
        parts += [a for a in passed(write.statement.value) if a is not write.value]
        before = evaluated_before(module, write.value)
        named = isinstance(write.value, ast.Name)
        if not named and order_matters(module, before, [write.value], ()):
            raise CannotRead("what is written may be another value if it is computed first")
    if order_matters(module, parts, parts, ()):
        raise CannotRead("asking twice where it is written may give two answers")
    if "#" in module.source(write.statement) or any(
        isinstance(n, ast.Constant) and isinstance(n.value, str) and not n.value.isidentifier()
        for n in walk(write.statement)
    ):
        raise CannotRead("a comment or a text stands in the write")
    if isinstance(write.value, _NO_VALUE):
        raise CannotRead("what is written is not one value")
    outer = module.parent(write.base)
    addressed = isinstance(outer, ast.Subscript) and addresses_tensor(outer)
    if not addressed and not _is_tensor(module, write):
        raise CannotRead("the cache may be a list of tensors")


def _is_tensor(module: ModuleFacts, write: Write) -> bool:
    """Whether the cache is the tensor that is written, and not a list of several."""
    outer = module.parent(write.base)
    if not isinstance(outer, ast.Subscript):
        return True  # a method of tensors
    index = outer.slice
    if isinstance(index, (ast.Slice, ast.Tuple)):
        return True
    if isinstance(index, ast.Constant) and index.value is Ellipsis:
        return True
    if isinstance(write.base, ast.Subscript):
        return _holds_tensors(module, write.base.value)
    return isinstance(write.base, ast.Attribute) and is_kept_buffer(module, write.base)


def _holds_tensors(module: ModuleFacts, whole: ast.expr) -> bool:
    """Whether each of what is held is a tensor: of a tensor, or of a list made of such."""
    if isinstance(whole, ast.Attribute):
        cls = module.names.self_class(whole.value)
        bindings = module.names.inherited(cls, whole.attr) if cls is not None else []
        if is_kept_buffer(module, whole):
            return True
    else:
        bindings = module.names.visible(whole) if isinstance(whole, ast.Name) else []
    return bool(bindings) and all(_is_of_tensors(b.value) for b in bindings)


def _is_of_tensors(made: ast.expr | None) -> bool:
    if isinstance(made, ast.ListComp):
        return is_allocation(made.elt)
    if isinstance(made, (ast.List, ast.Tuple)):
        return bool(made.elts) and all(map(is_allocation, made.elts))
    return isinstance(made, ast.Dict) and all(map(is_allocation, made.values))


# -- what a person should look at -----------------------------------------------------------------


def _doubts_about_the_cache(module: ModuleFacts, write: Write) -> Iterator[str]:
    if not _is_tensor(module, write):
        yield f"`{module.source(write.base)}` must be one tensor, and not several"


def _doubts_about_calls(module: ModuleFacts, reads: list[ast.expr]) -> Iterator[str]:
    """Functions that are given the cache, and may write into it or keep it."""
    for read in reads:
        last: ast.AST = read
        for around in module.ancestors(read):
            if isinstance(around, ast.Call) and last is not around.func:
                names = [target.name for target in module.resolve(around.func)]
                if not names or not all(name.startswith("torch.") for name in names):
                    called = last_name(around.func)
                    yield f"`{called}` must not write into the cache, or keep it"
                break
            if isinstance(around, ast.Attribute) and not _gives_view(around):
                break
            if not isinstance(around, _PASSED_ON):
                break
            last = around


def _gives_view(node: ast.Attribute) -> bool:
    """``x.transpose``, ``x.mT``."""
    return is_view_method(node.attr) or node.attr in VIEW_ATTRIBUTES


def _doubts_about_results(
    module: ModuleFacts, function: FunctionNode, reads: list[ast.expr]
) -> Iterator[str]:
    """Whether what is read is returned as it is: several calls may be part of one graph."""
    named = {
        target.id
        for read in reads
        if isinstance(made := module.statement(read), ast.Assign)
        for value, targets in _values(made)
        if _is_view_of(value, read)
        for target in targets
        if isinstance(target, ast.Name)
    }
    for statement in statements(function):
        if isinstance(statement, ast.Return) and statement.value is not None:
            value = statement.value
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            if any(isinstance(part, ast.Name) and part.id in named for part in parts):
                yield _EARLIER
                return


def _values(assign: ast.Assign) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """What an assignment gives a name, each with what is set to it."""
    yield assign.value, assign.targets
    for value in assign.value.elts if isinstance(assign.value, (ast.Tuple, ast.List)) else ():
        target = _named_by(assign, value)
        if target is not None:
            yield value, [target]


def _is_view_of(node: ast.expr, owner: ast.expr) -> bool:
    """Whether an expression is an attribute, or a view of it: ``self.cache[:, :n].mT``."""
    while node is not owner:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return False
    return True


def _doubts_about_others(
    module: ModuleFacts, function: FunctionNode, write: Write, whole: ast.expr
) -> Iterator[str]:
    """Other functions that read the cache or set it back; refuses those that run afterwards."""
    if not isinstance(whole, ast.Attribute) or not isinstance(whole.value, ast.Name):
        yield f"what else is read of `{module.source(whole)}` passes no gradient on"
        return
    if module.names.self_class(whole.value) is None:
        yield f"what else is read of `{module.source(whole)}` passes no gradient on"
    others = readers_of(module, function, whole)
    for call in module.calls:
        if module.function(call) is not function or call.lineno < write.statement.lineno:
            continue
        called = last_name(call.func)
        if called in others.running:
            raise CannotRead(f"`{called}` reads the cache, too")
        if any(module.names.self_class(each) is not None for each in passed(call)):
            raise CannotRead(f"`{called}` is given the whole module, and may read the cache")
    if others.readers:
        named = " and ".join(f"`{each}`" for each in others.readers)
        yield f"what {named} reads of the cache passes no gradient on"
    if others.setters or whole.attr in module.rebound:
        yield _EARLIER
    if others.elsewhere:
        yield f"what other files read of `.{whole.attr}` passes no gradient on"
