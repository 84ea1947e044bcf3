"""A call is a fused op by what its name resolves to, and by nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, rules, stays

from trainify.engine import Options, check_paths
from trainify.findings import Safety
from trainify.releases import Release

NORM = """
import torch
{imports}

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, weight):
        {local}
        out = torch.empty_like(x)
        {call}(out, x, weight, 1e-6)
        return out
"""


def norm(imports: str = "", call: str = "", init: str = "pass", local: str = "pass") -> str:
    return NORM.format(imports=imports, call=call, init=init, local=local)


@pytest.mark.parametrize(
    "text",
    [
        norm("from vllm import _custom_ops as ops", "ops.rms_norm"),
        norm("from vllm import _custom_ops", "_custom_ops.rms_norm"),
        norm("import vllm._custom_ops", "vllm._custom_ops.rms_norm"),
        norm("import vllm._custom_ops as c", "c.rms_norm"),
        norm("from vllm._custom_ops import rms_norm", "rms_norm"),
        norm("from vllm._custom_ops import rms_norm as fused", "fused"),
        norm("", "torch.ops._C.rms_norm"),
        norm("", "torch.ops._C.rms_norm.default"),
        norm("ops = torch.ops._C", "ops.rms_norm"),
        norm("from torch import ops", "ops._C.rms_norm"),
        norm("", "self.op", init="self.op = torch.ops._C.rms_norm"),
        norm("from vllm import _custom_ops as ops", "self.op", init="self.op = ops.rms_norm"),
        norm("", "ops.rms_norm", local="from vllm import _custom_ops as ops"),
        norm("from vllm import _custom_ops as ops", "f", local="f = ops.rms_norm"),
        norm("from vllm import _custom_ops as ops", "f", local='f = getattr(ops, "rms_norm")'),
        norm(
            "try:\n    from vllm import _custom_ops as ops\nexcept ImportError:\n    ops = None",
            "ops.rms_norm",
        ),
        norm(
            "import sys\nif sys.platform == 'linux':\n    from vllm import _custom_ops as ops\n"
            "else:\n    ops = None",
            "ops.rms_norm",
        ),
        norm(
            "import functools\nfrom vllm import _custom_ops as ops",
            "functools.partial(ops.rms_norm)",
        ),
        norm('import importlib\nops = importlib.import_module("vllm._custom_ops")', "ops.rms_norm"),
    ],
)
def test_spellings(text: str) -> None:
    assert rules(text) == ["TRN101"]


@pytest.mark.parametrize(
    "text",
    [
        norm("def rms_norm(out, x, w, eps):\n    out.copy_(x * w)", "rms_norm"),
        norm("from my_package import _custom_ops as ops", "ops.rms_norm"),
        norm("from vllm import _custom_ops as ops\nimport mine as ops", "ops.rms_norm"),
        norm("from vllm import _custom_ops as ops", "self.ops.rms_norm"),
        norm("from vllm import _custom_ops as ops", "ops.rms_norm", local="ops = self.own"),
        norm("import torch.nn.functional as F", "F.rms_norm"),
        "from flash_attn import flash_attn_func\n\ndef f(q, k, v):\n    return flash_attn_func(q, k, v)\n",
    ],
)
def test_other_functions_of_the_same_name_stay(text: str) -> None:
    stays(text)


def test_a_name_that_the_project_re_exports(tmp_path: Path) -> None:
    package = tmp_path / "serving"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text("from vllm._custom_ops import rms_norm as fused_norm\n")
    (package / "own.py").write_text("def rms_norm(out, x, w, eps):\n    out.copy_(x)\n")
    (package / "layer.py").write_text(
        "import torch\nfrom .ops import fused_norm as rms_norm\nfrom . import ops, own\n\n"
        "def f(x, w):\n"
        "    out = torch.empty_like(x)\n"
        "    rms_norm(out, x, w, 1e-6)\n"
        "    b = torch.empty_like(x)\n"
        "    ops.fused_norm(b, x, w, 1e-6)\n"
        "    own.rms_norm(b, x, w, 1e-6)\n"
        "    return out + b\n"
    )
    found = [f for report in check_paths([str(tmp_path)], Options()) for f in report.findings]
    assert [(f.line, f.rule) for f in found] == [(7, "TRN101"), (9, "TRN101")]


@pytest.mark.parametrize(
    "call",
    [
        "ops.rms_norm(out, x, w, 1e-6, 3)",
        "ops.rms_norm(out, x, w)",
        "ops.rms_norm(out, *args)",
        "ops.rms_norm(out, x, w, eps=1e-6)",
        "ops.rms_norm(out, x, w, **kwargs)",
        "ops.rms_norm(out, x, w, 1e-6, out=out)",
    ],
)
def test_a_call_that_does_not_fit_the_schema_is_left_alone(call: str) -> None:
    text = f"""\
