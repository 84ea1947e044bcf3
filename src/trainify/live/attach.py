"""Strategy ``attach`` at run time: a registered op keeps its kernel and gets a backward.

An op that a library registers with PyTorch's dispatcher (``torch.ops._C.rms_norm``) has a kernel
for a device and none for autograd.  Here it gets one for its Autograd key: the forward is the fused
kernel, on the same bits, and the backward is that of the reference that the catalog gives for the
op.  No source changes, no module changes, and without a gradient to compute nothing but the
fused kernel runs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from types import TracebackType
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from ..catalog import RETURNED, FusedOp, all_ops, holds
from ..catalog.own import registered
from ..releases import Release, find_releases
from ..verify.equivalent import Equivalent, value_of
from ..verify.kernels import Libraries
from .bodies import row_of_body, with_body
from .derivative import Derivative, unknown_for
from .overwritten import about_to_write, keeping, saves_unchecked
from .transforms import TRANSFORMED, Transformed, is_transformed

Op = str | OpOverload | OpOverloadPacket
"""An op: ``"_C::rms_norm"``, ``torch.ops._C.rms_norm`` or ``torch.ops._C.rms_norm.default``."""


class CannotAttach(ValueError):
    """An op to which no backward can be given; the message says why."""


class Attached:
    """The ops that have got a backward, until :meth:`undo` or the end of a ``with`` block."""

    def __init__(self, formulas: Sequence[_Formula]) -> None:
        self._libraries: list[torch.library.Library] = []
        self._formulas = tuple(formulas)
        self._tag = torch.compiler.config.cache_key_tag
        for formula in formulas:
            self._libraries += _register(formula)
        _forget_compiled(formulas)
        # The caches on disk of compiled graphs do not know of registrations.
        names = ",".join(sorted(f"{f.name}={f.equivalent.op.equivalent}" for f in formulas))
        torch.compiler.config.cache_key_tag = f"{self._tag}trainify:{names}"

    @property
    def ops(self) -> tuple[str, ...]:
        """Their names, as ``namespace::name``."""
        return tuple(formula.name for formula in self._formulas)

    def undo(self) -> None:
        """Take the backwards away again; doing it twice does nothing."""
        if not self._libraries:
            return
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()
        _forget_compiled(self._formulas)
        for name in self.ops:
            _attached.pop(name, None)
        torch.compiler.config.cache_key_tag = self._tag
        for name in self.ops:
            if name in heirs:
                heirs.pop(name)()

    def __enter__(self) -> Attached:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<trainify.attach: {', '.join(self.ops)}>"


def attach(*ops: Op) -> Attached:
    """Give registered ops a backward; their forward stays what it is, to the bit.

    With a gradient to compute, the fused kernel runs on copies of what it writes into where that is
    a view, so that the results can be put where they belong in a way that autograd sees.  Backward
    is the closed form of the reference in :mod:`trainify.reference`, or computes that again and
    differentiates it; for a ``torch.library.custom_op`` that the catalog does not have, its own
    body, where that is PyTorch.  Where one of these ops writes into what an earlier one needs, as
    norms that add to one residual do, that is copied before.  Where something else has written into
    what an op needs, backward raises: :func:`~trainify.trainify` and ``trainify fix`` rewrite such
    calls.
    The transforms of :mod:`torch.func` go through; under ``vmap`` the kernel runs for each sample.

    Args:
        ops: The ops, which have to be registered (import their library first).  Without any, every
            registered op that the catalog has an equivalent for, and that has no backward yet.

    Returns:
        What undoes it: :meth:`Attached.undo`, or the end of a ``with`` block.

    Raises:
        CannotAttach: An op is not registered, is not in the catalog nor PyTorch itself, has no
            equivalent there, has another signature than any release in the catalog, or has been
            given a backward before.
    """
    releases = cache(_releases)
    formulas = [_formula(op, releases) for op in ops] if ops else list(_known())
    names = [formula.name for formula in formulas]
    for name in names:
        if name in _attached or names.count(name) > 1:
            raise CannotAttach(f"{name} has been given a backward already")
    attached = Attached(formulas)
    _attached.update(dict.fromkeys(names, attached))
    return attached


def known_ops() -> tuple[str, ...]:
    """The registered ops that the catalog has an equivalent for and that have no backward."""
    return tuple(formula.name for formula in _known())


def attached_ops() -> tuple[str, ...]:
    """The registered ops that have been given a backward, and still have it."""
    return tuple(_attached)


def computed_again(ops: Collection[str]) -> tuple[str, ...]:
    """Those of some ops that the catalog does not have, and whose own body autograd can follow."""
    return tuple(op for op in with_body(ops) if not _rows(_overload(op), tuple))


def is_attached(op: str) -> bool:
    """Whether an op, by its name, has been given a backward."""
    return op in _attached


_attached: dict[str, Attached] = {}
"""By the name of the op; a registration lasts as long as something holds it."""

heirs: dict[str, Callable[[], None]] = {}
"""Who needs an op, by its name, that somebody else has given a backward, once they take it away."""


# -- which formula --------------------------------------------------------------------------------


def _releases() -> tuple[Release, ...]:
    return find_releases(".")


def _formula(op: Op, releases: Callable[[], tuple[Release, ...]] = _releases) -> _Formula:
    overload = _overload(op)
    body = None if _rows(overload, releases) else row_of_body(overload)
    return _Formula(*(row_of(op, releases) if body is None else (overload, body)))


def row_of(
    op: Op, releases: Callable[[], tuple[Release, ...]] = _releases
) -> tuple[OpOverload, FusedOp]:
    """An op and its row in the catalog; raises :class:`CannotAttach` where there is none.

    ``releases`` are asked for where several rows have the op's name.
    """
    overload = _overload(op)
    rows = _rows(overload, releases)
    if not rows:
        raise CannotAttach(
            f"{_name(overload)} is not in the catalog; `trainify.register` adds an op of your own"
        )
    reasons = []
    for row in rows:
        if row.equivalent is None:
            raise CannotAttach(f"{_name(overload)}: {row.note or 'it has no equivalent'}")
        reason = _mismatch(overload, row)
        if reason is None:
            return overload, row
        reasons.append(reason)
    raise CannotAttach(f"{_name(overload)} is another op than the catalog's: {reasons[0]}")


def _known() -> Iterable[_Formula]:
    """The formulas for every op that is registered, has an equivalent, and no backward."""
    seen = set()
    releases = cache(_releases)  # what the project says costs some 10 ms to find
    for row in (*registered(), *all_ops()):
        for name in row.names:
            parts = name.split(".")
            if parts[:2] != ["torch", "ops"] or len(parts) != 4 or name in seen:
                continue
            seen.add(name)
            if parts[2] in ("aten", "prims") or row.equivalent is None:
                continue
            packet = getattr(getattr(torch.ops, parts[2]), parts[3], None)
            if packet is None or f"{parts[2]}::{parts[3]}" in _attached:
                continue
            try:
                formula = _formula(packet, releases)
            except CannotAttach:
                continue
            if not has_backward(formula.op):
                yield formula


def _overload(op: Op) -> OpOverload:
    if isinstance(op, str):
        namespace, _, name = op.removeprefix("torch.ops.").replace("::", ".").partition(".")
        packet = getattr(getattr(torch.ops, namespace), name.removesuffix(".default"), None)
        if packet is None:
            raise CannotAttach(f"{op!r} is not registered; import its library first")
        op = packet
    if isinstance(op, OpOverloadPacket):
        overloads = op.overloads()
        if "default" not in overloads and len(overloads) > 1:
            raise CannotAttach(f"{op} has several overloads; name one: {', '.join(overloads)}")
        op = getattr(op, "default" if "default" in overloads else overloads[0])
    if not isinstance(op, OpOverload):
        what = getattr(op, "__qualname__", repr(op))
        raise CannotAttach(
            f"{what} is no registered op: only what PyTorch's dispatcher knows can be given a "
            "backward in place"
        )
    return op


def _name(op: OpOverload) -> str:
    return op._schema.name


def _rows(op: OpOverload, releases: Callable[[], tuple[Release, ...]]) -> list[FusedOp]:
    """The rows for an op, that for the release in use first."""
    qualified = "torch.ops." + _name(op).replace("::", ".")
    rows = [row for row in registered() if qualified in row.names]
    rows += _of_catalog().get(qualified, ())
    if len(rows) > 1:
        used = releases()
        rows.sort(key=lambda row: not holds(row, used))
    return rows


@cache
def _of_catalog() -> dict[str, list[FusedOp]]:
    """The catalog's rows by each of their names."""
    rows: dict[str, list[FusedOp]] = {}
    for row in all_ops():
        for name in row.names:
            rows.setdefault(name, []).append(row)
    return rows


