"""Instantiating a differentiable equivalent at one call.

The text comes from :mod:`trainify.reference`: a short straight-line function is written out in
place, with the user's expressions for its parameters; a longer one becomes a helper function of the
user's file.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import libcst as cst

from ..catalog import FusedOp

_MAX_INLINE_STATEMENTS = 3


@dataclass(frozen=True)
class Place:
    """Where a result goes: ``text = value``, or ``text.copy_(value)`` into somebody else's tensor.

    ``shape_of`` names a tensor whose shape the result takes on.
    """

    text: str
    kind: Literal["assign", "copy"] = "assign"
    shape_of: str = ""

    @property
    def is_name(self) -> bool:
        return self.kind == "assign" and self.text.isidentifier() and not self.shape_of


@dataclass
class Rendered:
    """Statements to run (one a string, unindented), and the value of the call where it is used."""

    statements: list[str] = field(default_factory=list)
    value: str | None = None
    helpers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reference:
    """One function of :mod:`trainify.reference`, as text."""

    name: str
    node: cst.FunctionDef
    tree: ast.FunctionDef
    siblings: frozenset[str]

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        return tuple(a.arg for a in self.tree.args.args)

    @cached_property
    def defaults(self) -> dict[str, str]:
        values = self.tree.args.defaults
        names = self.parameters[len(self.parameters) - len(values) :]
        return {name: ast.unparse(value) for name, value in zip(names, values)}

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The statements after the docstring."""
        return self.tree.body[1:] if ast.get_docstring(self.tree) else self.tree.body

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """Functions of the same module that this one calls."""
        names = [n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)]
        return tuple(dict.fromkeys(n for n in names if n in self.siblings and n != self.name))

    @cached_property
    def inline(self) -> bool:
        """Whether the body is short straight-line code that can stand in the user's function."""
        *statements, last = self.body
        return (
            isinstance(last, ast.Return)
            and len(statements) <= _MAX_INLINE_STATEMENTS
            and all(isinstance(s, ast.Assign) and len(s.targets) == 1 for s in statements)
            and not self.calls
            and not any(isinstance(n, (ast.IfExp, ast.Lambda)) for n in ast.walk(self.tree))
        )


@cache
def reference(name: str) -> Reference | None:
    """The reference function of this name, read without importing torch."""
    path = _paths().get(name)
    return _parse(path).get(name) if path is not None else None


@cache
def _paths() -> dict[str, Path]:
    spec = importlib.util.find_spec("trainify.reference")
    assert spec is not None and spec.origin is not None
    found: dict[str, Path] = {}
    for path in sorted(Path(spec.origin).parent.glob("*.py")):
        for match in re.finditer(r"^def (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(match[1], path)
    return found


@cache
def _parse(path: Path) -> dict[str, Reference]:
    text = path.read_text(encoding="utf-8")
    trees = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    nodes = {n.name.value: n for n in cst.parse_module(text).body if isinstance(n, cst.FunctionDef)}
    siblings = frozenset(trees)
    return {name: Reference(name, nodes[name], trees[name], siblings) for name in trees}


# -- substitution -------------------------------------------------------------------------------

_ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.Integer,
    cst.Float,
    cst.SimpleString,
    cst.List,
    cst.Dict,
    cst.Set,
    cst.Ellipsis,
)


class _Substitute(cst.CSTTransformer):
    """Replace names by expressions, with parentheses where the place needs them."""

    def __init__(self, mapping: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self.mapping = mapping

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        value = self.mapping.get(original_node.value)
        return updated_node if value is None else _parenthesized(value)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        value = updated_node.value
        if isinstance(original_node.value, cst.Name):
            value = self.mapping.get(original_node.value.value, value)
        return updated_node.with_changes(keyword=original_node.keyword, value=value)


def _parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, _ATOMS) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _expression(text: str) -> cst.BaseExpression:
    if "\n" in text or "\r" in text:
        text = " ".join(line.strip() for line in text.splitlines())
        text = re.sub(r"(?<=[(\[{]) | (?=[)\]}])", "", text)
        text = re.sub(r",(?=[)\]}])", "", text)
    return cst.parse_expression(text)


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _identifiers(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(text.strip(), mode="eval")) if isinstance(n, ast.Name)}


