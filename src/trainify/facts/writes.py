"""Writes into tensors: what a statement overwrites in place, and where that storage comes from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .flow import Definition, FunctionFlow
from .guards import gradient_unwanted, implies_unwanted, is_autograd_function
from .names import last_name, passed
from .overwriting import asked_in_place, candidates, evaluated, initializes, overwritten
from .trainable import returns_numbers, submodules, trained_submodules
from .views import VIEW_ATTRIBUTES
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

METHODS = frozenset(
    f"{name}_"
    for name in (
        "abs add addbmm addcdiv addcmul addmm addmv addr baddbmm ceil clamp clamp_max clamp_min "
        "clip copy cos cumprod cumsum deg2rad div divide elu erf erfinv exp expm1 fill "
        "fill_diagonal floor frac hardtanh index_add index_copy index_fill index_put "
        "index_reduce leaky_relu lerp log log10 log1p log2 logit masked_fill masked_scatter mul "
        "multiply mvlgamma nan_to_num neg pow put reciprocal relu renorm round rsqrt scatter "
        "scatter_add scatter_reduce selu sigmoid sign silu sin sqrt square sub subtract tan tanh "
        "tril triu true_divide trunc xlogy zero"
    ).split()
)
_ALIASES = frozenset(
    "view view_as unflatten squeeze unsqueeze transpose permute t swapaxes swapdims movedim to "
    "float half bfloat16 double type_as detach requires_grad_ view_as_real view_as_complex "
    "narrow select diagonal expand expand_as unfold split chunk unbind split_with_sizes "
    "tensor_split hsplit vsplit".split()
)
"""Methods whose result has the storage of their tensor; conversions have it where there is nothing
to convert, as in training in float32.  ``reshape`` and ``contiguous`` mostly follow a transpose,
and copy."""
_SPLITTERS = frozenset("split chunk unbind split_with_sizes".split())
_MAX_DEPTH = 8
_CALLS_DEEP = 2
_LAYERS = frozenset("linear conv1d conv2d conv3d".split())
_INFERS = re.compile(r"infer(?!red)")
_APART = re.compile(
    r"sampl(?!e_rate)|generat|predict|post_?process|pre_?process|evaluat|metric|"
    r"visuali|plot|augment|^_*reset(?:_|$)"
)
_APART_CLASS = re.compile(
    r"Sampl(?!ing$)|Scheduler|Solver|(?<!Logits)Process|Metric|Transform$|Transforms|Augment|"
    r"Spectrogram|Mel[A-Z]|FeatureExtract|Preprocess|Frontend|Detokeniz"
)
_APART_KIND = re.compile(r"(?<!Up)(?<!Down)(?<!Re)Sampler$|Scheduler$|Solver$|Metric$")
_TRAINS = frozenset({"forward", "training_step"})


@dataclass(frozen=True, eq=False)
class Write:
    """A statement that overwrites ``target``: ``x``, ``x[:, 0]``, ``self.state``.

    ``inputs`` are evaluated before; ``part`` says that only a piece of ``name`` is written.
    ``call`` is the function or module that writes, where it is no method: ``F.relu(x, True)``.
    ``unseen`` are writes under ``no_grad``, which leaves take: those of ``nn.init``.
    """

    statement: ast.stmt
    target: ast.expr
    inputs: tuple[ast.expr, ...]
    name: ast.Name | None
    part: bool
    call: ast.Call | None = None
    unseen: bool = False

    @property
    def is_unnoticed(self) -> bool:
        """Whether backward takes the new values for those it saved, as ``.data`` counts apart."""
        return any(isinstance(n, ast.Attribute) and n.attr == "data" for n in walk(self.target))


UNNOTICED = "computes with the new values and does not notice"
"""What backward does then."""


def writes_of(module: ModuleFacts) -> Iterator[Write]:
    """What the statements of a file overwrite, in order."""
    lines = set(candidates(module))
    for statement in module.statements:
        write = _write_of(module, statement, lines)
        if write is not None:
            yield write


def _last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _write_of(module: ModuleFacts, statement: ast.stmt, lines: set[int]) -> Write | None:
    """What a statement overwrites, if it does; ``lines`` are those with a call that may do that."""
    if isinstance(statement, ast.AugAssign):
        return _write(statement, statement.target, (statement.value,))
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        if isinstance(target, ast.Tuple):  # x[:, 0], x[:, 1] = a, b
            target = next((t for t in target.elts if isinstance(t, ast.Subscript)), target)
        if len(statement.targets) == 1 and isinstance(target, ast.Subscript):
            return _write(statement, target, (statement.value,))
    if not isinstance(statement, (ast.Assign, ast.Expr, ast.Return)):
        return None
    if not lines.isdisjoint(range(statement.lineno, _last_line(statement) + 1)):
        method = _innermost(statement.value)
        if method is not None:
            assert isinstance(method.func, ast.Attribute)
            inputs = tuple(passed(method))
            asked = asked_in_place(method.func.value)  # F.silu(x, inplace=True).mul_(y)
            target = asked if isinstance(asked, ast.Name) else method.func.value
            return _write(statement, target, inputs)
        return _by_call(module, statement)
    return None


def _innermost(node: ast.expr | None) -> ast.Call | None:
    """``x.mul_(a)`` of ``x.mul_(a).add_(b.relu_())``; an operand's where there is no other."""
    if node is None:
        return None
    found = None
    current: ast.expr | None = node
    while isinstance(current, (ast.Call, ast.Attribute, ast.Subscript)):
        if isinstance(current, ast.Call):
            if _is_method(current):
                found = current
            current = current.func
        else:
            current = current.value
    if found is None:
        for inner in evaluated(node):
            if isinstance(inner, ast.Call) and _is_method(inner):
                found = inner
    return found


