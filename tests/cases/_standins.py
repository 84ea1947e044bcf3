"""CPU stand-ins for inference packages (vllm, sgl_kernel, flashinfer, flash_attn, xformers, ...).

Written from scratch.  Only the *autograd behaviour* of the real package is imitated:
  * raw C++/CUDA ops registered with TORCH_LIBRARY and no Autograd key  -> torch.library ops with a
    CPU impl only (functional ones get the WarnNotImplemented node, `-> ()` ones are silent);
  * raw triton / pybind launches                                        -> plain Python under no_grad;
  * python custom_op without register_autograd                          -> torch.library.custom_op.
Importing this module puts fake modules in sys.modules so that `from vllm import _custom_ops as ops`
etc. work unchanged in the case files.
"""

import sys
import types

import torch
import torch.nn.functional as F

_LIBS = []


def _raw(fn):
    """Run fn the way a C++ kernel runs: below autograd, nothing is recorded."""

    def bare(t):  # no version bump either: a kernel writes through data_ptr()
        return t.data if isinstance(t, torch.Tensor) else t

    def inner(*a, **k):
        with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
            return fn(*map(bare, a), **{n: bare(v) for n, v in k.items()})

    return inner


class TritonKernel:
    """kernel[grid](...) launch syntax; the body writes into the tensors it is handed."""

    def __init__(self, body):
        self.body = _raw(body)

    def __getitem__(self, grid):
        return self.body


def _lib(ns, defs):
    lib = torch.library.Library(ns, "FRAGMENT")
    for schema, fn in defs:
        name = schema.split("(")[0]
        lib.define(schema)
        lib.impl(name, _raw(fn), "CPU")
    _LIBS.append(lib)


def _mod(name, **attrs):
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        full = ".".join(parts[:i])
        if full not in sys.modules:
            m = types.ModuleType(full)
            m.__path__ = []
            sys.modules[full] = m
            if i > 1:
                setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], m)
    for k, v in attrs.items():
        setattr(sys.modules[name], k, v)


# ---- reference math -------------------------------------------------------------------------
def _rms(x, w, eps):
    v = x.float().pow(2).mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(v + eps)).to(x.dtype) * w


def _rope_neox(x, cos, sin):  # x: [..., d], cos/sin broadcastable [..., d/2]
    x1, x2 = x.chunk(2, -1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)


def _silu_mul(x):
    g, u = x.chunk(2, -1)
    return F.silu(g) * u


# ---- vllm: torch.ops._C.* -------------------------------------------------------------------
def _c_rms(result, input, weight, epsilon):
    result.copy_(_rms(input, weight, epsilon))


def _c_fused_add(input, residual, weight, epsilon):
    residual.add_(input)
    input.copy_(_rms(residual, weight, epsilon))


def _c_rope(positions, query, key, head_size, cos_sin_cache, is_neox):
    cos, sin = cos_sin_cache[positions].chunk(2, -1)
    for t in (query, key):
        v = t.view(t.shape[0], -1, head_size)
        v.copy_(_rope_neox(v, cos[:, None], sin[:, None]))


def _c_silu(result, input):
    result.copy_(_silu_mul(input))


_lib(
    "_C",
    [
        ("rms_norm(Tensor! result, Tensor input, Tensor weight, float epsilon) -> ()", _c_rms),
        (
            "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor weight, float epsilon) -> ()",
            _c_fused_add,
        ),
        (
            "rotary_embedding(Tensor positions, Tensor! query, Tensor! key, int head_size,"
            " Tensor cos_sin_cache, bool is_neox) -> ()",
            _c_rope,
        ),
        ("silu_and_mul(Tensor! result, Tensor input) -> ()", _c_silu),
    ],
)
_mod(
    "vllm._custom_ops",
    rms_norm=lambda out, input, weight, epsilon: torch.ops._C.rms_norm(out, input, weight, epsilon),
    fused_add_rms_norm=lambda input, residual, weight, epsilon: torch.ops._C.fused_add_rms_norm(
        input, residual, weight, epsilon
    ),
    rotary_embedding=lambda positions, query, key, head_size, cache, is_neox: (
        torch.ops._C.rotary_embedding(positions, query, key, head_size, cache, is_neox)
    ),
    silu_and_mul=lambda out, x: torch.ops._C.silu_and_mul(out, x),
)

