"""Functions that give nothing but integers and masks, of which there is no gradient in any case."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .called import method_of, modules_of
from .layers import classes_named
from .memo import once
from .names import is_none, self_name
from .trainable import returns_numbers
from .walk import statements

if TYPE_CHECKING:
    from .flow import Definition
    from .module import FunctionNode, ModuleFacts

_INTEGERS = frozenset(
    "argmax argmin argsort argwhere nonzero multinomial bincount searchsorted bucketize long int "
    "short bool any all eq ne gt lt ge le isnan isinf isfinite logical_not logical_and logical_or "
    "count_nonzero size dim numel".split()
)
"""What torch and its tensors give integers by, whatever they are asked of."""
_GIVEN = re.compile(r"(^|_)(ids?|idx|index|indices|lens?|lengths?|masks?)$")
"""Names of arguments that hold integers."""
_MAX_DEPTH = 6


@once
def gives_integers(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether all that a function returns is discrete: by a name, in a tuple, by another module.

    A tokenizer gives codes and their lengths: whatever it computes them with does not learn by it.
    """
    return returns_numbers(function) or _returns(module, function, 0)


def is_discrete(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether a value holds integers or a mask, as far as its function shows."""
    function = module.function(node)
    return function is not None and _Values(module, function, 0).are_all(node)


def _returns(module: ModuleFacts, function: FunctionNode, depth: int) -> bool:
    """The same of a function that another one calls, which is not gone into forever."""
    found = [s for s in statements(function, nested=True) if isinstance(s, ast.Return)]
    values = [s.value for s in found if s.value is not None and not is_none(s.value)]
    return bool(values) and all(_Values(module, function, depth).are_all(v) for v in values)


class _Values:
    """What the expressions of one function hold."""

    def __init__(self, module: ModuleFacts, function: FunctionNode, depth: int) -> None:
        self.module = module
        self.flow = module.flow(function)
        self.me = self_name(function) if module.method_class(function) is not None else None
        self.depth = depth
        self._seen: set[Definition] = set()

    def are_all(self, node: ast.expr) -> bool:
        """Whether an expression of a statement is discrete, each element of a tuple by itself."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return bool(node.elts) and all(map(self.are_all, node.elts))
        if isinstance(node, ast.IfExp):
            return self.are_all(node.body) and self.are_all(node.orelse)
        if isinstance(node, ast.Compare):
            return True
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, (ast.Invert, ast.Not)) or self.are_all(node.operand)
        if isinstance(node, ast.BinOp):
            return self._joins(node.left) and self._joins(node.right)
        if isinstance(node, ast.Subscript):
            return self.are_all(node.value)
        if isinstance(node, ast.Attribute):
            return node.attr == "indices"
        if isinstance(node, ast.Name):
            return self._name(node)
        return isinstance(node, ast.Call) and self._call(node)

    def _joins(self, node: ast.expr) -> bool:
        """Whether an operand is discrete, or a number."""
        return isinstance(node, ast.Constant) or self.are_all(node)

    def _name(self, node: ast.Name) -> bool:
        reaching = self.flow.reaching(node.id, self.module.statement(node))
        return bool(reaching) and all(map(self._definition, reaching))

    def _definition(self, definition: Definition) -> bool:
        if definition in self._seen:
            return True  # of the turn before
        self._seen.add(definition)
        if definition.is_parameter:
            return _GIVEN.search(definition.name) is not None
        value, index = definition.value, definition.index
        if value is None:
            return False
        if index is None:
            return self.are_all(value)
        if isinstance(value, (ast.Tuple, ast.List)) and index < len(value.elts):
            return self.are_all(value.elts[index])
        return isinstance(value, ast.Call) and (self._is_index(value, index) or self._runs(value))

    def _is_index(self, call: ast.Call, index: int) -> bool:
        """``_, codes = distances.min(-1)``."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        return index == 1 and name in ("max", "min", "topk", "sort", "kthvalue", "median", "mode")

    def _call(self, node: ast.Call) -> bool:
        function = node.func
        if not isinstance(function, ast.Attribute):
            return isinstance(function, ast.Name) and self._runs(node)
        if isinstance(function.value, ast.Name) and function.value.id == self.me:
            return self._runs(node)
        if function.attr in _INTEGERS:
            return True
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not all(_is_number(each) or self.are_all(each) for each in given):
            return self._runs(node)
        return self.are_all(function.value) or self._runs(node)

    def _runs(self, call: ast.Call) -> bool:
        """Whether a call runs a function or a module of the project that gives integers."""
        if self.depth >= _MAX_DEPTH:
            return False
        called = self._called(call)
        return bool(called) and all(_returns(*each, self.depth + 1) for each in called)

    def _called(self, call: ast.Call) -> list[tuple[ModuleFacts, FunctionNode]]:
        """The functions that a call may run; none where that does not show."""
        module, callee = self.module, call.func
        found: list[tuple[ModuleFacts, FunctionNode]] = []
        if isinstance(callee, ast.Name):
            nodes = [binding.node for binding in module.names.visible(callee)]
            if len(nodes) == 1 and isinstance(nodes[0], ast.FunctionDef):
                found.append((module, nodes[0]))
            return found
        if isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name):
            cls = module.names.self_class(callee.value)
            own = method_of(cls, callee.attr) if cls is not None else None
            if own is not None:
                return [(module, own)]
        for made in modules_of(module, callee):
            cls_of = self._class(made)
            forward = method_of(cls_of[1], "forward") if cls_of is not None else None
            if cls_of is None or forward is None:
                return []
            found.append((cls_of[0], forward))
        return found

    def _class(self, made: ast.expr) -> tuple[ModuleFacts, ast.ClassDef] | None:
        """The class of the project that an expression makes an object of."""
        if not isinstance(made, ast.Call):
            return None
        return next(classes_named(self.module, made.func), None)


def _is_number(node: ast.expr) -> bool:
    """``1``, ``-1``, ``(1, -1)``: what says where, not what."""
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_number, node.elts))
    return isinstance(node, ast.Constant)
