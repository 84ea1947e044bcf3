"""Which statements have to leave a scope, for gradients to reach what is computed after it.

These are all that such a value is computed by, and what is written into it on the way: a write that
stayed under ``no_grad`` would be one that backward does not know of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .activations import submodule
from .array_ways import array_ways
from .flow import COMPOUND, stores
from .graph import Graph
from .keepers import keeps
from .saved import maker_of
from .walk import statements, walk
from .writes import Write, attribute_of, is_apart, is_view, root_of, roots

if TYPE_CHECKING:
    from .flow import Definition
    from .grad_mode import Scope
    from .module import ModuleFacts

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_NOT_SAVING = frozenset(
    "Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d "
    "Embedding LayerNorm RMSNorm GroupNorm BatchNorm1d BatchNorm2d BatchNorm3d".split()
)
"""Modules whose result may be overwritten: backward does not need it."""

_PLAIN_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult)


@dataclass(frozen=True)
class Leaving:
    """``out`` leaves a scope, at any depth; ``stays`` stays, in a block that leaves.

    ``doubt`` says what may go wrong then, or is empty.
    """

    out: frozenset[ast.stmt]
    stays: tuple[ast.stmt, ...] = ()
    doubt: str = ""

    def holds(self, module: ModuleFacts, statement: ast.stmt) -> bool:
        """Whether a statement leaves, or something in it does."""
        return any(s is statement or statement in module.ancestors(s) for s in self.out)


def leaving(
    module: ModuleFacts, graph: Graph, scope: Scope, values: Iterable[tuple[ast.expr, ast.stmt]]
) -> Leaving:
    """What leaves a ``with`` on the way to some values."""
    steps = [s for s in graph.back_from(values) if s.cut is not None and s.cut.scope == scope]
    inside = list(_inside(scope.owner))
    live = _reaching(graph, {step.at for step in steps})
    given = {step.node.id for step in steps if isinstance(step.node, ast.Name)}
    names = _same_storage(module, graph, given | set(_bound(module, graph, live)))
    out = {statement for statement in inside if statement in live}
    writes = [module.writes[s] for s in inside if s in module.writes]
    for write in writes:
        if (
            write.name is not None
            and write.name.id in names
            and not _is_state(module, graph, write)
        ):
            out.update(_views_to(module, graph, write, set(inside)), [write.statement])
    doubts = [
        *_overwriting(module, graph, [w for w in writes if w.statement in out], out, names),
        *_seeing(module, graph, [s for s in inside if s not in out], live, names),
    ]
    left = Leaving(frozenset(out))
    stays = tuple(
        statement
        for statement in inside
        if statement not in out
        and _in_block_that_leaves(module, scope.owner, statement, left)
        and _has_effects(statement, names)
    )
    return Leaving(left.out, stays, doubts[0] if doubts else "")


def _inside(owner: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a scope, blocks by what stands in them."""
    found = sorted(statements(owner), key=lambda s: (s.lineno, s.col_offset))
    return (s for s in found if not isinstance(s, COMPOUND) or isinstance(s, _LOOPS))


def _reaching(graph: Graph, last: set[ast.stmt]) -> set[ast.stmt]:
    """The statements with a way to some of them, with these."""
    users: dict[ast.stmt, list[ast.stmt]] = {}
    for statement, sources in graph.ways.items():
        for source in sources:
            users.setdefault(source, []).append(statement)
    found, pending = set(last), list(last)
    while pending:
        for user in users.get(pending.pop(), ()):
            if user not in found:
                found.add(user)
                pending.append(user)
    return found


def _bound(module: ModuleFacts, graph: Graph, live: set[ast.stmt]) -> Iterator[str]:
    """The names that some statements give values to, or write into."""
    flow = module.flow(graph.function)
    for statement in live:
        sure, maybe = flow.definitions_in(statement)
        yield from (d.name for d in (*sure, *maybe) if d.statement is statement)
        if isinstance(statement, (ast.AugAssign, ast.Assign)):
            targets = (
                [statement.target] if isinstance(statement, ast.AugAssign) else (statement.targets)
            )
            roots_written = [root_of(t)[0] for t in targets if isinstance(t, ast.Subscript)]
            yield from (root.id for root in roots_written if root is not None)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            function = statement.value.func
            owner = function.value if isinstance(function, ast.Attribute) else None
            root = root_of(owner)[0] if owner is not None else None
            if root is not None and root.id != graph.me:
                yield root.id


def _same_storage(module: ModuleFacts, graph: Graph, names: set[str]) -> set[str]:
    """Some names, with those of views of the same tensors."""
    links: list[tuple[str, str]] = []
    flow = module.flow(graph.function)
    for statement in statements(graph.function):
        if isinstance(statement, COMPOUND) and not isinstance(statement, _LOOPS):
            continue
        sure, maybe = flow.definitions_in(statement)
        for definition in (*sure, *maybe):
            value = definition.value
            if value is None and isinstance(statement, (ast.For, ast.AsyncFor)):
                value = statement.iter
            root, path = root_of(value) if value is not None else (None, [])
            if definition.statement is statement and root is not None:
                if all(is_view(module, n) for n in path if isinstance(n, ast.Subscript)):
                    links.append((definition.name, root.id))
    found = set(names)
    while True:
        more = {b for pair in links for a, b in (pair, pair[::-1]) if a in found} - found
        if not more:
            return found
        found |= more


