"""Models that are handed on as functions: whoever calls them then, no expression shows it.

To ``map``, ``partial``, a thread; as ``model.forward``; or in a dict of what may be called.
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
    """The places that hand a model on to be called elsewhere, and calls of what a dict holds."""
    found = []
    for module in instances.files:
        if not is_off_on_import(module):
            found += [*_given(module, instances), *_taken_out(module, instances)]
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


def _taken_out(module: ModuleFacts, instances: Instances) -> Iterator[Run]:
    """Calls of what a dict or a list of models holds: ``MODELS[name](x)``."""
    holders: dict[str, set[ClassId]] = {}
    for statement in module.statements:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        value = statement.value
        for target in (
            statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        ):
            parts: list[ast.expr] = []
            if isinstance(target, ast.Subscript):
                target, parts = target.value, [value]
            elif isinstance(value, ast.Dict):
                parts = value.values
            elif isinstance(value, (ast.List, ast.Tuple)):
                parts = value.elts
            models = {made for part in parts for made in _classes(module, part, instances)}
            if models and last_name(target):
                holders.setdefault(last_name(target), set()).update(models)
    for call in module.calls if holders else ():
        models = holders.get(_holder_of(module, call), set())
        run = run_of(module, call, frozenset(models)) if models else None
        if run is not None:
            yield run


def _holder_of(module: ModuleFacts, call: ast.Call) -> str:
    """The dict or list that holds what a call runs; empty where there is none."""
    node: ast.expr | None = call.func
    function = module.function(call)
    if isinstance(node, ast.Name) and function is not None:
        made = module.flow(function).only_definition(node.id, module.statement(call))
        node = made.value if made is not None else None
    if isinstance(node, ast.Call) and last_name(node.func) == "get":
        return last_name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return last_name(node.value) if isinstance(node, ast.Subscript) else ""


def _classes(module: ModuleFacts, node: ast.expr, instances: Instances) -> frozenset[ClassId]:
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
        return frozenset()
    held = instances.origins(module, node)
    return frozenset(origin.made for origin in held if origin.made is not None)
