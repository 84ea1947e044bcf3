"""Attention over paged keys, as vLLM and SGLang call it: how many keys there are is said apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stand_in_kernels import stand_in
from verbs import findings, fix

from tests.each import in_turn
from trainify.findings import STRATEGIES

VLLM = """\
import torch
from torch import nn
from vllm.vllm_flash_attn import flash_attn_varlen_func


class Attention(nn.Module):
    def forward(self, q, k_cache, v_cache, meta):
        return flash_attn_varlen_func(
            q=q,
            k=k_cache,
            v=v_cache,
            cu_seqlens_q=meta["starts"],
            max_seqlen_q=3,
            max_seqlen_k=4,
            seqused_k=meta["lengths"],
            softmax_scale=0.5,
            causal=True,
            block_table=meta["table"],
        )
"""
FILLED = VLLM.replace("    return flash", "    out = torch.empty_like(q)\n        flash").replace(
    "            q=q,", "            out=out,\n            q=q,"
)
FILLED += "        return out\n"
SGLANG = """\
import torch
from torch import nn
from sgl_kernel.flash_attn import flash_attn_with_kvcache


class Attention(nn.Module):
    def forward(self, q, k_cache, v_cache, meta):
        return flash_attn_with_kvcache(
            q=q,
            k_cache=k_cache,
            v_cache=v_cache,
            page_table=meta["table"],
            cache_seqlens=meta["lengths"],
            cu_seqlens_q=meta["starts"],
            cu_seqlens_k_new=None,
            max_seqlen_q=3,
            softmax_scale=0.5,
            causal=True,
            window_size=(-1, -1),
        )
"""
DISPATCHED = SGLANG.replace("sgl_kernel.flash_attn", "sglang.kernels.ops.attention.flash_attention")


def meta() -> dict[str, torch.Tensor]:
    """Three tokens that come after one, then one that comes after two."""
    return {
        "starts": torch.tensor([0, 3, 4], dtype=torch.int32),
        "lengths": torch.tensor([4, 3], dtype=torch.int32),
        "table": torch.tensor([[3, 1], [0, 4]], dtype=torch.int32),
    }


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """What it is, query by query."""
    known, out = meta(), []
    starts, lengths = known["starts"].tolist(), known["lengths"].tolist()
    for i, length in enumerate(lengths):
        keys, values = (torch.cat([c[p] for p in known["table"][i].tolist()]) for c in (k, v))
        for row in range(starts[i], starts[i + 1]):
            seen = length - (starts[i + 1] - 1 - row)
            scores = torch.einsum("hd,khd->hk", q[row], keys[:seen]) * 0.5
            if sinks is None:
                weights = F.softmax(scores, -1)
            else:
                weights = scores.exp() / (scores.exp().sum(-1) + sinks.exp())[:, None]
            out.append(torch.einsum("hk,khd->hd", weights, values[:seen]))
    return torch.stack(out)


@torch.no_grad()
def varlen(q: Any, k: Any, v: Any, *, out: Any = None, **others: Any) -> torch.Tensor:
    result = dense(q, k, v)
    return result if out is None else out.copy_(result)


@torch.no_grad()
def with_kvcache(q: Any, k_cache: Any, v_cache: Any, **others: Any) -> torch.Tensor:
    return dense(q, k_cache, v_cache)


KERNELS = {
    "vllm": (VLLM, "vllm.vllm_flash_attn", varlen),
    "filled": (FILLED, "vllm.vllm_flash_attn", varlen),
    "sglang": (SGLANG, "sgl_kernel.flash_attn", with_kvcache),
    "dispatched": (DISPATCHED, "sglang.kernels.ops.attention.flash_attention", with_kvcache),
}


@pytest.mark.parametrize(("text", "library", "kernel", "strategy"), in_turn(KERNELS, STRATEGIES))
def test_it_computes_the_same_and_has_its_gradient(
    text: str, library: str, kernel: Any, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "flash_attn_varlen_func" if kernel is varlen else "flash_attn_with_kvcache"
    stand_in(monkeypatch, library, **{name: kernel})
    scope: dict[str, Any] = {}
    exec(compile(fix(text, strategy=strategy), "m.py", "exec"), scope)
    torch.manual_seed(0)
    q = torch.randn(4, 2, 4, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(5, 2, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    layer, weights = scope["Attention"](), torch.randn(4, 2, 4, dtype=torch.float64)
    found = layer(q, k, v, meta())
    torch.testing.assert_close(found, dense(q, k, v))
    right = torch.autograd.grad((dense(q, k, v) * weights).sum(), [q, k, v])
    if kernel is varlen:
        torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), [q, k, v]), right)
    else:  # its caches are caches
        (of_q,) = torch.autograd.grad((found * weights).sum(), [q])
        torch.testing.assert_close(of_q, right[0])
    with torch.no_grad():
        assert torch.equal(layer(q, k, v, meta()), dense(q, k, v)) or strategy == "replace"


def test_without_a_table_the_keys_are_packed() -> None:
    text = VLLM.replace("seqused_k", "cu_seqlens_k").replace(
        """
            block_table=meta["table"],""",
        "",
    )
    assert "return varlen_attention(" in fix(text) and "paged" not in fix(text)


def test_a_patch_for_pages_has_no_way_for_packed_keys() -> None:
    """Where keys lie in pages their starts are not known, and only starts would do for those."""
    fixed = fix(VLLM)
    assert "return paged_varlen_attention(" in fixed
    assert "def varlen_attention(" not in fixed
    assert "cu_seqlens_k" not in fixed


def test_what_is_not_covered_is_said() -> None:
    (found,) = findings(VLLM.replace("causal=True", "causal=True, alibi_slopes=self.slopes"))
    assert "`alibi_slopes` is passed" in found.message
    (found,) = findings(SGLANG.replace("causal=True", "causal=True, qv=self.qv"))
    assert "`qv` is passed" in found.message


UNIFIED = """\
import torch
from torch import nn
from vllm.v1.attention.ops.triton_unified_attention import unified_attention


