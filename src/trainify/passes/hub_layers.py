"""TRN112: layers of a Hugging Face kernel that say they have a backward by saying nothing.

Where such a layer is written it can say so; where one is registered, the mode can.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..catalog import lookup
from ..catalog.layers import HUB
from ..facts import ModuleFacts
from ..facts.guards import gradient_unwanted
from ..facts.walk import walk
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN112",
        name="hub-layer-without-has-backward",
        summary="A layer for Hugging Face's `kernels` runs a forward-only op and does not say so.",
        why=(
            "`kernelize` in training mode installs every layer but those with `has_backward = "
            "False`, and a layer that has no such attribute counts as one with a backward. The "
            "model it replaces had a differentiable forward; now it has none, and nothing fails. "
            "A mapping that names such a layer for every mode, in a project that kernelizes for "
            "training, has the same effect."
        ),
        before="""\
import torch
from torch import nn

from ._ops import ops


class SiluAndMul(nn.Module):
    can_torch_compile: bool = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        ops.silu_and_mul(out, x)
        return out
""",
        after="",
    ),
)

NEEDLES: tuple[Needle, ...] = (b"can_torch_compile", b"LayerRepository(")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    yield from _written(module, options)
    yield from _registered(module)


# -- where layers are written ---------------------------------------------------------------------


def _written(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for cls in module.classes:
        declared = _declared(cls)
        if "can_torch_compile" not in declared or "has_backward" in declared:
            continue
        forward = next(
            (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None
        )
        op = _forward_only(module, forward, options) if forward is not None else None
        if op is None:
            continue
        name = module.source(op.func)
        message = (
            f"`{cls.name}` runs `{name}`, which records no backward, and does not say "
            "`has_backward = False`: `kernelize` installs it for training too."
        )
        yield module.finding("TRN112", message, op, _fixes(module, declared, name))


def _declared(cls: ast.ClassDef) -> dict[str, ast.stmt]:
    """The attributes that a class assigns in its body, with their statements."""
    found: dict[str, ast.stmt] = {}
    for statement in cls.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        found.update((t.id, statement) for t in targets if isinstance(t, ast.Name))
    return found


def _forward_only(
    module: ModuleFacts, forward: ast.FunctionDef, options: Options
) -> ast.Call | None:
    """A call of an op without a backward that every gradient through a forward has to pass."""
    calls = [n for n in walk(forward) if isinstance(n, ast.Call)]
    if any(isinstance(c.func, ast.Attribute) and c.func.attr == "apply" for c in calls):
        return None  # an autograd.Function may bring the backward
    for call in calls:
        targets = module.resolve(call.func)
        for target in targets:
            op = lookup(target.name, options.ops, options.releases)
            known = op is not None and op.cuts
            if (known or _is_own_op(target.name)) and not gradient_unwanted(module, call):
                return call
    return None


def _is_own_op(name: str) -> bool:
    """Whether a name is that of an op which the kernel's own build registers: ``._ops.ops.f``."""
    return "._ops.ops." in f".{name}"


def _fixes(module: ModuleFacts, declared: dict[str, ast.stmt], op: str) -> dict[str, Fix]:
    from ..rewrite import layout

    beside = declared["can_torch_compile"]
    if not layout.owns_lines(module, beside):
        return {}
    at = layout.line_end(module, beside)
    typed = ": bool" if isinstance(beside, ast.AnnAssign) else ""
    text = f"{module.newline}{module.indentation(beside)}has_backward{typed} = False"
    look_at = f"that the build of the kernel registers no autograd formula for {op}"
    fix = Fix("Say that it has no backward", (Edit(at, at, text),), Safety.UNSAFE, look_at)
    return dict.fromkeys(STRATEGIES, fix)


# -- where they are registered --------------------------------------------------------------------


def _registered(module: ModuleFacts) -> Iterator[Finding]:
    """Layers that a mapping has installed for training too: ``{"cuda": LayerRepository(...)}``."""
    for call in module.calls_named("LayerRepository"):
        if not module.is_name(call.func, "kernels.LayerRepository"):
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        repository = _text(given.get("repo_id", call.args[0] if call.args else None))
        layer = _text(given.get("layer_name"))
        if layer not in HUB.get(repository, ()):
            continue
        key = _key(module, call)
        modes = module.source(key) if key is not None else ""
        if "INFERENCE" in modes:
            continue
        if not modes or ("TRAINING" not in modes and not _kernelizes_for_training(module)):
            continue
        message = (
            f"`{layer}` of {repository} has no backward, and does not say so: `kernelize` installs "
            "it for training too."
        )
        for_all = "Mode." not in modes
        yield module.finding("TRN112", message, call, _for_inference(module, call, for_all))


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _key(module: ModuleFacts, call: ast.Call) -> ast.expr | None:
    """What a call stands under in a dict: a device, or a mode."""
    parent = module.parent(call)
    if not isinstance(parent, ast.Dict):
        return None
    return next(k for k, v in zip(parent.keys, parent.values, strict=True) if v is call)


_TRAINS = re.compile(r"kernelize\([^#]*?\bMode\.TRAINING\b")


def _kernelizes_for_training(module: ModuleFacts) -> bool:
    if _TRAINS.search(module.usual):
        return True
    return module.project.says(module, _TRAINS.pattern.encode())


def _for_inference(module: ModuleFacts, call: ast.Call, for_all: bool) -> dict[str, Fix]:
    """The fix that names the modes for which a layer of all modes is meant."""
    mode = module.names.resolve_name("Mode", call)
    if not for_all or [target.name for target in mode] != ["kernels.Mode"]:
        return {}
    start, end = module.start(call), module.end(call)
    before = Edit(start, start, "{Mode.INFERENCE | Mode.TORCH_COMPILE: ")
    look_at = "that training by the layer's own forward, to which `kernelize` falls back, is meant"
    fix = Fix("Register it for inference", (before, Edit(end, end, "}")), Safety.UNSAFE, look_at)
    return dict.fromkeys(STRATEGIES, fix)
