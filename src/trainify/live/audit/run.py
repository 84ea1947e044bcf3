"""``trainify.audit``: one step of a model, judged."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..lock import LOCK
from .allowed import Allowed
from .alone import alone
from .copied import copied, said_of_copies
from .cuts import by_site
from .directional import Proof, prove
from .earlier import BACKWARD_TWICE, left_by_earlier, made_before, may_be_of_earlier
from .hooks import none_later
from .kept import kept_graphs
from .losses import Loss
from .matters import Trial
from .messages import cut_of, if_meant
from .on_disk import on_disk
from .passages import passages_of
from .places import Place, raised
from .report import Cause, Cut, Report, patterns
from .rounds import Outcome, Progress, look
from .runs import Step, refuse_no_model
from .through import Lines
from .trace import tensor_of
from .ungiven import Ungiven, ungiven
from .unregistered import Hidden, said_of
from .unseen import are_behind
from .within_reach import within_reach

_ROUNDS = 3
"""How often it is looked behind scopes without gradients."""


def audit(
    model: nn.Module,
    *inputs: Any,
    loss: Loss | None = None,
    allow: Iterable[str] = (),
    proof: bool = True,
    progress: Progress | None = None,
    **keywords: Any,
) -> Report:
    """Say which parameters get no gradient, or a wrong one, and where it is lost.

    The step is run several times: as it is, and with all parameters a little off.  A value that is
    another one then depends on the parameters; where autograd has no history for it, or the one it
    had before a kernel wrote into it, a gradient ends or lies.  Whether that matters is tried by
    disturbing the value and looking at the loss.  So it is also found what no dispatcher sees:
    kernels called through pybind, raw Triton launches, NumPy.

    What lies within a scope without gradients is looked at as well, as if the scope were gone.
    Where anything holds something with a history after the step (a module, a global, a closure), a
    second one is run, which goes back into it or does not.  Where a checkpoint gets something else
    when it computes again, the gradients are held against those without checkpoints.

    The model is left as it was: parameters, gradients, buffers, what it holds in attributes, and
    the random number generators.  So are the tensors that its code keeps in globals, in closures
    and in classes, as far as names lead there.

    Beside the model that takes the memory of one step, without what an optimizer keeps: of one
    forward, with a copy of the parameters to put back what any kernel may write, or of one
    backward, for which the copy is let go.  It stays for backwards that run code of the model's:
    hooks, and functions and ops with one of their own.  ``proof`` adds what a layer takes in
    float64, in which each parameter is cast where it is used; where the model does not take that,
    or the gradients are not what they should be, a copy of the model in float64 and its gradients,
    which is four copies of float32 parameters.

    Args:
        model: A model whose parameters require gradients where they should learn.
        inputs: What it is called with; ``keywords`` as well.
        loss: Makes a tensor of one element from the model's output.  By default ``output.loss``,
            the output itself where it is one number, else a fixed projection of the outputs.
        allow: Places where gradients are stopped on purpose: files (``"ema.py"``), lines
            (``"model.py:120"``), functions (``"Quantizer.forward"``) or module paths
            (``"teacher.*"``), as in :mod:`fnmatch`.  In the source, the comment
            ``# trainify: stop-grad`` on the line says the same.  Not needed for what is stopped so
            that a loss holds values of other layers against it, or to move a running mean in a
            buffer, if its parameters learn by another way (or are called a teacher's or a
            target's), nor for straight-through estimators, adversarial inputs, small heads that
            learn from detached features beside the loss of a larger one, and what a loss of its own
            teaches, or picks, for a next stage.
        proof: Whether the gradients of a model without cuts are held against directional
            derivatives, in float64 where the model takes it.
        progress: Is told what is going on.

    Raises:
        ValueError: There is no loss to be had from the output, it is not finite, an input is an
            iterator, which can be gone through once, or parameters have no values (on the meta
            device, in lazy modules), are sharded (``fully_shard``) or were made in
            ``inference_mode``.
        TypeError: That is no model, or no loss.
        Exception: Whatever the model's forward raises.
    """
    refuse_no_model(model)
    tell = progress or (lambda _: None)
    was_on = torch.is_grad_enabled()
    with (
        LOCK,
        _collected_sparingly(),
        torch.inference_mode(False),
        alone(model),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of a copy that TorchScript makes, say, not of the step
        step = Step(model, inputs, keywords, loss)
        try:
            with none_later(step.parameters.values()):
                report = on_disk(_Audit(step, Allowed(allow), tell).report(proof))
        except RuntimeError as error:
            if _INFERENCE not in str(error):
                raise
            report = on_disk(Report(error=_kept_from_inference(step, error)))
        finally:
            step.state.end()
    return report if was_on else replace(report, notes=(_WAS_OFF, *report.notes))


@contextmanager
def _collected_sparingly() -> Iterator[None]:
    """Collections of garbage go through what is new only: a trace is enough to set them off."""
    if gc.get_freeze_count():  # which is somebody else's
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


_INFERENCE = "Inference tensors cannot be saved for backward"


def _kept_from_inference(step: Step, error: RuntimeError) -> str:
    return (
        f"the forward raises {raised(error, step.places)}: it reads something that was made in "
        "inference_mode before, and kept"
    )


_WAS_OFF = (
    "gradients were switched off where audit was called (set_grad_enabled(False), or a scope "
    "around it); it ran with gradients on, but a step there would train nothing"
)


def _may_be_meant(cut: Cut, missing: Collection[str]) -> bool:
    """Whether a gradient is stopped by name, or one of what learns by another way as well."""
    return cut.cause is Cause.DETACH or not any(name in missing for name in cut.parameters)


def _listed(places: Iterable[Place]) -> str:
    return ", ".join(dict.fromkeys(map(str, places)))


def _undecided(names: Sequence[str]) -> str:
    """What to say of parameters without a gradient where nothing can be tried."""
    if not names:
        return ""
    return (
        "the loss is not the same in two equal runs, so that it cannot be told whether a gradient "
        f"is due to {', '.join(patterns(names))}; none arrives there"
    )


def _blamed(cuts: list[Cut], lost: Collection[str], seen: Outcome) -> list[Cut]:
    """Cuts, with those that take the gradient of parameters to which one is due."""
    found = []
    for cut in cuts:
        beside = seen.beside.get(Place(cut.path, cut.line, cut.function), ())
        more = [name for name in lost if name in beside and name not in cut.parameters]
        found.append(replace(cut, parameters=(*cut.parameters, *more)))
    known = {name for cut in found for name in cut.parameters}
    for group in by_site([each for each in seen.weak if each.parameters & {*lost} - known]):
        names = {name for each in group for name in each.parameters}
        more = [name for name in lost if name in names and name not in known]
        found.append(replace(cut_of(group), parameters=tuple(more)))
    return found


class _Audit:
    def __init__(self, step: Step, allowed: Allowed, tell: Progress) -> None:
        self.step = step
        self.allowed = allowed
        self.tell = tell
        self.notes: list[str] = []
        self.through: Lines = {}
        self.spared: Lines = {}

    def report(self, proof: bool) -> Report:
        step = self.step
        seen = look(step, self.allowed, self.tell)
        self.notes += [*seen.notes, *step.hooks.notes()]
        cuts = self._with_lines([*seen.cuts, *self._behind(seen)])
        hit = {name for cut in cuts for name in cut.parameters}
        rest = [name for name, got in seen.got.items() if name not in hit and not got]
        found = Ungiven() if seen.error else self._ungiven(rest, seen)
        cuts = _blamed(cuts, found.lost, seen)
        cuts += self._fainter({*found.lost} - {n for cut in cuts for n in cut.parameters}, seen)
        hit.update(name for cut in cuts for name in cut.parameters)
        lost = tuple(name for name in found.lost if name not in hit)
        bare = [cut for cut in cuts if not cut.parameters]
        said = Proof()
        if seen.within:
            self.notes.append(
                f"the forward goes backward by itself ({_listed(seen.within)}): what arrives then "
                "counts, and was not held against finite differences"
            )
        elif step.once:
            self.notes.append(
                "gradients were not held against finite differences: backward goes on into what "
                "was computed before the step, which does not follow the weights"
            )
        elif proof and any(seen.got.values()) and not seen.error and (bare or not cuts):
            said = prove(step, self.tell)
        if bare and said.said and not lost:  # another route, say, which the change has led to
            cuts = [cut for cut in cuts if cut.parameters]
        elif bare:  # a place of which only numbers can say what it hits
            hit.update(lost, said.wrong)
            named = tuple(name for name in step.parameters if name in lost or name in said.wrong)
            cuts = [cut if cut.parameters else replace(cut, parameters=named) for cut in cuts]
        hit.update(lost, seen.endless)
        self._doubt(found, said, seen.stopped, hit if bare else ())
        if copies := copied(step, seen.trace, found.unused):
            self.notes.append(said_of_copies(copies))
        kept, error = self._kept(seen)
        missing = tuple(name for name, got in seen.got.items() if name in hit and not got)
        wrong = tuple(name for name, got in seen.got.items() if name in hit and got)
        cuts = [if_meant(cut) if _may_be_meant(cut, missing) else cut for cut in cuts] + kept
        passages = passages_of(
            seen.trace, step.parameters, set(missing), set(wrong), set(seen.zeros) - hit,
            set(found.unused), cuts, seen.depending,
        )  # fmt: skip
        if (unmatched := self.allowed.unmatched()) and step.parameters and not seen.error:
            self.notes.append(
                f"no gradient ends at what is allowed by {', '.join(map(repr, unmatched))}: it may "
                "be misspelt, or of an older version of the source"
            )
        if apart := [each for each in seen.hidden if each not in self._hidden(seen)]:
            self.notes.append(said_of(apart))
        if not step.parameters:
            self.notes.append("no parameter requires a gradient: there is nothing to train")
        return Report(
            missing=missing,
            wrong=wrong,
            unused=found.unused,
            lost=(*found.meant, *found.stepwise, *found.faint, *found.unknown),
            zeros=tuple(name for name in seen.zeros if name not in hit),
            cuts=tuple(cuts),
            loss=seen.loss,
            trainable=len(step.parameters),
            copies=copies,
            frozen=tuple(n for n, p in step.model.named_parameters() if not p.requires_grad),
            proof=said.said,
            error=error or self._error(seen, cuts, lost) or _undecided(found.unknown),
            notes=tuple(self.notes),
            passages=passages,
        )

    def _fainter(self, lost: Collection[str], seen: Outcome) -> list[Cut]:
        """Cuts on which a loss of more bits depends, of parameters to which a gradient is due."""
        groups = by_site([each for each in seen.faint if not each.parameters.isdisjoint(lost)])
        if not groups:
            return []
        self.tell("where gradients end, in float64")
        trial = Trial(self.step, seen.trace, seen.stops, least=torch.float64)
        found = [cut_of(group) for group in groups if trial.matters(group)]
        return [
            replace(cut, parameters=tuple(n for n in cut.parameters if n in lost)) for cut in found
        ]

    def _kept(self, seen: Outcome) -> tuple[list[Cut], str]:
        """What makes the next step fail, or this one by what an earlier one has left, and how."""
        if may_be_of_earlier(seen.error):
            cuts = left_by_earlier(self.step, self.allowed)
            return cuts, f"backward raises {seen.error.partition(' (')[0]}" if cuts else ""
        if self.step.once or self.step.graphs_before:
            cuts, notes, raises = made_before(self.step, self.allowed)
            self.notes += notes
            if cuts or self.step.once:
                said = f"backward of a second step raises {BACKWARD_TWICE}"
                return cuts, said if raises else ""
        if not seen.keeps or seen.error or not any(seen.got.values()):
            return [], ""
        self.tell("a second step")
        cuts, notes, said = kept_graphs(self.step, self.allowed)
        self.notes += notes
        return cuts, said and f"backward of a second step raises {said}"

    def _error(self, seen: Outcome, cuts: Sequence[Cut], lost: Sequence[str]) -> str:
        if seen.error:
            return f"backward raises {seen.error}"
        if lost and not any(cut.parameters and set(lost) & {*cut.parameters} for cut in cuts):
            return (
                f"the loss changes with {', '.join(patterns(lost))}, of which the gradient is "
                "missing; where it is lost was not found"
            )
        endless = [n for n in seen.endless if not any(n in cut.parameters for cut in cuts)]
        if endless:
            return (
                f"the gradient of {', '.join(patterns(endless))} is infinite or not a number, and "
                "the loss is finite; where that comes up was not found"
            )
        if hidden := self._hidden(seen):
            return said_of(hidden)
        if self.step.parameters and not cuts and not any(seen.got.values()):
            return (
                "no parameter gets a gradient: the loss depends on none, or by steps only, as a "
                "comparison or a rounding makes them"
            )
        if (
            self.step.parameters
            and not cuts
            and {n for n, got in seen.got.items() if got} <= {*seen.zeros}
        ):
            return (
                "each gradient that arrives is zero in every element: nothing learns by this step"
            )
        return seen.untold

    def _hidden(self, seen: Outcome) -> list[Hidden]:
        """Weights that nobody trains: all of them where there is nothing else to train."""
        return [e for e in seen.hidden if not e.meant or not self.step.parameters]

    def _ungiven(self, names: Sequence[str], seen: Outcome) -> Ungiven:
        """What to think of parameters that get no gradient, and of which no cut says why."""
        if names:
            self.tell("parameters without a gradient")
        found = ungiven(self.step, names, seen.loss, seen.stops, *self._used(seen))
        if more := are_behind(self.step, found.coarse, seen.unseen, seen.trace):
            stepwise = tuple(name for name in found.stepwise if name not in more)
            found = replace(found, stepwise=stepwise, lost=(*found.lost, *more))
        if kept := tuple(name for name in found.lost if name in seen.kept_back):
            rest = tuple(name for name in found.lost if name not in kept)
            found = replace(found, meant=(*found.meant, *kept), lost=rest)
        if not seen.shaped:
            return found
        # There is a way in the graph, and what stops on it has a backward to that end.
        meant = tuple(name for name in found.lost if name in seen.reached)
        lost = tuple(name for name in found.lost if name not in seen.reached)
        return replace(found, meant=(*found.meant, *meant), lost=lost)

    def _used(self, seen: Outcome) -> tuple[set[str], set[str]]:
        """The parameters that any call was given; and those that go into the loss by any way."""
        given = {id(sight) for call in seen.trace.calls for sight in call.ins}
        reaching = within_reach(seen.trace)
        pairs = list(zip(seen.trace.known, self.step.state.tensors, strict=True))

        def named(ids: set[int]) -> set[str]:
            return {n for n, parameter in self.step.parameters.items() if id(parameter) in ids}

        return (
            named({id(tensor) for sight, tensor in pairs if id(sight) in given}),
            named({id(tensor) for sight, tensor in pairs if tensor_of(sight) in reaching}),
        )

    def _doubt(
        self, found: Ungiven, proof: Proof, stopped: Sequence[Place], accused: Collection[str]
    ) -> None:
        """Say what numbers say.  Of those that are ``accused`` there is a place that was found."""
        if found.meant:
            self.notes.append(
                f"the loss changes with {', '.join(patterns(found.meant))}, of which the gradient "
                "is missing; as it should be: gradients are stopped on purpose at "
                f"{_listed(stopped)}"
            )
        if found.stepwise:
            self.notes.append(
                f"the loss changes with {', '.join(patterns(found.stepwise))}, of which the "
                "gradient is missing; it changes by steps, as a comparison or a rounding makes "
                "them, or by too little to tell"
            )
        if found.faint:
            self.notes.append(
                f"whether the loss depends on {', '.join(patterns(found.faint))} cannot be told: "
                "none of its bits is another with them, and float64 is refused; no gradient "
                "arrives there"
            )
        self.notes += proof.doubts
        if not proof.wrong:
            return
        names = ", ".join(patterns(proof.wrong))
        said = f"the gradient of {names} is not the derivative of the loss"
        first, numbers = next(iter(proof.wrong.items()))
        if accused:
            said += f" ({first}: {numbers})"
        elif stopped:
            said += ", as it should be: gradients are stopped or shaped on purpose at "
            said += _listed(stopped)
        else:
            said += f" ({first}: {numbers}). Numbers alone accuse nobody: no place was found, so "
            said += "none is counted as wrong"
        self.notes.append(said)

    def _behind(self, seen: Outcome) -> list[Cut]:
        """What would be cut if gradients were not switched off where they are."""
        found: dict[tuple[str, object], Cut] = {(cut.place, cut.cause): cut for cut in seen.cuts}
        known = len(found)
        for _ in range(_ROUNDS):
            scopes = seen.scopes - self.step.ignored
            if not scopes:
                break
            self.step.ignored |= scopes
            self._merge(self.spared, seen.spared)
            try:
                seen = look(self.step, self.allowed, self.tell)
            except Exception as error:  # it runs without gradients, and with them it does not
                where = ", ".join(sorted(map(str, scopes)))
                self.notes.append(
                    f"with gradients on at {where} the forward raises "
                    f"{raised(error, self.step.places)}; what else is cut there was not seen"
                )
                break
            self._merge(self.through, seen.through)
            for cut in seen.cuts:
                found.setdefault((cut.place, cut.cause), cut)
        self.step.ignored.clear()
        return list(found.values())[known:]

    def _merge(self, into: Lines, found: Lines) -> None:
        for scope, lines in found.items():
            into.setdefault(scope, set()).update(lines)

    def _with_lines(self, cuts: Sequence[Cut]) -> list[Cut]:
        """Cuts by grad modes with all lines through which a gradient would go."""
        through = {str(scope): lines for scope, lines in self.through.items()}
        spared = {str(scope): lines for scope, lines in self.spared.items()}
        found = []
        for cut in cuts:
            if cut.cause is Cause.GRAD_MODE and cut.scope is not None:
                lines = {*cut.lines, *through.get(cut.scope, ())} - spared.get(cut.scope, set())
                cut = replace(cut, lines=tuple(sorted(lines)))
            found.append(cut)
        return found
