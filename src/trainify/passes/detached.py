"""TRN301: values detached on the way to what is trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.carried import Carried, Cut, detached
from ..facts.comments import explained
from ..facts.flow import FunctionFlow
from ..facts.gradients import Gradients
from ..facts.guards import gradient_unwanted
from ..facts.learning import backward_values
from ..facts.losses import CutNames, losses_without_gradient, lost, results
from ..facts.stops import is_named_so
from ..facts.trainable import is_trainable
from ..facts.views import is_allocation
from ..facts.walk import walk
from ..facts.words import declare, places
from ..findings import STRATEGIES, Edit, Finding, Fix, Proven, Safety
from . import Look, Needle, Rule
from .caches import ends_on_purpose
from .loss_scopes import detached_work

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN301",
        name="detached-activation",
        summary="A value that is trained through is detached: `.detach()` or `.data`.",
        why=(
            "What comes before has no gradient from here on. Where all of a result is detached, "
            "backward() raises; where the loss has another path, it silently trains less than the "
            "model. Stop-gradients on targets, statistics and straight-through estimators are "
            "fine: there the value has another path, or is not the result."
        ),
        before="""\
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x, steps):
        h, logits = torch.zeros_like(x), []
        for _ in range(steps):
            h = self.cell(x, h)
            logits.append(self.out(h))
        return torch.stack(logits, 1).data
""",
        after="""\
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x, steps):
        h, logits = torch.zeros_like(x), []
        for _ in range(steps):
            h = self.cell(x, h)
            logits.append(self.out(h))
        return torch.stack(logits, 1)
""",
    ),
)

_CUTS = declare(b".detach()", b".data")
_CUT = re.compile(rb"\.(?:data|detach\(\))(?![\w\[(]|[ \t]*=|\.(?:cpu|numpy|item|tolist)\b)")
_WEIGHT = re.compile(
    rb"(?<![\w.])self\.(?:\w+(?:\([^()\n]*\))?|\w+\.(?:weight|bias))(?:\[[^\]\n]*\])?$"
)
_ASSIGNED = re.compile(rb"[ \t]*(\w+)(?:\[[^\]]*\])?[ \t]*=[^=]")
_CLOSED = (b"", b")", b"]", b"}")
_NEAR = 1200
"""Bytes after an assignment in which its value may be returned, or its gradient be asked for."""


def _may_concern(data: bytes) -> bool:
    """Whether something detached is returned, or a weight's ``.data`` used, or a loss detached."""
    if b"torch" not in data:
        return False
    cuts = (_CUT.match(data, at) for word in _CUTS for at in places(data, word))
    return any(_matters(data, cut) for cut in cuts if cut)


def _matters(data: bytes, found: re.Match[bytes]) -> bool:
    start = data.rfind(b"\n", 0, found.start()) + 1
    before = data[start : found.start()]
    if _is_of_table(data, before) or _is_straight_through(data, before, found.end()):
        return False
    if b"return " in before:
        return True
    if b"#" in before:
        return False
    chained = data[found.end() : found.end() + 1] == b"."
    if found[0] == b".data" and _WEIGHT.search(before) and not chained:
        return True
    if chained and data[found.end() : found.end() + 9] != b".backward":
        return False
    if before.lstrip()[:1] in _CLOSED or b"return" in data[max(0, start - 160) : start]:
        return True
    later = data[found.end() : found.end() + _NEAR]
    if b".backward(" in later or b"def compute_loss(" in data:
        return True
    assigned = _ASSIGNED.match(before)
    return assigned is not None and bool(
        re.search(rb"\breturn\b[^\n]*\b" + assigned[1] + rb"\b", later)
    )


_OF_ATTRIBUTE = re.compile(
    rb"[ \t]*(?:return|\w+ =) self\.(\w+)"
    rb"(?:\.(?:index_select|view|reshape|expand|to|type_as)\((?:[^()\n]|\([^()\n]*\))*\))*$"
)
_MADE = rb"\.%s\b[^\n=]*=(?!=)[^\n]*(?:\b(?!Buffer\()[A-Z]\w*\(|[\\(\[][ \t]*\r?\n)"
"""An attribute that is set to what may be a parameter or a module."""


