"""Integers that are told to require a gradient."""

from __future__ import annotations

import pytest
from verbs import findings, stays

HEAD = """\
import torch
from torch import nn


class Packed(nn.Module):
    def __init__(self, i, o, weight=None):
        super().__init__()
        self.weight = nn.Parameter({tensor}, requires_grad=False)
        self.scale = nn.Parameter(torch.ones(o))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Packed(8, 8) for _ in range(2)])
        self.head = nn.Linear(8, 8)

    def unfreeze(self):
        pass


"""
LOOP = "for p in model.parameters():\n    p.requires_grad_(True)\n"


def program(after: str, tensor: str = "torch.zeros(o, i, dtype=torch.int8)") -> str:
    return HEAD.format(tensor=tensor) + after


@pytest.mark.parametrize(
    "after",
    [
        "model = Packed(8, 8)\n" + LOOP,
        "model = Block()\n" + LOOP,
        "model = nn.Sequential(Block(), nn.Linear(8, 2))\n" + LOOP,
        "model = Block().cuda()\n" + LOOP,
        "model = Block()\nfor _, p in model.named_parameters():\n    p.requires_grad = True\n",
        "model = Block()\nmodel.requires_grad_(True)\n",
        "model = Block()\nmodel.requires_grad_()\n",
        "def main():\n    model = Block()\n    for q in model.parameters():\n"
        "        q.requires_grad = True\n",
        "def unfreeze(m):\n    for p in m.parameters():\n        p.requires_grad = True\n"
        "    unfreeze(m)\n\n\nmodel = Block()\nunfreeze(model)\n",
        "def unfreeze(model):\n    for p in model.parameters():\n        p.requires_grad = True\n\n\n"
        "unfreeze(Block())\n",
    ],
)
def test_everything_made_trainable(after: str) -> None:
    (finding,) = findings(program(after))
    assert finding.rule == "TRN504" and not finding.fixes
    assert "`weight` of `Packed`" in finding.message


def test_in_the_model_itself() -> None:
    text = program("").replace(
        "        pass", "        for p in self.parameters():\n            p.requires_grad = True"
    )
    assert [f.rule for f in findings(text)] == ["TRN504"]


@pytest.mark.parametrize(
    "tensor",
    [
        "torch.randint(-127, 127, (o, i), dtype=torch.int8)",
        "torch.randint(0, 9, (o, i))",
        "weight.to(torch.uint8)",
        "weight.round().char()",
        "torch.empty(o, i, dtype=torch.int32).contiguous()",
    ],
)
def test_ways_to_make_integers(tensor: str) -> None:
    assert findings(program("model = Block()\n" + LOOP, tensor))


@pytest.mark.parametrize(
    "tensor",
    [
        "torch.zeros(o, i)",
        "torch.randint(0, 9, (o, i)).float()",
        "torch.randint(0, 9, (o, i), dtype=torch.float32)",
        "weight.to(torch.float16)  # from torch.int8\n        ",
    ],
)
def test_frozen_weights_that_are_floating_point(tensor: str) -> None:
    stays(program("model = Block()\n" + LOOP, tensor))


@pytest.mark.parametrize(
    "after",
    [
        "model = Block()\nfor p in model.parameters():\n"
        "    p.requires_grad_(p.is_floating_point())\n",
        "model = Block()\nfor p in model.parameters():\n    if p.is_floating_point():\n"
        "        p.requires_grad_(True)\n",
        "model = Block()\nfor p in model.parameters():\n    if p.dtype == torch.int8:\n"
        "        continue\n    p.requires_grad_(True)\n",
        "model = Block()\nfor n, p in model.named_parameters():\n    if 'scale' in n:\n"
        "        p.requires_grad = True\n",
        "model = Block()\nfor p in model.head.parameters():\n    p.requires_grad = True\n",
        "model = nn.Linear(8, 8)\n" + LOOP,
        "model = load()\n" + LOOP,
        "def unfreeze(model):\n    for p in model.parameters():\n        p.requires_grad = True\n",
        "x = torch.randn(2, 8)\nx.requires_grad_(True)\nBlock()(x)\n",
    ],
)
def test_what_leaves_the_integers_out(after: str) -> None:
    stays(program(after))
