"""The passes: each module in this package finds one kind of fault and offers its fixes.

A pass is registered by being here.  It defines

* ``RULES``: the :class:`Rule` objects it can report; none where it reports those of others,
* ``NEEDLES``: byte strings, or a :class:`Look` for what a string cannot say; a file that contains
  none of any pass's needles is never parsed; ``needles(options)`` takes their place where a run
  adds some,
* ``find(module, options)``: yields :class:`~trainify.findings.Finding` for one parsed file,
* optionally ``concerns(data, path, project, options)``: whether a file with a needle is worth
  parsing, given the files around it,
* optionally ``PLANS = True``: ``find`` works out its fixes only if ``options.plan``,
* optionally ``proven(module, place)``: the same as ``find`` for one
  :class:`~trainify.findings.Proven` place, where values have said what the code does not.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import ast

    from ..engine import Options
    from ..facts import ModuleFacts, Project
    from ..findings import Finding, Proven


@dataclass(frozen=True, slots=True)
class Look:
    """A needle that takes a closer look at the bytes of files in which one of its words stands."""

    words: tuple[bytes, ...]
    matters: Callable[[bytes], object]


Needle = bytes | Look


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and its documentation; ``before`` becomes ``after`` under strategy ``flag``."""

    code: str
    name: str
    summary: str
    why: str
    before: str
    after: str


def is_wanted(module: ModuleFacts, options: Options, rule: str, node: ast.stmt | ast.expr) -> bool:
    """Whether a rule may speak of a node: it is selected there, and no comment silences it.

    A fix may cover several findings.  Those that nobody is told of keep what stands there, so a
    pass that plans such fixes has to ask first.
    """
    if not options.selects(rule):
        return False
    assert node.end_lineno is not None
    return not module.suppressions.silence(rule, node.lineno, node.end_lineno)


NOT_REWRITTEN = " Not rewritten: "


def not_rewritten(reason: object) -> str:
    """What a message ends with where there is no fix."""
    return f"{NOT_REWRITTEN}{reason}."


class Pass(Protocol):
    RULES: tuple[Rule, ...]
    NEEDLES: tuple[Needle, ...]

    def find(self, module: ModuleFacts, options: Options) -> Iterator[Finding]: ...


def needles(of: Pass, options: Options) -> tuple[Needle, ...]:
    """What to look for in a file before a pass is asked about it."""
    of_run: Callable[[Options], tuple[Needle, ...]] | None = getattr(of, "needles", None)
    return of_run(options) if of_run else of.NEEDLES


def concerns(of: Pass, data: bytes, path: str, project: Project, options: Options) -> bool:
    """Whether a file that has one of a pass's needles is worth parsing for it."""
    asked: Callable[[bytes, str, Project, Options], bool] | None
    asked = getattr(of, "concerns", None)
    return asked is None or asked(data, path, project, options)


def plans(of: Pass) -> bool:
    """Whether a pass leaves out its fixes where ``options.plan`` is false."""
    return bool(getattr(of, "PLANS", False))


def proven(of: Pass, module: ModuleFacts, options: Options) -> Iterator[Finding]:
    """What a pass has to say of the places of ``options.proven``."""
    asked: Callable[[ModuleFacts, Proven], Iterator[Finding]] | None = getattr(of, "proven", None)
    if asked is not None:
        for place in options.proven:
            yield from asked(module, place)


@cache
def all_passes() -> tuple[Pass, ...]:
    """Every pass in this package, in name order."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return tuple(cast(Pass, importlib.import_module(f"{__name__}.{name}")) for name in names)


@cache
def all_rules() -> dict[str, Rule]:
    """Rules by code."""
    rules = [rule for p in all_passes() for rule in p.RULES]
    return {rule.code: rule for rule in sorted(rules, key=lambda rule: rule.code)}
