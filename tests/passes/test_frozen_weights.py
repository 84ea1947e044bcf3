"""Random weights that are frozen where they are made, in a model that is trained."""

from __future__ import annotations

import pytest
from verbs import becomes, findings, fix, stays

WEIGHT = "self.weight = nn.Parameter(torch.randn(o, i), requires_grad=False)"
MODEL = "model = nn.Sequential(Projection(8, 8), nn.Linear(8, 2))"


def program(
    init: str = WEIGHT,
    model: str = MODEL,
    given: str = "model.parameters()",
    *,
    name: str = "Projection",
    use: str = "F.linear(x, self.weight)",
    more: str = "",
) -> str:
    lines = "".join(f"        {line}\n" for line in init.splitlines())
    return (
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
        f"class {name}(nn.Module):\n    def __init__(self, i, o):\n        super().__init__()\n"
        f"{lines}\n    def forward(self, x):\n        return {use}\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.layers = nn.ModuleList([{name}(8, 8)])\n\n\n"
        f"def train():\n    {model}\n    optimizer = torch.optim.SGD({given}, lr=0.1)\n{more}"
    )


@pytest.mark.parametrize(
    "tensor",
    [
        "torch.randn(o, i)",
        "torch.empty(o, i)",
        "torch.rand(o, i) * 0.1 - 0.05",
        "(torch.rand(o, i))",
    ],
)
def test_is_trained_after_a_look(tensor: str) -> None:
    before = program(WEIGHT.replace("torch.randn(o, i)", tensor))
    assert fix(before) == before
    becomes(before, before.replace(", requires_grad=False", ""), unsafe=True)


@pytest.mark.parametrize(
    "model", ["model = Projection(8, 8)", "model = Net()", "model = Net().cuda()"]
)
def test_models_that_hold_it(model: str) -> None:
    assert [f.rule for f in findings(program(model=model))] == ["TRN507"]


@pytest.mark.parametrize(
    "init",
    [
        "self.weight = nn.Parameter(torch.randn(o, i))",
        "self.weight = nn.Parameter(torch.linspace(0, 1, o), requires_grad=False)",
        "self.weight = nn.Parameter(torch.empty(o, i, dtype=torch.int8), requires_grad=False)",
        f"{WEIGHT}\nself.scale = 1.0",
        f"{WEIGHT}\nself.lora_a = torch.zeros(o, i)",
        f"{WEIGHT}\nself.bias = nn.Parameter(torch.zeros(o))",
        f"{WEIGHT}  # random features",
        f"{WEIGHT}  # not learned",
        f"{WEIGHT}\nself.weight.data = torch.eye(o)",
        f"{WEIGHT}\nself.weight.copy_(torch.eye(o))",
    ],
)
def test_what_is_trained_filled_or_meant(init: str) -> None:
    stays(program(init))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("model = nn.Linear(8, 8)", "model.parameters()"),
        ("model = load()", "model.parameters()"),
        (MODEL, "[p for p in model.parameters() if p.requires_grad]"),
        (MODEL, "model[1].parameters()"),
    ],
)
def test_where_nothing_shows_that_the_model_is_trained(model: str, given: str) -> None:
    stays(program(model=model, given=given))


@pytest.mark.parametrize(
    "more",
    [
        "    model.load_state_dict(torch.load('x'))\n",
        "    model.requires_grad_(True)\n",
        "    for p in model.parameters():\n        p.requires_grad = True\n",
    ],
)
def test_what_is_loaded_or_thawed(more: str) -> None:
    stays(program(more=more))


def test_names_and_uses() -> None:
    stays(program(model="model = RandomProjection(8, 8)", name="RandomProjection"))
    stays(program(use="x - self.weight"))
