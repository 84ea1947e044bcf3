"""A forward that gives codes and masks has nothing to learn by: its ``no_grad`` is right there."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import rules, stays

from trainify import Options, engine

TOKENIZER = """\
import torch
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.projection = nn.Linear(dim, 8)
        self.codebook = nn.Parameter(torch.randn(16, 8))

    def forward(self, x):
        distance = torch.cdist(self.projection(x), self.codebook)
        codes = torch.argmin(distance, dim=-1)
        return codes


class Tokenizer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.patches = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.quantizer = Quantizer(dim)

    def padding(self, mask):
        mask = mask.view(mask.size(0), -1, 4)
        mask = mask.any(-1)
        return mask

    @torch.no_grad()
    def forward(self, x, mask):
        mask = self.padding(mask)
        features = self.norm(self.patches(x))
        codes = self.quantizer(features)
        lengths = (~mask).sum(1)
        return codes, lengths
"""


@pytest.mark.parametrize(
    "result",
    [
        "codes, lengths",
        "codes.view(-1), ~mask",
        "(codes + 1) * 2 if lengths is None else codes",
        "features.topk(2, -1)[1].long(), mask",
        "self.padding(mask), lengths.clamp(max=4)",
    ],
)
def test_codes_and_lengths(result: str) -> None:
    stays(TOKENIZER.replace("return codes, lengths", f"return {result}"))


@pytest.mark.parametrize(
    "result",
    [
        "codes, features",
        "features * mask",
        "mask.where(mask, features)",
        "self.norm(codes)",
        "features",
    ],
)
def test_what_else_it_gives_can_learn(result: str) -> None:
    assert rules(TOKENIZER.replace("return codes, lengths", f"return {result}")) == ["TRN201"]


def test_a_quantizer_that_gives_what_it_looked_up() -> None:
    text = TOKENIZER.replace("return codes\n", "return self.codebook[codes]\n")
    assert rules(text) == ["TRN201"]


def test_values_that_come_with_their_indices() -> None:
    kept = "codes = self.quantizer(features)"
    stays(TOKENIZER.replace(kept, "_, codes = features.max(-1)"))
    assert rules(TOKENIZER.replace(kept, "codes, _ = features.max(-1)")) == ["TRN201"]


def test_a_quantizer_of_another_file(tmp_path: Path) -> None:
    quantizer, tokenizer = TOKENIZER.split("class Tokenizer", 1)
    (tmp_path / "quantizer.py").write_text(quantizer)
    text = f"import torch\nfrom torch import nn\nfrom quantizer import Quantizer\n\n\nclass Tokenizer{tokenizer}"
    (tmp_path / "model.py").write_text(text)
    assert not engine.check_text(text, str(tmp_path / "model.py"), Options())
    (tmp_path / "quantizer.py").write_text(quantizer.replace("return codes", "return distance"))
    assert engine.check_text(text, str(tmp_path / "model.py"), Options())
