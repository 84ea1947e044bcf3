"""The gradients of an equivalent by a formula, where the function that it calls has one."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..catalog import CONSTANTS
from ..reference.backward import CLOSED_FORMS
from ..reference.double import exact_in_double
from .equivalent import Equivalent, reference_functions, value_of


class Closed:
    """What :mod:`trainify.reference.backward` has for an equivalent that is one call over names.

    ``gives`` are the arguments of the op that it finds gradients for, ``reads`` those that it
    reads; ``results`` says at which places are the results that it reads.
    """

    def __init__(self, equivalent: Equivalent, call: ast.Call, name: str) -> None:
        self.function = reference_functions()[name]
        self._gradient = reference_functions()[CLOSED_FORMS[name]]
        signature = inspect.signature(self.function)
        self._nodes: dict[str, ast.expr] = signature.bind(
            *call.args, **{str(k.arg): k.value for k in call.keywords}
        ).arguments
        self._defaults = {name: p.default for name, p in signature.parameters.items()}
        self._of_op = {
            a.name: None if a.default is None else value_of(a.default)
            for a in equivalent.op.signature.arguments
        }
        taken = inspect.signature(self._gradient).parameters
        self._taken = list(taken)
        # What only another function of this gradient has.
        self._beside = {n: p.default for n, p in taken.items() if n not in self._defaults}
        self.grads = [name for name in self._taken if name.startswith("grad")]
        named = {grad.partition("_")[2] or "out": i for i, grad in enumerate(self.grads)}
        self._results = {
            name: i
            for name, i in named.items()
            if name in self._taken and name not in self._defaults
        }
        self._trained = [
            name
            for name, p in signature.parameters.items()
            if "torch.Tensor" in str(p.annotation) and name not in CONSTANTS
        ]
        self.results = frozenset(self._results.values())
        self.reads = frozenset(self._names(self._taken))
        self.gives = frozenset(self._names(self._trained))

    @staticmethod
    def of(equivalent: Equivalent) -> Closed | None:
        """The one for an equivalent; None where its gradients are those that autograd finds."""
        call = equivalent.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        nodes = [*call.args, *(k.value for k in call.keywords)]
        names = [node.id for node in nodes if isinstance(node, ast.Name)]
        constants = [node for node in nodes if isinstance(node, ast.Constant)]
        if call.func.id not in CLOSED_FORMS or len(names) + len(constants) < len(nodes):
            return None
        if len(set(names)) < len(names):
            return None
        closed = Closed(equivalent, call, call.func.id)
        return closed if closed._is_whole() else None

    def _is_whole(self) -> bool:
        """Whether the formula takes all that the function is called with."""
        left = {n for n, default in self._defaults.items() if default is None} - set(self._taken)
        return not left & self._nodes.keys()

    def arguments(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """What the function is called with, by position, where the op is called with ``given``."""
        return tuple(self._value(name, given) for name in self._defaults)

    def __call__(
        self, given: Mapping[str, Any], results: Mapping[int, Any], grads: Sequence[Tensor | None]
    ) -> dict[str, Tensor | None]:
        """The gradients by argument of the op, of ``grads`` for each of the results in order.

        They can be differentiated again.  Where the gradients are float64, nothing is rounded.
        """
        values = dict(zip(self.grads, grads, strict=True))
        values |= {name: results[i] for name, i in self._results.items()}
        values |= {name: self._value(name, given) for name in self._taken if name not in values}
        exact = any(grad is not None and grad.dtype == torch.float64 for grad in grads)
        with exact_in_double() if exact else nullcontext():
            found = self._gradient(**values)
        found = found if isinstance(found, tuple) else (found,)
        pairs = zip((self._nodes.get(name) for name in self._trained), found, strict=True)
        return {node.id: gradient for node, gradient in pairs if isinstance(node, ast.Name)}

    def _names(self, parameters: Sequence[str]) -> list[str]:
        nodes = [self._nodes.get(name) for name in parameters]
        return [node.id for node in nodes if isinstance(node, ast.Name)]

    def _value(self, parameter: str, given: Mapping[str, Any]) -> Any:
        node = self._nodes.get(parameter)
        if isinstance(node, ast.Name):
            return given[node.id] if node.id in given else self._of_op[node.id]
        if isinstance(node, ast.Constant):
            return node.value
        return {**self._beside, **self._defaults}[parameter]
