"""Which values surely are tensors that were computed under inference_mode, or views of such."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import Scope, decorator_scope, scope_inside
from ...facts.graph import Graph, is_slice, results
from ...facts.layers import is_module_class
from ...facts.names import last_name
from ...facts.trainable import is_reference, local_class, submodules
from ...facts.walk import walk

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

Part = int | str | None
"""Which part of a tuple or dict is meant."""

_VIEWS = frozenset(
    "view view_as unsqueeze squeeze transpose permute t expand narrow select detach movedim".split()
)
_COMPUTES = frozenset(
    "abs add amax amin argmax argmin argsort bmm clamp clone cos cumsum div entropy exp gather "
    "index_select log log_prob log_softmax logsumexp masked_fill matmul max mean min mul norm "
    "pow prod round rsample sample sigmoid sin softmax sort sqrt square std sub sum tanh topk "
    "var multinomial generate".split()
)
_KEEPS = frozenset("to cuda cpu float half bfloat16 double long int bool contiguous".split())
"""What is a tensor of the scope after these, too, where they stand in the scope."""
_FIELDS = frozenset("logits sequences last_hidden_state T mT values indices".split())
_NETWORK = re.compile(
    r"(^|_)(model|policy|actor|critic|net|network|agent|student|learner|backbone|encoder|decoder|"
    r"lm|llm|transformer)\d?$"
)
_MAX_DEPTH = 4


def made_under(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    value: ast.expr,
    at: ast.stmt,
    part: Part = None,
    depth: int = 0,
) -> Scope | None:
    """The inference_mode that a value was computed under; None where that is not sure.

    What is computed from such a tensor outside of the scope is an ordinary one, a view is not.
    """
    if depth > _MAX_DEPTH:
        return None
    value, part = looked_through(value, part)
    if isinstance(value, ast.Name):
        return _name(module, function, value, at, part, depth)
    if isinstance(value, ast.Call):
        return _result(module, function, value, part, depth)
    return None


def looked_through(value: ast.expr, part: Part) -> tuple[ast.expr, Part]:
    """What an expression is a view or a part of."""
    while True:
        if isinstance(value, ast.Subscript):
            index = value.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, (str, int)):
                part = index.value
            elif not is_slice(index):
                return value, part
            value = value.value
        elif isinstance(value, ast.Attribute) and value.attr in _FIELDS:
            value = value.value
        elif (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr in _VIEWS
            and not (isinstance(value.func.value, ast.Name) and value.func.value.id == "torch")
        ):
            value = value.func.value
        else:
            return value, part


def _name(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    name: ast.Name,
    at: ast.stmt,
    part: Part,
    depth: int,
) -> Scope | None:
    found: Scope | None = None
    for definition in module.flow(function).reaching(name.id, at):
        statement, value = definition.statement, definition.value
        if statement is None:
            continue  # before the first turn of a loop, say
        if value is None:
            return None
        index = part if definition.index is None else definition.index
        scope = scope_inside(module, statement, function)
        if scope is None or isinstance(value, ast.Name):
            scope = made_under(module, function, value, statement, index, depth + 1)
        elif scope.mode != "inference_mode" or not _computes(
            module, function, value, statement, index, depth + 1
        ):
            return None
        if scope is None:
            return None
        found = scope
    return found


def _result(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    call: ast.Call,
    part: Part,
    depth: int,
) -> Scope | None:
    """The scope of what a function of this file returns."""
    callee = Graph(module, function).callee(call)
    if callee is None:
        return None
    scope = decorator_scope(module, callee)
    if scope is not None and scope.mode != "inference_mode":
        return None
    found: Scope | None = None
    for value, at in results(callee):
        if scope is not None:
            if not _computes(module, callee, value, at, part, depth + 1):
                return None
            found = scope
            continue
        element, rest = _part_of(value, part)
        inner = scope_inside(module, at, callee)
        if inner is not None and inner.mode == "inference_mode":
            found = inner if _computes(module, callee, element, at, rest, depth + 1) else None
        else:
            found = made_under(module, callee, element, at, rest, depth + 1)
        if found is None:
            return None
    return found


def _part_of(value: ast.expr, part: Part) -> tuple[ast.expr, Part]:
    """``act`` of ``(seqs, act)`` and of ``{"act": act}``; a tensor's part is a view of it."""
    if isinstance(value, ast.Tuple) and isinstance(part, int) and part < len(value.elts):
        return value.elts[part], None
    if isinstance(value, ast.Dict) and part is not None:
        for key, element in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == part:
                return element, None
    return value, part


