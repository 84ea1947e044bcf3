"""Ops that write into an argument and return something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from verbs import findings, fix

from trainify.findings import Safety
from trainify.reference.norm import fused_add_rms_norm_xformers
from trainify.reference.state_space import selective_state_update

IMPORT = "from xformers.ops import rms_norm_add\n"


def fixed(body: str) -> Callable[..., Any]:
    """The function ``f`` of a file in which every call was replaced."""
    text = fix(f"import torch\n{IMPORT}\n\n{body}", strategy="replace").replace(IMPORT, "")
    assert "rms_norm_add" not in text
    scope: dict[str, Any] = {}
    exec(text, scope)
    function: Callable[..., Any] = scope["f"]
    return function


@pytest.mark.parametrize(
    "body",
    [
        "def f(x, y, w):\n    h = rms_norm_add(x, y, w)\n    return h, x\n",
        "def f(x, y, w):\n    h = torch.clone(rms_norm_add(x, y, w))\n    return h, x\n",
        "def f(x, y, w):\n    s = x + y\n    x = rms_norm_add(x, y, w)\n    return x, s\n",
    ],
)
def test_the_returned_value_and_the_written_argument_both_arrive(body: str) -> None:
    x, y, w = torch.randn(2, 3), torch.randn(2, 3), torch.randn(3)
    want = fused_add_rms_norm_xformers(x, y, w, 1e-6)
    for got, expected in zip(fixed(body)(x, y, w), want, strict=True):
        torch.testing.assert_close(got, expected)


def test_another_name_of_what_is_overwritten() -> None:
    body = "def f(x, y, w):\n    old = x\n    x = rms_norm_add(x, y, w)\n    return x, old\n"
    (finding,) = findings(f"{IMPORT}\n\n{body}")
    assert "another name holds the `x`" in finding.message
    assert not finding.fixes


def test_a_step_moves_its_state_on() -> None:
    before = """\
import torch
from mamba_ssm.ops.triton.selective_state_update import selective_state_update


def step(state, x, dt, A, B, C):
    y = selective_state_update(state, x, dt, A, B, C)
    return y, state
"""
    (finding,) = findings(before)
    assert finding.rule == "TRN102"
    text = fix(before, strategy="replace")
    assert fix(text, strategy="replace") == text
    scope: dict[str, Any] = {}
    exec(text.replace("from mamba_ssm.ops.triton", "from trainify.reference").replace(
        "reference.selective_state_update", "reference.state_space"), scope)  # fmt: skip
    shapes = (2, 3, 4), (2, 3), (2, 3), (3, 4), (2, 4), (2, 4)
    arguments = [torch.randn(*shape) for shape in shapes]
    want = selective_state_update(*arguments)
    for got, expected in zip(scope["step"](*arguments), want, strict=True):
        torch.testing.assert_close(got, expected)


def test_codes_that_stay_floating_point_are_for_a_person_to_look_at() -> None:
    (finding,) = findings(
        """\
        import torch


        def norm(out, x, w, scale):
            torch.ops._C.rms_norm_static_fp8_quant(out, x, w, scale, 1e-6)
            return out
        """
    )
    assert {fix.safety for fix in finding.fixes.values()} == {Safety.UNSAFE}
    assert "not in 8 bits: what reads them must take that" in finding.fixes["flag"].look_at


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
def test_results_that_lie_in_what_the_caller_holds(strategy: str) -> None:
    """The values go into the caller's tensors, and the names of the results stand for these."""
    text = """\
import torch


def rotate(positions, query, key, cache):
    q, k = torch.ops.sgl_kernel.rotary_embedding(positions, query, key, 8, cache, True)
    return q.flatten(1), k.flatten(1)
"""
    fixed = fix(text, strategy=strategy, unsafe=True)
    assert "query.copy_(query_new)\n" in fixed and "q = query\n" in fixed and "k = key\n" in fixed
