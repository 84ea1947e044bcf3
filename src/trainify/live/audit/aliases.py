"""What modules keep of a parameter's memory under another name: ``self.head = emb.weight.data``."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import Tensor, nn

from .kept import plain_attributes
from .tensors import memory_of, tensors_within

_DEPTH = 3
"""How deep they are looked for in lists, dicts and objects."""


def aliases(model: nn.Module, names: Collection[str]) -> list[str]:
    """The attributes that hold tensors without a history in the memory of these parameters."""
    return list(dict.fromkeys(_aliases(model, names)))


def _aliases(model: nn.Module, names: Collection[str]) -> Iterator[str]:
    owners = {memory_of(p) for name, p in model.named_parameters() if name in names} - {0}
    for name, module in model.named_modules():
        for attribute, value in plain_attributes(module):
            for tensor in tensors_within(value, _DEPTH, set()):
                if type(tensor) is Tensor and not tensor.requires_grad:
                    if memory_of(tensor) in owners:
                        yield f"{name}.{attribute}" if name else attribute
