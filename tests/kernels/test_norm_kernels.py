"""Norms and softmax against their formulas, in float64, rounded where each library rounds."""

import importlib

import pytest
import torch
from kernel_asserts import assert_rounded, flips

EPS = 1e-5


def rms(x, weight, eps=EPS):
    """RMSNorm in float64, one rounding left to the caller."""
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


def packed(dtype, rows=33, hidden=200):
    """Rows of a wider buffer, as a split of a packed projection gives them."""
    return torch.randn(rows, 3 * hidden, dtype=dtype)[:, hidden : 2 * hidden]


def vllm_rms_norm(x, weight):
    from vllm import _custom_ops as ops

    out = torch.empty(x.shape, dtype=x.dtype)
    assert ops.rms_norm(out, x, weight, EPS) is None
    return out


def flashinfer_rmsnorm(x, weight):
    import flashinfer

    return flashinfer.rmsnorm(x, weight, EPS)


def sgl_rmsnorm(x, weight):
    import sgl_kernel

    return sgl_kernel.rmsnorm(x, weight, EPS)


def flashinfer_gemma(x, weight):
    import flashinfer

    return flashinfer.gemma_rmsnorm(x, weight, EPS)


def sgl_gemma(x, weight):
    import sgl_kernel

    return sgl_kernel.gemma_rmsnorm(x, weight, EPS)


@pytest.mark.parametrize(
    ("norm", "offset"),
    [
        (vllm_rms_norm, 0),
        (flashinfer_rmsnorm, 0),
        (sgl_rmsnorm, 0),
        (flashinfer_gemma, 1),
        (sgl_gemma, 1),
    ],
)
@pytest.mark.parametrize("shape", [(64,), (1, 8), (33, 200), (2, 5, 128), (2, 3, 4, 96)])
def test_rms_norm(norm, offset, shape, dtype):
    x = torch.randn(shape, dtype=dtype)
    weight = torch.randn(shape[-1], dtype=dtype)
    assert_rounded(norm(x, weight), rms(x, weight.double() + offset))


def test_rms_norm_multiplies_the_weight_before_the_cast():
    x, weight = torch.randn(64, 512).bfloat16(), torch.randn(512).bfloat16()
    out = vllm_rms_norm(x, weight)
    cast_before = rms(x, torch.ones(512)).bfloat16() * weight
    assert flips(out, rms(x, weight).bfloat16()) < 2e-3
    assert flips(out, cast_before) > 0.05


def test_rms_norm_without_weight(dtype):
    x = torch.randn(7, 64, dtype=dtype)
    assert_rounded(vllm_rms_norm(x, None), rms(x, torch.ones(64)))


@pytest.mark.parametrize("norm", [vllm_rms_norm, flashinfer_rmsnorm, sgl_rmsnorm])
def test_rms_norm_of_strided_rows(norm, dtype):
    x, weight = packed(dtype), torch.randn(200, dtype=dtype)
    assert torch.equal(norm(x, weight), norm(x.contiguous(), weight))
    heads = torch.randn(9, 3 * 64, dtype=dtype)[:, 64:].view(9, 4, 32)
    weight = torch.randn(32, dtype=dtype)
    assert torch.equal(norm(heads, weight), norm(heads.contiguous(), weight))


@pytest.mark.parametrize("module", ["flashinfer", "sgl_kernel"])
def test_rms_norm_into_out(module, dtype):
    library = importlib.import_module(module)
    x, weight = torch.randn(6, 64, dtype=dtype), torch.randn(64, dtype=dtype)
    expected = library.rmsnorm(x, weight, EPS)
    out = torch.empty_like(x)
    assert library.rmsnorm(x, weight, EPS, out=out) is out
    assert torch.equal(out, expected)
    assert library.rmsnorm(x, weight, EPS, out=x) is x
    assert torch.equal(x, expected)


def test_vllm_adds_then_rounds_then_norms(dtype):
    from vllm import _custom_ops as ops

    x, residual = packed(dtype), torch.randn(33, 200, dtype=dtype)
    weight = torch.randn(200, dtype=dtype)
    total = x + residual
    out = x
    assert ops.fused_add_rms_norm(out, residual, weight, EPS) is None
    assert torch.equal(residual, total)
    assert_rounded(out, rms(total, weight))


