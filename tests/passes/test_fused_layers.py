"""Layers of serving libraries: their twin where it is differentiable, a report where it is not."""

from __future__ import annotations

from verbs import becomes, findings, stays

HEAD = """\
import torch
from torch import nn
from sglang.srt.layers.layernorm import RMSNorm


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(8)
        self.mine = nn.RMSNorm(8)

"""


def test_a_norm_asks_the_grad_mode_since_it_has_a_weight_of_its_own() -> None:
    becomes(
        HEAD
        + """\
    def forward(self, x, residual):
        x, residual = self.norm(x, residual)
        return self.mine(x) + residual
""",
        HEAD
        + """\
    def forward(self, x, residual):
        if torch.is_grad_enabled():
            x, residual = self.norm.forward_native(x, residual)
        else:
            x, residual = self.norm(x, residual)
        return self.mine(x) + residual
""",
    )


def test_a_twin_without_a_gradient_is_reported_only() -> None:
    (finding,) = findings(
        HEAD.replace("sglang.srt", "vllm.model_executor")
        + """\
    def forward(self, x):
        return self.norm(x)
"""
    )
    assert finding.rule == "TRN109" and not finding.fixes
    assert "Not rewritten" in finding.message


def test_inference_and_the_twin_itself_stay() -> None:
    stays(
        HEAD
        + """\
    def forward(self, x):
        with torch.no_grad():
            scale = self.norm(x)
        return self.norm.forward_native(x) * scale
"""
    )
