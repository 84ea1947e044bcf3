"""TRN505 and TRN506: activation checkpointing that records no gradient."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.frozen import freezes, is_false, is_frozen
from ..facts.grad_mode import no_grad_scope
from ..facts.guards import gradient_unwanted
from ..facts.layers import made_by
from ..facts.names import is_none, parameters, passed, self_name
from ..facts.walk import walk
from ..findings import STRATEGIES, Edit, Finding, Fix
from . import Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.flow import Definition
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN505",
        name="reentrant-checkpoint",
        summary="A reentrant checkpoint gets no input that requires a gradient.",
        why=(
            "With `use_reentrant=True`, the default where nothing is said, the output of a "
            "checkpoint requires a gradient only if an input tensor does. Behind a frozen "
            "embedding none does, so the weights inside (LoRA adapters, say) get no gradient: "
            "PyTorch warns that none of the inputs have requires_grad=True, and backward() either "
            "raises or trains what comes after only. `use_reentrant=False` looks at the weights."
        ),
        before="""\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 8).requires_grad_(False)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=True)
        return h
""",
        after="""\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 8).requires_grad_(False)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False)
        return h
""",
    ),
    Rule(
        code="TRN506",
        name="remembered-requires-grad",
        summary="Whether the first layer is trained is remembered, and used for every layer.",
        why=(
            "A wrapper asks one layer whether it has weights to train, keeps the answer, and "
            "checkpoints all others by it. Behind a frozen first layer the trained ones get no "
            "gradient. The question is cheap: ask it for each layer."
        ),
        before="""\
from torch.utils.checkpoint import checkpoint


class Checkpointed:
    def __init__(self):
        self.trained = None

    def __call__(self, layer, h):
        if self.trained is None:
            self.trained = any(p.requires_grad for p in layer.parameters())
        if self.trained and not h.requires_grad:
            h = h.detach().requires_grad_(True)
        return checkpoint(layer, h, use_reentrant=True)
