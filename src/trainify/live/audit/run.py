"""``trainify.audit``: one step of a model, judged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .allowed import Allowed
from .cuts import MISSING, WRONG, Comparison, Suspect
from .influence import Sources
from .local import LocalChecks, Verdict
from .locate import Locator
from .losses import Loss
from .matters import Trial
from .messages import cut_of
from .passages import passages_of
from .report import Cause, Cut, Report
from .runs import Step
from .saved import Saved, Saving
from .state import nudge
from .trace import Call, Observer, Trace, Tracer

Progress = Callable[[str], None]


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

    The model is left as it was: parameters, gradients, buffers, what it holds in attributes, and
    the random number generators.

    Args:
        model: A model whose parameters require gradients where they should learn.
        inputs: What it is called with; ``keywords`` as well.
        loss: Makes a tensor of one element from the model's output.  By default ``output.loss``,
            the output itself where it is one number, else a fixed projection of the outputs.
        allow: Places where gradients are stopped on purpose: files (``"ema.py"``), lines
            (``"model.py:120"``), functions (``"Quantizer.forward"``) or module paths
            (``"teacher.*"``), as in :mod:`fnmatch`.  In the source, the comment
            ``# trainify: stop-grad`` on the line says the same.
        proof: Whether the gradients of a model without cuts are held against directional
            derivatives, in float64 where the model takes it.
        progress: Is told what is going on.

    Raises:
        ValueError: There is no loss to be had from the output.
        Exception: Whatever the model's forward raises.
    """
    tell = progress or (lambda _: None)
    was_on = torch.is_grad_enabled()
    step = Step(model, inputs, keywords, loss)
    try:
        return _Audit(step, Allowed(allow), tell, was_on).report(proof)
    finally:
        step.state.end()


class _Base(Observer):
    """What the first run looks for on the side."""

    def __init__(self) -> None:
        self.saved: Saved | None = None
        self.underivable: list[tuple[Call, int, str]] = []

    @contextmanager
    def watching(self, tracer: Tracer) -> Iterator[None]:
        self.saved = Saved(tracer.trace)
        with Saving(tracer, self.saved.told, self.saved.taken):
            yield

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        if self.saved is not None:
            self.saved.done()
        if isinstance(out, Tensor) and out.requires_grad and out.grad_fn is not None:
            name = out.grad_fn.name()
            if "NotImplemented" in name:
                self.underivable.append((call, 0, name))
        return out


