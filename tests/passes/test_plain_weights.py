"""Weights that are buffers or plain tensors, and tensors that are constants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays


def layer(
    init: str,
    use: str = "F.linear(x, self.weight)",
    *,
    name: str = "Projection",
    base: str = "nn.Module",
    more: str = "",
) -> str:
    lines = "".join(f"        {line}\n" for line in init.splitlines())
    return (
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
        f"class {name}({base}):\n    def __init__(self, i, o, dtype=None):\n"
        f"        super().__init__()\n{lines}        self.norm = nn.LayerNorm(o)\n\n"
        f"    def forward(self, x, ids=None):\n        return {use}\n{more}"
    )


@pytest.mark.parametrize(
    ("init", "fixed"),
    [
        ("self.weight = torch.randn(o, i)", "self.weight = nn.Parameter(torch.randn(o, i))"),
        (
            "self.weight = torch.randn(o, i) * i**-0.5",
            "self.weight = nn.Parameter(torch.randn(o, i) * i**-0.5)",
        ),
        (
            'self.register_buffer("weight", torch.randn(o, i))',
            "self.weight = nn.Parameter(torch.randn(o, i))",
        ),
        (
            "self.register_buffer(\n    'weight', torch.empty(o, i), persistent=True\n)  # (o, i)",
            "self.weight = nn.Parameter(torch.empty(o, i))  # (o, i)",
        ),
    ],
)
def test_becomes_a_parameter_after_a_look(init: str, fixed: str) -> None:
    before = layer(init)
    assert fix(before) == before
    becomes(before, layer(fixed), unsafe=True)


@pytest.mark.parametrize(
    ("init", "use"),
    [
        ("self.w = torch.empty(o, i)", "x @ self.w.t()"),
        ("self.wq = torch.empty(o, i, dtype=dtype)", "torch.matmul(x, self.wq.T)"),
        ("self.W_o = torch.rand(o, i)", "x.matmul(self.W_o.to(x.dtype))"),
        ("self.embeddings = torch.randn(o, i)", "F.embedding(ids, self.embeddings)"),
        ("self.kernel = torch.randn(o, i, 3)", "F.conv1d(x, self.kernel)"),
        ("self.gamma = torch.ones(o)", "F.layer_norm(x, (8,), self.gamma)"),
        ("self.weight = torch.ones(o)", "F.rms_norm(x, (8,), weight=self.weight)"),
        ("self.weight = torch.zeros(o, i, requires_grad=True)", "F.linear(x, self.weight)"),
        ("self.weight = torch.zeros(o, i).requires_grad_()", "F.linear(x, self.weight)"),
        ("self.w = torch.zeros(o, i)\nself.w.requires_grad_(True)", "x @ self.w.t()"),
        ("self.w = torch.zeros(o, i)\nself.w.requires_grad = True", "x @ self.w.t()"),
        (
            "self.w = torch.autograd.Variable(torch.zeros(o, i), requires_grad=True)",
            "x @ self.w.t()",
        ),
        ("self.w = torch.empty(o, i).normal_(0, 0.02)", "x @ self.w.t()"),
        ("self.w = torch.empty(o, i).uniform_(-1, 1).mul_(0.1)", "x @ self.w.t()"),
        ("self.w = nn.init.xavier_uniform_(torch.empty(o, i))", "x @ self.w.t()"),
        ("self.register_buffer('w', torch.empty(o, i).normal_())", "x @ self.w.t()"),
        ("self.gain = torch.ones(o)", "x * self.gain"),
        ("self.gamma = torch.ones(o)", "self.gamma[None] * x"),
        ("self.beta = torch.zeros(o)", "x + self.beta"),
    ],
)
def test_ways_to_use_a_weight(init: str, use: str) -> None:
    (finding,) = findings(layer(init, use))
    assert finding.rule == "TRN503" and not finding.fixes


WAVES = [
    "torch.cos(F.linear(x, self.weight))",
    "(x @ self.weight.t() * 2.0 + 1.0).sin()",
    "F.linear(x, self.weight, self.norm.bias).cos() * 0.5",
]


@pytest.mark.parametrize("use", WAVES)
def test_random_features_stay_as_they_were_drawn(use: str) -> None:
    init = 'self.register_buffer("weight", torch.randn(o, i))'
    stays(layer(init, use))
    named = layer(init, "torch.cat([torch.sin(z), z.cos()], -1)")
    at = "        return torch.cat"
    stays(named.replace(at, f"        z = x @ self.weight.T\n{at}"))
    assert rules(named.replace(at, f"        z = x @ self.weight.T\n        self.z = z\n{at}"))
    assert rules(layer(init.replace("torch.randn", "torch.empty"), use)) == ["TRN503"]
    assert rules(layer(init, "F.linear(x.cos(), self.weight)")) == ["TRN503"]
    assert rules(layer(init, "F.linear(x, self.weight).tanh()")) == ["TRN503"]


ALONE = "self.norm = nn.LayerNorm(o)"


@pytest.mark.parametrize(
    ("init", "use", "name"),
    [
        (
            'self.register_buffer("weight", torch.randn(o, i))\n'
            'self.register_buffer("bias", torch.zeros(o))',
            "F.linear(x, self.weight, self.bias)",
            "Linear",
        ),
        (
            "self.weight = torch.randn(o, i) * 0.02\nself.bias = torch.zeros(o)",
            "x @ self.weight.t() + self.bias",
            "Linear",
        ),
        (
            'self.register_buffer("weight", torch.ones(o))\n'
            'self.register_buffer("bias", torch.zeros(o))',
            "self.weight * (x - x.mean(-1, keepdim=True)) + self.bias",
            "LayerNorm",
        ),
        (
            "self.gain = torch.ones(o)",
            "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain",
            "RMSNorm",
        ),
    ],
)
def test_the_weights_of_a_whole_layer(init: str, use: str, name: str) -> None:
    text = layer(init, use, name=name).replace(ALONE, "pass")
    assert rules(text) == ["TRN503"] * len(init.splitlines())
    scope: dict[str, Any] = {}
    exec(compile(fix(text, unsafe=True), "m.py", "exec"), scope)
    net = scope[name](4, 4)
    net(torch.randn(3, 4)).square().sum().backward()
    assert len(list(net.parameters())) == len(init.splitlines())
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(
    ("init", "use", "name"),
    [
        (
            'self.register_buffer("weight", torch.ones(o))\n'
            'self.register_buffer("bias", torch.zeros(o))',
            "x * self.weight + self.bias",
            "FrozenBatchNorm2d",
        ),
        (
            'if dtype:\n    self.register_parameter("weight", nn.Parameter(torch.ones(o)))\n'
            'else:\n    self.register_buffer("weight", torch.ones(o))',
            "x * self.weight",
            "RMSNorm",
        ),
        (
            "if dtype:\n    self.weight = nn.Parameter(torch.ones(o))\n"
            "else:\n    self.weight = torch.ones(o)",
            "x * self.weight",
            "RMSNorm",
        ),
        (  # random features
            "self.weight = torch.randn(o, i)\nself.bias = torch.rand(o) * 6.28",
            "torch.cos(F.linear(x, self.weight, self.bias))",
            "Features",
        ),
        ("self.weight = torch.ones(o)", "(x * self.weight).sum()", "WeightedLoss"),
        ("self.scale = torch.ones(o)", "x * self.scale", "Scaled"),
        ("self.eps = torch.ones(1)", "x + self.eps", "RMSNorm"),
        (
            "self.mean = torch.zeros(3)\nself.std = torch.ones(3)",
            "(x - self.mean) * self.std",
            "ImageNorm",
        ),
    ],
)
def test_what_no_layer_learns(init: str, use: str, name: str) -> None:
    stays(layer(init, use, name=name).replace(ALONE, "pass"))


def test_a_checkpoint_that_is_copied_into_it() -> None:
    load = "\n    def load_weights(self, state):\n        self.weight.copy_(state['weight'])\n"
    (finding,) = findings(layer("self.weight = torch.empty(o, i)", more=load))
    assert finding.rule == "TRN503" and not finding.fixes


def test_initialized_like_a_weight() -> None:
    init = "self.weight = torch.zeros(o, i)\nnn.init.xavier_uniform_(self.weight)"
    assert rules(layer(init).replace("self.norm = nn.LayerNorm(o)", "pass")) == ["TRN503"]


def test_initialized_and_assigned_again() -> None:
    init = "self.weight = torch.empty(o, i)\nself.weight = nn.init.trunc_normal_(self.weight)"
    assert rules(layer(init)) == ["TRN503"]


def test_a_random_tensor_in_a_class_that_has_nothing_to_learn() -> None:
    text = layer("self.weight = torch.randn(o, i)").replace("self.norm = nn.LayerNorm(o)", "pass")
    stays(text)


@pytest.mark.parametrize(
    ("init", "use"),
    [
        ("self.weight = nn.Parameter(torch.randn(o, i))", "F.linear(x, self.weight)"),
        ("self.projection = torch.randn(o, i)", "x @ self.projection"),
        ("self.rand_weight = torch.rand(o, i)", "x @ self.rand_weight"),
        ("self.freqs = torch.randn(o)", "torch.matmul(x, self.freqs)"),
        ("self.weight = torch.randn(o, i)  # fixed random projection", "x @ self.weight"),
        ("self.weight = torch.empty(o, i, dtype=torch.int8)", "x @ self.weight.to(x.dtype)"),
        (
            "self.weight = torch.empty(o, i)\nself.weight_scale = torch.ones(o)",
            "x @ self.weight * self.weight_scale",
        ),
        ("self.weight = torch.ones(o)\nself.running_mean = torch.zeros(o)", "x @ self.weight"),
        ("self.loss_weights = torch.ones(o)", "(x * self.loss_weights).sum()"),
        ("self.weight = torch.randn(o, i)\nself.weight = load()", "x @ self.weight"),
        ("self.weight = torch.randn(o, i)\nself.weight.fill_(1)", "x @ self.weight"),
        ("self.weight = torch.randn(o, i, requires_grad=False)", "x @ self.weight"),
        ("self.weight = torch.randn(o, i).requires_grad_(False)", "x @ self.weight"),
        ("self.weight = torch.randn(o, i)\nself.weight.requires_grad_(False)", "x @ self.weight"),
        ("self.weight = torch.randn(o, i)\nself.weight.requires_grad = False", "x @ self.weight"),
        ("self.weight = torch.randn(o, i)", "x"),
        ("self.weight = torch.linspace(0, 1, o)", "x @ self.weight"),
        ("self.weight = torch.randn(o, i)", "self.weight @ x"),
    ],
)
def test_constants_states_and_parameters(init: str, use: str) -> None:
    stays(layer(init, use))


@pytest.mark.parametrize("name", ["FrozenLinear", "FourierFeatures", "RandomProjection", "VQ_EMA"])
def test_classes_whose_name_says_that_they_do_not_learn(name: str) -> None:
    stays(layer("self.weight = torch.randn(o, i)", name=name))


@pytest.mark.parametrize(
    "more",
    [
        "\n\ndef generate(net, hyper, z):\n    net.weight = hyper(z)\n",
        "\n\ndef train(net):\n    return torch.optim.SGD([net.weight], lr=0.1)\n",
        "\n    def step(self, x):\n        self.weight.lerp_(x, 0.1)\n",
    ],
)
def test_tensors_that_others_see_to(more: str) -> None:
    stays(layer("self.weight = torch.randn(o, i, requires_grad=True)", more=more))


def test_where_no_gradient_is_wanted() -> None:
    use = "F.linear(x, self.weight) if not self.training else x"
    stays(layer("self.weight = torch.randn(o, i)", use))


def test_no_module() -> None:
    stays(layer("self.weight = torch.randn(o, i)", base="Base"))


BALANCED = """\
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, d, e):
        super().__init__()
        self.proj = nn.Linear(d, e)
        self.register_buffer("bias", torch.zeros(e))

    def forward(self, x, groups):
        s = self.proj(x).sigmoid()
        CHOICE
        return s.gather(-1, idx), idx


