"""TRN501: modules and parameters in Python lists and dicts, which ``nn.Module`` does not see."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.comments import with_comments
from ...facts.guards import is_forward
from ...facts.layers import is_module_class
from ...facts.names import is_none
from ...findings import Finding
from .. import Look, Needle, Rule
from .displays import adds_to_itself, kind_of
from .fixes import fixes_for
from .held import Held, fresh, held_by
from .uses import gives_away, is_managed, is_read, runs_element, uses_of, with_names
from .words import ADDED, APPENDS, ASSIGNS, DEFAULTS, may_hide_modules

if TYPE_CHECKING:
    from ...engine import Options

RULES = (
    Rule(
        code="TRN501",
        name="unregistered-weights",
        summary="Modules or parameters are kept in a Python list or dict.",
        why=(
            "nn.Module registers what is assigned to its attributes, and looks into no list, tuple "
            "or dict. The layers run, and even get gradients, but `parameters()` does not have "
            "their weights: no optimizer trains them, no checkpoint holds them, `.to()` does not "
            "move them. nn.ModuleList and nn.ModuleDict work the same and are registered."
        ),
        before="""\
from torch import nn


class Net(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.layers = [nn.Linear(d, d) for _ in range(n)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
        after="""\
from torch import nn


class Net(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(n)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
    ),
)

NEEDLES: tuple[Needle, ...] = (Look((*ASSIGNS, APPENDS, ADDED, DEFAULTS), may_hide_modules),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for cls in module.classes:
        if not is_module_class(module, cls):
            continue
        findings: list[Finding] = []
        for name, bindings in module.names.attributes(cls).items():
            if name in module.rebound:
                continue
            values = [b.value for b in bindings if not is_none(b.value)]
            made = [(b.node, b.value) for b in bindings if b.value is not None]
            if len(made) != len(bindings) or not all(v is not None for v in values):
                continue
            if any(kind_of(module, value) is None for _, value in made if not is_none(value)):
                continue
            for node, value in made:
                if is_none(value) or not isinstance(node, (ast.Assign, ast.AnnAssign)):
                    continue
                if adds_to_itself(module, value):
                    continue  # of what it was before
                finding = _judge(module, cls, name, node, value)
                if finding is not None:
                    findings.append(finding)
        if findings and not _MANAGES_ITSELF.search(module.source(cls)):
            yield from findings


def _judge(
    module: ModuleFacts,
    cls: ast.ClassDef,
    name: str,
    statement: ast.Assign | ast.AnnAssign,
    value: ast.expr,
) -> Finding | None:
    function = module.function(statement)
    if function is None or is_forward(function):
        return None
    held = held_by(module, cls, name, statement, value)
    if held is None or not held.elements or _is_commented(module, statement):
        return None
    kinds = [fresh(module, element) for element in held.elements]
    if not {"weights", "parameter"} & set(kinds):
        return None
    if len(held.elements) == 1 and not held.more:
        return None  # [module] is how a module is hidden
    uses = uses_of(module, cls, name)
    parameters = "parameter" in kinds and "weights" not in kinds
    if is_managed(module, name):
        return None
    if any(gives_away(module, u) and not (parameters and is_read(module, u)) for u in uses):
        return None
    reads = with_names(module, uses)
    if not any(runs_element(module, use, function, parameters) for use in reads):
        return None
    fixes = fixes_for(module, cls, held, kinds, uses, reads)
    return module.finding("TRN501", _message(held, name, parameters), statement, fixes)


def _message(held: Held, name: str, parameters: bool) -> str:
    what = "its parameters" if parameters else "the weights of its modules"
    tuple_call = isinstance(held.display, ast.Call) and ast.unparse(held.display.func) == "tuple"
    kind = "tuple" if isinstance(held.display, ast.Tuple) or tuple_call else held.kind
    return (
        f"`self.{name}` is a {kind}, which nn.Module does not look into: {what} are not among "
        "`parameters()`, so no optimizer trains them and no checkpoint holds them."
    )


_MANAGES_ITSELF = re.compile(
    r"add_module|register_module|setattr|__dict__|\b_modules\b|register_parameter|"
    r"def (named_)?(parameters|modules|children)\b|def (state_dict|_apply)\b"
)
_ON_PURPOSE = re.compile(
    r"regist|\bhid|state.?dict|optimi[sz]er|sub.?module|on purpose|not (be )?train|frozen|freez|"
    r"ModuleList|parameters",
    re.IGNORECASE,
)


def _is_commented(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a comment at a statement, or right above it, says that this is meant."""
    assert statement.end_lineno is not None
    first = with_comments(module, statement.lineno)
    lines = [module.line_text(line) for line in range(first, statement.end_lineno + 1)]
    return any("#" in line and _ON_PURPOSE.search(line[line.index("#") :]) for line in lines)
