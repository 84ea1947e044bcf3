"""Kernels that save nothing, and become operations that save what they are given.

What overwrites that later was harmless before the fix, and makes backward raise after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stand_in_kernels import fused_add_rms_norm, stand_in
from verbs import findings, fix

from trainify.engine import Options, check_paths, fix_paths
from trainify.findings import STRATEGIES, Safety

HEAD = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


"""
NORM = """\
class RMS(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight, 1e-6)
        return out


"""
ADDED = {
    "in a loop over two lists": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.norms = nn.ModuleList([RMS() for _ in range(2)])
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x):
        h = self.a(x)
        for norm, layer in zip(self.norms, self.layers):
            h += layer(norm(h))
        return h
""",
    "behind a name": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 8), RMS(), nn.Linear(8, 8)

    def forward(self, x):
        h = self.a(x)
        normed = self.norm(h)
        h.add_(self.b(normed))
        return h
""",
}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.no_grad()
    def rms_norm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        out.data.copy_(F.rms_norm(x, x.shape[-1:], weight, eps))

    kernels = {"rms_norm": rms_norm, "fused_add_rms_norm": fused_add_rms_norm}
    stand_in(monkeypatch, "vllm._custom_ops", **kernels)


def gradients(text: str) -> list[torch.Tensor]:
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    torch.manual_seed(0)
    model = space["Model"]()
    x = torch.linspace(-1, 1, 16).view(2, 8)
    (model(x) * torch.arange(8)).sum().backward()
    return [torch.as_tensor(p.grad) for p in model.parameters()]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", ADDED.values(), ids=ADDED)
def test_what_is_added_in_place_later_is_added_out_of_place(model: str, strategy: str) -> None:
    plain = NORM.replace(
        "ops.rms_norm(out, x, self.weight, 1e-6)",
        "out = nn.functional.rms_norm(x, (8,), self.weight, 1e-6)",
    )
    other = model.replace("h += layer(norm(h))", "h = h + layer(norm(h))")
    other = other.replace("h.add_(self.b(normed))", "h = h + self.b(normed)")
    found = gradients(fix(HEAD + NORM + model, strategy=strategy))
    for each, right in zip(found, gradients(HEAD + plain + other), strict=True):
        assert torch.allclose(each, right, rtol=1e-4, atol=1e-5)


def test_a_norm_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(HEAD + NORM)
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\nfrom norm import RMS\n\n\n" + ADDED["behind a name"]
    )
    assert not [r.findings for r in check_paths([str(path)], Options()) if r.findings]
    (tmp_path / "norm.py").write_text(fix(HEAD + NORM))
    (report,) = fix_paths([str(path)], Options())
    assert [found.rule for found in report.applied] == ["TRN404"]


def test_a_norm_that_only_some_calls_run() -> None:
    some = fix(HEAD + NORM).replace("torch.is_grad_enabled() and (", "x.shape[0] > 4 and (")
    assert "x.shape[0] > 4" in some
    assert "TRN404" not in [f.rule for f in findings(some + ADDED["behind a name"])]


DECODER = """\
class Decoder(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.head = nn.Linear(d, d)
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, embeds):
        residual = embeds.reshape(-1, 8)
        h = torch.empty_like(residual)
        KERNEL
        sum_ = 2 * h
        ops.fused_add_rms_norm(sum_, residual, self.weight, 1e-6)
        return self.head(sum_)
"""


def look_at(text: str) -> str:
    (found,) = [f for f in findings(text) if f.rule == "TRN102"]
    assert found.fixes["flag"].safety is Safety.UNSAFE
    return found.fixes["flag"].look_at


def test_a_copy_into_what_a_kernel_of_the_function_reads() -> None:
    norm = DECODER.replace("KERNEL", "ops.rms_norm(h, residual, self.weight, 1e-6)")
    said = look_at(HEAD + norm)
    assert "`ops.rms_norm` in line 15 saves `residual` once it has a gradient" in said
    assert "no call in the project" not in said
    assert "no call in the project" in look_at(
        HEAD + DECODER.replace("KERNEL", "h.copy_(residual)")
    )


CALLER = """\
def add_norm_(x, residual: torch.Tensor, weight: torch.Tensor):
    ops.fused_add_rms_norm(x, residual, weight, 1e-6)
    return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.weight = Stem(), nn.Parameter(torch.ones(8))

    def forward(self, x):
        h = x[0]
        BEFORE
        return add_norm_(y, h, self.weight) + h
"""


@pytest.mark.parametrize(
    ("before", "saves"),
    [
        ("y = torch.empty_like(h); ops.rms_norm(y, h, self.weight, 1e-6)", "ops.rms_norm"),
        ("y = norm(h, self.weight)", "norm"),
        ("y = h + 1", ""),
    ],
)
def test_a_copy_into_what_a_kernel_of_a_caller_reads(before: str, saves: str) -> None:
    norm = (
        "def norm(x, weight: torch.Tensor):\n    out = torch.empty_like(x)\n"
        "    ops.rms_norm(out, x, weight, 1e-6)\n    return out\n\n\n"
    )
    said = look_at(HEAD + norm + CALLER.replace("BEFORE", before))
    assert ("saves once it has a gradient" in said) is bool(saves)
    assert (f"passes `h`, which `{saves}` saves" in said) is bool(saves)
