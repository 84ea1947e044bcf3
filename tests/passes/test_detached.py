"""TRN301: what is detached and returned, or rotated, or asked for its gradient."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

from trainify.engine import Options, check_paths
from trainify.findings import Safety

NET = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable


class Net(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.enc = nn.Linear(d, d)
        self.dec = nn.Sequential(nn.Linear(d, d), nn.ReLU())
        self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(3)])
        self.rnn = nn.LSTM(d, d)
        self.out = nn.Linear(d, d)
        self.gamma = nn.Parameter(torch.ones(d))

    def helper(self, x):
        return self.enc(x).tanh()

    def forward(self, x, y):
"""


def net(body: str, extra: str = "") -> str:
    return NET + textwrap.indent(textwrap.dedent(body), " " * 8) + extra


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return self.enc(x).data", "return self.enc(x)"),
        ("return self.enc(x).detach()", "return self.enc(x)"),
        ("return (self.enc(x) + y).detach()", "return self.enc(x) + y"),
        ("return (self.enc(x) + y).detach().clone()", "return (self.enc(x) + y).clone()"),
        ("return F.relu(self.enc(x)).view(-1).data", "return F.relu(self.enc(x)).view(-1)"),
        ("return self.helper(x).data", "return self.helper(x)"),
        ("return {'logits': self.enc(x).detach()}", "return {'logits': self.enc(x)}"),
        ("return self.gamma[None].data", "return self.gamma[None]"),
        (
            "return torch.cat((self.enc(x), y), -1)\\\n    .detach()",
            "return torch.cat((self.enc(x), y), -1)",
        ),
        (
            "out = self.dec(self.enc(x)).data\nreturn out",
            "out = self.dec(self.enc(x))\nreturn out",
        ),
        (
            "for layer in self.layers:\n    x = layer(x)\nreturn x.detach()",
            "for layer in self.layers:\n    x = layer(x)\nreturn x",
        ),
        (
            "for i, layer in enumerate(self.layers):\n    y = layer(x) + y\nreturn y.data, i",
            "for i, layer in enumerate(self.layers):\n    y = layer(x) + y\nreturn y, i",
        ),
        (
            "out, _ = self.rnn(x)\nreturn out[:, -1].detach()",
            "out, _ = self.rnn(x)\nreturn out[:, -1]",
        ),
        (
            "outs = []\nfor t in range(4):\n    outs += [self.enc(x)]\nreturn torch.stack(outs).data",
            "outs = []\nfor t in range(4):\n    outs += [self.enc(x)]\nreturn torch.stack(outs)",
        ),
        (
            "out = {}\nout['logits'] = self.enc(x).detach()\nreturn out",
            "out = {}\nout['logits'] = self.enc(x)\nreturn out",
        ),
        (
            "if y is None:\n    return self.enc(x).data\nreturn self.dec(x).data",
            "if y is None:\n    return self.enc(x)\nreturn self.dec(x)",
        ),
        (
            "return Output(\n    logits=self.enc(x).detach(),\n)",
            "return Output(\n    logits=self.enc(x),\n)",
        ),
        ("return self.enc(x) * self.gamma.data", "return self.enc(x) * self.gamma"),
        (
            "return F.linear(self.enc(x), self.out.weight.data)",
            "return F.linear(self.enc(x), self.out.weight)",
        ),
        (
            "return F.linear(self.enc(x), self.gamma[None].data)",
            "return F.linear(self.enc(x), self.gamma[None])",
        ),
        (
            "w = torch.ones(8).to(x.dtype).mul_(self.gamma.data)\nreturn self.enc(x) * w",
            "w = torch.ones(8).to(x.dtype).mul_(self.gamma)\nreturn self.enc(x) * w",
        ),
        (
            "return F.rms_norm(self.enc(x), (8,), self.gamma.data)",
            "return F.rms_norm(self.enc(x), (8,), self.gamma)",
        ),
    ],
)
def test_a_result_that_is_detached(before: str, after: str) -> None:
    becomes(net(before), net(after), unsafe=True)


@pytest.mark.parametrize("layer", ["nn.ReLU()", "nn.Dropout(0.1)", "nn.Softmax(dim=-1)"])
def test_modules_without_weights_hand_the_gradient_on(layer: str) -> None:
    before, after = (
        net(body).replace("super().__init__()", f"super().__init__()\n        self.act = {layer}")
        for body in ("return self.act(self.enc(x)).data", "return self.act(self.enc(x))")
    )
    becomes(before, after, unsafe=True)


