"""Gated activations: vLLM rounds the activation before the product, flashinfer and sgl after."""

import importlib
import math

import pytest
import torch
from kernel_asserts import assert_rounded, flips


def silu(x):
    return x / (1 + torch.exp(-x))


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTS = [("silu_and_mul", silu), ("gelu_and_mul", gelu), ("gelu_tanh_and_mul", gelu_tanh)]


def run_vllm(name, x):
    import vllm  # noqa: F401  (registers torch.ops._C)

    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype)
    assert getattr(torch.ops._C, name)(out, x) is None
    return out


@pytest.mark.parametrize(("name", "act"), ACTS)
@pytest.mark.parametrize("shape", [(128,), (5, 96), (2, 3, 64)])
def test_vllm(name, act, shape, dtype):
    x = torch.randn(shape, dtype=dtype) * 3
    gate, up = x.chunk(2, -1)
    rounded = act(gate.double()).to(dtype).double()
    assert_rounded(run_vllm(name, x), rounded * up.double())


def test_vllm_mul_and_silu(dtype):
    x = torch.randn(5, 96, dtype=dtype)
    up, gate = x.chunk(2, -1)
    rounded = silu(gate.double()).to(dtype).double()
    assert_rounded(run_vllm("mul_and_silu", x), rounded * up.double())


@pytest.mark.parametrize("module", ["flashinfer", "sgl_kernel"])
@pytest.mark.parametrize(("name", "act"), ACTS)
def test_flashinfer_and_sgl(module, name, act, dtype):
    library = importlib.import_module(module)
    call = getattr(library, name)
    x = torch.randn(4, 7, 96, dtype=dtype) * 3
    gate, up = x.double().chunk(2, -1)
    result = call(x)
    assert_rounded(result, act(gate) * up)
    out = torch.empty(4, 7, 48, dtype=dtype)
    assert call(x, out) is out
    assert torch.equal(out, result)
    wide = torch.randn(9, 300, dtype=dtype)
    assert torch.equal(call(wide[:, 100:200]), call(wide[:, 100:200].contiguous()))


def test_the_product_is_rounded_differently():
    import flashinfer

    x = torch.randn(64, 512).bfloat16()
    assert flips(run_vllm("silu_and_mul", x), flashinfer.silu_and_mul(x)) > 0.05


def test_extreme_gates():
    x = torch.tensor([[-1e4, 1e4, 0.0, -90.0, 2.0, 2.0, 2.0, 2.0]])
    out = run_vllm("silu_and_mul", x)
    assert torch.equal(out, torch.tensor([[0.0, 2e4, 0.0, 0.0]]))


def test_bad_arguments():
    with pytest.raises(RuntimeError, match=r"\[\.\.\., 2d\]"):
        torch.ops._C.silu_and_mul(torch.empty(3, 8), torch.empty(3, 8))
