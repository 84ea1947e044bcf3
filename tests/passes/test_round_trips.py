"""TRN302: numbers, lists and arrays made of tensors on their way to the loss."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

from trainify.engine import Options, check_paths

NET = """\
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate = nn.Linear(d, 1)
        self.body = nn.Linear(d, d)
        self.heads = nn.ModuleList([nn.Linear(d, 1) for _ in range(3)])
        self.scale = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x, y):
"""


def net(body: str, extra: str = "") -> str:
    return NET + textwrap.indent(textwrap.dedent(body), " " * 8) + extra


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return x * self.scale.item()", "return x * self.scale"),
        ("return self.body(x) * self.scale.item()", "return self.body(x) * self.scale"),
        ("return x * float(self.scale)", "return x * self.scale"),
        ("return x * self.scale.exp().item()", "return x * self.scale.exp()"),
        ("return x * self.scale.detach().cpu().item()", "return x * self.scale"),
        ("return x * (self.scale + 1).item()", "return x * (self.scale + 1)"),
        ("return x * float(self.scale + 1)", "return x * (self.scale + 1)"),
        ("g = self.gate(x).mean()\nreturn x * g.item()", "g = self.gate(x).mean()\nreturn x * g"),
        ("s = self.scale.item()\nreturn x * s", "s = self.scale\nreturn x * s"),
        ("s = float(self.scale)\nreturn x / s - s", "s = self.scale\nreturn x / s - s"),
        ("return x * math.exp(self.scale)", "return x * torch.exp(self.scale)"),
        ("return x * math.exp(self.scale.item())", "return x * torch.exp(self.scale)"),
        ("return x * np.exp(self.scale.item())", "return x * torch.exp(self.scale)"),
        ("s = math.exp(self.scale)\nreturn x / s", "s = torch.exp(self.scale)\nreturn x / s"),
        (
            "s = math.log1p(self.scale.item())\nreturn x / s",
            "s = torch.log1p(self.scale)\nreturn x / s",
        ),
        ("return x * math.fabs(float(self.scale))", "return x * torch.abs(self.scale)"),
        ("return torch.tensor(self.body(x))", "return self.body(x)"),
        ("h = self.body(x)\nreturn torch.tensor(h)", "h = self.body(x)\nreturn h"),
        ("h = self.body(x)\nh = torch.tensor(h)\nreturn h", "h = self.body(x)\nreturn h"),
        (
            "h = self.body(x)\nh = torch.tensor(h)  # by value\nreturn h",
            "h = self.body(x)\nh = h  # by value\nreturn h",
        ),
        (
            "return torch.tensor(self.body(x), dtype=torch.float16, device=y)",
            "return self.body(x).to(dtype=torch.float16, device=y)",
        ),
        ("h = self.body(x)\nreturn x.new_tensor(h)", "h = self.body(x)\nreturn h"),
        ("h = self.body(x)\nreturn torch.tensor(h.tolist())", "h = self.body(x)\nreturn h"),
        (
            "h = self.body(x)\nreturn torch.from_numpy(h.detach().cpu().numpy())",
            "h = self.body(x)\nreturn h",
        ),
        (
            "h = self.body(x)\nreturn torch.from_numpy(np.tanh(h.detach().numpy()))",
            "h = self.body(x)\nreturn torch.tanh(h)",
        ),
        (
            "h = self.body(x)\nreturn torch.tensor(np.arctan(np.exp(h.data.numpy()))).to(x)",
            "h = self.body(x)\nreturn torch.atan(torch.exp(h)).to(x)",
        ),
        (
            "a, b = self.body(x).mean(), self.gate(x).mean()\nreturn torch.tensor([a, b])",
            "a, b = self.body(x).mean(), self.gate(x).mean()\nreturn torch.stack([a, b])",
        ),
        (
            "a, b = self.body(x).mean(), self.gate(x).mean()\n"
            "return torch.tensor([a.item(), b.item()])",
            "a, b = self.body(x).mean(), self.gate(x).mean()\nreturn torch.stack([a, b])",
        ),
        (
            "a, b = self.body(x).mean(), self.gate(x).mean()\nreturn torch.as_tensor((a, b)).sum()",
            "a, b = self.body(x).mean(), self.gate(x).mean()\nreturn torch.stack([a, b]).sum()",
        ),
        (
            "return torch.tensor([head(x).mean() for head in self.heads])",
            "return torch.stack([head(x).mean() for head in self.heads])",
        ),
        (
            "return torch.tensor([head(x).mean().item() for head in self.heads], device=y)",
            "return torch.stack([head(x).mean() for head in self.heads]).to(device=y)",
        ),
        (
            "scores = []\nfor head in self.heads:\n    scores.append(head(x).mean())\n"
            "return torch.tensor(scores)",
            "scores = []\nfor head in self.heads:\n    scores.append(head(x).mean())\n"
            "return torch.stack(scores)",
        ),
    ],
)
def test_a_value_stays_a_tensor(before: str, after: str) -> None:
    becomes(net(before), net(after), unsafe=True)


LEARNED = """\
import math

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.log_scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        scale = {}
        return self.body(x) * scale
