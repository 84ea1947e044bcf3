"""Strategy attach: the kernel stays, in an autograd.Function with a backward that can be read."""

from __future__ import annotations

import ast
import textwrap

import pytest
from verbs import becomes, findings, fix

HEAD = "import torch\nfrom vllm import _custom_ops as ops\n\n\n"

RMS_NORM = '''\
class RMSNorm(torch.autograd.Function):
    """vllm._custom_ops.rms_norm with a backward."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        out = torch.empty_like(x)
        ops.rms_norm(out, x, weight, eps)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + ctx.eps)
        normed, grad = x.float() * scale, grad.float()
        grad_normed = grad * weight.float()
        grad_x = (
            grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True)
        ) * scale
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
        return grad_x.to(x.dtype), grad_weight, None


'''


def attached(before: str) -> str:
    """The fixed text; fixing it again changes nothing."""
    text = fix(before, strategy="attach", unsafe=True)
    assert fix(text, strategy="attach", unsafe=True) == text
    return text


def forward(text: str) -> str:
    """The ``forward`` of the only class with a backward."""
    (cls,) = (
        n
        for n in ast.parse(text).body
        if isinstance(n, ast.ClassDef) and n.bases and "autograd" in ast.unparse(n.bases[0])
    )
    method = cls.body[1]
    return (
        textwrap.dedent("\n".join(text.splitlines()[method.lineno - 1 : method.end_lineno])) + "\n"
    )


def test_out_argument() -> None:
    becomes(
        HEAD
        + """\
def norm(x, w: torch.Tensor, eps):
    # first
    out = torch.empty_like(x)
    ops.rms_norm(out, x, w.data, eps)  # fused
    return out
""",
        HEAD
        + RMS_NORM
        + """\
def norm(x, w: torch.Tensor, eps):
    # first
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        out = RMSNorm.apply(x, w, eps)
    else:
        out = torch.empty_like(x)
        ops.rms_norm(out, x, w.data, eps)  # fused
    return out
""",
        strategy="attach",
    )


def test_in_place_on_what_is_read() -> None:
    becomes(
        HEAD
        + """\
def add_norm(hidden, residual, weight: torch.Tensor, eps):
    ops.fused_add_rms_norm(hidden, residual, weight, eps)
    return hidden, residual
""",
        HEAD
        + '''\
class FusedAddRMSNorm(torch.autograd.Function):
    """vllm._custom_ops.fused_add_rms_norm with a backward."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        ctx.eps = eps
        # The kernel works in place.
        x, residual = x.clone(), residual.clone()
        ops.fused_add_rms_norm(x, residual, weight, eps)
        ctx.save_for_backward(residual, weight)
        return x, residual

    @staticmethod
    def backward(ctx, grad_normed, grad_total):
        total, weight = ctx.saved_tensors
        scale = torch.rsqrt(total.float().square().mean(-1, keepdim=True) + ctx.eps)
        normed, grad = total.float() * scale, grad_normed.float()
        grad_normed = grad * weight.float()
        grad_sum = (
            grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True)
        ) * scale
        grad_sum = (grad_sum + grad_total).to(total.dtype)
        grad_weight = None
        if ctx.needs_input_grad[2]:
            grad_weight = (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
        return grad_sum, grad_sum, grad_weight, None


def add_norm(hidden, residual, weight: torch.Tensor, eps):
    if hidden.requires_grad or residual.requires_grad or (
        torch.is_grad_enabled() and weight.requires_grad
    ):
        hidden, residual = FusedAddRMSNorm.apply(hidden, residual, weight, eps)
    else:
        ops.fused_add_rms_norm(hidden, residual, weight, eps)
    return hidden, residual
''',
        strategy="attach",
    )


