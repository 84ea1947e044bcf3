"""One step of a model, run again and again from the same state, and watched."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from .checkpoints import Way, in_sight
from .control import control_flow_as_python
from .hooks import Hooks
from .losses import Loss, given_loss, loss_of, made_from
from .noise import is_zero
from .pinned import Pinned
from .places import Place, Places, raised
from .state import State, nudge
from .trace import Observer, Trace, Tracer, Unseen, tensor_of

Change = Callable[[], None]

_AWAKE = 100.0
"""How many nudges a parameter of zeros is put off, for what it multiplies to be seen."""

_COARSE = 30.0
"""How much larger a nudge is where values are rounded."""


class Step:
    """A model, what it is called with, and what becomes of its output."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Any],
        keywords: Mapping[str, Any],
        loss: Loss | None,
        copies: Mapping[int, Tensor] | None = None,
    ) -> None:
        """``copies`` as for :class:`State`."""
        _refuse_other(model, loss)
        _refuse_iterators((inputs, keywords))
        self.model = model
        self.inputs = tuple(inputs)
        self.keywords = dict(keywords)
        self.loss = loss
        self.modules = {id(module): name for name, module in model.named_modules()}
        """Their names, by id."""
        self.places = Places(model.modules())
        self.ignored: set[Place] = set()
        """Where gradients stay on although they are switched off; traced runs only."""
        self.pinned = Pinned(model)
        self.coarse = False
        """Whether values are rounded to integers, so that only a larger nudge moves them."""
        self.rounding = 0.0
        """The relative size of what rounding may eat: of the type with the fewest bits."""
        self.sealed = False
        """Whether nothing but torch runs in backward."""
        self.projected = False
        """Whether the loss is none of the model's, and what it is made of is not known."""
        self.once = False
        """Whether one backward frees what the next one needs, as it was saved before the step."""
        self.graphs_before = False
        """Whether the model holds something with a history that is no step's."""
        self.writes = True
        """Whether the forward writes into parameters."""
        self.inferring = False
        """Whether something is computed in ``inference_mode``."""
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.hooks = Hooks(self.parameters)
        self.names = {id(p): n for n, p in self.parameters.items()}
        self.zeros = [p for p in self.parameters.values() if p.numel() and is_zero(p.detach())]
        """Gates that are shut before training: what lies behind them moves no loss."""
        self.state = State(model, [self.inputs, self.keywords], copies)

    def run(
        self,
        observer: Observer | None = None,
        change: Change | None = None,
        checkpoints: Way = in_sight,
    ) -> tuple[Trace, Tensor]:
        """Run the forward and the loss once, traced; the loss comes with its graph.

        Args:
            observer: What looks on, or takes a hand.
            change: What is done to the parameters before; the next run undoes it.
            checkpoints: What becomes of them.
        """
        self.begin(change)
        self.pinned.start()
        tracer = Tracer(self.modules, self.places, observer, self.ignored, self.pinned)
        with as_in_training(checkpoints, self._inference):
            tracer.know(self.state.tensors)
            with tracer, tracer.observer.watching(tracer):
                out = self.model(*self.inputs, **self.keywords)
                if self.loss is not None:
                    out = self.loss(out)
                tracer.look_at(made_from(out))
            self.projected = self.loss is None and given_loss(out) is None
            return tracer.trace, _one_number(loss_of(out) if self.loss is None else out)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around a backward, in which there are gradients: what they take is let go before."""
        if self.sealed:
            self.state.let_go()
        self.writes = not self.state.as_before(self.model.parameters())
        try:
            yield
        finally:
            self.state.take_again()

    def gradients(self, loss: Tensor, of: Iterable[Tensor]) -> tuple[Tensor | None, ...]:
        """Those of tensors, None where there is none; to be called within :meth:`backward`."""
        return torch.autograd.grad(loss, list(of), retain_graph=self.once, allow_unused=True)

    def known(self, trace: Trace) -> Iterator[tuple[int, Tensor]]:
        """What was there before a run, each with its number by :func:`~.trace.tensor_of`."""
        return zip(map(tensor_of, trace.known), self.state.tensors, strict=True)

    def nudge(self, names: Iterable[str], times: float = 1.0) -> Change:
        """A change that puts parameters a little off, or as many times as far."""
        chosen = [self.parameters[name] for name in names]
        least = max(1e-3, 8 * self.rounding)
        return partial(nudge, chosen, (_COARSE if self.coarse else 1.0) * times, least)

    def awake(self, change: Change | None = None) -> Change:
        """A change after which no parameter is zero throughout, and another one."""

        def both() -> None:
            nudge(self.zeros, _AWAKE)
            if change is not None:
                change()

        return both

    def value(self, change: Change | None = None) -> float:
        """The loss of a run that nothing watches."""
        return self.loss_of_run(change).detach().double().item()

    def loss_of_run(self, change: Change | None = None) -> Tensor:
        """As :meth:`value`, with its graph."""
        if self.pinned.used:
            return self.run(Unseen(), change)[1]
        self.begin(change)
        return self.another_loss()

    def another_loss(self, inputs: Any = None, keywords: Any = None) -> Tensor:
        """The loss, with its graph, of a run that begins where the last one has left off."""
        inputs = self.inputs if inputs is None else inputs
        keywords = self.keywords if keywords is None else keywords
        with as_in_training():
            return self._loss(inputs, keywords)

    def _loss(self, inputs: Any, keywords: Any) -> Tensor:
        out = self.model(*inputs, **keywords)
        return _one_number(loss_of(out) if self.loss is None else self.loss(out))

    def _inference(self) -> None:
        self.inferring = True

    def untouched(self) -> str:
        """What a step raises of which nothing is seen and nothing is changed; empty for nothing."""
        self.begin()
        try:
            with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
                warnings.simplefilter("ignore")
                loss = self._loss(self.inputs, self.keywords)
                with self.backward():
                    self.gradients(loss, self.parameters.values())
        except Exception as error:
            return raised(error, self.places)
        return ""

    def begin(self, change: Change | None = None) -> None:
        """Be as at the start, but for a change."""
        self.state.restore()
        if change is not None:
            change()
        self.state.uncount()


def refuse_no_model(model: object) -> None:
    """Raise TypeError for what is no model."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is {type(model).__name__}, not a torch.nn.Module")