def _is_method(call: ast.Call) -> bool:
    """``x.mul_(a)``, of whatever; ``torch.relu_(x)`` is a function."""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in METHODS
        and not (isinstance(call.func.value, ast.Name) and call.func.value.id in _NAMESPACES)
    )


_NAMESPACES = ("torch", "F")


def _by_call(module: ModuleFacts, statement: ast.Assign | ast.Expr | ast.Return) -> Write | None:
    """What a statement gives to a call that overwrites it, first of all what has a name."""
    found = None
    for call in evaluated(statement.value) if statement.value is not None else ():
        target = overwritten(module, call) if isinstance(call, ast.Call) else None
        if target is not None and (found is None or found.name is None):
            assert isinstance(call, ast.Call)
            inputs = tuple(a for a in call.args if a is not target)
            found = _write(statement, target, inputs, call, initializes(module, call))
    return found


def _write(
    statement: ast.stmt,
    target: ast.expr,
    inputs: tuple[ast.expr, ...],
    call: ast.Call | None = None,
    unseen: bool = False,
) -> Write:
    name, path = root_of(target)
    part = any(isinstance(node, ast.Subscript) for node in path) or any(
        isinstance(node, ast.Call) and _method(node) in ("narrow", "select", "diagonal", "unbind")
        for node in path
    )
    return Write(statement, target, inputs, name, part, call, unseen)


def root_of(node: ast.expr) -> tuple[ast.Name | None, list[ast.expr]]:
    """The name whose storage an expression has, and the expressions on the way to it."""
    path: list[ast.expr] = []
    while not isinstance(node, ast.Name):
        path.append(node)
        if isinstance(node, ast.Subscript) or (
            isinstance(node, ast.Attribute) and node.attr in VIEW_ATTRIBUTES
        ):
            node = node.value
        elif (asked := asked_in_place(node)) is not None:
            node = asked
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            written = node.func.attr in METHODS
            if node.func.attr not in _ALIASES and not written:
                return None, path
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in _NAMESPACES:
                if not node.args:
                    return None, path
                owner = node.args[0]
            node = owner
        else:
            return None, path
    return node, path


def is_apart(node: ast.expr) -> bool:
    """``x.data`` and ``x.detach()``, which have the storage of ``x`` and no gradient."""
    if isinstance(node, ast.Attribute):
        return node.attr == "data"
    return isinstance(node, ast.Call) and last_name(node.func) == "detach"


def attribute_of(node: ast.expr) -> ast.Attribute | None:
    """``self.state``, whose storage ``self.state[:, 0]`` has; None for what has a local name."""
    name, path = root_of(node)
    owner = path[-1] if path and name is None else None
    if isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name):
        return owner
    return None


