"""Folding writes out what is known and never changes what a function does."""

from __future__ import annotations

import functools
import itertools
import random
import textwrap
from typing import Any

import libcst as cst
import pytest

from tests.each import case
from trainify.rewrite.expressions import code, one_line
from trainify.rewrite.fold import fold
from trainify.rewrite.fold.values import GIVEN


@functools.lru_cache(maxsize=None, typed=True)
def folded(text: str, **known: Any) -> str:
    (function,) = cst.parse_module(textwrap.dedent(text)).body
    assert isinstance(function, cst.FunctionDef)
    facts = {
        name: GIVEN if value is GIVEN else cst.parse_expression(repr(value))
        for name, value in known.items()
    }
    return code(fold(function, facts)).strip()


def becomes(before: str, after: str, **known: Any) -> None:
    assert folded(before, **known) == textwrap.dedent(after).strip()


def test_branches_and_parameters_go() -> None:
    becomes(
        """
        def f(x, causal, left=-1, layout="NHD"):
            if layout == "HND":
                x = x.mT
            # the mask
            if causal and left < 0:
                x = x.tril()  # lower
            elif causal:
                x = x.triu()
            else:
                x = x + 1
            return x
        """,
        """
        def f(x):
            # the mask
            x = x.tril()  # lower
            return x
        """,
        causal=True,
        left=-1,
        layout="NHD",
    )


def test_constants_travel_through_locals_and_tuples() -> None:
    becomes(
        """
        def f(x, window=None):
            left, right = (-1, -1) if window is None else window
            scale, bound = x.shape[0], left
            if bound >= 0 or right != -1:
                return None
            return x * scale
        """,
        """
        def f(x):
            scale = x.shape[0]
            return x * scale
        """,
        window=None,
    )


def test_copies_of_names_are_seen_through() -> None:
    becomes(
        """
        def f(x, n=None):
            columns = x.shape[0]
            k_len = columns if n is None else n
            return x[:k_len]
        """,
        """
        def f(x):
            columns = x.shape[0]
            return x[:columns]
        """,
        n=None,
    )


def test_a_name_is_not_assigned_to_itself() -> None:
    becomes(
        """
        def f(x, bias=None):
            y = x * 2
            y = y if bias is None else y + bias
            return y * y
        """,
        """
        def f(x):
            y = x * 2
            return y * y
        """,
        bias=None,
    )


def test_a_parameter_that_is_bound_again_becomes_a_local() -> None:
    becomes(
        """
        def f(x, mask=None):
            if x > 0:
                mask = x
            return mask
        """,
        """
        def f(x):
            mask = None
            if x > 0:
                mask = x
            return mask
        """,
        mask=None,
    )


def test_given_is_not_none() -> None:
    becomes(
        """
        def f(x, y=None):
            if y is not None:
                x = x + y
            return x if y is not None else -x
        """,
        """
        def f(x, y=None):
            return x + y
        """,
        y=GIVEN,
    )


def test_pairs_that_a_branch_leaves_are_joined() -> None:
    becomes(
        """
        def f(x, neox):
            if neox:
                y = x.chunk(2)
            else:
                y = x
            y = y.flatten(-2)
            if not neox:
                y = y + 1
            return y
        """,
        """
        def f(x):
            return x.chunk(2).flatten(-2)
        """,
        neox=True,
    )


def test_what_is_left_out_by_default_is_left_out() -> None:
    becomes(
        """
        def f(q, k, v, causal):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        """,
        """
        def f(q, k, v):
            return F.scaled_dot_product_attention(q, k, v)
        """,
        causal=False,
    )


