"""Keys and values that attention reads from a cache get no gradient, whatever reads them."""

from __future__ import annotations

import pytest
from verbs import findings, fix, stays

from trainify.findings import Safety

LAYER = """\
import torch
from torch import nn
from vllm import _custom_ops as ops
from flash_attn import flash_attn_func, flash_attn_with_kvcache


class Attention(nn.Module):
    def forward(self, x, slot, lens, table):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, 2, 8) for t in self.qkv(x).chunk(3, dim=-1))
        WRITE
        o = flash_attn_with_kvcache(
            q, self.kc, self.vc, cache_seqlens=lens, block_table=table, causal=True
        )
        return self.out(o.flatten(2))
"""
KERNEL = 'ops.reshape_and_cache_flash(k, v, self.kc, self.vc, slot, "auto", 1.0, 1.0)'
NAMED = "ops.reshape_and_cache_flash(key=k, value=v, key_cache=self.kc, value_cache=self.vc)"
SCOPED = "with torch.no_grad():\n            self.k_cache.index_copy_(0, slot, k)"
SLICE = "self.k_cache[:, :s] = k.detach()"


def layer(write: str) -> str:
    text = LAYER.replace("WRITE", write)
    return text.replace("self.kc,", "self.k_cache,") if "self.k_cache" in write else text


@pytest.mark.parametrize(
    ("write", "names"),
    [
        (KERNEL, "`k` and `v` get"),
        (NAMED, "`k` and `v` get"),
        (SCOPED, "`k` gets"),
        (SLICE, "`k` gets"),
    ],
)
def test_what_is_read_from_the_cache_gets_no_gradient(write: str, names: str) -> None:
    found = {f.line: f for f in findings(layer(write)) if f.rule == "TRN101"}
    attention = found.pop(max(found))
    assert names in attention.message
    assert attention.fixes["flag"].safety is Safety.UNSAFE
    assert names.rpartition(" ")[0] in attention.fixes["flag"].look_at
    (lost,) = found.values()
    assert f"{names} no gradient through the cache" in lost.message and not lost.fixes
    assert "cached_attention(" not in fix(layer(write))


def test_it_is_still_said_after_the_attention_is_differentiable() -> None:
    fixed = fix(layer(KERNEL), unsafe=True)
    assert "o = cached_attention(q, self.kc, self.vc, lens, table)" in fixed
    (lost,) = findings(fixed)
    assert "`k` and `v` get no gradient through the cache that `cached_attention`" in lost.message


def test_what_attention_gets_directly_has_its_gradient() -> None:
    text = layer(KERNEL).replace(
        "        o = flash_attn",
        "        if self.prefill:\n            return flash_attn_func(q, k, v)\n        o = flash_attn",
    )
    assert {f.fixes["flag"].safety for f in findings(text)} == {Safety.SAFE}


def test_caches_that_other_calls_write() -> None:
    text = layer(KERNEL).replace("self.kc, self.vc, cache", "self.k0, self.v0, cache")
    assert {f.fixes["flag"].safety for f in findings(text)} == {Safety.SAFE}
    own = (
        layer(KERNEL)
        .replace("ops.resh", "resh")
        .replace("class", "def reshape_and_cache_flash(*args):\n    pass\n\n\nclass", 1)
    )
    assert {f.fixes["flag"].safety for f in findings(own)} == {Safety.SAFE}
    stays(layer(KERNEL).replace("    def forward", "    @torch.no_grad()\n    def sample"))