"""


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("scale", ["math.exp(self.log_scale)", "math.exp(self.log_scale.item())"])
def test_a_learned_scale_that_math_reads_learns_after_the_fix(scale: str) -> None:
    x = torch.randn(3, 4)

    def gradient(text: str) -> torch.Tensor | None:
        scope: dict[str, Any] = {}
        exec(text, scope)
        torch.manual_seed(0)
        model = scope["Scaled"]()
        model(x).square().sum().backward()
        grad: torch.Tensor | None = model.log_scale.grad
        return grad

    text = LEARNED.format(scale)
    assert rules(text) == ["TRN302"] and gradient(text) is None
    found, right = (
        gradient(fix(text, unsafe=True)),
        gradient(LEARNED.format("self.log_scale.exp()")),
    )
    assert found is not None and right is not None
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize(
    "held",
    ["0.3", "depth ** -0.5", "nn.Parameter(torch.tensor(0.3), requires_grad=False)"],
)
def test_math_of_what_is_not_learned_stays(held: str) -> None:
    text = LEARNED.format("math.exp(self.log_scale)")
    assert rules(text) == ["TRN302"]
    stays(text.replace("nn.Parameter(torch.tensor(0.3))", held))


@pytest.mark.parametrize(
    "body",
    [
        # not one function of torch
        "h = self.body(x).detach().numpy()\nreturn torch.from_numpy(np.mean(h, 0))",
        # an array that is written, or shown, or may be another one
        "a = self.body(x).detach().numpy()\nb = np.tanh(a)\nb[0] = 0\nreturn torch.from_numpy(b)",
        "a = self.body(x).detach().numpy()\nb = np.tanh(a)\nb += 1\nreturn torch.from_numpy(b)",
        "a = self.body(x).detach().numpy()\nprint(a)\nreturn torch.from_numpy(np.tanh(a))",
        "a = self.body(x).detach().numpy()\nb = np.tanh(a)\nif y:\n    b = np.exp(a)\n"
        "return torch.from_numpy(b)",
        "a = self.body(x).detach().numpy()\nb = np.tanh(a)\nself.hook(lambda: a)\n"
        "return torch.from_numpy(b)",
        "a = self.body(x).detach().numpy()\nb = np.tanh(a, out=a)\nreturn torch.from_numpy(b)",
        # the numbers are made elsewhere
        "s = []\nfor head in self.heads:\n    s.append(head(x).mean().item())\n"
        "return torch.tensor(s)",
        "s = self.scale.item()\nreturn x * s * max(s, 0.1)",
        "s = math.exp(self.scale)\nreturn x * max(s, 0.1) * s",
        "return x * math.pow(self.scale.item(), 2)",
        # a list, or what comes out of one
        "k = self.body(x).sum(0).tolist()\nreturn x * k[0] + k[1]",
        "k, m = self.body(x).sum(0)[:2].tolist()\nreturn x * k + m",
        "for k in self.body(x).sum(0).tolist():\n    x = x * k\nreturn x",
        "k = [2 * s for s in self.body(x).sum(0).tolist()]\nreturn x * k[0]",
        "return x * sum(self.body(x).sum(0).tolist())",
        "k = self.body(x).sum(0).detach().numpy()\nreturn x * k[0]",
        "return torch.tensor([self.gate(x).mean(), 1.0])",
    ],
)
def test_what_has_no_evident_form_is_reported(body: str) -> None:
    (found,) = findings(net(body))
    assert found.rule == "TRN302"
    assert not found.fixes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "h = self.body(x)\na = h.detach().cpu().numpy()\nb = np.tanh(a)\n"
            "return torch.from_numpy(b).to(h)",
            "h = self.body(x)\na = h\nb = torch.tanh(a)\nreturn b.to(h)",
        ),
        (
            "h = self.body(x)\nh = h.detach().numpy()\nh = np.exp(h)\nreturn torch.from_numpy(h)",
            "h = self.body(x)\nh = torch.exp(h)\nreturn h",
        ),
        (
            "h = self.body(x).detach().numpy()\nreturn torch.from_numpy(np.mean(h, axis=0))",
            "h = self.body(x)\nreturn torch.mean(h, axis=0)",
        ),
        (
            "h = self.body(x)\na = h.detach().numpy()\n"
            "return torch.from_numpy(np.tanh(a) * 2.0 + 1).to(h)",
            "h = self.body(x)\na = h\nreturn ((torch.tanh(a) * 2.0) + 1).to(h)",
        ),
        (
            "h = self.body(x)\na = h.detach().numpy()\nb = 1 - a * a\nreturn torch.from_numpy(b)",
            "h = self.body(x)\na = h\nb = 1 - (a * a)\nreturn b",
        ),
    ],
)
def test_a_way_through_numpy_over_statements(before: str, after: str) -> None:
    becomes(net(before), net(after), unsafe=True)


GELU = """\
def gelu(x):
    a = x.detach().cpu().numpy()
    a = 0.5 * a * (1.0 + np.tanh(0.7978845608 * (a + 0.044715 * a**3)))
    return torch.from_numpy(a).to(x.device)