@torch.no_grad()
def balance(gate, load):
    gate.bias.add_(0.001 * torch.sign(load.mean() - load))
"""


@pytest.mark.parametrize(
    "choice",
    [
        "_, idx = torch.topk(s + self.bias, 2)",
        "idx = torch.topk(s + self.bias, k=2, dim=-1, sorted=False)[1]",
        "idx = (s + self.bias).topk(2, dim=-1).indices",
        "top = (self.bias + s).topk(2)\nidx = top.indices",
        "top, idx = (s + self.bias).sort(-1)\nidx = idx[..., :2]",
        "biased = s + self.bias\nidx = biased.argmax(-1, keepdim=True)",
        "idx = torch.argsort(input=s + self.bias[None], descending=True)[:, :2]",
        "biased = s + self.bias\n"
        "best = biased.view(x.shape[0], groups, -1).topk(2, dim=-1)[0].sum(dim=-1)\n"
        "mask = torch.zeros_like(best)\n"
        "mask.scatter_(1, torch.topk(best, 2)[1], 1)\n"
        "masked = biased.masked_fill(mask.unsqueeze(-1).reshape(biased.shape) == 0, 0.0)\n"
        "idx = masked.topk(2).indices",
        "biased = s\nif groups:\n    biased = s + self.bias\nidx = biased.max(-1, keepdim=True)[1]",
    ],
)
def test_what_only_chooses_has_no_gradient_to_lose(choice: str) -> None:
    stays(BALANCED.replace("CHOICE", choice.replace("\n", "\n        ")))


@pytest.mark.parametrize(
    "choice",
    [
        "s, idx = torch.topk(s + self.bias, 2)",
        "top = (s + self.bias).topk(2)\ns, idx = top.values, top.indices",
        "s = s + self.bias\nidx = s.argmax(-1, keepdim=True)",
        "idx = choose(s + self.bias)",
        "idx = torch.max(s + self.bias, s)[1]\ns = idx * s",
        "biased = s + self.bias\nidx = biased.argmax(-1)\nself.last = biased",
    ],
)
def test_what_also_gives_values_does(choice: str) -> None:
    assert rules(BALANCED.replace("CHOICE", choice.replace("\n", "\n        "))) == ["TRN503"]


RESERVOIR = """\
import torch
import torch.nn.functional as F
from torch import nn


