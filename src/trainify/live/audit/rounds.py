"""The step from one end to the other: run, compared, and each suspect judged."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .against import is_held_against, may_be_held_against
from .aliases import through_aliases
from .allowed import Allowed
from .aside import Aside
from .attributes import Apart
from .checkpoints import as_they_are, gone
from .compared import Gradients, arriving, set_aside, summed
from .cuts import MISSING, WRONG, Comparison, Suspect, by_site
from .earlier import lets_one_through, next_history
from .edited import edited_weights
from .endless import is_finite, is_overflow, where_endless
from .handed import Copied, handed
from .influence import Sources, Walk
from .kept import held
from .level import Level
from .local import LocalChecks, Verdict, site_of
from .locate import Locator
from .matters import Trials
from .meant import Meant
from .messages import STOPS, cut_of
from .noise import is_zero
from .places import Place, said
from .report import Cause, Cut, patterns
from .running import is_statistic
from .runs import Step
from .saved import is_checkpoint
from .targets import is_target
from .through import Lines, history_behind, lines_through
from .trace import Call, Observer, Sight, Trace, Unseen, result
from .unregistered import Hidden, hidden_in, reached_by
from .within import Within
from .within_reach import that_reach

Progress = Callable[[str], None]


_APART = 1e-3
"""A share of the loss that no order of summands makes, as kernels without a fixed one have it."""

_DRAWS = re.compile("rand|normal|bernoulli|poisson|multinomial|exponential|dropout")
"""In the names of what draws random numbers, of whatever generator."""

_OTHERS, _NO = "the loss is not the same in two equal runs", "that cannot be judged"

_FRAME = re.compile(r'File "(.+?)", line (\d+), in (\S+)')


@dataclass
class Outcome:
    """What one round has found."""

    trace: Trace
    loss: float
    got: dict[str, bool]
    """Whether a parameter gets a gradient."""
    error: str
    """What backward raises; empty where it does not."""
    cuts: list[Cut]
    scopes: set[Place]
    """Where gradients are switched off that should not be."""
    depending: set[str]
    """The modules in which something depends on parameters."""
    stopped: list[Place]
    """Where gradients are stopped or shaped on purpose."""
    stops: list[Suspect]
    """Those of them that are stopped, by what is allowed."""
    reached: set[str]
    """The parameters in the graph of the loss, also those that no gradient arrives at."""
    shaped: bool
    """Whether there is a backward that is another on purpose."""
    beside: dict[Place, set[str]]
    """Parameters behind what else happens on the line of a cut, or of what is one only of them."""
    weak: list[Suspect]
    """What takes the gradient of parameters that get none anywhere."""
    faint: list[Suspect]
    """What the loss does not depend on, as far as its bits say."""
    unseen: list[Suspect]
    """What unseen code makes, and the loss depends on."""
    through: Lines
    """The lines of ignored scopes through which gradients go."""
    spared: Lines
    """The lines of scopes at which gradients are stopped on purpose."""
    zeros: list[str]
    """Parameters at which zeros alone arrive."""
    endless: list[str]
    """Parameters whose gradient is infinite, or not a number."""
    within: list[Place]
    """Where the forward goes backward by itself."""
    hidden: list[Hidden]
    """Weights in the graph of the loss that are in no module's parameters."""
    keeps: bool
    """Whether the model, or what it was given, holds something with a history after the step."""
    untold: str
    """What cannot be told, since equal runs differ."""
    kept_back: set[str]
    """Parameters of which views may keep the gradient: that is allowed."""
    notes: list[str]


def look(step: Step, allowed: Allowed, tell: Progress) -> Outcome:
    """Run the step as often as it takes to know where its gradients end or lie."""
    return _Round(step, allowed, tell).outcome()


