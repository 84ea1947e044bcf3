"""Backwards that write into the gradient that they are given.

It may be that of another way as well, of a residual connection, say: what comes later on that way
gets what was written.  Where nothing else reads it the memory is saved, and nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .cuts import WRONG, Suspect
from .local import LocalChecks, Verdict, site_of
from .report import Cause
from .trace import Call, Observer, Trace, put_hook, tensors_in


def handed(trace: Trace, checks: LocalChecks) -> list[Suspect]:
    """The calls whose backward does so."""
    sites = {site_of(f.call.key) for f in checks.findings if f.verdict is Verdict.OVERWRITES}
    calls = (call for call in trace.calls if sites and call.outs and site_of(call.key) in sites)
    found = [Suspect(Cause.BACKWARD, WRONG, call, ("out", 0)) for call in calls]
    for each in found:
        each.detail = "overwrites"
    return found


class Copied(Observer):
    """Has them be given copies."""

    sights = False

    def __init__(self, suspects: list[Suspect]) -> None:
        self._keys = {each.call.key for each in suspects}

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        if call.key in self._keys:
            for tensor in _with_history(out):
                put_hook(tensor, lambda gradient: gradient.clone())
        return out


def _with_history(out: Any) -> Iterator[Tensor]:
    return (tensor for tensor in tensors_in((out,)) if tensor.requires_grad)