def _is_state(module: ModuleFacts, graph: Graph, write: Write) -> bool:
    """Whether a write is into what an attribute holds: weights and buffers."""
    return any(
        d.value is not None and attribute_of(d.value) is not None
        for d in _made_by(module, graph, write)
    )


def _made_by(module: ModuleFacts, graph: Graph, write: Write) -> list[Definition]:
    if write.name is None:
        return []
    flow = module.flow(graph.function)
    return [r.definition for r in roots(module, flow, write.name.id, write.statement)]


def _views_to(
    module: ModuleFacts, graph: Graph, write: Write, inside: set[ast.stmt]
) -> Iterator[ast.stmt]:
    """The statements that made the views that a write goes through: ``v = h[:, 0]``.

    A view made under ``no_grad`` cannot be written where gradients are recorded.
    """
    flow = module.flow(graph.function)
    seen: set[Definition] = set()
    pending = [(write.name, write.statement)]
    while pending:
        name, at = pending.pop()
        for definition in flow.reaching(name.id, at) - seen if name is not None else ():
            seen.add(definition)
            made, value = definition.statement, definition.value
            if made is not None and value is not None and (root := root_of(value)[0]) is not None:
                pending.append((root, made))
                if made in inside:
                    yield made


# -- doubts ---------------------------------------------------------------------------------------


def _overwriting(
    module: ModuleFacts, graph: Graph, writes: list[Write], out: set[ast.stmt], names: set[str]
) -> Iterator[str]:
    """Writes into what backward may need, once it is recorded."""
    for statement in sorted((s for s in out if not isinstance(s, _LOOPS)), key=lambda s: s.lineno):
        if any(isinstance(n, ast.keyword) and n.arg == "out" for n in walk(statement)):
            yield f"`{module.source(statement)}` raises where gradients are recorded"
    written = {write.statement for write in writes}
    for write in writes:
        if why := _not_recorded(module, graph, write):
            yield f"`{module.source(write.statement)}` {why}"
        found = _made_by(module, graph, write)
        text = module.source(write.statement)
        first = min((d.statement.lineno for d in found if d.statement is not None), default=0)
        used = any(
            isinstance(node, ast.Name) and node.id in names
            for s in out - written
            if first < s.lineno < write.statement.lineno and not _is_view(s)
            for node in walk(s)
        )
        looped = any(isinstance(a, _LOOPS) for a in module.ancestors(write.statement))
        if used or looped or not found or not all(_is_unsaved(module, d) for d in found):
            yield f"whether backward needs what `{text}` overwrites"


def _not_recorded(module: ModuleFacts, graph: Graph, write: Write) -> str:
    """Why autograd does not see a write even where gradients are recorded, or refuses it."""
    if any(is_apart(node) for node in root_of(write.target)[1]):
        return "is not seen by backward"
    if write.name is not None:
        flow = module.flow(graph.function)
        found = roots(module, flow, write.name.id, write.statement)
        if any(root.split is not None for root in found):
            return "raises where gradients are recorded: a split gave several views"
        values = (d.value for d in flow.reaching(write.name.id, write.statement))
        paths = (root_of(value)[1] for value in values if value is not None)
        if any(is_apart(node) for path in paths for node in path):
            return "is not seen by backward"
    return ""


def _is_view(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and root_of(statement.value)[0] is not None


def _is_unsaved(module: ModuleFacts, definition: Definition) -> bool:
    """Whether what made a tensor surely does without it in backward."""
    if definition.value is None or definition.index is not None:
        return False
    maker = maker_of(definition.value)
    if isinstance(maker, ast.BinOp):
        return isinstance(maker.op, _PLAIN_OPERATORS)
    return isinstance(maker, ast.Call) and submodule(module, maker.func) in _NOT_SAVING


def _seeing(
    module: ModuleFacts, graph: Graph, staying: list[ast.stmt], live: set[ast.stmt], names: set[str]
) -> Iterator[str]:
    """What stays, and cannot have a tensor with a graph or keeps it."""
    flow = module.flow(graph.function)
    for statement in staying:
        for node in walk(statement):
            if not isinstance(node, ast.Name) or node.id not in names:
                continue
            if not any(d.statement in live for d in flow.reaching(node.id, statement)):
                continue
            text = module.source(statement).partition("\n")[0]
            if any(end == "array" for end, _ in array_ways(module, node)):
                yield f"`{text}` makes an array of `{node.id}`, which raises once it has a graph"
            elif not isinstance(statement, _LOOPS) and (
                stores(statement, node.id) or keeps(module, statement, node.id)
            ):
                yield f"`{text}` keeps `{node.id}`, which has a graph now"


# -- blocks that leave ----------------------------------------------------------------------------


def _in_block_that_leaves(
    module: ModuleFacts, owner: ast.AST, statement: ast.stmt, left: Leaving
) -> bool:
    for around in module.ancestors(statement):
        if around is owner:
            return False
        if isinstance(around, ast.stmt) and left.holds(module, around):
            return True
    return False


def _has_effects(statement: ast.stmt, names: set[str]) -> bool:
    """Whether a statement hands a tensor to somebody else, or writes into something."""
    if isinstance(statement, ast.AugAssign):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        if all(isinstance(target, (ast.Name, ast.Tuple)) for target in statement.targets):
            return False
    elif not isinstance(statement, ast.Expr):
        return False
    elif isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr.endswith("_"):
            return True
    return any(isinstance(node, ast.Name) and node.id in names for node in walk(statement))
