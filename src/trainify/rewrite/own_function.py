"""A backward for an ``autograd.Function`` that the user's file has without one.

Its ``forward`` runs a kernel, which stays; what the kernel computes says what the gradients are.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..catalog import FusedOp
from ..facts import ModuleFacts, Target
from ..findings import Edit, Fix
from ..releases import Release
from . import layout
from .autograd import Call, CannotAttach, KernelFunction
from .branch import Vocabulary
from .kernels import Kernel

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class Forward:
    """A ``forward`` whose result is that of an op over its own parameters.

    ``owner`` is what is called: the class, or the function itself.  ``parameters`` are those after
    ``ctx``, ``equivalent`` is an expression over them; ``tensors``
    can be trained, ``sure`` are not None.  ``result`` is the statement that returns the kernel's
    result; ``useless`` is a backward that only raises, to be exchanged.
    """

    owner: ast.ClassDef | FunctionNode
    node: FunctionNode
    parameters: tuple[str, ...]
    equivalent: str
    tensors: tuple[str, ...]
    sure: frozenset[str]
    call: ast.Call
    result: ast.Return
    look_at: str
    useless: FunctionNode | None = None

    @property
    def op(self) -> FusedOp:
        types = {p: "Tensor" if p in self.tensors else "Any" for p in self.parameters}
        arguments = ", ".join(f"{types[p]} {p}" for p in self.parameters)
        return FusedOp((self.owner.name,), f"forward({arguments}) -> Tensor", self.equivalent, "")


class OwnFunction(KernelFunction):
    """Such a class; raises :class:`CannotAttach`."""

    def __init__(self, module: ModuleFacts, forward: Forward) -> None:
        texts = {p: p for p in forward.parameters}
        call = Call(
            node=forward.call,
            op=forward.op,
            target=Target(forward.owner.name),
            value=forward.equivalent,
            outputs=(),
            texts=texts,
            keywords=frozenset(),
            sure=forward.sure,
            trained=frozenset(forward.tensors),
            buffers={},
        )
        super().__init__(module, [call])
        self.forward = forward
        self.kernel = Kernel("")  # it stands in forward already

    def edits(self, vocabulary: Vocabulary) -> list[Edit]:
        """Save what backward needs, and add it."""
        module, node = self.module, self.forward.node
        backward = self.backward.body(vocabulary)
        saved, kept = self.saved(backward)
        own = {variable: parameter for parameter, variable in self.variables.items()}
        result = self.forward.result
        late = not set(self.backward.results.values()).isdisjoint(saved.values())
        if late and not isinstance(result.value, ast.Name):
            raise CannotAttach("its backward needs the result, which has no name")
        if any(self.storable(v) != v for v in saved.values()):
            raise CannotAttach("its backward needs what may be no tensor")
        stored = [
            own.get(v) or module.source(result.value) if result.value is not None else ""
            for v in saved.values()
        ]
        lines = [f"ctx.save_for_backward({', '.join(stored)})"] if saved else []
        lines += [f"ctx.{v} = {own[v]}" for v in kept]
        body = node.body[1:] if ast.get_docstring(node) else node.body
        first: ast.stmt = result if late else body[0]
        if not layout.owns_lines(module, first):
            raise CannotAttach("several statements share its line")
        newline = module.newline
        edits = []
        if lines:
            indent = module.indentation(first)
            fitted = [f for line in lines for f in layout.fit(line, indent, self.unit, self.width)]
            start = layout.line_start(module, first)
            edits.append(Edit(start, start, newline.join(fitted) + newline))
        indent = module.indentation(node)
        method = newline.join(
            indent + line if line else "" for line in self.method(backward, saved)
        )
        useless = self.forward.useless
        if useless is not None:
            start = layout.line_start(module, useless)
            edits.append(Edit(start, layout.line_end(module, useless), method))
        else:
            end = layout.line_end(module, node)
            edits.append(Edit(end, end, newline * 2 + method))
        lines = [*lines, *backward.lines, *backward.decorators]
        vocabulary.refuse_shadowed(body[0], "\n".join(lines))
        return edits + vocabulary.support(lines, list(backward.helpers))

    def formula(
        self, vocabulary: Vocabulary, setup: str, name: str
    ) -> tuple[list[list[str]], tuple[str, ...]]:
        """The functions that a custom operator registers, and the helpers they need."""
        backward = self.backward.body(vocabulary)
        saved, kept = self.saved(backward)
        own = {variable: parameter for parameter, variable in self.variables.items()}
        if {"ctx", "inputs", "output"} & set(own.values()):
            raise CannotAttach("its parameters have names that the formula needs")
        if any(self.storable(v) != v for v in saved.values()):
            raise CannotAttach("its backward needs what may be no tensor")
        targets = [
            p if v in saved.values() else f"ctx.{v}" if v in kept else "_"
            for p, v in self.variables.items()
        ]
        stored = ", ".join(own.get(v, "output") for v in saved.values())
        lines = [f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = inputs"]
        lines += [f"ctx.save_for_backward({stored})"] if saved else []
        head = f"def {setup}(ctx, inputs, output):"
        fitted = [f for line in lines for f in layout.fit(line, self.unit, self.unit, self.width)]
        method = [
            line.replace("def backward(", f"def {name}(", 1)
            for line in self.method(backward, saved)[1:]
        ]
        return [[head, *fitted], method], backward.helpers


def fixes(
    module: ModuleFacts, forwards: Sequence[Forward], releases: Sequence[Release] = ()
) -> dict[ast.AST, Fix | str]:
    """The fix for each class, or why there is none; ``releases`` are those of the project."""
    found: dict[ast.AST, Fix | str] = {}
    functions: list[OwnFunction] = []
    for forward in forwards:
        try:
            functions.append(OwnFunction(module, forward))
        except CannotAttach as error:
            found[forward.owner] = str(error)
    vocabulary = Vocabulary(module, [f.backward.use for f in functions], releases=releases)
    for function in functions:
        cls, look_at = function.forward.owner, function.forward.look_at
        try:
            edits = function.edits(vocabulary)
        except (CannotAttach, layout.CannotPlace) as error:
            found[cls] = str(error)
            continue
        fix = Fix(f"Give `{cls.name}` a backward", tuple(edits))
        found[cls] = fix.unsafe(look_at) if look_at else fix
    return found
