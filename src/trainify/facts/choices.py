"""Values that only choose: what becomes of them are indices, which have no gradient."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts

_WITHOUT_GRADIENT = frozenset(
    "argmax argmin argsort argwhere nonzero count_nonzero searchsorted bool int long detach item "
    "tolist size dim numel zeros_like ones_like empty_like full_like".split()
)
_PAIRS = frozenset("topk sort kthvalue mode cummax cummin".split())
"""What gives values and their indices."""
_PAIRS_OF_DIMENSION = frozenset({"max", "min", "median"})


def only_chooses(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether whatever is computed from a value ends as an index: ``topk(s + bias, k)[1]``.

    False where it does not show, as for what is handed to a function other than torch's.
    """
    return _Choice(module).ends(node)


class _Choice:
    def __init__(self, module: ModuleFacts) -> None:
        self.module = module
        self.seen: set[tuple[ast.stmt, str]] = set()

    def ends(self, node: ast.expr) -> bool:
        """The same of one expression, up to the names that it is given."""
        parent = self.module.parent(node)
        if isinstance(parent, ast.Compare):
            return True
        if isinstance(parent, (ast.BinOp, ast.UnaryOp)):
            return self.ends(parent)
        if isinstance(parent, ast.IfExp):
            return parent.test is node or self.ends(parent)
        if isinstance(parent, ast.Subscript):
            return parent.value is node and self.ends(parent)
        if isinstance(parent, ast.Attribute):  # x.topk(k), x.T
            call = self.module.parent(parent)
            if isinstance(call, ast.Call) and call.func is parent:
                if isinstance(self.module.parent(call), ast.Expr):
                    return True  # in place, and read by its name
                return self._called(call, parent.attr, call.args)
            if parent.attr in ("shape", "dtype", "device", "ndim"):
                return True
            return parent.attr in ("T", "mT") and self.ends(parent)
        if isinstance(parent, ast.keyword):
            parent = self.module.parent(parent)
        if isinstance(parent, ast.Call):
            names = [target.name for target in self.module.resolve(parent.func)]
            if names and all(name.startswith("torch.") for name in names):
                return self._called(parent, names[0].rpartition(".")[2], parent.args[1:])
            return False
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            target = parent.targets[0]
            return isinstance(target, ast.Name) and self._reads(parent, target.id, self.ends)
        if isinstance(parent, ast.AugAssign) and isinstance(parent.target, ast.Name):
            return self._reads(parent, parent.target.id, self.ends)
        return False

    def _called(self, call: ast.Call, name: str, options: Sequence[ast.expr]) -> bool:
        """The same of a function's result, or a method's; ``options`` are what else it is given."""
        if name in _WITHOUT_GRADIENT:
            return True
        if name in _PAIRS or (name in _PAIRS_OF_DIMENSION and _names_dimension(call, options)):
            return self._pair(call)
        return not name.endswith("_") and self.ends(call)

    def _pair(self, node: ast.expr) -> bool:
        """Whether of values and their indices the values are not used, or only choose."""
        parent = self.module.parent(node)
        if isinstance(parent, ast.Attribute):
            return parent.attr == "indices" or (parent.attr == "values" and self.ends(parent))
        if isinstance(parent, ast.Subscript) and parent.value is node:
            at = ast.unparse(parent.slice)
            return at in ("1", "-1") or (at in ("0", "-2") and self.ends(parent))
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            target = parent.targets[0]
            if isinstance(target, ast.Name):
                return self._reads(parent, target.id, self._pair)
            if isinstance(target, ast.Tuple) and len(target.elts) == 2:
                values = target.elts[0]
                return isinstance(values, ast.Name) and self._reads(parent, values.id, self.ends)
        return False

    def _reads(self, made: ast.stmt, name: str, ends: Callable[[ast.expr], bool]) -> bool:
        """The same of each place where a name is read with the value that it is given here."""
        if (made, name) in self.seen:
            return True
        self.seen.add((made, name))
        function = self.module.function(made)
        if function is None:
            return False
        flow = self.module.flow(function)
        if not flow.is_local(name):
            return False
        for node in walk(function):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                if self.module.function(node) is not function:
                    return False  # in a function inside, at any time
                reaching = flow.reaching(name, self.module.statement(node))
                if any(d.statement is made for d in reaching) and not ends(node):
                    return False
        return True


def _names_dimension(call: ast.Call, options: Sequence[ast.expr]) -> bool:
    """Whether ``max`` is of one dimension, not of all elements or of two tensors."""
    if any(keyword.arg == "dim" for keyword in call.keywords):
        return True
    return bool(options) and isinstance(options[0], (ast.Constant, ast.UnaryOp))