class Reservoir(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.register_buffer("w", torch.randn(h, h) * 0.05)
        self.out = nn.Linear(h, d)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 8)
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] + F.linear(h, self.w))
        return self.out(h)
"""


def test_the_random_matrix_that_a_state_goes_through_is_meant_to_stay() -> None:
    text = RESERVOIR.replace("Reservoir", "Network")
    stays(text)
    assert rules(text.replace("F.linear(h, self.w)", "F.linear(x[:, 0], self.w)")) == ["TRN503"]
    plain = text.replace(
        'self.register_buffer("w", torch.randn(h, h) * 0.05)', "self.w = torch.randn(h, h)"
    )
    assert rules(plain) == ["TRN503"]


def test_a_bias_of_zeros_beside_a_gain_that_learns_is_meant() -> None:
    gain = "self.gamma = nn.Parameter(torch.ones(o))"
    text = layer(
        gain + '\nself.register_buffer("beta", torch.zeros(o))',
        "F.layer_norm(x, x.shape[-1:], self.gamma, self.beta)",
        name="LayerNorm",
    ).replace(ALONE, "pass")
    stays(text)
    assert rules(text.replace(gain, 'self.register_buffer("gamma", torch.ones(o))')) == [
        "TRN503",
        "TRN503",
    ]


def test_a_tensor_that_requires_a_gradient_is_said_to_lack_only_an_optimizer() -> None:
    (finding,) = findings(layer("self.weight = torch.randn(o, i, requires_grad=True)"))
    assert "no optimizer" in finding.message and "requires no gradient" not in finding.message