def _mismatch(op: OpOverload, row: FusedOp) -> str | None:
    """Why the op that is registered is not the one in a row; None where it is."""
    theirs = op._schema.arguments
    ours = row.signature.arguments
    for i, argument in enumerate(ours):
        if i >= len(theirs):
            if argument.default is None:
                return f"it has no argument {argument.name!r}"
        elif argument.name in row.unsupported and _is_written(theirs[i]) and not argument.written:
            continue  # it is not given where a backward is known
        elif _is_written(theirs[i]) != argument.written:
            return f"argument {i + 1}, {theirs[i].name!r}, is written by one of them only"
        elif (str(theirs[i].type) in ("Tensor", "Optional[Tensor]")) != argument.is_tensor:
            return f"argument {i + 1} is {theirs[i].type}, and {argument.type} in the catalog"
    if len(theirs) > len(ours):
        return f"it has an argument {theirs[len(ours)].name!r}, and the catalog knows nothing of it"
    return None


def _is_written(argument: torch.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def has_backward(op: OpOverload) -> bool:
    """Whether autograd knows what to do with an op."""
    defined = torch._library.custom_ops.OPDEFS.get(_name(op))
    if defined is not None:
        return defined._backward_fn is not None
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
        for key in ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
    )


# -- running it -----------------------------------------------------------------------------------


