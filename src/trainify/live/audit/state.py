"""What a step may change, and how it is put back: each run of a model starts from the same."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _unsafe_set_version_counter

from ..loads import codes
from ..reach import contents, slots
from .digest import INTEGER
from .memos import MEMO, Memo, memos_of
from .noise import add_noise
from .outlived import Before
from .surroundings import Surroundings, is_same, refill
from .trace import Sight

_DEPTH = 6
"""How deep tensors are looked for in lists, dicts and objects that a model or its inputs hold."""

_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType,
          MethodType, BuiltinFunctionType, torch.dtype, torch.device, torch.Size)  # fmt: skip


_PLAIN = frozenset(_ATOMS)

_EMPTY = {list, dict, OrderedDict, set}
"""Of what a module holds, most is empty: hooks of ten kinds."""

_NOT_THEIRS = {"torch", "numpy", *sys.stdlib_module_names} - {"__main__"}
"""Whose objects keep in slots what nobody else should set."""


class State:
    """Copies of all tensors of a model and its inputs, of what holds them, and of the RNGs.

    Found are parameters, buffers, and the tensors, lists, dicts and generators that these, modules,
    their classes and inputs hold in attributes: caches, above all.  Of the globals that methods of
    these classes read it is the tensors and the generators; what else around holds tensors is put
    back as :class:`Surroundings` has it, and with :meth:`take_in` what was seen to be written.

    What functions remember of a run (``functools.cache``) is forgotten, if there are tensors in it.

    Any code may write into any of them, by a kernel that nobody sees, so there are copies while a
    model runs.  Where torch alone is at work they can be let go.
    """

    def __init__(
        self, model: nn.Module, inputs: Any, copies: Mapping[int, Tensor] | None = None
    ) -> None:
        """``copies`` are there already: of tensors, by their id, the values, to fewer bits.

        So that a model in float64 takes no second copy of what it was made from.
        """
        self._copies = copies or {}
        self._tensors: dict[int, _Kept] = {}
        self._holders: list[tuple[Any, Any]] = []
        self._empty: list[Any] = []
        """Lists and dicts with nothing in them, which are most."""
        self._memos: list[Memo] = []
        self._generators: list[tuple[torch.Generator, Tensor]] = []
        self.trusting = False
        """Whether a parameter is what it was as long as its version is: a step may go round that,
        by ``.data`` or a kernel."""
        self.read_by_others = False
        """Whether backward goes into a graph from before, which has saved what is held."""
        self._arrays: list[tuple[Any, Any]] = []  # of NumPy
        self._slotted: list[tuple[Any, dict[str, Any]]] = []
        self._seen: set[int] = set()
        self._untouched = True
        """Whether nothing has run yet."""
        self._random = _random_states()
        self._gradients = [(p, p.grad, p.requires_grad) for p in model.parameters()]
        for parameter, _, _ in self._gradients:
            parameter.grad = None
        modules = list(model.modules())
        self._seen.update(map(id, modules))
        for module in modules:
            self._hold(module.__dict__, _DEPTH)
        classes = dict.fromkeys(cls for module in modules for cls in type(module).__mro__)
        own = [cls for cls in classes if not cls.__module__.startswith("torch.")]
        for cls in own:
            self._hold([v for n, v in vars(cls).items() if n[:2] != "__"], _DEPTH)
        self._hold(list(_globals_of(own)), 1)
        self.around = Surroundings(own)
        self._hold([*model.parameters(), *model.buffers()], _DEPTH)  # TorchScript's lie elsewhere
        self._own, self._own_holders = set(self._tensors), len(self._holders)
        self._own_empty = len(self._empty)
        self._hold(inputs, _DEPTH)
        self._viewed = {id(base): (base, base._version) for base in self._bases()}
        self._versions = {
            id(parameter): parameter._version
            for parameter, _, _ in self._gradients
            if id(parameter) in self._tensors and not parameter.is_inference()
            if id(parameter) not in self._viewed  # whose versions are put back
        }
        self._copies = {}
        self._counts = [(t, t._version) for t in self.tensors if not t.is_inference()]

    @property
    def tensors(self) -> Iterator[Tensor]:
        """All that were there from the start."""
        for kept in self._tensors.values():
            yield kept.tensor

    @property
    def given(self) -> Iterator[Tensor]:
        """Those of them that only the inputs hold, and that had no history."""
        for key, kept in self._tensors.items():
            if key not in self._own and not kept.attached:
                yield kept.tensor

    @property
    def lent(self) -> set[int]:
        """The ids of those that only the inputs hold, and that came with a history."""
        own = self._own
        return {key for key, kept in self._tensors.items() if kept.attached and key not in own}

    def take_in(self, found: Iterable[Before]) -> list[Sight]:
        """Put these back too from now on, which were not there to be found at the start.

        Returns how they were seen first, in the order of :attr:`tensors`.
        """
        sights = []
        for tensor, values, sight in found:
            if id(tensor) not in self._tensors:
                self._tensors[id(tensor)] = _Kept(tensor, values, sight.attached, values.dtype)
                self._own.add(id(tensor))
                sights.append(sight)
        return sights

    def copy_of(self, tensor: Tensor) -> Tensor | None:
        """The values that a tensor had at the start, not to be changed; None for one not held."""
        kept = self._tensors.get(id(tensor))
        return None if kept is None else kept.values

    def as_before(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all of these hold the bits that they had at the start."""
        found = (self._tensors.get(id(tensor)) for tensor in tensors)
        return all(kept is not None and kept.as_before() for kept in found)

    def let_go(self) -> None:
        """Keep no copy of what is as it was, until :meth:`take_again`, which comes first."""
        for kept in self._tensors.values():
            if kept.as_before():
                kept.values = None

    def take_again(self) -> None:
        """Copy what was let go; nothing may have written into it."""
        for kept in self._tensors.values():
            if kept.values is None:
                kept.values = kept.tensor.detach().clone()

    def restore(self, thorough: bool = False, own: bool = True) -> None:
        """Put everything back, ``thorough`` or as far as it is needed; there are no gradients.

        Without ``own``, what the model holds stays as the last run has left it.
        """
        if self._untouched and not thorough:
            self._untouched = False
            return
        for parameter, _, _ in self._gradients:
            if parameter.grad is not None:
                parameter.grad = None
        for holder, kept in self._holders[0 if own else self._own_holders :]:
            if not is_same(holder, kept):
                refill(holder, kept)
        if own:
            self.around.put_back()
        for holder in self._empty[0 if own else self._own_empty :]:
            if holder:
                holder.clear()
        with torch.no_grad():
            for key, kept in self._tensors.items():
                if not own and key in self._own:
                    continue
                version = self._versions.get(key)
                untouched = version is not None and kept.tensor._version == version
                if not (self.trusting and untouched) or thorough:
                    kept.refill()
                    if version is not None:
                        self._versions[key] = kept.tensor._version
        for array, kept in self._arrays:
            array[...] = kept
        for holder, values in self._slotted:
            for name, value in values.items():
                if getattr(holder, name, None) is not value:
                    object.__setattr__(holder, name, value)
        for memo in self._memos if own else ():
            memo.forget()
        for generator, state in self._generators:
            generator.set_state(state)
        for put in self._random:
            put()

    def uncount(self) -> None:
        """Have what is viewed by tensors that are held count as not written since the start.

        Torch refuses a view that was made under ``no_grad``, as loaders do, once that is written.
        So it does with what a graph has saved.
        """
        _count_as(self._viewed.values())
        if self.read_by_others:
            _count_as(self._counts)

    def _bases(self) -> Iterator[Tensor]:
        """What is viewed by tensors that are held."""
        for tensor in self.tensors:
            base = tensor._base
            if base is not None and not base.is_inference():
                yield base

    def end(self) -> None:
        """Put everything back, the gradients as well, and which parameters require one.

        So that a graph from before can still go backward, nothing counts as written.
        """
        self.restore(thorough=True)
        _count_as(self._counts)
        for parameter, gradient, requires_grad in self._gradients:
            parameter.grad = gradient
            if parameter.requires_grad != requires_grad:  # the forward's doing
                parameter.requires_grad_(requires_grad)

    def _hold(self, value: Any, depth: int) -> None:
        if depth < 0 or id(value) in self._seen or isinstance(value, _ATOMS):
            return
        self._seen.add(id(value))
        inner: Iterable[Any] = ()
        if isinstance(value, Tensor):
            if value.__dict__ or isinstance(value, nn.Parameter):  # how it is quantized, say
                self._hold(value.__dict__, depth)
            if not value.is_meta and value.layout is torch.strided:
                values = self._copies.get(id(value))
                if values is None:
                    values = value.detach().clone()
                self._tensors[id(value)] = _Kept(value, values, value.requires_grad, value.dtype)
        elif isinstance(value, (list, dict, set, deque)):
            if not value:
                self._empty.append(value)
                return
            self._holders.append((value, value.copy()))
            inner = contents(value)
        elif isinstance(value, (tuple, frozenset)):
            inner = value
        elif isinstance(value, MEMO):
            self._memos.append(Memo(value))
        elif isinstance(value, torch.Generator):
            self._generators.append((value, value.get_state()))
        elif (put := _putting_back(value)) is not None:
            self._random.append(put)
        elif type(value).__name__ == "ndarray":
            self._arrays.append((value, value.copy()))
        elif not callable(value):
            if isinstance(getattr(value, "__dict__", None), dict):
                self._hold(value.__dict__, depth)
            if type(value).__module__.partition(".")[0] not in _NOT_THEIRS:
                held = {n: getattr(value, n) for n in slots(type(value)) if hasattr(value, n)}
                if held:
                    self._slotted.append((value, held))
                    inner = held.values()
        for each in list(inner):
            kind = type(each)
            if kind in _EMPTY and not each:
                self._empty.append(each)
            elif kind not in _PLAIN:
                self._hold(each, depth - 1)


