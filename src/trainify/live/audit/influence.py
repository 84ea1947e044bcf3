"""Whether the loss depends on a value, and which parameters the value comes from."""

from __future__ import annotations

import sys
from collections.abc import Collection, Hashable, Iterable, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .allowed import Allowed
from .behind import arguments_behind
from .cuts import Suspect, keys
from .parts import of_precision
from .trace import Call, Key, Observer, node_of, nodes_behind, tensors_in

_WHOLE = 0.1
"""The share from which on integers are changed, too."""


Kept = dict[Key, dict[int, Tensor]]
"""Results of calls, by their index."""


def functions_of(at: Iterable[Key]) -> Set[Hashable]:
    """What is called there."""
    return {function for function, *_ in at}


class Keep(Observer):
    """Keeps what calls return whose gradient is stopped on purpose.

    What comes before such a call passes no gradient on through it, and need not.
    """

    sights = False

    def __init__(self, suspects: Sequence[Suspect]) -> None:
        self._at = keys([each for each in suspects if each.where[0] == "out"])
        self.functions = functions_of(self._at)
        self.values: Kept = {}

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        for suspect in self._at.get(call.key, ()):
            found = returned(out, tensors)
            if suspect.where[1] < len(found):
                value = found[suspect.where[1]].detach().clone()
                self.values.setdefault(call.key, {})[suspect.where[1]] = value
        return out


class Disturb(Observer):
    """Adds noise to what suspects say is cut off, of a ``share`` of its size.

    What a call returns is replaced by another tensor, not written into: a tensor that shares its
    memory has to stay as it is.
    """

    sights = False

    def __init__(
        self,
        suspects: Sequence[Suspect],
        share: float,
        seed: int = 0,
        kept: Kept | None = None,
        in_proportion: bool = False,
    ) -> None:
        """With ``in_proportion`` each number changes by a share of itself, and keeps its sign."""
        self._kept = kept or {}
        self._in_proportion = in_proportion
        self._at = keys(list(suspects))
        self.functions: Set[Hashable] | None = functions_of((*self._at, *self._kept))
        self._share = share
        self._generator = torch.Generator().manual_seed(seed)
        self.writes = any(each.where[0] in ("in", "written") for each in suspects)
        """Whether it writes into memory, which may be that of a parameter."""

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        for suspect in self._at.get(call.key, ()):
            what, i = suspect.where
            if what == "in" and i < len(tensors):
                self._write(tensors[i])

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        for j, value in self._kept.get(call.key, {}).items():
            found = returned(out, tensors)
            if j < len(found) and found[j].shape == value.shape:
                out = replaced(out, found[j], value.clone())
        for suspect in self._at.get(call.key, ()):
            what, i = suspect.where
            if what == "host":
                out = self._host(out)
            elif what == "written" and i < len(tensors):
                self._write(tensors[i])
            elif what == "out":
                found = returned(out, tensors)
                if i < len(found):
                    out = replaced(out, found[i], self._disturbed(found[i]))
        return out

    def _write(self, tensor: Tensor) -> None:
        with torch.inference_mode(tensor.is_inference()):
            tensor.data.copy_(self._disturbed(tensor))  # autograd is not to know

    def _disturbed(self, tensor: Tensor) -> Tensor:
        if tensor.is_quantized:
            plain = self._disturbed(tensor.dequantize())
            return torch.quantize_per_tensor(
                plain, tensor.q_scale(), tensor.q_zero_point(), tensor.dtype
            )
        values = tensor.detach().clone()
        if values.numel() == 0:
            return values
        if not values.is_floating_point() and not values.is_complex():
            if self._share < _WHOLE:
                return values
            step = torch.randint(-1, 2, values.shape, generator=self._generator)
            return values + step.to(values)
        kind = of_precision(values.dtype, torch.float32)
        noise = torch.randn(values.shape, generator=self._generator, dtype=kind)
        if self._in_proportion:
            return values.mul_(noise.tanh().to(values).mul_(self._share).add_(1))
        size = values.abs().double().square().mean().sqrt().nan_to_num(0).item() or 1.0
        return values.add_(noise.to(values), alpha=size * self._share)

    def _host(self, value: Any) -> Any:
        if isinstance(value, float):
            return value + self._share * (abs(value) + 1e-3)
        if isinstance(value, list):
            return [self._host(each) for each in value]
        if getattr(getattr(value, "dtype", None), "kind", "") == "f":
            return (value + self._share * (abs(value) + 1e-3)).astype(value.dtype)
        return value


def returned(out: Any, arguments: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in a result that are no arguments, as a trace counts them."""
    given = {id(tensor) for tensor in arguments}
    return [tensor for tensor in tensors_in((out,)) if id(tensor) not in given]


def replaced(out: Any, tensor: Tensor, other: Tensor) -> Any:
    """A result with another tensor in place of one of its own."""
    return tree_map(lambda each: other if each is tensor else each, out)


class Sources(Observer):
    """Finds the parameters behind what goes into the calls that suspects are at."""

    sights = False

    def __init__(
        self, suspects: Sequence[Suspect], names: dict[int, str], allowed: Allowed
    ) -> None:
        self._allowed = allowed
        self._at = keys([each for each in suspects if not each.hidden])
        self.functions = functions_of(self._at)
        self._walks: dict[Any, Walk] = {}
        self._behind: dict[Any, Collection[int]] = {}
        """By call at its place, its form, and the result: which arguments this depends on."""
        self._names = names

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        for suspect in self._at.get(call.key, ()):
            self._allowed.note(suspect, sys._getframe(1))
            result = call.key[:3], _form(args, kwargs), len(tensors), suspect.where
            if result not in self._behind:
                self._behind[result] = arguments_behind(
                    suspect.call, suspect.where, args, kwargs, tensors
                )
            behind = [i for i in self._behind[result] if i < len(tensors)]
            # Of a scope each line is judged by itself as well, and so is each result of a kernel.
            at = suspect.site, suspect.place, suspect.where if suspect.call.opaque else None
            walk = self._walks.setdefault(at, Walk(self._names))
            given = [tensors[i] for i in behind if suspect.inputs is None or i in suspect.inputs]
            suspect.parameters |= walk.parameters(given)


def _form(args: Sequence[Any], kwargs: dict[str, Any]) -> Hashable:
    """What kinds of arguments a call has: of two on a line, one may go without a bias."""
    return tuple(map(type, args)), tuple((name, type(value)) for name, value in kwargs.items())


class Walk:
    """Goes back through autograd's graph, over each node once."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._seen: dict[int, Any] = {}

    def parameters(self, tensors: Iterable[Tensor]) -> set[str]:
        """The names of the parameters that newly come up behind ``tensors``."""
        tensors = list(tensors)
        views = [t._base for t in tensors if t.requires_grad and t._base is not None]
        found = {self._names[id(t)] for t in (*tensors, *views) if id(t) in self._names}
        return found | self.behind([node_of(t) for t in tensors if t.requires_grad])

    def behind(self, nodes: Iterable[Any]) -> set[str]:
        """As :meth:`parameters`, of nodes."""
        leaves = (getattr(node, "variable", None) for node in nodes_behind(nodes, self._seen))
        return {self._names[id(leaf)] for leaf in leaves if id(leaf) in self._names}
