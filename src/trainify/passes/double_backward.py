"""TRN111: second derivatives through attention kernels that have only first ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.walk import walk
from ..findings import Finding
from . import Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN111",
        name="second-derivative-of-attention",
        summary="A gradient that is itself trained leads through attention without a second one.",
        why=(
            "The flash and memory-efficient kernels of scaled_dot_product_attention have a "
            "backward, and no backward of that. A gradient penalty, or a step of meta-learning, "
            "raises in backward(). The math backend has derivatives of every order."
        ),
        before="""\
import torch
import torch.nn.functional as F
from torch import nn


class Critic(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x).mean()


def penalty(critic: Critic, x):
    (grad,) = torch.autograd.grad(critic(x), x, create_graph=True)
    return (grad.norm() - 1).square()
""",
        after="",
    ),
)

NEEDLES = (b"create_graph",)

_ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
_LAYERS = (
    "torch.nn.Transformer",
    "torch.nn.TransformerEncoderLayer",
    "torch.nn.TransformerDecoderLayer",
)
"""Layers of torch's that attend by that function."""
_GRADIENTS = ("torch.autograd.grad", "torch.autograd.backward")
_SWITCH = re.compile(r"enable_(flash|mem_efficient)_sdp\(\s*(False|enabled=False)")
_MAX_STEPS = 6

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    if _SWITCH.search(module.usual):
        return
    for call in module.calls:
        outputs = _differentiated(module, call)
        if outputs is None or _on_math(module, call):
            continue
        place = next((p for c in _producers(module, outputs) for p in _attention_of(module, c)), "")
        if place:
            message = (
                f"`create_graph=True` asks for second derivatives of the attention {place}: its "
                "fused kernels have none. Run it under `sdpa_kernel(SDPBackend.MATH)`."
            )
            yield module.finding("TRN111", message, call)


def _differentiated(module: ModuleFacts, call: ast.Call) -> ast.expr | None:
    """What a call takes the gradient of, if it keeps the graph of that gradient."""
    if not any(
        k.arg == "create_graph" and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in call.keywords
    ):
        return None
    if module.is_name(call.func, *_GRADIENTS):
        named = (k.value for k in call.keywords if k.arg in ("outputs", "tensors"))
        return call.args[0] if call.args else next(named, None)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
        return call.func.value
    return None


def _on_math(module: ModuleFacts, node: ast.AST) -> bool:
    """Whether a place is under a context that leaves only the math backend."""
    for parent in module.ancestors(node):
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            for item in parent.items:
                text = module.source(item.context_expr)
                if "sdpa_kernel" in text and "MATH" in text:
                    if not re.search("FLASH|EFFICIENT|CUDNN", text):
                        return True
                if "sdp_kernel" in text and "enable_flash=False" in text:
                    return True
    return False


def _producers(module: ModuleFacts, node: ast.expr, steps: int = _MAX_STEPS) -> Iterator[ast.Call]:
    """The calls of models and functions that a value comes from."""
    if steps == 0:
        return
    for each in walk(node):
        if isinstance(each, ast.Call) and not _on_math(module, each):
            if not _of_torch(module, each):
                yield each
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            statement = module.statement(each)
            flow = module.flow(module.function(statement) or module.tree)
            for definition in flow.reaching(each.id, statement):
                if definition.value is not None and definition.value is not node:
                    yield from _producers(module, definition.value, steps - 1)


def _of_torch(module: ModuleFacts, call: ast.Call) -> bool:
    return any(target.name.startswith("torch.") for target in module.resolve(call.func))


def _attention_of(module: ModuleFacts, call: ast.Call) -> Iterator[str]:
    """Where the model, or the function, that a call runs has its attention."""
    for other, definition in _definitions(module, call):
        for attention in _attends(other, definition, frozenset()):
            line = f"on line {attention.lineno}"
            yield line if other is module else f"{line} of {other.path}"


def _definitions(module: ModuleFacts, call: ast.Call) -> Iterator[tuple[ModuleFacts, Definition]]:
    """The class of the object that is called, or the function; by its name where that is all."""
    made = list(_values(module, call.func))
    names = [t.name for value in made for t in module.resolve(value.func)]
    names += [t.name for t in module.resolve(call.func)]
    found = [d for name in names for d in _named(module, name)]
    if found or names or made:
        yield from found
        return
    said = module.source(call.func).rpartition(".")[2].strip("_").lower()
    if isinstance(call.func, ast.Attribute) and module.names.self_class(call.func.value) is None:
        return  # a method of a tensor, for all we know
    alike = [c for c in module.classes if said in c.name.lower() or c.name.lower() in said]
    models = alike or _models(module)
    if all(any(_attends(module, model, frozenset())) for model in models):
        yield from ((module, model) for model in models)


def _models(module: ModuleFacts) -> list[ast.ClassDef]:
    """The classes of a file that run something and are no part of another one."""
    named = [(cls, {n.id for n in walk(cls) if isinstance(n, ast.Name)}) for cls in module.classes]
    return [
        cls
        for cls in module.classes
        if any(isinstance(n, ast.FunctionDef) and n.name == "forward" for n in cls.body)
        and not any(cls.name in names for other, names in named if other is not cls)
    ]


def _values(module: ModuleFacts, node: ast.expr) -> Iterator[ast.Call]:
    """The calls that made the object an expression stands for; an annotation counts as one."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
        bindings = module.names.attributes(cls).get(node.attr, []) if cls is not None else []
        yield from (b.value for b in bindings if isinstance(b.value, ast.Call))
    elif isinstance(node, ast.Name):
        for binding in module.names.visible(node):
            if isinstance(binding.value, ast.Call):
                yield binding.value
            elif isinstance(binding.node, ast.arg) and binding.node.annotation is not None:
                yield ast.Call(binding.node.annotation, [], [])


def _named(module: ModuleFacts, qualified: str) -> Iterator[tuple[ModuleFacts, Definition]]:
    """The class or function of the project with this name."""
    owner, _, name = qualified.rpartition(".")
    other: ModuleFacts | None = module
    if owner != module.module_name:
        path = module.project.find_module(module, owner) if owner else None
        other = module.project.load(path) if path is not None else None
    if other is not None:
        for definition in other.tree.body:
            if isinstance(definition, Definition) and definition.name == name:
                yield other, definition


def _attends(
    module: ModuleFacts, definition: Definition, seen: frozenset[str]
) -> Iterator[ast.Call]:
    """The attention in a class or function, and in those of its file that it names."""
    if definition.name in seen or _SWITCH.search(module.usual):
        return
    seen |= {definition.name}
    for node in walk(definition):
        if isinstance(node, ast.Call) and _is_attention(module, node):
            if not _on_math(module, node):
                yield node
    names = {n.id for n in walk(definition) if isinstance(n, ast.Name)}
    for other in module.tree.body:
        if isinstance(other, Definition) and other.name in names:
            yield from _attends(module, other, seen)


def _is_attention(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call attends by a fused kernel, or makes a layer that does.

    ``nn.MultiheadAttention`` writes attention out unless it is told ``need_weights=False``.
    """
    if module.is_name(call.func, _ATTENTION, *_LAYERS):
        return True
    told = (k.value for k in call.keywords if k.arg == "need_weights")
    if not any(isinstance(value, ast.Constant) and value.value is False for value in told):
        return False
    return any(
        module.is_name(made.func, "torch.nn.MultiheadAttention")
        for made in _values(module, call.func)
    )
