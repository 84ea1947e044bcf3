"""Products with quantized weights.

A quantized weight stays what it is.  Its codes and scales are not trained; the gradient goes
through the dequantized weight to the activation, as LoRA adapters on a frozen model need it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


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


def mm_of_codes(
    x: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Product of x [M, K] and the codes b [K, N] times their scale, in float32, rounded once.

    scaled_mm where x is not rounded to codes of its own.  The scale is one number, or one for each
    column.
    """
    out = x.float() @ b.float() * scale_b.float().reshape(1, -1)
    return (out if bias is None else out + bias.float()).to(out_dtype)


def scaled_grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """As scaled_mm of each group of rows of a [M, K] with a matrix of its own, of b [G, K, N].

    Group g ends before row offsets[g].  The scales are one for each row of a, [M], and each column
    of each matrix, [G, N].
    """
    ends = offsets[:-1].tolist()
    groups = zip(a.tensor_split(ends), b, scale_a.tensor_split(ends), scale_b, strict=True)
    return torch.cat([scaled_mm(x, w, sx, sw, out_dtype) for x, w, sx, sw in groups])


def scaled_mm_add(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    out_dtype: torch.dtype,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """As scaled_mm of a [..., K] and b [N, K], transposed, with scales [..., 1] and [N].

    The residual, then the bias, are added rounded: lmdeploy's ``matmul_kernel_dynamic_quant``.
    """
    out = (a.float() @ b.float().t()) * scale_a.float() * scale_b.float().flatten()
    out = out if residual is None else out.to(residual.dtype) + residual
    return out.to(out_dtype) if bias is None else (out.to(out_dtype) + bias).to(out_dtype)


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


def block_mm_of_codes(
    x: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    block_n: int,
    block_k: int,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Product of x [M, K] and the codes b [N, K], transposed, in float32, rounded once.

    block_scaled_mm where x is not rounded to codes of its own.
    """
    scale_b = scale_b.repeat_interleave(block_k, dim=1)[:, : b.shape[1]]
    scale_b = scale_b.repeat_interleave(block_n, dim=0)[: b.shape[0]]
    return (x.float() @ (b.float() * scale_b).t()).to(out_dtype)


def hadamard_transform(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """x [..., D] times the Hadamard matrix (Sylvester's), in float32, rounded once.

    A scale multiplies the result.  D is filled up with zeros to a power of two, and as much
    of the result is dropped.
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


def awq_gemv_matmul(
    x: torch.Tensor,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    qzeros: torch.Tensor,
    group: int,
) -> torch.Tensor:
    """x [..., K] times AWQ's 4-bit weight in the format of its GEMV kernels, [N, K], transposed.

    ``qweight`` is [N, K / 8], ``qzeros`` [N, K / group / 8 or more], ``scales`` [N, K / group or
    more]; the codes of eight columns lie in one int32, in order.  In float32, rounded once.
    """
    shifts = torch.arange(0, 32, 4, device=qweight.device)
    codes = (qweight.unsqueeze(-1) >> shifts & 15).flatten(-2)
    groups = codes.shape[-1] // group
    zeros = (qzeros.unsqueeze(-1) >> shifts & 15).flatten(-2)[:, :groups]
    scales = scales[:, :groups].float().repeat_interleave(group, dim=-1)
    weight = (codes - zeros.repeat_interleave(group, dim=-1)) * scales
    return (x.float() @ weight.t()).to(x.dtype)


def int4_matmul(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    group: int,
    apart: bool = False,
) -> torch.Tensor:
    """x [M, K] times a 4-bit weight [K, N]: (code - zero) * scale, rounded to the dtype of x.

    ``packed`` is [K / 8, N], of eight rows to an int32, ``zeros`` [K / group, N / 8], of eight
    columns; ``scales`` [K / group, N].  Multiplied ``apart``, codes and zeros are rounded before
    the difference.  GPTQ's format with zeros as they are; lightllm.
    """
    shifts = torch.arange(0, 32, 4, device=packed.device)
    codes = (packed.unsqueeze(1) >> shifts.unsqueeze(-1) & 15).flatten(0, 1)
    points = (zeros.unsqueeze(-1) >> shifts & 15).flatten(-2).repeat_interleave(group, dim=0)
    scales = scales.repeat_interleave(group, dim=0)
    weight = codes * scales - points * scales if apart else (codes - points) * scales
    return x @ weight.to(x.dtype)


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


def bnb_4bit_linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    shape: tuple[int, int],
    absmax: torch.Tensor,
    blocksize: int,
    kind: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """As bnb_4bit_matmul, with the values of ``kind``, nf4 or fp4, in the dtype of x.

    A bias is added.  The maxima of the blocks may be quantized themselves:
    absmax_code[absmax_8bit[i]] * absmax[i // 256] + absmax_offset.
    """
    nf4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453]
    nf4 += [-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0]
    nf4 += [0.07958029955625534, 0.16093020141124725, 0.24611230194568634]
    nf4 += [0.33791524171829224]
    nf4 += [0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
    fp4 = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0]
    twelfths = torch.tensor([*fp4, *(-v for v in fp4)], device=x.device)
    values = torch.tensor(nf4, device=x.device) if kind == "nf4" else twelfths / 12.0
    if absmax_8bit is not None and absmax_code is not None:
        inner = absmax_code[absmax_8bit.flatten().long()]
        absmax = inner * absmax.repeat_interleave(256)[: len(inner)]
        absmax = absmax if absmax_offset is None else absmax + absmax_offset
    codes = packed.view(torch.uint8).flatten()
    indices = torch.stack((codes >> 4, codes & 15), dim=-1).flatten().long()
    indices = indices[: shape[0] * shape[1]]
    scales = absmax.repeat_interleave(blocksize)[: len(indices)]
    weight = (values.to(x.dtype)[indices] * scales).view(shape).to(x.dtype)
    return F.linear(x, weight, bias)