STEP = net(
    "return self.dec(self.enc(x))",
    """

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x, None), y)
        return {}
""",
)


def test_the_loss_of_a_training_step() -> None:
    becomes(STEP.format("loss.detach()"), STEP.format("loss"), unsafe=True)
    becomes(STEP.format("{'loss': loss.data}"), STEP.format("{'loss': loss}"), unsafe=True)
    stays(STEP.format("{'loss': loss, 'log': loss.detach()}"))
    by_hand = "loss.detach()\n\n    def fit(self, loss):\n        self.manual_backward(loss)"
    stays(STEP.format(by_hand))


def test_it_is_left_to_the_reader() -> None:
    stays_so = net("return self.enc(x).data")
    becomes(stays_so, stays_so)
    (found,) = findings(stays_so)
    assert found.rule == "TRN301"
    assert "Net.forward" in found.message
    fix = found.fix("flag")
    assert fix is not None
    assert ".data" in fix.look_at


def test_a_helper_detaches_what_forward_returns() -> None:
    text = net(
        "return self.head(x)", "\n\n    def head(self, x):\n        return self.enc(x).data\n"
    )
    (found,) = findings(text)
    assert text.splitlines()[found.line - 1].strip() == "return self.enc(x).data"


@pytest.mark.parametrize(
    "body",
    [
        "return self.enc(x), self.dec(x).detach()",
        "h = self.enc(x)\nreturn h + (h.round() - h).detach()",
        "h = self.enc(x)\nreturn (h.round() - h).detach() + h",
        "h = self.enc(x)\nreturn h - h.detach() + h.round()",
        "h = self.enc(x)\nreturn h - h.amax(-1, keepdim=True).detach()",
        "return self.dec(self.enc(x).detach())",
        "return x.detach()",
        "return (x * y).data",
        "return self.enc(x).argmax(-1).detach()",
        "return self.enc(x).topk(2).indices.data",
        "logits = self.enc(x)\nreturn logits.argmax(-1), logits.softmax(-1).detach()",
        "return self.enc(x).detach().cpu()",
        "return self.enc(x).detach().cpu().numpy()",
        "return self.enc(x).cpu().data",
        "if self.training:\n    return self.enc(x)\nreturn self.enc(x).detach()",
        "if y is None:\n    return self.enc(x).detach()\nreturn F.mse_loss(self.enc(x), y)",
        "with torch.no_grad():\n    return self.enc(x).detach()",
        "h = self.enc(x)\nif y is None:\n    h = h.detach()\nreturn h",
        "out, state = self.rnn(x)\nreturn out, state[0].detach()",
        "# no gradient goes into the targets\nreturn self.enc(x).detach()",
        "return self.enc(x).detach()  # stop gradient",
        '"""Embeddings, detached."""\nreturn self.enc(x).detach()',
        "h = self.enc(x).detach()\nh.requires_grad_()\nreturn h",
        "return self.enc(x).detach() + self.unknown(x)",
        "return self.enc(x).detach() + x",
        "h = self.enc(x)\nself.state = h.detach()\nreturn h",
        "return self.enc(x) + F.linear(x, self.dec[0].weight.detach())",
        "return self.enc(x) * self.gamma.detach()",
        "return self.enc(x) * self.gamma.data + self.gamma.sum()",
        "return F.linear(self.out(self.enc(x)), self.out.weight.data)",
        "return F.linear(self.enc(x), self.gamma[None].data) * self.gamma",
        "return self.enc(x).mul_(self.gamma.detach())",
        "return torch.distributions.Normal(self.enc(x), 1.0).sample().detach()",
        "return F.mse_loss(self.enc(x), y.detach())",
        "return -F.cosine_similarity(self.dec(x), self.enc(x).detach()).mean()",
    ],
)
def test_what_is_right_stays(body: str) -> None:
    stays(net(body), select=("TRN3",))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Net", "class TargetNet"),
        ("class Net", "class FeatureExtractor"),
        ("class Net", "class NetForInference"),
        ("self.enc = nn.Linear(d, d)", "self.enc = nn.Linear(d, d).requires_grad_(False)"),
        ("self.enc = nn.Linear(d, d)", "self.enc = load(d, pretrained=True)"),
        ("self.enc = nn.Linear(d, d)", "self.enc = AutoModel.from_pretrained(d)"),
        ("self.enc = nn.Linear(d, d)", "self.enc = d"),
        ("return self.enc(x).tanh()", "self.enc(x).sum().backward()"),
    ],
)
def test_classes_that_are_not_trained_through_stay(old: str, new: str) -> None:
    stays(net("return self.enc(x).detach()").replace(old, new))


