"""When an attribute is computed, and what uses it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.guards import gradient_unwanted, is_forward
from ...facts.names import is_none, last_name, self_name
from ...facts.rebound import set_by_others
from ...facts.walk import walk
from ...facts.weights import is_weight_use

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

ON_LOADING = re.compile(r"load|post_init|reset_parameters|build|setup|set_up|prepare|finali[sz]e")
_FOR_SERVING = re.compile(
    r"fuse|merge|deploy|reparam|quant|export|infer|pack|convert|switch|prun|optimi[sz]e|serv|"
    r"(train|eval|_apply)$"
)


def happens_once(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether a method runs when a module is made or loaded, or the first time it is called.

    What a person calls to prepare a model for serving is left alone, and so is what every forward
    does again.
    """
    if function.name == "__init__":
        return True
    if is_forward(function):
        return False
    calls = [
        node
        for node in walk(cls)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == function.name
    ]
    callers = {module.function(call) for call in calls}
    if any(c is not None and is_forward(c) for c in callers):
        return False
    if any(_is_made_with(module, call) for call in calls):
        return True
    if _FOR_SERVING.search(function.name):
        return False
    if any(c is not None and c.name == "__init__" for c in callers):
        return True
    return bool(ON_LOADING.search(function.name))


def is_lazy(module: ModuleFacts, cls: ast.ClassDef, name: str, statement: ast.stmt) -> bool:
    """Whether a forward sets an attribute the first time, and nobody gives it up again.

    ``if self.packed is None: self.packed = self.weight.t().contiguous()``
    """
    function = module.function(statement)
    around = module.parent(statement)
    if around is function and _returned_before(module, name, statement):
        return _is_kept(module, cls, name, function)
    if around is function:
        call = _only_call(module, cls, function)
        if call is None:
            return False
        statement = module.statement(call)
        around, function = module.parent(statement), module.function(call)
    if not isinstance(around, ast.If) or statement not in around.body:
        return False
    test = around.test
    if function is None or function.name == "__init__" or gradient_unwanted(module, around):
        return False
    asked: ast.expr | None = None
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is):
        asked = test.left if is_none(test.comparators[0]) else None
    elif isinstance(test, ast.UnaryOp) and isinstance(test.operand, ast.Call):
        call = test.operand
        known = [getattr(argument, "value", None) for argument in call.args[1:]]
        if last_name(call.func) != "hasattr" or known != [name]:
            return False
        asked = ast.Attribute(call.args[0], name)
    if not isinstance(asked, ast.Attribute) or asked.attr != name:
        return False
    if not isinstance(asked.value, ast.Name) or asked.value.id != self_name(function):
        return False
    return _is_kept(module, cls, name, function)


def _returned_before(module: ModuleFacts, name: str, statement: ast.stmt) -> bool:
    """Whether what an attribute has is given back before a statement sets it, if it has any.

    ``if self.packed is not None: return self.packed``
    """
    block = module.block(statement)
    for before in block[: block.index(statement)]:
        if not isinstance(before, ast.If) or before.orelse:
            continue
        last, test = before.body[-1], before.test
        given = last.value if isinstance(last, ast.Return) else None
        if not isinstance(given, ast.Attribute) or given.attr != name:
            continue
        if gradient_unwanted(module, last):
            return False
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
            if is_none(test.comparators[0]) and ast.dump(test.left) == ast.dump(given):
                return not gradient_unwanted(module, statement)
        elif isinstance(test, ast.Call) and last_name(test.func) == "hasattr":
            known = [getattr(argument, "value", None) for argument in test.args[1:]]
            return known == [name] and not gradient_unwanted(module, statement)
    return False


def _is_kept(
    module: ModuleFacts, cls: ast.ClassDef, name: str, function: FunctionNode | None
) -> bool:
    """Whether a forward has a function set an attribute, and nobody else sets it."""
    if function is None or function.name == "__init__":
        return False
    places = [*module.calls_named(function.name), *_readings(module, cls, function)]
    callers = [module.function(place) for place in places]
    if not is_forward(function) and not any(c is not None and is_forward(c) for c in callers):
        return False
    return next(set_by_others(module, cls, name), None) is None


