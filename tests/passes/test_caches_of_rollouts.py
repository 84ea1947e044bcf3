"""A cache that lives under no_grad alone keeps no graph: training runs without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import rules, stays

from trainify.engine import Options, check_paths

CACHE = """\
import torch
from torch import nn


class KVCache:
    def __init__(self, n, d):
        self.k, self.v, self.len = torch.zeros(n, d), torch.zeros(n, d), 0

    def append(self, k, v):
        n = k.shape[0]
        self.k[self.len : self.len + n] = k
        self.v[self.len : self.len + n] = v
        self.len += n
        return self.k[: self.len], self.v[: self.len]


"""
ACTOR = """\
class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.cache = nn.Linear(4, 12), None

    def forward(self, x, cache=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        cache = self.cache if cache is None else cache
        if cache is not None:
            k, v = cache.append(k, v)
        return (q @ k.T).softmax(-1) @ v

    @torch.no_grad()
    def rollout(self, x):
        {}


def step(actor, x):
    kept = actor.rollout(x)
    actor(x).sum().backward()
    return kept
"""
SERVING = {
    "attribute": "self.cache = KVCache(9, 4)\n        y = self(x)\n        self.cache = None\n        return y",
    "local": "cache = KVCache(9, 4)\n        return self(x, cache)",
    "locals": "caches = [KVCache(9, 4)]\n        return self(x, caches[0])",
    "argument": "self(x, cache=KVCache(9, 4))",
}
KEPT = {
    "attribute": "self.cache = KVCache(9, 4)\n        return self(x)",
    "given up before": "self.cache = None\n        self.cache = KVCache(9, 4)\n        return self(x)",
    "given up at times": "self.cache = KVCache(9, 4)\n        y = self(x)\n        if len(x) > 9:\n"
    "            self.cache = None\n        return y",
    "returned": "cache = KVCache(9, 4)\n        self(x, cache)\n        return cache",
    "put away": "cache = KVCache(9, 4)\n        self.caches = [cache]\n        return self(x, cache)",
}


@pytest.mark.parametrize("body", SERVING.values(), ids=SERVING)
def test_a_cache_that_dies_in_its_scope(body: str) -> None:
    """Run two steps: no graph is kept."""
    text = CACHE + ACTOR.format(body)
    stays(text)
    names: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), names)
    actor = names["Actor"]()
    for _ in range(2):
        names["step"](actor, torch.ones(3, 4))
    assert actor.qkv.weight.grad is not None


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_a_cache_that_outlives_its_scope(body: str) -> None:
    assert set(rules(CACHE + ACTOR.format(body))) == {"TRN401"}


@pytest.mark.parametrize(
    "more",
    [
        "def train(actor, x):\n    cache = KVCache(9, 4)\n    actor(x, cache).sum().backward()\n",
        "class Other:\n    def __init__(self):\n        self.cache = KVCache(9, 4)\n",
    ],
)
def test_a_cache_that_is_made_with_gradients_on(more: str, tmp_path: Path) -> None:
    text = CACHE + ACTOR.format(SERVING["local"])
    stays(text)
    assert set(rules(f"{text}\n\n{more}")) == {"TRN401"}
    (tmp_path / "actor.py").write_text(text)
    (tmp_path / "more.py").write_text(f"from actor import KVCache\n\n\n{more}")
    found = {f.rule for r in check_paths([str(tmp_path)], Options()) for f in r.findings}
    assert found == {"TRN401"}


def test_a_scope_around_making_it_is_not_enough() -> None:
    made = "self.cache = None\n\n    def setup(self):\n        with torch.no_grad():\n"
    text = CACHE + ACTOR.format(made + "            self.cache = KVCache(9, 4)")
    assert set(rules(text)) == {"TRN401"}