class Attention(nn.Module):
    def forward(self, q, k_cache, v_cache, meta):
        out = torch.empty_like(q)
        unified_attention(
            q=q,
            k=k_cache,
            v=v_cache,
            out=out,
            cu_seqlens_q=meta["starts"],
            max_seqlen_q=3,
            seqused_k=meta["lengths"],
            max_seqlen_k=4,
            softmax_scale=0.5,
            causal=True,
            window_size=(-1, -1),
            block_table=meta["table"],
            softcap=0.0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
        )
        return out
"""


SINKS = {
    "vllm": (VLLM, "s_aux"),
    "sglang": (SGLANG, "sinks"),
    "dispatched": (DISPATCHED, "sinks"),
    "unified": (UNIFIED, "sinks"),
}


@pytest.mark.parametrize(("text", "name", "strategy"), in_turn(SINKS, STRATEGIES))
def test_sinks_of_gpt_oss_learn_as_well(
    text: str, name: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(q: Any, k: Any, v: Any, sinks: Any, out: Any = None) -> Any:
        with torch.no_grad():
            result = dense(q, k, v, sinks)
        return result if out is None else out.copy_(result)

    def unified(q: Any, k: Any, v: Any, out: Any, *, sinks: Any, **others: Any) -> None:
        kernel(q, k, v, sinks, out)

    def flash(q: Any, k: Any, v: Any, *, s_aux: Any, **others: Any) -> Any:
        return kernel(q, k, v, s_aux)

    def cached(q: Any, k_cache: Any, v_cache: Any, *, sinks: Any, **others: Any) -> Any:
        return kernel(q, k_cache, v_cache, sinks)

    module, _, function = text.split("from ")[2].partition("\n")[0].partition(" import ")
    stand_in(
        monkeypatch,
        module,
        **{function: {"s_aux": flash}.get(name, unified if "unified" in function else cached)},
    )
    text = text.replace("meta):", "meta, sinks):").replace(
        "causal=True", f"causal=True, {name}=sinks"
    )
    scope: dict[str, Any] = {}
    exec(compile(fix(text, strategy=strategy), "m.py", "exec"), scope)
    torch.manual_seed(0)
    q = torch.randn(4, 2, 4, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(5, 2, 2, 4, dtype=torch.float64) for _ in range(2))
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)
    found = scope["Attention"]()(q, k, v, meta(), sinks)
    right = dense(q, k, v, sinks)
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, right, **close)
    weights = torch.randn(4, 2, 4, dtype=torch.float64)
    got = torch.autograd.grad((found * weights).sum(), [q, sinks])
    want = torch.autograd.grad((right * weights).sum(), [q, sinks])
    assert want[1].abs().min() > 1e-3
    torch.testing.assert_close(got, want, **close)
