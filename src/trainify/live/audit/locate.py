"""The line at which a tensor changes, or comes up, without torch having a hand in it.

Kernels that are no ops of the dispatcher are called like any function: by pybind, nanobind, ctypes,
Cython, a Triton launch.  So lines are traced, and after each one it is seen whether a tensor that
is known to change has changed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from types import BuiltinFunctionType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ...facts.carried import undetached
from ...facts.walk import walk
from .attributes import kept_by
from .cuts import Suspect
from .digest import digest
from .influence import Walk
from .places import Place, Places, parsed, place_of
from .report import Cause
from .saved import Saving, is_checkpoint
from .trace import Call, Key, Observer, Sight, Trace, Tracer, tensors_in

_TRITON = "triton"
_VARIABLE = "torch.autograd.variable.Variable"
_TORCHS = ("torch.", "builtins.", "math.", "typing.", "torch._C.")
"""What never does anything that torch does not see."""


class Locator(Observer):
    """Finds for each hidden suspect its place, what is called there, and with which parameters."""

    sights = False

    def __init__(
        self,
        suspects: Sequence[Suspect],
        base: Trace,
        places: Places,
        names: dict[int, str],
        known: Sequence[Tensor],
    ) -> None:
        self._places = places
        self._names = names
        self._begin: dict[Any, list[tuple[str, int, Suspect]]] = {}
        self._unknown: dict[Key, list[Suspect]] = {}
        self._end: dict[Key, list[Suspect]] = {}
        self._watched: list[tuple[Tensor, int, Suspect]] = []
        self._born: dict[int, tuple[Tensor, _Line]] = {}
        self._seen: dict[int, Tensor] = {id(t): t for t in known}
        self._line = _Line()
        self._saved_now: list[tuple[Tensor, Suspect]] = []
        self._tracer: Tracer | None = None
        self.found: set[int] = set()
        self.arrays: set[Place] = set()
        """Where NumPy computes in the memory of tensors."""
        self.beside: dict[Place, set[str]] = {}
        """Parameters behind what torch has made on the line of a suspect, by its place."""
        first: dict[int, tuple[Key | None, str, int]] = {
            id(s): (None, "known", i) for i, s in enumerate(base.known)
        }
        for call in base.calls:
            for what, i, sight in _sights(call):
                first.setdefault(id(sight), (call.key, what, i))
        for suspect in suspects:
            what, i = suspect.where
            if what in ("saved", "kept", "weight"):
                self._begin.setdefault(suspect.call.key, []).append((what, i, suspect))
                continue
            left = suspect.call.ins[i].left
            if not suspect.call.ins[i].known or left is None:
                self._unknown.setdefault(suspect.call.key, []).append(suspect)
                continue
            key, what, i = first[id(left)]
            self._begin.setdefault(key, []).append((what, i, suspect))
            self._end.setdefault(suspect.call.key, []).append(suspect)

    # -- what the tracer tells --------------------------------------------------------------------

    @contextmanager
    def watching(self, tracer: Tracer) -> Iterator[None]:
        known = list(self._seen.values())
        for _, i, suspect in self._begin.get(None, []):
            self._watched.append((known[i], digest(known[i]), suspect))
        self._tracer = tracer
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            with Saving(tracer, self._saved):
                yield
        finally:
            sys.settrace(before)
            self._check()
            for held in (self._watched, self._seen, self._born):
                held.clear()
            self._line = _Line()

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        self._check()
        for suspect in self._unknown.get(call.key, ()):
            tensor = tensors[suspect.where[1]]
            born = self._born.get(id(tensor))
            if born is not None and born[0] is tensor:
                self._accuse(suspect, born[1])
            elif id(tensor) not in self._seen:
                self._accuse(suspect, self._line)
        for suspect in self._end.get(call.key, ()):
            self._watched = [each for each in self._watched if each[2] is not suspect]
        self._watch(call.key, "in", tensors)

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        for tensor, before, suspect in list(self._watched):
            if digest(tensor) != before:
                self._accuse_call(suspect, call, [*tensors, tensor])
        arguments = {id(tensor) for tensor in tensors}
        returned = list(tensors_in((out,)))
        self._seen.update((id(t), t) for t in (*returned, *tensors))
        self._line.made += [t for t in returned if t.requires_grad]
        self._watched += [(t, digest(t), suspect) for t, suspect in self._saved_now]
        self._saved_now.clear()
        self._watch(call.key, "out", [t for t in returned if id(t) not in arguments])
        self._watch(call.key, "written", tensors)
        if any(kind == "kept" for kind, _, _ in self._begin.get(call.key, ())):
            self._watch(call.key, "kept", kept_by(call, out))
        return out

    def _saved(self, call: Call | None, number: int, tensor: Tensor) -> None:
        for what, i, suspect in self._begin.get(call.key if call else None, ()):
            if what in ("saved", "weight") and i == number:
                if is_checkpoint(suspect.call):
                    with torch._C.DisableTorchFunction():
                        self._watched.append((tensor, digest(tensor), suspect))
                else:
                    self._saved_now.append((tensor, suspect))

    def _watch(self, key: Key, what: str, tensors: Sequence[Tensor]) -> None:
        for kind, i, suspect in self._begin.get(key, ()):
            if kind == what and i < len(tensors) and id(suspect) not in self.found:
                self._watched.append((tensors[i], digest(tensors[i]), suspect))

    # -- what Python tells ------------------------------------------------------------------------

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        running = self._tracer is not None and self._tracer.running is not None
        if running or not self._places.is_users(path) or _launched_by_triton(frame):
            return None
        return self._in_frame

    def _in_frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event in ("line", "return"):
            self._check()
            self._look_for_new(frame, argument if event == "return" else None)
            outer = frame if event == "line" else self._places.frame(frame.f_back)
            if outer is not None:
                self._line = _Line(outer, self._tracer.module if self._tracer else "")
        return self._in_frame

    def _look_for_new(self, frame: FrameType, returned: Any) -> None:
        for tensor in tensors_in((*frame.f_locals.values(), returned)):
            if id(tensor) not in self._seen:
                self._seen[id(tensor)] = tensor
                self._born[id(tensor)] = (tensor, self._line)

    def _check(self) -> None:
        for tensor, before, suspect in list(self._watched):
            if digest(tensor) != before:
                self._accuse(suspect, self._line, tensor)

    def _accuse(self, suspect: Suspect, line: _Line, tensor: Tensor | None = None) -> None:
        self._watched = [each for each in self._watched if each[2] is not suspect]
        if line.place is None or id(suspect) in self.found:
            return
        self.found.add(id(suspect))
        suspect.place = line.place
        suspect.module = line.module
        suspect.op, arguments = line.leaf() if suspect.leaf else line.call()
        if suspect.op is None and suspect.cause is Cause.KERNEL and line.makes(_VARIABLE):
            suspect.cause, suspect.op = Cause.DETACH, "torch.autograd.Variable"
        if suspect.where[0] == "weight":  # of which it is known whose gradient is another
            return
        made = Walk(self._names).parameters(line.made)
        self.beside.setdefault(line.place, set()).update(made)
        walk = Walk(self._names)
        if not arguments and (arguments := self._sharing(line.addresses())):
            self.arrays.add(line.place)
        suspect.parameters |= walk.parameters(arguments)
        if tensor is not None:
            suspect.parameters |= walk.parameters([tensor])

    def _sharing(self, addresses: Set[int]) -> list[Tensor]:
        """The tensors with a history in whose memory these addresses lie."""
        found = []
        for tensor in self._seen.values() if addresses else ():
            if tensor.requires_grad and tensor.layout is torch.strided and tensor.is_cpu:
                storage = tensor.untyped_storage()
                first = storage.data_ptr()
                if any(first <= address < first + storage.nbytes() for address in addresses):
                    found.append(tensor)
        return found

    def _accuse_call(self, suspect: Suspect, call: Call, tensors: Sequence[Tensor]) -> None:
        self._watched = [each for each in self._watched if each[2] is not suspect]
        self.found.add(id(suspect))
        suspect.place = call.place
        suspect.module = call.module
        what = suspect.where[0]
        if call.scope is not None and what not in ("kept", "weight"):  # with gradients on as bad
            suspect.cause, suspect.scope = Cause.GRAD_MODE, call.scope
            suspect.within = call.within
        suspect.op = call.name
        if suspect.cause is Cause.KERNEL and not call.opaque:  # torch's own, of another version
            suspect.cause, suspect.op = Cause.DATA, "torch.Tensor.data"
        if what != "weight":
            suspect.parameters |= Walk(self._names).parameters(tensors)


def _sights(call: Call) -> Iterator[tuple[str, int, Sight]]:
    yield from (("in", i, sight) for i, sight in enumerate(call.ins))
    yield from (("out", i, sight) for i, sight in enumerate(call.outs))
    yield from (("written", i, sight) for i, (sight, _) in call.written.items())


def _launched_by_triton(frame: FrameType) -> bool:
    return frame.f_back is not None and f"/{_TRITON}/" in frame.f_back.f_code.co_filename


class _Line:
    """A line about to run, with what its names stand for."""

    def __init__(self, frame: FrameType | None = None, module: str = "") -> None:
        self.place: Place | None = None
        self.module = module
        self.made: list[Tensor] = []
        """What has come up while it ran, and has a history."""
        self._names: dict[str, Any] = {}
        if frame is not None:
            self.place = place_of(frame)
            self._names = dict(frame.f_locals)
            self._globals = frame.f_globals

    def call(self) -> tuple[str | None, list[Tensor]]:
        """What the line calls that is not torch's, and the tensors that it gives to it."""
        assert self.place is not None
        found: tuple[str | None, list[Tensor]] = None, []
        best = -1, False
        for node in _calls(self.place.path, self.place.line):
            called = self._value(node.func)
            name = _name(called) or ast.unparse(node.func)
            if name.startswith(_TORCHS) or _is_run_by_python(called):
                continue
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            tensors = list(tensors_in(self._value(_undetached(each)) for each in given))
            rank = len(tensors), called is not None
            if rank > best:
                best, found = rank, (name, tensors)
        return found

    def addresses(self) -> set[int]:
        """Where what NumPy's arrays on the line hold begins: it may be the memory of tensors."""
        assert self.place is not None
        nodes = _named_on(self.place.path, self.place.line)
        interfaces = (getattr(self._value(node), "__array_interface__", None) for node in nodes)
        return {each["data"][0] for each in interfaces if isinstance(each, dict)}

    def makes(self, name: str) -> bool:
        """Whether the line calls something of a name."""
        assert self.place is not None
        calls = _calls(self.place.path, self.place.line)
        return any(_name(self._value(node.func)) == name for node in calls)

    def leaf(self) -> tuple[str | None, list[Tensor]]:
        """The ``nn.Parameter`` that the line makes, and the tensors that it is made of."""
        assert self.place is not None
        for node in _calls(self.place.path, self.place.line):
            name = _name(self._value(node.func)) or ""
            if name.startswith("torch.") and name.endswith(".Parameter"):
                parts = [each for each in walk(node) if isinstance(each, _REFERENCES)]
                return "torch.nn.Parameter", list(tensors_in(map(self._value, parts)))
        return self.call()

    def _value(self, node: ast.expr) -> Any:
        """What a name, an attribute or an item is; None for what would have to be called."""
        try:
            if isinstance(node, ast.Name):
                if node.id in self._names:
                    return self._names[node.id]
                return self._globals.get(node.id)
            if isinstance(node, ast.Attribute):
                return getattr(self._value(node.value), node.attr)
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                return self._value(node.value)[node.slice.value]
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                return self._value(node.value)  # kernel[grid], or a part of a tensor
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = self._value(node.func.value)  # x.view(...) is x, for where it comes from
                return owner if isinstance(owner, Tensor) else None
        except Exception:
            return None
        return None


