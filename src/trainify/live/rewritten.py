"""A source file that is imported, and what ``trainify fix`` makes of each function in it."""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ..config import Config, load_config
from ..engine import EngineError, FixResult, Options, check_text, fix_text, is_concerned
from ..facts import ModuleFacts, Project
from ..facts.walk import walk
from ..findings import Finding, Fix, Proven, Safety
from ..output.diff import LineMap
from ..source import Change, Positions, SourceError, decode, encode, split_lines
from .loads import last_line
from .partial import Span, partial
from .shared import Shared

_LASTING = ("TRN401", "TRN408")
_SUFFIX = re.compile(r" \(trainify(?: \d+)?\)$")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Refused(Exception):
    """Why something cannot be rewritten where it runs, in one line."""


@dataclass(frozen=True, slots=True, order=True)
class Confirmed:
    """A place at which an audit has seen a gradient end.

    So that another process finds it again, also where the file has got longer or shorter above,
    ``file`` is relative to the folder of the outermost package, ``text`` is what its line holds,
    ``function`` the qualified name of what it stands in, and ``first`` the line where that begins.
    """

    file: str
    text: str
    place: Proven
    function: str = ""
    first: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """How the source is rewritten: a strategy of ``trainify fix``, and what ``flag`` asks.

    ``confirmed`` are places that are rewritten although the code does not tell that they should be.
    With ``copies``, what a fused call writes into an argument for its caller is copied there: that
    raises where it is wrong.
    """

    strategy: str = "flag"
    when: str = "grad"
    confirmed: tuple[Confirmed, ...] = ()
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """A function as its file defines it: the syntax, and what the compiler makes of that."""

    node: FunctionNode
    code: CodeType


