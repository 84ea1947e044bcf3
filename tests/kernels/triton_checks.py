"""Checks of fixtures/kernels/triton_kernels.py: run as a script, on a GPU or interpreted."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures" / "kernels"))
import triton_kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]


def close(actual, expected):
    tolerance = 1e-6 if actual.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def check_rms_norm(dtype):
    for shape in ((5, 48), (2, 3, 64), (1, 100)):
        x = torch.randn(shape, dtype=dtype, device=DEVICE, requires_grad=True)
        weight = torch.nn.Parameter(torch.randn(shape[-1], dtype=dtype, device=DEVICE))
        out = triton_kernels.rms_norm(x, weight, 1e-5)
        assert out.dtype == dtype and not out.requires_grad and out.grad_fn is None
        d = x.double()
        close(out, d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double())
    wide = torch.randn(6, 150, dtype=dtype, device=DEVICE)
    weight = torch.ones(50, dtype=dtype, device=DEVICE)
    rows = wide[:, 50:100]
    assert torch.equal(
        triton_kernels.rms_norm(rows, weight), triton_kernels.rms_norm(rows.contiguous(), weight)
    )


def check_rope(dtype):
    for rot in (32, 12):
        leaf = torch.randn(7, 8 * 32, dtype=dtype, device=DEVICE, requires_grad=True)
        qkv = leaf * 2
        before = qkv.detach().clone()
        q, k = (t.unflatten(-1, (-1, 32)) for t in qkv.split([6 * 32, 2 * 32], -1))
        angle = torch.outer(torch.arange(7), 1e4 ** -(torch.arange(0, rot, 2) / rot)).to(DEVICE)
        cos, sin = angle.cos(), angle.sin()
        for x in (q, k):
            grad_fn, version = x.grad_fn, x._version
            triton_kernels.apply_rope_(x, cos, sin)
            assert x.grad_fn is not None and type(x.grad_fn) is type(grad_fn)
            assert x._version == version
        heads = before.double().unflatten(-1, (-1, 32))
        x1, x2, tail = heads.split([rot // 2, rot // 2, 32 - rot], -1)
        c, s = cos.double()[:, None], sin.double()[:, None]
        close(qkv.detach(), torch.cat([x1 * c - x2 * s, x2 * c + x1 * s, tail], -1).flatten(1))
        qkv.sum().backward()
        assert torch.equal(leaf.grad, torch.full_like(leaf, 2.0))  # the identity's gradient


def check_bfloat16_is_refused():
    x = torch.randn(2, 16).bfloat16()
    try:
        triton_kernels.rms_norm(x, x[0])
    except TypeError as error:
        assert "float32" in str(error)
    else:
        raise AssertionError("the interpreter took bfloat16")


torch.manual_seed(0)
for element in DTYPES:
    check_rms_norm(element)
    check_rope(element)
if INTERPRETED:
    check_bfloat16_is_refused()
