"""States that a forward computes from what the call before left: nothing sets them back."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, stays

from trainify.engine import Options, check_text
from trainify.facts import Project

HEAD = """\
import torch
from torch import nn


def repackage(h):
    return h.detach()


class Cell(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.l = nn.Linear(d, d)
        self.decay = nn.Parameter(torch.ones(d))
        self.state = None
        self.level = torch.zeros(d)

    def forward(self, xs):
"""


def cell(lines: str, more: str = "") -> str:
    return HEAD + textwrap.indent(lines, "        ") + "\n" + more


def steps(text: str, reset: bool = False) -> Any:
    """The gradients of the second step of training, by hand cut off from the first one."""
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    torch.manual_seed(0)
    model = scope["Cell"]()
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(3, 2, 4)).square().sum().backward()
        if reset and model.state is not None:
            model.state = model.state.detach()
        model.level = model.level.detach() if reset else model.level
    return [p.grad for p in model.parameters()]


SCAN = """\
h = xs.new_zeros(2, 4) if self.state is None else self.state
ys = []
for x in xs:
    h = torch.tanh(h * self.decay + self.l(x))
    ys.append(h)
self.state = h
return torch.stack(ys)"""
FOUND = {
    "a conditional expression": SCAN,
    "an if": SCAN.replace(
        "h = xs.new_zeros(2, 4) if self.state is None else self.state",
        "h = xs.new_zeros(2, 4)\nif self.state is not None:\n    h = self.state",
    ),
    "the attribute": (
        "if self.state is None:\n    self.state = xs.new_zeros(2, 4)\nh = self.l(xs[0]) + self.state\n"
        "self.state = h\nreturn h.relu()"
    ),
    "a layer": (
        "h = self.l(xs.mean(0) if self.state is None else self.state)\nself.state = h\nreturn h * h"
    ),
    "a tensor from the start": (
        "h = (xs * self.decay).mean((0, 1)) + self.level\nself.level = self.level * 0.9 + h\nreturn h"
    ),
}


@pytest.mark.parametrize("lines", FOUND.values(), ids=FOUND)
def test_the_next_step_walks_into_this_one(lines: str) -> None:
    text = cell(lines)
    with pytest.raises(RuntimeError, match="second time"):
        steps(text)
    (finding,) = findings(text)
    assert finding.rule == "TRN408" and "walks into it and fails" in finding.message
    made = finding.fix("flag")
    assert made is not None and made.safety == "unsafe" and "several calls" in made.look_at
    fixed = fix(text, unsafe=True)
    stays(fixed)
    torch.testing.assert_close(steps(fixed), steps(text, reset=True))


def test_a_state_that_is_read_afterwards_is_reported_only() -> None:
    text = cell(
        "if self.state is None:\n    self.state = xs.new_zeros(2, 4)\n"
        "for x in xs:\n    self.state = torch.tanh(self.l(x) + self.state)\nreturn self.state"
    )
    with pytest.raises(RuntimeError, match="second time"):
        steps(text)
    (finding,) = findings(text)
    assert finding.rule == "TRN408" and not finding.fixes


LAST = "if self.state is not None:\n    xs = xs + 0.0\nself.state = self.l(xs)\nreturn self.state"
RIGHT = {
    "detached": SCAN.replace("self.state = h", "self.state = h.detach()"),
    "detached where it is read": SCAN.replace("else self.state", "else self.state.detach()"),
    "cut by a function": SCAN.replace("else self.state", "else repackage(self.state)"),
    "under no_grad": SCAN.replace(
        "self.state = h", "with torch.no_grad():\n    self.state = h * 1.0"
    ),
    "made anew": SCAN.replace("h = xs", "self.state = None\nh = xs"),
    "only its shape": SCAN.replace("else self.state\n", "else torch.zeros_like(self.state)\n"),
    "not its own": LAST,
    "a number": (
        "n = 0 if self.state is None else self.state\nself.state = n + 1\nreturn self.l(xs) * n"
    ),
    "of the input": (
        "n = xs if self.state is None else self.state\nself.state = n + xs\nreturn self.l(xs) * n"
    ),
}


@pytest.mark.parametrize("lines", RIGHT.values(), ids=RIGHT)
def test_states_that_each_step_may_keep(lines: str) -> None:
    steps(cell(lines))
    stays(cell(lines), select=("TRN408",))


SET_BACK = {
    "a method": "\n    def reset(self):\n        self.state = None\n",
    "the loop": "\n\ndef train(model, xs):\n    model.state = None\n    model(xs).sum().backward()\n",
    "deleted": "\n\ndef train(model, xs):\n    model(xs).sum().backward()\n    del model.state\n",
    "a subclass": "\n\nclass Own(Cell):\n    def begin(self):\n        self.state = None\n",
    "the graph": "\n\ndef train(model, xs):\n    model(xs).sum().backward(retain_graph=True)\n",
    "a setting": None,
}


@pytest.mark.parametrize("more", SET_BACK.values(), ids=SET_BACK)
def test_what_may_be_set_back_cannot_be_judged(more: str | None) -> None:
    lines = SCAN if more else SCAN.replace("self.state = h", "if self.streams:\n    self.state = h")
    stays(cell(lines, more or ""), select=("TRN408",))


def test_another_file_sets_it_back(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from cell import Cell\n\nmodel = Cell()\n\n\ndef begin():\n    model.state = None\n"
    )
    path = tmp_path / "cell.py"
    path.write_text(cell(SCAN))
    options = Options(select=("TRN408",))
    found = check_text(cell(SCAN), str(path), options, Project([tmp_path]))
    assert not found
    assert check_text(cell(SCAN), "cell.py", options)


def test_statistics_of_a_layer_that_weights_are_ahead_of() -> None:
    text = """\
import torch
from torch import nn


class RunningNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.register_buffer("mean", torch.zeros(d))

    def forward(self, x):
        if self.training:
            mean = x.mean(0)
            self.mean = 0.9 * self.mean + 0.1 * mean
        else:
            mean = self.mean
        return (x - mean) * self.weight


net = nn.Sequential(nn.Linear(4, 4), RunningNorm(4))
"""
    (finding,) = findings(text)
    assert finding.rule == "TRN408" and "memory, which grows" in finding.message
    for each, kept in ((text, True), (fix(text), False)):
        scope: dict[str, Any] = {}
        exec(compile(each, "m.py", "exec"), scope)
        scope["net"](torch.randn(3, 4)).sum().backward()
        assert (scope["net"][1].mean.grad_fn is not None) is kept
    stays(text.replace("nn.Linear(4, 4), RunningNorm(4)", "RunningNorm(4), nn.Linear(4, 4)"))


def test_a_cache_that_is_moved_and_then_written_is_a_cache() -> None:
    text = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wk = nn.Linear(4, 4)
        self.cache_k = torch.zeros(2, 8, 4)

    def forward(self, x, start):
        xk = self.wk(x)
        self.cache_k = self.cache_k.to(xk)
        self.cache_k[:, start : start + x.shape[1]] = xk
        return self.cache_k[:, : start + x.shape[1]]
"""
    assert [finding.rule for finding in check_text(text)] == ["TRN401"]
