"""Which of the models that a step runs are trained, and which it only compares with.

Where a scope has cut both off, only the first are to be taken out of it: a reference that is given
a graph in place of the policy learns what the policy should have.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .grad_mode import own_nodes
from .graph import Graph
from .layers import imported_function
from .learning import is_tensor_method, may_learn
from .memo import once
from .names import last_name, passed, placed, self_name
from .views import VIEW_ATTRIBUTES
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

REFERENCE = re.compile(
    r"(?i:teacher|target|frozen|momentum_)|"
    r"(?:(?<![a-zA-Z])(?i:ema|ref|reference|old|prev|previous)|Ref|Old|Ema)(?![a-z])|(?i:_ref\b)"
)
"""Names of models that are beside the one that is trained, and of what such give."""
_MODEL = re.compile(
    r"(?i:(^|[._])(\w*(model|policy|network|critic|student|teacher|actor|encoder|decoder|unet)|"
    r"\w*net|ref|reference|old|target|agent|frozen|ema)\d*$)"
)
_NO_MODEL = re.compile(
    r"(?i:(^|[._])(\w*tokenizer|\w*processor|preprocess\w*|augment\w*|\w*transforms?|envs?|"
    r"\w*schedule(r)?|collat\w+|normali[sz]er?|tokenize|rewarder|reward_f(n|unc)\w*)\d*$)"
)
_SAMPLES = re.compile(r"_?generate(_\w+)?$")
"""Names of functions that give choices, through which there is no gradient."""
_EVALUATES = re.compile(r"eval|test|valid|infer|predict|sampl|generat|score", re.IGNORECASE)
_OPTIMIZER = re.compile(r"optim|^(Adam\w*|SGD|Lion|Muon)$", re.IGNORECASE)
_MAX_DEPTH = 3
Simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)


@dataclass(frozen=True)
class Parting:
    """The statements of a scope, by what they are to a loss.

    ``free`` are those that it needs a graph of, ``held`` those that run a reference, or only work
    on what one gave.  ``unsure`` are models of which nothing says which are trained, where they
    are several; ``along`` those that are not trained, and run by a statement of ``free``.
    """

    free: frozenset[ast.stmt]
    held: frozenset[ast.stmt]
    unsure: tuple[str, ...] = ()
    along: tuple[str, ...] = ()


def part(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    body: Sequence[ast.stmt],
    path: Collection[ast.stmt],
) -> Parting:
    """Part the statements in a scope; ``path`` are statements on the way to a loss."""
    leaves = [
        node
        for statement in body
        for node in (statement, *own_nodes(statement))
        if isinstance(node, Simple)
    ]
    leaves = sorted(dict.fromkeys(leaves), key=lambda s: s.lineno)
    runs = {s: _runs(module, function, s, leaves) for s in leaves}
    names = {name for s in leaves if s in path for name in runs[s]}
    trained, unsure = _trained(module, function, names)
    behind = {s: _behind(module, function, s, leaves) for s in leaves}
    sampling = {s for s in leaves if _samples(s)}
    if not any(runs[s] for s in leaves if s in path and s not in sampling):
        sampling = set()  # that is all there is: a generator
    learning = {s for s in leaves if runs[s] & trained or _has_parameter(module, function, s)}
    learning -= sampling
    learning |= {s for s in leaves if behind[s] & learning and s not in sampling}
    held = {s for s in leaves if s not in learning and (runs[s] or s in sampling)}
    held |= {s for s in leaves if s not in learning and behind[s] & held}
    wanted = _wanted(leaves, path)
    free = frozenset(s for s in learning if s in wanted)
    along = {
        name
        for s in free
        for call in walk(s)
        if isinstance(call, ast.Call)
        for name in models(module, function, call) - trained
        if name in runs[s]
        and not _is_frozen(module, name)
        and not _works_on(module, function, call, s, learning, trained)
    }
    return Parting(free, frozenset(held), unsure, tuple(sorted(along)))


def _behind(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    statement: ast.stmt,
    leaves: Collection[ast.stmt],
) -> set[ast.stmt]:
    """The other statements that what one computes has a graph to, were gradients on."""
    values = [v for v in (getattr(statement, "value", None),) if v is not None]
    values += [node for node in written(statement) if isinstance(node.ctx, ast.Load)]
    if isinstance(statement, ast.AugAssign):
        values.append(statement.target)
    steps = Graph(module, function).back_from([(value, statement) for value in values])
    return {s.at for s in steps if s.at in leaves and s.at is not statement}


def _works_on(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    call: ast.Call,
    at: ast.stmt,
    learning: Collection[ast.stmt],
    trained: Collection[str],
) -> bool:
    """Whether a call is given something that has a gradient, which is to flow through it."""
    given = passed(call)
    steps = Graph(module, function).back_from([(g, at) for g in given])
    return any(
        (s.at in learning and s.at is not at)
        or (isinstance(s.node, ast.Call) and models(module, function, s.node) & set(trained))
        for s in steps
    )


def _wanted(leaves: Sequence[ast.stmt], path: Collection[ast.stmt]) -> set[ast.stmt]:
    """The statements on a path, and those between: ``d = p - q`` has no call of its own."""
    found = {s for s in leaves if s in path}
    names = {n for s in path for part in _heads(s) for n in _loads(part)}
    for statement in reversed(leaves):
        if statement in found or not names.isdisjoint(n.id for n in written(statement)):
            found.add(statement)
            names |= _loads(statement)
    names |= {n.id for s in found for n in written(s)}
    return found | {s for s in leaves if not names.isdisjoint(_changed(s))}


def _heads(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement without those in it: of a loop, what it goes over."""
    body = getattr(statement, "body", None)
    if not isinstance(body, list):
        yield statement
        return
    for node in ast.iter_child_nodes(statement):
        if not isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield node


