"""Values that a step puts into a list or a dict, and that the next one reads again."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest
import torch
from verbs import findings, fix, stays

HEAD = """\
import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self, d=4, n=2):
        super().__init__()
        self.k = nn.Linear(d, d)
        self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(n)])
        {made}

"""


def memory(made: str, body: str) -> str:
    return HEAD.format(made=made) + textwrap.indent(textwrap.dedent(body), "    ")


def two_steps(text: str) -> torch.Tensor:
    """The gradient that two steps of training leave."""
    names: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), names)
    torch.manual_seed(0)
    model = names["Memory"]()
    for _ in range(2):
        model(torch.ones(1, 2, 4)).sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([g.flatten() for g in gradients])


STATE = """\
def forward(self, x, i=0):
    k = self.k(x)
    if i in self.state:
        k = torch.cat([self.state[i], k], 1)
    self.state[i] = k
    return k
"""
CACHE = """\
def forward(self, x):
    for i, layer in enumerate(self.layers):
        k = layer(x)
        if self.state[i] is not None:
            k = torch.cat([self.state[i], k], 1)
        self.state[i] = k
        x = k[:, -x.shape[1] :]
    return x
"""


@pytest.mark.parametrize(
    ("made", "body"),
    [
        ("self.state = {}", STATE),
        ("self.state: dict[int, torch.Tensor] = dict()", STATE),
        ("self.state = [None] * n", CACHE),
    ],
)
def test_what_the_next_step_joins_is_kept_detached(made: str, body: str) -> None:
    text = memory(made, body)
    (finding,) = findings(text)
    assert finding.rule == "TRN408" and "`self.state`" in finding.message
    with pytest.raises(RuntimeError, match="second time"):
        two_steps(text)
    fixed = fix(text)
    assert fixed == text.replace("= k\n", "= k.detach()\n")
    # the same as if the state had been given in from outside, without a graph
    assert two_steps(fixed).isfinite().all() and (two_steps(fixed) != 0).any()


@pytest.mark.parametrize("names", ["s s", "self s"])
def test_methods_that_call_their_object_otherwise(names: str) -> None:
    made, step = names.split()
    head, forward = memory("self.state = {}", STATE).split("    def forward")
    text = re.sub(r"\bself\b", made, head) + re.sub(r"\bself\b", step, "    def forward" + forward)
    (finding,) = findings(text)
    assert finding.rule == "TRN408"
    assert fix(text) == text.replace("= k\n", "= k.detach()\n")


def test_what_is_read_afterwards_is_reported_only() -> None:
    text = memory(
        "self.keys = []",
        """\
        def forward(self, x):
            self.keys.append(self.k(x))
            return torch.cat(self.keys, 1)
        """,
    )
    (finding,) = findings(text)
    assert finding.rule == "TRN408" and not finding.fixes
    with pytest.raises(RuntimeError, match="second time"):
        two_steps(text)


def test_a_recurrence_within_a_step_is_not_cut() -> None:
    """One index for all turns of a loop: detached, the turns of one step would not learn."""
    text = memory(
        "self.state = {}",
        """\
        def forward(self, x):
            for t in range(x.shape[1]):
                h = self.k(x[:, t])
                if "h" in self.state:
                    h = h + self.state["h"]
                self.state["h"] = h
            return h
        """,
    )
    (finding,) = findings(text)
    assert finding.rule == "TRN408" and not finding.fixes


RIGHT = {
    "detached": ("self.state = {}", STATE.replace("= k\n", "= k.detach()\n")),
    "emptied": ("self.state = {}", STATE + "\ndef reset(self):\n    self.state.clear()\n"),
    "made-anew": ("self.state = {}", STATE + "\ndef reset(self):\n    self.state = {}\n"),
    "made-anew-by-each-call": (
        "self.state = []",
        """\
        def forward(self, x):
            self.state = []
            for layer in self.layers:
                x = layer(x)
                self.state.append(x)
            return torch.cat(self.state)
        """,
    ),
    "not-read": (
        "self.state = {}",
        "def forward(self, x):\n    self.state[0] = self.k(x)\n    return x\n",
    ),
    "local": (
        "pass",
        STATE.replace(
            "def forward(self, x, i=0):", "def forward(self, x, i=0):\n    state = {}"
        ).replace("self.state", "state"),
    ),
    "a-table": (
        "self.state = {}",
        """\
        def forward(self, x):
            n = x.shape[1]
            if n not in self.state:
                self.state[n] = torch.arange(n)
            return self.k(x) + self.state[n][None, :, None]
        """,
    ),
    "inference": ("self.state = {}", "@torch.no_grad()\n" + STATE.replace("forward", "generate")),
    "an-option": (
        "self.state = {}",
        STATE.replace("    self.state[i] = k", "    if self.use_cache:\n        self.state[i] = k"),
    ),
}


@pytest.mark.parametrize(("made", "body"), RIGHT.values(), ids=RIGHT.keys())
def test_lists_and_dicts_that_are_right(made: str, body: str) -> None:
    stays(memory(made, body), select=("TRN408",))


ANEW = {
    "by a constant key": """\
        def forward(self, x):
            self.state["h"] = self.k(x)
            y = self.k(self.state["h"])
            return y + self.state["h"]
        """,
    "beside another key": """\
        def forward(self, x):
            self.state["h"] = self.k(x)
            self.state["g"] = self.k(self.state["h"])
            return self.state["g"] + self.state["h"]
        """,
    "by the place of a layer": """\
        def forward(self, x):
            for i, layer in enumerate(self.layers):
                self.state[i] = layer(x)
                x = x + self.state[i]
            return x + self.state[0]
        """,
    "all of them": """\
        def forward(self, x):
            for i in range(len(self.layers)):
                x = self.layers[i](x)
                self.state[i] = x
            return torch.stack(list(self.state.values())).sum(0)
        """,
}


@pytest.mark.parametrize("name", ANEW)
def test_what_each_call_puts_in_before_it_reads_stays(name: str) -> None:
    text = memory("self.state = {}", ANEW[name])
    stays(text)
    assert two_steps(text).isfinite().all()


@pytest.mark.parametrize(
    "body",
    [
        # What the first steps have put in is read again, by another key.
        """\
        def forward(self, x):
            n = len(self.state)
            self.state[n] = self.k(x)
            return torch.stack(list(self.state.values())).sum(0)
        """,
        """\
        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = layer(x)
                self.state[i] = x
                x = x + self.state.get(1 - i, 0)
            return x
        """,
        """\
        def forward(self, x):
            if not self.state:
                self.state["h"] = self.k(x)
            return x + self.state["h"]
        """,
    ],
)
def test_what_is_read_before_it_is_put_in_anew(body: str) -> None:
    text = memory("self.state = {}", body)
    assert [f.rule for f in findings(text)] == ["TRN408"]
    with pytest.raises(RuntimeError, match="second time"):
        two_steps(text)


def test_rows_that_a_loop_writes_into_a_buffer() -> None:
    text = memory(
        'self.register_buffer("rows", torch.zeros(2, 4))',
        """\
        def forward(self, x):
            self.rows.zero_()
            for i, row in enumerate(self.k(x)[0]):
                self.rows[i] = row
            return self.rows * 2
        """,
    )
    assert [f.rule for f in findings(text)] == ["TRN408"]
    with pytest.raises(RuntimeError, match="second time"):
        two_steps(text)
    stays(text.replace("= row\n", "= row.detach()\n"))