def test_in_place_on_pieces_with_a_helper() -> None:
    text = attached(
        HEAD
        + """\
def rotate(qkv, positions: torch.Tensor, table: torch.Tensor):
    q, k, v = qkv.split([32, 8, 8], dim=-1)
    ops.rotary_embedding(positions, q, k, 8, table, True)
    return q, k, v
"""
    )
    assert text.startswith(HEAD + "def rotate_pairs(")
    assert forward(text) == (
        """\
def forward(ctx, positions, query, key, cos_sin_cache):
    ctx.save_for_backward(positions, cos_sin_cache)
    # The kernel works in place.
    query, key = query.clone(), None if key is None else key.clone()
    ops.rotary_embedding(positions, query, key, 8, cos_sin_cache, True)
    return query, key
""".replace("None if key is None else key.clone()", "key.clone()")
    )
    assert "rotate_pairs(grad_query.float().reshape(heads), cos, -sin)" in text
    assert "    q, k = RotaryEmbedding.apply(positions, q, k, table)\n" in text


def test_without_a_closed_form_the_equivalent_is_computed_anew() -> None:
    becomes(
        HEAD
        + """\
def f(x):
    out = torch.empty_like(x)
    ops.gelu_new(out, x)
    return out
""",
        HEAD
        + '''\
class GeluNew(torch.autograd.Function):
    """vllm._custom_ops.gelu_new with a backward."""

    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        out = torch.empty_like(input)
        ops.gelu_new(out, input)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (input,) = ctx.saved_tensors
        with torch.enable_grad():
            input = input.detach().requires_grad_(ctx.needs_input_grad[0])
            t = torch.tanh(0.79788456 * (input + 0.044715 * (input * input * input)))
            out = 0.5 * input * (1.0 + t)
        torch.autograd.backward(out, grad)
        return input.grad


def f(x):
    if torch.is_grad_enabled() and x.requires_grad:
        out = GeluNew.apply(x)
    else:
        out = torch.empty_like(x)
        ops.gelu_new(out, x)
    return out
''',
        strategy="attach",
    )


def test_functional_calls_inside_one_another() -> None:
    text = attached(
        """\
import torch
from sgl_kernel import rmsnorm, silu_and_mul


class MLP(torch.nn.Module):
    def forward(self, x):
        return self.down(silu_and_mul(self.up(rmsnorm(x, self.weight.data, self.eps))))
"""
    )
    assert "        return rmsnorm(x, weight, eps)\n" in text
    call = "self.down(SiluAndMul.apply(self.up(RMSNorm.apply(x, self.weight, self.eps))))"
    assert f"if torch.is_grad_enabled():\n            return {call}\n" in ast.unparse(
        ast.parse(text)
    )


def test_an_optional_buffer_is_the_kernel_s_to_make() -> None:
    text = attached(
        """\
import torch
from flashinfer import silu_and_mul


def f(x):
    buffer = torch.empty(x.shape[0], x.shape[1] // 2)
    y = silu_and_mul(x, out=buffer)
    return y
"""
    )
    assert (
        forward(text)
        == "def forward(ctx, input):\n    ctx.save_for_backward(input)\n    return silu_and_mul(input)\n"
    )
    assert "        y = SiluAndMul.apply(x)\n    else:\n" in text
    assert text.endswith("        y = silu_and_mul(x, out=buffer)\n    return y\n")


@pytest.mark.parametrize(
    ("made", "inside", "passed"),
    [
        ("torch.empty_like(x)", "torch.empty_like(x)", "x, w, eps"),
        ("torch.empty_like(x.data)", "torch.empty_like(x.data)", "x, w, eps"),
        ("x.new_empty(x.shape)", "x.new_empty(x.shape)", "x, w, eps"),
        ("torch.empty(shape, dtype=x.dtype)", "torch.empty(shape, dtype=x.dtype)", "x, w, eps, shape"),
        ("torch.empty(self.rows, len(x))", "torch.empty(rows, len(x))", "x, w, eps, self.rows"),
        ("torch.empty(y.shape)", "torch.empty(shape)", "x, w, eps, y.shape"),
        ("y.new_empty(8)", "y.new_empty(8)", "x, w, eps, y"),
        ("torch.empty(*[n for n in x.shape])", "torch.empty_like(out)", "out, x, w, eps"),
    ],
)  # fmt: skip
def test_the_author_s_allocation_moves_into_forward(made: str, inside: str, passed: str) -> None:
    text = attached(
        HEAD
        + f"""\
def f(self, x, y, w: torch.Tensor, eps, shape):
    out = {made}
    ops.rms_norm(out, x, w, eps)
    return out
"""
    )
    assert f"    out = {inside}\n    ops.rms_norm(out, x, weight, eps)\n" in forward(text)
    *_, function = text.partition("\ndef f(")
    before, _, after = function.partition("    if torch.is_grad_enabled()")
    assert (f"    out = {made}\n" in before) == ("out," in passed)
    assert f"        out = RMSNorm.apply({passed})\n" in after