class Net"""


def with_gelu(body: str, gelu: str = GELU) -> str:
    return net(body).replace("class Net", gelu)


def test_a_way_through_numpy_in_a_function_of_the_file() -> None:
    text = with_gelu("return self.gate(gelu(self.body(x)))")
    (found,) = findings(text)
    assert found.rule == "TRN302" and "`self.body` gets no gradient" in found.message
    assert text.splitlines()[found.line - 1].strip() == "a = x.detach().cpu().numpy()"


@pytest.mark.parametrize(
    ("body", "gelu"),
    [
        ("return self.gate(gelu(x))", GELU),  # an input
        ("return self.gate(self.body(x))", GELU),
        ("with torch.no_grad():\n    h = gelu(self.body(x))\nreturn self.gate(h)", GELU),
        ("h = self.body(x)\nself.shown = gelu(h)\nreturn self.gate(h)", GELU),
        ("return self.gate(gelu(self.body(x)))", GELU.replace("def", "@torch.no_grad()\ndef", 1)),
        ("return self.gate(gelu(self.body(x)) + self.body(x))", GELU),  # learns all the same
    ],
)
def test_a_function_that_takes_no_gradient_stays(body: str, gelu: str) -> None:
    stays(with_gelu(body, gelu), select=("TRN3",))


def test_the_message_names_what_does_not_learn() -> None:
    (found,) = findings(net("return self.body(x) * self.scale.item() + self.shift"))
    assert "`self.scale` gets no gradient" in found.message


@pytest.mark.parametrize(
    "body",
    [
        # metrics
        "h = self.body(x)\nself.norm = h.norm().item()\nreturn h",
        "h = self.body(x)\nloss = F.mse_loss(h, y)\nreturn loss, torch.tensor(loss.item())",
        "h = self.body(x)\nloss = F.mse_loss(h, y)\nreturn {'loss': loss, 'log': loss.item()}",
        "print(self.scale.item())\nreturn x * self.scale",
        "return self.body(x).mean().item()",
        "return self.body(x).tolist()",
        # indices, lengths, masks, choices
        "return torch.tensor(self.body(x).argmax(-1).tolist())",
        "n = int(self.gate(x).mean().item())\nreturn self.body(x)[:n]",
        "return torch.tensor(self.body(x), dtype=torch.long)",
        "h = self.body(x)\nreturn h[torch.tensor(self.gate(x).round().tolist())]",
        "if self.gate(x).mean().item() > 0:\n    x = -x\nreturn self.body(x)",
        "return self.body(x) * (x > self.scale.item())",
        "k = self.gate(x).flatten().tolist()\nreturn self.body(x) * len(k)",
        "k = self.gate(x).flatten().tolist()\nreturn self.body(x)[k.index(max(k))]",
        "k = self.gate(x).flatten().tolist()\nif k[0] > 0:\n    x = -x\nreturn self.body(x)",
        "n = self.gate(x).flatten().int().tolist()\nreturn torch.cat(self.body(x).split(n))",
        # statistics of a value that keeps its gradient
        "h = self.body(x)\nk = h.norm(dim=0).tolist()\nreturn h / k[0]",
        "h = self.body(x)\nreturn h / h.abs().max().item()",
        "h = self.body(x)\nreturn h / torch.tensor(h.norm())",
        "h = self.body(x)\nreturn h * torch.from_numpy(np.exp(h.detach().numpy()))",
        # a weight that is used in another way, too
        "return x * self.scale.item() + self.scale",
        "return self.regularized(x * self.scale.item(), self.scale)",
        # as_tensor and Variable hand a tensor on
        "return torch.as_tensor(self.body(x))",
        # computed by what only numpy knows
        "h = self.body(x).detach().numpy()\nreturn torch.from_numpy(scipy.ndimage.label(h))",
        "h = self.body(x).detach().numpy()\nreturn torch.from_numpy(h.astype(int))",
        "return x * self.scale.item()  # no gradient: set by hand",
        "with torch.no_grad():\n    return x * self.scale.item()",
    ],
)
def test_what_is_right_stays(body: str) -> None:
    stays(net(body), select=("TRN3",))


def test_a_weight_that_another_method_uses_stays() -> None:
    body = "return x * self.scale.item()"
    stays(net(body, "\n\n    def penalty(self):\n        return self.scale**2\n"))
    stays(net(body, "\n\ndef anneal(net):\n    net.scale.data.mul_(0.9)\n"))


OF_WEIGHTS = {
    "an array": "\n    def w(self):\n        return torch.from_numpy(self.p.detach().numpy() * 2)\n",
    "a list": "\n    def w(self):\n        return torch.tensor(self.p.tolist())\n",
}


@pytest.mark.parametrize("method", OF_WEIGHTS.values(), ids=OF_WEIGHTS)
def test_a_method_that_gives_the_values_of_a_weight(method: str) -> None:
    text = net("return x * self.w() + self.body(x)", method)
    text = text.replace(
        "self.shift =", "self.p = nn.Parameter(torch.ones(3))\n        self.shift ="
    )
    (found,) = findings(text)
    assert found.rule == "TRN302" and "`self.p` gets no gradient" in found.message
    space: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), space)
    made = space["Net"](3)
    made(torch.ones(2, 3), None).sum().backward()
    assert made.p.grad is None and made.body.weight.grad is not None
    stays(text.replace("self.body(x)\n", "self.p\n"))
    stays(text + "\n    def penalty(self):\n        return self.p.square().sum()\n")


TRAIN = """\
import numpy as np
import torch
import torch.nn.functional as F


