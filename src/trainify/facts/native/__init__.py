"""What C++ and CUDA sources say: what they bind for Python, and what that does by pointers.

Read as text, never compiled.  A function that is composed of ATen's operations records a graph like
any other; one that reads and writes the memory of tensors, through ``data_ptr``, an accessor or a
launch, gives what autograd knows nothing of.  Only what shows is believed: a result counts as
written if a tensor that the function returns is handed, as memory that is no constant, to what
writes there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from . import cpp
from .bodies import INTEGER, NOTHING, Body, Effect, stores
from .cpp import Function, Parameter

__all__ = ["Effect", "Sources", "Unit"]


class Unit(NamedTuple):
    """A source file: how to speak of it, its text, and the line that this begins at."""

    path: str
    text: str
    line: int = 1


class Sources:
    """The sources of one extension; ``names`` are functions that are bound as they are called."""

    def __init__(self, units: Iterable[Unit], module: str = "", names: Iterable[str] = ()) -> None:
        self._units = tuple(units)
        self._module = module
        self._names = tuple(names)
        self._effects: dict[tuple[Function, frozenset[int]], Effect] = {}

    @cached_property
    def functions(self) -> Mapping[str, Effect]:
        """What is bound by pybind11, by its name in Python."""
        found = {name: self._effect_of(name, None) for name in self._names}
        for unit, module, variable, start, end in self._modules("PYBIND11_MODULE", "py_module"):
            del module
            for text, given, at in self._bound(unit, variable, ("def",), start, end):
                found[text.strip()] = self._given(given, unit, at)
        return found

    @cached_property
    def operators(self) -> Mapping[str, Effect]:
        """What the dispatcher gets, as ``namespace.name``, without what has a backward."""
        found: dict[str, Effect] = {}
        derived: set[str] = set()
        bound = list(self._registered())
        written = {name: _written(schema) for name, schema, *_ in bound if "(" in schema}
        for operator, _, key, given, unit, at in bound:
            if "Autograd" in key or "Autograd" in given:
                derived.add(operator)
                continue
            effect = self._given(given, unit, at, written.get(operator, frozenset()))
            if effect is not NOTHING:
                found[operator] = effect
        return {name: effect for name, effect in found.items() if name not in derived}

    def _registered(self) -> Iterator[tuple[str, str, str, str, int, int]]:
        """Operators: the name, what is said of it, the dispatch key, what it gets, and where."""
        for unit, module, variable, start, end in self._modules("TORCH_LIBRARY"):
            space, _, key = (part.strip() for part in module.partition(","))
            space = self._module if space == "TORCH_EXTENSION_NAME" else space
            for text, given, at in self._bound(unit, variable, ("def", "impl"), start, end):
                name = text.partition("(")[0].strip()
                operator = f"{space}.{name.partition('::')[2] or name}"
                yield operator, text, key, given, unit, at

    # -- what is bound --------------------------------------------------------------------------

    def _modules(self, *macros: str) -> Iterator[tuple[int, str, str, int, int]]:
        """The blocks that bind: the unit, what stands before the variable, that, and the body."""
        for number, text in enumerate(self._code):
            for match in _BINDING_BLOCK.finditer(text):
                macro = "py_module" if match["param"] else match["macro"]
                if not any(macro.startswith(each) for each in macros):
                    continue
                body = text.find("{", match.end())
                module, _, last = (match["args"] or match["param"] or "").rpartition(",")
                variable = re.search(r"(\w+)\s*$", last)
                if body < 0 or variable is None:
                    continue
                yield number, module, variable[1], body, cpp.close(text, body)

    def _bound(
        self, unit: int, variable: str, methods: tuple[str, ...], start: int, end: int
    ) -> Iterator[tuple[str, str, int]]:
        """The text that each binding of a block begins with, what else is given, and where."""
        code, strings = self._code[unit], self._strings[unit]
        call = re.compile(rf"(?:\b{re.escape(variable)}\s*|\)\s*)\.(?:{'|'.join(methods)})\s*\(")
        for match in call.finditer(code, start, end):
            opened = match.end() - 1
            closed = cpp.close(code, opened)
            text, at = "", match.end()
            while part := _STRING.match(strings, at):  # next to each other, they are one
                text, at = text + part["text"], part.end()
            if text:
                yield text, code[at:closed], at

    def _given(
        self, given: str, unit: int, at: int, written: frozenset[int] = frozenset()
    ) -> Effect:
        """What is known of the function that a binding is given; see :meth:`_effect`."""
        if given.lstrip(" \t\r\n,").startswith("["):  # a lambda
            return self._lambda(given, unit, at, written)
        named = _MARKED.search(given) or _FIRST.match(given)
        return self._effect_of(named[1].rpartition("::")[2], unit, written) if named else NOTHING

    def _lambda(self, given: str, unit: int, at: int, written: frozenset[int]) -> Effect:
        code = self._code[unit]
        opened = code.find("(", at)
        closed = cpp.close(code, opened)
        body = code.find("{", closed)
        if opened < 0 or body < 0 or body > at + len(given):
            return NOTHING
        parameters = cpp.parameters(code[opened + 1 : closed])
        return self._effect(Function(unit, "", parameters, body, cpp.close(code, body)), written)

    # -- texts and functions --------------------------------------------------------------------

    @cached_property
    def _strings(self) -> tuple[str, ...]:
        """The texts without comments and directives, of the same length."""
        return tuple(cpp.blank(unit.text, strings=False) for unit in self._units)

    @cached_property
    def _code(self) -> tuple[str, ...]:
        """The same without what stands in strings."""
        return tuple(cpp.blank(unit.text, strings=True) for unit in self._units)

    @cached_property
    def _defined(self) -> Mapping[str, tuple[Function, ...]]:
        found: dict[str, tuple[Function, ...]] = {}
        for number, text in enumerate(self._code):
            for function in cpp.functions(number, text):
                found[function.name] = (*found.get(function.name, ()), function)
        return found

    def _place(self, unit: int, at: int) -> str:
        known = self._units[unit]
        return f"{known.path}:{known.line + known.text.count(chr(10), 0, at)}"

    # -- what a function does -------------------------------------------------------------------

    def _effect_of(
        self, name: str, unit: int | None, written: frozenset[int] = frozenset()
    ) -> Effect:
        """That of the functions of a name if all agree; where the same file has some, of those."""
        defined = self._defined.get(name, ())
        here = tuple(function for function in defined if function.unit == unit) or defined
        effects = [self._effect(function, written) for function in here]
        if not effects:
            return NOTHING
        first = effects[0]
        return first if all(map(first.agrees, effects)) else NOTHING

    def _effect(self, function: Function, written: frozenset[int] = frozenset()) -> Effect:
        """What a function does, of which a schema says that it writes some of its parameters."""
        key = function, written
        if key not in self._effects:
            self._effects[key] = NOTHING  # of what calls itself
            self._effects[key] = Body(self, function, written).effect()
        return self._effects[key]

    def text_of(self, function: Function) -> str:
        return self._code[function.unit][function.start : function.end]

    def place_of(self, function: Function, at: int) -> str:
        return self._place(function.unit, function.start + at)

    def effect_of_call(self, name: str, caller: Function) -> Effect:
        return self._effect_of(name, caller.unit)

    def writes_through(self, name: str, index: int, count: int, depth: int = 0) -> bool | None:
        """Whether a function writes through a pointer or an accessor; None where none is known."""
        if depth > _MAX_DEPTH:
            return None
        for function in self._defined.get(name, ()):
            if index < count <= len(function.parameters):
                return self._writes(function, function.parameters[index], depth)
        return None

    def _writes(self, function: Function, parameter: Parameter, depth: int) -> bool | None:
        """The same of one definition: there, or in what it hands the pointer to."""
        if "const" in parameter.type.partition("*")[0].split():
            return False
        if INTEGER.fullmatch(parameter.type.replace("__restrict__", "").replace("*", "").strip()):
            return False
        text = self.text_of(function)
        if stores(parameter.name).search(text):
            return True
        word = re.compile(rf"\b{re.escape(parameter.name)}\b(?!\s*\[)")
        written: bool | None = False
        for name, opened, _ in cpp.calls(text):
            arguments = list(cpp.split(text, opened + 1, cpp.close(text, opened)))
            for index, (start, end) in enumerate(arguments):
                if word.search(text, start, end):
                    each = self.writes_through(name, index, len(arguments), depth + 1)
                    if each:
                        return True
                    written = None if each is None else written
        return written


_STRING = re.compile(r'\s*(?:R"\w*\(|")(?P<text>[^"]*?)(?:\)\w*"|")')
_MAX_DEPTH = 6


def _written(schema: str) -> frozenset[int]:
    """The parameters that a schema marks: ``fill(Tensor(a!) y, Tensor x) -> ()``."""
    opened = schema.index("(")
    parts = cpp.split(schema, opened + 1, cpp.close(schema, opened))
    given = [schema[start:end] for start, end in parts]
    return frozenset(
        i for i, part in enumerate(p for p in given if p.strip() != "*") if "!" in part
    )


_BINDING_BLOCK = re.compile(
    r"\b(?:(?P<macro>PYBIND11_MODULE|TORCH_LIBRARY(?:_[A-Z_]+)?)\s*\((?P<args>[^(){};]*)\)"
    r"|void\s+\w+\s*\(\s*(?P<param>(?:py|pybind11)::module_?\s*&\s*\w+)\s*\))"
)
_NAMED = r"([A-Za-z_][\w:]*)\s*(?=[<),]|$)"
_MARKED = re.compile(rf"(?:&|TORCH_FN\s*\(|TORCH_BOX\s*\(\s*&?|_function\s*\()\s*{_NAMED}")
_FIRST = re.compile(rf"\s*,\s*{_NAMED}")
