"""Whether what was put into an attribute is read again in the same step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.cache_writes import are_apart
from ...facts.flow import is_view_method
from ...facts.guards import gradient_unwanted
from ...facts.kept import is_same
from ...facts.walk import walk
from ...facts.writes import callers
from .steps import is_cut

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_HOLDS_ALL = ("_buffers", "__dict__", "buffers", "named_buffers")
_ASKS = ("isinstance", "type", "super", "hasattr", "id", "len", "callable")


def read_later(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute, statement: ast.stmt
) -> bool:
    """Whether an attribute is read after a write of it, and a gradient may be wanted there.

    By the function itself or what it calls, or by those of its class that call it.
    """
    return _Reads(module, owner).after(function, statement)


def read_elsewhere(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute, statement: ast.stmt
) -> bool:
    """The same, but for what the function itself reads by the attribute's name."""
    return _Reads(module, owner, apart=function).after(function, statement)


class _Reads:
    """Of one attribute of one class."""

    def __init__(
        self, module: ModuleFacts, owner: ast.Attribute, apart: FunctionNode | None = None
    ) -> None:
        assert isinstance(owner.value, ast.Name)
        self.module = module
        self.cls = module.names.self_class(owner.value)
        self.owner = owner
        self.apart = apart
        self._seen: set[FunctionNode] = set()
        self._left: set[FunctionNode] = set()

    def after(self, function: FunctionNode, statement: ast.stmt) -> bool:
        """Whether a read follows a statement, in its function or in those that call it."""
        self._left.add(function)
        if any(
            self._may_follow(function, statement, name) and self._reads(name)
            for name in self._own(function)
        ):
            return True
        flow = self.module.flow(function)
        for name, made in self._other_names(function):
            held = any(d.statement is made for d in flow.reaching(name, statement))
            if held and flow.read_after(name, statement):
                return True
        for call in callers(self.module, function):
            caller = self.module.function(call)
            if caller is not None and caller not in self._left:
                if self.after(caller, self.module.statement(call)):
                    return True
        return False

    # -- nodes ----------------------------------------------------------------------------------

    def _own(self, function: FunctionNode) -> Iterator[ast.Name]:
        """Where a function names the object."""
        for node in walk(function):
            if isinstance(node, ast.Name) and self._is_object(node):
                yield node

    def _is_object(self, node: ast.Name) -> bool:
        assert isinstance(self.owner.value, ast.Name)
        if self.cls is None:
            return node.id == self.owner.value.id
        return self.module.names.self_class(node) is self.cls

    def _may_follow(self, function: FunctionNode, statement: ast.stmt, node: ast.expr) -> bool:
        """Whether a node may be evaluated after a statement: behind it, around a loop, or later."""
        if self.module.start(node) >= self.module.end(statement):
            return not are_apart(self.module, statement, node)
        around = set(self.module.ancestors(statement))
        for ancestor in self.module.ancestors(node):
            if ancestor is function:
                return False
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return True
            if isinstance(ancestor, (ast.For, ast.AsyncFor, ast.While)) and ancestor in around:
                return self.module.statement(node) is not statement
        return False

    def _reads(self, node: ast.Name) -> bool:
        """Whether an expression reads the attribute by naming the object."""
        parent = self.module.parent(node)
        if not isinstance(parent, ast.Attribute):
            return self._hands_on(node, parent) and not gradient_unwanted(self.module, node)
        if parent.attr in _HOLDS_ALL:
            return not gradient_unwanted(self.module, node)
        if parent.attr == self.owner.attr:
            if self.apart is not None and self.module.function(node) is self.apart:
                return False
            return isinstance(parent.ctx, ast.Load) and self._is_value(parent)
        return self._by_method(parent)

    def _hands_on(self, node: ast.Name, parent: ast.AST | None) -> bool:
        """Whether others get the object, and may read what they like."""
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
            if parent.func.id == "getattr" and len(parent.args) > 1:
                name = parent.args[1]
                return not isinstance(name, ast.Constant) or name.value == self.owner.attr
            return parent.func.id not in _ASKS
        return True

    def _by_method(self, attribute: ast.Attribute) -> bool:
        """Whether a method, or a property, reads it: ``self.read()``."""
        for method in self.module.functions_named(attribute.attr):
            if self.module.method_class(method) is None or method in self._seen | self._left:
                continue
            self._seen.add(method)
            if gradient_unwanted(self.module, attribute):
                continue
            if f".{self.owner.attr}" in self.module.source(method) and any(
                isinstance(node, ast.Attribute)
                and node.attr == self.owner.attr
                and isinstance(node.ctx, ast.Load)
                and self._is_value(node)
                for node in walk(method)
            ):
                return True
            if any(self._reads(name) for name in self._own(method)):
                return True
        return False

    def _is_value(self, node: ast.Attribute) -> bool:
        """Whether a read of the attribute takes its value, with its history, to somewhere else."""
        module = self.module
        statement = module.statement(node)
        write = module.writes.get(statement)
        if write is not None:
            if any(n is node for n in walk(write.target)):
                return False
            if any(is_same(n, self.owner) for n in walk(write.target)):
                return False  # into itself
        if module.statement(self.owner) is statement or is_cut(module, node):
            return False
        if self._is_only_asked_for(node):
            return False
        return not gradient_unwanted(module, node)

    def _is_only_asked_for(self, node: ast.Attribute) -> bool:
        """``len(self.keys)``, ``i in self.keys``."""
        parent = self.module.parent(node)
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
            return parent.func.id in _ASKS
        return isinstance(parent, ast.Compare) and all(
            isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in parent.ops
        )

    def _other_names(self, function: FunctionNode) -> Iterator[tuple[str, ast.Assign]]:
        """Names that share the attribute's memory, and where: ``h = self.h[:, 0]``."""
        for node in walk(function):
            if not is_same(node, self.owner):
                continue
            held: ast.AST | None = node
            while True:
                parent = self.module.parent(held) if held is not None else None
                if isinstance(parent, ast.Subscript) and parent.value is held:
                    held = parent
                elif isinstance(parent, ast.Attribute) and is_view_method(parent.attr):
                    call = self.module.parent(parent)
                    if not isinstance(call, ast.Call) or call.func is not parent:
                        break
                    held = call
                else:
                    break
            assign = self.module.parent(held) if held is not None else None
            if isinstance(assign, ast.Assign) and assign.value is held:
                yield from ((t.id, assign) for t in assign.targets if isinstance(t, ast.Name))
