"""Constant folding within one function, on libcst, so that comments and spelling survive.

:func:`fold` takes what is known of names when the function begins and writes it out: conditions are
decided, branches that are never taken and assignments that nobody reads go.  In doubt a piece of
code stays as it is: names are known only along straight-line code and where all branches agree,
never past a loop that binds them; statements that are not understood end all knowledge of what they
bind.  Only exceptions may differ: an expression that could do nothing but raise counts as dead when
its value is.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

import libcst as cst

from .expressions import bare, code, one_line, parenthesized

Known = Mapping[str, cst.BaseExpression]
"""Names and the literal, or the other name, that each stands for."""

GIVEN = cst.Name("__given__")
"""Known of a name: that it is not None, and no more."""

_NO = object()
_AUTO = cst.MaybeSentinel.DEFAULT
_MAX_JOINED = 72
_DYNAMIC = {"locals", "vars", "eval", "exec", "dir", "globals", "super"}
_PURE_FUNCTIONS = {"len", "isinstance", "set", "tuple", "int", "float"}
_PURE_METHODS = {
    *("chunk", "contiguous", "diff", "dim", "expand", "flatten", "float", "numel", "permute"),
    *("reshape", "size", "squeeze", "to", "tolist", "transpose", "unbind", "unsqueeze", "view"),
}
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


# -- names and literals -------------------------------------------------------------------------


def _tree(node: cst.CSTNode) -> ast.AST:
    text = code(node)
    return ast.parse(f"({text}\n)" if isinstance(node, cst.BaseExpression) else text)


@lru_cache(4096)
def reads(node: cst.CSTNode) -> frozenset[str]:
    """The names that a piece of code may read, those of inner scopes included."""
    tree = _tree(node)
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and _is_read(n)}
    for n in ast.walk(tree):
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
            names.add(n.target.id)
    return frozenset(names)


def _is_read(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Store)


def _bindings(tree: ast.AST) -> Iterator[str]:
    """Every binding in a piece of code, once for each time; those of inner scopes included."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load):
            yield n.id
        elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield n.name
        elif isinstance(n, ast.arg):
            yield n.arg
        elif isinstance(n, ast.alias):
            yield (n.asname or n.name).partition(".")[0]
        elif isinstance(n, (ast.Global, ast.Nonlocal)):
            yield from n.names
        elif isinstance(n, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and n.name:
            yield n.name
        elif isinstance(n, ast.MatchMapping) and n.rest:
            yield n.rest


@lru_cache(4096)
def binds(node: cst.CSTNode) -> frozenset[str]:
    """The names that a piece of code may bind."""
    return frozenset(_bindings(_tree(node)))


def literal(node: cst.BaseExpression) -> Any:
    """The value of a literal: None, a bool, a finite number, a string, a tuple of them; or _NO."""
    if isinstance(node, cst.Name):
        return {"None": None, "True": True, "False": False}.get(node.value, _NO)
    if isinstance(node, (cst.Integer, cst.Float)):
        return node.evaluated_value
    if isinstance(node, cst.SimpleString):
        return node.evaluated_value if isinstance(node.evaluated_value, str) else _NO
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        value = literal(node.expression)
        return -value if type(value) in (int, float) else _NO
    if isinstance(node, cst.Tuple):
        values = [literal(e.value) if isinstance(e, cst.Element) else _NO for e in node.elements]
        return _NO if any(v is _NO for v in values) else tuple(values)
    return _NO


def is_literal(node: cst.BaseExpression) -> bool:
    return literal(node) is not _NO


def _written(value: Any) -> cst.BaseExpression:
    return cst.parse_expression(repr(value))


@lru_cache(4096)
def is_pure(node: cst.BaseExpression) -> bool:
    """Whether evaluating an expression leaves no trace but its value."""
    for n in ast.walk(_tree(node)):
        if isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda)):
            return False
        if isinstance(n, ast.Call):
            f = n.func
            known = (isinstance(f, ast.Name) and f.id in _PURE_FUNCTIONS) or (
                isinstance(f, ast.Attribute) and f.attr in _PURE_METHODS
            )
            if not known:
                return False
    return True


# -- expressions --------------------------------------------------------------------------------


