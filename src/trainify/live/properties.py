"""Properties that classes get for what their instances hold: weights that were derived once.

Which file is rewritten so is among what an audit has confirmed.  A property is found before what an
instance holds under its name, which stays where it is.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..facts.names import is_none
from ..facts.walk import statements, walk
from ..passes.derived_weights.once import ON_LOADING
from .inplace import original_code
from .reach import CONSTRUCTORS, Member, members
from .rewritten import Definition, Refused, Rewritten, Settings, definition_of, source_of

KIND = "derived"
"""Of a :class:`~trainify.findings.Proven` place."""


@dataclass(frozen=True)
class Property:
    """One that a class gets, by the file as it is rewritten.

    ``makers`` are the methods, constructors among them, that gave instances the attribute.
    """

    owner: type
    name: str
    source: Rewritten
    definition: Definition
    makers: tuple[Member, ...]

    @property
    def written(self) -> property:
        """The property itself; raises :class:`Refused` where it needs locals around the class."""
        code = self.definition.code
        if code.co_freevars:
            raise Refused(f"{self.owner.__qualname__}: it needs a local name of what is around it")
        function = FunctionType(code, self.makers[0].function.__globals__, self.name)
        function.__qualname__ = f"{self.owner.__qualname__}.{self.name}"
        function.__module__ = self.owner.__module__
        return property(function)

    @property
    def rewritten_makers(self) -> tuple[Member, ...]:
        """Those that may be called again, and must not set it."""
        return tuple(maker for maker in self.makers if maker.name not in CONSTRUCTORS)


def properties(cls: type[nn.Module], settings: Settings) -> dict[str, Property]:
    """By ``module:qualified.name``; none where nothing of the kind is confirmed."""
    if not any(each.place.kind == KIND for each in settings.confirmed):
        return {}
    return {
        f"{base.__module__}:{base.__qualname__}.{each.name}": each
        for base in cls.__mro__
        for each in _of(base, settings)
    }


def _of(owner: type, settings: Settings) -> Iterator[Property]:
    found: dict[str, tuple[Rewritten, Definition, list[Member]]] = {}
    for member in members(owner):
        code = original_code(member.function)
        try:
            source = source_of(code, settings)
            changed = source.of(member.function, code)
        except Refused:
            continue
        if changed is None:
            continue
        for name, definition in source.properties_beside(code).items():
            old, new = changed
            if _sets(old.node, name) and not _sets(new.node, name):
                found.setdefault(name, (source, definition, []))[2].append(member)
    for name, (source, definition, by) in found.items():
        yield Property(owner, name, source, definition, tuple(by))


def refresh(module: nn.Module, cls: type[nn.Module], settings: Settings) -> None:
    """Have a module hold what its properties give now, for whoever reads it without these.

    ``cls`` is the class without them.
    """
    for each in properties(cls, settings).values():
        held = module._buffers if each.name in module._buffers else vars(module)
        old = held.get(each.name)
        if not isinstance(old, Tensor):
            continue
        try:
            with torch.set_grad_enabled(old.grad_fn is not None):
                now = each.written.__get__(module)
        except Exception:  # of what it was made of, something is gone
            continue
        if old.shape != now.shape or not torch.equal(old, now):
            held[each.name] = now if old.grad_fn is not None else now.detach().clone()


def stands_for(module: nn.Module, attribute: str, settings: Settings) -> bool:
    """Whether a module's class gets a property that gives what the module holds."""
    found = properties(type(module), settings).values()
    for each in (each for each in found if each.name == attribute):
        held = module._buffers.get(attribute, vars(module).get(attribute))
        try:
            with torch.no_grad():
                now = each.written.__get__(module)
            torch.testing.assert_close(now, held, check_layout=False, check_stride=False)
        except Exception:  # it is another, or what it was made of is gone
            return False
        return True
    return False


class Made(NamedTuple):
    """Where a module gets an attribute: the file, the line, and the method."""

    path: str
    line: int
    method: str


def made_at(module: nn.Module, attribute: str) -> Made | None:
    """The only statement that gives a module an attribute; None for several, or none."""
    found = makers(module, attribute)
    return found[0] if len(found) == 1 else None


def makers(module: nn.Module, attribute: str) -> list[Made]:
    """The statements of its methods that give a module an attribute other than None.

    None where one of the methods has no source.
    """
    found: list[Made] = []
    for member in (m for cls in type(module).__mro__ for m in members(cls)):
        code = original_code(member.function)
        if attribute in (*code.co_names, *code.co_consts):
            try:
                _, function = definition_of(code)
            except Refused:
                return []
            found += [
                Made(code.co_filename, statement.lineno, member.name)
                for statement in statements(function)
                if isinstance(statement, (ast.Assign, ast.Expr)) and _sets(statement, attribute)
                if not is_none(getattr(statement, "value", None))
            ]
    return found


def is_all_that_is_made(module: nn.Module, weight: str, attributes: Collection[str]) -> bool:
    """Whether methods of a module read a weight of it for some attributes, and for nothing else.

    What else is made of it, as the norms of its rows, would go on without it.  The forward, which
    reads nothing of it, is not asked, nor what fills weights in place when a module is made.
    """
    part = weight.partition(".")[0]
    for member in (m for cls in type(module).__mro__ for m in members(cls)):
        code = original_code(member.function)
        if member.name == "forward" or part not in code.co_names:
            continue
        try:
            _, function = definition_of(code)
        except Refused:
            return False
        reading = [each for each in statements(function) if _reads(each, part)]
        if not all(_is_only_for(function, each, attributes, set()) for each in reading):
            return False
    return True


def _reads(statement: ast.stmt, attribute: str) -> bool:
    """Whether a statement itself, and none that is in it, reads an attribute of anything."""
    inside = set(statements(statement))
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.ctx, ast.Load)
        and not any(node in set(walk(each)) for each in inside)
        for node in walk(statement)
    )


def _is_only_for(
    function: ast.AST, statement: ast.stmt, attributes: Collection[str], seen: set[ast.stmt]
) -> bool:
    """Whether a statement makes some attributes, or local names for these, or fills weights."""
    if statement in seen or any(_sets(statement, each) for each in attributes):
        return True
    seen.add(statement)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func).endswith("_")
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [each for target in targets for each in getattr(target, "elts", [target])]
    if not names or not all(isinstance(each, ast.Name) for each in names):
        return False
    made = {each.id for each in names if isinstance(each, ast.Name)}
    users = [
        each
        for each in statements(function)
        if any(isinstance(n, ast.Name) and n.id in made and isinstance(n.ctx, ast.Load)
               for n in walk(each))
        and not any(True for _ in statements(each))
    ]  # fmt: skip
    return all(_is_only_for(function, each, attributes, seen) for each in users)


def is_for_construction(module: nn.Module, method: str) -> bool:
    """Whether a method constructs a module, is called where one is constructed, or by a loader."""
    constructors = {
        name
        for cls in type(module).__mro__
        for member in members(cls)
        if member.name in CONSTRUCTORS
        for name in original_code(member.function).co_names
    }
    return method in (*CONSTRUCTORS, *constructors) or ON_LOADING.search(method) is not None


def _sets(node: ast.AST, name: str) -> bool:
    """Whether a method, or a statement, gives an instance an attribute, or a buffer."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr == name and isinstance(each.ctx, ast.Store))
        or (isinstance(each, ast.Constant) and each.value == name)
        for each in walk(node)
    )
