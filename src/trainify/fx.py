"""Graphs of :mod:`torch.fx`, traced or exported: :func:`check` them, :func:`rewrite` them."""

from .live.graph.check import check
from .live.graph.rewrite import rewrite

__all__ = ["check", "rewrite"]
