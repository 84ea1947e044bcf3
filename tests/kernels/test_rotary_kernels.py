"""RoPE from a cache: bit-exact, since it is two products and a sum in float32."""

import pytest
import torch

MAX = 50


def cos_sin_cache(rot, dtype=torch.float32):
    angle = torch.outer(torch.arange(MAX), 1e4 ** -(torch.arange(0, rot, 2) / rot))
    return torch.cat([angle.cos(), angle.sin()], -1).to(dtype)


def rotated(x, positions, cache, neox, offset=0, inverse=False):
    """x [*positions, H, D], rotated pair by pair, the plain way."""
    cos, sin = cache[positions].float().chunk(2, -1)
    sin = -sin if inverse else sin
    half = cos.shape[-1]
    out = x.clone()
    for i in range(half):
        a = offset + (i if neox else 2 * i)
        b = offset + (i + half if neox else 2 * i + 1)
        c, s = cos[..., i, None], sin[..., i, None]
        x1, x2 = x[..., a].float(), x[..., b].float()
        out[..., a] = (x1 * c - x2 * s).to(x.dtype)
        out[..., b] = (x2 * c + x1 * s).to(x.dtype)
    return out


@pytest.fixture(params=[True, False], ids=["neox", "gptj"])
def neox(request):
    return request.param


@pytest.fixture(params=[32, 12], ids=["full", "partial"])
def rot(request):
    return request.param


def packed_qkv(tokens, dtype, heads=6, kv_heads=2, dim=32):
    """q [*tokens, H*D] and k [*tokens, Hkv*D] as views of one projection."""
    qkv = torch.randn(*tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    q, k, _ = qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
    return q, k


def heads_of(t, dim=32):
    return t.unflatten(-1, (-1, dim))


@pytest.mark.parametrize("tokens", [(11,), (3, 5)], ids=["flat", "batched"])
@pytest.mark.parametrize("split_heads", [False, True])
@pytest.mark.parametrize("cache_dtype", [torch.float32, None], ids=["cache32", "cache_x"])
def test_vllm(tokens, split_heads, cache_dtype, neox, rot, dtype):
    from vllm import _custom_ops as ops

    cache = cos_sin_cache(rot, cache_dtype or dtype)
    positions = torch.randint(MAX, tokens)
    q, k = packed_qkv(tokens, dtype)
    want = [rotated(heads_of(t), positions, cache, neox) for t in (q, k)]
    if split_heads:
        q, k = heads_of(q), heads_of(k)
    assert ops.rotary_embedding(positions, q, k, 32, cache, neox) is None
    for got, expected in zip((q, k), want, strict=True):
        assert torch.equal(got, expected.view(got.shape))


def test_vllm_writes_nothing_beside_q_and_k(neox):
    from vllm import _custom_ops as ops

    qkv = torch.randn(7, 10 * 32)
    before = qkv.clone()
    q, k, v = qkv.split([192, 64, 64], -1)
    ops.rotary_embedding(torch.arange(7), q, k, 32, cos_sin_cache(12), neox)
    assert torch.equal(v, before[:, 256:])
    assert torch.equal(heads_of(q)[..., 12:], heads_of(before[:, :192])[..., 12:])
    assert not torch.equal(q, before[:, :192])


def test_vllm_without_key_with_offset_and_back(neox, dtype):
    from vllm import _custom_ops as ops

    cache, positions = cos_sin_cache(12), torch.randint(MAX, (9,))
    q = torch.randn(9, 64, dtype=dtype)
    before = q.clone()
    ops.rotary_embedding(positions, q, None, 32, cache, neox, 20)
    expected = rotated(heads_of(before), positions, cache, neox, offset=20)
    assert torch.equal(heads_of(q), expected)
    ops.rotary_embedding(positions, q, None, 32, cache, neox, 20, True)
    assert torch.equal(heads_of(q), rotated(expected, positions, cache, neox, 20, inverse=True))


def test_sgl_kernel(neox, rot, dtype):
    import sgl_kernel

    cache, positions = cos_sin_cache(rot), torch.randint(MAX, (11,))
    for rope in (
        sgl_kernel.rotary_embedding,
        sgl_kernel.apply_rope_with_cos_sin_cache_inplace,
    ):
        q, k = packed_qkv((11,), dtype)
        want = [rotated(heads_of(t), positions, cache, neox) for t in (q, k)]
        rope(positions, q, k, 32, cache, is_neox=neox)
        assert torch.equal(heads_of(q), want[0])
        assert torch.equal(heads_of(k), want[1])


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_flashinfer(neox, rot, dtype, index):
    import flashinfer

    cache, positions = cos_sin_cache(rot), torch.randint(MAX, (11,), dtype=index)
    q, k = packed_qkv((11,), dtype)
    before = q.clone()
    want = [rotated(heads_of(t), positions, cache, neox) for t in (q, k)]
    got = flashinfer.apply_rope_with_cos_sin_cache(positions, q, k, 32, cache, neox)
    assert torch.equal(q, before)
    assert torch.equal(heads_of(got[0]), want[0])
    assert torch.equal(heads_of(got[1]), want[1])
    flashinfer.apply_rope_with_cos_sin_cache_inplace(positions, q, k, 32, cache, neox)
    assert torch.equal(heads_of(q), want[0])
    assert torch.equal(heads_of(k), want[1])


def test_flashinfer_wants_a_float32_cache():
    import flashinfer

    q = torch.randn(3, 64)
    with pytest.raises(ValueError, match="float32"):
        flashinfer.apply_rope_with_cos_sin_cache(
            torch.arange(3), q, q, 32, cos_sin_cache(32, torch.bfloat16)
        )


@pytest.mark.parametrize(
    ("positions", "q", "head_size", "message"),
    [
        (torch.arange(3), torch.randn(4, 64), 32, "shape of positions"),
        (torch.tensor([MAX]), torch.randn(1, 64), 32, "outside the cos_sin_cache"),
        (torch.tensor([-1]), torch.randn(1, 64), 32, "outside the cos_sin_cache"),
        (torch.zeros(1), torch.randn(1, 64), 32, "int32 or int64"),
        (torch.zeros(1).long(), torch.randn(1, 60), 32, "multiple of head_size"),
        (torch.zeros(1).long(), torch.randn(1, 64), 16, "cannot rotate 32"),
    ],
)
def test_bad_arguments(positions, q, head_size, message):
    from vllm import _custom_ops as ops

    with pytest.raises(RuntimeError, match=message):
        ops.rotary_embedding(positions, q, None, head_size, cos_sin_cache(32), True)
