"""vLLM's norm of a sum in place, which before 0.4.1 took its statistics before it rounded that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainify.catalog import lookup
from trainify.engine import Options, fix_text
from trainify.findings import STRATEGIES
from trainify.releases import Release

IMPORT = "from vllm._C import ops\n"

CODE = f"""\
import torch
{IMPORT}

def add_norm(hidden, residual, weight: torch.Tensor, eps):
    ops.fused_add_rms_norm(hidden, residual, weight.data, eps)
    return hidden, residual
"""

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], None]


def fused_add_rms_norm(unrounded: bool) -> Kernel:
    """The kernel as it was before 0.4.1, or as it is since: in place and without a backward."""

    def run(hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        with torch.no_grad():
            total = hidden.float() + residual.float()
            residual.copy_(total)
            counted = total if unrounded else residual.float()
            scale = torch.rsqrt(counted.square().mean(-1, keepdim=True) + eps)
            hidden.copy_((residual.float() * scale).to(hidden.dtype) * weight)

    return run


def fixed(version: str, strategy: str, kernel: Kernel) -> Callable[..., Any]:
    """``add_norm`` of the fixed file of a project that states the release."""
    releases = (Release("vllm", version, "requirements.txt"),)
    options = Options(strategy=strategy, releases=releases)
    result = fix_text(CODE, "m.py", options)
    assert len(result.applied) == 1
    ops = type("ops", (), {"fused_add_rms_norm": staticmethod(kernel)})
    scope: dict[str, Any] = {"ops": ops}
    exec(result.text.replace(IMPORT, ""), scope)
    function: Callable[..., Any] = scope["add_norm"]
    return function


def inputs(dtype: torch.dtype, grad: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    tensors = [torch.randn(64, 96), torch.randn(64, 96), torch.randn(96)]
    return [t.to(dtype).requires_grad_(grad) for t in tensors]


@pytest.mark.parametrize(
    ("version", "function"),
    [
        ("==0.2.7", "fused_add_rms_norm_llama_unrounded"),
        ("==0.3.3", "fused_add_rms_norm_llama_unrounded"),
        ("<0.4", "fused_add_rms_norm_llama_unrounded"),
        ("==0.4.1", "fused_add_rms_norm_llama"),
        (">=0.3", "fused_add_rms_norm_llama"),
        ("", "fused_add_rms_norm_llama"),
    ],
)
def test_the_row_is_that_of_the_release(version: str, function: str) -> None:
    releases = (Release("vllm", version, "x"),) if version else ()
    op = lookup("vllm._C.ops.fused_add_rms_norm", (), releases)
    assert op is not None and f" {function}(" in str(op.equivalent)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("version", ["==0.3.3", "==0.4.1"])
def test_training_has_the_bits_of_the_kernel(version: str, strategy: str) -> None:
    of_the_release = fused_add_rms_norm(version == "==0.3.3")
    of_the_other = fused_add_rms_norm(version != "==0.3.3")
    served, others = inputs(torch.bfloat16, False), inputs(torch.bfloat16, False)
    of_the_release(*served, 1e-6)  # type: ignore[call-arg]
    of_the_other(*others, 1e-6)  # type: ignore[call-arg]
    function = fixed(version, strategy, of_the_release)
    normed, total = function(*inputs(torch.bfloat16), 1e-6)
    assert normed.requires_grad and total.requires_grad
    assert torch.equal(normed, served[0]) and torch.equal(total, served[1])
    assert not torch.equal(normed, others[0]) and torch.equal(total, others[1])
    with torch.no_grad():
        assert torch.equal(function(*inputs(torch.bfloat16), 1e-6)[0], served[0])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_in_float32_nothing_is_rounded_and_the_gradients_are_right(strategy: str) -> None:
    results = []
    for version in ("==0.3.3", "==0.4.1"):
        tensors = inputs(torch.float32)
        function = fixed(version, strategy, fused_add_rms_norm(version == "==0.3.3"))
        normed, total = function(*tensors, 1e-6)
        (normed.sin().sum() + total.cos().sum()).backward()
        results.append([normed, total, *(t.grad for t in tensors)])
    x, residual, weight = exact = [t.detach().double().requires_grad_() for t in tensors]
    total = x + residual
    normed = total / (total.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    (normed.sin().sum() + total.cos().sum()).backward()
    want = [normed, total, *(t.grad for t in exact)]
    for got in results:
        torch.testing.assert_close(got, [w.float() for w in want if w is not None])
