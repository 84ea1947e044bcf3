"""Whether calls compute with tensors of one shape: a trace holds none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .influence import functions_of
from .runs import Step
from .trace import Call, Observer


def of_one_shape(step: Step, calls: Sequence[Call]) -> bool:
    """Whether each of the calls is given tensors of one shape."""
    shapes = _Shapes(calls)
    step.run(shapes)
    return not shapes.differ


class _Shapes(Observer):
    sights = False

    def __init__(self, calls: Sequence[Call]) -> None:
        self._at = {call.key for call in calls}
        self.functions = functions_of(self._at)
        self.differ = False

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        if call.key in self._at:
            self.differ |= len({tensor.shape for tensor in tensors}) > 1
