"""What autograd keeps for backward: which operations save their input, which their result.

Overwriting a saved tensor makes backward raise.  Measured op by op; what is not listed here (sums,
views, products with a number) saves nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .activations import carries, submodule
from .called import method_of, modules_of
from .constants import NO_GRADIENT, is_constant
from .flow import Definition
from .guards import gradient_unwanted, implies_unwanted
from .layers import definition_of, own_class
from .memo import once
from .names import last_name, placed
from .overwriting import overwritten, writes_in_place
from .saving_ops import INPUT_SAVED, WHOLE_SAVED
from .walk import walk
from .writes import (
    METHODS,
    are_views,
    attribute_of,
    root_of,
    roots,
)

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

RESULT_SAVED = frozenset(
    "tanh sigmoid exp exp2 expm1 softmax log_softmax softmin gumbel_softmax rsqrt sqrt reciprocal "
    "tan relu logsumexp logcumsumexp cumprod prod norm vector_norm std amax amin cdist "
    "scaled_dot_product_attention".split()
)
_RESULT_SAVED_MODULES = frozenset("ReLU Tanh Sigmoid Softmax LogSoftmax Softmin".split())
RESULT_SAVED_IN_PLACE = frozenset(
    "ELU CELU SELU LeakyReLU RReLU elu celu selu leaky_relu rrelu".split()
)
"""Those that save their input, unless they overwrite that."""

_PRODUCTS = frozenset("matmul mm bmm mv einsum outer mul linear conv1d conv2d conv3d".split())
_INPUT_SAVED_MODULES = re.compile(
    r"(Linear|Norm(\dd)?|Conv(Transpose)?\dd|Bilinear|(GRU|LSTM|RNN)(Cell)?)$"
)


@dataclass(frozen=True, eq=False)
class Saver:
    """An operation that saved a tensor: ``op`` its text, ``operand`` the input it saved.

    ``alone`` says that it did because of that input's own gradient, not of another's.
    """

    node: ast.expr
    operand: ast.expr
    op: str
    alone: bool = False


# -- results --------------------------------------------------------------------------------------


def saved_result(module: ModuleFacts, definition: Definition) -> str | None:
    """The operation that made a value and saved it: ``torch.tanh``."""
    if definition.value is None:
        return None
    _, path = root_of(definition.value)
    if definition.index is not None and not any(_gives_views(node) for node in path):
        return None
    return saving_call(module, maker_of(definition.value))


def maker_of(value: ast.expr) -> ast.expr:
    """The operation that made what an expression looks at, and may have saved its result.

    ``x.exp_()`` of ``x.exp_()[:, 0]``, ``torch.exp(x)`` of ``torch.exp(x).view(2, 2)``.
    """
    _, path = root_of(value)
    in_place = (node for node in path if isinstance(node, ast.Call) and saves_in_place(node))
    return next(in_place, path[-1] if path else value)


def saves_in_place(call: ast.Call) -> bool:
    """Whether a call overwrites a tensor by a result that it saves: ``x.exp_()``."""
    name = last_name(call.func)
    if name.endswith("_") and name[:-1] in RESULT_SAVED_IN_PLACE:
        return True
    return name in METHODS and name[:-1] in RESULT_SAVED


def saves_its_result(module: ModuleFacts, made: ast.expr) -> bool:
    """Whether an expression makes a module of torch's that saves its result for backward."""
    if not isinstance(made, ast.Call):
        return False
    if not any(target.name.startswith("torch.nn.") for target in module.resolve(made.func)):
        return False
    cls = module.source(made.func).rpartition(".")[2]
    return cls in _RESULT_SAVED_MODULES or (
        cls in RESULT_SAVED_IN_PLACE and writes_in_place(module, made)
    )


def _gives_views(node: ast.expr) -> bool:
    """Whether each element of a result is a view that may be written: that of ``tensor_split``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("tensor_split", "hsplit", "vsplit")
    )


def saving_call(module: ModuleFacts, node: ast.expr) -> str | None:
    """The operation that a call runs, if that saves its result: ``torch.tanh``."""
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    text = module.source(function)
    cls = submodule(module, function)
    if cls in _RESULT_SAVED_MODULES:
        return text
    if cls in RESULT_SAVED_IN_PLACE:
        return text if overwritten(module, node) else None
    if getattr(function, "attr", None) in RESULT_SAVED_IN_PLACE and overwritten(module, node):
        return text
    if isinstance(function, ast.Attribute) and (
        function.attr in RESULT_SAVED or saves_in_place(node)
    ):
        if _is_tensor_op(module, function) and not is_constant(module, node):
            return text
        return None
    from .saved_by_functions import saved_inside

    return text if saved_inside(module, node) else None


def _is_tensor_op(module: ModuleFacts, function: ast.Attribute) -> bool:
    """Whether ``f`` of ``owner.f`` is torch's: not ``np.exp``, ``math.exp``, ``self.prod``."""
    root: ast.expr = function.value
    while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
    if not isinstance(root, ast.Name):
        return isinstance(root, ast.BinOp)
    names = [target.name for target in module.resolve(root)]
    if any(not n.startswith("torch") for n in names):
        return False
    if names or root is not function.value:
        return True
    return module.names.self_class(root) is None  # a tensor's method, not the object's own


