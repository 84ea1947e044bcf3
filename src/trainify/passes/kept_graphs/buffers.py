"""What is written into a buffer, or into what a pool of buffers gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.cached import as_write, names_cache
from ...facts.flow import Definition
from ...facts.graph import Graph
from ...facts.guards import gradient_unwanted
from ...facts.kept import handed_out, is_kept_buffer
from ...facts.writes import Write, are_views, in_callers, is_apart, root_of
from ...findings import STRATEGIES, Finding, Fix
from .. import not_rewritten
from ..caches import read_fresh
from .only_kept import kept_detached
from .reads import gives_result, read_later
from .steps import consequence, is_step
from .values import has_graph, written

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts.module import FunctionNode


def in_buffers(
    module: ModuleFacts, options: Options, function: FunctionNode, write: Write
) -> Iterator[Finding]:
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
        yield from _into(module, options, function, owner, write)


def _into(
    module: ModuleFacts,
    options: Options,
    function: FunctionNode,
    owner: ast.Attribute,
    write: Write,
) -> Iterator[Finding]:
    """A write into a buffer, by its own name or by a local one."""
    if names_cache(owner.attr) or not is_kept_buffer(module, owner):
        return
    if not is_step(module, function, write.statement):
        return
    values = [v for v in written(write) if has_graph(module, function, v)]
    if not values:
        return
    name = write.name.id if write.name is not None else ""
    again = bool(name) and module.flow(function).read_after(name, write.statement)
    text = module.source(owner)
    message = f"`{text}` outlives the step, and keeps the graph of `{module.source(values[0])}`: "
    message += consequence(module, owner, again)
    fixes: dict[str, Fix] = {}
    read = again or gives_result(module, write)
    if not read and not read_later(module, function, owner, write.statement):
        plain = kept_detached(module, function, write.statement, owner, values)
        fixes = dict.fromkeys(STRATEGIES, plain)
    elif (put := as_write(write.statement)) is not None and put.base is owner:
        fix, reason = read_fresh(module, options, put)
        fixes = dict.fromkeys(STRATEGIES, fix) if fix is not None else {}
        message += not_rewritten(reason) if reason else ""
    yield module.finding("TRN408", message, write.statement, fixes)


def in_arguments(
    module: ModuleFacts, options: Options, function: FunctionNode, write: Write
) -> Iterator[Finding]:
    """A write into a parameter, by a function that is given a buffer: ``ema(self.mean, h)``."""
    if gradient_unwanted(module, write.statement):
        return
    graph = Graph(module, function)
    steps = graph.back_from([(value, write.statement) for value in written(write)])
    names = {s.node.id for s in steps if s.cut is None and isinstance(s.node, ast.Name)}
    for given in in_callers(module, write):
        call = module.parent(given.target)
        caller = module.function(given.statement)
        if not isinstance(call, ast.Call) or caller is None:
            continue
        if not isinstance(given.target, ast.Attribute):
            continue
        values = [module.project.argument(module, function, call, name) for name in sorted(names)]
        inputs = tuple(v for v in values if v is not None and v is not given.target)
        by_call = replace(given, inputs=inputs, call=call)
        yield from _into(module, options, caller, given.target, by_call)


def in_pools(
    module: ModuleFacts, options: Options, function: FunctionNode, write: Write
) -> Iterator[Finding]:
    """A write into what ``POOL.setdefault(shape, torch.empty(shape))`` gave."""
    assert write.name is not None
    definition = module.flow(function).only_definition(write.name.id, write.statement)
    buffer = _buffer_of(module, definition)
    if buffer is not None:
        yield from _into(module, options, function, buffer, write)
        return
    call = handed_out(module, function, definition) if definition is not None else None
    if call is None or not is_step(module, function, write.statement):
        return
    if not any(has_graph(module, function, v) for v in write.inputs):
        return
    from ...rewrite import branch
    from ...rewrite.out_of_place import result_clone

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
        except branch.CannotPlace as error:
            message += not_rewritten(error)
    yield module.finding("TRN408", message, write.statement, fixes)


def _buffer_of(module: ModuleFacts, definition: Definition | None) -> ast.Attribute | None:
    """``self.buffer`` of ``buffer = self.buffer``, or of a view: ``row = self.buffer[0]``."""
    if definition is None or definition.value is None or definition.index is not None:
        return None
    name, path = root_of(definition.value)
    if name is not None or not path or not are_views(module, path):
        return None
    if any(map(is_apart, path)):
        return None
    return path[-1] if isinstance(path[-1], ast.Attribute) else None
