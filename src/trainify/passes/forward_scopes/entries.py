"""TRN203: the functions that start inference under a scope which another file loses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import Scope
from ...facts.module import head
from ...findings import STRATEGIES, Edit, Finding, Fix
from .bodies import can_be_scoped
from .moved import Moved, moved_scopes, own_scope_on, scope_on
from .starts import Start, classes_run, inference_functions, is_scoped, may_run, runs_any_model
from .words import scopes_forward

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def bare_entries(module: ModuleFacts, own: Scope | None) -> Iterator[Finding]:
    """Functions in this file that rely on a scope which another file's forward is about to lose.

    ``own`` is the scope that they get from a forward of this file, where one is to lose it too.
    """
    bare = [
        function
        for function in inference_functions(module)
        if can_be_scoped(module, function) and not is_scoped(module, function)
    ]
    if not bare:
        return  # before other files are read
    lost = [
        scope
        for found in module.project.summaries(module.path, moved_scopes, scopes_forward)
        for scope in found
    ]
    for function in bare if lost else ():
        runs = runs_any_model(module, function), classes_run(module, function)
        start = Start(module.path, function.lineno, function.name, False, *runs)
        for scope in lost:
            if may_run(module.project, start, scope.path, scope.classes):
                yield _entry(module, function, scope, own)
                break


def _entry(module: ModuleFacts, function: FunctionNode, scope: Moved, own: Scope | None) -> Finding:
    from ...rewrite import layout
    from ...rewrite.scopes import with_decorator

    edits: list[Edit] = []
    if own is not None:
        text = own_scope_on(module, function, own)
    else:
        torch = layout.bound_at_top(module, "torch")
        if torch is None:
            torch = "torch"
            edits.append(layout.import_edit(module, "import torch"))
        text = scope_on(module, function, scope, torch)
    edits.insert(0, with_decorator(module, function, text))
    message = (
        f"`{function.name}` relies on `{scope.forward}` to switch gradients off; that scope "
        "belongs here."
    )
    fix = Fix(f"Put @{text} on {function.name}", tuple(edits))
    return module.finding("TRN203", message, head(function), dict.fromkeys(STRATEGIES, fix))
