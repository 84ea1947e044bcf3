"""What ``backward`` is called on, and what on the way to a loss may have parameters."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .grad_mode import own_nodes
from .memo import once

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_TAKES_LOSS = re.compile(
    r"(^|[._])(accelerator|fabric|engine|autograd|amp|strategy|optimizer|self)$|engine$"
)
LOSS_CALL = re.compile(
    r"loss|criterion|cross_entropy|kl_div|mse|\bnll|objective|\bbce", re.IGNORECASE
)
_PLAIN = re.compile(
    r"metric|accuracy|^print|^log|^masked_\w+$|^gather\w*$|^reduce_\w+$|tqdm|^trange$|"
    r"^(get|next|load|make)_\w*(batch|data)|^to_device$|^move_to",
    re.IGNORECASE,
)
_FETCHES = re.compile(r"(next|get|load|fetch)_?(batch|data)|set_epoch|size_of")
_RUNS_MODULES = frozenset("checkpoint checkpoint_sequential functional_call vmap compile".split())
_LIBRARIES = ("torch.", "numpy.", "math.", "einops.", "random.", "time.", "os.", "logging.")
_TENSOR_METHODS = frozenset(
    "abs add amax amin bmm chunk clamp clip clone contiguous cos cpu cuda cumsum detach diagonal "
    "div dot double exp expand expand_as flatten float gather get half index_select items keys "
    "log log_softmax logsumexp long masked_fill masked_select matmul max mean median min mm mul "
    "neg norm permute pow prod repeat reshape relu roll round rsqrt scatter select sigmoid sin "
    "softmax split sqrt square squeeze stack std sub sum t tanh to tolist topk transpose tril "
    "triu type type_as unbind unflatten unfold unsqueeze values var view view_as where bfloat16 "
    "item numpy argmax int bool eq ne gt lt append scale size requires_grad_ pop copy".split()
)
_DATA = re.compile(
    r"(^|_)(ys?|yb|labels?|targets?|gt|truth|tgt|masks?|batch|batches|data|dataset|samples|"
    r"\w*loaders?|labels?_\w+|target_\w+|adv|advantages?|rewards?|returns?)\d?$|"
    r"^(old|ref|reference|behaviou?r|sampling|rollout)(_\w+)?\d?$|\w_(old|ref)$|"
    r"(^|_)(n|eps|i|idx|index|steps?|epochs?|accum\w*|num\w*|device|dtype|args|cfg|config|opt|hparams)$",
    re.IGNORECASE,
)
_BACKWARD = ("backward", "manual_backward")
_MAX_DEPTH = 2


@once
def _backward_calls(module: ModuleFacts) -> list[ast.Call]:
    if "backward" not in module.usual:
        return []
    return [call for name in _BACKWARD for call in module.calls_named(name)]


def backward_values(
    module: ModuleFacts, function: FunctionNode | ast.Module
) -> Iterator[tuple[ast.expr, ast.Call]]:
    """What a function calls ``backward`` for, in every form, with the call."""
    if not any(
        isinstance(function, ast.Module)
        or function.lineno <= call.lineno <= (function.end_lineno or call.lineno)
        for call in _backward_calls(module)
    ):
        return
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "manual_backward" and node.args:
                yield node.args[0], node
            elif node.func.attr == "backward":
                receiver = node.func.value
                if node.args and (
                    _TAKES_LOSS.search(module.source(receiver)) or _is_called_loss(node.args[0])
                ):
                    yield node.args[0], node
                elif _is_scaled(receiver):
                    assert isinstance(receiver, ast.Call)
                    yield receiver.args[0], node
                else:
                    yield receiver, node


def _is_called_loss(node: ast.expr) -> bool:
    """``acc.backward(loss)``, whatever ``acc`` is; ``y.backward(gradient)`` is of ``y``."""
    return isinstance(node, ast.Name) and "loss" in node.id.lower() and "grad" not in node.id


def _is_scaled(node: ast.expr) -> bool:
    """``scaler.scale(loss)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("scale", "scale_loss")
        and bool(node.args)
    )


def may_learn(module: ModuleFacts, call: ast.Call, depth: int = 0) -> bool:
    """Whether a call may run something with parameters; what is not known may."""
    function = call.func
    names = {t.name for t in module.resolve(function)}
    if any(name.rpartition(".")[2] in _RUNS_MODULES for name in names):
        return True
    if names and all(name.startswith(_LIBRARIES) for name in names):
        return any(_is_layer(name) for name in names)
    if isinstance(function, ast.Call):  # nn.CrossEntropyLoss()(logits, labels)
        made = {t.name for t in module.resolve(function.func)}
        if made == {"torch.no_grad"} and function.args:  # torch.no_grad(model)(x)
            return True
        return not made or any(
            _is_layer(name) or name.rpartition(".")[2] in _RUNS_MODULES for name in made
        )
    if isinstance(function, ast.Attribute):
        if isinstance(function.value, ast.Name):
            cls = module.names.self_class(function.value)
            if cls is not None:
                return _may_own_learn(module, cls, function.attr, depth)
        if function.attr in _TENSOR_METHODS or _FETCHES.match(function.attr):
            return False
        # model.loss(x) runs the model; what is called on is judged besides
        return not LOSS_CALL.search(module.source(function.value))
    if not isinstance(function, ast.Name):
        return True
    for each in module.functions:
        if each.name == function.id and module.parent(each) is module.tree:
            return depth == _MAX_DEPTH or any(
                may_learn(module, n, depth + 1) for n in own_nodes(each) if isinstance(n, ast.Call)
            )
    if hasattr(builtins, function.id):
        return False
    return not (LOSS_CALL.search(function.id) or _PLAIN.search(function.id))


def is_tensor_method(name: str) -> bool:
    """Whether a method of this name is a tensor's, or a container's, and runs no model."""
    return name in _TENSOR_METHODS


def _may_own_learn(module: ModuleFacts, cls: ast.ClassDef, name: str, depth: int) -> bool:
    """The same for ``self.name(...)``: a method, or something that was assigned."""
    for method in cls.body:
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and method.name == name:
            return depth == _MAX_DEPTH or any(
                may_learn(module, node, depth + 1)
                for node in own_nodes(method)
                if isinstance(node, ast.Call)
            )
    return not LOSS_CALL.search(name) or name not in module.names.attributes(cls)


def _is_layer(name: str) -> bool:
    """Whether a name of torch's is that of a module which is no loss."""
    if not name.startswith("torch.nn.") or name.startswith("torch.nn.functional."):
        return False
    last = name.rpartition(".")[2]
    return last[:1].isupper() and "Loss" not in last


def is_data(node: ast.expr, module: ModuleFacts, at: ast.stmt) -> bool:
    """Whether a value that comes from outside of a function is data, judged by its name."""
    if isinstance(node, ast.Attribute):
        return bool(_DATA.search(node.attr) or LOSS_CALL.search(node.attr))
    if not isinstance(node, ast.Name):
        return False
    if any(b.qualified is not None for b in module.names.visible_at(node.id, at)):
        return True  # a function or a module, not a tensor
    return bool(_DATA.search(node.id)) or node.id.isupper() or hasattr(builtins, node.id)
