"""TRN503: weights that are buffers or plain tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.choices import only_chooses
from ..facts.frozen import is_false
from ..facts.guards import gradient_unwanted
from ..facts.layers import after_init, is_module_class, made_by
from ..facts.memo import once
from ..facts.names import last_name
from ..facts.walk import walk
from ..facts.weights import is_weight_use
from ..facts.words import declare, places
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN503",
        name="weight-is-no-parameter",
        summary="A weight is a buffer or a plain tensor, not a parameter.",
        why=(
            "Code that only serves has no use for parameters: it allocates its weights as tensors "
            "or buffers and copies a checkpoint into them. An optimizer is given `parameters()`, "
            "and a buffer requires no gradient, so such a weight never changes."
        ),
        before="""\
import torch
import torch.nn.functional as F
from torch import nn


class Linear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.register_buffer("weight", torch.randn(o, i))
        self.bias = nn.Parameter(torch.zeros(o))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)
""",
        after="""\
import torch
import torch.nn.functional as F
from torch import nn


class Linear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i))
        self.bias = nn.Parameter(torch.zeros(o))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)
""",
    ),
)

_ASSIGNS = declare(
    *(b"= torch.%s(" % name for name in b"randn rand empty zeros ones normal".split()),
    b"= nn.init.",
    *(b"= %sVariable(" % where for where in (b"", b"autograd.", b"torch.autograd.")),
)
(_REGISTERS,) = declare(b"register_buffer(")
_MADE = rb"torch\.(?:randn|rand|empty|zeros|ones|normal)\("
_BUFFER = re.compile(rb"register_buffer\(\s*[\"']\w+[\"'],\s*" + _MADE)
_ATTRIBUTE = re.compile(
    rb"\s*self\.\w*(?:weights?|bias|kernel|gain|gamma|beta|emb|embeddings?|[wW][qkvo\d]?|W_\w+)(?::.*)?\s$"
)


def _may_hold_weights(data: bytes) -> bool:
    if b"Module" not in data or b"torch." not in data:
        return False
    if any(_BUFFER.match(data, at) for at in places(data, _REGISTERS)):
        return True
    return any(
        _ATTRIBUTE.match(data[data.rfind(b"\n", 0, at) + 1 : at])
        for word in _ASSIGNS
        for at in places(data, word)
    )


NEEDLES: tuple[Needle, ...] = (Look((*_ASSIGNS, _REGISTERS), _may_hold_weights),)

_GAIN = re.compile(r"(weight|gain|gamma)$")
_SHIFT = re.compile(r"(bias|beta)$")
_NORM = re.compile(r"Norm(?!aliz)")
_LOSS = re.compile(r"Loss|Criterion|Metric|Normaliz")
_WEIGHT = re.compile(
    r"(\w*_)?(weights?|bias|kernel|gain|gamma|beta|w|w[qkvo]|w\d|emb(eddings?)?)$|[wW]_?[qkvo\d]?$|W_\w+$"
)
_CONSTANT = re.compile(
    r"fixed|frozen|freez|rand|fourier|quant|int[48]|fp[48]|running_|\bema|codebook|\bvq|hash|"
    r"blur|filter|\bdct|\bmel|stft|window|sinus|position|rotary|rope|anchor|mask|noise|teacher|"
    r"target|constant|not (be )?(train|learn)|non.?(train|learn)|buffer for|smooth|average",
    re.IGNORECASE,
)
_RANDOM = frozenset({"randn", "rand", "normal"})
_MAKERS = _RANDOM | {"empty", "zeros", "ones"}
_FILLS = {"normal_": "randn", "uniform_": "rand", "zero_": "zeros"}
_SCALES = frozenset({"mul_", "div_", "to", "float", "requires_grad_"})


@dataclass(frozen=True)
class _Weight:
    """A tensor that an attribute is given: ``statement`` is the assignment or the registration."""

    name: str
    statement: ast.stmt
    tensor: ast.expr
    made: str
    is_buffer: bool


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for cls in module.classes:
        if _CONSTANT.search(cls.name) or not is_module_class(module, cls):
            continue
        weights = list(_weights(module, cls))
        whole = _is_whole_layer(cls, weights)
        for weight in weights:
            if _is_said_constant(module, cls, weight) or _is_handled(module, weight):
                continue
            if _is_set_apart(module, cls, weight):
                continue
            own = whole and (_GAIN.match(weight.name) or _SHIFT.match(weight.name))
            if not own and not _is_to_learn(module, cls, weight):
                continue
            uses = list(module.names.uses(cls, weight.name))
            if weight.made in _RANDOM and any(_makes_waves(module, use) for use in uses):
                continue
            drawn = weight.is_buffer and weight.made in _RANDOM
            if drawn and any(_feeds_back(module, use) for use in uses):
                continue
            written = any(_is_written(module, use) for use in uses)
            if written and not _only_loaded(module, uses):
                continue
            if any(_counts(module, cls, weight, use) for use in uses):
                yield _finding(module, cls, weight, written, bool(own))


def _is_whole_layer(cls: ast.ClassDef, weights: list[_Weight]) -> bool:
    """Whether fresh tensors are all the weights of a layer: of a normalization, of a linear map.

    A bias of zeros that stays one adds nothing, so it is none of a random projection.
    """
    if _NORM.search(cls.name):
        return True
    made = {weight.name: weight.made for weight in weights}
    return made.get("weight") in _RANDOM and made.get("bias") in ("zeros", "empty")


def _finding(
    module: ModuleFacts, cls: ast.ClassDef, weight: _Weight, written: bool, whole: bool
) -> Finding:
    kind = "a buffer" if weight.is_buffer else "a plain tensor"
    lacks = "it is not among `parameters()` and requires no gradient, so it never learns."
    if _asks_for_gradient(module, cls, weight):
        lacks = "it is not among `parameters()`, so no optimizer that is given those trains it."
    message = f"`self.{weight.name}` is used as a weight, and is {kind}: {lacks}"
    fixes: dict[str, Fix] = {}
    filled = weight.made in _RANDOM or (weight.made == "empty" and weight.is_buffer)
    if whole and weight.made in ("ones", "zeros"):
        filled = True
    if (
        (_GAIN.match(weight.name) or _SHIFT.match(weight.name))
        and filled
        and not written
        and after_init(module, weight.statement)
    ):
        edits = _register(module, weight)
        if edits:
            title = f"Make {weight.name} a parameter"
            look_at = f"is `{weight.name}` meant to be trained?"
            fix = Fix(title, edits, Safety.UNSAFE, look_at)
            fixes = dict.fromkeys(STRATEGIES, fix)
    return module.finding("TRN503", message, weight.statement, fixes)


# -- the weights ----------------------------------------------------------------------------------


def _weights(module: ModuleFacts, cls: ast.ClassDef) -> Iterator[_Weight]:
    """The attributes of a class that are fresh tensors called like a weight, and nothing else."""
    buffers = dict(_buffers(module, cls))
    attributes = module.names.attributes(cls)
    for name, (call, tensor) in buffers.items():
        if name not in attributes and _WEIGHT.match(name):
            made = _maker(module, tensor)
            if made is not None:
                yield _Weight(name, module.statement(call), tensor, made, True)
    for name, bindings in attributes.items():
        if name in buffers or not _WEIGHT.match(name):
            continue
        if not all(_initializes(module, binding.value) for binding in bindings[1:]):
            continue
        node, value = bindings[0].node, bindings[0].value
        if value is not None and isinstance(node, ast.Assign) and len(node.targets) == 1:
            made = _maker(module, value)
            if made is not None and module.function(node) is not None:
                yield _Weight(name, node, value, made, False)


def _initializes(module: ModuleFacts, value: ast.expr | None) -> bool:
    """``self.weight = nn.init.trunc_normal_(self.weight)``, which gives back what it fills."""
    return isinstance(value, ast.Call) and any(
        target.name.startswith("torch.nn.init.") for target in module.resolve(value.func)
    )


@once
def _buffers(
    module: ModuleFacts, cls: ast.ClassDef
) -> tuple[tuple[str, tuple[ast.Call, ast.expr]], ...]:
    """What is registered by ``self.register_buffer("name", tensor)``."""
    found = []
    for node in walk(cls) if "register_buffer" in module.usual else ():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "register_buffer" and len(node.args) >= 2:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.append((name.value, (node, node.args[1])))
    return tuple(found)


def _maker(module: ModuleFacts, node: ast.expr) -> str | None:
    """The function that made a fresh floating-point tensor, scaled perhaps: ``randn(n) * 0.1``."""
    if isinstance(node, ast.BinOp):
        return _maker(module, node.left)
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):  # torch.empty(o, i).normal_(0, 0.02)
        inner = _maker(module, node.func.value)
        if node.func.attr in _TELLS and _SAYS_NO.search(module.source(node)):
            return None
        if inner is not None:
            kept = inner if node.func.attr in _SCALES else None
            return _FILLS.get(node.func.attr, kept)
    if _initializes(module, node) and node.args:  # nn.init.xavier_uniform_(torch.empty(o, i))
        return "randn" if _maker(module, node.args[0]) == "empty" else None
    for keyword in node.keywords:
        if keyword.arg == "requires_grad" and is_false(keyword.value):
            return None
        if keyword.arg == "dtype" and re.search(
            r"int|bool|fp?8|float8", ast.unparse(keyword.value)
        ):
            return None
    names = {target.name for target in module.resolve(node.func)}
    if "torch.autograd.Variable" in names and node.args:
        return _maker(module, node.args[0])
    return next((made for made in sorted(_MAKERS) if f"torch.{made}" in names), None)


def _is_said_constant(module: ModuleFacts, cls: ast.ClassDef, weight: _Weight) -> bool:
    """Whether names, comments or calls in a class say that it does not learn its weight."""
    if any(_SAYS_NO.search(text) for text in _told(module, cls, weight)):
        return True
    if _CONSTANT.search(weight.name) or _CONSTANT.search(ast.get_docstring(cls) or ""):
        return True
    others = [*module.names.attributes(cls), *(name for name, _ in _buffers(module, cls))]
    if any(re.search(r"scale|zero|running_|quant|ema|cluster", name) for name in others):
        return True
    text = module.source(cls)
    if "register_parameter(" in text:
        return True  # in another case, for all we know
    return any(
        _CONSTANT.search(line[line.index("#") :]) for line in text.splitlines() if "#" in line
    )


def _is_set_apart(module: ModuleFacts, cls: ast.ClassDef, weight: _Weight) -> bool:
    """Whether a buffer of ones or zeros stands beside parameters: the ``beta`` of PaLM's norm."""
    values = (b.value for found in module.names.attributes(cls).values() for b in found)
    return (
        weight.is_buffer
        and weight.made in ("ones", "zeros")
        and any(v is not None and made_by(module, v) == "parameter" for v in values)
    )