def _is_simple(text: str) -> bool:
    """Whether reading an expression twice costs nothing and says nothing new."""
    node = ast.parse(text.strip(), mode="eval").body
    while isinstance(node, ast.Attribute):
        node = node.value
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, (ast.Name, ast.Constant))


def _same_literal(a: str, b: str) -> bool:
    """Whether two literals are equal: ``1`` and ``1.0``."""
    try:
        return bool(ast.literal_eval(a) == ast.literal_eval(b))
    except (ValueError, SyntaxError):
        return a == b


def strip_detach(text: str) -> str:
    """An argument without ``.data`` and ``.detach()``, which would cut it off a second time."""

    class Strip(cst.CSTTransformer):
        def leave_Attribute(
            self, original_node: cst.Attribute, updated_node: cst.Attribute
        ) -> cst.BaseExpression:
            return updated_node.value if updated_node.attr.value == "data" else updated_node

        def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
            func = updated_node.func
            if isinstance(func, cst.Attribute) and func.attr.value == "detach":
                return func.value if not updated_node.args else updated_node
            return updated_node

    if ".data" not in text and "detach" not in text:
        return text
    node = _expression(text).visit(Strip())
    assert isinstance(node, cst.CSTNode)
    return _code(node)


# -- instantiation ------------------------------------------------------------------------------