class Rewritten:
    """A file before and after; see :func:`rewritten`.

    Its new functions belong to a file of their own, ``PATH (trainify)``, or with a number where
    it is rewritten in several ways, which tracebacks and :mod:`inspect` can show the lines of.
    """

    def __init__(self, path: str, data: bytes, options: Options, project: Project) -> None:
        self.path = path
        self.data = data
        self.before, self._encoding = decode(data)
        self.result = FixResult(self.before, [], [])
        self._options, self._project = options, project
        self.concerned = bool(options.proven) or is_concerned(data, path, options, project)
        if self.concerned:
            self.result = fix_text(self.before, path, options, project, accept=_takes_effect)
        self.after = self.result.text
        self.file = _new_file(self)
        self._names: dict[int, Names] = {}

    @property
    def changed(self) -> bool:
        """Whether anything in the file becomes something else."""
        return self.after != self.before

    @cached_property
    def flags(self) -> int:
        """What the new text imports from ``__future__``, for the compiler."""
        code: CodeType = compile_text(self.after, self.file)
        return code.co_flags & _FUTURE

    @property
    def remaining(self) -> list[Finding]:
        """What is found and cannot be fixed, by its place in the new text."""
        return self.result.remaining

    @cached_property
    def lasting(self) -> list[Finding]:
        """What is found that outlives a step: a cache that keeps the graph of the last one."""
        only = replace(self._options, select=_LASTING)
        return check_text(self.before, self.path, only, self._project)

    @cached_property
    def _found(self) -> list[Finding]:
        """All that is found, by its place in the old text."""
        return check_text(self.before, self.path, self._options, self._project)

    def of(self, function: FunctionType, code: CodeType) -> tuple[Definition, Definition] | None:
        """A function, whose code is ``code``, as it is and as it becomes.

        None where it stays as it is.  Raises :class:`Refused` where the file is not what it was
        when it was imported, or where something would be fixed in a lambda.
        """
        if not self.concerned or not (self.changed or self.remaining):
            return None
        if code.co_name == "<lambda>":
            lines = range(code.co_firstlineno, last_line(code) + 1)
            if any(finding.line in lines for finding in self._found):
                raise Refused(f"{self.path}:{code.co_firstlineno}: a lambda has no body to rewrite")
            return None
        key = code.co_name, code.co_firstlineno
        if self._codes.get(key) != code:
            raise Refused(f"{self.path} is not what was imported of it; import it again")
        if not self.changed:
            return None
        old, path = self._old[key]
        new = self._new.get(path)
        if new is None or ast.dump(new.node) == ast.dump(old.node):
            return None
        return old, new

    def properties_beside(self, code: CodeType) -> dict[str, Definition]:
        """The properties that the class of a method has more than before, by name."""
        _, path = self._old[code.co_name, code.co_firstlineno]
        before = {old for _, old in self._old.values()}
        return {
            new[-1][0]: definition
            for new, definition in self._new.items()
            if new[:-1] == path[:-1] and new not in before
            if [ast.unparse(each) for each in definition.node.decorator_list] == ["property"]
        }

    def name_of(self, code: CodeType) -> str:
        """The qualified name of a function, whatever a decorator has made of that."""
        _, path = self._old[code.co_name, code.co_firstlineno]
        return _qualified(path)

    def old_line(self, line: int) -> int:
        """What a line of the new text was, however it was indented, or was put before."""
        return self._lines.old_line(line)

    @cached_property
    def _lines(self) -> LineMap:
        old, new = (map(str.strip, split_lines(text)) for text in (self.before, self.after))
        return LineMap(list(old), list(new))

    def functions_at(self, line: int) -> list[int]:
        """The first lines of the functions around a line of the old text, decorators included."""
        return [first for first, last in self._spans if first <= line <= last]

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """The first and the last line of each function, and of each lambda."""
        return [
            (first_line(node), node.end_lineno or 0)
            for node in walk(ast.parse(self.before))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        ]

    @cached_property
    def _codes(self) -> dict[tuple[str, int], CodeType]:
        return _codes_by_place(self.before, self.path)

    @cached_property
    def _old(self) -> dict[tuple[str, int], tuple[Definition, tuple[Any, ...]]]:
        found = _definitions(self.before, self._codes)
        return {(d.node.name, first_line(d.node)): (d, path) for path, d in found.items()}

    @cached_property
    def _new(self) -> dict[tuple[Any, ...], Definition]:
        linecache.cache[self.file] = (
            len(self.after),
            None,
            self.after.splitlines(keepends=True),
            self.file,
        )
        return _definitions(self.after, _codes_by_place(self.after, self.file))

    @cached_property
    def added(self) -> list[ast.stmt]:
        """The imports and definitions that the file has more than before."""
        defined = {_name(node) for node in ast.parse(self.before).body} - {""}
        dumps = [ast.dump(node) for node in ast.parse(self.before).body]
        found = []
        for node in ast.parse(self.after).body:
            if (dump := ast.dump(node)) in dumps:
                dumps.remove(dump)
            elif isinstance(node, (ast.Import, ast.ImportFrom)) or _name(node) not in {
                "",
                *defined,
            }:
                found.append(node)
        return found

    def names(self, namespace: dict[str, Any]) -> Names:
        """What new functions of the file need in the namespace of their module."""
        key = id(namespace)  # which a Names keeps alive
        if key not in self._names:
            self._names[key] = Names(self, namespace)
        return self._names[key]

    def change(self, bound: set[str]) -> Change:
        """The part of the rewriting that concerns the functions ``bound``, by qualified name."""
        return Change(self.path, self.data, encode(self._part(bound), self._encoding))

    def _part(self, bound: set[str]) -> str:
        wanted = [path for _, path in self._old.values() if _qualified(path) in bound]
        spans = [
            Span(first_line(d.node), d.node.end_lineno or 0, path in wanted)
            for d, path in self._old.values()
        ]
        new = [self._new[path].node for path in wanted if path in self._new]
        return partial(self.before, self.after, spans, new, self.added)


@cache
def rewritten(path: str, settings: Settings, stamp: float) -> Rewritten:
    """What ``trainify fix`` makes of a file of that time, with the settings of its project.

    Raises :class:`Refused` where there is no source, or none that can be read.
    """
    config = config_of(os.path.dirname(path))
    options = config.options_for(path, config.options)
    options = replace(
        options,
        strategy=settings.strategy,
        unsafe=settings.copies,
        flag=settings.when,
        callers_decide=settings.when == "grad",
        training_decides=settings.when == "training",
    )
    try:
        data = _read(path)
        if settings.confirmed:
            options = replace(options, proven=tuple(_still_there(data, settings.confirmed)))
        return Rewritten(path, data, options, _project(_root(path)))
    except SourceError as error:
        raise Refused(f"{path}: {error.message}") from None
    except EngineError as error:
        raise Refused(f"{path}: {error}") from error


@cache
def config_of(folder: str) -> Config:
    """The settings for files of a folder; the files of a model come from a few.

    What is remembered is forgotten before a model's source is looked at.
    """
    return load_config([folder])


def source_of(code: CodeType, settings: Settings) -> Rewritten:
    """The same for the file that a function comes from; read again when it has changed."""
    return _source(_SUFFIX.sub("", code.co_filename), settings)


def _source(path: str, settings: Settings) -> Rewritten:
    try:
        stamp = os.stat(path).st_mtime
    except OSError:
        stamp = 0.0
    if settings.confirmed:
        file = _in_package(path)
        mine = tuple(each for each in settings.confirmed if each.file == file)
        settings = replace(settings, confirmed=mine)
    return rewritten(path, settings, stamp)


