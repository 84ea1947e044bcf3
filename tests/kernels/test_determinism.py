"""Same input, same bits, on any number of threads: the work is split by rows only."""

import pytest
import torch


def rms(dtype):
    import flashinfer

    return [flashinfer.rmsnorm(torch.randn(301, 256, dtype=dtype), torch.ones(256, dtype=dtype))]


def fused_add(dtype):
    from vllm import _custom_ops as ops

    x, residual = torch.randn(2, 301, 256, dtype=dtype)
    ops.fused_add_rms_norm(x, residual, torch.ones(256, dtype=dtype), 1e-6)
    return [x, residual]


def layer_norm(dtype):
    import flashinfer

    x = torch.randn(301, 256, dtype=dtype)
    return [flashinfer.layernorm(x, torch.ones(256), torch.ones(256))]


def softmax(dtype):
    import flashinfer

    return [flashinfer.sampling.softmax(torch.randn(301, 256, dtype=dtype))]


def silu(dtype):
    import sgl_kernel

    return [sgl_kernel.silu_and_mul(torch.randn(301, 512, dtype=dtype))]


def rotary(dtype):
    from vllm import _custom_ops as ops

    q, k = torch.randn(301, 512, dtype=dtype), torch.randn(301, 128, dtype=dtype)
    ops.rotary_embedding(torch.arange(301), q, k, 64, torch.randn(301, 64), True)
    return [q, k]


def prefill(dtype):
    import flashinfer

    q, k = torch.randn(61, 8, 64, dtype=dtype), torch.randn(97, 2, 64, dtype=dtype)
    return flashinfer.single_prefill_with_kv_cache(q, k, k, causal=True, return_lse=True)


@pytest.mark.parametrize("kernel", [rms, fused_add, layer_norm, softmax, silu, rotary, prefill])
def test_thread_count_does_not_matter(kernel, dtype, threads):
    results = []
    for count in (1, 2, 3, 5, 5):
        threads(count)
        torch.manual_seed(1)
        results.append(kernel(dtype))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)
