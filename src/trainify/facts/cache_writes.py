"""Fresh keys and values that reach attention only through a cache that keeps no gradient."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from .grad_mode import no_grad_scope
from .memo import once
from .names import last_name, passed

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_KERNELS = ("reshape_and_cache", "store_kvcache", "concat_and_cache", "append_paged_kv_cache")
_FRESH = ("key", "value", "k", "v", "append_key", "append_value", "kv_c", "k_pe")
_ATTENDS = re.compile("attn|attention|mla(_|$)", re.IGNORECASE)
_IN_PLACE = ("copy_", "index_copy_", "index_put_", "scatter_")
_VIEWS = (
    "detach",
    "contiguous",
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "transpose",
    "to",
)


class CacheWrite(NamedTuple):
    """What puts tensors into caches, and the calls that read these caches after it.

    ``fresh`` are the tensors, which nothing else of the function reads after that.
    """

    node: ast.expr
    fresh: tuple[str, ...]
    reads: tuple[ast.Call, ...]


def cache_writes(module: ModuleFacts) -> tuple[CacheWrite, ...]:
    """The writes after which what was written gets no gradient from what reads the cache."""
    if not any(word in module.usual for word in (*_KERNELS, "no_grad", "detach", ".data")):
        return ()
    return _cache_writes(module)


@once
def _cache_writes(module: ModuleFacts) -> tuple[CacheWrite, ...]:
    calls: dict[FunctionNode, list[ast.Call]] = {}
    for call in module.calls:
        function = module.function(call)
        if function is not None:
            calls.setdefault(function, []).append(call)
    found = []
    for node, caches, values in [*_by_kernels(module), *_without_gradient(module)]:
        function = module.function(node)
        if function is None:
            continue
        statement = module.statement(node)
        flow = module.flow(function)
        fresh = [
            name
            for value in values
            if (name := _root(value)).isidentifier() and not flow.read_after(name, statement)
        ]
        reads = [
            call
            for call in calls.get(function, ())
            if call.lineno > (statement.end_lineno or 0)
            and _ATTENDS.search(last_name(call.func))
            and not caches.isdisjoint(map(_root, passed(call)))
            and not are_apart(module, statement, call)
        ]
        if fresh and reads:
            found.append(CacheWrite(node, tuple(dict.fromkeys(fresh)), tuple(reads)))
    return tuple(found)


Written = tuple[ast.expr, set[str], list[ast.expr]]


def _by_kernels(module: ModuleFacts) -> list[Written]:
    found: list[Written] = []
    for call in module.calls:
        if not last_name(call.func).startswith(_KERNELS) or not _is_foreign(module, call):
            continue
        named = {k.arg: k.value for k in call.keywords}
        values = [value for name, value in named.items() if name in _FRESH] or call.args[:2]
        caches = {_root(value) for value in passed(call) if value not in values} - {""}
        found.append((call, caches, list(values)))
    return found


def _is_foreign(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a function is a library's: what the project wrote itself may have a gradient."""
    owners = {target.name.rpartition(".")[0] for target in module.resolve(call.func)}
    return bool(owners) and not any(
        owner in ("", module.module_name) or module.project.find_module(module, owner)
        for owner in owners
    )


def _without_gradient(module: ModuleFacts) -> list[Written]:
    """``cache[slots] = k.detach()``, also ``cache.index_copy_(0, slots, k)`` under no_grad."""
    found: list[Written] = []
    for statement in module.statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
            node: ast.expr = statement.targets[0]
            cache, value = _root(node), statement.value
        elif isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in _IN_PLACE:
                continue
            if not call.args:
                continue
            node, cache, value = call, _root(call.func.value), call.args[-1]
        else:
            continue
        if "cache" not in cache.lower():
            continue
        if _is_detached(value) or ".data" in module.source(node) or _is_scoped(module, statement):
            found.append((node, {cache}, [value]))
    return found


def _root(node: ast.expr) -> str:
    """``self.k_cache`` of ``self.k_cache.view(-1, 8)[:n]``; empty for what is no tensor's place."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in _VIEWS:
                return ""
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in ("data", "T", "mT"):
            node = node.value
        else:
            break
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _is_detached(node: ast.expr) -> bool:
    return any(
        (isinstance(part, ast.Attribute) and part.attr in ("detach", "data"))
        for part in _chain(node)
    )


def _chain(node: ast.expr) -> Iterator[ast.expr]:
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        yield node
        node = node.func if isinstance(node, ast.Call) else node.value


def _is_scoped(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether gradients are off for a statement alone, not for all of its function."""
    return any(
        no_grad_scope(module, item.context_expr, around)
        for around in module.ancestors(statement)
        if isinstance(around, ast.With)
        for item in around.items
    )


def are_apart(module: ModuleFacts, first: ast.stmt, last: ast.AST) -> bool:
    """Whether only one of two places runs: they are in different arms of one condition."""
    before = {first, *module.ancestors(first)}
    after = {last, *module.ancestors(last)}
    return any(
        isinstance(node, ast.If)
        and any(s in before for s in node.body) != any(s in after for s in node.body)
        and any(s in before for s in node.orelse) != any(s in after for s in node.orelse)
        for node in before & after
    )
