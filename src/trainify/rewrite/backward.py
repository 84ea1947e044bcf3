"""The backward of a kernel: a closed form written out, or the equivalent computed anew."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

import libcst as cst

from ..catalog import CONSTANTS, RETURNED
from ..facts.names import is_none
from ..reference.backward import CLOSED_FORMS
from .expressions import bare, code, one_line
from .fold import body_of
from .specialize import Reference, Use, lay_out, reference, renamed
from .template import Template, fresh

if TYPE_CHECKING:
    from .autograd import KernelFunction
    from .branch import Vocabulary


@dataclass(frozen=True)
class Body:
    """``parameters`` of ``backward``, its ``lines`` once the saved tensors are unpacked.

    ``helpers`` are the reference functions that must stand in the file.
    """

    parameters: str
    lines: list[str]
    helpers: tuple[str, ...]
    decorators: tuple[str, ...] = ()


class Backward(Protocol):
    """How the gradients of a kernel are found."""

    @property
    def use(self) -> Use:
        """What is asked of the reference functions."""

    @property
    def results(self) -> Mapping[str, str]:
        """What is read of the kernel's results: names for them, and their variables in forward."""

    def body(self, vocabulary: Vocabulary) -> Body: ...


def backward_of(function: KernelFunction) -> Backward:
    """The closed form where there is one, and the equivalent calls its function plainly."""
    known = function.reference
    closed = reference(CLOSED_FORMS.get(known.name, "")) if known is not None else None
    if closed is not None and len(_grads(closed)) == (len(function.outputs) or 1):
        tensors = _tensors(known) if known is not None else []
        nodes = [node for p, node in function.bound.items() if p in {*closed.parameters, *tensors}]
        given = {ast.unparse(n) for n in map(function.bound.get, tensors) if n is not None}
        others = (known.defaults.keys() if known is not None else set()) - set(closed.parameters)
        if (
            function.trained <= given  # not where a table learns, of which it has no gradient
            and all(isinstance(node, (ast.Name, ast.Constant)) for node in nodes)
            and all(is_none(function.bound.get(p, ast.Constant(None))) for p in others)
        ):
            return ClosedForm(function, closed)
    return Recomputed(function)


def _tensors(of: Reference) -> list[str]:
    """The parameters of a function that a gradient may be of."""
    return [
        a.arg
        for a in of.tree.args.args
        if a.annotation is not None and "torch.Tensor" in ast.unparse(a.annotation)
        if a.arg not in CONSTANTS
    ]


def _grads(closed: Reference) -> list[str]:
    return [p for p in closed.parameters if p.startswith("grad")]


class ClosedForm:
    """The gradients by a function that :mod:`trainify.reference.backward` names.

    It is differentiable itself, so second derivatives need nothing.
    """

    def __init__(self, of: KernelFunction, closed: Reference) -> None:
        self.of = of
        self.closed = closed
        self.grads = _grads(closed)

    @cached_property
    def results(self) -> Mapping[str, str]:
        names = [grad.partition("_")[2] or "out" for grad in self.grads]
        variables = map(self.of.result, self.of.outputs or (RETURNED,))
        return {
            name: variable
            for name, variable in zip(names, variables, strict=True)
            if name in self.closed.parameters and name not in self.of.bound
        }

    @cached_property
    def values(self) -> dict[str, str]:
        """What the parameters of the closed form are in ``backward``."""
        assert self.of.reference is not None
        own = {*self.grads, *self.results}
        defaults = {**self.closed.defaults, **self.of.reference.defaults}
        values: dict[str, str] = {}
        for parameter in self.closed.parameters:
            node = self.of.bound.get(parameter)
            text = ast.unparse(node) if node is not None else defaults.get(parameter, parameter)
            values[parameter] = parameter if parameter in own else self.of.texts.get(text, text)
        return values

    @cached_property
    def use(self) -> Use:
        sure = {*self.results, *self.grads}
        for grad, output in zip(self.grads, self.of.outputs, strict=False):
            if output in self.of.reads and self.of.variables.get(output) not in self.of.sure:
                sure.discard(grad)  # of what may be None
        sure.update(p for p, text in self.values.items() if text in self.of.sure)
        call = f"{self.closed.name}({', '.join(self.closed.parameters)})"
        return Use.of(call, self.values, sure, whole=True)

    @property
    def inputs(self) -> list[str]:
        """For each gradient that is returned: the variable it is of, if that is passed."""
        assert self.of.reference is not None
        nodes = [self.of.bound.get(p) for p in _tensors(self.of.reference)]
        names = [node.id if isinstance(node, ast.Name) else "" for node in nodes]
        return [self.of.variables.get(n, "") if n in self.of.trained else "" for n in names]

    def body(self, vocabulary: Vocabulary) -> Body:
        _, function = vocabulary.library.resolve(self.use)
        assert function is not None
        texts = {
            "torch": vocabulary.torch,
            "F": vocabulary.functional,
            **vocabulary.helper_names,
            **{p: text for p, text in self.values.items() if text != p},
        }
        *statements, last = body_of(renamed(function, tuple(texts.items())))
        small = cst.ensure_type(cst.ensure_type(last, cst.SimpleStatementLine).body[0], cst.Return)
        result, inputs, needed = small.value, self.inputs, self.of.needed
        assert result is not None
        after: list[str] = []
        if isinstance(result, cst.Tuple):
            gradients = [code(element.value) for element in result.elements]
        elif len(self.of.passed) == 1:
            gradients = [code(result)]
        else:
            gradients = [f"grad_{variable}" for variable in inputs]
            after = self.of.fit(f"{', '.join(gradients)} = {code(result)}")
        wanted = {
            gradient: needed[variable]
            for gradient, variable in zip(gradients, inputs, strict=True)
            if variable in needed and len(needed) > 1 and gradients.count(gradient) == 1
        }
        lines: list[str] = []
        for i, statement in enumerate(statements):
            later = "".join(map(code, statements[i + 1 :]))
            for each in _where_wanted(statement, tuple(wanted.items()), later, self.of.room):
                lines += lay_out(each, "", self.of.unit, self.of.room)
        by_variable = dict(zip(inputs, gradients, strict=True))
        returned = [by_variable.get(v, "None") for v in self.of.passed.values()]
        lines += [*after, *self.of.fit(f"return {', '.join(returned)}")]
        helpers = vocabulary.library.closure(function.calls)
        return Body(", ".join(self.grads), lines, helpers)


