"""What one C++ function does with the memory of tensors: which it writes, and which it returns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .cpp import Function, calls, close, split

if TYPE_CHECKING:
    from . import Sources


@dataclass(frozen=True, slots=True)
class Effect:
    """What a function does with raw memory.

    ``result`` says that a tensor it returns is written there; ``writes`` are the positions of the
    parameters that are, ``parameters`` the names of all, ``at`` the place, as ``file:line``.
    """

    result: bool = False
    writes: frozenset[int] = frozenset()
    parameters: tuple[str, ...] = ()
    at: str = ""

    def agrees(self, other: Effect) -> bool:
        """Whether another function does the same, wherever it stands."""
        return self.result == other.result and self.writes == other.writes


NOTHING = Effect()


class _Raw(NamedTuple):
    """Where the memory of a tensor is taken: ``y.data_ptr<float>()``."""

    start: int
    end: int
    tensor: str
    constant: bool


class Body:
    """One function, read from its first statement to its last.

    ``declared`` are the parameters that a schema says it writes; how, the body has to show.
    """

    def __init__(
        self, sources: Sources, function: Function, declared: frozenset[int] = frozenset()
    ) -> None:
        self.sources = sources
        self.function = function
        self.text = sources.text_of(function)
        self.declared = {
            parameter.name for i, parameter in enumerate(function.parameters) if i in declared
        }
        self.written: dict[str, str] = {}
        """The tensors that are written by pointers, each with the place."""

    def effect(self) -> Effect:
        given = " ".join(parameter.type for parameter in self.function.parameters)
        if _DERIVES.search(self.text) or _DERIVES.search(given):
            return NOTHING
        self._made = _fresh(self.text)
        self._raw = list(self._taken())
        self._known_as = dict(self._pointers())
        self._read: set[str] = set()
        for name, opened, at in calls(self.text):
            self._handed(name, opened, at)
        self._assigned()
        names = tuple(parameter.name for parameter in self.function.parameters)
        writes = frozenset(
            index
            for index, (kind, name) in enumerate(self.function.parameters)
            if name in self.written and "Tensor" in kind
        )
        result = self._returned()
        if not writes and not result:
            return NOTHING
        place = result or self.written[names[min(writes)]]
        return Effect(bool(result), writes, names, place)

    def _taken(self) -> Iterator[_Raw]:
        for match in _RAW.finditer(self.text):
            kind = (match["type"] or "").partition(",")[0]
            if INTEGER.fullmatch(kind.replace("const", "").strip()):
                continue
            if self._made.get(match["tensor"]) is _INTEGERS:
                continue
            constant = match["const"] == "const_" or "const" in kind.split()
            yield _Raw(match.start(), match.end(), match["tensor"], constant)

    def _pointers(self) -> Iterator[tuple[str, str]]:
        """Names by which the memory of tensors can be written: ``float* p = y.data_ptr()``."""
        for raw in self._raw:
            begun = max(self.text.rfind(sign, 0, raw.start) for sign in ";{}") + 1
            match = _POINTER.fullmatch(self.text, begun, raw.start)
            if match is None or raw.constant:
                continue
            kind = f"{match['type']} {match['cast'] or ''} {match['plain'] or ''}"
            words = re.findall(r"\w+", kind)
            if "const" not in words and not any(INTEGER.fullmatch(word) for word in words):
                yield match["name"], raw.tensor

    def _tensors(self, start: int, end: int) -> Iterator[str]:
        """The tensors whose memory is handed over in an argument."""
        for raw in self._raw:
            if start <= raw.start < end and not raw.constant:
                yield raw.tensor
        for word in _WORD.finditer(self.text, start, end):
            if word[0] in self._known_as:
                yield self._known_as[word[0]]

    def _handed(self, name: str, opened: int, at: int) -> None:
        """Note what a call writes of what it is given."""
        arguments = list(split(self.text, opened + 1, close(self.text, opened)))
        effect = self.sources.effect_of_call(name, self.function)
        for index, (start, end) in enumerate(arguments):
            plain = self.text[start:end].strip()
            if index in effect.writes and plain.isidentifier():
                self.written.setdefault(plain, effect.at)
            for tensor in self._tensors(start, end):
                writes = self.sources.writes_through(name, index, len(arguments))
                if writes:
                    self.written.setdefault(tensor, self.sources.place_of(self.function, at))
                elif writes is False:
                    self._read.add(tensor)

    def _assigned(self) -> None:
        """Note what loops write, and what gets the result of such a function."""
        for name, tensor in self._known_as.items():
            match = stores(name).search(self.text)
            if match is not None:
                place = self.sources.place_of(self.function, match.start())
                self.written.setdefault(tensor, place)
        for raw in self._raw:
            if not raw.constant and _STORED.match(self.text, raw.end):
                place = self.sources.place_of(self.function, raw.start)
                self.written.setdefault(raw.tensor, place)
        filled = self._made.keys() | self.declared
        for raw in self._raw:  # who is to fill a fresh tensor, if not whoever gets its memory?
            if raw.tensor in filled and raw.tensor not in self._read and not raw.constant:
                place = self.sources.place_of(self.function, raw.start)
                self.written.setdefault(raw.tensor, place)
        for match in _RESULT.finditer(self.text):
            effect = self.sources.effect_of_call(match["callee"], self.function)
            if effect.result:
                for name in re.findall(r"\w+", match["names"]):
                    self.written.setdefault(name, effect.at)

        for match in _KEPT.finditer(self.text):
            if match["tensor"] in self.written:
                self.written.setdefault(match["list"], self.written[match["tensor"]])

    def _returned(self) -> str:
        """The place at which one of the results is written; empty where none is."""
        for match in _RETURN.finditer(self.text):
            end = self.text.find(";", match.end())
            given = self.text[match.end() : end].strip()
            wrapped = _SEVERAL.match(given)
            parts = [given]
            if wrapped is not None:
                parts = [given[s:e] for s, e in split(given, wrapped.end(), len(given) - 1)]
            for part in parts:
                if place := self._written_at(part.strip()):
                    return place
        return ""

    def _written_at(self, given: str) -> str:
        """The same of one result: a tensor, what a call gives, or a view of either."""
        root = _ROOT.match(given)
        if root is None:
            return ""
        end = root.end()
        if root["called"]:
            end = close(given, end - 1) + 1
            at = self.sources.effect_of_call(root["name"], self.function)
            place = at.at if at.result else ""
        else:
            place = self.written.get(root["name"], "")
        while place and (more := _VIEW.match(given, end)) is not None:
            end = close(given, more.end() - 1) + 1 if more[0].endswith("(") else more.end()
        return "" if given[end:].strip() else place


# What says itself where a gradient is wanted, or has one.
_DERIVES = re.compile(
    r"::\s*apply\s*[(<]|AutogradContext|autograd\s*::\s*Function|\brequires_grad\s*\(\s*\)"
    r"|GradMode\s*::\s*is_enabled"
)
_RAW = re.compile(
    r"\b(?P<tensor>[A-Za-z_]\w*)\s*(?:\.|->)\s*(?:template\s+)?"
    r"(?:(?P<const>mutable_|const_)?data_ptr|data(?=\s*<)|packed_accessor(?:32|64)?|accessor)"
    r"\s*(?:<(?P<type>[^;(]*?)>)?\s*\(\s*\)"
)
INTEGER = re.compile(
    r"(?:std::|unsigned\s+|signed\s+)*"
    r"(?:bool|char|short|int|long|long long|unsigned|u?int(?:8|16|32|64)_t|index_t)"
)
_POINTER = re.compile(
    r"\s*(?P<type>[\w:<>,\s*&]*?)[\s*&](?:__restrict__\s+)?(?P<name>\w+)\s*=\s*"
    r"(?:(?:reinterpret_cast|static_cast)\s*<(?P<cast>[^;]*?)>\s*\(\s*"
    r"|\(\s*(?P<plain>[\w\s:]+\*+)\s*\)\s*)?"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_STORED = re.compile(r"(?:\s*\[[^\];]*\])+\s*(?:[-+*/|&^]|<<|>>)?=(?!=)")
_RETURN = re.compile(r"\breturn\b")
_RESULT = re.compile(
    r"(?:\b(?:auto|(?:\w+::)?Tensor|std::(?:vector|tuple)<[^;=]*>)\s*&*\s*|(?<=[;{}])\s*)"
    r"(?P<names>\w+|\[[\w\s,]+\])\s*=\s*(?:\w+::)*(?P<callee>\w+)\s*(?:<[^<>;(){}]*>)?\s*\("
)
_SEVERAL = re.compile(r"(?:(?:std::)?(?:make_tuple|tuple|vector)\s*(?:<[^(){}]*>)?\s*)?[({]")
_KEPT = re.compile(r"\b(?P<list>\w+)\.(?:push_back|emplace_back)\s*\(\s*(?P<tensor>\w+)\s*\)")
_ROOT = re.compile(
    r"(?:std::move\s*\(\s*)?(?:\w+::)*(?P<name>[A-Za-z_]\w*)\s*"
    r"(?:(?:<[^<>;(){}]*>\s*)?(?P<called>\())?"
)
_VIEW = re.compile(
    r"\s*(?:\)|\.\s*(?:view|reshape|to|squeeze|unsqueeze|transpose|permute|contiguous"
    r"|flatten|narrow|slice|t|select|view_as|reshape_as|index_select)\s*\(|\[[^\]]*\])"
)


def stores(name: str) -> re.Pattern[str]:
    """Where something is written through a pointer or an accessor."""
    word = re.escape(name)
    return re.compile(
        rf"\b{word}{_STORED.pattern}|[;{{}})]\s*\*\s*\(?\s*{word}\b[^;=]*=(?!=)"
        rf"|\b(?:atomic|gpuAtomic)\w+\s*\(\s*&?\s*{word}\b"
    )


_INTEGERS = "integers"
_FRESH = re.compile(
    r"(?:\b(?:auto|(?:\w+::)?Tensor)\s*&*\s*|(?<=[;{}])\s*)(?P<name>\w+)\s*=\s*"
    r"(?:\w+(?:::|\.))*(?:new_)?(?:empty|zeros|ones|full|empty_like|zeros_like|ones_like|full_like"
    r"|empty_strided)\s*\((?P<given>[^;]*);"
)
_OF_INTEGERS = re.compile(
    r"\bk(?:Int|Int32|Int64|Int16|Int8|UInt8|Long|Short|Byte|Char|Bool)\b"
    r"|ScalarType::(?:Int|Long|Short|Byte|Char|Bool)\b"
)


def _fresh(text: str) -> dict[str, str]:
    """The tensors that a function allocates, and whether they hold integers."""
    options = {
        match[1]
        for match in re.finditer(r"\b(\w+)\s*=\s*([^;]*);", text)
        if _OF_INTEGERS.search(match[2]) and "ptions" in match[2]
    }
    found = {}
    for match in _FRESH.finditer(text):
        given = match["given"]
        integers = _OF_INTEGERS.search(given) or any(
            word in options for word in re.findall(r"\w+", given)
        )
        found[match["name"]] = _INTEGERS if integers else ""
    return found
