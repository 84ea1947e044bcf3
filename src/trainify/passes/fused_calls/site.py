"""A call of a fused op, and what can be said about it where it stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ...catalog import CONSTANTS, LEARNED, FusedOp, lookup
from ...facts import ModuleFacts, Target
from ...facts.cache_writes import cache_writes
from ...facts.carried import undetached
from ...facts.getters import value_of_property
from ...facts.grad_mode import scope_around
from ...facts.learned import is_learned
from ...facts.names import default_of, is_none, parameters, passed
from ...facts.none import tested_not_none
from ...facts.order import evaluated_before, order_matters
from ...facts.trainable import is_buffer
from ...facts.views import is_allocation, is_view_method, view_of, views_of
from ...facts.walk import walk
from ...findings import Related

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts.module import FunctionNode
    from ...rewrite.functionalize import CannotFunctionalize, Write, Written


_ABOUT = ("dtype", "shape")


@dataclass(eq=False)
class Site:
    """One call of a fused op, with its arguments by name."""

    module: ModuleFacts
    call: ast.Call
    op: FusedOp
    target: Target
    bound: dict[str, ast.expr | None]
    rule: str = ""
    """The rule that found it, and what to say; those of this pass where there is none."""
    said: str = ""
    refused: str = ""
    """Why it is not rewritten, whatever its equivalent: what follows "Not rewritten:"."""
    beside: Sequence[Site] = ()
    """All sites of the function: what they write into one argument is decided together."""

    @cached_property
    def statement(self) -> ast.stmt:
        return self.module.statement(self.call)

    @cached_property
    def code(self) -> str:
        """The rule that speaks of it."""
        return self.rule or ("TRN102" if self.in_place else "TRN101")

    def name(self, options: Options) -> str:
        """A name by which the op is looked up, the one of the call if it can be; or none."""
        names = (self.target.name, *self.op.names)
        found = (n for n in names if lookup(n, options.ops, options.releases) is self.op)
        return next(found, "")

    @cached_property
    def value(self) -> str:
        """The equivalent, as an expression."""
        assert self.op.equivalent is not None
        tree = ast.parse(self.op.equivalent).body[0]
        assert isinstance(tree, (ast.Assign, ast.Expr))
        return ast.unparse(tree.value)

    @property
    def reads(self) -> frozenset[str]:
        """The arguments that the equivalent reads."""
        return self.op.reads

    @cached_property
    def values_read(self) -> frozenset[str]:
        """Those of which it reads more than the dtype or the shape."""
        nodes = list(walk(ast.parse(self.value)))
        about = {n.value for n in nodes if isinstance(n, ast.Attribute) and n.attr in _ABOUT}
        return frozenset(n.id for n in nodes if isinstance(n, ast.Name) and n not in about)

    @cached_property
    def outputs(self) -> list[str]:
        """What the equivalent assigns, in order; empty where it is an expression."""
        assert self.op.equivalent is not None
        tree = ast.parse(self.op.equivalent).body[0]
        if not isinstance(tree, ast.Assign):
            return []
        return [n.id for n in walk(tree.targets[0]) if isinstance(n, ast.Name)]

    @cached_property
    def differentiable(self) -> list[str]:
        """The tensor arguments that a gradient can flow to."""
        return [
            a.name
            for a in self.op.signature.arguments
            if a.is_tensor
            and a.name in self.values_read
            and a.name not in self.op.codes
            and (node := self.bound[a.name]) is not None
            and not is_none(node)
            and (a.name not in CONSTANTS or (a.name in LEARNED and is_learned(self.module, node)))
            and (a.written or not is_buffer(self.module, node))
        ]

    @property
    def lost(self) -> list[str]:
        """Those of them that the op gives no gradient."""
        return [n for n in self.differentiable if not self.op.loses or n in self.op.loses]

    @property
    def in_place(self) -> list[str]:
        """The arguments that are read and overwritten."""
        return [
            a.name
            for a in self.op.signature.written
            if a.name in self.values_read and a.name in self.differentiable
        ]

    @cached_property
    def cached(self) -> list[str]:
        """Tensors that the op gets only through a cache: no rewriting gives them a gradient."""
        return [
            name
            for write in cache_writes(self.module)
            if any(read is self.call for read in write.reads)
            for name in write.fresh
        ]

    def unsupported(self) -> str | None:
        """An argument, as written, for which the equivalent does not hold."""
        defaults = {a.name: a.default for a in self.op.signature.arguments}
        for name in self.op.unsupported:
            node = self.bound.get(name)
            if node is None or is_none(node) or _equals(node, defaults[name]):
                continue
            return name
        return None

    def shown(self, name: str) -> str:
        """An argument as the user knows it, without ``.data``."""
        node = self.bound[name]
        assert node is not None
        while True:
            node = undetached(node)
            cut = self.cut_before(name, node)
            if cut is None:
                return self.module.source(node)
            node = cut

    def cut_before(self, name: str, node: ast.expr) -> ast.expr | None:
        """``self.weight.data`` of ``w``, or of ``self.w``, where that is what it was set to."""
        if self._is_written(name):
            return None
        if isinstance(node, ast.Name):
            return self._cut_by_name(node.id)
        given = value_of_property(self.module, node)
        if given is None or not _CUT.search(self.module.source(given)):
            return None
        owners = [n for n in walk(given) if isinstance(n, ast.Name)]
        assert isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        return given if all(n.id == node.value.id for n in owners) else None

    def _cut_by_name(self, name: str) -> ast.expr | None:
        if self.late and self._binds(name):
            return None
        flow = self.module.flow(self.module.function(self.statement) or self.module.tree)
        made = flow.only_definition(name, self.statement)
        value = made.value if made is not None else None
        if made is not None and made.index is not None:
            fits = isinstance(value, ast.Tuple) and made.index < len(value.elts)
            value = value.elts[made.index] if fits else None  # type: ignore[union-attr]
        if made is None or made.statement is None or value is None:
            return None
        root = self._weight_behind(value)
        if root is None or not _CUT_WITHIN.search(self.module.source(value)):
            return None
        return value if flow.is_steady(value, made.statement, self.statement) else None

    def cut_elsewhere(self, name: str) -> str:
        """Why no gradient goes on from an argument, whatever takes the call's place; or nothing."""
        node = self.bound[name]
        if node is not None and self._is_held(node):
            return self._cut_as_held(name, node)
        if not isinstance(node, ast.Name) or self.cut_before(name, node) is not None:
            return ""
        flow = self.module.flow(self.module.function(self.statement) or self.module.tree)
        made = flow.only_definition(node.id, self.statement)
        value = made.value if made is not None else None
        if made is None or made.statement is None or value is None:
            return ""
        own = [n for n in walk(value) if self._is_own(n)]
        if own and scope_around(self.module, value) is not None:
            if scope_around(self.module, self.call) is None:
                line = f"line {made.statement.lineno}"
                return f"no gradient goes on from `{node.id}`: {line} has gradients off"
        if isinstance(value, ast.Call) and value.func in own:
            assert isinstance(value.func, ast.Attribute)
            for method in self.module.functions_named(value.func.attr):
                returned = [s.value for s in walk(method) if isinstance(s, ast.Return)]
                if any(r is not None and _CUT.search(self.module.source(r)) for r in returned):
                    return f"no gradient goes on from `{node.id}`, which `{method.name}` cuts off"
        return ""

    def _is_own(self, node: ast.AST) -> bool:
        """Whether a node is an attribute of ``self``."""
        owner = node.value if isinstance(node, ast.Attribute) else None
        return self.module.names.self_class(owner) is not None

    def _weight_behind(self, node: ast.expr) -> ast.Attribute | None:
        """``self.weight`` of ``self.weight.detach().to(x.dtype)``, by views and casts alone."""
        while True:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if not is_view_method(node.func.attr):
                    return None
                node = node.func.value
            elif isinstance(node, ast.Attribute) and node.attr in ("data", "T", "mT"):
                node = node.value
            else:
                break
        return node if isinstance(node, ast.Attribute) and self._is_own(node) else None

    def captured(self, name: str) -> str | None:
        """How to say an argument that ``functools.partial`` bound in another scope."""
        node = self.bound[name]
        if node is None or not self._is_held(node):
            return None
        named = self._named(name, node)
        if named is not None:
            return named
        callee = self.module.source(self.call.func)
        for i, argument in enumerate(self.target.args):
            if argument is node:
                return f"{callee}.args[{i}]"
        return f'{callee}.keywords["{name}"]'

    def _named(self, name: str, node: ast.expr) -> str | None:
        """What ``functools.partial`` bound, by a name that it has where the call stands."""
        if name in self.differentiable and not self._is_written(name):
            node = undetached(node)
        if isinstance(node, ast.Constant) or self._visible(node):
            return self.module.source(node)
        made_in = self.module.function(node)
        cls = self.module.method_class(made_in)
        if cls is not None and isinstance(node, ast.Name):
            for attribute, bindings in self.module.names.attributes(cls).items():
                if len(bindings) == 1 and isinstance(bindings[0].value, ast.Name):
                    if bindings[0].value.id == node.id:
                        return f"self.{attribute}"
        return None

    def _is_written(self, name: str) -> bool:
        return any(argument.name == name for argument in self.op.signature.written)

    def _is_held(self, node: ast.expr) -> bool:
        """Whether an argument is one that ``functools.partial`` bound."""
        return any(node is value for value in self.target.bound)

    def _cut_as_held(self, name: str, node: ast.expr) -> str:
        """Why no gradient goes on from what ``functools.partial`` holds; or nothing."""
        if self._named(name, node) is not None:
            return ""
        value: ast.expr | None = node
        if isinstance(node, ast.Name):
            made_in = self.module.flow(self.module.function(node) or self.module.tree)
            made = made_in.only_definition(node.id, self.module.statement(node))
            value = made.value if made is not None else None
        if value is None or not _CUT_WITHIN.search(self.module.source(value)):
            return ""
        return (
            f"no gradient goes on from `{self.captured(name)}`, which is held without its history"
        )

    def _visible(self, node: ast.expr) -> bool:
        """Whether an expression of another scope means the same where the call stands."""
        scope = self.module.scope(node)
        if scope is self.module.scope(self.call) or isinstance(scope, ast.Module):
            # partial keeps the value, a name may have another one by now
            names = [n.id for n in walk(node) if isinstance(n, ast.Name)]
            bindings = self.module.names.bindings(scope)
            return all(len(bindings.get(name, ())) <= 1 for name in names)
        return isinstance(node, ast.Attribute) and all(
            isinstance(n, ast.Attribute) or (isinstance(n, ast.Name) and n.id == "self")
            for n in walk(node)
            if isinstance(n, ast.expr)
        )

    def writes(self) -> dict[str, Write]:
        """Where each argument goes that the op writes; raises ``CannotFunctionalize``."""
        if isinstance(self._written, Exception):
            raise self._written
        return self._written

    @cached_property
    def _written(self) -> dict[str, Write] | CannotFunctionalize:
        from ...rewrite.functionalize import CannotFunctionalize, functionalize

        beside = [written for site in self.beside for written in site.into.values()]
        found: dict[str, Write] = {}
        for name, written in self.into.items():
            try:
                write = functionalize(
                    self.module,
                    self.statement,
                    written.argument,
                    read=written.read,
                    beside=beside,
                )
            except CannotFunctionalize as error:
                return error
            if write.place.kind == "copy" and self._is_shared(name):
                text = self.shown(name)
                return CannotFunctionalize(f"`{text}` may be what it reads, and callers read it")
            if write.place.kind == "copy" and self._may_be_none(name):
                write = replace(write, place=replace(write.place, optional=True))
            found[name] = self._in_its_shape(write)
        return found

    def _in_its_shape(self, write: Write) -> Write:
        """A buffer made like ``x`` has the shape of that, though the op read ``x.view(-1, n)``.

        A kernel fills memory, whatever its shape.
        """
        from ...rewrite.functionalize import empty_like

        made = write.allocation
        like = empty_like(made) if made is not None else None
        if made is None or like is None or not write.place.is_name or not self._reshapes(like):
            return write
        flow = self.module.flow(self.module.function(self.statement) or self.module.tree)
        before, now = (flow.only_definition(like, at) for at in (made, self.statement))
        if before is not None and now is not None and before.statement is now.statement:
            return replace(write, place=replace(write.place, shape_of=like))
        place = replace(write.place, shape_of=write.place.text)
        return replace(write, place=place, allocation=None)

    def _reshapes(self, name: str) -> bool:
        """Whether an argument is the tensor of this name in another shape."""
        flow = self.module.flow(self.module.function(self.statement) or self.module.tree)
        for argument in self.differentiable:
            node, reshaped = self.bound[argument], False
            if isinstance(node, ast.Name):
                definition = flow.only_definition(node.id, self.statement)
                if definition is not None and definition.value is not None:
                    node = definition.value
            while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                reshaped = reshaped or node.func.attr in _RESHAPES
                node = node.func.value
            if reshaped and isinstance(node, ast.Name) and node.id == name:
                return True
        return False

    def _may_be_none(self, name: str) -> bool:
        optional = (a.name for a in self.op.signature.written if a.is_optional)
        if isinstance(self.bound[name], ast.Call):  # out.view(-1, n)
            return False
        return name in optional and not self.is_tensor(self.shown(name))

    @cached_property
    def into(self) -> dict[str, Written]:
        """What the op writes into."""
        from ...rewrite.functionalize import Written

        return {
            name: Written(self.statement, node, read=self._reads(name) or self._is_shared(name))
            for name in (argument.name for argument in self.op.signature.written)
            if (node := self.bound[name]) is not None and not is_none(node)
        }

    def _reads(self, name: str) -> bool:
        return name in self.reads or self._read_elsewhere(name)

    def _is_shared(self, name: str) -> bool:
        """Whether what is only written may be what is read, and has to go somewhere.

        Where the value of the call is what goes on, nothing has to be written.
        """
        stored = bool(self.outputs) or isinstance(self.module.parent(self.call), ast.Expr)
        return stored and not self._reads(name) and self._maybe_read(name)

    def related(self) -> Iterator[Related]:
        """The places where tensors are made only to be filled by the op."""
        from ...rewrite.functionalize import CannotFunctionalize

        try:
            if not any(self._is_made_here(written.argument) for written in self.into.values()):
                return  # who may read it, which takes long to find out, does not matter then
            for name, write in self.writes().items():
                if write.allocation is not None:
                    message = f"`{self.shown(name)}` is made here, for the op to fill."
                    yield self.module.related(message, write.allocation)
        except CannotFunctionalize:
            return

    def _is_made_here(self, argument: ast.expr) -> bool:
        """Whether a tensor is a fresh buffer of the function."""
        view = view_of(argument)
        flow = self.module.flow(self.module.function(self.statement) or self.module.tree)
        made = flow.only_definition(view.base, self.statement) if view is not None else None
        return made is not None and is_allocation(made.value)

    def known(self) -> tuple[dict[str, str | None], set[str]]:
        """The arguments as they would be written, None for what is left out; and those not None."""
        texts: dict[str, str | None] = {}
        sure: set[str] = set()
        for argument in self.op.signature.arguments:
            name = argument.name
            captured = self.captured(name)
            text = captured or (self.shown(name) if self.bound[name] is not None else None)
            texts[name] = text
            optional = argument.is_optional or argument.type == "Any"
            if text is not None and (not optional or (captured is None and self.is_tensor(text))):
                sure.add(name)
        return texts, sure

    def _roots(self, written: str) -> set[str]:
        node = self.bound[written]
        view = view_of(node) if node is not None else None
        if view is not None:
            return {view.base}
        return {n.id for n in walk(node) if isinstance(n, ast.Name)} if node else set()

    def _others(self, written: str) -> set[str]:
        """The names in all other arguments."""
        return {
            n.id
            for name, other in self.bound.items()
            if other is not None and name != written
            for n in walk(other)
            if isinstance(n, ast.Name) and n.id != "self"
        }

    def _read_elsewhere(self, written: str) -> bool:
        """Whether another argument looks at the tensor that is written: ``rms_norm(x, x, w)``."""
        return bool(self._roots(written) & self._others(written))

    def _maybe_read(self, written: str) -> bool:
        """Whether another argument may be the tensor that is written, by another name.

        Raises ``CannotFunctionalize`` where it may just as well be a buffer of the caller's.
        """
        from ...rewrite.functionalize import CannotFunctionalize

        if not self.may_share(written):
            return False
        roots, others = self._roots(written), self._others(written)
        wholes, of_others = self._wholes(roots), self._wholes(others)
        flow = self.module.flow(self.module.function(self.statement) or self.module.tree)
        given = {
            name
            for name in roots
            if any(d.is_parameter for d in flow.reaching(name, self.statement))
        }
        if (given | (wholes & set(flow.parameters))) - others - of_others:
            text = self.shown(written)
            raise CannotFunctionalize(f"`{text}` may be what it reads, or the caller's to read")
        return True

    def may_share(self, written: str) -> bool:
        """Whether what is written may be another name of what another argument is."""
        roots, others = self._roots(written), self._others(written)
        return bool(self._wholes(roots) & others or roots & self._wholes(others))

    def _wholes(self, names: Iterable[str]) -> set[str]:
        """What these are other names of: ``x`` for ``out = torch.empty_like(x) if f else x``."""
        flow = self.module.flow(self.module.function(self.statement) or self.module.tree)
        return {
            view.base
            for name in names
            for definition in flow.reaching(name, self.statement)
            if definition.value is not None and definition.index is None
            for view in views_of(definition.value)
            if view.kind != "part"
        }

    @cached_property
    def late(self) -> bool:
        """Whether the call runs conditionally, repeatedly, or not now."""
        for ancestor in self.module.ancestors(self.call):
            if ancestor is self.statement:
                return False
            if isinstance(
                ancestor,
                (
                    ast.Lambda,
                    ast.ListComp,
                    ast.SetComp,
                    ast.DictComp,
                    ast.GeneratorExp,
                    ast.IfExp,
                    ast.BoolOp,
                ),
            ):
                return True
        return False

    @cached_property
    def behind(self) -> bool:
        """Whether other parts of its statement have to be evaluated before the call is."""
        before = evaluated_before(self.module, self.call)
        written = (a.name for a in self.op.signature.written)
        names = {root for name in written if self.outputs for root in self._roots(name)}
        return bool(before) and order_matters(self.module, before, passed(self.call), names)

    @cached_property
    def deferred(self) -> bool:
        """Whether the call runs after its statement."""
        return runs_later(self.module, self.call)

    def _binds(self, name: str) -> bool:
        """Whether a lambda or a comprehension around the call gives a name its own meaning."""
        for ancestor in self.module.ancestors(self.call):
            if ancestor is self.statement:
                return False
            if isinstance(ancestor, ast.Lambda):
                if any(argument.arg == name for argument in parameters(ancestor.args)):
                    return True
            for loop in getattr(ancestor, "generators", ()):
                if any(isinstance(n, ast.Name) and n.id == name for n in walk(loop.target)):
                    return True
        return False

    def is_tensor(self, text: str) -> bool:
        """Whether a name surely is a tensor where the call stands, not None."""
        function = self.module.function(self.statement)
        flow = self.module.flow(function or self.module.tree)
        if self.late and self._binds(text.partition(".")[0]):
            return False
        if text.isidentifier():
            definition = flow.only_definition(text, self.statement)
            if definition is None or function is None:
                return False
            if not definition.is_parameter:
                return definition.value is not None and not is_none(definition.value)
            if tested_not_none(self.module, self.call, text):
                return True
            return self._is_annotated(function, text)
        if tested_not_none(self.module, self.call, text):
            return True
        cls = self.module.method_class(function)
        if cls is None or not text.startswith("self."):
            return False
        name = text[len("self.") :]
        bindings = self.module.names.attributes(cls).get(name, [])
        return (
            bool(bindings)
            and all(
                isinstance(b.value, ast.Call)
                and self.module.source(b.value.func).rpartition(".")[2] in ("Parameter", "Buffer")
                for b in bindings
            )
            and not self._is_taken_away(cls, name)
        )

    def _is_taken_away(self, cls: ast.ClassDef, name: str) -> bool:
        """Whether a file that names a class sets such an attribute to None."""
        sets = f".{name} = None"
        others = self.module.project.mentioning(self.module, cls.name, containing=sets.encode())
        return any(sets in other.text for other in others)

    def _is_annotated(self, function: FunctionNode, name: str) -> bool:
        """``x: torch.Tensor``, but not ``x: torch.Tensor = None``."""
        return not is_none(default_of(function.args, name)) and any(
            argument.annotation is not None
            and self.module.is_name(argument.annotation, "torch.Tensor")
            for argument in parameters(function.args)
            if argument.arg == name
        )


_CUT_WITHIN = re.compile(r"\.(data\b|detach\(\))")
_CUT = re.compile(r"\.(data|detach\(\))$")
_RESHAPES = frozenset("view reshape flatten unflatten squeeze unsqueeze".split())


def runs_later(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call runs after its statement: in a lambda, or in a generator that is kept."""
    for ancestor in module.ancestors(call):
        if isinstance(ancestor, ast.stmt):
            return False
        if isinstance(ancestor, ast.Lambda):
            return True
        if isinstance(ancestor, ast.GeneratorExp):
            parent = module.parent(ancestor)
            unpacked = isinstance(parent, ast.Assign) and all(
                isinstance(target, (ast.Tuple, ast.List)) for target in parent.targets
            )
            if not unpacked and not isinstance(parent, (ast.Call, ast.Starred)):
                return True
    return False


def _equals(node: ast.expr, default: str | None) -> bool:
    """Whether an expression is a literal of the same value as a default."""
    try:
        return bool(ast.literal_eval(node) == ast.literal_eval(default or ""))
    except (ValueError, SyntaxError):
        return False
