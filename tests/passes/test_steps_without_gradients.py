"""Steps that find no gradient: cleared just before, or never computed."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import findings, fix, rules, stays

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


"""
LOOP = """\
def train(model, loader, scaler=None, log=print):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.MSELoss()
    for x, y in loader:
        {lines}
"""


def loop(*lines: str) -> str:
    return HEAD + LOOP.format(lines="\n        ".join(lines))


def change(text: str) -> float:
    """How far a few steps of training move the parameters."""
    names: dict[str, Any] = {}
    exec(text, names)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    before = [p.detach().clone() for p in model.parameters()]
    names["train"](model, [(torch.randn(2, 4), torch.randn(2, 4)) for _ in range(3)])
    return max((p - b).abs().max().item() for p, b in zip(model.parameters(), before, strict=True))


CLEARED = [
    ("loss = F.mse_loss(model(x), y)", "loss.backward()", "{}.zero_grad()", "optimizer.step()"),
    (
        *("loss = criterion(model(x), y)", "loss.backward()", "{}.zero_grad(set_to_none=True)"),
        *("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "optimizer.step()"),
    ),
    (
        *("(criterion(model(x), y) * 2).backward()", "value = 1.0"),
        *("{}.zero_grad()", "log(value)", "optimizer.step()"),
    ),
]


@pytest.mark.parametrize("owner", ["optimizer", "model"])
@pytest.mark.parametrize("lines", CLEARED, ids=range(len(CLEARED)))
def test_gradients_that_are_cleared_before_the_step(lines: tuple[str, ...], owner: str) -> None:
    text = loop(*(line.format(owner) for line in lines))
    assert rules(text) == ["TRN606"]
    assert change(text) == 0
    assert fix(text) == text  # it trains from now on, which somebody should know
    assert change(fix(text, unsafe=True)) > 0


@pytest.mark.parametrize("end", ["scaler.step(optimizer)", "optimizer.step()"])
def test_the_message_names_the_step(end: str) -> None:
    lines = "scaler.scale(F.mse_loss(model(x), y)).backward()", "optimizer.zero_grad()", end
    (finding,) = findings(loop(*lines))
    assert f"`{end}`, line 12," in finding.message


BACKWARD = "F.mse_loss(model(x), y).backward()"
RIGHT = {
    "before": ("optimizer.zero_grad()", BACKWARD, "optimizer.step()"),
    "after": (BACKWARD, "optimizer.step()", "optimizer.zero_grad()"),
    "twice": (BACKWARD, "optimizer.zero_grad()", BACKWARD, "optimizer.step()"),
    "another": (BACKWARD, "log.zero_grad()", "optimizer.step()"),
    "kept": (
        *(BACKWARD, "kept = [p.grad.clone() for p in model.parameters()]"),
        *("optimizer.zero_grad()", "optimizer.step()"),
    ),
    "put-back": (
        BACKWARD,
        "optimizer.zero_grad()",
        "log(model)",
        "load(model)",
        "optimizer.step()",
    ),
    "stepped": (BACKWARD, "optimizer.step()", "optimizer.zero_grad()", "optimizer.step()"),
    "sometimes": (BACKWARD, "if x is None:", "    optimizer.zero_grad()", "optimizer.step()"),
    "closure": (BACKWARD, "optimizer.zero_grad()", "optimizer.step(lambda: train(model, x))"),
}


@pytest.mark.parametrize("lines", RIGHT.values(), ids=RIGHT.keys())
def test_gradients_that_reach_their_step(lines: tuple[str, ...]) -> None:
    assert "TRN606" not in rules(loop(*lines))


TURNS = """\
def train(model, loader, keep=print):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            {lines}
        {end}
"""


def turns(*lines: str, end: str = "optimizer.step()") -> str:
    return HEAD + TURNS.format(lines="\n            ".join(lines), end=end)


@pytest.mark.parametrize(
    "lines",
    [
        ("loss.backward()", "optimizer.zero_grad()"),
        ("(loss / 2).backward()", "print(loss.item())", "model.zero_grad()", "value = 1.0"),
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        "optimizer.step()",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        optimizer.step()",
    ],
)
def test_gradients_that_each_turn_clears_before_a_step_behind_the_loop(
    lines: tuple[str, ...], end: str
) -> None:
    text = turns(*lines, end=end)
    assert rules(text) == ["TRN606"]
    assert change(text) == 0 and fix(text) == text
    assert change(fix(text, unsafe=True)) > 0
    assert not rules(fix(text, unsafe=True))


@pytest.mark.parametrize(
    "lines",
    [
        ("optimizer.zero_grad()", "loss.backward()"),  # the last batch counts
        ("loss.backward()", "optimizer.step()", "optimizer.zero_grad()"),
        ("loss.backward()", "if keep is None:", "    optimizer.zero_grad()"),
        ("loss.backward()", "if loss.isnan():", "    break", "optimizer.zero_grad()"),
        ("loss.backward()", "keep(model)", "optimizer.zero_grad()"),
        ("loss.backward()", "grads = [p.grad for p in []]", "optimizer.zero_grad()"),
        ("loss.backward()", "optimizer.zero_grad()", "model(x).mean().backward()"),
        ("loss.backward()", "keep.zero_grad()"),
    ],
)
def test_turns_that_leave_gradients_for_the_step(lines: tuple[str, ...]) -> None:
    assert "TRN606" not in rules(turns(*lines))


def test_a_hook_may_keep_what_a_turn_clears() -> None:
    text = turns("loss.backward()", "optimizer.zero_grad()")
    hook = (
        "for p in model.parameters():\n            p.register_hook(keep)\n        optimizer.step()"
    )
    assert "TRN606" not in rules(text.replace("optimizer.step()", hook))


# -- no backward ----------------------------------------------------------------------------------

NEVER = [
    ("optimizer.zero_grad()", "loss = F.mse_loss(model(x), y)", "log(1)", "optimizer.step()"),
    ("loss = criterion(model(x), y)", "print(loss.item())", "optimizer.step()"),
]


@pytest.mark.parametrize("lines", NEVER, ids=range(len(NEVER)))
def test_a_loss_that_nobody_differentiates(lines: tuple[str, ...]) -> None:
    text = loop(*lines)
    (finding,) = findings(text)
    assert finding.rule == "TRN603" and "`loss.backward()`" in finding.message
    assert finding.line == len(text.splitlines()) and not finding.fixes
    assert change(text) == 0
    assert change(text.replace("optimizer.step()", "loss.backward(); optimizer.step()")) > 0


ELSEWHERE = {
    "function": ("loss = criterion(model(x), y)", "update(loss)", "optimizer.step()"),
    "wrapper": ("loss = criterion(model(x), y)", "engine.run(optimizer)", "optimizer.step()"),
    "kept": ("loss = criterion(model(x), y)", "log.keep(loss)", "optimizer.step()"),
    "by-hand": ("loss = criterion(model(x), y)", "model.weight.grad = x", "optimizer.step()"),
    "grad": ("g = torch.autograd.grad(criterion(model(x), y), x)", "optimizer.step()"),
    "no-loss": ("y = model(x)", "optimizer.step()"),
}


@pytest.mark.parametrize("lines", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_gradients_that_may_come_from_elsewhere(lines: tuple[str, ...]) -> None:
    stays(loop(*lines))


def test_an_optimizer_that_is_given_may_do_more() -> None:
    stays(
        HEAD
        + textwrap.dedent("""\
        def train(model, optimizer, loader):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                optimizer.step()
        """)
    )