class _Formula:
    """How an op runs where a gradient may be wanted; it is the kernel for its Autograd key."""

    def __init__(self, op: OpOverload, row: FusedOp) -> None:
        self.op = op
        self.name = _name(op)
        self.equivalent = Equivalent(row, Libraries())
        self.arguments = row.signature.arguments[: len(op._schema.arguments)]
        self.names = [argument.name for argument in self.arguments]
        self.written = [i for i, argument in enumerate(self.arguments) if argument.written]
        reads = self.equivalent.reads
        self.reads = [name in reads for name in self.names]
        # Each look at the schema makes it anew, in C++; calls are many.
        self._defaults = [(a.name, a.default_value) for a in op._schema.arguments]
        self._keywords = [a.name for a in op._schema.arguments if a.kwarg_only]
        self._aliased = self._returns_written()
        self._returns_list = [str(r.type) for r in op._schema.returns] == ["List[Tensor]"]
        self.returns = 0 if self._aliased else len(op._schema.returns)
        self.results = [self.names[i] for i in self.written] + [RETURNED] * self.returns
        self.derivative = Derivative(self.equivalent, self.results)
        self.unsupported = {
            i: None if a.default is None else value_of(a.default)
            for i, a in enumerate(self.arguments)
            if a.name in row.unsupported
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._bind(args, kwargs)
        if is_transformed(given):
            return self.transformed(*args, **kwargs)
        about_to_write(given[i] for i in self.written)
        tensors = [value for value in given if isinstance(value, Tensor)]
        trained = any(t.requires_grad for t in tensors) or any(_holds_trained(v) for v in given)
        if not torch.is_grad_enabled() or not trained:
            return self._kernel(*args, **kwargs)
        self.check(given)
        unchecked = saves_unchecked()
        in_place = [
            i
            for i in self.written
            if _as_it_is(given[i])
            and not unchecked
            and sum(_share(given[i], each) for each in tensors) == 1
        ]
        for i in in_place:
            if not self.reads[i] and given[i].grad_fn is not None:
                given[i].detach_()  # a buffer that is used again: what it held before is gone
        seen = [
            value.detach()
            if isinstance(value, Tensor) and not self.reads[i] and i not in in_place
            else value
            for i, value in enumerate(given)
        ]  # what is not read has no gradient, and its history is not this op's
        if unchecked:
            seen = [
                value.clone() if may_be_overwritten(value) and i not in self.written else value
                for i, value in enumerate(seen)
            ]
        with keeping():
            results = _Differentiable.apply(self, in_place, *seen)  # type: ignore[no-untyped-call]
        return self._given_back(given, results, in_place)

    def transformed(self, *args: Any, **kwargs: Any) -> Any:
        """The call under a transform, where memory does not tell who writes over what."""
        given = self._bind(args, kwargs)
        seen = []
        for i, value in enumerate(given):
            if isinstance(value, Tensor) and not self.reads[i]:
                value = value.detach()
            elif i in self.written or may_be_overwritten(value):
                value = value.clone() if isinstance(value, Tensor) else value
            seen.append(value)
        results = Transformed.apply(self, *seen)  # type: ignore[no-untyped-call]
        return self._given_back(given, results)

    def _given_back(
        self, given: Sequence[Any], results: Sequence[Any], in_place: Collection[int] = ()
    ) -> Any:
        """What the call returns, once what it writes is where it belongs."""
        for i, result in zip(self.written, results, strict=False):
            if given[i] is not None and i not in in_place:
                put(self.name, given[i], result, self.reads[i])
        returned = results[len(self.written) :]
        if self._returns_list:
            return list(returned)
        values = (*(given[i] for i in self._aliased), *returned)
        return values[0] if len(values) == 1 else values or None

    def fresh(self, args: Sequence[Any], in_place: Collection[int] = ()) -> list[Any]:
        """The results of the fused kernel, on copies of what it does not write ``in_place``.

        What it leaves alone has to stay, so these are no empty buffers.
        """
        into = {
            i: args[i] if i in in_place else args[i].clone()
            for i in self.written
            if args[i] is not None
        }
        returned = self.run([into.get(i, value) for i, value in enumerate(args)])
        results = [into.get(i) for i in self.written]
        if self.returns:
            results += returned if isinstance(returned, (list, tuple)) else [returned]
        return results

    def run(self, args: Sequence[Any]) -> Any:
        """The fused kernel, below autograd."""
        positional = len(args) - len(self._keywords)
        named = dict(zip(self._keywords, args[positional:], strict=True))
        return self._kernel(*args[:positional], **named)

    def _kernel(self, *args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return self.op(*args, **kwargs)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """A value for each argument, in order."""
        rest = self._defaults[len(args) :]
        return [*args, *(kwargs.get(name, default) for name, default in rest)]

    def check(self, given: Sequence[Any]) -> None:
        for i, default in self.unsupported.items():
            if given[i] is not None and given[i] != default:
                raise NotImplementedError(unknown_for(self.name, self.names[i], given[i]))
        for name, value in zip(self.names, given, strict=True):
            if _holds_trained(value):
                raise NotImplementedError(
                    f"{self.name}: {name} is a list of tensors that are trained, and no backward "
                    "is known for those"
                )

    def _returns_written(self) -> list[int]:
        """The arguments that the op returns again, by position: ``-> Tensor(a!)``."""
        found = []
        for returned in self.op._schema.returns:
            if returned.alias_info is not None:
                found += [
                    i
                    for i in self.written
                    if (info := self.op._schema.arguments[i].alias_info) is not None
                    and info.before_set == returned.alias_info.before_set
                ]
        return found


def _holds_trained(value: Any) -> bool:
    """Whether an argument is a list with tensors in it that get a gradient."""
    return isinstance(value, (list, tuple)) and any(
        isinstance(each, Tensor) and each.requires_grad for each in value
    )


def may_be_overwritten(value: Any) -> TypeGuard[Tensor]:
    """Whether an argument was computed, so that others have it too and may write into it."""
    return isinstance(value, Tensor) and not value.is_leaf


def put(name: str, target: Tensor, result: Tensor, read: bool) -> None:
    """Write a result where the kernel ``name`` would have, seen by autograd.

    ``read`` says whether the kernel also reads the target; otherwise its history goes.
    """
    if torch.compiler.is_dynamo_compiling():  # which knows no history of a tensor, and needs none
        target.copy_(result)
        return
    if not read and target.grad_fn is not None and not target._is_view():
        target.detach_()  # a buffer that is used again: what it held before is gone
    try:
        target.copy_(result)
    except RuntimeError as error:
        if "is a view and is being modified inplace" not in str(error):
            raise
        raise RuntimeError(
            f"{name} writes into one of several views that split(), chunk() or unbind() "
            "made together, which autograd cannot follow. Take slices instead; "
            "`trainify fix` does, where it can"
        ) from error


class _Differentiable(torch.autograd.Function):
    """An op that gives what it writes, then what it returns.

    It writes into its arguments at ``in_place``, and into copies of the others.
    """

    @staticmethod
    def forward(ctx: Any, formula: _Formula, in_place: Collection[int], *args: Any) -> Any:
        written = {i: args[i] for i in formula.written if args[i] is not None}
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        ctx.formula = formula
        ctx.way = formula.derivative.way(
            dict(zip(formula.names, args, strict=True)), [formula.names[i] for i in wanted]
        )
        ctx.others = list(args)
        ctx.tensors = []
        ctx.lost = None
        saved = []
        for i, value in enumerate(args):
            if isinstance(value, Tensor):
                ctx.others[i] = None
                if formula.names[i] in ctx.way.reads:
                    if any(_share(value, each) for each in written.values()):
                        if i in wanted:
                            ctx.lost = formula.names[i]
                        value = value.clone()  # it is about to be overwritten
                    ctx.tensors.append(i)
                    saved.append(value)
        results = formula.fresh(args, in_place)
        ctx.save_for_backward(*saved, *(results[i] for i in ctx.way.results))
        ctx.mark_dirty(*(args[i] for i in in_place))
        ctx.mark_non_differentiable(
            *(r for r in results if isinstance(r, Tensor) and not r.is_floating_point())
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        formula: _Formula = ctx.formula
        if ctx.lost and torch.is_grad_enabled():
            raise RuntimeError(
                f"{formula.name} has overwritten {ctx.lost!r}: its gradient cannot be "
                "differentiated again (create_graph=True)"
            )
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        saved = iter(_saved(ctx))
        values = list(ctx.others)
        for i in ctx.tensors:
            values[i] = next(saved)
        gradients = ctx.way(
            dict(zip(formula.names, values, strict=True)),
            dict(zip(ctx.way.results, saved, strict=True)),
            [formula.names[i] for i in wanted],
            grads,
        )
        found = dict(zip(wanted, gradients, strict=True))
        return (None, None, *(found.get(i) for i in range(len(values))))


def _saved(ctx: Any) -> tuple[Tensor, ...]:
    """What a call has kept; raises where that was written into since."""
    try:
        tensors: tuple[Tensor, ...] = ctx.saved_tensors
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        name = ctx.formula.name
        raise RuntimeError(
            f"{name}: its gradient needs a value that was modified by an inplace operation after "
            "the call. Write into a copy there, or have the calls rewritten, by "
            "`trainify.trainify(model)` or `trainify fix`"
        ) from error
    return tensors


def _as_it_is(target: Any) -> bool:
    """Whether a kernel may write into a tensor and autograd be told afterwards.

    Not so into a view, whose base has a history of its own, nor where writing is refused: that has
    to be before, not after.
    """
    return (
        type(target) is Tensor
        and target.is_floating_point()
        and not (target._is_view() or target.is_inference())
        and not (target.is_leaf and target.requires_grad)
    )


def _share(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


# -- registering ----------------------------------------------------------------------------------


def _register(formula: _Formula) -> list[torch.library.Library]:
    namespace, _, name = formula.op.name().partition("::")
    library = torch.library.Library(namespace, "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that what a custom op has, which raises, is overridden
        library.impl(name, formula, "Autograd", allow_override=True)
    library.impl(name, formula.transformed, TRANSFORMED)
    libraries = [library]
    if not _has_fake(formula.op):
        fake = torch.library.Library(namespace, "FRAGMENT")
        torch.library.register_fake(formula.op.name(), _fake(formula), lib=fake)
        libraries.append(fake)
    return libraries


def _has_fake(op: OpOverload) -> bool:
    if torch._library.simple_registry.singleton.find(op.name()).fake_impl.kernel is not None:
        return True
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
        for key in ("Meta", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    )


def _fake(formula: _Formula) -> Any:
    """What tracing needs: the results that the op returns, without values."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        given = formula._bind(args, kwargs)
        aliases = [given[i] for i in formula._aliased]
        if aliases or not formula.op._schema.returns:
            return aliases[0] if len(aliases) == 1 else tuple(aliases) or None
        results = formula.equivalent(dict(zip(formula.names, given, strict=True)))
        outputs = formula.equivalent.outputs or ["_"] * len(results)
        returned = [r for name, r in zip(outputs, results, strict=True) if name == "_"]
        return returned[0] if len(returned) == 1 else tuple(returned)

    return fake


def _forget_compiled(formulas: Iterable[_Formula]) -> None:
    """Nothing that was compiled or looked up before holds any more."""
    for formula in formulas:
        formula.op._dispatch_cache.clear()
    forget_compiled()


def forget_compiled() -> None:
    """Have everything compiled again that was compiled before, if anything was."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
