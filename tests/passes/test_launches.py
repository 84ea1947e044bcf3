"""TRN104 with a fix: kernels that name and operands, and their source if it is there, give away."""

from __future__ import annotations

import pytest
from verbs import becomes, findings, fix, rules, stays

HEAD = "import torch\nimport torch.nn.functional as F\nfrom my_kernels import {}\n\n\n"


def rewritten(text: str) -> str:
    return fix(text, strategy="replace", unsafe=True)


def left_alone(text: str) -> None:
    """Reported, and not rewritten."""
    (finding,) = findings(text)
    assert finding.rule == "TRN104"
    assert not finding.fixes, finding.fixes["flag"].edits


def test_layer_norm_beside_the_kernel() -> None:
    becomes(
        HEAD.format("layer_norm_fwd_kernel")
        + """\
def norm(h, ln):
    out = torch.empty_like(h)
    layer_norm_fwd_kernel[(h.shape[0],)](h, ln.weight, ln.bias, out, ln.eps)
    return out
""",
        HEAD.format("layer_norm_fwd_kernel")
        + """\
def norm(h, ln):
    if torch.is_grad_enabled() and (
        h.requires_grad or ln.weight.requires_grad or ln.bias.requires_grad
    ):
        out = F.layer_norm(h, h.shape[-1:], ln.weight, ln.bias, ln.eps)
    else:
        out = torch.empty_like(h)
        layer_norm_fwd_kernel[(h.shape[0],)](h, ln.weight, ln.bias, out, ln.eps)
    return out
""",
        unsafe=True,
    )


MATMUL = """\
import torch
import triton


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, n):
    c = tl.dot(tl.load(a_ptr), tl.load(b_ptr))
    tl.store(c_ptr, c)


def matmul(a, b):
    c = torch.empty((a.shape[0], b.shape[1]), device=a.device{dtype})
    matmul_kernel[(8,)](a, b, c, a.shape[0])
    return c
"""


@pytest.mark.parametrize("dtype", ["int32", "long", "bool", "float8_e4m3fn"])
def test_no_gradient_passes_integers_or_codes(dtype: str) -> None:
    stays(MATMUL.format(dtype=f", dtype=torch.{dtype}"))


@pytest.mark.parametrize("dtype", ["", ", dtype=a.dtype", ", dtype=torch.bfloat16"])
def test_one_passes_all_others(dtype: str) -> None:
    assert rules(MATMUL.format(dtype=dtype)) == ["TRN104"]


def test_a_fix_names_what_to_look_at() -> None:
    (finding,) = findings(
        HEAD.format("rms_norm_kernel") + "def f(x, weight):\n    y = torch.empty_like(x)\n"
        "    rms_norm_kernel[(8,)](y, x, weight, 1e-6)\n    return y\n"
    )
    assert "`rms_norm_kernel` must compute an RMSNorm" in finding.fixes["flag"].look_at


@pytest.mark.parametrize(
    ("name", "launch", "value"),
    [
        # another order, strides, sizes, settings
        (
            "_rms_norm_fwd_kernel",
            "_rms_norm_fwd_kernel[(m,)](y, y.stride(0), x, x.stride(0), self.weight, n, self.eps, "
            "BLOCK_SIZE=1024, num_warps=4)",
            "F.rms_norm(x, x.shape[-1:], self.weight, self.eps)",
        ),
        (
            "rmsnorm_kernel",
            "rmsnorm_kernel[grid](x, y, gamma, x.numel() // n, n, eps=1e-6)",
            "F.rms_norm(x, x.shape[-1:], gamma, 1e-6)",
        ),
        (
            "layernorm_forward_kernel",
            "layernorm_forward_kernel[grid](x, self.norm.weight.data, y, self.norm.eps)",
            "F.layer_norm(x, x.shape[-1:], self.norm.weight, None, self.norm.eps)",
        ),
        ("softmax_kernel", "softmax_kernel[grid](x, y, m, n)", "torch.softmax(x, dim=-1)"),
        (
            "swiglu_fwd_kernel",
            "swiglu_fwd_kernel[grid](gate, x_up, y, n, BLOCK=1024)",
            "F.silu(gate) * x_up",
        ),
    ],
)
def test_roles_of_operands(name: str, launch: str, value: str) -> None:
    text = (
        HEAD.format(name)
        + f"""\
class Norm:
    def forward(self, x, gamma, gate, x_up, grid):
        m, n = x.shape
        y = torch.empty_like(x)
        {launch}
        return y
"""
    )
    assert f"        y = {value}\n" in rewritten(text), rewritten(text)


