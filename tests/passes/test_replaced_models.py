"""TRN604: an optimizer that holds a model, or a layer, which another has replaced since."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import findings, fix, stays

HEAD = """\
import copy

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


"""
BATCH = """\
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()"""
BUILT = "opt = torch.optim.SGD(model.parameters(), lr=0.1)"


def script(*lines: str) -> str:
    body = textwrap.indent("\n".join((*lines, "return model")), "    ")
    return f"{HEAD}def train(loader):\n    model = Net()\n{body}\n"


def untrained(text: str) -> set[str]:
    """The parameters of what is trained that get a gradient and are in no step."""
    names: dict[str, Any] = {}
    exec(text, names)
    torch.manual_seed(0)
    batches = [(torch.randn(8, 4), torch.randint(0, 2, (8,)))] * 2
    held: set[torch.Tensor] = set()
    built = torch.optim.SGD

    class Seen(built):  # type: ignore[misc, valid-type]
        def __init__(self, given: Any, **how: Any) -> None:
            given = list(given)
            held.update(given)
            super().__init__(given, **how)

    torch.optim.SGD = Seen  # type: ignore[assignment, misc]
    try:
        model = names["train"](batches)
    finally:
        torch.optim.SGD = built  # type: ignore[misc]
    return {n for n, p in model.named_parameters() if p.grad is not None and p not in held}


@pytest.mark.parametrize(
    "late",
    [
        "model = copy.deepcopy(model)",
        "model = Net()",
        "model.body[2] = nn.Linear(4, 4)",
        'setattr(model, "head", nn.Linear(4, 2))',
    ],
)
def test_what_takes_the_place_of_what_is_held(late: str) -> None:
    text = script(BUILT, late, BATCH)
    (found,) = findings(text)
    assert found.rule == "TRN604" and untrained(text)
    fixed = fix(text)
    assert fixed == script(late, BUILT, BATCH) and not untrained(fixed)


@pytest.mark.parametrize("late", ['torch.load("m.pt")', 'Net.from_pretrained("m")'])
def test_a_model_that_is_loaded(late: str) -> None:
    assert fix(script(BUILT, f"model = {late}", BATCH)) == script(f"model = {late}", BUILT, BATCH)


@pytest.mark.parametrize(
    "lines",
    [
        ("model = copy.deepcopy(model)", BUILT, BATCH),
        (BUILT, "best = copy.deepcopy(model)", BATCH),
        (BUILT, BATCH, "model = copy.deepcopy(model)"),  # when all is done
        (BUILT, "model = nn.DataParallel(model)", BATCH),  # the same parameters
        (BUILT, "model = torch.compile(model)", BATCH),
        (BUILT, "model = Net()", BUILT, BATCH),
        (BUILT, BATCH, "model = Net()", BUILT, BATCH),
        (BUILT, "model.body[1] = nn.GELU()", BATCH),
        (BUILT, 'setattr(model, "steps", len(loader))', BATCH),
    ],
)
def test_right_orders(lines: tuple[str, ...]) -> None:
    stays(script(*lines))
