"""Folding of an expression under what is known of the names in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import libcst as cst

from ..expressions import bare, code, parenthesized
from .blocks import AUTO
from .values import GIVEN, UNKNOWN, Known, binds, is_literal, is_pure, literal

_TORCH_DEFAULTS: dict[str, dict[str, Any]] = {
    "F.scaled_dot_product_attention": {"attn_mask": None, "is_causal": False, "scale": None},
}
"""Arguments that nobody writes out."""

_COMPARE: dict[type[cst.BaseCompOp], Callable[[Any, Any], bool]] = {
    cst.Equal: lambda a, b: a == b,
    cst.NotEqual: lambda a, b: a != b,
    cst.LessThan: lambda a, b: a < b,
    cst.LessThanEqual: lambda a, b: a <= b,
    cst.GreaterThan: lambda a, b: a > b,
    cst.GreaterThanEqual: lambda a, b: a >= b,
    cst.In: lambda a, b: a in b,
    cst.NotIn: lambda a, b: a not in b,
    cst.Is: lambda a, b: a is b,
    cst.IsNot: lambda a, b: a is not b,
}


def _written(value: Any) -> cst.BaseExpression:
    return cst.parse_expression(repr(value))


def truth(node: cst.BaseExpression) -> cst.BaseExpression:
    """A condition with the parts that do not matter for its truth left out."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        return node.with_changes(expression=truth(node.expression))
    if not isinstance(node, cst.BooleanOperation):
        return node
    left, right = truth(node.left), truth(node.right)
    decides = isinstance(node.operator, cst.Or)
    value = literal(right)
    if value is UNKNOWN:
        return node.with_changes(left=left, right=right)
    if bool(value) != decides:
        return left
    return right if is_pure(left) else node.with_changes(left=left, right=right)


