"""What of a value and of the same one, stopped, is in a part of a tensor that holds both.

What stages make is put into one tensor, and is taken apart again where their losses are.  Which
part is whose says no name: each is disturbed by itself, and what changes is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from .cuts import Suspect
from .influence import Disturb, Keep
from .runs import Step
from .trace import Call, Sight, Trace

_SHARE = 0.5 / 256
"""Of a value's size: no other choice is made for that."""


class Parted:
    """Runs of a step in which a value, or what is stopped of it, is a little off."""

    def __init__(
        self,
        step: Step,
        trace: Trace,
        source: Suspect,
        stops: Sequence[Suspect],
        suspects: Sequence[Suspect],
    ) -> None:
        """``source`` is where the value is made, ``stops`` is where it is stopped."""
        self._step, self._trace = step, trace
        self._source, self._stops, self._suspects = source, stops, suspects

    def behind(self, call: Call, out: Sight) -> tuple[bool, bool]:
        """Whether the value itself, and what is stopped of it, is in a part that is taken.

        Both where it cannot be told.
        """
        at = call.outs.index(out)
        return self._changes(call, at, self._moved), self._changes(call, at, self._moved_next)

    def _changes(self, call: Call, at: int, moved: Trace | None) -> bool:
        twin = moved.by_key.get(call.key) if moved is not None else None
        if moved is None or twin is None:
            return True
        ours, theirs = [*call.ins, call.outs[at]], [*twin.ins, *twin.outs[at : at + 1]]
        if len(ours) != len(theirs):
            return True
        same = [
            self._trace.digest(one) == moved.digest(other)
            for one, other in zip(ours, theirs, strict=True)
        ]
        return not same[-1] or all(same)  # what has not changed itself says nothing of its parts

    @cached_property
    def _moved(self) -> Trace | None:
        """With the value another one, and all that is stopped anywhere as it was."""
        keep = Keep(self._suspects)
        try:
            self._step.run(keep)
            return self._step.run(_Watched([self._source], _SHARE, kept=keep.values))[0]
        except Exception:  # the model does not take what it is given
            return None

    @cached_property
    def _moved_next(self) -> Trace | None:
        """With what is stopped another one."""
        try:
            return self._step.run(_Watched(self._stops, _SHARE))[0]
        except Exception:
            return None


class _Watched(Disturb):
    """With what comes of it seen."""

    sights = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.functions = None
