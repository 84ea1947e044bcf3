"""Whether what was put into an attribute is read again in the same step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeGuard

from ...facts import ModuleFacts
from ...facts.cache_writes import are_apart
from ...facts.guards import gradient_unwanted
from ...facts.kept import is_same
from ...facts.names import last_name
from ...facts.views import is_view_method
from ...facts.walk import walk
from ...facts.writes import Write, callers
from .steps import is_cut

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_HOLDS_ALL = ("_buffers", "__dict__", "buffers", "named_buffers", "get_buffer", "__getattr__")
_RUN_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)
_PUT_TOGETHER = (ast.Tuple, ast.List, ast.Dict, ast.Starred, ast.GeneratorExp)
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
        if not self._left and self._is_held_otherwise():
            return True
        self._left.add(function)
        if any(
            self._may_follow(function, statement, name) and self._reads(name)
            for name in self._own(function)
        ):
            return True
        flow = self.module.flow(function)
        for target, made in self._other_names(function):
            if not isinstance(target, ast.Name):
                if _keeps(target, self.owner):
                    return True
                continue
            held = any(d.statement is made for d in flow.reaching(target.id, statement))
            if held and flow.read_after(target.id, statement):
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
            if isinstance(ancestor, _RUN_LATER):
                return True
            if isinstance(ancestor, (ast.For, ast.AsyncFor, ast.While)) and ancestor in around:
                return self.module.statement(node) is not statement
        return False

    def _reads(self, node: ast.Name) -> bool:
        """Whether an expression reads the attribute by naming the object."""
        parent = self.module.parent(node)
        if not isinstance(parent, ast.Attribute):
            return self._hands_on(parent) and not gradient_unwanted(self.module, node)
        if parent.attr in _HOLDS_ALL or self._is_asked_for_state(parent):
            return not gradient_unwanted(self.module, node)
        if parent.attr == self.owner.attr:
            if self.apart is not None and self.module.function(node) is self.apart:
                return False
            return isinstance(parent.ctx, ast.Load) and self._is_value(parent)
        return self._by_method(parent)

    def _is_asked_for_state(self, method: ast.Attribute) -> bool:
        """``self.state_dict(keep_vars=True)``, whose values have a history."""
        call = self.module.parent(method)
        return (
            method.attr == "state_dict"
            and isinstance(call, ast.Call)
            and any(keyword.arg == "keep_vars" for keyword in call.keywords)
        )

    def _hands_on(self, parent: ast.AST | None) -> bool:
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

    def _other_names(self, function: FunctionNode) -> Iterator[tuple[ast.expr, ast.Assign]]:
        """What shares the attribute's memory, and where: ``h = self.h[:, 0]``, then ``g = h``."""
        pending: list[ast.Attribute | ast.Name] = [n for n in walk(function) if self._is_it(n)]
        seen: set[str] = set()
        for node in pending:  # grows meanwhile
            assign = self._holding(node)
            for target in assign.targets if assign is not None else ():
                assert assign is not None
                if isinstance(target, ast.Name) or isinstance(node, ast.Name):
                    yield target, assign
                if isinstance(target, ast.Name) and target.id not in seen:
                    seen.add(target.id)
                    pending += (
                        n
                        for n in walk(function)
                        if isinstance(n, ast.Name)
                        and n.id == target.id
                        and isinstance(n.ctx, ast.Load)
                    )

    def _is_it(self, node: ast.AST) -> TypeGuard[ast.Attribute]:
        return is_same(node, self.owner)

    def _is_held_otherwise(self) -> bool:
        """Whether another attribute of the object shares the memory: ``self.last = self.h[-1]``."""
        assert isinstance(self.owner.value, ast.Name)
        for cls in self.module.names.with_bases(self.cls) if self.cls is not None else ():
            for node in walk(cls):
                if isinstance(node, ast.Attribute) and node.attr == self.owner.attr:
                    assign = self._holding(node) if isinstance(node.ctx, ast.Load) else None
                    if assign is not None and any(_keeps(t, node) for t in assign.targets):
                        return True
        return False

    def _holding(self, node: ast.Attribute | ast.Name) -> ast.Assign | None:
        """What assigns a read of the attribute, a view of it, or what such are put into."""
        held: ast.AST = node
        while True:
            parent = self.module.parent(held)
            if isinstance(parent, ast.Subscript) and parent.value is held:
                held = parent
            elif isinstance(parent, ast.Attribute) and is_view_method(parent.attr):
                call = self.module.parent(parent)
                if not isinstance(call, ast.Call) or call.func is not parent:
                    return None
                held = call
            elif _puts_together(parent, held):
                held = parent
            else:
                break
        return parent if isinstance(parent, ast.Assign) and parent.value is held else None


def _puts_together(node: ast.AST | None, given: ast.AST) -> TypeGuard[ast.AST]:
    """``(self.h, x)``, and ``Reader(self.h)``, which may keep what it is given."""
    if not isinstance(node, ast.Call):
        return isinstance(node, (*_PUT_TOGETHER, ast.comprehension, ast.keyword))
    name = last_name(node.func) if node.func is not given else ""
    return name[:1].isupper() and name != "Parameter"


def _keeps(target: ast.expr, kept: ast.Attribute) -> bool:
    """Whether a target outlives the call, and is not what is kept itself."""
    return isinstance(target, (ast.Attribute, ast.Subscript)) and not any(
        is_same(node, kept) for node in walk(target)
    )


def gives_result(module: ModuleFacts, write: Write) -> bool:
    """Whether what a write gives goes on from its statement: ``y = self.h.copy_(x)``."""
    if isinstance(write.statement, ast.AugAssign):
        return False
    node: ast.AST = write.call or write.target
    while True:
        parent = module.parent(node)
        if isinstance(parent, ast.Assign):
            return node not in parent.targets
        if isinstance(parent, ast.Expr):
            return False
        if isinstance(parent, (ast.Attribute, ast.Subscript)):
            inner: ast.AST = parent.value
        else:
            inner = parent.func if isinstance(parent, ast.Call) else module.tree
        if parent is None or inner is not node:
            return not isinstance(parent, (ast.Tuple, ast.List)) or not isinstance(
                parent.ctx, ast.Store
            )
        node = parent
