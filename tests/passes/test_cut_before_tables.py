"""Weights that are cut off before a function gets them which an object looks up in a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import findings

from trainify.engine import Options, check_paths
from trainify.findings import Safety

KERNELS = """\
import torch
import torch.nn.functional as F
from vllm import _custom_ops as ops


def native_rms(x, w, eps):
    return F.rms_norm(x, x.shape[-1:], w, eps)


def vllm_rms(x, w, eps):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, w, eps)
    return out


BACKENDS = {"native": {"rms": native_rms}, "vllm": {"rms": vllm_rms}}


class Kernels:
    def __init__(self, name):
        self.table = BACKENDS[name]

    def __getattr__(self, key):
        return self.__dict__["table"][key]


"""
MODEL = """\
class Block(torch.nn.Module):
    def __init__(self, kernels):
        super().__init__()
        self.k, self.w = kernels, torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.k.rms(x, self.w.data, 1e-6)
"""


def cut(text: str) -> list[str]:
    return [f.message for f in findings(text) if f.rule == "TRN113"]


def test_a_function_of_a_table() -> None:
    (found,) = [f for f in findings(KERNELS + MODEL) if f.rule == "TRN113"]
    assert "no gradient reaches `self.w`" in found.message
    each = found.fixes["flag"]
    assert each.safety is Safety.UNSAFE
    assert "self.k.rms is vllm_rms" in each.look_at
    assert [(KERNELS + MODEL)[e.start : e.end] for e in each.edits] == [".data"]


@pytest.mark.parametrize(
    "text",
    [
        KERNELS + MODEL.replace("self.k.rms(", "self.k.other("),
        KERNELS + MODEL.replace("self.w.data", "self.w"),
        KERNELS.replace('{"rms": vllm_rms}', '{"rms": native_rms}') + MODEL,
        KERNELS + "class Own:\n    def rms(self, x, w, eps):\n        return x\n\n\n" + MODEL,
        KERNELS + MODEL.replace("def forward", "def load_weights"),
    ],
    ids=["another name", "nothing is cut", "no kernel", "a method", "while loading"],
)
def test_other_calls_stay(text: str) -> None:
    assert cut(text) == []


def test_a_table_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "model.py").write_text("import torch\n\nfrom kernels import Kernels\n\n\n" + MODEL)
    reports = check_paths([str(tmp_path)], Options(select=("TRN113",)))
    assert [Path(f.path).name for report in reports for f in report.findings] == ["model.py"]
