"""Activations, most of them gated: ``input`` [..., 2d] holds two operands, the result is [..., d].

Unless a function says otherwise the gate is the first half.  The families differ in rounding for
16-bit inputs: vLLM rounds the activated gate before the product, as eager PyTorch does; flashinfer
and sgl_kernel multiply in float32 and round once (``_fp32``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_and_mul(input: torch.Tensor) -> torch.Tensor:
    """silu(first half) * second half: SwiGLU.  The activation is rounded before the product."""
    gate, up = input.chunk(2, dim=-1)
    return F.silu(gate) * up


def silu_and_mul_fp32(input: torch.Tensor) -> torch.Tensor:
    """silu(first half) * second half: SwiGLU.  In float32, rounded once."""
    gate, up = input.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(input.dtype)


def silu_and_mul_up_to(input: torch.Tensor, limit: float = 0.0) -> torch.Tensor:
    """SwiGLU in float32, rounded once.

    Where limit is not 0, the first half is clamped to it, the second half to within +-limit.
    """
    gate, up = input.chunk(2, dim=-1)
    if limit != 0.0:
        gate, up = gate.clamp(max=limit), up.float().clamp(-limit, limit)
    return (F.silu(gate.float()) * up.float()).to(input.dtype)


def silu_and_mul_backward(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """The gradient of SwiGLU, in float32, rounded once.

    The activation is computed twice, so that it is not held while the halves are put together.
    """
    gate, up = input.float().chunk(2, dim=-1)
    one = gate.new_ones(1)
    grad_gate = grad * up * torch.lerp(F.silu(gate), one, torch.sigmoid(gate))
    return torch.cat((grad_gate, grad * F.silu(gate)), dim=-1).to(input.dtype)


def mul_and_silu(input: torch.Tensor) -> torch.Tensor:
    """first half * silu(second half).  The activation is rounded before the product."""
    up, gate = input.chunk(2, dim=-1)
    return up * F.silu(gate)


def gelu_and_mul(input: torch.Tensor) -> torch.Tensor:
    """gelu(first half) * second half: GeGLU.  The activation is rounded before the product."""
    gate, up = input.chunk(2, dim=-1)
    return F.gelu(gate) * up


def gelu_and_mul_fp32(input: torch.Tensor) -> torch.Tensor:
    """gelu(first half) * second half: GeGLU.  In float32, rounded once."""
    gate, up = input.float().chunk(2, dim=-1)
    return (F.gelu(gate) * up).to(input.dtype)


def gelu_and_mul_backward(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """The gradient of GeGLU, in float32, rounded once."""
    gate, up = input.float().chunk(2, dim=-1)
    grad_gate = torch.ops.aten.gelu_backward(grad * up, gate)
    return torch.cat((grad_gate, grad * F.gelu(gate)), dim=-1).to(input.dtype)


def gelu_tanh_and_mul(input: torch.Tensor) -> torch.Tensor:
    """gelu(first half) * second half by the tanh approximation, rounded before the product."""
    gate, up = input.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def gelu_tanh_and_mul_fp32(input: torch.Tensor) -> torch.Tensor:
    """gelu(first half) * second half by the tanh approximation.  In float32, rounded once."""
    gate, up = input.float().chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh") * up).to(input.dtype)


def gelu_tanh_and_mul_backward(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """The gradient of GeGLU by the tanh approximation, in float32, rounded once."""
    gate, up = input.float().chunk(2, dim=-1)
    grad_gate = torch.ops.aten.gelu_backward(grad * up, gate, approximate="tanh")
    grad_up = grad * F.gelu(gate, approximate="tanh")
    return torch.cat((grad_gate, grad_up), dim=-1).to(input.dtype)


def fatrelu_and_mul(input: torch.Tensor, threshold: float) -> torch.Tensor:
    """The first half where it exceeds the threshold, else 0, times the second half."""
    gate, up = input.chunk(2, dim=-1)
    return F.threshold(gate, threshold, 0.0) * up


def swigluoai_and_mul(input: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """gpt-oss's clamped SwiGLU of interleaved operands, in float32, rounded once.

    gate = even features, at most limit; up = odd features, within +-limit;
    (up + 1) * gate * sigmoid(alpha * gate).
    """
    gate = input[..., ::2].float().clamp(max=limit)
    up = input[..., 1::2].float().clamp(-limit, limit)
    return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(input.dtype)


def swigluoai_halves_and_mul(input: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """As swigluoai_and_mul, of two halves: gate = first half, up = second half."""
    gate, up = input.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(input.dtype)


def clamped_swiglu(
    input: torch.Tensor, limit: float, alpha: float = 1.0, beta: float = 0.0
) -> torch.Tensor:
    """Clamped SwiGLU of two halves.  The activation is rounded before the product.

    gate at most limit, up within +-limit; gate * sigmoid(alpha * gate) * (up + beta), whose factors
    are float32.
    """
    gate, up = input.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit).float(), up.float().clamp(-limit, limit)
    gate = (gate * torch.sigmoid(alpha * gate)).to(input.dtype)
    return (gate * (up + beta)).to(input.dtype)


def swiglustep_and_mul(input: torch.Tensor, limit: float) -> torch.Tensor:
    """SwiGLU clamped after the activation, in float32, rounded once (Step-3).

    silu(first half) at most limit, times the second half within +-limit.
    """
    gate, up = input.float().chunk(2, dim=-1)
    return (F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)).to(input.dtype)


def situ_and_mul(input: torch.Tensor, beta: float, linear_beta: float) -> torch.Tensor:
    """Softly bounded SwiGLU in float32, rounded once.

    gate = beta * tanh(a / beta) * sigmoid(a); the other half is bounded by linear_beta likewise, if
    that is positive.
    """
    gate, up = input.float().chunk(2, dim=-1)
    gate = beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
    up = linear_beta * torch.tanh(up / linear_beta) if linear_beta > 0 else up
    return (gate * up).to(input.dtype)


def gelu_and_mul_sparse(
    input: torch.Tensor, std_multiplier: float, approximate: str = "none"
) -> torch.Tensor:
    """gelu of what the first half has above mean + std_multiplier * std, times the second half.

    Gemma 3n's sparse activation; mean and deviation (biased) are over the last dimension.
    """
    gate, up = input.chunk(2, dim=-1)
    std, mean = torch.std_mean(gate, dim=-1, keepdim=True, correction=0)
    return F.gelu(F.relu(gate - (mean + std * std_multiplier)), approximate=approximate) * up


def gelu_tanh(input: torch.Tensor) -> torch.Tensor:
    """gelu by the tanh approximation, in float32, rounded once."""
    return F.gelu(input, approximate="tanh")


def residual_add_bias(
    hidden_state: torch.Tensor,
    residual: torch.Tensor,
    attn_output: torch.Tensor,
    attn_bias: torch.Tensor,
    final_bias: torch.Tensor,
    mp_size: int,
    mlp_after_attn: bool,
    add_attn_bias: bool,
    pre_attn_norm: bool,
) -> torch.Tensor:
    """The sum that ends a block of DeepSpeed's, each step rounded to the dtype of the operands.

    What each of ``mp_size`` devices holds alike is divided by their number, since they are summed
    afterwards.  Without a norm ahead of the attention, its output is left out of the sum.
    """
    if mlp_after_attn and pre_attn_norm:
        total = hidden_state + (residual + final_bias + attn_output + attn_bias) / mp_size
    elif mlp_after_attn:
        total = hidden_state + residual + final_bias
    else:
        total = hidden_state + attn_output + (residual + final_bias) / mp_size
        total = total + attn_bias / mp_size if add_attn_bias else total
    return total


def gelu_new(input: torch.Tensor) -> torch.Tensor:
    """gelu by the tanh approximation, each step rounded to the dtype of the input.

    vLLM's ``gelu_new``, like Hugging Face's; half of the results differ in the last place from
    those that are rounded once.
    """
    t = torch.tanh(0.79788456 * (input + 0.044715 * (input * input * input)))
    return 0.5 * input * (1.0 + t)


def gelu_fast(input: torch.Tensor) -> torch.Tensor:
    """gelu by the tanh approximation, factored, each step rounded to the dtype of the input.

    vLLM's ``gelu_fast``, like Hugging Face's: x * (1 + 0.044715 * x * x) within the tanh.
    """
    t = torch.tanh(0.79788456 * input * (1.0 + 0.044715 * input * input))
    return 0.5 * input * (1.0 + t)


def gelu_quick(input: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 * x), in float32, rounded once."""
    x = input.float()
    return (x * torch.sigmoid(1.702 * x)).to(input.dtype)


