"""What is known of a function before it is called: its name, and what its name tells."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import resolve_name

ALIASES = {"data", "T", "mT", "H", "mH", "real", "imag"}
"""Attributes that are tensors; the others say something about one."""

_LEAVE = {"item", "tolist", "numpy", "__array__", "__float__", "__complex__"}
"""Methods through which values leave torch; ``__bool__``, ``__int__`` have no derivative."""

_UNFILLED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
             "empty_permuted"}  # fmt: skip
"""Functions that return memory as they find it."""

SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "rsub", "subtract",
         "__sub__", "__rsub__", "__isub__", "stack"}  # fmt: skip
"""Functions that add what they are given up, signs aside, or put it beside each other."""

VIEWS = {"reshape", "view", "view_as", "permute", "transpose", "unsqueeze", "squeeze", "clone",
         "contiguous", "flatten", "movedim"}  # fmt: skip
"""Functions that put what they are given in another order, at most."""

PICKS = {*VIEWS, "__getitem__", "select", "narrow", "gather", "index_select", "masked_select",
         "take_along_dim", "unbind", "chunk", "split"}  # fmt: skip
"""Functions that give some of the numbers that they are given."""

LINEAR = {*SUMS, "mul", "mul_", "__mul__", "__rmul__", "div", "div_", "__truediv__", "mean",
           "sum", "neg", "__neg__", "reshape", "view", "squeeze", "unsqueeze", "to", "float",
           "double", "__getitem__", "unbind", "__iter__"}  # fmt: skip
"""Functions that give as much more of what is as much more, each by itself."""

_TORCH_OPS = ("aten", "prims", "prim")


class Known:
    """A torch function, an op, or a subclass of ``autograd.Function``."""

    __slots__ = ("asks", "attribute", "hooks", "iterates", "leaves", "opaque", "returns", "sets",
                 "unfilled", "writes")  # fmt: skip

    def __init__(self, function: Any) -> None:
        name = getattr(function, "__name__", "")
        self.attribute = attribute_of(function)
        """The attribute that it gets or sets; empty for another function."""
        self.asks = bool(self.attribute) and self.attribute not in ALIASES
        """Whether it gives something about a tensor, and none."""
        self.hooks = self.attribute == "grad_fn" or name.startswith("register_")
        """Whether a model has a hand in its graph by it."""
        self.opaque = is_opaque(function)
        self.sets = name == "__set__"
        self.writes = (
            self.opaque
            or self.sets
            or name == "__setitem__"
            or name.startswith("__i")
            or (name.endswith("_") and not name.endswith("__"))
        )
        """Whether its arguments may hold something else afterwards."""
        self.iterates = name == "__iter__"
        self.leaves = name in _LEAVE
        """Whether values leave torch by it."""
        self.unfilled = name in _UNFILLED
        """Whether it returns memory as it finds it."""
        self.returns = not (
            self.opaque
            or self.attribute
            or isinstance(function, type)
            or name in ("__setitem__", "register_hook")
        )
        """Whether all it can do is to return something."""


def name_of(function: Any) -> str:
    """A qualified name: ``_C::rms_norm``, ``torch.Tensor.detach``."""
    if isinstance(function, OpOverloadPacket):
        return str(function._qualified_op_name)
    if isinstance(function, OpOverload):
        return str(function._schema.name)
    if isinstance(function, type):
        return f"{function.__module__}.{function.__qualname__}"
    attribute = attribute_of(function)
    if attribute:
        return f"torch.Tensor.{attribute}"
    return _resolved(function)


@lru_cache(maxsize=1024)
def _resolved(function: Any) -> str:
    name = resolve_name(function) or str(getattr(function, "__qualname__", function))
    name = name.replace("_VariableFunctionsClass.", "torch.")
    # torch.mm equals torch.spmm, and is found under the name that comes last
    return "torch.mm" if name == "torch.spmm" else name


def attribute_of(function: Any) -> str:
    """The name of the attribute that this function gets or sets; empty where it is another."""
    if getattr(function, "__name__", "") in ("__get__", "__set__"):
        return str(getattr(getattr(function, "__self__", None), "__name__", ""))
    return ""


def is_opaque(function: Any) -> bool:
    """Whether it is an op that a library has registered, and not one of torch's."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return name_of(function).partition("::")[0] not in _TORCH_OPS
    return False