def _count_as(versions: Iterable[tuple[Tensor, int]]) -> None:
    for tensor, version in versions:
        _unsafe_set_version_counter((tensor,), (version,))


def _globals_of(classes: Iterable[type]) -> Iterator[Any]:
    """Tensors that methods read as globals, by themselves or in a list, a tuple or a dict.

    And generators of random numbers, by themselves, and functions that remember their results.
    """
    read: dict[int, tuple[dict[str, Any], dict[str, None]]] = {}
    for value in (value for cls in classes for value in vars(cls).values()):
        function = unwrap(value) if isinstance(value, FunctionType) else None
        if isinstance(function, FunctionType):
            there = function.__globals__
            names = read.setdefault(id(there), (there, {}))[1]
            for code in codes(function.__code__):
                names.update(dict.fromkeys(code.co_names))
    for there, names in read.values():
        yield from memos_of(names, there)
        for found in map(there.get, names):
            if type(found) in _PLAIN:
                continue
            if isinstance(found, torch.Generator) or _putting_back(found) is not None:
                yield found
            held = contents(found if isinstance(found, (list, tuple, dict)) else (found,))
            yield from (each for each in held if isinstance(each, Tensor))


@dataclass(slots=True)
class _Kept:
    """A tensor as it was; ``values`` may have fewer bits, if these are all that it had."""

    tensor: Tensor
    values: Tensor | None
    attached: bool
    dtype: torch.dtype

    def as_before(self) -> bool:
        """Whether the tensor holds the same bits still; what cannot be told is no."""
        tensor, values = self.tensor, self.values
        if values is None:
            return True
        if tensor.shape != values.shape or tensor.dtype != values.dtype:
            return False
        if tensor.is_quantized or tensor.is_complex() or tensor.is_neg():
            return False
        integer = INTEGER[tensor.element_size()]
        try:
            with torch.no_grad():
                return torch.equal(tensor.detach().view(integer), values.view(integer))
        except (RuntimeError, NotImplementedError):  # a subclass
            return False

    def refill(self) -> None:
        tensor, values = self.tensor, self.values
        assert values is not None
        if tensor.requires_grad and not self.attached:  # it was given a history by a write
            whole = tensor if tensor._base is None else tensor._base
            whole.detach_()  # which a view refuses
        with torch.inference_mode(tensor.is_inference()):
            target = tensor if tensor.is_inference() else tensor.detach()
            if target.shape == values.shape and target.dtype == self.dtype:
                once = _each_once(target)  # torch refuses to write into what is expanded
                target[once].copy_(values[once])
            else:
                tensor.data = values.to(self.dtype, copy=True)


