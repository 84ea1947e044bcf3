"""What the bytes of a file show of grad modes: the cheap half of each pass's prefilter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .trainable import DISCRETE, NOT_TRAINED
from .words import declare, places, undeclared

if TYPE_CHECKING:
    from .project import Project

MODES = declare(b"no_grad", b"inference_mode", b"set_grad_enabled")
_NEAR = 160
HELPER_NAME = r"grad|infer|eval|frozen|freeze"
"""In the names of helpers that put something under a mode."""

(FORWARD,) = declare(b"def forward")
_DECORATED = re.compile(rb"@\w*(?:" + HELPER_NAME.encode() + rb")\w*(?:\(\))?$", re.IGNORECASE)
_NAME = re.compile(rb"def (\w+)|class (\w+)")


@dataclass(frozen=True)
class Mention:
    """A line of code with a grad mode on it.

    ``function`` is the decorated function or class, else the one that the line stands in;
    ``before`` and ``block`` are a few lines before a ``with``, and what it holds.  ``at`` is the
    offset of the line.
    """

    kind: Literal["with", "decorator", "statement", "import"]
    mode: bytes
    line: bytes
    function: bytes
    at: int
    before: bytes = b""
    block: bytes = b""


@lru_cache(maxsize=2)
def mentions(data: bytes) -> tuple[Mention, ...]:
    """Every line of code that names a grad mode; comments and doctests are none.

    So are lines that put something under a mode by a name that the file gives it:
    ``@frozen`` after ``frozen = torch.no_grad()``, or after ``def frozen(f)`` with one in it.
    """
    if not any(mode in data for mode in MODES):
        return ()  # quicker than all words of a file that is only asked for this
    found: list[Mention] = []
    names: dict[bytes, bytes] = {}
    for mode in MODES:
        for start, end in _lines(data, places(data, mode)):
            mention = _mention(data, mode, start, end)
            if mention is None:
                continue
            found.append(mention)
            if mention.kind in ("with", "statement"):
                assigned = _ASSIGNED.match(mention.line)
                outer = data.rfind(b"\ndef ", 0, start)
                match = _NAME.match(data, outer + 1) if outer >= 0 else None
                name = assigned[1] if assigned else match[1] if match else b""
                if name and name not in MODES:
                    names.setdefault(name, mode)
    for name, mode in names.items():
        for start, end in _lines(data, undeclared(data, name)):
            line = data[start:end].lstrip()
            if line.startswith(b"@") or (line.startswith(b"with ") and mode not in line):
                mention = _mention(data, mode, start, end)
                if mention is not None:
                    found.append(mention)
    return tuple(found)


_ASSIGNED = re.compile(
    rb"(?:self\.)?(\w+)[ \t]*=[ \t]*[\w.]*(?:no_grad|inference_mode|set_grad_enabled)\b"
    rb"(?:\([^()]*\))?[ \t]*(?:#.*)?$"
)
"""A name for a mode: ``frozen = torch.no_grad()``."""


def _lines(data: bytes, offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Where the lines begin and end that some offsets, in order, are on; each line once."""
    end = 0
    for offset in offsets:
        if offset < end:
            continue
        start = data.rfind(b"\n", 0, offset) + 1
        end = data.find(b"\n", offset)
        end = len(data) if end < 0 else end
        yield start, end


def _mention(data: bytes, mode: bytes, start: int, end: int) -> Mention | None:
    line = data[start:end].strip()
    if line.startswith((b">>>", b"...", b"#")):
        return None
    if line.startswith(b"@"):
        match = _NAME.search(data, end)
        return Mention("decorator", mode, line, (match[1] or match[2]) if match else b"", start)
    if line.startswith((b"import ", b"from ")):
        return Mention("import", mode, line, b"", start)
    applied = _APPLIED.match(line)
    if applied is not None:  # as a decorator, behind the function
        head = b"def " + applied[1] + b"("
        at = max(data.rfind(head, 0, start), data.find(head, end))  # in __init__: it comes later
        if at >= 0:
            return Mention("decorator", mode, line, applied[1], at)
    where = data.rfind(b"def ", 0, start)
    match = _NAME.match(data, where) if where >= 0 else None
    function = match[1] if match else b""
    if line.startswith((b"with ", b"async with ")) or b"enter_context" in line:
        before = data[max(0, start - _NEAR) : start]
        return Mention("with", mode, line, function, start, before, _block(data, start, end))
    return Mention("statement", mode, line, function, start)


