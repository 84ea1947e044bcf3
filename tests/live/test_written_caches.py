"""Caches in buffers that a forward writes and reads: made trainable in memory."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from live_package import package
from torch import nn

import trainify

HEAD = """
import torch.nn.functional as F


class Base(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.register_buffer("ck", torch.zeros(4, 16, d))
        self.register_buffer("v_cache", torch.zeros(4, 16, d))


class Attention(Base):
    def forward(self, x, pos=0):
        B, T, _ = x.shape
"""
READ = """\
return F.scaled_dot_product_attention(
    self.q(x), self.ck[:B, : pos + T], self.v_cache[:B, : pos + T]
)"""
WRITES = {
    "kept": (
        "self.ck[:B, pos : pos + T] = self.k(x)\nself.v_cache[:B, pos : pos + T].copy_(self.v(x))"
    ),
    "in a scope": (
        "with torch.no_grad():\n    self.ck[:B, pos : pos + T] = self.k(x)\n"
        "    self.v_cache[:B, pos : pos + T] = self.v(x)"
    ),
    "names in a scope": (
        "k, v = self.k(x), self.v(x)\nwith torch.no_grad():\n"
        "    self.ck[:B, pos : pos + T] = k\n    self.v_cache[:B, pos : pos + T] = v"
    ),
    "made in a scope": (
        "with torch.no_grad():\n    k, v = self.k(x), self.v(x)\n"
        "    self.ck[:B, pos : pos + T] = k\n    self.v_cache[:B, pos : pos + T] = v"
    ),
    "detached": (
        "self.ck[:B, pos : pos + T] = self.k(x).detach()\n"
        "self.v_cache[:B, pos : pos + T] = self.v(x).data"
    ),
    "by its data": (
        "self.ck.data[:B, pos : pos + T] = self.k(x)\n"
        "self.v_cache.data[:B, pos : pos + T].copy_(self.v(x))"
    ),
}


def attention(root: Path, writes: str, read: str = READ) -> nn.Module:
    text = HEAD + textwrap.indent(f"{writes}\n{read}\n", " " * 8)
    text = text.replace(" " * 8 + "def kept", " " * 4 + "def kept")
    torch.manual_seed(0)
    model: nn.Module = package(root, model=text)["model"].Attention()
    return model


def second_step(model: nn.Module) -> dict[str, torch.Tensor | None]:
    for _ in range(2):
        model.zero_grad()
        model(batch()).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def batch() -> torch.Tensor:
    return torch.linspace(-1, 1, 80).reshape(2, 5, 8).sin()


@pytest.mark.filterwarnings("ignore::trainify.StopRemoved")
@pytest.mark.parametrize("writes", WRITES.values(), ids=WRITES)
def test_keys_and_values_learn_as_without_a_cache(tmp_path: Path, writes: str) -> None:
    right = attention(
        tmp_path, "", "return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))"
    )
    model = attention(tmp_path, writes)
    with torch.no_grad():
        served = model(batch())
    trainify.trainify(model, batch())
    torch.testing.assert_close(second_step(model), second_step(right))
    with torch.no_grad():
        assert torch.equal(model(batch()), served)
        assert model.ck[:2, :5].equal(model.k(batch())) and not model.ck.requires_grad  # type: ignore[operator,union-attr]


def test_a_memory_that_is_read_by_others_stays_a_stop(tmp_path: Path) -> None:
    """What the fix would have to follow is not there: the error asks, and nothing is changed."""
    model = attention(
        tmp_path,
        "self.ck[:B, pos : pos + T] = self.k(x).detach()",
        "return self.q(x) + self.kept(T) + self.ck[:B, :T]\n\n"
        "def kept(self, n):\n    return self.ck[:2, :n]",
    )
    with pytest.raises(trainify.NotTrainable, match="If that is meant, allow it"):
        trainify.trainify(model, batch())
    assert trainify.source_diff(model) == ""
