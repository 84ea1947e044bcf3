"""TRN111: second derivatives through attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, rules, stays

from trainify.engine import check_paths

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


"""
CRITIC = """\
class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        return self.attention(x, x, x).mean()


class Plain(nn.Module):
    def forward(self, x):
        return x.square().mean()


"""


@pytest.mark.parametrize(
    "body",
    [
        "def f(critic, x):\n    return torch.autograd.grad(critic(x), x, create_graph=True)\n",
        "def f(net: Critic, x):\n    y = net(x).sum()\n"
        "    return torch.autograd.grad(outputs=y, inputs=x, create_graph=True)\n",
        "def f(critic_ema, x):\n    loss = F.mse_loss(critic_ema(x), x)\n"
        "    loss.backward(create_graph=True)\n",
        "def f(x):\n    net = Critic()\n    y = net(x)\n"
        "    torch.autograd.backward([y], create_graph=True)\n",
        "class Step:\n    def __init__(self):\n        self.d = Critic()\n\n"
        "    def __call__(self, x):\n        score = self.d(x)\n"
        "        return torch.autograd.grad(score.sum(), [x], create_graph=True)\n",
        "def energy(x):\n    return F.scaled_dot_product_attention(x, x, x).sum()\n\n\n"
        "def force(x):\n    return torch.autograd.grad(energy(x), x, create_graph=True)\n",
    ],
)
def test_a_gradient_of_a_gradient(body: str) -> None:
    assert rules(HEAD + CRITIC + body) == ["TRN111"]


@pytest.mark.parametrize(
    "body",
    [
        "def f(critic, x):\n    return torch.autograd.grad(critic(x), x)\n",
        "def f(critic, x):\n    return torch.autograd.grad(critic(x), x, create_graph=False)\n",
        "def f(plain, x):\n    return torch.autograd.grad(plain(x), x, create_graph=True)\n",
        "def f(net: Plain, x):\n    return torch.autograd.grad(net(x), x, create_graph=True)\n",
        "def f(x):\n    net = Plain()\n"
        "    return torch.autograd.grad(net(x), x, create_graph=True)\n",
        "def f(disc, x):\n    return torch.autograd.grad(disc(x), x, create_graph=True)\n",
        "def f(y, x):\n    return torch.autograd.grad(y.sum(), x, create_graph=True)\n",
        "def f(critic, x):\n    with sdpa_kernel(SDPBackend.MATH):\n        y = critic(x)\n"
        "    return torch.autograd.grad(y, x, create_graph=True)\n",
        "def f(critic, x):\n    with sdpa_kernel([SDPBackend.MATH]):\n"
        "        return torch.autograd.grad(critic(x), x, create_graph=True)\n",
        "torch.backends.cuda.enable_flash_sdp(False)\n\n\ndef f(critic, x):\n"
        "    return torch.autograd.grad(critic(x), x, create_graph=True)\n",
    ],
)
def test_what_has_a_second_derivative(body: str) -> None:
    stays(HEAD + CRITIC + body)


def test_the_only_model_of_a_file() -> None:
    text = CRITIC.partition("class Plain")[0]
    body = "def f(net, x):\n    return torch.autograd.grad(net(x), x, create_graph=True)\n"
    assert rules(HEAD + text + body) == ["TRN111"]


def test_attention_on_the_math_backend() -> None:
    stays(
        HEAD
        + CRITIC.replace(
            "        return F.scaled",
            "        with sdpa_kernel(SDPBackend.MATH):\n            return F.scaled",
        )
        + "def f(critic, x):\n    return torch.autograd.grad(critic(x), x, create_graph=True)\n"
    )


def test_a_model_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(HEAD + CRITIC)
    (tmp_path / "train.py").write_text(
        "import torch\nfrom models import Critic, Plain\n\ncritic, plain = Critic(), Plain()\n\n\n"
        "def f(x):\n    a = torch.autograd.grad(plain(x), x, create_graph=True)\n"
        "    return a, torch.autograd.grad(critic(x), x, create_graph=True)\n"
    )
    found = [f for report in check_paths([str(tmp_path)]) for f in report.findings]
    assert [(f.rule, f.line) for f in found] == [("TRN111", 9)]
    assert "models.py" in found[0].message


def test_the_finding_says_where_and_what_to_do() -> None:
    (finding,) = findings(
        HEAD
        + CRITIC
        + "def f(c: Critic, x):\n    return torch.autograd.grad(c(x), x, create_graph=True)\n"
    )
    assert "on line 9" in finding.message
    assert "sdpa_kernel(SDPBackend.MATH)" in finding.message


PENALTY = """\
def penalty(critic: Critic, x):
    (grad,) = torch.autograd.grad(critic(x).mean(), x, create_graph=True)
    return grad.square().sum()
"""


def critic(made: str, used: str) -> str:
    return (
        f"{HEAD}class Critic(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.layer = {made}\n\n    def forward(self, x):\n        return {used}\n\n\n{PENALTY}"
    )


MHA = "nn.MultiheadAttention(8, 2)"


@pytest.mark.parametrize(
    ("made", "used", "raises"),
    [
        (MHA, "self.layer(x, x, x, need_weights=False)[0]", True),
        ("nn.TransformerEncoderLayer(8, 2, dropout=0.0)", "self.layer(x)", True),
        ("nn.TransformerDecoderLayer(8, 2, dropout=0.0)", "self.layer(x, x)", True),
        (
            "nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, dropout=0.0), 1)",
            "self.layer(x)",
            True,
        ),
        (MHA, "self.layer(x, x, x)[0]", False),  # attention written out
        (MHA, "self.layer(x, x, x, need_weights=True)[0]", False),
        ("nn.Linear(8, 8)", "self.layer(x).square()", False),
    ],
)
def test_layers_of_torch_that_attend(made: str, used: str, raises: bool) -> None:
    text = critic(made, used)
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    x = torch.randn(5, 2, 8, requires_grad=True)
    loss = scope["penalty"](scope["Critic"](), x)
    if raises:
        with pytest.raises(RuntimeError, match="not implemented"):
            loss.backward()
        assert rules(text) == ["TRN111"]
    else:
        loss.backward()
        stays(text)
