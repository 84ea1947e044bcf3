"""A forward without gradients, where a part of the model is frozen or inherited."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import rules, stays

from trainify import Options, engine
from trainify.facts import Project
from trainify.passes import forward_scopes

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.head = {head}
        {freeze}

    @torch.no_grad()
    def forward(self, x):
        return self.head(self.base(x))
"""
HEAD = "nn.Linear(4, 4)"
IN_LOOP = "for p in {}:\n            p.requires_grad = False"


def model(freeze: str, head: str = HEAD) -> str:
    return MODEL.format(head=head, freeze=freeze)


@pytest.mark.parametrize(
    "freeze",
    [
        "self.base.requires_grad_(False)",
        IN_LOOP.format("self.base.parameters()"),
        "for n, p in self.base.named_parameters():\n            p.requires_grad_(False)",
        "for n, p in self.named_parameters():\n"
        '            if "head" not in n:\n                p.requires_grad = False',
        "for layer in self.base.layers:\n"
        "            for p in layer.parameters():\n                p.requires_grad = False",
        "self.scale = nn.Parameter(torch.ones(4), requires_grad=False)",
    ],
)
def test_what_is_not_frozen_learns(freeze: str) -> None:
    assert rules(model(freeze)) == ["TRN201"]


@pytest.mark.parametrize(
    ("freeze", "head"),
    [
        (IN_LOOP.format("self.parameters()"), HEAD),
        ("for n, p in self.named_parameters():\n            p.requires_grad = False", HEAD),
        ("for m in (self.base, self.head):\n            m.requires_grad_(False)", HEAD),
        ("for m in self.children():\n            m.requires_grad_(False)", HEAD),
        ("self.requires_grad_(False)", HEAD),
        ("self.head.requires_grad_(False)", HEAD),
        ("self.base.requires_grad_(False)", "nn.Linear(4, 4).requires_grad_(False)"),
        ("self.base.requires_grad_(False)", "nn.Parameter(base.w, requires_grad=False)"),
        ("freeze(self)\n        self.base.requires_grad_(False)", HEAD),
    ],
)
def test_a_model_of_which_all_is_frozen_stays(freeze: str, head: str) -> None:
    stays(model(freeze, head))


BASE = """\
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {made}
"""
DERIVED = """\
import torch
from .base import Base


class Model(Base):
    @torch.no_grad()
    def forward(self, x):
        return self.layer(x)
"""


@pytest.mark.parametrize(("made", "found"), [(HEAD, ["TRN201"]), ("nn.ReLU()", []), ("len", [])])
def test_weights_of_a_class_in_another_file(tmp_path: Path, made: str, found: list[str]) -> None:
    package = tmp_path / "net"
    package.mkdir()
    for name, text in {"__init__": "", "base": BASE.format(made=made), "model": DERIVED}.items():
        (package / f"{name}.py").write_text(text)
    file = str(package / "model.py")
    assert forward_scopes in engine.passes_for(DERIVED.encode(), Options())
    reported = engine.check_text(DERIVED, file, Options(), Project([tmp_path]))
    assert [finding.rule for finding in reported] == found
