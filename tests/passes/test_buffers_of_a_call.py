"""Buffers that are called like caches, but made by the call itself: they hold no graph of before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import rules

NET = """\
import functools

import torch
from torch import nn


def make_cache(n):
    kv_cache = torch.zeros(n, 4)
    return kv_cache


def make_both(x):
    return torch.zeros_like(x), x.new_zeros(x.shape)


@functools.lru_cache
def kept_cache(n):
    return torch.zeros(n, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4)
        self.k_cache = torch.zeros(3, 4)

    def alloc(self, x):
        return x.new_zeros(3, 4)

    def noted_cache(self, x):
        cache = torch.zeros(3, 4)
        if self.k_cache is None:
            self.k_cache = cache
        cache = self.k_cache
        return cache

    def forward(self, x):
        k, v = self.k(x), self.v(x)
{}
        return k_cache.sum() + v_cache.sum()
"""
PUT = """\

    def put(self, k_cache, k):
        k_cache[:3] = k
        return k_cache
"""
OWN = {
    "a function": "k_cache = make_cache(3)\nk_cache[:3] = k\nv_cache = make_cache(3)\nv_cache[:3] = v",
    "two of them": "k_cache, v_cache = make_cache(3), make_cache(3)\nk_cache[:3] = k\nv_cache[:3] = v",
    "a pair": "k_cache, v_cache = make_both(x)\nk_cache[:3] = k\nv_cache[:3] = v",
    "a method": "k_cache = self.alloc(x)\nk_cache[:3] = k\nv_cache = k_cache.clone()",
    "handed on": "cache = make_cache(3)\nk_cache = v_cache = self.put(cache, k)",
}
KEPT = {
    "memoized": "k_cache = v_cache = kept_cache(3)\nk_cache[:3] = k",
    "of the object": "k_cache = v_cache = self.noted_cache(x)\nk_cache[:3] = k",
    "handed on": "k_cache = v_cache = self.put(self.k_cache, k)",
    "handed on, also": (
        "cache = make_cache(3)\nself.put(cache, k)\nk_cache = v_cache = self.put(self.k_cache, k)"
    ),
}


def module(lines: str) -> str:
    text = NET.format("\n".join(f"        {line}" for line in lines.split("\n")))
    return text + PUT if "self.put" in lines else text


def two_steps(text: str) -> None:
    scope: dict[str, Any] = {}
    exec(text, scope)
    net = scope["Net"]()
    for _ in range(2):
        net(torch.randn(3, 4)).backward()


@pytest.mark.parametrize("lines", OWN.values(), ids=OWN)
def test_what_a_call_made_is_no_cache(lines: str) -> None:
    two_steps(module(lines))
    assert rules(module(lines)) == []


@pytest.mark.parametrize("lines", KEPT.values(), ids=KEPT)
def test_what_outlives_the_call_is_one(lines: str) -> None:
    with pytest.raises(RuntimeError, match="second time"):
        two_steps(module(lines))
    assert set(rules(module(lines))) & {"TRN401", "TRN408"}
