"""Views that ``auto_functionalized`` nodes write into: how they lie in what they are views of.

Such a node is given the bases, and numbers for each argument that is a view of one; it returns the
bases as they are after the write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

_ATEN = torch.ops.aten


@dataclass(frozen=True)
class View:
    """An argument by its base: a slice of it, or as strides say; all of it where nothing does."""

    base: Node
    slice: tuple[Any, ...] = ()
    """The dimension, the start and the end."""
    strided: tuple[Any, ...] = ()
    """Size, stride and offset."""

    @property
    def is_whole(self) -> bool:
        return not (self.slice or self.strided)

    def taken(self, graph: Graph) -> Node:
        """The view, as a node."""
        if self.slice:
            return graph.call_function(_ATEN.slice.Tensor, (self.base, *self.slice))
        if self.strided:
            return graph.call_function(_ATEN.as_strided.default, (self.base, *self.strided))
        return self.base

    def put_into(self, graph: Graph, base: Node, value: Node) -> Node:
        """The base, or what it has become by other writes, with a value in place of the view."""
        if self.slice:
            return graph.call_function(_ATEN.slice_scatter.default, (base, value, *self.slice))
        if self.strided:  # the derivative of as_strided_scatter is wrong in torch 2.13
            made = graph.call_function(_ATEN.clone.default, (base,))
            part = graph.call_function(_ATEN.as_strided.default, (made, *self.strided))
            graph.call_function(_ATEN.copy_.default, (part, value))
            return made
        return value


def view_of(name: str, given: Mapping[str, Any]) -> View | None:
    """How an argument lies in its base; None where that is told in a way that is not known."""
    bases = given.get("_all_bases", ())
    base = bases[given[f"_{name}_base_index"]]
    told = {k for k in given if re.fullmatch(rf"_{name}_(?!base_index|alias)\w+", k)}
    slices = [f"_{name}_slice_{each}" for each in ("dim", "start", "end")]
    strides = [f"_{name}_{each}" for each in ("size", "stride", "storage_offset")]
    if not isinstance(base, Node) or told not in (set(), {*slices}, {*strides}):
        return None
    return View(
        base,
        tuple(given[key] for key in slices) if told == {*slices} else (),
        tuple(given[key] for key in strides) if told == {*strides} else (),
    )