@pytest.mark.parametrize(
    ("name", "launch"),
    [
        ("fused_add_rms_norm_kernel", "(x, residual, weight, y, 1e-6)"),  # says more than a norm
        ("gated_rms_norm_kernel", "(x, weight, y, 1e-6)"),
        ("rms_norm_kernel", "(x, residual, weight, y, 1e-6)"),  # an operand too many
        ("rms_norm_kernel", "(x, weight, y)"),  # no eps
        ("rms_norm_kernel", "(x, weight, 1e-6)"),  # no output
        ("layer_norm_kernel", "(x, weight, weight2, y, z, 1e-6)"),
        ("group_norm_kernel", "(x, weight, bias, y, 1e-6)"),
        ("softmax_kernel", "(x, mask, y)"),
        ("swiglu_kernel", "(a, b, y)"),  # which one is activated?
        ("rotary_kernel", "(q, k, cos, sin, y)"),
        ("my_kernel", "(x, weight, y, 1e-6)"),
    ],
)
def test_what_is_not_sure_is_left_alone(name: str, launch: str) -> None:
    left_alone(
        HEAD.format(name)
        + f"""\
def norm(x, residual, weight, weight2, bias, mask, a, b, z, q, k, cos, sin):
    y = torch.empty_like(x)
    {name}[(8,)]{launch}
    return y
"""
    )


def test_statistics_that_nobody_reads_are_no_matter() -> None:
    text = (
        HEAD.format("layer_norm_fwd_kernel")
        + """\
def norm(x, weight, bias, eps):
    y = torch.empty_like(x)
    mean = torch.empty(x.shape[0], dtype=torch.float32)
    rstd = torch.empty(x.shape[0], dtype=torch.float32)
    layer_norm_fwd_kernel[(x.shape[0],)](x, weight, bias, y, mean, rstd, eps)
    return RESULT
"""
    )
    assert "y = F.layer_norm(x, x.shape[-1:], weight, bias, eps)" in rewritten(
        text.replace("RESULT", "y")
    )
    left_alone(text.replace("RESULT", "y, mean, rstd"))


def test_a_weight_that_may_be_none() -> None:
    text = fix(
        HEAD.format("rms_norm_kernel")
        + """\
def norm(x, weight=None, eps=1e-6):
    y = torch.empty_like(x)
    rms_norm_kernel[(8,)](x, weight, y, eps, HAS_WEIGHT=weight is not None)
    return y
""",
        unsafe=True,
    )
    assert "x.requires_grad or (weight is not None and weight.requires_grad)\n" in text


def test_attach_keeps_the_launch() -> None:
    text = fix(
        HEAD.format("rms_norm_kernel")
        + """\
def norm(x, weight, eps, n):
    grid = (x.shape[0],)
    y = torch.empty_like(x)
    rms_norm_kernel[grid](x, weight, y, n, eps, BLOCK=1024)
    return y
""",
        strategy="attach",
        unsafe=True,
    )
    assert "kernel(x, weight, out, n, eps, BLOCK=1024)" in text
    assert "y = RMSNormKernel.apply(rms_norm_kernel[grid], x, weight, n, eps)" in text


# -- with the kernel's source -----------------------------------------------------------------------

TRITON = """\
import torch
import triton
import triton.language as tl


@triton.jit
def {name}(X, Y, W, {b}stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride + cols, mask=cols < n, other=0.0).to(tl.float32)
{body}
    tl.store(Y + row * stride + cols, y, mask=cols < n)


def norm(x, weight, bias, eps):
    y = torch.empty_like(x)
    {name}[(x.shape[0],)](x, y, weight, {bias}x.stride(0), x.shape[1], eps, BLOCK=1024)
    return y
"""
RMS = """\
    rstd = 1 / tl.sqrt(tl.sum(x * x, axis=0) / n + eps)
    w = tl.load(W + cols, mask=cols < n)
    y = x * rstd * w"""
