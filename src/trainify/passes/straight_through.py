"""TRN303: a codebook loss that is computed on the output of a straight-through estimator."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.called import method_of, positional
from ..facts.carried import detached
from ..facts.gradients import Gradients
from ..facts.guards import gradient_unwanted
from ..facts.names import last_name
from ..facts.trainable import local_class
from ..facts.walk import walk
from ..facts.words import declare, places
from ..findings import Finding
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN303",
        name="codebook-loss-on-straight-through",
        summary="A codebook loss is computed on the straight-through output, not on the codes.",
        why=(
            "z + (codes - z).detach() has the value of the codes and the gradient of z. A loss "
            "that should pull the codes to z pulls z instead, and the codebook gets no gradient. "
            "The straight-through line is right; the loss needs the codes themselves."
        ),
        before="""\
import torch
import torch.nn.functional as F
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.codebook = nn.Embedding(entries, width)

    def forward(self, z):
        nearest = torch.cdist(z, self.codebook.weight).argmin(-1)
        codes = self.codebook(nearest)
        quantized = z + (codes - z).detach()
        return quantized, F.mse_loss(quantized, z.detach())
""",
        after="",
    ),
)

_DETACHED, *_CUTS = declare(b").detach()", b".detach()", b".data")
_STRAIGHT_THROUGH = re.compile(rb"[-+] *\(\w+ - \w+\)\.detach\(\)|\(\w+ - \w+\)\.detach\(\) *\+")
_LOSS = re.compile(
    rb"\b\w+ - \w+\.(?:detach\(\)|data\b)|\w+\.(?:detach\(\)|data) - \w+\b|"
    rb"_loss\([^\n]*\.(?:detach\(\)|data\b)"
)


def _may_concern(data: bytes) -> bool:
    if not any(_STRAIGHT_THROUGH.search(line) for line in _lines(data, _DETACHED)):
        return False
    return any(_LOSS.search(line) for word in _CUTS for line in _lines(data, word))


def _lines(data: bytes, word: bytes) -> Iterator[bytes]:
    for at in places(data, word):
        end = data.find(b"\n", at)
        yield data[data.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(data)]


NEEDLES: tuple[Needle, ...] = (Look((_DETACHED,), _may_concern),)

_DISTANCES = re.compile(r"(mse|l1|smooth_l1|huber|cosine\w*)(_loss|_similarity)?$", re.IGNORECASE)
_MEASURES = frozenset({"pow", "square", "abs", "norm", "vector_norm"})


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for function in module.functions:
        text = module.source(function)
        if ".detach" not in text and ".data" not in text:
            continue
        for node in walk(function):
            pair = _compared(module, node)
            if pair is None or module.function(node) is not function:
                continue
            assert isinstance(node, ast.expr)
            quantized, target = pair
            codes = _codes_behind(module, function, quantized, target)
            if codes is None or gradient_unwanted(module, node):
                continue
            raw = f"`{codes}`" if codes != quantized.id else f"`{codes}` as it was before"
            message = (
                f"`{quantized.id}` has the value of the codes but the gradient of `{target.id}`: "
                f"this loss never moves the codebook. Compute it on {raw}."
            )
            yield module.finding("TRN303", message, node)


def _compared(module: ModuleFacts, node: ast.AST) -> tuple[ast.Name, ast.Name] | None:
    """``q`` and ``z`` of ``(q - z.detach()).pow(2)`` or ``F.mse_loss(q, z.detach())``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        if not _is_measured(module, node):
            return None
        sides = [node.left, node.right]
    elif isinstance(node, ast.Call) and len(node.args) >= 2:
        name = last_name(node.func)
        if not _DISTANCES.search(name):
            return None
        sides = node.args[:2]
    else:
        return None
    for one, other in (sides, sides[::-1]):
        target = detached(other)
        if isinstance(one, ast.Name) and isinstance(target, ast.Name):
            return one, target
    return None