_APPLIED = re.compile(
    rb"(?:\w+\.)?(?!forward\b)(\w+)[ \t]*=[ \t]*"
    rb"[\w.]*(?:no_grad|inference_mode|set_grad_enabled)\b"
    rb"(?:\([^()]*\))?\((?:\w+\.)?\1\)"
)
"""``f = torch.no_grad()(f)``, ``self.f = torch.no_grad()(self.f)``."""

_MAKES = re.compile(
    rb"=[^\n=]*\b(?!Buffer\()[A-Z]\w*\(|=[ \t(]*\r?\n[ \t(]*(?:\w+\.)*(?!Buffer\()[A-Z]\w*\("
)
_TRAINED_ELSEWHERE = re.compile(rb"[Ss]cor|[Rr]eward")
"""What steps of other files train as often as they only ask it."""
_CLASS = re.compile(rb"\nclass (\w+)(?:\(([^()]*)\))?")
_BARE_BASES = re.compile(rb"[\s,]*(?:torch\.)?(?:nn\.)?(?:Module|ABC|abc\.ABC)?[\s,]*$")
_KEEPS_GIVEN = re.compile(rb"self\.\w+ = (\w+)[ \t]*[\r\n]")
_ANNOTATED = re.compile(rb"[(,\s](\w+): *[\w\[. |\"']*\b(?!None\b|Optional\b)[A-Z]\w*[a-z]")
_NEXT = re.compile(rb"\n(?:class |def |@)")
"""Where the next thing at the top of a file begins."""


def makes_modules(data: bytes, at: int) -> bool:
    """Whether the class around a place makes something that may be a module, for an attribute.

    So may a class that it derives from.
    """
    begin = max(0, data.rfind(b"\nclass ", 0, at))
    named = _CLASS.match(data, begin)
    if named is not None and NOT_TRAINED.search(named[1].decode(errors="replace")):
        if data.find(b" class ", begin, at) < 0:  # nor may it be another one, inside of that
            trained = b".backward(" in data or _TRAINED_ELSEWHERE.search(named[1])
            if not trained:  # for what it gives, which says more than its name
                return False
    if named is not None and named[2] and not _BARE_BASES.match(named[2]):
        return True
    after = _NEXT.search(data, at)
    end = after.start() if after else len(data)
    return _MAKES.search(data, begin, end) is not None or _is_given_modules(data, begin, end)


def _is_given_modules(data: bytes, begin: int, end: int) -> bool:
    """Whether a class keeps several arguments of its own, and says of which class they are."""
    kept = {match[1] for match in _KEEPS_GIVEN.finditer(data, begin, end)}
    return len(kept & {match[1] for match in _ANNOTATED.finditer(data, begin, end)}) > 1


_RETURN = re.compile(rb"\breturn\b([^\n]*)")
_DISCRETE = re.compile(b"\\.(?:%s)\\b" % b"|".join(word.encode() for word in sorted(DISCRETE)))
_NEXT_METHOD = re.compile(rb"\n(?:    )?(?:def |@)|\nclass ")


def returns_numbers(data: bytes, at: int) -> bool:
    """Whether all that the function at a place returns is discrete, as far as lines show."""
    begin = data.find(b"def ", at)
    after = _NEXT_METHOD.search(data, begin)
    end = after.start() if after else len(data)
    returned = [m[1] for m in _RETURN.finditer(data, begin, end)]
    return bool(returned) and all(_DISCRETE.search(value) for value in returned)


def _block(data: bytes, start: int, end: int) -> bytes:
    """The lines after a ``with`` that are further in; after ``enter_context``, as far in."""
    first = data[start:end]
    indent = len(first) - len(first.lstrip())
    deeper = 0 if b"enter_context" in first else 1
    stop = end + 1
    while stop < len(data):
        line_end = data.find(b"\n", stop)
        line_end = len(data) if line_end < 0 else line_end
        line = data[stop:line_end]
        text = line.lstrip()
        if text and len(line) - len(text) < indent + deeper and not text.startswith((b")", b"#")):
            break
        stop = line_end + 1
    return data[end:stop]