@pytest.mark.parametrize(
    "body",
    [
        "    out = torch.empty(x.shape)\n    x = x * 2\n    ops.rms_norm(out, x, w, 1e-6)\n",
        "    out = torch.empty(x.shape)\n    print(out)\n    ops.rms_norm(out, x, w, 1e-6)\n",
    ],
)
def test_a_buffer_that_cannot_move_is_imitated(body: str) -> None:
    text = attached(HEAD + f"def f(x, w: torch.Tensor):\n{body}    return out\n")
    assert "    out = torch.empty_like(out)\n" in forward(text)
    assert "    out = torch.empty(x.shape)\n" in text
    assert "    out = RMSNorm.apply(out, x, w)\n" in text


def test_the_caller_s_buffer_is_still_filled() -> None:
    text = attached(
        HEAD
        + "def norm(x, w: torch.Tensor, out):\n    ops.rms_norm(out, x, w, 1e-6)\n    return out\n"
    )
    assert "        out.copy_(RMSNorm.apply(out, x, w))\n    else:\n" in text


def test_views_of_a_buffer() -> None:
    text = attached(
        HEAD
        + """\
def f(x, w: torch.Tensor):
    out = torch.empty_like(x)
    ops.rms_norm(out.view(-1, 8), x.view(-1, 8), w, 1e-6)
    return out
"""
    )
    assert "    out = torch.empty_like(x)\n" in forward(text)
    assert "        out = RMSNorm.apply(x.view(-1, 8), w).reshape(x.shape)\n    else:\n" in text


def test_one_class_for_calls_with_different_constants() -> None:
    text = attached(
        HEAD
        + """\
def norm(q, k, w: torch.Tensor):
    a = torch.empty_like(q)
    ops.rms_norm(a, q, w, 1e-6)
    b = torch.empty_like(k)
    ops.rms_norm(b, k, w, 1e-5)
    return a, b
"""
    )
    assert text.count("autograd.Function)") == 1 and RMS_NORM in text
    assert "        a = RMSNorm.apply(q, w, 1e-6)\n        b = RMSNorm.apply(k, w, 1e-5)\n" in text


def test_what_all_calls_agree_on_is_written_into_the_class() -> None:
    text = attached(
        HEAD
        + """\
def norm(q, k, w: torch.Tensor):
    a = torch.empty_like(q)
    ops.rms_norm(a, q, w, 1e-6)
    b = torch.empty_like(k)
    ops.rms_norm(b, k, w, 1e-6)
    return a, b
"""
    )
    assert "    ops.rms_norm(out, x, weight, 1e-6)\n" in forward(text)
    assert "        a = RMSNorm.apply(q, w)\n        b = RMSNorm.apply(k, w)\n" in text


def test_the_name_of_a_class_may_be_taken() -> None:
    text = attached(
        HEAD
        + """\
class RMSNorm(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight.data, self.eps)
        return out
"""
    )
    assert "class RMSNormFunction(torch.autograd.Function):\n" in text
    assert "        out = RMSNormFunction.apply(x, self.weight, self.eps)\n" in text


def test_a_class_that_is_there_already_serves_again() -> None:
    call = "    out = torch.empty_like(x)\n    ops.rms_norm(out, x, w, eps)\n    return out\n"
    before = f"{HEAD}{RMS_NORM}def f(x, w: torch.Tensor, eps):\n{call}"
    assert attached(before).count("class RMSNorm") == 1


