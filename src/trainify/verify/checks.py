"""The two checks of an op: its kernel against its equivalent, and the equivalent's gradient."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck

from ..catalog import CONSTANTS, RETURNED, FusedOp
from ..reference.double import exact_in_double
from .attached import with_closed_form
from .compare import TOLERANCES, add
from .equivalent import Equivalent, value_of
from .inputs import Draw, NoInputs, Values, arguments
from .kernels import Libraries, Unavailable, first_line
from .verdict import Comparison, Job

_SEEDS = range(6)
_GRADIENT_SEEDS = range(4)
_SAME_ROUNDING = 0.95
"""Share of equal bits in 16 bits that any order of summation keeps, but no other rounding."""

_ATTENTION = re.compile("attention|prefill|decode")
"""Long sums in 16 bits, of which few bits are the same."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def forward(job: Job, libraries: Libraries, cuda: bool) -> tuple[list[Comparison], str, bool]:
    """Comparisons by dtype; or why there are none, and whether the process is spoiled by that."""
    try:
        kernel = libraries.kernel(job.op, job.name)
        equivalent = Equivalent(job.op, libraries)
    except Unavailable as error:
        return [], str(error), False
    reason = ""
    for device in ("cuda", "cpu") if cuda else ("cpu",):
        found: list[Comparison] = []
        for dtype in _DTYPES:
            comparison = Comparison(str(dtype).removeprefix("torch."), device)
            try:
                refused = _compare(kernel, equivalent, dtype, comparison)
            except NoInputs as error:
                return [], str(error), False
            except _Spoiled as error:
                return found, str(error), True
            if comparison.cases:
                found.append(comparison)
            reason = reason or refused
        if found:
            return found, "", False
    if not cuda and any(word in reason for word in ("CUDA", "cuda", "CPU", "driver")):
        reason = "no CUDA device"
    return [], reason, False


class _Spoiled(Exception):
    """The device is of no more use to this process."""


class _Refused(Exception):
    """The kernel does not take such inputs."""


def _compare(
    kernel: Callable[..., Any], equivalent: Equivalent, dtype: torch.dtype, into: Comparison
) -> str:
    """Run all cases that the kernel takes; the first reason why it did not take one."""
    refused = ""
    tolerance = TOLERANCES[into.dtype]
    attention = _ATTENTION.search(equivalent.op.equivalent or "") is not None
    if into.device == "cuda" and attention:
        tolerance = max(tolerance, 2e-3)  # float32 products of tensor cores are TF32
    for strides, seed in itertools.product(("contiguous", "rows"), _SEEDS):
        try:
            got, expected = _case(kernel, equivalent, seed, dtype, into.device, strides)
        except _Refused as error:
            refused = refused or str(error)
            continue
        if strides == "contiguous":
            add(into, got, expected, tolerance)
            continue
        case = Comparison(into.dtype, into.device)
        add(case, got, expected, tolerance)
        if not case.wrong:
            into.cases += 1
        elif not into.wrong:  # to take rows one behind the other is the kernel's own mistake
            into.note = "not so for inputs with a row stride"
    if into.cases and into.equal < _SAME_ROUNDING and dtype != torch.float32 and not attention:
        into.note = into.note or "rounds otherwise"
    return refused


def _case(
    kernel: Callable[..., Any],
    equivalent: Equivalent,
    seed: int,
    dtype: torch.dtype,
    device: str,
    strides: str,
) -> tuple[list[Any], list[Any]]:
    """What the kernel gives and what the equivalent gives for the same random inputs."""

    def draw() -> Values:
        return arguments(equivalent, Draw(seed, dtype, device, large=True, strides=strides))

    with torch.no_grad():
        try:
            expected = equivalent(draw())
        except NoInputs:
            raise
        except Exception as error:
            raise NoInputs(f"the equivalent failed: {first_line(error)}") from None
        given = draw()  # the same again: either may write
        _add_buffers(equivalent, given, expected)
        try:
            got = _results(equivalent, given, _call(kernel, equivalent.op, given))
            if device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            if "CUDA error" in str(error):
                raise _Spoiled(first_line(error)) from None
            raise _Refused(first_line(error)) from None
    return got, expected


def _add_buffers(equivalent: Equivalent, given: Values, expected: list[Any]) -> None:
    """Outputs that the kernel only writes; what it leaves out stays NaN."""
    for name, value in zip(equivalent.outputs, expected, strict=False):
        if name != RETURNED and name not in given and value is not None:
            blank = float("nan") if value.is_floating_point() else 0
            given[name] = torch.full_like(value, blank, memory_format=torch.contiguous_format)


def _call(kernel: Callable[..., Any], op: FusedOp, given: Values) -> Any:
    """Call by position: libraries differ in what they call their arguments."""
    positional = [a for a in op.signature.arguments if not a.kwarg_only]
    # Ops of torch.ops often have no defaults where the library's functions over them do.
    while not isinstance(kernel, torch._ops.OpOverloadPacket) and positional:
        if positional[-1].name in given:
            break
        positional.pop()
    args = [given[a.name] if a.name in given else value_of(a.default or "None") for a in positional]
    names = [a.name for a in op.signature.arguments if a.kwarg_only and a.name in given]
    return kernel(*args, **{name: given[name] for name in names})


def _results(equivalent: Equivalent, given: Values, returned: Any) -> list[Any]:
    if equivalent.outputs:
        return [returned if name == RETURNED else given[name] for name in equivalent.outputs]
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def gradient(op: FusedOp, libraries: Libraries) -> tuple[str, str, str]:
    """What gradcheck in float64 says of the equivalent, and of the backward that is attached.

    The third is what it proved wrong.  Where the attached backward is the equivalent's own
    gradient, computed anew, it says so.
    """
    said, wrong = _checked(op, libraries, closed=False)
    if said != "ok":
        return said, "", wrong
    if with_closed_form(Equivalent(op, libraries)) is None:
        return said, "computed anew", ""
    attached, wrong = _checked(op, libraries, closed=True)
    return said, f"closed form, {attached}", wrong and f"the attached backward: {wrong}"


def _checked(op: FusedOp, libraries: Libraries, closed: bool) -> tuple[str, str]:
    try:
        equivalent = Equivalent(op, libraries)
        checked = sum(_gradcheck(equivalent, seed, closed) for seed in _GRADIENT_SEEDS)
    except (Unavailable, NoInputs) as error:
        return f"not checked: {error}", ""
    except GradcheckError as error:
        return "wrong", f"gradcheck: {first_line(error)}"
    except Exception as error:
        return f"not checked: the equivalent failed: {first_line(error)}", ""
    return ("ok" if checked else "nothing to differentiate"), ""


def _gradcheck(equivalent: Equivalent, seed: int, closed: bool) -> bool:
    """Check one case; whether there was something to differentiate in it."""
    run = (with_closed_form(equivalent) if closed else None) or equivalent
    draw = Draw(seed, torch.float64, strides="any")
    given = arguments(equivalent, draw, all_of_them=False)
    leaves = [
        name
        for name, value in given.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        if name in equivalent.reads and name not in CONSTANTS
    ]

    def function(*tensors: torch.Tensor) -> Any:
        results = run({**given, **dict(zip(leaves, tensors, strict=True))})
        return tuple(r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point())

    inputs = [given[name].detach().requires_grad_() for name in leaves]
    with exact_in_double(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a stride is 0, say
        # Each entry of the Jacobian once, then random projections of it over more shapes.
        return bool(inputs) and gradcheck(function, inputs, fast_mode=seed > 0)
