"""Where the result of a functionalized call goes.

A fused op writes into its arguments.  Its differentiable equivalent returns what would have been
written, and the question is which name takes it.  The answer comes from def-use: who else looks at
that storage, and who reads it later.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..facts import ModuleFacts
from ..facts.fields import is_tuple, refuses_field
from ..facts.flow import Definition, FunctionFlow
from ..facts.given_back import names_given_back
from ..facts.handed_back import is_handed_back
from ..facts.views import is_allocation, looked_at, view_of
from ..facts.walk import statements, walk
from ..facts.writes import is_element
from .copied_into import who_raises
from .pieces import gives_several, put_together
from .saved_by_kernels import saved_before


@dataclass(frozen=True)
class Place:
    """Where a result goes: ``text = value``, or ``text.copy_(value)`` into somebody else's tensor.

    ``shape_of`` names a tensor whose shape the result takes on.  With ``optional``, there may be
    neither a tensor nor a result: both are None.
    """

    text: str
    kind: Literal["assign", "copy"] = "assign"
    shape_of: str = ""
    optional: bool = False

    @property
    def is_name(self) -> bool:
        return self.kind == "assign" and self.text.isidentifier() and not self.shape_of


class CannotFunctionalize(Exception):
    """The write cannot be turned into a value; the text says why."""


@dataclass(frozen=True)
class Write:
    """One written argument, functionalized.

    ``allocation`` is the statement that only made the buffer and is not needed any more;
    ``followers`` are lines that bring names up to date which looked at the old storage;
    ``look_at`` says what a person should check, empty where the meaning is the same for sure;
    ``only_copies`` as in :class:`~trainify.findings.Fix`.
    """

    place: Place
    allocation: ast.stmt | None = None
    followers: tuple[str, ...] = ()
    look_at: str = ""
    only_copies: bool = False


@dataclass(frozen=True)
class Written:
    """An argument that a kernel writes in a statement; ``read`` if it reads the old value too."""

    statement: ast.stmt
    argument: ast.expr
    read: bool = True


def functionalize(
    module: ModuleFacts,
    statement: ast.stmt,
    argument: ast.expr,
    *,
    read: bool = True,
    beside: Sequence[Written] = (),
) -> Write:
    """Decide for one written argument of a call in ``statement``.

    ``read`` says that the call reads the argument's old value too; ``beside`` are all that kernels
    write in the same function.  Raises :class:`CannotFunctionalize`.
    """
    owner = _out_parameter(module, statement, argument) if not read else None
    if owner is not None:
        looped = any(
            isinstance(a, (ast.For, ast.AsyncFor, ast.While)) for a in module.ancestors(statement)
        )
        place = Place(module.source(argument), "copy")
        raising = who_raises(module, module.function(statement) or module.tree, owner)
        if looped and not raising:
            raising = f"`{owner}` may be an input of another turn: autograd must not have saved it"
        return Write(place, look_at=raising)
    flow = module.flow(module.function(statement) or module.tree)
    if isinstance(argument, ast.Name):
        return _name(module, flow, statement, argument.id, beside)
    if isinstance(argument, ast.Attribute) and argument.attr not in ("data", "T", "mT"):
        return _attribute(module, statement, argument)
    view = view_of(argument)
    if view is None:
        raise CannotFunctionalize(f"it writes into `{module.source(argument)}`, which has no name")
    if view.kind == "part":
        return _slice(module, flow, statement, argument, view.base)
    write = _name(module, flow, statement, view.base, beside)
    if isinstance(argument, ast.Attribute) and argument.attr == "data":
        return write
    turned = any(isinstance(n, ast.Attribute) and n.attr in _TURNS for n in walk(argument))
    if turned and write.place.kind != "copy":
        text = module.source(argument)
        raise CannotFunctionalize(f"it writes into `{text}`, which has other axes than its tensor")
    shape_of = write.place.text
    allocation = write.allocation
    if allocation is not None:
        like = empty_like(allocation)
        if like is None:
            allocation = None  # its shape is still needed
        else:
            shape_of = like
    place = write.place
    if place.kind == "copy":
        return replace(write, place=Place(module.source(argument), "copy"))
    return replace(write, place=Place(place.text, shape_of=shape_of), allocation=allocation)


_TURNS = frozenset("T mT real imag t transpose permute swapaxes swapdims movedim moveaxis".split())


def _out_parameter(module: ModuleFacts, statement: ast.stmt, argument: ast.expr) -> str | None:
    """The parameter that a result is written into: the caller's buffer, and his to read."""
    view = view_of(argument)
    function = module.function(statement)
    if view is None or function is None:
        return None
    return _parameter_behind(module.flow(function), statement, view.base)


