"""What modules keep of a parameter's memory under another name: ``self.head = emb.weight.data``."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from .kept import plain_attributes, tensors_held

_DEPTH = 4
"""How deep they are looked for in lists, dicts and objects."""


def aliases(model: nn.Module, names: Collection[str]) -> list[str]:
    """The attributes that hold tensors without a history in the memory of these parameters."""
    return list(dict.fromkeys(_aliases(model, names)))


def _aliases(model: nn.Module, names: Collection[str]) -> Iterator[str]:
    owners = {_memory(p) for name, p in model.named_parameters() if name in names} - {0}
    for name, module in model.named_modules():
        for attribute, value in plain_attributes(module):
            for tensor in tensors_held(value, _DEPTH, set()):
                if type(tensor) is Tensor and not tensor.requires_grad:
                    if _memory(tensor) in owners:
                        yield f"{name}.{attribute}" if name else attribute


def _memory(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return 0
    return tensor.untyped_storage().data_ptr()
