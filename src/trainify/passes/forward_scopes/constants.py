"""Numbers that a forward makes of what is to learn, and computes its result with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.carried import together
from ...facts.gradients import Gradients
from ...facts.losses import lost

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def constants(module: ModuleFacts, function: FunctionNode) -> Iterator[ast.expr]:
    """What takes a part of a gradient, in silence, once there is one: ``h.mean().item()``.

    Who wrote it under a scope did not mean to stop anything.  What takes the whole of it is TRN302.
    """
    if not any(word in module.source(function) for word in _WORDS):
        return
    gradients = Gradients(module, function)
    reported = {cut.node for cut, _ in lost(gradients)}
    for cut in together([r for r in gradients.returned() if not r.plain]).cuts:
        if cut.sure and cut.kind in ("number", "tensor") and cut.node not in reported:
            yield cut.node


_WORDS = (".item()", ".tolist()", ".numpy()", "float(", "math.", "ensor(")