def _refuse_shared(flow: FunctionFlow, statement: ast.stmt, name: str) -> None:
    """Raise where somebody out of sight holds a tensor: rebinding its name loses the write."""
    if not flow.is_local(name):
        raise CannotFunctionalize(f"`{name}` belongs to a scope around this function")
    for other in (name, *sorted(flow.observers(name, statement))):
        stored = flow.stored_before(other, statement)
        if stored is not None:
            raise CannotFunctionalize(f"`{other}` is kept elsewhere by `{stored}`")
        for shared in names_given_back(flow, other, statement):
            if shared != name and flow.read_after(shared, statement):
                raise CannotFunctionalize(f"`{shared}` may be `{other}`, and is read later")
        for definition in flow.reaching(other, statement):
            if isinstance(definition.statement, (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)):
                if definition.value is None:
                    raise CannotFunctionalize(f"`{other}` may be part of something else")


def _name(
    module: ModuleFacts,
    flow: FunctionFlow,
    statement: ast.stmt,
    name: str,
    beside: Sequence[Written],
) -> Write:
    _refuse_shared(flow, statement, name)
    owner = _parameter_behind(flow, statement, name)
    if owner is not None and not _all_handed_back(
        flow, owner, Written(statement, _named(name)), beside
    ):
        why = f"what is written into `{owner}` is not returned, so callers have it there: it is"
        return _copied(module, flow, owner, name, statement, why)
    definition = flow.only_definition(name, statement)
    live = sorted(o for o in flow.observers(name, statement) if flow.read_after(o, statement))
    if live:
        return _observed(module, flow, statement, name, definition, live)
    owner = owner or _parameter_once(flow, statement, name)
    if owner is not None and module.project.relies_on_mutation(
        module, flow.function, owner, statement
    ):
        why = f"callers read `{owner}` after the call, so it is"
        return _copied(module, flow, owner, name, statement, why)
    root = _attribute_behind(definition.value) if definition is not None else None
    look_at = ""
    if root is not None:
        text = module.source(root)
        if _attribute_read_after(module, statement, root):
            raise CannotFunctionalize(f"`{text}`, which it writes into, is read later")
        if _attribute_read_elsewhere(module, statement, root):
            look_at = f"`{text}` keeps its old value when a gradient is wanted; others read it"
    allocation = _droppable(module, flow, statement, definition)
    return Write(Place(name), allocation=allocation, look_at=look_at)


def _copied(
    module: ModuleFacts, flow: FunctionFlow, owner: str, name: str, statement: ast.stmt, why: str
) -> Write:
    """A copy into a tensor that callers have, by what a statement calls it."""
    found = [who_raises(module, flow.function, owner)]
    kernel = next(saved_before(module, flow.function, name, statement), None)
    if kernel is not None:
        of = module.source(kernel.func)
        saves = f"`{of}` in line {kernel.lineno} saves `{name}` once it has a gradient"
        found.insert(0, f"{saves}: pass it a clone")
    known = "; ".join(filter(None, found))
    look_at = (
        f"{why} written with copy_(), which raises in backward where autograd has saved the old "
        f"value{f': {known}' if known else '; no call in the project is known to have that'}"
    )
    return Write(Place(name, "copy"), look_at=look_at, only_copies=not known)


def _named(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _all_handed_back(
    flow: FunctionFlow, owner: str, own: Written, beside: Sequence[Written]
) -> bool:
    """Whether the function returns all that kernels write into an argument, or what it becomes.

    One answer for all of them: after one that binds the name anew, none gets to the caller's
    tensor.  What only the next of them reads is not returned: they hand the argument on.
    """
    writes: list[tuple[Written, str]] = []
    fills: dict[ast.stmt, frozenset[str]] = {}
    for each in (own, *beside):
        view = view_of(each.argument)
        if view is None:
            continue
        if _parameter_behind(flow, each.statement, view.base) == owner:
            writes.append((each, view.base))
        fills[each.statement] = fills.get(each.statement, frozenset()) | {view.base}
    fills.update((each.statement, frozenset()) for each, _ in writes)
    return all(
        each.read
        and is_handed_back(
            flow, (base, *flow.observers(base, each.statement)), each.statement, fills
        )
        for each, base in writes
    )


def _attribute_behind(value: ast.expr | None) -> ast.Attribute | None:
    """``self.buffer`` of ``self.buffer`` and ``self.buffer[:n]``."""
    while isinstance(value, ast.Subscript):
        value = value.value
    return value if isinstance(value, ast.Attribute) else None


def _attribute_read_elsewhere(
    module: ModuleFacts, statement: ast.stmt, attribute: ast.Attribute
) -> bool:
    """Whether other functions read an attribute, except to write into it like this one."""
    here = module.function(statement)
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == attribute.attr
        and isinstance(node.ctx, ast.Load)
        and module.function(node) not in (here, None)
        for each in module.mentioning(attribute.attr)
        for node in walk(each)
    )


