"""Tensors made under inference_mode that training meets later."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from verbs import becomes, findings, fix, rules, stays

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import inference_mode


class Model(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.backbone = nn.Linear(d, d).requires_grad_(False)
        self.head = nn.Linear(d, d)

"""


def model(body: str) -> str:
    return HEAD + textwrap.indent(textwrap.dedent(body), "    ")


@pytest.mark.parametrize(
    "body",
    [
        """\
        def forward(self, x):
            with torch.inference_mode():
                z = self.backbone(x)
            return self.head(z)
        """,
        """\
        def forward(self, x):
            return self.head(self.features(x))

        @torch.inference_mode()
        def features(self, x):
            return self.backbone(x)
        """,
        """\
        def forward(self, x):
            z = self.features(x)[:, 0].view(-1, 8)
            return self.head(z)

        @inference_mode()
        def features(self, x):
            return self.backbone(x)
        """,
        """\
        def forward(self, x, y):
            out = self.head(x)
            with torch.inference_mode():
                target = self.backbone(x)
            return F.mse_loss(out, target)
        """,
    ],
)
def test_features_for_something_that_is_trained(body: str) -> None:
    text = model(body)
    assert rules(text) == ["TRN205"]
    assert "inference_mode()" not in fix(text)


def test_what_is_around_stays() -> None:
    becomes(
        model("""\
        def forward(self, x, lock):
            with lock, torch.inference_mode(mode=True):  # frozen
                z = self.backbone(x)
            return self.head(z)
        """),
        model("""\
        def forward(self, x, lock):
            with lock, torch.no_grad():  # frozen
                z = self.backbone(x)
            return self.head(z)
        """),
    )


@pytest.mark.parametrize(
    ("imports", "mode", "after"),
    [
        ("import torch", "torch.inference_mode()", "torch.no_grad()"),
        ("import torch", "torch.inference_mode", "torch.no_grad()"),
        ("import torch as th", "th.inference_mode()", "th.no_grad()"),
        ("from torch import inference_mode", "inference_mode()", "torch.no_grad()"),
        ("from torch import inference_mode, no_grad", "inference_mode()", "no_grad()"),
        (
            "import torch",
            "torch.autograd.grad_mode.inference_mode()",
            "torch.autograd.grad_mode.no_grad()",
        ),
    ],
)
def test_spellings(imports: str, mode: str, after: str) -> None:
    text = f"{imports}\nfrom torch import nn\n\n\n@{mode}\ndef grow(layer, new):\n"
    text += "    layer.weight = nn.Parameter(new)\n"
    assert f"\n@{after}\ndef grow" in fix(text)


@pytest.mark.parametrize(
    "body",
    [
        """\
        @torch.inference_mode()
        def set_tables(self, n):
            self.cos, self.sin = torch.ones(n).cos(), torch.ones(n).sin()

        def forward(self, x):
            return self.head(x) * self.cos + self.sin
        """,
        """\
        def grow(self, n):
            with torch.inference_mode():
                self.register_buffer("table", torch.ones(n))

        def forward(self, x):
            return self.head(x) * self.table
        """,
        """\
        @torch.inference_mode()
        def reset(self):
            self.bias = nn.Parameter(torch.zeros(8))
        """,
    ],
)
def test_what_outlives_the_scope(body: str) -> None:
    assert rules(model(body)) == ["TRN205"]


def test_a_class_whose_objects_are_made_in_the_scope() -> None:
    text = model("def forward(self, x):\n    return self.head(x)\n").replace(
        ".requires_grad_(False)", ""
    )
    text = text.replace("class Model", "@torch.inference_mode()\nclass Model")
    assert rules(text) == ["TRN205"]


STEP = """\
import torch
import torch.nn.functional as F


def step(backbone, head, optimizer, x, y):
    with torch.inference_mode():
        z = backbone(x)
    {use}
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "use",
    [
        "loss = F.cross_entropy(head(z), y)",
        "z = z.flatten(1)\n    loss = head(z).mean()",
        "loss = F.mse_loss(head(x), z)",
    ],
)
def test_a_training_step(use: str) -> None:
    assert rules(STEP.format(use=use)) == ["TRN205"]


def test_a_model_that_is_built_in_the_scope_and_trained() -> None:
    (finding,) = findings(
        """\
import torch


def main(build):
    with torch.inference_mode():
        model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer
