"""Weights under another name, in the same memory: ``self.head = self.emb.weight.data``.

No operation of the step ends the gradient there, as the tensor had no history from the start.  Its
own gradient is what the weight does not get.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from .cuts import MISSING, Suspect
from .kept import tensors_held
from .noise import is_zero
from .report import Cause
from .runs import Step
from .tensors import memory_of, span_of
from .trace import Trace, Unseen, made_by, tensor_of


@dataclass(frozen=True)
class Alias:
    """A tensor in the memory of parameters, and the attribute that holds it; empty for none."""

    tensor: Tensor
    parameters: frozenset[str]
    attribute: str


def aliases(step: Step) -> list[Alias]:
    """Those that the model holds, or its inputs, and that do not pass a gradient on to them."""
    owners: dict[int, list[tuple[str, Tensor]]] = {}
    for name, parameter in step.parameters.items():
        owners.setdefault(memory_of(parameter), []).append((name, parameter))
    owners.pop(0, None)
    found = {}
    for tensor in step.state.tensors:
        owning = owners.get(memory_of(tensor), ()) if type(tensor) is Tensor else ()
        if owning and _is_floating(tensor) and _is_leaf(tensor):
            names = frozenset(name for name, owner in owning if _overlap(tensor, owner))
            found[id(tensor)] = tensor, names
    held = attributes(step, found) if found else {}
    return [Alias(t, names, held.get(id(t), "")) for t, names in found.values() if names]


def through_aliases(step: Step, trace: Trace) -> list[Suspect]:
    """The calls of a step that take one to which a gradient is due."""
    due = _due(step, aliases(step))
    if not due:
        return []
    numbers = {n: due[id(tensor)] for n, tensor in step.known(trace) if id(tensor) in due}
    found = []
    for call in trace.calls:
        for i, sight in enumerate(call.ins):
            alias = numbers.get(tensor_of(sight))
            if alias is not None and any(made.floating for made in made_by(call)):
                suspect = Suspect(Cause.DATA, MISSING, call, ("in", i))
                suspect.parameters |= alias.parameters
                suspect.detail = alias.attribute
                found.append(suspect)
    return found


def attributes(step: Step, ids: Collection[int]) -> dict[int, str]:
    """Where modules hold tensors, by the ids of these, outside of their parameters."""
    found: dict[int, str] = {}
    for name, attribute, tensor in tensors_held(step.model):
        if id(tensor) in ids:
            found.setdefault(id(tensor), f"{name}.{attribute}" if name else attribute)
    return found


def _due(step: Step, found: list[Alias]) -> dict[int, Alias]:
    """Those of the aliases, by the id of the tensor, that get a gradient if they ask for one."""
    tensors = [alias.tensor for alias in found]
    if not tensors:
        return {}
    # A view that was made under no_grad says that it requires one, and is not asked for it.
    own = [t.requires_grad and (t._base is None or not t._base.requires_grad) for t in tensors]

    def ask() -> None:
        for tensor in tensors:
            tensor.requires_grad_(True)

    try:
        _, loss = step.run(Unseen(), ask)
        with step.backward():
            gradients = step.gradients(loss, tensors)
    except Exception:  # it is written into, or of inference_mode, or the loss has no history
        return {}
    finally:
        for tensor, before in zip(tensors, own, strict=True):
            tensor.requires_grad_(before)
    pairs = zip(found, gradients, strict=True)
    return {id(a.tensor): a for a, g in pairs if g is not None and not is_zero(g)}


def _is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_leaf(tensor: Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view made under no_grad, of what was written since
        return True


def _overlap(one: Tensor, other: Tensor) -> bool:
    first, last = span_of(one)
    begin, end = span_of(other)
    return first < end and begin < last
