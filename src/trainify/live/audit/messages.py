"""What a cut does, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from .cuts import MISSING, WRONG, Suspect
from .report import Cause, Cut

_ORDER = (Cause.SAVED, Cause.HOST, Cause.QUANTIZATION, Cause.IN_PLACE, Cause.KERNEL,
          Cause.BACKWARD, Cause.GRAD_MODE, Cause.DATA, Cause.DETACH, Cause.OPAQUE)  # fmt: skip
"""Where several things happen on a line, the first of these is what is said."""


STOPS = (Cause.GRAD_MODE, Cause.DETACH, Cause.DATA, Cause.HOST)
"""What also stands where somebody stops a gradient on purpose."""

_THREADS = ("threading.", "concurrent.")

_MEANT = " If that is meant, allow it: allow=, --allow or `# trainify: stop-grad`."


def if_meant(cut: Cut) -> Cut:
    """A cut whose message says how to allow it; others than stops cannot be meant."""
    if cut.cause not in STOPS or cut.message.endswith(_MEANT):
        return cut
    return replace(cut, message=cut.message + _MEANT)


def not_meant(cut: Cut) -> Cut:
    """A cut whose message does not say how to allow it."""
    return replace(cut, message=cut.message.removesuffix(_MEANT))


_OF_A_WEIGHT = "lies in the memory of a weight"


def is_kept_view(cut: Cut) -> bool:
    """Whether a cut is a tensor of before the step, so that no line in forward can be mended."""
    return cut.cause is Cause.DATA and _OF_A_WEIGHT in cut.message


_OFF = "Gradients are switched off"


def with_scope(cut: Cut) -> Cut:
    """A cut whose message says where gradients are switched off, if that is another line."""
    scopes = dict.fromkeys((*cut.wrapped, *([cut.scope] if cut.scope else [])))
    where = " and ".join(scope for scope in scopes if scope != cut.place)
    if not where or not cut.message.startswith(_OFF):
        return cut
    return replace(cut, message=cut.message.replace(_OFF, f"{_OFF} at {where}", 1))


def cut_of(group: Sequence[Suspect]) -> Cut:
    """One cut for suspects at the same site."""
    # What is hidden and has no name is what was made of something that was seen on the same line.
    first = min(
        group,
        key=lambda e: (e.hidden and e.op is None, _ORDER.index(e.cause), e.kind != WRONG),
    )
    kind = WRONG if any(each.kind == WRONG for each in group) else MISSING
    names: dict[str, None] = {}
    for each in group:
        names.update(dict.fromkeys(sorted(each.parameters)))
    return Cut(
        cause=first.cause,
        kind=kind,
        op=first.op,
        path=first.place.path,
        line=first.place.line,
        function=first.place.function,
        message=_message(first, kind),
        modules=tuple(dict.fromkeys(each.module for each in group if each.module)),
        parameters=tuple(names),
        scope=str(first.scope) if first.scope is not None else None,
        lines=tuple(sorted({each.line for each in group} - {0})),
        derived=tuple(dict.fromkeys(e.detail for e in group if _is_of_before(e) and e.detail)),
        wrapped=tuple(dict.fromkeys(str(each.wrapped) for each in group if each.wrapped)),
        branch=first.cause is Cause.GRAD_MODE
        and not any(sight.attached and not sight.leaf for each in group for sight in each.call.ins),
    )


def _is_of_before(suspect: Suspect) -> bool:
    """Whether what is read lies in the memory of a weight, and was made before the step."""
    return suspect.cause is Cause.DATA and suspect.where[0] == "in"


def _message(suspect: Suspect, kind: str) -> str:
    op = suspect.op or "a call that torch does not see"
    cause = suspect.cause
    if cause is Cause.KERNEL and suspect.detail.startswith("raises"):
        return f"{op} has no derivative: backward raises here."
    if cause is Cause.KERNEL and op.startswith(_THREADS):
        return (
            f"What runs in another thread by {op} is not seen: a value comes back from there "
            "without its history, as by a kernel or a detach()."
        )
    if cause is Cause.KERNEL:
        return f"{op} records no backward: the gradient ends here."
    if cause is Cause.IN_PLACE and suspect.call.refused:
        return f"{op} with out=: torch records no such result, and raises where a gradient is due."
    if cause is Cause.IN_PLACE:
        return (
            f"{op} writes into a tensor and autograd does not know: backward goes on as if nothing "
            "had been written, and every gradient before it is wrong."
        )
    if cause is Cause.GRAD_MODE:
        if kind == WRONG:
            return (
                f"{_OFF}, and a tensor is overwritten: backward goes on as if "
                "nothing had been written."
            )
        return f"{_OFF}: what is computed here passes none on."
    if cause is Cause.DETACH and suspect.zeros:
        return (
            f"{op} draws a value of which autograd passes on zeros: the gradient ends here. With "
            "mean + std * torch.randn_like(std) it goes on."
        )
    if cause is Cause.DETACH and suspect.call.function is torch.autograd.grad:
        return (
            "A gradient that is taken without create_graph=True has no history of its own: what "
            "the loss gets through it passes none on."
        )
    if cause is Cause.DETACH and suspect.leaf:
        return f"{op} makes a leaf of the value: the gradient goes to that, and ends here."
    if cause is Cause.DETACH:
        return f"{op} takes the value and leaves its history: the gradient ends here."
    if _is_of_before(suspect):
        return (
            f"{suspect.detail or 'This tensor'} {_OF_A_WEIGHT} and was made before the step "
            "without its history, by .data, detach() or under no_grad: what is computed with it "
            "here passes no gradient on to the weight. Make it in forward."
        )
    if cause is Cause.DATA:
        return ".data is the value without its history: the gradient ends here."
    if cause is Cause.HOST:
        return (
            f"{op} takes the value out of torch, and the loss depends on it: it comes back as a "
            "constant."
        )
    if cause is Cause.SAVED:
        said = (
            f"What {suspect.call.name} has saved for backward ({suspect.call.place}) is "
            "overwritten here: its gradient is computed from other values, or backward raises."
        )
        if suspect.where[0] == "weight":
            said += " Edit a weight before it is used, or after the optimizer's step."
        return said
    if cause is Cause.BACKWARD:
        if op.endswith(".CheckpointFunction"):
            return (
                "A reentrant checkpoint passes gradients on only if one of its inputs requires "
                "one, and none does."
            )
        if suspect.detail == "endless":
            return (
                f"The derivative of {op} is infinite, or not a number, at a value that it is given "
                "here, and so are the gradients before it, though the loss is finite. What "
                "torch.where leaves out takes part in backward: replace such values before."
            )
        if suspect.detail == "repeated":
            return (
                "A checkpoint computes this again for backward, and gets something else: by random "
                "numbers that it does not put back, or by what the first time has changed. "
                "Gradients are those of another forward, or backward raises."
            )
        if suspect.detail == "overwrites":
            return (
                f"The backward of {op} writes into the gradient that it is given, which others "
                "are given as well: theirs is wrong. Write into a tensor of its own."
            )
        if suspect.detail.startswith("raises"):
            return f"The backward of {op} {suspect.detail}."
        if kind == MISSING:
            return (
                f"The backward of {op} returns no gradient for an input that its result depends on."
            )
        return f"The backward of {op} is not the derivative of its forward."
    if cause is Cause.QUANTIZATION and suspect.steps:
        return f"{op} takes whole numbers of the value: the gradient ends here."
    if cause is Cause.QUANTIZATION:
        return (
            f"{op} rounds to integers, which have no gradient: what flows back goes through the "
            "scale alone."
        )
    return f"{op} brings in values that depend on parameters, as constants."
