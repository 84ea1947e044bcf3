"""The schema notation: what is read from it, how calls are bound, and that garbage is refused."""

from __future__ import annotations

import ast
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainify.catalog import BindError, Schema, SchemaError, parse_schema

NORM = parse_schema(
    "rms_norm(Tensor(a!) out, Tensor input, Tensor? weight=None, *, float eps=1e-6) -> ()"
)


def bind(schema: Schema, call: str) -> dict[str, str | None]:
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    bound = schema.bind(tree.args, tree.keywords)
    return {name: None if value is None else ast.unparse(value) for name, value in bound.items()}


@pytest.mark.parametrize(
    ("text", "name", "type_", "written", "default"),
    [
        ("Tensor x", "x", "Tensor", False, None),
        ("Tensor(a!) x", "x", "Tensor", True, None),
        ("Tensor! x", "x", "Tensor", True, None),
        ("Tensor!? x", "x", "Tensor?", True, None),
        ("Tensor(a!)? out=None", "out", "Tensor?", True, "None"),
        ("Tensor(a) x", "x", "Tensor", False, None),
        ("Tensor[] xs", "xs", "Tensor[]", False, None),
        ("int[2] window_size=(-1, -1)", "window_size", "int[2]", False, "(-1, -1)"),
        ("SymInt[]? lengths=None", "lengths", "SymInt[]?", False, "None"),
        ("str mode='half, or \"full\"'", "mode", "str", False, "'half, or \"full\"'"),
        ("float eps=1e-6", "eps", "float", False, "1e-6"),
    ],
)
def test_argument(text: str, name: str, type_: str, written: bool, default: str | None) -> None:
    (argument,) = parse_schema(f"op({text}) -> ()").arguments
    assert (argument.name, argument.type) == (name, type_)
    assert (argument.written, argument.default) == (written, default)


def test_schema() -> None:
    schema = parse_schema("ns::op.out(Tensor a, *, Tensor(b!) b) -> (Tensor, Tensor(b!))")
    assert schema.name == "ns::op.out"
    assert schema.returns == ("Tensor", "Tensor(b!)")
    assert [a.kwarg_only for a in schema.arguments] == [False, True]
    assert [a.name for a in schema.written] == ["b"]
    assert parse_schema("op() -> ()").arguments == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "op",
        "op(Tensor x)",
        "op(x) -> ()",
        "op(Tensor x -> ()",
        "op(Tensor x, Tensor x) -> ()",
        "op(Tensor x=) -> ()",
        "op(int x=1 2) -> ()",
        "op(Tensor x,, Tensor y) -> ()",
        "def op(Tensor x) -> ()",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse_schema(text)


def test_bind() -> None:
    assert bind(NORM, "f(o, x.view(-1), eps=self.eps)") == {
        "out": "o",
        "input": "x.view(-1)",
        "weight": None,
        "eps": "self.eps",
    }
    assert bind(NORM, "f(input=x, out=o, weight=None)")["weight"] == "None"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("f(o)", "'input' is missing"),
        ("f(o, x, w, 1e-6)", "takes 3 arguments, the call passes 4"),
        ("f(*a)", "unpacks *args"),
        ("f(o, *a, *b, *c)", "unpacks *args"),
        ("f(o, x, **options)", "unpacks **kwargs"),
        ("f(o, x, out=o)", "'out' is passed twice"),
        ("f(o, x, bias=b)", "no argument named 'bias'"),
    ],
)
def test_bind_refused(call: str, why: str) -> None:
    with pytest.raises(BindError) as error:
        bind(NORM, call)
    assert why in str(error.value)


_letters = string.ascii_lowercase + "_"
names = st.builds(
    str.__add__, st.sampled_from(_letters), st.text(_letters + string.digits, max_size=8)
)
types = st.sampled_from(["Tensor", "Tensor?", "int", "float", "bool?", "str", "Tensor[]", "int[2]"])
defaults = st.sampled_from([None, "None", "1", "-1.5e-6", "'a, b'", "(1, [2, 3])", "True"])


@given(st.lists(st.tuples(names, types, defaults, st.booleans()), unique_by=lambda a: a[0]))
def test_what_is_written_is_read(arguments: list[tuple[str, str, str | None, bool]]) -> None:
    parts = []
    for name, type_, default, written in arguments:
        written = written and type_ in ("Tensor", "Tensor?")
        shown = type_.replace("Tensor", "Tensor(a!)") if written else type_
        parts.append(f"{shown} {name}" + ("" if default is None else f"={default}"))
    schema = parse_schema(f"op({', '.join(parts)}) -> Tensor")
    assert [(a.name, a.type, a.default) for a in schema.arguments] == [
        (name, type_, default) for name, type_, default, _ in arguments
    ]
    assert {a.name for a in schema.written} == {
        name for name, type_, _, written in arguments if written and type_ in ("Tensor", "Tensor?")
    }


@given(st.text(alphabet=string.printable + "é→\0", max_size=60))
def test_garbage_is_refused_or_read(text: str) -> None:
    for candidate in (text, f"op({text}) -> ()", f"op(Tensor {text}) -> {text}"):
        try:
            schema = parse_schema(candidate)
        except SchemaError:
            continue
        assert len({a.name for a in schema.arguments}) == len(schema.arguments)
