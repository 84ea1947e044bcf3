"""Whether a model computes, once it is rewritten, what it computed before.

An audit holds gradients against the values that the model has now.  A rewriting that computes
something else has the right gradients of another model.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import unwrap
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .audit.alone import step_alone
from .audit.losses import Loss, outputs
from .audit.places import NOWHERE, Place, qualified
from .audit.runs import Step
from .equal import differing
from .inplace import original_code

_SAMPLE = 512
"""How many elements of a tensor are kept."""

_NOTICED = 1e-3
"""Relative, of what the whole model returns: a fault of a layer makes more."""

_GIVEN, _RETURNED = 0.05, 0.25
"""Relative, of what a layer is given and of what it returns: more than rounding makes, and more
than a kernel of few bits."""

_FEW, _MANY = 0.02, 0.25
"""Shares of the elements: a kernel leaves some of a buffer as it was, as padding."""


def computed(
    model: nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any],
    loss: Loss | None,
    *,
    rewritten: bool = False,
) -> Computed | None:
    """What the modules of a model compute in a forward; None where none can be run."""
    with step_alone(model, inputs, keywords, loss) as step:
        try:
            return None if step is None else Computed(step, rewritten)
        except Exception:  # which the audit tells of
            return None


class Computed:
    """What each call of a module in a forward was given and returned: some elements of it.

    A call that is another in a second forward is not kept: there is memory that nothing was
    written to.  Nor is one that takes derivatives, which are to be others.  One that is another
    where other random numbers are drawn is held only against one for which as many were; which
    those are is asked of the model before it is rewritten alone.
    """

    def __init__(self, step: Step, rewritten: bool) -> None:
        calls = _calls(step)
        self._drawn = _random_state()
        again = _calls(step)
        others = calls if rewritten else _calls(step, _draw_others)
        self._calls = {key: call for key, call in calls.items() if call.is_that_of(again.get(key))}
        self._random = {key for key, call in calls.items() if not call.is_that_of(others.get(key))}

    def another(self, now: Computed) -> str:
        """Where the rewritten model computes something else; empty where it does not.

        That is the first module to return other values than before when it is given the same, if
        what the whole model returns is not the same either.
        """
        keys = [key for key in self._calls if key in now._calls]
        if not self._drawn.equal(now._drawn):
            keys = [key for key in keys if key not in self._random]
        pairs = {key: (self._calls[key], now._calls[key]) for key in keys}
        if _ROOT in pairs and _return_others(*pairs[_ROOT], _NOTICED):
            for before, after in pairs.values():
                if before.is_given_what(after) and _return_others(before, after, _RETURNED):
                    return before.said()
        return ""


_Key = tuple[str, int]
"""A module's name, and the number of the call."""

_ROOT: _Key = ("", 0)


@dataclass
class _Call:
    name: str
    module: type[nn.Module]
    given: list[Tensor]
    returned: list[Tensor]
    derives: bool = False
    """Whether derivatives are taken in it, by the engine or by a transform of ``torch.func``."""

    def is_given_what(self, other: _Call) -> bool:
        """Whether the two are given the same, but for rounding."""
        return not _differ(self.given, other.given, _GIVEN, _FEW)

    def is_that_of(self, other: _Call | None) -> bool:
        """Whether nothing differs from another forward; numbers that are none never do."""
        return other is not None and not (
            self.derives
            or _differ(self.given, other.given, 0.0, 0.0)
            or _differ(self.returned, other.returned, 0.0, 0.0)
        )

    def said(self) -> str:
        """Where this call returns something else than another one."""
        module = self.module.__qualname__
        where = f"{self.name} ({module})" if self.name else module
        return (
            f"{_place(self.module)}: {where}, given the same, returns other values once it is "
            "rewritten"
        )


def _return_others(one: _Call, two: _Call, tolerance: float) -> bool:
    return _differ(one.returned, two.returned, tolerance, _MANY)


def _place(module: type[nn.Module]) -> Place:
    """Where the forward of a class is written."""
    function = unwrap(module.forward)
    if not isinstance(function, FunctionType):
        return NOWHERE
    code = original_code(function)
    return Place(code.co_filename, code.co_firstlineno, qualified(code))


def _calls(step: Step, change: Callable[[], None] | None = None) -> dict[_Key, _Call]:
    """The calls in a forward; what ends first comes first."""
    calls: dict[_Key, _Call] = {}
    running: list[_Call] = []
    numbers: dict[str, int] = {}

    def derive() -> None:
        for call in running:
            call.derives = True

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        running.append(_Call(step.modules[id(module)], type(module), [], []))
        if torch._C._are_functorch_transforms_active():
            derive()
        else:
            running[-1].given = _samples(tree_leaves((args, kwargs)))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        call = running.pop()
        if not call.derives:
            call.returned = _samples(outputs(output))
        number = numbers[call.name] = numbers.get(call.name, -1) + 1
        calls[call.name, number] = call

    step.begin(change)  # which takes hooks away that were not there at the start
    with _hooked(step.model.modules(), enter, leave), _deriving(derive):
        step.another_loss()
    return calls


@contextmanager
def _hooked(
    modules: Iterable[nn.Module], enter: Callable[..., None], leave: Callable[..., None]
) -> Iterator[None]:
    with ExitStack() as stack:
        for module in modules:
            if not isinstance(module, torch.jit.ScriptModule):
                before = module.register_forward_pre_hook(enter, with_kwargs=True)
                after = module.register_forward_hook(leave, always_call=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
        yield


@contextmanager
def _deriving(derive: Callable[[], None]) -> Iterator[None]:
    """Be told of backwards, by whatever name they are called."""
    names, name = vars(torch.autograd), "_engine_run_backward"
    original = names[name]

    def run(*args: Any, **kwargs: Any) -> Any:
        derive()
        return original(*args, **kwargs)

    names[name] = run
    try:
        yield
    finally:
        names[name] = original


def _random_state() -> Tensor:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return torch.cat(states)


def _draw_others() -> None:
    torch.manual_seed(random.getrandbits(62))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(random.getrandbits(31))


def _samples(values: Iterable[Any]) -> list[Tensor]:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return [_sample(value) for value in values if _can_be_sampled(value)]


def _can_be_sampled(value: Any) -> bool:
    if type(value) not in (Tensor, nn.Parameter) or value.layout is not torch.strided:
        return False
    return value.is_floating_point() and not value.is_meta and value.numel() > 0


def _sample(tensor: Tensor) -> Tensor:
    chosen = torch.Generator().manual_seed(tensor.numel())
    places = torch.randint(tensor.numel(), (min(_SAMPLE, tensor.numel()),), generator=chosen)
    return tensor.detach().reshape(-1)[places.to(tensor.device)].double().cpu()


def _differ(one: list[Tensor], two: list[Tensor], tolerance: float, share: float) -> bool:
    """Whether more than a share of the elements of some tensor differ by more than a tolerance."""
    return len(one) == len(two) and any(
        a.shape != b.shape or differing(a, b, tolerance) > share
        for a, b in zip(one, two, strict=True)
    )