class Template:
    """The equivalent of one op, ready to be written at a call.

    ``torch`` and ``functional`` are the names that the file has for ``torch`` and
    ``torch.nn.functional``; ``helper_names`` maps reference functions to the names under which they
    stand in the file.
    """

    def __init__(
        self,
        op: FusedOp,
        arguments: Mapping[str, str | None],
        *,
        torch: str = "torch",
        functional: str = "F",
        helper_names: Mapping[str, str] | None = None,
    ) -> None:
        assert op.equivalent is not None
        tree = ast.parse(op.equivalent).body[0]
        self.outputs: list[str] = []
        if isinstance(tree, ast.Assign):
            (target,) = tree.targets
            elements = target.elts if isinstance(target, ast.Tuple) else [target]
            self.outputs = [e.id for e in elements if isinstance(e, ast.Name)]
        assert isinstance(tree, (ast.Assign, ast.Expr))
        self.value = tree.value
        self.given = {name for name, text in arguments.items() if text is not None}
        defaults = {a.name: a.default for a in op.signature.arguments}
        texts = {
            name: text if text is not None else (defaults[name] or "None")
            for name, text in arguments.items()
        }
        self.mapping: dict[str, cst.BaseExpression] = {
            name: _expression(text) for name, text in texts.items()
        }
        self.builtin = {"torch": _expression(torch), "F": _expression(functional)}
        self.helper_names = dict(helper_names or {})
        self.function: Reference | None = None
        if isinstance(self.value, ast.Call) and isinstance(self.value.func, ast.Name):
            self.function = reference(self.value.func.id)
        self.nested = [
            n.func.id
            for n in ast.walk(self.value)
            if isinstance(n, ast.Call)
            and n is not self.value
            and isinstance(n.func, ast.Name)
            and reference(n.func.id) is not None
        ]

    @property
    def needs(self) -> tuple[str, ...]:
        """The reference functions that must stand in the file, in order."""
        names = list(self.nested)
        if self.function is not None and not self.function.inline:
            names.append(self.function.name)
        return tuple(dict.fromkeys(n for name in names for n in helper_closure(name)))

    @property
    def inline(self) -> bool:
        return self.function is None or self.function.inline

    @property
    def is_expression(self) -> bool:
        """Whether the value can be written without a statement before it."""
        if self.function is None or not self.function.inline:
            return True
        return len(self.function.body) == 1 and not self._temporaries()

    def render(
        self, places: Sequence[Place | None], taken: frozenset[str], *, value: bool = False
    ) -> Rendered:
        """Write the equivalent: into ``places`` (one a result), or as a ``value``.

        ``taken`` are the names that new local variables must not have.
        """
        if self.function is not None and self.function.inline:
            rendered = self._inline(places, taken, value)
        elif value:
            rendered = Rendered([], self._call_text())
        else:
            rendered = Rendered(self._assign_all(self._call_text(), places, taken))
        rendered.helpers = self.needs
        return rendered

    # -- a helper, or a plain expression --------------------------------------------------------

    def _substitute(self, text: str, mapping: Mapping[str, cst.BaseExpression]) -> str:
        helpers = {name: cst.Name(new) for name, new in self.helper_names.items()}
        node = cst.parse_expression(text).visit(
            _Substitute({**self.builtin, **helpers, **mapping})
        )
        assert isinstance(node, cst.CSTNode)
        return _code(node)

    def _call_text(self) -> str:
        if self.function is None:
            return self._substitute(ast.unparse(self.value), self.mapping)
        function = self.function
        values = self._parameter_values()
        name = self.helper_names.get(function.name, function.name)
        parts: list[str] = []
        keywords = False
        for parameter in function.parameters:
            text, given = values[parameter]
            default = function.defaults.get(parameter)
            if default is not None and _same_literal(text, default):
                keywords = True
                continue
            constant = text in ("True", "False", "None") or not given
            if keywords or constant:
                keywords = True
                parts.append(f"{parameter}={text}")
            else:
                parts.append(text)
        return f"{name}({', '.join(parts)})"

    def _parameter_values(self) -> dict[str, tuple[str, bool]]:
        """Text for each parameter of the reference function, and whether the user wrote it."""
        assert self.function is not None and isinstance(self.value, ast.Call)
        bound: dict[str, ast.expr] = dict(zip(self.function.parameters, self.value.args))
        bound.update({k.arg: k.value for k in self.value.keywords if k.arg is not None})
        values: dict[str, tuple[str, bool]] = {}
        for parameter in self.function.parameters:
            node = bound.get(parameter)
            if node is None:
                values[parameter] = (self.function.defaults[parameter], False)
                continue
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            text = self._substitute(ast.unparse(node), self.mapping)
            values[parameter] = (text, bool(names & self.given))
        return values

    def _assign_all(
        self, text: str, places: Sequence[Place | None], taken: frozenset[str]
    ) -> list[str]:
        if len(places) == 1:
            place = places[0]
            return [_store(place, text)] if place is not None else []
        if all(p is None or (p.kind == "assign" and not p.shape_of) for p in places):
            targets = ", ".join("_" if p is None else p.text for p in places)
            return [f"{targets} = {text}"]
        names = [
            "_"
            if p is None
            else _fresh(p.text if p.text.isidentifier() else "result", taken, "_new")
            for p in places
        ]
        stores = [_store(p, n) for p, n in zip(places, names) if p is not None]
        return [f"{', '.join(names)} = {text}", *stores]

    # -- inline ---------------------------------------------------------------------------------

    def _temporaries(self) -> list[str]:
        """Parameters whose expression is long and read more than once."""
        assert self.function is not None
        reads = [n.id for s in self.function.body for n in ast.walk(s) if isinstance(n, ast.Name)]
        return [
            parameter
            for parameter, (text, _) in self._parameter_values().items()
            if reads.count(parameter) > 1 and not _is_simple(text)
        ]

    def _inline(
        self, places: Sequence[Place | None], taken: frozenset[str], value: bool
    ) -> Rendered:
        function = self.function
        assert function is not None
        texts = {name: text for name, (text, _) in self._parameter_values().items()}
        *statements, last = function.body
        assert isinstance(last, ast.Return) and last.value is not None
        results = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
        taken = taken | {n for text in texts.values() for n in _identifiers(text)}
        lines: list[str] = []
        for parameter in self._temporaries():
            name = _fresh(parameter, taken)
            lines.append(f"{name} = {texts[parameter]}")
            texts[parameter] = name
            taken = taken | {name}
        current = {name: _expression(text) for name, text in texts.items()}
        names = self._local_names(statements, results, places if not value else (), texts, taken)
        for statement in statements:
            assert isinstance(statement, ast.Assign)
            text = self._substitute(_source(function, statement.value), current)
            targets = statement.targets[0]
            locals_ = [n.id for n in ast.walk(targets) if isinstance(n, ast.Name)]
            lines.append(f"{', '.join(names[n] for n in locals_)} = {text}")
            current.update({n: cst.Name(names[n]) for n in locals_})
        done = [self._substitute(_source(function, r), current) for r in results]
        if value:
            return Rendered(lines, done[0] if len(done) == 1 else f"({', '.join(done)})")
        return Rendered(lines + _store_all(places, done))

    def _local_names(
        self,
        statements: Sequence[ast.stmt],
        results: Sequence[ast.expr],
        places: Sequence[Place | None],
        texts: Mapping[str, str],
        taken: frozenset[str],
    ) -> dict[str, str]:
        """The user's name for each local variable of the function: its destination where it can."""
        names: dict[str, str] = {}
        rest: list[ast.AST] = [*statements, *results]
        for i, statement in enumerate(statements):
            assert isinstance(statement, ast.Assign)
            for node in ast.walk(statement.targets[0]):
                if not isinstance(node, ast.Name) or node.id in names:
                    continue
                later = {
                    n.id for r in rest[i + 1 :] for n in ast.walk(r) if isinstance(n, ast.Name)
                }
                names[node.id] = self._destination(node.id, results, places, texts, later) or (
                    _fresh(node.id, taken | set(names.values()))
                )
        return names

    def _destination(
        self,
        local: str,
        results: Sequence[ast.expr],
        places: Sequence[Place | None],
        texts: Mapping[str, str],
        later: set[str],
    ) -> str | None:
        for result, place in zip(results, places):
            if not (isinstance(result, ast.Name) and result.id == local) or place is None:
                continue
            clash = any(
                name != local and place.text in _identifiers(text)
                for name, text in texts.items()
                if name in later
            )
            if place.is_name and not clash:
                return place.text
        return None