def smooth(pred, y):
    {loss}


def step(model, criterion, x, y):
    {body}
    loss.backward()
"""


def train(body: str, loss: str = "return (pred - y).abs().mean()") -> str:
    return TRAIN.format(body=body.replace("\n", "\n    "), loss=loss.replace("\n", "\n    "))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss = torch.tensor(model(x).mean())", "loss = model(x).mean()"),
        (
            "loss = model(x).sum()\nloss = torch.tensor([loss, loss]).sum()",
            "loss = model(x).sum()\nloss = torch.stack([loss, loss]).sum()",
        ),
    ],
)
def test_a_loss_that_is_a_constant(before: str, after: str) -> None:
    becomes(train(before), train(after), unsafe=True)


def test_a_loss_function_that_makes_a_leaf() -> None:
    """The loss requires a gradient then, and nothing that it was computed from gets one."""
    before = "return torch.tensor((pred - y).abs().mean(), requires_grad=True)"
    call = "loss = smooth(model(x), y)"
    assert [f.rule for f in findings(train(call, before))] == ["TRN302"]


def test_a_loss_function_that_gives_a_constant() -> None:
    text = train("loss = smooth(model(x), y)", "return torch.tensor((pred - y).abs().mean())")
    (found,) = findings(text)
    assert found.rule == "TRN302"
    assert "loss.backward" in found.message


@pytest.mark.parametrize(
    "body",
    [
        "loss = F.mse_loss(model(x), torch.tensor(y))",
        "returns = torch.tensor([r.item() for r in y])\nloss = -(model(x) * returns).mean()",
        "x = torch.tensor(x, requires_grad=True)\nloss = (x * x).sum()",
        "x = torch.ones(3, requires_grad=True)\nloss = (x * model(x).sum().item()).sum()",
        "total = 0.0\nloss = F.mse_loss(model(x), y)\ntotal += loss.item()",
        "loss = F.mse_loss(model(x), y)\nlog = torch.tensor([loss.item()])",
        "loss = criterion(torch.tensor(model(x)), y)",
    ],
)
def test_losses_with_a_gradient_stay(body: str) -> None:
    stays(train(body), select=("TRN3",))


# -- a leaf that nobody knows ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("loss = torch.zeros(1, requires_grad=True) + criterion(model(x), y).item()", "TRN302"),
        ("loss = torch.tensor(0.0, requires_grad=True) + model(x).mean().detach()", "TRN301"),
        ("loss = torch.zeros(1, requires_grad=True)\nfor v in x:\n"
         "    loss = loss + model(v).mean().item()", "TRN302"),
    ],
)  # fmt: skip
def test_a_leaf_that_hides_a_constant(body: str, rule: str) -> None:
    assert [f.rule for f in findings(train(body), select=("TRN3",))] == [rule]


@pytest.mark.parametrize(
    "body",
    [
        "loss = torch.zeros(1, requires_grad=True)\nfor v in x:\n    loss = loss + model(v).mean()",
        "loss = torch.zeros(1, requires_grad=True) + model(x).mean()",
        "loss = torch.tensor(0.0, requires_grad=True)",
        "w = torch.zeros(1, requires_grad=True)\nloss = w + model(x).mean().item()",
        "total = torch.zeros(1, requires_grad=True)\nopt = torch.optim.SGD([total])\n"
        "loss = (total - model(x).mean().item()) ** 2",
    ],
)
def test_leaves_with_a_use(body: str) -> None:
    stays(train(body), select=("TRN3",))


LISTS = [
    "losses = []\nfor v in x:\n    losses.append({}{})",
    "losses = []\nfor v in x:\n    each = {}\n    losses.append(each{})",
    "losses = [{}{} for v in x]",
]


@pytest.mark.parametrize("made", LISTS)
@pytest.mark.parametrize(
    ("end", "loss", "rule"),
    [
        (".item()", "torch.tensor(losses, requires_grad=True).mean()", "TRN302"),
        (".item()", "2 * torch.tensor(losses).requires_grad_().sum()", "TRN302"),
        (".detach()", "torch.stack(losses).requires_grad_().mean()", "TRN301"),
    ],
)
def test_losses_of_a_list_that_become_a_leaf(made: str, end: str, loss: str, rule: str) -> None:
    text = train(f"{made.format('(model(v) - y).pow(2).mean()', end)}\nloss = {loss}")
    assert [f.rule for f in findings(text)] == [rule]
    names: dict[str, Any] = {}
    exec(text, names)
    model = torch.nn.Linear(2, 1)
    names["step"](model, None, torch.ones(3, 2), torch.zeros(1))  # which says nothing
    assert model.weight.grad is None
    if rule == "TRN301":
        exec(fix(text, unsafe=True), names)
        names["step"](model, None, torch.ones(3, 2), torch.zeros(1))
        assert model.weight.grad is not None


@pytest.mark.parametrize(
    "body",
    [
        # a start from what a model gives
        "values = [model(v).item() for v in x]\nz = torch.tensor(values, requires_grad=True)\n"
        "loss = (z * z).sum()",
        "z = torch.stack([model(v).detach() for v in x]).requires_grad_()\nloss = (z * z).sum()",
        # beside the loss
        "seen = [model(v).item() for v in x]\nloss = model(x).sum() / torch.tensor(seen).max()",
        # of data
        "values = [float(v) for v in y]\nloss = torch.tensor(values, requires_grad=True).sum()",
    ],
)
def test_leaves_of_lists_with_a_use(body: str) -> None:
    stays(train(body), select=("TRN3",))


# -- helpers in other files -----------------------------------------------------------------------

HELPERS = """\
import numpy as np
import torch


