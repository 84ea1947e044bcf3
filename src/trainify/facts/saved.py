"""What autograd keeps for backward: which operations save their input, which their result.

Overwriting a saved tensor makes backward raise.  Measured op by op; what is not listed here (sums,
views, products with a number) saves nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from .called import method, modules_of
from .constants import NO_GRADIENT, is_constant
from .flow import Definition, FunctionFlow
from .guards import gradient_unwanted, implies_unwanted
from .layers import definition_of, own_class
from .memo import once
from .names import last_name, passed, placed, self_name
from .overwriting import overwritten, writes_in_place
from .saving_ops import INPUT_SAVED, WHOLE_SAVED
from .trainable import is_buffer
from .walk import walk
from .writes import (
    METHODS,
    Root,
    Write,
    attribute_of,
    callers,
    is_element,
    is_view,
    root_of,
    roots,
    roots_of,
    with_gradient,
)

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

RESULT_SAVED = frozenset(
    "tanh sigmoid exp exp2 expm1 softmax log_softmax softmin gumbel_softmax rsqrt sqrt reciprocal "
    "tan relu logsumexp logcumsumexp cumprod prod norm vector_norm std amax amin cdist "
    "scaled_dot_product_attention".split()
)
_RESULT_SAVED_MODULES = frozenset("ReLU Tanh Sigmoid Softmax LogSoftmax Softmin".split())
_RESULT_SAVED_IN_PLACE = frozenset("ELU CELU SELU LeakyReLU elu celu selu leaky_relu".split())
"""Those that save their input, unless they overwrite that."""

_PRODUCTS = frozenset("matmul mm bmm mv einsum outer mul linear conv1d conv2d conv3d".split())
_INPUT_SAVED_MODULES = re.compile(
    r"(Linear|Norm(\dd)?|Conv(Transpose)?\dd|Bilinear|(GRU|LSTM|RNN)(Cell)?)$"
)
_WITHOUT_WEIGHTS = re.compile(
    r"(Dropout(\dd)?|Identity|ReLU6?|GELU|SiLU|ELU|Tanh|Sigmoid|Softmax|Softplus|Pool(\dd)?|"
    r"Flatten|Unflatten|Upsample|Fold|Shuffle|Pad(\dd)?)$"
)
_WITH_WEIGHTS = re.compile(
    r"(Linear|Norm(\dd)?|Conv(Transpose)?\dd|Bilinear|Embedding|GRU(Cell)?|LSTM(Cell)?|Attention|"
    r"MLP|Sequential|Block|Layer|Encoder|Decoder|FeedForward)$"
)
_WEIGHTED_NAME = re.compile(
    r"(^|_)([qkvox]|wq|wk|wv|wo|w[123]|qkv|to_[qkv]|(up|down|gate|in|out|[qkvo])_?proj|proj|"
    r"linear|fc|dense|conv|norm|ln|layer_?norm|mlp|attn|attention|ffn|feed_forward)\d*$"
)
_ACTIVATION = re.compile(
    r"(x|h|q|k|v|x[qkv]|y|z|u|gate|up|residual|hidden\w*|query\w*|key\w*|value\w*|\w*_states?|"
    r"attn\w*|inputs?_embeds|features?|embeddings?|logits)$"
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
    return name in METHODS and name[:-1] in RESULT_SAVED


def saves_its_result(module: ModuleFacts, made: ast.expr) -> bool:
    """Whether an expression makes a module of torch's that saves its result for backward."""
    if not isinstance(made, ast.Call):
        return False
    if not any(target.name.startswith("torch.nn.") for target in module.resolve(made.func)):
        return False
    cls = module.source(made.func).rpartition(".")[2]
    return cls in _RESULT_SAVED_MODULES or (
        cls in _RESULT_SAVED_IN_PLACE and writes_in_place(module, made)
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
    if cls is not None:
        if cls in _RESULT_SAVED_MODULES:
            return text
        return text if cls in _RESULT_SAVED_IN_PLACE and overwritten(module, node) else None
    if getattr(function, "attr", None) in _RESULT_SAVED_IN_PLACE and overwritten(module, node):
        return text
    if isinstance(function, ast.Attribute) and (
        function.attr in RESULT_SAVED or saves_in_place(node)
    ):
        if _is_tensor_op(module, function) and not is_constant(module, node):
            return text
    return None


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
    forward = method(home[1], "forward") if home is not None else None
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
        own = method(cls, function.attr) if cls is not None else None
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
        forward = method(home[1], "forward")
        return _saved_parameters(home[0], forward) if forward is not None else frozenset()
    if not isinstance(run, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return frozenset()
    names = placed(run)[1:]
    found: dict[int, bool] = {}
    for saver in savers(module, run):
        root, path = root_of(saver.operand)
        statement = module.statement(saver.node)
        if root is None or not _are_views(module, path) or not _always_runs(module, statement, run):
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


# -- gradients ------------------------------------------------------------------------------------


def carries(module: ModuleFacts, node: ast.expr, depth: int = 0) -> bool:
    """Whether a value surely is part of the graph in training: it depends on a weight.

    Parameters of a function count where they are called what activations are called.
    """
    if depth > 8:
        return False

    def any_of(nodes: list[ast.expr]) -> bool:
        return any(carries(module, n, depth + 1) for n in nodes)

    if isinstance(node, ast.Name):
        return _name_carries(module, node, depth)
    if isinstance(node, ast.BinOp):
        return any_of([node.left, node.right])
    if isinstance(node, ast.UnaryOp):
        return not isinstance(node.op, ast.Not) and carries(module, node.operand, depth + 1)
    if isinstance(node, ast.IfExp):
        return carries(module, node.body, depth + 1) and carries(module, node.orelse, depth + 1)
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return carries(module, node.value, depth + 1)
    if isinstance(node, (ast.Tuple, ast.List)):
        return any_of(node.elts)
    if isinstance(node, ast.Attribute):
        if node.attr in ("T", "mT", "real", "imag"):
            return carries(module, node.value, depth + 1)
        return is_parameter(module, node) or _attribute_carries(module, node, depth)
    if isinstance(node, ast.Call):
        return _call_carries(module, node, depth)
    return False


def _name_carries(module: ModuleFacts, node: ast.Name, depth: int) -> bool:
    function = module.function(node)
    if function is None:
        return False
    definitions = module.flow(function).reaching(node.id, module.statement(node))
    if not definitions:
        return False
    for definition in definitions:
        if definition.is_parameter:
            method = module.method_class(function) is not None
            if method and node.id == self_name(function):
                return False
            if not is_called_like_an_activation(node.id):
                return False
            argument = next((a for a in _arguments(function) if a.arg == node.id), None)
            annotation = argument.annotation if argument is not None else None
            if annotation is not None and "Tensor" not in module.source(annotation):
                return False
            continue
        value = definition.value
        if value is None and isinstance(definition.statement, (ast.For, ast.AsyncFor)):
            value = rows_of(definition.statement, node.id)
        if value is None or not carries(module, value, depth + 1):
            return False
    return True


def rows_of(loop: ast.For | ast.AsyncFor, name: str) -> ast.expr | None:
    """What a loop takes rows of for a name: ``h`` in ``for i, row in enumerate(h)``."""
    target, held = loop.target, loop.iter
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(held, ast.Call):
        if not isinstance(held.func, ast.Name) or held.func.id != "enumerate" or not held.args:
            return None
        target, held = target.elts[1], held.args[0]
    return held if isinstance(target, ast.Name) and target.id == name else None


def _attribute_carries(module: ModuleFacts, node: ast.Attribute, depth: int) -> bool:
    """Whether only the function around gives ``self.h`` its value, and one that is in the graph."""
    cls = module.names.self_class(node.value) if isinstance(node.value, ast.Name) else None
    bindings = module.names.attributes(cls).get(node.attr, []) if cls is not None else []
    return (
        bool(bindings)
        and not is_buffer(module, node)
        and all(
            b.value is not None
            and module.function(b.node) is module.function(node)
            and carries(module, b.value, depth + 1)
            for b in bindings
        )
    )


def is_called_like_an_activation(name: str) -> bool:
    """Whether a parameter is called what activations are called: ``x``, ``hidden_states``."""
    return _ACTIVATION.match(name) is not None


def _arguments(function: FunctionNode) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _call_carries(module: ModuleFacts, node: ast.Call, depth: int) -> bool:
    function = node.func
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr in NO_GRADIENT:
        return False
    arguments = passed(node)
    if isinstance(function.value, ast.Name) and module.names.self_class(function.value):
        cls = submodule(module, function)
        if cls is not None:
            if _WITH_WEIGHTS.search(cls):
                return True
            return bool(_WITHOUT_WEIGHTS.search(cls)) and any(
                carries(module, a, depth + 1) for a in arguments
            )
        return _is_unknown_attribute(module, function) and bool(
            _WEIGHTED_NAME.search(function.attr)
        )
    if any(t.name.startswith("torch") for t in module.resolve(function)):
        return any(carries(module, a, depth + 1) for a in arguments)
    return carries(module, function.value, depth + 1)


def is_parameter(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an expression is ``self.p`` with ``self.p = nn.Parameter(...)``, to be trained."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    cls = module.names.self_class(node.value)
    if cls is None:
        return False
    bindings = module.names.inherited(cls, node.attr)
    return bool(bindings) and all(
        isinstance(b.value, ast.Call)
        and module.is_name(b.value.func, "torch.nn.Parameter", "torch.nn.parameter.Parameter")
        and not any(k.arg == "requires_grad" for k in b.value.keywords)
        and len(b.value.args) == 1
        for b in bindings
    )


def _is_unknown_attribute(module: ModuleFacts, function: ast.Attribute) -> bool:
    assert isinstance(function.value, ast.Name)
    cls = module.names.self_class(function.value)
    return cls is not None and not module.names.inherited(cls, function.attr)


def submodule(module: ModuleFacts, function: ast.expr) -> str | None:
    """The class of the module that ``self.name(...)`` calls: ``Linear``."""
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    cls = module.names.self_class(function.value)
    if cls is None or function.attr in module.rebound:
        return None
    names = set()
    for binding in module.names.inherited(cls, function.attr):
        made = binding.value
        while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
            if not isinstance(made.func.value, ast.Call):
                break
            made = made.func.value  # nn.Embedding(n, d).requires_grad_(False)
        if not isinstance(made, ast.Call):
            return None
        names.add(module.source(made.func).rpartition(".")[2])
    return names.pop() if len(names) == 1 else None


# -- what a write destroys ------------------------------------------------------------------------


def destroyed(module: ModuleFacts, write: Write) -> Saver | None:
    """An operation that saved the storage which a write overwrites, and ran before it."""
    function = module.function(write.statement)
    if function is None or write.name is None:
        return None
    flow = module.flow(function)
    for saver in savers(module, function, _shares_with(module, function, write.name.id)):
        if _hits(module, flow, write, saver):
            return saver
    return None


def _shares_with(
    module: ModuleFacts, function: FunctionNode, name: str
) -> Callable[[ast.expr], bool]:
    """Tells whether an operand may have the storage that a name has anywhere in a function."""
    sharing = _sharing(module, function).get(name, frozenset({name}))

    def shares(operand: ast.expr) -> bool:
        root = root_of(operand)[0]
        return root is not None and root.id in sharing

    return shares


@once
def _sharing(module: ModuleFacts, function: FunctionNode) -> Mapping[str, frozenset[str]]:
    """The names of a function that any assignment gives what another one has, or a view of it."""
    groups: dict[str, set[str]] = {}
    for node in walk(function):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            targets = [node.target]
        else:
            continue  # what a loop gives is no view that a definition knows of
        values = (root_of(each)[0] for each in _parts(node.value))
        roots = [root for root in values if root is not None]
        if roots:
            names = {n.id for each in (*targets, *roots) for n in walk(each) if _is_name(n)}
            group = set().union(*(groups.get(name, {name}) for name in names))
            groups.update(dict.fromkeys(group, group))
    return {name: frozenset(group) for name, group in groups.items()}


def _parts(value: ast.expr | None) -> list[ast.expr]:
    """What a value gives several targets, else the value itself."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return [part for each in value.elts for part in _parts(each)]
    return [value] if value is not None else []


def destroyed_by_next_call(module: ModuleFacts, write: Write) -> Saver | None:
    """An operation after the write that saves a parameter which the next call writes again."""
    function = module.function(write.statement)
    if function is None or write.name is None:
        return None
    flow = module.flow(function)
    overwritten = _parameters(roots(module, flow, write.name.id, write.statement))
    if not overwritten:
        return None
    for saver in savers(module, function, _shares_with(module, function, write.name.id)):
        name, path = root_of(saver.operand)
        if name is None or not _are_views(module, path):
            continue
        saved = _parameters(roots(module, flow, name.id, module.statement(saver.node)))
        for parameter in saved & overwritten:
            if any(
                _called_again(module, function, call, parameter)
                for call in callers(module, function)
            ):
                return saver
    return None


def _parameters(found: frozenset[Root]) -> set[str]:
    return {
        root.definition.name for root in found if root.definition.is_parameter and not root.element
    }


def _called_again(
    module: ModuleFacts, function: FunctionNode, call: ast.Call, parameter: str
) -> bool:
    """Whether a loop calls a function with the same tensor in each turn."""
    argument = module.project.argument(module, function, call, parameter)
    caller = module.function(call)
    if not isinstance(argument, ast.Name) or caller is None or gradient_unwanted(module, call):
        return False
    flow = module.flow(caller)
    for scope in module.ancestors(call):
        if isinstance(scope, (ast.ListComp, ast.GeneratorExp)):
            bound = {n.id for g in scope.generators for n in walk(g.target) if _is_name(n)}
            if argument.id not in bound:
                return True
        elif isinstance(scope, (ast.For, ast.While)):
            sure, maybe = flow.definitions_in(scope)
            if all(d.name != argument.id for d in (*sure, *maybe)):
                return True
        elif scope is caller:
            break
    return False


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _are_views(module: ModuleFacts, path: list[ast.expr]) -> bool:
    return all(is_view(module, n) for n in path if isinstance(n, ast.Subscript))


def _hits(module: ModuleFacts, flow: FunctionFlow, write: Write, saver: Saver) -> bool:
    name, path = root_of(saver.operand)
    assert write.name is not None
    if name is None or not _are_views(module, path):
        return False
    statement = module.statement(saver.node)
    pieces = any(isinstance(n, ast.Subscript) and is_element(n) for n in (*path, write.target))
    saved = roots(module, flow, name.id, statement)
    before = runs_before(module, saver.node, write)
    overwritten = (
        _roots_after(module, flow, write, statement)
        if before
        else roots(module, flow, write.name.id, write.statement)
    )
    for a in saved:
        for b in overwritten:
            if a.definition != b.definition:
                continue
            if (pieces or a.element or b.element) and not _is_tensor(module, a.definition):
                continue
            if before and _is_made_earlier(a.definition, statement):
                return True
            if _next_turn(module, flow, a.definition, statement, write):
                return True
    return False


def runs_before(module: ModuleFacts, node: ast.expr, write: Write) -> bool:
    """Whether an operation runs before a write in one pass through the function."""
    statement = module.statement(node)
    if statement is write.statement:
        return any(node in walk(value) for value in write.inputs)
    return _order(module, statement, write.statement) == "before"


def _is_made_earlier(definition: Definition, statement: ast.stmt) -> bool:
    """Whether a value was there before ``statement``, not made by it or after it."""
    made = definition.statement
    return made is None or (made.lineno, made.col_offset) < (statement.lineno, statement.col_offset)


def _roots_after(
    module: ModuleFacts, flow: FunctionFlow, write: Write, statement: ast.stmt
) -> frozenset[Root]:
    """The storage that a write overwrites on the way that leads through ``statement``."""
    assert write.name is not None
    around = [write.statement, *module.ancestors(write.statement)]
    current = statement
    last = None
    while statement is not write.statement:
        block = module.block(current)
        for later in block[
            block.index(current) if current is statement else block.index(current) + 1 :
        ]:
            if later in around:
                break
            sure, _ = flow.definitions_in(later)
            last = next((d for d in reversed(sure) if d.name == write.name.id), last)
        if any(s in block for s in around):
            break
        parent = module.parent(current)
        if not isinstance(parent, ast.stmt):
            break
        current = parent
    reaching = flow.reaching(write.name.id, write.statement)
    if last is None or last not in with_gradient(module, reaching, write.statement):
        return roots(module, flow, write.name.id, write.statement)
    return roots_of(module, flow, last)


def _is_tensor(module: ModuleFacts, definition: Definition) -> bool:
    """Whether ``x[i]`` is a piece of a tensor: ``x`` was computed, and is no list."""
    value = definition.value
    if isinstance(value, ast.BinOp):
        return not _is_list(value)
    if not isinstance(value, ast.Call) or definition.index is not None:
        return False
    if not isinstance(value.func, ast.Attribute):
        return False
    return any(t.name.startswith("torch") for t in module.resolve(value.func)) or (
        not module.resolve(value.func)
        and value.func.attr not in ("split", "chunk", "unbind")
        and root_of(value)[0] is None
        and value.func.attr in ("clone", "new_zeros", "new_empty", "new_full", "float", "sum")
    )


def _is_list(node: ast.expr) -> bool:
    """Whether an expression makes a list or a tuple by operators: ``[None] * n``."""
    if isinstance(node, ast.BinOp):
        return _is_list(node.left) or _is_list(node.right)
    return isinstance(node, (ast.List, ast.Tuple, ast.ListComp))


def _order(module: ModuleFacts, first: ast.stmt, last: ast.stmt) -> str:
    """``before`` where ``first`` runs before ``last`` in one pass through the function."""
    if (first.lineno, first.col_offset) > (last.lineno, last.col_offset):
        return "after"
    around = [last, *module.ancestors(last)]
    current: ast.stmt = first
    while True:
        block = module.block(current)
        if isinstance(block[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            if not any(s in block for s in around):
                return "apart"
        if any(s in block for s in around):
            return "before"
        parent = module.parent(current)
        if isinstance(parent, (ast.ExceptHandler, ast.match_case)):
            parent = module.parent(parent)
        if not isinstance(parent, ast.stmt):
            return "apart"
        if parent in around:  # another arm of the same statement
            return "apart"
        current = parent


def _next_turn(
    module: ModuleFacts,
    flow: FunctionFlow,
    definition: Definition,
    statement: ast.stmt,
    write: Write,
) -> bool:
    """Whether the next turn of a loop writes what an operation of this one saved."""
    for loop in module.ancestors(write.statement):
        if isinstance(loop, (ast.For, ast.AsyncFor, ast.While)):
            made = definition.statement
            if loop not in module.ancestors(statement):
                continue
            if made is not None and (made is loop or loop in module.ancestors(made)):
                continue
            sure, maybe = flow.definitions_in(loop)
            if not any(d.name == definition.name for d in (*sure, *maybe)):
                return True
    return False