def _is_measured(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether a difference becomes a distance: ``** 2``, ``.pow(2)``, ``torch.square(...)``."""
    parent = module.parent(node)
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.Pow) and parent.left is node
    if isinstance(parent, ast.Attribute):
        return parent.attr in _MEASURES
    return isinstance(parent, ast.Call) and getattr(parent.func, "attr", "") in _MEASURES


@dataclass(frozen=True)
class _Estimate:
    """``base + (codes - base).detach()`` in a function."""

    function: FunctionNode
    base: ast.Name
    codes: ast.Name
    at: ast.stmt


def _codes_behind(
    module: ModuleFacts, function: FunctionNode, quantized: ast.Name, target: ast.Name
) -> str | None:
    """The codes whose value ``quantized`` has, where its gradient is that of ``target`` alone.

    None where the codes are not learned, or where another loss moves them.
    """
    statement = module.statement(quantized)
    flow = module.flow(function)
    definition = flow.only_definition(quantized.id, statement)
    if definition is None or definition.value is None or definition.statement is None:
        return None
    estimate, base = _estimate(function, definition.value, definition.statement), target.id
    if estimate is None:
        if not isinstance(definition.value, ast.Call):
            return None
        estimate = _estimate_of(module, definition.value, definition.index)
        if estimate is None:
            return None
        argument = _argument(module, estimate, definition.value)
        if not isinstance(argument, ast.Name):
            return None
        base = argument.id
    elif definition.index is not None:
        return None
    else:
        base = estimate.base.id
    if base != target.id:
        return None
    here = flow.reaching(base, statement)
    if base != quantized.id and here != flow.reaching(base, definition.statement):
        return None
    learned = Gradients(module, estimate.function).value(estimate.codes, estimate.at).weights
    judged = [function]
    if estimate.function is not function and estimate.function.name == "forward":
        judged.append(estimate.function)  # of another module, which may hand out its codes
    for each in judged:
        gradients = Gradients(module, each)
        learned -= gradients.escaping().union(*(r.weights for r in gradients.returned()))
    return estimate.codes.id if learned else None


def _estimate(function: FunctionNode, node: ast.expr, at: ast.stmt) -> _Estimate | None:
    """``z + (codes - z).detach()``, in any order of its terms."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    sides = [(node.left, node.right)]
    if isinstance(node.op, ast.Add):
        sides.append((node.right, node.left))
    for base, stopped in sides:
        difference = detached(stopped)
        if not isinstance(difference, ast.BinOp) or not isinstance(difference.op, ast.Sub):
            continue
        codes, again = difference.left, difference.right
        if isinstance(node.op, ast.Sub):  # z - (z - codes).detach()
            codes, again = again, codes
        if not (isinstance(base, ast.Name) and isinstance(again, ast.Name)):
            continue
        if isinstance(codes, ast.Name) and base.id == again.id:
            return _Estimate(function, base, codes, at)
    return None


def _estimate_of(module: ModuleFacts, call: ast.Call, index: int | None) -> _Estimate | None:
    """The straight-through estimate that a function of this file returns."""
    called = _called(module, call)
    if called is None:
        return None
    returns = [
        node for node in walk(called) if isinstance(node, ast.Return) and node.value is not None
    ]
    if len(returns) != 1:
        return None
    (returned,) = returns
    value = returned.value
    if isinstance(value, ast.Tuple):
        if index is None or index >= len(value.elts):
            return None
        value = value.elts[index]
    elif index is not None:
        return None
    at: ast.stmt = returned
    if isinstance(value, ast.Name):
        definition = module.flow(called).only_definition(value.id, returned)
        if definition is None or definition.value is None or definition.statement is None:
            return None
        value, at = definition.value, definition.statement
    return _estimate(called, value, at) if value is not None else None


def _called(module: ModuleFacts, call: ast.Call) -> FunctionNode | None:
    """The function of this file that a call runs; ``forward`` where it calls a module."""
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        cls = module.names.self_class(call.func.value)
        if cls is None:
            return None
        own = method_of(cls, call.func.attr)
        if own is not None:
            return own
        bindings = module.names.attributes(cls).get(call.func.attr, [])
        if len(bindings) == 1 and isinstance(bindings[0].value, ast.Call):
            made = local_class(module, bindings[0].value.func)
            return method_of(made, "forward") if made is not None else None
        return None
    if isinstance(call.func, ast.Name):
        for statement in module.tree.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == call.func.id:
                return statement
    return None


def _argument(module: ModuleFacts, estimate: _Estimate, call: ast.Call) -> ast.expr | None:
    """What a call passes for the parameter that the estimate is based on, if it is one still."""
    flow = module.flow(estimate.function)
    definition = flow.only_definition(estimate.base.id, estimate.at)
    if definition is None or not definition.is_parameter:
        return None
    for keyword in call.keywords:
        if keyword.arg == estimate.base.id:
            return keyword.value
    names = positional(module, estimate.function)
    if estimate.base.id not in names:
        return None
    position = names.index(estimate.base.id)
    return call.args[position] if position < len(call.args) else None
