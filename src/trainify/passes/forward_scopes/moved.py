"""The scope that moves from a forward to where inference starts, and what it becomes there."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import Scope, own_nodes
from ...facts.gradients import Gradients
from ...facts.guards import is_forward
from ...facts.memo import once
from .bodies import leaves_tensors
from .cover import label_of
from .covers import covers_in
from .flat_outputs import flat_output
from .starts import classes_around

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


@dataclass(frozen=True)
class Moved:
    """A forward that switches gradients off: ``mode(arguments)``.

    ``keeps`` says that it keeps tensors which it computes.
    """

    path: str
    forward: str
    mode: str
    arguments: str
    keeps: bool
    classes: frozenset[str]


def moved_scopes(module: ModuleFacts) -> tuple[Moved, ...]:
    """The scopes that forwards of a file lose, for the files that start inference."""
    found = []
    for cover in covers_in(module):
        flat = flat_output(module, cover.function)
        if flat is not None and flat.in_loss:
            continue  # it stays
        node = cover.scope.node
        call = node.func if isinstance(node, ast.Call) else node
        arguments = module.source(node)[len(module.source(call)) :] or "()"
        owner = module.method_class(cover.function)
        classes = classes_around(module, owner) if owner is not None else frozenset()
        label, keeps = label_of(module, cover.function), _keeps_tensors(module)
        found.append(Moved(module.path, label, cover.scope.mode, arguments, keeps, classes))
    return tuple(found)


def own_scope_on(module: ModuleFacts, function: FunctionNode, scope: Scope) -> str:
    """A scope of a forward as it stands on a function of the same file that starts inference."""
    from ...rewrite.layout import bound_at_top

    text = module.source(scope.node)
    if not _is_softened(module, function, scope.mode, _keeps_tensors(module)):
        return text
    torch = bound_at_top(module, "torch")
    name = f"{torch}.no_grad" if torch is not None else bound_at_top(module, "torch.no_grad")
    return f"{name}()" if name is not None else text


def scope_on(module: ModuleFacts, function: FunctionNode, scope: Moved, torch: str) -> str:
    """The same of another file's forward; ``torch`` is what the package is called here."""
    if _is_softened(module, function, scope.mode, scope.keeps):
        return f"{torch}.no_grad()"
    return f"{torch}.{scope.mode}{scope.arguments}"


def _is_softened(module: ModuleFacts, function: FunctionNode, mode: str, keeps: bool) -> bool:
    """Whether ``inference_mode`` becomes ``no_grad`` on a function, as tensors outlive it there.

    Those that it gives or leaves behind, or that the forward ``keeps``: made under inference_mode,
    they cannot be written to in training, nor saved for backward, and ids that ``generate`` gives
    are what a policy is trained on next.
    """
    return mode == "inference_mode" and (
        keeps or _gives_tensors(module, function) or leaves_tensors(module, function)
    )


@once
def _gives_tensors(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function may give tensors to its caller: what it returns is not all numbers."""
    gradients = Gradients(module, function)
    yields = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(function))
    return yields or not all(value.plain for value in gradients.returned())


def _keeps_tensors(module: ModuleFacts) -> bool:
    """Whether a forward keeps what it computes: ``self.cache = self.cache.to(x)``."""
    for statement in module.statements:
        if not isinstance(statement, ast.Assign):
            continue
        function = module.function(statement)
        if function is not None and is_forward(function):
            if any(
                isinstance(t, ast.Attribute)
                and isinstance(t.value, ast.Name)
                and t.value.id == "self"
                for t in statement.targets
            ):
                return True
    return False
