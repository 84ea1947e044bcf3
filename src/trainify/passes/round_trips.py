"""TRN302: tensors that become numbers, lists or arrays, and then tensors again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.arrays import array, way
from ..facts.carried import Cut, detached
from ..facts.comments import explained
from ..facts.differentiation import OF_MATH
from ..facts.flow import Definition
from ..facts.gradients import Gradients
from ..facts.guards import gradient_unwanted
from ..facts.layers import imported_function
from ..facts.losses import (
    CutNames,
    constant_functions,
    losses_without_gradient,
    lost,
    may_give_constants,
    results,
)
from ..facts.module import head
from ..facts.names import last_name
from ..facts.stops import looks_meant
from ..facts.trainable import is_trainable
from ..facts.walk import walk
from ..facts.words import declare, places
from ..findings import STRATEGIES, Edit, Finding, Fix, Proven, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts import Project

RULES = (
    Rule(
        code="TRN302",
        name="value-round-trip",
        summary="A tensor becomes a number, a list or an array on its way to the loss.",
        why=(
            "item(), tolist(), numpy() and float() give values without a graph, and torch.tensor "
            "copies values only: what comes out is a constant, and what went in is not trained. "
            "Metrics, indices and lengths are fine."
        ),
        before="""\
import torch
from torch import nn


class Ensemble(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(width, 1) for _ in range(3)])

    def forward(self, x):
        scores = [head(x).mean() for head in self.heads]
        return torch.tensor(scores).logsumexp(0)
""",
        after="""\
import torch
from torch import nn


class Ensemble(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(width, 1) for _ in range(3)])

    def forward(self, x):
        scores = [head(x).mean() for head in self.heads]
        return torch.stack(scores).logsumexp(0)
