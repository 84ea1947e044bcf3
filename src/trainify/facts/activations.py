"""What surely carries a gradient in training, by the layers and the names it comes from."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .constants import NO_GRADIENT
from .names import passed, self_name
from .trainable import is_buffer

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

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
    cls = module.names.self_class(node.value)
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
    if module.names.self_class(function.value):
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
