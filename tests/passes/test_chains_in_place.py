"""``y.exp_().mul_(2)``: a method in place overwrites what another one has saved for backward.

Each program is run: what is reported raises, what is not has a gradient.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import rules

NET = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        {}
"""
HEAD = "y = self.fc(x)\n        "
END = "\n        y.mul_(2)\n        return y"
CHAINS = {
    "a function": (f"{HEAD}F.relu_(y){END}", True),
    "torch's function": (f"{HEAD}torch.exp_(y){END}", True),
    "an elu": (f"{HEAD}F.elu_(y){END}", True),
    "a random slope": (f"{HEAD}F.rrelu_(y){END}", True),
    "asked to": (f"{HEAD}F.relu(y, inplace=True){END}", True),
    "a module": (f"{HEAD}self.act(y){END}", True),
    "a part, later": (f"{HEAD}torch.sigmoid_(y)\n        y[0] = 0\n        return y", True),
    "a function that saves its input": (f"{HEAD}F.silu(y, inplace=True){END}", False),
    "a threshold": (f"{HEAD}F.hardtanh_(y){END}", False),
    "a function, then another value": (f"{HEAD}F.relu_(y)\n        return y.mul(2)", False),
    "a function, of another value": (f"{HEAD}z = y + 1\n        F.relu_(z){END} + z", False),
    "returned": ("y = self.fc(x)\n        return y.exp_().mul_(2)", True),
    "of a call": ("return self.fc(x).sigmoid_().add_(1)", True),
    "a statement": ("y = self.fc(x)\n        y.tanh_().mul_(2)\n        return y", True),
    "a part": ("y = self.fc(x)\n        return y.exp_()[:, 0].mul_(2)", True),
    "after a view": ("y = self.fc(x)\n        return y.sqrt_().view(-1).add_(2)", True),
    "in the middle": ("y = self.fc(x)\n        return y.exp_().mul_(2).view(-1)", True),
    "saves its input": ("y = self.fc(x)\n        return y.mul_(2).exp_()", False),
    "saves nothing": ("y = self.fc(x)\n        return y.add_(1).mul_(2)", False),
    "a copy between": ("y = self.fc(x)\n        return y.exp_().clone().mul_(2)", False),
    "out of place": ("y = self.fc(x)\n        return y.exp_().mul(2)", False),
}


@pytest.mark.parametrize(("body", "raises"), CHAINS.values(), ids=CHAINS)
def test_chains(body: str, raises: bool) -> None:
    text = NET.format(body)
    assert rules(text) == ["TRN403"] * raises
    space: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), space)
    net = space["Net"]()
    torch.nn.init.constant_(net.fc.weight, 0.5)
    torch.nn.init.ones_(net.fc.bias)
    loss = net(torch.ones(2, 4)).sum()
    if raises:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    else:
        loss.backward()
        assert net.fc.weight.grad is not None