_REFERENCES = (ast.Name, ast.Attribute, ast.Subscript)


def _is_run_by_python(called: Any) -> bool:
    """Whether it is a module, of which each call is seen."""
    return isinstance(called, nn.Module) and not isinstance(called, torch.jit.ScriptModule)


def _undetached(node: ast.expr) -> ast.expr:
    """``x`` for ``x.data``, ``x.detach()`` and ``x.contiguous()``."""
    while True:
        node = undetached(node)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return node
        if node.func.attr != "contiguous":
            return node
        node = node.func.value


def _name(called: Any) -> str | None:
    """The qualified name of a function, or of a Triton kernel; None where it has none."""
    if isinstance(called, torch.jit.ScriptFunction):
        return str(called.qualified_name).removeprefix("__torch__.")
    function = getattr(called, "fn", None) or called
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None)
    if name is None or isinstance(function, BuiltinFunctionType):  # pybind's is not for people
        name = getattr(function, "__name__", None)
    return f"{module}.{name}" if name is not None else None


def _named_on(path: str, line: int) -> list[ast.Name]:
    """The names that are read on a line."""
    tree = parsed(path)
    return [
        node
        for node in (walk(tree) if tree else ())
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno == line
    ]


def _calls(path: str, line: int) -> list[ast.Call]:
    """The calls that begin on a line, or else run over it; the innermost first."""
    tree = parsed(path)
    if tree is None:
        return []
    calls = [node for node in walk(tree) if isinstance(node, ast.Call)]
    here = [node for node in calls if node.lineno == line]
    over = [node for node in calls if node.lineno <= line <= (node.end_lineno or 0)]
    return list(reversed(here or over))
