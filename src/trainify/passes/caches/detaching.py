"""Caches that are only written: they keep detached values."""

from __future__ import annotations

import ast

from ...facts import ModuleFacts
from ...facts.cache_readers import is_about
from ...facts.cache_writes import are_apart
from ...facts.cached import Write, reads_entry
from ...facts.flow import view_of
from ...facts.guards import gradient_unwanted
from ...facts.kept import is_same
from ...facts.names import last_name
from ...facts.walk import walk
from ...findings import Edit, Fix, Safety


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
    if not _fresh_values_used(module, write) or _read_by_callers(module, write):
        value = module.source(write.value)
        look_at = f"attention must read the fresh `{value}` in training, not the cache"
    safety = Safety.UNSAFE if look_at else Safety.SAFE
    return Fix(f"Cache {module.source(write.value)} detached", edits, safety, look_at)


def _read_by_callers(module: ModuleFacts, write: Write) -> bool:
    """Whether a method of the same object reads the cache behind a call of the one that writes."""
    function = module.function(write.statement)
    if function is None or not isinstance(write.base, ast.Attribute):
        return False
    cls = module.method_class(function)
    for call in module.calls_named(function.name):
        caller = module.function(call)
        if caller is None or caller is function or module.method_class(caller) is not cls:
            continue
        at = module.statement(call)
        for node in walk(caller):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                behind = node.lineno > (at.end_lineno or at.lineno)
                if behind and is_same(node, write.base) and not is_about(module, node):
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
    flow = module.flow(function or module.tree)
    if flow.read_after(view.base, write.statement):
        return True
    if function is None or view.base not in flow.parameters:
        return False
    calls = list(module.project.calls_of(module, function))
    for other, call in calls:
        argument = module.project.argument(module, function, call, view.base)
        seen = view_of(argument) if argument is not None else None
        if seen is None:
            return False
        caller = other.flow(other.function(call) or other.tree)
        if not caller.read_after(seen.base, other.statement(call)):
            return False
    return bool(calls)
