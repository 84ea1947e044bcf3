"""Which extension an expression holds, wherever it was loaded.

``ext`` after ``from ._ext import ext``, ``_ext.get_ext()``, ``self.ext``, ``Kernels.ext``: names,
attributes and what functions return are followed to the call that loads it, also into other files.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..imported_names import Imported, imports_of
from ..memo import once
from ..names import Binding, base_name, last_name
from ..walk import walk
from .extension import Extension
from .loaded import loaded, loads, tells_loads

if TYPE_CHECKING:
    from ..module import FunctionNode, ModuleFacts
    from ..native import Effect
    from ..project import Project

_MAX_DEPTH = 12
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PROPERTIES = ("property", "cached_property", "lazy_property", "classproperty")


class Held(NamedTuple):
    """An extension that was loaded, or one of its functions."""

    extension: Extension
    function: str = ""


def hands_on(data: bytes, path: str, project: Project) -> bool:
    """Whether a file may use what another one loads, by the bytes of those that it imports."""
    return any(True for _ in _giving(data, path, project))


def _giving(data: bytes, path: str, project: Project) -> Iterator[str]:
    """The names of a file that may hold what another one loads; ``*`` where any may."""
    by_name = b"getattr(" in data
    for each in imports_of(data):
        local = each.local
        used = (
            (local == b"*" and not path.endswith("__init__.py"))  # which hands it on
            or local + b"." in data
            or (not local[:1].isupper() and local + b"(" in data)
            or (by_name and b"getattr(" + local in data)
        )
        if used and _may_give(project, path, each):
            yield local.decode().partition(".")[0]


def _may_give(project: Project, path: str, imported: Imported) -> bool:
    """Whether an import leads to a file that loads an extension, past a package's own."""
    dots, owner, name, _ = imported
    folder = path.rsplit(os.sep, len(dots))[0] if dots else ""
    taken = name.decode()
    file = _file(project, path, folder, owner.decode())
    if taken and (file is None or file.name == "__init__.py"):
        inner = _file(project, path, folder, b".".join(filter(None, (owner, name))).decode())
        if inner is not None:
            file, taken = inner, ""
    if file is None:
        return False
    if project.tells(file, tells_loads, ""):
        return True
    return file.name == "__init__.py" and _hands_on(project, file, taken)


def _file(project: Project, path: str, folder: str, module: str) -> Path | None:
    if not folder:
        return project.find_file(path, module)
    place = os.path.join(folder, *module.split("."))  # most are no files, and need no object
    for file in (os.path.join(place, "__init__.py"), f"{place}.py"):
        if os.path.isfile(file):
            return Path(file)
    return None


def _taken_from_loaders(project: Project, file: Path) -> frozenset[str]:
    """The names that a file gives what it imports from one that loads an extension."""
    known = project.taken_from_loaders.get(file)
    if known is None:
        project.taken_from_loaders[file] = frozenset()  # of what imports itself
        known = project.taken_from_loaders[file] = frozenset(
            known_as.partition(".")[0] or inner.stem
            for inner, given, known_as in project.imported(file)
            if project.tells(inner, tells_loads, "")
            or (inner.name == "__init__.py" and _hands_on(project, inner, given))
        )
    return known


def _hands_on(project: Project, file: Path, name: str) -> bool:
    names = _taken_from_loaders(project, file)
    return bool(names) and (name in ("", "*") or name in names or "*" in names)


def effect_of(module: ModuleFacts, callee: ast.expr) -> Effect | None:
    """What a function of a loaded extension does; where it may be one of several, if all agree."""
    if not loads(module) and not _names(module):
        return None
    held = list(dict.fromkeys(_held(module, callee, 0)))
    effects = [each.extension.functions.get(each.function) for each in held]
    first = effects[0] if effects else None
    if first is None or any(e is None or not first.agrees(e) for e in effects):
        return None
    return first


@once
def _names(module: ModuleFacts) -> frozenset[str]:
    data = module.usual.encode(errors="replace")
    return frozenset(_giving(data, module.path, module.project))


