"""Products with quantized weights.

A quantized weight stays what it is.  Its codes and scales are not trained; the gradient goes
through the dequantized weight to the activation, as LoRA adapters on a frozen model need it.
"""

from __future__ import annotations

import torch


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Product of the codes a [M, K] and b [K, N] times their scales, in float32, rounded once.

    A scale is one number, or one for each row of a and each column of b.  The bias is added ahead
    of the rounding.
    """
    out = (a.float() @ b.float()) * scale_a.float().reshape(-1, 1) * scale_b.float().reshape(1, -1)
    return (out if bias is None else out + bias.float()).to(out_dtype)


def block_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    block_n: int,
    block_k: int,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Product of the codes a [M, K] and b [N, K], transposed, in float32, rounded once.

    ``scale_a`` [M, K / block_k] holds for stretches of a row, ``scale_b``
    [N / block_n, K / block_k] for blocks.  DeepSeek-V3's fp8 scheme.
    """
    scale_a = scale_a.repeat_interleave(block_k, dim=1)[:, : a.shape[1]]
    scale_b = scale_b.repeat_interleave(block_k, dim=1)[:, : b.shape[1]]
    scale_b = scale_b.repeat_interleave(block_n, dim=0)[: b.shape[0]]
    return ((a.float() * scale_a) @ (b.float() * scale_b).t()).to(out_dtype)


def hadamard_transform(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """x [..., D] times the Hadamard matrix (Sylvester's), times a scale; in float32, rounded once.

    D is filled up with zeros to a power of two, and as much of the result is dropped.
    """
    size = x.shape[-1]
    width = 2 ** (size - 1).bit_length()
    out = torch.cat((x.float(), x.float().new_zeros(*x.shape[:-1], width - size)), dim=-1)
    half = 1
    while half < width:
        a, b = out.unflatten(-1, (-1, 2, half)).unbind(-2)
        out = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        half = 2 * half
    return (out[..., :size] * scale).to(x.dtype)


def awq_weight(qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor) -> torch.Tensor:
    """AWQ's 4-bit weight [K, N]: (code - zero) * scale.

    ``qweight`` is [K, N / 8], ``qzeros`` [K / G, N / 8], ``scales`` [K / G, N]; the codes of eight
    columns lie in one int32, even columns in its lower half.  Lin et al., "AWQ", 2023.
    """
    shifts = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28], device=qweight.device)
    codes = (qweight.unsqueeze(-1) >> shifts & 15).flatten(-2)
    zeros = (qzeros.unsqueeze(-1) >> shifts & 15).flatten(-2)
    group = qweight.shape[0] // scales.shape[0]
    zeros, scales = zeros.repeat_interleave(group, dim=0), scales.repeat_interleave(group, dim=0)
    return (codes - zeros) * scales


def awq_matmul(
    x: torch.Tensor, qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor
) -> torch.Tensor:
    """x [..., K] times AWQ's 4-bit weight, see :func:`awq_weight`."""
    return x @ awq_weight(qweight, scales, qzeros).to(x.dtype)


def bnb_4bit_weight(
    packed: torch.Tensor,
    shape: tuple[int, int],
    absmax: torch.Tensor,
    code: torch.Tensor,
    blocksize: int,
) -> torch.Tensor:
    """bitsandbytes' 4-bit weight of a shape: code[index] * absmax of its block.

    Two indices lie in a byte of ``packed``, the first in the upper half; ``code`` [16] are the
    values of NF4 or FP4.  Dettmers et al., "QLoRA", 2023.
    """
    indices = torch.stack((packed >> 4, packed & 15), dim=-1).flatten().long()
    return (code[indices].view(-1, blocksize) * absmax.unsqueeze(-1)).view(shape)


def bnb_4bit_matmul(
    x: torch.Tensor,
    packed: torch.Tensor,
    shape: tuple[int, int],
    absmax: torch.Tensor,
    code: torch.Tensor,
    blocksize: int,
) -> torch.Tensor:
    """x [..., K] times bitsandbytes' 4-bit weight [N, K], transposed; see :func:`bnb_4bit_weight`.

    The gradient goes to x alone.
    """
    return x @ bnb_4bit_weight(packed, shape, absmax, code, blocksize).to(x.dtype).t()
