"""The rules: where what values say and what autograd knows part.

A tensor *depends* on the parameters if it holds something else once they are nudged; autograd knows
it if it is *attached*: if it requires a gradient.  Where the first is so and the second ceases to
be, or stays as if nothing had happened, is a suspect.  Whether the loss depends on it is asked
later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .places import Place
from .report import Cause
from .trace import Call, Key, Sight, Trace, Within

MISSING, WRONG = "missing", "wrong"

BACK_TO_FLOAT = {"to", "type", "type_as", "float", "half", "bfloat16", "double", "mul", "div",
                  "matmul", "mm", "bmm", "dequantize", "__mul__", "__rmul__", "__truediv__",
                  "_to_copy", "sub", "add", "__sub__", "__add__", "__matmul__",
                  "_int_mm"}  # fmt: skip
"""Torch functions that compute with integers, and do not look something up by them."""

CASTS = {"long", "int", "to", "type", "_to_copy"}
"""Torch functions that drop what is behind the point."""

_LEAVES = {"tensor", "as_tensor", "asarray"}
"""Functions whose result is a leaf, whatever they are given."""

_OF_ZEROS = {"normal"}
"""Functions through which autograd passes zeros, though their result has another derivative."""

_LIKE_ANOTHER = {"to", "type_as", "view_as", "expand_as", "reshape_as"}
"""Those that take the values of what they are called on, and the type or the shape of another."""

_OF_A_SHAPE = ("rand_like", "randn_like", "zeros_like", "ones_like", "empty_like")
"""Endings of the names of functions that look at the shape and the type of what they are given."""


@dataclass
class Suspect:
    """A call at which a gradient may end or go wrong."""

    cause: Cause
    kind: str
    call: Call
    where: tuple[str, int]
    """Which tensor of the call: ``out``, ``written`` or ``in`` and its index, or ``host``.

    Or how many-th it is of what autograd has ``saved``, a ``weight`` if it is one, or of what the
    context of a function has ``kept``.
    """
    hidden: bool = False
    """Whether it happened before the call, out of torch's sight."""
    leaf: bool = False
    """Whether a history begins here that should go on."""
    steps: bool = False
    """Whether what is taken changes by steps: no gradient is right, if there is another way."""
    zeros: bool = False
    """Whether the gradient goes on, as zeros."""
    inputs: tuple[int, ...] | None = None
    """Which of the call's tensors it cuts off; all where None."""
    weak: bool = False
    """Whether it is one only of parameters that get no gradient anywhere."""
    place: Place = field(init=False)
    module: str = field(init=False)
    scope: Place | None = field(init=False)
    within: Within | None = field(init=False)
    detail: str = ""
    op: str | None = None
    parameters: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.place = self.call.place
        self.module = self.call.module
        self.scope = self.call.scope
        self.within = self.call.within
        self.op = None if self.hidden else self.call.name

    @property
    def line(self) -> int:
        """The line at which its scope's function gets to it; 0 where that is not known."""
        return self.within.line if self.within is not None and self._is_in_scope else 0

    @property
    def wrapped(self) -> Place | None:
        """Where a decorator has put its scope around a function; None for other scopes."""
        return self.within.wrapped if self.within is not None and self._is_in_scope else None

    @property
    def _is_in_scope(self) -> bool:
        return self.within is not None and self.within.scope == self.scope

    @property
    def site(self) -> Any:
        """Suspects of the same site are one cut."""
        return self.scope if self.cause is Cause.GRAD_MODE else self.place