def test_a_weight_that_is_set_by_hand_stays() -> None:
    ema = "\n\n    def update(self, x):\n        self.gamma.data.lerp_(x, 0.1)\n"
    stays(net("return self.enc(x) * self.gamma.data", ema))


LOSSES = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable

net = load()


class Smooth(nn.Module):
    def forward(self, pred, y):
        return (pred.detach() - 1).abs().mean()


"""


@pytest.mark.parametrize(
    "lines",
    [
        "logits = model(x).detach()\nloss = F.cross_entropy(logits.mean(0), torch.ones(3))",
        "loss = model(x).mean().data",
        "loss = criterion(model(x), y)\nloss = loss.detach()",
        "loss = 0\nfor _ in range(2):\n    loss = loss + model(x).sum().detach()",
        "loss = Variable(model(x).mean().data)",
        "loss = F.cross_entropy(model(x).data, y)",
        "loss = nn.MSELoss()(model(x), y).detach()",
        "measure = nn.MSELoss()\nloss = measure(model(x).data, y.float())",
        "loss = Smooth()(model(x), y)",
        "loss = F.mse_loss(net(x).detach(), y)",
    ],
)
def test_a_loss_that_is_detached(lines: str) -> None:
    body = textwrap.indent(f"{lines}\nloss.backward()\n", "    ")
    found = findings(f"{LOSSES}def step(model, criterion, x, y):\n{body}")
    assert [f.rule for f in found] == ["TRN301"]
    assert "loss.backward" in found[0].message


@pytest.mark.parametrize(
    "lines",
    [
        "loss = F.mse_loss(model(x), teacher(x).detach())",
        "adv = (returns - values).detach()\nloss = -(model(x).log_softmax(-1) * adv).mean()",
        "target = r + 0.9 * model(y).max(1)[0].detach()\nloss = F.mse_loss(model(x), target)",
        "loss = criterion(disc(model(x).detach()), y)",
        "loss = criterion(model(x).detach(), y)",
        "loss = F.mse_loss(x.detach(), y)",
        "loss = F.mse_loss(model(x).detach(), disc(y))",
        "target = disc(x)\nloss = F.mse_loss(model(x).detach(), target)",
        "loss = model(x).mean().detach()\nloss.requires_grad = True",
        "loss = model(x).mean().detach().requires_grad_()",
        "h = model(x)\nloss = (h / h.norm().detach()).sum()",
        "total = 0\nloss = model(x).sum()\ntotal += loss.detach()",
    ],
)
def test_losses_with_a_gradient_stay(lines: str) -> None:
    text = "import torch\nimport torch.nn.functional as F\n\n\n"
    body = textwrap.indent(f"{lines}\nloss.backward()\n", "    ")
    stays(
        f"{text}def step(model, criterion, teacher, disc, returns, values, r, x, y):\n{body}",
        select=("TRN3",),
    )


ROPE = """\
import torch
from torch import nn


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    {body}


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q_proj = nn.Linear(d, d)
        self.k_proj = nn.Linear(d, d)
        self.v_proj = nn.Linear(d, d)

    def forward(self, x, cos, sin):
        q, k, v = self.q_proj(x).view(2, 3, 4, -1), self.k_proj(x).view(2, 3, 4, -1), self.v_proj(x)
        q, k = apply({q}, k, cos, sin)
        return nn.functional.scaled_dot_product_attention(q, k, v)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "return ((q * cos) + (rotate_half(q) * sin)).detach(), k",
            "return ((q * cos) + (rotate_half(q) * sin)), k",
        ),
        (
            "r = (q * cos + rotate_half(q) * sin).type_as(q).data\n    return r, k",
            "r = (q * cos + rotate_half(q) * sin).type_as(q)\n    return r, k",
        ),
        (
            "r = cos * q + sin * rotate_half(q)\n    return r.detach(), k",
            "r = cos * q + sin * rotate_half(q)\n    return r, k",
        ),
        (
            "a, b = q.chunk(2, -1)\n"
            "    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).detach(), k",
            "a, b = q.chunk(2, -1)\n"
            "    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1), k",
        ),
    ],
)
def test_rotated_queries_keep_their_gradient(before: str, after: str) -> None:
    was = ROPE.replace("{body}", before).replace("{q}", "q")
    becomes(was, ROPE.replace("{body}", after).replace("{q}", "q"), unsafe=True)


