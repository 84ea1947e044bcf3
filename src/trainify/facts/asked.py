"""Functions that nobody runs without having asked first whether a gradient is wanted.

``if torch.is_grad_enabled(): return self.forward_native(x)`` stands where the kernel's function is
called, in a base class or another file, or in the wrapper that a decorator puts in its place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .grad_mode import own_nodes
from .guards import gradient_unwanted, is_behind_test
from .layers import bases_of, imported_function
from .memo import once
from .names import last_name, self_name
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_TESTS = (b"is_grad_enabled", b"requires_grad", b"autograd.Function", b"is_inference", b".training")
_PLAIN_DECORATORS = frozenset(
    "staticmethod classmethod compile disable script wraps cache lru_cache override".split()
)
_MAX_CALLERS = 3
_MAX_HANDED_ON = 4

_Place = tuple["ModuleFacts", ast.expr]


@once
def runs_behind_tests(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether all that shows to run a function runs it where no gradient is wanted.

    A test of the grad mode must be among that, or an ``autograd.Function``: what runs under
    ``no_grad`` alone may be just what somebody wants to train.
    """
    return _runs_behind_tests(module, function, _MAX_CALLERS)


def _runs_behind_tests(module: ModuleFacts, function: FunctionNode, depth: int) -> bool:
    decorators = [d for d in function.decorator_list if _name(d) not in _PLAIN_DECORATORS]
    if any(_asks(module, decorator) for decorator in decorators):
        return True
    if decorators or not _may_be_asked(module, function):
        return False
    asked = False
    for place in _calls(module, function):
        if place is None:
            return False
        home, call = place
        owner = home.function(call)
        if owner is function:
            continue
        if is_behind_test(home, call):
            asked = True
        elif not gradient_unwanted(home, call):
            if owner is None or not depth or not _runs_behind_tests(home, owner, depth - 1):
                return False
            asked = True
    return asked