@pytest.mark.parametrize("module", ["flashinfer", "sgl_kernel"])
@pytest.mark.parametrize(
    ("name", "offset"), [("fused_add_rmsnorm", 0), ("gemma_fused_add_rmsnorm", 1)]
)
def test_flashinfer_and_sgl_norm_the_unrounded_sum(module, name, offset, dtype):
    library = importlib.import_module(module)
    x, residual = packed(dtype), torch.randn(33, 200, dtype=dtype)
    weight = torch.randn(200, dtype=dtype)
    exact, total = x.float() + residual.float(), x + residual
    assert getattr(library, name)(x, residual, weight, EPS) is None
    assert torch.equal(residual, total)
    assert_rounded(x, rms(exact, weight.double() + offset))


def test_the_two_fused_adds_round_differently():
    import flashinfer
    from vllm import _custom_ops as ops

    x, residual = torch.randn(64, 512).bfloat16(), torch.randn(64, 512).bfloat16()
    weight = torch.randn(512).bfloat16()
    a, b = x.clone(), x.clone()
    ops.fused_add_rms_norm(a, residual.clone(), weight, EPS)
    flashinfer.fused_add_rmsnorm(b, residual.clone(), weight, EPS)
    assert flips(a, b) > 0.05


def test_layer_norm(dtype):
    import flashinfer
    from deepspeed.ops.transformer.inference.triton import layer_norm

    # A mean far from zero: the variance must not be a difference of large numbers.
    x = (torch.randn(17, 300) + 50).to(dtype)
    weight, bias = torch.randn(300), torch.randn(300)
    d = x.double()
    normed = (d - d.mean(-1, keepdim=True)) * torch.rsqrt(
        d.var(-1, keepdim=True, correction=0) + EPS
    )
    expected = normed * weight.double() + bias.double()
    assert_rounded(flashinfer.layernorm(x, weight, bias, EPS), expected, atol=2e-5)
    weight, bias = weight.to(dtype), bias.to(dtype)
    expected = normed * weight.double() + bias.double()
    assert_rounded(layer_norm(x, weight, bias, EPS), expected, atol=2e-5)


def test_softmax(dtype):
    from deepspeed.ops.transformer.inference.triton import softmax

    x = (torch.randn(2, 4, 5, 70) * 5).to(dtype)
    assert_rounded(softmax(x), x.double().softmax(-1))
    row = torch.where(torch.arange(70) < 40, 0.0, -10000.0).to(dtype).view(1, 70)
    assert_rounded(softmax(x, row), (x.double() + row.double()).softmax(-1))
    full = torch.randn_like(x)
    assert_rounded(softmax(x, full), (x.double() + full.double()).softmax(-1))


def test_softmax_with_temperature_is_float32(dtype):
    import flashinfer

    logits = (torch.randn(6, 1000) * 4).to(dtype)
    heat = torch.rand(6) + 0.5
    for temperature, divisor in ((None, 1.0), (0.7, 0.7), (heat, heat.double()[:, None])):
        probs = flashinfer.sampling.softmax(logits, temperature)
        assert probs.dtype == torch.float32
        expected = (logits.double() / divisor).softmax(-1)
        torch.testing.assert_close(probs.double(), expected, rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops, x, w: ops.rms_norm(x.half(), x.half(), w.half(), EPS), "float32 or bfloat16"),
        (lambda ops, x, w: ops.rms_norm(torch.empty(2, 8), x, w, EPS), "shape of input"),
        (lambda ops, x, w: ops.rms_norm(torch.empty_like(x), x, w[:3], EPS), r"shape \[64\]"),
        (lambda ops, x, w: ops.rms_norm(torch.empty_like(x), x, w.bfloat16(), EPS), "dtype"),
        (lambda ops, x, w: ops.rms_norm(x.t(), x.t(), w, EPS), "must be contiguous"),
        (lambda ops, x, w: ops.fused_add_rms_norm(x, x[:1], w, EPS), "shape of input"),
    ],
)
def test_bad_arguments(call, message):
    from vllm import _custom_ops as ops

    with pytest.raises(RuntimeError, match=message):
        call(ops, torch.randn(4, 64), torch.randn(64))
