"""A cache that is written and handed out whole: detached values in it, fresh ones in what is read.

self.keys.index_copy_(2, position, keys)      self.keys.index_copy_(2, position, keys.detach())
return self.keys                              if torch.is_grad_enabled() and keys.requires_grad:
                                                  fresh_keys = self.keys.clone()
                                                  fresh_keys.index_copy_(2, position, keys)
                                                  return fresh_keys
                                              return self.keys
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.kept import is_container
from ..facts.names import last_name
from ..facts.views import view_of
from ..facts.walk import walk
from ..findings import Fix
from . import branch, layout

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.cached import Write
    from ..findings import Edit


def fresh_return(
    module: ModuleFacts,
    options: Options,
    writes: Sequence[Write],
    detached: Sequence[Edit],
) -> Fix | None:
    """The fix for the writes of attributes that one ``return`` reads; None where there is none.

    Each attribute is written once, or in each branch of a ``try`` the same way: its last branch is
    what runs everywhere.  ``detached`` are the edits that put ``.detach()`` behind the values.
    """
    last = _handed_out_by(module, writes)
    if last is None or not isinstance(last.value, ast.expr):
        return None
    names: dict[str, str] = {}
    lines: list[str] = []
    wants: list[str] = []
    for write in {ast.dump(w.base): w for w in writes}.values():  # of a try, the handler's
        base = module.source(write.base)
        name = _new_name(module, write)
        view = view_of(write.value)
        if view is None or name is None or _changes(module, write, last):
            return None
        if isinstance(write.base, ast.Attribute) and is_container(module, write.base):
            return None
        statement = module.source(write.statement)
        start = module.start(write.base) - module.start(write.statement)
        text = f"{statement[:start]}{name}{statement[start + len(base) :]}"
        lines += [f"{name} = {base}.clone()", " ".join(text.split())]
        names[ast.dump(write.base)] = name
        wants.append(view.base)
    returned = _with_names(module, last, names)
    if returned is None:
        return None
    change = branch.Change([last], [*lines, returned], wants=list(dict.fromkeys(wants)))
    try:
        fix = branch.fixes(module, branch.Vocabulary(module), [change], options.flag)["flag"]
    except layout.CannotPlace:
        return None
    title = "Hand out fresh values when a gradient is wanted"
    fix = replace(fix, title=title, edits=(*fix.edits, *detached))
    return fix.unsafe("what earlier calls have cached passes no gradient on")


def _handed_out_by(module: ModuleFacts, writes: Sequence[Write]) -> ast.Return | None:
    """The ``return`` that comes right after all of the writes, which surely have run by then."""
    first = writes[0].statement
    parent = module.parent(first)
    outer: ast.stmt = first
    blocks = [module.block(first)]
    if isinstance(parent, ast.Try) and first in parent.body:
        if parent.orelse or parent.finalbody:
            return None
        outer = parent
        blocks = [parent.body, *(handler.body for handler in parent.handlers)]
    bases = [sorted(ast.dump(w.base) for w in writes if w.statement in block) for block in blocks]
    if any(each != bases[0] or len(set(each)) < len(each) for each in bases):
        return None  # another write in another branch, or two of the same
    if sum(map(len, bases)) != len(writes):
        return None
    block = module.block(outer)
    for statement in block[block.index(outer) + 1 :]:
        if isinstance(statement, ast.Return):
            return statement
        if any(isinstance(n, (ast.Return, ast.Raise)) for n in walk(statement)):
            return None
    return None


def _changes(module: ModuleFacts, write: Write, last: ast.Return) -> bool:
    """Whether what a write reads may be something else by the time of the return."""
    function = module.function(write.statement)
    used = {n.id for n in walk(write.statement) if isinstance(n, ast.Name)}
    used |= {n.attr for n in walk(write.target) if isinstance(n, ast.Attribute)}
    index = _index_names(write)
    for node in walk(function) if function is not None else ():
        if not isinstance(node, (ast.Name, ast.Attribute)) or not (
            write.statement.lineno < node.lineno <= last.lineno
        ):
            continue
        name = last_name(node)
        if isinstance(node.ctx, ast.Store) and name in used:
            return True
        parent = module.parent(node)
        if isinstance(parent, ast.Attribute) and parent.attr.endswith("_"):
            if name in index and not parent.attr.endswith("__"):
                return True  # self.length.add_(n), where the write goes by self.length
    return False


def _index_names(write: Write) -> set[str]:
    """The names and attributes by which a write finds its place, the cache itself left out."""
    base = set(walk(write.base))
    return {
        last_name(n)
        for n in walk(write.statement)
        if isinstance(n, (ast.Name, ast.Attribute)) and n not in base
    }


def _new_name(module: ModuleFacts, write: Write) -> str | None:
    assert isinstance(write.base, ast.Attribute)
    name = f"fresh_{write.base.attr.strip('_')}"
    return None if name in module.identifiers else name


def _with_names(module: ModuleFacts, last: ast.Return, names: dict[str, str]) -> str | None:
    """The return with the fresh values in the place of the caches."""
    text, start = module.source(last), module.start(last)
    places = [
        (module.start(node) - start, module.end(node) - start, names[ast.dump(node)])
        for node in walk(last)
        if isinstance(node, ast.Attribute) and ast.dump(node) in names
    ]
    if {name for _, _, name in places} != set(names.values()) or "#" in text:
        return None
    for begin, end, name in sorted(places, reverse=True):
        text = text[:begin] + name + text[end:]
    return " ".join(text.split())