def _source(function: Reference, node: ast.expr) -> str:
    """The text of a piece of a reference function, on one line."""
    text = _code(cst.Module([function.node]))
    lines = text.lstrip("\n").split("\n")
    first = function.tree.lineno
    assert node.end_lineno is not None and node.end_col_offset is not None
    piece = lines[node.lineno - first : node.end_lineno - first + 1]
    piece[-1] = piece[-1][: node.end_col_offset]
    piece[0] = piece[0][node.col_offset :]
    return _code(_expression("\n".join(piece)))


def _store(place: Place, text: str) -> str:
    if place.shape_of:
        text = f"{_code(_parenthesized(_expression(text)))}.reshape({place.shape_of}.shape)"
    return f"{place.text}.copy_({text})" if place.kind == "copy" else f"{place.text} = {text}"


def _store_all(places: Sequence[Place | None], values: Sequence[str]) -> list[str]:
    pairs = [
        (p, v) for p, v in zip(places, values) if p is not None and (p.text != v or p.shape_of)
    ]
    for i, (place, _) in enumerate(pairs):
        root = place.text.partition(".")[0].partition("[")[0]
        if any(root in _identifiers(v) for _, v in pairs[i + 1 :]):
            if all(p.kind == "assign" and not p.shape_of for p, _ in pairs):
                left, right = (", ".join(t) for t in zip(*[(p.text, v) for p, v in pairs]))
                return [f"{left} = {right}"]
    return [_store(p, v) for p, v in pairs]


def _fresh(name: str, taken: frozenset[str] | set[str], suffix: str = "") -> str:
    candidate = name + suffix
    while candidate in taken or hasattr(builtins, candidate):
        candidate += "_"
    return candidate


# -- helpers ------------------------------------------------------------------------------------


def helper_closure(name: str) -> tuple[str, ...]:
    """A reference function and those it calls, in the order in which they must stand."""
    function = reference(name)
    assert function is not None
    order: list[str] = []
    for other in function.calls:
        order += [n for n in helper_closure(other) if n not in order]
    return (*order, name)


def helper_text(
    name: str, *, torch: str, functional: str, helper_names: Mapping[str, str], unit: str
) -> str:
    """The text of a helper function as it stands in the user's file, with a one-line docstring."""
    function = reference(name)
    assert function is not None
    mapping = {
        "torch": _expression(torch),
        "F": _expression(functional),
        **{n: cst.Name(helper_names[n]) for n in helper_closure(name) if n in helper_names},
    }
    node = function.node.with_changes(leading_lines=[])
    docstring = ast.get_docstring(function.tree)
    if docstring and isinstance(node.body, cst.IndentedBlock):
        summary = " ".join(docstring.split("\n\n")[0].split())
        line = cst.SimpleStatementLine([cst.Expr(cst.SimpleString(f'"""{summary}"""'))])
        node = node.with_changes(body=node.body.with_changes(body=[line, *node.body.body[1:]]))
    changed = node.visit(_Substitute(mapping))
    assert isinstance(changed, cst.FunctionDef)
    text = cst.Module([changed], default_indent=unit).code
    return text.strip("\n") + "\n"
