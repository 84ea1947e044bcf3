"""Whether parts of a statement may as well be evaluated in another order.

What is written out before a statement runs ahead of what stands to the left there: a random number,
an element of an iterator, or a value before it is overwritten would be another one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .layers import bases_of
from .learning import is_tensor_method
from .names import last_name
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts

_PLAIN = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Starred),
    *(ast.keyword, ast.JoinedStr, ast.FormattedValue),
)
_OPERATORS = (ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
_COMPUTED = (
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Subscript, ast.Slice),
    *_OPERATORS,  # which stand to the left of an operand
)
_FUNCTIONS = ("torch.", "math.", "einops.")
_BUILTINS = frozenset("abs bool float int isinstance len max min range str sum tuple".split())
_LAYERS = re.compile(
    r"torch\.nn\.(Linear|Bilinear|Embedding|Conv\d?d?\w*|(Layer|RMS|Group)Norm|Identity|SiLU|GELU|ReLU"
    r"|Sigmoid|Tanh|Softmax|Parameter)"
)
_NOT_ALIKE = re.compile(
    r"(^|[._])(rand\w*|\w*dropout\w*|bernoulli|multinomial|normal|poisson|seed|manual_seed|save|load"
    r"|cuda|distributed|utils|random|library|ops|pop|append)($|[._])|_$"
)
_ASKS = re.compile(
    r"_*(is|has|get|should|can|supports?|uses?|enabled?|needs?|device|current|cdiv)(_|$)"
)
_TAKES = re.compile(
    r"(next|\w*pop\w*|append\w*|put|push\w*|read\w*|recv|receive|send|step|advance)$"
)


def leaves_traces(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether it may be missed that an expression does not run, beside its value."""
    return any(
        isinstance(each, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom))
        or (
            isinstance(each, ast.Call)
            and not _is_pure(module, each)
            and not _ASKS.match(last_name(each.func))
        )
        for each in walk(node)
    )


def takes_something(node: ast.AST) -> bool:
    """The same for sure, by what is called: ``next(it)``, ``stack.pop()``."""
    return any(
        isinstance(each, ast.Call) and _TAKES.match(last_name(each.func)) for each in walk(node)
    )


def evaluated_before(module: ModuleFacts, node: ast.expr) -> list[ast.AST]:
    """What a statement evaluates ahead of an expression in it and of what that is made of."""
    statement = module.statement(node)
    found: list[ast.AST] = []
    child: ast.AST = node
    for parent in module.ancestors(node):
        if parent is statement:
            if isinstance(parent, ast.AugAssign):
                found.append(parent.target)
            return found
        operands = True
        for each in ast.iter_child_nodes(parent):
            if each is child:
                break
            if not (operands and isinstance(each, _OPERATORS)):  # `a +` is nothing but a
                found.append(each)
            operands = operands and isinstance(each, (ast.Name, ast.Constant, *_OPERATORS))
        child = parent
    return found


def order_matters(
    module: ModuleFacts, left: Iterable[ast.AST], right: Iterable[ast.AST], written: Iterable[str]
) -> bool:
    """Whether it makes a difference that ``right``, which writes into some names, runs first."""
    left, right, names = list(left), list(right), set(written)
    before = max((_effects(module, node) for node in left), default=0)
    if before == 0:
        return False
    read = {n.id for node in left for n in walk(node) if isinstance(n, ast.Name)}
    if names and (before == 2 or names & read):
        return True
    after = max((_effects(module, node) for node in right), default=0)
    if after == 0:  # views of what there is, in which a later write shows
        return False
    return before == 2 or after == 2


def _effects(module: ModuleFacts, node: ast.AST) -> int:
    """0 for a plain value, 1 for what is computed from others, 2 for anything else."""
    most = 0
    for each in walk(node):
        if isinstance(each, _PLAIN):
            continue
        known = isinstance(each, _COMPUTED) or (
            isinstance(each, ast.Call) and _is_pure(module, each)
        )
        most = max(most, 1 if known else 2)
    return most


def _is_pure(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call gives the same whenever it runs, and changes nothing."""
    callee = call.func
    if _NOT_ALIKE.search(last_name(callee)) or any(
        k.arg in ("out", "inplace") for k in call.keywords
    ):
        return False
    targets = [target.name for target in module.resolve(callee)]
    if targets:
        return all(
            _writes_nothing(name, call)
            or (name.startswith(_FUNCTIONS) and not _NOT_ALIKE.search(name))
            for name in targets
        )
    if isinstance(callee, ast.Name):
        return callee.id in _BUILTINS
    if not isinstance(callee, ast.Attribute):
        return False
    if isinstance(callee.value, ast.Name):
        cls = module.names.self_class(callee.value)
        if cls is not None:
            made = _made(module, cls, callee.attr)
            return bool(made) and all(_is_layer(*each) for each in made)
    return is_tensor_method(callee.attr)


def _made(
    module: ModuleFacts, cls: ast.ClassDef, name: str, depth: int = 4
) -> list[tuple[ModuleFacts, ast.expr | None]]:
    """What an attribute is made by, in the class or one that it derives from, with the file."""
    found = [(module, binding.value) for binding in module.names.inherited(cls, name)]
    if found or depth == 0:
        return found
    bases = (_made(*base, name, depth - 1) for base in bases_of(module, cls))
    return next(filter(None, bases), [])


def _writes_nothing(name: str, call: ast.Call) -> bool:
    """Whether a call is one of a fused op that only gives a result."""
    from ..catalog import BindError, lookup

    op = lookup(name)
    try:
        bound = op.signature.bind(call.args, call.keywords) if op is not None else {}
    except BindError:
        return False
    return op is not None and all(bound[a.name] is None for a in op.signature.written)


def _is_layer(module: ModuleFacts, made: ast.expr | None) -> bool:
    return (
        isinstance(made, ast.Call)
        and any(_LAYERS.fullmatch(target.name) for target in module.resolve(made.func))
        and not any(k.arg == "inplace" for k in made.keywords)
    )
