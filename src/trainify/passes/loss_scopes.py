"""TRN202: losses that are computed with gradients switched off."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.grad_bytes import MODES, contexts, is_mode_of_other_file, mentions
from ..facts.grad_mode import (
    Scope,
    decorator_scope,
    own_nodes,
    scope_inside,
)
from ..facts.graph import Graph, Step, results, scope_of_results
from ..facts.layers import imported_function
from ..facts.learners import REFERENCE, Parting, models, part, written
from ..facts.learning import LOSS_CALL, backward_values, is_data, may_learn
from ..facts.losses import returned_loss
from ..facts.metadata import keeps_graph
from ..facts.names import default_of, last_name, passed
from ..facts.walk import walk
from ..facts.words import declare
from ..findings import Edit, Finding, Fix, Related, Safety
from . import Look, Needle, Rule
from .forward_scopes.still_runs import still_runs
from .fused_calls.left_in_place import held_back

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts import Project
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN202",
        name="loss-without-grad",
        summary="A loss is computed with gradients switched off, then backward() is called on it.",
        why=(
            "A tensor made under no_grad has no graph. backward() raises, or does nothing at all "
            "behind a check of requires_grad."
        ),
        before="""\
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
with torch.no_grad():
    loss = (x * x).sum()
loss.backward()
""",
        after="""\
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
loss = (x * x).sum()
loss.backward()
""",
    ),
)

_STEP = re.compile(rb"_?(?:train\w*step|training_step|compute_loss|\w*_loss)$")


def _may_concern(data: bytes) -> bool:
    """Whether a file has a grad mode, and something to differentiate."""
    if any(word in data for word in (b".backward(", b"manual_backward(", b"autograd.grad(")):
        return bool(mentions(data))
    return any(
        (m.kind == "decorator" and _STEP.match(m.function))
        or (m.kind == "with" and m.function in (b"training_step", b"compute_loss"))
        for m in mentions(data)
    )


_HELPS = re.compile(rb"loss|objective|\bnll|elbo|logp|criterion", re.IGNORECASE)


def _may_help(data: bytes) -> bool:
    """Whether a file has a function for losses with a grad mode in it or on it."""
    return any(_HELPS.search(m.function) for m in mentions(data))


def _imports(data: bytes) -> bool:
    return b"import " in data


(_BACKWARD,) = declare(b".backward(")


NEEDLES: tuple[Needle, ...] = (Look(MODES, _may_concern), Look((_BACKWARD,), _imports))


def concerns(data: bytes, path: str, project: Project, options: Options) -> bool:
    """A file without a grad mode matters where it calls a function for losses that has one.

    Or where it enters one that another file made, under whatever name.
    """
    if _may_concern(data):
        return True
    if any(is_mode_of_other_file(data, path, project, name) for name in contexts(data)):
        return True
    return project.calls_one_of(path, data, _cutting_helpers, _may_help)


def _cutting_helpers(module: ModuleFacts) -> frozenset[str]:
    """The functions for losses of a file that give such without a graph."""
    scoped = module.scoped_functions
    return frozenset(
        function.name
        for function in module.functions
        if module.parent(function) is module.tree and _HELPS.search(function.name.encode())
        if function in scoped or function.decorator_list
        if scope_of_results(module, function) is not None
        or _cutting(module, function, list(results(function)), 1) is not None
    )


_METRIC = re.compile(r"(acc|accuracy|\w*correct|metrics?|log|logger|writer|wandb)$", re.IGNORECASE)
_LEAF = re.compile(r"requires_grad(?:_\((?!(?:requires_grad\s*=\s*)?False)|\s*=\s*True)")
_ENABLES = re.compile(r"enable_grad\b|set_grad_enabled\(\s*(?!(?:mode\s*=\s*)?False)")
_TRAINER = re.compile(r"Trainer$|LightningModule$")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    seen: set[ast.AST] = set()
    for fault in _faults(module):
        place = fault.scope.node if fault.home is None else fault.at
        if place not in seen:
            seen.add(place)
            yield fault.finding(options)


@dataclass(frozen=True)
class _Fault:
    """A loss without a graph: ``path`` is what it is computed by, ``at`` where to point."""

    module: ModuleFacts
    scope: Scope
    name: str
    at: ast.stmt | ast.expr
    path: tuple[ast.stmt, ...] = ()
    inside: bool = False
    """Whether ``backward`` is called in the scope as well."""
    home: ModuleFacts | None = None
    """The other file that the scope stands in."""
    made: ast.stmt | None = None
    """The statement that computes the loss, where that is in the scope."""
    taken: str = ""
    """What differentiates, where that is not ``backward``: ``torch.autograd.grad``."""

    def finding(self, options: Options) -> Finding:
        home = self.home or self.module
        text = home.source(self.scope.node)
        place = f" ({home.path}:{self.scope.node.lineno})" if self.home is not None else ""
        message = f"`{self.name}` is computed under `{text}`{place}, so "
        if self.taken:
            message += f"`{self.taken}` has no graph to go through, and raises."
        else:
            message += (
                f"`{self.name}.backward()` has no graph to go through: nothing gets a gradient."
            )
        related: tuple[Related, ...] = ()
        if self.at is not self.scope.node:
            where = f"Gradients are switched off here, by `{text}`."
            related = (home.related(where, self.scope.node),)
        edits = self.edits() if self.home is None else None
        if not edits:
            return self.module.finding("TRN202", message, self.at, related=related)
        safety, look_at = Safety.SAFE, ""
        wraps = self.scope.wraps is not None
        if not wraps and (not isinstance(self.scope.owner, ast.With) or not self.is_here()):
            safety = Safety.UNSAFE
            look_at = "whether something else ran here that should not record a graph"
        parting = self.parting
        if parting is not None and (parting.unsure or parting.along):
            safety = Safety.UNSAFE
            look_at = _look_at(parting)
        fix = Fix(f"Compute {self.name} outside {text}", tuple(edits), safety, look_at)
        function = self.module.function(self.at) or self.module.tree
        fix = still_runs(self.module, fix, [function], self.scope, parting=True)
        fixes = held_back(self.module, fix, self.path, options)
        return self.module.finding("TRN202", message, self.at, fixes, related)

    def edits(self) -> list[Edit] | None:
        from ..rewrite import scopes

        owner, node, module = self.scope.owner, self.scope.node, self.module
        if self.scope.wraps is not None or owner in module.grad_switches:
            return scopes.removal(module, self.scope)
        if isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            removal = scopes.without_decorator(module, node)
            kept = self.belonging(owner.body)
            mode = scopes.as_context(module, self.scope)
            if removal is None or mode is None:
                return None
            return [removal, *scopes.around(module, kept, mode)]
        if isinstance(owner, ast.Expr):
            entered = scopes.without_statement(module, owner)
            return [entered] if entered is not None else None
        if not isinstance(owner, ast.With):
            return None
        if self.inside:
            return scopes.narrowed(module, owner, node, self.belonging(owner.body))
        if not self.is_here():
            return scopes.unwrapped(module, owner, node)
        if len(owner.items) > 1:
            return None
        needed = self.needed(owner.body)
        if not needed:
            return None
        parting = self.parting
        inner = [s for s in parting.held if s not in owner.body] if parting is not None else []
        if any(statement in module.ancestors(s) for s in inner for statement in needed):
            outer = [s for s in owner.body if s not in needed]
            inner = [s for s in inner if not any(o in module.ancestors(s) for o in outer)]
            return scopes.narrowed(
                module, owner, node, sorted([*outer, *inner], key=lambda s: s.lineno)
            )
        return scopes.lifted(module, owner, needed)

    def is_here(self) -> bool:
        """Whether the scope stands in the function of the loss, not in one that this calls."""
        return any(_holds(self.module, s, self.path) for s in getattr(self.scope.owner, "body", ()))

    @cached_property
    def parting(self) -> Parting | None:
        """What in the scope runs a model that is trained, where the scope is in sight."""
        owner = self.scope.owner
        body = getattr(owner, "body", None)
        if self.scope.wraps is not None or not isinstance(body, list) or not self.is_here():
            return None
        if isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return part(self.module, owner, body, self.path)
        function = self.module.function(owner) or self.module.tree
        return part(self.module, function, body, self.path)

    def needed(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements that the loss needs; references (teachers, targets) stay."""
        parting = self.parting
        assert parting is not None
        out = [s for s in body if _holds(self.module, s, list(parting.free))]
        if not out and self.made is not None:  # from tensors
            out = [s for s in body if _holds(self.module, s, [self.made])]
        needed = {s for last in out for s in _slice(body, last)}
        still = [s for s in needed if s not in out and _holds(self.module, s, list(parting.held))]
        return [s for s in body if s in needed and s not in still]

    def belonging(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements that belong in the scope: teachers, targets, what is frozen, metrics."""
        parting = self.parting or Parting(frozenset(), frozenset())
        return _belonging(self.module, body, self.path, parting)


def _look_at(parting: Parting) -> str:
    if parting.unsure:
        names = ", ".join(f"`{name}`" for name in parting.unsure)
        return f"which of {names} are trained: all of them record a graph now"
    names = " and ".join(f"`{name}`" for name in parting.along)
    return f"whether {names} should record a graph too: the same statement runs it"


def _holds(module: ModuleFacts, statement: ast.stmt, path: Sequence[ast.stmt]) -> bool:
    return any(p is statement or statement in module.ancestors(p) for p in path)


# -- finding --------------------------------------------------------------------------------------


def _faults(module: ModuleFacts) -> Iterator[_Fault]:
    for function in (*module.functions, module.tree):
        values = list(backward_values(module, function))
        for value, call in values:
            yield from _of_backward(module, function, value, call)
    if "autograd.grad(" in module.usual:
        for call in module.calls_named("grad"):
            if call.args and module.is_name(call.func, "torch.autograd.grad"):
                function = module.function(call) or module.tree
                for fault in _of_backward(module, function, call.args[0], call):
                    yield replace(fault, taken=module.source(call.func))
    for function in module.functions:
        yield from _step(module, function)


def _of_backward(
    module: ModuleFacts, function: FunctionNode | ast.Module, value: ast.expr, call: ast.AST
) -> Iterator[_Fault]:
    """Why a loss has no graph that ``call`` differentiates, or hands to who does."""
    statement = module.statement(call)
    name = module.source(value)
    made, at = value, statement
    if isinstance(value, ast.Name):
        reaching = module.flow(function).reaching(value.id, statement)
        found = [d for d in reaching if not isinstance(d.value, ast.Constant)]  # total = 0
        definition = found[0] if len(found) == 1 else None
        if definition is None or definition.statement is None or definition.value is None:
            return
        made, at = definition.value, definition.statement
    elif not isinstance(value, (ast.Call, ast.BinOp)):
        return
    if isinstance(made, ast.Constant):
        return
    graph = Graph(module, function)
    steps = graph.back_from([(value, statement)])
    path = tuple(dict.fromkeys([at, *(step.at for step in steps)]))
    scope = scope_inside(module, at, function)
    if scope is not None:
        if any(s.cut is None and _may_be_live(module, graph, s, set()) for s in steps):
            return  # something was added to it outside
        inside = scope.owner in module.ancestors(call)
        if not inside or (_works(module, steps) and not _ENABLES.search(module.usual)):
            where = scope.node if inside else at
            yield _Fault(module, scope, name, where, path, inside, made=at)
        return
    decorated = decorator_scope(module, function) if not isinstance(function, ast.Module) else None
    if decorated is not None:
        if _works(module, steps) and not _ENABLES.search(module.usual):
            yield _Fault(module, decorated, name, decorated.node, path, True)
        return
    if not _LEAF.search(
        module.text if isinstance(function, ast.Module) else module.source(function)
    ):
        yield from _of_parts(module, function, [(value, statement)], name)


def _works(module: ModuleFacts, steps: Sequence[Step]) -> bool:
    """Whether a model is run on the way, one that is to learn."""
    return any(
        isinstance(s.node, ast.Call)
        and may_learn(module, s.node)
        and not REFERENCE.search(module.source(s.node.func))
        and not _runs_references(module, s.node)
        for s in steps
    )


def _runs_references(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call only runs models that are named as references: ``logps(ref, x)``."""
    if not any(REFERENCE.search(module.source(a)) for a in call.args):
        return False
    run = models(module, module.function(call) or module.tree, call)
    return bool(run) and all(REFERENCE.search(name) for name in run)


def _of_parts(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    values: Sequence[tuple[ast.expr, ast.stmt]],
    name: str,
) -> Iterator[_Fault]:
    """Everything that a loss could teach is computed in a scope, the loss itself outside."""
    found = _cutting(module, function, values)
    if found is not None:
        if found.home is module:
            yield _Fault(module, found.scope, name, found.scope.node, found.path)
        else:
            yield _Fault(module, found.scope, name, found.at, found.path, home=found.home)


def detached_work(
    module: ModuleFacts, function: FunctionNode | ast.Module, value: ast.expr, at: ast.stmt
) -> ast.expr | None:
    """The one call that detaches what a loss could teach, where nothing else leads to that."""
    source = module.text if isinstance(function, ast.Module) else module.source(function)
    if _LEAF.search(source) or not isinstance(value, (ast.Name, ast.Call)):
        return None
    graph = Graph(module, function)
    steps = graph.back_from([(value, at)])
    for step in steps:
        if step.cut is None and _may_be_live(module, graph, step, set()):
            return None
        if step.cut is None and isinstance(step.node, ast.Call):
            called = step.node.func
            if isinstance(called, ast.Name) and called.id in module.flow(function).parameters:
                return None  # criterion(...), which may have weights
            if graph.me is not None and module.source(called).startswith(f"{graph.me}."):
                return None
    cuts = {s.cut for s in steps if _works(module, [s])}
    cut = cuts.pop() if len(cuts) == 1 else None
    return cut.node if cut is not None and cut.scope is None else None


@dataclass(frozen=True)
class _Cutting:
    """A scope that takes all gradients, the file that it stands in, and where that comes in.

    ``path`` is what it computes.  ``given`` are the parameters that could still bring one in, as
    far as the function shows.
    """

    home: ModuleFacts
    scope: Scope
    at: ast.expr
    path: tuple[ast.stmt, ...] = ()
    given: frozenset[str] = frozenset()


def _cutting(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    values: Sequence[tuple[ast.expr, ast.stmt]],
    depth: int = 0,
) -> _Cutting | None:
    """The scope that everything is computed in which some values could teach."""
    graph = Graph(module, function)
    found: list[_Cutting] = []
    calls: list[ast.expr] = []
    roots = list(values)
    for step in graph.back_from(values):
        inner = _within(module, graph, step, depth)
        if inner is not None:
            assert isinstance(step.node, ast.Call)
            found.append(inner)
            calls.append(step.node)
            roots += [(a, step.at) for a in _arguments(module, graph, step.node, inner)]
    graph = Graph(module, function, avoided=calls)
    steps = graph.back_from(roots)
    under = [s for s in steps if s.cut is not None and s.cut.scope is not None]
    worked_on = {s.node.id for s in under if isinstance(s.node, ast.Name)}
    parameters = module.flow(function).parameters if depth else ()
    live = [s for s in steps if s.cut is None and _may_be_live(module, graph, s, worked_on)]
    given = {s.node.id for s in live if isinstance(s.node, ast.Name) and s.node.id in parameters}
    if any(not isinstance(s.node, ast.Name) or s.node.id not in given for s in live):
        return None
    given |= {  # which the caller may give another value than their default
        s.node.id
        for s in steps
        if s.cut is None and isinstance(s.node, ast.Name) and s.node.id in parameters
        if _is_number(module, s)
    }
    stopped = {s.node for s in steps if s.cut is not None and s.cut.scope is None}
    if not stopped <= {s.node for s in steps if s.cut is None or s.cut.scope is not None}:
        return None  # which may be meant, and the scope with it
    if found:  # what a helper is given comes second
        return replace(found[0], given=frozenset(given))
    working = [s.cut.scope for s in under if s.cut and s.cut.scope and _works(module, [s])]
    working += [scope for s in steps if (scope := _working_helper(module, graph, s)) is not None]
    if not working:
        return None
    scope = working[0]
    entered = [e.at for e in graph.entries if e.scope == scope]
    path = tuple(
        dict.fromkeys([*(s.at for s in under if s.cut and s.cut.scope == scope), *entered])
    )
    return _Cutting(module, scope, scope.node, path, frozenset(given))


def _arguments(
    module: ModuleFacts, graph: Graph, call: ast.Call, inner: _Cutting
) -> Iterator[ast.expr]:
    """What a call passes for the parameters that could still bring a gradient in."""
    if not inner.given:
        return
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        yield from passed(call)
        return
    home = graph.callee(call)
    imported = imported_function(module, call.func) if home is None else (module, home)
    for parameter in inner.given if imported is not None else ():
        assert imported is not None
        given = module.project.argument(imported[0], imported[1], call, parameter)
        if given is not None:
            yield given


_MAX_DEPTH = 3


def _near_scope(module: ModuleFacts, function: FunctionNode, depth: int = 0) -> bool:
    """Whether a function has a scope in it or on it, or calls one of the file that does."""
    if function in module.scoped_functions or function.decorator_list:
        return True
    if depth == _MAX_DEPTH:
        return False
    graph = Graph(module, function)
    callees = (graph.callee(n) for n in own_nodes(function) if isinstance(n, ast.Call))
    return any(c is not None and _near_scope(module, c, depth + 1) for c in callees)


def _within(module: ModuleFacts, graph: Graph, step: Step, depth: int) -> _Cutting | None:
    """The same for what a helper returns: one of this file, or a function of another one."""
    if step.cut is not None or not isinstance(step.node, ast.Call) or depth == _MAX_DEPTH:
        return None
    if REFERENCE.search(module.source(step.node.func)):
        return None
    callee = graph.callee(step.node)
    if callee is not None:
        near = module.scoped_functions or module.grad_wrappers
        if not near or scope_of_results(module, callee) is not None:
            return None  # of which the graph knows
        if not _near_scope(module, callee):
            return None
        return _cutting(module, callee, list(results(callee)), depth + 1)
    name = last_name(step.node.func)
    if not _HELPS.search(name.encode()):
        return None
    if depth == 0:  # deeper, this may be what a summary is made from
        helpers = module.project.summaries(module.path, _cutting_helpers, _may_help)
        if not any(name in h for h in helpers):
            return None
    home = imported_function(module, step.node.func)
    if home is None:
        return None
    other, callee = home
    scope = scope_of_results(other, callee)
    if scope is not None:
        steps = Graph(other, callee).back_from(results(callee))
        return _Cutting(other, scope, step.node) if _works(other, steps) else None
    found = _cutting(other, callee, list(results(callee)), depth + 1)
    return replace(found, at=step.node) if found is not None else None


def _working_helper(module: ModuleFacts, graph: Graph, step: Step) -> Scope | None:
    """The scope of a function of this file that runs a model for a loss."""
    if step.cut is not None or not isinstance(step.node, ast.Call):
        return None
    callee = graph.callee(step.node)
    if callee is None or REFERENCE.search(callee.name) or _runs_references(module, step.node):
        return None
    scope = scope_of_results(module, callee)
    steps = Graph(module, callee).back_from(results(callee)) if scope is not None else []
    return scope if _works(module, steps) else None


def _may_be_live(module: ModuleFacts, graph: Graph, step: Step, given: set[str]) -> bool:
    """Whether a step outside of every scope can bring a gradient in."""
    if isinstance(step.node, ast.Call):
        callee = graph.callee(step.node)
        if callee is not None and scope_of_results(module, callee) is not None:
            return False
        return may_learn(module, step.node)
    if isinstance(step.node, ast.Name) and step.node.id in given:
        return _is_parameter_of(module, step.node)
    return not is_data(step.node, module, step.at) and not _is_number(module, step)


def _is_parameter_of(module: ModuleFacts, name: ast.Name) -> bool:
    """``agent.log_alpha.exp()``: of what ran in the scope, but not by running it."""
    attribute = module.parent(name)
    if not isinstance(attribute, ast.Attribute) or is_data(
        attribute, module, module.statement(name)
    ):
        return False
    call = module.parent(attribute)
    return not (isinstance(call, ast.Call) and call.func is attribute)


def _is_number(module: ModuleFacts, step: Step) -> bool:
    """Whether a step is an argument, or an attribute of ``self``, that has a number by default."""
    if isinstance(step.node, ast.Name):
        return _has_number(module.function(step.at), step.node.id)
    if not isinstance(step.node, ast.Attribute) or not isinstance(step.node.value, ast.Name):
        return False
    cls = module.names.self_class(step.node.value)
    values = list(_assigned(cls, step.node.attr)) if cls is not None else []
    return bool(values) and all(
        _is_numeric(value)
        or (isinstance(value, ast.Name) and _has_number(module.function(value), value.id))
        for value in values
    )


def _assigned(cls: ast.ClassDef, name: str) -> Iterator[ast.expr]:
    """What the methods of a class assign to an attribute, ``self.a, self.b = a, b`` taken apart."""
    for node in walk(cls):
        if not isinstance(node, ast.Assign):
            continue
        pairs: list[tuple[ast.expr, ast.expr]] = [(t, node.value) for t in node.targets]
        for target, value in list(pairs):
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs += zip(target.elts, value.elts, strict=False)
        for target, value in pairs:
            if isinstance(target, ast.Attribute) and target.attr == name:
                yield value


def _has_number(function: FunctionNode | None, name: str) -> bool:
    """Whether a parameter has a number as its default."""
    if function is None:
        return False
    return _is_numeric(default_of(function.args, name))


def _is_numeric(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _step(module: ModuleFacts, function: FunctionNode) -> Iterator[_Fault]:
    """``training_step`` or ``compute_loss`` of a trainer, which calls backward on the result."""
    cls = module.method_class(function)
    if cls is None or function.name not in ("training_step", "compute_loss"):
        return
    if not any(_TRAINER.search(module.source(base)) for base in cls.bases):
        return
    values = list(results(function))
    scope = decorator_scope(module, function)
    if scope is not None and values:
        steps = Graph(module, function).back_from(values)
        if _works(module, steps):
            path = tuple(dict.fromkeys(step.at for step in steps))
            yield _Fault(module, scope, module.source(values[-1][0]), scope.node, path, True)
    elif len(values) == 1 and "manual_backward" not in module.source(cls):
        yield from _of_backward(module, function, returned_loss(values[0][0]), values[0][1])


# -- what stays without gradients -----------------------------------------------------------------


def _belonging(
    module: ModuleFacts, body: Sequence[ast.stmt], path: Sequence[ast.stmt], parting: Parting
) -> list[ast.stmt]:
    kept = []
    graphs = {name.id for statement in parting.free for name in written(statement)}
    for statement in body:
        for node in (statement, *own_nodes(statement)):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)):
                if node in parting.held or node not in (*path, *parting.free):
                    if _belongs(module, node, node in parting.held, graphs):
                        kept.append(node)
    return sorted(kept, key=lambda s: s.lineno)