def _is_of_table(data: bytes, before: bytes) -> bool:
    """Whether what is detached is read from an attribute that holds nothing to train.

    Where ``backward`` is called, it may matter all the same: for a loss that has nothing else.
    """
    match = _OF_ATTRIBUTE.match(before)
    if match is None or b".backward(" in data or b"register_parameter(" in data:
        return False
    return re.search(_MADE % match[1], data) is None


_SUBTRACTED = re.compile(rb"- (\w+)$")


def _is_straight_through(data: bytes, before: bytes, end: int) -> bool:
    """``hard - soft.detach() + soft``: what is detached goes on by itself as well."""
    match = _SUBTRACTED.search(before)
    return match is not None and re.compile(rb" \+ %s\b" % match[1]).match(data, end) is not None


NEEDLES: tuple[Needle, ...] = (Look(_CUTS, _may_concern),)

_DETACHES = re.compile(r"\.detach\b|\.data\b")
_DELIBERATE = re.compile(
    r"random|reservoir|rnd|fixed|fourier|extract|perceptual|embedder|predict|infer|export|sampl|"
    r"post|eval|wrapper|stop|detach|memory|cache|bank|ema|state",
    re.IGNORECASE,
)
"""Classes whose outputs are meant to be constants."""


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    names = CutNames(module, _DETACHES)
    for cls, function in results(module):
        if names.concern(function):
            yield from _method(module, cls, function, names)
    found: dict[ast.expr, str] = {
        cut.node: backward
        for backward, cut in losses_without_gradient(module, names)
        if cut.kind == "detach"
    }
    known = {module.function(node) for node in found}
    for node, backward in _detached_work(module):
        if module.function(node) not in known:
            found.setdefault(node, backward)
    for node, backward in found.items():
        if not _is_meant(module, node):
            message = (
                f"`{_name(node)}` leaves {backward} nothing to go through: nothing gets a gradient."
            )
            yield _finding(module, message, node)
    yield from _rotations(module)


def _detached_work(module: ModuleFacts) -> Iterator[tuple[ast.expr, str]]:
    """What a loss could teach, detached, where all else is data by its name: ``adv``, ``old``."""
    for call in module.calls_named("backward"):
        function = module.function(call)
        if function is None or not _DETACHES.search(module.source(function)):
            continue
        for value, differentiates in backward_values(module, function):
            if differentiates is call:
                node = detached_work(module, function, value, module.statement(call))
                if node is not None and detached(node) is not None:
                    yield node, f"`{' '.join(module.source(call.func).split())}()`"


def proven(module: ModuleFacts, place: Proven) -> Iterator[Finding]:
    """What is detached on a line, and has to learn; of several, only if nothing of it is meant."""
    if place.kind not in ("detach", "data"):
        return
    nodes = (n for n in walk(module.tree) if isinstance(n, (ast.Call, ast.Attribute)))
    found: list[ast.expr] = [node for node in nodes if _is_on(module, node, place)]
    if not found and place.kind == "detach":
        found = [call for call in module.calls if _makes_anew(module, call, place)]
    if len(found) > 1 and not place.wholly:
        return
    made: set[ast.expr] = set()
    for node in found:
        statement = module.statement(node)
        kept = ends_on_purpose(module, statement) and not _fills(module, node, statement)
        if not _is_meant(module, node) and not kept:
            whole = _made_anew(module, node)
            title = f"{module.source(whole.func)}()" if whole is not None else _name(node)
            message = f"`{title}` takes the gradient from what is trained through."
            if whole is None:
                yield _finding(module, message, node, Safety.SAFE)
                continue
            if whole in made:
                continue
            made.add(whole)
            inner = _given(module, whole)
            edits = (Edit(module.start(whole), module.end(whole), inner),) if inner else ()
            fix = Fix(f"Use what {title} is given", edits)
            yield module.finding("TRN301", message, whole, dict.fromkeys(STRATEGIES, fix))


def _fills(module: ModuleFacts, node: ast.expr, statement: ast.stmt) -> bool:
    """``out.data.copy_(h)``, of a buffer that the function has made: nothing keeps that."""
    base = node.value if isinstance(node, ast.Attribute) else None
    function = module.function(statement)
    if not isinstance(base, ast.Name) or function is None or is_named_so(module, statement):
        return False
    made = module.flow(function).only_definition(base.id, statement)
    return made is not None and isinstance(made.value, ast.Call) and is_allocation(made.value)


