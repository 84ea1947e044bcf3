"""The equivalent of an op as a function that runs."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from .. import reference
from ..catalog import FusedOp
from ..facts.walk import walk
from .kernels import Libraries


@cache
def reference_functions() -> dict[str, Callable[..., Any]]:
    """Every function of :mod:`trainify.reference`, by name."""
    return {
        name: value
        for info in pkgutil.iter_modules(reference.__path__)
        for name, value in vars(
            importlib.import_module(f"{reference.__name__}.{info.name}")
        ).items()
        if isinstance(value, types.FunctionType)
    }


class Equivalent:
    """What stands for an op: ``outputs`` are the arguments it assigns, if it assigns any."""

    def __init__(self, op: FusedOp, libraries: Libraries) -> None:
        assert op.equivalent is not None
        (statement,) = ast.parse(op.equivalent).body
        assert isinstance(statement, (ast.Assign, ast.Expr))
        self.op = op
        self.value = statement.value
        self.outputs: list[str] = []
        if isinstance(statement, ast.Assign):
            (target,) = statement.targets
            elements: Sequence[ast.expr] = getattr(target, "elts", [target])
            self.outputs = [element.id for element in elements if isinstance(element, ast.Name)]
        self._code = compile(ast.Expression(self.value), op.names[0], "eval")
        self._globals = {"torch": torch, "F": F, **reference_functions()}
        for module in op.imports:
            libraries.load(module)
            root = module.partition(".")[0]
            self._globals[root] = importlib.import_module(root)

    @property
    def reads(self) -> frozenset[str]:
        """The names in it."""
        return frozenset(n.id for n in walk(self.value) if isinstance(n, ast.Name))

    @property
    def measured(self) -> frozenset[str]:
        """The names of which it reads no more than the shape or the dtype."""
        names = [n for n in walk(self.value) if isinstance(n, ast.Name)]
        of = {
            n.value
            for n in walk(self.value)
            if isinstance(n, ast.Attribute) and n.attr in ("shape", "dtype")
        }
        return frozenset(n.id for n in names) - {n.id for n in names if n not in of}

    @property
    def calls(self) -> list[ast.Call]:
        """Its calls of reference functions."""
        return [
            node
            for node in walk(self.value)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in reference_functions()
        ]

    def __call__(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Its results, in the order of the outputs or of what the op returns."""
        result = self.evaluate(arguments)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    def evaluate(
        self, arguments: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] = {}
    ) -> Any:
        """Its value; ``functions`` take the place of reference functions of the same name."""
        defaults = {
            a.name: None if a.default is None else value_of(a.default)
            for a in self.op.signature.arguments
        }
        return eval(self._code, {**self._globals, **functions}, {**defaults, **arguments})


def value_of(default: str) -> Any:
    """A default of a schema: a literal, or a dtype."""
    return eval(default, {"torch": torch})
