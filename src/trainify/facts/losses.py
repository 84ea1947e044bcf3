"""What gets no gradient in the end: weights of a forward, losses that ``backward`` is called on."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .carried import Carried, Cut, together
from .differentiation import MAKES_TENSOR, NUMBER, may_cut
from .gradients import Gradients
from .names import default_of, is_getter, last_name, parameters
from .walk import statements, walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_INITIALIZES = re.compile(r"init|reset_parameters|extra_repr")


_RESULTS = frozenset({"forward", "forward_native", "training_step"})
"""Methods whose result is trained through: also of vLLM's and SGLang's layers, and Lightning's."""

_TRAINS_ITSELF = ("backward(", "automatic_optimization")


def results(module: ModuleFacts) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    """The methods whose result is trained through, of classes that do not train themselves."""
    for cls in module.classes:
        found = [f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name in _RESULTS]
        source = module.source(cls) if found else ""
        if not any(word in source for word in _TRAINS_ITSELF):
            yield from ((cls, function) for function in found)


def lost(gradients: Gradients) -> list[tuple[Cut, frozenset[str]]]:
    """The cuts on the way to what a method returns, with the weights that get no gradient by them.

    A weight that is used in any other way, here or in another method, counts as learning.
    """
    result = together([r for r in gradients.returned() if not r.plain])
    cuts = [cut for cut in result.cuts if cut.sure]
    if not cuts:
        return []
    learning = result.weights | gradients.escaping()
    ended = {inner for cut in cuts for inner in walk(cut.node)}
    found = []
    for cut in sorted(cuts, key=lambda c: (c.node.lineno, c.node.col_offset)):
        weights = frozenset(w for w in cut.weights - learning if _only_here(gradients, w, ended))
        if weights:
            found.append((cut, weights))
    return found


def _only_here(gradients: Gradients, weight: str, ended: set[ast.AST]) -> bool:
    """Whether nothing but the initialization uses ``self.name`` outside of a method.

    What a method that it calls does with it counts for nothing where it is ``ended`` at once.
    """
    module, function = gradients.module, gradients.function
    cls = module.method_class(function)
    owner, _, name = weight.partition(".")
    if cls is None or cls.name != owner:
        return False
    judged = {
        inner
        for method in cls.body
        if method is function or _INITIALIZES.search(getattr(method, "name", ""))
        for inner in walk(method)
    }
    for node in walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == name and node not in judged:
            if node not in ended and not is_of_stranger(module, node, cls):
                return False
    return all(
        _is_understood(module, node)
        for node in walk(function)
        if isinstance(node, ast.Attribute) and node.attr == name
    )


def is_of_stranger(module: ModuleFacts, node: ast.Attribute, cls: ast.ClassDef) -> bool:
    """Whether this is ``self.name`` of a class that has nothing to do with another one."""
    other = module.names.self_class(node.value)
    if other is None or other is cls:
        return False
    return cls not in _ancestry(module, other) and other not in _ancestry(module, cls)


def _ancestry(module: ModuleFacts, cls: ast.ClassDef) -> set[ast.ClassDef]:
    """The classes of the file that a class derives from."""
    found: set[ast.ClassDef] = set()
    ahead = [cls]
    while ahead:
        names = {last_name(base) for base in ahead.pop().bases}
        above = {c for c in module.classes if c.name in names} - found
        found |= above
        ahead += above
    return found


