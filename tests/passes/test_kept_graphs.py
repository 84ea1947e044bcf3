"""Values that are kept for the next call: the second step fails as written, and learns as fixed."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, stays

HEAD = """\
import functools

import torch
import torch.nn.functional as F
from torch import nn

POOL = {}


def move(mean, h, rate=0.1):
    mean.mul_(1 - rate).add_(h, alpha=rate)


def move_apart(mean, h):
    with torch.no_grad():
        mean.mul_(0.9).add_(h, alpha=0.1)


def move_numbers(h, mean):
    new = h.detach()
    mean.mul_(0.9).add_(new, alpha=0.1)


def centered(mean, h):
    mean.lerp_(h.mean(0), 0.1)
    return h * 2.0


def workspace(shape):
    return POOL.setdefault(shape, torch.zeros(shape))


def kept(shape):
    if shape not in POOL:
        POOL[shape] = torch.zeros(shape)
    return POOL[shape]


@functools.lru_cache(maxsize=None)
def scratch(*shape):
    return torch.zeros(shape)


class Net(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.proj = nn.Sequential(nn.Linear(d, d), nn.Tanh())
        self.gain = nn.Parameter(torch.ones(d))
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer('memory', torch.zeros(8, d))
        self.past = self.state = None
        self.level = torch.zeros(d)

    def forward(self, x):
        h = self.proj(x)
"""

BUFFERS = {
    "add": "self.mean.mul_(0.9).add_(0.1 * h.mean(0))",
    "add, one by one": "m = h.mean(0)\nself.mean.mul_(0.9)\nself.mean.add_(m, alpha=0.1)",
    "lerp": "if self.training:\n    self.mean.lerp_(h.mean(0), 0.1)",
    "sum": "self.mean += h.mean(0)",
    "slice": "self.memory[: x.shape[0]] = h",
    "copy": "self.memory[:3].copy_(h)",
    "index": "self.memory.index_copy_(0, torch.arange(3), h)",
    "product": "self.mean.add_((x * h).mean(0))",
    "local name": "m = self.memory\nm[: x.shape[0]] = h",
    "local name, a chain": "m = self.mean\nm.mul_(0.9).add_(h.mean(0), alpha=0.1)",
    "local name of a view": "m = self.memory[:3]\nm.copy_(h)",
    "local name of another view": "m = self.memory.view(2, 4, 4)\nm[0, :3] += h",
    "by a function": "move(self.mean, h.mean(0))",
    "by a function, a name": "m = h.mean(0)\nmove(self.mean, m, rate=0.5)",
    "plain tensor": "self.level.mul_(0.9).add_(h.mean(0))",
    "anew": "self.mean = 0.9 * self.mean + 0.1 * h.mean(0)",
    "anew, in training": "if self.training:\n    self.mean = torch.lerp(self.mean, h.mean(0), 0.1)",
    "rolled": "self.memory = torch.roll(self.memory, -1, 0)\nself.memory[-1] = h[0]",
    "rolled, plain": "self.level = torch.roll(self.level, shifts=1)\nself.level.lerp_(h[0], 0.5)",
    "pool": "b = workspace((8, 4))\nb[:3] = h\nh = b[:3] * 2.0",
    "dict": "b = kept((8, 4))\nb[:3].copy_(h)\nh = b[:3] * 2.0",
    "memoized": "b = scratch(8, 4)\nb.index_copy_(0, torch.arange(3), h)\nh = b[:3] * 2.0",
    "own pool": "b = POOL.setdefault(4, torch.zeros(8, 4))\nb[:3] = h\nh = b[:3] * 2.0",
    "joined": "if self.past is not None:\n    h = torch.cat([self.past, h])\nself.past = h",
    "pair": (
        "k, v = h, x * self.gain\nif self.past is not None:\n    k = torch.cat([self.past[0], k])\n"
        "    v = torch.cat([self.past[1], v])\nself.past = (k, v)\nh = k * v"
    ),
}


def module(lines: str) -> str:
    return HEAD + textwrap.indent(f"{lines}\nreturn h\n", "        ")


def steps(text: str) -> Any:
    """Three steps of training; gives the gradients of the last one."""
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    torch.manual_seed(0)
    net = scope["Net"]()
    for _ in range(3):
        net.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
    return [p.grad for p in net.parameters()]


READ = "h = h - self.mean + self.memory[:3].sum(0) + self.level\n"


@pytest.mark.parametrize("lines", BUFFERS.values(), ids=BUFFERS)
def test_the_second_step_fails_as_written_and_learns_as_fixed(lines: str) -> None:
    text = module(READ + lines)
    with pytest.raises(RuntimeError, match="second time"):
        steps(text)
    found = findings(text)
    assert {f.rule for f in found} == {"TRN408"}
    assert "fails" in found[0].message or "gives the same tensor again" in found[0].message
    fixed = fix(text)
    stays(fixed)
    if "h = b[:3] * 2.0" in lines:
        by_hand = "h = h * 2.0"
    elif "past" in lines:
        by_hand = lines.replace("self.past = h", "self.past = h.detach()").replace(
            "self.past = (k, v)", "self.past = [t.detach() for t in (k, v)]"
        )
    else:
        by_hand = "with torch.no_grad():\n" + textwrap.indent(lines, "    ")
    for ours, right in zip(steps(fixed), steps(module(READ + by_hand)), strict=True):
        assert (ours is None) == (right is None)
        if ours is not None:
            torch.testing.assert_close(ours, right)


def test_graphs_that_nothing_reads_stay_in_memory() -> None:
    text = module(BUFFERS["lerp"])
    (finding,) = findings(text)
    assert "memory, which grows" in finding.message
    for each, kept in ((text, True), (fix(text), False)):
        scope: dict[str, Any] = {}
        exec(compile(each, "m.py", "exec"), scope)
        net = scope["Net"]()
        net(torch.randn(3, 4))
        assert (net.mean.grad_fn is not None) is kept


@pytest.mark.parametrize(
    "reads",
    [
        "m = self.memory[:3]\nn = m\nm.copy_(h)\nh = h + n",
        "k = self.memory\nn = k[:3]\nself.memory[:3] = h\nh = h + n",
        "m = self.memory[:3]\nself.last = [m]\nm.copy_(h)\nh = h + self.last[0]",
    ],
)
def test_what_is_read_by_a_name_of_a_name_keeps_its_gradient(reads: str) -> None:
    text = module(reads)
    (finding,) = findings(text)
    assert finding.rule == "TRN408"
    assert not finding.fixes or finding.fixes["flag"].safety == "unsafe"


def test_what_is_read_by_a_local_name_fails() -> None:
    text = module("m = self.mean\nm.mul_(0.9).add_(h.mean(0), alpha=0.1)\nh = h - m")
    with pytest.raises(RuntimeError, match="second time"):
        steps(text)
    (finding,) = findings(text)
    assert "fails" in finding.message and not finding.fixes


def test_a_function_that_gives_more_than_it_writes_is_reported_only() -> None:
    text = module(f"{READ}h = centered(self.mean, h)")
    with pytest.raises(RuntimeError, match="second time"):
        steps(text)
    (finding,) = findings(text)
    assert finding.rule == "TRN408" and not finding.fixes
    assert finding.message.startswith("`self.mean` outlives the step, and keeps the graph of `h`")


RIGHT = {
    "by a function under no_grad": "move_apart(self.mean, h.mean(0))",
    "by a function, detached": "move_numbers(h.mean(0), self.mean)",
    "by a function, of the input": "move(self.mean, x.mean(0))",
    "by a function, into another": "m = torch.zeros(4)\nmove(m, h.mean(0))\nh = h + m",
    "under no_grad": "with torch.no_grad():\n    self.mean.mul_(0.9).add_(0.1 * h.mean(0))",
    "detached": "self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))",
    "detached before": "m = h.detach().mean(0)\nself.mean.lerp_(m, 0.1)",
    "data": "self.mean.data.add_(h.mean(0))",
    "detached target": "self.memory.detach()[:3] = h.detach()",
    "input": "self.mean += x.mean(0)",
    "numbers": "self.mean += h.shape[0]",
    "evaluation": "if not self.training:\n    self.memory[:3] = h",
    "anew, detached": "self.mean = 0.9 * self.mean + 0.1 * h.mean(0).detach()",
    "copy of a pool": "b = workspace((8, 4)).clone()\nb[:3] = h\nh = b[:3] * 2.0",
    "fresh": "b = torch.zeros(8, 4)\nb[:3] = h\nh = b[:3] * 2.0",
    "input in a pool": "b = workspace((8, 4))\nb[:3] = x\nh = h + b[:3]",
    "mask of a pool": "h = h.masked_fill(workspace((3, 4)) > 0, 0.0)",
    "past, detached": (
        "if self.past is not None:\n    h = torch.cat([self.past, h])\nself.past = h.detach()"
    ),
    "last": "self.past = h",
    "local name, detached": "m = self.mean\nm.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)",
    "local name of values": "m = self.memory.detach()\nm[:3] = h.detach()",
    "local copy": "m = self.memory.clone()\nm[:3] = h\nh = m.sum(0)",
    "plain tensor, detached": "self.level.mul_(0.9).add_(h.detach().mean(0))",
    "rolled, detached": (
        "self.memory = torch.roll(self.memory, -1, 0)\nself.memory[-1] = h[0].detach()\n"
        "h = h + self.memory.sum(0)"
    ),
    "made anew": (
        "self.mean = torch.zeros_like(self.mean)\nfor row in x:\n"
        "    self.mean = self.mean * 0.9 + row * self.gain\nh = h - self.mean"
    ),
    "made anew, joined": (
        "self.past = x[:0]\nfor row in x:\n"
        "    self.past = torch.cat([self.past, row[None] * self.gain])\nh = h + self.past"
    ),
    "made anew, in place": "self.memory = self.memory.new_zeros(8, 4)\nself.memory[:3] = h\n"
    "h = h + self.memory[:3]",
    "made anew, as a buffer": (
        "with torch.no_grad():\n    self.register_buffer('mean', torch.zeros(4))\n"
        "self.mean = self.mean + h.mean(0)\nh = h - self.mean"
    ),
    "cut off": (
        "self.mean = torch.tanh(self.mean.detach())\nfor row in x:\n"
        "    self.mean = self.mean * 0.9 + row * self.gain\nh = h - self.mean"
    ),
    "chunks": "if self.state is None:\n    self.state = torch.zeros(4)\nh = h + self.state",
}


@pytest.mark.parametrize("lines", RIGHT.values(), ids=RIGHT)
def test_what_runs_step_after_step_stays(lines: str) -> None:
    steps(module(lines))
    stays(module(lines))


JOINED = "if self.past is not None:\n    h = torch.cat([self.past, h])\nself.past = h"


@pytest.mark.parametrize(
    "more",
    [
        "\n    def reset(self):\n        self.past = None\n",
        "\n\ndef train(net, x):\n    net.past = None\n    net(x).sum().backward()\n",
        "\n    def begin(self):\n        self.register_buffer('past', None)\n",
        "\n    def forget(self):\n        self.past = self.past.detach()\n",
    ],
)
def test_what_others_may_reset_cannot_be_judged(more: str) -> None:
    stays(module(JOINED) + more)


def test_a_plain_tensor_that_another_method_makes_anew() -> None:
    reset = "\n    def reset(self):\n        self.level = torch.zeros(4)\n"
    stays(module("self.level.add_(h.mean(0))") + reset)


def test_a_buffer_that_another_method_registers_anew() -> None:
    begin = "\n    def begin(self):\n        self.register_buffer('mean', torch.zeros(4))\n"
    stays(module("self.mean.add_(h.mean(0))\nh = h * self.mean") + begin)


@pytest.mark.parametrize(
    "lines",
    [
        "if x.shape[0] > 3:\n    self.mean = torch.zeros_like(self.mean)\n",
        "for row in h:\n    self.mean = torch.zeros_like(self.mean)\n",
        "self.mean = self.mean.clone()\n",
    ],
)
def test_what_may_stay_is_not_made_anew(lines: str) -> None:
    step = "self.mean = 0.9 * self.mean + 0.1 * h.mean(0)\nh = h - self.mean"
    text = module(lines.replace("for row in h", "for row in h[:0]") + step)
    assert {f.rule for f in findings(text)} == {"TRN408"}
    with pytest.raises(RuntimeError, match="second time"):
        steps(text)


def test_a_buffer_that_is_read_without_its_graph_only_grows() -> None:
    lines = "m = self.mean.detach() * 0.9 + h.mean(0) * 0.1\nself.mean.copy_(m)\nh = h - m"
    (finding,) = findings(module(lines))
    assert "memory, which grows" in finding.message
    steps(module(lines))
    becomes(module(lines), module(lines.replace("copy_(m)", "copy_(m.detach())")))


def test_what_an_option_switches_cannot_be_judged() -> None:
    lines = JOINED.replace("self.past = h", "if use_cache:\n    self.past = h")
    stays(module(lines).replace("forward(self, x)", "forward(self, x, use_cache=False)"))


def test_a_buffer_that_is_read_after_the_write_is_read_fresh() -> None:
    text = module("self.memory[:3] = h\nh = self.memory.sum(0) * h")
    by_hand = "m = self.memory.clone()\nm[:3] = h\nh = m.sum(0) * h"
    torch.testing.assert_close(steps(fix(text))[:2], steps(module(by_hand))[:2])


def test_a_mean_that_is_read_after_it_was_moved_is_reported_only() -> None:
    (finding,) = findings(module("self.mean.lerp_(h.mean(0), 0.1)\nh = h - self.mean"))
    assert finding.rule == "TRN408" and not finding.fixes


WINDOW = """\
k, v = h, h * self.gain
if self.past is not None:
    self.past = torch.cat([self.past, k], 0)[-5:]
    self.state = torch.cat([self.state, v], 0)[-5:].contiguous()
else:
    self.past, self.state = k, v
h = (h @ self.past.T).softmax(-1) @ self.state
"""


@pytest.mark.parametrize(
    ("lines", "at"),
    [(WINDOW, [58, 59]), ("self.memory = torch.roll(self.memory, -1, 0)\nself.memory[-1] = h[0]\n"
                          "h = h + self.memory.sum(0)\n", [56])],
)  # fmt: skip
def test_a_window_over_the_last_steps_is_reported_only(lines: str, at: list[int]) -> None:
    found = findings(module(lines))
    assert [(f.rule, f.line, bool(f.fixes)) for f in found] == [("TRN408", n, False) for n in at]
    with pytest.raises(RuntimeError, match=r"second time|modified"):
        steps(module(lines))
    right = lines.replace("self.past,", "self.past.detach(),").replace(
        "self.state,", "self.state.detach(),"
    )
    right = right.replace("    self.past.detach(), self.state =", "    self.past, self.state =")
    right = right.replace("roll(self.memory", "roll(self.memory.detach()")
    steps(module(right))
    stays(module(right))


def test_what_a_normalization_layer_is_given_has_a_graph() -> None:
    text = """\
import torch
from torch import nn


class BatchNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.register_buffer("running_mean", torch.zeros(d))

    def forward(self, x):
        mean = x.mean(0)
        self.running_mean = 0.9 * self.running_mean + 0.1 * mean
        return (x - mean) * self.weight
"""
    assert [(f.rule, f.line) for f in findings(text)] == [("TRN408", 13)]
    stays(text.replace("BatchNorm", "ObservationFilter"))


# -- the state of a recurrent layer ---------------------------------------------------------------

RECURRENT = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.rnn = nn.{layer}(d, d)
        self.out = nn.Linear(d, d)
        self.state = None

    def forward(self, x):
        {step}
        return self.out(y)
"""
LSTM = "y, (h, c) = self.rnn(x, self.state)\n        self.state = (h, c)"


@pytest.mark.parametrize(
    ("layer", "step", "fixed"),
    [
        ("LSTM", LSTM, LSTM.replace("= (h, c)", "= (h.detach(), c.detach())")),
        ("LSTM", "y, self.state = self.rnn(x, self.state)", None),
        ("LSTM", "y, state = self.rnn(x, self.state)\n        self.state = state", None),
        ("GRU", "y, h = self.rnn(x, self.state)\n        self.state = h",
         "y, h = self.rnn(x, self.state)\n        self.state = h.detach()"),
        ("GRUCell", "y = self.rnn(x, self.state)\n        self.state = y",
         "y = self.rnn(x, self.state)\n        self.state = y.detach()"),
    ],
)  # fmt: skip
def test_a_state_that_goes_on_to_the_next_step(layer: str, step: str, fixed: str | None) -> None:
    text = RECURRENT.format(layer=layer, step=step)
    (finding,) = findings(text)
    assert finding.rule == "TRN408"
    assert ("next backward walks into it" in finding.message) and bool(finding.fixes) is bool(fixed)
    if fixed is not None:
        becomes(text, RECURRENT.format(layer=layer, step=fixed))
    with pytest.raises(RuntimeError, match=r"second time|modified"):
        two_steps(text)


def two_steps(text: str) -> None:
    scope: dict[str, type] = {}
    exec(compile(text, "m.py", "exec"), scope)
    model = scope["Model"]()
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()


@pytest.mark.parametrize(
    "text",
    [
        RECURRENT.format(
            layer="LSTM", step=LSTM.replace("= (h, c)", "= (h.detach(), c.detach())")
        ),
        RECURRENT.format(layer="LSTM", step=LSTM)
        + "\n    def reset(self):\n        self.state = None\n",
        RECURRENT.format(layer="LSTM", step="y, state = self.rnn(x)\n        self.state = state"),
        RECURRENT.format(
            layer="LSTM", step=f"with torch.no_grad():\n            {LSTM}".replace(
                "\n        self", "\n            self"
            )
        ),
    ],
)  # fmt: skip
def test_states_that_are_cut_off_or_reset(text: str) -> None:
    stays(text, select=("TRN408",))