def truth(node: cst.BaseExpression) -> cst.BaseExpression:
    """A condition with the parts that do not matter for its truth left out."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        return node.with_changes(expression=truth(node.expression))
    if not isinstance(node, cst.BooleanOperation):
        return node
    left, right = truth(node.left), truth(node.right)
    decides = isinstance(node.operator, cst.Or)
    value = literal(right)
    if value is _NO:
        return node.with_changes(left=left, right=right)
    if bool(value) != decides:
        return left
    return right if is_pure(left) else node.with_changes(left=left, right=right)


class _Expressions(cst.CSTTransformer):
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
            if a is _NO or b is _NO:
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
        if value is _NO:
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
        return updated_node if value is _NO else cst.Name(str(not value))

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
        if value is _NO:
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
        arguments[-1] = arguments[-1].with_changes(comma=_AUTO)
        return call.with_changes(args=arguments)


def _head(original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
    """What stands before a dot or a call: a literal would be no improvement there."""
    return original if isinstance(original, cst.Name) and is_literal(updated) else updated


def _instead(node: cst.BaseExpression, part: cst.BaseExpression) -> cst.BaseExpression:
    """A part of an expression in the place of the whole."""
    return parenthesized(part) if node.lpar else part


# -- statements ---------------------------------------------------------------------------------


class _Folder:
    def __init__(self, function: cst.FunctionDef) -> None:
        tree = _tree(function)
        counts = Counter(_bindings(tree))
        self.bound = set(counts)
        self.constant = {name for name, count in counts.items() if count == 1}
        self.returns: list[tuple[cst.BaseExpression, Known]] = []
        self.untouchable = {
            name
            for n in ast.walk(tree)
            for name in (
                [n.target.id]
                if isinstance(n, ast.NamedExpr)
                else n.names
                if isinstance(n, (ast.Global, ast.Nonlocal))
                else []
            )
        }
        inner = (ast.Lambda, ast.GeneratorExp, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        (outer,) = tree.body  # type: ignore[attr-defined]
        self.captured = {
            name.id
            for n in ast.walk(tree)
            if isinstance(n, inner) and n is not outer
            for name in ast.walk(n)
            if isinstance(name, ast.Name) and _is_read(name)
        }

    # -- forward: what is known

    def block(
        self, statements: Sequence[cst.BaseStatement], known: Known
    ) -> tuple[list[cst.BaseStatement], Known | None]:
        """Fold statements; what is known after them, or None where they never end."""
        done: list[cst.BaseStatement] = []
        after: Known | None = known
        for statement in statements:
            assert after is not None
            new, after = self.statement(statement, after)
            done += new
            if after is None:
                break
        return done, after

    def statement(
        self, statement: cst.BaseStatement, known: Known
    ) -> tuple[list[cst.BaseStatement], Known | None]:
        if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
            small, after = self.small(statement.body[0], known)
            return [statement.with_changes(body=[small])], after
        if isinstance(statement, cst.If) and _is_plain(statement):
            return self.branch(statement, known)
        without = _without(known, binds(statement))
        if isinstance(statement, cst.For) and statement.orelse is None and _is_block(statement):
            body, _ = self.block(_inside(statement), without)
            iterated = self.expression(statement.iter, known)
            return [_with_body(statement.with_changes(iter=iterated), body)], without
        if isinstance(statement, cst.While) and statement.orelse is None and _is_block(statement):
            body, _ = self.block(_inside(statement), without)
            return [_with_body(statement, body)], without
        return [statement], without

    def branch(
        self, statement: cst.If, known: Known
    ) -> tuple[list[cst.BaseStatement], Known | None]:
        test = truth(self.expression(statement.test, known))
        value = literal(test)
        otherwise = statement.orelse
        if value is not _NO:
            if value:
                taken = _inside(statement)
            elif isinstance(otherwise, cst.If):
                taken = [otherwise]
            else:
                taken = [] if otherwise is None else _inside(otherwise)
            done, last = self.block(taken, known)
            if done and value:
                done[0] = _led(done[0], [*statement.leading_lines, *leading(done[0])])
            return done, last
        body, after_body = self.block(_inside(statement), known)
        orelse: list[cst.BaseStatement] = []
        after: Known | None = known
        if isinstance(otherwise, cst.If):
            orelse, after = self.branch(otherwise, known)
        elif otherwise is not None:
            orelse, after = self.block(_inside(otherwise), known)
        head = statement.with_changes(test=test, whitespace_before_test=cst.SimpleWhitespace(" "))
        new = _with_body(head, body)
        new = new.with_changes(orelse=_orelse(otherwise, orelse))
        if after is None or after_body is None:
            return [new], after_body if after is None else after
        both = {
            name: value
            for name, value in after.items()
            if name in after_body and code(after_body[name]) == code(value)
        }
        return [new], both

    def small(
        self, node: cst.BaseSmallStatement, known: Known
    ) -> tuple[cst.BaseSmallStatement, Known | None]:
        if isinstance(node, cst.Assign):
            node = node.with_changes(value=self.expression(node.value, known))
            known = _without(known, binds(node))
            if len(node.targets) == 1:
                known = self.learn(node.targets[0].target, node.value, known)
            return node, known
        if isinstance(node, (cst.AnnAssign, cst.AugAssign)) and node.value is not None:
            node = node.with_changes(value=self.expression(node.value, known))
            after = _without(known, binds(node))
            if isinstance(node, cst.AnnAssign) and node.value is not None:
                after = self.learn(node.target, node.value, after)
            return node, after
        if isinstance(node, cst.Return):
            if node.value is not None:
                self.returns.append((node.value, known))
                node = node.with_changes(
                    value=self.expression(node.value, known),
                    whitespace_after_return=cst.SimpleWhitespace(" "),
                )
            return node, None
        if isinstance(node, (cst.Raise, cst.Break, cst.Continue)):
            return node, None
        if isinstance(node, cst.Expr):
            return node.with_changes(value=self.expression(node.value, known)), known
        return node, _without(known, binds(node))

    def expression(self, node: cst.BaseExpression, known: Known) -> cst.BaseExpression:
        if known or not isinstance(node, cst.Name):
            folded = node.visit(_Expressions(known, self.constant, self.bound))
            assert isinstance(folded, cst.BaseExpression)
            return bare(folded)
        return node

    def learn(self, target: cst.BaseExpression, value: cst.BaseExpression, known: Known) -> Known:
        """What is known after ``target = value``."""
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            if len(target.elements) == len(value.elements) and not any(
                isinstance(e, cst.StarredElement) for e in (*target.elements, *value.elements)
            ):
                targets = {code(e.value) for e in target.elements}
                if len(targets) < len(target.elements):
                    return known  # a, a = 1, 2
                for t, v in zip(target.elements, value.elements, strict=True):
                    if not targets & reads(v.value):  # else it names a value of before
                        known = self.learn(t.value, v.value, known)
            return known
        if not isinstance(target, cst.Name) or target.value in self.untouchable:
            return known
        renamed = (
            isinstance(value, cst.Name)
            and {target.value, value.value} <= self.constant
            and value.value not in self.untouchable
        )
        if is_literal(value) or renamed:
            return {**known, target.value: value}
        return {**known, target.value: GIVEN} if is_given(value) else known

    # -- backward: what is read

    def alive(
        self,
        statements: Sequence[cst.BaseStatement],
        live: AbstractSet[str],
        loop: AbstractSet[str],
    ) -> tuple[list[cst.BaseStatement], AbstractSet[str]]:
        """Drop what nobody reads; ``live`` are the names read after the statements, then before.

        ``loop`` are the names read where the surrounding loop goes on.
        """
        kept: list[cst.BaseStatement] = []
        for statement in reversed(statements):
            new, live = self.keep(statement, live, loop)
            kept = new + kept
        return kept, live

    def keep(
        self, statement: cst.BaseStatement, live: AbstractSet[str], loop: AbstractSet[str]
    ) -> tuple[list[cst.BaseStatement], AbstractSet[str]]:
        if isinstance(statement, cst.If) and _is_plain(statement):
            body, live_body = self.alive(_inside(statement), live, loop)
            otherwise, live_else = statement.orelse, live
            orelse: list[cst.BaseStatement] = []
            if isinstance(otherwise, cst.If):
                orelse, live_else = self.keep(otherwise, live, loop)
            elif otherwise is not None:
                orelse, live_else = self.alive(_inside(otherwise), live, loop)
            if not body and not orelse and is_pure(statement.test):
                return [], live
            new = _with_body(statement, body).with_changes(orelse=_orelse(otherwise, orelse))
            return [new], live_body | live_else | reads(statement.test)
        if isinstance(statement, (cst.For, cst.While)) and _is_block(statement):
            inside = live | reads(statement)
            body, _ = self.alive(_inside(statement), inside, inside)
            return [_with_body(statement, body)], inside
        if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
            small = statement.body[0]
            if isinstance(small, (cst.Return, cst.Raise)):
                return [statement], reads(small)
            if isinstance(small, (cst.Break, cst.Continue)):
                return [statement], loop
            if isinstance(small, cst.Assign) and len(small.targets) == 1:
                return self.keep_assignment(statement, small, live)
        return [statement], live | reads(statement)

    def keep_assignment(
        self, statement: cst.SimpleStatementLine, node: cst.Assign, live: AbstractSet[str]
    ) -> tuple[list[cst.BaseStatement], AbstractSet[str]]:
        target, value = node.targets[0].target, node.value
        targets = _names(target)
        if targets is None:
            return [statement], live | reads(node)
        wanted = live | self.captured | self.untouchable
        if not wanted & set(targets) and is_pure(value):
            return [], live
        if (
            isinstance(target, cst.Tuple)
            and isinstance(value, cst.Tuple)
            and len(targets) == len(value.elements)
            and all(isinstance(e, cst.Element) for e in value.elements)
            and len(set(targets)) == len(targets)
        ):
            pairs = [
                (t, v)
                for t, v in zip(target.elements, value.elements, strict=True)
                if code(t.value) in wanted or not is_pure(v.value)
            ]
            if len(pairs) < len(targets):
                kept = _tuple(target, [t for t, _ in pairs])
                new = node.with_changes(
                    targets=[node.targets[0].with_changes(target=kept)],
                    value=_tuple(value, [v for _, v in pairs]),
                )
                statement = statement.with_changes(body=[new])
                return [statement], (live - set(targets)) | reads(new.value)
        return [statement], (live - set(targets)) | reads(value)


def _without(known: Known, names: AbstractSet[str]) -> Known:
    """What is still known once names are bound anew."""
    return {
        name: value
        for name, value in known.items()
        if name not in names and not (isinstance(value, cst.Name) and value.value in names)
    }


def _is_block(statement: cst.For | cst.While | cst.If | cst.Else) -> bool:
    return isinstance(statement.body, cst.IndentedBlock)


def _is_plain(statement: cst.If) -> bool:
    """Whether the branches of an ``if`` stand on lines of their own."""
    orelse = statement.orelse
    if isinstance(orelse, cst.If):
        return _is_block(statement) and _is_plain(orelse)
    return _is_block(statement) and (orelse is None or _is_block(orelse))


def _inside(statement: Any) -> list[cst.BaseStatement]:
    return list(statement.body.body)


def _with_body(statement: Any, body: Sequence[cst.BaseStatement]) -> Any:
    lines = list(body) or [cst.SimpleStatementLine([cst.Pass()])]
    return statement.with_changes(body=statement.body.with_changes(body=lines))


def _orelse(
    before: cst.If | cst.Else | None, statements: Sequence[cst.BaseStatement]
) -> cst.If | cst.Else | None:
    if not statements or before is None:
        return None
    if isinstance(before, cst.If):
        if len(statements) == 1 and isinstance(statements[0], cst.If):
            return statements[0]
        return cst.Else(cst.IndentedBlock(list(statements)))
    return _with_body(before, statements)  # type: ignore[no-any-return]


def leading(statement: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    lines: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return lines


def _led(statement: cst.BaseStatement, lines: Sequence[cst.EmptyLine]) -> cst.BaseStatement:
    if not hasattr(statement, "leading_lines"):
        return statement
    return statement.with_changes(leading_lines=list(lines))


def _names(target: cst.BaseExpression) -> list[str] | None:
    """The names that an assignment binds, or None where it does something else as well."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple) and all(
        isinstance(e, cst.Element) and isinstance(e.value, cst.Name) for e in target.elements
    ):
        return [code(e.value) for e in target.elements]
    return None


