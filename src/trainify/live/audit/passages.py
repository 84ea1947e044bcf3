"""What the gradient does in each module, for the picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .cuts import MISSING, WRONG
from .report import Cut, Flow, Passage
from .trace import Trace


def passages_of(
    trace: Trace,
    parameters: Iterable[str],
    missing: set[str],
    wrong: set[str],
    zeros: set[str],
    unused: set[str],
    cuts: Sequence[Cut],
    depending: set[str],
) -> tuple[Passage, ...]:
    """The modules that ran, in order; ``depending`` are those with values of parameters in them."""
    own: dict[str, list[str]] = {}
    for name in parameters:
        own.setdefault(name.rpartition(".")[0], []).append(name)
    ends = {module for cut in cuts if cut.kind == MISSING for module in cut.marked}
    lies = {module for cut in cuts if cut.kind == WRONG for module in cut.marked}
    flows: dict[str, Flow] = {}
    around: list[str] = []  # without a gradient and parameters of their own
    for module in trace.modules:
        names = own.get(module, [])
        if module in ends:
            flow = Flow.ENDS
        elif module in lies or any(name in wrong for name in names):
            flow = Flow.LIES
        elif any(name in missing for name in names):
            flow = Flow.NONE
        elif names and all(name in unused for name in names):
            flow = Flow.UNUSED
        elif names and all(name in zeros or name in unused for name in names):
            flow = Flow.ZEROS
        elif names or module in trace.arrived:
            flow = Flow.FLOWS
        else:
            flow = Flow.NONE if module in depending else Flow.UNUSED
            around.append(module)
        flows[module] = flow
    for module in reversed(around):
        within = {flows[each] for each in flows if each.startswith(f"{module}.") or not module}
        if Flow.FLOWS in within:
            flows[module] = Flow.FLOWS
        elif Flow.ZEROS in within:
            flows[module] = Flow.ZEROS
        elif within - {Flow.UNUSED}:
            flows[module] = Flow.NONE
    return tuple(
        Passage(module, kind, _bent(module, flows, own), len(own.get(module, [])))
        for module, kind in trace.modules.items()
    )


def _bent(module: str, flows: dict[str, Flow], own: dict[str, list[str]]) -> Flow:
    """Where there are no parameters to tell whether what flows is right, others do.

    Of a module with modules in it that is the last of them, at which the gradient comes in; else
    the next one before, to which it goes.
    """
    if flows[module] is not Flow.FLOWS or module in own:
        return flows[module]
    within = [each for each in flows if each.startswith(f"{module}." if module else "") and each]
    if within:
        telling = [flows[each] for each in within if each in own]
        return Flow.LIES if telling and telling[-1] is Flow.LIES else Flow.FLOWS
    before = list(flows)[: list(flows).index(module)]
    telling = [flows[each] for each in before if each in own]
    return Flow.LIES if telling and telling[-1] is Flow.LIES else Flow.FLOWS
