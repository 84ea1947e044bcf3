"""Edits of weights in place: reported where autograd would take part, never rewritten."""

from __future__ import annotations

import pytest
from verbs import findings, fix, stays

HEAD = "import torch\nfrom torch import nn\n\n\n"


@pytest.mark.parametrize(
    "edit",
    [
        "layer.weight[:, 2] -= value",
        "layer.weight[:, 2] = value",
        "layer.weight.mul_(value)",
        "layer.weight[2].add_(value)",
        "layer.fc1.bias += value",
        "layer.layers[0].q_proj.weight[1:] *= value",
    ],
)
def test_an_edit_is_reported_only(edit: str) -> None:
    text = HEAD + f"def edit(layer, value):\n    {edit}\n"
    (finding,) = findings(text)
    assert finding.rule == "TRN407" and "torch.no_grad()" in finding.message
    assert fix(text, unsafe=True) == text


def test_a_parameter_of_the_class_itself() -> None:
    (finding,) = findings(
        HEAD
        + """\
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.weight.clamp_(min=0.0)
        return x * self.weight
"""
    )
    assert finding.rule == "TRN407"


@pytest.mark.parametrize(
    "function",
    [
        "def edit(layer, value):\n    with torch.no_grad():\n        layer.weight[:, 2] -= value\n",
        "@torch.no_grad()\ndef edit(layer, value):\n    layer.weight.mul_(value)\n",
        "def edit(layer, value):\n    layer.weight.data[:, 2] -= value\n",
        "def edit(layer, value):\n    layer.weight.detach().mul_(value)\n",
        "def edit(layer, value):\n    layer.weight = value\n",
        "def edit(layer, value):\n    layer.weight.grad.mul_(value)\n",
        "def edit(layer):\n    layer.requires_grad_(False)\n    layer.weight.mul_(2.0)\n",
        "def edit(layer, value):\n    layer.weight.copy_(value)\n",
        "def edit(norm, value):\n    norm.weight.mul_(value)\n",  # may be frozen: a buffer
        "def edit(edge, value):\n    edge.weight[0] += value\n",
        "def init_weights(layer):\n    layer.weight.normal_()\n    layer.weight.mul_(0.1)\n",
        (
            "def edit(layer, value):\n    layer.weight.mul_(value)\n\n\n"
            "def main(layer):\n    with torch.no_grad():\n        edit(layer, 2.0)\n"
        ),
    ],
)
def test_right_as_it_is(function: str) -> None:
    stays(HEAD + function)


MODEL = (
    HEAD
    + """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.norm = Norm()


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LayerNorm(3)
        self.register_buffer("weight", torch.ones(3))


"""
)

COPIES = [
    "def start(model: Model, prior):\n    model.fc.bias.copy_(prior)\n\n\n"
    "def main():\n    start(Model(), torch.ones(3))\n\n\nmain()\n",
    "model = Model()\nmodel.fc.weight.fill_(0.5)\n",
    "def main():\n    model = Model()\n    model.norm.inner.bias.zero_()\n\n\nmain()\n",
]


@pytest.mark.parametrize("code", COPIES)
def test_values_copied_into_a_layer_that_learns(code: str) -> None:
    with pytest.raises(RuntimeError, match="leaf Variable"):
        exec(compile(MODEL + code, "m.py", "exec"), {})
    (finding,) = findings(MODEL + code)
    assert finding.rule == "TRN407" and not finding.fixes


def test_values_copied_where_the_layer_is_made() -> None:
    text = MODEL.replace("self.norm = Norm()", "self.fc.bias.copy_(torch.ones(3))")
    assert [(f.rule, f.line) for f in findings(text)] == [("TRN407", 9)]


@pytest.mark.parametrize(
    "code",
    [
        *(code.replace("model.", "model.requires_grad_(False)\nmodel.", 1) for code in COPIES[1:2]),
        "def load_bias(model: Model, prior):\n    model.fc.bias.copy_(prior)\n",
        "model = Model()\nwith torch.no_grad():\n    model.fc.bias.copy_(torch.ones(3))\n",
        "model = Model()\nmodel.fc.bias.data.copy_(torch.ones(3))\n",
        "model = Model()\nmodel.norm.weight.copy_(torch.ones(3))\n",  # a buffer
        "model = make()\nmodel.fc.bias.copy_(torch.ones(3))\n",
        "model = Model()\nmodel.fc = make()\nmodel.fc.bias.copy_(torch.ones(3))\n",
    ],
)
def test_values_copied_as_it_is_done(code: str) -> None:
    stays(MODEL + code)