class Expressions(cst.CSTTransformer):
    """Folds an expression under what is known of the names in it.

    ``constant`` are the names that are bound once: what is known of them holds at any time, so also
    in a lambda or generator, which is evaluated later.
    """

    def __init__(self, known: Known, constant: set[str], bound: set[str]) -> None:
        super().__init__()
        self.known = [known]
        self.constant = constant
        self.bound = bound

    def _enter(self, node: cst.BaseExpression, later: bool) -> None:
        inner = binds(node)
        self.known.append(
            {
                name: value
                for name, value in self.known[-1].items()
                if name not in inner
                and not (later and (name not in self.constant or not is_literal(value)))
            }
        )

    def visit_Lambda(self, node: cst.Lambda) -> None:
        self._enter(node, later=True)

    def visit_GeneratorExp(self, node: cst.GeneratorExp) -> None:
        self._enter(node, later=True)

    def visit_ListComp(self, node: cst.ListComp) -> None:
        self._enter(node, later=False)

    def visit_SetComp(self, node: cst.SetComp) -> None:
        self._enter(node, later=False)

    def visit_DictComp(self, node: cst.DictComp) -> None:
        self._enter(node, later=False)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if isinstance(
            original_node, (cst.Lambda, cst.GeneratorExp, cst.ListComp, cst.SetComp, cst.DictComp)
        ):
            self.known.pop()
        return super().on_leave(original_node, updated_node)

    def visit_FormattedString(self, node: cst.FormattedString) -> bool:
        return False  # a string put in might need other quotes

    # -- names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        value = self.known[-1].get(original_node.value, GIVEN)
        return updated_node if value is GIVEN else parenthesized(value)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        return updated_node.with_changes(
            attr=original_node.attr, value=_head(original_node.value, updated_node.value)
        )

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(
            keyword=original_node.keyword, value=bare(updated_node.value)
        )

    def leave_Element(self, original_node: cst.Element, updated_node: cst.Element) -> cst.Element:
        value = updated_node.value
        return updated_node.with_changes(value=bare(value) if is_literal(value) else value)

    # -- operations

    def leave_Comparison(
        self, original_node: cst.Comparison, updated_node: cst.Comparison
    ) -> cst.BaseExpression:
        if len(updated_node.comparisons) == 1:
            (target,) = updated_node.comparisons
            given = isinstance(original_node.left, cst.Name) and (
                self.known[-1].get(original_node.left.value) is GIVEN
            )
            compares = isinstance(target.operator, (cst.Is, cst.IsNot))
            if given and compares and literal(target.comparator) is None:
                return cst.Name(str(isinstance(target.operator, cst.IsNot)))
        values = [literal(updated_node.left)]
        result = True
        for target in updated_node.comparisons:
            values.append(literal(target.comparator))
            a, b = values[-2:]
            if a is UNKNOWN or b is UNKNOWN:
                return updated_node
            if isinstance(target.operator, (cst.Is, cst.IsNot)) and not (
                {type(a), type(b)} & {type(None), bool}
            ):
                return updated_node
            if isinstance(target.operator, (cst.In, cst.NotIn)) and not isinstance(b, tuple):
                return updated_node
            try:
                result = result and bool(_COMPARE[type(target.operator)](a, b))
            except TypeError:
                return updated_node
        return cst.Name(str(result))

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        value = literal(updated_node.left)
        if value is UNKNOWN:
            right = updated_node.right
            if isinstance(right, cst.BooleanOperation) and (  # a or (b or c)
                type(right.operator) is type(updated_node.operator)
            ):
                return updated_node.with_changes(right=bare(right))
            return updated_node
        decided = bool(value) == isinstance(updated_node.operator, cst.Or)
        return _instead(updated_node, updated_node.left if decided else updated_node.right)

    def leave_UnaryOperation(
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        if not isinstance(updated_node.operator, cst.Not):
            return updated_node
        value = literal(truth(updated_node.expression))
        return updated_node if value is UNKNOWN else cst.Name(str(not value))

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        a, b = literal(updated_node.left), literal(updated_node.right)
        if type(a) is int and type(b) is int:
            if isinstance(updated_node.operator, cst.Add):
                return parenthesized(_written(a + b))
            if isinstance(updated_node.operator, cst.Subtract):
                return parenthesized(_written(a - b))
            if isinstance(updated_node.operator, cst.Multiply):
                return parenthesized(_written(a * b))
        neutral = isinstance(updated_node.operator, (cst.Multiply, cst.Divide)) and b in (1, 1.0)
        if neutral and code(updated_node.left).endswith(".float()"):
            return _instead(updated_node, updated_node.left)
        return updated_node

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        test = truth(updated_node.test)
        value = literal(test)
        if value is UNKNOWN:
            return updated_node.with_changes(test=test)
        return _instead(updated_node, updated_node.body if value else updated_node.orelse)

    def leave_Subscript(
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        value = literal(updated_node.value)
        if isinstance(value, tuple) and len(updated_node.slice) == 1:
            index = updated_node.slice[0].slice
            if isinstance(index, cst.Index):
                at = literal(index.value)
                if type(at) is int and -len(value) <= at < len(value):
                    return parenthesized(_written(value[at]))
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        call = updated_node.with_changes(func=_head(original_node.func, updated_node.func))
        if (
            code(call.func) == "isinstance"
            and len(call.args) == 2
            and is_literal(call.args[0].value)
            and code(call.args[1].value) == "torch.Tensor"
            and not {"isinstance", "torch"} & self.bound
        ):
            return cst.Name("False")
        defaults = _TORCH_DEFAULTS.get(code(call.func), {})
        arguments = [
            a
            for a in call.args
            if a.keyword is None
            or a.keyword.value not in defaults
            or literal(a.value) is not defaults[a.keyword.value]
        ]
        if len(arguments) == len(call.args):
            return call
        arguments[-1] = arguments[-1].with_changes(comma=AUTO)
        return call.with_changes(args=arguments)


def _head(original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
    """What stands before a dot or a call: a literal would be no improvement there."""
    return original if isinstance(original, cst.Name) and is_literal(updated) else updated


def _instead(node: cst.BaseExpression, part: cst.BaseExpression) -> cst.BaseExpression:
    """A part of an expression in the place of the whole."""
    return parenthesized(part) if node.lpar else part


def fold_expression(node: cst.BaseExpression, known: Known) -> cst.BaseExpression:
    """An expression outside a function, for names that are bound nowhere."""
    folded = node.visit(Expressions(known, set(known), set()))
    assert isinstance(folded, cst.BaseExpression)
    return folded