""",
        after="",
    ),
)

NEEDLES: tuple[Needle, ...] = (b"utils.checkpoint", b"utils import checkpoint")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    if not _MADE_TO_REQUIRE.search(module.usual):
        for call in module.calls:
            finding = _reentrant(module, call)
            if finding is not None:
                yield finding
    if "requires_grad" in module.usual:
        for function in module.functions:
            yield from _remembered(module, function)


# -- TRN505: reentrant checkpoints ----------------------------------------------------------------

_MADE_TO_REQUIRE = re.compile(
    r"enable_input_require_grads|make_inputs_require_grad|"
    r"requires_grad_\((True)?\)|\.requires_grad\s*=\s*True"
)
"""What makes inputs require a gradient after all, or trains what was frozen."""

_RAW = re.compile(r"(pixel_values|input_(ids|features|values)|(token|word)_ids|ids)$")
_NEVER = re.compile(
    r"(^|_)(mask|masks|ids|positions?|position_ids|cos|sin|freqs|freqs_cis|rope|rotary|cache|"
    r"past|past_key_values?|use_cache|output_\w+|lengths?|seq_?lens?|cu_seqlens|max_seqlen|"
    r"shape|size|height|width|index|indices|idx|level_start_index|training|deterministic)$"
)
_SHAPING = frozenset(
    "to view reshape transpose permute contiguous flatten unsqueeze squeeze expand float half "
    "bfloat16 double type type_as cuda cpu clone repeat chunk split mul div add sub".split()
)
_FUNCTIONAL = re.compile(
    r"torch\.(nn\.functional\.)?(dropout|relu|gelu|silu|tanh|cat|stack|flatten|pad|interpolate|"
    r"normalize|transpose|permute|reshape|zeros|ones|arange|randn|rand|full|empty|zeros_like|"
    r"ones_like|randn_like|full_like|concat)$"
)


def _reentrant(module: ModuleFacts, call: ast.Call) -> Finding | None:
    names = [t for t in module.resolve(call.func) if t.name.startswith("torch.utils.checkpoint.")]
    target = next((t for t in names if t.name.rpartition(".")[2] in _INPUTS), None)
    if target is None or any(k.arg is None for k in call.keywords):
        return None
    mode = [k.value for k in call.keywords if k.arg == "use_reentrant"]
    bound = [k.value for k in target.keywords if k.arg == "use_reentrant"]
    if not all(_may_be_default(value) for value in (mode or bound)):
        return None
    function = module.function(call)
    if function is None or gradient_unwanted(module, call) or _asks_for_grad(module, call):
        return None
    cut = _Cut(module, call, function)
    inputs = (*target.args, *call.args)[_INPUTS[target.name.rpartition(".")[2]] :]
    if not all(cut.without_gradient(value) for value in inputs) or cut.runs_no_weights():
        return None
    if not inputs:
        reason = "It gets no input at all"
    elif cut.reasons:
        reason = next(iter(cut.reasons))
    else:
        return None
    name = module.source(call.func)
    message = (
        f"{reason}, so nothing that goes into this reentrant `{name}` requires a gradient, and "
        "the weights inside get none."
    )
    fix = None if not mode and bound else Fix("Use use_reentrant=False", _turn_off(module, call))
    return module.finding("TRN505", message, call, dict.fromkeys(STRATEGIES, fix) if fix else {})


_INPUTS = {"checkpoint": 1, "checkpoint_sequential": 2}
"""Where the inputs begin among the arguments."""


def _asks_for_grad(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a test around a checkpoint sees to its inputs: ``if h.requires_grad:``."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "requires_grad"
        for around in module.ancestors(call)
        if isinstance(around, (ast.If, ast.IfExp))
        for node in walk(around.test)
    )


def _may_be_default(value: ast.expr) -> bool:
    return is_none(value) or (isinstance(value, ast.Constant) and value.value is True)


def _turn_off(module: ModuleFacts, call: ast.Call) -> tuple[Edit, ...]:
    for keyword in call.keywords:
        if keyword.arg == "use_reentrant":
            return (Edit(module.start(keyword.value), module.end(keyword.value), "False"),)
    last = max(module.end(node) for node in passed(call))
    closed = _CLOSED.match(module.text, last, module.end(call) - 1)
    assert closed is not None
    return (Edit(closed.end(), closed.end(), ", use_reentrant=False"),)


_CLOSED = re.compile(r"(\s*\))*")
"""The parentheses around an argument, which are not part of it."""


class _Cut:
    """Why the inputs of one checkpoint carry no gradient."""

    def __init__(self, module: ModuleFacts, call: ast.Call, function: FunctionNode) -> None:
        self.module = module
        self.call = call
        self.flow = module.flow(function)
        self.cls = self._class(function)
        self.reasons: dict[str, None] = {}
        self._asked: set[Definition] = set()

    def _class(self, function: FunctionNode) -> ast.ClassDef | None:
        me = self_name(function)
        return self.module.method_class(function) if me is not None else None

    def without_gradient(self, node: ast.expr, at: ast.stmt | None = None) -> bool:
        """Whether a value surely requires no gradient; ``reasons`` get what was found on the way.

        In a loop the first turn decides: where its input has none, its output has none either.
        """
        at = at or self.module.statement(node)
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, (ast.Compare, ast.JoinedStr)):
            return True
        if isinstance(node, ast.UnaryOp):
            return self.without_gradient(node.operand, at)
        if isinstance(node, ast.BinOp):
            return self.without_gradient(node.left, at) and self.without_gradient(node.right, at)
        if isinstance(node, (ast.Tuple, ast.List)):
            return all(self.without_gradient(element, at) for element in node.elts)
        if isinstance(node, ast.Subscript):
            return self.without_gradient(node.value, at)
        if isinstance(node, ast.Name):
            return self._name(node, at)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._result(node, at)
        return False

    def _name(self, node: ast.Name, at: ast.stmt) -> bool:
        if not self.flow.is_local(node.id):
            return False
        found = self.flow.reaching(node.id, at)
        first = [d for d in found if self._comes_first(d, at)]
        return bool(found) and all(self._definition(d) for d in first or found)

    def _comes_first(self, definition: Definition, at: ast.stmt) -> bool:
        """Whether a definition reaches ``at`` without another turn of a loop."""
        made = definition.statement
        if made is None:
            return True
        if made.lineno >= at.lineno:
            return False
        around = {a: child for child, a in self._steps(made) if isinstance(a, ast.If)}
        return all(
            (around[a] in a.body) is (child in a.body)
            for child, a in self._steps(at)
            if isinstance(a, ast.If) and a in around
        )

    def _steps(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(child, parent) from a statement outwards."""
        for parent in self.module.ancestors(node):
            yield node, parent
            node = parent

    def _definition(self, definition: Definition) -> bool:
        if definition in self._asked:
            return True
        self._asked.add(definition)
        name, statement = definition.name, definition.statement
        if statement is None:
            if _RAW.match(name):
                self.reasons.setdefault(f"`{name}` is an input of the model")
                return True
            return bool(_NEVER.search(name))
        if definition.value is None:
            return False
        scopes = [a for a in self.module.ancestors(statement) if isinstance(a, ast.With)]
        for scope in scopes:
            if any(no_grad_scope(self.module, item.context_expr, scope) for item in scope.items):
                self.reasons.setdefault(f"`{name}` is computed without gradients")
                return True
        return self.without_gradient(definition.value, statement)

    def _attribute(self, node: ast.Attribute) -> bool:
        if node.attr in ("shape", "dtype", "device", "training", "is_causal"):
            return True
        if node.attr == "data":
            self.reasons.setdefault(f"`{self.module.source(node)}` is detached")
            return True
        return bool(_NEVER.search(node.attr)) and not self._is_weight(node)

    def _is_weight(self, node: ast.Attribute) -> bool:
        found = self.module.names.attributes(self.cls).get(node.attr, ()) if self.cls else ()
        return any(b.value is not None and made_by(self.module, b.value) for b in found)

    def _result(self, call: ast.Call, at: ast.stmt) -> bool:
        function = call.func
        arguments = passed(call)
        if isinstance(function, ast.Attribute):
            layer = self._layer(function)
            if layer == "frozen":
                text = self.module.source(function)
                if self._is_embedding(function):
                    self.reasons.setdefault(f"`{text}` is frozen")
                    return True
                if all(self.without_gradient(a, at) for a in arguments):
                    self.reasons.setdefault(f"`{text}` is frozen")
                    return True
                return False
            if layer == "plain":
                return all(self.without_gradient(a, at) for a in arguments)
            if function.attr == "detach":
                self.reasons.setdefault(f"`{self.module.source(call)}` is detached")
                return True
            names = {t.name for t in self.module.resolve(function)}
            if any(_FUNCTIONAL.match(name) for name in names):
                return not _requires(call) and all(self.without_gradient(a, at) for a in arguments)
            if function.attr in _SHAPING and not self._is_self(function.value):
                return self.without_gradient(function.value, at)
            if function.attr in ("size", "dim", "numel"):
                return True
        return False

    def _is_self(self, node: ast.expr) -> bool:
        return self.module.names.self_class(node) is not None

    def _layer(self, node: ast.Attribute) -> str | None:
        """``frozen`` for such a module, ``plain`` for one without weights; None for all others."""
        if self.cls is None or not self._is_self(node.value):
            return None
        if is_frozen(self.module, self.cls, node.attr):
            return "frozen"
        found = self.module.names.attributes(self.cls).get(node.attr, ())
        made = [made_by(self.module, b.value) for b in found if b.value is not None]
        return "plain" if made and all(each == "plain" for each in made) else None

    def _is_embedding(self, node: ast.Attribute) -> bool:
        """Whether a module takes indices, which never require a gradient."""
        assert self.cls is not None
        for binding in self.module.names.attributes(self.cls).get(node.attr, ()):
            for call in walk(binding.value) if binding.value is not None else ():
                if isinstance(call, ast.Call) and self.module.is_name(
                    call.func,
                    *("torch.nn.Embedding", "torch.nn.EmbeddingBag"),
                    "torch.nn.Embedding.from_pretrained",
                ):
                    return True
        return False

    def runs_no_weights(self) -> bool:
        """Whether what is checkpointed is frozen itself, or has nothing to train."""
        if not self.call.args or self.cls is None:
            return True
        names = {n.attr for n in walk(self.call.args[0]) if isinstance(n, ast.Attribute)}
        for loop in self.module.ancestors(self.call):
            if isinstance(loop, ast.For):
                names |= {n.attr for n in walk(loop.iter) if isinstance(n, ast.Attribute)}
        if any(is_frozen(self.module, self.cls, name) for name in names):
            return True
        return any(
            freezes(call)
            and isinstance(call.func, ast.Attribute)
            and self._is_self(call.func.value)
            for call in walk(self.cls)
            if isinstance(call, ast.Call)
        )