LAYER = """\
    mean = tl.sum(x, axis=0) / n
    x = tl.where(cols < n, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps)
    y = x * rstd * tl.load(W + cols, mask=cols < n) + tl.load(B + cols, mask=cols < n)"""
GEMMA = RMS.replace("rstd * w", "rstd * (1.0 + w)")


def triton(name: str, body: str, bias: bool = False) -> str:
    given = {"b": "B, ", "bias": "bias, "} if bias else {"b": "", "bias": ""}
    return TRITON.format(name=name, body=body, **given)


def test_source_that_agrees() -> None:
    assert "y = F.rms_norm(x, x.shape[-1:], weight, eps)" in rewritten(triton("_rms_norm_fwd", RMS))
    assert "y = F.layer_norm(x, x.shape[-1:], weight, bias, eps)" in rewritten(
        triton("_layer_norm_fwd", LAYER, bias=True)
    )


def test_source_that_does_not_agree() -> None:
    left_alone(triton("_layer_norm_fwd", RMS))
    left_alone(triton("_rms_norm_fwd", LAYER, bias=True))
    left_alone(triton("_rms_norm_fwd", GEMMA))
    left_alone(triton("_rms_norm_fwd", RMS.replace("rstd * w", "rstd * w + tl.rand(n, cols)")))


def test_source_that_writes_elsewhere() -> None:
    left_alone(triton("_rms_norm_fwd", RMS + "\n    tl.store(W + cols, w)"))


# -- functions of kernel libraries ------------------------------------------------------------------


def test_a_rope_whose_arguments_are_tables() -> None:
    text = """\
import torch
from flashinfer import apply_rope


def rotate(query, key, rot_cos, rot_sin):
    return apply_rope(query, key, rot_cos, rot_sin)
"""
    (finding,) = findings(text)
    assert finding.rule == "TRN103"
    assert "`rot_cos` is passed for 'indptr'" in finding.message
    assert "return rotate_by_tables(query, key, rot_cos, rot_sin)" in rewritten(text)


def test_a_rope_as_the_library_has_it() -> None:
    (finding,) = findings(
        "from flashinfer import apply_rope\n\n\ndef rotate(q, k, indptr, offsets):\n"
        "    return apply_rope(q, k, indptr, offsets)\n"
    )
    assert finding.rule == "TRN101"


# -- results that an equivalent does not give -------------------------------------------------------

FLASH = "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"


def biased(body: str) -> str:
    return (
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
        "class Attention(nn.Module):\n    def __init__(self, n):\n"
        "        self.position = nn.Parameter(torch.zeros(n, n))\n"
        '        self.register_buffer("slopes", torch.zeros(n, n))\n'
        "        self.table = nn.Embedding(8, 4)\n\n"
        "    def forward(self, q, k, v, mask, bias, index):\n" + body
    )


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (
            f"        y, _ = {FLASH}(q, k, v, attn_mask=self.position)\n        return y\n",
            "        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.position)\n",
        ),
        (
            f"        return {FLASH}(q, k, v, attn_mask=mask + self.position, scale=0.5)[0]\n",
            "        return F.scaled_dot_product_attention("
            "q, k, v, attn_mask=mask + self.position, scale=0.5)\n",
        ),
        (
            f"        y = {FLASH}(q, k, v, attn_mask=bias)\n        return y[0]\n",
            "        y = (F.scaled_dot_product_attention(q, k, v, attn_mask=bias), None)\n",
        ),
        (
            "        rel = self.table(index).permute(2, 0, 1)\n"
            f"        y, lse = {FLASH}(q, k, v, attn_mask=rel[None])\n        return y\n",
            "        y = F.scaled_dot_product_attention(q, k, v, attn_mask=rel[None])\n",
        ),
    ],
)
def test_a_bias_that_is_trained(body: str, after: str) -> None:
    (finding,) = findings(biased(body))
    assert "has no derivative for" in finding.message
    assert "".join(after.split()) in "".join(rewritten(biased(body)).split())


@pytest.mark.parametrize(
    "arguments",
    [
        "q, k, v",
        "q, k, v, is_causal=True",
        "q, k, v, attn_mask=None",
        "q, k, v, attn_mask=mask",
        "q, k, v, attn_mask=self.slopes",
    ],
)
def test_queries_keys_and_values_have_a_gradient(arguments: str) -> None:
    assert not findings(biased(f"        y, _ = {FLASH}({arguments})\n        return y\n"))