def scores_of(xs):
    return torch.tensor([x.item() for x in xs])


def smooth(x):
    y = np.tanh(x.detach().cpu().numpy())
    return torch.from_numpy(y)


def half(x):
    return 0.5 * torch.as_tensor(x)


def labels(n):
    return torch.tensor([0] * n)
"""

STEP = """\
import helpers
import torch.nn.functional as F
from helpers import half, labels, smooth


def step(model, x, y):
    {body}
    loss.backward()
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("loss = smooth(model(x)).mean()", 7),
        ("loss = helpers.smooth(model(x)).mean()", 7),
        ("out = model(x)\n    loss = helpers.scores_of([out.mean(), out.std()]).sum()", 8),
        ("loss = half(model(x)).mean()", 0),
        ("loss = F.cross_entropy(model(x), labels(4))", 0),
        ("loss = model(x).mean()\n    print(smooth(loss))", 0),
        ("loss = (model(x) * smooth(x)).mean()", 0),
        ("loss = F.mse_loss(model(x), smooth(model(y)))", 0),
    ],
)
def test_a_round_trip_through_another_file(body: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "train.py").write_text(STEP.format(body=body))
    reports = list(check_paths([str(tmp_path)], Options()))
    assert not [r.problem for r in reports if r.problem]
    found = [(f.rule, f.line) for r in reports for f in r.findings]
    assert found == ([("TRN302", expected)] if expected else [])
    for report in reports:
        for finding in report.findings:
            assert not finding.fixes and Path(finding.related[0].path).name == "helpers.py"


