"""TRN406: in-place writes into tensors that no operation made."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts, places, words
from ..facts.activations import is_parameter, submodule
from ..facts.guards import gradient_unwanted
from ..facts.writes import Write, in_network, root_of, roots
from ..findings import Finding
from . import Look, Needle, Rule, is_wanted, not_rewritten

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN406",
        name="in-place-on-leaf",
        summary="A parameter, or an embedding made a leaf by a hook, is overwritten in place.",
        why=(
            "A leaf that requires grad, and any view of it, must not be written in place: forward "
            "raises. The output of a frozen embedding becomes such a leaf when a hook calls "
            "requires_grad_() on it, which gradient checkpointing with adapters needs."
        ),
        before="""\
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, size))

    def forward(self, x):
        cls = self.cls_token.expand(x.shape[0], -1, -1)
        cls += x[:, :1]
        return torch.cat((cls, x), dim=1)
""",
        after="""\
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, size))

    def forward(self, x):
        cls = self.cls_token.expand(x.shape[0], -1, -1)
        if torch.is_grad_enabled() and cls.requires_grad:
            cls = (cls + x[:, :1]).to(cls.dtype)
        else:
            cls += x[:, :1]
        return torch.cat((cls, x), dim=1)
""",
    ),
)
_HOOK = re.compile(
    r"(?P<owner>[\w.]+(?:\(\))?)\.register_forward_hook\((?P<hook>[^\n]*(?:\n[^\n]*)?)"
)
_HOOKS, _MAKES = words.declare(b"register_forward_hook(", b"nn.Parameter(")
_PARAMETER = re.compile(rb"[ \t]*self\.(\w+)(?:: [^\n=]*)? = (?:torch\.)?nn\.Parameter\(")
_OUTPUT = re.compile(rb" self\.|\.get_input_embeddings\(\)\(")
_VIEW = re.compile(
    rb" self\.(\w+)(?:\n|\[|\.expand|\.view|\.unsqueeze|\.squeeze|\.to\(|\.float\(|\.T)"
)


def _may_concern(data: bytes) -> bool:
    if words.places(data, _HOOKS) and b"requires_grad_(" in data:
        if places.overwrites(data, _OUTPUT.search):
            return True
    parameters: set[bytes] = set()
    for at in words.places(data, _MAKES):
        match = _PARAMETER.match(data, data.rfind(b"\n", 0, at) + 1)
        if match is not None:
            parameters.add(match[1])

    def views(data: bytes, begin: int, end: int) -> bool:
        return any(match[1] in parameters for match in _VIEW.finditer(data, begin, end))

    return bool(parameters) and places.overwrites(data, views)


NEEDLES: tuple[Needle, ...] = (Look((_HOOKS, _MAKES), _may_concern),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    harms: list[Write] = []
    messages: list[str] = []
    for statement, write in module.writes.items():
        if write.name is None or write.unseen:
            continue
        if not is_wanted(module, options, "TRN406", statement):
            continue
        if not in_network(module, module.function(statement)):
            continue
        leaf = _leaf(module, write)
        if leaf is not None and not gradient_unwanted(module, statement):
            harms.append(write)
            messages.append(
                f"`{module.source(write.target)}` is overwritten in place, but {leaf}: forward "
                "raises."
            )
    if not harms:
        return
    from ..rewrite.out_of_place import fixes_for

    fixes = fixes_for(module, options, [(write, None) for write in harms])
    for write, message, each in zip(harms, messages, fixes, strict=True):
        if each.reason:
            message += not_rewritten(each.reason)
        yield module.finding("TRN406", message, write.statement, each.fixes)


def _leaf(module: ModuleFacts, write: Write) -> str | None:
    """Why what is overwritten is a leaf that requires grad, or a view of one."""
    function = module.function(write.statement)
    if function is None or write.name is None:
        return None
    for root in roots(module, module.flow(function), write.name.id, write.statement):
        value = root.definition.value
        if value is None or root.definition.index is not None:
            continue
        _, path = root_of(value)
        if path and is_parameter(module, path[-1]):
            return f"is the parameter `{module.source(path[-1])}`, or a view of it"
        if path and isinstance(path[-1], ast.Call):
            embedding = path[-1].func
            if _hooked(module, embedding):
                return f"a hook makes the output of `{module.source(embedding)}` require grad"
    return None


def _hooked(module: ModuleFacts, embedding: ast.expr) -> bool:
    """Whether a hook of an embedding calls ``requires_grad_()`` on what it returns."""
    text = module.source(embedding)
    owners = {text}
    if submodule(module, embedding) == "Embedding":
        for function in module.functions:
            if function.name == "get_input_embeddings" and f"return {text}" in module.source(
                function
            ):
                owners.add("self.get_input_embeddings()")
    elif not text.endswith("get_input_embeddings()"):
        return False
    return any(
        any(match["owner"].endswith(owner.removeprefix("self")) for owner in owners)
        and _requires_grad(module, match["hook"])
        for match in _HOOK.finditer(module.text)
    )


def _requires_grad(module: ModuleFacts, hook: str) -> bool:
    if "requires_grad_(" in hook:
        return True
    name = hook.partition(")")[0].strip()
    return any(f.name == name and "requires_grad_(" in module.source(f) for f in module.functions)