def _name(decorator: ast.expr) -> str:
    return last_name(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _may_be_asked(module: ModuleFacts, function: FunctionNode) -> bool:
    """The same, by the bytes of files: none with a test, or one without that calls a function."""
    name = function.name.encode()
    if not _has_test(module.usual.encode(errors="replace")):
        if not module.project.some(module, lambda data: name in data and _has_test(data)):
            return False
    if module.method_class(function) is not None:
        return True
    called = re.compile(rb"(?<!def )\b%s\s*\(" % name)
    return not module.project.some(
        module, lambda data: name in data and not _has_test(data) and called.search(data)
    )


def _has_test(data: bytes) -> bool:
    return any(test in data for test in _TESTS)


# -- decorators -----------------------------------------------------------------------------------


def _asks(module: ModuleFacts, decorator: ast.expr) -> bool:
    """Whether a decorator's wrapper runs what it wraps only behind a test of the grad mode."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    home: ModuleFacts = module
    function: FunctionNode | None = None
    if isinstance(node, ast.Name):
        nodes = [binding.node for binding in module.names.visible(node)]
        function = next((n for n in nodes if isinstance(n, ast.FunctionDef)), None)
    if function is None and isinstance(node, (ast.Name, ast.Attribute)):
        found = imported_function(module, node)
        home, function = found if found is not None else (module, None)
    if function is not None and isinstance(decorator, ast.Call):
        inner = {s.name: s for s in function.body if isinstance(s, ast.FunctionDef)}
        given = [last_name(n.value) for n in own_nodes(function) if isinstance(n, ast.Return)]
        function = inner.get(given[0]) if len(given) == 1 else None
    if function is None or not function.args.args:
        return False
    wrapped = function.args.args[0].arg
    uses = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == wrapped]
    calls = [home.parent(n) for n in uses if not _only_copies_its_name(home, n)]
    return bool(calls) and all(
        isinstance(call, ast.Call)
        and last_name(call.func) == wrapped
        and home.function(call) is not function
        and is_behind_test(home, call)
        for call in calls
    )


def _only_copies_its_name(module: ModuleFacts, node: ast.Name) -> bool:
    """``@functools.wraps(fn)``, ``fn.__name__``."""
    parent = module.parent(node)
    if isinstance(parent, ast.Attribute):
        return True
    return isinstance(parent, ast.Call) and last_name(parent.func) in ("wraps", "update_wrapper")


# -- calls ----------------------------------------------------------------------------------------


def _calls(module: ModuleFacts, function: FunctionNode) -> Iterator[_Place | None]:
    """Where a function is called, by whatever name it was handed on as; None where it got lost."""
    cls = module.method_class(function)
    if cls is None:
        if module.parent(function) is not module.tree:
            yield None
            return
        mentions = _of_function(module, function)
    elif function.name in ("forward", "__call__") or "getattr(" in module.source(cls):
        yield None
        return
    else:
        mentions = _of_attribute(module, cls, function.name)
    for home, node in mentions:
        yield from _handed_on(home, node, _MAX_HANDED_ON)


def _of_function(module: ModuleFacts, function: FunctionNode) -> Iterator[_Place]:
    """Where a function at the top of a file is mentioned, in any file."""
    here = Path(module.path).absolute()
    for home in module.project.mentioning(module, function.name):
        own = Path(home.path).absolute() == here
        aliases = (n for n in _nodes(home, function.name) if isinstance(n, ast.alias))
        names = {n.asname or n.name for n in aliases if n.name == function.name}
        names.add(function.name)
        for node in (node for name in names for node in _nodes(home, name)):
            if not isinstance(node, (ast.Name, ast.Attribute)) or last_name(node) not in names:
                continue
            if isinstance(node, ast.Name) and own:
                if any(b.node is function for b in home.names.visible(node)):
                    yield home, node
                continue
            found = imported_function(home, node)
            if found is not None and Path(found[0].path).absolute() == here:
                if found[1].name == function.name:
                    yield home, node


def _of_attribute(module: ModuleFacts, cls: ast.ClassDef, name: str) -> Iterator[_Place]:
    """Where an attribute of a class's objects is read: by their methods, or off anything else."""
    family = {cls.name, *(base.name for _, base in _above(module, cls))}
    for home in module.project.mentioning(module, *family, containing=name.encode()):
        for node in _nodes(home, name):
            if not isinstance(node, ast.Attribute) or node.attr != name:
                continue
            if not isinstance(node.ctx, ast.Load):
                continue
            owner = home.method_class(_method_around(home, node))
            own = isinstance(node.value, ast.Name) and node.value.id == self_name(
                _method_around(home, node)
            )
            if own and owner is not None and not _is_related(module, cls, home, owner):
                continue
            yield home, node


def _nodes(module: ModuleFacts, name: str) -> Iterator[ast.AST]:
    """The nodes of a file among which a name may be."""
    return (node for statement in module.mentioning(name) for node in walk(statement))


def _method_around(module: ModuleFacts, node: ast.AST) -> FunctionNode | None:
    function = module.function(node)
    while function is not None and module.method_class(function) is None:
        function = module.function(function)
    return function


def _above(
    module: ModuleFacts, cls: ast.ClassDef, depth: int = 0
) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
    for home, base in bases_of(module, cls) if depth < _MAX_HANDED_ON else ():
        if base is not cls:
            yield home, base
            yield from _above(home, base, depth + 1)


def _is_related(
    module: ModuleFacts, cls: ast.ClassDef, home: ModuleFacts, other: ast.ClassDef
) -> bool:
    """Whether one of two classes derives from the other, or is it."""
    one, two = (str(Path(m.path).absolute()) for m in (module, home))
    if (one, cls.name) == (two, other.name):
        return True
    return any(
        (str(Path(m.path).absolute()), base.name) == wanted
        for start, wanted in (((module, cls), (two, other.name)), ((home, other), (one, cls.name)))
        for m, base in _above(*start)
    )


def _handed_on(module: ModuleFacts, node: ast.expr, depth: int) -> Iterator[_Place | None]:
    """The calls of what an expression holds: right there, or under the names that it gets."""
    parent = module.parent(node)
    while isinstance(parent, (ast.IfExp, ast.BoolOp)) and node is not getattr(parent, "test", None):
        node = parent
        parent = module.parent(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        yield module, parent
    elif isinstance(parent, ast.Compare) or (
        isinstance(parent, ast.Attribute) and parent.attr.startswith("__")
    ):
        return
    elif depth and isinstance(parent, ast.Return):
        function = module.function(parent)
        for place in _calls(module, function) if function is not None else [None]:
            if place is None:
                yield None
            else:
                yield from _handed_on(*place, depth - 1)
    elif depth and isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        yield from _named(module, parent.targets[0], depth - 1)
    else:
        yield None


def _named(module: ModuleFacts, target: ast.expr, depth: int) -> Iterator[_Place | None]:
    """The calls of what a name of a function, or an attribute of ``self``, holds."""
    function = module.function(target)
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        cls = module.names.self_class(target.value)
        if cls is None:
            yield None
        else:
            for home, node in _of_attribute(module, cls, target.attr):
                yield from _handed_on(home, node, depth)
    elif isinstance(target, ast.Name) and function is not None:
        for load in walk(function):
            if isinstance(load, ast.Name) and load.id == target.id:
                if isinstance(load.ctx, ast.Load):
                    yield from _handed_on(module, load, depth)
    else:
        yield None
