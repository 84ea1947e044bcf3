"""Attributes and elements that cannot be assigned: of frozen classes, of tuples, of properties."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .layers import bases_of, classes_named
from .names import last_name, parameters

if TYPE_CHECKING:
    from .flow import Definition
    from .module import ModuleFacts

_MAX_DEPTH = 4
_FROZEN = ("dataclass", "define", "attrs", "s")


def refuses_field(module: ModuleFacts, target: ast.Attribute) -> str:
    """Why an attribute of an object of a known class cannot be set; empty where it may be."""
    for home, cls in _classes(module, target.value):
        why = _refusal(home, cls, target.attr)
        if why:
            return f"`{cls.name}` {why}"
    return ""


_TUPLES = frozenset("tuple split split_with_sizes chunk unbind tensor_split".split())


def is_tuple(module: ModuleFacts, node: ast.Name) -> bool:
    """Whether a name surely holds a tuple, whose elements cannot be set: ``*states``."""
    function = module.function(node)
    if function is not None and function.args.vararg is not None:
        if function.args.vararg.arg == node.id:
            return all(d.is_parameter for d in _reaching(module, node))
    found = [
        annotation
        for definition in _reaching(module, node)
        if (annotation := _annotation(module, node, definition)) is not None
    ]
    if any(last_name(part) in ("tuple", "Tuple") for part in map(_without_arguments, found)):
        return True
    if any(
        isinstance(d.value, ast.Call) and d.index is None and last_name(d.value.func) in _TUPLES
        for d in _reaching(module, node)
    ):
        return True
    return any(_is_named_tuple(cls) for _, cls in _classes(module, node))


def _without_arguments(annotation: ast.expr) -> ast.expr:
    return annotation.value if isinstance(annotation, ast.Subscript) else annotation


def _refusal(module: ModuleFacts, cls: ast.ClassDef, name: str, depth: int = 0) -> str:
    if _is_named_tuple(cls):
        return "is a named tuple"
    for decorator in cls.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        word = last_name(call.func if call is not None else decorator)
        frozen = call is not None and any(
            k.arg == "frozen" and isinstance(k.value, ast.Constant) and k.value.value is True
            for k in call.keywords
        )
        if word == "frozen" or (frozen and word in _FROZEN):
            return "is frozen"
    methods = [s for s in cls.body if isinstance(s, ast.FunctionDef) and s.name == name]
    words = {last_name(d) for method in methods for d in method.decorator_list}
    if words:
        return f"has `{name}` as a property without a setter" if words == {"property"} else ""
    for home, base in bases_of(module, cls) if depth < _MAX_DEPTH else ():
        why = _refusal(home, base, name, depth + 1)
        if why:
            return why
    return ""


def _is_named_tuple(cls: ast.ClassDef) -> bool:
    return any(
        last_name(base.func if isinstance(base, ast.Call) else base).lower() == "namedtuple"
        for base in cls.bases
    )


def _classes(
    module: ModuleFacts, node: ast.expr, depth: int = 0
) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
    """The classes of the project that an object is of: as declared, or as it was made."""
    if depth == _MAX_DEPTH:
        return
    if isinstance(node, ast.Call):
        yield from _named(module, node.func)
    elif isinstance(node, ast.Name):
        cls = module.names.self_class(node)
        if cls is not None:
            yield module, cls
            return
        for definition in _reaching(module, node):
            annotation = _annotation(module, node, definition)
            if annotation is not None:
                yield from _declared(module, annotation)
            elif definition.value is not None and definition.index is None:
                yield from _classes(module, definition.value, depth + 1)
    elif isinstance(node, ast.Attribute):
        for home, cls in _classes(module, node.value, depth + 1):
            for statement in cls.body:
                if (
                    isinstance(statement, ast.AnnAssign)
                    and last_name(statement.target) == node.attr
                ):
                    yield from _declared(home, statement.annotation)
            for binding in home.names.attributes(cls).get(node.attr, ()):
                if isinstance(binding.node, ast.AnnAssign):
                    yield from _declared(home, binding.node.annotation)
                elif binding.value is not None:
                    yield from _classes(home, binding.value, depth + 1)


def _reaching(module: ModuleFacts, node: ast.Name) -> Iterator[Definition]:
    flow = module.flow(module.function(node) or module.tree)
    yield from flow.reaching(node.id, module.statement(node))


def _annotation(module: ModuleFacts, node: ast.Name, definition: Definition) -> ast.expr | None:
    """What the definition of a name declares it to be."""
    function = module.function(node)
    if isinstance(definition.statement, ast.AnnAssign):
        return definition.statement.annotation
    if not definition.is_parameter or function is None:
        return None
    arguments = (a for a in parameters(function.args) if a.arg == node.id)
    return next((a.annotation for a in arguments), None)


def _declared(
    module: ModuleFacts, annotation: ast.expr
) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
    if isinstance(annotation, ast.Constant):  # "Hidden", of a class further down
        yield from ((module, cls) for cls in module.classes if cls.name == annotation.value)
    if isinstance(annotation, ast.Subscript):
        if last_name(annotation.value) not in ("Optional", "Union", "Annotated"):
            return  # list[Hidden] holds some, and is none
        annotation = annotation.slice
    if isinstance(annotation, ast.Tuple):
        for part in annotation.elts:
            yield from _declared(module, part)
    elif isinstance(annotation, ast.BinOp):
        yield from _declared(module, annotation.left)
        yield from _declared(module, annotation.right)
    else:
        yield from _named(module, annotation)


def _named(module: ModuleFacts, node: ast.expr) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield from classes_named(module, node)