# Functions whose meaning is easily lost.  Each runs with every subset of its arguments known.
HARD = [
    """
    def f(a, b):  # a loop binds again what was known before it
        total = 0
        for i in range(3):
            if a == 1:
                total = total + b
            a = a + 1
        return total, a
    """,
    """
    def f(a, b):  # the second round sees another value
        while b < 3:
            b = b + a
            a = 1
        return a, b
    """,
    """
    def f(a, b):  # only one branch binds
        if b:
            a = None
        return a is None
    """,
    """
    def f(a, b):  # both branches bind alike, and not alike
        if b:
            x, y = 1, a
        else:
            x, y = 1, 2
        return x, y
    """,
    """
    def f(a, b):  # one is not True, nor 1.0
        if b:
            x = 1
        else:
            x = True
        return repr(x), a
    """,
    """
    def f(a, b):  # a closure sees the last value
        g = lambda: a
        a = b
        return g()
    """,
    """
    def f(a, b):  # a generator runs when it is asked
        g = (a for _ in range(2))
        a = b
        return list(g)
    """,
    """
    def f(a, b):  # a nested function may bind what is outside
        def g():
            nonlocal a
            a = a + 1
            return a
        x = g()
        return x, a, b
    """,
    """
    def f(a, b):  # comprehensions have names of their own
        x = [a for a in range(b)]
        y = {b: a for b in range(2)}
        return x, y, a, b
    """,
    """
    def f(a, b):  # so have lambdas
        return (lambda a: a)(b), (lambda x, b=b: (a, b))(1)
    """,
    """
    def f(a, b):  # an assignment inside an expression
        if (a := b) and a:
            return a
        return a, b
    """,
    """
    def f(a, b):  # names of builtins
        isinstance = lambda x, y: a
        len = b
        return isinstance(None, int), len
    """,
    """
    def f(a, b):  # both sides of a swap
        a, b = b, a
        a, c = a, a
        return a, b, c
    """,
    """
    def f(a, b):  # exceptions leave the line
        x = a
        try:
            x = b
            x = 1 // a
        except ZeroDivisionError:
            x = x + 10
        finally:
            b = 7
        return x, b
    """,
    """
    def f(a, b):  # a with statement binds
        import contextlib
        with contextlib.nullcontext(b) as a:
            x = a
        return x, a
    """,
    """
    def f(a, b):  # del, and bound again
        x = a
        del x
        x = b
        return x
    """,
    """
    def f(a, b):  # break and continue
        x = 0
        for i in range(4):
            x = a
            if i == 1:
                continue
            if i == 2:
                break
            x = b
        else:
            x = 100
        return x
    """,
    """
    def f(a, b):  # calls have effects although nobody reads the result
        seen = []
        x = seen.append(a)
        y = seen.append(b) or a
        x, y = seen.append(3), 4
        return seen
    """,
    """
    def f(a, b):  # the value of and, or
        return a and b, a or b, not a, (a or b) and (b or a), a and True, b or False
    """,
    """
    def f(a, b):  # comparisons in a chain, of other types
        return 0 < a < 2, a == b, a is None, a in (1, 2), a != (b, b)
    """,
    """
    def f(a, b):  # text with names in it
        x = a
        return f"{x!r} {b}", "a", {"a": b}["a"], dict(a=b)
    """,
    """
    def f(a, b):  # augmented
        x = a
        x += b
        y = [a]
        y[0] = b
        y[0] += 1
        return x, y
    """,
    """
    def f(a, b):  # what matches binds
        match (a, b):
            case (1, a):
                x = a
            case _:
                x = b
        return x, a
    """,
    """
    def f(a, b):  # locals
        x = a
        return sorted(locals())
    """,
    """
    def f(a, b):  # names joined where others look
        x = [a]
        g = lambda: x
        x = x.copy()
        return g() is x
    """,
    """
    def f(a, b):  # nothing is left of it
        if a == 1:
            if b:
                pass
        return None
    """,
]


def run(text: str, arguments: dict[str, Any]) -> Any:
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(text), namespace)
    return namespace["f"](**arguments)


@pytest.mark.parametrize("text", HARD, ids=lambda text: text.split("# ")[1].split("\n")[0])
def test_meaning_stays(text: str) -> None:
    for a, b in itertools.product((0, 1, 2, True), (0, 1, 3, False)):
        arguments = {"a": a, "b": b}
        expected = run(text, arguments)
        for size in range(3):
            for names in itertools.combinations(arguments, size):
                new = folded(text, **{n: arguments[n] for n in names})
                rest = {n: v for n, v in arguments.items() if n not in names}
                assert repr(run(new, rest)) == repr(expected), new
        assert repr(run(folded(text, a=GIVEN, b=GIVEN), arguments)) == repr(expected)


