"""TRN201 of a model that is given its modules, as SAM is: ``Sam(encoder, decoder)``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import findings, fix, rules, stays

PARTS = """\
from typing import Optional

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        return self.proj(x)


class Decoder(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.transformer = nn.Linear(d, d)

    def forward(self, x):
        masks = self.predict_masks(x)
        return masks[..., :2]

    def predict_masks(self, x):
        return self.transformer(x)


"""
MODEL = """\
class Sam(nn.Module):
    def __init__(self, encoder: Encoder, decoder: Decoder, size: int = 4):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.size = size

    @torch.no_grad()
    def forward(self, x):
        return self.decoder(self.encoder(x))
"""
BUILD = """\


def build():
    sam = Sam(Encoder(), Decoder())
    sam.eval()
    return sam
"""


def test_it_learns_by_what_it_is_given() -> None:
    text = PARTS + MODEL + BUILD
    (found,) = findings(text)
    assert found.rule == "TRN201" and "given to Sam" in found.fixes["flag"].look_at
    assert fix(text) == text
    scope: dict[str, Any] = {}
    exec(compile(fix(text, unsafe=True), "m.py", "exec"), scope)
    sam = scope["build"]()
    assert not sam(torch.ones(2, 4)).requires_grad
    sam.train()(torch.ones(2, 4)).sum().backward()
    assert all(p.grad is not None for p in sam.parameters())


def test_what_a_forward_goes_on_with_starts_no_inference() -> None:
    assert "no_grad" not in fix(PARTS + MODEL + BUILD, unsafe=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.decoder(self.encoder(x))", "self.decoder(self.encoder(x)).argmax(-1)"),
        ("decoder: Decoder", "decoder"),
        ("decoder: Decoder", "decoder: nn.Module"),
        ("class Sam", "class SamSampler"),
        ("self.decoder = decoder", "self.decoder = decoder.eval()"),
        ("self.encoder = encoder", "self.teacher = encoder"),
        ("self.size = size", "self.encoder.requires_grad_(False)"),
    ],
)
def test_what_only_uses_modules_stays(old: str, new: str) -> None:
    stays(PARTS + MODEL.replace(old, new))


def test_an_optional_module_is_one_too() -> None:
    assert rules(PARTS + MODEL.replace(": Decoder", ": Optional[Decoder]")) == ["TRN201"]


CODEC = """\
class Codec(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.encoder = nn.Linear(d, d)


class Features(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.codec = Codec(d)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        return self.proj(self.codec.encoder(x))

    def infer(self, x):
        return self.codec.encoder(x)


"""


def test_what_a_part_infers_does_not_run_the_whole() -> None:
    text = PARTS + CODEC + MODEL.replace(": Encoder", ": Features") + BUILD
    assert rules(text) == ["TRN201"]
    assert "@torch.no_grad()" not in fix(text, unsafe=True)
    owned = text.replace("self.codec.encoder(x)\n\n\n", "self.model(x)\n\n\n")
    assert "`Features.infer`" in findings(owned)[0].message
