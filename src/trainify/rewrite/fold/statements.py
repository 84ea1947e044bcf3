"""Folding of statements: forward with what is known, backward with what is read."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import libcst as cst

from ...facts.walk import walk
from ..expressions import bare, code
from .blocks import (
    bound_names,
    else_with,
    is_block,
    is_plain,
    leading,
    led,
    lines_of,
    tuple_of,
    with_body,
)
from .expressions import Expressions, truth
from .values import (
    GIVEN,
    UNKNOWN,
    Known,
    bindings,
    binds,
    is_given,
    is_literal,
    is_pure,
    is_read,
    literal,
    parsed,
    reads,
)


class Folder:
    def __init__(self, function: cst.FunctionDef) -> None:
        tree = parsed(function)
        counts = Counter(bindings(tree))
        self.bound = set(counts)
        self.constant = {name for name, count in counts.items() if count == 1}
        self.returns: list[tuple[cst.BaseExpression, Known]] = []
        self.untouchable = {
            name
            for n in walk(tree)
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
            for n in walk(tree)
            if isinstance(n, inner) and n is not outer
            for name in walk(n)
            if isinstance(name, ast.Name) and is_read(name)
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
        if isinstance(statement, cst.If) and is_plain(statement):
            return self.branch(statement, known)
        without = forgetting(known, binds(statement))
        if isinstance(statement, cst.For) and statement.orelse is None and is_block(statement):
            body, _ = self.block(lines_of(statement), without)
            iterated = self.expression(statement.iter, known)
            return [with_body(statement.with_changes(iter=iterated), body)], without
        if isinstance(statement, cst.While) and statement.orelse is None and is_block(statement):
            body, _ = self.block(lines_of(statement), without)
            return [with_body(statement, body)], without
        return [statement], without

    def branch(
        self, statement: cst.If, known: Known
    ) -> tuple[list[cst.BaseStatement], Known | None]:
        test = truth(self.expression(statement.test, known))
        value = literal(test)
        otherwise = statement.orelse
        if value is not UNKNOWN:
            if value:
                taken = lines_of(statement)
            elif isinstance(otherwise, cst.If):
                taken = [otherwise]
            else:
                taken = [] if otherwise is None else lines_of(otherwise)
            done, last = self.block(taken, known)
            if done and value:
                done[0] = led(done[0], [*statement.leading_lines, *leading(done[0])])
            return done, last
        body, after_body = self.block(lines_of(statement), known)
        orelse: list[cst.BaseStatement] = []
        after: Known | None = known
        if isinstance(otherwise, cst.If):
            orelse, after = self.branch(otherwise, known)
        elif otherwise is not None:
            orelse, after = self.block(lines_of(otherwise), known)
        head = statement.with_changes(test=test, whitespace_before_test=cst.SimpleWhitespace(" "))
        new = with_body(head, body)
        new = new.with_changes(orelse=else_with(otherwise, orelse))
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
            known = forgetting(known, binds(node))
            if len(node.targets) == 1:
                known = self.learn(node.targets[0].target, node.value, known)
            return node, known
        if isinstance(node, (cst.AnnAssign, cst.AugAssign)) and node.value is not None:
            node = node.with_changes(value=self.expression(node.value, known))
            after = forgetting(known, binds(node))
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
        return node, forgetting(known, binds(node))

    def expression(self, node: cst.BaseExpression, known: Known) -> cst.BaseExpression:
        if known or not isinstance(node, cst.Name):
            folded = node.visit(Expressions(known, self.constant, self.bound))
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
        if isinstance(statement, cst.If) and is_plain(statement):
            body, live_body = self.alive(lines_of(statement), live, loop)
            otherwise, live_else = statement.orelse, live
            orelse: list[cst.BaseStatement] = []
            if isinstance(otherwise, cst.If):
                orelse, live_else = self.keep(otherwise, live, loop)
            elif otherwise is not None:
                orelse, live_else = self.alive(lines_of(otherwise), live, loop)
            if not body and not orelse and is_pure(statement.test):
                return [], live
            new = with_body(statement, body).with_changes(orelse=else_with(otherwise, orelse))
            return [new], live_body | live_else | reads(statement.test)
        if isinstance(statement, (cst.For, cst.While)) and is_block(statement):
            inside = live | reads(statement)
            body, _ = self.alive(lines_of(statement), inside, inside)
            return [with_body(statement, body)], inside
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
        targets = bound_names(target)
        if targets is None:
            return [statement], live | reads(node)
        if isinstance(target, cst.Name) and code(target) == code(value):
            return [], live
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
                kept = tuple_of(target, [t for t, _ in pairs])
                new = node.with_changes(
                    targets=[node.targets[0].with_changes(target=kept)],
                    value=tuple_of(value, [v for _, v in pairs]),
                )
                statement = statement.with_changes(body=[new])
                return [statement], (live - set(targets)) | reads(new.value)
        return [statement], (live - set(targets)) | reads(value)


def forgetting(known: Known, names: AbstractSet[str]) -> Known:
    """What is still known once names are bound anew."""
    return {
        name: value
        for name, value in known.items()
        if name not in names and not (isinstance(value, cst.Name) and value.value in names)
    }