class Writer:
    """Writes random functions over a few names."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = ["a", "b", "c", "x", "y"]

    def name(self) -> str:
        return self.random.choice(self.names)

    def expression(self, depth: int = 2) -> str:
        def part() -> str:
            return self.expression(depth - 1)

        if depth == 0 or self.random.random() < 0.2:
            return self.random.choice([*self.names, "None", "0", "1", "-1", "True", "(1, 2)"])
        return self.random.choice(
            [
                lambda: f"({part()} if {part()} else {part()})",
                lambda: f"({part()} and {part()})",
                lambda: f"({part()} or {part()})",
                lambda: f"(not {part()})",
                lambda: f"({part()} is None)",
                lambda: f"({part()} == {part()})",
                lambda: f"({part()} != {part()})",
                lambda: f"(1, {part()})[0]",
                lambda: f"[{part()} for {self.name()} in range(2)]",
                lambda: f"(lambda: {part()})()",
                lambda: f"show({part()})",
                lambda: f"(1 if isinstance({part()}, int) else {part()})",
            ]
        )()

    def block(self, depth: int, indent: str) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 4)):
            lines += [indent + line for line in self.statement(depth)]
        return lines

    def statement(self, depth: int) -> list[str]:
        kind = self.random.random()
        if kind < 0.45 or depth == 0:
            return [f"{self.name()} = {self.expression()}"]
        if kind < 0.55:
            return [f"{self.name()}, {self.name()} = {self.expression()}, {self.expression()}"]
        if kind < 0.6:
            return [f"late.append(lambda: {self.name()})"]
        if kind < 0.65:
            return [f"if {self.expression()}:", f"    return {self.expression()}"]
        if kind < 0.9:
            lines = [f"if {self.expression()}:", *self.block(depth - 1, "    ")]
            if self.random.random() < 0.6:
                lines += ["else:", *self.block(depth - 1, "    ")]
            return lines
        body = self.block(depth - 1, "    ")
        if self.random.random() < 0.4:
            body += [
                f"    if {self.name()}:",
                f"        {self.random.choice(('break', 'continue'))}",
            ]
            body += self.block(0, "    ")
        return [f"for {self.name()} in range(2):", *body]

    def function(self) -> str:
        head = ["def f(a, b, c, show, late):", "    x = y = 0"]
        tail = ["    return a, b, c, x, y, [g() for g in late]"]
        return "\n".join([*head, *self.block(2, "    "), *self.block(2, "    "), *tail])


def observed(text: str, arguments: dict[str, Any]) -> tuple[Any, list[str]]:
    """The result of a function, and the values it showed on the way."""
    shown: list[str] = []

    def show(value: Any) -> Any:
        shown.append(repr(value))
        return value

    return run(text, {**arguments, "show": show, "late": []}), shown


@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 300), marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_random_functions_keep_their_meaning(seeds: range) -> None:
    for seed in seeds:
        with case(f"seed {seed}"):
            keeps_its_meaning(Writer(seed))


def keeps_its_meaning(writer: Writer) -> None:
    text = writer.function()
    values = {n: writer.random.choice((None, 0, 1, True, (1, 2))) for n in "abc"}
    expected = observed(text, values)
    known = {n: v for n, v in values.items() if writer.random.random() < 0.6}
    rest = {n: v for n, v in values.items() if n not in known}
    new = folded(text, **known)
    got = observed(new, rest)
    assert repr(got) == repr(expected), f"{text}\n\n{new}"
    assert folded(new) == new, "folding has not come to an end"


def test_one_line() -> None:
    assert one_line("f(\n    a,\n    (b,\n    ),\n)") == "f(a, (b,))"
    assert one_line("x = [\n  1,\n  2,\n]") == "x = [1, 2]"
    assert one_line("f(  # why\n    a)") == "f(  # why\n    a)"
    assert one_line('f(\n    """a\n    b""")') == 'f(\n    """a\n    b""")'
