"""The route *symbol*: a function around a kernel that PyTorch's dispatcher does not know.

A pybind function, or the Python function that launches a Triton kernel, cannot be given a backward
where it is.  So an op is made of it, in the namespace ``trainify``: without side effects, with a
fake implementation and an autograd formula, as :mod:`torch.library` wants them.  A function that
calls the op when a gradient is wanted, and else the kernel, takes the place of the old one wherever
that is held.
"""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import Tensor

from ..catalog import RETURNED, FusedOp, lookup
from ..catalog.own import registered
from ..verify.equivalent import Equivalent, value_of
from ..verify.kernels import Libraries
from .attach import CannotAttach, may_be_overwritten, put
from .derivative import Derivative, unknown_for
from .overwritten import about_to_write, keeping, saves_unchecked
from .reach import slots
from .shared import Shared
from .transforms import TRANSFORMED, Transformed, is_transformed

Kernel = Callable[..., Any]


class Symbol(Shared):
    """A function that gets a backward, for as long as somebody holds it so.

    Raises :class:`~.attach.CannotAttach` where no op can be made of it.
    """

    def __init__(self, kernel: Kernel, row: FusedOp) -> None:
        super().__init__()
        self.kernel = kernel
        self.differentiable = _differentiable(kernel, _Op(kernel, row))

    def change(self) -> None:
        rebind(self.kernel, self.differentiable)

    def undo(self) -> None:
        rebind(self.differentiable, self.kernel)


@cache
def symbol(name: str) -> Symbol:
    """The one for a function by its ``module:name``; its module may not have been imported yet.

    Raises :class:`~.attach.CannotAttach` where there is none, or the catalog does not know it.
    """
    module, _, own = name.partition(":")
    row = lookup(f"{module}.{own}", registered())
    kernel = _kernel(module, own)
    if row is None or row.equivalent is None or not callable(kernel):
        raise CannotAttach(f"{module}.{own}: the catalog has nothing differentiable for it")
    if kernel not in _symbols:  # else it is known under another name
        made = Symbol(kernel, row)
        _symbols[kernel] = _symbols[made.differentiable] = made
    return _symbols[kernel]


def can_be_op(name: str) -> bool:
    """Whether :func:`symbol` has one for a function by this name."""
    try:
        symbol(name)
    except CannotAttach:
        return False
    return True


def _kernel(module: str, name: str) -> Kernel | None:
    """A function by its name, and that of its module."""
    try:
        return vars(importlib.import_module(module)).get(name)
    except ModuleNotFoundError:
        found = _built(module, name)
        if found is None:
            raise
        return found


def _built(module: str, name: str) -> Kernel | None:
    """A function of an extension that ``torch.utils.cpp_extension`` has loaded, the last one.

    Nothing but who called it has that: it cannot be imported, and may be gone but for the function.
    """
    found: dict[type, Any] = {}
    with _nothing_frozen():
        for value in gc.get_objects():
            if type(value) is types.ModuleType and vars(value).get("__name__") == module:
                found[types.ModuleType] = vars(value).get(name)
            elif type(value) is types.BuiltinFunctionType and value.__module__ == module:
                if value.__name__ == name:
                    found[types.BuiltinFunctionType] = value
    return found.get(types.ModuleType) or found.get(types.BuiltinFunctionType)


_symbols: dict[Kernel, Symbol] = {}
"""By the kernel, and by what takes its place."""


def is_differentiable(name: str) -> bool:
    """Whether a function by this name has a backward at the moment, for whoever holds it."""
    module, _, own = name.partition(":")
    found = sys.modules.get(module)
    kernel = vars(found).get(own) if found is not None else _built(module, own)
    made = _symbols.get(kernel) if kernel is not None else None
    return made is not None and made.in_effect


# -- the op ---------------------------------------------------------------------------------------

_library = torch.library.Library("trainify", "FRAGMENT")


