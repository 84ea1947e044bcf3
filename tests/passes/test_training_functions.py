"""In-place writes outside of networks: in losses, in steps of training, in files of functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, stays

from trainify.engine import check_paths
from trainify.findings import Finding

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"

LOSSES = {
    "TRN403": [
        "p = torch.softmax(logits, dim=-1)\np.clamp_(min=1e-6)\nreturn -(p * p.log()).sum(-1).mean()",
        "return logits.sigmoid().clamp_(1e-6, 1 - 1e-6).log().neg().mean()",
        "p = logits.exp()\nv = p[:, 1:]\nv *= 2.0\nreturn (p / p.sum(-1, keepdim=True)).log().mean()",
    ],
    "TRN404": [
        "y = logits.pow(2)\nlogits -= 1.0\nreturn (y * logits).mean()",
    ],
    "TRN402": [
        "s = torch.empty(2, 2)\ntorch.matmul(logits, logits.T, out=s)\nreturn s.logsumexp(-1).mean()",
    ],
}

TRAIN = """

def train(model, x):
    loss = objective(model(x))
    loss.backward()
    return loss
"""


def objective(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}def objective(logits):\n{lines}"


def run(text: str) -> torch.Tensor:
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    scope["train"](model, x)
    grad = model.weight.grad
    assert grad is not None
    # the same by finite differences
    step = torch.randn(4, 4) * 1e-3
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            model.weight += sign * step
            losses.append(scope["objective"](model(x)))
            model.weight -= sign * step
    torch.testing.assert_close(
        (losses[0] - losses[1]) / 2, (grad * step).sum(), rtol=0.05, atol=2e-6
    )
    return grad


CASES = [(rule, body) for rule, bodies in LOSSES.items() for body in bodies]


@pytest.mark.parametrize("rule, body", CASES)
def test_a_loss_that_is_a_plain_function(rule: str, body: str) -> None:
    text = objective(body) + TRAIN
    with pytest.raises(RuntimeError):
        run(text)
    assert [f.rule for f in findings(text)] == [rule]
    fixed = fix(text, unsafe=True)
    stays(fixed)
    run(fixed)


def test_a_parameter_counts_by_what_is_passed() -> None:
    text = objective("p = torch.softmax(logits, dim=-1)\np += 1e-6\nreturn -p.log().mean()")
    text = text.replace("logits", "out")
    assert [f.rule for f in findings(text + TRAIN)] == ["TRN403"]
    stays(text + TRAIN.replace("model(x)", "x.exp()"))


@pytest.mark.parametrize("rule, body", CASES)
def test_one_that_nothing_trains_through(rule: str, body: str) -> None:
    stays(objective(body))
    stays(objective(body) + "\n\ndef evaluate(model, x):\n    return objective(model(x)).item()\n")


STEPS = """\
model = nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    p = torch.softmax(model(torch.randn(2, 4)), dim=-1)
    p += 1e-6
    loss = -p.log().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_step_in_a_script() -> None:
    text = HEAD + STEPS
    with pytest.raises(RuntimeError):
        exec(compile(text, "m.py", "exec"), {})
    (finding,) = findings(text)
    assert (finding.rule, finding.line) == ("TRN403", 10)
    exec(compile(fix(text), "m.py", "exec"), {})


def test_a_step_of_a_trainer() -> None:
    lines = "".join(f"        {line}\n" for line in STEPS.splitlines()[3:])
    step = lines.replace("model(", "self.model(").replace("opt.", "self.opt.")
    text = f"{HEAD}class Trainer:\n    def step(self):\n{step.replace('            ', '        ')}"
    assert [(f.rule, f.line) for f in findings(text)] == [("TRN403", 9)]


@pytest.mark.parametrize(
    "body",
    [
        # a metric beside the loss
        "p = torch.softmax(logits, dim=-1)\np.clamp_(min=1e-6)\nprint(p.mean().item())\nreturn logits.mean()",
        "p = torch.softmax(logits.detach(), dim=-1)\np.mul_(2.0)\nreturn (p * logits).mean()",
        "with torch.no_grad():\n    p = torch.softmax(logits, dim=-1)\n    p += 1e-6\nreturn (p * logits).mean()",
        "w = torch.exp(torch.arange(4.0))\nw /= w.sum()\nreturn (w * logits).mean()",
        "i = logits.softmax(-1).mul_(2.0).argmax(-1)\nreturn F.cross_entropy(logits, i)",
        "p = torch.softmax(logits, dim=-1) * 2.0\np += 1e-6\nreturn -p.log().mean()",
    ],
)
def test_losses_that_are_right(body: str) -> None:
    text = objective(body) + TRAIN
    run(text) if "argmax" not in body else None
    stays(text)