def differ(path: str, one: Settings, other: Settings) -> bool:
    """Whether a file is rewritten in different ways."""
    try:
        return _source(path, one).after != _source(path, other).after
    except Refused:
        return False


def facts_of(path: str) -> ModuleFacts:
    """What is known of a file that is imported; raises :class:`Refused` where it has no source."""
    try:
        return _project(_root(path)).parse(decode(_read(path))[0], path)
    except SourceError as error:
        raise Refused(f"{path}: {error.message}") from None


def definition_of(code: CodeType) -> tuple[ModuleFacts, FunctionNode]:
    """The syntax of a function that is imported, and what is known of its file.

    Raises :class:`Refused` where there is no source, or it is not what was imported.
    """
    module = facts_of(code.co_filename)
    key = code.co_name, code.co_firstlineno
    if _codes_by_place(module.text, code.co_filename).get(key) == code:
        for node in module.functions:
            if (node.name, first_line(node)) == key:
                return module, node
    raise Refused(f"{code.co_filename} is not what was imported of it; import it again")


def confirmed(path: str, place: Proven) -> Confirmed:
    """A place in a file that is imported."""
    text = linecache.getline(path, place.line).strip()
    begun = [
        (first, name)
        for name, first, last in _spans_by_name("".join(linecache.getlines(path)))
        if first <= place.line <= last
    ]
    first, name = max(begun, default=(0, ""))
    return Confirmed(_in_package(path), text, place, name, first)


_by_file: dict[str, Rewritten] = {}
"""The files that new functions belong to."""


def _new_file(source: Rewritten) -> str:
    number, file = 1, f"{source.path} (trainify)"
    while file in _by_file:
        number += 1
        file = f"{source.path} (trainify {number})"
    _by_file[file] = source
    return file


def is_written(code: CodeType) -> bool:
    """Whether a function's code is from here: of what a file is rewritten to, not of the file."""
    return code.co_filename in _by_file


def original_place(path: str, line: int) -> tuple[str, int]:
    """A line of rewritten code in its file on disk: what it was, or what it was put before."""
    source = _by_file.get(path)
    return (source.path, source.old_line(line)) if source is not None else (path, line)


def by_file(text: str) -> str:
    """A text in which places of rewritten code are those in the files on disk."""
    for file, source in _by_file.items():
        if file in text:
            parts = re.split(rf"{re.escape(file)}:(\d+)", text)
            for i, line in enumerate(parts[1::2]):
                parts[2 * i + 1] = f"{source.path}:{source.old_line(int(line))}"
            text = "".join(parts)
    return text


def _read(path: str) -> bytes:
    """The bytes of a file, or of what a notebook has instead."""
    try:
        return Path(path).read_bytes()
    except OSError:
        lines = linecache.getlines(path)
        if not lines:
            raise Refused(f"{path}: no source, so there is nothing to rewrite") from None
        return "".join(lines).encode()


def _still_there(data: bytes, places: Iterable[Confirmed]) -> Iterator[Proven]:
    """The places whose lines, counted from where their functions begin, hold what they held."""
    text = decode(data)[0]
    lines = split_lines(text)
    begin = {name: first for name, first, _ in _spans_by_name(text)}
    for each in places:
        by = begin.get(each.function, each.first) - each.first
        line = each.place.line + by
        if line <= len(lines) and lines[line - 1].strip() == each.text:
            yield replace(each.place, line=line, lines=tuple(n + by for n in each.place.lines))


@lru_cache(maxsize=4)
def _spans_by_name(text: str) -> list[tuple[str, int, int]]:
    """The functions of a text: names, first lines, decorators included, and last lines.

    Names are qualified, and numbered where there are several of one.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    found = []
    for path, node in _functions(tree, ()):
        numbers = [number for _, number, _ in path]
        name = f"{_qualified(path)} {numbers}" if any(numbers) else _qualified(path)
        found.append((name, first_line(node), node.end_lineno or 0))
    return found


def _in_package(path: str) -> str:
    """A file's path as its package has it: what is the same on another machine."""
    return os.path.relpath(path, os.path.dirname(_root(path)))


def _root(path: str) -> str:
    """The outermost package that a file belongs to, else the file."""
    root = path
    while os.path.isfile(os.path.join(os.path.dirname(root), "__init__.py")):
        root = os.path.dirname(root)
    return root


@cache
def _project(root: str) -> Project:
    return Project((root,))


# -- definitions ----------------------------------------------------------------------------------