def _is_to_learn(module: ModuleFacts, cls: ast.ClassDef, weight: _Weight) -> bool:
    """Whether something shows that a tensor is no constant.

    It asks for a gradient; it is empty, for a checkpoint to be copied into; it is initialized as
    weights are; or it stands next to parameters.
    """
    if weight.made == "empty" or _asks_for_gradient(module, cls, weight):
        return True
    values = [b.value for found in module.names.attributes(cls).values() for b in found]
    beside = {made_by(module, value) for value in values if value is not None}
    if beside & {"weights", "parameter"}:
        return True
    for use in list(module.names.uses(cls, weight.name)):
        call = module.parent(use)
        if isinstance(call, ast.Call) and use in call.args:
            if _initializes(module, call):
                return True
    return False


def _asks_for_gradient(module: ModuleFacts, cls: ast.ClassDef, weight: _Weight) -> bool:
    """``torch.randn(n, requires_grad=True)``, or ``self.weight.requires_grad_()`` behind it."""
    if _ASKS.search(module.source(weight.tensor)):
        return True
    return any(_ASKS.search(text) for text in _told(module, cls, weight))


def _told(module: ModuleFacts, cls: ast.ClassDef, weight: _Weight) -> Iterator[str]:
    """What a class tells a tensor of its own: ``self.weight.requires_grad_()``."""
    for use in module.names.uses(cls, weight.name):
        parent = module.parent(use)
        if isinstance(parent, ast.Attribute) and parent.attr in _TELLS:
            yield module.source(module.statement(use))