class _Round:
    def __init__(self, step: Step, allowed: Allowed, tell: Progress) -> None:
        self.step = step
        self.allowed = allowed
        self.tell = tell
        self.notes: list[str] = []
        self.scopes: set[Place] = set()
        self.stopped: list[Place] = []
        self.spared: Lines = {}
        self.ends: list[Suspect] = []
        """Those at which a gradient ends that should not."""
        self.zeros: list[str] = []
        """Parameters whose gradient has arrived, and is zero throughout."""
        self.endless: list[str] = []
        """Parameters whose gradient is infinite, or not a number."""
        self.stops: list[Suspect] = []
        self.arrays: set[Place] = set()
        """Where NumPy computes in the memory of tensors."""
        self.beside: dict[Place, set[str]] = {}
        self.weak: list[Suspect] = []
        self.faint: list[Suspect] = []
        self.unseen: list[Suspect] = []
        self.apart = False
        """Whether equal runs differ by more than rounding."""
        self.untold = ""
        """What cannot be told, since equal runs differ; empty where that is nothing."""
        self.within = Within(step.places)

    def outcome(self) -> Outcome:
        step = self.step
        self.tell("forward and backward")
        hidden = hidden_in(step.model)
        start = next_history()
        step.graphs_before = any(each.history < start for each in held(step.model))
        observer = Aside(step)
        trace, loss = step.run(observer)
        self._leave_frozen()
        step.sealed = _is_sealed(step.model, trace)
        self.within = observer.within
        self.within.gradients = {
            n: p.grad for n, p in step.parameters.items() if p.grad is not None
        }
        step.once = loss.requires_grad and lets_one_through(loss, start, step.parameters.values())
        step.state.read_by_others = step.once
        got, error = self._gradients(loss)
        value = loss.detach().double().item()
        if not math.isfinite(value):
            raise ValueError(f"the loss is {value}: nothing can be said of its gradients")
        behind = history_behind(loss) if step.ignored else set()
        found = reached_by(loss, hidden)
        reached = set() if all(got.values()) else Walk(step.names).parameters([loss])
        goes_back = loss.requires_grad and bool(step.parameters)
        del loss
        keeps = bool(observer.attached.living(step.state.lent)) or any(held(step.model))
        trace.known += step.state.take_in(observer.foreign.living())
        repeated = observer.repeated()
        if repeated:
            repeated, got, error = self._repeated(repeated, got, error)
        edited = []
        if step.writes and goes_back and not error:
            self.tell("the gradients with weights as they were used")
            edited = edited_weights(step, trace)
        self.tell("forward with other parameters")
        checks = LocalChecks()
        step.state.trusting = not (step.writes or step.once) and not any(
            call.opaque or call.name == "torch.Tensor.data" for call in trace.calls
        )
        inexact = [t for t in trace.types if t.is_floating_point or t.is_complex]
        step.rounding = max((torch.finfo(t).eps for t in inexact), default=0.0)
        step.coarse = any(out.narrow for call in trace.calls for out in call.outs)
        nudged = step.run(checks, step.nudge(step.parameters))[0]  # its graph goes at once
        comparison = Comparison(trace, nudged)
        suspects = [
            *comparison.suspects(),
            *_backwards(trace, checks),
            *observer.suspects(),
            *self._bending(observer.overwritten(), Apart(), "what is kept", error),
            *edited,
        ]
        shared = handed(trace, checks)
        shared = self._not_allowed(self._bending(shared, Copied(shared), "gradients", error))
        cuts = self._judge(suspects, trace, nudged, value, got)
        aliases = [] if error else through_aliases(step, trace)
        lent = self._not_allowed(aliases)
        kept_back = {n for each in aliases if each not in lent for n in each.parameters}
        cuts += map(cut_of, by_site([*repeated, *shared, *lent]))
        cuts += self._endless(trace) if self.endless else []
        if not error and not cuts and (observer.written or step.inferring):
            self.tell("a step that nothing watches")
            error = step.untouched()  # autograd refuses what was written, with any values
        if error and not cuts:
            cuts = self._raising(error)
        buffers = _weights_in_buffers(step, trace)
        if buffers:
            self.notes.append(
                f"buffers that are used as weights do not learn: {', '.join(patterns(buffers))}"
            )
        steps = [call for call in trace.calls if _is_flat(call)] if self.zeros else []
        if steps:
            where = ", ".join(dict.fromkeys(f"{each.name} ({each.place})" for each in steps))
            self.notes.append(
                f"gradients of zeros alone arrive at {', '.join(patterns(self.zeros))}; the "
                f"derivative of {where} is zero"
            )
        if self.zeros and observer.bending:
            where = ", ".join(map(str, observer.bending))
            self.notes.append(
                f"gradients of zeros alone arrive at {', '.join(patterns(self.zeros))}; what "
                f"arrives is made another by a hook ({where})"
            )
        stopped = [*self.stopped, *checks.shaped, *observer.bending, *_on_purpose(trace)]
        ends = (sight for each in self.ends for sight in each.call.ins)
        through = lines_through(trace, behind, ends) if step.ignored else {}
        return Outcome(
            trace, value, got, error, cuts, self.scopes, comparison.depending, stopped, self.stops,
            reached, bool(checks.shaped), self.beside, self.weak, self.faint, self.unseen, through,
            self.spared, self.zeros, self.endless, self.within.places, found, keeps, self.untold,
            kept_back, self.notes,
        )  # fmt: skip

    def _leave_frozen(self) -> None:
        """Take no more for parameters that learn what the forward has left frozen, as critics."""
        frozen = [n for n, p in self.step.parameters.items() if not p.requires_grad]
        for name in frozen:
            parameter = self.step.parameters.pop(name)
            self.step.names.pop(id(parameter), None)
        if frozen:
            self.notes.append(
                f"the forward switches requires_grad of {', '.join(patterns(frozen))} off, and "
                "leaves it so: these are taken for frozen"
            )

    def _gradients(self, loss: Tensor) -> tuple[dict[str, bool], str]:
        """Which parameters get one, and what backward raises."""
        parameters = self.step.parameters
        within = self.within.gradients
        if not (loss.requires_grad and parameters):
            self.step.writes = not self.step.state.as_before(self.step.model.parameters())
            self.zeros = [n for n, g in within.items() if is_zero(g)]
            self.endless = [n for n, g in within.items() if not is_finite(g)]
            return {name: name in within for name in parameters}, ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with self.step.backward(), self.step.hooks.watched(), set_aside(self.step):
                    asked = self.step.gradients(loss, parameters.values())
                    found = arriving(parameters.values(), asked)
                    found = summed(found, [within.get(name) for name in parameters])
                    del asked
                    got = {n: g is not None for n, g in zip(parameters, found, strict=True)}
                    self.zeros = [
                        n
                        for n, g in zip(parameters, found, strict=True)
                        if g is not None and is_zero(g) and n not in self.step.hooks.bent
                    ]
                    self.endless = [
                        n
                        for n, g in zip(parameters, found, strict=True)
                        if g is not None and not is_finite(g)
                    ]
                    del found
        except Exception as raised:
            return dict.fromkeys(parameters, False), said(raised)
        return got, ""

    def _repeated(
        self, suspects: list[Suspect], got: dict[str, bool], error: str
    ) -> tuple[list[Suspect], dict[str, bool], str]:
        """Those of the suspects, which lie in checkpoints, that bend gradients; and what is got.

        Of reentrant checkpoints it has been seen as of the others so far.
        """
        self.tell("the gradients without checkpoints")
        rest = self._not_allowed(suspects)
        try:
            found = Gradients(self.step, as_they_are)
        except Exception:
            names = list(got) if error else []
        else:
            error = ""
            got = {name: gradient is not None for name, gradient in found.of.items()}
            differing = found.differ(Gradients(self.step, gone))
            names = differing or []
            if differing is None:
                places = ", ".join(dict.fromkeys(str(each.place) for each in rest))
                self.notes.append(
                    "the loss is not the same in two equal runs, and neither is what a checkpoint "
                    f"computes at {places}: that cannot be judged"
                )
        for each in rest:
            each.parameters.update(names)
        return rest if names else [], got, error

    def _bending(
        self, suspects: list[Suspect], copying: Observer, what: str, error: str
    ) -> list[Suspect]:
        """Those of the suspects, which lie in what is written over, that bend gradients."""
        if not suspects or error:
            return []
        self.tell(f"the gradients with copies of {what}")
        found = Gradients(self.step)
        names = found.differ(Gradients(self.step, observer=copying))
        for each in suspects:
            each.parameters.update(names or ())
        return suspects if names else []

    def _endless(self, trace: Trace) -> list[Cut]:
        """Where gradients become infinite, or no numbers."""
        self.tell("where gradients become infinite")
        if torch.float16 in trace.types and is_overflow(self.step):
            self.notes.append(
                f"the gradient of {', '.join(patterns(self.endless))} is infinite or not a number "
                "in float16, and finite in float32: training needs torch.amp.GradScaler, or "
                "bfloat16"
            )
            self.endless.clear()
            return []
        found = where_endless(self.step, self.endless)
        rest = self._not_allowed(found)
        if len(rest) < len(found):
            self.endless.clear()
        return [cut_of(group) for group in by_site(rest)]

    def _not_allowed(self, suspects: list[Suspect]) -> list[Suspect]:
        """Those of the suspects that are not allowed; where the others are is noted."""
        allowed = [each for each in suspects if self.allowed.covers(each)]
        self.stopped += [each.place for each in allowed]
        return [each for each in suspects if each not in allowed]

    def _raising(self, error: str) -> list[Cut]:
        """The call whose node raises in backward, as autograd's own anomaly mode tells it."""
        self.tell("forward and backward, to see what raises")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with torch.autograd.set_detect_anomaly(True, check_nan=False):
                    _, loss = self.step.run(Unseen())
                    with self.step.backward():
                        self.step.gradients(loss, self.step.parameters.values())
            except Exception:  # which is known
                pass
        told = "".join(str(each.message) for each in caught if "Traceback" in str(each.message))
        places = [
            Place(path, int(line), function)
            for path, line, function in _FRAME.findall(told)
            if self.step.places.is_users(path)
        ]
        if not places:
            return []
        place = places[-1]
        return [
            Cut(
                Cause.BACKWARD, MISSING, None, place.path, place.line, place.function,
                f"Backward raises in what is computed here: {error}",
                parameters=tuple(self.step.parameters),
            )
        ]  # fmt: skip

    def _judge(
        self,
        suspects: list[Suspect],
        base: Trace,
        nudged: Trace,
        value: float,
        got: dict[str, bool],
    ) -> list[Cut]:
        step = self.step
        if not suspects:
            return []
        suspects = self._steady(suspects, base, value)
        hidden = [each for each in suspects if each.hidden]
        if hidden:
            self.tell("forward, line by line")
            lost = self._locate(hidden, base)
            suspects = [e for e in suspects if e not in lost or e.call.function is not result]
        if suspects:
            step.run(Sources(suspects, step.names, self.allowed))
        suspects = [e for e in suspects if not (e.steps and all(map(got.get, e.parameters)))]
        buffers = {name.rpartition(".")[2] for name, _ in step.model.named_buffers()}
        targets = _targets([each for each in suspects if not each.weak], got, buffers)
        # These keep nothing from what comes before them, as those that are allowed do.
        suspects = [each for each in suspects if not self.within.covers(each)]
        allowed = [e for e in suspects if self.allowed.covers(e) or e.place in targets]
        meant = Meant(step, base, nudged)
        samples = meant.of_samples(suspects)
        rest = [each for each in suspects if each not in allowed and each not in samples]
        allowed += meant.parts_of_the_loss(rest, got)
        self.stops = allowed
        self.stopped += [each.place for each in allowed]
        for each in allowed:
            if each.within is not None:
                self.spared.setdefault(each.within.scope, set()).add(each.within.line)
        suspects = [each for each in suspects if each not in allowed and each not in samples]
        self.weak = [each for each in suspects if each.weak]
        trial = Trials(step, base, allowed)
        strong = [each for each in suspects if not each.weak]
        cuts = self._influential(strong, trial, base, got)
        if self.apart and not cuts:
            self._untell(strong, base)
        return cuts

    def _locate(self, hidden: list[Suspect], base: Trace) -> list[Suspect]:
        """Find what nobody sees; where it only repeats what stood there, with other parameters.

        Returns what was not found.
        """
        step = self.step
        for change in (None, step.nudge(step.parameters)):
            known = list(step.state.tensors)
            locator = Locator(hidden, base, step.places, step.names, known)
            step.run(locator, change)
            self.arrays |= locator.arrays
            for place, names in locator.beside.items():
                self.beside.setdefault(place, set()).update(names)
            hidden = [each for each in hidden if id(each) not in locator.found]
            if not hidden:
                break
        return hidden

    def _steady(self, suspects: list[Suspect], base: Trace, value: float) -> list[Suspect]:
        """Those whose values are the same when nothing was changed."""
        self.tell("forward once more")
        again, loss = self.step.run()
        other = loss.detach().double().item()
        changes = other != value
        del loss
        steady: list[Suspect] = []
        shaky: list[Suspect] = []
        for each in suspects:
            twin = again.by_key.get(each.call.key)
            same = twin is not None and _same(each, base, again, twin)
            (steady if same or is_checkpoint(each.call) else shaky).append(each)
        self.apart = abs(other - value) > _APART * max(abs(other), abs(value))
        telling = [e for e in shaky if not _DRAWS.search(e.call.name)] if self.apart else []
        if shaky and changes and not self._untell(telling, base):
            self.notes.append(f"{_OTHERS}, and neither is what is computed at {_at(shaky)}: {_NO}")
        return steady

    def _untell(self, suspects: list[Suspect], trace: Trace) -> bool:
        """Say of suspects in the loss, which is another one each time, that nothing can be said."""
        telling = that_reach(trace, suspects)
        if telling:
            self.untold = (
                f"{_OTHERS}, and goes by what is computed at {_at(telling)}: whether a gradient is "
                "lost there cannot be told"
            )
        return bool(telling)

    def _influential(
        self, suspects: list[Suspect], trial: Trials, trace: Trace, got: dict[str, bool]
    ) -> list[Cut]:
        """One cut for each site on whose values the loss depends."""
        groups = by_site(suspects)
        level = Level(self.step, self.stops)
        cuts = []
        for number, group in enumerate(groups, 1):
            self.tell(f"whether the loss depends on place {number} of {len(groups)}")
            if trial.matters(group):
                names = {name for each in group for name in each.parameters}
                if names and all(map(got.get, names)) and level.covers(group):
                    continue
                self.beside.setdefault(group[0].place, set()).update(names)
                cut = cut_of(group := _that_matter(group, trial, got))
                if cut.cause in STOPS:
                    whole = not self.step.projected
                    target = is_held_against(self.step, trace, group, suspects, whole)
                    target = target or (whole and may_be_held_against(trace, group))
                    cut = replace(cut, target=target)
                cuts.append(cut)
                self.ends += group
                self.unseen += [e for e in group if e.hidden and e.where[0] == "in"]
                self.scopes.update(
                    each.scope
                    for each in group
                    if each.cause is Cause.GRAD_MODE and each.scope is not None
                )
            else:
                self.faint += group
        return _without_consequences(cuts, self.arrays)


