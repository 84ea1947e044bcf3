"""Whether ops compute what the equivalents compute that somebody has registered for them.

Where a kernel stays, its equivalent gives derivatives, and an audit tries these.  Where the
equivalent takes its place, the audit sees another model, whose gradients are those of what it now
computes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode

from ..catalog import RETURNED, FusedOp
from ..catalog.own import registered
from ..verify.equivalent import Equivalent, value_of
from ..verify.kernels import Libraries
from .audit.runs import Step
from .inplace import original_code
from .loads import names_in
from .reach import Reached
from .symbol import own_values, rebind

_TOLERANCE = 0.05
"""Relative, and far above what rounding or a quantized kernel does."""

_NEAR = 1e-4
"""Of the largest value: above what float32 rounds, and below another approximation."""

_SHARE = 0.25
"""Of the elements that may differ: a kernel leaves some of a buffer as it was, as padding."""


class Unequal(NamedTuple):
    """Calls of registered ops, by their places, whose results are not those of the equivalent."""

    other: list[str]
    """With others altogether."""
    near: list[str]
    """With others of which rounding is not the reason, as of another approximation."""


def unequal(step: Step, graph: Reached) -> Unequal:
    """The calls of a step that compute something else than what is registered for them."""
    rows = registered()
    ops = {name: row for row in reversed(rows) for name in row.names}
    ops = {name: row for name, row in ops.items() if _op_name(name) in graph.ops}
    kernels = [kernel for kernel in graph.kernels.values() if kernel.row in rows]
    if not ops and not kernels:
        return Unequal([], [])
    watched = _Watched(step)
    with ExitStack() as stack:
        for kernel in kernels:
            stack.enter_context(_bound(kernel.function, watched.around(kernel)))
        stack.enter_context(_Ops(watched, ops))
        try:
            step.value()
        except Exception:  # which an audit tells of
            return Unequal([], [])
    return Unequal(list(watched.found.values()), list(watched.near.values()))


def own_ops(graph: Reached) -> list[FusedOp]:
    """The ops registered with :func:`trainify.register` whose names functions of a model use."""
    functions = (original_code(m.function) for m in (*graph.methods, *graph.helpers))
    used = {name for code in functions for name in names_in(code)}
    rows = registered()
    return [row for row in rows if any(name.rpartition(".")[2] in used for name in row.names)]


def _op_name(name: str) -> str:
    return name.removeprefix("torch.ops.").replace(".", "::", 1)


@contextmanager
def _bound(kernel: Any, instead: Any) -> Iterator[None]:
    rebind(kernel, instead)
    try:
        yield
    finally:
        rebind(instead, kernel)


class _Ops(TorchFunctionMode):
    def __init__(self, watched: _Watched, ops: Mapping[str, FusedOp]) -> None:
        super().__init__()
        self._watched, self._ops = watched, ops

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = ""
        if isinstance(func, OpOverload):
            name = func._schema.name
        elif isinstance(func, OpOverloadPacket):
            name = func._qualified_op_name
        row = self._ops.get("torch.ops." + name.replace("::", ".")) if name else None
        if row is None:
            return func(*args, **kwargs)
        return self._watched.call(name, row, func, args, kwargs)


class _Watched:
    """Calls of kernels, each held against its equivalent."""

    def __init__(self, step: Step) -> None:
        self.found: dict[tuple[str, str], str] = {}
        self.near: dict[tuple[str, str], str] = {}
        self._places = step.places
        self._equivalents: dict[FusedOp, Equivalent] = {}

    def around(self, kernel: Any) -> Any:
        """A function to be called in place of a kernel."""
        function, row = kernel.function, kernel.row

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(row.names[0], row, function, args, kwargs)

        return call

    def call(self, name: str, row: FusedOp, kernel: Any, args: Any, kwargs: Any) -> Any:
        names = [a.name for a in row.signature.arguments if not a.kwarg_only]
        given = dict(zip(names, args, strict=False)) | kwargs
        with torch.no_grad(), torch._C.DisableTorchFunction():
            before = {
                name: value.detach().clone() if isinstance(value, Tensor) else value
                for name, value in given.items()
            }
        returned = kernel(*args, **kwargs)
        key = (name, str(self._places.of(sys._getframe(1))))
        if key not in self.found and len(args) <= len(names) and _is_known(row, given):
            with torch.no_grad(), torch._C.DisableTorchFunction():
                said, near = self._held(row, before, given, returned)
            where = f"{key[1]}: {name} computes"
            of = f"the equivalent that is registered for it, `{row.equivalent}`"
            if said:
                self.found[key] = f"{where} something else than {of}: {said}"
            elif near:
                self.near[key] = (
                    f"{where} nearly what {of}, does, and not the same: values differ by "
                    f"{near:.0e} of the largest one"
                )
        return returned

    def _held(
        self, row: FusedOp, before: Mapping[str, Any], given: Mapping[str, Any], returned: Any
    ) -> tuple[str, float]:
        """How the results of a call differ; empty where they do not, or nothing can be said.

        And by how much, where it is little: 0 where that may be rounding.
        """
        try:
            if row not in self._equivalents:
                self._equivalents[row] = Equivalent(row, Libraries())
            equivalent = self._equivalents[row]
            expected, again = equivalent(before), equivalent(before)
        except Exception:  # which an audit of what it is rewritten to tells of
            return "", 0.0
        near = 0.0
        got = _results(row, equivalent.outputs, given, returned)
        for one, two, result in zip(expected, again, got, strict=False):
            if not isinstance(one, Tensor) or not isinstance(result, Tensor):
                continue
            if one.shape != result.shape:
                return f"{tuple(result.shape)}, and the equivalent {tuple(one.shape)}", 0.0
            share = differing(result, one, _TOLERANCE)
            if share > _SHARE and not differing(
                two, one, _TOLERANCE
            ):  # else it draws random numbers
                return f"{share:.0%} of the values differ", 0.0
            if _are_precise([one, *before.values()]) and not _apart(two, one):
                near = max(near, _apart(result, one))
        return "", near if near > _NEAR else 0.0


def _are_precise(values: Iterable[Any]) -> bool:
    """Whether the tensors among values have as many bits as float32, or are integers."""
    types = {value.dtype for value in values if isinstance(value, Tensor)}
    return all(not t.is_floating_point or torch.finfo(t).eps <= 2**-23 for t in types)


def _apart(a: Tensor, b: Tensor) -> float:
    """The largest difference among elements that are alike, as a part of the largest value."""
    if not b.is_floating_point() or not b.numel():
        return 0.0
    apart = (a.double() - b.double()).abs().masked_fill(~_alike(a, b, _TOLERANCE), 0).max()
    apart /= b.double().abs().max()
    return apart.item() if apart.isfinite() else 0.0


def _is_known(row: FusedOp, given: Mapping[str, Any]) -> bool:
    """Whether the equivalent is for a call like this."""
    arguments = {a.name: a for a in row.signature.arguments}
    if not arguments.keys() >= given.keys():
        return False
    return all(
        given[name] is None or default is None or given[name] == value_of(default)
        for name in row.unsupported
        if name in given
        for default in [arguments[name].default]
    )


def _results(
    row: FusedOp, outputs: Sequence[str], given: Mapping[str, Any], returned: Any
) -> list[Any]:
    """What a call has given, in the order of the equivalent's results."""
    if not outputs:
        if returned is None:
            return [given.get(argument.name) for argument in row.signature.written]
        return own_values(returned, ())
    new = iter(own_values(returned, row.signature.handed_back))
    return [next(new, None) if name == RETURNED else given.get(name) for name in outputs]


def differing(a: Tensor, b: Tensor, tolerance: float) -> float:
    """The share of elements that are others, not only by rounding."""
    if not a.is_floating_point() or not a.numel():
        return 0.0
    return 1 - _alike(a, b, tolerance).double().mean().item()


def _alike(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    a, b = a.double(), b.double()
    size = torch.maximum(a.abs(), b.abs())
    return ((a - b).abs() <= tolerance * (size + 0.2 * b.abs().mean())) | (a == b) | b.isnan()