def _changed(statement: ast.stmt) -> set[str]:
    """The names of tensors that a statement writes into."""
    augmented = isinstance(statement, ast.AugAssign)
    return {n.id for n in written(statement) if augmented or isinstance(n.ctx, ast.Load)}


def _loads(node: ast.AST) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def written(statement: ast.stmt) -> Iterator[ast.Name]:
    """The names that a statement gives a value, or changes the value of: ``z.mul_(2)``.

    Not the ``model`` of ``model.weight.mul_(0.9)`` and ``model.weight[0] = 0``: leaves, for which
    autograd allows that only with gradients off.
    """
    for node in walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from _base(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            given = isinstance(statement, (ast.Assign, ast.AnnAssign))  # a field, not a weight
            yield from _base(node.value if given else node)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        if isinstance(statement.value.func, ast.Attribute):  # a plain name is a function's
            yield from _base(statement.value.func.value)


def _base(node: ast.expr) -> Iterator[ast.Name]:
    """``z`` of ``z``, ``z[0].data`` and ``z.view(-1)``; nothing of ``z.weight``."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call):
            node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        elif isinstance(node, ast.Subscript) or (
            isinstance(node, ast.Attribute) and node.attr in VIEW_ATTRIBUTES
        ):
            node = node.value
        else:
            return
    yield node


def _samples(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Call) and bool(_SAMPLES.match(last_name(value.func)))


def _has_parameter(
    module: ModuleFacts, function: FunctionNode | ast.Module, statement: ast.stmt
) -> bool:
    """Whether a statement works on a parameter of ``self``."""
    cls = module.method_class(function)
    if cls is None:
        return False
    for node in walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == self_name(function) and isinstance(node.ctx, ast.Load):
                for binding in module.names.attributes(cls).get(node.attr, ()):
                    value = binding.value
                    if isinstance(value, ast.Call) and last_name(value.func) == "Parameter":
                        return True
    return False


# -- which models a call runs ---------------------------------------------------------------------


def _runs(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    statement: ast.stmt,
    leaves: Collection[ast.stmt],
) -> set[str]:
    """The models that a statement runs: not what it calls on a value from the scope itself."""
    flow = module.flow(function)
    found = set()
    for call in walk(statement):
        if not isinstance(call, ast.Call):
            continue
        if _SAMPLES.match(last_name(call.func)) and call is not getattr(statement, "value", None):
            continue
        for name in models(module, function, call):
            reaching = flow.reaching(name, statement) if name.isidentifier() else ()
            if not any(d.statement in leaves for d in reaching):
                found.add(name)
    return found


def models(
    module: ModuleFacts, function: FunctionNode | ast.Module, call: ast.Call, depth: int = 0
) -> frozenset[str]:
    """The models that a call runs, by their names where it stands: ``policy``, ``self.critic``.

    A function of the project is looked into; of any other, what it is given and is called like a
    model.
    """
    if not may_learn(module, call):
        return frozenset()
    target = call.func
    me = self_name(function) if module.method_class(function) is not None else None
    own = (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == me
    )
    root = _root(target, me)
    if isinstance(target, ast.Name) or own:
        callee = Graph(module, function).callee(call)
        if callee is not None:
            return _of_callee(module, function, call, module, callee, depth)
    imported = isinstance(target, (ast.Name, ast.Attribute)) and _is_imported(module, target)
    if imported:
        home = imported_function(module, target)
        if home is not None:
            return _of_callee(module, function, call, *home, depth)
    given = frozenset(_given_models(call, me))
    if imported or root is None:
        return given
    if own and given and not _MODEL.search(root):
        return given  # self.get_logps(model, x), which a base class has
    last = last_name(target)
    if is_tensor_method(last) or _NO_MODEL.search(root) or _NO_MODEL.search(last):
        return frozenset()
    return frozenset({root})


def _of_callee(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    call: ast.Call,
    home: ModuleFacts,
    callee: FunctionNode,
    depth: int,
) -> frozenset[str]:
    """The models that a function of the project runs, by their names at the call."""
    me = self_name(function) if module.method_class(function) is not None else None
    if depth == _MAX_DEPTH:
        return frozenset(_given_models(call, me))
    inner = {
        name
        for node in own_nodes(callee)
        if isinstance(node, ast.Call)
        for name in models(home, callee, node, depth + 1)
    }
    parameters = {*placed(callee), *(a.arg for a in callee.args.kwonlyargs)}
    found = set()
    for name in inner:
        if name in parameters:
            given = home.project.argument(home, callee, call, name)
            root = _root(given, me) if given is not None else None
            found |= {root} if root is not None else set()
        elif name.startswith("self.") or not home.flow(callee).all_definitions(name):
            found.add(name)
    return frozenset(found)


def _root(node: ast.expr | None, me: str | None) -> str | None:
    """``model`` of ``model.body.layers[0]``, ``self.critic`` of ``self.critic.q1``."""
    inner: ast.expr | None = None
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node, inner = node.func if isinstance(node, ast.Call) else node.value, node
    if not isinstance(node, ast.Name):
        return None
    if node.id == me and isinstance(inner, ast.Attribute):
        return f"self.{inner.attr}"
    return node.id


def _given_models(call: ast.Call, me: str | None) -> Iterator[str]:
    for given in passed(call):
        root = _root(given, me) if isinstance(given, (ast.Name, ast.Attribute)) else None
        if root is not None and _MODEL.search(root):
            yield root


def _is_imported(module: ModuleFacts, node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and any(
        b.qualified is not None or isinstance(b.node, ast.ClassDef)
        for b in module.names.visible(node)
    )


# -- which of them are trained --------------------------------------------------------------------


def _trained(
    module: ModuleFacts, function: FunctionNode | ast.Module, names: set[str]
) -> tuple[set[str], tuple[str, ...]]:
    """The models that are trained, and those of which that is only a guess."""
    known = {name: _known_as(module, function, name) for name in names}
    told = {
        n: {s for other, name in known[n] for s in _optimized(other) if name in s} for n in names
    }
    open_ = {n for n in names if not told[n]}
    held = {
        n
        for n in open_
        if any(REFERENCE.search(name) or _is_frozen(other, name) for other, name in known[n])
    }
    open_ -= held
    trained = names - held - open_
    if trained:
        one = len(frozenset[frozenset[str]].intersection(*(frozenset(told[n]) for n in trained)))
        # clipped, or handed to what nobody knows
        used = {n for n in open_ if any(_has_parameters_used(o, name) for o, name in known[n])}
        return trained | used, () if one and not used else tuple(sorted(trained | used))
    rest = {n for n in open_ if not _only_evaluates(module, n)} or open_
    return rest, tuple(sorted(rest)) if len(rest) > 1 else ()


def _known_as(
    module: ModuleFacts, function: FunctionNode | ast.Module, name: str
) -> list[tuple[ModuleFacts, str]]:
    """A model's name in a function, and those that its callers have for it."""
    found = [(module, name)]
    if isinstance(function, ast.Module) or name not in module.flow(function).parameters:
        return found
    for other, call in module.project.calls_of(module, function):
        given = module.project.argument(module, function, call, name)
        caller = other.function(call)
        me = self_name(caller) if caller is not None and other.method_class(caller) else None
        root = _root(given, me) if given is not None else None
        if root is not None:
            found.append((other, root))
    return found


@once
def _optimized(module: ModuleFacts) -> list[frozenset[str]]:
    """The models whose parameters a file hands to an optimizer, one set for each that it makes."""
    made: list[frozenset[str]] = []
    for call in module.calls if "ptim" in module.usual or "Adam" in module.usual else ():
        if not _OPTIMIZER.search(last_name(call.func)) and not any(
            t.name.startswith("torch.optim.") for t in module.resolve(call.func)
        ):
            continue
        function = module.function(call) or module.tree
        me = self_name(function) if module.method_class(function) is not None else None
        flow, at = module.flow(function), module.statement(call)
        found: set[str] = set()
        for given in passed(call):
            values: list[ast.expr] = [given]
            if isinstance(given, ast.Name):
                values += [d.value for d in flow.reaching(given.id, at) if d.value is not None]
                found.add(given.id)  # make_optimizer(model)
            for value in values:
                found.update(_with_parameters(value, me))
        if "self" in found:
            found |= {f"self.{a}" for c in module.classes for a in module.names.attributes(c)}
        made.append(frozenset(found))
    return made


def _with_parameters(value: ast.expr, me: str | None) -> Iterator[str]:
    for node in walk(value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr.endswith("parameters"):
                root = _root(node.func.value, me)
                if root is not None:
                    yield "self" if root == me else root


def _is_frozen(module: ModuleFacts, name: str) -> bool:
    """Whether a file freezes a model: ``ref.requires_grad_(False)``."""
    text = re.escape(name)
    return bool(
        re.search(
            rf"(?<![\w.]){text}(?:\.eval\(\))?\.requires_grad_\(\s*False|"
            rf"in {text}\.parameters\(\):\s*\w+\.requires_grad(?:_\(|\s*=)\s*False",
            module.text,
        )
    )


def _has_parameters_used(module: ModuleFacts, name: str) -> bool:
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}\.\w*parameters\(", module.usual))


def _only_evaluates(module: ModuleFacts, name: str) -> bool:
    """Whether a model is put into evaluation mode for good, not for an evaluation."""
    if f"{name}.train(" in module.usual or f"{name}.eval(" not in module.usual:
        return False
    return any(
        isinstance(call.func, ast.Attribute)
        and module.source(call.func.value) == name
        and not _EVALUATES.search(getattr(module.function(call), "name", ""))
        for call in module.calls_named("eval")
    )