def _each_once(tensor: Tensor) -> tuple[slice, ...]:
    """An index by which a tensor that is expanded has each of its numbers once."""
    if tensor.layout is not torch.strided or not tensor.dim() or 0 not in tensor.stride():
        return (...,)  # type: ignore[return-value]
    return tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())


def _putting_back(value: Any) -> Callable[[], None] | None:
    """What puts a generator of Python or NumPy back to where it is now; None for what is none."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return partial(value.setstate, value.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.Generator):
        bits, state = value.bit_generator, value.bit_generator.state
        return partial(setattr, bits, "state", state)
    if isinstance(value, numpy.random.RandomState):
        return partial(value.set_state, value.get_state())
    return None


def _random_states() -> list[Callable[[], None]]:
    """What puts back the state that each generator of random numbers is in now."""
    cpu = torch.get_rng_state()
    found: list[Callable[[], None]] = [lambda: torch.set_rng_state(cpu)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
        found.append(lambda: torch.cuda.set_rng_state_all(devices))
    python = random.getstate()
    found.append(lambda: random.setstate(python))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numbers = numpy.random.get_state()
        found.append(lambda: numpy.random.set_state(numbers))
    return found


def nudge(parameters: Iterable[Tensor], times: float = 1.0, least: float = 1e-3) -> None:
    """Put each element a little off, in proportion to the parameter's size.

    A thousandth in float32 and float64, or ``least``; where there are fewer bits more, or rounding
    would eat it.
    """
    with torch.no_grad():
        for i, parameter in enumerate(parameters):
            wide = torch.promote_types(parameter.dtype, torch.float32)
            norm = torch.linalg.vector_norm(parameter, dtype=wide).item()
            size = norm / max(parameter.numel(), 1) ** 0.5 or 1.0
            share = max(least, 8 * torch.finfo(parameter.dtype).eps)
            add_noise(parameter, i, size * share * times)
