"""A plan put into effect, on all modules of a model or on none, and taken back.

Methods of modules are changed by a class of their own (:mod:`.swap`), other functions in place
(:mod:`.inplace`), for everybody, until the last model that needs them is restored.  So are
registered ops (:mod:`.attach`) and functions around kernels (:mod:`.symbol`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torch import nn

from ..catalog.own import registered
from . import decorators
from .attach import Attached, attach, forget_compiled, heirs, is_attached
from .audit.runs import refuse_no_model
from .inplace import helper, in_place, is_changed, name_of, original_code
from .lock import LOCK
from .needed import let_go, plan_for_all
from .properties import properties, refresh
from .reach import Member, members
from .rewritten import Definition, Refused, Rewritten, source_of
from .shared import Shared, undo_unheld
from .swap import Plan, become, beneath, plan_of, swapped, without
from .symbol import is_differentiable, symbol, together


@together()
def apply(model: nn.Module, plan: Plan) -> None:
    """Change the modules of a model that a plan concerns; all of them or, with an error, none.

    What was changed in it before is not, nor what others need changed, until :func:`put_back`.
    Raises :class:`~.rewritten.Refused` where a changed function cannot be put in its place.
    """
    take_back(model)
    done: list[nn.Module] = []
    root = unwrapped(model)
    try:
        for module in list(model.modules()):
            mine = {name for cls in type(module).__mro__ for name in map(name_of, members(cls))}
            mine.update(properties(type(module), plan.settings))
            methods = tuple(name for name in plan.methods if name in mine)
            if methods or (module is root and (plan.helpers or plan.ops or plan.symbols)):
                again(module, replace(plan, methods=methods))
                done.append(module)
    except Exception:
        for module in done:
            _restore(module)
        raise
    finally:
        forget_compiled()


def in_effect(plan: Plan) -> Plan:
    """The part of a plan outside of modules' own classes that others have brought about already.

    A model that it is right for needs it too, or it ends with them.
    """
    return Plan(
        plan.settings,
        helpers=tuple(name for name in plan.helpers if is_changed(helper(name).function)),
        ops=tuple(op for op in plan.ops if is_attached(op)),
        symbols=tuple(name for name in plan.symbols if is_differentiable(name)),
        own=plan.own,
    )


def again(module: nn.Module, plan: Plan) -> None:
    """Change one module as a plan says; raises :class:`~.rewritten.Refused` where it cannot be."""
    known = {name for row in registered() for name in row.names} if plan.own else set()
    if missing := [name for name in plan.own if name not in known]:
        raise Refused(
            f"{missing[0]} was registered with trainify.register, and has to be before it is loaded"
        )
    cls, around = beneath(type(module))
    prepared = _prepare(cls, plan)
    held: list[Shared] = []
    try:
        for each in prepared.shared:
            each.hold(module)
            held.append(each)
        become(module, around(prepared.cls))
    except Exception:
        for each in held:
            each.release(module)
        raise


def restore(model: nn.Module) -> None:
    """Undo :func:`trainify.trainify`: a model's modules get the classes back that they had.

    Registered ops and functions outside of modules, which are changed for the whole process, stay
    so for as long as another model, or a copy of this one, needs them; so do modules that are a
    part of another model as well.  Raises TypeError for what is no model.
    """
    refuse_no_model(model)
    with LOCK:
        let_go(model)
        take_back(model)
        put_back(model)


@together()
def take_back(model: nn.Module) -> None:
    """Undo what is changed in a model, whoever needs it."""
    restored = sum([_restore(module) for module in model.modules()])
    if undo_unheld() or restored:
        forget_compiled()


def changed(model: nn.Module) -> list[tuple[nn.Module, Plan]]:
    """The modules of a model that are changed, and how."""
    found = [(module, plan_of(module)) for module in model.modules()]
    return [(module, each[1]) for module, each in found if each is not None]


@together()
def put_back(model: nn.Module) -> None:
    """Change what is needed in a model, by itself or by another one that it shares modules with."""
    for module in model.modules():
        found = plan_of(module)
        before = found[1] if found else None
        plan = plan_for_all(module, before)
        if plan is not None and plan != before:
            _restore(module)
            again(module, plan)
            forget_compiled()


def _restore(module: nn.Module) -> bool:
    found = plan_of(module)
    if found is not None:
        refresh(module, found[0], found[1].settings)
        become(module, without(type(module)))
        for each in _prepare(*found).shared:
            each.release(module)
    return found is not None


def source_diff(model: nn.Module) -> str:
    """The change of source that a model's rewriting stands for, as a diff for ``git apply``.

    Kernels that got a backward where they are have none by that: comments before the diff name
    them.  ``trainify(model, strategy="flag")`` changes the source that calls them instead.  Raises
    TypeError for what is no model.
    """
    from ..output.diff import patch_names, unified_diff

    refuse_no_model(model)

    bound: dict[Rewritten, set[str]] = {}
    kernels: dict[str, None] = {}
    for module in model.modules():
        found = plan_of(module)
        if found is not None:
            _, plan = found
            kernels.update(dict.fromkeys((*plan.ops, *plan.symbols)))
            for source, name in _prepare(*found).functions:
                bound.setdefault(source, set()).add(name)
    sources = sorted(bound, key=lambda source: source.path)
    names = patch_names(source.path for source in sources)
    diffs = [unified_diff(s.change(bound[s]), names[s.path]) for s in sources]
    return _not_in_it(kernels) + b"".join(diffs).decode(errors="surrogateescape")


def _not_in_it(kernels: Iterable[str]) -> str:
    """Comments, which ``git apply`` passes over, on what got a backward in memory."""
    names = [name if "::" in name else name.replace(":", ".") for name in kernels]
    if not names:
        return ""
    lines = (
        "In this process these kernels have a backward. Where a call of one is not changed below,",
        'a patched file has none there; after trainify.trainify(model, strategy="flag") it is.',
        *(f"  {name}" for name in names),
    )
    return "".join(f"# {line}\n" for line in lines)


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own model in what torch puts around one."""
    while type(model).__module__.startswith("torch.") and len(list(model.children())) == 1:
        (model,) = model.children()
    return model


