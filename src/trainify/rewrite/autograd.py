"""The ``torch.autograd.Function`` around a kernel: its arguments, its outputs, its text."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..catalog import RETURNED, FusedOp
from ..catalog.schema import Argument
from ..facts import ModuleFacts, Target
from ..facts.walk import walk
from . import layout
from .backward import Backward, Body, backward_of
from .branch import Vocabulary
from .expressions import expression, one_line
from .fold.values import is_literal
from .kernels import CannotMove, Moved, passed, spelled
from .specialize import Reference, reference, with_callees
from .template import fresh


class CannotAttach(Exception):
    """The kernel cannot be given a backward; the text says why."""


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a fused op, as the class for the op needs to know it.

    ``value`` and ``outputs`` are those of the equivalent.  By argument: ``texts`` are the
    expressions to pass, None for what is left out; ``keywords`` are passed by name; ``sure`` are
    not None; ``trained`` can have a gradient; ``buffers`` are only written, each with the statement
    that made it, where that serves nothing else.
    """

    node: ast.Call
    op: FusedOp
    target: Target
    value: str
    outputs: tuple[str, ...]
    texts: Mapping[str, str | None]
    keywords: frozenset[str]
    sure: frozenset[str]
    trained: frozenset[str]
    buffers: Mapping[str, tuple[ast.expr, ast.stmt | None]]


@dataclass(frozen=True)
class Written:
    """A class as text, and the reference functions that must stand in the file for it."""

    name: str
    text: str
    helpers: tuple[str, ...]