import torch
from vllm import _custom_ops as ops

def f(x, w, args, kwargs):
    out = torch.empty_like(x)
    {call}
    return out
"""
    (finding,) = findings(text)
    assert finding.rule == "TRN103" and not finding.fixes


def test_codes_in_front_of_a_matmul_lose_what_they_are_made_of() -> None:
    text = """\
from vllm import _custom_ops as ops


def linear(x, weight, scale):
    codes, row_scale = ops.scaled_fp8_quant(x)
    x = x.norm()
    return ops.cutlass_scaled_mm(codes, weight, row_scale, scale, x.dtype) / x


def load(weight):
    return ops.scaled_fp8_quant(weight)
"""
    for found in (findings(text), findings(fix(text, unsafe=True))):
        (finding,) = (f for f in found if "gives codes" in f.message)
        assert finding.rule == "TRN101" and not finding.fixes
        assert "`ops.scaled_fp8_quant` gives" in finding.message
        assert "none reaches `x`" in finding.message
    assert [f.line for f in findings(text)] == [5, 7]


def test_an_argument_that_is_assigned_in_the_call_is_said_not_to_be_understood() -> None:
    text = """
        import torch
        from vllm import _custom_ops as ops

        def f(x, w):
            ops.rms_norm(out := torch.empty_like(x), x, w, 1e-6)
            return out
        """
    assert rules(text) == ["TRN103"]


# -- what is built before it is called ------------------------------------------------------------

BUILT = """\
import torch
from deepspeed.ops.op_builder import InferenceBuilder


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    def forward(self, x):
        return {kernels}.rms_norm(x, self.weight, self.eps)
"""


@pytest.mark.parametrize(
    ("made", "kernels"),
    [
        ("pass", "InferenceBuilder().load()"),
        ("self.kernels = InferenceBuilder().load()", "self.kernels"),
        ("self.kernels = InferenceBuilder().load(verbose=False)", "self.kernels"),
        ("builder = InferenceBuilder()\n        self.kernels = builder.load()", "self.kernels"),
    ],
)
def test_kernels_of_a_builder(made: str, kernels: str) -> None:
    (finding,) = findings(BUILT.format(made=made, kernels=kernels))
    assert finding.rule == "TRN101"
    assert "reached through a builder, whose kernels share a workspace" in finding.message


EXTENSION = """\
import torch
import torch.nn.functional as F
from torch.utils.cpp_extension import load, load_inline


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    def forward(self, x):
        return {kernels}.{kernel}(x, self.weight, 1e-6)