""",
    ),
)

_WORDS = declare(
    *(b"ensor(", b"from_numpy(", b".item()", b".tolist()", b".numpy()", b"float(self."),
    b"math.exp(self.",
)
_OTHERS = (b"_t", b"IntT", b"LongT", b"BoolT")
"""What stands before ``ensor(`` in functions of other kinds, and of whole numbers."""
_FIRST = re.compile(rb"[\[(]*([a-z_]\w*)")
_ARITHMETIC_BEFORE = re.compile(rb"[-+*/@] *(?:float\()?[\w.()\[\]]*$")
_ADDED = re.compile(rb"=[^=\n]*[-+*/@] [^\n]*$")
_ARITHMETIC_AFTER = re.compile(rb"[\w.)]* *[-+*/@](?!=)")
_OF_MODULE = re.compile(rb"\[?(?:self\.\w+[(\[]|[^\n\]]* for \w+ in self\.)")
_ASSIGNED = re.compile(rb"[ \t]*(\w+)[ \t]*=[^=]")
_HELD = re.compile(rb"(\w+)\)")
_SET = rb"\.%s\b(?:[ \t]*:[^\n=]*)?[ \t]*(?:[-+*/]?=)(?!=)([^\n]*)"
_PLAIN = re.compile(rb" *(?!self\.)[\w.]+[ \t]*(?:#.*)?\r?$")
_NEAR = 1200
"""Bytes around a place in which a name that stands there is made or used."""


def _may_concern(data: bytes) -> bool:
    """Whether a value makes a round trip in a forward, or where ``backward`` is called."""
    trains = b".backward(" in data or b"def compute_loss(" in data
    if b"torch" not in data or not (trains or b"def forward(" in data):
        return False
    return any(_matters(data, word, at, trains) for word in _WORDS for at in places(data, word))


def _matters(data: bytes, word: bytes, at: int, trains: bool) -> bool:
    start, end = data.rfind(b"\n", 0, at) + 1, at + len(word)
    line = data[start : data.find(b"\n", at)]
    if b">>>" in line or b"torch.long" in line or b"int64" in line or b"torch.int" in line:
        return False
    earlier, later = data[max(0, at - _NEAR) : at], data[end : end + _NEAR]
    if not trains:
        within = data.rfind(b"def ", 0, at)
        if not data.startswith((b"def forward(", b"def training_step("), within):
            if word == b"from_numpy(" and _is_called(data, within, at):
                return True
            return word in (b"ensor(", b"from_numpy(") and _is_of_weight(data, within, line)
    if word == b"ensor(":
        if data.endswith(_OTHERS, 0, at) and not data.endswith((b"as_t", b"new_t"), 0, at):
            return False
        if _OF_MODULE.match(data, end):
            return True
        first = _FIRST.match(data, end)
        if first is None or trains:
            return first is not None
        made = rb"\b(?:\.append\(|[\w, \t]*=[^=\n]*(?:self\.\w+[(\[]|loss|for ))"
        return first[1] in earlier and bool(re.search(rb"\b" + first[1] + made, earlier))
    if word == b"from_numpy(":
        return b".numpy()" in earlier or b".numpy()" in line
    before = line[: at - start]
    listed = word in (b".tolist()", b".numpy()")
    if listed and not trains:  # all kinds of statements take numbers out of a list
        return b"split(" not in before and not before.lstrip().startswith(b"...")
    if b"ensor(" in before or b"from_numpy(" in before:
        return True
    if word.endswith(b"(self.") and _is_plain(data, later):
        return False
    if trains and b"requires_grad=True" in earlier + before and _ADDED.search(before):
        return True
    if _ARITHMETIC_BEFORE.search(before) or _ARITHMETIC_AFTER.match(later):
        return word != b".tolist()"
    assigned = _ASSIGNED.match(before)
    if assigned is None:
        return False
    name = assigned[1]
    if listed and re.search(rb"(?:ensor|from_numpy)\([^\n]*\b" + name + rb"\b", later):
        return True
    number = name + rb"\b\[[^\]\n]+\]" if listed else name + rb"\b"
    uses = rb"[-+*/] *" + number + rb"|\b" + number + rb" *[-+*/]"
    return re.search(uses, later) is not None


_DEFINED = re.compile(rb"def (\w+\()")


def _is_called(data: bytes, within: int, at: int) -> bool:
    """Whether the file has a forward call the function around, which made an array before."""
    function = _DEFINED.match(data, within)
    if function is None or data[within - 1 : within] != b"\n":
        return False
    forward = data.find(b"    def forward(")
    return data.find(b".numpy()", within, at) > 0 and data.find(function[1], forward) > forward > 0


_METHOD = re.compile(rb"def (\w+)\(self\)")


def _is_of_weight(data: bytes, within: int, line: bytes) -> bool:
    """Whether a method gives back the values of something of the object, and a forward asks it."""
    method = _METHOD.match(data, within)
    if method is None or b"return " not in line or b"(self." not in line:
        return False
    forward = data.find(b"    def forward(")
    return forward > 0 and data.find(b"self." + method[1], forward) > 0


def _is_plain(data: bytes, later: bytes) -> bool:
    """Whether an attribute, which some text begins with, is only ever set to a name or a number."""
    held = _HELD.match(later)
    values = re.findall(_SET % held[1], data) if held is not None else ()
    return bool(values) and all(map(_PLAIN.match, values))


def _may_call(data: bytes) -> bool:
    return b"import " in data


(_BACKWARD,) = declare(b".backward(")
NEEDLES: tuple[Needle, ...] = (Look(_WORDS, _may_concern), Look((_BACKWARD,), _may_call))


def concerns(data: bytes, path: str, project: Project, options: Options) -> bool:
    """A file that only trains matters where it calls a function that gives back constants."""
    if _may_concern(data):
        return True
    return project.calls_one_of(path, data, constant_functions, may_give_constants)


_TRIPS = re.compile(
    r"\((?:(?<=\.item\()|(?<=\.tolist\()|(?<=\.numpy\()|(?<=\.new_tensor\()|(?<=[^\w.]float\()|"
    r"(?<=math\.exp\()|"
    r"(?<=[tT]ensor\()|(?<=\WVariable\()|(?<=from_numpy\())"
)
"""The parentheses of such calls: a pattern that begins with one letter is found fastest."""
_INFERS = re.compile(r"predict|infer|export|sampl|post|eval|wrapper|metric", re.IGNORECASE)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    names = CutNames(module, _TRIPS)
    for cls, function in results(module):
        if _INFERS.search(cls.name) or not names.concern(function):
            continue
        if is_trainable(module, cls):
            yield from _method(module, function, names)
    for backward, cut in losses_without_gradient(module, names):
        if cut.kind in ("number", "tensor") and not _is_meant(module, cut):
            message = (
                f"`{_title(module, cut)}` gives a constant, so {backward} has nothing to go "
                "through: nothing gets a gradient."
            )
            yield _finding(module, message, cut)


def proven(module: ModuleFacts, place: Proven) -> Iterator[Finding]:
    """A value that leaves torch on a line and comes back there, and has to learn."""
    if place.kind not in ("value", "detach"):
        return
    calls = [c for c in module.calls if c.lineno <= place.line <= (c.end_lineno or 0)]
    copies = [call for call in calls if _makes_tensor(module, call)]
    copies += _end(module, place.line, place.line)
    numbers = [
        c for c in calls if isinstance(module.parent(c), (ast.BinOp, ast.UnaryOp, ast.Assign))
    ]
    kinds = (("tensor", copies), ("number", numbers if place.kind == "value" else []))
    for kind, found in kinds:
        for call in found:
            rewriter = _Rewriter(module, call, certain=True)
            text = rewriter.text(kind)
            cut = Cut(call, "tensor" if kind == "tensor" else "number", frozenset(), True)
            meant = _is_meant(module, cut) or looks_meant(module, module.statement(call))
            if text is not None and text != module.source(call) and not meant:
                message = f"`{_title(module, cut)}` gives a constant of what is trained through."
                yield module.finding("TRN302", message, call, _stay(rewriter, text))
                return


def _end(module: ModuleFacts, first: int, last: int) -> Iterator[ast.Call]:
    """Where a tensor is made of an array that comes, by names, from one of these lines."""
    for call in module.calls:
        function = module.function(call)
        if function is None or len(call.args) != 1 or not _makes_tensor(module, call):
            continue
        found = way(module, Gradients(module, function).flow, call.args[0]) or ()
        values = [each.value for each in found if each.value is not None]
        if any(v.lineno <= first and last <= (v.end_lineno or v.lineno) for v in values):
            yield call


def _makes_tensor(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call gives a tensor that holds the values it is given, and no history."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "new_tensor":
        return True
    return any(
        target.name in ("torch.tensor", "torch.as_tensor", "torch.asarray", "torch.from_numpy")
        for target in module.resolve(call.func)
    )


def _method(module: ModuleFacts, function: ast.FunctionDef, names: CutNames) -> Iterator[Finding]:
    gradients = Gradients(module, function)
    if not names.surely(gradients):
        return
    for cut, weights in lost(gradients):
        if cut.kind not in ("number", "tensor") or _is_meant(module, cut):
            continue
        listed = ", ".join(f"`self.{w.partition('.')[2]}`" for w in sorted(weights))
        verb = "get" if len(weights) > 1 else "gets"
        message = f"`{_title(module, cut)}` gives a constant: {listed} {verb} no gradient."
        yield _finding(module, message, cut)


def _is_meant(module: ModuleFacts, cut: Cut) -> bool:
    if gradient_unwanted(module, cut.node) or explained(module, cut.node):
        return True
    function = module.function(cut.node)
    return function is not None and any(
        gradient_unwanted(module, call) for call in module.calls_named(function.name)
    )


def _of_math(module: ModuleFacts, node: ast.expr) -> str | None:
    """What torch calls the function of a number that a call runs: ``math.exp(t.item())``."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    for target in module.resolve(node.func):
        library, _, name = target.name.partition(".")
        if library == "math":
            return _OF_MATH.get(name)
        if library == "numpy":
            return _ELEMENTWISE.get(name)
    return None


def _title(module: ModuleFacts, cut: Cut) -> str:
    """What stands there, short: ``torch.tensor(...)``, ``.item()``."""
    node = cut.node
    assert isinstance(node, ast.Call)
    if isinstance(node.func, ast.Attribute) and cut.kind == "number":
        if imported_function(module, node.func) is None and not _of_math(module, node):
            return f".{node.func.attr}()"
    return f"{module.source(node.func)}(...)"


# -- fixes ----------------------------------------------------------------------------------------


def _finding(module: ModuleFacts, message: str, cut: Cut) -> Finding:
    node = cut.node
    assert isinstance(node, ast.Call)
    elsewhere = imported_function(module, node.func)
    if elsewhere is not None:
        home, function = elsewhere
        related = (home.related("What it gives is computed here.", head(function)),)
        return module.finding("TRN302", message, node, related=related)
    around = module.parent(node)
    if not isinstance(around, ast.Call) or _of_math(module, around) is None:
        around = node
    rewriter = _Rewriter(module, around)
    text = rewriter.text(cut.kind)
    if text is None and cut.kind == "number":
        for end in _end(module, node.lineno, node.end_lineno or node.lineno):
            rewriter = _Rewriter(module, end)
            text = rewriter.text("tensor")
    if text is None:
        return module.finding("TRN302", message, node)
    look_at = "that its device, dtype and shape are still what follows expects"
    fixes = _stay(rewriter, text, Safety.UNSAFE, look_at)
    return module.finding("TRN302", message, node, fixes)


def _stay(
    rewriter: _Rewriter, text: str, safety: Safety = Safety.SAFE, look_at: str = ""
) -> dict[str, Fix]:
    texts = [(rewriter.node, text), *rewriter.before]
    edits = tuple(_edit(rewriter.module, node, text) for node, text in texts)
    return dict.fromkeys(STRATEGIES, Fix("Stay with tensors", edits, safety, look_at))


def _edit(module: ModuleFacts, node: ast.expr, text: str) -> Edit:
    return _idle(module, node, text) or Edit(module.start(node), module.end(node), text)


def _idle(module: ModuleFacts, node: ast.expr, text: str) -> Edit | None:
    """The deletion of a statement that would only assign a name to itself: ``loss = loss``."""
    from ..rewrite.scopes import without_idle

    statement = module.statement(node)
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return None
    if [module.source(target) for target in statement.targets] != [text]:
        return None
    return without_idle(module, statement)


_ELEMENTWISE = {
    name: name
    for name in (
        "exp exp2 expm1 log log2 log10 log1p sqrt square abs tanh sinh cosh sin cos tan reciprocal"
    ).split()
} | {"absolute": "abs", "arctan": "atan", "arcsin": "asin", "arccos": "acos"}
"""NumPy's functions of one array that torch has, under which name."""

_OF_MATH = {name: name for name in sorted(OF_MATH - {"pow"})} | {"fabs": "abs"}

_REDUCED = ("mean", "sum")
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_TYPES = {"numpy.float32": "float", "numpy.float64": "double"}

_PLACES = frozenset({"dtype", "device", "requires_grad"})


class _Rewriter:
    """The torch form of a round trip, where there is one.

    ``certain``: a run has shown that it is tensors that go in.
    """

    def __init__(self, module: ModuleFacts, node: ast.Call, certain: bool = False) -> None:
        self.module = module
        self.node = node
        self.certain = certain
        self.statement = module.statement(node)
        self.gradients = Gradients(module, module.function(node) or module.tree)
        self.before: list[tuple[ast.expr, str]] = []
        """What is assigned on the way here, and what becomes of it."""
        self._way: tuple[Definition, ...] = ()

    def text(self, kind: str) -> str | None:
        node = self.node
        if kind == "number":
            return self._tensor(node) if self._is_calculated_with() else None
        if len(node.args) != 1 or any(k.arg not in _PLACES for k in node.keywords):
            return None
        text = self._tensor(node.args[0]) if self._comes_here(node.args[0]) else None
        alone = isinstance(self.module.parent(node), ast.Assign) and not node.keywords
        if text and alone and isinstance(_stripped(node.args[0]), ast.BinOp):
            text = text[1:-1]
        places = ", ".join(
            self.module.source(k.value)
            if k.arg is None
            else f"{k.arg}={self.module.source(k.value)}"
            for k in node.keywords
            if k.arg != "requires_grad"
        )
        return f"{text}.to({places})" if text and places else text

    def _is_calculated_with(self) -> bool:
        """Whether a number stands in arithmetic, or the name does that it is assigned to."""
        module, parent = self.module, self.module.parent(self.node)
        if last_name(self.node.func) in ("numpy", "tolist"):
            return False  # where it becomes a tensor again, it has to be one all the way
        if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
            return _in_arithmetic(module, self.node)
        target, function = parent.targets[0], module.function(parent)
        if not isinstance(target, ast.Name) or function is None:
            return False
        names = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == target.id]
        return all(n is target or _in_arithmetic(module, n) for n in names)

    def _comes_here(self, node: ast.expr) -> bool:
        """Whether the arrays on the way to an expression, if there are any, can be tensors."""
        found = way(self.module, self.gradients.flow, node)
        if found is None:
            return False
        self._way = found
        for definition in found:
            assert definition.value is not None and definition.statement is not None
            self.statement = definition.statement
            text = self._tensor(definition.value)
            if text is None:
                return False
            if isinstance(_stripped(definition.value), ast.BinOp):
                text = text[1:-1]
            self.before.append((definition.value, text))
        self.statement = self.module.statement(self.node)
        return True

    def _tensor(self, node: ast.expr) -> str | None:
        """The tensor whose values an expression gives."""
        from ..rewrite.layout import operand

        base = _stripped(node)
        if self._is_array(base):
            return self.module.source(base)
        if isinstance(base, (ast.List, ast.Tuple)):
            parts = [self._tensor(element) for element in base.elts]
            torch = self._torch()
            if torch is None or not parts or None in parts:
                return None
            return f"{torch}.stack([{', '.join(filter(None, parts))}])"
        if isinstance(base, ast.ListComp):
            return self._stacked_comprehension(base)
        name = _of_math(self.module, base)
        if name is not None and isinstance(base, ast.Call):
            inner, torch = self._tensor(base.args[0]), self._torch()
            return f"{torch}.{name}({inner})" if inner and torch else None
        if isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute):
            called = {t.name for t in self.module.resolve(base.func)}
            reduced = next((n[6:] for n in called if n.startswith("numpy.")), None)
            if reduced is not None:
                return self._of_numpy(base, reduced)
            if base.func.attr in ("astype", "copy"):
                return self._of_array(base, base.func)
        if isinstance(base, ast.BinOp) and (self._way or (self.certain and _reads_out(base))):
            return self._operation(base)
        names = isinstance(base, (ast.Name, ast.Attribute, ast.Subscript))
        read = names or (base is not node and not isinstance(base, ast.Constant))
        if not (self.certain and read) and not self.gradients.value(base, self.statement).sure:
            return None
        if isinstance(base, ast.Name) and self._is_list(base):
            torch = self._torch()
            return f"{torch}.stack({base.id})" if torch is not None else None
        return operand(self.module, base)

    def _is_array(self, node: ast.expr) -> bool:
        """Whether a name holds an array on the way, as it is used in its statement."""
        if not self._way or not isinstance(node, ast.Name):
            return False
        return array(self.module, self.gradients.flow, node) in self._way

    def _of_numpy(self, call: ast.Call, name: str) -> str | None:
        """What a reduction of NumPy's computes, by the one of torch with the same meaning."""
        torch = self._torch()
        inner = self._tensor(call.args[0]) if len(call.args) == 1 else None
        if inner is None or torch is None:
            return None
        if name in _REDUCED and all(
            each.arg in ("axis", "keepdims") and isinstance(each.value, (ast.Constant, ast.UnaryOp))
            for each in call.keywords
        ):
            rest = [f"{each.arg}={self.module.source(each.value)}" for each in call.keywords]
            return f"{torch}.{name}({', '.join([inner, *rest])})"
        return None

    def _of_array(self, call: ast.Call, method: ast.Attribute) -> str | None:
        """What ``astype`` and ``copy`` give, of an array."""
        inner = self._tensor(method.value)
        if inner is None or call.keywords:
            return None
        if method.attr == "copy":
            return None if call.args else f"{inner}.clone()"
        named = self.module.resolve(call.args[0]) if len(call.args) == 1 else ()
        names = {_TYPES.get(target.name) for target in named}
        return f"{inner}.{names.pop()}()" if len(names) == 1 and None not in names else None

    def _operation(self, node: ast.BinOp) -> str | None:
        """An operation between arrays, or an array and a number, in parentheses."""
        sides = [
            self.module.source(side)
            if isinstance(side, ast.Constant) and type(side.value) in (int, float)
            else self._tensor(side)
            for side in (node.left, node.right)
        ]
        operator = _OPERATORS.get(type(node.op))
        if operator is None or None in sides:
            return None
        return f"({sides[0]} {operator} {sides[1]})"

    def _stacked_comprehension(self, node: ast.ListComp) -> str | None:
        value = self.gradients.value(node, self.statement)
        element, torch = _stripped(node.elt), self._torch()
        if torch is None or not (self.certain or value.sure or value.cuts):
            return None
        if isinstance(element, (ast.List, ast.ListComp, ast.Tuple)):
            return None
        if not isinstance(element, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            return None
        rest = self.module.text[self.module.end(node.elt) : self.module.end(node)]
        return f"{torch}.stack([{self.module.source(element)}{rest})"

    def _is_list(self, node: ast.Name) -> bool:
        reaching = self.gradients.flow.reaching(node.id, self.statement)
        kinds = (ast.List, ast.ListComp)
        return any(isinstance(d.value, kinds) and d.index is None for d in reaching)

    def _torch(self) -> str | None:
        from ..rewrite import layout

        return layout.bound_at_top(self.module, "torch")


def _reads_out(node: ast.expr) -> bool:
    """Whether values are taken out of a tensor in an expression: ``t.detach().numpy() * 2``."""
    return any(isinstance(n, ast.Call) and _stripped(n) is not n for n in walk(node))


def _in_arithmetic(module: ModuleFacts, node: ast.expr) -> bool:
    """``2 * s``, ``x / -s``, ``x *= s``."""
    parent = module.parent(node)
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, (ast.USub, ast.UAdd)):
        return _in_arithmetic(module, parent)
    if isinstance(parent, ast.AugAssign):
        return parent.value is node
    return isinstance(parent, ast.BinOp)


