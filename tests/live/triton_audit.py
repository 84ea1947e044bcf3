"""Audits of models that launch Triton kernels, as a script: prints the cuts as JSON."""

import json
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures" / "kernels"))
import triton_kernels

from trainify import audit


@triton.jit
def _square(x, y, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value * value, mask=i < n)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.weight = nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, x):
        return triton_kernels.rms_norm(self.fc(x), self.weight) + x


class Rotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x):
        y = self.fc(x).unflatten(-1, (2, 8))
        angles = torch.outer(torch.arange(len(x)).float() + 1, torch.linspace(0.1, 1, 4))
        triton_kernels.apply_rope_(y, angles.cos(), angles.sin())
        return y.flatten(1)


class OnOneLine(nn.Module):
    """A grid is made of what stands on the same line."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x):
        # fmt: off
        # ruff: noqa: E702
        h = self.fc(x); y = torch.empty_like(h); _square[(h.numel() // 8,)](h, y, h.numel(), 8)
        # fmt: on
        return y * 1


class Served(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.head = nn.Linear(16, 16, bias=False)
        self.value = nn.Linear(16, 1)

    @torch.inference_mode()
    def forward(self, x):
        y = triton_kernels.rms_norm(self.fc(x), self.weight)
        y = triton_kernels.rms_norm(y, self.weight)
        return self.head(y) * self.value(y)


torch.manual_seed(0)
torch.set_num_threads(1)
found = {}
for model in (Normed(), Rotated(), OnOneLine(), Served()):
    report = audit(nn.Sequential(nn.Linear(16, 16), model, nn.Linear(16, 4)), torch.randn(3, 16))
    found[type(model).__name__] = report.as_dict()
print(json.dumps(found))
