"""Whether a table is made from weights that learn: a rotary table in an ``nn.Parameter``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .called import functions_of, methods_named, modules_of
from .frozen import is_false, is_frozen
from .grad_mode import scope_around
from .layers import bases_of, classes_named, made_by
from .memo import once
from .metadata import TRAITS
from .names import last_name
from .views import is_view_method
from .walk import statements, walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_STOPS = ("detach", "item", "tolist", "numpy", "argmax", "argsort", "long", "int")
_WITHOUT_HISTORY = TRAITS | {"data", "grad"}
_MAX_DEPTH = 5


@once
def is_learned(module: ModuleFacts, node: ast.expr, depth: int = _MAX_DEPTH) -> bool:
    """Whether a value surely depends on an ``nn.Parameter`` that requires a gradient.

    It is followed through names, own methods, modules of the project, and what callers pass.
    """
    if depth == 0:
        return False
    if isinstance(node, ast.Attribute):
        if node.attr in _WITHOUT_HISTORY:
            return False
        cls = module.names.self_class(node.value)
        if cls is None:
            return is_learned(module, node.value, depth)
        return _holds_parameter(module, cls, node.attr, _MAX_DEPTH) and not is_frozen(
            module, cls, node.attr
        )
    if isinstance(node, ast.Name):
        return any(is_learned(home, value, depth - 1) for home, value in _values(module, node))
    if isinstance(node, (ast.Compare, ast.Constant, ast.Lambda)):
        return False
    if isinstance(node, ast.Call):
        if last_name(node.func) in _STOPS:
            return False
        if _is_layer_of_torchs(module, node.func):
            return True
        if any(is_learned(home, value, depth - 1) for home, value in _returned(module, node)):
            return True
        return any(is_learned(module, each, depth) for each in _operands(node))
    if isinstance(node, ast.Subscript):
        return is_learned(module, node.value, depth)
    children = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    return any(is_learned(module, child, depth) for child in children)


def _is_layer_of_torchs(module: ModuleFacts, callee: ast.expr) -> bool:
    """``self.scale``, made as ``nn.Linear(d, 1)``: what it gives depends on its weights."""
    owner = callee.value if isinstance(callee, ast.Attribute) else None
    cls = module.names.self_class(owner)
    if cls is None or not isinstance(callee, ast.Attribute):
        return False
    layers = [made for made in modules_of(module, callee) if isinstance(made, ast.Call)]
    return any(
        made_by(module, made) == "weights" and not any(classes_named(module, made.func))
        for made in layers
    ) and not is_frozen(module, cls, callee.attr)


def _holds_parameter(module: ModuleFacts, cls: ast.ClassDef, attribute: str, depth: int) -> bool:
    """Whether a class, or the base that sets an attribute where it does not, makes it a parameter.

    One that a base freezes is not.
    """
    bindings = module.names.attributes(cls).get(attribute, ())
    if _registers(module, cls, attribute):
        return True
    if bindings or depth == 0:
        return any(b.value is not None and _is_parameter(module, b.value) for b in bindings)
    return any(
        _holds_parameter(home, base, attribute, depth - 1) and not is_frozen(home, base, attribute)
        for home, base in bases_of(module, cls)
        if base is not cls
    )


def _registers(module: ModuleFacts, cls: ast.ClassDef, attribute: str) -> bool:
    """``self.register_parameter("scale", nn.Parameter(scale))``."""
    return "register_parameter" in module.usual and any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "register_parameter"
        and len(node.args) == 2
        and getattr(node.args[0], "value", None) == attribute
        and _is_parameter(module, node.args[1])
        for node in walk(cls)
    )


def _is_parameter(module: ModuleFacts, made: ast.expr) -> bool:
    """``nn.Parameter(table)``, unless it says that it requires no gradient."""
    while (
        isinstance(made, ast.Call)
        and isinstance(made.func, ast.Attribute)
        and is_view_method(made.func.attr)
    ):
        made = made.func.value
    return (
        isinstance(made, ast.Call)
        and module.is_name(made.func, "torch.nn.Parameter", "torch.nn.parameter.Parameter")
        and not any(
            is_false(value) for value in (*made.args[1:], *(k.value for k in made.keywords))
        )
    )


def _operands(call: ast.Call) -> Iterator[ast.expr]:
    """What a function of tensors works on: ``torch.cat((cos, sin))``, ``freqs.cos()``."""
    if isinstance(call.func, ast.Attribute):
        yield call.func.value
    for argument in (*call.args, *(k.value for k in call.keywords)):
        yield argument.value if isinstance(argument, ast.Starred) else argument


def _values(module: ModuleFacts, name: ast.Name) -> Iterator[tuple[ModuleFacts, ast.expr]]:
    """What a local name is given; by callers, where it is a parameter."""
    statement = module.statement(name)
    function = module.function(statement)
    for definition in module.flow(function or module.tree).reaching(name.id, statement):
        if definition.value is not None and definition.statement is not None:
            if scope_around(module, definition.statement) is None:
                value = definition.value
                several = isinstance(value, (ast.Tuple, ast.List)) and definition.index is not None
                if several and definition.index < len(value.elts):  # type: ignore[attr-defined,operator]
                    value = value.elts[definition.index]  # type: ignore[attr-defined]
                yield module, value
        elif definition.is_parameter and function is not None and name.id != "self":
            for home, call in module.project.calls_of(module, function, _makes_parameters):
                given = module.project.argument(module, function, call, name.id)
                if given is not None and scope_around(home, call) is None:
                    yield home, given


def _makes_parameters(data: bytes) -> bool:
    return b"Parameter(" in data


def _returned(module: ModuleFacts, call: ast.Call) -> Iterator[tuple[ModuleFacts, ast.expr]]:
    """What the functions give that a call runs, as far as they are of the project."""
    for home, function in _run_by(module, call):
        if not any(scope_around(home, s) for s in function.body[:1]):
            for statement in statements(function):
                if isinstance(statement, ast.Return) and statement.value is not None:
                    yield home, statement.value


def _run_by(module: ModuleFacts, call: ast.Call) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    yield from functions_of(module, call.func)
    for made in modules_of(module, call.func):
        if isinstance(made, ast.Call):
            for home, cls in classes_named(module, made.func):
                yield from methods_named(home, cls, "forward")
