"""What is easy to get wrong, each shown on a case small enough to read."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from trainify.reference.attention import attention, cached_attention, varlen_attention
from trainify.reference.norm import fused_add_rms_norm, fused_add_rms_norm_fp32, rms_norm
from trainify.reference.rope import rotary_embedding, rotate_pairs


def test_causal_is_aligned_to_the_bottom_right() -> None:
    """Two queries at the end of four keys: the first sees three, the second all."""
    q = torch.zeros(1, 2, 1, 1)
    v = torch.tensor([1.0, 2.0, 3.0, 6.0]).view(1, 4, 1, 1)
    got = attention(q, torch.zeros(1, 4, 1, 1), v, causal=True).flatten()
    assert got.tolist() == [2.0, 3.0]


def test_a_query_without_keys_gives_zero_and_a_zero_gradient() -> None:
    q, k = torch.randn(1, 3, 1, 4, requires_grad=True), torch.randn(1, 2, 1, 4)
    for softcap in (0.0, 5.0):
        out = attention(q, k, k, causal=True, softcap=softcap)
        (grad,) = torch.autograd.grad(out.sum(), q)
        assert not out[0, 0].any()
        assert not grad[0, 0].any()
        assert grad.isfinite().all()


def test_equal_lengths_take_pytorchs_causal_path(monkeypatch) -> None:
    seen = {}

    def spy(*args, **kwargs):
        seen.update(kwargs)
        return args[0]

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    q = torch.zeros(2, 3, 4, 8)
    attention(q, q, q, causal=True)
    assert seen["is_causal"] and seen["attn_mask"] is None and not seen["enable_gqa"]
    lengths = torch.tensor([0, 3, 6])
    varlen_attention(*[q.flatten(0, 1)] * 3, lengths, lengths, causal=True)
    assert seen["is_causal"] and seen["attn_mask"] is None


@pytest.mark.parametrize("lengths", ([0, 3, 6], [0, 2, 6]), ids=("equal", "ragged"))
def test_a_packed_qkv_is_not_kept_for_backward(lengths) -> None:
    """q and k were rotated, so only v still lies in the packed tensor."""
    kept = []

    def keep(x):
        kept.append(x.untyped_storage().data_ptr())
        return x

    qkv = torch.randn(6, 3, 2, 8, requires_grad=True) * 1.0
    q, k, v = qkv.unbind(1)
    q, k, offsets = q.clone(), k.clone(), torch.tensor(lengths)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        varlen_attention(q, k, v, offsets, offsets, causal=True)
    assert kept and qkv.untyped_storage().data_ptr() not in kept


def test_grouped_queries_share_consecutive_heads() -> None:
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 2, 8), torch.randn(1, 2, 2, 8)
    got = attention(q, k, v)
    for head in range(4):
        one = attention(q[:, :, [head]], k[:, :, [head // 2]], v[:, :, [head // 2]])
        torch.testing.assert_close(got[:, :, [head]], one)


def test_cached_keys_past_the_length_do_not_count() -> None:
    q, k, v = torch.randn(2, 1, 2, 4), torch.randn(2, 6, 1, 4), torch.randn(2, 6, 1, 4)
    lengths = torch.tensor([2, 5])
    got = cached_attention(q, k, v, lengths, causal=True)
    k[0, 2:], v[0, 2:], k[1, 5:], v[1, 5:] = 9.0, 9.0, 9.0, 9.0
    assert torch.equal(got, cached_attention(q, k, v, lengths, causal=True))


def test_interleaved_pairs_are_complex_numbers() -> None:
    x, angles = torch.randn(3, 2, 8), torch.randn(3, 1, 4)
    turned = torch.view_as_complex(x.unflatten(-1, (4, 2))) * torch.polar(
        torch.ones_like(angles), angles
    )
    torch.testing.assert_close(
        rotate_pairs(x, angles.cos(), angles.sin(), is_neox=False),
        torch.view_as_real(turned).flatten(-2),
    )


def test_neox_pairs_are_hugging_faces_rotate_half() -> None:
    x, angles = torch.randn(3, 2, 8), torch.randn(3, 1, 4)
    cos, sin = angles.cos().repeat(1, 1, 2), angles.sin().repeat(1, 1, 2)
    a, b = x.chunk(2, -1)
    torch.testing.assert_close(
        rotate_pairs(x, angles.cos(), angles.sin(), is_neox=True),
        x * cos + torch.cat((-b, a), -1) * sin,
    )


def test_a_narrow_table_leaves_the_other_features_alone() -> None:
    table = torch.randn(5, 4)
    query, key = torch.randn(3, 2 * 6), torch.randn(3, 6)
    positions = torch.tensor([4, 0, 2])
    turned, _ = rotary_embedding(positions, query, key, 6, table, True)
    assert torch.equal(turned.view(3, 2, 6)[..., 4:], query.view(3, 2, 6)[..., 4:])
    assert not torch.equal(turned, query)


def test_where_the_sum_is_rounded_shows_in_bfloat16() -> None:
    """The two orders are different functions: the catalog must not mix them."""
    torch.manual_seed(0)
    x, residual = torch.randn(64, 256).bfloat16(), torch.randn(64, 256).bfloat16()
    weight = torch.randn(256).bfloat16()
    vllm, vllm_sum = fused_add_rms_norm(x, residual, weight, 1e-6)
    flashinfer, flashinfer_sum = fused_add_rms_norm_fp32(x, residual, weight, 1e-6)
    assert torch.equal(vllm_sum, flashinfer_sum)
    assert not torch.equal(vllm, flashinfer)
    assert torch.equal(vllm, rms_norm(vllm_sum, weight, 1e-6))