# -- from names to what they stand for -----------------------------------------------------------


@dataclass(frozen=True)
class _Prepared:
    """A class to become, what has to be held for it, and the functions that differ in it."""

    cls: type
    shared: tuple[Shared, ...]
    functions: tuple[tuple[Rewritten, str], ...]


@cache
def _prepare(cls: type, plan: Plan) -> _Prepared:
    shared: dict[Shared, None] = {}
    functions: list[tuple[Rewritten, str]] = []
    methods: dict[type, dict[str, Any]] = {}

    def change(member: Member, name: str) -> tuple[Definition, Definition]:
        source = source_of(original_code(member.function), plan.settings)
        found = source.of(member.function, original_code(member.function))
        if found is None:
            raise Refused(f"there is nothing to rewrite in {name.replace(':', '.')} any more")
        shared[source.names(member.function.__globals__)] = None
        functions.append((source, source.name_of(original_code(member.function))))
        return found

    by_name = {name_of(member): member for base in cls.__mro__ for member in members(base)}
    new = properties(cls, plan.settings)
    for name in plan.methods:
        if name in new:
            each = new[name]
            shared[each.source.names(each.makers[0].function.__globals__)] = None
            codes = [original_code(maker.function) for maker in each.makers]
            functions += [(each.source, each.source.name_of(code)) for code in codes]
            methods.setdefault(each.owner, {})[each.name] = each.written
            continue
        if name not in by_name:
            raise Refused(f"{cls.__qualname__} has no {name.replace(':', '.')} any more")
        member = by_name[name]
        assert member.owner is not None
        old, now = change(member, name)
        # The names that a decorator of the new definition uses may be new themselves.
        function = decorators.renewed(member.function, old, now, member.owner)
        rewrapped = decorators.rewrap(member.value, old, now, function)
        methods.setdefault(member.owner, {})[member.name] = rewrapped
    for name in plan.helpers:
        member = helper(name)
        old, now = change(member, name)
        shared[in_place(member, old, now)] = None
    for op in plan.ops:
        shared[_registered(op)] = None
    for name in plan.symbols:
        shared[symbol(name)] = None
    return _Prepared(swapped(cls, plan, methods), tuple(shared), tuple(functions))


class _Registered(Shared):
    """A registered op that has a backward, unless its user gave it one."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self._op = op
        self._attached: Attached | None = None

    def change(self) -> None:
        if is_attached(self._op):
            heirs[self._op] = self._take
        else:
            self._take()

    def _take(self) -> None:
        self._attached = attach(self._op)

    def undo(self) -> None:
        heirs.pop(self._op, None)
        if self._attached is not None:
            self._attached.undo()


_registered = cache(_Registered)