def _is_understood(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether a weight or module is used where its gradient is followed: not as an argument."""
    parent = module.parent(node)
    if isinstance(parent, ast.Call):
        if isinstance(parent.func, ast.Name) and parent.func.id == "float":
            return True
        if parent.func is node or module.is_name(parent.func, *MAKES_TENSOR):
            return True
        return any(t.name.startswith("math.") for t in module.resolve(parent.func))
    return isinstance(
        parent, (ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.For, ast.comprehension)
    )


_CONSTANT = re.compile(
    rb"\ndef \w+\([^)]*\)[^\n]*:\n(?:[^\n]*\n){0,15}?[ \t]+return [^\n]*(?:ensor\(|from_numpy\()"
)


def may_give_constants(data: bytes) -> bool:
    """Whether a file has a function that returns a tensor made of values."""
    return b"return " in data and _CONSTANT.search(data) is not None


def constant_functions(module: ModuleFacts) -> frozenset[str]:
    """The functions of a file that give a tensor without the gradient of what they are given."""
    return frozenset(
        function.name
        for function in module.functions
        if module.parent(function) is module.tree
        and _RETURNS.search(module.source(function))
        and _gives_constant(module, function)
    )


_RETURNS = re.compile(r"\breturn [^\n]*(?:ensor\(|from_numpy\()")


def _gives_constant(module: ModuleFacts, function: FunctionNode) -> bool:
    given = Carried(frozenset({"given"}), sure=True)
    arguments = {argument.arg: given for argument in parameters(function.args)}
    returned = Gradients(module, function, arguments, foreign=False).returned()
    return bool(returned) and all(
        each.nothing
        and not each.plain
        and any(cut.sure and cut.kind in ("number", "tensor") for cut in each.cuts)
        for each in returned
    )


class CutNames:
    """The functions of a file that have a cut in their text, which ``cuts`` finds."""

    def __init__(self, module: ModuleFacts, cuts: re.Pattern[str]) -> None:
        self._module = module
        self._everywhere = module.usual is not module.text
        """Whether the file is spelled so that its text does not tell."""
        self._lines = [module.position(found.start())[0] for found in cuts.finditer(module.text)]
        names = {f.name for f in module.functions if self._inside(f)}
        self.in_a_module = "forward" in names
        """Whether a module has a cut, which may hide behind any call of an object."""
        names -= _RESULTS
        names |= module.cutting_imports
        self._calls = sorted(
            [call.func.end_lineno or 0 for name in names for call in module.calls_named(name)]
            + [function.lineno for name in names for function in module.functions_named(name)]
            + [line for name in names for line in _read(module, name)]
        )
        """The lines on which one of them is called, or begins."""

    def concern(self, function: FunctionNode | ast.Module) -> bool:
        """Whether a function has a cut, or calls a function of this file that has one."""
        if isinstance(function, ast.Module) or self._inside(function):
            return True
        return self._calls_one(function)

    def surely(self, gradients: Gradients) -> bool:
        """Whether a cut of a function, looked at by itself, may take a gradient.

        That is asked first, because following all that a long function returns takes long.
        """
        function = gradients.function
        if isinstance(function, ast.Module) or self._calls_one(function):
            return True
        for node in walk(function):
            if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)):
                if _has(self._lines, node):
                    return True
            elif isinstance(node, ast.expr) and may_cut(node):
                value = gradients.value(node, self._module.statement(node))
                if any(cut.node is node and cut.sure for cut in value.cuts):
                    return True
        return False

    def _calls_one(self, function: FunctionNode) -> bool:
        return _has(self._calls, function)

    def _inside(self, function: FunctionNode) -> bool:
        return self._everywhere or _has(self._lines, function)


def _read(module: ModuleFacts, name: str) -> Iterator[int]:
    """The lines on which a property of a class is read, if there is one by this name."""
    if any(is_getter(function) for function in module.functions_named(name)):
        for found in re.finditer(rf"\.{name}\b", module.text):
            yield module.position(found.start())[0]


def _has(lines: list[int], node: FunctionNode | ast.expr) -> bool:
    """Whether one of some lines, in order, is of a node."""
    at = bisect_left(lines, node.lineno)
    return at < len(lines) and lines[at] <= (node.end_lineno or node.lineno)


def losses_without_gradient(module: ModuleFacts, names: CutNames) -> Iterator[tuple[str, Cut]]:
    """The losses that certainly have no gradient, by what differentiates them, and what took it."""
    for by, function, value, at in _differentiated(module):
        if not names.in_a_module and not names.concern(function):
            continue
        loss = Gradients(module, function, _numbers(function)).value(value, at)
        if not loss.nothing or loss.plain or not loss.cuts:
            continue
        candidates = [cut for cut in loss.cuts if cut.sure] or list(loss.cuts)
        if len(candidates) == 1:
            yield by, candidates[0]


_NUMBER = re.compile(r"(beta|gamma|lam|lambda_?|eps|epsilon|margin|clip\w*|\w*_coef)$")


def _numbers(function: FunctionNode | ast.Module) -> dict[str, Carried]:
    """The parameters of a function that are numbers, by what they are called or stand for."""
    if isinstance(function, ast.Module):
        return {}
    return {
        each.arg: NUMBER
        for each in parameters(function.args)
        if _NUMBER.match(each.arg)
        or type(getattr(default_of(function.args, each.arg), "value", None)) in (int, float)
    }


_TRAINER = re.compile(r"Trainer$")


def _differentiated(
    module: ModuleFacts,
) -> Iterator[tuple[str, FunctionNode | ast.Module, ast.expr, ast.stmt]]:
    """What ``backward`` is called on; a trainer calls it on what its ``compute_loss`` gives."""
    for call in module.calls_named("backward"):
        if isinstance(call.func, ast.Attribute):
            by = " ".join(module.source(call.func).split())
            function = module.function(call) or module.tree
            yield f"`{by}()`", function, call.func.value, module.statement(call)
    for function in module.functions_named("compute_loss"):
        cls = module.method_class(function)
        if cls is None or not any(_TRAINER.search(module.source(base)) for base in cls.bases):
            continue
        returned = [s for s in statements(function) if isinstance(s, ast.Return)]
        if len(returned) == 1 and returned[0].value is not None:
            value = returned_loss(returned[0].value)
            yield (
                f"the trainer's backward() of `{module.source(value)}`",
                function,
                value,
                returned[0],
            )


def returned_loss(value: ast.expr) -> ast.expr:
    """The loss of ``(loss, outputs) if return_outputs else loss``, or ``{"loss": loss}``."""
    while isinstance(value, (ast.IfExp, ast.Tuple)):
        value = value.orelse if isinstance(value, ast.IfExp) else value.elts[0]
    if isinstance(value, ast.Dict):
        for key, part in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "loss":
                return part
    return value