_TELLS = ("requires_grad", "requires_grad_")
_SAYS_NO = re.compile(r"requires_grad(?:\s*=\s*|_\((?:requires_grad=)?)False")
_ASKS = re.compile(r"requires_grad\s*=\s*True|\.requires_grad_\((?!(?:requires_grad=)?False)")


def _is_handled(module: ModuleFacts, weight: _Weight) -> bool:
    """Whether code outside of the class sets the tensor, or hands it to an optimizer."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == weight.name
        and module.names.self_class(node.value) is None
        and (
            isinstance(node.ctx, ast.Store)
            or isinstance(module.parent(node), (ast.List, ast.Dict, ast.Tuple))
        )
        for node in walk(module.tree)
    )


# -- the uses -------------------------------------------------------------------------------------


def _counts(module: ModuleFacts, cls: ast.ClassDef, weight: _Weight, use: ast.Attribute) -> bool:
    """Whether a use is one as a weight where a gradient is wanted."""
    counts = is_weight_use(module, use) or _scales(module, cls, weight, use)
    return counts and not gradient_unwanted(module, use) and not only_chooses(module, use)


def _scales(module: ModuleFacts, cls: ast.ClassDef, weight: _Weight, use: ast.Attribute) -> bool:
    """``y * self.gain``, ``y + self.bias``: ones and zeros that stay so would do nothing."""
    if _LOSS.search(cls.name):
        return False
    node: ast.expr = use
    parent = module.parent(node)
    while isinstance(parent, ast.Subscript) and parent.value is node:  # self.gain[:, None]
        node, parent = parent, module.parent(parent)
    if not isinstance(parent, ast.BinOp):
        return False
    if isinstance(parent.op, ast.Mult):
        return weight.made in ("ones", "empty") and _GAIN.match(weight.name) is not None
    return (
        isinstance(parent.op, ast.Add)
        and weight.made in ("zeros", "empty")
        and _SHIFT.match(weight.name) is not None
    )


def _makes_waves(module: ModuleFacts, node: ast.AST, follow: bool = True) -> bool:
    """Whether all that becomes of a product is its sine or cosine: random Fourier features.

    Those are drawn once and stay as they are.
    """
    for parent in module.ancestors(node):
        if isinstance(parent, ast.Call) and last_name(parent.func) in ("cos", "sin"):
            return True
        if isinstance(parent, ast.Assign) and follow:
            (target, *others), function = parent.targets, module.function(parent)
            if others or not isinstance(target, ast.Name) or function is None:
                return False
            read = [
                n
                for n in walk(function)
                if isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load)
                if n.lineno > parent.lineno
            ]
            return bool(read) and all(_makes_waves(module, n, False) for n in read)
        if not isinstance(parent, (ast.BinOp, ast.Call, ast.Attribute)):
            return False
    return False


def _feeds_back(module: ModuleFacts, use: ast.AST) -> bool:
    """Whether a state goes through a weight turn for turn, as through that of an echo state."""
    made = module.statement(use)
    if not isinstance(made, ast.Assign) or not any(
        isinstance(around, (ast.For, ast.While)) for around in module.ancestors(made)
    ):
        return False
    states = {target.id for target in made.targets if isinstance(target, ast.Name)}
    return any(isinstance(n, ast.Name) and n.id in states for n in walk(made.value))


def _is_written(module: ModuleFacts, use: ast.Attribute) -> bool:
    """``self.weight.copy_(x)``, ``self.weight[i] = x``, ``self.weight.data = x``."""
    node: ast.AST = use
    parent = module.parent(node)
    while isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:
        if isinstance(parent, ast.Attribute) and parent.attr in _TELLS:
            return False
        if not isinstance(parent.ctx, ast.Load):
            return True
        if isinstance(parent, ast.Attribute) and parent.attr.endswith("_"):
            return not parent.attr.startswith("_")
        node, parent = parent, module.parent(parent)
    return isinstance(parent, ast.AugAssign)


def _only_loaded(module: ModuleFacts, uses: list[ast.Attribute]) -> bool:
    """Whether it is only written by what loads a checkpoint."""
    for use in uses:
        function = module.function(use)
        if _is_written(module, use) and (function is None or "load" not in function.name):
            return False
    return True


# -- the fix --------------------------------------------------------------------------------------


def _register(module: ModuleFacts, weight: _Weight) -> tuple[Edit, ...]:
    """Wrap the tensor in ``nn.Parameter``; a registration becomes an assignment."""
    from ..rewrite import layout

    nn = layout.bound_at_top(module, "torch.nn")
    torch = layout.bound_at_top(module, "torch")
    if nn is None and torch is None:
        return ()
    start, end = module.start(weight.tensor), module.end(weight.tensor)
    parameter = f"{nn or f'{torch}.nn'}.Parameter("
    if not weight.is_buffer:
        return (Edit(start, start, parameter), Edit(end, end, ")"))
    if not isinstance(weight.statement, ast.Expr):
        return ()
    call = weight.statement.value
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    owner = module.source(call.func.value)
    before = f"{owner}.{weight.name} = {parameter}"
    first, last = module.start(weight.statement), module.end(weight.statement)
    return (Edit(first, start, before), Edit(end, last, ")"))
