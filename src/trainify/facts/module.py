"""One parsed file: its text, its tree, and where everything stands."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from ..findings import Finding, Fix, Related
from ..suppressions import Suppressions, suppressions
from .flow import FunctionFlow
from .inside import Inside
from .memo import Memo
from .names import Names, Scope, Target
from .project import Project
from .spelling import usual_text
from .walk import BLOCKS, FIELDS, walk

if TYPE_CHECKING:
    from .grad_switches import Switch
    from .saved import Saver
    from .writes import Write

T = TypeVar("T")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_MANY_NAMES = 1000
_LINE_END = re.compile("\r\n|\r|\n")
_START = attrgetter("lineno", "col_offset")
_END = attrgetter("end_lineno", "end_col_offset")
_LAST_LINE = attrgetter("end_lineno")


def head(node: ast.ClassDef | FunctionNode) -> ast.expr:
    """A node that covers ``class Name`` or ``def name``, to point at."""
    word = {ast.ClassDef: "class", ast.AsyncFunctionDef: "async def"}.get(type(node), "def")
    name = ast.Name(id=node.name)
    name.lineno = name.end_lineno = node.lineno
    name.col_offset = node.col_offset
    name.end_col_offset = node.col_offset + len(f"{word} {node.name}".encode())
    return name


def first_line(statement: ast.stmt) -> int:
    """The line that a statement begins on, or its first decorator."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return decorators[0].lineno if decorators else statement.lineno


