"""The route *source*: the functions that a model runs, as ``trainify fix`` would leave them.

The same engine as the command line's reads the files that the model's classes come from, and no
file is written.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType, FunctionType

import torch
from torch import nn

from ..catalog import lookup
from ..catalog.own import registered
from ..engine import without_collections
from ..findings import Finding
from . import inplace
from .inplace import name_of, original_code
from .loads import covers, last_line
from .properties import properties
from .reach import Member, Reached, members
from .rewritten import Refused, Rewritten, Settings, config_of, is_written, source_of
from .swap import Plan


@dataclass(frozen=True)
class Found:
    """What there is to rewrite in a model, and what is not rewritten.

    ``lasting`` are the functions of the plan whose fault shows in a later step only, as a cache's
    does, or lies in what was computed before the step.  ``remaining`` was found in the model's
    files and has no fix that takes effect; ``obstacles`` are functions that could not be looked at.
    """

    plan: Plan
    lasting: frozenset[str] = frozenset()
    remaining: tuple[Finding, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()

    @property
    def refused(self) -> tuple[str, ...]:
        """Why functions could not be looked at, each reason once."""
        return tuple(dict.fromkeys(each.reason for each in self.obstacles))

    def of(self, functions: Collection[CodeType], ops: Iterable[str] = ()) -> Found:
        """The part that concerns some functions, calls of some ops, and code that no file has."""
        names = {*ops}
        remaining = (
            f
            for f in self.remaining
            if not names.isdisjoint(names_of(f.op))
            or any(covers(c, f.path, f.line) for c in functions)
        )
        obstacles = (o for o in self.obstacles if o.code in functions or not o.has_file)
        return replace(self, remaining=tuple(remaining), obstacles=tuple(obstacles))


def names_of(op: str) -> tuple[str, ...]:
    """Under which names the catalog knows a fused op."""
    row = lookup(op, registered()) if op else None
    return row.names if row is not None else ()


def as_written(op: str) -> str:
    """``torch.ops._C.rms_norm`` for ``_C::rms_norm``, ``module.name`` for ``module:name``."""
    if "::" in op:
        return f"torch.ops.{op.replace('::', '.')}"
    return op.replace(":", ".")


@dataclass(frozen=True)
class Obstacle:
    """Why a function, or without ``code`` a compiled module, could not be looked at."""

    reason: str
    code: CodeType | None = None

    @property
    def has_file(self) -> bool:
        return self.code is not None and os.path.isfile(self.code.co_filename)


def find(model: nn.Module, settings: Settings, graph: Reached) -> Found:
    """What ``trainify fix`` would change of the functions that a model's modules run."""
    config_of.cache_clear()
    obstacles: dict[Obstacle, None] = {}
    sources: dict[Rewritten, None] = {}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            said = f"{module.original_name}: what torch.jit compiled has no source that runs"
            obstacles[Obstacle(said)] = None

    def changes(member: Member) -> bool:
        code = original_code(member.function)
        if is_written(code):  # what another model needs beside the functions of its file
            return False
        try:
            source = source_of(code, settings)
            sources[source] = None
            return source.of(member.function, code) is not None
        except Refused as reason:
            if not _is_generated(member.function):
                obstacles[Obstacle(str(reason), code)] = None
            return False

    with without_collections():
        methods = {name_of(member): member for member in graph.methods if changes(member)}
        helpers = {name_of(member): member for member in graph.helpers if changes(member)}
    inplace.known.update(helpers)
    changed = {**methods, **helpers}
    lasting = {name for name, member in changed.items() if _is_lasting(member, settings)}
    for cls in dict.fromkeys(map(type, model.modules())):
        for name, each in properties(cls, settings).items():
            lasting.update((name, *map(name_of, each.rewritten_makers)))
    own = dict.fromkeys((*methods, *sorted(lasting.difference(helpers))))
    return Found(
        Plan(settings, tuple(own), tuple(helpers)),
        frozenset(lasting),
        tuple(_remaining(model, graph, sources)),
        tuple(obstacles),
    )


def _remaining(model: nn.Module, graph: Reached, sources: Iterable[Rewritten]) -> Iterator[Finding]:
    """What has no fix in functions that the model runs, or ran when it was made, or in none.

    By its place in the file on disk.
    """
    classes = dict.fromkeys(cls for module in model.modules() for cls in type(module).__mro__)
    made = (m for cls in classes for m in members(cls) if m.name == "__init__")
    run = {original_code(m.function) for m in (*graph.methods, *graph.helpers, *made)}
    lines = {(code.co_filename, code.co_firstlineno) for code in run}
    for source in sources:
        for finding in source.remaining:
            line = source.old_line(finding.line)
            around = source.functions_at(line)
            if not around or any((source.path, first) in lines for first in around):
                yield replace(finding, line=line)


def _is_lasting(member: Member, settings: Settings) -> bool:
    code = original_code(member.function)
    lines = range(code.co_firstlineno, last_line(code) + 1)
    return any(finding.line in lines for finding in source_of(code, settings).lasting)


def _is_generated(function: FunctionType) -> bool:
    """Whether a function was never in a file: ``__eq__`` of a dataclass, and the like."""
    return function.__code__.co_filename == "<string>" and function.__name__.startswith("__")