_ANEW = frozenset(
    "torch.nn.Parameter torch.nn.parameter.Parameter torch.autograd.Variable torch.from_dlpack "
    "torch.utils.dlpack.from_dlpack torch.utils.dlpack.to_dlpack".split()
)
"""What gives the values of a tensor once more, as one that nothing lies behind."""


def _makes_anew(module: ModuleFacts, call: ast.Call, place: Proven) -> bool:
    """Whether a call on a line makes a tensor of another's values: ``nn.Parameter(h)``."""
    return call.lineno <= place.line <= (call.end_lineno or 0) and _is_anew(module, call)


def _is_anew(module: ModuleFacts, call: ast.Call) -> bool:
    names = {target.name for target in module.resolve(call.func)}
    return (
        bool(names)
        and names <= _ANEW
        and len(call.args) == 1
        and all(keyword.arg == "requires_grad" for keyword in call.keywords)
    )


def _made_anew(module: ModuleFacts, node: ast.expr) -> ast.Call | None:
    """``Variable(x.data)`` around ``x.data``, or the call itself; None where there is none."""
    found = node if isinstance(node, ast.Call) and _is_anew(module, node) else None
    last: ast.AST = node
    for around in module.ancestors(node):
        if not isinstance(around, ast.Call) or last not in around.args:
            break
        if not _is_anew(module, around):
            break
        found, last = around, around
    return found


def _given(module: ModuleFacts, call: ast.Call) -> str:
    """What such a call is given, with its gradient; empty where a comment would be lost."""
    from ..rewrite.layout import operand

    node: ast.expr = call
    while True:
        inner = _inner(module, node)
        if inner is None and isinstance(node, ast.Call) and _is_anew(module, node):
            inner = node.args[0]
        if inner is None:
            break
        node = inner
    return operand(module, node) if "#" not in module.source(call) else ""


def _is_on(module: ModuleFacts, node: ast.Call | ast.Attribute, place: Proven) -> bool:
    """Whether a node detaches on a line, as Python counts: by where the method's name ends."""
    if not isinstance(node, ast.Call if place.kind == "detach" else ast.Attribute):
        return False
    name = node.func if isinstance(node, ast.Call) else node
    if isinstance(name, ast.Attribute) and not isinstance(name.ctx, ast.Load):
        return False
    return name.end_lineno == place.line and _inner(module, node) is not None


def _inner(module: ModuleFacts, node: ast.expr) -> ast.expr | None:
    """What is detached, also by the function, ``torch.detach(x)``, or in place."""
    if isinstance(node, ast.Call) and not node.keywords:
        if len(node.args) == 1:
            if {target.name for target in module.resolve(node.func)} == {"torch.detach"}:
                return node.args[0]
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "detach_":
            return node.func.value
    return detached(node)


def _method(
    module: ModuleFacts, cls: ast.ClassDef, function: ast.FunctionDef, names: CutNames
) -> Iterator[Finding]:
    if _DELIBERATE.search(cls.name) or not is_trainable(module, cls):
        return
    gradients = Gradients(module, function)
    if not names.surely(gradients):
        return
    returned = gradients.returned()
    cuts = [cut for result in returned for cut in result.cuts if cut.sure and cut.kind == "detach"]
    if returned and all(_is_cut_off(result) for result in returned):
        for cut in dict.fromkeys(cuts):
            if not _is_meant(module, cut.node):
                method = f"{cls.name}.{function.name}"
                message = (
                    f"`{_name(cut.node)}` on what `{method}` returns: no parameter of "
                    f"`{cls.name}` gets a gradient."
                )
                yield _finding(module, message, cut.node)
        return
    for cut, weights in lost(gradients) if cuts else ():
        layer = _layer_of_data(cut)
        if layer is not None and f"{cls.name}.{layer}" in weights:
            if not _MEANT.search(module.source(cls)) and not _is_meant(module, cut.node):
                message = (
                    f"Only the `.data` of what `self.{layer}` gives is used: its parameters get no "
                    "gradient."
                )
                yield _finding(module, message, cut.node)
        weight = _weight_of_data(cut)
        if weight is not None and not _is_meant(module, cut.node):
            name = module.source(weight)
            message = f"`{name}` is a parameter, but only its `.data` is used: it gets no gradient."
            yield _finding(module, message, cut.node)


