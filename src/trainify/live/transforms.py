"""Kernels under the transforms of :mod:`torch.func`, and in forward mode.

A kernel computes on what is in memory, and what a transform hands around is not.  So the kernel is
one function to all of them: it runs below them, and the derivatives that they ask for are those of
its equivalent, found by the same transforms.  Under ``vmap`` it runs once for each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map

from ..catalog import RETURNED
from ..reference.double import exact_in_double
from ..verify.equivalent import Equivalent
from .derivative import places_of

TRANSFORMED = "FuncTorchDynamicLayerFrontMode"
"""The key of the dispatcher for calls under a transform."""


class Kernel(Protocol):
    """An op whose arguments are ``names``, and that gives what ``results`` name."""

    name: str
    equivalent: Equivalent
    names: Sequence[str]
    results: Sequence[str]

    def fresh(self, args: Sequence[Any]) -> Sequence[Tensor | None]:
        """The results, of a kernel that works on copies of what it writes into."""

    def check(self, args: Sequence[Any]) -> None:
        """Raise where no derivative is known for such arguments."""


def is_transformed(values: Iterable[Any]) -> bool:
    """Whether a transform, or forward mode, goes through a call with these arguments."""
    if torch._C._are_functorch_transforms_active():
        return True
    return forward_ad._current_level >= 0 and any(
        isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None
        for value in values
    )


class _Like(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype


class Transformed(torch.autograd.Function):
    """A kernel as a function that every transform goes through."""

    @staticmethod
    def forward(kernel: Kernel, *args: Any) -> Any:
        return tuple(kernel.fresh(args))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.kernel, *args = inputs
        ctx.refusal = _refusal(ctx.kernel, args)
        reads = ctx.kernel.equivalent.reads
        ctx.others = [None if isinstance(value, Tensor) else value for value in args]
        read = {
            i: value
            for i, value in enumerate(args)
            if isinstance(value, Tensor) and ctx.kernel.names[i] in reads
        }
        ctx.read = tuple(read)
        ctx.save_for_backward(*read.values())
        ctx.save_for_forward(*read.values())
        ctx.like = [
            _Like(result.shape, result.dtype)
            if isinstance(result, Tensor) and result.is_floating_point()
            else None
            for result in output
        ]
        ctx.mark_non_differentiable(
            *(r for r in output if isinstance(r, Tensor) and not r.is_floating_point())
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        wanted = [i for i in ctx.read if ctx.needs_input_grad[i + 1]]
        differentiable = [g for g, like in zip(grads, ctx.like, strict=True) if like is not None]
        function, values = _plain(ctx, ctx.saved_tensors, wanted)
        with _exact(differentiable):
            pullback = torch.func.vjp(function, *values)[1]
            found = dict(zip(wanted, pullback(tuple(differentiable)), strict=True))
        return (None, *(found.get(i) for i in range(len(ctx.others))))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        moved = [i for i in ctx.read if tangents[i + 1] is not None]
        if not moved:
            return (None,) * len(ctx.like)
        _refuse_linearize(ctx.kernel.name)
        saved = [forward_ad.unpack_dual(value).primal for value in ctx.saved_tensors]
        function, values = _plain(ctx, saved, moved)
        along = [tangents[i + 1] for i in moved]
        with _exact(along), forward_ad._set_fwd_grad_enabled(True):
            # What pulls back is linear, and its own pullback pushes forward.  Forward mode is one
            # of a kind in torch: it does not nest in that which asks.
            results, pullback, *_ = torch.func.vjp(function, *values)
            found = torch.func.vjp(pullback, results)[1](tuple(along))[0]
        rest = iter(found)
        return tuple(None if like is None else next(rest) for like in ctx.like)

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> Any:
        def sample(i: int) -> Any:
            one = tree_map(lambda v, dim: v if dim is None else v.select(dim, i), args, dims)
            return Transformed.apply(*one)  # type: ignore[no-untyped-call]

        each = [sample(i) for i in range(info.batch_size)]
        results = [None if r[0] is None else torch.stack(r) for r in zip(*each, strict=True)]
        return tuple(results), tuple(None if result is None else 0 for result in results)


def _refusal(kernel: Kernel, args: Sequence[Any]) -> NotImplementedError | None:
    """What is to be raised once a derivative is asked for: only now are all arguments there."""
    try:
        kernel.check(args)
    except NotImplementedError as error:
        return error
    return None


def _plain(
    ctx: Any, saved: Sequence[Tensor], of: Sequence[int]
) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """The equivalent as a function of some of the arguments, and their values."""
    kernel: Kernel = ctx.kernel
    args = list(ctx.others)
    for i, value in zip(ctx.read, saved, strict=True):
        args[i] = value
    if ctx.refusal is not None:
        raise ctx.refusal

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(kernel.names, args, strict=True))
        given.update((kernel.names[i], value) for i, value in zip(of, values, strict=True))
        found = kernel.equivalent(given)
        places = places_of(kernel.results, kernel.equivalent.outputs or [RETURNED] * len(found))
        results = []
        for place, like in zip(places, ctx.like, strict=True):
            if like is not None:
                value = None if place is None else found[place]
                if value is None:  # what the equivalent says nothing of has no derivative
                    value = values[0].new_zeros(like.shape)
                results.append(value.reshape(like.shape).to(like.dtype))
        return tuple(results)

    return function, [args[i] for i in of]


def _refuse_linearize(name: str) -> None:
    """Raise where it traces: it folds constants, and knows nothing of what writes into them."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode  # slow to import

    if get_proxy_mode() is not None and not torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            f"{name}: torch.func.linearize does not go through a kernel; take torch.func.jvp, or "
            'have the calls rewritten: trainify.trainify(model, strategy="replace")'
        )


def _exact(values: Iterable[Tensor]) -> Any:
    double = any(value.dtype == torch.float64 for value in values)
    return exact_in_double(codes=True) if double else nullcontext()
