"""Where a node comes from: the line of a person's file, and the module, as the tracer noted."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_TORCH = torch.__path__[0]


class Told(NamedTuple):
    """A place, and the paths of the modules around; the node's name where nothing is known."""

    path: str
    line: int
    function: str
    modules: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else f"node {self.function}"


def told_of(node: Node) -> Told:
    node = _knowing(node)
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    # What stands in no file is the graph that a branch was compiled to.
    outside = [f for f in frames if not f["path"].startswith((_TORCH, "<"))] or frames
    stack: Any = node.meta.get("nn_module_stack") or {}
    modules = tuple(path for path, _ in stack.values() if path)
    if not outside:
        return Told("?", 0, node.name, modules)
    return Told(outside[-1]["path"], int(outside[-1]["line"]), outside[-1]["function"], modules)


def _knowing(node: Node) -> Node:
    """The node that knows the place: of a region without gradients, the first that runs in it."""
    for each in () if node.meta.get("stack_trace") else node.all_input_nodes:
        region = getattr(node.graph.owning_module, str(each.target), None)
        if each.op == "get_attr" and isinstance(region, GraphModule):
            return next((n for n in region.graph.nodes if n.meta.get("stack_trace")), node)
    return node