# -- inputs ---------------------------------------------------------------------------------------


def _has_storage(operand: ast.expr) -> bool:
    """Whether what is saved can be written later, by a name or as an attribute."""
    return root_of(operand)[0] is not None or attribute_of(operand) is not None


def savers(
    module: ModuleFacts, function: FunctionNode, worth: Callable[[ast.expr], bool] = _has_storage
) -> Iterator[Saver]:
    """Every operation of a function that saves an input which has a name, or is an attribute.

    Those of other inputs than are ``worth`` it are left out.
    """
    for node in _operations(module, function):
        if any(map(worth, _operands(node))):
            yield from (saver for saver in _savers_at(module, node) if worth(saver.operand))


@once
def _operations(module: ModuleFacts, function: FunctionNode) -> tuple[ast.BinOp | ast.Call, ...]:
    """The operators and calls of a function, but those of functions in it."""
    nested = {id(n) for f in _nested(function) for n in walk(f)}
    return tuple(
        node
        for node in walk(function)
        if isinstance(node, (ast.BinOp, ast.Call)) and id(node) not in nested
    )


def _operands(node: ast.BinOp | ast.Call) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return [*owner, *node.args]


def _savers_at(module: ModuleFacts, node: ast.BinOp | ast.Call) -> tuple[Saver, ...]:
    found = module.savers.get(node)
    if found is None:
        module.savers[node] = ()  # for classes that hold others of their kind
        found = tuple(_saved(module, node))
        if found and not _reaches_loss(module, node):
            found = ()
        module.savers[node] = found
    return found


