"""A fused call behind a right test, or in a place without gradients, is right as it is."""

from __future__ import annotations

import pytest
from verbs import findings, rules, stays

HEAD = "import torch\nimport torch.nn.functional as F\nfrom sgl_kernel import rmsnorm\n\n\n"


@pytest.mark.parametrize(
    "body",
    [
        """\
    if torch.is_grad_enabled():
        return F.rms_norm(x, x.shape[-1:], w)
    return rmsnorm(x, w)
""",
        """\
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        y = F.rms_norm(x, x.shape[-1:], w)
    else:
        y = rmsnorm(x, w)
    return y
""",
        """\
    if x.is_contiguous() and not torch.is_grad_enabled():
        return rmsnorm(x, w)
    return F.rms_norm(x, x.shape[-1:], w)
""",
        """\
    fast = not (torch.is_grad_enabled() and x.requires_grad)
    if fast:
        return rmsnorm(x, w)
    return F.rms_norm(x, x.shape[-1:], w)
""",
        """\
    if any(t.requires_grad for t in (x, w)):
        raise ValueError("no backward")
    return rmsnorm(x, w)
""",
        """\
    return F.rms_norm(x, x.shape[-1:], w) if x.requires_grad else rmsnorm(x, w)
""",
        """\
    with torch.no_grad():
        return rmsnorm(x, w)
""",
        """\
    with torch.inference_mode():
        return rmsnorm(x, w)
""",
        """\
    if torch.is_inference_mode_enabled():
        return rmsnorm(x, w)
    return F.rms_norm(x, x.shape[-1:], w)
""",
        """\
    if x.requires_grad == False and w.requires_grad is not True:
        return rmsnorm(x, w)
    return F.rms_norm(x, x.shape[-1:], w)
""",
        """\
    try:
        rmsnorm(x, w)
    except RuntimeError:
        return "slow"
    return "fast"
""",
    ],
)
def test_guarded(body: str) -> None:
    stays(HEAD + "def f(x, w):\n" + body)


@pytest.mark.parametrize(
    "body",
    [
        """\
    if x.is_cuda:
        return rmsnorm(x, w)
    return F.rms_norm(x, x.shape[-1:], w)
""",
        """\
    if torch.is_grad_enabled():
        return rmsnorm(x, w)
    return F.rms_norm(x, x.shape[-1:], w)
""",
        """\
    if x.is_contiguous() or not torch.is_grad_enabled():
        return rmsnorm(x, w)
    return F.rms_norm(x, x.shape[-1:], w)
""",
        """\
    if torch.is_grad_enabled() and x.is_cuda:
        return F.rms_norm(x, x.shape[-1:], w)
    return rmsnorm(x, w)
""",
        """\
    with torch.no_grad():
        scale = x.abs().max()
    return rmsnorm(x / scale, w)
""",
        """\
    with torch.set_grad_enabled(True):
        return rmsnorm(x, w)
""",
    ],
)
def test_not_guarded(body: str) -> None:
    assert rules(HEAD + "def f(x, w):\n" + body) == ["TRN101"]


@pytest.mark.parametrize(
    "text",
    [
        """\
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return rmsnorm(x, w)

    @staticmethod
    def backward(ctx, grad):
        return grad, grad.sum(0)
""",
        """\
@torch.library.custom_op("mine::norm", mutates_args=())
def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return rmsnorm(x, w)
""",
        """\
register_kernel = torch.library.register_kernel


def of_rows(x, w):
    return rmsnorm(x.flatten(0, -2), w).view_as(x)


@register_kernel("mine::norm", "cuda")
def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return of_rows(x, w) if x.dim() > 2 else rmsnorm(x, w)
""",
        """\
def of_rows(x, w):
    return rmsnorm(x.flatten(0, -2), w).view_as(x)


@torch.library.impl("mine::norm", "CUDA")
def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return of_rows(x, w)
""",
        """\
@torch.no_grad()
def evaluate_norm(x, w):
    return rmsnorm(x, w)
""",
        """\
class LM(torch.nn.Module):
    def generate(self, ids):
        probs = rmsnorm(self(ids), self.w)
        return probs.argmax(-1)
""",
    ],
)
def test_kernels_and_inference_stay(text: str) -> None:
    stays(HEAD + text)


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        ("@register_custom_op(fake_impl=norm_fake)\n", ""),
        ("@utils.register_custom_op\n", ""),
        ("", 'direct_register_custom_op(op_name="norm", op_func=norm, mutates_args=[])\n'),
        ("", "norm = register_custom_op(norm, mutates_args=[])\n"),
        ("", 'library.impl("norm", norm, "CUDA")\n'),
    ],
)
def test_inside_of_an_operator_a_rewriting_would_not_help(head: str, tail: str) -> None:
    function = "def norm(x: torch.Tensor, w: torch.Tensor):\n    return rmsnorm(x, w)\n"
    (finding,) = findings(f"{HEAD}{head}{function}\n\n{tail}")
    assert not finding.fixes
    assert finding.message.endswith("`norm` is an operator, in which autograd records nothing.")
    (finding,) = findings(f"{HEAD}{function}\n\n{tail.replace('norm', 'other')}")
    assert finding.fixes


def test_a_pattern_of_a_compiler_pass_is_no_call() -> None:
    stays(
        """\
import torch._inductor.pattern_matcher as pm
from vllm import _custom_ops as ops


def pattern(out, x, w):
    ops.rms_norm(out, x, w, 1e-6)
    return out


pm.register_replacement(pattern, replacement, inputs, pm.fwd_only, passes)
"""
    )


ASKED = """\
import torch
import torch.nn.functional as F
from sgl_kernel import rmsnorm
from torch import nn


def wants(*tensors):
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))

    @property
    def serves(self):
        return self.w.is_contiguous() and not torch.is_grad_enabled()

    def is_served(self):
        return not torch.is_grad_enabled()

    def forward(self, x):
        if TEST:
            return rmsnorm(x, self.w)
        return F.rms_norm(x, x.shape[-1:], self.w)
"""


@pytest.mark.parametrize(
    "test", ["self.serves", "self.is_served()", "not wants(x, self.w)", "self.serves and x.numel()"]
)
def test_guarded_by_a_property_or_a_function(test: str) -> None:
    stays(ASKED.replace("TEST", test))


@pytest.mark.parametrize(
    "test", ["not self.serves", "wants(x, self.w)", "self.serves or x.numel()"]
)
def test_guarded_the_wrong_way_round(test: str) -> None:
    assert rules(ASKED.replace("TEST", test)) == ["TRN101"]
    unsure = ASKED.replace(
        "return not torch", "if self.w is None:\n            return True\n        return not torch"
    )
    assert rules(unsure.replace("TEST", "self.is_served()")) == ["TRN101"]