def _is_cut_off(result: Carried) -> bool:
    """Whether a result has no gradient, only because it was detached."""
    return (
        result.nothing
        and not result.plain
        and bool(result.cuts)
        and all(cut.sure and cut.kind == "detach" for cut in result.cuts)
        and not any(_leaves_device(cut) for cut in result.cuts)
    )


def _leaves_device(cut: Cut) -> bool:
    """``x.cpu().data``: results for somebody outside."""
    inner = detached(cut.node)
    return (
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr == "cpu"
    )


def _weight_of_data(cut: Cut) -> ast.Attribute | None:
    """``self.weight`` of ``self.weight.data``, ``self.weight[e].data``; that of a layer, too.

    detach() on a weight is a choice, .data is a habit.
    """
    weight = cut.node.value if isinstance(cut.node, ast.Attribute) else None
    if isinstance(weight, ast.Subscript):
        weight = weight.value
    if cut.kind != "detach" or not isinstance(weight, ast.Attribute):
        return None
    owner = weight.value
    if isinstance(owner, ast.Attribute) and weight.attr in ("weight", "bias"):
        owner = owner.value
    return weight if isinstance(owner, ast.Name) else None


_MEANT = re.compile(
    r"requires_grad|no_grad|freez|frozen|fixed|target|teacher|ema\b|_ema|momentum|codebook|pretrain|"
    r"proxy|probe|stop_?grad",
    re.IGNORECASE,
)
"""Words of classes of which a part is not to learn from this loss."""


def _layer_of_data(cut: Cut) -> str | None:
    """``q`` of ``self.q(x).data``; detach() on what a layer gives is a choice."""
    call = cut.node.value if isinstance(cut.node, ast.Attribute) else None
    if cut.kind != "detach" or not isinstance(call, ast.Call):
        return None
    layer = call.func
    if not isinstance(layer, ast.Attribute) or not isinstance(layer.value, ast.Name):
        return None
    return layer.attr


def _is_meant(module: ModuleFacts, node: ast.expr) -> bool:
    return gradient_unwanted(module, node) or explained(module, node)


# -- rotary embeddings ----------------------------------------------------------------------------

_COS = re.compile(r"cos", re.IGNORECASE)
_SIN = re.compile(r"sin", re.IGNORECASE)
_RESHAPES = frozenset(
    "type_as to float half bfloat16 flatten reshape view contiguous squeeze unsqueeze".split()
)


def _rotations(module: ModuleFacts) -> Iterator[Finding]:
    """Queries and keys that lose their gradient as they are rotated; tables may be detached."""
    for function in module.functions:
        text = module.source(function)
        if not (_DETACHES.search(text) and _COS.search(text) and _SIN.search(text)):
            continue
        flow = module.flow(function)
        for node in walk(function):
            if not isinstance(node, (ast.Call, ast.Attribute)):
                continue
            inner = detached(node)
            if inner is None or module.function(node) is not function:
                continue
            rotated = _rotated(flow, inner, module.statement(node))
            if rotated is None or _is_meant(module, node):
                continue
            if _carries_gradient(module, function, rotated, module.statement(node)):
                message = (
                    f"`{_name(node)}` on rotated `{module.source(rotated)}`: no gradient passes "
                    f"`{function.name}`, so what projects it never learns."
                )
                yield _finding(module, message, node)


def _rotated(flow: FunctionFlow, node: ast.expr, at: ast.stmt) -> ast.Name | None:
    """The name that ``x * cos + rotate_half(x) * sin`` turns, under any views and casts."""
    for _ in range(8):
        if isinstance(node, ast.Name):
            definition = flow.only_definition(node.id, at)
            if definition is None or definition.value is None or definition.statement is None:
                return None
            node, at = definition.value, definition.statement
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            function, arguments = node.func, node.args
            if function.attr in _RESHAPES:
                node = function.value
            elif function.attr in ("cat", "concat", "stack") and arguments:
                parts = arguments[0]
                if not isinstance(parts, (ast.Tuple, ast.List)) or not parts.elts:
                    return None
                node = parts.elts[0]
            else:
                return None
        else:
            break
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    by_cos, by_sin = _factor(node.left, _COS), _factor(node.right, _SIN)
    if by_cos is None or by_sin is None:
        return None
    while isinstance(by_cos, ast.Subscript):
        by_cos = by_cos.value
    return by_cos if isinstance(by_cos, ast.Name) else None


