"""Whose gradient a value carries, and where it is cut off: ``detach``, ``item``, ``torch.tensor``.

The answers of :class:`Gradients` lean to one side: what is not understood may carry any gradient.
So a weight that no value carries surely gets none, and a cut that is sure is one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from .carried import Carried, Cut, Network, blurred, either, together
from .differentiation import (
    MAKES_TENSOR,
    NUMBER,
    PASSED_ON,
    TENSOR,
    UNKNOWN,
    WITH_INDICES,
    cut,
    is_loss,
    of_builtin,
    of_method,
    of_numpy,
    of_torch,
)
from .flow import Definition
from .layers import imported_function
from .names import is_none, last_name, parameters, passed, self_name
from .trainable import is_trainable, local_class, weights_made
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


_MAX_DEPTH = 3
_MAX_STEPS = 800
"""Expressions looked at for one question; what is not done by then is not understood."""

_SHAPES = frozenset("shape dtype device ndim requires_grad is_cuda".split())
_SAME = frozenset({"T", "mT", "H", "mH", "real", "imag", "values"})
_MODEL_NAME = re.compile(r"(^|_)(model|net|network|policy|encoder|decoder|classifier)$")
_PARAMETER = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
_LOSS = re.compile(r"torch\.nn\.(functional\.\w+|[A-Z]\w*Loss$|modules\.loss\.\w+)")
_LOSS_START = re.compile(r"(^|_)(loss|losses|objective)(_|$)|^total$")
_LABEL = re.compile(r"(^|_)(y|labels?|targets?|gt|truth)(_|$)", re.IGNORECASE)
_PLAIN_MODULE = re.compile(r"torch\.nn\.(modules\.\w+\.)?(?!\w*Loss$)[A-Z]\w*$")


@dataclass
class _Shared:
    """What a question and those that it leads to have in common."""

    steps: int = _MAX_STEPS
    foreign: bool = True
    """Whether functions of other files are followed."""
    trainable: dict[ast.ClassDef, bool] = field(default_factory=dict)
    gives_tensor: dict[ast.ClassDef, bool] = field(default_factory=dict)


class Gradients:
    """The gradients that the values of one function carry.

    ``arguments``: what is known of the function's parameters.
    """

    def __init__(
        self,
        module: ModuleFacts,
        function: FunctionNode | ast.Module,
        arguments: Mapping[str, Carried] | None = None,
        outer: Gradients | None = None,
        foreign: bool = True,
    ) -> None:
        self.module = module
        self.function = function
        self.flow = module.flow(function)
        self.arguments = arguments or {}
        self._depth: int = outer._depth + 1 if outer is not None else 0
        self._shared: _Shared = outer._shared if outer is not None else _Shared(foreign=foreign)
        self._local: dict[str, bool] = {}
        self._active: set[Definition] = set()
        self._memo: dict[Definition, Carried] = {}
        self._cycles = 0

    # -- results --------------------------------------------------------------------------------

    def returned(self) -> list[Carried]:
        """What each ``return`` with a value hands out."""
        return [
            self.value(node.value, node)
            for node in self.own_statements
            if isinstance(node, ast.Return) and node.value is not None and not is_none(node.value)
        ]

    def escaping(self) -> frozenset[str]:
        """Weights whose gradient leaves the function by another way than ``return``."""
        found: set[str] = set()
        for node in self.own_statements:
            if isinstance(node, ast.Expr) and not self._is_local_write(node):
                found |= self._anywhere(node.value, node)
            elif isinstance(node, ast.Assign):
                if any(self._is_outside(target) for target in node.targets):
                    found |= self._anywhere(node.value, node)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found |= self._anywhere(node, node)
        for inner in walk(self.function):
            if isinstance(inner, ast.Lambda):
                found |= self._anywhere(inner, self.module.statement(inner))
        return frozenset(found)

    @cached_property
    def own_statements(self) -> list[ast.stmt]:
        """The function's statements without those of functions inside it."""
        found: list[ast.stmt] = []
        stack: list[ast.AST] = list(reversed(self.function.body))
        while stack:
            node = stack.pop()
            if isinstance(node, ast.stmt):
                found.append(node)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    continue
            inner = [
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
            ]
            stack.extend(reversed(inner))
        return found

    def _anywhere(self, node: ast.AST, at: ast.stmt) -> frozenset[str]:
        """The weights of every value mentioned below a node."""
        found: frozenset[str] = frozenset()
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Load):
                found |= self.value(inner, at).weights
            elif isinstance(inner, ast.Call):
                network = self.network(inner.func, at)
                if network is not None:
                    found |= {network.key}
        return found

    def _is_outside(self, target: ast.expr) -> bool:
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, (ast.Tuple, ast.List)):
            return any(self._is_outside(element) for element in target.elts)
        return not (isinstance(target, ast.Name) and self._is_local(target.id))

    def _is_local(self, name: str) -> bool:
        if name not in self._local:
            self._local[name] = self.flow.is_local(name)
        return self._local[name]

    def _trainable(self, cls: ast.ClassDef) -> bool:
        known = self._shared.trainable
        if cls not in known:
            known[cls] = is_trainable(self.module, cls)
        return known[cls]

    def _is_local_write(self, node: ast.Expr) -> bool:
        """``name.append(x)``, of a list made here."""
        call = node.value
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("append", "extend", "insert")
            and isinstance(call.func.value, ast.Name)
            and self._is_local(call.func.value.id)
            and call.func.value.id not in self.flow.parameters
        )

    # -- expressions ----------------------------------------------------------------------------

    def value(
        self,
        node: ast.expr | None,
        at: ast.stmt,
        scope: Mapping[str, Carried | Network] | None = None,
    ) -> Carried:
        """What an expression in the statement ``at`` carries; ``scope`` holds a comprehension's."""
        self._shared.steps -= 1
        if self._shared.steps < 0:
            return UNKNOWN
        scope = scope or {}
        if node is None or isinstance(node, (ast.Constant, ast.JoinedStr, ast.Compare)):
            return NUMBER
        if isinstance(node, ast.Name):
            return self._name(node, at, scope)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, at, scope)
        if isinstance(node, ast.Call):
            return self._call(node, at, scope)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, (ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor)):
                return blurred([self.value(n, at, scope) for n in (node.left, node.right)])
            return together([self.value(n, at, scope) for n in (node.left, node.right)])
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, (ast.Not, ast.Invert)):
                return UNKNOWN
            return self.value(node.operand, at, scope)
        if isinstance(node, ast.IfExp):
            return either([self.value(n, at, scope) for n in (node.body, node.orelse)])
        if isinstance(node, ast.BoolOp):
            return either([self.value(n, at, scope) for n in node.values])
        if isinstance(node, (ast.NamedExpr, ast.Starred)):
            return self.value(node.value, at, scope)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, at, scope)
        if isinstance(node, (ast.Tuple, ast.List)):
            return together([self.value(n, at, scope) for n in node.elts])
        if isinstance(node, ast.Dict):
            return together([self.value(n, at, scope) for n in node.values])
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            inner = dict(scope)
            for generator in node.generators:
                inner.update(self._bound(generator.target, generator.iter, at, inner))
            return self.value(node.elt, at, inner)
        return UNKNOWN

    def _subscript(
        self, node: ast.Subscript, at: ast.stmt, scope: Mapping[str, Carried | Network]
    ) -> Carried:
        index = node.slice
        if isinstance(node.value, ast.Call) and isinstance(index, ast.Constant):
            if isinstance(index.value, int):
                return self._element(node.value, index.value, at, scope)
        return self.value(node.value, at, scope)

    def _name(
        self, node: ast.Name, at: ast.stmt, scope: Mapping[str, Carried | Network]
    ) -> Carried:
        if node.id in scope:
            bound = scope[node.id]
            return bound if isinstance(bound, Carried) else UNKNOWN
        if not self._is_local(node.id):
            return UNKNOWN
        reaching = self.flow.reaching(node.id, at)
        looped = [d for d in reaching if self._in_loop_over_modules(d, at)]
        found = [self._definition(d) for d in looped or reaching]
        if not found:
            return UNKNOWN
        known = [f for f in found if f is not None]
        value = either(known) if known else NUMBER
        for statement, written, adds in self._writes.get(node.id, ()):
            if statement is at or not self._same_object(node.id, statement, at):
                continue
            if written is None:
                value = replace(value, known=False)
                continue
            more = self._guarded(statement, node.id, written)
            if more is not None:
                value = together([value, more if adds else replace(more, sure=False)])
        return value

    def _in_loop_over_modules(self, definition: Definition, at: ast.stmt) -> bool:
        """Whether a value is made in ``for layer in self.layers``, which runs at least once."""
        if definition.statement is None:
            return False
        loop = self.module.parent(definition.statement)
        if not isinstance(loop, ast.For) or loop in self.module.ancestors(at):
            return False
        bound = self._bound(loop.target, loop.iter, loop, {})
        return any(isinstance(value, Network) for value in bound.values())

    def _same_object(self, name: str, first: ast.stmt, last: ast.stmt) -> bool:
        return bool(self.flow.reaching(name, first) & self.flow.reaching(name, last))

    def _guarded(self, statement: ast.stmt, name: str, written: ast.expr) -> Carried | None:
        return self._definition(Definition(name, statement, written))

    def _definition(self, definition: Definition) -> Carried | None:
        """None where the value is computed from itself, and that says nothing new."""
        if definition in self._memo:
            return self._memo[definition]
        if definition in self._active:
            self._cycles += 1
            return None
        cycles = self._cycles
        self._active.add(definition)
        try:
            value = self._defined(definition)
        finally:
            self._active.discard(definition)
        if self._cycles == cycles:
            self._memo[definition] = value
        return value

    def _defined(self, definition: Definition) -> Carried:
        statement = definition.statement
        if statement is None:
            return self.arguments.get(definition.name, UNKNOWN)
        if definition.value is None:
            if isinstance(statement, (ast.For, ast.AsyncFor)):
                bound = self._bound(statement.target, statement.iter, statement, {})
                value = bound.get(definition.name)
                return value if isinstance(value, Carried) else UNKNOWN
            return UNKNOWN
        if definition.index is not None:
            return self._element(definition.value, definition.index, statement, {})
        return self.value(definition.value, statement)

    @cached_property
    def _writes(self) -> dict[str, list[tuple[ast.stmt, ast.expr | None, bool]]]:
        """What statements add to a name's value: ``x += y``, ``xs.append(y)``, ``x[i] = y``.

        The value is None where anything may come of it; the last says that it surely gets in.
        """
        found: dict[str, list[tuple[ast.stmt, ast.expr | None, bool]]] = {}
        for node in self.own_statements:
            if isinstance(node, ast.AugAssign):
                name = _base(node.target)
                adds = isinstance(node.target, ast.Name)
                found.setdefault(name, []).append((node, node.value, adds))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Subscript):
                        found.setdefault(_base(target), []).append((node, node.value, False))
                    elif isinstance(target, ast.Attribute):
                        found.setdefault(_base(target), []).append((node, None, False))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                function = node.value.func
                if isinstance(function, ast.Attribute):
                    name, arguments = _base(function.value), passed(node.value)
                    if function.attr in ("append", "extend") and len(arguments) == 1:
                        found.setdefault(name, []).append((node, arguments[0], True))
                    elif name != "self" and function.attr != "backward":
                        found.setdefault(name, []).append((node, None, False))
        return found

    # -- attributes -----------------------------------------------------------------------------

    def _attribute(
        self, node: ast.Attribute, at: ast.stmt, scope: Mapping[str, Carried | Network]
    ) -> Carried:
        if isinstance(node.value, ast.Name):
            cls = self.module.names.self_class(node.value)
            if cls is not None:
                return self._of_self(cls, node.attr)
        if node.attr in _SHAPES:
            return NUMBER
        network = self.network(node.value, at, scope)
        if network is not None:
            return Carried(frozenset({network.key}), sure=node.attr in ("weight", "bias"))
        inner = self.value(node.value, at, scope)
        if node.attr == "data":
            return cut(node, inner, "detach")
        return inner if node.attr in _SAME else blurred([inner])

    def _of_self(self, cls: ast.ClassDef, name: str) -> Carried:
        """What ``self.name`` carries, from what the class assigns to it."""
        values = self._assigned(cls, name)
        if values and self._trainable(cls):
            if all(
                isinstance(value, ast.Call) and self.module.is_name(value.func, *_PARAMETER)
                for value in values
            ):
                return Carried(frozenset({f"{cls.name}.{name}"}), sure=True)
        if values and all(isinstance(value, ast.Constant) for value in values):
            return NUMBER
        return UNKNOWN

    def _assigned(self, cls: ast.ClassDef, name: str) -> list[ast.expr]:
        """The values that an attribute gets; empty where they are not all there."""
        bindings = self.module.names.attributes(cls).get(name, ())
        values = [binding.value for binding in bindings]
        present = [value for value in values if value is not None and not is_none(value)]
        return present if None not in values else []

    # -- networks -------------------------------------------------------------------------------

    def network(
        self,
        node: ast.expr,
        at: ast.stmt,
        scope: Mapping[str, Carried | Network] | None = None,
    ) -> Network | None:
        """The module with weights that an expression stands for."""
        scope = scope or {}
        if isinstance(node, ast.Subscript):
            return self.network(node.value, at, scope)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            cls = self.module.names.self_class(node.value)
            if cls is None or not self._trainable(cls):
                return self._trained(node.attr) if cls is not None else None
            return self._made(f"{cls.name}.{node.attr}", self._assigned(cls, node.attr))
        if not isinstance(node, ast.Name):
            return None
        if node.id in scope:
            bound = scope[node.id]
            return bound if isinstance(bound, Network) else None
        if not self._is_local(node.id):
            return self._global(node) or self._trained(node.id)
        definition = self.flow.only_definition(node.id, at)
        if definition is None:
            return None
        statement = definition.statement
        if statement is None:
            return self._trained(node.id)
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            inner = self._bound(statement.target, statement.iter, statement, {}).get(node.id)
            return inner if isinstance(inner, Network) else None
        if definition.value is None or definition.index is not None:
            return None
        if isinstance(definition.value, ast.Call):
            return self._made(node.id, [definition.value]) or self._trained(node.id)
        return self.network(definition.value, statement)

    def _global(self, node: ast.Name) -> Network | None:
        """A model made once at the top of the file."""
        bindings = self.module.names.bindings(self.module.tree).get(node.id, [])
        values = [b.value for b in bindings if b.value is not None]
        return self._made(node.id, values) if len(values) == len(bindings) else None

    def _trained(self, name: str) -> Network | None:
        """``model`` in a function that calls ``backward`` on what it computes with it."""
        return Network(name, ()) if self._trains and _MODEL_NAME.search(name) else None

    @cached_property
    def _trains(self) -> bool:
        return ".backward(" in self.module.text and any(
            isinstance(node, ast.Attribute) and node.attr == "backward"
            for node in ast.walk(self.function)
        )

    def _made(self, key: str, values: Sequence[ast.expr]) -> Network | None:
        calls: list[ast.Call] = []
        for value in values:
            made = list(weights_made(self.module, value))
            if not made:
                return None
            calls += made
        return Network(key, tuple(calls)) if calls else None

    def _bound(
        self,
        target: ast.expr,
        iterated: ast.expr,
        at: ast.stmt,
        scope: Mapping[str, Carried | Network],
    ) -> dict[str, Carried | Network]:
        """What the names of a loop's target stand for."""
        names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name):
            kind = iterated.func.id
            if kind == "range":
                return dict.fromkeys(names, NUMBER)
            if kind in ("enumerate", "zip") and isinstance(target, ast.Tuple):
                found: dict[str, Carried | Network] = dict.fromkeys(names, UNKNOWN)
                parts = target.elts if kind == "zip" else target.elts[1:]
                if kind == "enumerate" and isinstance(target.elts[0], ast.Name):
                    found[target.elts[0].id] = NUMBER
                for part, source in zip(parts, iterated.args, strict=False):
                    found.update(self._bound(part, source, at, scope))
                return found
            if kind in ("reversed", "list", "tuple", "iter") and iterated.args:
                return self._bound(target, iterated.args[0], at, scope)
        if isinstance(target, ast.Name):
            network = self.network(iterated, at, scope)
            return {target.id: network or self.value(iterated, at, scope)}
        value = replace(self.value(iterated, at, scope), sure=False)
        return dict.fromkeys(names, value)

    # -- calls ----------------------------------------------------------------------------------

    def _call(
        self, node: ast.Call, at: ast.stmt, scope: Mapping[str, Carried | Network]
    ) -> Carried:
        network = self.network(node.func, at, scope)
        if network is not None:
            inputs = [self.value(a, at, scope) for a in passed(node)]
            weights = Carried(frozenset({network.key}), sure=self._gives_tensors(network))
            return together([weights, *inputs])
        if isinstance(node.func, ast.Attribute):
            method = self._method(node.func)
            if method is not None:
                return self._inlined(method, node, at, scope, None)
        if isinstance(node.func, ast.Name):
            own = self.module.names.self_class(node.func)
            forward = _method_of(own, "forward") if own is not None else None
            if forward is not None:
                return self._inlined(forward, node, at, scope, None)
        maker = self._maker(node.func, at)
        if maker is not None:
            called = self._call_of_module(maker, node, at, scope)
            if called is not None:
                return called
        if isinstance(node.func, (ast.Name, ast.Attribute)):
            names = {t.name for t in self.module.resolve(node.func)}
            torch = next((n for n in names if n.startswith("torch.")), None)
            if torch is not None:
                return self._torch(torch, node, at, scope)
            numpy = next((n for n in names if n.startswith("numpy.")), None)
            if numpy is not None:
                values = [self.value(a, at, scope) for a in passed(node)]
                return of_numpy(numpy.rpartition(".")[2], node, values)
            function = self._local_function(names)
            if function is not None:
                return self._inlined(function, node, at, scope, None)
            if self._shared.foreign and self._name_of(node) in self.module.cutting_imports:
                imported = imported_function(self.module, node.func)
                if imported is not None:
                    return self._from_elsewhere(*imported, node, at, scope)
        if isinstance(node.func, ast.Name):
            return self._builtin(node.func.id, node, at, scope)
        if isinstance(node.func, ast.Attribute):
            return self._method_of_tensor(node.func, node, at, scope)
        return self._opaque(node, at, scope)

    def _maker(self, node: ast.expr, at: ast.stmt) -> ast.Call | None:
        """The one call that makes what a name or an attribute of ``self`` stands for."""
        values: list[ast.expr] = []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            cls = self.module.names.self_class(node.value)
            values = self._assigned(cls, node.attr) if cls is not None else []
        elif isinstance(node, ast.Name) and self._is_local(node.id):
            definition = self.flow.only_definition(node.id, at)
            if definition is not None and definition.value is not None:
                values = [definition.value] if definition.index is None else []
        elif isinstance(node, ast.Name):
            bindings = self.module.names.bindings(self.module.tree).get(node.id, [])
            values = [b.value for b in bindings if b.value is not None and len(bindings) == 1]
        made = node if isinstance(node, ast.Call) else values[0] if len(values) == 1 else None
        return made if isinstance(made, ast.Call) else None

    def _call_of_module(
        self,
        maker: ast.Call,
        node: ast.Call,
        at: ast.stmt,
        scope: Mapping[str, Carried | Network],
    ) -> Carried | None:
        """What a module without weights gives: an activation, a loss, one of this file."""
        cls = local_class(self.module, maker.func)
        if cls is not None:
            forward = _method_of(cls, "forward")
            return self._inlined(forward, node, at, scope, None) if forward is not None else None
        names = [t.name for t in self.module.resolve(maker.func)]
        values = [self.value(a, at, scope) for a in passed(node)]
        if values and any(_LOSS.match(name) for name in names):
            return self._loss(node, values, at)
        if values and any(_PLAIN_MODULE.match(name) for name in names):
            if not any(isinstance(n, ast.Call) for a in passed(maker) for n in ast.walk(a)):
                return replace(values[0], plain=False)
        return None

    def _loss(self, node: ast.Call, values: Sequence[Carried], at: ast.stmt) -> Carried:
        """What a loss of predictions and labels carries."""
        if len(node.args) == 2 and self._is_label(node.args[1], at):
            sure = frozenset(cut for cut in values[0].cuts if cut.sure)
            if sure or not values[0].nothing:
                return replace(together([values[0], *values[2:]]), cuts=sure, plain=False)
        return replace(together(values), plain=False)

    def _is_label(self, node: ast.expr, at: ast.stmt) -> bool:
        """``y``, ``labels``: handed in, or from a loop over data."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return node.func.attr in PASSED_ON and self._is_label(node.func.value, at)
        if not isinstance(node, ast.Name) or not _LABEL.search(node.id):
            return False
        if not self._is_local(node.id):
            return False
        return all(
            d.is_parameter
            or isinstance(d.statement, (ast.For, ast.AsyncFor))
            or (
                isinstance(d.value, ast.Call)
                and isinstance(d.value.func, ast.Attribute)
                and d.value.func.attr in ("to", "cuda", "long", "float")
                and isinstance(d.value.func.value, ast.Name)
            )
            for d in self.flow.reaching(node.id, at)
        )

    def _opaque(
        self, node: ast.Call, at: ast.stmt, scope: Mapping[str, Carried | Network]
    ) -> Carried:
        """A call of something unknown: the gradient of its arguments may come out."""
        values = [self.value(a, at, scope) for a in passed(node)]
        if isinstance(node.func, ast.Attribute):
            values.append(self.value(node.func.value, at, scope))
        return blurred(values)

    def _gives_tensors(self, network: Network) -> bool:
        """Whether all that a module returns carries the gradient of its weights."""
        return all(self._gives_tensor(call) for call in network.calls)

    def _gives_tensor(self, call: ast.Call) -> bool:
        cls = local_class(self.module, call.func)
        if cls is None:
            return True
        known = self._shared.gives_tensor
        if cls not in known:
            known[cls] = False  # until it is found out, if it uses itself
            known[cls] = self._forward_gives_tensor(cls)
        return known[cls]

    def _forward_gives_tensor(self, cls: ast.ClassDef) -> bool:
        forward = _method_of(cls, "forward")
        if forward is None or self._depth >= _MAX_DEPTH or forward is self.function:
            return False
        inner = Gradients(self.module, forward, outer=self)
        returns = [n for n in inner.own_statements if isinstance(n, ast.Return)]
        if any(isinstance(n.value, ast.Tuple) for n in returns):
            return False
        returned = inner.returned()
        return bool(returned) and all(r.sure for r in returned)

    def _method(self, node: ast.Attribute) -> FunctionNode | None:
        """The method of this file that ``self.name(...)`` runs."""
        if isinstance(node.value, ast.Name):
            cls = self.module.names.self_class(node.value)
            if cls is not None:
                return _method_of(cls, node.attr)
        return None

    def _local_function(self, names: Iterable[str]) -> FunctionNode | None:
        """The first function at the top of this file with one of these qualified names."""
        module = self.module
        found = [
            function
            for owner, _, name in (qualified.rpartition(".") for qualified in names)
            if owner == module.module_name
            for function in module.functions_named(name)
            if isinstance(function, ast.FunctionDef) and module.parent(function) is module.tree
        ]
        return min(found, key=lambda function: function.lineno, default=None)

    def _name_of(self, call: ast.Call) -> str:
        return last_name(call.func)

    def _from_elsewhere(
        self,
        home: ModuleFacts,
        function: FunctionNode,
        node: ast.Call,
        at: ast.stmt,
        scope: Mapping[str, Carried | Network],
    ) -> Carried:
        """What a function of another file returns; where it cuts, the call is the cut."""
        value = self._inlined(function, node, at, scope, None, home)
        given = frozenset[Cut]().union(*(self.value(a, at, scope).cuts for a in passed(node)))
        inner = value.cuts - given
        if not inner:
            return value
        weights = frozenset[str]().union(*(each.weights for each in inner))
        kind: Literal["number", "tensor"] = "number" if value.plain else "tensor"
        whole = Cut(node, kind, weights, any(each.sure for each in inner))
        return replace(value, cuts=(value.cuts & given) | {whole})

    def _inlined(
        self,
        function: FunctionNode,
        node: ast.Call,
        at: ast.stmt,
        scope: Mapping[str, Carried | Network],
        index: int | None,
        home: ModuleFacts | None = None,
    ) -> Carried:
        """What a function of this file, or of the file ``home``, returns for these arguments."""
        module = home or self.module
        arguments = function.args
        named = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        if module.method_class(function) is not None and self_name(function) is not None:
            named = named[1:]
        if (
            self._depth >= _MAX_DEPTH
            or function is self.function
            or arguments.vararg is not None
            or arguments.kwarg is not None
            or isinstance(function, ast.AsyncFunctionDef)
            or any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(function))
            or any(isinstance(a, ast.Starred) for a in node.args)
            or any(k.arg is None for k in node.keywords)
        ):
            return self._opaque(node, at, scope)
        given: dict[str, Carried] = {}
        for name, argument in zip(named, node.args, strict=False):
            given[name] = self.value(argument, at, scope)
        for keyword in node.keywords:
            given[str(keyword.arg)] = self.value(keyword.value, at, scope)
        for parameter in parameters(arguments):
            given.setdefault(parameter.arg, NUMBER)  # its default
        inner = Gradients(module, function, given, self)
        found = []
        for statement in inner.own_statements:
            if not isinstance(statement, ast.Return) or statement.value is None:
                continue
            returned = statement.value
            if index is not None and isinstance(returned, ast.Tuple):
                if index < len(returned.elts):
                    returned = returned.elts[index]
            elif index is not None:
                return blurred([inner.value(returned, statement)])
            found.append(inner.value(returned, statement))
        return either(found) if found else UNKNOWN

    def _element(
        self,
        node: ast.expr,
        index: int,
        at: ast.stmt,
        scope: Mapping[str, Carried | Network],
    ) -> Carried:
        """What one of the values carries that an expression gives."""
        if isinstance(node, ast.Call):
            function = None
            if isinstance(node.func, ast.Attribute):
                function = self._method(node.func)
                name = node.func.attr
                if name in WITH_INDICES and function is None:
                    of_torch = node.args and self._is_torch(node.func.value)
                    operand = node.args[0] if of_torch else node.func.value
                    return self.value(operand, at, scope) if index == 0 else UNKNOWN
            if function is None and isinstance(node.func, ast.Name):
                function = self._local_function(t.name for t in self.module.resolve(node.func))
            if function is not None:
                return self._inlined(function, node, at, scope, index)
            network = self.network(node.func, at, scope)
            value = self.value(node, at, scope)
            if network is None and not self._gives_like_parts(node):
                return replace(value, sure=False, known=False)
            return value
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self.value(node, at, scope)
        return replace(self.value(node, at, scope), sure=False)

    def _gives_like_parts(self, node: ast.Call) -> bool:
        name = getattr(node.func, "attr", "")
        return name in ("split", "chunk", "unbind", "tensor_split")

    def _is_torch(self, node: ast.expr) -> bool:
        return self.module.is_name(node, "torch", "torch.nn.functional")

    # -- what calls do --------------------------------------------------------------------------

    def _torch(
        self, name: str, node: ast.Call, at: ast.stmt, scope: Mapping[str, Carried | Network]
    ) -> Carried:
        values = [self.value(a, at, scope) for a in passed(node)]
        if any(k.arg == "requires_grad" for k in node.keywords):
            if self._is_own_leaf(node):
                return TENSOR
            if name not in MAKES_TENSOR:
                return UNKNOWN  # a leaf, with a gradient of its own
        if values and is_loss(name):
            return self._loss(node, values, at)
        found = of_torch(name, node, values)
        return self._of_leaf(node, found, together(values)) if name in MAKES_TENSOR else found

    def _of_leaf(self, node: ast.Call, leaf: Carried, made: Carried) -> Carried:
        """A leaf made of what a gradient was cut from, ``tensor(losses, requires_grad=True)``.

        Where it goes on at once, nobody can ask for a gradient of its own.
        """
        if leaf.known or leaf.weights or not any(cut.sure for cut in made.cuts):
            return leaf
        if not isinstance(self.module.parent(node), ast.Attribute):
            return leaf
        return replace(leaf, known=True, cuts=made.cuts)

    def _is_own_leaf(self, node: ast.Call) -> bool:
        """``torch.zeros(1, requires_grad=True) + x``: a leaf that nobody can ask for its gradient.

        One that has a name is none, unless that is the name of the loss that it starts.
        """
        if any(isinstance(n, (ast.Name, ast.Call)) for a in node.args for n in ast.walk(a)):
            return False
        parent = self.module.parent(node)
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            name = parent.targets[0].id
            handed = rf"[\[(,]\s*{name}\s*[\]),]|\b{name}\.grad\b"  # to an optimizer
            return bool(_LOSS_START.search(name)) and not re.search(handed, self.module.text)
        return isinstance(parent, ast.BinOp)

    def _builtin(
        self, name: str, node: ast.Call, at: ast.stmt, scope: Mapping[str, Carried | Network]
    ) -> Carried:
        values = [self.value(a, at, scope) for a in passed(node)]
        found = of_builtin(name, node, values)
        if found is not None or not values:
            return found or blurred(values)
        cls = local_class(self.module, node.func)
        if cls is not None and _method_of(cls, "forward") is None:
            return together(values)  # a record of outputs
        if name[:1].isupper() and name.endswith(("Output", "Outputs")):
            return together(values)
        return blurred(values)

    def _method_of_tensor(
        self,
        function: ast.Attribute,
        node: ast.Call,
        at: ast.stmt,
        scope: Mapping[str, Carried | Network],
    ) -> Carried:
        owner = self.value(function.value, at, scope)
        found = of_method(
            function.attr, node, owner, lambda: [self.value(a, at, scope) for a in passed(node)]
        )
        if found is not None and function.attr == "requires_grad_" and owner.nothing:
            return self._of_leaf(node, found, owner)
        return found if found is not None else self._opaque(node, at, scope)


def _method_of(cls: ast.ClassDef, name: str) -> FunctionNode | None:
    for node in cls.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return node
    return None


def _base(node: ast.expr) -> str:
    """The name that a place belongs to: ``x`` for ``x[0].y``."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
