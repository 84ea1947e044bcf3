"""Models that are handed on as functions: whoever calls them then, no expression shows it.

To ``map``, ``partial``, a thread; or as ``model.forward``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...facts import ModuleFacts
from ...facts.instances import ClassId, Instances
from ...facts.names import last_name
from .runs import Run, run_of
from .starts import is_off_on_import

_AT_ONCE = frozenset("map filter starmap".split())
_LATER = frozenset(
    "partial Thread Process Timer submit run_in_executor run_sync to_thread apply_async imap "
    "imap_unordered call_soon call_soon_threadsafe run_in_threadpool".split()
)
_READS = ("torch.", "inspect.", "types.", "functools.wraps", "functools.update_wrapper")
"""What takes a bound ``forward`` to wrap it or to look at it."""


def handed_on(instances: Instances) -> list[Run]:
    """The places that hand a model on to be called elsewhere."""
    found: list[Run] = []
    for module in instances.files:
        if not is_off_on_import(module):
            found += _given(module, instances)
    return found


def _given(module: ModuleFacts, instances: Instances) -> Iterator[Run]:
    for call in module.calls:
        taker = last_name(call.func)
        for node in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(node, ast.Attribute) and node.attr == "forward":
                if _only_reads(module, call):
                    continue
                models = _classes(module, node.value, instances)
            elif taker in _AT_ONCE or taker in _LATER:
                models = _classes(module, node, instances)
            else:
                continue
            later = taker not in _AT_ONCE
            run = run_of(module, call, models, later=later) if models else None
            if run is not None:
                yield run


def _only_reads(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a bound ``forward`` is wrapped, to take its own place again, or looked at."""
    if not isinstance(call.func, (ast.Name, ast.Attribute)):
        return True  # torch.no_grad()(model.forward)
    at = module.statement(call)
    if isinstance(at, ast.Assign) and any(last_name(t) == "forward" for t in at.targets):
        return True
    return any(target.name.startswith(_READS) for target in module.resolve(call.func))


def _classes(module: ModuleFacts, node: ast.expr, instances: Instances) -> frozenset[ClassId]:
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
        return frozenset()
    held = instances.origins(module, node)
    return frozenset(origin.made for origin in held if origin.made is not None)
