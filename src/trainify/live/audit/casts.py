"""A step in more bits than the model has, without a copy of the model.

Each parameter is cast where it is used, and again where backward needs it; what else autograd saves
it keeps in float32.  So a step in float64 takes about the memory of one in float32.  Gradients come
in float32, summed up from float64; in the results of a forward nothing is rounded.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map

from .compared import arriving, set_aside
from .functions import ALIASES, attribute_of
from .runs import Step
from .saved import saved_by
from .widen import Widening, wide

_NARROW = (torch.float16, torch.bfloat16, torch.float32)

_ABOUT = {"size", "dim", "numel", "nelement", "stride", "is_contiguous", "is_floating_point",
          "__len__", "__hash__", "__repr__", "__deepcopy__", "__reduce_ex__", "requires_grad_",
          "retain_grad", "untyped_storage", "storage_offset"}  # fmt: skip
"""Methods that say something about a parameter, and do not compute with it."""

_SMALL = 1 << 10
"""Elements up to which nothing is gained by rounding."""

_RECENT = 2
"""How many casts are kept, for a parameter that is used again and again, an expert at a time."""

Move = Callable[[Tensor], None]
"""Writes a change into the cast of a parameter."""


class _Kind(enum.Enum):
    """What a function of torch does with a parameter."""

    COMPUTES = enum.auto()
    ASKS = enum.auto()
    TYPE = enum.auto()
    """Asks for its type."""
    SETS = enum.auto()
    """Gives it other values."""


def _kind(function: Any) -> _Kind:
    attribute, name = attribute_of(function), getattr(function, "__name__", "")
    if attribute == "dtype":
        return _Kind.TYPE
    if attribute and attribute not in ALIASES:
        return _Kind.ASKS
    if attribute and name == "__set__":
        return _Kind.SETS
    asks = name in _ABOUT or name.startswith("register_")
    return _Kind.ASKS if asks else _Kind.COMPUTES


class CannotCast(Exception):
    """The model asks for what only a copy of it can give."""


class Casts(Widening):
    """While it is active, float64 is what parameters hold, and what is computed in."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(torch.float64)
        self._wanted = {id(each) for each in parameters}
        self._kinds: dict[Any, _Kind] = {}
        self._ports: dict[int, Tensor] = {}
        self._recent: dict[tuple[int, bool], Tensor] = {}
        self._of_storage: dict[int, tuple[StorageWeakRef, Tensor]] = {}
        self.moves: Mapping[int, Move] = {}
        """What is done to casts, by the parameter's id."""

    def leaf(self, parameter: Tensor) -> Tensor:
        """What a gradient by ``parameter`` is asked of, in float32 at least."""
        if parameter.dtype == torch.float32:
            return parameter
        zero = torch.zeros((), dtype=torch.float32, device=parameter.device)
        port = self._ports.setdefault(id(parameter), zero.expand(parameter.shape))
        return port.requires_grad_()

    def cast(self, parameter: Tensor) -> Tensor:
        """The parameter in float64; with its history where gradients are on."""
        key = id(parameter), torch.is_grad_enabled()
        found = self._recent.pop(key, None)
        if found is None:
            while len(self._recent) >= _RECENT:
                del self._recent[next(iter(self._recent))]
            found = self._cast(parameter)
            storage = found.untyped_storage()
            self._of_storage[storage._cdata] = StorageWeakRef(storage), parameter
        self._recent[key] = found
        return found

    def _cast(self, parameter: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            if not parameter.requires_grad or parameter.dtype == torch.float32:
                wide = parameter.to(torch.float64)
            else:
                wide = self.leaf(parameter) + parameter.detach().to(torch.float64)
            move = self.moves.get(id(parameter))
            if move is not None:
                with torch.no_grad():
                    move(wide.detach())
            return wide

    def parameter_in(self, tensor: Tensor) -> Tensor | None:
        """The parameter of which ``tensor`` is a cast, or a view of one."""
        storage = tensor.untyped_storage()
        found = self._of_storage.get(storage._cdata)
        return None if found is None or found[0].expired() else found[1]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        if kind is _Kind.COMPUTES:
            args = self._all_cast(args)
            if kwargs:
                kwargs = {name: self._all_cast(each) for name, each in kwargs.items()}
            return super().__torch_function__(func, types, args, kwargs)
        if kind is not _Kind.ASKS and id(args[0]) in self._wanted:
            if kind is _Kind.TYPE:
                return torch.float64
            raise CannotCast("what a parameter holds is set")
        return func(*args, **(kwargs or {}))

    def _all_cast(self, value: Any) -> Any:
        if id(value) in self._wanted:
            return self.cast(value)
        if type(value) in (tuple, list):
            for i, each in enumerate(value):
                if id(each) in self._wanted or type(each) in (tuple, list):
                    cast = [*value[:i], *map(self._all_cast, value[i:])]
                    return cast if type(value) is list else tuple(cast)
        return value

    def __enter__(self) -> Casts:
        super().__enter__()
        base = torch.autograd.function._SingleLevelFunction
        original = torch._C._FunctionBase.__dict__["apply"]
        casts = self

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            return original.__get__(None, cls)(*casts._all_cast(args), **kwargs)

        base.apply = classmethod(apply)  # type: ignore[attr-defined]
        return self

    def __exit__(self, *exception: Any) -> None:
        del torch.autograd.function._SingleLevelFunction.apply  # type: ignore[attr-defined]
        super().__exit__(*exception)
        self._recent.clear()
        self._of_storage.clear()


class Casting:
    """Runs of a step in float64, on the model itself."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._casts = Casts([p for p in step.model.parameters() if p.dtype in _NARROW])

    def loss(self) -> Tensor:
        saved = _Saved(self._casts)
        with saved_by(saved.pack, saved.unpack):
            return self._run()

    def gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        leaves = [self._casts.leaf(parameter) for parameter in self.step.parameters.values()]
        edges = [edge_of(leaf) for leaf in leaves]
        with self._casts, set_aside(self.step, leaves):
            found = torch.autograd.grad([edge_of(loss)], edges, allow_unused=True)
            return arriving(leaves, found)

    def value(self, moves: Mapping[str, Move]) -> float:
        parameters = self.step.parameters
        self._casts.moves = {id(parameters[name]): move for name, move in moves.items()}
        try:
            with saved_by(_nothing, _no_more):
                return self._run().item()
        finally:
            self._casts.moves = {}

    def _run(self) -> Tensor:
        self.step.begin()
        with _wide_buffers(self.step.model), self._casts:
            widen = partial(wide, dtype=torch.float64)
            inputs, keywords = tree_map(widen, (self.step.inputs, self.step.keywords))
            return self.step.another_loss(inputs, keywords)


@contextmanager
def _wide_buffers(model: nn.Module) -> Iterator[None]:
    """Buffers in float64, as long as it lasts."""
    narrow: list[tuple[Any, str, Tensor]] = []
    try:
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.dtype in _NARROW:
                    narrow.append((module._buffers, name, buffer))
                    module._buffers[name] = buffer.to(torch.float64)
        yield
    finally:
        for buffers, name, buffer in narrow:
            buffers[name] = buffer


def edge_of(tensor: Tensor) -> Any:
    """Where gradients of ``tensor`` go.

    In the place of a tensor, for ``torch.autograd.grad``: for a function of tensors a mode is set
    aside, and a checkpoint computes again in there.
    """
    with torch._C.DisableTorchFunction():
        return torch.autograd.graph.get_gradient_edge(tensor)


def _nothing(tensor: Tensor) -> None:
    """Of what autograd saves where no backward follows."""


def _no_more(packed: None) -> Tensor:
    raise CannotCast("a backward within the forward")


class _Rounded:
    """A tensor that autograd saves, in float32, and once where it repeats itself."""

    def __init__(self, tensor: Tensor) -> None:
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if stride == 0 and size > 1:
                tensor = tensor.narrow(dim, 0, 1)
        self._values = tensor.detach().to(torch.float32)

    def wide(self, shape: torch.Size) -> Tensor:
        return self._values.to(torch.float64).expand(shape)


class _Saved:
    """Hooks for what autograd saves: casts are made again, the rest is kept in float32."""

    def __init__(self, casts: Casts) -> None:
        self._casts = casts
        self._known: dict[Any, tuple[StorageWeakRef, weakref.ref[_Rounded]]] = {}

    def pack(self, tensor: Tensor) -> Any:
        if tensor.dtype != torch.float64 or tensor.layout is not torch.strided:
            return tensor
        with torch._C.DisableTorchFunction(), torch.no_grad():
            offset, strides = tensor.storage_offset(), tensor.stride()
            parameter = self._casts.parameter_in(tensor)
            if parameter is not None:
                return parameter, tensor.shape, strides, offset
            if tensor.numel() <= _SMALL:
                return tensor
            storage = tensor.untyped_storage()
            key = storage._cdata, offset, tensor.shape, strides, tensor._version
            found = self._known.get(key)
            rounded = None if found is None or found[0].expired() else found[1]()
            if rounded is None:
                rounded = _Rounded(tensor)
                self._known[key] = StorageWeakRef(storage), weakref.ref(rounded)
            return rounded, tensor.shape

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if isinstance(packed[0], _Rounded):
                return packed[0].wide(packed[1])
            parameter, shape, strides, offset = packed
            return self._casts.cast(parameter).detach().as_strided(shape, strides, offset)