def relu_squared(input: torch.Tensor) -> torch.Tensor:
    """relu(x) squared.  The square of a rounded number rounds once, so float32 adds nothing."""
    return F.relu(input).square()


def soft_cap(input: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap): logits bounded softly by +-cap, in float32, rounded once."""
    return (cap * torch.tanh(input.float() / cap)).to(input.dtype)


def scaled_soft_cap(input: torch.Tensor, multiplier: float, cap: float) -> torch.Tensor:
    """cap * tanh(multiplier * x / cap), in float32 and left there."""
    return cap * torch.tanh(input.float() * multiplier / cap)


def sigmoid_gated(input: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """input [T, D] times sigmoid(gate), in float32, rounded once.

    The gate is a number for each row, or for each feature: [T, 1], [T, D] or [T, heads, D / heads].
    """
    factor = torch.sigmoid(gate.float()).reshape(*input.shape[:-1], -1)
    return (input.float() * factor).to(input.dtype)


def gated_by_projection(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    input: torch.Tensor,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """input [T, D] times sigmoid(hidden . weight), in float32. Plus a residual, rounded once.

    The gate of an expert that all tokens share.
    """
    gate = torch.sigmoid(hidden.float() @ weight.float()).unsqueeze(-1)
    total = gate * input.float()
    total = total if residual is None else total + residual.float()
    return total.to(input.dtype)