def _tuple(before: cst.Tuple, elements: Sequence[cst.BaseElement]) -> cst.BaseExpression:
    if len(elements) == 1:
        return elements[0].value
    return before.with_changes(elements=[e.with_changes(comma=_AUTO) for e in elements])


def _joined(statements: Sequence[cst.BaseStatement], kept: set[str]) -> list[cst.BaseStatement]:
    """``x = f(); x = x.g()`` as ``x = f().g()``, and ``x = f(); return x`` as ``return f()``.

    A branch that is gone leaves such pairs, which nobody would write.  ``kept`` are names whose
    values in between others may see.
    """
    done: list[cst.BaseStatement] = []
    for statement in statements:
        if isinstance(statement, cst.If) and _is_plain(statement):
            orelse = statement.orelse
            if isinstance(orelse, cst.Else):
                orelse = _with_body(orelse, _joined(_inside(orelse), kept))
            elif isinstance(orelse, cst.If):
                (orelse,) = _joined([orelse], kept)  # type: ignore[assignment]
            statement = _with_body(statement, _joined(_inside(statement), kept))
            statement = statement.with_changes(orelse=orelse)
        pair = _pair(done[-1], statement, kept) if done else None
        if pair is None:
            done.append(statement)
        else:
            done[-1] = pair
    return done


