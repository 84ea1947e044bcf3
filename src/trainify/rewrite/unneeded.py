"""Statements that only served a call: the shape of a buffer, the import of a kernel.

When the call goes, they go too, but only where that loses nothing: what they do is told by their
text, it reads what they bind and nobody else does, and no comment stands by them.  What nobody read
before is not for the call: an import may stand there for what importing it does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ..facts import ModuleFacts
from ..facts.metadata import SIZES, TRAITS
from ..facts.module import FunctionNode
from ..facts.views import is_allocation
from ..facts.walk import walk
from . import layout

_SIZES = SIZES | {"ndimension", "element_size"}
_FUNCTIONS = frozenset("len int min max tuple list torch.Size math.prod".split())
_BY_NAME = re.compile(r"\b(locals|vars|eval|exec|dir)\(")


def unneeded(
    module: ModuleFacts, removed: Sequence[ast.stmt], lines: Sequence[str]
) -> list[ast.stmt]:
    """The statements before ``removed`` that nobody needs when ``lines`` are written instead.

    They stand in the block of the first of those that are removed, from the last to the first.
    """
    function = module.scope(removed[0])
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    if _BY_NAME.search(module.source(function)):
        return []
    block = module.block(removed[0])
    gone = list(removed)
    written = set(re.findall(r"(?<![\w.])\w+", "\n".join(lines)))
    found: list[ast.stmt] = []
    for statement in reversed(block[: block.index(removed[0])]):
        names = _bound_by(module, statement)
        if not names or statement in gone or not written.isdisjoint(names):
            continue
        served = _are_read_in(gone, names) and _only_read_in(function, names, [statement, *gone])
        if served and _stands_alone(module, statement):
            found.append(statement)
            gone.append(statement)
    return found


def _bound_by(module: ModuleFacts, statement: ast.stmt) -> set[str]:
    """What a statement binds that has no other effect; empty for all others."""
    if isinstance(statement, ast.If) and _is_of_shapes(statement.test):
        found = [_bound_by(module, inner) for inner in (*statement.body, *statement.orelse)]
        return set().union(*found) if all(found) else set()
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        made = _is_of_shapes(statement.value) or _is_buffer(statement.value)
        if all(isinstance(n, ast.Name) for n in names) and made:
            return {n.id for n in names if isinstance(n, ast.Name)}
    if isinstance(statement, (ast.Import, ast.ImportFrom)) and len(statement.names) == 1:
        (alias,) = statement.names
        dotted = isinstance(statement, ast.Import) and alias.asname is None and "." in alias.name
        # an import may register ops, and `import a.b` makes more than one name good
        if not dotted and alias.name != "*" and "torch.ops" not in module.text:
            return {alias.asname or alias.name}
    return set()


def _is_buffer(node: ast.expr) -> bool:
    """Whether an expression makes a tensor without values, of a shape that is reckoned."""
    if not isinstance(node, ast.Call) or not is_allocation(node):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return all(map(_is_of_shapes, given))


def _is_of_shapes(node: ast.expr) -> bool:
    """Whether an expression only reckons with shapes, dtypes and numbers: ``x.shape[-1] // 2``."""
    if isinstance(node, (ast.Constant, ast.Name)):
        return True
    if isinstance(node, ast.Attribute):
        return node.attr in TRAITS or _is_name(node)
    if isinstance(node, ast.Subscript):
        return _is_of_shapes(node.value) and _is_of_shapes(node.slice)
    if isinstance(node, ast.Slice):
        return all(p is None or _is_of_shapes(p) for p in (node.lower, node.upper, node.step))
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_of_shapes, node.elts))
    if isinstance(node, ast.BinOp):
        return _is_of_shapes(node.left) and _is_of_shapes(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_of_shapes(node.operand)
    if isinstance(node, ast.Compare):
        return all(map(_is_of_shapes, (node.left, *node.comparators)))
    if isinstance(node, ast.BoolOp):
        return all(map(_is_of_shapes, node.values))
    if isinstance(node, ast.Starred):
        return _is_of_shapes(node.value)
    if isinstance(node, ast.Call) and not node.keywords:
        called = node.func
        method = isinstance(called, ast.Attribute) and called.attr in _SIZES
        known = method or ast.unparse(called) in _FUNCTIONS
        return known and all(map(_is_of_shapes, node.args))
    return False


def _is_name(node: ast.expr) -> bool:
    """``self.config.width``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _are_read_in(statements: Sequence[ast.stmt], names: set[str]) -> bool:
    nodes = (node for statement in statements for node in walk(statement))
    return any(isinstance(n, ast.Name) and n.id in names for n in nodes)


def _only_read_in(function: FunctionNode, names: set[str], statements: Sequence[ast.stmt]) -> bool:
    """Whether names occur in these statements of a function, and nowhere else in it."""
    inside = {n for statement in statements for n in walk(statement)}
    return all(n in inside or names.isdisjoint(_names_in(n)) for n in walk(function))


def _names_in(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    if isinstance(node, ast.alias):
        return [node.asname or node.name]
    return []


def _stands_alone(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a statement has its lines to itself, without a comment in, behind or above them."""
    return layout.owns_lines(module, statement) and not layout.is_commented(module, statement)