def test_data_that_is_prepared_in_the_step() -> None:
    stays(
        HEAD
        + """\
def train(model, loader, opt):
    for images, labels in loader:
        images = images.exp()
        images /= images.sum()
        sigma = torch.randn(4).exp()
        sigma.mul_(0.5)
        loss = F.cross_entropy(model(images + sigma), labels)
        loss.backward()
        opt.step()
"""
    )


def check(folder: Path) -> list[Finding]:
    return [finding for report in check_paths([str(folder)]) for finding in report.findings]


def test_a_function_of_a_file_that_a_network_of_another_file_calls(tmp_path: Path) -> None:
    (tmp_path / "functional.py").write_text(
        HEAD + "def gate(x, y):\n    g = torch.sigmoid(x)\n    g.mul_(2.0)\n    return g * y\n"
    )
    assert not check(tmp_path)
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\nfrom functional import gate\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.proj = nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        return gate(self.proj(x), x)\n"
    )
    (finding,) = check(tmp_path)
    assert (finding.rule, finding.line) == ("TRN403", 8)


def test_what_a_layer_of_a_network_of_another_file_gives(tmp_path: Path) -> None:
    functional = tmp_path / "functional.py"
    functional.write_text(
        f"{HEAD}def fuse(a, b, out=None):\n    if out is None:\n        out = torch.empty_like(a)\n"
        "    torch.mul(a, b, out=out)\n    return out\n"
    )
    net = (
        f"{HEAD}from functional import fuse\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.l, self.g = nn.Linear(4, 4), nn.Linear(4, 4)\n\n"
        "    def forward(self, x, scale):\n        return fuse(self.l(x), self.g(x)) * scale\n"
    )
    (tmp_path / "net.py").write_text(net)
    (finding,) = check(tmp_path)
    assert (finding.rule, finding.line) == ("TRN402", 9)
    scope: dict[str, Any] = {}
    exec(fix(functional.read_text() + net.partition("fuse\n")[2], unsafe=True), scope)
    model, x = scope["Net"](), torch.randn(2, 4)
    model(x, 1.0).sum().backward()
    assert torch.allclose(model.l.bias.grad, model.g(x).sum(0))
    assert torch.allclose(model.g.bias.grad, model.l(x).sum(0))
    (tmp_path / "net.py").write_text(net.replace("self.l(x), self.g(x)", "scale.floor(), scale"))
    assert not check(tmp_path)


LAYERS = {
    "at once": "return F.silu(g, inplace=True) * u",
    "and on": "return F.silu(g, inplace=True).mul_(u)",
    "method": "g = g * 1.0 if u is None else g\nu.mul_(g)\nreturn u",
    "operator": "u *= g\nreturn u",
}


def layer(lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"{HEAD}def glu(x, w):\n    g, u = F.linear(x, w).chunk(2, dim=-1)\n{body}"


@pytest.mark.parametrize("lines", LAYERS.values(), ids=LAYERS)
def test_a_function_for_others_that_takes_the_weights_of_a_layer(lines: str) -> None:
    def check(text: str) -> None:
        scope: dict[str, Any] = {}
        exec(compile(text, "m.py", "exec"), scope)
        x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        torch.autograd.gradcheck(scope["glu"], (x, w))

    text = layer(lines)
    with pytest.raises(RuntimeError, match="view"):
        check(text)
    assert [f.rule for f in findings(text)] == ["TRN405"]
    fixed = fix(text)
    stays(fixed)
    check(fixed)


@pytest.mark.parametrize(
    "text",
    [
        layer("u *= g\nreturn u").replace("def glu", "@torch.no_grad()\ndef glu"),
        layer("u *= g\nreturn u").replace("F.linear(x, w)", "torch.cat([x, w])"),
        layer("u *= g\nreturn u").replace("F.linear(x, w)", "F.linear(x, table)"),
        layer("u *= g\nreturn u") + "\n\ndef measure(x, w):\n    return glu(x, w).max().item()\n",
        layer("u *= g\nreturn u").replace("def glu", "def sample_glu"),
    ],
)
def test_functions_that_are_no_layer(text: str) -> None:
    stays(text)
