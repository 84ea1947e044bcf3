"""Where something happens: the innermost code that is neither torch's nor trainify's."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from types import CodeType, FrameType, FunctionType
from typing import NamedTuple

import torch

from ...facts.walk import walk

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_TRITON = f"{os.sep}triton{os.sep}"
_INTERPRETER = "triton.runtime.interpreter"
_INTERPRETED = f"{_TRITON}{os.path.join('runtime', 'interpreter.py')}"
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Place(NamedTuple):
    """A line of code that ran."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


NOWHERE = Place("?", 0, "?")


class Places:
    """Finds the place that a person would name for what is going on.

    Of the frames on the stack that is the innermost one outside of torch, Triton and the standard
    library; where it lies in an installed package that the model is not made of (a library of
    kernels), the innermost one outside of those too, if there is one.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._packages = {type(module).__module__.partition(".")[0] for module in modules}
        self._outside: dict[str, bool] = {}
        self._foreign: dict[str, bool] = {}
        self._found: dict[tuple[CodeType, int], Place] = {}

    def of(self, frame: FrameType | None) -> Place:
        """The place for a call that ``frame`` or one of its callers makes."""
        found = self.frame(frame)
        if found is None:
            return NOWHERE
        line = found.f_code, found.f_lineno
        place = self._found.get(line)
        if place is None:
            place = self._found[line] = place_of(found)
        return place

    def frame(self, frame: FrameType | None) -> FrameType | None:
        """The frame of :meth:`of`; None where there is none."""
        if _INTERPRETER in sys.modules:
            frame = _outside_of_triton(frame)
        innermost = None
        while frame is not None:
            path = frame.f_code.co_filename
            if not self.is_outside(path):
                if not self._is_foreign(path):
                    return frame
                innermost = innermost or frame
            frame = frame.f_back
        return innermost

    def is_outside(self, path: str) -> bool:
        """Whether code of ``path`` is never what a person would name."""
        found = self._outside.get(path)
        if found is None:
            found = path.startswith(("<", _TORCH, _OWN)) or _TRITON in path
            found = found or (path.startswith(_STANDARD) and not any(i in path for i in _INSTALLED))
            found = found and not path.startswith("<ipython")
            self._outside[path] = found
        return found

    def is_users(self, path: str) -> bool:
        """Whether code of ``path`` is what a person would name first."""
        return not self.is_outside(path) and not self._is_foreign(path)

    def _is_foreign(self, path: str) -> bool:
        found = self._foreign.get(path)
        if found is None:
            package = next((path.partition(i)[2] for i in _INSTALLED if i in path), "")
            found = bool(package) and package.partition(os.sep)[0] not in self._packages
            self._foreign[path] = found
        return found


def is_interpreter(frame: FrameType) -> bool:
    """Whether it is Triton's interpreter that makes a call: its own views of what a kernel got."""
    return frame.f_code.co_filename.endswith(_INTERPRETED)


def _outside_of_triton(frame: FrameType | None) -> FrameType | None:
    """Triton's interpreter runs the body of a kernel as Python; that is inside of the launch."""
    found = frame
    for each in callers(frame):
        if _TRITON in each.f_code.co_filename:
            found = each.f_back
    return found


def place_of(frame: FrameType) -> Place:
    """The line that ``frame`` is at."""
    return Place(frame.f_code.co_filename, frame.f_lineno, qualified(frame.f_code))


@lru_cache(maxsize=4096)
def qualified(code: CodeType) -> str:
    """The name of a function, with its class where Python tells it (3.11)."""
    name: str = getattr(code, "co_qualname", code.co_name)
    return name.rpartition("<locals>.")[2]


DECORATED = ("decorate_context", "generator_context")
"""What the functions are called that torch puts around those under a mode."""


def decorated(frame: FrameType | None) -> Place | None:
    """The innermost function on the stack that torch's ``no_grad`` or its like decorates."""
    for each in callers(frame):
        if each.f_code.co_name in DECORATED:
            code = getattr(each.f_locals.get("func"), "__code__", None)
            if code is not None:
                path = code.co_filename
                return Place(path, _decorator(path, code.co_firstlineno), qualified(code))
    return None


def wrapped_in(frame: FrameType, inner: FrameType) -> Place | None:
    """The place of the decorator that put a function around the one that it calls; None for others.

    By the names of functions, which Python tells from 3.11 on.
    """
    name = getattr(frame.f_code, "co_qualname", "")
    if ".<locals>" not in name or not any(
        isinstance(frame.f_locals.get(each), FunctionType)
        and frame.f_locals[each].__code__ is inner.f_code
        for each in frame.f_code.co_freevars
    ):
        return None
    decorator = name.partition(".<locals>")[0].rpartition(".")[2]
    path, first = inner.f_code.co_filename, inner.f_code.co_firstlineno
    line = _decorators(path, first).get(decorator)
    return Place(path, line, qualified(inner.f_code)) if line is not None else None


_SWITCHES = {"no_grad", "inference_mode", "set_grad_enabled"}
_OTHERS = {"staticmethod", "classmethod", "property"}


def _decorator(path: str, first: int) -> int:
    """The line of the decorator with which gradients are off in the function of a first line."""
    names = _decorators(path, first)
    said = [line for name, line in names.items() if name in _SWITCHES]
    other = [line for name, line in names.items() if name not in _OTHERS]  # another's name
    return min(said or other, default=first)


@lru_cache(maxsize=1024)
def _decorators(path: str, first: int) -> dict[str, int]:
    """The decorators of the function of a first line, by their last names, with their lines."""
    tree = parsed(path)
    for node in walk(tree) if tree else ():
        decorators = getattr(node, "decorator_list", ())
        if decorators and decorators[0].lineno == first:
            return {_last_name(each): each.lineno for each in reversed(decorators)}
    return {}


def _last_name(node: ast.expr) -> str:
    """``no_grad`` of ``torch.no_grad()``."""
    node = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(node).rpartition(".")[2]


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """``frame`` and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def parsed(path: str) -> ast.Module | None:
    """The source of a file, as the interpreter shows it in tracebacks; None where it has none."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return None


def said(error: BaseException) -> str:
    """The first line of what an exception says, with its type."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def raised(error: Exception, places: Places) -> str:
    """An exception in one line, with the innermost line of a person's code that it went through."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if places.is_users(path):
            found = f"{path}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{said(error)} ({found})" if found else said(error)