"""
    )
    assert finding.rule == "TRN205"


@pytest.mark.parametrize(
    "text",
    [
        # a new tensor is made before anything keeps it
        STEP.format(use="loss = F.cross_entropy(head(z.clone()), y)"),
        STEP.format(use="z = z + 1\n    loss = F.cross_entropy(head(z), y)"),
        STEP.format(use="z = F.normalize(z)\n    loss = F.cross_entropy(head(z), y)"),
        STEP.format(use="loss = F.cross_entropy(head(x), y)").replace("inference_mode", "no_grad"),
        # metrics and logs
        STEP.format(use="loss = F.cross_entropy(head(x), y)\n    print(z.mean())"),
        # no_grad is fine
        model("""\
        def forward(self, x):
            with torch.no_grad():
                z = self.backbone(x)
            return self.head(z)
        """),
        # both are inference
        model("""\
        def forward(self, x):
            return self.head(x)

        @torch.inference_mode()
        def predict(self, x):
            return self.head(self.backbone(x)).argmax(-1)

        @torch.inference_mode()
        def generate(self, x):
            self.cache = self.backbone(x)
            return self.forward(x)
        """),
        # weights that are not to be trained
        """\
import torch
from torch import nn


@torch.inference_mode()
def pack(layer):
    layer.weight = nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
""",
        # what is filled, not made
        """\
import torch


@torch.inference_mode()
def update(ema, model):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 0.01)
""",
        # with a cache, tokens are generated
        model("""\
        def forward(self, x, cache=None):
            if cache is None:
                z = self.backbone(x)
            else:
                z = self.decode(x, cache)
            return self.head(z)

        @torch.inference_mode()
        def decode(self, x, cache):
            cache["x"] = torch.cat((cache["x"], x)) if "x" in cache else x
            return self.backbone(cache["x"])
        """).replace("from torch import inference_mode", "import torch"),
        # for those who ask
        model("""\
        def forward(self, x, serving):
            with torch.inference_mode(serving):
                z = self.backbone(x)
            return self.head(z)
        """),
    ],
)
def test_right_as_it_is(text: str) -> None:
    stays(text, select=("TRN205",))


TABLE = """\
def build(self):
    with torch.inference_mode():
        {made}

def forward(self, x):
    {use}
"""


@pytest.mark.parametrize(
    "made",
    ["self.order = torch.arange(8)", 'self.register_buffer("order", torch.arange(8))'],
)
@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("return self.head(x)[:, self.order]", ["TRN205"]),
        ("return self.head(x).gather(1, self.order.expand(2, 8))", ["TRN205"]),
        ("return self.head(x)[:, self.order.clone()]", []),
        ("return self.head(x)[:, torch.clone(self.order)]", []),
        ("return self.head(x)[:, self.order.tolist()]", []),
        ("return self.head(x).view(self.order.shape)", []),
        ("with torch.no_grad():\n        x = x[:, self.order]\n    return self.head(x)", []),
        ("with torch.no_grad():\n        x = x * self.order\n    return self.head(x)", []),
        ("return self.head(x) * self.order", ["TRN205"]),
    ],
)
def test_a_table_that_is_only_copied_or_read_without_gradients(
    made: str, use: str, expected: list[str]
) -> None:
    assert rules(model(TABLE.format(made=made, use=use))) == expected


HANDED = """\
import torch
from torch import nn

with torch.{mode}():
    scale = nn.Parameter(torch.ones(8))
    shift = torch.zeros(8)

shift.requires_grad_(True)
optimizer = torch.optim.SGD([{params}], lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    (torch.ones(2, 8) * scale + shift).pow(2).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("params", ["scale, shift", '{"params": [scale, shift]}'])
def test_tensors_that_an_optimizer_is_handed(params: str) -> None:
    text = HANDED.format(mode="inference_mode", params=params)
    with pytest.raises(RuntimeError, match="inference tensor"):
        exec(text, {})
    assert rules(text) == ["TRN205"]
    fixed = fix(text)
    assert fixed == HANDED.format(mode="no_grad", params=params)
    names: dict[str, Any] = {}
    exec(fixed, names)
    assert (names["scale"] != 1).all() and (names["shift"] != 0).all()


def test_tensors_of_the_same_name_elsewhere() -> None:
    stays(
        """\
        import torch


        def show(model, x):
            with torch.inference_mode():
                scale = model(x).abs()
            return scale.tolist()


        def train(scale):
            return torch.optim.SGD([scale], lr=0.1)
        """
    )
