"""TRN409: keys and values that attention reads from a cache that was written without gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.cache_readers import is_about
from ..facts.cached import Write, as_write, names_cache
from ..facts.carried import detached
from ..facts.comments import explained
from ..facts.grad_mode import Scope, scope_inside
from ..facts.guards import gradient_unwanted
from ..facts.made_for_serving import made_for_serving
from ..facts.trainable import trained_submodules
from ..facts.views import view_of
from ..facts.walk import walk
from ..facts.writes import in_network
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule, is_wanted
from .caches import ends_on_purpose
from .caches.words import writes_cache

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN409",
        name="cache-without-gradient",
        summary="Keys and values are cached without their graph, and read back from the cache.",
        why=(
            "What is written under no_grad, by .data or with .detach() has no gradient in the "
            "cache, and attention that reads it there trains the queries alone: the layers that "
            "make keys and values get nothing, without an error. Where a gradient is wanted, the "
            "same forward has to read the fresh values."
        ),
        before="""\
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.wq = nn.Linear(d, d)
        self.wk = nn.Linear(d, d)
        self.register_buffer("k_cache", torch.zeros(4, 128, d))

    def forward(self, x, start):
        end = start + x.shape[1]
        with torch.no_grad():
            self.k_cache[:, start:end] = self.wk(x)
        return self.wq(x) @ self.k_cache[:, :end].mT
""",
        after="""\
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.wq = nn.Linear(d, d)
        self.wk = nn.Linear(d, d)
        self.register_buffer("k_cache", torch.zeros(4, 128, d))

    def forward(self, x, start):
        end = start + x.shape[1]
        new_k_cache = self.wk(x)
        self.k_cache[:, start:end] = new_k_cache.detach()
        fresh_k_cache = self.k_cache[:, :end]
        if torch.is_grad_enabled() and new_k_cache.requires_grad:
            fresh_k_cache = torch.cat((self.k_cache[:, :start], new_k_cache), dim=1)
        return self.wq(x) @ fresh_k_cache.mT
""",
    ),
)


def _caches_unseen(data: bytes) -> bool:
    return b"cache" in data and writes_cache(data)


_CUTS = (b"no_grad(", b"inference_mode(", b".detach()", b".data")
NEEDLES: tuple[Needle, ...] = (Look(_CUTS, _caches_unseen),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    scoped: dict[ast.stmt, list[Write]] = {}
    for statement in module.statements:
        write = as_write(statement, unseen=True)
        function = module.function(statement) if write is not None else None
        if write is None or function is None or not _is_own_cache(module, write):
            continue
        if not is_wanted(module, options, "TRN409", statement):
            continue
        cut = _cut(module, function, write)
        if cut is None or not _is_lost(module, function, write):
            continue
        if isinstance(cut, Scope):
            scoped.setdefault(cut.owner, []).append(write)
        else:
            edit = _without(module, cut)
            yield _finding(module, write, [edit] if edit is not None else [])
    for writes in scoped.values():
        function = module.function(writes[0].statement)
        scope = scope_inside(module, writes[0].statement, function)
        assert scope is not None and function is not None
        edits = _freed(module, function, scope, writes)
        for write in writes:
            yield _finding(module, write, edits)


def _is_own_cache(module: ModuleFacts, write: Write) -> bool:
    """Whether it is a cache of the module's own that is written."""
    base = write.base
    if not isinstance(base, ast.Attribute) or not names_cache(base.attr):
        return False
    return module.names.self_class(base.value) is not None


def _cut(module: ModuleFacts, function: FunctionNode, write: Write) -> ast.expr | Scope | None:
    """What takes the gradient from what is written: a node, or a ``with`` around it."""
    found: list[ast.expr | Scope] = []
    node = write.target
    while node is not write.base:
        if isinstance(node, ast.Attribute) and node.attr == "data":
            found.append(node)
        inner = node.func if isinstance(node, ast.Call) else getattr(node, "value", None)
        if not isinstance(inner, ast.expr):
            return None
        node = inner
    if detached(write.value) is not None:
        found.append(write.value)
    scope = scope_inside(module, write.statement, function)
    if scope is not None:
        if not isinstance(scope.owner, ast.With) or scope.wraps is not None:
            return None
        found.append(scope)
    return found[0] if len(found) == 1 else None


