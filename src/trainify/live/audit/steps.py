"""Values that are stopped in a step which a model makes by itself, of learning or of a recurrence.

Weights that are projected (clipped, normalized) before they are used; an inner step of gradient
descent, of the first order; an input that is moved by its gradient, as adversarial ones are; a
recurrence that is only gone back through for its last round.  The parameters learn by what comes
after.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set

import torch

from .cuts import Suspect
from .trace import Call, Trace, made_by, own_name, tensor_of

_SUMS = {"add", "add_", "sub", "sub_", "rsub", "subtract", "__add__", "__radd__", "__sub__",
         "__rsub__", "addcmul", "addcdiv"}  # fmt: skip


def is_of_a_step(trace: Trace, group: Sequence[Suspect], parameters: Set[int]) -> bool:
    """Whether that is what becomes of what suspects at one site stop, or how it was made.

    ``parameters`` are given as :func:`~.trace.tensor_of` has them.
    """
    gradients = [each for each in group if each.call.function is torch.autograd.grad]
    if gradients and all(each in gradients or not each.parameters for each in group):
        group = gradients
    stopped = {tensor_of(each.call.outs[each.where[1]]) for each in group}
    if group == gradients:
        return _moves_weights(trace, stopped, parameters) or _moves_inputs(
            trace, stopped, parameters
        )
    return _goes_into_weights(trace, stopped) or _comes_back(trace, stopped, parameters)


def is_of_a_sample(trace: Trace, suspects: Sequence[Suspect], parameters: Set[int]) -> bool:
    """Whether all gradients that are stopped move something, step by step, as samples are drawn."""
    gradients = [each for each in suspects if each.call.function is torch.autograd.grad]
    stopped = {tensor_of(each.call.outs[each.where[1]]) for each in gradients}
    return bool(gradients) and _moves_inputs(trace, stopped, parameters)


def _goes_into_weights(trace: Trace, stopped: set[int]) -> bool:
    """Whether it goes nowhere but into the parameters that it is made of."""
    stopped = set(stopped)
    behind: set[int] = set()
    written: set[int] = set()
    for call in trace.calls:
        ins = {tensor_of(sight) for sight in call.ins}
        leaves = {tensor_of(s) for s, _ in call.written.values() if s.leaf and s.attached}
        if not stopped.isdisjoint(map(tensor_of, call.outs)):
            behind.update(tensor_of(sight) for sight in call.ins if sight.fresh)
        if stopped.isdisjoint(ins):
            continue
        if leaves:
            written |= leaves
            behind |= ins - stopped
        elif any(sight.attached for sight in made_by(call)):
            return False
        else:
            stopped.update(tensor_of(sight) for sight in made_by(call) if sight.floating)
    return bool(written) and behind <= written


def _moves_weights(trace: Trace, stopped: set[int], parameters: Set[int]) -> bool:
    """Whether it meets what learns only where it is added to parameters."""
    stopped = set(stopped)
    weights = set(parameters)
    found = False
    for call in trace.calls:
        ins = [(sight, tensor_of(sight)) for sight in call.ins if sight.floating]
        taken = any(number in stopped for _, number in ins)
        others = {number for _, number in ins} - stopped
        of_weights = others <= weights
        if taken and any(sight.attached for sight in made_by(call)):
            if not of_weights or own_name(call) not in _SUMS:
                return False
            found = True
        elif taken:
            stopped.update(tensor_of(sight) for sight in made_by(call) if sight.floating)
            continue
        if others and of_weights:
            weights.update(map(tensor_of, made_by(call)))
    return found


def _moves_inputs(trace: Trace, stopped: set[int], parameters: Set[int]) -> bool:
    """Whether it is added to something without a history, of which layers take the sum alone.

    That may go on for several steps, as samples are drawn by a model of an energy: what is moved
    requires a gradient then, and has none of parameters.
    """
    first, stopped, moved, active = set(stopped), set(stopped), set[int](), set[int]()
    found = False
    for call in trace.calls:
        numbers = {tensor_of(sight) for sight in call.ins if sight.floating}
        made = {tensor_of(sight) for sight in made_by(call) if sight.floating}
        attached = {tensor_of(sight) for sight in made_by(call) if sight.attached}
        learns = bool(attached) and not numbers.isdisjoint(active | parameters)
        if learns:
            active |= attached
        if numbers.isdisjoint(stopped | moved) or (made and made <= first):
            continue
        if not learns:
            alone = numbers.isdisjoint(moved) and (
                own_name(call) not in _SUMS or numbers <= stopped
            )
            (stopped if alone else moved).update(made)
        elif numbers <= moved | parameters:
            found = True
        else:
            return False
    return found


def _comes_back(trace: Trace, stopped: set[int], parameters: Set[int]) -> bool:
    """Whether the next layers that it gets to are layers that made it.

    What goes around these, and is added to what they make of it, counts as having been through.
    """
    behind = set(stopped)
    makers: set[Hashable] = set()
    for call in reversed(trace.calls):
        if not behind.isdisjoint(map(tensor_of, made_by(call))):
            behind.update(tensor_of(sight) for sight in call.ins if sight.floating)
            makers.add(_layer(call, parameters))
    carried, through = set(stopped), set[int]()
    for call in trace.calls:
        ins = set(map(tensor_of, call.ins))
        learns = any(sight.attached for sight in made_by(call))
        if learns and not through.isdisjoint(ins):
            through.update(map(tensor_of, made_by(call)))
        elif carried.isdisjoint(ins):
            continue
        elif learns and (layer := _layer(call, parameters)) is not None:
            if layer not in makers:
                return False
            through.update(map(tensor_of, made_by(call)))
        else:
            carried.update(tensor_of(sight) for sight in made_by(call) if sight.floating)
    return bool(through)


def _layer(call: Call, parameters: Set[int]) -> Hashable | None:
    """What tells that calls are of one layer: the function and its parameters; None without any."""
    weights = tuple(number for s in call.ins if (number := tensor_of(s)) in parameters)
    return (call.function, weights) if weights else None
