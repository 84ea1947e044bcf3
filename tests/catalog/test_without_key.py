"""A rotary embedding without a key, as of layers that share keys, serves and trains as before."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from trainify.engine import Options, fix_text
from trainify.reference import rope
from trainify.releases import Release

CODE = """\
from typing import Optional

import torch
from torch import nn
from vllm import _custom_ops as ops


class Rotary(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions, query, key: Optional[torch.Tensor] = None):
        ops.rotary_embedding(positions, query, key, 4, self.table, True)
        return query, key
"""


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
@pytest.mark.parametrize("version", ["==0.8.5", "==0.11.0", "==0.33.0"])
def test_no_key(strategy: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    equivalent = rope.rotary_embedding if version == "==0.33.0" else rope.rotary_embedding_rounded

    def kernel(positions: Any, query: Any, key: Any, size: int, table: Any, neox: bool) -> None:
        with torch.no_grad():
            for old, new in zip(
                (query, key), equivalent(positions, query, key, size, table, neox), strict=True
            ):
                if old is not None:
                    old.copy_(new)

    library = ModuleType("vllm")
    monkeypatch.setattr(
        library, "_custom_ops", SimpleNamespace(rotary_embedding=kernel), raising=False
    )
    monkeypatch.setitem(sys.modules, "vllm", library)
    options = Options(strategy=strategy, releases=(Release("vllm", version, "uv.lock"),))
    fixed = fix_text(CODE, "m.py", options)
    assert fixed.text != CODE and not fixed.remaining
    module: dict[str, Any] = {}
    exec(fixed.text, module)
    table, positions = torch.randn(8, 4), torch.arange(3)
    model = module["Rotary"](table)
    for key in (None, torch.randn(3, 8)):
        query = torch.randn(3, 8)
        right = equivalent(positions, query, key, 4, table, True)
        with torch.no_grad():
            served = model(positions, query.clone(), None if key is None else key.clone())
        leaf = query.clone().requires_grad_()
        trained = model(positions, leaf * 1, None if key is None else key.clone())
        for found in (served, trained):
            torch.testing.assert_close(found[0], right[0])
            assert (found[1] is None) is (key is None)
        (gradient,) = torch.autograd.grad(trained[0].square().sum(), leaf)
        same = query.clone().requires_grad_()
        turned = equivalent(positions, same, None, 4, table, True)[0]
        torch.testing.assert_close(gradient, torch.autograd.grad(turned.square().sum(), same)[0])