def _is_as_array(node: ast.Call) -> bool:
    """``np.asarray(t)``, of what is no list: that would be of another dtype."""
    if len(node.args) != 1 or node.keywords or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr not in ("array", "asarray") or not isinstance(node.func.value, ast.Name):
        return False
    if node.func.value.id not in ("np", "numpy"):
        return False
    given = node.args[0]
    if isinstance(given, ast.Call):
        return getattr(given.func, "attr", "") in ("cpu", "detach", "numpy")
    return isinstance(given, (ast.Attribute, ast.Name, ast.Subscript))


def _stripped(node: ast.expr) -> ast.expr:
    """``t`` for ``t.detach().cpu().numpy()``, ``t.item()``, ``float(t)``."""
    reads = False
    while True:
        inner = detached(node)
        if inner is not None:
            node = inner
            continue
        if not isinstance(node, ast.Call):
            return node
        to_float = isinstance(node.func, ast.Name) and node.func.id == "float"
        if (to_float and len(node.args) == 1) or _is_as_array(node):
            node, reads = node.args[0], True
        elif isinstance(node.func, ast.Attribute) and not node.args and not node.keywords:
            if node.func.attr in ("item", "tolist", "numpy"):
                reads = True
            elif node.func.attr != "cpu" or not reads:
                return node
            node = node.func.value
        else:
            return node