def _requires(call: ast.Call) -> bool:
    return any(k.arg == "requires_grad" and not is_false(k.value) for k in call.keywords)


# -- TRN506: one layer's answer for all -----------------------------------------------------------


def _remembered(module: ModuleFacts, function: FunctionNode) -> Iterator[Finding]:
    """Statements that keep what one layer's ``requires_grad`` says for the next call."""
    me = self_name(function) if module.method_class(function) is not None else None
    layers = {a.arg for a in parameters(function.args)} - {me}
    for node in walk(function):
        if not isinstance(node, ast.stmt) or module.function(node) is not function:
            continue
        kept = _kept(node)
        if kept is None:
            continue
        memo, value = kept
        layer = _asked_layer(value, layers)
        if layer is None or not _outlives(function, memo, me):
            continue
        name = ast.unparse(memo)
        if _asks_whether_known(function, name) and _is_used(function, node, name):
            if _runs_checkpoint(module, function):
                yield module.finding("TRN506", _memo_message(name, layer), node)


def _memo_message(name: str, layer: str) -> str:
    return (
        f"`{name}` remembers whether the first `{layer}` has weights to train, and every later "
        f"`{layer}` is treated like it: where that one is frozen, the others get no gradient. Ask "
        "each one."
    )


def _kept(statement: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """(where, what) a statement keeps: an assignment, or ``memo.append(x)``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return statement.targets[0], statement.value
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return statement.target, statement.value
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and call.args:
            return call.func.value, call.args[0]
    return None


def _asked_layer(value: ast.expr, layers: set[str]) -> str | None:
    """The parameter whose weights are asked: ``any(p.requires_grad for p in l.parameters())``."""
    if not any(isinstance(n, ast.Attribute) and n.attr == "requires_grad" for n in walk(value)):
        return None
    for node in walk(value):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in layers and node.attr in (
                "parameters",
                "weight",
                "named_parameters",
            ):
                return node.value.id
    return None


def _outlives(function: FunctionNode, memo: ast.expr, me: str | None) -> bool:
    """Whether a place is there for the next call too, and is the same whatever the layer."""
    if isinstance(memo, ast.Subscript):
        return isinstance(memo.slice, ast.Constant) and _outlives(function, memo.value, me)
    if isinstance(memo, ast.Attribute):
        return isinstance(memo.value, ast.Name) and memo.value.id in (me, function.name)
    if not isinstance(memo, ast.Name):
        return False
    shared = [n for n in walk(function) if isinstance(n, (ast.Global, ast.Nonlocal))]
    if any(memo.id in node.names for node in shared):
        return True
    bound = {a.arg for a in parameters(function.args)} | {
        n.id for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return memo.id not in bound


def _asks_whether_known(function: FunctionNode, memo: str) -> bool:
    """Whether a test of the function asks if there is an answer already."""
    tests = [n.test for n in walk(function) if isinstance(n, (ast.If, ast.IfExp, ast.While))]
    tests += [n.values[0] for n in walk(function) if isinstance(n, ast.BoolOp)]
    return any(_is_question(part, memo) for test in tests for part in walk(test))


def _is_question(test: ast.AST, memo: str) -> bool:
    owner, _, last = memo.rpartition(".")
    if isinstance(test, ast.Compare) and len(test.comparators) == 1:
        left, right = test.left, test.comparators[0]
        if isinstance(test.ops[0], (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)) and is_none(right):
            return ast.unparse(left) in (memo, f"{memo}[0]")
        if isinstance(test.ops[0], (ast.In, ast.NotIn)) and isinstance(left, ast.Constant):
            return memo == f"{ast.unparse(right)}[{left.value!r}]"
        return isinstance(left, ast.Call) and ast.unparse(left) == f"len({memo})"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand) == memo
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "hasattr":
        return ast.unparse(test) == f"hasattr({owner}, {last!r})"
    return False


def _is_used(function: FunctionNode, keeping: ast.stmt, memo: str) -> bool:
    """Whether the answer is read, other than to see if there is one."""
    inside = set(walk(keeping))
    questions = {part for node in walk(function) if _is_question(node, memo) for part in walk(node)}
    return any(
        isinstance(node, ast.expr)
        and isinstance(getattr(node, "ctx", None), ast.Load)
        and node not in inside
        and node not in questions
        and ast.unparse(node) == memo
        for node in walk(function)
    )


def _runs_checkpoint(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether the function, or another one of its class or around it, checkpoints."""
    around: ast.AST = module.method_class(function) or module.function(function) or function
    return any(
        isinstance(node, ast.Call)
        and any(t.name.rpartition(".")[2] in _INPUTS for t in module.resolve(node.func))
        for node in walk(around)
    )