def _method(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


@dataclass(frozen=True)
class Root:
    """Where the storage of a name was made; ``split`` is the split that cut a piece of it off."""

    definition: Definition
    split: ast.Call | None = None
    element: bool = False
    """Whether ``x[i]`` stands between: a piece of a tensor, or another tensor of a list."""


def roots(
    module: ModuleFacts, flow: FunctionFlow, name: str, statement: ast.stmt, depth: int = 0
) -> frozenset[Root]:
    """The definitions whose storage ``name`` may have when ``statement`` starts, with a gradient.

    ``residual = x`` has that of ``x`` there, whatever ``x`` becomes later.
    """
    return frozenset(
        root
        for definition in with_gradient(module, flow.reaching(name, statement), statement)
        for root in roots_of(module, flow, definition, depth)
    )


def roots_of(
    module: ModuleFacts, flow: FunctionFlow, definition: Definition, depth: int = 0
) -> frozenset[Root]:
    """The definitions whose storage the value of one definition may have."""
    made, value = definition.statement, definition.value
    if value is None and isinstance(made, ast.For):
        value = _pieces(made, definition.name)
    base, path = root_of(value) if value is not None else (None, [])
    split = next((n for n in path if isinstance(n, ast.Call) and _splits(n)), None)
    element = any(isinstance(n, ast.Subscript) and is_element(n) for n in path)
    here = frozenset({Root(definition, split, element)})
    if made is None or base is None or depth > _MAX_DEPTH:
        return here
    if any(isinstance(n, ast.Subscript) and not is_view(module, n) for n in path):
        return frozenset({Root(definition)})  # a copy: x[mask]
    outer = roots(module, flow, base.id, made, depth + 1)
    return (
        frozenset(Root(r.definition, split or r.split, element or r.element) for r in outer) or here
    )


def _pieces(loop: ast.For, name: str) -> ast.Call | None:
    """The split that a loop goes through by a name: ``for t in x.unbind(0)``."""
    target, pieces = loop.target, loop.iter
    if isinstance(pieces, ast.Call) and last_name(pieces.func) == "enumerate" and pieces.args:
        if isinstance(target, ast.Tuple) and len(target.elts) == 2:
            target, pieces = target.elts[1], pieces.args[0]
    named = isinstance(target, ast.Name) and target.id == name
    return pieces if named and isinstance(pieces, ast.Call) and _splits(pieces) else None


def _splits(node: ast.Call) -> bool:
    return _method(node) in _SPLITTERS


def is_element(node: ast.Subscript) -> bool:
    """``x[i]`` and ``x["key"]``: what a list or a dict has, too."""
    index = node.slice
    return not isinstance(index, (ast.Slice, ast.Tuple)) and not (
        isinstance(index, ast.Constant) and index.value is Ellipsis
    )


def is_view(module: ModuleFacts, node: ast.Subscript) -> bool:
    """Whether an index gives a view: slices and numbers do, masks and index tensors copy."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return all(_is_number_or_slice(module, part) for part in parts)


def are_views(module: ModuleFacts, path: list[ast.expr]) -> bool:
    """Whether all of the steps to a tensor that are subscripts give views."""
    return all(is_view(module, n) for n in path if isinstance(n, ast.Subscript))


def _is_number_or_slice(module: ModuleFacts, node: ast.expr) -> bool:
    if isinstance(node, (ast.Slice, ast.Constant)):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_number_or_slice(module, node.operand)
    if isinstance(node, ast.BinOp):
        return all(_is_number_or_slice(module, n) for n in (node.left, node.right))
    if isinstance(node, ast.Name):
        return any(
            isinstance(scope, ast.For)
            and isinstance(scope.iter, ast.Call)
            and isinstance(scope.iter.func, ast.Name)
            and _counts(scope.iter.func.id, scope.target, node.id)
            for scope in module.ancestors(node)
        )
    return False


def _counts(function: str, target: ast.expr, name: str) -> bool:
    """Whether ``for i in range(n)`` or ``for i, x in enumerate(xs)`` gives a number a name."""
    if function == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    elif function not in ("range", "trange", "reversed"):
        return False
    return isinstance(target, ast.Name) and target.id == name


def with_gradient(
    module: ModuleFacts, definitions: frozenset[Definition], statement: ast.stmt
) -> frozenset[Definition]:
    """Those of a name's definitions that are current where a gradient is wanted.

    After ``if torch.is_grad_enabled(): x = x.clone()`` it is the clone.
    """
    for definition in definitions:
        made = definition.statement
        scope = module.parent(made) if made is not None else None
        if (
            isinstance(scope, ast.If)
            and made in scope.body
            and implies_unwanted(module, scope.test, False)
            and not _is_inside(module, statement, scope)
        ):
            always = _precedes(module, scope, statement)
            definitions = frozenset(
                d
                for d in definitions
                if not _is_inside(module, d.statement, scope, scope.orelse)
                and not (_line(d) < scope.lineno and (always or _leads_to(module, d, scope)))
            )
    return definitions


def _is_inside(
    module: ModuleFacts,
    statement: ast.stmt | None,
    scope: ast.If,
    block: Sequence[ast.stmt] | None = None,
) -> bool:
    """Whether a statement stands in one of the blocks of ``scope``, or in that one."""
    if statement is None:
        return False
    around = [statement, *module.ancestors(statement)]
    return scope in around if block is None else any(s in around for s in block)


def _leads_to(module: ModuleFacts, definition: Definition, scope: ast.If) -> bool:
    """Whether ``scope`` follows a definition in its block, so that no way leads past it."""
    made = definition.statement
    return made is not None and scope in module.block(made)


def _line(definition: Definition) -> int:
    return definition.statement.lineno if definition.statement is not None else 0


def _precedes(module: ModuleFacts, first: ast.stmt, last: ast.stmt) -> bool:
    """Whether one statement stands before another, or what that is in, in the same block."""
    block = module.block(first)
    around = [last, *(a for a in module.ancestors(last) if isinstance(a, ast.stmt))]
    return any(s in block and block.index(first) < block.index(s) for s in around)


# -- functions of a network -----------------------------------------------------------------------


def callers(module: ModuleFacts, function: FunctionNode) -> Iterator[ast.Call]:
    """The calls of a function or method in its own file."""
    cls = module.method_class(function)
    if module.text.count(function.name) < 2:
        return
    for call in module.calls_named(function.name):
        target = call.func
        if cls is None:
            if isinstance(target, ast.Name):
                yield call
        elif isinstance(target, ast.Attribute):
            if isinstance(target.value, ast.Name) and module.names.self_class(target.value) is cls:
                yield call


def in_network(
    module: ModuleFacts, function: FunctionNode | None, depth: int = _CALLS_DEEP
) -> bool:
    """Whether a function is a method of a class with a forward, or is called by one.

    Those that prepare data, or draw and measure what a network gave, are no part of one, unless
    its forward calls them.  A function for others that takes weights is a layer, too.
    """
    if function is None or _INFERS.search(function.name) or returns_numbers(function):
        return False
    if _APART.search(function.name) and not _trains(module, function, depth):
        return False
    cls = module.method_class(function)
    if cls is not None:
        return _is_part(module, cls)
    outer = module.function(function)
    if outer is not None:
        return in_network(module, outer, depth)
    calls = list(callers(module, function)) if depth > 0 else []
    if depth == _CALLS_DEEP and not calls:
        return _is_layer(module, function)
    return any(in_network(module, module.function(call), depth - 1) for call in calls)


def _is_layer(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function that its file does not call is given the weights of a layer."""
    names = {a.arg for a in function.args.args}
    return any(
        isinstance(node, ast.Call)
        and last_name(node.func) in _LAYERS
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Name)
        and node.args[1].id in names
        and any(t.name.startswith("torch.nn.functional.") for t in module.resolve(node.func))
        for node in walk(function)
    )


