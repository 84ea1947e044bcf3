"""Tensors that outlive a call: buffers of a module, and what a function hands out repeatedly."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from .cached import dumped
from .flow import Definition
from .graph import ABOUT, DETACHING, Graph, results
from .learning import is_tensor_method
from .names import last_name, passed
from .trainable import is_buffer, submodules
from .views import is_allocation
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

E = TypeVar("E", bound=ast.expr)

_MEMOIZERS = ("functools.lru_cache", "functools.cache")


def is_kept_buffer(module: ModuleFacts, node: ast.Attribute) -> bool:
    """Whether ``self.name`` is a buffer, registered or not, and the same from call to call.

    A method that assigns another tensor to it, or code that does so from outside, may cut its
    graph.
    """
    cls = module.names.self_class(node.value)
    if cls is None or node.attr in module.rebound:
        return False
    bindings = module.names.inherited(cls, node.attr)
    if is_buffer(module, node):
        return not bindings and len(registering(module, cls, node.attr)) == 1
    return bool(bindings) and all(
        is_allocation(b.value) and getattr(module.function(b.node), "name", "") == "__init__"
        for b in bindings
    )


def is_container(module: ModuleFacts, node: ast.Attribute) -> bool:
    """Whether ``self.name`` is a list, a tuple or a dict, of tensors perhaps."""
    cls = module.names.self_class(node.value)
    bindings = module.names.inherited(cls, node.attr) if cls is not None else []
    return any(
        isinstance(b.value, (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp))
        or (
            isinstance(b.value, ast.Call)
            and isinstance(b.value.func, ast.Name)
            and b.value.func.id in ("list", "tuple", "dict")
        )
        for b in bindings
    )


def registering(module: ModuleFacts, cls: ast.ClassDef, name: str) -> set[FunctionNode | None]:
    """The methods of a class, and of those it derives from, that register a buffer.

    All but the first make it anew.
    """
    classes = module.names.with_bases(cls)
    return {
        module.function(call)
        for call in module.calls_named("register_buffer")
        if call.args
        and isinstance(call.args[0], ast.Constant)
        and call.args[0].value == name
        and module.method_class(module.function(call)) in classes
    }


def is_same(node: ast.AST, owner: E) -> TypeGuard[E]:
    """Whether a node is the same expression, read or written: ``self.cache``, ``caches[0]``."""
    if not isinstance(node, type(owner)) or last_name(node) != last_name(owner):
        return False
    return dumped(node) == dumped(owner)


def takes_over(
    module: ModuleFacts,
    function: FunctionNode,
    value: ast.expr,
    at: ast.stmt,
    owner: ast.Attribute,
) -> bool:
    """Whether a value may carry the graph of what an attribute held, not only its numbers."""
    steps = Graph(module, function).back_from([(value, at)])
    return any(step.cut is None and is_same(step.node, owner) for step in steps)


_NO_GRAPH = ABOUT | DETACHING


def surely_takes_over(
    module: ModuleFacts,
    function: FunctionNode,
    value: ast.expr,
    at: ast.stmt,
    owner: ast.Attribute,
) -> bool:
    """The same where only operations of torch's and layers lie between: no other call may cut."""
    ways = _Ways(module, function, owner)
    return ways.take(value, at) and takes_over(module, function, value, at, owner)


class _Ways:
    """What a value of a function is computed from, by operations of torch's and layers alone."""

    def __init__(self, module: ModuleFacts, function: FunctionNode, owner: ast.Attribute) -> None:
        self._module = module
        self._function = function
        self._owner = owner
        self._seen: set[tuple[ast.AST, ast.stmt]] = set()
        cls = module.method_class(function)
        self._layers = submodules(module, cls) if cls is not None else {}

    def _any_take(self, nodes: Iterable[ast.expr], at: ast.stmt) -> bool:
        return any(self.take(node, at) for node in nodes)

    def take(self, node: ast.expr, at: ast.stmt) -> bool:
        """Whether one of them leads to what the owner has."""
        if (node, at) in self._seen:
            return False
        self._seen.add((node, at))
        if is_same(node, self._owner):
            return True
        if isinstance(node, ast.Name):
            return any(
                d.value is not None and d.statement is not None and self.take(d.value, d.statement)
                for d in self._module.flow(self._function).reaching(node.id, at)
            )
        if isinstance(node, ast.BinOp):
            return self._any_take((node.left, node.right), at)
        if isinstance(node, ast.UnaryOp):
            return self.take(node.operand, at)
        if isinstance(node, ast.IfExp):
            return self._any_take((node.body, node.orelse), at)
        if isinstance(node, (ast.Subscript, ast.Starred)):
            return self.take(node.value, at)
        if isinstance(node, (ast.Tuple, ast.List)):
            return self._any_take(node.elts, at)
        return isinstance(node, ast.Call) and self._takes_call(node, at)

    def _takes_call(self, node: ast.Call, at: ast.stmt) -> bool:
        called, module = node.func, self._module
        if last_name(called) in _NO_GRAPH:
            return False
        if any(t.name.startswith("torch.") for t in module.resolve(called)):
            return self._any_take(passed(node), at)
        if not isinstance(called, ast.Attribute):
            return False
        if module.names.self_class(called.value):
            return called.attr in self._layers and self._any_take(passed(node), at)
        return is_tensor_method(called.attr) and self._any_take((called.value, *passed(node)), at)