class _Audit:
    def __init__(self, step: Step, allowed: Allowed, tell: Progress, was_on: bool) -> None:
        self.step = step
        self.allowed = allowed
        self.tell = tell
        self.notes: list[str] = []
        if not was_on:
            self.notes.append(
                "gradients were switched off where audit was called (set_grad_enabled(False), or a "
                "scope around it); it ran with gradients on, but a step there would train nothing"
            )

    def report(self, proof: bool) -> Report:
        step = self.step
        self.tell("forward and backward")
        base, value, got, error = self._base()
        self.tell("forward with other parameters")
        checks = LocalChecks()
        nudged, _ = step.run(checks, partial(nudge, list(step.parameters.values())))
        comparison = Comparison(base, nudged)
        suspects = [*comparison.suspects(), *self._local(base, checks), *self._side]
        cuts = self._judge(suspects, base)
        if error:
            self.notes.append(f"backward raises: {error}")
        missing, wrong = self._split(cuts, got)
        rest = [n for n in step.parameters if not got[n] and n not in missing and n not in wrong]
        unused = self._unused(rest, value) if not error else ()
        passages = passages_of(
            base, step.parameters, set(missing), set(wrong), set(unused), cuts, comparison.depending
        )
        said = ""
        if proof and not cuts and not error and step.parameters:
            from .directional import prove

            said, doubts = prove(step, tell=self.tell)
            self.notes += doubts
        if not step.parameters:
            self.notes.append("no parameter requires a gradient: there is nothing to train")
        return Report(
            missing=missing,
            wrong=wrong,
            unused=unused,
            cuts=tuple(cuts),
            loss=value,
            trainable=len(step.parameters),
            frozen=tuple(n for n, p in step.model.named_parameters() if not p.requires_grad),
            proof=said,
            notes=tuple(self.notes),
            passages=passages,
        )

    def _base(self) -> tuple[Trace, float, dict[str, bool], str]:
        """The step as it is: trace, loss, which parameters get a gradient, what backward raises."""
        observer = _Base()
        trace, loss = self.step.run(observer)
        parameters = self.step.parameters
        got = dict.fromkeys(parameters, False)
        error = ""
        if loss.requires_grad and parameters:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
                got = {n: g is not None for n, g in zip(parameters, found, strict=True)}
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}".partition("\n")[0]
        self._side = [
            Suspect(Cause.SAVED, WRONG, call, ("saved", number), hidden=True)
            for call, number in (observer.saved.overwritten() if observer.saved else ())
        ]
        for call, j, name in observer.underivable:
            suspect = Suspect(Cause.KERNEL, MISSING, call, ("out", j))
            suspect.detail = "raises" if "Warn" not in name else ""
            self._side.append(suspect)
        return trace, loss.detach().double().item(), got, error

    def _local(self, base: Trace, checks: LocalChecks) -> Iterator[Suspect]:
        """The calls at whose place a backward was found wrong."""
        for finding in checks.findings:
            for call in base.calls:
                if call.key[:3] != finding.call.key[:3]:
                    continue
                op = not isinstance(call.function, type)
                none = finding.verdict is not Verdict.WRONG
                cause = Cause.KERNEL if op and none else Cause.BACKWARD
                kind = MISSING if none else WRONG
                where = ("out", 0) if call.outs else ("written", min(call.written, default=0))
                suspect = Suspect(cause, kind, call, where, inputs=finding.inputs)
                suspect.detail = finding.verdict.value
                if finding.error:
                    suspect.detail = f"raises: {finding.error}"
                yield suspect

    def _judge(self, suspects: list[Suspect], base: Trace) -> list[Cut]:
        step = self.step
        if not suspects:
            return []
        trial = Trial(step)
        suspects = self._steady(suspects, base, trial)
        hidden = [each for each in suspects if each.hidden]
        if hidden:
            self.tell("forward, line by line")
            known = list(step.state.tensors)
            step.run(Locator(hidden, base, step.places, step.names, known))
        sources = Sources(suspects, step.names, self.allowed)
        if suspects:
            step.run(sources)
        suspects = [each for each in suspects if not self.allowed.covers(each)]
        return self._influential(suspects, trial)

    def _steady(self, suspects: list[Suspect], base: Trace, trial: Trial) -> list[Suspect]:
        """Those whose values are the same when nothing was changed."""
        self.tell("forward once more")
        again, _ = self.step.run()
        steady: list[Suspect] = []
        shaky: list[Suspect] = []
        for each in suspects:
            twin = again.by_key.get(each.call.key)
            same = twin is not None and _same(each, base, again, twin)
            (steady if same else shaky).append(each)
        sites: dict[Any, list[Suspect]] = {}
        for each in shaky:
            sites.setdefault(each.site, []).append(each)
        for group in sites.values():
            if trial.matters(group):
                self.notes.append(
                    f"{group[0].place}: not the same in two equal runs, so it cannot be judged"
                )
        return steady

    def _influential(self, suspects: list[Suspect], trial: Trial) -> list[Cut]:
        """One cut for each site on whose values the loss depends."""
        sites: dict[Any, list[Suspect]] = {}
        for each in suspects:
            sites.setdefault(each.site, []).append(each)
        cuts = []
        for number, group in enumerate(sites.values(), 1):
            self.tell(f"whether the loss depends on place {number} of {len(sites)}")
            if trial.matters(group):
                cuts.append(cut_of(group))
        return _without_consequences(cuts)

    def _split(
        self, cuts: Sequence[Cut], got: dict[str, bool]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        hit = {name for cut in cuts for name in cut.parameters}
        missing = tuple(name for name in got if name in hit and not got[name])
        wrong = tuple(name for name in got if name in hit and got[name])
        return missing, wrong

    def _unused(self, names: Sequence[str], value: float) -> tuple[str, ...]:
        """Of parameters without a gradient, those on which the loss does not depend."""
        if not names:
            return ()
        self.tell("parameters without a gradient")
        parameters = self.step.parameters
        groups, unused = [list(names)], set()
        while groups:
            group = groups.pop()
            change = partial(nudge, [parameters[n] for n in group])
            if self.step.value(change) == value:
                unused.update(group)
            elif len(group) > 1:
                half = len(group) // 2
                groups += [group[:half], group[half:]]
            else:
                self.notes.append(
                    f"{group[0]} gets no gradient, though the loss changes with it; where it is "
                    "lost was not found"
                )
        return tuple(name for name in names if name in unused)


def _same(suspect: Suspect, base: Trace, again: Trace, twin: Call) -> bool:
    what, i = suspect.where
    call = suspect.call
    if what in ("host", "saved"):
        return True
    if what == "written":
        pair = call.written.get(i), twin.written.get(i)
        if pair[0] is None or pair[1] is None:
            return False
        sights = pair[0][0], pair[1][0]
    else:
        lists = (call.ins, twin.ins) if what == "in" else (call.outs, twin.outs)
        if i >= len(lists[0]) or i >= len(lists[1]):
            return False
        sights = lists[0][i], lists[1][i]
    return base.digest(sights[0]) == again.digest(sights[1])


def _without_consequences(cuts: list[Cut]) -> list[Cut]:
    """Values that come back into torch have left it somewhere else, where that was seen."""
    out = any(cut.cause in (Cause.HOST, Cause.DETACH, Cause.DATA) for cut in cuts)
    return [
        cut
        for cut in cuts
        if not (out and cut.cause in (Cause.OPAQUE, Cause.KERNEL) and not cut.parameters)
    ]