def parse_module(
    text: str,
    path: str,
    project: Project | None = None,
    parse: Callable[[str, str], ast.Module] = ast.parse,
    inside: Inside | None = None,
) -> ModuleFacts:
    """Parse ``text``; raises SyntaxError, ValueError, RecursionError or MemoryError as ast does.

    ``inside`` is what is known of statements that ``parse`` gives again.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes are the author's business
        tree = parse(text, path)
    return ModuleFacts(text, path, tree, project or Project(), inside)


def _string_lines(statement: ast.stmt) -> set[int]:
    lines: set[int] = set()
    for node in walk(statement):
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
        ):
            if node.end_lineno is not None:
                lines.update(range(node.lineno + 1, node.end_lineno + 1))
    return lines


@dataclass(frozen=True, slots=True)
class _Place:
    """What stands around each statement of one block."""

    parent: ast.AST
    scope: Scope
    function: FunctionNode | None


_UNBREAKABLE = re.compile(r"://|#\s*(noqa|type:|pragma:|fmt:|pylint:|ruff:)")


class ModuleFacts:
    """A parsed file.

    Offsets count characters in ``text``.  ``ast`` counts lines by ``\\n`` (after it has read
    ``\\r\\n`` and ``\\r`` as such) and columns in UTF-8 bytes; :meth:`offset` translates.
    """

    def __init__(
        self,
        text: str,
        path: str,
        tree: ast.Module,
        project: Project,
        inside: Inside | None = None,
    ) -> None:
        self.text = text
        self.path = path
        self.tree = tree
        self.project = project
        self.inside = inside or Inside()
        for flow in self.inside.flows.values():
            flow.now_in(self)

    @cached_property
    def usual(self) -> str:
        """The text as most files are spelled, to look for words in; mostly ``text`` itself."""
        return usual_text(self.text)

    # -- positions ------------------------------------------------------------------------------

    @cached_property
    def line_starts(self) -> list[int]:
        """Offset of the start of each line, as the tokenizer counts lines."""
        if "\r" in self.text:
            return [0, *(match.end() for match in _LINE_END.finditer(self.text))]
        lengths = map((1).__add__, map(len, self.text.split("\n")))
        return [0, *accumulate(lengths)][:-1]

    def line_text(self, line: int) -> str:
        """Line ``line`` (from 1) with its line ending."""
        start = self.line_starts[line - 1]
        end = self.line_starts[line] if line < len(self.line_starts) else len(self.text)
        return self.text[start:end]

    def offset(self, line: int, column: int) -> int:
        """Character offset of an ast position."""
        start = self.line_starts[line - 1]
        if self.text.isascii():
            return start + column
        return start + len(self.line_text(line).encode()[:column].decode(errors="replace"))

    def start(self, node: ast.stmt | ast.expr | ast.alias) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.stmt | ast.expr | ast.alias) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.end_lineno, node.end_col_offset)

    def source(self, node: ast.stmt | ast.expr) -> str:
        """The text of a node, as written; of one that stands nowhere, as it could be."""
        if node.end_lineno is None:
            return ast.unparse(node)
        return self.text[self.start(node) : self.end(node)]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column (both from 1, column in characters) of an offset."""
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def indentation(self, node: ast.stmt) -> str:
        """The white space before a statement."""
        line = self.line_text(node.lineno)
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    @cached_property
    def newline(self) -> str:
        first = self.line_text(1)
        return "\r\n" if first.endswith("\r\n") else "\r" if first.endswith("\r") else "\n"

    @cached_property
    def indent_unit(self) -> str:
        """One level of indentation, as the file's first indented block has it."""
        for node in self.functions:
            outer, inner = self.indentation(node), self.indentation(node.body[0])
            if inner.startswith(outer) and len(inner) > len(outer):
                return inner[len(outer) :]
        return "    "

    @cached_property
    def longest_line(self) -> int:
        """The length of the longest line, without those that no formatter can break."""
        lines = (line for line in self.text.splitlines() if not _UNBREAKABLE.search(line))
        return max(map(len, lines), default=0)

    def string_lines(self, first: int, last: int) -> set[int]:
        """Those of some lines that begin inside a string literal: their white space is data."""
        found: set[int] = set()
        body = self.tree.body
        for statement in body[bisect_left(body, first, key=_LAST_LINE) :]:
            if first_line(statement) > last:
                break
            if statement not in self._string_lines:
                self._string_lines[statement] = _string_lines(statement)
            found |= self._string_lines[statement]
        return found

    @cached_property
    def _string_lines(self) -> dict[ast.stmt, set[int]]:
        """By statement at the top of the file; most are never asked about."""
        return {}

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """Every name that any code of the file uses."""
        names: set[str] = set()
        for node in walk(self.tree):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.alias):
                names.add((node.asname or node.name).partition(".")[0])
        return frozenset(names)

    # -- tree -----------------------------------------------------------------------------------

    @cached_property
    def _outline(self) -> tuple[dict[ast.AST, _Place], list[ast.stmt]]:
        """Statements and their places; most questions need nothing inside a statement."""
        places: dict[ast.AST, _Place] = {}
        statements: list[ast.stmt] = []
        stack: list[tuple[ast.AST, _Place]] = [(self.tree, _Place(self.tree, self.tree, None))]
        while stack:
            node, around = stack.pop()
            if isinstance(node, _FUNCTIONS):
                place = _Place(node, node, node)
            elif isinstance(node, ast.ClassDef):
                place = _Place(node, node, around.function)
            else:
                place = _Place(node, around.scope, around.function)
            for name in BLOCKS[node.__class__]:
                block = getattr(node, name)
                places.update(dict.fromkeys(block, place))
                if name not in ("handlers", "cases"):
                    statements += block
                stack += [(child, place) for child in block if BLOCKS[child.__class__]]
        statements.sort(key=_START)
        return places, statements

    def _learn(self, root: ast.AST, without: tuple[str, ...] = ()) -> list[ast.AST]:
        """Note the parents of all that is in a node; ``without`` are fields of it to leave out."""
        parents = self.inside.parents
        nodes = [root]
        for node in nodes:  # grows meanwhile
            for field in FIELDS[node.__class__]:
                if node is root and field in without:
                    continue
                value = getattr(node, field)
                if value.__class__ is list:
                    nodes += value
                    for child in value:
                        parents[child] = node
                elif value is not None:
                    nodes.append(value)
                    parents[value] = node
        return nodes

    def _around(self, node: ast.AST) -> ast.AST | None:
        """The parent of a node that is no statement; None for what is not of this file."""
        parents = self.inside.parents
        parent = parents.get(node)
        if parent is None:
            line = getattr(node, "lineno", 0)
            if line and "calls" not in self.__dict__:  # which has been through the whole file
                place = (line, getattr(node, "col_offset", 0))
                at = bisect_right(self.statements, place, key=_START)
                # A decorator stands before its statement, all else behind its beginning.
                for statement in self.statements[max(at - 1, 0) : at + 1]:
                    if node not in parents:
                        self._learn(statement, _BLOCKS)
            if node not in parents:
                self.calls  # noqa: B018
            parent = parents.get(node)
        return parent

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call, inner ones before those that contain them."""
        return self._calls_in(self.tree.body)

    def _calls_in(self, statements: Iterable[ast.stmt]) -> list[ast.Call]:
        """The calls in some statements at the top of the file, in the same order."""
        known = self.inside.calls
        calls: list[ast.Call] = []
        for statement in statements:
            if statement not in known:
                found = self._learn(statement)
                known[statement] = [node for node in found if isinstance(node, ast.Call)]
            calls += known[statement]
        calls.sort(key=_END)
        return calls

    @cached_property
    def _calls_by_name(self) -> dict[str, list[ast.Call]]:
        return {}

    @cached_property
    def _all_calls_by_name(self) -> dict[str | None, list[ast.Call]]:
        found: dict[str | None, list[ast.Call]] = {}
        for call in self.calls:
            name = getattr(call.func, "attr", getattr(call.func, "id", None))
            found.setdefault(name, []).append(call)
        return found

    def calls_named(self, name: str) -> Sequence[ast.Call]:
        """The calls of what goes by a name: ``name(x)``, ``anything.name(x)``."""
        if len(self._calls_by_name) > _MANY_NAMES:  # to look for each in the text takes longer
            return self._all_calls_by_name.get(name, ())
        if name not in self._calls_by_name:
            self._calls_by_name[name] = [
                call
                for call in self._calls_in(self.mentioning(name))
                if getattr(call.func, "attr", getattr(call.func, "id", None)) == name
            ]
        return self._calls_by_name[name]

    def mentioning(self, name: str) -> list[ast.stmt]:
        """The statements at the top of the file in whose text a name stands."""
        body = self.tree.body
        found: dict[ast.stmt, None] = {}
        at = self.text.find(name)
        while at >= 0:
            line = bisect_right(self.line_starts, at)
            index = bisect_left(body, line, key=_LAST_LINE)
            while index < len(body) and first_line(body[index]) <= line:
                found[body[index]] = None
                index += 1
            at = self.text.find(name, at + len(name))
        return list(found)

    @property
    def statements(self) -> list[ast.stmt]:
        """Every statement of the file, in order."""
        return self._outline[1]

    @cached_property
    def functions(self) -> list[FunctionNode]:
        return [node for node in self.statements if isinstance(node, _FUNCTIONS)]

    @cached_property
    def _functions_by_name(self) -> dict[str, list[FunctionNode]]:
        found: dict[str, list[FunctionNode]] = {}
        for function in self.functions:
            found.setdefault(function.name, []).append(function)
        return found

    def functions_named(self, name: str) -> Sequence[FunctionNode]:
        """The functions and methods of a name, in order."""
        return self._functions_by_name.get(name, ())

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.statements if isinstance(node, ast.ClassDef)]

    @cached_property
    def declarations(self) -> list[ast.Global | ast.Nonlocal]:
        """Every ``global`` and ``nonlocal`` statement."""
        return [node for node in self.statements if isinstance(node, (ast.Global, ast.Nonlocal))]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node right around a node."""
        place = self._outline[0].get(node)
        if place is not None:
            return place.parent
        return self._around(node) if node is not self.tree else None

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parents from the innermost outwards."""
        current = self.parent(node)
        while current is not None:
            yield current
            current = self.parent(current)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that contains a node (the node itself when it is one)."""
        while not isinstance(node, ast.stmt):
            parent = self._around(node)
            if parent is None:
                raise LookupError("a node of no statement of the file")
            node = parent
        return node

    def function(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function around a node, not counting the node itself."""
        place = self._outline[0].get(node)
        if place is not None:
            return place.function
        return self._remembered(node, self.inside.functions, self._find_function)

    def _remembered(
        self, node: ast.AST, known: dict[ast.AST, T], find: Callable[[ast.AST], T]
    ) -> T:
        """What is found for an expression of this file, once."""
        if node not in known:
            found = find(node)
            if node not in self.inside.parents:
                return found  # it is the module, or not of this file
            known[node] = found
        return known[node]

    def _find_function(self, node: ast.AST) -> FunctionNode | None:
        places = self._outline[0]
        while node not in places:
            parent = self._around(node)
            if parent is None:
                return None
            node = parent
            if isinstance(node, _FUNCTIONS):
                return node  # from its head: a default, a decorator
        return places[node].function

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which an expression or a statement is evaluated."""
        place = self._outline[0].get(node)
        if place is not None:
            return place.scope
        return self._remembered(node, self.inside.scopes, self._find_scope) or self.tree

    def _find_scope(self, node: ast.AST) -> Scope | None:
        """The same, and None for the module, which an edit makes anew."""
        places = self._outline[0]
        while node not in places:
            if node is self.tree:
                return None
            parent = self._around(node)
            if parent is None:
                raise LookupError("a node of no statement of the file")
            if isinstance(parent, ast.Lambda) and node is parent.body:
                return parent
            node = parent
        found = places[node].scope
        return found if found is not self.tree else None

    def method_class(self, function: ast.AST | None) -> ast.ClassDef | None:
        """The class whose body holds this function, or None."""
        parent = self.parent(function) if function is not None else None
        while isinstance(parent, (ast.If, ast.Try)):
            parent = self.parent(parent)
        return parent if isinstance(parent, ast.ClassDef) else None

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that a statement stands in."""
        parent = self.parent(statement)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and statement in block:
                return block
        raise LookupError("statement without a block")

    # -- meaning --------------------------------------------------------------------------------

    @cached_property
    def memo(self) -> Memo:
        """What :func:`~trainify.facts.memo.once` remembers."""
        return {}

    @cached_property
    def module_name(self) -> str:
        return self.project.module_name(self.path)

    @cached_property
    def names(self) -> Names:
        return Names(self)

    def resolve(self, node: ast.expr, at: ast.stmt | None = None) -> tuple[Target, ...]:
        """What an expression can stand for: qualified names, most recent binding first.

        ``at`` spares looking for the statement of a name that is not an attribute of ``self``.
        """
        return self.names.resolve(node, at)

    def is_name(self, node: ast.expr, *qualified: str) -> bool:
        """Whether an expression can stand for one of these qualified names."""
        return any(target.name in qualified for target in self.resolve(node))

    @cached_property
    def frozen_places(self) -> list[ast.expr]:
        """What statements of the file freeze."""
        from .frozen import frozen_places

        return list(frozen_places(self))

    @cached_property
    def rebound(self) -> frozenset[str]:
        """The attributes that code other than their object's own methods sets, whatever the object.

        ``net.act = nn.Identity()``, ``setattr(net, "act", None)``.
        """
        from .rebound import rebound_attributes

        return frozenset(rebound_attributes(self))

    @cached_property
    def cutting_imports(self) -> frozenset[str]:
        """The functions of files around this one that give back constants, of those it names."""
        from .losses import constant_functions, may_give_constants

        found = self.project.summaries(self.path, constant_functions, may_give_constants)
        return frozenset(name for names in found for name in names if f"{name}(" in self.text)

    @cached_property
    def grad_switches(self) -> dict[ast.stmt, Switch | None]:
        """The statements that set the grad mode, and those that hold such a one."""
        from .grad_switches import switches_of

        # What a helper enters is asked for meanwhile, of a helper that may set the mode itself.
        self.__dict__["grad_switches"] = {}
        return switches_of(self)

    @cached_property
    def grad_wrappers(self) -> bool:
        """Whether functions of the file may be put under a mode by calling it on them."""
        from .grad_mode import wraps_functions

        return wraps_functions(self)

    @cached_property
    def scoped_functions(self) -> frozenset[ast.AST]:
        """The functions, and the module where it has some, in whose bodies gradients are off."""
        from .grad_mode import functions_with_scopes

        return functions_with_scopes(self)

    @cached_property
    def has_walrus(self) -> bool:
        """Whether the file may have a ``:=``."""
        return ":=" in self.text

    @cached_property
    def writes(self) -> dict[ast.stmt, Write]:
        """What statements of the file overwrite in place."""
        from .writes import writes_of

        return {write.statement: write for write in writes_of(self)}

    @cached_property
    def savers(self) -> dict[ast.AST, tuple[Saver, ...]]:
        """The operations that save an input, of those functions that were asked for them."""
        return {}

    def flow(self, function: FunctionNode | ast.Module) -> FunctionFlow:
        """Definitions and uses of local names in a function (or at module level)."""
        flow = self.inside.flows.get(function)
        if flow is None:
            flow = self.inside.flows[function] = FunctionFlow(self, function)
        return flow

    # -- findings -------------------------------------------------------------------------------

    def finding(
        self,
        rule: str,
        message: str,
        node: ast.stmt | ast.expr,
        fixes: Mapping[str, Fix] | None = None,
        related: Sequence[Related] = (),
    ) -> Finding:
        start, end = self.start(node), self.end(node)
        line, column = self.position(start)
        end_line, end_column = self.position(end)
        return Finding(
            path=self.path,
            rule=rule,
            message=message,
            start=start,
            end=end,
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            fixes=fixes or {},
            related=tuple(related),
        )

    @cached_property
    def suppressions(self) -> Suppressions:
        """What the comments in it silence."""
        return suppressions(self.text)

    def related(self, message: str, node: ast.stmt | ast.expr) -> Related:
        """A place of this file that belongs to a finding."""
        start, end = self.start(node), self.end(node)
        return Related(self.path, message, start, end, *self.position(start))