def _pair(
    first: cst.BaseStatement, second: cst.BaseStatement, kept: set[str]
) -> cst.BaseStatement | None:
    assign, then = _only(first), _only(second)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    assert isinstance(first, cst.SimpleStatementLine)
    if leading(second) or first.trailing_whitespace.comment:
        return None
    target = assign.targets[0].target
    if not isinstance(target, cst.Name) or target.value in kept:
        return None
    name = target.value
    if isinstance(then, cst.Return) and isinstance(then.value, cst.Name):
        if then.value.value != name:
            return None
        new: cst.BaseSmallStatement = then.with_changes(value=assign.value)
    elif isinstance(then, cst.Assign) and _names(then.targets[0].target) == [name]:
        counts = Counter(n.id for n in ast.walk(_tree(then.value)) if isinstance(n, ast.Name))
        if len(then.targets) != 1 or counts[name] != 1 or _root(then.value) != name:
            return None
        if isinstance(then.value, cst.Name):
            return None
        value = _rooted(then.value, assign.value)
        if len(one_line(code(value))) > _MAX_JOINED:
            return None
        new = then.with_changes(value=value)
    else:
        return None
    assert isinstance(second, cst.SimpleStatementLine)
    return _led(second.with_changes(body=[new]), leading(first))


def _only(statement: cst.BaseStatement) -> cst.BaseSmallStatement | None:
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def _inner(node: cst.BaseExpression) -> tuple[str, cst.BaseExpression] | None:
    """The field and the node that a chain of dots, calls and brackets goes on from."""
    if isinstance(node, (cst.Attribute, cst.Subscript)):
        return "value", node.value
    return ("func", node.func) if isinstance(node, cst.Call) else None