def defines_mode(data: bytes, name: str) -> bool:
    """Whether a file makes a function or a value of this name, with a grad mode in it."""
    if not any(mode in data for mode in MODES):
        return False
    made = re.search(rb"^(?:def %s\b|%s\s*=)" % (name.encode(), name.encode()), data, re.MULTILINE)
    if made is None:
        return False
    end = _NEXT_STATEMENT.search(data, made.end())
    text = data[made.start() : end.start() if end is not None else len(data)]
    return any(mode in text for mode in MODES)


_NEXT_STATEMENT = re.compile(rb"^(?:def|class|@|async)\b", re.MULTILINE)
_ABOVE_FORWARD = re.compile(rb"@((?:\w+\.)?\w+)(?:\(\))?$")
_IMPORTS = 12_000
"""Bytes within which the imports of a file stand, as a rule."""
_COMMON = frozenset(b"staticmethod classmethod override property torch wraps".split())


@lru_cache(maxsize=2)
def decorators_of_forwards(data: bytes) -> frozenset[bytes]:
    """The bare decorators right above a forward that may be those of another file."""
    found = set()
    for at in places(data, FORWARD):
        end = data.rfind(b"\n", 0, at)
        start = data.rfind(b"\n", 0, max(end, 0)) + 1
        match = _ABOVE_FORWARD.match(data[start:end].strip()) if end > 0 else None
        if match is not None and match[1].partition(b".")[0] not in _COMMON:
            found.add(match[1])
    return frozenset(found)


@lru_cache(maxsize=256)
def _importing(name: bytes) -> re.Pattern[bytes]:
    return re.compile(
        rb"^from[ \t]+([.\w]+)[ \t]+import[ \t]+(?:\([^)]*|[^\n(]*)\b%s\b" % name, re.MULTILINE
    )


def imported_from(data: bytes, name: bytes) -> str | None:
    """What follows ``from`` in the import of a name, dots included: ``..utils``."""
    match = _importing(name).search(data, 0, _IMPORTS)
    return match[1].decode() if match is not None else None


_IMPORTED = rb"^import[ \t]+%s[ \t]*(?:#|$)"


def is_mode_of_other_file(data: bytes, path: str, project: Project, name: bytes) -> bool:
    """Whether ``quiet`` or ``utils.quiet`` is a mode that another file of the project defines."""
    first, _, last = name.partition(b".")
    owner = imported_from(data, first)
    if owner is not None:
        module = owner.lstrip(".")
        if last:
            module = ".".join(part for part in (module, first.decode()) if part)
    elif last and re.search(_IMPORTED % first, data[:_IMPORTS], re.MULTILINE):
        owner = module = first.decode()
    else:
        return False
    if not module:
        module = "__init__"  # from . import quiet
    if owner.startswith("."):
        folders, dots = Path(path).parents, len(owner) - len(owner.lstrip("."))
        if dots > len(folders):  # above what the paths of this run begin with
            return False
        file = project.find_below(folders[dots - 1], module)
    else:
        file = project.find_file(path, module)
    return file is not None and project.tells(file, defines_mode, (last or first).decode())


_ENTERED = re.compile(
    rb"^[ \t]*(?:async )?with ((?:\w+\.)?\w+)(?:\(\))?(?: as \w+)?:", re.MULTILINE
)


def contexts(data: bytes) -> frozenset[bytes]:
    """What stands alone in a ``with``, without arguments: ``with utils.quiet():``."""
    found = {match[1] for match in _ENTERED.finditer(data)}
    return frozenset(name for name in found if not name.startswith((b"torch.", b"self.")))


def decorated_elsewhere(data: bytes) -> bool:
    """Whether a forward is right below a decorator that may be a mode of another file's."""
    for at in places(data, FORWARD):
        end = data.rfind(b"\n", 0, at)
        start = data.rfind(b"\n", 0, max(end, 0)) + 1
        if end > 0 and _DECORATED.match(data[start:end].strip()):
            return True
    return False