_FLAT = ("round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside")
"""Functions that are constant but for their jumps, so that autograd passes zeros through them."""


def _is_flat(call: Call) -> bool:
    name = call.name.rpartition(".")[2].rstrip("_")
    return name in _FLAT and call.grad and any(sight.attached for sight in call.ins)


def _is_sealed(model: nn.Module, trace: Trace) -> bool:
    """Whether the backward of a step runs nothing of the model's own, which may write anywhere."""
    own = any(call.opaque or isinstance(call.function, type) for call in trace.calls)
    hooked = trace.hooked or any(parameter._backward_hooks for parameter in model.parameters())
    hooked = hooked or any(
        module._backward_hooks or module._backward_pre_hooks for module in model.modules()
    )
    hooks = torch.nn.modules.module
    everywhere = hooks._global_backward_hooks or hooks._global_backward_pre_hooks
    return not (own or hooked or everywhere)


def _on_purpose(trace: Trace) -> Iterator[Place]:
    """Calls of torch whose gradient is another on purpose, and writes into weights."""
    for call in trace.calls:
        writes = any(
            after.leaf and after.attached and trace.digest(call.ins[i]) != trace.digest(after)
            for i, (after, _) in call.written.items()
        )
        if writes or call.name.endswith("functional.gumbel_softmax"):
            yield call.place


