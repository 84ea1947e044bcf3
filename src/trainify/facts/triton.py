"""What a Triton kernel's source says: what it reads, what it writes, what it computes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .names import last_name, parameters
from .walk import walk

if TYPE_CHECKING:
    from ..catalog.kinds import Kind
    from .module import FunctionNode

_WRITES = ("store", "atomic_add", "atomic_max", "atomic_cas", "atomic_xchg")
_READS = ("load",)
_FOREIGN = frozenset(
    "dot rand randn atomic_add atomic_max atomic_cas atomic_xchg cumsum argmax argmin sort log "
    "log2 tanh gather".split()
)


def stored(kernel: FunctionNode) -> set[str]:
    """The parameters that ``tl.store`` and atomics write through."""
    return _through(kernel, _WRITES)


def loaded(kernel: FunctionNode) -> set[str]:
    """The parameters that ``tl.load`` reads through."""
    return _through(kernel, _READS)


def _through(kernel: FunctionNode, functions: tuple[str, ...]) -> set[str]:
    names = {a.arg for a in parameters(kernel.args)}
    addresses: list[ast.expr] = []
    assigned: dict[str, set[str]] = {}
    for node in walk(kernel):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr in functions:
                addresses.append(node.args[0])
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, set()).update(_address(node.value))
    return {name for each in addresses for name in _pointers(each, assigned, names)}


def _pointers(node: ast.expr, assigned: dict[str, set[str]], names: set[str]) -> set[str]:
    """The pointer parameters that an address is computed from, through local names.

    ``assigned`` are the names that each of these is computed from.
    """
    bases = _address(node)
    seen: set[str] = set()
    while bases:
        name = bases.pop()
        if name not in seen:
            seen.add(name)
            bases |= assigned.get(name, set())
    found = seen & names
    return {name for name in found if len(found) == 1 or not name.startswith("stride")}


def _address(node: ast.expr) -> set[str]:
    """The names on the left edge of a sum: ``base + row * stride`` starts at ``base``."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        node = node.left
    if isinstance(node, ast.Call) and node.args:  # tl.make_block_ptr(base=..., ...)
        node = node.args[0]
    return {node.id} if isinstance(node, ast.Name) else set()


# -- meaning --------------------------------------------------------------------------------------


def computes(kernel: FunctionNode, kind: Kind) -> bool:
    """Whether a kernel's source does what its kind does, and nothing that its kind does not."""
    source = _Source(kernel)
    if source.calls & _FOREIGN:
        return False
    family = kind.names[0]
    if family == "rms norm":
        return source.normalizes and not source.centres and not source.shifts_weight
    if family == "layer norm":
        return source.normalizes and source.centres and not source.shifts_weight
    if family == "softmax":
        return {"exp", "sum"} <= source.calls and source.divides
    return False


class _Source:
    def __init__(self, kernel: FunctionNode) -> None:
        self.kernel = kernel
        nodes = list(walk(kernel))
        self.calls = {last_name(n.func) for n in nodes if isinstance(n, ast.Call)}
        self._operations = [n for n in nodes if isinstance(n, ast.BinOp)]
        self._assigned: dict[str, list[ast.expr]] = {}
        for n in nodes:
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
                self._assigned.setdefault(n.targets[0].id, []).append(n.value)

    @property
    def divides(self) -> bool:
        return any(isinstance(n.op, ast.Div) for n in self._operations)

    @property
    def normalizes(self) -> bool:
        """A sum of squares, and a reciprocal root."""
        rooted = "rsqrt" in self.calls or ("sqrt" in self.calls and self.divides)
        squared = any(
            (isinstance(n.op, ast.Mult) and ast.dump(n.left) == ast.dump(n.right))
            or (isinstance(n.op, ast.Pow) and isinstance(n.right, ast.Constant))
            for n in self._operations
        )
        return rooted and squared and "sum" in self.calls

    @property
    def centres(self) -> bool:
        """A mean is subtracted."""
        return any(
            isinstance(n.op, ast.Sub) and isinstance(n.right, ast.Name) and self._sums(n.right.id)
            for n in self._operations
        )

    @property
    def shifts_weight(self) -> bool:
        """``1 + weight``, or a weight with some other offset, as in Gemma's norms."""
        return any(
            isinstance(n.op, ast.Add)
            and any(
                isinstance(side, ast.Name) and self._loads(side.id, ("w", "W", "weight", "gamma"))
                for side in (n.left, n.right)
            )
            for n in self._operations
        )

    def _sums(self, name: str, depth: int = 4) -> bool:
        for value in self._assigned.get(name, ()) if depth else ():
            for node in walk(value):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    if node.func.attr == "sum":
                        return True
                if isinstance(node, ast.Name) and node.id != name:
                    if self._sums(node.id, depth - 1):
                        return True
        return False

    def _loads(self, name: str, prefixes: tuple[str, ...]) -> bool:
        return name.startswith(prefixes) and any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "load"
            for value in self._assigned.get(name, ())
            for node in walk(value)
        )
