"""What a model's step does, call by call: which values went in and out, and what autograd knows.

A trace holds no tensor.  Of each tensor that a call takes, returns or writes there is a
:class:`Sight`: a digest of its bits, and whether autograd has a history for it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial, wraps
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import unserializable_hook

from .digest import Digest, Digests, bits_of
from .functions import Known, is_opaque, name_of
from .pinned import Pinned
from .places import (
    DECORATED,
    NOWHERE,
    Place,
    Places,
    callers,
    decorated,
    is_interpreter,
    qualified,
    wrapped_in,
)

_WHOLE = {torch.int32, torch.int64}

_NARROW = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.qint8, torch.quint8,
           torch.qint32}  # fmt: skip

_MAKERS = ((torch, "from_numpy"), (torch, "from_dlpack"), (torch.utils.dlpack, "from_dlpack"),
           (Tensor, "set_"))  # fmt: skip
"""Functions that make tensors of foreign memory, of which modes are not told."""

_NOBODY: tuple[Callable[[], None], None] = (lambda: None, None)

Key = tuple[Hashable, str, int, int]
"""Which call it is: what is called, file, line, and the how many-th time."""


class Within(NamedTuple):
    """A scope without gradients, and the line that runs of the function in which it stands.

    Where that is what a decorator has made, ``wrapped`` is the place at which it decorates.
    """

    scope: Place
    line: int
    wrapped: Place | None = None


class Sight:
    """A tensor at one moment.

    A call that takes one as it was when it was last seen has the sight of then.
    """

    __slots__ = ("attached", "digest", "dtype", "earlier", "fresh", "grad", "history", "known",
                 "leaf", "several", "taken", "version")  # fmt: skip

    def __init__(
        self, tensor: Tensor, digest: int, known: bool, taken: bool, earlier: Sight | None
    ) -> None:
        self.digest = digest
        """Index into the trace's digests."""
        self.attached = attached = tensor.requires_grad
        self.dtype = tensor.dtype
        base = tensor._base
        self.leaf = (tensor if base is None else base).is_leaf
        self.fresh = attached and base is None and self.leaf
        """Whether a history begins with it; views, of which some raise if asked, are not."""
        self.several = tensor.numel() > 1
        self.version = version_of(tensor)
        self.history = history_of(tensor) if attached else -1
        self.grad = torch.is_grad_enabled()
        self.known = known
        """Whether it came from somewhere that was seen, or was looked at before."""
        self.taken = taken
        """Whether it was seen as a call took it, not as one made it, or wrote it."""
        self.earlier = earlier
        """The sight of the same tensor before this."""

    @property
    def floating(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def narrow(self) -> bool:
        """Whether it holds small integers, as quantized values are."""
        return self.dtype in _NARROW

    @property
    def whole(self) -> bool:
        """Whether it holds integers as something is counted, or looked up, by."""
        return self.dtype in _WHOLE

    @property
    def left(self) -> Sight | None:
        """How the tensor was left before a call took it; None for one that nobody had seen."""
        return self.earlier if self.taken else self


def version_of(tensor: Tensor) -> int | None:
    """How often torch has written into it; None for an inference tensor, which does not count."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def node_of(tensor: Tensor) -> Any:
    """The node that a recorded write would change; None where there is no history.

    For a view that is its base's: a view gets a new node with each write, recorded or not, and some
    raise if they are asked for theirs.
    """
    if not tensor.requires_grad:
        return None
    base = tensor._base
    return tensor.grad_fn if base is None or not base.requires_grad else base.grad_fn


def history_of(tensor: Tensor) -> int:
    """A number for :func:`node_of`, -1 where there is none."""
    node = node_of(tensor)
    return -1 if node is None else int(node._sequence_nr())


def put_hook(tensor: Tensor, hook: Callable[[Tensor], Any]) -> None:
    """Have ``hook`` called with the gradient of a tensor.

    A view that an op has written into twice gets its node when it is asked for it.  Where nobody
    has, torch 2.13 reads one that is not there while it registers the hook, and the process dies.

    Raises:
        RuntimeError: It is a view that must not be asked for its history.
    """
    _ = tensor.grad_fn
    tensor.register_hook(hook)


def nodes_behind(nodes: Iterable[Any], seen: dict[int, Any]) -> Iterator[Any]:
    """The nodes that backward goes through from some on, with these; each once.

    ``seen`` are those gone over before, by their id; it keeps them, so that no other gets that.
    """
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in seen:
            seen[id(node)] = node
            yield node
            waiting.extend(following for following, _ in node.next_functions)


class Call:
    """One call, with what it took, returned and wrote."""

    __slots__ = ("function", "grad", "ins", "key", "leaves", "module", "outs", "place", "refused",
                 "scaled", "scope", "within", "written")  # fmt: skip

    def __init__(self, key: Key, function: Any, place: Place, module: str) -> None:
        self.key = key
        self.function = function
        self.place = place
        self.module = module
        self.grad = torch.is_grad_enabled()
        """Whether gradients were on."""
        self.scope: Place | None = None
        """What had switched them off."""
        self.within: Within | None = None
        """The scope around it, also one that does not get to switch gradients off."""
        self.refused = False
        """Whether torch refuses to record it, and raises: a result that goes to ``out=``."""
        self.leaves = False
        """Whether values leave torch."""
        self.scaled = False
        """Whether it is a sum with ``alpha=``."""
        self.ins: list[Sight] = []
        self.outs: list[Sight] = []
        self.written: dict[int, tuple[Sight, bool]] = {}
        """Arguments that hold something else afterwards, and whether their history is the same."""

    @property
    def name(self) -> str:
        """What is called, as one would write it: ``_C::rms_norm``, ``torch.Tensor.detach``."""
        return name_of(self.function)

    @property
    def opaque(self) -> bool:
        """Whether it is an op that a library has registered, and not one of torch's."""
        return is_opaque(self.function)


class Trace:
    """All calls of a run, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.by_key: dict[Key, Call] = {}
        self.digests = Digests()
        self.known: list[Sight] = []
        """The tensors that were there from the start."""
        self.modules: dict[str, str] = {}
        """The modules that ran, in order: path and class."""
        self.types: set[torch.dtype] = set()
        """Of what came up."""
        self.hooked = False
        """Whether the model had a hand in its graph: by a hook, or by asking for a node."""
        self.arrived: set[str] = set()
        """Those of them that a gradient has arrived at."""

    def digest(self, sight: Sight) -> int:
        return self.digests.read()[sight.digest]


class Observer:
    """What else is to happen at calls; this one does nothing."""

    sights = True
    """Whether digests are wanted."""

    arrivals = False
    """Whether a backward follows, of which it is to be known at which modules it arrives."""

    functions: Set[Any] | None = None
    """What is called where it looks; None for everywhere.  The modules around are not told."""

    def watching(self, tracer: Tracer) -> AbstractContextManager[None]:
        """What is to be active while the model runs."""
        return nullcontext()

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        """Called with the call's arguments, and the tensors among them, before it runs."""

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        """Called with what it returned; what this returns takes its place."""
        return out

    def hooked(self, call: Call, hook: Any) -> Any:
        """Called with a hook that the model puts on a tensor; what this returns takes its place."""
        return hook


def result(*tensors: Tensor) -> None:
    """What a model, or its loss, is at the end, as a call that takes it."""


class Unseen(Observer):
    """Wants nothing, not even digests."""

    sights = False
    functions = frozenset()


class Tracer(TorchFunctionMode):
    """Records the calls made while it is active: torch functions, ops, ``autograd.Function``s.

    What runs inside of such a call belongs to it and is not recorded.
    """

    def __init__(
        self,
        modules: Mapping[int, str],
        places: Places,
        observer: Observer | None = None,
        ignored: Set[Place] = frozenset(),
        pinned: Pinned | None = None,
    ) -> None:
        """``modules`` are the model's, names by id.

        ``ignored`` are places that do not get to switch gradients off.
        """
        super().__init__()
        self.trace = Trace()
        self._places = places
        self.observer = observer or Observer()
        self._modules = _Modules(modules, self.trace, self.observer.arrivals)
        self._last: dict[int, tuple[weakref.ref[Tensor], Sight]] = {}
        self._times: dict[tuple[Hashable, str, int], int] = {}
        self._functions: dict[Hashable, Known] = {}
        self._dull: set[Hashable] = set()
        self._pinned = pinned
        self._wanted = None if pinned is not None and pinned.used else self.observer.functions
        self._inside = 0
        self.running: Call | None = None
        """The call that is being made."""
        self._grad = _GradMode(places, ignored)
        self._undo: list[Callable[[], None]] = []
        self._gone_back: list[Tensor] = []
        """What the model itself has gone backward from last."""

    # -- coming and going -------------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        if self.observer.functions is None:
            self._modules.install()
        self._undo = [self._modules.remove, _patch_functions(self), self._patch_backward()]
        self._undo += [_patch_maker(self, owner, name) for owner, name in _MAKERS]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._gone_back.clear()
        while self._undo:
            self._undo.pop()()

    @property
    def module(self) -> str:
        """The path of the module that is running."""
        return self._modules.current

    def know(self, tensors: Iterable[Tensor]) -> None:
        """Tell that these are there from the start: parameters, buffers, inputs."""
        if self.observer.sights:
            with torch._C.DisableTorchFunction():
                for tensor in tensors:
                    self.trace.known.append(self._see(tensor))

    def look_at(self, results: Sequence[Tensor]) -> None:
        """See what comes out at the end, which no call of the model takes any more."""
        self.record(result, result, tuple(results), {}, sys._getframe(1))

    # -- calls ------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        if func is torch._C._set_grad_enabled:
            off = not self._grad.switch(args[0], sys._getframe(1))
            return None if off else func(*args, **kwargs)
        if func in self._dull or torch._C._are_functorch_transforms_active():
            return func(*args, **kwargs)
        return self.record(func, func, args, kwargs, sys._getframe(1))

    def record(
        self, function: Any, run: Callable[..., Any], args: Any, kwargs: Any, frame: FrameType
    ) -> Any:
        """Run a call and note what it did."""
        if is_interpreter(frame):
            return run(*args, **kwargs)
        self._inside += 1
        try:
            if self._wanted is not None and self._is_unwanted(function, kwargs):
                return run(*args, **kwargs)
            return self._record(function, run, args, kwargs, frame)
        finally:
            self._inside -= 1
            self.running = None

    def _is_unwanted(self, function: Any, kwargs: dict[str, Any]) -> bool:
        """Whether a call is one that nobody asks for, and that runs as it does by itself."""
        known = self._known(function)
        asked_for = known.unfilled or known.attribute == "grad" or "out" in kwargs
        return not asked_for and function not in (self._wanted or ())

    def _record(
        self, function: Any, run: Callable[..., Any], args: Any, kwargs: Any, frame: FrameType
    ) -> Any:
        known = self._known(function)
        if known.hooks:
            self.trace.hooked = True
        if known.asks:
            if known.attribute != "grad":
                self._dull.add(function)
            elif self._gone_back and torch.is_grad_enabled():
                return self._arrived(args[0], run(*args, **kwargs), frame)
            return run(*args, **kwargs)
        tensors = list_of_tensors(args)
        if kwargs:
            tensors += tensors_in(kwargs.values())
        call = self.call_of(function, frame)
        sights = self.observer.sights
        if sights:
            call.ins = [self._take(tensor) for tensor in tensors]
            versions = [sight.version for sight in call.ins]
            self.observer.before(call, args, kwargs, tensors)
        else:
            self.observer.before(call, args, kwargs, tensors)
            versions = [version_of(tensor) for tensor in tensors]
        if function is Tensor.register_hook and len(args) == 2:
            args = (args[0], self.observer.hooked(call, args[1]))
        self.running = call
        if kwargs:
            call.scaled = "alpha" in kwargs
            call.refused = (
                call.grad
                and isinstance(kwargs.get("out"), Tensor)
                and not known.opaque
                and any(tensor.requires_grad for tensor in tensors)
            )
        if call.refused:
            with torch.no_grad():
                out = run(*args, **kwargs)
        else:
            out = run(*args, **kwargs)
        if known.iterates:
            out = iter(returned := list(out))
        else:
            returned = list_of_tensors((out,))
        if known.unfilled:
            for tensor in returned:
                if not tensor.is_meta:
                    tensor.detach().zero_()
        if returned and sights:
            arguments = set(map(id, tensors))
            call.outs = [self._see(t) for t in returned if id(t) not in arguments]
        self._note_writes(call, known, tensors, versions)
        if not returned:
            call.leaves = known.leaves
            if known.returns and tensors and not call.leaves and not call.written:
                self._dull.add(function)
        out = self.observer.after(call, args, kwargs, tensors, out)
        self.trace.calls.append(call)
        self.trace.by_key[call.key] = call
        return out

    def _known(self, function: Any) -> Known:
        found = self._functions.get(function)
        if found is None:
            found = self._functions[function] = Known(function)
        return found

    def _patch_backward(self) -> Callable[[], None]:
        """Note what the model goes backward from; returns what undoes it."""
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self._gone_back = list(tensors_in((tensors,)))
            original(tensors, *args, **kwargs)

        torch.autograd.backward = backward

        def undo() -> None:
            torch.autograd.backward = original

        return undo

    def _arrived(self, leaf: Tensor, gradient: Tensor | None, frame: FrameType) -> Any:
        """What a backward of the model's own has left in ``.grad``, as ``autograd.grad`` gives."""
        if gradient is None:
            return None
        tensors = [*self._gone_back, leaf]
        call = self.call_of(torch.autograd.grad, frame)
        if self.observer.sights:
            call.ins = [self._take(tensor) for tensor in tensors]
        self.observer.before(call, (tensors,), {}, tensors)
        if self.observer.sights:
            call.outs = [self._see(gradient)]
        found = self.observer.after(call, (tensors,), {}, tensors, gradient)
        self.trace.calls.append(call)
        self.trace.by_key[call.key] = call
        return found

    def call_of(self, function: Any, frame: FrameType) -> Call:
        """A call that is about to be made, with the place that it is made at."""
        place = self._places.of(frame)
        what = (function, place.path, place.line)
        self._times[what] = times = self._times.get(what, 0) + 1
        call = Call((*what, times), function, place, self._modules.current)
        if not call.grad:
            call.scope = self._grad.place(frame)
        call.within = self._grad.within(call.scope, frame)
        return call

    def _note_writes(
        self, call: Call, known: Known, tensors: list[Tensor], before: list[int | None]
    ) -> None:
        for i, (tensor, version) in enumerate(zip(tensors, before, strict=True)):
            now = version_of(tensor)
            sets = known.sets and i == 0  # of which the version stays
            if now != version or (known.writes and (known.opaque or now is None or sets)):
                if self._pinned is not None:
                    self._pinned.wrote(tensor)
                if not self.observer.sights:
                    continue
                sight = self._see(tensor)
                call.written[i] = (sight, sight.history == call.ins[i].history)

    # -- tensors ----------------------------------------------------------------------------------

    def _take(self, tensor: Tensor) -> Sight:
        """How a call gets a tensor; unseen code may have written into it in the meantime."""
        last = self._last_of(tensor)
        if last is None:
            return self._seen(tensor, bits_of(tensor), None, known=False, taken=True)
        same = last.version == version_of(tensor)
        if same and last.leaf and last.attached:
            return last
        bits = bits_of(tensor)
        if (
            same
            and last.known
            and last.attached == tensor.requires_grad
            and self.trace.digests.is_at(last.digest, bits)
            and (not last.attached or last.history == history_of(tensor))
        ):
            return last
        return self._seen(tensor, bits, last, known=last.known or last.grad, taken=True)

    def _see(self, tensor: Tensor) -> Sight:
        """How a call leaves a tensor, or how it was from the start."""
        last = self._last_of(tensor)
        if last is not None and last.leaf and last.attached:
            if last.version == version_of(tensor):
                return last
        return self._seen(tensor, bits_of(tensor), last, known=True, taken=False)

    def _last_of(self, tensor: Tensor) -> Sight | None:
        reference, sight = self._last.get(id(tensor), _NOBODY)
        return sight if reference() is tensor else None

    def _seen(
        self, tensor: Tensor, bits: Tensor | Digest, last: Sight | None, known: bool, taken: bool
    ) -> Sight:
        sight = Sight(tensor, self.trace.digests.put(bits), known, taken, last)
        self.trace.types.add(sight.dtype)
        self._last[id(tensor)] = (weakref.ref(tensor), sight)
        return sight


def list_of_tensors(values: tuple[Any, ...]) -> list[Tensor]:
    """As :func:`tensors_in`, faster for what a call most often takes and returns."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple, dict)):
            found += tensors_in((value,))
    return found


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in ``values``, at any depth of lists, tuples and dicts."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def made_by(call: Call) -> list[Sight]:
    """What a call returns and what it writes."""
    return [*call.outs, *(sight for sight, _ in call.written.values())]


def own_name(call: Call) -> str:
    """The name of what is called, without where it is: ``add_`` of ``torch.Tensor.add_``."""
    return call.name.rpartition(".")[2].rpartition("::")[2]


def is_passed_on(trace: Trace, call: Call) -> bool:
    """Whether a call returns, as another tensor, what it is given."""
    return (
        len(call.ins) == len(call.outs) == 1
        and not call.written
        and trace.digest(call.ins[0]) == trace.digest(call.outs[0])
    )


def tensor_of(sight: Sight) -> int:
    """A number for the tensor of which it is one, whatever has been written into that since."""
    while sight.earlier is not None:
        sight = sight.earlier
    return id(sight)


def _patch_functions(tracer: Tracer) -> Callable[[], None]:
    """Let ``autograd.Function.apply`` be a call of its own; returns what undoes it."""
    base = torch.autograd.function._SingleLevelFunction
    original = torch._C._FunctionBase.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        run = original.__get__(None, cls)
        if tracer._inside or torch._C._are_functorch_transforms_active():
            return run(*args, **kwargs)
        return tracer.record(cls, run, args, kwargs, sys._getframe(1))

    base.apply = classmethod(apply)  # type: ignore[attr-defined]

    def undo() -> None:
        del base.apply  # type: ignore[attr-defined]

    return undo


def _patch_maker(tracer: Tracer, owner: ModuleType | type, name: str) -> Callable[[], None]:
    """Let a function that brings memory into torch be a call; returns what undoes it."""
    original = getattr(owner, name)
    inherited = name not in vars(owner)

    @wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        seen = torch._C._is_torch_function_mode_enabled()  # which another thread's are not
        if not seen or tracer._inside or torch._C._are_functorch_transforms_active():
            return original(*args, **kwargs)
        return tracer.record(original, original, args, kwargs, sys._getframe(1))

    setattr(owner, name, make)
    return partial(delattr, owner, name) if inherited else partial(setattr, owner, name, original)


class _GradMode:
    """Where gradients were switched off last."""

    def __init__(self, places: Places, ignored: Set[Place]) -> None:
        self._places = places
        self._ignored = ignored
        self._off: Place | None = None
        self._before: list[Place | None] = []
        self._passing: list[Place] = []
        """The ignored places that would have gradients off, the innermost last."""

    def switch(self, on: bool, frame: FrameType) -> bool:
        """Gradients are about to be switched on or off by a call in ``frame``: whether they are."""
        if on:
            if not torch.is_grad_enabled():
                self._before.append(self._off)
            elif self._passing:
                self._passing.pop()
            self._off = None
        elif torch.is_grad_enabled():
            ends = any(
                each.f_code.co_name == "__exit__"
                for each, _ in zip(callers(frame), range(4), strict=False)
            )
            found = self._before.pop() if self._before else None
            place = (found if ends else None) or self._switched(frame)
            if place in self._ignored:
                self._passing.append(place)
                return False
            self._off = place
        return True

    def place(self, frame: FrameType) -> Place | None:
        return self._off or decorated(frame)

    def within(self, scope: Place | None, frame: FrameType) -> Within | None:
        """The scope that gradients are off by, else the ignored one around, for a call."""
        scope = scope or (self._passing[-1] if self._passing else None)
        if scope is None:
            return None
        inner: FrameType | None = None
        for each in callers(frame):
            code = each.f_code
            if code.co_filename == scope.path and qualified(code) == scope.function:
                return Within(scope, each.f_lineno, wrapped_in(each, inner) if inner else None)
            if self._places.is_users(code.co_filename):
                inner = each
        return None

    def _switched(self, frame: FrameType) -> Place:
        outside = self._places.frame(frame)
        for each in callers(frame):
            if each is outside:
                break
            if each.f_code.co_name in DECORATED:
                return decorated(each) or NOWHERE
        return self._places.of(frame)


class _Modules:
    """Which module is running, by global hooks."""

    def __init__(self, names: Mapping[int, str], trace: Trace, arrivals: bool) -> None:
        self._arrivals = arrivals
        self._names = names
        self._stack: list[str] = []
        self._trace = trace
        self._handles: list[Any] = []

    @property
    def current(self) -> str:
        return self._stack[-1] if self._stack else ""

    def install(self) -> None:
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        name = self._names.get(id(module), self.current)
        self._stack.append(name)
        if id(module) in self._names:
            self._trace.modules.setdefault(name, type(module).__name__)

    def _leave(self, module: nn.Module, inputs: Any, out: Any) -> None:
        name = self._stack.pop() if self._stack else ""
        if not self._arrivals:
            return
        with torch._C.DisableTorchFunction():
            tensor = next((t for t in tensors_in((out,)) if t.requires_grad), None)
            if tensor is not None and node_of(tensor) is not None:
                arrived = self._trace.arrived
                with suppress(RuntimeError):  # a view that must not be asked for its history
                    put_hook(tensor, unserializable_hook(lambda gradient: arrived.add(name)))