class _Op:
    """A kernel as an op: its arguments are those of the schema, less what no op can take.

    It returns what the kernel would write, as new tensors, then what the kernel returns.
    """

    def __init__(self, kernel: Kernel, row: FusedOp) -> None:
        self.kernel = kernel
        self.name = row.names[0]
        self.equivalent = Equivalent(row, Libraries())
        self.arguments = row.signature.arguments
        self.defaults = {
            a.name: None if a.default is None else value_of(a.default) for a in self.arguments
        }
        self.fixed = {
            a.name
            for a in self.arguments
            if a.type.startswith("Any") or a.name in row.unsupported or "Tensor[" in a.type
        }
        for a in self.arguments:
            if a.name in self.fixed and a.default is None:
                raise CannotAttach(f"{self.name}: no op can take its argument {a.name!r}")
        outputs = self.equivalent.outputs
        self.assigned = [name for name in outputs if name != RETURNED]
        returns = [text for text in row.signature.returns if "(" not in text or not outputs]
        self.results = self.assigned + [RETURNED] * len(returns)
        # Which argument each return is; for ``out=`` that is seen when it is given.
        self.handed_back = row.signature.handed_back if outputs else ()
        # ``out=``: what the kernel is given to write the value into that it returns.
        self.targets = [a.name for a in row.signature.written if a.name not in self.assigned]
        self.taken = [
            a for a in self.arguments if a.name not in self.fixed and a.name not in self.targets
        ]
        self.names = [a.name for a in self.taken]
        self.reads = self.equivalent.reads
        self.derivative = Derivative(self.equivalent, self.results)
        self.op = self._define()

    def _define(self) -> Any:
        name = re.sub(r"\W", "_", self.name)
        if (number := _used.get(name, 0)) > 0:
            _used[name] = number + 1
            name = f"{name}_{number}"
        else:
            _used[name] = 1
        arguments = ", ".join(f"{a.type} {a.name}" for a in self.taken)
        returns = ", ".join(["Tensor"] * len(self.results))
        try:
            _library.define(f"{name}({arguments}) -> ({returns})")
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise CannotAttach(f"{self.name}: no op can be made of it: {reason}") from None
        _library.impl(name, self.run, "CompositeExplicitAutograd")
        qualified = f"trainify::{name}"
        torch.library.register_fake(qualified, self.fake, lib=_library)
        torch.library.register_autograd(
            qualified, self.backward, setup_context=self.save, lib=_library
        )
        _library.impl(name, self.transformed, TRANSFORMED)
        return getattr(torch.ops.trainify, name).default

    def transformed(self, *args: Any) -> Any:
        """A call of the op under a transform."""
        results = Transformed.apply(self, *args)  # type: ignore[no-untyped-call]
        return results[0] if len(results) == 1 else results

    def check(self, args: Sequence[Any]) -> None:
        """It takes nothing that its backward does not know."""

    def fresh(self, args: Sequence[Any]) -> Sequence[Tensor]:
        """The results of the kernel, or what stands for them where it is traced."""
        with torch._C._AutoDispatchBelowAutograd():
            results = self.op(*args)
        return results if isinstance(results, (tuple, list)) else [results]

    def run(self, *args: Any) -> Any:
        """The kernel, on copies of what it writes into."""
        given = dict(zip(self.names, args, strict=True))
        for name, value in given.items():
            if isinstance(value, Tensor):
                given[name] = value.clone() if name in self.assigned else value.detach()
        returned = self.call(given)
        results = [given[name] for name in self.assigned]
        if len(self.results) > len(results):
            results += own_values(returned, self.handed_back)
        if len(results) != len(self.results):  # which torch does not look at, and crashes
            raise TypeError(f"{self.name} returns otherwise than its schema says")
        return results[0] if len(results) == 1 else tuple(results)

    def call(self, given: Mapping[str, Any]) -> Any:
        """The kernel with these arguments, as short as can be said: versions differ in the rest."""
        positional = [a for a in self.arguments if not a.kwarg_only]
        values = [given.get(a.name, self.defaults[a.name]) for a in positional]
        while values and _same(values[-1], self.defaults[positional[len(values) - 1].name]):
            if positional[len(values) - 1].default is None:
                break
            values.pop()
        keywords = {
            a.name: given[a.name]
            for a in self.arguments
            if a.kwarg_only and a.name in given and not _same(given[a.name], self.defaults[a.name])
        }
        return self.kernel(*values, **keywords)

    def fake(self, *args: Any) -> Any:
        """The shapes and dtypes of the results."""
        values = self.equivalent(dict(zip(self.names, args, strict=True)))
        results = [value for value in values if isinstance(value, Tensor)][: len(self.results)]
        return results[0] if len(results) == 1 else tuple(results)

    def save(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Keep what backward reads."""
        given = dict(zip(self.names, inputs, strict=True))
        wanted = _names(given, ctx.needs_input_grad[: len(given)])  # torch adds one of its own
        ctx.way = self.derivative.way(given, wanted)
        results = output if isinstance(output, (tuple, list)) else (output,)
        tensors = {n: v for n, v in given.items() if isinstance(v, Tensor) and n in ctx.way.reads}
        ctx.save_for_backward(*tensors.values(), *(results[i] for i in ctx.way.results))
        ctx.tensors = list(tensors)
        ctx.others = {n: v for n, v in given.items() if not isinstance(v, Tensor)}
        ctx.mark_non_differentiable(*(r for r in results if not r.is_floating_point()))

    def backward(self, ctx: Any, *grads: Tensor | None) -> Any:
        """The gradients of the arguments."""
        wanted = _names(self.names, ctx.needs_input_grad)
        saved = iter(ctx.saved_tensors)
        values = ctx.others | {name: next(saved) for name in ctx.tensors}
        found = ctx.way(values, dict(zip(ctx.way.results, saved, strict=True)), wanted, grads)
        by_name = dict(zip(wanted, found, strict=True))
        gradients = tuple(by_name.get(name) for name in self.names)
        return gradients[0] if len(gradients) == 1 else gradients


def _names(names: Iterable[str], which: Iterable[bool]) -> list[str]:
    return [name for name, chosen in zip(names, which, strict=True) if chosen]


_used: dict[str, int] = {}


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _differentiable(kernel: Kernel, op: _Op) -> Kernel:
    """A function with the arguments of the kernel that calls the op where a gradient is wanted."""
    names = [a.name for a in op.arguments if not a.kwarg_only]
    taken = [a.name for a in op.taken]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        compiling = torch.compiler.is_compiling()
        transformed = not compiling and is_transformed(given.values())
        wanted = transformed or (
            torch.is_grad_enabled()
            and any(isinstance(value, Tensor) and value.requires_grad for value in given.values())
        )
        if not wanted and not compiling:
            about_to_write(given.get(name) for name in (*op.assigned, *op.targets))
            return kernel(*args, **kwargs)
        for name, value in given.items():
            if name in op.fixed and value is not None and value != op.defaults[name]:
                if wanted:
                    raise NotImplementedError(unknown_for(op.name, name, value))
                return kernel(*args, **kwargs)
        inputs = [given.get(name, op.defaults.get(name)) for name in taken]
        written = [given[name] for name in (*op.assigned, *op.targets) if name in given]
        unchecked = transformed or saves_unchecked()

        def copied(value: Any) -> TypeGuard[Tensor]:
            """Whether backward is to read a copy, of what was there before, with its history."""
            if any(value is each for each in written):
                return isinstance(value, Tensor)
            return unchecked and may_be_overwritten(value)

        inputs = [value.clone() if copied(value) else value for value in inputs]
        for i, name in enumerate(taken):  # what is not read has no gradient, whatever it is as well
            value = inputs[i]
            if isinstance(value, Tensor) and name not in op.reads:
                inputs[i] = value.detach()
        if transformed:
            results = op.transformed(*inputs)
        else:
            with keeping():
                results = op.op(*inputs)
            about_to_write(written)
        results = results if isinstance(results, (tuple, list)) else [results]
        for name, result in zip(op.assigned, results, strict=False):
            put(op.name, given[name], result, name in op.reads)
        returned = results[len(op.assigned) :]
        for name, result in zip(op.targets, returned, strict=False):
            if given.get(name) is not None:
                put(op.name, given[name], result, False)
                returned = [given[name]]
        if any(op.handed_back):
            new = iter(returned)
            returned = [given[name] if name else next(new) for name in op.handed_back]
        return (returned[0] if len(returned) == 1 else tuple(returned)) if returned else None

    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        value = getattr(kernel, attribute, None)
        if value is not None:
            setattr(call, attribute, value)
    return call


def own_values(returned: Any, handed_back: Sequence[str | None]) -> list[Any]:
    """What a call returns, but for the arguments that it hands back."""
    values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if any(handed_back) and len(values) == len(handed_back):
        return [v for v, name in zip(values, handed_back, strict=True) if name is None]
    return values


# -- where it is held -----------------------------------------------------------------------------

Change = dict[int, tuple[Any, Any]]
"""What takes the place of what, by the identity of the old."""


def rebind(old: Kernel, new: Kernel) -> None:
    """Put ``new`` wherever ``old`` is held; within :func:`together` at its end.

    That is in modules, classes, instances, lists, cells, partials and defaults, and in tuples and
    static methods, of which others take the place.  What this module and torch hold stays; running
    frames cannot be changed.
    """
    with together():
        assert _waiting is not None
        if _waiting.get(id(new), (None, None))[1] is old:
            del _waiting[id(new)]  # what was to be done is to be undone
        else:
            _waiting[id(old)] = old, new


_waiting: Change | None = None


@contextmanager
def together() -> Iterator[None]:
    """Rebind many at once: to find who holds one takes a look at all objects there are."""
    global _waiting
    if _waiting is not None:
        yield
        return
    _waiting = {}
    try:
        yield
    finally:
        change, _waiting = _waiting, None
        if change:
            with _nothing_frozen():
                functions = itertools.chain.from_iterable(change.values())
                _rebind(change, {id(cell) for each in functions for cell in _cells(each)})


def _cells(function: Any) -> tuple[types.CellType, ...]:
    return getattr(function, "__closure__", None) or ()


@contextmanager
def _nothing_frozen() -> Iterator[None]:
    """Of what ``gc.freeze`` has put away, the collector does not say what it refers to."""
    if not gc.get_freeze_count():
        yield
        return
    gc.unfreeze()
    try:
        yield
    finally:
        gc.freeze()


def _rebind(change: Change, mine: set[int], depth: int = 3) -> None:
    mine |= {id(change), *map(id, change.values())}
    dicts: list[dict[Any, Any]] = []
    again: Change = {}
    mine.add(id(again))
    for holder in gc.get_referrers(*(old for old, _ in change.values())):
        if id(holder) in mine:
            continue
        if isinstance(holder, dict):
            dicts.append(holder)
        elif isinstance(holder, list):
            for i, value in enumerate(holder):
                holder[i] = _changed(value, change)
        elif isinstance(holder, functools.partial):
            state = (holder.func, holder.args, holder.keywords)
            state = tuple(_changed(value, change) for value in state)
            holder.__setstate__((*state, vars(holder)))  # type: ignore[attr-defined]
        elif isinstance(holder, types.CellType):
            holder.cell_contents = _changed(holder.cell_contents, change)
        elif isinstance(holder, tuple):
            if type(holder) is tuple or hasattr(holder, "_fields"):
                made = tuple.__new__(type(holder), [_changed(value, change) for value in holder])
                again[id(holder)] = (holder, made)
        elif isinstance(holder, staticmethod):
            again[id(holder)] = (holder, staticmethod(_changed(holder.__func__, change)))
        elif isinstance(holder, types.FunctionType):
            if (defaults := holder.__defaults__) is not None:
                holder.__defaults__ = _changed(defaults, change)
            dicts.append(vars(holder))
        elif not isinstance(holder, (Symbol, _Op, types.FrameType, type)):
            dicts.append(getattr(holder, "__dict__", {}))
            for name in slots(type(holder)):
                value = getattr(holder, name, None)
                if id(value) in change:
                    object.__setattr__(holder, name, _changed(value, change))
    _in_dicts(dicts, change)
    if again and depth:
        _rebind(again, mine, depth - 1)


def _changed(value: Any, change: Change) -> Any:
    return change[id(value)][1] if id(value) in change else value


def _in_dicts(dicts: list[dict[Any, Any]], change: Change) -> None:
    # Asking who refers to something goes through all objects there are, so all are asked at once.
    unknown = [each for each in dicts if not _is_of_module(each)]
    referrers = gc.get_referrers(*unknown) if unknown else []
    kept = {id(vars(each)) for each in referrers if isinstance(each, (Symbol, _Op))}
    for cls in (each for each in referrers if isinstance(each, type)):
        for name, value in list(vars(cls).items()):
            if id(value) in change:
                setattr(cls, name, _changed(value, change))  # a class remembers where it found what
    for holder in dicts:
        if id(holder) not in kept:
            for name, value in list(holder.items()):
                if id(value) in change:
                    holder[name] = _changed(value, change)


def _is_of_module(holder: dict[str, Any]) -> bool:
    name = holder.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and getattr(module, "__dict__", None) is holder
