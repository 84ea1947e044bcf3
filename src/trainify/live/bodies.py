"""Custom ops whose body is PyTorch: their backward can compute that again, under autograd.

``trainify fix`` registers such a formula in the file that defines the op (TRN110); here it is a row
as the catalog has them, with the op's own function as the equivalent.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from types import FunctionType

import torch
from torch._ops import OpOverload

from ..catalog import FusedOp, SchemaError, parse_schema
from ..facts.operators import operator_of
from ..facts.pure import why_not_differentiable
from .rewritten import Refused, definition_of


def with_body(names: Iterable[str]) -> tuple[str, ...]:
    """Those of some ops (``namespace::name``) that have such a body, and no backward."""
    return tuple(name for name in sorted(names) if _body(name) is not None)


def row_of_body(op: OpOverload) -> FusedOp | None:
    """The row of an op by its body; None where it has none that autograd can follow."""
    name = op._schema.name
    if _body(name) is None:
        return None
    schema = str(op._schema).partition("::")[2]
    given = ", ".join(
        a.name if not a.kwarg_only else f"{a.name}={a.name}" for a in op._schema.arguments
    )
    try:
        parse_schema(schema)
    except SchemaError:  # of types that no row has
        return None
    return FusedOp(
        names=(f"torch.ops.{name.replace('::', '.')}",),
        schema=schema,
        equivalent=f"torch._library.custom_ops.OPDEFS[{name!r}]._init_fn({given})",
        source="its own body",
    )


def _body(name: str) -> FunctionType | None:
    defined = torch._library.custom_ops.OPDEFS.get(name)
    if (
        defined is None
        or defined._backward_fn is not None
        or defined._opoverload._schema.is_mutable
    ):
        return None
    function = defined._init_fn
    return function if isinstance(function, FunctionType) and _is_plain(function, name) else None


@lru_cache(maxsize=256)
def _is_plain(function: FunctionType, name: str) -> bool:
    """Whether a function, of which an op was made by decoration, is differentiable PyTorch."""
    try:
        module, node = definition_of(function.__code__)
    except Refused:
        return False
    if operator_of(module, node) != (name, ()):
        return False
    return not why_not_differentiable(module, node, registering=True)