def _droppable(
    module: ModuleFacts, flow: FunctionFlow, statement: ast.stmt, definition: Definition | None
) -> ast.stmt | None:
    """The allocation of a buffer that nothing but the call uses before it is written."""
    if definition is None or definition.index is not None or not is_allocation(definition.value):
        return None
    made = definition.statement
    if not isinstance(made, (ast.Assign, ast.AnnAssign)) or made not in module.block(statement):
        return None
    if isinstance(made, ast.Assign) and not (
        len(made.targets) == 1 and isinstance(made.targets[0], ast.Name)
    ):
        return None
    return None if flow.read_between(definition.name, made, statement) else made


def _observed(
    module: ModuleFacts,
    flow: FunctionFlow,
    statement: ast.stmt,
    name: str,
    definition: Definition | None,
    live: list[str],
) -> Write:
    """Other names look at the same storage and are read later: bring them along, or refuse."""
    view = view_of(definition.value) if definition is not None and definition.value else None
    own = _parameter_behind(flow, statement, name) is None
    if own and view is not None and live == [view.base] and view.kind == "part":
        assert definition is not None
        whole = put_together(module, flow, definition, view.base, statement)
        if whole is not None:
            return Write(Place(name), followers=(whole,))
    if view is not None and live == [view.base] and _converts(definition.value):  # type: ignore[union-attr]
        return Write(Place(name), look_at=_AFTER_CONVERSION.format(view.base, name))
    if view is not None and live == [view.base] and definition is not None:
        assert definition.value is not None
        if definition.index is not None and view.kind != "part":  # h, residual = states
            raise CannotFunctionalize(f"`{view.base}` holds `{name}` and is read later")
        again: tuple[str, ...] = ()
        if flow.read_after(name, statement):
            again = (f"{name} = {module.source(definition.value)}",)
        write = None
        if view.kind != "part":
            write = Write(Place(view.base, shape_of=view.base))
        elif definition.index is None and isinstance(definition.value, ast.Subscript):
            write = _slice(module, flow, statement, definition.value, view.base)
        if write is not None and not _reads_the_same(flow, definition, statement):
            raise CannotFunctionalize(
                f"`{view.base}` shares storage with `{name}` and is read later"
            )
        if write is not None:
            return replace(write, followers=again)
    followers: list[str] = []
    look_at = ""
    for other in live:
        made = flow.only_definition(other, statement)
        seen = view_of(made.value) if made is not None and made.value is not None else None
        if (
            made is None
            or seen is None
            or seen.base != name
            or made.statement is None
            or not _reads_the_same(flow, made, statement)
        ):
            raise CannotFunctionalize(f"`{other}` shares storage with `{name}` and is read later")
        if _converts(made.value):
            look_at = _AFTER_CONVERSION.format(other, name)
            continue
        followers.append(" ".join(module.source(made.statement).split()))
    return Write(Place(name), followers=tuple(dict.fromkeys(followers)), look_at=look_at)


def _reads_the_same(flow: FunctionFlow, definition: Definition, statement: ast.stmt) -> bool:
    """Whether what a definition says, said once more, would give the same part of the tensor."""
    if definition.value is None or definition.statement is None:
        return True
    return flow.is_steady(definition.value, definition.statement, statement)


_CONVERSIONS = frozenset("to type type_as float half bfloat16 double".split())
_AFTER_CONVERSION = (
    "where there is nothing to convert, `{}` and `{}` are one tensor and changed together: now the "
    "first keeps its value, as it does in another dtype"
)


def _converts(value: ast.expr | None) -> bool:
    """Whether a value is a copy in one dtype and the tensor itself in another."""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in _CONVERSIONS
    )


