"""Which modules are there to be trained by the forward that has no gradient."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.called import functions_in
from ...facts.discrete import gives_integers
from ...facts.grad_mode import decorator_scope, own_nodes
from ...facts.graph import results
from ...facts.guards import gradient_unwanted
from ...facts.layers import bases_of, is_empty, may_be_module
from ...facts.memo import once
from ...facts.names import is_none, self_name
from ...facts.put_together import is_put_together
from ...facts.trainable import holds_weights
from ...facts.walk import walk
from .bases import learns_by_its_base
from .beside import is_named_for_training, trains_beside
from .users import frozen_by_its_users

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def is_to_train(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether a class's forward, or what stands for it, is there for a loss to be computed by."""
    return (
        (holds_weights(module, cls) or is_put_together(module, cls))
        and may_be_module(module, cls)
        and not _SEARCHES.search(cls.name)
        and not _INFERS.search(cls.name)
        and not gives_integers(module, function)
        and not _hands_over(function)
        and not _works_on_arrays(function)
        and not gradient_unwanted(module, cls)
        and not trains_beside(module, cls, function)
        and not _is_side_door(module, cls, function)
        and any(isinstance(node, ast.Call) for s in function.body for node in walk(s))
        and (not is_empty(module, cls) or is_put_together(module, cls))
        and not _is_declared_so(module, cls, function)
        and not frozen_by_its_users(module, cls)
        and not _is_searched(module, cls)
        and not learns_by_its_base(module, cls, function)
    )


_SEARCHES = re.compile(r"Beam(?!f)|Greedy|Viterbi|KenLM|Ensemble|(?<!Up)(?<!Down)(?<!Re)Sampler$")
"""Names of modules that search or draw what networks make likely, which is inference."""
_INFERS = re.compile(r"Inference(?:Model|Module|Engine|Wrapper|Layer)?$|^Inference[A-Z]")
"""Names of modules that are there to serve, whatever trains beside them."""
KEEPS = re.compile(r"extract|perceptual|feature|clip|vgg|dino|inception", re.IGNORECASE)
"""Names of modules around a network that is there to be used, not to be trained."""
_GENERATES = re.compile(r"_*(?:generate|sample|beam_search|greedy_search|decode)(?:_batch)?$")


def _hands_over(function: FunctionNode) -> bool:
    """Whether all that a forward does is to call its object's own ``generate``, or the like."""
    values = [value for value, _ in results(function)]
    return bool(values) and all(
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and isinstance(value.func.value, ast.Name)
        and value.func.value.id == self_name(function)
        and _GENERATES.match(value.func.attr) is not None
        for value in values
    )


def _works_on_arrays(function: FunctionNode) -> bool:
    """Whether a forward goes on with NumPy's arrays, as what reads boxes off a network's maps."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "astype" for node in own_nodes(function)
    )


def _is_declared_so(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether a base class's abstract method has a scope: then all that implement it infer."""
    for home, base in bases_of(module, cls):
        for method in functions_in(base):
            if method.name == function.name and decorator_scope(home, method) is not None:
                if any("abstractmethod" in home.source(d) for d in method.decorator_list):
                    return True
    return False


def _is_searched(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether the weights are found without backward, as evolution strategies do.

    A file that makes the model writes them by ``vector_to_parameters``, or sets ``w.grad`` by hand,
    and calls no backward.
    """
    made = f"{cls.name}("
    return any(
        made in home.text and _sets_by_hand(home)
        for sign in (b"vector_to_parameters(", b".grad = ")
        for home in module.project.mentioning(module, made, containing=sign)
    )


@once
def _sets_by_hand(module: ModuleFacts) -> bool:
    if module.calls_named("backward") or module.calls_named("grad"):
        return False
    return bool(module.calls_named("vector_to_parameters")) or any(
        isinstance(target, ast.Attribute) and target.attr == "grad" and not is_none(s.value)
        for s in module.statements
        if isinstance(s, ast.Assign)
        for target in s.targets
    )


def _is_side_door(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether a class learns by a forward of its own that ``forward_step`` is no part of."""
    if function.name in ("forward", "__call__") or is_named_for_training(function):
        return False
    own = next(
        (f for f in module.functions_named("forward") if module.method_class(f) is cls), None
    )
    if own is None or decorator_scope(module, own) is not None:
        return False
    return re.search(rf"\bself\.{function.name}\b", module.source(cls)) is None
