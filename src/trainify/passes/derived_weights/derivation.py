"""How a value is computed from weights."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.frozen import is_false, is_frozen
from ...facts.grad_mode import no_grad_scope
from ...facts.graph import Graph, results
from ...facts.guards import gradient_unwanted
from ...facts.layers import made_by
from ...facts.names import last_name

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

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


@dataclass(frozen=True)
class Place:
    """Where an attribute or a buffer gets its value."""

    statement: ast.stmt
    value: ast.expr
    is_buffer: bool = False


@dataclass
class Derivation:
    """How a value is computed from weights."""

    module: ModuleFacts
    cls: ast.ClassDef
    place: Place
    known: bool = False
    """Whether a run has shown that it is, so that the file need not show what learns."""
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
        if self.known:
            return True
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


def is_pure(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call gives the same for the same, each time: what computes weights from others."""
    function = call.func
    if isinstance(function, ast.Name) and function.id in ("len", "int", "float", "tuple", "list"):
        return True
    if any(_FUNCTIONS.match(target.name) for target in module.resolve(function)):
        return True
    if Graph(module, module.function(call) or module.tree).callee(call) is not None:
        return True  # of the file: what it returns was followed
    return isinstance(function, ast.Attribute) and (
        function.attr in _VIEWS
        or function.attr in _MORE
        or function.attr in ("detach", "contiguous", "size", "dim", "numel")
    )


def _is_linear(value: ast.expr) -> bool:
    """A library's own linear layer: ``ColumnParallelLinear(...)``."""
    function = value.func if isinstance(value, ast.Call) else None
    name = last_name(function)
    return str(name).endswith(("Linear", "Embedding"))