# ---- sgl_kernel: functional TORCH_LIBRARY ops ------------------------------------------------
_lib(
    "sgl_kernel",
    [
        (
            "rmsnorm_fn(Tensor input, Tensor weight, float eps) -> Tensor",
            lambda i, w, e: _rms(i, w, e),
        ),
        ("silu_and_mul_fn(Tensor input) -> Tensor", _silu_mul),
    ],
)
_mod(
    "sgl_kernel",
    rmsnorm=lambda input, weight, eps=1e-6: torch.ops.sgl_kernel.rmsnorm_fn(input, weight, eps),
    silu_and_mul=lambda input: torch.ops.sgl_kernel.silu_and_mul_fn(input),
)


# ---- flashinfer: JIT launches into a fresh buffer, invisible to autograd ---------------------
@_raw
def _fi_rmsnorm(input, weight, eps=1e-6):
    return _rms(input, weight, eps)


@_raw
def _fi_rope(q, k, cos, sin):
    return _rope_neox(q, cos, sin), _rope_neox(k, cos, sin)


@_raw
def _fi_softmax(logits):
    return torch.softmax(logits, -1)


_mod("flashinfer.norm", rmsnorm=_fi_rmsnorm)
_mod("flashinfer.rope", apply_rope=_fi_rope)
_mod("flashinfer.sampling", softmax=_fi_softmax)


# ---- flash_attn ------------------------------------------------------------------------------
@_raw
def _fa_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=0, causal=True):
    t = q.shape[1]
    k_cache[:, cache_seqlens : cache_seqlens + t] = k
    v_cache[:, cache_seqlens : cache_seqlens + t] = v
    kk, vv = (c[:, : cache_seqlens + t].transpose(1, 2) for c in (k_cache, v_cache))
    return F.scaled_dot_product_attention(q.transpose(1, 2), kk, vv, is_causal=causal).transpose(
        1, 2
    )


_mod("flash_attn", flash_attn_with_kvcache=_fa_kvcache)


# ---- xformers.ops.rms_norm: explicit guard ---------------------------------------------------
def _xf_rms(x, weight, eps=1e-6):
    if torch.is_grad_enabled() and (
        x.requires_grad or (weight is not None and weight.requires_grad)
    ):
        raise ValueError("Gradients not supported.")
    return _rms(x, weight, eps)


_mod("xformers.ops", rms_norm=_xf_rms)


# ---- mamba: triton decode step ---------------------------------------------------------------
@_raw
def _ssu(state, x, dt, A, B, C, D=None):
    dA = torch.exp(dt[..., None] * A)
    state.copy_(state * dA + (dt * x)[..., None] * B[:, None])
    y = torch.einsum("bdn,bn->bd", state, C)
    return y if D is None else y + x * D


_mod("mamba_ssm.ops.triton.selective_state_update", selective_state_update=_ssu)


# ---- quantised matmuls -----------------------------------------------------------------------
@_raw
def _gptq_gemm(x, qweight, scales):
    return x @ (qweight.to(x.dtype) * scales).t()


_mod("exllamav2_kernels", gemm_half_q_half=_gptq_gemm)


# ---- triton-style raw kernels ----------------------------------------------------------------
def _ln_body(x, w, b, out, eps):
    out.copy_(F.layer_norm(x, (x.shape[-1],), w, b, eps))


def _rms_body(x, w, out, eps):
    out.copy_(_rms(x, w, eps))


_mod(
    "fused_kernels",
    layer_norm_fwd_kernel=TritonKernel(_ln_body),
    rms_norm_fwd_kernel=TritonKernel(_rms_body),
)