TRAINER = """\
import torch
import torch.nn.functional as F
from transformers import Trainer


class MyTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
{body}
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("loss = torch.tensor([outputs.loss, outputs.aux]).mean()\nreturn loss", ["TRN302"]),
        (
            "loss = torch.tensor(outputs.loss.item())\n"
            "return (loss, outputs) if return_outputs else loss",
            ["TRN302"],
        ),
        (
            "losses = []\nfor part in inputs:\n    losses.append(model(**part).loss)\n"
            "return torch.tensor(losses).mean()",
            ["TRN302"],
        ),
        (
            "logits = outputs.logits.detach()\nreturn F.cross_entropy(logits, inputs['labels'])",
            ["TRN301"],
        ),
        (
            "self.log({'loss': torch.tensor([outputs.loss.item()]).mean()})\n"
            "return (outputs.loss, outputs) if return_outputs else outputs.loss",
            [],
        ),
        ("weight = torch.tensor(self.weights)\nreturn (outputs.loss * weight).mean()", []),
    ],
)
def test_what_a_trainer_differentiates(body: str, expected: list[str]) -> None:
    text = TRAINER.format(body=textwrap.indent(body, "        "))
    assert rules(text) == expected
    assert rules(text.replace("(Trainer)", "(Metric)")) == []


@pytest.mark.parametrize("made", ["torch.Tensor(outputs[0])", "torch.FloatTensor(outputs[0] * 2)"])
def test_a_tensor_that_is_made_of_a_tensor_keeps_its_graph(made: str) -> None:
    text = f"""\
        import torch

        def step(net, batch):
            outputs = net(batch)
            loss = {made}
            loss.backward()
        """
    stays(text)
    assert rules(text.replace(made, "torch.Tensor([outputs[0]])")) == ["TRN302"]
    scope: dict[str, Any] = {}
    exec(textwrap.dedent(text), scope)
    x = torch.ones((), requires_grad=True)
    scope["step"](lambda t: (t + t,), x)
    assert x.grad is not None


GATES = """\
import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        gates = [{element} for g in torch.sigmoid(self.a(x)).mean(0)]
        return self.b(x * torch.tensor(gates{rest}))
"""


@pytest.mark.parametrize("rest", ["", ", dtype=torch.float32"])
@pytest.mark.parametrize("element", ["float(g)", "g.item()"])
def test_numbers_in_a_list_become_a_tensor_again(element: str, rest: str) -> None:
    """The gates are stacked where they are made, so that what is behind them learns."""
    text = GATES.format(element=element, rest=rest)
    plain = text.replace(f"[{element}", "torch.stack([g").replace("mean(0)]", "mean(0)])")
    plain = plain.replace(f"torch.tensor(gates{rest})", "gates")
    gradients = []
    for program in (fix(text, unsafe=True), plain):
        scope: dict[str, Any] = {"__name__": "m"}
        exec(compile(program, "m.py", "exec"), scope)
        torch.manual_seed(0)
        model = scope["Gated"]()
        model(torch.linspace(-1, 1, 16).view(2, 8)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for found, right in zip(*gradients, strict=True):
        assert found is not None
        torch.testing.assert_close(found, right)


def test_numbers_that_are_read_elsewhere_stay_numbers() -> None:
    text = GATES.format(element="float(g)", rest="").replace(
        "        return", "        self.seen = gates\n        return"
    )
    assert fix(text, unsafe=True) == text and rules(text) == ["TRN302"]
