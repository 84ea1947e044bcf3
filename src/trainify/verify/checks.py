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
from .compare import DTYPES, TOLERANCES, add
from .equivalent import Equivalent, value_of
from .inputs import arguments
from .kernels import Libraries, Unavailable, first_line
from .samples import Draw, NoInputs, Values
from .verdict import Comparison, Job

_SEEDS = range(6)
_GRADIENT_SEEDS = range(4)
_FEW = 200
"""Up to so many numbers each entry of a Jacobian is checked."""
_ROUNDING = 1e-4
"""What float32 may do to a gradient, over the largest entry."""
_CODED = 0.5
"""And what may be done to it by values of 8 bits."""
_SAME_ROUNDING = 0.95
"""Share of equal bits in 16 bits that any order of summation keeps, but no other rounding."""

_ATTENTION = re.compile("attention|prefill|decode")
"""Long sums in 16 bits, of which few bits are the same."""

_LAYERS = re.compile("encoder_layer")
"""Several operations one after the other, each of which rounds."""


def forward(job: Job, libraries: Libraries, cuda: bool) -> tuple[list[Comparison], str, bool]:
    """Comparisons by dtype; or why there are none, and whether the process is spoiled by that."""
    op = _op(job)
    try:
        kernel = libraries.kernel(op, job.name)
        equivalent = Equivalent(op, libraries)
    except Unavailable as error:
        return [], str(error), False
    reason = ""
    for device in ("cuda", "cpu") if cuda else ("cpu",):
        found: list[Comparison] = []
        for dtype in DTYPES:
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


def _op(job: Job) -> FusedOp:
    assert isinstance(job.op, FusedOp)
    return job.op


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
    if _LAYERS.search(equivalent.op.equivalent or ""):
        tolerance *= 4
    attention = _ATTENTION.search(equivalent.op.equivalent or "") is not None
    if into.device == "cuda" and attention:
        tolerance = max(tolerance, 2e-3)  # float32 products of tensor cores are TF32
    for strides, seed in itertools.product(("contiguous", "rows"), _SEEDS):
        try:
            got, expected, unsaid = _case(kernel, equivalent, seed, dtype, into.device, strides)
        except _Refused as error:
            refused = refused or str(error)
            continue
        if strides == "contiguous":
            add(into, got, expected, tolerance)
            if unsaid:  # which comes first: what else differs may follow from it
                names = ", ".join(unsaid)
                into.wrong = f"it writes into {names}, which its schema does not mark (a!)"
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
) -> tuple[list[Any], list[Any], list[str]]:
    """What the kernel gives and what the equivalent gives for the same random inputs.

    And the arguments that the kernel writes into although its schema does not say so.
    """

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
        unmarked = given.keys() - {a.name for a in equivalent.op.signature.written}
        before = {name: _bits(given[name]) for name in given if name in unmarked}
        try:
            got = _results(equivalent, given, _call(kernel, equivalent.op, given))
            if device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            if "CUDA error" in str(error):
                raise _Spoiled(first_line(error)) from None
            raise _Refused(first_line(error)) from None
        unsaid = [name for name, bits in before.items() if not _equal(bits, _bits(given[name]))]
    return got, expected, unsaid


def _bits(value: Any) -> list[torch.Tensor]:
    """Copies of the bytes of a tensor, or of those in a list; none of other values."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [
        each.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
        for each in values
        if isinstance(each, torch.Tensor)
    ]


def _equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, ours, theirs))


def _add_buffers(equivalent: Equivalent, given: Values, expected: list[Any]) -> None:
    """Outputs that the kernel only writes; what it leaves out stays NaN."""
    for name, value in zip(equivalent.outputs, expected, strict=False):
        read = name in given and name not in equivalent.measured
        if name != RETURNED and not read and value is not None:
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


def gradient(job: Job, libraries: Libraries) -> tuple[str, str, str]:
    """What gradcheck in float64 says of the equivalent, and of the backward that is attached.

    The third is what it proved wrong.  Where the attached backward is the equivalent's own
    gradient, computed anew, it says so.
    """
    op = _op(job)
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
        wrong = next(filter(None, (_rounded(equivalent, s, closed) for s in _GRADIENT_SEEDS)), "")
    except (Unavailable, NoInputs) as error:
        return f"not checked: {error}", ""
    except GradcheckError as error:
        return "wrong", f"gradcheck: {first_line(error)}"
    except Exception as error:
        return f"not checked: the equivalent failed: {first_line(error)}", ""
    if wrong:
        return "wrong", wrong
    return ("ok" if checked else "nothing to differentiate"), ""


class _Case:
    """The equivalent as a function of the tensors that can have a gradient, and those tensors.

    ``leaves`` has the name of each argument, and its place where the argument is a list.
    """

    def __init__(self, equivalent: Equivalent, seed: int, dtype: torch.dtype, closed: bool) -> None:
        self._run = (with_closed_form(equivalent) if closed else None) or equivalent
        self._given = arguments(equivalent, Draw(seed, dtype), all_of_them=False)
        tensors = {
            (name, i): value
            for name, given in self._given.items()
            if name in equivalent.reads and name not in CONSTANTS
            for i, value in enumerate(given if isinstance(given, list) else [given])
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        }
        self.leaves = list(tensors)
        self.inputs = [t.detach().requires_grad_() for t in tensors.values()]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = {n: [*v] if isinstance(v, list) else v for n, v in self._given.items()}
        for (name, i), tensor in zip(self.leaves, tensors, strict=True):
            if isinstance(given[name], list):
                given[name][i] = tensor
            else:
                given[name] = tensor
        results = self._run(given)
        return tuple(r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point())

    def gradients(self) -> list[torch.Tensor | None]:
        """For weights of the results that depend on nothing but their number."""
        results = [r for r in self(*self.inputs) if r.requires_grad]
        weights = [torch.linspace(-1, 2, r.numel()).view(r.shape).to(r.dtype) for r in results]
        if not results:
            return [None] * len(self.inputs)
        return list(torch.autograd.grad(results, self.inputs, weights, allow_unused=True))


def _gradcheck(equivalent: Equivalent, seed: int, closed: bool) -> bool:
    """Check one case; whether there was something to differentiate in it."""
    case = _Case(equivalent, seed, torch.float64, closed)
    few = sum(x.numel() for x in case.inputs) <= _FEW
    with exact_in_double(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a stride is 0, say
        # Each entry of the Jacobian once, then random projections of it over more shapes.
        return bool(case.inputs) and gradcheck(case, case.inputs, fast_mode=seed > 0 or not few)


def _rounded(equivalent: Equivalent, seed: int, closed: bool) -> str:
    """What the casts and codes that gradcheck leaves out do to a gradient, beyond rounding it.

    A cast to integers takes the gradient, and only here does it show.  Codes that let it through
    (straight-through) take part in it as what they were rounded to.
    """
    case = _Case(equivalent, seed, torch.float32, closed)
    got = case.gradients()
    with exact_in_double() as exact:
        want = _Case(equivalent, seed, torch.float64, closed=False).gradients()
    allowed = _CODED if exact.coded else _ROUNDING
    for (name, _), g, w in zip(case.leaves, got, want, strict=True):
        if g is None and w is not None:
            return f"{name} gets no gradient in float32"
        if g is not None and w is not None and g.numel():
            largest, off = float(w.abs().max()), float((g.double() - w).abs().max())
            if not off <= allowed * max(largest, 1e-2):
                return f"in float32 the gradient of {name} is off by {off:.1e}, of {largest:.1e}"
    return ""
