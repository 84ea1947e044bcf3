"""Checks for a training loop: a step that trains nothing raises, and says for which parameters.

Autograd treats a parameter that no gradient reaches as a fact of life, and so does an optimizer:
``backward()`` succeeds, ``step()`` skips it.  These two functions raise instead.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from .sharded import sharded_parameters

Parameters = (
    nn.Module
    | torch.optim.Optimizer
    | Iterable[nn.Module]
    | Iterable[Tensor]
    | Iterable[tuple[str, Tensor]]
)
"""What holds the parameters: modules, an optimizer, or the parameters, named or not."""


class NoGraph(RuntimeError):
    """A loss that no parameter can get a gradient from."""


class MissingGradients(RuntimeError):
    """A backward pass left parameters without a gradient; ``names`` are theirs."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


def backward(
    loss: Tensor,
    parameters: Parameters,
    *,
    allow: Iterable[str] = (),
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """``loss.backward()`` that raises unless a gradient arrives at every parameter.

    It counts what arrives in this call, so gradients accumulated before do not hide that nothing
    came.  A gradient of zeros has arrived: the A of a LoRA whose B is zero gets one.  So has what
    FSDP2 keeps for a later step to send.

    Args:
        loss: A tensor with a graph; of one element, unless ``gradient`` is given.
        parameters: What must get a gradient: modules, an optimizer, or parameters, named or not.
            Those with ``requires_grad=False`` are frozen, and not asked for.
        allow: Names that may get none, as in :mod:`fnmatch`: ``"experts.*"``.
        gradient, retain_graph, create_graph: As for :meth:`torch.Tensor.backward`.

    Raises:
        NoGraph: Before anything is computed, where ``loss`` has no graph.  A loss that was told
            ``requires_grad_(True)`` has none either.
        MissingGradients: After ``loss.backward()``, with the names of the parameters that got
            nothing, or before it where there is no parameter to train.
    """
    wanted = _trainable(parameters)
    _require_graph(loss, wanted)
    with _arrivals(wanted) as arrived:
        loss.backward(gradient, retain_graph=retain_graph, create_graph=create_graph)
    missing = [name for name, parameter in wanted if id(parameter) not in arrived]
    _raise_for(missing, len(wanted), allow)


def require_gradients(
    parameters: Parameters,
    loss: Tensor | None = None,
    *,
    allow: Iterable[str] = (),
    within: int = 1,
) -> None:
    """Raise unless every parameter that should learn has a gradient; call it after backward.

    For loops whose backward is called by somebody else.  Between steps, gradients have to be set to
    None (what ``zero_grad()`` does), or those of earlier steps hide what is missing now.  Gradients
    that FSDP2 has not sent yet are seen; while ``set_requires_all_reduce(False)`` holds, one for a
    group of its parameters counts for all of them.

    Args:
        parameters: As for :func:`backward`.
        loss: The loss, if at hand; it must have a graph.
        allow: As for :func:`backward`.
        within: Raise for a parameter only after so many calls in a row found it without a gradient.
            Layers that are dropped at random and experts that get no token have none in some steps.

    Raises:
        NoGraph: Where ``loss`` is given and has no graph.
        MissingGradients: With the names of the parameters that have no gradient, or where there
            is no parameter to train.
        ValueError: ``within`` is less than 1.
    """
    if within < 1:
        raise ValueError(f"within must be 1 or more, not {within}")
    wanted = _trainable(parameters)
    if loss is not None:
        _require_graph(loss, wanted)
    sharded = sharded_parameters()
    missing = []
    for name, parameter in wanted:
        of_fsdp = sharded.get(id(parameter))
        if of_fsdp:
            has_gradient, parameter = of_fsdp.has_gradient(), of_fsdp.shard
        else:
            has_gradient = parameter.grad is not None
        if has_gradient:
            if _calls_without:
                _calls_without.pop(parameter, None)
            continue
        _calls_without[parameter] = calls = _calls_without.get(parameter, 0) + 1
        if calls >= within:
            missing.append(name)
    _raise_for(missing, len(wanted), allow, within)


_calls_without = WeakIdKeyDictionary()  # for each parameter, how many in a row so far

_Named = list[tuple[str, Tensor]]


def _trainable(parameters: Parameters) -> _Named:
    """The parameters that require a gradient, with their names; a shared one counts once."""
    named = {id(parameter): (name, parameter) for name, parameter in _named(parameters)}
    wanted = [(name, parameter) for name, parameter in named.values() if parameter.requires_grad]
    if not wanted:
        what = f"all {len(named)} parameters are frozen" if named else "there are no parameters"
        raise MissingGradients(f"nothing to train: {what}", ())
    return wanted


def _named(parameters: Parameters) -> Iterator[tuple[str, Tensor]]:
    if isinstance(parameters, nn.Module):
        yield from parameters.named_parameters()
    elif isinstance(parameters, torch.optim.Optimizer):
        for group, held in enumerate(parameters.param_groups):
            names = held.get("param_names") or [
                f"param_groups[{group}]['params'][{i}]" for i in range(len(held["params"]))
            ]
            yield from zip(names, held["params"], strict=True)
    elif isinstance(parameters, Tensor) or not isinstance(parameters, Iterable):
        what = "one" if isinstance(parameters, Tensor) else type(parameters).__name__
        raise TypeError(f"parameters must be a module, an optimizer or several tensors, not {what}")
    else:
        for i, item in enumerate(parameters):
            if isinstance(item, nn.Module):
                yield from item.named_parameters()
            elif isinstance(item, Tensor):
                yield f"parameter {i}", item
            elif isinstance(item, tuple) and isinstance(item[-1], Tensor):
                yield item
            else:
                raise TypeError(f"{type(item).__name__} is no parameter, module or named parameter")


def _require_graph(loss: Tensor, wanted: _Named) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss is {type(loss).__name__}, not a tensor")
    if loss.grad_fn is not None or any(loss is parameter for _, parameter in wanted):
        return
    if not loss.requires_grad:
        why = "it was computed from nothing that requires a gradient, or with gradients off"
    else:
        why = "requires_grad was set on it by hand, which makes it a leaf and trains nothing"
    raise NoGraph(f"the loss has no graph: {why}. `trainify check` finds where it was cut")


@contextmanager
def _arrivals(wanted: _Named) -> Iterator[set[int]]:
    """The ids of the parameters that a gradient is accumulated into while the block runs.

    They are complete once the block has ended.
    """
    arrived: set[int] = set()
    handles: list[Any] = []
    before: list[tuple[Tensor, Tensor | None, int]] = []
    # FSDP2 takes it away from what it has gathered; DDP puts it where another process computed it.
    is_sent = dist.is_available() and dist.is_initialized()
    sharded = sharded_parameters()
    try:
        for _, parameter in wanted:
            if shows := _shows_arrival(parameter):
                grad = parameter.grad
                before.append((parameter, grad, grad._version if grad is not None else 0))
            if is_sent or not shows:
                of_fsdp = sharded.get(id(parameter))
                arrives = partial(_arrives, arrived, id(parameter))
                for tensor in of_fsdp.tell() if of_fsdp else [parameter]:
                    handles.append(tensor.register_post_accumulate_grad_hook(arrives))
        yield arrived
    finally:
        for handle in handles:
            handle.remove()
    for parameter, old, version in before:
        grad = parameter.grad
        if grad is not None and (grad is not old or grad._version != version):
            arrived.add(id(parameter))


def _arrives(arrived: set[int], parameter: int, _: Tensor) -> None:
    arrived.add(parameter)


def _shows_arrival(parameter: Tensor) -> bool:
    """Whether ``grad`` itself tells that something came: it is new, or its version counts on.

    Not where a hook may take the gradient away again, as optimizers in backward do, nor where
    ``grad`` shares its version with others', as in DDP's buckets.  A hook of ours costs more than a
    hundred times as much.
    """
    if type(parameter) not in (nn.Parameter, Tensor) or parameter._post_accumulate_grad_hooks:
        return False
    grad = parameter.grad
    return grad is None or (type(grad) is Tensor and not grad._is_view() and not grad.is_sparse)


_SHOWN = 8
"""Names in a message; the exception has all of them."""


def _raise_for(missing: list[str], of: int, allow: Iterable[str], within: int = 1) -> None:
    allow = (allow,) if isinstance(allow, str) else tuple(allow)
    names = [n for n in missing if not any(fnmatch.fnmatchcase(n, pattern) for pattern in allow)]
    if not names:
        return
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        shown += f" and {len(names) - _SHOWN} more"
    when = f" in {within} steps" if within > 1 else ""
    raise MissingGradients(
        f"{len(names)} of {of} parameters got no gradient{when}: {shown}. Freeze those that should "
        "not learn, or name them in `allow`; `trainify check` finds where the others are cut off",
        tuple(names),
    )
