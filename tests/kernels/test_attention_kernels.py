"""Attention against explicit masks and matmuls in float64."""

import math

import pytest
import torch
from kernel_asserts import assert_rounded

from tests.each import in_turn


def attention(q, k, v, scale=None, causal=False, left=-1, right=-1, cap=0.0):
    """q [Sq, Hq, D], k and v [Sk, Hkv, D] -> (o [Sq, Hq, D], lse [Hq, Sq]), float64."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    query = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    key = torch.arange(k.shape[0])
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    if causal:
        seen &= key <= query
    if left >= 0:
        seen &= key >= query - left
    if right >= 0:
        seen &= key <= query + right
    scores = scores.masked_fill(~seen, -math.inf)
    p = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", p, v), scores.logsumexp(-1)


def qkv(sq, sk, dtype, heads=6, kv_heads=2, dim=32):
    return (
        torch.randn(sq, heads, dim, dtype=dtype),
        torch.randn(sk, kv_heads, dim, dtype=dtype),
        torch.randn(sk, kv_heads, dim, dtype=dtype),
    )


def starts(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


OPTIONS = [
    {},
    {"causal": True},
    {"causal": True, "left": 3},
    {"left": 2, "right": 1},
    {"causal": True, "cap": 5.0, "scale": 0.7},
]


LENGTHS = {
    "square": ([5, 1, 7], [5, 1, 7]),
    "cached": ([1, 4, 2], [6, 4, 9]),
    "fewer_keys": ([4, 3], [2, 3]),
}


@pytest.mark.parametrize(("options", "lengths"), in_turn(OPTIONS, list(LENGTHS)))
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
def test_vllm_varlen(options, lengths, kv_heads, dtype):
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    sq, sk = LENGTHS[lengths]
    q, k, v = qkv(sum(sq), sum(sk), dtype, kv_heads=kv_heads)
    window = [options.get("left", -1), options.get("right", -1)]
    out, lse = flash_attn_varlen_func(
        q,
        k,
        v,
        max(sq),
        starts(sq),
        max(sk),
        starts(sk),
        softmax_scale=options.get("scale"),
        causal=options.get("causal", False),
        window_size=window,
        softcap=options.get("cap", 0.0),
        return_softmax_lse=True,
    )
    parts = zip(q.split(sq), k.split(sk), v.split(sk), strict=True)
    expected = [attention(*part, **options) for part in parts]
    assert_rounded(out, torch.cat([o for o, _ in expected]))
    torch.testing.assert_close(
        lse.double(), torch.cat([s for _, s in expected], 1), rtol=1e-6, atol=1e-6
    )


def test_vllm_varlen_of_strided_views_into_out(dtype):
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    packed = torch.randn(12, 10 * 32, dtype=dtype)
    q, k, v = (t.unflatten(-1, (-1, 32)) for t in packed.split([192, 64, 64], -1))
    out = torch.empty(12, 6, 32, dtype=dtype)
    cu = starts([7, 5])
    got = flash_attn_varlen_func(q, k, v, 7, cu, 7, cu, causal=True, out=out)
    assert torch.equal(got, out)
    dense = flash_attn_varlen_func(
        q.contiguous(), k.contiguous(), v.contiguous(), 7, cu, 7, cu, causal=True
    )
    assert torch.equal(out, dense)


def test_vllm_paged(dtype):
    from vllm import _custom_ops as ops
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    page, lengths, fresh = 4, [6, 9], [2, 1]
    q, k, v = qkv(sum(fresh), sum(lengths), dtype)
    table = torch.tensor([[5, 0, -1], [2, 4, 1]], dtype=torch.int32)
    slots = [
        int(table[b, i // page]) * page + i % page for b, n in enumerate(lengths) for i in range(n)
    ]
    k_cache, v_cache = torch.zeros(2, 6, page, 2, 32, dtype=dtype)
    one = torch.ones(1)
    ops.reshape_and_cache_flash(k, v, k_cache, v_cache, torch.tensor(slots), "auto", one, one)
    out = flash_attn_varlen_func(
        q,
        k_cache,
        v_cache,
        max(fresh),
        starts(fresh),
        max(lengths),
        seqused_k=torch.tensor(lengths, dtype=torch.int32),
        block_table=table,
        causal=True,
    )
    parts = zip(q.split(fresh), k.split(lengths), v.split(lengths), strict=True)
    expected = torch.cat([attention(*part, causal=True)[0] for part in parts])
    assert_rounded(out, expected)


@pytest.mark.parametrize("options", OPTIONS[:3] + OPTIONS[4:], ids=str)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_flashinfer_prefill(options, layout, dtype):
    import flashinfer

    q, k, v = qkv(5, 11, dtype)
    swap = (lambda t: t.transpose(0, 1).contiguous()) if layout == "HND" else (lambda t: t)
    out, lse = flashinfer.single_prefill_with_kv_cache(
        q,
        swap(k),
        swap(v),
        causal=options.get("causal", False),
        kv_layout=layout,
        sm_scale=options.get("scale"),
        window_left=options.get("left", -1),
        logits_soft_cap=options.get("cap"),
        return_lse=True,
    )
    expected, expected_lse = attention(q, k, v, **options)
    assert_rounded(out, expected)
    # flashinfer's log-sum-exp is base 2, [Sq, Hq].
    torch.testing.assert_close(lse.double(), expected_lse.t() / math.log(2), rtol=1e-6, atol=1e-6)


def test_flashinfer_decode(dtype):
    import flashinfer

    q, k, v = qkv(1, 13, dtype)
    out, lse = flashinfer.single_decode_with_kv_cache(q[0], k, v, return_lse=True)
    expected, expected_lse = attention(q, k, v)
    assert_rounded(out, expected[0])
    torch.testing.assert_close(lse.double(), expected_lse[:, 0] / math.log(2), rtol=1e-6, atol=1e-6)
    windowed = flashinfer.single_decode_with_kv_cache(q[0], k, v, window_left=4)
    assert_rounded(windowed, attention(q, k, v, left=4)[0][0])


@pytest.mark.parametrize("fresh", [1, 3])
@pytest.mark.parametrize("paged", [False, True])
def test_flash_attn_appends_then_attends(fresh, paged, dtype):
    from flash_attn import flash_attn_with_kvcache

    lengths = [2, 5]
    k_cache, v_cache = torch.randn(2, 2, 12, 2, 32, dtype=dtype)
    q = torch.randn(2, fresh, 6, 32, dtype=dtype)
    k, v = torch.randn(2, 2, fresh, 2, 32, dtype=dtype)
    want_k, want_v = k_cache.clone(), v_cache.clone()
    for b, n in enumerate(lengths):
        want_k[b, n : n + fresh], want_v[b, n : n + fresh] = k[b], v[b]

    if paged:  # The same cache in pages of 4, shuffled.
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        pages = [torch.empty(6, 4, 2, 32, dtype=dtype) for _ in range(2)]
        for page, cache in zip(pages, (k_cache, v_cache), strict=True):
            page[order] = cache.reshape(6, 4, 2, 32)
        caches, table = pages, order.view(2, 3).int()
    else:
        caches, table = [k_cache, v_cache], None
    out, lse = flash_attn_with_kvcache(
        q,
        *caches,
        k,
        v,
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32),
        block_table=table,
        causal=True,
        return_softmax_lse=True,
    )
    if paged:
        k_cache, v_cache = (page[order].view(2, 12, 2, 32) for page in caches)
    assert torch.equal(k_cache, want_k)
    assert torch.equal(v_cache, want_v)
    for b, n in enumerate(lengths):
        keys, values = want_k[b, : n + fresh], want_v[b, : n + fresh]
        expected, expected_lse = attention(q[b], keys, values, causal=True)
        assert_rounded(out[b], expected)
        torch.testing.assert_close(lse[b].double(), expected_lse, rtol=1e-6, atol=1e-6)


def test_flash_attn_reads_chosen_rows_of_the_cache(dtype):
    from flash_attn import flash_attn_with_kvcache

    k_cache, v_cache = torch.randn(2, 3, 8, 2, 32, dtype=dtype)
    q = torch.randn(2, 1, 6, 32, dtype=dtype)
    rows = torch.tensor([2, 0], dtype=torch.int32)
    out = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=5, cache_batch_idx=rows)
    for b, row in enumerate(rows):
        assert_rounded(out[b], attention(q[b], k_cache[row, :5], v_cache[row, :5])[0])


def test_reshape_and_cache_flash(dtype):
    from vllm import _custom_ops as ops

    packed = torch.randn(5, 4 * 16, dtype=dtype)
    key, value = (t.unflatten(-1, (2, 16)) for t in packed.chunk(2, -1))
    caches = torch.zeros(2, 3, 4, 2, 16, dtype=dtype)
    slots = torch.tensor([7, -1, 0, 11])  # The fifth token is padding without a slot.
    one = torch.ones(1)
    ops.reshape_and_cache_flash(key, value, *caches, slots, "auto", one, one)
    want = torch.zeros(2, 12, 2, 16, dtype=dtype)
    for i, slot in ((0, 7), (2, 0), (3, 11)):
        want[0, slot], want[1, slot] = key[i], value[i]
    assert torch.equal(caches.view(2, 12, 2, 16), want)


def test_bad_arguments():
    from flash_attn import flash_attn_with_kvcache
    from vllm import _custom_ops as ops
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    q, k, v = qkv(3, 3, torch.float32)
    with pytest.raises(RuntimeError, match="multiple of"):
        flash_attn_varlen_func(q[:, :5], k, v, 3, starts([3]), 3, starts([3]))
    with pytest.raises(RuntimeError, match="add up to 2"):
        flash_attn_varlen_func(q, k, v, 3, starts([2]), 3, starts([3]))
    with pytest.raises(RuntimeError, match="does not fit"):
        flash_attn_varlen_func(q, k, v, 3, starts([3]), 3, starts([9]))
    with pytest.raises(ValueError, match="cu_seqlens_k"):
        flash_attn_varlen_func(q, k, v, 3, starts([3]), 3)
    with pytest.raises(NotImplementedError, match="alibi"):
        flash_attn_varlen_func(q, k, v, 3, starts([3]), 3, starts([3]), alibi_slopes=q)
    cache = torch.zeros(1, 4, 2, 32)
    with pytest.raises(RuntimeError, match="cache holds 4"):
        flash_attn_with_kvcache(q[None, :1], cache, cache, k[None], v[None], cache_seqlens=2)
    one = torch.ones(1)
    with pytest.raises(RuntimeError, match="outside the cache"):
        ops.reshape_and_cache_flash(k, v, cache, cache, torch.tensor([4]), "auto", one, one)
    with pytest.raises(RuntimeError, match="'auto'"):
        ops.reshape_and_cache_flash(k, v, cache, cache, torch.tensor([0]), "fp8", one, one)
