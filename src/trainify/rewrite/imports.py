"""Imports of kernels that a file needs no longer, once its calls of them are gone.

What was never used may stand there for what importing it does; what was used until now was there to
be used.  It goes, unless something else may want it: other files, a comment, ops that it registers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from ..catalog import all_ops
from ..facts import ModuleFacts
from ..facts.memo import once
from ..facts.module import FunctionNode
from ..facts.walk import walk
from ..findings import Edit
from . import layout

_BY_NAME = re.compile(r"\b(globals|eval|exec)\(|\bsys\.modules\b")


def idle_imports(before: ModuleFacts, after: ModuleFacts, libraries: Collection[str]) -> list[Edit]:
    """What deletes from a fixed file the imports of libraries that it used before, and no more."""
    edits: list[Edit] = []
    functions = {_key(before, function): function for function in before.functions}
    for place, imports in _imports_by_place(after, libraries).items():
        old = before.tree if place is after.tree else functions.get(_key(after, place))
        if old is not None:
            gone = _used(before, old) - _used(after, place)
            edits += _deletions(after, imports, gone)
    return edits


_Import = ast.Import | ast.ImportFrom
_Place = ast.Module | FunctionNode


def _imports_by_place(
    module: ModuleFacts, libraries: Collection[str]
) -> dict[_Place, dict[_Import, list[ast.alias]]]:
    """What is imported of libraries, at the top of a file that may go without, or in functions."""
    found: dict[_Place, dict[_Import, list[ast.alias]]] = {}
    top = Path(module.path).name != "__init__.py" and not _BY_NAME.search(module.text)
    for statement in module.statements:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        aliases = [a for a in statement.names if _package(module, statement, a) in libraries]
        function = module.function(statement)
        if aliases and (function or (top and statement in module.tree.body)):
            found.setdefault(function or module.tree, {})[statement] = aliases
    return found


def _key(module: ModuleFacts, function: _Place) -> tuple[str, str]:
    assert not isinstance(function, ast.Module)
    cls = module.method_class(function)
    return (cls.name if cls is not None else "", function.name)


def _deletions(
    module: ModuleFacts, imports: Mapping[_Import, Sequence[ast.alias]], gone: set[str]
) -> Iterator[Edit]:
    for statement, aliases in imports.items():
        idle = [alias for alias in aliases if _bound_by(alias) in gone]
        if idle and _can_go(module, statement, idle):
            yield from _deletion(module, statement, idle)


@once
def _docstrings(module: ModuleFacts) -> frozenset[ast.AST]:
    nodes = (module.tree, *module.classes, *module.functions)
    firsts = (node.body[0] for node in nodes if node.body)
    return frozenset(first.value for first in firsts if isinstance(first, ast.Expr))


def _used(module: ModuleFacts, within: ast.AST) -> set[str]:
    """The words of code, and of its strings, that an import may have been made for."""
    docstrings = _docstrings(module)
    used: set[str] = set()
    for node in walk(within):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            used.update(node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node not in docstrings:
                used.update(re.findall(r"\w+", node.value))  # an annotation, or __all__
    return used


def _package(module: ModuleFacts, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    """The package that something is imported from."""
    if isinstance(statement, ast.Import):
        return alias.name.partition(".")[0]
    return module.project.absolute_import(module, statement).partition(".")[0]


def _bound_by(alias: ast.alias) -> str | None:
    """The one name that an import is for; None where it makes others good as well."""
    return alias.asname or (None if "." in alias.name else alias.name)


def _can_go(
    module: ModuleFacts, statement: ast.Import | ast.ImportFrom, idle: list[ast.alias]
) -> bool:
    if layout.is_commented(module, statement):
        return False
    spaces = "|".join(_namespaces(_package(module, statement, idle[0])))
    ops = rf"torch\.ops\.({spaces})\b" if spaces else r"(?!)"
    if re.search(ops, module.text):
        return False  # importing the library makes them
    if module.function(statement) is not None:
        return len(module.block(statement)) > 1
    if module.project.says(module, ops.encode()):
        return False
    names = module.names.bindings(module.tree)
    bound = [_bound_by(alias) or "" for alias in idle]
    if any(len(names.get(name, ())) > 1 for name in bound):
        return False  # a fallback stands somewhere
    stem = re.escape(Path(module.path).stem)
    taken = rf"\b{stem}\s+import\s*(\([^)]*|[^\n(]*)\b({'|'.join(bound)})\b"
    through = rf"\b{stem}\.({'|'.join(bound)})\b"
    return not module.project.says(module, f"{taken}|{through}".encode())


@cache
def _namespaces(package: str) -> tuple[str, ...]:
    """The namespaces of ``torch.ops`` in which a package has ops."""
    found = {package}
    for op in all_ops():
        if any(name.startswith(f"{package}.") for name in op.names):
            found |= {n.split(".")[2] for n in op.names if n.startswith("torch.ops.")}
    return tuple(sorted(map(re.escape, found)))


def _deletion(
    module: ModuleFacts, statement: ast.Import | ast.ImportFrom, idle: list[ast.alias]
) -> Iterator[Edit]:
    kept = [alias for alias in statement.names if alias not in idle]
    if not kept:
        if layout.owns_lines(module, statement):
            yield _without_lines(module, statement)
        return
    last = statement.names.index(kept[-1])
    for alias, following in zip(statement.names[:last], statement.names[1:], strict=False):
        if alias in idle:
            yield Edit(module.start(alias), module.start(following), "")
    if last + 1 < len(statement.names):
        yield Edit(module.end(kept[-1]), module.end(statement.names[-1]), "")


def _without_lines(module: ModuleFacts, statement: ast.stmt) -> Edit:
    """The deletion of a statement, with the blank lines above where some are below as well.

    Those below go only where they would open a function's block and no import follows, which may
    go too: deletions do not meet.
    """
    assert statement.end_lineno is not None
    first, last = statement.lineno, statement.end_lineno
    while first > 1 and not module.line_text(first - 1).strip() and _is_blank(module, last + 1):
        first -= 1
    block = module.block(statement)
    if statement is block[0] and module.function(statement) is not None:
        if not isinstance(block[1], (ast.Import, ast.ImportFrom)):
            while _is_blank(module, last + 1):
                last += 1
    end = module.line_starts[last] if last < len(module.line_starts) else len(module.text)
    return Edit(module.line_starts[first - 1], end, "")


def _is_blank(module: ModuleFacts, line: int) -> bool:
    return line > len(module.line_starts) or not module.line_text(line).strip()
