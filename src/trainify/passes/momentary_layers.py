"""TRN509: layers with weights that a forward makes anew in every call."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.called import functions_of
from ..facts.grad_bytes import FORWARD
from ..facts.graph import Graph, results
from ..facts.guards import gradient_unwanted, is_forward
from ..facts.layers import is_module_class
from ..facts.names import last_name
from ..facts.walk import walk
from ..facts.words import declare, places
from ..findings import Finding
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN509",
        name="layer-made-in-forward",
        summary="A layer is made in forward: its weights are random in every call and never learn.",
        why=(
            "The layer lives as long as the call. No module registers it, no optimizer holds its "
            "parameters, the state_dict does not save them, and the next call draws others. What "
            "is behind it learns to live with a random map. It belongs into __init__; where its "
            "size shows only in forward, nn.LazyLinear and its kin wait for that."
        ),
        before="""\
from torch import nn


class Projected(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.body = nn.Linear(d, d)

    def forward(self, x):
        h = self.body(x)
        out = nn.Linear(h.shape[-1], 4)
        return out(h)
""",
        after="",
    ),
)

_LAYERS = declare(
    *(
        f"nn.{name}(".encode()
        for name in "Linear Conv1d Conv2d LSTM GRU MultiheadAttention Embedding".split()
    )
)
_RANDOM = re.compile(
    r"torch\.nn\.(?:modules\.\w+\.)?(?:Linear|Bilinear|Conv(?:Transpose)?[123]d|(?:LSTM|GRU|RNN)"
    r"(?:Cell)?|MultiheadAttention|Transformer\w*|Embedding)$"
)
_END = re.compile(rb"\n(?:    |\t)?(?:def |class |@)")


_LOCAL = re.compile(rb"[ \t]+(\w+) = [^\n]*$")
_NEAR = 2000


def _may_concern(data: bytes) -> bool:
    """Whether a layer is made in a forward, or made and called in what one may run."""
    made = [at for word in _LAYERS for at in places(data, word)]
    forwards = places(data, FORWARD) if made else ()
    if forwards and any(_is_called(data, at) for at in made):
        return True
    for start in forwards:
        after = _END.search(data, start)
        end = after.start() if after else len(data)
        if any(start < at < end for at in made):
            return True
    return False


def _is_called(data: bytes, at: int) -> bool:
    """Whether a layer is called at once, or by the local name that it gets."""
    begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
    if data.find(b")(", at, end) >= 0:
        return True
    local = _LOCAL.match(data, begin, at)
    if local is None:
        return False
    return re.search(rb"(?<![\w.])%s\(" % local[1], data[end : end + _NEAR]) is not None


NEEDLES: tuple[Needle, ...] = (Look(_LAYERS, _may_concern),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    calls: dict[ast.AST | None, list[ast.Call]] = {}
    for call in module.calls:
        calls.setdefault(module.function(call), []).append(call)
    for function in _run_by_forwards(module, calls):
        made = calls.get(function, ())
        layers = [c for c in made if any(_RANDOM.match(t.name) for t in module.resolve(c.func))]
        used = _used(module, function) if layers else {}
        for call in layers:
            whole = _whole(module, call)
            name = _name(module, whole)
            if whole in used.values() or (name in used and not _is_known(module, function, name)):
                if not gradient_unwanted(module, call):
                    yield _finding(module, call)


def _run_by_forwards(
    module: ModuleFacts, calls: Mapping[ast.AST | None, Sequence[ast.Call]]
) -> Iterator[FunctionNode]:
    """The forwards of a file, and the functions of it that they run, with gradients, anew."""
    found: dict[FunctionNode, None] = {}
    for function in module.functions:
        cls = module.method_class(function)
        if is_forward(function) and cls is not None and is_module_class(module, cls):
            found[function] = None
    waiting = list(found)
    while waiting:
        function = waiting.pop()
        yield function
        for call in calls.get(function, ()):
            for home, other in functions_of(module, call.func):
                if home is not module or other in found or gradient_unwanted(module, call):
                    continue
                if all(last_name(each) in _PLAIN for each in other.decorator_list):  # not a cache
                    found[other] = None
                    waiting.append(other)


_PLAIN = ("staticmethod", "classmethod")


def _whole(module: ModuleFacts, call: ast.Call) -> ast.Call:
    """The ``nn.Sequential`` that a layer is a part of; else the layer."""
    parent = module.parent(call)
    while isinstance(parent, ast.Call) and module.is_name(parent.func, *_SEQUENTIAL):
        call, parent = parent, module.parent(parent)
    return call


_SEQUENTIAL = ("torch.nn.Sequential", "torch.nn.modules.container.Sequential")


def _name(module: ModuleFacts, call: ast.Call) -> str:
    """The local name of a layer, ``.to(x.device)`` and the like looked past; else ``""``."""
    node: ast.AST = call
    parent = module.parent(node)
    while isinstance(parent, (ast.Attribute, ast.Call)) and not (
        isinstance(parent, ast.Call) and parent.func is not node
    ):
        node, parent = parent, module.parent(parent)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
        return target.id if isinstance(target, ast.Name) else ""
    return ""


def _used(module: ModuleFacts, function: FunctionNode) -> dict[str, ast.expr]:
    """What the results of a forward are computed by: local names, or layers called at once."""
    found: dict[str, ast.expr] = {}
    for step in Graph(module, function).back_from(results(function)):
        if step.cut is None and isinstance(step.node, ast.Call):
            called = step.node.func
            if isinstance(called, ast.Name):
                found[called.id] = called
            root: ast.expr = called
            while isinstance(root, (ast.Call, ast.Attribute)):
                inner = root.func if isinstance(root, ast.Call) else root.value
                if isinstance(root, ast.Call):
                    found[ast.dump(root)] = root
                root = inner
    return found


def _is_known(module: ModuleFacts, function: FunctionNode, name: str) -> bool:
    """Whether a layer gets its weights from somewhere, or is kept: it is mentioned beside calls."""
    uses = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == name]
    for use in uses:
        parent = module.parent(use)
        if isinstance(use.ctx, ast.Store) or (isinstance(parent, ast.Call) and parent.func is use):
            continue
        if isinstance(parent, ast.Attribute) and parent.attr in ("to", "cuda", "train", "half"):
            continue
        return True
    return False


def _finding(module: ModuleFacts, call: ast.Call) -> Finding:
    text = module.source(call.func)
    function = module.function(call)
    assert function is not None
    cls = module.method_class(function)
    name = f"{cls.name}.{function.name}" if cls is not None else function.name
    message = (
        f"`{name}` makes this `{text}` anew in every call: its weights are "
        "random each time, and no optimizer holds them. Make it in `__init__`."
    )
    return module.finding("TRN509", message, call)