def test_a_log_sum_exp_that_is_read() -> None:
    text = biased(
        f"        y, lse = {FLASH}(q, k, v, attn_mask=self.position)\n        return y * lse\n"
    )
    (finding,) = findings(text)
    assert "its equivalent does not give `lse`" in finding.message
    assert set(finding.fixes) == {"attach"}


def test_one_name_for_several_results() -> None:
    text = fix(
        "import torch\nimport flash_attn_2_cuda\n\n\ndef f(q, k, v, s):\n"
        "    out = flash_attn_2_cuda.fwd("
        "q, k, v, None, None, 0.0, s, False, -1, -1, 0.0, False, None)\n"
        "    return out[0]\n",
        strategy="replace",
    )
    assert "out = (out, None, None, None)" in text


# -- scaled products --------------------------------------------------------------------------------


def test_a_scaled_product_whose_codes_are_buffers() -> None:
    text = """\
import torch
from torch import nn


class Linear(nn.Module):
    def __init__(self, codes, scale):
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)

    def forward(self, x, scale, bias: torch.Tensor):
        return torch._scaled_mm(x, self.codes.t(), scale, self.scale, bias, OUT)
"""
    (finding,) = findings(text.replace("OUT", "out_dtype=torch.bfloat16"))
    assert "no gradient reaches `x` and `bias`." in finding.message
    assert "x.requires_grad or bias.requires_grad" in finding.fixes["flag"].edits[0].text
    assert "rounded to fp8" in finding.fixes["flag"].look_at
    assert ".to(torch.bfloat16)" in rewritten(text.replace("OUT", "out_dtype=torch.bfloat16"))
    assert ".to(x.dtype)" in rewritten(text.replace(", OUT", ""))
    (finding,) = findings(text.replace("OUT", "scale_result=scale"))
    assert "`scale_result` is passed" in finding.message


WRITES = """\
import triton
import triton.language as tl


@triton.jit
def step_kernel(x_ptr, y_ptr, z_ptr):
    tl.store(y_ptr, tl.load(x_ptr))
    tl.store(z_ptr, tl.load(x_ptr))


def step(x, meta, y, {parameters}):
    step_kernel[(8,)](x, {written})
    return y
"""


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("meta.cu_seqlens_q, slot_ids[1:]", None),
        ("y, slot_ids", "`y`, `slot_ids` keep their old grad_fn if they have one"),
        ("meta.scale, slot_ids", "`meta.scale`, `slot_ids` keep"),
        ("*slot_ids, meta.page_size", "is launched without a backward"),
    ],
)
def test_a_kernel_that_keeps_books(written: str, told: str | None) -> None:
    text = WRITES.format(parameters="slot_ids", written=written)
    for name in ("clear_slots", "seeded_uniform", "multinomial_sampling", "dequant_4bit"):
        assert not findings(text.replace("step", name))
    messages = [finding.message for finding in findings(text)]
    assert (told is None and not messages) or (told is not None and told in messages[0])


MADE = """\
import torch
import triton
import triton.language as tl


@triton.jit
def scan_kernel(x_ptr, y_ptr, z_ptr):
    tl.store(y_ptr, tl.load(x_ptr))
    tl.store(z_ptr, tl.load(x_ptr))


class Book:
    def __init__(self):
        self.total = torch.empty((), dtype=torch.{})

    def scan(self, x, sorted_idx, out=None):
        pair = {}
        first, last = pair[0], pair[1]
        scan_kernel[(8,)](x, {})
        return pair
"""


@pytest.mark.parametrize(
    "written",
    ["first, last", "self.total, last", "pair if out is None else pair[1:], first.view(-1)"],
)
@pytest.mark.parametrize(
    ("dtype", "made", "told"),
    [
        ("int64", "sorted_idx.new_empty(2, 8)", False),
        ("int32", "torch.zeros_like(sorted_idx)", False),
        ("int32", "torch.empty(2, 8, dtype=torch.int32)", False),
        ("int32", "sorted_idx.new_empty(2, 8, dtype=x.dtype)", True),
        ("float32", "torch.empty_like(x)", True),
    ],
)
def test_parts_of_buffers_of_integers(written: str, dtype: str, made: str, told: bool) -> None:
    assert rules(MADE.format(dtype, made, written)) == ["TRN104"] * told