def _computes(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    value: ast.expr,
    at: ast.stmt,
    part: Part,
    depth: int,
) -> bool:
    """Whether code in a scope makes a tensor of its own, not a number or a view of its input."""
    if depth > _MAX_DEPTH:
        return False
    value, part = _part_of(value, part)
    value, part = looked_through(value, part)
    if isinstance(value, ast.Name):
        made = [d for d in module.flow(function).reaching(value.id, at) if d.statement is not None]
        return bool(made) and all(
            d.value is not None
            and d.statement is not None
            and _computes(
                module,
                function,
                d.value,
                d.statement,
                part if d.index is None else d.index,
                depth + 1,
            )
            for d in made
        )
    if isinstance(value, ast.BinOp):
        return any(
            _computes(module, function, side, at, None, depth + 1)
            for side in (value.left, value.right)
        )
    if isinstance(value, ast.Compare):
        return _computes(module, function, value.left, at, None, depth + 1)
    if not isinstance(value, ast.Call):
        return False
    callee = Graph(module, function).callee(value)
    if callee is not None:
        returned = list(results(callee))
        return bool(returned) and all(
            _computes(module, callee, each, where, part, depth + 1) for each, where in returned
        )
    name = last_name(value.func)
    if any(t.name.startswith("torch.") for t in module.resolve(value.func)):
        return name[:1].islower() and name not in ("no_grad", "device", "is_tensor", "load")
    if isinstance(value.func, ast.Attribute):
        if name in _COMPUTES:
            return True
        if name in _KEEPS:
            return _computes(module, function, value.func.value, at, None, depth + 1)
    return is_network(module, function, value)


# -- networks -------------------------------------------------------------------------------------


def is_network(module: ModuleFacts, function: FunctionNode | ast.Module, call: ast.Call) -> bool:
    """Whether a call runs a module that is there to learn, judged by how it is made or called."""
    called = call.func
    if isinstance(called, ast.Name):
        if _is_left_alone(module, called.id):
            return False
        if any(b.qualified is not None for b in module.names.visible(called)):
            return False  # a function, a class, or something imported
        return (
            network_class(module, function, call) is not None
            or f"{called.id}.parameters()" in module.usual
            or _NETWORK.search(called.id) is not None
        )
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return False
    if _is_left_alone(module, called.attr):
        return False
    cls = module.names.self_class(called.value)
    if cls is not None and called.attr in submodules(module, cls):
        return True
    return _NETWORK.search(called.attr) is not None


_ALONE = re.compile(r"(^|_)(ref|reference|old|frozen|base|behaviou?r)(_|$)")


def _is_left_alone(module: ModuleFacts, name: str) -> bool:
    """Whether a network is one to compare with, by its name, or something freezes it."""
    return (
        is_reference(name)
        or _ALONE.search(name) is not None
        or any(name == last_name(n) for place in module.frozen_places for n in walk(place))
    )


def network_class(
    module: ModuleFacts, function: FunctionNode | ast.Module, call: ast.Call
) -> ast.ClassDef | None:
    """The class of this file that a called network is made from, where that is clear."""
    called = call.func
    made: list[ast.expr | None] = []
    if isinstance(called, ast.Name):
        made = [d.value for d in module.flow(function).reaching(called.id, module.statement(call))]
    elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        owner = module.names.self_class(called.value)
        if owner is not None:
            made = [b.value for b in module.names.attributes(owner).get(called.attr, ())]
    value = made[0] if len(made) == 1 else None
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("to", "cuda", "train")
    ):
        value = value.func.value
    cls = local_class(module, value.func) if isinstance(value, ast.Call) else None
    return cls if cls is not None and is_module_class(module, cls) else None
