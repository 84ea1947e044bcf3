"""Nothing that a check works out holds the file's tree in a cycle: workers look for no garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from trainify import passes
from trainify.engine import Check

STATE = """\
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.state = None

    def forward(self, x):
        h = torch.zeros_like(x) if self.state is None else self.state
        for step in range(3):
            h = torch.tanh(self.layer(x) + h)
        self.state = h
        return h
"""
BESIDE = """\
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Linear(4, 2)
        self.v = nn.Linear(2, 1)

    @torch.no_grad()
    def forward(self, x):
        return self.v(self.pi(x))

    def score(self, x):
        return self.v(torch.tanh(self.pi(x)))
"""
SITES_KNOW_EACH_OTHER = {"TRN101", "TRN102", "TRN113"}
TEXTS = {code: rule.before for code, rule in passes.all_rules().items() if rule.before}


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "text",
    [
        *(
            pytest.param(TEXTS[code], id=code)
            for code in sorted(TEXTS.keys() - SITES_KNOW_EACH_OTHER)
        ),
        pytest.param(STATE, id="own state"),
        pytest.param(BESIDE, id="methods beside a forward"),
    ],
)
def test_trees_are_freed(text: str) -> None:
    check = Check(text)
    module = weakref.ref(check._module)
    assert check.findings()
    del check
    assert module() is None
