"""What an expression is a view of: whose storage it looks at, or that it is a fresh tensor."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from .names import last_name
from .overwriting import asks_in_place
from .walk import walk

ViewKind = Literal["alias", "full", "part"]

_FULL_VIEWS = frozenset(
    "view reshape view_as reshape_as unflatten flatten squeeze unsqueeze transpose permute t "
    "swapaxes swapdims movedim moveaxis ravel contiguous to float half bfloat16 double type_as "
    "type cuda cpu detach requires_grad_ view_as_real view_as_complex rearrange resolve_conj "
    "resolve_neg atleast_1d atleast_2d atleast_3d".split()
)
VIEW_ATTRIBUTES = frozenset({"data", "T", "mT", "real", "imag"})
SPLITS = frozenset("split split_with_sizes chunk unbind tensor_split hsplit vsplit".split())
"""Methods that give several views of a tensor, in a tuple."""
_PART_VIEWS = SPLITS | frozenset(
    "narrow select diagonal expand expand_as broadcast_to unfold as_strided".split()
)
_ALLOCATORS = frozenset(
    "empty empty_like empty_strided zeros zeros_like ones_like full full_like new_empty new_zeros "
    "new_full new_empty_strided empty_permuted".split()
)


@dataclass(frozen=True)
class View:
    """An expression that looks at the storage of another name.

    ``alias`` is the same tensor, ``full`` all of its elements in another shape (or a copy of them,
    where PyTorch decides at run time), ``part`` some of them.
    """

    base: str
    kind: ViewKind


def view_of(node: ast.expr) -> View | None:
    """What an expression is a view of: ``x.view(-1, h)[0]`` is a part of ``x``."""
    kind: ViewKind = "alias"
    while True:
        if isinstance(node, ast.Name):
            return View(node.id, kind)
        if isinstance(node, ast.Subscript):
            node, kind = node.value, "part"
        elif isinstance(node, ast.Attribute) and node.attr in VIEW_ATTRIBUTES:
            kind = "part" if kind == "part" else "full"
            node = node.value
        elif isinstance(node, ast.Call):
            name = last_name(node.func)
            given = _given(node, name)
            if given is None:
                return None
            if name in _PART_VIEWS:
                kind = "part"
            elif kind != "part":
                kind = "full"
            node = given
        else:
            return None


def _given(call: ast.Call, name: str) -> ast.expr | None:
    """The tensor of which a call gives a view, or that it writes into and gives back."""
    function, first = call.func, call.args[0] if call.args else None
    if asks_in_place(call):
        return first  # F.silu(x, inplace=True)
    if not isinstance(function, ast.Attribute):
        return first if name == "rearrange" else None
    writes = name.endswith("_") and not name.endswith("__")
    if not (writes or is_view_method(name)):
        return None
    owner = function.value
    if _is_namespace(owner) or (writes and isinstance(owner, ast.Name) and owner.id == "F"):
        return first  # torch.flatten(x), torch.Tensor.view(x, -1), F.relu_(x)
    return owner


def _is_namespace(node: ast.expr) -> bool:
    """``torch``, ``torch.Tensor``, ``einops``, whose functions are given the tensor."""
    if isinstance(node, ast.Attribute):
        return node.attr == "Tensor" and _is_namespace(node.value)
    return isinstance(node, ast.Name) and node.id in ("torch", "Tensor", "einops")


def is_view_method(name: str) -> bool:
    """Whether a method of a tensor gives a view of it, or a copy of its values."""
    return name in _FULL_VIEWS or name in _PART_VIEWS


def views_of(node: ast.expr) -> list[View]:
    """The names whose storage an expression may have: both arms of ``x if keep else y``."""
    if isinstance(node, ast.IfExp):
        return [*views_of(node.body), *views_of(node.orelse)]
    if isinstance(node, ast.BoolOp):
        return [view for value in node.values for view in views_of(value)]
    if isinstance(node, ast.NamedExpr):
        assert isinstance(node.target, ast.Name)
        return [View(node.target.id, "alias"), *views_of(node.value)]
    view = view_of(node)
    return [view] if view is not None else []


def looked_at(value: ast.expr | None) -> list[View]:
    """What a value may have the storage of, a display of tensors that of each."""
    if isinstance(value, ast.Dict):
        return [view for element in value.values for view in views_of(element)]
    if isinstance(value, (ast.Tuple, ast.List)):
        return [view for element in value.elts for view in views_of(element)]
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)):  # [t for t in (x, y)]
        loops = value.generators
        bound = {n.id for each in loops for n in walk(each.target) if isinstance(n, ast.Name)}
        own = [view for view in views_of(value.elt) if view.base not in bound]
        return own + [v for each in loops if is_display(each.iter) for v in looked_at(each.iter)]
    return views_of(value) if value is not None else []


def is_display(node: ast.expr) -> bool:
    return isinstance(node, (ast.Tuple, ast.List))


def is_new(value: ast.expr) -> bool:
    """Whether a value is computed, and has the storage of no name and no attribute."""
    node: ast.expr | None = value
    while isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Call) and last_name(node.func) in _FULL_VIEWS
    ):
        viewed = node if isinstance(node, ast.Subscript) else node.func
        node = viewed.value if isinstance(viewed, (ast.Subscript, ast.Attribute)) else None
    return isinstance(node, (ast.Call, ast.BinOp)) and not looked_at(value)


def is_allocation(node: ast.expr | None) -> bool:
    """Whether an expression is a fresh tensor whose content does not matter yet."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _ALLOCATORS:
            return True
        if node.func.attr not in _FULL_VIEWS:
            return False
        node = node.func.value  # torch.empty(n).view(a, b)
    return False


def is_view(node: ast.expr, name: str) -> bool:
    """Whether an expression is the tensor ``name``, or a view of it."""
    return any(view.base == name for view in views_of(node)) and not _computes(node)


def _computes(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr not in VIEW_ATTRIBUTES
