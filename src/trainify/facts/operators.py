"""Operators that ``torch.library.custom_op`` makes of functions, and their autograd formulas."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .names import placed
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

CUSTOM_OP = ("torch.library.custom_op", "torch._library.custom_ops.custom_op")
_DIFFERENTIABLE = re.compile(r"[\"'](Autograd\w*|CompositeImplicitAutograd)[\"']")


def operator_of(module: ModuleFacts, function: FunctionNode) -> tuple[str | None, tuple[str, ...]]:
    """``ns::name`` of an operator that a decorator registers, and the arguments that it writes.

    None where it registers none, or one of which these cannot be told.
    """
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and module.is_name(decorator.func, *CUSTOM_OP):
            mutated = next((k.value for k in decorator.keywords if k.arg == "mutates_args"), None)
            if isinstance(mutated, (ast.Tuple, ast.List, ast.Set)):
                texts = [e.value if isinstance(e, ast.Constant) else None for e in mutated.elts]
            elif isinstance(mutated, ast.Call) and not mutated.args:  # set()
                texts = []
            else:
                continue
            first = decorator.args[0] if decorator.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                written = tuple(text for text in texts if isinstance(text, str))
                if len(written) == len(texts):
                    return first.value, written
    return None, ()


def has_formula(module: ModuleFacts, function: FunctionNode, name: str) -> bool:
    """Whether the project registers one, or something of which that cannot be told."""
    own = f"{function.name}.register_autograd"
    for other in module.project.mentioning(module, own, name, containing=b"utograd"):
        if own in other.text:
            return True
        for call in other.calls:
            called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            called = called or getattr(call.func, "id", "")
            if called == "register_autograd" and call.args:
                first = call.args[0]
                if isinstance(first, ast.Constant):
                    if first.value == name:
                        return True
                elif isinstance(call.func, ast.Name) or other.is_name(
                    call.func, "torch.library.register_autograd"
                ):
                    return True
            elif called == "impl" and _DIFFERENTIABLE.search(other.source(call)):
                if name.rpartition("::")[2] in other.source(call):
                    return True
    return False


def gives_gradient(module: ModuleFacts, function: FunctionNode, argument: str) -> bool:
    """Whether a formula that the file registers for an operator gives an argument its gradient."""
    for call in module.calls:
        called = call.func
        if not isinstance(called, ast.Attribute) or called.attr != "register_autograd":
            continue
        if not isinstance(called.value, ast.Name) or called.value.id != function.name:
            continue
        names = placed(function)
        if argument not in names or not call.args or not isinstance(call.args[0], ast.Name):
            return False
        at = names.index(argument)
        return any(
            isinstance(node, ast.Return)
            and isinstance(node.value, ast.Tuple)
            and len(node.value.elts) == len(names)
            and not (isinstance(given := node.value.elts[at], ast.Constant) and given.value is None)
            for backward in module.functions_named(call.args[0].id)
            for node in walk(backward)
        )
    return False