def _readings(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode
) -> list[ast.Attribute]:
    """Where a property is read, if a method is one."""
    if not any(last_name(each) == "property" for each in function.decorator_list):
        return []
    return list(module.names.uses(cls, function.name))


def _gives_weight(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether what a method or a property gives is used as a weight: ``F.linear(x, self.w)``."""
    cls = module.method_class(function)
    if cls is None:
        return False
    readings = _readings(module, cls, function)
    if readings:
        return any(is_used(module, use, [function]) for use in readings)
    return any(
        gives_weight(module, call)
        for call in module.calls_named(function.name)
        if isinstance(call.func, ast.Attribute)
    )


def gives_weight(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether what a call gives is used as a weight, at once or by a local name."""
    if gradient_unwanted(module, call):
        return False
    return is_weight_use(module, call) or _is_used_by_name(module, call)


def _only_call(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode | None
) -> ast.Call | None:
    """The one call of a method in its file, where that is a statement of another method."""
    calls = module.calls_named(function.name) if function is not None else ()
    if function is None or len(calls) != 1 or function.name == "__init__":
        return None
    (call,) = calls
    caller = module.function(call)
    alone = isinstance(module.statement(call), ast.Expr) and caller is not function
    return call if alone and module.method_class(caller) is cls else None


def _is_made_with(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether ``__init__`` calls a method whatever its arguments."""
    function = module.function(call)
    return (
        function is not None
        and function.name == "__init__"
        and module.statement(call) in function.body
    )


_CONVERSIONS = frozenset("to float half bfloat16 double type_as unsqueeze contiguous".split())
_LOOKS = frozenset("len print isinstance getattr hasattr setattr register_buffer append".split())


def _is_worked_with(module: ModuleFacts, use: ast.expr) -> bool:
    """``x * self.A``, ``scan(x, self.A.to(x.dtype))``."""
    parent = module.parent(use)
    while isinstance(parent, ast.Attribute) and parent.attr in _CONVERSIONS:
        call = module.parent(parent)
        if not isinstance(call, ast.Call) or call.func is not parent:
            return False
        use, parent = call, module.parent(call)
    if isinstance(parent, ast.keyword):
        parent = module.parent(parent)
    if isinstance(parent, ast.Call):
        return use is not parent.func and last_name(parent.func) not in _LOOKS
    return isinstance(parent, ast.BinOp)


def _is_contracted(module: ModuleFacts, use: ast.expr) -> bool:
    """``torch.einsum("bd,hkd->bhk", x, self.w)``."""
    parent = module.parent(use)
    return isinstance(parent, ast.Call) and last_name(parent.func) == "einsum"


_SEARCHES = frozenset("argmin argmax topk cdist".split())
"""What a search for the nearest entry of a codebook does; no gradient is expected from it."""


def is_reparametrized(value: ast.expr) -> bool:
    """``-torch.exp(self.a_log)``: what a parameter is held for, in every kind of product."""
    while isinstance(value, ast.UnaryOp):
        value = value.operand
    return isinstance(value, ast.Call) and last_name(value.func) in ("exp", "softplus", "sigmoid")


def is_used(
    module: ModuleFacts,
    use: ast.Attribute,
    makers: Iterable[FunctionNode | None],
    anyhow: bool = False,
) -> bool:
    """Whether it is used as a weight, at once or by a local name, where a gradient is wanted.

    With ``anyhow``, as an operand of any operator, or as what a scan is given.
    """
    function = module.function(use)
    if function is None or function in makers or gradient_unwanted(module, use):
        return False
    if any(isinstance(n, ast.Attribute) and n.attr in _SEARCHES for n in walk(function)):
        return False
    if (
        is_weight_use(module, use)
        or _is_contracted(module, use)
        or (anyhow and _is_worked_with(module, use))
    ):
        return True
    statement = module.parent(use)
    if isinstance(statement, ast.Return):
        return not is_forward(function) and _gives_weight(module, function)
    return _is_used_by_name(module, use)


def _is_used_by_name(module: ModuleFacts, value: ast.expr) -> bool:
    """Whether a statement gives a value a name that is used as a weight."""
    statement, function = module.parent(value), module.function(value)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    return function is not None and any(
        isinstance(node, ast.Name) and node.id == name and is_weight_use(module, node)
        for node in walk(function)
    )