class KernelFunction:
    """The ``torch.autograd.Function`` for all calls of one op in a file.

    Raises :class:`CannotAttach`.
    """

    def __init__(self, module: ModuleFacts, calls: Sequence[Call]) -> None:
        self.module = module
        self.calls = calls
        self.op = calls[0].op
        self.outputs = calls[0].outputs
        self.equivalent = ast.parse(calls[0].value, mode="eval").body
        self.reads = {n.id for n in walk(self.equivalent) if isinstance(n, ast.Name)}
        self.trained = frozenset.union(*(call.trained for call in calls)) & self.reads
        if not self.trained:
            raise CannotAttach("nothing that it is given can be trained")
        if self.reference is not None and "quantize_through" in with_callees(self.reference.name):
            # autograd casts a gradient to the dtype of what it is of
            raise CannotAttach("it gives quantized codes, which no gradient can pass")
        kernels = [spelled(module, call.node.func, call.target) for call in calls]
        self.kernel = kernels[0] if None not in kernels else None
        if self.kernel is None:
            for call in calls:
                if passed(module, call.node.func, call.target) is None:
                    raise CannotAttach("which kernel it calls shows only at run time")
        self.unit, self.width = module.indent_unit, layout.width(module)
        self.torch = layout.bound_at_top(module, "torch") or "torch"

    @cached_property
    def backward(self) -> Backward:
        return backward_of(self)

    @property
    def name(self) -> str:
        """``FusedAddRMSNorm`` for ``vllm._custom_ops.fused_add_rms_norm``."""
        words = self.calls[0].target.name.removesuffix(".default").rpartition(".")[2].split("_")
        return "".join(_WORDS.get(word, word[:1].upper() + word[1:]) for word in words)

    # -- arguments ------------------------------------------------------------------------------

    @cached_property
    def reference(self) -> Reference | None:
        """The reference function that the equivalent is a call of."""
        node = self.equivalent
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return reference(node.func.id)
        return None

    @cached_property
    def bound(self) -> dict[str, ast.expr]:
        """The arguments of that call, by parameter."""
        if self.reference is None or not isinstance(self.equivalent, ast.Call):
            return {}
        bound = dict(zip(self.reference.parameters, self.equivalent.args, strict=False))
        bound.update({k.arg: k.value for k in self.equivalent.keywords if k.arg is not None})
        return bound

    @cached_property
    def arguments(self) -> list[Argument]:
        """The arguments that the kernel is called with; outputs that it can make itself are not."""
        made = {a.name for a in self.op.signature.written if not self.outputs}
        return [
            a
            for a in self.op.signature.arguments
            if a.name not in made and any(call.texts[a.name] is not None for call in self.calls)
        ]

    @cached_property
    def literals(self) -> dict[str, str]:
        """The arguments that are the same literal in every call."""
        found: dict[str, str] = {}
        for a in self.arguments:
            first, *others = {call.texts[a.name] or a.default or "None" for call in self.calls}
            if not others and is_literal(expression(first)):
                found[a.name] = first
        return found

    @cached_property
    def variables(self) -> dict[str, str]:
        """Names for the other arguments: those of the reference function, where there are such."""
        own = {a.name: a.name for a in self.arguments if a.name not in self.literals}
        known = {
            node.id: parameter
            for parameter, node in self.bound.items()
            if isinstance(node, ast.Name) and node.id in own
        }
        names = {**own, **known}
        names = names if len(set(names.values())) == len(names) else own
        reserved = {"ctx", "kernel", self.torch, "F"}
        if self.kernel is not None:
            reserved.add(self.kernel.text.partition(".")[0])
        return {n: f"{v}_" if v in reserved else v for n, v in names.items()}

    @cached_property
    def sure(self) -> frozenset[str]:
        """The variables that are not None."""
        names = frozenset.intersection(*(call.sure for call in self.calls))
        return frozenset(self.variables[n] for n in names if n in self.variables)

    def unless_none(self, variable: str, text: str) -> str:
        return text if variable in self.sure else f"None if {variable} is None else {text}"

    # -- outputs --------------------------------------------------------------------------------

    def _buffers_of(self, call: Call) -> tuple[dict[str, str | None], dict[str, str]]:
        """How to make the outputs that a call has: by argument, None where only it itself tells.

        And what must be given for that: variables of ``forward``, with what the call passes.
        """
        known = {
            one_line(text): self.variables[name]
            for name, text in call.texts.items()
            if text is not None
            and name in self.variables
            and name not in call.buffers
            and not is_literal(expression(text))
        }
        moved = Moved(self.module, known, frozenset({*self.variables.values(), "ctx"}))
        texts = {n: self._buffer(call, n, moved) for n in self.variables if n in call.buffers}
        return texts, {new: old for old, new in moved.given.items()}

    def _buffer(self, call: Call, name: str, moved: Moved) -> str | None:
        node, made = call.buffers[name]
        text = one_line(self.module.source(node))
        if text in moved.known:
            return f"{self.torch}.empty_like({moved.known[text]})"
        value = made.value if isinstance(made, (ast.Assign, ast.AnnAssign)) else None
        if made is None or value is None:
            return None
        later = self.module.statement(call.node)
        flow = self.module.flow(self.module.function(later) or self.module.tree)
        if not flow.is_steady(value, made, later):
            return None
        if isinstance(node, ast.Name):
            try:
                return moved.text(value)
            except CannotMove:
                return None
        like = re.fullmatch(rf"{self.torch}\.empty_like\((\w+)\)", self.module.source(value))
        of = moved.known.get(re.sub(r"^\w+", like[1], text)) if like else None
        return f"{self.torch}.empty_like({of})" if of else None  # a view of it as the view of x

    @cached_property
    def _made(self) -> tuple[dict[str, str | None], dict[str, str]]:
        """The buffers that all calls agree on, and what they need."""
        first, *others = [self._buffers_of(call) for call in self.calls]
        if all((texts, given.keys()) == (first[0], first[1].keys()) for texts, given in others):
            return first
        return dict.fromkeys(first[0]), {}

    @cached_property
    def buffers(self) -> dict[str, str]:
        """How ``forward`` makes the outputs, by variable."""
        return {
            self.variables[n]: text or f"{self.torch}.empty_like({self.variables[n]})"
            for n, text in self._made[0].items()
        }

    @cached_property
    def passed(self) -> dict[str, str]:
        """The parameters of ``forward``, by the argument they stand for."""
        texts, given = self._made
        found = {} if self.kernel is not None else {"": "kernel"}
        found.update((n, v) for n, v in self.variables.items() if texts.get(n) is None)
        return {**found, **{f" {v}": v for v in given}}

    def apply(self, call: Call, arguments: Mapping[str, str | None]) -> str:
        """What a call passes instead of its arguments."""
        defaults = {a.name: a.default or "None" for a in self.op.signature.arguments}
        texts = {n: arguments[n] or default for n, default in defaults.items()}
        texts[""] = passed(self.module, call.node.func, call.target) or ""
        if self._made[1]:
            texts.update((f" {v}", text) for v, text in self._buffers_of(call)[1].items())
        return ", ".join(one_line(texts[n]) for n in self.passed)

    # -- forward --------------------------------------------------------------------------------

    def _forward(self, saved: Mapping[str, str], kept: Sequence[str]) -> list[str]:
        """The body of ``forward``.

        ``saved`` are the tensors for backward, by their names there; ``kept`` other variables.
        """
        results = set(self.backward.results.values())
        late = not results.isdisjoint(saved.values())
        stored = f"ctx.save_for_backward({', '.join(map(self.storable, saved.values()))})"
        save = [stored] if saved else []
        lines = [self.kernel.imports, ""] if self.kernel and self.kernel.imports else []
        lines += [] if late else save
        lines += [f"ctx.{variable} = {variable}" for variable in kept]
        copied = [
            self.variables[a.name]
            for a in self.op.signature.written
            if a.name in self.reads and a.name in self.variables
        ]
        if copied:
            copies = ", ".join(self.unless_none(v, f"{v}.clone()") for v in copied)
            lines += ["# The kernel works in place.", f"{', '.join(copied)} = {copies}"]
        lines += [f"{variable} = {text}" for variable, text in self.buffers.items()]
        call, result = self._kernel_call, self._returned
        if self.outputs:
            lines += [f"{result} = {call}" if RETURNED in self.outputs else call]
            lines += save if late else []
            return [*lines, f"return {', '.join(map(self.result, self.outputs))}"]
        if late:
            return [*lines, f"{result} = {call}", *save, f"return {result}"]
        returns, trained = len(self.op.signature.returns), self._trained_results
        if trained < returns:
            rest = f"*(t for t in {result}[{trained}:] if isinstance(t, {self.torch}.Tensor))"
            lines += [f"{result} = tuple({call})", f"ctx.mark_non_differentiable({rest})"]
            return [*lines, f"return {result}"]
        return [*lines, f"return tuple({call})" if returns > 1 else f"return {call}"]

    @property
    def _kernel_call(self) -> str:
        keywords = frozenset.union(*(call.keywords for call in self.calls))
        passed = {a.name for a in self.arguments}
        parts: list[str] = []
        named = False
        for a in self.op.signature.arguments:
            named = named or a.kwarg_only or a.name in keywords or a.name not in passed
            if a.name in passed:
                text = self.literals.get(a.name) or self.variables[a.name]
                parts.append(f"{a.name}={text}" if named else text)
        return f"{self.kernel.text if self.kernel else 'kernel'}({', '.join(parts)})"

    @property
    def _returned(self) -> str:
        return fresh("result", set(self.variables.values()))

    def result(self, name: str) -> str:
        return self._returned if name == RETURNED else self.variables.get(name, "None")

    def storable(self, variable: str) -> str:
        """A variable for ``save_for_backward``, which takes tensors and None."""
        if re.search(r"\b(int|float)\b", self._annotations.get(variable, "")):
            return self.unless_none(variable, f"{self.torch}.as_tensor({variable})")
        return variable

    @cached_property
    def _annotations(self) -> dict[str, str]:
        """What the reference function says of the variables that are its parameters."""
        if self.reference is None:
            return {}
        return {
            self.variables[node.id]: ast.unparse(a.annotation)
            for a in self.reference.tree.args.args
            if a.annotation is not None
            and isinstance(node := self.bound.get(a.arg), ast.Name)
            and node.id in self.variables
        }

    @property
    def _trained_results(self) -> int:
        """How many results come first that have a gradient; the equivalent has None for others."""
        last = self.reference.body[-1] if self.reference is not None else None
        value = last.value if isinstance(last, ast.Return) else None
        elements = value.elts if isinstance(value, ast.Tuple) else []
        none = [isinstance(e, ast.Constant) and e.value is None for e in elements]
        return none.index(True) if True in none else len(self.op.signature.returns)

    # -- backward -------------------------------------------------------------------------------

    @cached_property
    def texts(self) -> dict[str, str]:
        """The arguments as backward has them: unpacked tensors, attributes of ctx, literals."""
        found: dict[str, str] = {}
        for a in self.op.signature.arguments:
            variable = self.variables.get(a.name)
            if variable is None:
                found[a.name] = self.literals.get(a.name) or a.default or "None"
            elif a.is_tensor or "Tensor" in self._annotations.get(variable, ""):
                found[a.name] = variable
            else:
                found[a.name] = f"ctx.{variable}"
        return found

    @cached_property
    def needed(self) -> dict[str, str]:
        """The variables that can have a gradient, with the test whether one is wanted."""
        return {
            variable: f"ctx.needs_input_grad[{i}]"
            for i, (name, variable) in enumerate(self.passed.items())
            if name in self.trained
        }

    # -- text -----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The width for the body of a method."""
        return self.width - 2 * len(self.unit)

    def fit(self, line: str, indentation: str = "") -> list[str]:
        return layout.fit(line, indentation, self.unit, self.room)

    def write(self, name: str, vocabulary: Vocabulary) -> Written:
        """The class under this name."""
        backward = self.backward.body(vocabulary)
        saved, kept = self.saved(backward)
        forward = [fitted for line in self._forward(saved, kept) for fitted in self.fit(line)]
        unit = self.unit
        arguments = ", ".join(["ctx", *self.passed.values()])
        text = [
            f"class {name}({self.torch}.autograd.Function):",
            *_docstring(f"{self.calls[0].target.name} with a backward.", unit, self.width),
            f"\n{unit}@staticmethod",
            *layout.fit(f"def forward({arguments}):", unit, unit, self.width),
            *(unit * 2 + line if line else "" for line in forward),
            "",
            *(unit + line if line else "" for line in self.method(backward, saved)),
        ]
        return Written(name, "\n".join(text) + "\n", backward.helpers)

    def saved(self, backward: Body) -> tuple[dict[str, str], list[str]]:
        """What backward needs of forward: its names for tensors, and their variables; the rest."""
        tree = ast.parse("def f():\n" + textwrap.indent("\n".join(backward.lines), " "))
        read = {n.id for n in walk(tree) if isinstance(n, ast.Name)}
        kept = {ast.unparse(n) for n in walk(tree) if isinstance(n, ast.Attribute)}
        variables = [v for n, v in self.passed.items() if n in self.reads]
        saved = {
            **{name: variable for name, variable in self.backward.results.items() if name in read},
            **{v: v for v in variables if v in read and v in self.texts.values()},
        }
        return saved, [v for v in variables if f"ctx.{v}" in kept]

    def method(self, backward: Body, saved: Mapping[str, str]) -> list[str]:
        """The lines of ``backward``."""
        unpacked = f"({', '.join(saved)},)" if len(saved) == 1 else ", ".join(saved)
        body = self.fit(f"{unpacked} = ctx.saved_tensors") if saved else []
        return [
            "@staticmethod",
            *(f"@{decorator}" for decorator in backward.decorators),
            f"def backward(ctx, {backward.parameters}):",
            *(self.unit + line for line in (*body, *backward.lines)),
        ]


_WORDS = {"rms": "RMS", "rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}


def _docstring(text: str, unit: str, width: int) -> list[str]:
    lines = textwrap.wrap(f'"""{text}', width - len(unit))
    if len(lines) == 1 and len(lines[0]) + 3 <= width - len(unit):
        return [f'{unit}{lines[0]}"""']
    return [unit + line for line in (*lines, '"""')]