def _is_lost(module: ModuleFacts, function: FunctionNode, write: Write) -> bool:
    """Whether layers of the module get no gradient, since what they give is read back only."""
    from ..rewrite.fresh_reads import CannotRead, reads_behind

    cls = module.method_class(function)
    if cls is None or made_for_serving(module, cls) or not in_network(module, function):
        return False
    if gradient_unwanted(module, function) or explained(module, write.value):
        return False
    if ends_on_purpose(module, write.statement):
        return False
    try:
        reads = reads_behind(module, function, write)
    except CannotRead:
        return False
    value = detached(write.value) or write.value
    return any(not gradient_unwanted(module, read) for read in reads) and (
        _is_of_layers(module, cls, function, value, write.statement)
    )


def _is_of_layers(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode, value: ast.expr, at: ast.stmt
) -> bool:
    """Whether layers of the class make a value, and the value goes nowhere else."""
    layers = {n for each in module.names.with_bases(cls) for n in trained_submodules(module, each)}
    flow = module.flow(function)
    for _ in range(_MAX_STEPS):
        called = value
        while isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute):
            owner = called.func.value
            if module.names.self_class(owner) is not None:
                return called.func.attr in layers
            called = owner
        view = view_of(value)
        made = flow.only_definition(view.base, at) if view is not None else None
        if made is None or made.value is None or made.statement is None or view is None:
            return False
        if _is_read_elsewhere(module, function, view.base, made.statement, at):
            return False
        value, at = made.value, made.statement
        if isinstance(made.index, int) and isinstance(value, (ast.Tuple, ast.List)):
            value = value.elts[made.index]
    return False


_MAX_STEPS = 4


def _is_read_elsewhere(
    module: ModuleFacts, function: FunctionNode, name: str, made: ast.stmt, at: ast.stmt
) -> bool:
    """Whether a name is read after it was made, by anything but one statement, for its values."""
    return any(
        isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Load)
        and node.lineno > made.lineno
        and module.statement(node) is not at
        and not is_about(module, node)
        for node in walk(function)
    )


# -- fixes ----------------------------------------------------------------------------------------


def _finding(module: ModuleFacts, write: Write, edits: list[Edit]) -> Finding:
    text, value = module.source(write.target), module.source(detached(write.value) or write.value)
    message = (
        f"`{text}` is written without a gradient and read back: `{value}` gets none, and the "
        "layers behind it learn nothing."
    )
    look_at = f"that {module.source(write.base)} is not meant to stop the gradient"
    fix = Fix("Write what has a gradient", tuple(edits), Safety.UNSAFE, look_at)
    return module.finding(
        "TRN409", message, write.statement, dict.fromkeys(STRATEGIES, fix) if edits else {}
    )


def _without(module: ModuleFacts, node: ast.expr) -> Edit | None:
    """``x`` for ``x.detach()`` and ``x.data``."""
    inner = detached(node)
    if inner is None and isinstance(node, ast.Attribute):
        inner = node.value
    if inner is None or "#" in module.text[module.end(inner) : module.end(node)]:
        return None
    return Edit(module.end(inner), module.end(node), "")


def _freed(
    module: ModuleFacts, function: FunctionNode, scope: Scope, writes: list[Write]
) -> list[Edit]:
    """Take some writes out of a scope, with what makes their values there."""
    from ..rewrite import scopes as rewrite

    owner = scope.owner
    assert isinstance(owner, ast.With)
    needed = {write.statement for write in writes}
    flow = module.flow(function)
    pending = [(name, write.statement) for write in writes for name in _names(write.value)]
    while pending:
        name, at = pending.pop()
        for made in flow.reaching(name, at):
            if made.statement is None or made.statement in needed or made.value is None:
                continue
            if owner in module.ancestors(made.statement):
                needed.add(made.statement)
                pending += [(each, made.statement) for each in _names(made.value)]
    return rewrite.freed(module, scope, needed.__contains__)


def _names(node: ast.expr) -> Iterator[str]:
    return (n.id for n in walk(node) if isinstance(n, ast.Name))