def is_made_anew(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute, statement: ast.stmt
) -> bool:
    """Whether each call gives an attribute a value of its own before a statement runs.

    ``self.h = torch.zeros_like(self.h)`` ahead of a loop: what the last call left is gone.
    """
    current: ast.AST = statement
    while current is not function:
        parent = module.parent(current)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and current in block:
                before = block[: block.index(current)]
                if any(_makes_anew(module, function, each, owner) for each in before):
                    return True
        if parent is None:
            return False
        current = parent
    return False


def _makes_anew(
    module: ModuleFacts, function: FunctionNode, statement: ast.stmt, owner: ast.Attribute
) -> bool:
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return any(_makes_anew(module, function, each, owner) for each in statement.body)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and is_same(called.value, owner):
            return called.attr in ("detach_", "clear")
        return _registers(module, function, statement, owner)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    parts = [p for t in targets for p in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return any(is_same(part, owner) for part in parts) and not takes_over(
        module, function, statement.value, statement, owner
    )


def _registers(
    module: ModuleFacts, function: FunctionNode, statement: ast.Expr, owner: ast.Attribute
) -> bool:
    """``self.register_buffer("h", torch.zeros(...))`` in the middle of a forward."""
    call = statement.value
    assert isinstance(call, ast.Call)
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "register_buffer"
        and ast.dump(call.func.value) == ast.dump(owner.value)
        and len(call.args) > 1
        and isinstance(call.args[0], ast.Constant)
        and call.args[0].value == owner.attr
        and not takes_over(module, function, call.args[1], statement, owner)
    )


def handed_out(
    module: ModuleFacts, function: FunctionNode, definition: Definition
) -> ast.Call | None:
    """The call by which a name got a memoized buffer: ``POOL.setdefault(n, torch.empty(n))``."""
    value = definition.value
    if definition.index is not None or not isinstance(value, ast.Call):
        return None
    if _memoizes(module, function, value):
        return value
    maker = Graph(module, function).callee(value)
    return value if maker is not None and _hands_out(module, maker) else None


def _hands_out(module: ModuleFacts, maker: FunctionNode) -> bool:
    """Whether a function returns a tensor that it made in an earlier call."""
    returned = list(results(maker))
    if not returned:
        return False
    if any(module.is_name(_called(d), *_MEMOIZERS) for d in maker.decorator_list):
        return all(is_allocation(_made(module, maker, value, at)) for value, at in returned)
    return all(_memoizes(module, maker, value) for value, _ in returned)


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _made(
    module: ModuleFacts, function: FunctionNode, value: ast.expr, at: ast.stmt
) -> ast.expr | None:
    """What a name was made by; another expression is that itself."""
    if not isinstance(value, ast.Name):
        return value
    definition = module.flow(function).only_definition(value.id, at)
    return definition.value if definition is not None else None


def _memoizes(module: ModuleFacts, function: FunctionNode, value: ast.expr) -> bool:
    """``POOL.setdefault(n, torch.empty(n))``; ``POOL[n]``, where the function fills ``POOL``."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr != "setdefault" or len(value.args) != 2:
            return False
        return is_allocation(value.args[1]) and _outlives(module, function, value.func.value)
    if not isinstance(value, ast.Subscript) or not _outlives(module, function, value.value):
        return False
    filled = [
        node.value
        for node in walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript) and ast.dump(target.value) == ast.dump(value.value)
    ]
    return bool(filled) and all(is_allocation(each) for each in filled)


def _outlives(module: ModuleFacts, function: FunctionNode, node: ast.expr) -> bool:
    """Whether a container is one of the module's or of an object's."""
    if isinstance(node, ast.Attribute):
        return True
    return isinstance(node, ast.Name) and not module.flow(function).is_local(node.id)
