"""Who else may read what a method writes into an attribute of its object."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .guards import gradient_unwanted
from .layers import bases_of
from .metadata import METADATA
from .names import last_name
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_MAX_BASES = 8
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Readers(NamedTuple):
    """The functions that read an attribute, those that set it back, and whether others may read it.

    ``running`` are the names of functions that read it, or that call one that does.
    """

    readers: tuple[str, ...]
    setters: tuple[str, ...]
    running: frozenset[str]
    elsewhere: bool


def is_about(module: ModuleFacts, node: ast.AST) -> bool:
    """``self.cache.shape``, ``self.cache is None``: what has no gradient in any case."""
    parent = module.parent(node)
    if isinstance(parent, ast.Compare):
        return isinstance(parent.ops[0], (ast.Is, ast.IsNot))
    return isinstance(parent, ast.Attribute) and parent.attr in METADATA


def readers_of(module: ModuleFacts, function: FunctionNode, owner: ast.Attribute) -> Readers:
    """Who reads ``self.name`` besides a method, or gives it another value."""
    readers: dict[str, None] = {}
    setters: dict[str, None] = {}
    for home, node in _uses(module, function, owner):
        if isinstance(node.ctx, ast.Store) or _method(home, node) == "detach_":
            setters[_user(home, node)] = None
        elif _is_read(home, node):
            readers[_user(home, node)] = None
    running = leading_to(module, readers)
    return Readers(tuple(readers), tuple(setters), running, _may_be_read(module, owner))


def other_reader(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute, own: bool = True
) -> str:
    """Who else may go on from what a method writes into ``self.name``, as in "... reads it".

    Without ``own`` only those that read it of another object: ``source.k_cache`` in another layer.
    """
    for home, node in _uses(module, function, owner):
        if isinstance(node.ctx, ast.Load) and _goes_on(home, node):
            if own or home.names.self_class(node.value) is None:
                return f"`{_user(home, node)}`"
    return "another file" if _may_be_read(module, owner, own) else ""


def _goes_on(module: ModuleFacts, node: ast.Attribute) -> bool:
    """Whether a read of the attribute may take its history along."""
    return (
        _is_read(module, node)
        and _method(module, node) != "detach_"
        and not gradient_unwanted(module, node)
    )


def _uses(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute
) -> Iterator[tuple[ModuleFacts, ast.Attribute]]:
    """Where else than in a method the attribute stands that it writes: of any object, or of it."""
    assert isinstance(owner.value, ast.Name)
    cls = module.names.self_class(owner.value)
    name = owner.attr
    above = set(module.names.with_bases(cls)) - {cls} if cls is not None else set()
    below = _derived(module, cls) if cls is not None else set()
    uses = [(module, node) for node in _named(module.mentioning(name), name)]
    for home, base in _bases_elsewhere(module, cls) if cls is not None else ():
        uses += [(home, node) for node in _named([base], name)]
    for home, node in uses:
        other = home.function(node)
        if other is function or getattr(other, "name", "") == "__init__" or is_about(home, node):
            continue
        own = home.names.self_class(node.value)
        if home is module and own is not None and cls is not None:
            if own is not cls and own not in above and own not in below:
                continue  # an attribute of another class
            if own in above and _is_overridden(module, cls, own, _user(home, node)):
                continue
        yield home, node


def _user(module: ModuleFacts, node: ast.AST) -> str:
    function = module.function(node)
    return function.name if function is not None else "the file"


def _is_read(module: ModuleFacts, node: ast.Attribute) -> bool:
    """Whether the attribute's value goes on from a place; ``h.mean()`` is a method of that name."""
    parent = module.parent(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        return False
    return not _is_written(module, node) and _method(module, node) not in ("detach", "data")


def _may_be_read(module: ModuleFacts, owner: ast.Attribute, own: bool = True) -> bool:
    """Whether another file names the attribute, of an object of this class or of any but its own.

    By the bytes: a name that is called is a method of tensors.  Without ``own``, classes that
    derive from it do not count.
    """
    assert isinstance(owner.value, ast.Name)
    cls = module.names.self_class(owner.value)
    name = re.escape(owner.attr).encode()
    pattern = re.compile(rb"\.%s\b(?!\s*\()" % name)
    apart = re.compile(rb"(?<!\bself)\.%s\b(?!\s*\()" % name)

    def may_read(data: bytes) -> bool:
        known = own and cls is not None and cls.name.encode() in data
        return (pattern if known else apart).search(data) is not None

    return module.project.some(module, may_read)


def _named(places: Iterable[ast.stmt], name: str) -> Iterator[ast.Attribute]:
    for place in places:
        for node in walk(place):
            if isinstance(node, ast.Attribute) and node.attr == name:
                yield node


def _method(module: ModuleFacts, node: ast.Attribute) -> str:
    parent = module.parent(node)
    return parent.attr if isinstance(parent, ast.Attribute) else ""


def _is_written(module: ModuleFacts, node: ast.Attribute) -> bool:
    """Whether a place only overwrites the attribute: ``self.cache.zero_()``."""
    write = module.writes.get(module.statement(node))
    return write is not None and any(each is node for each in walk(write.target))


def _derived(module: ModuleFacts, cls: ast.ClassDef) -> set[ast.ClassDef]:
    """The classes of the file that derive from one."""
    return {
        each for each in module.classes if each is not cls and cls in module.names.with_bases(each)
    }


def _is_overridden(module: ModuleFacts, cls: ast.ClassDef, base: ast.ClassDef, name: str) -> bool:
    """Whether a class has its own method of a name, and does not call that of its base."""
    if not any(isinstance(each, _FUNCTIONS) and each.name == name for each in cls.body):
        return False
    calls = rf"(super\([^)]*\)|\b{base.name})\.{name}\("
    return re.search(calls, module.source(cls)) is None


def _bases_elsewhere(
    module: ModuleFacts, cls: ast.ClassDef, depth: int = 0
) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
    """The classes of other files that a class derives from."""
    for home, base in bases_of(module, cls):
        if home is not module:
            yield home, base
        if depth < _MAX_BASES:
            yield from _bases_elsewhere(home, base, depth + 1)


def leading_to(module: ModuleFacts, readers: Iterable[str]) -> frozenset[str]:
    """The names of functions that lead to one of some."""
    found = set(readers)
    grown = bool(found)
    while grown:
        grown = False
        for call in module.calls if found else ():
            outer = module.function(call)
            if outer is not None and outer.name not in found and last_name(call.func) in found:
                found.add(outer.name)
                grown = True
    return frozenset(found)
