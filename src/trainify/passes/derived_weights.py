"""TRN502: weights that are computed from others once, and used in place of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.frozen import is_false, is_frozen
from ..facts.grad_mode import no_grad_scope
from ..facts.graph import Graph, results
from ..facts.guards import gradient_unwanted, is_forward
from ..facts.layers import is_module_class, made_by
from ..facts.names import is_none, last_name, self_name
from ..facts.rebound import set_by_others
from ..facts.walk import walk
from ..facts.weights import is_weight_use
from ..facts.words import declare, places, undeclared
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN502",
        name="weight-derived-once",
        summary="A weight is computed from others once, and used in place of them.",
        why=(
            "Weights that are concatenated, multiplied or transposed once are a copy: fast to "
            "serve, and stale after the first optimizer step. Training changes the weights that "
            "the copy was made of, the forward goes on using the copy, and behind `.data` no "
            "gradient gets to them at all. What a product saved for backward is gone after the "
            "first, so the second raises. Loading a checkpoint leaves the copy behind, too. "
            "Compute it where it is used."
        ),
        before="""\
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.qk_weight = torch.cat([self.q.weight.data, self.k.weight.data])

    def forward(self, x):
        return F.linear(x, self.qk_weight)
""",
        after="""\
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)

    @property
    def qk_weight(self):
        return torch.cat([self.q.weight, self.k.weight])

    def forward(self, x):
        return F.linear(x, self.qk_weight)