def _weights_in_buffers(step: Step, trace: Trace) -> list[str]:
    """Buffers that a linear map takes as its weight; they may be meant to be frozen."""
    names = {id(buffer): name for name, buffer in step.model.named_buffers()}
    tensors = list(step.state.tensors)
    known = {
        id(sight): names[id(tensor)]
        for sight, tensor in zip(trace.known, tensors, strict=True)
        if id(tensor) in names and sight.floating
    }
    found: dict[str, None] = {}
    for call in trace.calls if known else ():
        if call.name.rpartition(".")[2] == "linear" and len(call.ins) > 1:
            sight: Sight | None = call.ins[1]
            while sight is not None and sight.earlier is not None:
                sight = sight.earlier
            if id(sight) in known:
                found[known[id(sight)]] = None
    return list(found)


def _backwards(trace: Trace, checks: LocalChecks) -> Iterator[Suspect]:
    """The calls at places where a backward was found to be wrong."""
    for finding in checks.findings:
        if finding.verdict is Verdict.OVERWRITES:  # which does not say that anything is wrong
            continue
        for call in trace.calls:
            if site_of(call.key) != site_of(finding.call.key):
                continue
            op = not isinstance(call.function, type)
            none = finding.verdict is not Verdict.WRONG
            cause = Cause.KERNEL if op and none else Cause.BACKWARD
            results = _results(trace, call)
            for where in results if op and none else results[:1]:
                kind = MISSING if none else WRONG
                suspect = Suspect(cause, kind, call, where, inputs=finding.inputs)
                suspect.detail = f"raises: {finding.error}" if finding.error else ""
                yield suspect