def _slice(
    module: ModuleFacts, flow: FunctionFlow, statement: ast.stmt, argument: ast.expr, base: str
) -> Write:
    if isinstance(argument, ast.Subscript) and gives_several(argument.value):
        text = module.source(argument.value)
        raise CannotFunctionalize(f"`{text}` gives a tuple, of which no element can be set")
    definition = flow.only_definition(base, statement)
    kind = "assign" if isinstance(argument, ast.Subscript) else "copy"
    place = Place(module.source(argument), kind)  # type: ignore[arg-type]
    if definition is not None and is_allocation(definition.value):
        return Write(place)
    if definition is not None and isinstance(definition.value, (ast.Dict, ast.List, ast.Tuple)):
        for view in looked_at(definition.value):  # {"hidden": h}
            if flow.read_after(view.base, statement):
                raise CannotFunctionalize(f"`{base}` holds `{view.base}`, which is read later")
        if isinstance(definition.value, ast.Tuple):
            raise CannotFunctionalize(f"`{base}` is a tuple")
    if isinstance(argument, ast.Subscript) and isinstance(argument.value, ast.Name):
        if is_tuple(module, argument.value):
            raise CannotFunctionalize(f"`{base}` is a tuple")
    for put in _put_into(flow, statement, base):  # states["hidden"] = h
        for other in (put, *sorted(flow.observers(put, statement))):
            if flow.read_after(other, statement):
                raise CannotFunctionalize(f"`{base}` holds `{other}`, which is read later")
    return Write(
        place,
        look_at=f"a part of `{base}` is assigned: other names for the same tensor keep its old "
        "value, and autograd must not have saved it",
    )


def _put_into(flow: FunctionFlow, statement: ast.stmt, base: str) -> Iterator[str]:
    """The names of tensors that a container was given as elements before a statement."""
    for made in statements(flow.function):
        if not isinstance(made, ast.Assign) or made.lineno >= statement.lineno:
            continue
        for target in made.targets:
            if isinstance(target, ast.Subscript) and is_element(target):
                if isinstance(target.value, ast.Name) and target.value.id == base:
                    yield from (view.base for view in looked_at(made.value))


def _attribute(module: ModuleFacts, statement: ast.stmt, argument: ast.Attribute) -> Write:
    """``self.out``: made here, or a buffer that outlives the call."""
    key = ast.dump(argument.value), argument.attr
    block = module.block(statement)
    for made in reversed(block[: block.index(statement)]):
        if isinstance(made, ast.Assign) and len(made.targets) == 1:
            target = made.targets[0]
            if isinstance(target, ast.Attribute) and (ast.dump(target.value), target.attr) == key:
                if not is_allocation(made.value):
                    break
                between = block[block.index(made) + 1 : block.index(statement)]
                text = module.source(argument)
                used = any(text in module.source(s) for s in between)
                return Write(Place(text), allocation=None if used else made)
    refusal = refuses_field(module, argument)
    if refusal:
        raise CannotFunctionalize(f"`{module.source(argument)}` cannot be set: {refusal}")
    return Write(
        Place(module.source(argument)),
        look_at=f"`{module.source(argument)}` becomes a new tensor, not the buffer kept there",
    )


def _attribute_read_after(
    module: ModuleFacts, statement: ast.stmt, attribute: ast.Attribute
) -> bool:
    function = module.function(statement) or module.tree
    key = ast.dump(attribute)
    return any(
        isinstance(node, ast.Attribute) and ast.dump(node) == key and node.lineno > statement.lineno
        for node in walk(function)
    )


def _parameter_behind(flow: FunctionFlow, statement: ast.stmt, name: str) -> str | None:
    """The parameter whose storage ``name`` may be."""
    for candidate in (name, *sorted(flow.observers(name, statement))):
        if candidate in flow.parameters and any(
            d.is_parameter for d in flow.reaching(candidate, statement)
        ):
            return candidate
    return None


def _parameter_once(flow: FunctionFlow, statement: ast.stmt, name: str) -> str | None:
    """The parameter that ``name`` was taken from, be that another tensor by now.

    ``residual = x; x = norm(x)``: what is written into ``residual`` the caller has in its ``x``.
    """
    seen: set[tuple[str, ast.stmt]] = set()
    waiting = [(name, statement)]
    while waiting:
        current, at = waiting.pop()
        if (current, at) in seen:
            continue
        seen.add((current, at))
        for definition in flow.reaching(current, at):
            if definition.statement is None:
                return current
            waiting += [(v.base, definition.statement) for v in looked_at(definition.value)]
    return None


def empty_like(allocation: ast.stmt) -> str | None:
    """``x`` of ``torch.empty_like(x)``."""
    value = allocation.value if isinstance(allocation, (ast.Assign, ast.AnnAssign)) else None
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr.endswith("_like")
        and value.args
        and isinstance(value.args[0], ast.Name)
    ):
        return value.args[0].id
    return None
