"""What was made of weights once, and is used for them: ``self.qk = torch.cat([q.weight, ...])``.

Of a weight that is unused it is asked whether tensors that the step takes hold its numbers: all of
them in any order, as after a transposition, or as some of their rows or columns; or some of them
and no others, as a part of it.  Of others it is asked whether the source says that they were
computed from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from ..properties import computed_from
from .aliases import attributes
from .report import patterns
from .runs import Step
from .trace import Trace, tensor_of

_LEAST = 4
"""Numbers that a weight has to hold, so that another one does not hold them by chance."""
_LEAST_OF_A_PART = 16


def copied(step: Step, trace: Trace, names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The attributes that hold what was made of unused parameters, by the name of these."""
    if not names:
        return {}
    weights = {n: step.parameters[n].detach() for n in names if _tells(step.parameters[n])}
    step.begin()  # a run with other parameters may have been the last
    taken = {tensor_of(sight) for call in trace.calls for sight in call.ins}
    own = {id(parameter) for parameter in step.model.parameters()}
    kept = {
        id(t): t.detach()
        for number, t in step.known(trace)
        if number in taken and id(t) not in own and t.layout is torch.strided
    }
    held = attributes(step, kept) if kept else {}
    found = {
        name: tuple(attribute for key, attribute in held.items() if _holds(kept[key], weight))
        for name, weight in weights.items()
    }
    found = {name: attributes for name, attributes in found.items() if attributes}
    copies = {attribute for attributes in found.values() for attribute in attributes}
    others = [attribute for attribute in held.values() if attribute not in copies]
    rest = {name: step.parameters[name] for name in names if name not in found}
    return found | computed_from(step.model, rest, others)


def said_of_copies(copies: Mapping[str, tuple[str, ...]]) -> str:
    held = dict.fromkeys(each for attributes in copies.values() for each in attributes)
    return (
        f"{', '.join(patterns(copies))} is unused, and what was made of it once is in "
        f"{', '.join(patterns(held))}: a copy, which training does not reach. Make it in forward"
    )


def _tells(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or not tensor.is_floating_point():
        return False
    return tensor.numel() >= _LEAST and bool(tensor.min() < tensor.max())


def _holds(kept: Tensor, weight: Tensor) -> bool:
    if kept.dtype != weight.dtype or kept.device != weight.device or kept.is_quantized:
        return False
    if kept.numel() == weight.numel():
        return _extent(kept) == _extent(weight) and torch.equal(_sorted(kept), _sorted(weight))
    if kept.numel() < weight.numel():
        return _tells(kept) and kept.numel() >= _LEAST_OF_A_PART and _are_among(kept, weight)
    return any(_is_part(weight, each) for each in _ways(kept))


def _are_among(kept: Tensor, weight: Tensor) -> bool:
    """Whether all numbers of one are numbers of the other, and of those at most as many."""
    first, last = _extent(weight)
    if not first <= kept.min().item() <= kept.max().item() <= last:
        return False
    if not torch.isin(kept.flatten()[:_LEAST_OF_A_PART], weight).all():  # before both are sorted
        return False
    ours, many = kept.unique(return_counts=True)
    theirs, most = weight.unique(return_counts=True)
    at = torch.searchsorted(theirs, ours)
    return bool((theirs[at] == ours).all() and (many <= most[at]).all())


def _ways(kept: Tensor) -> Iterator[Tensor]:
    yield kept
    if kept.dim() == 2:
        yield kept.t()


def _is_part(weight: Tensor, kept: Tensor) -> bool:
    """Whether rows of ``kept``, one after the other, are those of ``weight``."""
    if kept.dim() != weight.dim() or kept.shape[1:] != weight.shape[1:]:
        return False
    same = (kept == weight[0]).flatten(1).all(1) if kept.dim() > 1 else kept == weight[0]
    starts = (int(start) for start in same.nonzero())
    return any(torch.equal(kept[start : start + len(weight)], weight) for start in starts)


def _extent(tensor: Tensor) -> tuple[float, float]:
    return tensor.min().item(), tensor.max().item()


def _sorted(tensor: Tensor) -> Tensor:
    return tensor.flatten().sort().values
