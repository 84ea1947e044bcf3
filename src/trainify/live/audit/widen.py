"""A model in more bits than it has, so that small differences are not lost in rounding."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .parts import has_parts, of_precision
from .runs import Step
from .tensors import memory_of, span_of

_CASTS = {
    torch.float32: torch.Tensor.float,
    torch.float64: torch.Tensor.double,
}
_SMALLER = {
    torch.float32: (torch.float16, torch.bfloat16, torch.complex32),
    torch.float64: (torch.float16, torch.bfloat16, torch.float32, torch.complex32, torch.complex64),
}
_GROUPED = {
    found
    for owner in (torch, torch.nn.functional)
    for name in ("grouped_mm", "_grouped_mm")
    if (found := getattr(owner, name, None)) is not None
}


def widened(step: Step, dtype: torch.dtype) -> Step:
    """The same step on a copy of the model whose parameters, buffers and inputs are of ``dtype``.

    Raises:
        Exception: The model or its inputs cannot be copied.
    """
    step.begin()
    made: dict[int, Tensor] = {  # so that no copy of fewer bits is made first
        id(parameter): nn.Parameter(wide(parameter.detach(), dtype), parameter.requires_grad)
        for parameter in step.model.parameters()
        if type(parameter) is nn.Parameter and parameter.dtype in _SMALLER[dtype]
    }
    made.update(_sharing(step, made, dtype))
    model, inputs, keywords = copy.deepcopy((step.model, step.inputs, step.keywords), made)

    inputs, keywords = tree_map(partial(wide, dtype=dtype), (inputs, keywords))
    parameters = list(model._apply(partial(wide, dtype=dtype)).parameters())
    copies = {
        id(wide): values
        for wide, original in zip(parameters, step.model.parameters(), strict=True)
        if original.dtype in _SMALLER[dtype]
        and (values := step.state.copy_of(original)) is not None
    }
    other = Step(model, inputs, keywords, step.loss, copies)
    other.ignored = step.ignored
    other.hooks = step.hooks
    other.state.trusting = step.state.trusting
    other.pinned.used = step.pinned.used
    return other


def _sharing(step: Step, made: Mapping[int, Tensor], dtype: torch.dtype) -> dict[int, Tensor]:
    """The copies of what lies in a parameter's memory, and of these parameters.

    ``self.head = self.emb.weight.data`` is another tensor, and changes with the parameter.  A copy
    that lay by itself would not.
    """
    owners = {
        memory: parameter
        for parameter in step.model.parameters()
        if type(parameter) is nn.Parameter and parameter.is_contiguous()
        if (memory := memory_of(parameter))
    }
    found: dict[int, Tensor] = {}
    for tensor in step.state.tensors:
        if type(tensor) is not Tensor or tensor.grad_fn is not None:
            continue
        owner = owners.get(memory_of(tensor))
        if owner is None or owner.dtype is not tensor.dtype or not _is_inside(tensor, owner):
            continue
        copied = made.get(id(owner), found.get(id(owner)))
        if copied is None:
            copied = nn.Parameter(wide(owner.detach().clone(), dtype), owner.requires_grad)
            found[id(owner)] = copied
        start = tensor.storage_offset() - owner.storage_offset()
        found[id(tensor)] = copied.detach().as_strided(tensor.size(), tensor.stride(), start)
    return found


def _is_inside(tensor: Tensor, owner: Tensor) -> bool:
    first, last = span_of(tensor)
    begin, end = span_of(owner)
    return begin <= first and last <= end


def wide(value: Any, dtype: torch.dtype) -> Any:
    """A tensor with the bits of ``dtype``, where it holds what has a derivative."""
    if isinstance(value, Tensor) and has_parts(value):
        return value.to(of_precision(value.dtype, dtype))
    return value


class Widening(TorchFunctionMode):
    """Whoever asks for a smaller floating-point type gets this one: models round on purpose.

    That is also what ``torch.autocast`` is for, so it casts nothing.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._smaller = _SMALLER[dtype]
        self._casts = {torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.float}
        self._casts.discard(_CASTS[dtype])

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self._casts:
            func = _CASTS[self._dtype]
        elif func in _GROUPED and len(args) == 2:
            found = _grouped(*args, **(kwargs or {}))
            if found is not None:
                return found
        if torch.dtype in map(type, args):
            args = tuple(map(self._wide, args))
        if not kwargs:
            return func(*args)
        return func(*args, **{name: self._wide(each) for name, each in kwargs.items()})

    def _wide(self, value: Any) -> Any:
        if isinstance(value, torch.dtype) and value in self._smaller:
            return of_precision(value, self._dtype)
        return value

    def __enter__(self) -> Widening:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)
        self._around = ExitStack()
        self._around.enter_context(_without_autocast())
        self._around.enter_context(_threads_fail_in_silence())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._around.close()
        torch.set_default_dtype(self._default)


@contextmanager
def _without_autocast() -> Iterator[None]:
    """``torch.autocast`` is off, and off where it would be switched on."""
    cls: Any = torch.autocast
    enter, leave = cls.__enter__, cls.__exit__

    def __enter__(self: Any) -> Any:
        self._asked = self._enabled
        self._enabled = False
        return enter(self)

    def __exit__(self: Any, *exception: Any) -> Any:
        self._enabled = self._asked
        return leave(self, *exception)

    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        cls.__enter__, cls.__exit__ = __enter__, __exit__
        try:
            yield
        finally:
            cls.__enter__, cls.__exit__ = enter, leave


@contextmanager
def _threads_fail_in_silence() -> Iterator[None]:
    """A mode is that of one thread: others of the model's compute in its own type, or raise.

    The step is given up then, for want of what they should have computed.
    """
    before, threading.excepthook = threading.excepthook, lambda _: None
    try:
        yield
    finally:
        threading.excepthook = before


def _grouped(
    rows: Tensor, experts: Tensor, *, offs: Tensor | None = None, bias: Any = None, **_: Any
) -> Tensor | None:
    """``grouped_mm``, whose kernel refuses float64, of rows (T, K) and matrices (E, K, N).

    ``offs`` (E) says where each expert's rows end.
    """
    if rows.dim() != 2 or experts.dim() != 3 or offs is None or bias is not None:
        return None
    parts, start = [], 0
    for matrix, end in zip(experts, offs.tolist(), strict=True):
        parts.append(rows[start:end] @ matrix)
        start = end
    return torch.cat([*parts, rows.new_zeros(len(rows) - start, experts.shape[-1])])
