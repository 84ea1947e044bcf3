"""Ops of the user's own: rows that are not in this package, and that stand before those that are.

They come from ``[[tool.trainify.ops]]`` or from :func:`register`.  What the tests hold the rows of
the catalog to, these are held to when they are read: a row with a mistake in it would write wrong
code, or never match and say nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..facts.walk import walk
from . import RETURNED, FusedOp, Schema, SchemaError, parse_schema

if TYPE_CHECKING:
    from inspect import Signature


class OpError(ValueError):
    """What is wrong with an op, and in which of its fields; empty where it is the op itself."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


_registered: list[FusedOp] = []


def register(
    names: str | Iterable[str],
    schema: str,
    equivalent: str,
    *,
    imports: str | Iterable[str] = (),
    unsupported: str | Iterable[str] = (),
    source: str = "",
    since: str = "",
) -> None:
    """Add an op of your own; the arguments are the fields of :class:`~trainify.catalog.FusedOp`.

    :class:`~trainify.engine.Options` made from now on know it.  Raises :class:`OpError`, which is a
    ``ValueError``, where something is wrong with it.
    """
    op = own_op(
        {
            "names": _listed(names),
            "schema": schema,
            "equivalent": equivalent,
            "imports": _listed(imports),
            "unsupported": _listed(unsupported),
            "source": source,
            "since": since,
        }
    )
    if op not in _registered:
        _registered.insert(0, op)  # who registers a name again means the new op