@lru_cache(1024)
def _where_wanted(
    statement: cst.BaseStatement, tests: tuple[tuple[str, str], ...], later: str, room: int
) -> list[cst.BaseStatement]:
    """A gradient under its test whether it is wanted, unless it serves another one ``later``."""
    wanted = dict(tests)
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return [statement]
    name = code(small.targets[0].target)
    value = small.value
    if name not in wanted or re.search(rf"\b{name}\b", code(value) + later):
        return [statement]
    if isinstance(value, cst.IfExp) and code(value.body) == "None":
        value = value.orelse  # what is None wants no gradient
    text = one_line(code(bare(value)))
    line = f"{name} = {text} if {wanted[name]} else None\n"
    if len(line) > room:
        line = f"{name} = None\nif {wanted[name]}:\n    {name} = {text}\n"
    return [each for each in cst.parse_module(line).body if isinstance(each, cst.BaseStatement)]


class Recomputed:
    """The gradients that autograd finds for the differentiable equivalent."""

    def __init__(self, of: KernelFunction) -> None:
        self.of = of
        self.results: Mapping[str, str] = {}

    @cached_property
    def use(self) -> Use:
        sure = {n for n, v in self.of.variables.items() if v in self.of.sure}
        return Use.of(ast.unparse(self.of.equivalent), self.of.texts, sure)

    def body(self, vocabulary: Vocabulary) -> Body:
        of, torch = self.of, self.of.torch
        template = Template(
            of.op,
            of.texts,
            library=vocabulary.library,
            use=self.use,
            torch=torch,
            functional=vocabulary.functional,
            helper_names=vocabulary.helper_names,
        )
        own = {"ctx", "grad", "grads", *(v for n, v in of.variables.items() if n in of.reads)}
        returns = of.reference.tree.returns if of.reference is not None else None
        either = isinstance(returns, ast.BinOp) and "tuple" in ast.unparse(returns)
        several = either or len(of.outputs or of.op.signature.returns) > 1
        result = fresh("outputs" if several else "out", own)
        rendered = template.render((), frozenset({*own, result}), value=True)
        lines = of.fit(f"with {torch}.enable_grad():")
        for variable, needed in of.needed.items():
            leaf = of.unless_none(variable, f"{variable}.detach().requires_grad_({needed})")
            lines += of.fit(f"{variable} = {leaf}", of.unit)
        for line in (*rendered.statements, f"{result} = {rendered.value}"):
            lines += of.fit(line, of.unit)
        after = [f"{torch}.autograd.backward({result}, grad)"]
        if several:
            pairs = f"(o, g) for o, g in zip({result}, grads) if o is not None and o.requires_grad"
            after = [f"pairs = [{pairs}]", f"{torch}.autograd.backward(*zip(*pairs))"]
        if either:
            after.insert(0, f"{result} = {result} if isinstance({result}, tuple) else ({result},)")
        gradients = [
            of.unless_none(v, f"{v}.grad") if v in of.needed else "None" for v in of.passed.values()
        ]
        for line in (*after, f"return {', '.join(gradients)}"):
            lines += of.fit(line)
        # What is detached above has no second derivative.
        once = f"{torch}.autograd.function.once_differentiable"
        return Body("*grads" if several else "grad", lines, rendered.helpers, (once,))