""",
    ),
)

# -- the bytes ------------------------------------------------------------------------------------

_OF_SELF = rb"(?:[^\n]*(?<=[(\[{,+*/@\\-])[ \t]*(?:#[^\n]*)?\r?\n)?[^\n]*self\."
"""On the same line, or on the next one where that goes on."""
_ANEW = rb"(?:data\b|detach\(|t\(|T\b|mT\b|transpose\(|permute\(|clone\(|exp\(|sigmoid\()"
_MAKERS = declare(
    *(
        b"= torch.%s(" % name
        for name in b"cat stack concat hstack vstack matmul mm bmm einsum".split()
    ),
    *(b"= self.", b"= torch.exp(", b"= -torch.exp(", b"= F.softplus("),
)
_COMPUTED = re.compile(
    rb"= -?(?:(?:torch|F|nn\.functional)\.\w+\(" + _OF_SELF + rb"|"
    rb"self\.(?:\w+\.)*(?:\w+\." + _ANEW + rb"|weight [*@/+-]))"
)
(_REGISTERS,) = declare(b"register_buffer(")
_BUFFER = re.compile(
    rb"register_buffer\(\s*[\"']\w+[\"'],\s*(?:torch\.(?:cat|stack|concat|matmul|b?mm|einsum)\("
    + _OF_SELF
    + rb"|\(*self\.)"
)
_NAMED = declare(b"weight = ", b"weights = ")
_PRODUCT = re.compile(rb"= self\.\w+ [*@/+-] ")
(_PARAMETER,) = declare(b"Parameter(")
_HOLDS = re.compile(rb"self\.(\w+)(?:: [\w.]+)? = [\w.]*$")
_SET = re.compile(rb"[ \t]*self\.\w+(?:: [\w.]+)? = ")
_OPERATOR = re.compile(
    rb"(?:\.m?T|\.t\(\)|\.(?:transpose|unsqueeze)\([^()\n]*\))?"
    rb"(?: [*@/+-] |\.(?:matmul|mm|bmm|mul|add|sub|div)\()"
)
_CALLED = re.compile(rb"= (?:self\.)?(\w+)\(([^\n]*)")
_ATTRIBUTE = re.compile(rb"\s*self\.\w+(?:\s*:.*)?\s$")
_NEAR = 500
"""Bytes after the head of a function within which it computes something of weights."""


def _may_derive_weights(data: bytes) -> bool:
    """Whether a file sets an attribute to what could be made of weights."""
    if b"Module" not in data or b"self." not in data:
        return False
    for at in (at for maker in _MAKERS for at in places(data, maker)):
        if _ATTRIBUTE.match(data, data.rfind(b"\n", 0, at) + 1, at):
            if _COMPUTED.match(data, at) or _calls_maker(data, at):
                return True
    for at in (at + name.index(b"=") for name in _NAMED for at in places(data, name)):
        if _calls_maker(data, at) or _PRODUCT.match(data, at):
            return True
    if any(_BUFFER.match(data, at) for at in places(data, _REGISTERS)):
        return True
    return any(_operates_on(data, b"self." + name) for name in _parameters(data))


def _parameters(data: bytes) -> frozenset[bytes]:
    """The attributes that hold a parameter."""
    held = (
        _HOLDS.search(data, data.rfind(b"\n", 0, at) + 1, at) for at in places(data, _PARAMETER)
    )
    return frozenset(match[1] for match in held if match is not None)


def _operates_on(data: bytes, parameter: bytes) -> bool:
    """Whether an attribute is set to a sum or product of a parameter: ``self.a @ self.b``."""
    for at in undeclared(data, parameter):
        behind = at + len(parameter)
        if _OPERATOR.match(data, behind) or data.endswith(_OPERATORS, 0, at):
            if _SET.match(data, data.rfind(b"\n", 0, at) + 1, at):
                return True
    return False


_OPERATORS = (b" * ", b" @ ", b" / ", b" + ", b" - ")


def _calls_maker(data: bytes, at: int) -> bool:
    """Whether a function of the file, of ``self`` or given a part of it, mentions weights."""
    match = _CALLED.match(data, at)
    if match is None or not (data.startswith(b"self.", at + 2) or b"self." in match[2]):
        return False
    body = data.find(b"def %s(" % match[1])
    return body >= 0 and data.find(b".weight", body, body + _NEAR) >= 0


NEEDLES: tuple[Needle, ...] = (
    Look((*_MAKERS, *_NAMED, _REGISTERS, _PARAMETER), _may_derive_weights),
)

# -- findings -------------------------------------------------------------------------------------

_REFERENCE = re.compile(
    r"init|orig|anchor|old|\bref|_ref|ema|teacher|prev|base|backup|frozen|saved|target|snapshot|"
    r"momentum|mask|prior",
    re.IGNORECASE,
)
"""Names of copies that are kept to compare with."""

_ANOTHER = re.compile(r"Teacher|EMA|Ema|Frozen|Momentum|Target")
"""Names of classes that are not trained themselves."""

_ON_LOADING = re.compile(r"load|post_init|reset_parameters|build|setup|set_up|prepare|finali[sz]e")
_FOR_SERVING = re.compile(
    r"fuse|merge|deploy|reparam|quant|export|infer|pack|convert|switch|prun|optimi[sz]e|serv|"
    r"(train|eval|_apply)$"
)


@dataclass(frozen=True)
class _Place:
    """Where an attribute or a buffer gets its value."""

    statement: ast.stmt
    value: ast.expr
    is_buffer: bool = False


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for cls in module.classes:
        if _ANOTHER.search(cls.name) or not is_module_class(module, cls):
            continue
        if "pre_hook" in module.source(cls):
            continue  # which may compute it before each forward
        places = _places(module, cls)
        deleted = frozenset(_deleted(cls))
        for name, found in places.items():
            if _REFERENCE.search(name) or name in deleted or _is_given_up(module, cls, name):
                continue
            derived = [_Derivation(module, cls, place) for place in found]
            if not derived or not all(each.is_stale for each in derived):
                continue
            sources = [source.split(".")[1] for source in derived[0].sources]
            if any(s in deleted or _is_given_up(module, cls, s) for s in sources):
                continue
            lazy = len(found) == 1 and _is_lazy(module, cls, name, found[0].statement)
            functions = {module.function(place.statement) for place in found}
            if not lazy and not all(
                f is not None and _happens_once(module, cls, f) for f in functions
            ):
                continue
            uses = list(module.names.uses(cls, name))
            anyhow = all(each.saves or _is_reparametrized(each.place.value) for each in derived)
            makers = () if lazy else functions
            if any(_is_used(module, use, makers, anyhow) for use in uses):
                yield _finding(module, cls, name, found, derived[0], uses)


def _finding(
    module: ModuleFacts,
    cls: ast.ClassDef,
    name: str,
    found: list[_Place],
    derived: _Derivation,
    uses: list[ast.Attribute],
) -> Finding:
    sources = ", ".join(f"`{source}`" for source in dict.fromkeys(derived.sources))
    message = (
        f"`self.{name}` is computed from {sources} once: what training changes there does not "
        "arrive here"
    )
    if derived.detached:
        message += ", and no gradient goes back."
    else:
        message += ", and the second backward fails." if derived.saves else "."
    fixes: dict[str, Fix] = {}
    setting = next(set_by_others(module, cls, name), None)
    if setting is not None:
        other, _, line = setting
        place = f"line {line}" if other is module else f"{other.path}:{line}"
        message += f" A `{name}` is set in {place}, which a property would not take."
    elif len(found) == 1:
        edits = _as_property(module, cls, name, found[0], derived, uses)
        if edits:
            look_at = f"`{name}` is computed again each time it is used"
            if found[0].is_buffer:
                look_at += ", and is no longer in the state dict"
            fix = Fix(f"Make {name} a property", edits, Safety.UNSAFE, look_at)
            fixes = dict.fromkeys(STRATEGIES, fix)
    return module.finding("TRN502", message, found[0].statement, fixes)


def _places(module: ModuleFacts, cls: ast.ClassDef) -> dict[str, list[_Place]]:
    """Where each attribute gets a value; those that get something unclear are left out."""
    places: dict[str, list[_Place]] = {}
    unclear: set[str] = set()
    for name, bindings in module.names.attributes(cls).items():
        for binding in bindings:
            node, value = binding.node, binding.value
            if is_none(value):
                continue
            plain = isinstance(node, ast.AnnAssign) or (
                isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
            )
            if value is None or not plain or not isinstance(node, ast.stmt):
                unclear.add(name)
            else:
                places.setdefault(name, []).append(_Place(node, value))
    for node in walk(cls):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "register_buffer" and len(node.args) >= 2:
                name_node, value = node.args[0], node.args[1]
                if isinstance(name_node, ast.Constant) and isinstance(name_node.value, str):
                    place = _Place(module.statement(node), value, True)
                    places.setdefault(name_node.value, []).append(place)
    return {name: found for name, found in places.items() if name not in unclear}


def _deleted(cls: ast.ClassDef) -> Iterator[str]:
    """The attributes of a class that are deleted."""
    for node in walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Del):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "delattr":
                yield from (str(a.value) for a in node.args if isinstance(a, ast.Constant))


def _is_given_up(module: ModuleFacts, cls: ast.ClassDef, name: str) -> bool:
    """Whether a method other than ``__init__`` sets an attribute to None: ``self.q = None``."""
    for binding in module.names.attributes(cls).get(name, ()):
        function = module.function(binding.node)
        if is_none(binding.value) and function is not None and function.name != "__init__":
            return True
    return False


# -- what is derived ------------------------------------------------------------------------------

_VIEWS = frozenset(
    "t transpose permute view reshape flatten unflatten unsqueeze squeeze narrow chunk split "
    "unbind to type float half bfloat16 double cuda cpu expand movedim swapaxes".split()
)
_TURNS = frozenset("t T mT transpose permute movedim swapaxes".split())
_MORE = frozenset(
    "clone mul add sub div matmul mm sum mean exp softmax sigmoid softplus abs sqrt rsqrt pow "
    "clamp repeat repeat_interleave flip roll norm".split()
)
_PRODUCTS = frozenset("matmul mm bmm einsum".split())
_SWITCHES = re.compile(r"no_grad|inference_mode|set_grad_enabled")
_FUNCTIONS = re.compile(
    r"torch\.(nn\.functional\.)?(cat|stack|concat|hstack|vstack|matmul|mm|bmm|einsum|exp|sigmoid|"
    r"softmax|softplus|normalize|flip|block_diag|kron|add|mul|sub|div|transpose|permute)$"
)


@dataclass
class _Derivation:
    """How a value is computed from weights."""

    module: ModuleFacts
    cls: ast.ClassDef
    place: _Place
    sources: list[str] = field(default_factory=list)
    cuts: list[ast.expr] = field(default_factory=list)
    """The ``.data`` and ``.detach()`` on the way."""
    local: bool = False
    elsewhere: bool = False
    """Whether a function computes it."""
    copied: bool = False
    turned: bool = False
    multiplied: bool = False
    """Whether a product is on the way: by a number, too, it saves something for backward."""
    in_no_grad: bool = False

    given: dict[str, ast.expr] = field(default_factory=dict)
    """What the functions on the way are given, by the names of their parameters."""

    def __post_init__(self) -> None:
        self._is_derived = self._follow(self.place.value, self.place.statement)
        self.in_no_grad |= any(
            no_grad_scope(self.module, item.context_expr, scope)
            for scope in self.module.ancestors(self.place.statement)
            if isinstance(scope, ast.With)
            for item in scope.items
        )
        function = self.module.function(self.place.statement)
        if function is not None and not self.in_no_grad:
            self.in_no_grad = any(
                no_grad_scope(self.module, d, function) for d in function.decorator_list
            )

    @property
    def detached(self) -> bool:
        return bool(self.cuts) or self.in_no_grad

    @property
    def saves(self) -> bool:
        """Whether the first backward frees what the operations between have saved."""
        return self.multiplied and not self.detached

    @property
    def is_stale(self) -> bool:
        """Whether the value does not follow the weights, or lets no gradient through to them.

        A view that is not detached does both.
        """
        if not self._is_derived or not self.sources or not (self.copied or self.detached):
            return False
        return self.in_no_grad or not gradient_unwanted(self.module, self.place.statement)

    def _follow(self, node: ast.expr, at: ast.stmt) -> bool:
        """Whether a value is computed from weights, by what is known."""
        if self._is_weight(node):
            text = self.module.source(node)
            name, dot, rest = text.partition(".")
            given = self.given.get(name)
            self.sources.append(f"{self.module.source(given)}{dot}{rest}" if given else text)
            return True
        if isinstance(node, ast.Attribute):
            self.turned |= node.attr in _TURNS
            if node.attr == "data":
                self.cuts.append(node)
            return node.attr in ("data", "T", "mT") and self._follow(node.value, at)
        if isinstance(node, ast.Subscript):
            return self._follow(node.value, at)
        if isinstance(node, ast.BinOp):
            self.copied = True
            self.multiplied |= isinstance(node.op, (ast.MatMult, ast.Mult, ast.Div))
            return self._follow_all((node.left, node.right), at)
        if isinstance(node, ast.UnaryOp):
            self.copied = True
            return self._follow(node.operand, at)
        if isinstance(node, ast.Name):
            return self._follow_name(node, at)
        return isinstance(node, ast.Call) and self._follow_call(node, at)

    def _follow_all(self, nodes: Iterable[ast.expr], at: ast.stmt) -> bool:
        """Whether one of several values is computed from weights; all of them are looked at."""
        found = [self._follow(node, at) for node in nodes]
        return any(found)

    def _follow_name(self, node: ast.Name, at: ast.stmt) -> bool:
        function = self.module.function(at)
        if function is None:
            return False
        definition = self.module.flow(function).only_definition(node.id, at)
        if definition is None or definition.value is None or definition.statement is None:
            return False
        self.local = True
        return self._follow(definition.value, definition.statement)

    def _follow_call(self, call: ast.Call, at: ast.stmt) -> bool:
        function = call.func
        if any(_FUNCTIONS.match(target.name) for target in self.module.resolve(function)):
            name = self.module.source(function).rpartition(".")[2]
            self.turned |= name in _TURNS
            self.copied |= name not in _TURNS
            self.multiplied |= name in _PRODUCTS
            parts: list[ast.expr] = []
            for argument in call.args:
                parts += (
                    argument.elts if isinstance(argument, (ast.List, ast.Tuple)) else [argument]
                )
            return self._follow_all(parts, at)
        callee = Graph(self.module, self.module.function(at) or self.module.tree).callee(call)
        if callee is not None:
            return self._follow_into(call, callee)
        if not isinstance(function, ast.Attribute):
            return False
        operands = [function.value, *(call.args if function.attr in _MORE else ())]
        if not self._follow_all(operands, at):
            return False
        self.turned |= function.attr in _TURNS
        if function.attr == "detach":
            self.cuts.append(call)
        elif function.attr == "contiguous":
            self.copied |= self.turned
        elif function.attr in _MORE:
            self.copied = True
            self.multiplied |= function.attr in _PRODUCTS
        else:
            return function.attr in _VIEWS
        return True

    def _follow_into(self, call: ast.Call, callee: FunctionNode) -> bool:
        """``self._merged()``, ``merged(self.q, self.k)``: what a function of the file returns."""
        returned = list(results(callee))
        if self.elsewhere or len(returned) != 1 or call.keywords:
            return False
        self.elsewhere = True
        parts = (callee, *callee.decorator_list)
        self.in_no_grad |= any(_SWITCHES.search(self.module.source(part)) for part in parts)
        names = [a.arg for a in callee.args.args]
        if self.module.method_class(callee) is not None:
            names = names[1:]
        self.given = dict(zip(names, call.args, strict=False))
        return self._follow(*returned[0])

    def _is_weight(self, node: ast.expr) -> bool:
        """``self.layer.weight`` of a layer that can learn, or a parameter of one's own."""
        if not isinstance(node, ast.Attribute):
            return False
        layer = node.value
        if isinstance(layer, ast.Name):
            layer = self.given.get(layer.id, layer)
        if node.attr in ("weight", "bias") and isinstance(layer, ast.Attribute):
            return self._is_own(layer) and self._learns(layer.attr, "weights")
        return self._is_own(node) and self._learns(node.attr, "parameter")

    def _is_own(self, node: ast.Attribute) -> bool:
        if not isinstance(node.value, ast.Name):
            return False
        return self.module.names.self_class(node.value) is self.cls

    def _learns(self, name: str, kind: str) -> bool:
        if is_frozen(self.module, self.cls, name):
            return False
        for binding in self.module.names.attributes(self.cls).get(name, ()):
            value = binding.value
            if value is None:
                continue
            if made_by(self.module, value) == kind or (kind == "weights" and _is_linear(value)):
                fixed = isinstance(value, ast.Call) and any(
                    k.arg == "requires_grad" and is_false(k.value) for k in value.keywords
                )
                if not fixed:
                    return True
        return False