def _listed(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def registered() -> tuple[FusedOp, ...]:
    """The ops registered so far, the last one first."""
    return tuple(_registered)


# -- reading one ----------------------------------------------------------------------------------

_REQUIRED = ("names", "schema", "equivalent")
_TEXTS = ("schema", "equivalent", "source", "since")
_LISTS = ("names", "imports", "unsupported")
FIELDS = tuple(dict.fromkeys((*_REQUIRED, *_LISTS, *_TEXTS)))
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def own_op(fields: Mapping[str, object]) -> FusedOp:
    """The op that these fields describe; raises :class:`OpError` for the first mistake in them."""
    for field in fields:
        if field not in FIELDS:
            raise OpError(field, f"unknown key{_hint(field)}")
    for field in _REQUIRED:
        if field not in fields:
            raise OpError("", f"has no {field}")
    texts = {field: _text(field, fields.get(field, "")) for field in _TEXTS}
    lists = {field: _strings(field, fields.get(field, ())) for field in _LISTS}
    if not lists["names"]:
        raise OpError("names", "must hold a name")
    for name in lists["names"]:
        if "." not in name or not _MODULE.fullmatch(name):
            raise OpError("names", f"{name!r} is no dotted name such as 'my_kernels.rms_norm'")
    for name in lists["imports"]:
        if not _MODULE.fullmatch(name):
            raise OpError("imports", f"{name!r} is no module's name")
    try:
        schema = parse_schema(texts["schema"])
    except SchemaError as error:
        raise OpError("schema", str(error)) from None
    _check_schema(schema)
    _check_equivalent(schema, texts["equivalent"], lists["imports"])
    for name in lists["unsupported"]:
        if all(argument.name != name for argument in schema.arguments):
            raise OpError("unsupported", f"the schema has no argument {name!r}")
    return FusedOp(
        names=lists["names"],
        schema=texts["schema"],
        equivalent=texts["equivalent"],
        imports=lists["imports"],
        unsupported=lists["unsupported"],
        source=texts["source"],
        since=texts["since"],
    )


def _hint(field: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(field, FIELDS, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(FIELDS)}"


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise OpError(field, "must be a string")
    return value.strip()


def _strings(field: str, value: object) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not all(isinstance(item, str) for item in listed):
        raise OpError(field, "must be a string or a list of strings")
    return tuple(listed)


# The names that torch/csrc/jit/frontend/schema_type_parser.cpp gives to what a kernel may take.
_TYPES = frozenset(
    """
    Tensor Scalar ScalarType Layout Device MemoryFormat Generator Stream QScheme Dimname Any number
    int float bool str complex SymInt SymBool
    """.split()
)


_RETURNED = re.compile(
    r"(?P<type>[A-Za-z]\w*)(\([a-z*]+!?(\s*->\s*[a-z*]+)?\)|!)?(\[\d*\])?\??(\s+\w+)?"
)


def _check_schema(schema: Schema) -> None:
    for shown in schema.returns:
        returned = _RETURNED.fullmatch(shown)
        if returned is None or returned["type"] not in _TYPES:
            raise OpError("schema", f"cannot read {shown!r}, which it returns: no such type")
    defaults = False
    for argument in schema.arguments:
        if argument.type.partition("[")[0].rstrip("?") not in _TYPES:
            shown = f"{argument.type} {argument.name}"
            raise OpError("schema", f"cannot read argument {shown!r}: no such type")
        if argument.name in ("torch", "F", RETURNED):
            raise OpError("schema", f"no argument can be called {argument.name!r}")
        if not argument.kwarg_only:
            if defaults and argument.default is None:
                raise OpError("schema", f"argument {argument.name!r} needs a default: others do")
            defaults = argument.default is not None


# -- the equivalent -------------------------------------------------------------------------------

_SCOPES = (
    ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr,
    ast.Await, ast.Yield, ast.YieldFrom,
)  # fmt: skip


def _check_equivalent(schema: Schema, equivalent: str, imports: tuple[str, ...]) -> None:
    try:
        statements = ast.parse(equivalent).body
    except (SyntaxError, ValueError) as error:
        raise _wrong(f"not Python: {getattr(error, 'msg', error)}") from None
    statement = statements[0] if len(statements) == 1 else None
    if not isinstance(statement, (ast.Assign, ast.Expr)):
        raise _wrong("must be one expression, or one assignment of what the op writes")
    if any(isinstance(node, _SCOPES) for node in walk(statement)):
        raise _wrong("must do without lambda, comprehensions, := and await")
    written = [argument.name for argument in schema.written]
    if isinstance(statement, ast.Assign):
        _check_targets(schema, statement, written)
    elif any(argument.default != "None" for argument in schema.written):
        raise _wrong(f"gives a value, but the op writes {', '.join(written)}: assign it")
    elif not schema.returns:
        raise _wrong("gives a value, but by its schema the op returns and writes nothing")
    _check_value(schema, statement.value, imports)


def _wrong(message: str) -> OpError:
    return OpError("equivalent", message)


def _check_targets(schema: Schema, statement: ast.Assign, written: list[str]) -> None:
    target = statement.targets[0]
    elements = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [element.id for element in elements if isinstance(element, ast.Name)]
    if len(statement.targets) > 1 or len(names) != len(elements) or len(set(names)) != len(names):
        raise _wrong("must assign to names of arguments, to each once")
    for name in names:
        if name == RETURNED and schema.returns:
            continue
        if name not in written:
            raise _wrong(f"assigns {name!r}, which is not marked as written: Tensor(a!) {name}")
    for name in written:
        if name not in names:
            raise _wrong(f"does not assign {name!r}, which is marked as written")
    if None in schema.handed_back and any(schema.handed_back) and RETURNED not in names:
        raise _wrong(f"does not assign {RETURNED!r}, the new value that the op returns")


def _check_value(schema: Schema, value: ast.expr, imports: tuple[str, ...]) -> None:
    known = {argument.name for argument in schema.arguments} | {"torch", "F"}
    known |= {module.partition(".")[0] for module in imports}
    called: set[ast.expr] = set()
    for node in walk(value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            signature = reference_signatures().get(node.func.id)
            if signature is not None:
                called.add(node.func)
                _check_call(node.func.id, signature, node)
    for node in walk(value):
        if isinstance(node, ast.Name) and node not in called and node.id not in known:
            raise _wrong(
                f"uses {node.id!r}, which is neither an argument, nor torch or F, nor a function "
                "of trainify.reference; modules of your own are named in imports"
            )


def _check_call(name: str, signature: Signature, call: ast.Call) -> None:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    if starred or len(keywords) != len(call.keywords):
        raise _wrong(f"must call {name} without * and **")
    try:
        signature.bind(*call.args, **keywords)
    except TypeError as error:
        raise _wrong(f"{name}({', '.join(signature.parameters)}): {error}") from None


@cache
def reference_signatures() -> dict[str, Signature]:
    """How each reference function is called, read without importing torch."""
    from inspect import Parameter, Signature

    signatures: dict[str, Signature] = {}
    for path in sorted((Path(__file__).parents[1] / "reference").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in node.args.args]
                required = len(names) - len(node.args.defaults)
                signatures[node.name] = Signature(
                    [
                        Parameter(
                            name,
                            Parameter.POSITIONAL_OR_KEYWORD,
                            default=Parameter.empty if i < required else ...,
                        )
                        for i, name in enumerate(names)
                    ]
                )
    return signatures
