"""TRN407: edits of a weight's values that autograd would take part in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.activations import is_parameter
from ..facts.grad_mode import scope_around
from ..facts.guards import gradient_unwanted
from ..facts.models import learns
from ..facts.words import declare, places
from ..facts.writes import callers, root_of
from ..findings import Finding
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN407",
        name="weight-edit-without-no-grad",
        summary="The values of a weight are edited in place, outside of torch.no_grad().",
        why=(
            "A parameter is a leaf that requires grad: writing into it raises. The edit belongs "
            "under torch.no_grad(), which only its author can say; a clone would be edited in the "
            "weight's stead."
        ),
        before="""\
import torch


def erase(layer, column, value):
    layer.weight[:, column] -= value
""",
        after="",
    ),
)
_WEIGHTS = declare(b".weight", b".bias")
_QUIET = rb"requires_grad_\(|(?:copy|fill|zero)_\((?:(?!\)\.)[^\n])*\)[ \t\r]*\n"
_EDIT = re.compile(
    rb"\.(?:weight|bias)(?:(?:\[[^\n\]]*\])+ [-+*/]?= | [-+*/]= |"
    rb"(?:\[[^\n\]]*\])*\.(?!" + _QUIET + rb")[a-z]+(?:_[a-z]+)*_\()"
)


_COPY = re.compile(rb"\.(?:weight|bias)(?:\[[^\n\]]*\])*\.(?:copy|fill|zero)_\(")
_OWNER = re.compile(rb"\.(\w+)$")


def _may_concern(data: bytes) -> bool:
    if b"import torch" not in data and b"from torch" not in data:
        return False
    return any(
        data[at + len(word) : at + len(word) + 1] in b"[ ."
        and (_EDIT.match(data, at) or (_COPY.match(data, at) and _is_layer_before(data, at)))
        for word in _WEIGHTS
        for at in places(data, word)
    )


def _is_layer_before(data: bytes, at: int) -> bool:
    """Whether what stands before ``.weight`` is made by the file, of a layer of torch's."""
    owner = _OWNER.search(data, max(0, at - 60), at)
    return owner is not None and b"self.%s = nn." % owner[1] in data


NEEDLES: tuple[Needle, ...] = (Look(_WEIGHTS, _may_concern),)
_LAYER = re.compile(
    r"(?:^|[._])(?:layer|linear|lin|fc|dense|proj|[a-z]+_proj|conv|embed|embeddings?|embed_tokens|"
    r"lm_head|wte|wpe|classifier)_?\d*(?:\[[^\]]*\])?$"
)
_PREPARES = re.compile(
    r"init|reset|load|convert|merge|tie|prune|quant|pack|from_|replace|fuse|fold|copy|build|create|"
    r"export|setup|__new__"
)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for statement, write in module.writes.items():
        if write.name is not None or write.unseen:
            continue
        _, path = root_of(write.target)
        weight = path[-1] if path else None
        if not isinstance(weight, ast.Attribute) or any(_detaches(node) for node in path):
            continue
        sure = weight.attr in ("weight", "bias") and learns(module, weight.value)
        # Weights are given their values, by whoever builds or loads a model.
        if not sure and (_copies(statement) or not _is_weight(module, weight)):
            continue
        if _may_be_frozen(module, statement, sure):
            continue
        if gradient_unwanted(module, statement) or _called_without_grad(module, statement):
            continue
        if scope_around(module, statement) is not None:
            continue  # who takes the scope of a forward off keeps it there
        text = module.source(weight)
        yield module.finding(
            "TRN407",
            f"`{text}` is a weight, and a leaf that requires grad: editing it in place raises; "
            "if the edit is meant, put it under `torch.no_grad()`.",
            statement,
        )


def _is_weight(module: ModuleFacts, node: ast.Attribute) -> bool:
    if is_parameter(module, node):
        return True
    if node.attr not in ("weight", "bias"):
        return False
    return bool(_LAYER.search(module.source(node.value)))


def _copies(statement: ast.stmt) -> bool:
    """``weight.copy_(other)``, which buffers see as often as weights do."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("copy_", "fill_", "zero_")
    )


def _detaches(node: ast.expr) -> bool:
    name = node.func if isinstance(node, ast.Call) else node
    return isinstance(name, ast.Attribute) and name.attr in ("data", "detach", "grad")


def _may_be_frozen(module: ModuleFacts, statement: ast.stmt, sure: bool) -> bool:
    """Whether the weight may need no gradient, or the place prepares a model.

    What is ``sure`` to learn does so in a script and a constructor, too.
    """
    function = module.function(statement)
    if sure and ("requires_grad" in module.usual or "set_grad_enabled" in module.usual):
        return True
    if sure and (function is None or function.name == "__init__"):
        return False
    if function is None or _PREPARES.search(function.name):
        return True
    cls = module.method_class(function)
    return "requires_grad" in module.source(cls or function)


def _called_without_grad(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether every call of the function around, of those in the file, wants no gradient."""
    function: FunctionNode | None = module.function(statement)
    calls = list(callers(module, function)) if function is not None else []
    return bool(calls) and all(
        gradient_unwanted(module, call) or scope_around(module, call) is not None for call in calls
    )