def _definitions(
    text: str, codes: Mapping[tuple[str, int], CodeType]
) -> dict[tuple[Any, ...], Definition]:
    """The functions of a file by where they are defined: a name and its number at each level."""
    return {
        path: Definition(node, codes[node.name, first_line(node)])
        for path, node in _functions(ast.parse(text), ())
        if (node.name, first_line(node)) in codes  # not in what the compiler leaves out
    }


def _codes_by_place(text: str, file: str) -> dict[tuple[str, int], CodeType]:
    """What the compiler makes of the functions of a file, by name and first line."""
    return {(c.co_name, c.co_firstlineno): c for c in _codes(compile_text(text, file))}


def compile_text(text: str, file: str) -> CodeType:
    """A module's code, as importing it would give."""
    return compile(text, file, "exec", dont_inherit=True)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _functions(
    node: ast.AST, path: tuple[Any, ...], counts: dict[str, int] | None = None
) -> Iterator[tuple[tuple[Any, ...], FunctionNode]]:
    counts = {} if counts is None else counts
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            number = counts[child.name] = counts.get(child.name, -1) + 1
            here = (*path, (child.name, number, isinstance(child, ast.ClassDef)))
            if not isinstance(child, ast.ClassDef):
                yield here, child
            yield from _functions(child, here)
        elif not isinstance(child, ast.expr):
            yield from _functions(child, path, counts)


def _qualified(path: tuple[Any, ...]) -> str:
    parts: list[str] = []
    for name, _, is_class in path:
        parts.append(name if is_class else f"{name}.<locals>")
    return ".".join(parts).removesuffix(".<locals>")


def first_line(node: ast.stmt | ast.Lambda) -> int:
    """Where a statement begins, decorators included."""
    return min((d.lineno for d in getattr(node, "decorator_list", ())), default=node.lineno)


def _name(node: ast.stmt) -> str:
    """What a top-level statement defines; empty for statements of other kinds."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""


# -- fixes that take effect in what is built already ----------------------------------------------

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")


def _takes_effect(text: str, fix: Fix) -> bool:
    """Whether a fix only changes functions that are yet to run, or adds to a file.

    A model that lives has been constructed, and its modules have been imported.  Of fixes to look
    at first, those are asked about that copy into arguments.
    """
    if fix.safety is Safety.UNSAFE and not fix.only_copies:
        return False
    if fix.makes_properties:
        return True  # which are found before what instances hold
    positions, spans = _spans(text)
    for edit in fix.edits:
        first, last = positions.at(edit.start)[0], positions.at(edit.end)[0]
        around = [(start, name) for name, start, end in spans if start <= first and last <= end]
        if around and max(around)[1] in _CONSTRUCTORS:  # not a function that one has made
            return False
        if not around and edit.start != edit.end:
            return False
    return True


@lru_cache(maxsize=4)
def _spans(text: str) -> tuple[Positions, list[tuple[str, int, int]]]:
    functions = _functions(ast.parse(text), ())
    return Positions(text), [
        (node.name, first_line(node), node.end_lineno or 0) for _, node in functions
    ]


# -- what stands beside the functions -------------------------------------------------------------


class Names(Shared):
    """New names of a file in the namespace of its module: imports, functions, classes.

    A name that is there already stays what it is, and does for a file that was rewritten in another
    way too where that defines it alike.
    """

    def __init__(self, source: Rewritten, namespace: dict[str, Any]) -> None:
        super().__init__()
        self._source = source
        self._there = namespace
        self._mine: list[str] = []

    def change(self) -> None:
        for node in self._source.added:
            made: dict[str, Any] = {}
            exec(_compile(ast.Module([node], []), self._source), self._there, made)
            for name, value in made.items():
                self._give(name, value, ast.dump(node))

    def _give(self, name: str, value: Any, definition: str) -> None:
        key = id(self._there), name
        if name not in self._there:
            self._there[name] = value
            _given[key] = _Given(definition)
        elif key not in _given and self._there[name] is value:
            return
        elif key not in _given or _given[key].definition != definition:
            self.undo()
            raise Refused(
                f"{self._source.path}: the module has the name {name!r} for something else"
            )
        _given[key].users += 1
        self._mine.append(name)

    def undo(self) -> None:
        while self._mine:
            name = self._mine.pop()
            key = id(self._there), name
            _given[key].users -= 1
            if not _given[key].users:
                del _given[key]
                self._there.pop(name, None)


@dataclass
class _Given:
    """How a name that was put into a namespace is defined, and for how many."""

    definition: str
    users: int = 0


_given: dict[tuple[int, str], _Given] = {}


def _compile(tree: ast.Module, source: Rewritten) -> CodeType:
    code: CodeType = compile(tree, source.file, "exec", source.flags, dont_inherit=True)
    return code


_FUTURE: int = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