def _root(node: cst.BaseExpression) -> str | None:
    """``x`` of ``x.view(-1)[0]``, which is evaluated first."""
    while (inner := _inner(node)) is not None:
        node = inner[1]
    return node.value if isinstance(node, cst.Name) else None


def _rooted(node: cst.BaseExpression, root: cst.BaseExpression) -> cst.BaseExpression:
    """A chain that begins with another expression."""
    inner = _inner(node)
    if inner is None:
        return parenthesized(root)
    return node.with_changes(**{inner[0]: _rooted(inner[1], root)})


def body_of(function: cst.FunctionDef) -> list[cst.BaseStatement]:
    """The statements after the docstring."""
    statements = _inside(function)
    return statements[1:] if function.get_docstring() is not None else statements


def _is_static(function: cst.FunctionDef) -> bool:
    """Whether the function's names can be read off its text."""
    for n in ast.walk(_tree(function)):
        if isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)):
            return False
        if isinstance(n, ast.Name) and n.id in _DYNAMIC:
            return False
    return isinstance(function.body, cst.IndentedBlock)


def fold(function: cst.FunctionDef, known: Known) -> cst.FunctionDef:
    """The function for parameters of which something is known: literals leave its signature."""
    literals = {name: value for name, value in known.items() if value is not GIVEN}
    docstring = _inside(function)[: len(_inside(function)) - len(body_of(function))]
    params = function.params.with_changes(
        **{
            kind: [
                p.with_changes(comma=_AUTO)
                for p in getattr(function.params, kind)
                if p.name.value not in literals
            ]
            for kind in ("params", "kwonly_params", "posonly_params")
        }
    )
    statements: list[cst.BaseStatement] = [
        cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], value)])
        for name, value in literals.items()
    ]
    statements += body_of(function)
    new = _with_body(function.with_changes(params=params), [*docstring, *statements])
    if not _is_static(function):
        return new  # type: ignore[no-any-return]
    given = {name: value for name, value in known.items() if value is GIVEN}
    while True:
        before = code(new)
        folder = _Folder(new)
        statements, _ = folder.block(body_of(new), _without(given, folder.untouchable))
        statements, _ = folder.alive(statements, set(), set())
        statements = _joined(statements, folder.captured | folder.untouchable)
        new = _with_body(new, [*docstring, *statements])
        if code(new) == before:
            return _annotated(new, given, folder)