def _is_given(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether what an expression begins with may come from a file that loads an extension."""
    names = _names(module)
    return bool(names) and (base_name(node) in names or "*" in names)


def _held(module: ModuleFacts, node: ast.expr, depth: int) -> Iterator[Held]:
    if depth > _MAX_DEPTH:
        return
    depth += 1
    if isinstance(node, ast.Call):
        if node in loads(module):
            yield Held(loaded(module, node))
        elif last_name(node.func) == "getattr" and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield from _of(_held(module, node.args[0], depth), name.value)
        else:
            yield from _called(module, node.func, depth)
    elif isinstance(node, (ast.IfExp, ast.BoolOp)):
        arms = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
        for arm in arms:
            yield from _held(module, arm, depth)
    elif isinstance(node, ast.NamedExpr):
        yield from _held(module, node.value, depth)
    elif isinstance(node, ast.Name):
        for binding in _bindings(module, node):
            yield from _bound(module, binding, depth)
    elif isinstance(node, ast.Attribute):
        cls = _class(module, node.value)
        if cls is not None:
            yield from _member(module, cls, node.attr, False, depth)
            return
        within = list(_of(_held(module, node.value, depth), node.attr))
        yield from within
        if not within and _is_given(module, node):
            for target in module.resolve(node):
                yield from _elsewhere(module, target.name, False, depth)


def _of(held: Iterable[Held], name: str) -> Iterator[Held]:
    """The functions of a name of extensions."""
    return (each._replace(function=name) for each in held if not each.function)


def _bindings(module: ModuleFacts, node: ast.Name) -> Sequence[Binding]:
    """What a name is bound to, but imports that lead to no extension."""
    given = _is_given(module, node)
    found = [b for b in module.names.visible(node) if given or not _is_import(b)]
    if not found and not given:
        return ()
    return _last(found) or [Binding(node, target.name) for target in module.resolve(node)]


def _last(found: Sequence[Binding]) -> Sequence[Binding]:
    """The bindings that none without a condition follows."""
    always = [index for index, binding in enumerate(found) if binding.always]
    return found[always[-1] :] if always else found


def _is_import(binding: Binding) -> bool:
    return isinstance(binding.node, (ast.Import, ast.ImportFrom))


def _bound(module: ModuleFacts, binding: Binding, depth: int) -> Iterator[Held]:
    if binding.value is not None:
        yield from _held(module, binding.value, depth)
    elif binding.qualified is not None and not isinstance(binding.node, ast.ClassDef):
        yield from _elsewhere(module, binding.qualified, False, depth)


def _called(module: ModuleFacts, function: ast.expr, depth: int) -> Iterator[Held]:
    """What a call of a function gives."""
    if isinstance(function, ast.Name):
        for binding in _bindings(module, function):
            if isinstance(binding.node, _FUNCTIONS):
                yield from _returned(module, binding.node, depth)
            elif isinstance(binding.value, ast.Lambda):
                yield from _held(module, binding.value.body, depth)
            elif binding.qualified is not None:
                yield from _elsewhere(module, binding.qualified, True, depth)
    elif isinstance(function, ast.Attribute):
        cls = _class(module, function.value)
        if cls is not None:
            yield from _member(module, cls, function.attr, True, depth)
            return
        for target in module.resolve(function) if _is_given(module, function) else ():
            yield from _elsewhere(module, target.name, True, depth)


def _returned(module: ModuleFacts, function: FunctionNode, depth: int) -> Iterator[Held]:
    for part in walk(function):
        if isinstance(part, ast.Return) and part.value is not None:
            yield from _held(module, part.value, depth)


# -- classes --------------------------------------------------------------------------------------


def _class(module: ModuleFacts, node: ast.expr) -> ast.ClassDef | None:
    """The class whose attributes an expression has: ``self``, ``cls``, it or an object of it."""
    if not isinstance(node, ast.Name):
        return None
    cls = module.names.self_class(node)
    if cls is None and node.id == "cls":
        cls = module.method_class(module.function(node))
    if cls is not None:
        return cls
    return _class_of(module, module.names.visible(node))


def _class_of(module: ModuleFacts, found: Sequence[Binding]) -> ast.ClassDef | None:
    """The class of the file that a name is bound to, or of the object that it is."""
    if len(found) != 1:
        return None
    node, value = found[0].node, found[0].value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        made = module.names.visible(value.func)
        node = made[0].node if len(made) == 1 else node
    return node if isinstance(node, ast.ClassDef) else None


def _member(
    module: ModuleFacts, cls: ast.ClassDef, name: str, called: bool, depth: int
) -> Iterator[Held]:
    """What an attribute of a class or of its objects holds, or what calling it gives."""
    if depth > _MAX_DEPTH:
        return
    for binding in module.names.attributes(cls).get(name, ()):
        if isinstance(binding.node, _FUNCTIONS):
            decorators = map(last_name, binding.node.decorator_list)
            if called or any(decorator in _PROPERTIES for decorator in decorators):
                yield from _returned(module, binding.node, depth)
        elif not called:
            yield from _bound(module, binding, depth)
    if not called:
        for value in _set_outside(module, cls, name):
            yield from _held(module, value, depth)
    for base in module.names.own_bases(cls):
        yield from _member(module, base, name, called, depth + 1)


def _set_outside(module: ModuleFacts, cls: ast.ClassDef, name: str) -> Iterator[ast.expr]:
    """What is assigned to ``Kernels.ext``, and to ``cls.ext`` in its class methods."""
    for statement in module.statements:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Attribute) and target.attr == name:
                    owner = target.value
                    of_class = isinstance(owner, ast.Name) and owner.id in ("cls", cls.name)
                    if of_class and _class(module, owner) is cls:
                        yield statement.value


# -- other files ----------------------------------------------------------------------------------


def _elsewhere(module: ModuleFacts, qualified: str, called: bool, depth: int) -> Iterator[Held]:
    """What a qualified name holds in the file of the project that it leads to."""
    parts = qualified.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        owner = ".".join(parts[:cut])
        if owner == module.module_name:
            return
        path = module.project.find_module(module, owner)
        if path is not None:
            yield from _in_file(module.project, path, tuple(parts[cut:]), called, depth)
            return


def _in_file(
    project: Project, path: Path, names: tuple[str, ...], called: bool, depth: int
) -> Sequence[Held]:
    """The same of names in a file: ``ext``, ``Kernels.ext``; asked once."""
    key = path, names, called
    if key not in project.held:
        project.held[key] = ()  # of what leads back to itself
        gives = project.tells(path, tells_loads, "") or _taken_from_loaders(project, path)
        if depth <= _MAX_DEPTH and gives:
            other = project.load(path)
            if other is not None:
                project.held[key] = tuple(_at_top(other, names, called, depth + 1))
    return project.held[key]


def _at_top(
    module: ModuleFacts, names: tuple[str, ...], called: bool, depth: int
) -> Iterator[Held]:
    top = module.names.bindings(module.tree)
    first, rest = names[0], names[1:]
    stars = [
        Binding(star.node, star.qualified.removesuffix("*") + first)
        for star in top.get("*", ())
        if star.qualified is not None
    ]
    found = _last(top.get(first, ())) or stars
    cls = _class_of(module, found)
    if cls is not None and rest:
        held = _member(module, cls, rest[0], called and len(rest) == 1, depth)
        yield from _named(held, rest[1:])
        return
    for binding in found:
        if isinstance(binding.node, _FUNCTIONS):
            if called and not rest:
                yield from _returned(module, binding.node, depth)
        elif binding.qualified is not None:
            yield from _elsewhere(module, ".".join((binding.qualified, *rest)), called, depth)
        elif called and not rest:
            if isinstance(binding.value, ast.Lambda):
                yield from _held(module, binding.value.body, depth)
        else:
            yield from _named(_bound(module, binding, depth), rest)


def _named(held: Iterable[Held], names: tuple[str, ...]) -> Iterable[Held]:
    """The functions of a name, or the extensions themselves where there is none."""
    if not names:
        return held
    return _of(held, names[0]) if len(names) == 1 else ()
