"""What gradient a value carries, and where it was cut off; see :mod:`.gradients`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class Cut:
    """An expression that carries no gradient although what it was made from does.

    ``detach`` is ``.detach()`` and ``.data``, ``host`` the same before ``.cpu()``, ``number`` a
    Python number, list or array made from a tensor, ``tensor`` a tensor made from such.  ``sure``:
    the gradient of ``weights`` ends here.
    """

    node: ast.expr
    kind: Literal["detach", "host", "number", "tensor"]
    weights: frozenset[str]
    sure: bool


@dataclass(frozen=True)
class Carried:
    """What gradient a value carries.

    ``weights``: those whose gradient it may carry; ``sure``: it is a tensor that carries it.
    ``known``: it carries no other gradient.  ``cuts``: where the gradient was lost of something
    that the value was computed from.  ``plain``: a number, not a tensor.
    """

    weights: frozenset[str] = frozenset()
    sure: bool = False
    known: bool = True
    cuts: frozenset[Cut] = frozenset()
    plain: bool = False

    @property
    def nothing(self) -> bool:
        """Whether the value certainly carries no gradient."""
        return self.known and not self.weights


@dataclass(frozen=True)
class Network:
    """A module with weights of its own, made from scratch by ``calls``."""

    key: str
    calls: tuple[ast.Call, ...]


Bound: TypeAlias = Mapping[str, Carried | Network]
"""What the names of a comprehension stand for."""


def together(values: Sequence[Carried]) -> Carried:
    """What a value carries that is computed from all of these."""
    return Carried(
        weights=frozenset[str]().union(*(v.weights for v in values)),
        sure=any(v.sure for v in values),
        known=all(v.known for v in values),
        cuts=frozenset[Cut]().union(*(v.cuts for v in values)),
        plain=all(v.plain for v in values),
    )


def either(values: Sequence[Carried]) -> Carried:
    """What a value carries that is one of these."""
    return replace(together(values), sure=all(v.sure for v in values))


def blurred(values: Sequence[Carried]) -> Carried:
    """What may come out of something unknown that these go into."""
    weights = frozenset[str]().union(*(v.weights for v in values))
    return Carried(weights=weights, known=False)


def detached(node: ast.expr) -> ast.expr | None:
    """What ``.detach()`` or ``.data`` is asked of."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "detach" and not node.args and not node.keywords:
            return node.func.value
    return None


def undetached(node: ast.expr) -> ast.expr:
    """``self.weight`` of ``self.weight.detach().data``."""
    while (inner := detached(node)) is not None:
        node = inner
    return node
