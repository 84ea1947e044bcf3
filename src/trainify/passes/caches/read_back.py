"""Caches that are written and read back: where a gradient is wanted, fresh values are read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.broadcasts import may_broadcast
from ...facts.cached import Write, cache_write, dumped, prefix_before, reads_entry
from ...facts.views import is_allocation, view_of
from ...facts.walk import walk
from ...findings import STRATEGIES, Fix
from .detaching import detached

if TYPE_CHECKING:
    from ...engine import Options


def reads_after(module: ModuleFacts, write: Write) -> list[ast.stmt]:
    """The statements of the same block that read the cache after the write."""
    key = ast.dump(write.base)
    block = module.block(write.statement)
    targets = {id(write.base)}
    found = []
    for statement in block[block.index(write.statement) + 1 :]:
        for node in walk(statement):
            if isinstance(node, type(write.base)) and ast.dump(node) == key:
                other = (
                    cache_write(module, statement)
                    if isinstance(statement, (ast.Assign, ast.Expr))
                    else None
                )
                if id(node) not in targets and not (other is not None and other.base is node):
                    found.append(statement)
                    break
    return found


def read_later(module: ModuleFacts, function: ast.AST, write: Write) -> bool:
    """Whether the cache is read after the write, outside of its block: ``return self.keys``."""
    if not _outlives(module, write):
        return False
    return any(
        reads_entry(later, write)
        for later in walk(function)
        if isinstance(later, ast.Return) and later.lineno > write.statement.lineno
    )


def read_behind(module: ModuleFacts, function: ast.AST, write: Write) -> bool:
    """Whether the cache is read behind the branch that the write stands in."""
    if not _outlives(module, write):
        return False
    inside: ast.AST = write.statement
    for around in module.ancestors(write.statement):
        if inside is not write.statement and isinstance(inside, ast.stmt):
            block = module.block(inside)
            for later in block[block.index(inside) + 1 :]:
                if isinstance(later, (ast.Assign, ast.AnnAssign)) and later.value is not None:
                    if reads_entry(later.value, write):
                        return True
        if around is function:
            return False
        inside = around
    return False


def _outlives(module: ModuleFacts, write: Write) -> bool:
    """Whether the name of the cache is no local one: it is an attribute, or was given."""
    if isinstance(write.base, ast.Attribute):
        return True
    assert isinstance(write.base, ast.Name)
    flow = module.flow(module.function(write.statement) or module.tree)
    made = flow.only_definition(write.base.id, write.statement)
    return made is not None and made.is_parameter


_DISPLAYS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp)


def hands_out(module: ModuleFacts, write: Write) -> bool:
    """Whether the cache has a local name, by which it is read after the write."""
    if not isinstance(write.base, ast.Name):
        return False
    name, statement = write.base.id, write.statement
    flow = module.flow(module.function(statement) or module.tree)
    made = flow.only_definition(name, statement)
    return (
        made is not None
        and not made.is_parameter
        and (write.entry == dumped(write.base) or is_allocation(made.value))  # no list of caches
        and not isinstance(made.value, _DISPLAYS)
        and flow.read_after(name, statement)
        and not any(flow.read_after(o, statement) for o in flow.observers(name, statement))
    )


def hand_out_fresh(
    module: ModuleFacts, options: Options, function: ast.AST, writes: Sequence[Write]
) -> dict[ast.AST, dict[str, Fix]]:
    """Detached values into caches that a ``return`` hands out whole, fresh ones into what it gives.

    Those of one block, or of the branches of one ``try``, are rewritten together.
    """
    from ...rewrite.fresh import fresh_return

    groups: dict[int, list[Write]] = {}
    for write in writes:
        if isinstance(write.base, ast.Attribute) and read_later(module, function, write):
            around = module.parent(write.statement)
            if isinstance(around, ast.ExceptHandler):
                around = module.parent(around)
            key = id(around) if isinstance(around, ast.Try) else id(module.block(write.statement))
            groups.setdefault(key, []).append(write)
    fixes: dict[ast.AST, dict[str, Fix]] = {}
    for group in groups.values():
        edits = [edit for write in group for edit in detached(module, write.value)]
        fix = fresh_return(module, options, group, edits)
        if fix is not None:
            fixes.update((write.statement, dict.fromkeys(STRATEGIES, fix)) for write in group)
    return fixes


def write_apart(
    module: ModuleFacts, options: Options, writes: Sequence[Write]
) -> dict[ast.AST, dict[str, Fix]]:
    """Detached values into the cache, fresh ones into a copy that is read from then on."""
    from ...rewrite import branch, layout

    changes = []
    for write in writes:
        assert isinstance(write.base, ast.Name)
        name = write.base.id
        again = " ".join(module.source(write.statement).split())
        lines = [_detached(module, write), f"{name} = {name}.clone()", again]
        wants = _wants([write])
        changes.append(branch.Change([write.statement], lines, wants=wants, title="copy"))
    vocabulary = branch.Vocabulary(module)
    fixes: dict[ast.AST, dict[str, Fix]] = {}
    for run in branch.group(module, changes):
        try:
            result = branch.fixes(module, vocabulary, run, options.flag)
        except layout.CannotPlace:
            continue
        fix = replace(result["flag"], title="Attend to fresh values when a gradient is wanted")
        fixes.update((change.first, dict.fromkeys(STRATEGIES, fix)) for change in run)
    return fixes


def runs(
    module: ModuleFacts, pairs: Sequence[tuple[Write, list[ast.stmt]]]
) -> Iterator[list[tuple[Write, list[ast.stmt]]]]:
    """Writes of one block with their reads, which are rewritten together."""
    blocks: dict[int, list[tuple[Write, list[ast.stmt]]]] = {}
    for write, reads in pairs:
        blocks.setdefault(id(module.block(write.statement)), []).append((write, reads))
    yield from blocks.values()


def concatenate(
    module: ModuleFacts, options: Options, run: Sequence[tuple[Write, list[ast.stmt]]]
) -> dict[str, Fix]:
    """Read what was cached before, and the fresh values after it, without a detour by the cache."""
    from ...rewrite import branch, layout

    block = module.block(run[0][0].statement)
    lines: dict[ast.stmt, str] = {}
    for write, reads in run:
        for read in reads:
            line = _joined(module, write, read)
            if line is None or read in lines:
                return {}
            lines[read] = line
    involved = [w.statement for w, _ in run] + list(lines)
    first = min(block.index(s) for s in involved)
    last = max(block.index(s) for s in involved)
    statements = block[first : last + 1]
    if any(s not in involved for s in statements):
        return {}
    detached = {w.statement: _detached(module, w) for w, _ in run}
    change = branch.Change(
        statements=statements,
        lines=[lines[s] if s in lines else detached[s] for s in statements],
        wants=_wants([w for w, _ in run]),
        title="concatenation",
    )
    vocabulary = branch.Vocabulary(module)
    try:
        result = branch.fixes(module, vocabulary, [change], options.flag)
    except layout.CannotPlace:
        return {}
    # generation goes on through the cache, whatever becomes of the fused calls
    fix = replace(result["flag"], title="Attend to fresh values when a gradient is wanted")
    return dict.fromkeys(STRATEGIES, fix)


def _detached(module: ModuleFacts, write: Write) -> str:
    """The write with a detached value: the cache stays complete, and keeps no graph."""
    text = module.source(write.statement)
    start = module.start(write.value) - module.start(write.statement)
    end = module.end(write.value) - module.start(write.statement)
    value = text[start:end]
    if not isinstance(write.value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        value = f"({value})"
    return " ".join(f"{text[:start]}{value}.detach(){text[end:]}".split())


def _wants(writes: Sequence[Write]) -> list[str] | None:
    names = []
    for write in writes:
        view = view_of(write.value)
        if view is None:
            return None
        names.append(view.base)
    return list(dict.fromkeys(names))


def _joined(module: ModuleFacts, write: Write, read: ast.stmt) -> str | None:
    """``keys = torch.cat((cache[:b, :start], xk), dim=1)`` for a matching write and read."""
    if not isinstance(read, ast.Assign) or not isinstance(read.value, ast.Subscript):
        return None
    if not isinstance(write.statement, ast.Assign) or view_of(write.value) is None:
        return None  # what is computed is computed once
    if may_broadcast(module, write.value):
        return None  # the cache has it several times
    found = prefix_before(module, write, read.value)
    if found is None:
        return None
    before, dim = found
    target, value = module.source(read.targets[0]), module.source(write.value)
    return f"{target} = {_torch(module)}.cat(({before}, {value}), dim={dim})"


def _torch(module: ModuleFacts) -> str:
    from ...rewrite import layout

    return layout.bound_at_top(module, "torch") or "torch"
