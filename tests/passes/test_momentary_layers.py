"""Layers that a forward makes anew in every call."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import findings, stays

HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.body = nn.Linear(d, d)

"""


def model(body: str) -> str:
    return HEAD + textwrap.indent(textwrap.dedent(body), "    ")


MADE = {
    "named": """\
        def forward(self, x):
            h = self.body(x)
            out = nn.Linear(h.shape[-1], 4)
            return out(h)
        """,
    "moved": """\
        def forward(self, x):
            h = self.body(x).unsqueeze(1)
            mix = nn.Conv1d(1, 2, 3, padding=1).to(x.device)
            h = F.relu(mix(h))
            return h.flatten(1)
        """,
    "called-at-once": """\
        def forward(self, x):
            return nn.Linear(x.shape[-1], 4)(self.body(x))
        """,
    "in-an-argument": """\
        def forward(self, x):
            return F.relu(nn.Conv1d(1, 2, 3)(self.body(x).unsqueeze(1)))
        """,
    "a-table": """\
        def forward(self, x):
            return self.body(x + nn.Embedding(16, 8)(torch.arange(x.shape[0])))
        """,
    "attention": """\
        def forward(self, x):
            attend = nn.MultiheadAttention(8, 2)
            h, _ = attend(x, x, x)
            return self.body(h)
        """,
    "in-a-sequence": """\
        def forward(self, x):
            mlp = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).to(x.device)
            return mlp(self.body(x))
        """,
    "a-sequence-called-at-once": """\
        def forward(self, x):
            return nn.Sequential(nn.ReLU(), nn.Linear(8, 4))(self.body(x))
        """,
}


@pytest.mark.parametrize("body", MADE.values(), ids=MADE.keys())
def test_a_layer_of_one_call(body: str) -> None:
    (finding,) = findings(model(body))
    assert finding.rule == "TRN509" and "`Model.forward`" in finding.message
    assert not finding.fixes
    names: dict[str, Any] = {}
    exec(model(body), names)
    made, x = names["Model"](), torch.ones(2, 8)
    assert not torch.equal(made(x), made(x))
    assert len(list(made.parameters())) == 2


HELPERS = {
    "Model.project": """\
        def forward(self, x):
            return self.run(x)

        def run(self, x):
            return F.relu(self.project(self.body(x)))

        @staticmethod
        def project(h):
            out = nn.Linear(h.shape[-1], 4)
            return out(h)
        """,
    "project": """\
        def forward(self, x):
            return project(self.body(x))


    def project(h):
        return nn.Linear(h.shape[-1], 4)(h)
        """,
}


def with_helpers(body: str) -> str:
    """A function that stands behind the class is one step further out."""
    method, _, function = body.partition("\n\n\n")
    return f"{model(method)}\n\n\n{textwrap.dedent(function)}"


@pytest.mark.parametrize("name", HELPERS)
def test_in_what_a_forward_runs(name: str) -> None:
    text = with_helpers(HELPERS[name])
    (finding,) = findings(text)
    assert finding.rule == "TRN509" and f"`{name}` makes this `nn.Linear`" in finding.message
    names: dict[str, Any] = {}
    exec(text, names)
    made, x = names["Model"](), torch.ones(2, 8)
    assert not torch.equal(made(x), made(x))


RIGHT_HELPERS = {
    "without-gradients": """\
        def forward(self, x):
            with torch.no_grad():
                hashed = self.project(x)
            return self.body(x), hashed

        def project(self, h):
            out = nn.Linear(h.shape[-1], 4)
            return out(h)
        """,
    "a-cache": """\
        def forward(self, x):
            return project(8)[0] * self.body(x)


        @functools.cache
        def project(d):
            out = nn.Linear(d, 4)
            return out(torch.ones(d))
        """,
    "a-builder": """\
        def forward(self, x):
            return self.body(x), self.build(8)

        def build(self, d):
            out = nn.Linear(d, d)
            return out
        """,
    "for-init": """\
        def init(self, d):
            out = nn.Linear(d, d)
            self.table = out(torch.ones(d))

        def forward(self, x):
            return self.body(x) + self.table
        """,
    "of-other-names": """\
        def forward(self, x):
            return self.body.project(x)

        def project(self, h):
            out = nn.Linear(h.shape[-1], 4)
            return out(h)
        """,
}


@pytest.mark.parametrize("body", RIGHT_HELPERS.values(), ids=RIGHT_HELPERS.keys())
def test_helpers_that_are_right(body: str) -> None:
    stays(with_helpers(body), select=("TRN509",))


RIGHT = {
    "kept": """\
        def forward(self, x):
            if not hasattr(self, "out"):
                out = nn.Linear(x.shape[-1], 4)
                self.out = out
            return self.out(self.body(x))
        """,
    "a-fixed-filter": """\
        def forward(self, x):
            blur = nn.Conv1d(1, 1, 3, bias=False)
            blur.weight.data.fill_(1 / 3)
            return blur(self.body(x).unsqueeze(1))
        """,
    "without-weights": """\
        def forward(self, x):
            drop = nn.Dropout(0.1)
            return nn.Softmax(-1)(drop(self.body(x)))
        """,
    "constant-weights": """\
        def forward(self, x):
            return nn.LayerNorm(x.shape[1:])(self.body(x))
        """,
    "a-sequence-that-is-handed-out": """\
        def forward(self, x):
            mlp = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
            return self.body(x), mlp
        """,
    "a-sequence-with-given-weights": """\
        def forward(self, x):
            blur = nn.Sequential(nn.Conv1d(1, 1, 3, bias=False))
            blur[0].weight.data.fill_(1 / 3)
            return blur(self.body(x).unsqueeze(1))
        """,
    "no-gradient": """\
        def forward(self, x):
            h = self.body(x)
            with torch.no_grad():
                hashed = nn.Linear(8, 4)(x)
            return h, hashed
        """,
    "handed-out": """\
        def forward(self, x):
            head = nn.Linear(x.shape[-1], 4)
            return self.body(x), head
        """,
    "given-its-weights": """\
        def forward(self, x, state):
            head = nn.Linear(8, 4)
            return torch.func.functional_call(head, state, self.body(x))
        """,
    "in-init": """\
        def build(self, d):
            out = nn.Linear(d, 4)
            return out(torch.ones(d))
        """,
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT.keys())
def test_layers_that_are_right(body: str) -> None:
    stays(model(body), select=("TRN509",))
