"""Caches in an object that no call made: of the top level, or what a function gives of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, rules

from trainify.engine import check_paths

NET = """\
from contextvars import ContextVar

import torch
from torch import nn


class Context:
    def __init__(self):
        self.k, self.v = torch.zeros(8, 4), torch.zeros(8, 4)


CTX = Context()
VAR = ContextVar("ctx", default=CTX)


def get_context():
    return CTX


def new_context():
    return Context()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, slots):
        q, k, v = self.q(x), self.k(x), self.v(x)
        {}
        ctx.k[slots] = k
        ctx.v[slots] = v
        return torch.softmax(q @ ctx.k.mT, -1) @ ctx.v
"""
KEPT = ["ctx = get_context()", "ctx = CTX", "ctx = VAR.get()", "CTX"]
OWN = ["ctx = Context()", "ctx = new_context()"]


def module(made: str) -> str:
    text = NET.format(made if made != "CTX" else "pass")
    return text.replace("ctx.k", "CTX.k").replace("ctx.v", "CTX.v") if made == "CTX" else text


def step(text: str, times: int) -> None:
    scope: dict[str, Any] = {}
    exec(text, scope)
    net, slots = scope["Attention"](), torch.arange(3)
    for _ in range(times):
        net(torch.randn(3, 4), slots).sum().backward()


@pytest.mark.parametrize("made", KEPT)
def test_what_outlives_the_call_keeps_the_graph(made: str) -> None:
    text = module(made)
    with pytest.raises(RuntimeError, match="second time"):
        step(text, 2)
    assert rules(text) == ["TRN401", "TRN401"]
    assert all(f.message.count("is written and read back") for f in findings(text))
    assert fix(text) == text  # none of it is safe


@pytest.mark.parametrize("made", OWN)
def test_what_the_call_made_does_not(made: str) -> None:
    step(module(made), 2)
    assert rules(module(made)) == []


def test_an_object_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    at = NET.index("class Attention")
    (tmp_path / "context.py").write_text(NET[:at])
    head = "import torch\nfrom torch import nn\n\nfrom .context import CTX\n\n\n"
    (tmp_path / "net.py").write_text(head + module("CTX")[NET.index("class Attention") :])
    found = [f.rule for r in check_paths([str(tmp_path)]) for f in r.findings]
    assert found == ["TRN401", "TRN401"]