def _results(trace: Trace, call: Call) -> list[tuple[str, int]]:
    """What a call returns, else what it changes."""
    if call.outs:
        return [("out", i) for i, out in enumerate(call.outs) if out.floating] or [("out", 0)]
    changed = [
        ("written", i)
        for i, (after, _) in sorted(call.written.items())
        if trace.digest(call.ins[i]) != trace.digest(after)
    ]
    return changed or [("written", min(call.written, default=0))]


def _same(suspect: Suspect, base: Trace, again: Trace, twin: Call) -> bool:
    what, i = suspect.where
    call = suspect.call
    if what in ("host", "saved", "kept", "weight"):
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


def _at(suspects: Iterable[Suspect]) -> str:
    return ", ".join(dict.fromkeys(str(each.place) for each in suspects))


def _targets(suspects: list[Suspect], got: dict[str, bool], buffers: Collection[str]) -> set[Place]:
    """Where a loss is held against detached values, of parameters that learn by another way.

    Or where such are kept for the next step, as a statistic in a buffer.
    """
    behind: dict[Place, set[str]] = {}
    for each in suspects:
        behind.setdefault(each.place, set()).update(each.parameters)
    others = {each.place for each in suspects if each.cause is not Cause.DETACH}
    return {
        place
        for place, names in behind.items()
        if names and all(map(got.get, names))
        if (place not in others and is_target(place)) or is_statistic(place, buffers)
    }