def _annotated(function: cst.FunctionDef, given: Known, folder: _Folder) -> cst.FunctionDef:
    """The function without ``| None`` in its annotations where that cannot be."""
    params = [
        p.with_changes(annotation=_not_none(p.annotation)) if p.name.value in given else p
        for p in function.params.params
    ]
    function = function.with_changes(params=function.params.with_changes(params=params))
    returns = function.returns
    if returns is None or len(folder.returns) != 1:
        return function
    value, known = folder.returns[0]

    def sure(node: cst.BaseExpression) -> bool:
        name = node.value if isinstance(node, cst.Name) else ""
        return is_given(node) or known.get(name) is GIVEN

    kind = returns.annotation
    if isinstance(kind, cst.Subscript) and isinstance(value, cst.Tuple):
        if len(kind.slice) == len(value.elements):
            slices = [
                s.with_changes(slice=cst.Index(_not_none_type(s.slice.value)))
                if isinstance(s.slice, cst.Index) and sure(e.value)
                else s
                for s, e in zip(kind.slice, value.elements, strict=True)
            ]
            kind = kind.with_changes(slice=slices)
    elif sure(value):
        kind = _not_none_type(kind)
    return function.with_changes(returns=returns.with_changes(annotation=kind))


def _not_none(annotation: cst.Annotation | None) -> cst.Annotation | None:
    if annotation is None:
        return None
    return annotation.with_changes(annotation=_not_none_type(annotation.annotation))


def _not_none_type(node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
        if code(node.right) == "None":
            return node.left
    return node


def used_parameters(function: cst.FunctionDef) -> cst.FunctionDef:
    """The function without the parameters that its body does not read, and without defaults."""
    names = reads(_with_body(function, body_of(function)))
    params = [
        p.with_changes(default=None, equal=_AUTO, comma=_AUTO)
        for p in function.params.params
        if p.name.value in names
    ]
    return function.with_changes(params=function.params.with_changes(params=params))


def fold_expression(node: cst.BaseExpression, known: Known) -> cst.BaseExpression:
    """An expression outside a function, for names that are bound nowhere."""
    folded = node.visit(_Expressions(known, set(known), set()))
    assert isinstance(folded, cst.BaseExpression)
    return folded


_DTYPE = re.compile(r"dtype|half|double|(bfloat|float|uint|int|complex)\d+(_\w+)?")


def is_given(node: cst.BaseExpression) -> bool:
    """Whether an expression over tensors surely has a value other than None."""
    if is_literal(node):
        return literal(node) is not None
    if isinstance(node, (cst.BinaryOperation, cst.Comparison, cst.Tuple)):
        return True
    if isinstance(node, cst.Subscript):
        return not all(isinstance(e.slice, cst.Index) for e in node.slice) or len(node.slice) > 1
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        owner, method = code(node.func.value), node.func.attr.value
        return owner in ("torch", "F") or method in _PURE_METHODS
    return isinstance(node, cst.Attribute) and _DTYPE.fullmatch(node.attr.value) is not None


def given_names(node: cst.CSTNode, known: Known) -> set[str]:
    """The names that are not None wherever a piece of code reads them."""
    counts = Counter(_bindings(_tree(node)))
    names = {name for name, value in known.items() if value is GIVEN and counts[name] <= 1}

    class Visit(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:
            target = node.targets[0].target
            if isinstance(target, cst.Name) and counts[target.value] == 1 and is_given(node.value):
                names.add(target.value)

    node.visit(Visit())
    return names