def _is_part(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a class is a network or a layer: it has a forward, and is no step of the data's.

    That of an ``autograd.Function`` runs without gradients.
    """
    if is_autograd_function(module, cls):
        return False
    if not any(isinstance(node, ast.FunctionDef) and node.name == "forward" for node in cls.body):
        return False
    if not _APART_CLASS.search(cls.name):
        return True
    return not _APART_KIND.search(cls.name) and _has_weights(module, cls)


def _has_weights(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a class called like a step of the data's holds something to train all the same."""
    trained = trained_submodules(module, cls)
    return any(
        not _APART_CLASS.search(module.source(value))
        for name, values in (submodules(module, cls) if trained else {}).items()
        if name in trained
        for value in values
    )


def _trains(module: ModuleFacts, function: FunctionNode, depth: int) -> bool:
    """Whether a training forward leads to a function, through at most ``depth`` others."""
    for call in callers(module, function):
        caller = module.function(call)
        if caller is None or caller is function or gradient_unwanted(module, call):
            continue
        if caller.name in _TRAINS or (depth > 0 and _trains(module, caller, depth - 1)):
            return True
    return False


def in_callers(module: ModuleFacts, write: Write) -> Iterator[Write]:
    """The calls that pass what a function overwrites, each as a write into its argument."""
    function = module.function(write.statement)
    if function is None or write.name is None:
        return
    flow = module.flow(function)
    owners = {
        root.definition.name
        for root in roots(module, flow, write.name.id, write.statement)
        if root.definition.is_parameter
    }
    for owner in owners:
        for call in callers(module, function):
            argument = module.project.argument(module, function, call, owner)
            if argument is not None and module.function(call) is not None:
                inputs = tuple(a for a in call.args if a is not argument)
                yield _write(module.statement(call), argument, inputs)