def _that_matter(group: list[Suspect], trial: Trials, got: dict[str, bool]) -> list[Suspect]:
    """Of what happens at one site, that on which the loss depends; all where none does alone.

    Of the results of a kernel one may go nowhere.

    In a scope that takes the gradient of others, a line whose parameters learn by another way may
    only write into these, to clip them say.
    """
    causes = {each.cause for each in group}
    if len(causes) > 1:
        matter = {c for c in causes if trial.matters([each for each in group if each.cause is c])}
        group = [each for each in group if each.cause in matter] or group
    results: dict[Any, list[Suspect]] = {}
    for each in group:
        if each.call.opaque:
            results.setdefault((each.place, each.where), []).append(each)
    for made in results.values() if len(results) > 1 else ():
        alone = {name for each in made for name in each.parameters}
        alone.difference_update(*(each.parameters for each in group if each not in made))
        if alone and not trial.matters(made):
            group = [each for each in group if each not in made] or group
    learning: dict[Place, list[Suspect]] = {}
    for each in group:
        if each.parameters and all(map(got.get, each.parameters)):
            learning.setdefault(each.place, []).append(each)
    rest = [each for each in group if not all(map(got.get, each.parameters))]
    if not rest:
        return group
    idle = [each for at in learning.values() if not trial.matters(at) for each in at]
    return [each for each in group if each not in idle]


def _without_consequences(cuts: list[Cut], arrays: Collection[Place]) -> list[Cut]:
    """Values that come back into torch have left it somewhere else, where that was seen.

    At ``arrays`` NumPy computes in memory that it may have been given there.
    """
    out = [cut for cut in cuts if cut.cause in (Cause.HOST, Cause.DETACH, Cause.DATA)]
    left = {name for cut in out for name in cut.parameters}

    def follows(cut: Cut) -> bool:
        if not out or cut.cause not in (Cause.OPAQUE, Cause.KERNEL):
            return False
        in_memory = Place(cut.path, cut.line, cut.function) in arrays
        return not cut.parameters or (in_memory and left.issuperset(cut.parameters))

    return [cut for cut in cuts if not follows(cut)]
