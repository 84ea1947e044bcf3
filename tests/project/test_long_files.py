"""Files of many classes: what there is to find in each must not cost more the more there are."""

from collections.abc import Callable

import pytest

from trainify import check_text
from trainify.facts.names import Names

HEAD = """\
import torch
from torch import nn
from vllm import _custom_ops as ops
"""

LAYER = """

class Layer{i}(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.layers = [nn.Linear(d, d), nn.Linear(d, d)]
        self.scale = nn.Parameter(torch.ones(d))
        self.register_buffer("mean{i}", torch.zeros(d))
        self.key_cache = torch.zeros(1, 9, d)

    @torch.no_grad()
    def helper{i}(self, x):
        return self.q(x)

    def forward(self, x, p):
        y = torch.tanh(self.q(x))
        y.mul_(2)
        self.key_cache[:, p] = y
        self.mean{i}.mul_(0.9).add_(y.mean(0))
        with torch.inference_mode():
            z = self.helper{i}(y)
        q, k = y.chunk(2)
        q *= 2
        ops.rms_norm(q, k, self.scale.data, 1e-6)
        return (z + q).sum().item() * k.detach()

    def generate(self, x):
        return self(x, 0).argmax(-1)


def train{i}(model, x):
    model = Layer{i}(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(x, 0).sum()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
"""


def questions(monkeypatch: pytest.MonkeyPatch, layers: int) -> int:
    """How often a check asks what a name stands for."""
    asked = 0

    def counted(question: Callable[..., object]) -> Callable[..., object]:
        def ask(*args: object) -> object:
            nonlocal asked
            asked += 1
            return question(*args)

        return ask

    with monkeypatch.context() as patch:
        patch.setattr(Names, "resolve", counted(Names.resolve))
        patch.setattr(Names, "visible", counted(Names.visible))
        text = HEAD + "".join(LAYER.replace("{i}", str(i)) for i in range(layers))
        assert len(check_text(text)) >= 5 * layers
    return asked


def test_twice_the_classes_take_twice_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert questions(monkeypatch, 24) < 2.2 * questions(monkeypatch, 12)