def _factor(node: ast.expr, table: re.Pattern[str]) -> ast.expr | None:
    """``x`` in ``x * cos``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for factor, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(factor, (ast.Name, ast.Attribute)) or _is_call_on_name(factor):
                if table.search(ast.unparse(factor)) and not table.search(ast.unparse(other)):
                    return other
    return None


def _is_call_on_name(node: ast.expr) -> bool:
    """``cos.unsqueeze(1)``, ``cos[None]``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
    )


def _carries_gradient(
    module: ModuleFacts, function: FunctionNode, rotated: ast.Name, at: ast.stmt
) -> bool:
    """Whether a rotated value comes from weights: in the function itself, or from a caller."""
    own = Gradients(module, function)
    if own.value(rotated, at).weights:
        return True
    for name in _parameters_of(module, function, rotated, at):
        for other, call in module.project.calls_of(module, function):
            caller = other.function(call)
            cls = other.method_class(caller)
            if caller is None or cls is None or not is_trainable(other, cls):
                continue
            argument = other.project.argument(module, function, call, name)
            if argument is None or gradient_unwanted(other, call):
                continue
            if Gradients(other, caller).value(argument, other.statement(call)).weights:
                return True
    return False


def _parameters_of(
    module: ModuleFacts, function: FunctionNode, name: ast.Name, at: ast.stmt
) -> set[str]:
    """The parameters that a name's value is made from: ``x`` for ``a, b = x.chunk(2, -1)``."""
    flow = module.flow(function)
    found: set[str] = set()
    pending = [(name.id, at)]
    seen: set[str] = set()
    while pending:
        current, place = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for definition in flow.reaching(current, place):
            if definition.statement is None:
                found.add(current)
            elif definition.value is not None:
                pending += [
                    (n.id, definition.statement)
                    for n in walk(definition.value)
                    if isinstance(n, ast.Name) and not _COS.search(n.id) and not _SIN.search(n.id)
                ]
    return found


# -- fixes ----------------------------------------------------------------------------------------

_SUFFIX = re.compile(r"[\s\\]*\.\s*(?:detach_?\s*\(\s*\)|data)$")


def _name(node: ast.expr) -> str:
    return ".data" if isinstance(node, ast.Attribute) else ".detach()"


def _finding(
    module: ModuleFacts, message: str, node: ast.expr, safety: Safety = Safety.UNSAFE
) -> Finding:
    edit = _removal(module, node)
    if edit is None:
        return module.finding("TRN301", message, node)
    look_at = f"that nothing relies on {_name(node)} to stop the gradient or to free the graph"
    fix = Fix(f"Drop {_name(node)}", (edit,), safety, look_at if safety is Safety.UNSAFE else "")
    return module.finding("TRN301", message, node, dict.fromkeys(STRATEGIES, fix))


def _is_all(statement: ast.stmt, node: ast.expr, inner: ast.expr) -> bool:
    """Whether a statement does nothing else: ``x = x.detach()``, ``x.detach_()``."""
    if not isinstance(inner, ast.Name):
        return False
    if isinstance(statement, ast.Assign) and statement.value is node:
        names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        return names == [inner.id] and len(statement.targets) == 1
    return isinstance(statement, ast.Expr) and statement.value is node


def _removal(module: ModuleFacts, node: ast.expr) -> Edit | None:
    """The node without its ``.detach()`` or ``.data``, and without parentheses that it needed.

    A statement that would then do nothing goes as a whole.
    """
    from ..rewrite.layout import operand
    from ..rewrite.scopes import without_idle

    text = module.source(node)
    suffix = _SUFFIX.search(text)
    inner = _inner(module, node)
    statement = module.statement(node)
    if inner is not None and _is_all(statement, node, inner):
        whole = without_idle(module, statement)
        if whole is not None:
            return whole
    if inner is not None and isinstance(node, ast.Call) and node.args:  # torch.detach(x)
        return Edit(module.start(node), module.end(node), operand(module, inner))
    if suffix is None or inner is None:
        return None  # Variable(x.data)
    start, end = module.start(node), module.end(node)
    alone = isinstance(module.parent(node), (ast.Return, ast.Assign)) and "\n" not in text
    wrapped = module.text[start : start + 1] == "(" and module.start(inner) == start + 1
    if alone and wrapped and text[: suffix.start()] == f"({module.source(inner)})":
        return Edit(start, end, module.source(inner))
    return Edit(start + suffix.start(), end, "")