def _belongs(
    module: ModuleFacts,
    statement: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr,
    held: bool,
    graphs: Collection[str],
) -> bool:
    calls = [n for n in walk(statement) if isinstance(n, ast.Call)]
    if any(LOSS_CALL.search(module.source(c.func)) or _optimizes(c) for c in calls):
        return False
    if held or _writes_weight(statement):
        return True
    names = [n for n in walk(statement) if isinstance(n, ast.Name)]
    return any(
        _METRIC.match(name.id) or (name.id in graphs and keeps_graph(module, name))
        for name in names
    )


def _writes_weight(statement: ast.stmt) -> bool:
    """``model.weight.mul_(0.9)``, ``model.bias += 1``, ``model.weight[0] = 0``.

    Of a leaf that requires a gradient, autograd allows that only with gradients off.
    """
    target: ast.AST | None = None
    if isinstance(statement, ast.AugAssign):
        target = statement.target
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        target = statement.targets[0].value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        method = statement.value.func
        if isinstance(method, ast.Attribute) and re.search(r"[a-z]_$", method.attr):
            target = method.value
    while isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Attribute) and not isinstance(target.value, ast.Call)


def _optimizes(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "update":  # of a gradient scaler; a meter is given something
        return not call.args
    return call.func.attr in (
        *("backward", "step", "zero_grad", "unscale_"),
        *("train", "eval", "to"),
    )


def _slice(body: Sequence[ast.stmt], statement: ast.stmt) -> list[ast.stmt]:
    """The statements that a value needs, up to its own."""
    wanted = {n.id for n in walk(statement) if isinstance(n, ast.Name)}
    kept = [statement]
    for previous in reversed(body[: body.index(statement)]):
        stores = {
            n.id for n in walk(previous) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        if stores & wanted and not _is_reference(previous):
            kept.append(previous)
            wanted |= {n.id for n in walk(previous) if isinstance(n, ast.Name)}
    return kept[::-1]


def _is_reference(statement: ast.stmt) -> bool:
    names = [n.id for n in walk(statement) if isinstance(n, ast.Name)]
    names += [n.attr for n in walk(statement) if isinstance(n, ast.Attribute)]
    return any(REFERENCE.search(name) for name in names)