class Comparison:
    """Two traces of the same step, the second with nudged parameters."""

    def __init__(self, base: Trace, nudged: Trace) -> None:
        self._base = base
        self._nudged = nudged
        self._same_bits = base.digests.read()
        self._other_bits = nudged.digests.read()
        self.depending: set[str] = set()
        """The modules in which something depends on parameters."""

    def suspects(self) -> Iterator[Suspect]:
        """All suspects, in the order of the calls."""
        for call in self._base.calls:
            other = self._nudged.by_key.get(call.key)
            if other is not None and self._alike(call, other):
                yield from self._hidden(call, other)
                yield from self._returned(call, other)
                yield from self._written(call, other)

    def _alike(self, call: Call, other: Call) -> bool:
        return len(call.ins) == len(other.ins) and len(call.outs) == len(other.outs)

    def _depends(self, sight: Sight, other: Sight) -> bool:
        return self._same_bits[sight.digest] != self._other_bits[other.digest]

    def _hidden(self, call: Call, other: Call) -> Iterator[Suspect]:
        """Written, or made, by code that torch does not see.

        Where gradients are off that is cut off anyway.
        """
        if not call.grad:
            return
        for i, (sight, twin) in enumerate(zip(call.ins, other.ins, strict=True)):
            if not sight.floating or not self._depends(sight, twin):
                continue
            left = sight.left
            if not sight.known:
                if not sight.attached:
                    yield Suspect(Cause.KERNEL, MISSING, call, ("in", i), hidden=True)
                elif sight.fresh:
                    yield Suspect(Cause.DETACH, MISSING, call, ("in", i), hidden=True, leaf=True)
            elif left is not None and self._changed((left, sight), (twin.left, twin)):
                if sight.attached:
                    if not sight.leaf and sight.history == left.history:
                        yield Suspect(Cause.IN_PLACE, WRONG, call, ("in", i), hidden=True)
                elif not left.attached and sight.version == left.version:
                    yield Suspect(Cause.KERNEL, MISSING, call, ("in", i), hidden=True)

    def _changed(self, ours: tuple[Sight, Sight], theirs: tuple[Sight | None, Sight]) -> bool:
        """Whether a tensor holds something else than before, in one of the runs.

        Where an earlier call of the model has left in a buffer what this one writes there, nothing
        changes unless the parameters do.
        """
        before, after = theirs
        return self._same_bits[ours[0].digest] != self._same_bits[ours[1].digest] or (
            before is not None and self._other_bits[before.digest] != self._other_bits[after.digest]
        )

    def _returned(self, call: Call, other: Call) -> Iterator[Suspect]:
        depending = [self._depends(s, t) for s, t in zip(call.ins, other.ins, strict=True)]
        pairs = list(zip(depending, call.ins, strict=True))
        name = call.name.rpartition(".")[2]
        attached = any(d and s.attached for d, s in pairs[: 1 if name in _LIKE_ANOTHER else None])
        if call.leaves and any(d and s.floating for d, s in zip(depending, call.ins, strict=True)):
            yield Suspect(Cause.HOST, MISSING, call, ("host", 0))
        if call.name.endswith(".detach_") and attached:
            yield Suspect(Cause.DETACH, MISSING, call, ("in", 0))
        for j, (out, twin) in enumerate(zip(call.outs, other.outs, strict=True)):
            if not self._depends(out, twin):
                continue
            self.depending.add(call.module)
            if out.fresh and attached and name in _LEAVES:
                yield Suspect(Cause.DETACH, MISSING, call, ("out", j), leaf=True)
            zeros = name in _OF_ZEROS and call.within is None  # which would be the first to say
            if out.attached and attached and zeros and out.floating:
                yield Suspect(Cause.DETACH, MISSING, call, ("out", j), zeros=True)
            if out.attached or call.name.endswith(_OF_A_SHAPE):
                continue
            if out.whole:
                if attached and name in CASTS and self._counts(call, out):
                    yield Suspect(Cause.QUANTIZATION, MISSING, call, ("out", j), steps=True)
            elif out.narrow:
                if attached and self._comes_back(call):
                    kind = MISSING if "quantize" in call.name else WRONG
                    yield Suspect(Cause.QUANTIZATION, kind, call, ("out", j))
            elif out.floating and attached:
                yield Suspect(_cause(call), MISSING, call, ("out", j))
            elif out.floating and not any(depending):
                own = isinstance(call.function, type)  # which ran what it was not given
                cause = Cause.BACKWARD if own else Cause.OPAQUE
                yield Suspect(cause, MISSING, call, ("out", j))

    def _comes_back(self, call: Call) -> bool:
        """Whether integers are computed with, after this call, and give floating-point numbers."""
        calls = self._base.calls
        for later in calls[calls.index(call) + 1 :]:
            if later.opaque or later.name.rpartition(".")[2] in BACK_TO_FLOAT:
                other = self._nudged.by_key.get(later.key)
                if other is not None and self._alike(later, other):
                    taken = zip(later.ins, other.ins, strict=True)
                    if any(s.narrow and self._depends(s, t) for s, t in taken):
                        if any(out.floating for out in later.outs) or later.written:
                            return True
        return False

    def _counts(self, call: Call, out: Sight) -> bool:
        """Whether numbers are computed with an integer itself, not with what is looked up by it."""
        calls = self._base.calls
        same = {self._same_bits[out.digest]}
        for later in calls[calls.index(call) + 1 :]:
            if later.name.rpartition(".")[2] in BACK_TO_FLOAT:
                if any(s.whole and self._same_bits[s.digest] in same for s in later.ins):
                    if any(each.floating for each in later.outs):
                        return True
                    same.update(self._same_bits[each.digest] for each in later.outs)
        return False

    def _written(self, call: Call, other: Call) -> Iterator[Suspect]:
        depending = [self._depends(s, t) for s, t in zip(call.ins, other.ins, strict=True)]
        for i, (after, same) in call.written.items():
            twin = other.written.get(i)
            if twin is None or not after.floating or not self._depends(after, twin[0]):
                continue
            if not self._changed((call.ins[i], after), (other.ins[i], twin[0])):
                continue
            others = [
                k for k, (d, s) in enumerate(zip(depending, call.ins, strict=True))
                if d and s.attached and k != i
            ]  # fmt: skip
            if after.attached:
                if same and not after.leaf:
                    cause = Cause.IN_PLACE if call.grad else Cause.GRAD_MODE
                    yield Suspect(cause, WRONG, call, ("written", i))
                elif after.leaf and others:  # a weight, which learns by itself
                    inputs = tuple(others)
                    yield Suspect(
                        _cause(call), MISSING, call, ("written", i), inputs=inputs, weak=True
                    )
            elif others:
                yield Suspect(_cause(call), MISSING, call, ("written", i))
            elif not any(depending):
                yield Suspect(Cause.OPAQUE, MISSING, call, ("written", i))


def _cause(call: Call) -> Cause:
    if not call.grad:
        return Cause.GRAD_MODE
    if call.refused:
        return Cause.IN_PLACE
    if isinstance(call.function, type):
        return Cause.BACKWARD
    if call.opaque:
        return Cause.KERNEL
    name = call.name.rpartition(".")[2]
    if name == "data":
        return Cause.DATA
    return Cause.QUANTIZATION if "quantize" in name else Cause.DETACH


def keys(suspects: list[Suspect]) -> dict[Key, list[Suspect]]:
    """Suspects by the call that they are at."""
    found: dict[Key, list[Suspect]] = {}
    for suspect in suspects:
        found.setdefault(suspect.call.key, []).append(suspect)
    return found


def by_site(suspects: Sequence[Suspect]) -> list[list[Suspect]]:
    """Suspects that are one cut, together."""
    sites: dict[Any, list[Suspect]] = {}
    for each in suspects:
        sites.setdefault(each.site, []).append(each)
    return list(sites.values())
