"""The two checks of a library's layer: its kernel against its twin, and the twin's gradient.

The class is asked itself: whether it has the twin is a matter of the release that is installed.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck

from ..catalog.layers import FusedLayer
from ..reference.double import exact_in_double
from .compare import DTYPES, TOLERANCES, add
from .kernels import Libraries, Unavailable, first_line
from .samples import Draw
from .verdict import Comparison, Job

_FEATURES = 8
_SEEDS = range(2)


class _Layer:
    """An instance of a job's class; raises :class:`Unavailable` where there cannot be one."""

    def __init__(self, job: Job, libraries: Libraries) -> None:
        assert isinstance(job.op, FusedLayer)
        cls = libraries.named(job.name)
        self.kind = job.op.module
        self.wrong = ""
        if not isinstance(cls, type):
            raise Unavailable("a configuration says which layer it gives")
        if not hasattr(cls, job.op.twin):
            root = job.name.partition(".")[0]
            self.wrong = f"the {root} installed has no {job.op.twin} in {job.name}"
            return
        try:
            self.module = cls(*self._made_of())
        except Exception as error:
            raise Unavailable(f"it cannot be made by itself: {first_line(error)}") from None
        self.twin = getattr(self.module, job.op.twin)
        self.alone = getattr(self.module, "_forward_method", None) == self.twin

    def _made_of(self) -> tuple[Any, ...]:
        if "rotary" in self.kind:
            return _FEATURES, _FEATURES, 32, 10000, True, torch.float32
        return (_FEATURES,) if "norm" in self.kind else ()

    def inputs(self, draw: Draw) -> list[torch.Tensor]:
        """Tokens; ahead of query and key stand their positions."""
        if "rotary" in self.kind:
            heads = [draw.tensor(3, 2 * _FEATURES).contiguous() for _ in range(2)]
            return [draw.integers(32, 3), *heads]
        return [draw.tensor(3, _FEATURES, scale=2).contiguous()]


def gradient(job: Job, libraries: Libraries) -> tuple[str, str, str]:
    """What gradcheck in float64 says of the twin; nothing is attached; what it proved wrong."""
    try:
        layer = _Layer(job, libraries)
    except Unavailable as error:
        return f"not checked: {error}", "", ""
    if layer.wrong:
        return "wrong", "", layer.wrong
    try:
        layer.module.double()
        for seed in _SEEDS:
            given = layer.inputs(Draw(seed, torch.float64))
            tokens = [x.requires_grad_() for x in given if x.is_floating_point()]
            weights = [p for p in layer.module.parameters() if p.requires_grad]
            fixed = given[: len(given) - len(tokens)]

            def run(*leaves: torch.Tensor) -> Any:
                # The weights are leaves by being what they are.
                return layer.twin(*fixed, *leaves[: len(tokens)])  # noqa: B023

            with exact_in_double(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gradcheck(run, (*tokens, *weights), fast_mode=seed > 0)
    except GradcheckError as error:
        return "wrong", "", f"gradcheck: {first_line(error)}"
    except Exception as error:
        return f"not checked: the twin failed: {first_line(error)}", "", ""
    return "ok", "", ""


@torch.no_grad()
def forward(job: Job, libraries: Libraries, cuda: bool) -> tuple[list[Comparison], str, bool]:
    """Comparisons by dtype; or why there are none; a process is not spoiled by it."""
    try:
        layer = _Layer(job, libraries)
    except Unavailable as error:
        return [], str(error), False
    if layer.wrong:
        return [], layer.wrong, False
    if layer.alone:
        return [], "the layer runs its twin here", False
    device, found, reason = "cuda" if cuda else "cpu", [], ""
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        comparison = Comparison(name, device)
        layer.module.to(device, dtype)
        for seed in _SEEDS:
            expected = layer.twin(*layer.inputs(Draw(seed, dtype, device)))
            try:  # the same again: a kernel may write
                got = layer.module(*layer.inputs(Draw(seed, dtype, device)))
            except Exception as error:
                reason = reason or first_line(error)
                break
            got, expected = (x if isinstance(x, tuple) else (x,) for x in (got, expected))
            add(comparison, got, expected, TOLERANCES[name])
        if comparison.cases:
            found.append(comparison)
    return found, "" if found else reason, False