@pytest.mark.parametrize(
    ("imports", "init", "local", "call", "inside"),
    [
        ("from vllm import _custom_ops as ops", "", "", "ops.rms_norm", "ops.rms_norm"),
        ("from vllm._custom_ops import rms_norm as fused", "", "", "fused", "fused"),
        ("", "", "", "torch.ops._C.rms_norm", "torch.ops._C.rms_norm"),
        ("ops = torch.ops._C", "", "", "ops.rms_norm", "ops.rms_norm"),
        ("", "self.op = torch.ops._C.rms_norm", "", "self.op", "torch.ops._C.rms_norm"),
        ("", "", "from vllm import _custom_ops as ops", "ops.rms_norm",
         "from vllm import _custom_ops as ops\n\n{save}ops.rms_norm"),
        ("", "from vllm import _custom_ops as ops; self.op = ops.rms_norm", "", "self.op",
         "from vllm import _custom_ops as ops\n\n{save}ops.rms_norm"),
        ("from vllm import _custom_ops as ops", "", "f = ops.rms_norm", "f", "ops.rms_norm"),
        ("from vllm import _custom_ops as ops", "", 'f = getattr(ops, "rms_norm")', "f", "kernel"),
        ("from vllm import _custom_ops as ops", "self.op = torch.compile(ops.rms_norm)", "",
         "self.op", "kernel"),
    ],
)  # fmt: skip
def test_the_kernel_is_called_by_a_name_that_holds(
    imports: str, init: str, local: str, call: str, inside: str
) -> None:
    text = attached(
        f"""\
import torch
{imports}

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init or "pass"}

    def forward(self, x, weight: torch.Tensor):
        {local or "pass"}
        out = torch.empty_like(x)
        {call}(out, x, weight, 1e-6)
        return out
"""
    )
    save = "ctx.save_for_backward(x, weight)\nout = torch.empty_like(x)\n"
    lines = inside.format(save=save) if "{save}" in inside else save + inside
    body = textwrap.dedent(forward(text).split("\n", 1)[1])
    assert body == f"{lines}(out, x, weight, 1e-6)\nreturn out\n"
    kernel = f"{call}, " if inside == "kernel" else ""
    assert f"        out = RMSNorm.apply({kernel}x, weight)\n" in text


def test_what_a_partial_holds_becomes_an_argument() -> None:
    text = attached(
        """\
from functools import partial

import torch
from sgl_kernel import rmsnorm


class Norm(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.norm = partial(rmsnorm, eps=eps)

    def forward(self, x, w):
        return self.norm(x, w)
"""
    )
    assert "    return rmsnorm(x, weight, eps)\n" in forward(text)
    assert "        return RMSNorm.apply(x, w, self.eps)\n" in text


def test_results_without_a_place() -> None:
    before = (
        HEAD
        + """\
def f(qkv, positions, table):
    q, k, v = qkv.split([32, 8, 8], dim=-1)
    ops.rotary_embedding(positions, q, k, 8, table, True)
    return qkv
"""
    )
    (finding,) = findings(before, strategy="attach")
    assert "Not rewritten: `qkv` shares storage with `q`" in finding.message
    assert not finding.fixes


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("unit", ["    ", "  ", "\t"])
def test_the_author_s_layout_is_kept(newline: str, unit: str) -> None:
    before = (
        HEAD
        + "def f(x, w):\n    out = torch.empty_like(x)\n    ops.rms_norm(out, x, w, 1e-6)\n    return out\n"
    )
    before = before.replace("    ", unit).replace("\n", newline)
    from trainify.engine import Options, fix_text

    text = fix_text(before, "m.py", Options(strategy="attach")).text
    assert f"{unit}@staticmethod{newline}{unit}def forward(ctx, x, weight):{newline}" in text
    assert text.count("\n") == text.count(newline)
    assert unit == "\t" or "\t" not in text


def test_all_three_fixes_are_offered() -> None:
    (finding,) = findings(
        HEAD + "def f(x, w, out):\n    ops.rms_norm(out, x, w, 1e-6)\n    return out\n"
    )
    assert list(finding.fixes) == ["flag", "replace", "attach"]
    assert finding.fixes["attach"].title == "Keep rms_norm and give it a backward"
