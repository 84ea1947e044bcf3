"""Instantiating a differentiable equivalent at one call.

The text comes from :mod:`trainify.reference`: a short straight-line function is written out in
place, with the user's expressions for its parameters; a longer one becomes a helper function of the
user's file.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from ..catalog import FusedOp
from ..facts.parsed import parsed
from ..facts.views import is_view_method
from ..facts.walk import walk
from .expressions import Substitute, bare, code, expression, parenthesized
from .functionalize import Place
from .specialize import Library, Reference, Use, is_simple, reference

_MAX_FORMULA_WIDTH = 80
_LONG = 24
"""Operands longer than this get a name where all of a formula's take more than the width."""


@dataclass
class Rendered:
    """Statements to run (one a string, unindented), and the value of the call where it is used."""

    statements: list[str] = field(default_factory=list)
    value: str | None = None
    helpers: tuple[str, ...] = ()


def _identifiers(text: str) -> set[str]:
    return {n.id for n in walk(parsed(text)) if isinstance(n, ast.Name)}


def _is_view(text: str) -> bool:
    """Whether reading an expression twice costs nothing: a name, or views of one."""
    node = parsed(text)
    while not is_simple(ast.unparse(node)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = [*node.args, *(k.value for k in node.keywords)]
            if not is_view_method(node.func.attr) or any(map(_calls, given)):
                return False
            node = node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            if isinstance(node, ast.Subscript) and _calls(node.slice):
                return False
            node = node.value
        else:
            return False
    return True


def _calls(node: ast.expr) -> bool:
    kinds = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return any(isinstance(n, kinds) for n in walk(node))


def _stored(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield line.partition(" = ")[0]


def _without(
    statements: Sequence[ast.stmt], results: Sequence[ast.expr], unread: Collection[int]
) -> tuple[list[ast.stmt], set[int]]:
    """What is left of statements if nobody reads some results, and those that are not made then.

    An unread one that is a step to another is made all the same.
    """
    read = {
        n.id
        for i, result in enumerate(results)
        if i not in unread
        for n in walk(result)
        if isinstance(n, ast.Name)
    }
    kept: list[ast.stmt] = []
    for statement in reversed(statements):
        names = [n for n in walk(statement) if isinstance(n, ast.Name)]
        if any(n.id in read for n in names if isinstance(n.ctx, ast.Store)):
            kept.insert(0, statement)
            read.update(n.id for n in names if isinstance(n.ctx, ast.Load))
    steps = {i for i in unread if (name := results[i]) and getattr(name, "id", None) in read}
    return kept, {*unread} - steps


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
    node = expression(text).visit(Strip())
    assert isinstance(node, cst.CSTNode)
    return code(node)


def _text(node: ast.expr) -> str:
    """The source of an expression, with the quotes that formatters put."""
    return re.sub(r"'(\w*)'", r'"\1"', ast.unparse(node))


# -- instantiation ------------------------------------------------------------------------------


class Template:
    """The equivalent of one op, ready to be written at a call.

    ``library`` holds the reference functions of the file, ``known`` what is known of the arguments
    (see :class:`~.specialize.Use`).  ``torch`` and ``functional`` are the names that the file has
    for ``torch`` and ``torch.nn.functional``; ``helper_names`` maps reference functions to the
    names under which they stand in the file.
    """

    def __init__(
        self,
        op: FusedOp,
        arguments: Mapping[str, str | None],
        *,
        library: Library,
        use: Use,
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
        self.given = {name for name, text in arguments.items() if text is not None}
        defaults = {a.name: a.default for a in op.signature.arguments}
        texts = {
            name: text if text is not None else (defaults[name] or "None")
            for name, text in arguments.items()
        }
        self.mapping: dict[str, cst.BaseExpression] = {
            name: expression(text) for name, text in texts.items()
        }
        self.builtin = {"torch": expression(torch), "F": expression(functional)}
        self.library = library
        self.helper_names = dict(helper_names or {})
        node, self.function = library.resolve(use)
        self.value = ast.parse(code(node), mode="eval").body
        self.inline = self.function is not None and self.function.inline
        reads = [n.id for n in walk(self.value) if isinstance(n, ast.Name)]
        run = [name for name, text in texts.items() if name in reads and not _is_view(text)]
        last = max((i for i, name in enumerate(run) if reads.count(name) > 1), default=-1)
        self.repeated = run[: last + 1]
        """Arguments that would run more than once, and what has to run before them."""
        if use.late and self.function is not None and not self.is_expression:
            self.function, self.inline = library.functions[self.function.name], False

    @property
    def needs(self) -> tuple[str, ...]:
        """The reference functions that must stand in the file, in order."""
        names = {n.id for n in walk(self.value) if isinstance(n, ast.Name)}
        if self.function is not None and self.inline:
            names.discard(self.function.name)
            names.update(self.function.calls)
        return self.library.closure(names)

    @property
    def is_expression(self) -> bool:
        """Whether the value can be written without a statement before it."""
        if self.repeated:
            return False
        if self.function is None or not self.inline:
            return True
        return len(self.function.body) == 1 and not self._temporaries()

    def render(
        self,
        places: Sequence[Place | None],
        taken: frozenset[str],
        *,
        value: bool = False,
        unread: Collection[int] = (),
    ) -> Rendered:
        """Write the equivalent: into ``places`` (one a result), or as a ``value``.

        ``taken`` are the names that new local variables must not have, ``unread`` the results that
        need not be computed.
        """
        if self.repeated:
            named, lines = self._named(taken)
            rendered = named.render(places, taken | {*_stored(lines)}, value=value, unread=unread)
            rendered.statements[:0] = lines
            return rendered
        if self.inline:
            rendered = self._inline(places, taken, value, unread)
        elif value:
            rendered = Rendered([], self._call_text())
        else:
            rendered = Rendered(assign_all(self._call_text(), places, taken))
        rendered.helpers = self.needs
        return rendered

    def _named(self, taken: frozenset[str]) -> tuple[Template, list[str]]:
        """The same with a name for what is read more than once, and what gives these names.

        An argument runs once, in the order of the call.
        """
        named = copy.copy(self)
        named.mapping, named.repeated = dict(self.mapping), []
        texts = {name: code(bare(value)) for name, value in self.mapping.items()}
        taken = taken | {n for text in texts.values() for n in _identifiers(text)}
        lines = []
        for name in self.repeated:
            new = fresh(name, taken)
            taken = taken | {new}
            named.mapping[name] = cst.Name(new)
            lines.append(f"{new} = {texts[name]}")
        return named, lines

    # -- a helper, or a plain expression --------------------------------------------------------

    def _substitute(self, text: str, mapping: Mapping[str, cst.BaseExpression]) -> str:
        helpers = {name: cst.Name(new) for name, new in self.helper_names.items()}
        node = cst.parse_expression(text).visit(Substitute({**self.builtin, **helpers, **mapping}))
        assert isinstance(node, cst.CSTNode)
        return code(node)

    def _call_text(self) -> str:
        if self.function is None:
            return self._substitute(_text(self.value), self.mapping)
        name = self.function.name
        parts: list[str] = []
        keywords = False
        for parameter, (text, given) in self._parameter_values().items():
            keywords = keywords or not given or text in ("True", "False", "None")
            parts.append(f"{parameter}={text}" if keywords else text)
        return f"{self.helper_names.get(name, name)}({', '.join(parts)})"

    def _parameter_values(self) -> dict[str, tuple[str, bool]]:
        """Text for each parameter of the function, and whether it is one the user wrote."""
        assert self.function is not None and isinstance(self.value, ast.Call)
        original = reference(self.function.name)
        assert original is not None
        bound: dict[str, ast.expr] = dict(zip(original.parameters, self.value.args, strict=False))
        bound.update({k.arg: k.value for k in self.value.keywords if k.arg is not None})
        values: dict[str, tuple[str, bool]] = {}
        for parameter in self.function.parameters:
            node = bound.get(parameter)
            if node is None:
                values[parameter] = (original.defaults[parameter], False)
                continue
            names = {n.id for n in walk(node) if isinstance(n, ast.Name)}
            text = code(bare(expression(self._substitute(_text(node), self.mapping))))
            values[parameter] = (text, bool(names & self.given))
        return values

    # -- inline ---------------------------------------------------------------------------------

    def _temporaries(self) -> list[str]:
        """Parameters whose expression gets a name: read more than once, or too long for its place.

        The arguments of a call go on lines of their own, however long; the operands of a formula
        do not.
        """
        assert self.function is not None
        values = {name: text for name, (text, _) in self._parameter_values().items()}
        reads = [n.id for s in self.function.body for n in walk(s) if isinstance(n, ast.Name)]
        crowded: set[str] = set()
        for statement in self.function.body:
            value = statement.value if isinstance(statement, (ast.Assign, ast.Return)) else None
            if isinstance(value, ast.BinOp):
                names = [n.id for n in walk(value) if isinstance(n, ast.Name)]
                if sum(len(values.get(name, name)) for name in names) > _MAX_FORMULA_WIDTH:
                    crowded |= {name for name in names if len(values.get(name, "")) > _LONG}
        return [
            parameter
            for parameter, text in values.items()
            if (reads.count(parameter) > 1 or parameter in crowded) and not is_simple(text)
        ]

    def _inline(
        self,
        places: Sequence[Place | None],
        taken: frozenset[str],
        value: bool,
        unread: Collection[int],
    ) -> Rendered:
        function = self.function
        assert function is not None
        texts = {name: text for name, (text, _) in self._parameter_values().items()}
        *statements, last = function.body
        assert isinstance(last, ast.Return) and last.value is not None
        results = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
        if unread and len(places) == len(results):
            statements, needless = _without(statements, results, unread)
            places = [None if i in needless else place for i, place in enumerate(places)]
        taken = taken | {n for text in texts.values() for n in _identifiers(text)}
        lines: list[str] = []
        for parameter in self._temporaries():
            name = fresh(parameter, taken)
            lines.append(f"{name} = {texts[parameter]}")
            texts[parameter] = name
            taken = taken | {name}
        current = {name: expression(text) for name, text in texts.items()}
        names = self._local_names(statements, results, places if not value else (), texts, taken)
        for statement in statements:
            assert isinstance(statement, ast.Assign)
            text = self._substitute(_source(function, statement.value), current)
            targets = statement.targets[0]
            locals_ = [n.id for n in walk(targets) if isinstance(n, ast.Name)]
            lines.append(f"{', '.join(names[n] for n in locals_)} = {text}")
            current.update({n: cst.Name(names[n]) for n in locals_})
        done = [self._substitute(_source(function, r), current) for r in results]
        if value:
            return Rendered(lines, done[0] if len(done) == 1 else f"({', '.join(done)})")
        if len(places) == 1 < len(done):  # one name for them all
            return Rendered(lines + assign_all(f"({', '.join(done)})", places, taken))
        if len(places) > len(done):  # one call gives them all
            return Rendered(lines + assign_all(done[0], places, taken))
        return Rendered(lines + _store_all(places, done, taken))

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
            for node in walk(statement.targets[0]):
                if not isinstance(node, ast.Name) or node.id in names:
                    continue
                later = {n.id for r in rest[i + 1 :] for n in walk(r) if isinstance(n, ast.Name)}
                names[node.id] = self._destination(node.id, results, places, texts, later) or (
                    fresh(node.id, taken | set(names.values()))
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
        for result, place in zip(results, places, strict=False):
            if not (isinstance(result, ast.Name) and result.id == local) or place is None:
                continue
            clash = any(
                name != local and place.text in _identifiers(text)
                for name, text in texts.items()
                if name in later
            )
            if place.is_name and place.text != "_" and not clash:
                return place.text
        return None


def _source(function: Reference, node: ast.expr) -> str:
    """The text of a piece of a reference function, on one line."""
    first = function.tree.lineno
    assert node.end_lineno is not None and node.end_col_offset is not None
    piece = function.lines[node.lineno - first : node.end_lineno - first + 1]
    piece[-1] = piece[-1][: node.end_col_offset]
    piece[0] = piece[0][node.col_offset :]
    return code(expression("\n".join(piece)))


def assign_all(text: str, places: Sequence[Place | None], taken: frozenset[str]) -> list[str]:
    """The statements that put the results of one call into their places."""
    if len(places) == 1:
        place = places[0]
        return [_store(place, text)] if place is not None else []
    if all(p is None or (p.kind == "assign" and not p.shape_of) for p in places):
        targets = ", ".join("_" if p is None else p.text for p in places)
        return [f"{targets} = {text}"]
    names: list[str] = []
    for place in places:
        name = "result" if place is None or not place.text.isidentifier() else place.text
        names.append("_" if place is None else fresh(name, taken | set(names), "_new"))
    stores = [_store(p, n) for p, n in zip(places, names, strict=True) if p is not None]
    return [f"{', '.join(names)} = {text}", *stores]


def _store(place: Place, text: str) -> str:
    if place.shape_of:
        text = f"{code(parenthesized(expression(text)))}.reshape({place.shape_of}.shape)"
    if place.kind == "assign":
        return f"{place.text} = {text}"
    if place.optional:
        return f"{place.text} = None if {place.text} is None else {place.text}.copy_({text})"
    return f"{place.text}.copy_({text})"


def _store_all(
    places: Sequence[Place | None], values: Sequence[str], taken: frozenset[str]
) -> list[str]:
    pairs = [
        (p, v)
        for p, v in zip(places, values, strict=False)
        if p is not None and p.text != "_" and (p.text != v or p.shape_of)
    ]
    # x.float() is x itself in float32: all is computed before any of it is overwritten.
    written = any(p.kind == "copy" or "[" in p.text for p, _ in pairs[:-1])
    early = written and not all(v.isidentifier() for _, v in pairs[1:])
    for i, (place, _) in enumerate(pairs):
        root = place.text.partition(".")[0].partition("[")[0]
        if not early and not any(root in _identifiers(v) for _, v in pairs[i + 1 :]):
            continue
        if all(p.kind == "assign" and not p.shape_of for p, _ in pairs):
            left = ", ".join(p.text for p, _ in pairs)
            return [f"{left} = {', '.join(v for _, v in pairs)}"]
    if not early:
        return [_store(p, v) for p, v in pairs]
    names: list[str] = []
    for place, _ in pairs:
        name = place.text if place.text.isidentifier() else "result"
        names.append(fresh(name, taken | set(names), "_new"))
    first = f"{', '.join(names)} = {', '.join(v for _, v in pairs)}"
    return [first, *(_store(p, name) for (p, _), name in zip(pairs, names, strict=True))]


def fresh(name: str, taken: frozenset[str] | set[str], suffix: str = "") -> str:
    """A name that is not taken."""
    candidate = name + suffix
    while candidate in taken or hasattr(builtins, candidate):
        candidate += "_"
    return candidate
