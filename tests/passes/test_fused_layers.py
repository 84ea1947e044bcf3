"""Layers of serving libraries: their twin where it is differentiable, a report where it is not."""

from __future__ import annotations

from pathlib import Path

from verbs import becomes, findings, stays

from trainify.engine import Options, check_paths

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


def test_a_project_that_holds_a_release_without_the_twin(tmp_path: Path) -> None:
    layers = tmp_path / "sglang" / "srt" / "layers"
    layers.mkdir(parents=True)
    for folder in (layers, layers.parent, layers.parent.parent):
        (folder / "__init__.py").touch()
    user = HEAD + "    def forward(self, x):\n        return self.norm(x)\n"
    (tmp_path / "sglang" / "model.py").write_text(user)
    for method, fixable in (("forward_native", True), ("_forward", False)):
        (layers / "layernorm.py").write_text(f"class RMSNorm:\n    def {method}(self, x): ...\n")
        reports = check_paths([str(tmp_path / "sglang" / "model.py")], Options())
        (finding,) = next(iter(reports)).findings
        assert finding.rule == "TRN109" and bool(finding.fixes) is fixable
    assert "the RMSNorm of this project has no forward_native" in finding.message