def _is_linear(value: ast.expr) -> bool:
    """A library's own linear layer: ``ColumnParallelLinear(...)``."""
    function = value.func if isinstance(value, ast.Call) else None
    name = last_name(function)
    return str(name).endswith(("Linear", "Embedding"))


# -- when and where -------------------------------------------------------------------------------


def _happens_once(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether a method runs when a module is made or loaded, or the first time it is called.

    What a person calls to prepare a model for serving is left alone, and so is what every forward
    does again.
    """
    if function.name == "__init__":
        return True
    if is_forward(function):
        return False
    calls = [
        node
        for node in walk(cls)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == function.name
    ]
    callers = {module.function(call) for call in calls}
    if any(c is not None and is_forward(c) for c in callers):
        return False
    if any(_is_made_with(module, call) for call in calls):
        return True
    if _FOR_SERVING.search(function.name):
        return False
    if any(c is not None and c.name == "__init__" for c in callers):
        return True
    return bool(_ON_LOADING.search(function.name))


def _is_lazy(module: ModuleFacts, cls: ast.ClassDef, name: str, statement: ast.stmt) -> bool:
    """Whether a forward sets an attribute the first time, and nobody gives it up again.

    ``if self.packed is None: self.packed = self.weight.t().contiguous()``
    """
    around = module.parent(statement)
    if not isinstance(around, ast.If) or statement not in around.body:
        return False
    function, test = module.function(statement), around.test
    if function is None or function.name == "__init__" or gradient_unwanted(module, around):
        return False
    asked: ast.expr | None = None
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is):
        asked = test.left if is_none(test.comparators[0]) else None
    elif isinstance(test, ast.UnaryOp) and isinstance(test.operand, ast.Call):
        call = test.operand
        known = [getattr(argument, "value", None) for argument in call.args[1:]]
        if last_name(call.func) != "hasattr" or known != [name]:
            return False
        asked = ast.Attribute(call.args[0], name)
    if not isinstance(asked, ast.Attribute) or asked.attr != name:
        return False
    if not isinstance(asked.value, ast.Name) or asked.value.id != self_name(function):
        return False
    callers = [module.function(call) for call in module.calls_named(function.name)]
    if not is_forward(function) and not any(c is not None and is_forward(c) for c in callers):
        return False
    return next(set_by_others(module, cls, name), None) is None


def _is_made_with(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether ``__init__`` calls a method whatever its arguments."""
    function = module.function(call)
    return (
        function is not None
        and function.name == "__init__"
        and module.statement(call) in function.body
    )


_SEARCHES = frozenset("argmin argmax topk cdist".split())
"""What a search for the nearest entry of a codebook does; no gradient is expected from it."""


def _is_reparametrized(value: ast.expr) -> bool:
    """``-torch.exp(self.a_log)``: what a parameter is held for, in every kind of product."""
    while isinstance(value, ast.UnaryOp):
        value = value.operand
    return isinstance(value, ast.Call) and last_name(value.func) in ("exp", "softplus", "sigmoid")


def _is_used(
    module: ModuleFacts,
    use: ast.Attribute,
    makers: Iterable[FunctionNode | None],
    anyhow: bool = False,
) -> bool:
    """Whether it is used as a weight, at once or by a local name, where a gradient is wanted.

    With ``anyhow``, as an operand of any operator.
    """
    function = module.function(use)
    if function is None or function in makers or gradient_unwanted(module, use):
        return False
    if any(isinstance(n, ast.Attribute) and n.attr in _SEARCHES for n in walk(function)):
        return False
    if is_weight_use(module, use) or (anyhow and isinstance(module.parent(use), ast.BinOp)):
        return True
    statement = module.parent(use)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    return any(
        isinstance(node, ast.Name) and node.id == name and is_weight_use(module, node)
        for node in walk(function)
    )


# -- the fix --------------------------------------------------------------------------------------


def _as_property(
    module: ModuleFacts,
    cls: ast.ClassDef,
    name: str,
    place: _Place,
    derived: _Derivation,
    uses: list[ast.Attribute],
) -> tuple[Edit, ...]:
    """Take the statement out of ``__init__`` and put a property below that."""
    from ..rewrite import layout

    statement = place.statement
    init = module.function(statement)
    if init is None or init.name != "__init__" or statement not in init.body:
        return ()
    if derived.in_no_grad or not layout.owns_lines(module, statement):
        return ()
    if derived.cuts if derived.elsewhere else derived.local:
        return ()
    if not isinstance(statement, (ast.Assign, ast.Expr)) or _has_comment(module, statement):
        return ()
    if any(
        not isinstance(use.ctx, ast.Load) for use in uses if module.statement(use) is not statement
    ):
        return ()
    me = self_name(init)
    names = {n.id for n in walk(place.value) if isinstance(n, ast.Name)}
    if any(n != me and module.flow(init).is_local(n) for n in names):
        return ()
    assert statement.end_lineno is not None and init.end_lineno is not None
    start = module.line_starts[statement.lineno - 1]
    end = _line_start(module, statement.end_lineno + 1)
    below = layout.line_end(module, init.body[-1])
    ind, unit, newline = module.indentation(init), module.indent_unit, module.newline
    text = _without_cuts(module, place.value, derived.cuts)
    lines = ["", f"{ind}@property", f"{ind}def {name}({me}):", f"{ind}{unit}return {text}"]
    added = newline + newline.join(lines)
    if statement is init.body[-1]:
        head = module.text[:start].rstrip("\r\n")
        return (Edit(len(head), below, added),)
    return (Edit(start, end, ""), Edit(below, below, added))


def _line_start(module: ModuleFacts, line: int) -> int:
    starts = module.line_starts
    return starts[line - 1] if line <= len(starts) else len(module.text)


def _has_comment(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a comment stands at a statement, or right above."""
    assert statement.end_lineno is not None
    lines = range(statement.lineno - 1, statement.end_lineno + 1)
    return any("#" in module.line_text(line) for line in lines if line > 0)


def _without_cuts(module: ModuleFacts, value: ast.expr, cuts: list[ast.expr]) -> str:
    start, text = module.start(value), module.source(value)
    for cut in sorted(cuts, key=module.end, reverse=True):
        inner = cut.func if isinstance(cut, ast.Call) else cut
        assert isinstance(inner, ast.Attribute)
        first, last = module.end(inner.value) - start, module.end(cut) - start
        first = text.index(".", first)  # behind a parenthesis: (a @ b).detach()
        bare = module.source(inner.value)
        text = bare if text == f"({bare}){text[first:last]}" else text[:first] + text[last:]
    return text