# -- beside a backward ----------------------------------------------------------------------------

DIFFERENTIABLE = """\
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, w_ptr, y_ptr, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y_ptr + i, tl.load(x_ptr + i) * tl.load(w_ptr + i))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        y = torch.empty_like(x)
        ctx.save_for_backward(x, w)
        scale_kernel[(1,)](x, w, y, x.numel())
        return y

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


def scale(x, w):
    y = torch.empty_like(x)
    scale_kernel[(1,)](x, w, y, x.numel())
    return y
"""


def test_a_launch_beside_the_function_that_has_its_backward() -> None:
    (found,) = findings(DIFFERENTIABLE)
    assert (found.rule, found.line) == ("TRN104", 28)
    assert found.message.endswith(" `Scale` launches it with a backward.")


THROUGH = DIFFERENTIABLE.replace(
    "        scale_kernel[(1,)](x, w, y, x.numel())\n        return y",
    "        return scale(x, w)",
)
PAST = """

class Layer(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(d))

    def forward(self, x):
        return {}
"""


def test_a_layer_that_goes_past_the_function_with_a_backward() -> None:
    (found,) = findings(THROUGH + PAST.format("scale(x, self.w)"))
    assert found.rule == "TRN104"
    assert found.message.endswith(" `Scale` launches it with a backward.")


@pytest.mark.parametrize(
    "more",
    [
        PAST.format("Scale.apply(x, self.w)"),
        PAST.format("Scale.apply(x, self.w) if self.training else x.detach() + 0"),
        PAST.format("scale(x, self.w) if not torch.is_grad_enabled() else x * self.w"),
        "\n\ndef test_scale(x, w):\n    assert torch.equal(scale(x, w), x * w)\n",
    ],
)
def test_nothing_goes_past_it(more: str) -> None:
    stays(THROUGH + more, select=("TRN104",))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "        scale_kernel[(1,)](x, w, y, x.numel())\n        return y",
            "        return scale(x, w)",
        ),
        ("        x, w = ctx.saved_tensors\n", "        scale(*ctx.saved_tensors)\n"),
        ("def scale(x", "@torch.no_grad()\ndef scale(x"),
    ],
    ids="forward backward no_grad".split(),
)
def test_a_launch_that_only_the_function_leads_to(old: str, new: str) -> None:
    assert old in DIFFERENTIABLE
    assert not findings(DIFFERENTIABLE.replace(old, new))


@pytest.mark.parametrize("module", ["mine.compat", "vllm.triton_utils", "."])
def test_triton_by_way_of_another_file(module: str) -> None:
    alone = DIFFERENTIABLE.replace("class Scale(torch.autograd.Function)", "class Scale")
    alone = alone.replace("def backward", "def other")
    text = alone.replace(
        "import triton\nimport triton.language as tl", f"from {module} import triton, tl"
    )
    assert f"from {module} import triton" in text
    assert len(findings(text)) == 2


@pytest.mark.parametrize(
    "kernel", ["bad_words_kernel", "get_num_sampled_kernel", "decode_meta_kernel"]
)
def test_kernels_that_only_choose_or_count(kernel: str) -> None:
    head, _, rest = DIFFERENTIABLE.partition("class Scale")
    text = head + rest[rest.index("def scale(") :]
    assert len(findings(text)) == 1
    assert not findings(text.replace("scale_kernel", kernel))


NORM = """\
import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, n, eps, HAS_WEIGHT: tl.constexpr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    y = x * tl.rsqrt(tl.sum(x * x) / n + eps)
    if HAS_WEIGHT:
        y = y * tl.load(w_ptr + i)
    tl.store(y_ptr + i, y)


def norm(x, w, eps):
    y = torch.empty_like(x)
    rms_norm_kernel[(1,)](x, w, y, x.shape[-1], eps, HAS_WEIGHT=True)
    return y
"""


def test_a_stand_in_for_a_weight_is_no_weight() -> None:
    (found,) = findings(NORM)
    assert found.fixes
    text = NORM.replace("(x, w, y,", "(x, w if w is not None else x, y,")
    (found,) = findings(text.replace("HAS_WEIGHT=True", "HAS_WEIGHT=w is not None"))
    assert found.rule == "TRN104"
    assert not found.fixes
