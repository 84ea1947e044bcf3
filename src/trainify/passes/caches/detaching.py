"""Caches that are only written: they keep detached values."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.cache_readers import is_about, leading_to, other_reader, readers_of
from ...facts.cache_writes import are_apart
from ...facts.cached import Write, cache_write, reads_entry
from ...facts.guards import gradient_unwanted
from ...facts.kept import is_same
from ...facts.metadata import keeps_graph
from ...facts.names import last_name
from ...facts.views import view_of
from ...facts.walk import walk
from ...findings import Edit, Fix, Safety

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def detached(module: ModuleFacts, value: ast.expr) -> tuple[Edit, ...]:
    """A value with ``.detach()`` behind it."""
    start, end = module.start(value), module.end(value)
    if isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return (Edit(end, end, ".detach()"),)
    return (Edit(start, start, "("), Edit(end, end, ").detach()"))


def detaching(module: ModuleFacts, write: Write) -> Fix:
    """Cache detached values: attention has the fresh ones."""
    edits = detached(module, write.value)
    look_at = (
        "what earlier calls have cached passes no gradient on" if _is_copied(module, write) else ""
    )
    if not _fresh_values_used(module, write) or _is_read(module, write):
        value = module.source(write.value)
        look_at = f"attention must read the fresh `{value}` in training, not the cache"
    safety = Safety.UNSAFE if look_at else Safety.SAFE
    fix = Fix(f"Cache {module.source(write.value)} detached", edits, safety, look_at)
    return fix if look_at else unless_read(module, write.statement, write.base, fix, own=False)


def unless_read(
    module: ModuleFacts, statement: ast.stmt, kept: ast.expr, fix: Fix, own: bool = True
) -> Fix:
    """A fix by which ``self.name`` keeps detached values; unsafe where others may go on from it.

    ``own`` as for :func:`~trainify.facts.cache_readers.other_reader`.
    """
    function = module.function(statement)
    if function is None or not isinstance(kept, ast.Attribute):
        return fix
    if module.names.self_class(kept.value) is None:
        return fix
    other = other_reader(module, function, kept, own)
    if not other:
        return fix
    text = module.source(kept)
    return fix.unsafe(f"{other} reads `{text}`, from which no gradient goes back any more")


def why_strided(module: ModuleFacts, statement: ast.stmt) -> str:
    """Why no clone should take a cache's place: its storage is looked into; empty where it is not.

    A cache with room left grows by ``as_strided``, here or where what is called for it stands.  A
    clone has no more room than it shows.
    """
    if module.calls_named("as_strided"):
        return _STRIDED
    function = module.function(statement)
    for call in walk(function) if function is not None else ():
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            for target in module.resolve(call.func):
                path = module.project.find_module(module, target.name.rpartition(".")[0])
                if path is not None and b".as_strided(" in module.project.content(path):
                    return _STRIDED
    return ""


_STRIDED = "as_strided() looks into the storage of a cache, and a clone of it has one of its own"


def _is_read(module: ModuleFacts, write: Write) -> bool:
    """Whether the same step may read the cache behind the write, by whatever name."""
    from ..kept_graphs.reads import read_later

    function = module.function(write.statement)
    if function is None:
        return False
    if isinstance(write.base, ast.Name):
        return _read_by_others(module, function, write.base.id, write.statement)
    if not isinstance(write.base, ast.Attribute):
        return False
    return _read_elsewhere(module, function, write.base, write.statement) or (
        isinstance(write.base.value, ast.Name)
        and read_later(module, function, write.base, write.statement)
    )


def _read_elsewhere(
    module: ModuleFacts, function: FunctionNode, cache: ast.Attribute, statement: ast.stmt
) -> bool:
    """Whether the cache is read behind a write or a call of it, by a method of the same object.

    ``self.update(k, v); y = self.attend(q)``, or where ``attend`` stands in the caller.
    """
    if isinstance(cache.value, ast.Name):
        running = readers_of(module, function, cache).running - {function.name}
    else:
        running = _readers_by_name(module, function, cache.attr)
    calls = module.project.calls_of(module, function)
    places = [(module, statement), *((home, home.statement(call)) for home, call in calls)]
    return any(_read_behind(home, cache, at, running) for home, at in places)


def _readers_by_name(module: ModuleFacts, function: FunctionNode, name: str) -> frozenset[str]:
    """The names of other functions that read an attribute of any object: ``self.k_cache``."""
    found = (
        (other, home.name)
        for other in module.project.mentioning(module, name)
        for node in walk(other.tree)
        if isinstance(node, ast.Attribute) and node.attr == name
        if isinstance(node.ctx, ast.Load) and not is_about(other, node)
        if other.statement(node) not in other.writes or not _is_target(other, node)
        if (home := other.function(node)) is not None and home is not function
    )
    names = frozenset[str]()
    for other, reader in found:
        names |= leading_to(other, [reader])
    return names - {function.name}


def _is_target(module: ModuleFacts, node: ast.Attribute) -> bool:
    return any(each is node for each in walk(module.writes[module.statement(node)].target))


_MAX_NAMES = 4


def _read_by_others(
    module: ModuleFacts, function: FunctionNode, name: str, at: ast.stmt, depth: int = _MAX_NAMES
) -> bool:
    """Whether what a local name holds is read behind a statement by another name, or a caller's."""
    flow = module.flow(function)
    if any(_is_used_behind(module, other, at) for other in flow.observers(name, at)):
        return True
    made = flow.only_definition(name, at)
    if made is None or depth == 0:
        return made is None
    if made.is_parameter:
        return _read_by_callers(module, function, name)
    if made.value is None or made.statement is None:
        return False
    view = view_of(made.value)
    if view is not None:
        return _is_used_behind(module, view.base, at) or _read_by_others(
            module, function, view.base, made.statement, depth - 1
        )
    return False


