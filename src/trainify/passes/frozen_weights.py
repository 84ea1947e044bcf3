"""TRN507: weights that stay random, because they are frozen where they are made."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.frozen import is_false
from ..facts.guards import gradient_unwanted
from ..facts.layers import is_module_class, made_by
from ..facts.models import classes_in, values_of
from ..facts.weights import is_weight_use
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN507",
        name="random-weight-frozen",
        summary="A model is trained whose weight is random, and frozen where it is made.",
        why=(
            "`requires_grad=False` on a parameter is right for weights that come from a "
            "checkpoint, and common in layers written to serve. Here nothing loads the weight and "
            "nothing unfreezes it: the optimizer gets it among `parameters()`, and it stays as "
            "random as it began."
        ),
        before="""\
import torch
import torch.nn.functional as F
from torch import nn


class Projection(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i), requires_grad=False)

    def forward(self, x):
        return F.linear(x, self.weight)


def train(batches):
    model = nn.Sequential(Projection(8, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        model(x).square().mean().backward()
        optimizer.step()
""",
        after="""\
import torch
import torch.nn.functional as F
from torch import nn


class Projection(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i))

    def forward(self, x):
        return F.linear(x, self.weight)


def train(batches):
    model = nn.Sequential(Projection(8, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        model(x).square().mean().backward()
        optimizer.step()
""",
    ),
)


def _may_freeze(data: bytes) -> bool:
    return b"Parameter(" in data and b".parameters()" in data


NEEDLES: tuple[Needle, ...] = (Look((b"requires_grad=False",), _may_freeze),)

_FILLED = re.compile(
    r"load_state_dict|from_pretrained|torch\.load|load_file|load_weights|load_checkpoint|copy_\(|"
    r"requires_grad_\((True)?\)|\.requires_grad\s*=|\.data\s*=|register_hook"
)
"""What gives a frozen weight its values, or thaws it."""

_ON_PURPOSE = re.compile(
    r"fixed|frozen|freez|rand|fourier|quant|int[48]|\bema|codebook|\bvq|hash|filter|\bdct|\bmel|"
    r"window|sinus|position|rotary|rope|anchor|mask|noise|teacher|target|constant|lora|adapter|"
    r"reservoir|echo|lottery|supermask|not (be )?(train|learn|updat)|non.?(train|learn)|gradient",
    re.IGNORECASE,
)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    if _FILLED.search(module.usual):
        return
    for cls in dict.fromkeys(_trained(module)):
        if not is_module_class(module, cls) or _is_on_purpose(module, cls):
            continue
        for name, bindings in module.names.attributes(cls).items():
            if len(bindings) != 1 or not isinstance(bindings[0].node, ast.Assign):
                continue
            frozen = _frozen_random(module, bindings[0].value)
            if frozen is not None and _is_weight(module, cls, name):
                yield _finding(module, name, bindings[0].node, frozen)


def _finding(module: ModuleFacts, name: str, statement: ast.Assign, frozen: ast.keyword) -> Finding:
    message = (
        f"`self.{name}` is random and has `requires_grad=False`; the file trains the model, and "
        "nothing loads or unfreezes it: it stays as random as it began."
    )
    call = module.parent(frozen)
    assert isinstance(call, ast.Call)
    start = module.text.index(",", module.end(call.args[-1]))  # behind a parenthesis around it
    edit = Edit(start, module.end(frozen.value), "")
    fixes = {}
    if len(call.keywords) == 1 and module.text[start : module.start(frozen.value)].count("\n") < 2:
        look_at = f"is `{name}` meant to be trained?"
        fix = Fix(f"Let {name} be trained", (edit,), Safety.UNSAFE, look_at)
        fixes = dict.fromkeys(STRATEGIES, fix)
    return module.finding("TRN507", message, statement, fixes)


def _trained(module: ModuleFacts) -> Iterator[ast.ClassDef]:
    """The classes in the models all of whose parameters an optimizer is given."""
    for call in module.calls:
        names = [target.name for target in module.resolve(call.func)]
        if not call.args or not any(name.startswith("torch.optim.") for name in names):
            continue
        given = call.args[0]
        if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
            if given.func.attr == "parameters" and not given.args:
                for value in values_of(module, given.func.value):
                    yield from classes_in(module, value)


def _is_on_purpose(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether names or comments say so, or the class has other weights, which are trained."""
    if _ON_PURPOSE.search(cls.name) or _ON_PURPOSE.search(ast.get_docstring(cls) or ""):
        return True
    names = module.names.attributes(cls)
    if any(_ON_PURPOSE.search(name) or re.search("scale|zero", name) for name in names):
        return True
    comments = (line.partition("#")[2] for line in module.source(cls).splitlines())
    if any(_ON_PURPOSE.search(comment) for comment in comments):
        return True
    return any(
        binding.value is not None
        and made_by(module, binding.value) in ("weights", "parameter")
        and _frozen_random(module, binding.value) is None
        for bindings in names.values()
        for binding in bindings
    )


def _frozen_random(module: ModuleFacts, value: ast.expr | None) -> ast.keyword | None:
    """The ``requires_grad=False`` of ``nn.Parameter(torch.randn(...), requires_grad=False)``."""
    if not isinstance(value, ast.Call) or len(value.args) != 1:
        return None
    if made_by(module, value) != "parameter":
        return None
    tensor = value.args[0]
    while isinstance(tensor, ast.BinOp):
        tensor = tensor.left
    if not isinstance(tensor, ast.Call):
        return None
    if any(
        k.arg == "dtype" and re.search("int|bool|8", ast.unparse(k.value)) for k in tensor.keywords
    ):
        return None
    if not module.is_name(tensor.func, "torch.randn", "torch.rand", "torch.empty", "torch.normal"):
        return None
    given = [k for k in value.keywords if k.arg == "requires_grad" and is_false(k.value)]
    return given[0] if given else None


def _is_weight(module: ModuleFacts, cls: ast.ClassDef, name: str) -> bool:
    """Whether ``self.name`` is used as a weight where a gradient is wanted."""
    return any(
        is_weight_use(module, use) and not gradient_unwanted(module, use)
        for use in module.names.uses(cls, name)
    )