def _refuse_other(model: nn.Module, loss: Loss | None) -> None:
    """Raise for what is no model, or one whose parameters cannot be trained by anything."""
    refuse_no_model(model)
    if loss is not None and not callable(loss):
        raise TypeError(f"the loss is {type(loss).__name__}, which cannot be called")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"{name} is made by the first call of the model: call it once before")
        if parameter.is_meta:
            raise ValueError(f"{name} has no values: it is on the meta device")
        if hasattr(parameter, "device_mesh"):
            raise ValueError(
                f"{name} is sharded (DTensor), so that its values are not all here: audit the "
                "model, or give trainify its inputs, before fully_shard"
            )
        if parameter.requires_grad and parameter.is_inference():
            raise ValueError(f"{name} was made in inference_mode, so that it cannot be trained")


def _refuse_iterators(given: Any) -> None:
    """Raise for what can be gone through once: the second run would get nothing of it."""
    for each in tree_leaves(given):
        if isinstance(each, Iterator):
            raise ValueError(
                f"an input is an iterator ({type(each).__name__}), and a step is run several "
                "times: give a list of what it goes through"
            )


def _one_number(out: Any) -> Tensor:
    if not isinstance(out, Tensor) or out.numel() != 1:
        what = f"{tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"loss must return a tensor of one element, not {what}")
    if not out.is_floating_point():
        raise ValueError(f"loss must return a floating-point number, not {out.dtype}")
    return out.reshape(())


@contextmanager
def as_in_training(
    checkpoints: Way = in_sight, inferring: Callable[[], object] = bool
) -> Iterator[None]:
    """Gradients on, and compiled code as the Python that it was compiled from.

    ``inferring`` is called where the model computes something in ``inference_mode``.
    """
    with ExitStack() as stack:
        _forget_parametrized()
        stack.callback(_forget_parametrized)
        # What the model's lines warn of would come from here, again and again.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(control_flow_as_python())
        stack.enter_context(checkpoints())
        stack.enter_context(_inference_softened(inferring))
        stack.enter_context(torch.enable_grad())
        yield


def _forget_parametrized() -> None:
    """Within ``parametrize.cached()``: a weight, and its graph with it, is of one run."""
    parametrize._cache.clear()


@contextmanager
def _inference_softened(inferring: Callable[[], object]) -> Iterator[None]:
    """``inference_mode`` as ``no_grad``.

    A forward that goes on with what was computed in it would raise, before all has been seen.
    """
    cls = torch.inference_mode
    enter, leave = cls.__enter__, cls.__exit__

    def __enter__(self: Any) -> None:
        if self.mode:
            inferring()
        self._grad_before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(not self.mode)

    def __exit__(self: Any, *exception: Any) -> None:
        torch._C._set_grad_enabled(self._grad_before)

    cls.__enter__, cls.__exit__ = __enter__, __exit__  # type: ignore[method-assign]
    try:
        yield
    finally:
        cls.__enter__, cls.__exit__ = enter, leave  # type: ignore[method-assign]
