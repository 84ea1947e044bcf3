"""The extensions that a project builds: what ``setup.py`` and its like say of them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..memo import once
from ..names import default_of, last_name, passed, placed
from ..walk import walk
from . import build_files
from .extension import Extension
from .sources import Files, patterns_in

if TYPE_CHECKING:
    from ..module import ModuleFacts
    from ..project import Project

_CLASSES = ("CUDAExtension", "CppExtension", "SyclExtension", "Pybind11Extension")


def built_around(project: Project, path: str) -> tuple[Extension, ...]:
    """The extensions of the nearest folder above a file in which something builds any."""
    folder = os.path.dirname(path)
    known = project.extensions.get(folder)
    if known is None:
        known = project.extensions[folder] = _built(project, os.path.abspath(folder))
    return known


def _built(project: Project, folder: str) -> tuple[Extension, ...]:
    known = project.extensions.get(folder)
    if known is None:
        known = tuple(_by_setup(project, folder)) + tuple(build_files.built_by(project, folder))
        above = os.path.dirname(folder)
        if not known and above != folder and not os.path.exists(os.path.join(folder, ".git")):
            known = _built(project, above)
        project.extensions[folder] = known
    return known


def _by_setup(project: Project, folder: str) -> Iterator[Extension]:
    path = Path(folder, "setup.py")
    if not path.is_file():
        return
    data = project.content(path)
    if not any(name.encode() in data for name in _CLASSES):
        return
    module = project.load(path)
    if module is None:
        return
    for call in module.calls:
        if last_name(call.func) not in _callees(module):
            continue
        named, made_of = _argument(call, "name", 0), _argument(call, "sources", 1)
        if named is None or made_of is None:
            continue
        for given in _calls_around(module, call, named):
            name = _text(module, named, given)
            patterns = list(patterns_in(module, made_of))
            for part in walk(made_of):
                if isinstance(part, ast.Name) and part.id in given:
                    patterns += patterns_in(module, given[part.id])
            if name:
                yield Extension(name, Files(project, folder, patterns))


def _argument(call: ast.Call, name: str, index: int) -> ast.expr | None:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    return given.get(name, call.args[index] if len(call.args) > index else None)


@once
def _callees(module: ModuleFacts) -> frozenset[str]:
    """The names of the classes of extensions, and those that a file gives them."""
    found = set(_CLASSES)
    for statement in module.statements:
        if isinstance(statement, ast.Assign):
            value = statement.value
            either = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
            if any(last_name(each) in found for each in either):
                found.update(t.id for t in statement.targets if isinstance(t, ast.Name))
    return frozenset(found)


def _calls_around(
    module: ModuleFacts, call: ast.Call, named: ast.expr
) -> Iterator[Mapping[str, ast.expr]]:
    """What each call gives a function that makes an extension of the name it is given.

    One without arguments where the name is none of a parameter.
    """
    function = module.function(call)
    used = {node.id for node in walk(named) if isinstance(node, ast.Name)}
    own = placed(function) if function else []
    if function is None or used.isdisjoint((*own, *(a.arg for a in function.args.kwonlyargs))):
        yield {}
        return
    for each in module.calls_named(function.name):
        if any(isinstance(value, ast.Starred) for value in passed(each)):
            continue
        given = dict(zip(own, each.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in each.keywords if keyword.arg}
        for name in own:
            default = default_of(function.args, name)
            if default is not None:
                given.setdefault(name, default)
        yield given


def _text(
    module: ModuleFacts, node: ast.expr | None, given: Mapping[str, ast.expr], depth: int = 0
) -> str:
    """A text that shows: a constant, a name of one, or what is put together of such; else empty."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name) and depth < 3:
        if node.id in given:
            return _text(module, given[node.id], {}, depth + 1)
        values = [b.value for b in module.names.visible(node)]
        return _text(module, values[0], given, depth + 1) if len(values) == 1 else ""
    parts: list[ast.expr] = []
    if isinstance(node, ast.FormattedValue):
        parts = [node.value]
    elif isinstance(node, ast.JoinedStr):
        parts = node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        right = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        return _filled(_text(module, node.left, given), "%s", module, right, given)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "format" and not node.keywords:
            return _filled(_text(module, node.func.value, given), "{}", module, node.args, given)
    texts = [_text(module, part, given, depth) for part in parts]
    return "".join(texts) if all(texts) else ""


def _filled(
    text: str, mark: str, module: ModuleFacts, values: list[ast.expr], given: Mapping[str, ast.expr]
) -> str:
    """A text with others in the places that are marked; empty where not all of them show."""
    texts = [_text(module, value, given) for value in values]
    between = text.split(mark)
    if not all(texts) or len(between) != len(texts) + 1 or re.search(r"[%{}]", "".join(between)):
        return ""
    return between[0] + "".join(t + b for t, b in zip(texts, between[1:], strict=True))
