"""RMSNorm and LayerNorm, alone and fused with the residual addition.

Shapes: ``x`` and ``residual`` are [..., H] and of one dtype, ``weight`` and ``bias`` are [H].
Statistics are float32 throughout; the variants differ in where they round to the dtype of ``x``,
which matters for 16-bit inputs only.  Two of PyTorch's own ops carry most of them:
``F.rms_norm`` computes in float32, weight included, and rounds once (since torch 2.8; before, it
rounded ahead of the weight), ``F.layer_norm`` likewise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMSNorm in float32, the weight included, rounded once.

    The order of flashinfer, sgl_kernel, lightllm, lmdeploy, xformers and of vLLM's newest kernels.
    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gradients of RMSNorm for x and weight, in float32, rounded once.

    With n = x / rms(x) and g = grad * weight: (g - n * mean(g * n)) / rms(x), and grad * n summed
    over the rows.
    """
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    normed, grad = x.float() * scale, grad.float()
    grad_normed = grad if weight is None else grad * weight.float()
    grad_x = (grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True)) * scale
    grad_weight = (
        None if weight is None else (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
    )
    return grad_x.to(x.dtype), grad_weight


def rms_norm_llama(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float32, rounded before the weight multiplies.

    The order of Hugging Face's ``LlamaRMSNorm`` and of vLLM up to 0.19 and in 0.23.0.
    """
    return F.rms_norm(x, x.shape[-1:], None, eps) * weight


def rms_norm_weight_dtype(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, variance_size: int | None = None
) -> torch.Tensor:
    """RMSNorm in float32, rounded to the weight's dtype before the weight multiplies.

    The statistics are those of the first ``variance_size`` features, of all where it is None.  The
    order of ``vllm.ir.ops.rms_norm``; it is :func:`rms_norm_llama` where ``weight`` and ``x`` share
    their dtype.
    """
    x_fp32 = x.float()
    if variance_size is None:
        normed = F.rms_norm(x_fp32, x.shape[-1:], None, eps)
    else:
        part = x_fp32[..., :variance_size]
        normed = x_fp32 * torch.rsqrt(part.square().mean(-1, keepdim=True) + eps)
    return (normed if weight is None else normed.to(weight.dtype) * weight).to(x.dtype)


def rms_norm_clamped(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """RMSNorm in float32 of values held within the range of float16, rounded once to ``out_dtype``.

    exllamav2's order: an overflown activation counts as the largest float16, not as infinity.
    """
    x_fp32 = x.float().clamp(-65504.0, 65504.0)
    return F.rms_norm(x_fp32, x.shape[-1:], weight.float(), eps).to(out_dtype)


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float32 scaled by 1 + weight, rounded once (Gemma)."""
    return F.rms_norm(x.float(), x.shape[-1:], 1.0 + weight.float(), eps).to(x.dtype)


def shifted_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, shift: float, scaled: bool
) -> torch.Tensor:
    """RMSNorm in float32 by weight + shift, or by no weight at all, rounded once (Gemma 4)."""
    scale = weight.float() + shift if scaled else None
    return F.rms_norm(x.float(), x.shape[-1:], scale, eps).to(x.dtype)


def gemma_rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of Gemma's RMSNorm for x and weight, in float32, rounded once.

    As for RMSNorm with 1 + weight.
    """
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    normed, grad = x.float() * scale, grad.float()
    grad_normed = grad * (1.0 + weight.float())
    grad_x = (grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True)) * scale
    grad_weight = (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
    return grad_x.to(x.dtype), grad_weight


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, rounded, and RMSNorm the sum; returns (normed, sum).

    vLLM's and lmdeploy's order: the statistics are those of the rounded sum.
    """
    residual = x + residual
    return F.rms_norm(residual, residual.shape[-1:], weight, eps), residual


def fused_add_rms_norm_backward(
    grad_normed: torch.Tensor,
    grad_total: torch.Tensor,
    total: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The gradients of RMSNorm of a sum for x, residual and weight, in float32, rounded once.

    Both summands have that of the sum, which is wanted beside its norm: grad_total and, as for
    RMSNorm, that of the norm.
    """
    scale = torch.rsqrt(total.float().square().mean(-1, keepdim=True) + eps)
    normed, grad = total.float() * scale, grad_normed.float()
    grad_normed = grad if weight is None else grad * weight.float()
    grad_sum = (grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True)) * scale
    grad_sum = (grad_sum + grad_total).to(total.dtype)
    grad_weight = (
        None if weight is None else (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
    )
    return grad_sum, grad_sum, grad_weight


def fused_add_rms_norm_llama(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, rounded, and RMSNorm the sum, rounded before the weight multiplies.

    Returns (normed, sum).  vLLM's order from 0.4.1 up to 0.19 and in 0.23.0.
    """
    residual = x + residual
    return F.rms_norm(residual, residual.shape[-1:], None, eps) * weight, residual


def fused_add_rms_norm_llama_unrounded(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm the rounded sum by the statistics of the unrounded one.

    Rounded before the weight multiplies.  Returns (normed, sum).  vLLM's order before 0.4.1.
    """
    total = x.float() + residual.float()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    residual = total.to(residual.dtype)
    return (residual.float() * scale).to(x.dtype) * weight, residual


def dual_residual_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm x, rounded, add it to the residual, rounded, and RMSNorm the sum (Grok-1).

    Returns (normed, sum): the order of SGLang's ``fused_dual_residual_rmsnorm``.
    """
    residual = residual + F.rms_norm(x, x.shape[-1:], weight1, eps)
    return F.rms_norm(residual, residual.shape[-1:], weight2, eps), residual


def fused_add_rms_norm_fp32(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual in float32 and RMSNorm the unrounded sum; returns (normed, sum).

    The order of flashinfer, sgl_kernel and flash-attn's layer_norm extension.
    """
    total = x.float() + residual.float()
    normed = F.rms_norm(total, total.shape[-1:], weight.float(), eps)
    return normed.to(x.dtype), total.to(residual.dtype)


def fused_add_add_rms_norm(
    x: torch.Tensor, other: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add other, rounded, then as fused_add_rms_norm_fp32; returns (normed, sum)."""
    total = (x + other).float() + residual.float()
    normed = F.rms_norm(total, total.shape[-1:], weight.float(), eps)
    return normed.to(x.dtype), total.to(residual.dtype)


def fused_add_rms_norm_weight_dtype(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual in float32, RMSNorm, round to the weight's dtype, multiply by the weight.

    Returns (normed, sum), both in the dtype of x: the order of ``vllm.ir.ops.fused_add_rms_norm``.
    Statistics as in :func:`rms_norm_weight_dtype`.
    """
    total = x.float() + residual.float()
    if variance_size is None:
        normed = F.rms_norm(total, total.shape[-1:], None, eps)
    else:
        part = total[..., :variance_size]
        normed = total * torch.rsqrt(part.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed.to(weight.dtype) * weight
    return normed.to(x.dtype), total.to(x.dtype)


def fused_add_rms_norm_xformers(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add y; RMSNorm the rounded sum by the statistics of the unrounded one.

    Returns (normed, sum).  The order of ``xformers.ops.rms_norm_add``.
    """
    total = x.float() + y.float()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    x = total.to(x.dtype)
    return (x.float() * scale * weight.float()).to(x.dtype), x


def gemma_fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual in float32 and RMSNorm the unrounded sum by 1 + weight (Gemma).

    Returns (normed, sum).  The order of flashinfer and sgl_kernel.
    """
    total = x.float() + residual.float()
    normed = F.rms_norm(total, total.shape[-1:], 1.0 + weight.float(), eps)
    return normed.to(x.dtype), total.to(residual.dtype)


def gemma_fused_add_rms_norm_backward(
    grad_normed: torch.Tensor,
    grad_total: torch.Tensor,
    total: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of Gemma's RMSNorm of a sum for x, residual and weight.

    In float32, rounded once; as for RMSNorm of a sum with 1 + weight.
    """
    scale = torch.rsqrt(total.float().square().mean(-1, keepdim=True) + eps)
    normed, grad = total.float() * scale, grad_normed.float()
    grad_normed = grad * (1.0 + weight.float())
    grad_sum = (grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True)) * scale
    grad_sum = (grad_sum + grad_total).to(total.dtype)
    grad_weight = (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
    return grad_sum, grad_sum, grad_weight


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """LayerNorm over the last dimension, in float32, rounded once."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The gradients of LayerNorm for x, weight and bias, in float32, rounded once.

    With n = (x - mean(x)) / std(x) and g = grad * weight: (g - mean(g) - n * mean(g * n)) / std(x),
    and grad * n and grad summed over the rows.
    """
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    normed, grad = (x.float() - mean) * scale, grad.float()
    grad_normed = grad if weight is None else grad * weight.float()
    grad_x = grad_normed - grad_normed.mean(-1, keepdim=True)
    grad_x = grad_x - normed * (grad_normed * normed).mean(-1, keepdim=True)
    grad_weight = (
        None if weight is None else (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
    )
    grad_bias = None if bias is None else grad.sum_to_size(bias.shape).to(bias.dtype)
    return (grad_x * scale).to(x.dtype), grad_weight, grad_bias


def layer_norm_fp32_weight(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """LayerNorm over the last dimension whose weight and bias may be of another dtype than x."""
    return F.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), eps).to(x.dtype)


def fused_add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, rounded, and LayerNorm the sum; returns (normed, sum)."""
    residual = x + residual
    return F.layer_norm(residual, residual.shape[-1:], weight, bias, eps), residual


def layer_norm_of_sum(
    x: torch.Tensor,
    x_bias: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """LayerNorm of x + x_bias + residual, added in float32, rounded once; returns it alone.

    DeepSpeed's Triton kernel stores the sum: the mean is that of the exact sum, the
    deviations from it are those of the rounded one.
    """
    total = x.float() if x_bias is None else x.float() + x_bias
    total = total + residual.float()
    centred = total.to(x.dtype).float() - total.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (centred * scale * weight.float() + bias.float()).to(x.dtype)


def head_layer_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """LayerNorm over the features of each head, with a weight per head.

    ``x`` is [..., heads, D], ``weight`` [heads, D]; rounded once (the query and key norms of Cohere
    and Chameleon).
    """
    normed = F.layer_norm(x.float(), x.shape[-1:], None, None, eps)
    return (normed * weight.float()).to(x.dtype)


def head_layer_norm_clamped(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """As head_layer_norm, of values held within the range of float16, rounded ahead of the bias.

    ``bias`` is [heads, D]; exllamav2 stands a tensor on the meta device for none.
    """
    x_fp32 = x.float().clamp(-65504.0, 65504.0)
    normed = F.layer_norm(x_fp32, x.shape[-1:], None, None, eps)
    normed = (normed * weight.float()).to(x.dtype)
    return normed if bias is None or bias.is_meta else normed + bias


def l2_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale x to unit length over the last dimension, in float32, rounded once.

    eps is added to the sum of squares: x * rsqrt(sum(x**2) + eps).
    """
    x_fp32 = x.float()
    return (x_fp32 * torch.rsqrt(x_fp32.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def gated_rms_norm(
    x: torch.Tensor, z: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """RMSNorm x, then multiply by silu(z) if there is a gate z, in float32, rounded once."""
    normed = F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps)
    return (normed if z is None else normed * F.silu(z.float())).to(x.dtype)


def rms_norm_silu(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """silu of the RMSNorm of x, in float32, rounded once."""
    return F.silu(F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps)).to(x.dtype)


def rms_norm_saturated(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float32, kept within the range of float16 and rounded once.

    The order of FasterTransformer's T5 kernel, which AutoAWQ took over.
    """
    normed = F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps)
    return normed.clamp(-65504.0, 65504.0).to(x.dtype)


def add_rms_norm_with_scale(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add the residual, rounded, and RMSNorm the sum; returns (normed, 1 / rms, sum).

    The results of ``torch_npu.npu_add_rms_norm``; the middle one is float32.
    """
    total = x + residual
    scale = torch.rsqrt(total.float().square().mean(-1, keepdim=True) + eps)
    return (total.float() * scale * weight.float()).to(x.dtype), scale, total


def gemma_rms_norm_with_scale(
    x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm in float32 scaled by 1 + weight; returns (normed, 1 / rms).

    The results of ``torch_npu.npu_gemma_rms_norm``; the second one is float32.
    """
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (x.float() * scale * (1.0 + weight.float())).to(x.dtype), scale


def rms_norm_maybe_add(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm in float32, the weight included, rounded once.

    A residual is added before, and the sum, rounded, returned as well.  lmdeploy's ``rms_norm``.
    """
    if residual is None:
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    residual = x + residual
    return F.rms_norm(residual, residual.shape[-1:], weight, eps), residual


def dropout_add_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual_in_fp32: bool,
    is_rms_norm: bool,
) -> tuple[torch.Tensor, torch.Tensor, None, None, None]:
    """LayerNorm or RMSNorm of x + residual, added in float32; returns (normed, sum, ...).

    flash-attention's ``dropout_add_ln_fwd`` without dropout.  The sum keeps the residual's dtype;
    without a residual it is x.  The kernel's dropout mask and statistics, which only its own
    backward needs, are None.
    """
    total = x.float() if residual is None else x.float() + residual.float()
    if is_rms_norm:
        normed = F.rms_norm(total, total.shape[-1:], weight.float(), eps)
    else:
        shift = None if bias is None else bias.float()
        normed = F.layer_norm(total, total.shape[-1:], weight.float(), shift, eps)
    if residual is not None:
        total = total.to(residual.dtype)
    elif not residual_in_fp32:
        total = x
    return normed.to(x.dtype), total, None, None, None


def quantize_through(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round codes to what a dtype can hold, in the forward pass only (straight through)."""
    rounded = codes.to(dtype) if dtype.is_floating_point else codes.round().to(dtype)
    return codes + (rounded.float() - codes).detach()


def rms_norm_fp8(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, eps: float
) -> torch.Tensor:
    """RMSNorm over a scale, rounded to float8 (e4m3), kept in the dtype of x.

    The rounding lets the gradient pass: a straight-through estimator.
    """
    normed = F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps)
    codes = (normed / scale).clamp(-448.0, 448.0)
    return quantize_through(codes, torch.float8_e4m3fn).to(x.dtype)


def fused_add_rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, rounded; rms_norm_fp8 of the sum.  Returns (codes, sum)."""
    residual = x + residual
    return rms_norm_fp8(residual, weight, scale, eps), residual


def fused_add_rms_norm_fp32_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual in float32; rms_norm_fp8 of the unrounded sum.  Returns (codes, sum).

    flashinfer's order.
    """
    total = x.float() + residual.float()
    codes = rms_norm_fp8(total, weight, scale, eps)
    return codes.to(x.dtype), total.to(residual.dtype)


def rms_norm_dynamic_quant(
    x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm, each row scaled to the range of a dtype of 8 bits and rounded to it.

    Returns (codes in the dtype of x, scales [..., 1] in float32).  The rounding lets the gradient
    pass: a straight-through estimator.
    """
    normed = F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps)
    limit = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    scale = (normed.abs().amax(-1, keepdim=True) / limit).clamp(min=1.0 / (limit * 512.0))
    return quantize_through(normed / scale, dtype).to(x.dtype), scale


def group_norm(
    x: torch.Tensor, groups: int, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """GroupNorm of x [B, C, ...], in float32, rounded once."""
    return F.group_norm(x, groups, weight, bias, eps)


def qk_rms_norm(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm of each head of q and k [..., D], in float32, rounded once.

    The scale is the weight, plus an ``offset`` (Gemma's is 1).
    """
    normed_q = F.rms_norm(q.float(), q.shape[-1:], q_weight.float() + offset, eps)
    normed_k = F.rms_norm(k.float(), k.shape[-1:], k_weight.float() + offset, eps)
    return normed_q.to(q.dtype), normed_k.to(k.dtype)


def gemma_norm_of_heads(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As qk_rms_norm, with Gemma's scale and a row for each head: [tokens * heads, head_dim]."""
    q, k = q.reshape(-1, head_dim), k.reshape(-1, head_dim)
    return qk_rms_norm(q, k, q_weight, k_weight, eps, 1.0)


def gemma_norm_of_gated_heads(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As gemma_norm_of_heads, where each head of q comes with its gate: (q, k, gate)."""
    q, gate = q_gate.reshape(-1, 2, head_dim).unbind(1)
    q, k = gemma_norm_of_heads(q, k, q_weight, k_weight, eps, head_dim)
    return q, k, gate.contiguous()


def joined_norms(
    embeds: torch.Tensor,
    hidden: torch.Tensor,
    embeds_weight: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """RMSNorm of token embeddings, then of hidden states, side by side, in float32, rounded once.

    With ``positions``, the embedding of position 0 counts as nothing.  What DeepSeek's layers for
    predicting further tokens begin with.
    """
    if positions is not None:
        embeds = embeds.masked_fill((positions == 0).unsqueeze(-1), 0.0)
    first = F.rms_norm(embeds.float(), embeds.shape[-1:], embeds_weight.float(), eps)
    second = F.rms_norm(hidden.float(), hidden.shape[-1:], hidden_weight.float(), eps)
    return torch.cat((first, second), dim=-1).to(hidden.dtype)
