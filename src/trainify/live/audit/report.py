"""What an audit found, as plain data: no tensor and no module in it, so it can be kept and sent."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


class Cause(str, enum.Enum):
    """What takes the gradient, or bends it."""

    KERNEL = "kernel without backward"
    """A call that records nothing: a registered op, a pybind function, a Triton launch."""
    GRAD_MODE = "grad mode"
    """Computed under ``no_grad``, ``inference_mode`` or ``set_grad_enabled(False)``."""
    DETACH = "detach"
    DATA = "data"
    """``.data``."""
    HOST = "host round trip"
    """Through NumPy, a list, ``.item()`` or ``float()``."""
    IN_PLACE = "in-place write"
    """Written by something that autograd does not see: the tensor keeps the history it had."""
    SAVED = "saved tensor overwritten"
    """What backward needs was changed after the forward had saved it."""
    BACKWARD = "backward"
    """A backward that returns nothing for an input, computes something else, or raises."""
    QUANTIZATION = "quantization"
    """Rounded to integers: what gradient there is flows through the scale alone."""
    KEPT = "kept graph"
    """Kept for the next step with its history, so that the backward of that one raises."""
    OPAQUE = "opaque code"
    """Values come back into torch from code that torch does not see."""


class Flow(str, enum.Enum):
    """What the gradient does in a module."""

    FLOWS = "flows"
    ENDS = "ends"
    """A gradient arrives, and a cut lies in the module itself."""
    LIES = "lies"
    """A gradient passes through, and is another one than it should be."""
    ZEROS = "zeros"
    """A gradient arrives at its parameters that is zero in every element."""
    NONE = "none"
    """No gradient arrives, though the loss depends on the module: it has ended before."""
    UNUSED = "unused"
    """The loss does not depend on it, or nothing in it can learn."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One place where a gradient ends or goes wrong; a place counts once, however often it runs.

    ``op`` is the name of what is called there: ``"_C::rms_norm"`` for an op of the dispatcher, else
    a qualified name, None where it is not known.  ``path`` and ``line`` (from 1) are those of the
    innermost code outside of torch, ``function`` is its name.  ``modules`` are the paths, in the
    model, of the modules that ran there.  ``scope`` is the ``file:line`` that switched gradients
    off, ``lines`` are those, in the function that did so, through which the gradient would go,
    ``wrapped`` the ``file:line`` of decorators that put it around functions;
    ``branch`` says that nothing comes into it from outside that has a gradient, ``target`` that
    what learns meets what it stops with no layer behind.  ``parameters`` are the names of those
    whose gradient is cut off or bent here.  ``derived`` are the attributes, with the paths of
    their modules, of what was computed from weights before the step, and is read here.
    """

    cause: Cause
    kind: str
    """``"missing"``: the gradient ends here.  ``"wrong"``: backward goes on with a wrong one."""
    op: str | None
    path: str
    line: int
    function: str
    message: str
    modules: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    scope: str | None = None
    lines: tuple[int, ...] = ()
    wrapped: tuple[str, ...] = ()
    branch: bool = False
    target: bool = False
    derived: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """``path:line``, which terminals and editors turn into a link."""
        return f"{self.path}:{self.line}"

    @property
    def scope_place(self) -> tuple[str, int] | None:
        """The file and the line of :attr:`scope`."""
        return _file_and_line(self.scope) if self.scope is not None else None

    @property
    def wrapped_places(self) -> list[tuple[str, int]]:
        """The files and the lines of :attr:`wrapped`."""
        return list(map(_file_and_line, self.wrapped))

    @property
    def module(self) -> str:
        """All of :attr:`modules` in short: ``"layers.*.norm"``."""
        return ", ".join(patterns(self.modules))

    @property
    def marked(self) -> tuple[str, ...]:
        """The modules at which a picture shows it: of a scope, the module around all in it."""
        if self.cause is not Cause.GRAD_MODE or len(self.modules) < 2:
            return self.modules
        first, *rest = [name.split(".") for name in self.modules]
        common = 0
        while all(name[: common + 1] == first[: common + 1] for name in rest):
            common += 1
        return (".".join(first[:common]),)


def _file_and_line(place: str) -> tuple[str, int]:
    path, _, line = place.rpartition(":")
    return path, int(line)


@dataclass(frozen=True, slots=True)
class Passage:
    """A module that ran, in the order of the first call, and what the gradient does in it."""

    module: str
    type: str
    flow: Flow
    parameters: int
    """How many parameters lie in the module itself, not in its submodules."""


@dataclass(frozen=True, slots=True)
class Report:
    """What :func:`trainify.audit` found out about one step of a model.

    ``missing`` are the parameters that get no gradient although the loss depends on them, ``wrong``
    those whose gradient is not the derivative of the loss, ``unused`` those on which the loss does
    not depend (no fault), ``lost`` those that get none where that is meant, with which the loss
    changes by steps only, or of which it cannot be told, as where a part adds less than a bit;
    ``notes`` or ``error`` says which.  ``zeros`` are those at which a gradient arrives that is zero
    in every element, as behind a rounding or a factor of zero: what autograd gives is the
    derivative, and nothing is learned by it.  These alone leave it ``ok``, unless there are no
    others.  ``copies`` are unused ones of which an attribute of a module holds the numbers, or what
    was computed from them once, and is used in place of them: training does not reach it.  Each of
    the missing and the wrong is accounted for by one of ``cuts``, or ``error`` says that no place
    was found.  What could not be proven, and why, stands in ``notes``.
    """

    missing: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    cuts: tuple[Cut, ...] = ()
    loss: float | None = None
    trainable: int = 0
    """How many parameters require a gradient."""
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The attributes, with the paths of their modules, by the names of the parameters."""
    frozen: tuple[str, ...] = ()
    """Parameters with ``requires_grad=False``."""
    proof: str = ""
    """How the gradients were held against finite differences; empty where they were not."""
    error: str = ""
    """What is wrong with the step and lies at no place that was found: what backward raises, that
    no gradient gets anywhere, or that one which is due does not.  Or that this cannot be told,
    since two equal runs are too different."""
    notes: tuple[str, ...] = ()
    passages: tuple[Passage, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every parameter on which the loss depends gets its gradient.

        Not where that cannot be told, which :attr:`error` says then.
        """
        return not (self.missing or self.wrong or self.cuts or self.error)

    def as_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        return {"ok": self.ok, **asdict(self)}

    def to_json(self) -> str:
        """:meth:`as_dict` as text."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        from ...output.audit import table

        return table(self)


def patterns(names: Iterable[str]) -> tuple[str, ...]:
    """Dotted names with the numbers that differ as ``*``: ``layers.0.fc``, ``layers.1.fc``."""
    shapes: dict[tuple[str, ...], list[list[str]]] = {}
    for name in dict.fromkeys(names):
        parts = name.split(".")
        shape = tuple("*" if part.isdigit() else part for part in parts)
        shapes.setdefault(shape, []).append(parts)
    return tuple(
        ".".join(
            part if len({each[i] for each in group}) > 1 else group[0][i]
            for i, part in enumerate(shape)
        )
        for shape, group in shapes.items()
    )
