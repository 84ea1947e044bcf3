"""TRN301: parameters that a forward makes anew of others, which get no gradient by that."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.activations import is_parameter
from ..facts.comments import explained
from ..facts.graph import Graph, results
from ..facts.guards import gradient_unwanted, is_forward
from ..facts.places import function_around
from ..facts.words import declare, places
from ..findings import STRATEGIES, Edit, Finding, Fix
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES: tuple[Rule, ...] = ()

(_MADE,) = declare(b"Parameter(self.")
_ASKED = re.compile(r"\.grad\b|autograd|backward|requires_grad")
"""What may ask for the gradient of the new parameter itself."""


def _may_concern(data: bytes) -> bool:
    for at in places(data, _MADE):
        function = function_around(data, at)
        if function >= 0 and data.startswith(b"def forward", function):
            return True
    return False


NEEDLES: tuple[Needle, ...] = (Look((_MADE,), _may_concern),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for call in module.calls:
        function = module.function(call)
        if function is None or not is_forward(function) or _ASKED.search(module.source(function)):
            continue
        if not module.is_name(call.func, "torch.nn.Parameter", "torch.nn.parameter.Parameter"):
            continue
        if len(call.args) != 1 or call.keywords or not is_parameter(module, call.args[0]):
            continue
        if _is_local(module, function, call) and not gradient_unwanted(module, call):
            if not explained(module, call):
                yield _finding(module, call)


def _is_local(module: ModuleFacts, function: FunctionNode, call: ast.Call) -> bool:
    """Whether the new parameter stays local, and the old one has no other way to the result."""
    statement, weight = module.statement(call), module.source(call.args[0])
    if isinstance(statement, ast.Return) and statement.value is call:
        return False
    if isinstance(statement, ast.Assign):
        if not all(isinstance(target, ast.Name) for target in statement.targets):
            return False
    elif not isinstance(statement, (ast.Return, ast.AugAssign)):
        return False
    graph = Graph(module, function)
    learning = [
        step.node
        for step in graph.back_from(results(function))
        if step.cut is None and isinstance(step.node, ast.Attribute)
    ]
    own = call.args[0]
    return own in learning and not any(
        node is not own and module.source(node) == weight for node in learning
    )


def _finding(module: ModuleFacts, call: ast.Call) -> Finding:
    made, weight = module.source(call.func), module.source(call.args[0])
    message = (
        f"`{made}({weight})` is another leaf in every call: the gradient ends there, and "
        f"`{weight}` gets none."
    )
    fix = Fix(f"Use {weight}", (Edit(module.start(call), module.end(call), weight),))
    fixes = dict.fromkeys(STRATEGIES, fix) if "#" not in module.source(call) else {}
    return module.finding("TRN301", message, call, fixes)