def _read_by_callers(module: ModuleFacts, function: FunctionNode, name: str) -> bool:
    """Whether who gives a function the cache reads it behind the call."""
    for other, call in module.project.calls_of(module, function):
        argument = module.project.argument(module, function, call, name)
        given = view_of(argument) if argument is not None else None
        if given is not None and _is_used_behind(other, given.base, other.statement(call)):
            return True
        if isinstance(argument, ast.Attribute):
            if _read_behind(other, argument, other.statement(call), frozenset()):
                return True
    return False


def _read_behind(
    module: ModuleFacts, cache: ast.Attribute, at: ast.stmt, running: frozenset[str]
) -> bool:
    """Whether a function reads the cache behind a statement: by itself or by others, of a name."""
    function = module.function(at)
    if function is None:
        return False
    own = module.method_class(function) is not None
    for node in walk(function):
        if isinstance(node, ast.Call):
            reads = last_name(node.func) in running
        elif isinstance(node, ast.Attribute) and node.attr in running:
            reads = True  # a property
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            reads = own and is_same(node, cache) and not is_about(module, node)
        else:
            continue
        if reads and module.start(node) > module.end(at):
            if not are_apart(module, at, node) and not gradient_unwanted(module, node):
                return True
    return False


_COPYING = frozenset("cat concat concatenate stack pad where".split())


def _is_copied(module: ModuleFacts, write: Write) -> bool:
    """Whether another call of the function copies what is cached: ``torch.cat((cache[:n], k))``.

    Of a copy nothing is saved that a later write destroys, so several calls of one step can be
    gone back through for as long as the cache keeps their graph.
    """
    function = module.function(write.statement)
    return function is not None and any(
        reads_entry(argument, write)
        for node in walk(function)
        if isinstance(node, ast.Call) and last_name(node.func) in _COPYING
        for argument in node.args
    )


def _fresh_values_used(module: ModuleFacts, write: Write) -> bool:
    """Whether the written values themselves are read after the write, here or by every caller."""
    view = view_of(write.value)
    if view is None:
        return False
    function = module.function(write.statement)
    if _is_used_behind(module, view.base, write.statement):
        return True
    if function is None or view.base not in module.flow(function).parameters:
        return False
    calls = list(module.project.calls_of(module, function))
    for other, call in calls:
        argument = module.project.argument(module, function, call, view.base)
        seen = view_of(argument) if argument is not None else None
        if seen is None or not _is_used_behind(other, seen.base, other.statement(call)):
            return False
    return bool(calls)


def _is_used_behind(module: ModuleFacts, name: str, statement: ast.stmt) -> bool:
    """Whether what a name holds is read after a statement: not its shape, nor for a cache alone."""
    function = module.function(statement) or module.tree
    flow = module.flow(function)
    if not flow.read_after(name, statement):
        return False
    held = flow.reaching(name, statement)
    for node in walk(function):
        if isinstance(node, ast.Name) and node.id == name and keeps_graph(module, node):
            at = module.statement(node)
            behind = module.start(node) > module.end(statement)
            if not behind or (isinstance(at, (ast.Assign, ast.Expr)) and cache_write(module, at)):
                continue
            if (module.function(node) or module.tree) is not function:
                return True
            if not held.isdisjoint(flow.reaching(name, at)):
                return True
    return False