def test_tables_may_be_detached() -> None:
    stays(
        ROPE.replace(
            "{body}",
            "cos, sin = cos.detach(), sin.detach()\n"
            "    return (q * cos) + (rotate_half(q) * sin), k",
        ).replace("{q}", "q")
    )


def test_a_rotation_of_what_has_no_gradient_stays() -> None:
    body = "return (q * cos + rotate_half(q) * sin).detach(), k"
    stays(ROPE.replace("{body}", body).replace("{q}", "x"))
    explained = f"# queries are frozen\n    {body}"
    stays(ROPE.replace("{body}", explained).replace("{q}", "q"))


def test_a_rotation_in_a_file_of_its_own(tmp_path: Path) -> None:
    text = ROPE.replace("{body}", "return (q * cos + rotate_half(q) * sin).detach(), k")
    head, _, attention = text.replace("{q}", "q").partition("class Attention")
    (tmp_path / "rope.py").write_text(head)
    start = "from torch import nn\nfrom rope import apply\n\n\nclass Attention"
    (tmp_path / "attention.py").write_text(start + attention)
    found = [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    assert [(Path(f.path).name, f.rule) for f in found] == [("rope.py", "TRN301")]


SCALES = """\
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    @staticmethod
    def scaled(weight, x):
        return x * weight

    def {name}(self, x):
        return self.scaled(self.weight.data, x)


class Other({base}):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x * self.weight
"""


@pytest.mark.parametrize("name", ["forward", "forward_native"])
@pytest.mark.parametrize(("base", "told"), [("nn.Module", ["TRN301"]), ("Scale", [])])
def test_a_weight_of_that_name_in_another_class_is_another(
    name: str, base: str, told: list[str]
) -> None:
    assert rules(SCALES.format(name=name, base=base)) == told


# -- layers of which only the data is used ----------------------------------------------------------

ATTENTION = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)

    def forward(self, x):
        q = self.q(x){}
        k = self.k(x)
        return q @ k.mT{}
"""


def test_a_layer_of_which_only_the_data_is_used() -> None:
    (found,) = findings(ATTENTION.format(".data", ""))
    assert (found.rule, found.line) == ("TRN301", 12)
    assert "`self.q` gives" in found.message and found.fixes["flag"].safety is Safety.UNSAFE
    becomes(ATTENTION.format(".data", ""), ATTENTION.format("", ""), unsafe=True)


@pytest.mark.parametrize(
    ("cut", "more"),
    [
        (".detach()", ""),  # a choice
        (".data", " + self.q(k)"),  # it learns by another way
        (".data  # no gradient from here", ""),
        (".data", "\n\n    def freeze(self):\n        self.q.requires_grad_(False)"),
        (".data", "\n\n    def loss(self, x):\n        return self.q(x).mean()"),
    ],
)
def test_layers_that_learn_or_are_not_to(cut: str, more: str) -> None:
    stays(ATTENTION.format(cut, more))


PREFERENCES = """\
import torch
import torch.nn.functional as F


def log_probs(model, ids):
    return model(ids).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).sum((-1, -2)).detach()


def dpo(policy, reference, optimizer, pairs, beta{default}):
    for chosen, rejected in pairs:
        a, b = log_probs(policy, chosen), log_probs(policy, rejected)
        with torch.no_grad():
            c, d = log_probs(reference, chosen), log_probs(reference, rejected)
        loss = -F.logsigmoid(beta * ((a - b) - (c - d))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("default", ["", "=0.1"])
def test_a_helper_that_detaches_both_sides_of_a_loss(default: str) -> None:
    text = PREFERENCES.format(default=default)
    assert rules(text) == ["TRN301"]
    ids = torch.tensor([[0, 1], [2, 3]])
    before = torch.nn.Embedding(4, 4).weight.detach().clone()
    moved = []
    for program in (fix(text, unsafe=True), text.replace(".detach()", "")):
        scope: dict[str, Any] = {}
        exec(compile(program, "m.py", "exec"), scope)
        policy = torch.nn.Embedding.from_pretrained(before.clone(), freeze=False)
        reference = torch.nn.Embedding.from_pretrained(before.clone())
        optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        scope["dpo"](policy, reference, optimizer, [(ids[:1], ids[1:])], 0.5)
        moved.append(policy.weight.detach())
    assert not torch.equal(moved[0], before)
    torch.testing.assert_close(*moved)


def test_a_factor_that_may_learn_keeps_a_loss_alive() -> None:
    stays(PREFERENCES.format(default="").replace("beta", "temperature"))