def _nested(function: FunctionNode) -> list[ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return [n for n in walk(function) if isinstance(n, kinds) and n is not function]


def _saved(module: ModuleFacts, node: ast.BinOp | ast.Call) -> Iterator[Saver]:
    if isinstance(node, ast.BinOp):
        yield from _saved_by_operator(module, node)
        return
    function = node.func
    text = module.source(function)
    name = function.attr if isinstance(function, ast.Attribute) else ""
    cls = submodule(module, function)
    if cls is not None:
        if node.args and _INPUT_SAVED_MODULES.search(cls):
            if _has_storage(node.args[0]):
                yield Saver(node, node.args[0], text)
        else:
            yield from _saved_inside(module, node, text)
    elif name == "apply" and isinstance(function, ast.Attribute):
        yield from _saved_by_function(module, node, function, text)
    elif name in INPUT_SAVED or name in WHOLE_SAVED or name in _PRODUCTS:
        assert isinstance(function, ast.Attribute)
        if not _is_tensor_op(module, function):
            return
        operands = list(node.args)
        if not module.resolve(function):
            operands = [function.value, *operands]
        if name == "einsum":
            operands = operands[1:]
        if not operands or (name in WHOLE_SAVED and (len(operands) > 1 or node.keywords)):
            return
        if name not in _PRODUCTS:
            if _has_storage(operands[0]) and carries(module, operands[0]):
                yield Saver(node, operands[0], text, alone=True)
        else:
            yield from _saved_by_product(module, node, operands, text)
    else:
        yield from _saved_inside(module, node, text)


def _saved_by_function(
    module: ModuleFacts, node: ast.Call, function: ast.Attribute, text: str
) -> Iterator[Saver]:
    """The arguments that an ``autograd.Function`` saves as it is given them."""
    home = _class_of(module, function.value)
    forward = method_of(home[1], "forward") if home is not None else None
    if home is None or forward is None or len(forward.args.args) < 2:
        return
    flow, names = home[0].flow(forward), placed(forward)[1:]
    kept = {
        each.id
        for call in walk(forward)
        if isinstance(call, ast.Call) and last_name(call.func) == "save_for_backward"
        for each in call.args
        if isinstance(each, ast.Name)
        and all(d.is_parameter for d in flow.reaching(each.id, home[0].statement(call)))
    }
    for name, argument in zip(names, node.args, strict=False):
        if isinstance(argument, ast.Starred):
            return
        if name in kept and _has_storage(argument) and carries(module, argument):
            yield Saver(node, argument, text, alone=True)


def _saved_inside(module: ModuleFacts, call: ast.Call, text: str) -> Iterator[Saver]:
    """The arguments that are saved by what a call runs, where that stands in the file."""
    given = [a for a in call.args if not isinstance(a, ast.Starred) and _has_storage(a)]
    if not given:
        return
    runs = [_saved_parameters(module, made) for made in _run_by(module, call)]
    for argument in given:
        at = call.args.index(argument)
        found = [next((p for p in each if p[0] == at), None) for each in runs]
        alone = any(p is not None and p[1] for p in found)
        if found and None not in found and (not alone or carries(module, argument)):
            yield Saver(call, argument, text, alone=alone)


def _run_by(module: ModuleFacts, call: ast.Call) -> list[ast.expr | FunctionNode]:
    """What a call runs: modules, by what makes them, or a method of the class around."""
    made = modules_of(module, call.func)
    if made:
        return [*made]
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        cls = module.names.self_class(function.value)
        own = method_of(cls, function.attr) if cls is not None else None
        if cls is not None and own is not None:
            if len(module.names.attributes(cls).get(function.attr, ())) == 1:
                return [own]
    return []


@once
def _saved_parameters(
    module: ModuleFacts, run: ast.expr | FunctionNode
) -> frozenset[tuple[int, bool]]:
    """Which arguments a module or a method saves, and whether for their own gradient alone."""
    if isinstance(run, ast.Call):
        home = _class_of(module, run.func)
        if home is None:
            name = last_name(run.func)
            if name == "Sequential" and run.args and not isinstance(run.args[0], ast.Starred):
                return _saved_parameters(module, run.args[0])
            return frozenset({(0, False)} if _INPUT_SAVED_MODULES.search(name) else ())
        forward = method_of(home[1], "forward")
        return _saved_parameters(home[0], forward) if forward is not None else frozenset()
    if not isinstance(run, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return frozenset()
    names = placed(run)[1:]
    found: dict[int, bool] = {}
    for saver in savers(module, run):
        root, path = root_of(saver.operand)
        statement = module.statement(saver.node)
        if root is None or not are_views(module, path) or not _always_runs(module, statement, run):
            continue
        owners = {
            each.definition.name if each.definition.is_parameter and not each.element else ""
            for each in roots(module, module.flow(run), root.id, statement)
        }
        owner = owners.pop() if len(owners) == 1 else ""
        if owner in names:
            at = names.index(owner)
            found[at] = found.get(at, True) and saver.alone
    return frozenset(found.items())


def _class_of(module: ModuleFacts, node: ast.expr) -> tuple[ModuleFacts, ast.ClassDef] | None:
    """The class of the project that a call of ``node`` makes an object of."""
    names = [target.name for target in module.resolve(node)]
    if any(name.startswith("torch.") for name in names):
        return None
    found = (definition_of(module, node, name) for name in names)
    own = own_class(module, node)
    return (module, own) if own is not None else next(filter(None, found), None)


def _always_runs(module: ModuleFacts, statement: ast.stmt, function: FunctionNode) -> bool:
    """Whether each call of a function leads to a statement, or through a loop to it.

    Where a test leads past it, no gradient is wanted.
    """
    child: ast.AST = statement
    for scope in module.ancestors(statement):
        if scope is function:
            return True
        if isinstance(scope, ast.If):
            if not implies_unwanted(module, scope.test, child not in scope.body):
                return False
        elif not isinstance(scope, (ast.With, ast.For)):
            return False
        child = scope
    return False


def _saved_by_operator(module: ModuleFacts, node: ast.BinOp) -> Iterator[Saver]:
    text = " ".join(module.source(node).split())
    if isinstance(node.op, ast.Pow):
        if isinstance(node.right, ast.Constant) and carries(module, node.left):
            if _has_storage(node.left):
                yield Saver(node, node.left, text, alone=True)
    elif isinstance(node.op, (ast.Mult, ast.MatMult, ast.Div)):
        yield from _saved_by_product(module, node, [node.left, node.right], text)


def _saved_by_product(
    module: ModuleFacts, node: ast.expr, operands: list[ast.expr], text: str
) -> Iterator[Saver]:
    for operand in operands:
        if not _has_storage(operand):
            continue
        if any(carries(module, other) for other in operands if other is not operand):
            yield Saver(node, operand, text)


def _reaches_loss(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether the result of an operation can matter for the loss: no test, no count."""
    current: ast.AST = node
    for parent in module.ancestors(node):
        if isinstance(parent, (ast.Compare, ast.Assert, ast.JoinedStr)):
            return False
        if isinstance(parent, ast.Call):
            called = parent.func
            name = last_name(called)
            if name in NO_GRADIENT or name in ("print", "float", "len", "max", "str"):
                return False
        if isinstance(parent, ast.Attribute) and parent.attr in ("shape", "dtype", "device"):
            return False
        if isinstance(parent, (ast.If, ast.While)) and current is parent.test:
            return False
        if isinstance(parent, ast.stmt):
            kinds = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
            return isinstance(parent, kinds) and not gradient_unwanted(module, parent)
        current = parent
    return False