"""
LOAD = "load(name='norms', sources=['norms.cpp', 'norms.cu'])"


@pytest.mark.parametrize(
    ("made", "kernels"),
    [
        (f"self.kernels = {LOAD}", "self.kernels"),
        (f"self.kernels = {{'norm': {LOAD}}}", "self.kernels['norm']"),
        (
            f"self.kernels = {LOAD.replace('load(', 'torch.utils.cpp_extension.load(')}",
            "self.kernels",
        ),
        ("self.kernels = load_inline('n', CPP, cuda_sources=CUDA)", "self.kernels"),
    ],
)
def test_kernels_of_an_extension(made: str, kernels: str) -> None:
    text = EXTENSION.format(made=made, kernels=kernels, kernel="rms_norm")
    (finding,) = findings(text)
    assert finding.rule == "TRN108" and finding.fixes["replace"].safety is Safety.UNSAFE
    replaced = fix(text, strategy="replace", unsafe=True)
    assert "return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)" in replaced


@pytest.mark.parametrize(
    ("made", "kernel"),
    [
        ("self.kernels = load(name='norms', sources=['norms.cpp'])", "rms_norm"),  # of ATen's ops
        (f"self.kernels = {LOAD}", "furthest_points"),
        (f"self.kernels = {LOAD}", "rms_norm_backward"),
    ],
)
def test_an_extension_that_may_do_anything(made: str, kernel: str) -> None:
    stays(EXTENSION.format(made=made, kernels="self.kernels", kernel=kernel))


def test_an_extension_in_a_function_with_a_backward() -> None:
    stays(
        f"""\
        import torch
        from torch.utils.cpp_extension import load

        kernels = {LOAD}


        class Norm(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return kernels.rms_norm(x, weight, 1e-6)

            @staticmethod
            def backward(ctx, grad):
                return kernels.rms_norm_backward(grad, *ctx.saved_tensors)
        """
    )


# -- what an extension of the project's own fills --------------------------------------------------

FILLS = """\
import torch
from torch.utils.cpp_extension import load

ext = load(name="ext", sources=["k.cu"])


def scale(x, w):
    y = torch.empty_like(x)
    ext.scale(y, x, w)
    return y
"""


def test_an_extension_that_fills_a_buffer() -> None:
    (found,) = findings(FILLS)
    assert (found.rule, found.line) == ("TRN108", 9)
    assert found.message.startswith("`ext.scale` fills `y`, and shows no backward")
    assert not found.fixes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ext.scale", "ext.quantize_scale"),
        ("ext.scale", "ext.scale_grad"),
        ("ext.scale", "y = ext.scale"),
        ("empty_like(x)", "empty_like(x, dtype=torch.int32)"),
        ("torch.empty_like(x)", "x"),
        ("    return y", "    return x"),
        ("def scale", "@torch.no_grad()\ndef scale"),
        ("def scale", "def scale_backward(y):\n    return y\n\n\ndef scale"),
        ("k.cu", "k.cpp"),
    ],
    ids="codes backward_kernel result integers other unread no_grad author cpp".split(),
)
def test_an_extension_of_which_nothing_is_known(old: str, new: str) -> None:
    assert not findings(FILLS.replace(old, new))


def test_what_a_kernel_only_measures_loses_no_gradient() -> None:
    text = """\
    from vllm.model_executor.layers.fused_moe import fused_topk


    def route(hidden_states, router_logits):
        return fused_topk(hidden_states, router_logits, 2, True)
    """
    (found,) = findings(text)
    assert "no gradient reaches `router_logits`." in found.message
    assert "hidden_states.requires_grad" not in fix(text)


def test_a_shuffle_of_codes_has_no_gradient_to_lose() -> None:
    stays("import torch\n\n\ndef f(q, perm):\n    torch.ops._C.gptq_shuffle(q, perm, 4)\n")


@pytest.mark.parametrize(("release", "values"), [("0.8.5", 2), ("0.9.0", 3)])
def test_the_choice_of_experts_by_release(release: str, values: int) -> None:
    names = ", ".join(["w", "ids", "rows"][:values])
    text = f"""\
    from vllm.model_executor.layers.fused_moe import fused_topk


    def route(x, logits):
        {names} = fused_topk(x, logits, 2, True)
        return {names}
    """
    fixed = fix(text, strategy="replace", releases=(Release("vllm", f"=={release}", "x"),))
    scope: dict[str, Any] = {}
    exec(fixed, scope)
    logits = torch.randn(3, 4, requires_grad=True)
    found = scope["route"](None, logits)
    assert len(found) == values
    expected = torch.softmax(logits, -1).topk(2).values
    torch.testing.assert_close(found[0], expected / expected.sum(-1, keepdim=True))
    assert found[0].requires_grad


@pytest.mark.parametrize("module", ["", ".fused_moe", ".moe.fused_moe"])
def test_experts_wherever_lmdeploy_has_them(module: str) -> None:
    text = f"""\
    from lmdeploy.pytorch.kernels.cuda{module} import fused_moe


    def f(x, w1, w2, weights, ids):
        return fused_moe(x, w1, w2, weights, ids, 2)
    """
    (found,) = findings(text)
    assert found.rule == "TRN101" and found.fixes


@pytest.mark.parametrize(
    "module",
    [
        "vllm.ir.ops.layernorm:rms_norm",
        "vllm.attention.utils.fa_utils:flash_attn_varlen_func",
        "vllm.attention.ops.merge_attn_states:merge_attn_states",
        "vllm.model_executor.layers.fused_moe.router.fused_topk_router:fused_topk",
        "vllm.third_party.flash_linear_attention.ops:chunk_gated_delta_rule",
        "flashinfer.gemm.gemm_base:mm_bf16",
        "sglang.srt.layers.activation:silu_and_mul",
        "sglang.srt.layers.moe.fused_moe_triton:fused_experts",
        "vllm.model_executor.layers.fla.ops:chunk_gated_delta_rule",
        "flashinfer.fused_moe.core:cutlass_fused_moe",
    ],
)
def test_a_kernel_by_the_path_of_its_definition(module: str) -> None:
    module, _, name = module.partition(":")
    text = f"from {module} import {name}\n\n\ndef f(x):\n    return {name}(*x)\n"
    (found,) = findings(text)
    assert f"`{name}`" in found.message


@pytest.mark.parametrize(
    ("name", "writes"), [("outplace_fused_experts", False), ("inplace_fused_experts", True)]
)
@pytest.mark.parametrize("told", ["", ", 'silu', False, use_fp8_w8a8=False"])
def test_experts_as_ops(name: str, writes: bool, told: str) -> None:
    text = f"""\
    import torch


    def f(x, w1, w2, weights, ids):
        x = x * 1
        y = torch.ops.vllm.{name}(x, w1, w2, weights, ids{told})
        return x if {writes} else y
    """
    scope: dict[str, Any] = {}
    exec(fix(text, strategy="replace"), scope)
    tensors = [torch.randn(s, dtype=torch.float64) for s in [(3, 4), (2, 6, 4), (2, 4, 3), (3, 1)]]
    x, w1, w2, weights = [t.requires_grad_() for t in tensors]
    ids = torch.tensor([[0], [1], [0]])
    torch.manual_seed(0)
    found = scope["f"](x, w1, w2, weights, ids)
    rows = []
    for row, (expert,) in enumerate(ids.tolist()):
        gate, up = (w1[expert] @ x[row]).chunk(2)
        rows.append(weights[row] * (w2[expert] @ (torch.nn.functional.silu(gate) * up)))
    grad = torch.randn(3, 4, dtype=torch.float64)
    for got, right in zip(
        torch.autograd.grad(found, [x, w1, w2, weights], grad),
        torch.autograd.grad(torch.stack(rows), [x, w1, w2, weights], grad),
        strict=True,
    ):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)


def test_experts_that_are_quantized_are_not_rewritten() -> None:
    text = """\
    from vllm.model_executor.layers.fused_moe import fused_experts


    def f(x, w1, w2, weights, ids, scale):
        return fused_experts(x, w1, w2, weights, ids{})
    """
    old = (Release("vllm", "==0.8.5", "x"),)
    for told in (", True", ", use_fp8_w8a8=True", ", w1_scale=scale", ", activation='gelu'"):
        (found,) = findings(text.format(told), releases=old)
        assert not found.fixes, told
    for told in ("", ", False, 'silu'"):
        (found,) = findings(text.format(told), releases=old)
        assert found.fixes, told


def test_groups_of_experts_by_release() -> None:
    text = """\
    from vllm.model_executor.layers.fused_moe import grouped_topk


    def f(x, logits, bias):
        return grouped_topk(x, logits, 2, True, 2, 1, "sigmoid", {}bias)
    """
    old, new = ((Release("vllm", f"=={version}", "x"),) for version in ("0.8.5", "0.33.0"))
    # There it was plain PyTorch.
    stays(text.format(""), releases=old)
    # What stands in the eighth place differs between releases.
    (found,) = findings(text.format(""), releases=new)
    assert not found.fixes
    (found,) = findings(text.format("e_score_correction_bias="), releases=new)
    assert found.fixes


def test_the_norms_that_are_functions_beside_the_layers() -> None:
    text = """\
    from vllm.model_executor.layers.layernorm import fused_add_rms_norm, rms_norm


    def f(x, residual, w):
        x, residual = x * 1, residual * 1
        x, residual = fused_add_rms_norm(x, residual, w, 1e-5)
        return rms_norm(x, w, 1e-5) + residual
    """
    scope: dict[str, Any] = {}
    exec(fix(text, strategy="replace"), scope)
    x, r, w = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in [(2, 4), (2, 4), 4])
    norm = torch.nn.functional.rms_norm
    y = x + r
    right = norm(norm(y, (4,), w, 1e-5), (4,), w, 1e-5) + y
    for got, expected in zip(
        torch.autograd.grad(scope["f"](x, r, w).square().sum(), [x, r, w]),
        torch.autograd.grad(right.square().sum(), [x, r, w]),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_states_of_the_gated_delta_rule_lie_as_the_kernel_has_them() -> None:
    """vLLM's are values by keys: with as many keys as values, the other way is silently wrong."""
    text = """\
    from vllm.third_party.flash_linear_attention.ops import chunk_gated_delta_rule


    def f(q, k, v, g, beta, state):
        return chunk_gated_delta_rule(
            q, k, v, g, beta, scale=1.0, initial_state=state, output_final_state=True
        )
    """
    scope: dict[str, Any] = {}
    exec(fix(text, strategy="replace"), scope)
    q, k, v = (torch.randn(1, 1, 1, 3, dtype=torch.float64) for _ in range(3))
    g, beta = -torch.rand(1, 1, 1, dtype=torch.float64), torch.rand(1, 1, 1, dtype=torch.float64)
    state = torch.randn(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    out, last = scope["f"](q, k, v, g, beta, state)
    q, k, v, g, beta = (t.flatten() for t in (q, k, v, g, beta))
    decayed = state[0, 0] * g.exp()
    learned = decayed + torch.outer(beta * (v - decayed @ k), k)
    torch.testing.assert_close(last[0, 0].double(), learned, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.flatten(), learned @ q, rtol=1e-5, atol=1e-5)
    assert out.requires_grad
