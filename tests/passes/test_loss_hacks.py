"""A loss that is told to require a gradient hides what cut its graph."""

from __future__ import annotations

import textwrap

import pytest
from verbs import findings, rules, stays

STEP = """\
import torch
import torch.nn.functional as F
from torch.autograd import Variable


def step(model, x, y, loader):
{body}
"""


def step(body: str) -> str:
    return STEP.format(body=textwrap.indent(textwrap.dedent(body), "    "))


@pytest.mark.parametrize(
    "hack",
    [
        "loss.requires_grad = True",
        "loss.requires_grad_(True)",
        "loss.requires_grad_()",
        "loss.requires_grad_(requires_grad=True)",
        "loss = Variable(loss, requires_grad=True)",
        "loss = torch.tensor(loss, requires_grad=True)",
        "loss = loss.clone().requires_grad_(True)",
        "if not loss.requires_grad:\n    loss.requires_grad_(True)",
    ],
)
@pytest.mark.parametrize("end", ["loss.backward()", "return loss"])
def test_spellings(hack: str, end: str) -> None:
    (finding,) = findings(
        step(f"loss = F.cross_entropy(model(x).detach(), y)\n{hack}\n{end}"), select=("TRN207",)
    )
    assert not finding.fixes and "`model(x).detach()`, line 7" in finding.message


def test_any_name_that_goes_backward() -> None:
    text = step("out = model(x).data.sum()\nout.requires_grad_()\nout.backward()")
    (finding,) = findings(text, select=("TRN207",))
    assert "`model(x).data`" in finding.message


@pytest.mark.parametrize(
    ("cut", "named"),
    [
        ("pred = torch.from_numpy(model(x).detach().numpy())", "`model(x).detach()`, line 7"),
        ("pred = model(x).argmax(-1).float()", "`model(x).argmax(-1)`, line 7"),
        ("pred = (model(x) > 0).float()", "`model(x) > 0`, line 7"),
        ("with torch.no_grad():\n    pred = model(x)", "`torch.no_grad()`, line 7"),
        ("pred = torch.tensor([model(v).item() for v in x])", "`model(v).item()`, line 7"),
    ],
)
def test_the_cut_that_it_hides_is_named(cut: str, named: str) -> None:
    text = step(f"{cut}\nloss = F.mse_loss(pred, y)\nloss.requires_grad = True\nloss.backward()")
    (finding,) = findings(text, select=("TRN207",))
    assert named in finding.message


@pytest.mark.parametrize("weight", ["1.0", "torch.tensor(list(y.values()))"])
def test_without_a_cut_in_sight_it_is_still_no_use(weight: str) -> None:
    text = step(
        f"loss = F.mse_loss(model(x), y) * {weight}\nloss.requires_grad_(True)\nloss.backward()"
    )
    (finding,) = findings(text, select=("TRN207",))
    assert "does nothing where there is one" in finding.message


@pytest.mark.parametrize(
    "body",
    [
        # gradients with respect to inputs
        "x.requires_grad_(True)\nloss = model(x).sum()\nloss.backward()\nreturn x.grad",
        "x.requires_grad = True\nreturn torch.autograd.grad(model(x).sum(), x)",
        "noise = torch.randn(3)\nnoise.requires_grad_()\n(model(noise)).sum().backward()",
        "mixed = 0.5 * x + 0.5 * y\nmixed.requires_grad_(True)\nreturn model(mixed)",
        # a sum that starts from nothing
        "loss = torch.zeros(1, requires_grad=True)\nfor v in x:\n    loss = loss + model(v)\n"
        "loss.backward()",
        "loss = torch.tensor(0.0)\nloss.requires_grad_(True)\nloss = loss + model(x)\n"
        "loss.backward()",
        # a leaf on purpose: its gradient is handed on
        "loss = model(x).sum()\nleaf_loss = loss.detach().requires_grad_()\n"
        "(leaf_loss * y).backward()\nloss.backward(leaf_loss.grad)",
        # gradients that were cached, for more batches than fit: the hook computes them anew
        "loss = model(x).sum()\nloss.backward()\nloss = loss.detach().requires_grad_()\nreturn loss",
        "reps = [v.detach().requires_grad_() for v in model(x)]\nloss = losses(reps)\n"
        "loss = loss.detach().requires_grad_()\nloss.register_hook(replay)\nreturn loss",
        "loss = losses(reps, with_backward=True)\nloss = loss.detach().requires_grad_()\n"
        "return loss, [[rep.grad for rep in part] for part in reps]",
        # a weight that is learned
        "loss_scale = y.clone()\nloss_scale.requires_grad_(True)\nreturn (model(x) * loss_scale).sum()",
        "loss = torch.tensor(0.0, device=x.device, requires_grad=True)\nreturn loss + model(x)",
        # parameters
        "for p in model.parameters():\n    p.requires_grad = True\nloss = model(x)\n"
        "loss.backward()",
        "loss = model(x)\nloss.requires_grad_(False)",
        "hidden = model(x)\nhidden.requires_grad_(True)\nreturn hidden",
    ],
)
def test_leaves_that_are_meant_stay(body: str) -> None:
    stays(step(body), select=("TRN207",))


def test_the_hack_is_found_where_a_file_has_no_backward() -> None:
    assert rules(
        step("loss = F.mse_loss(model(x), y)\nloss.requires_grad = True\nreturn loss")
    ) == ["TRN207"]


def test_the_cut_that_is_named_is_the_one_nearest_to_the_loss() -> None:
    text = """\
import torch


def reinforce(policy, opt, env):
    logps, rewards, obs = [], [], env.reset()
    for _ in range(200):
        d = torch.distributions.Categorical(logits=policy(obs))
        a = d.sample()
        logps.append(d.log_prob(a).item())
        obs, r, done = env.step(a.item())
        rewards.append(r)
    loss = -(torch.tensor(logps) * torch.tensor(rewards)).sum()
    loss.requires_grad = True
    loss.backward()
"""
    (finding,) = findings(text)
    assert finding.rule == "TRN207"
    assert "ends at `d.log_prob(a).item()`, line 9," in finding.message


def test_the_decorator_that_cuts_is_named() -> None:
    text = """\
import torch


@torch.no_grad()
def logps_of(model, ids):
    return model(ids).logits.log_softmax(-1)


def step(policy, reference, ids):
    logps, ref_logps = logps_of(policy, ids), logps_of(reference, ids)
    loss = (logps - ref_logps).exp().mean()
    loss.requires_grad_(True)
    loss.backward()
"""
    (finding,) = findings(text)
    assert finding.rule == "TRN207"
    assert (
        "ends at `logps_of(policy, ids)`, line 10 (gradients are off by `torch.no_grad()`, line 4)"
    ) in finding.message


def test_a_sum_of_numbers_is_no_loss() -> None:
    """Numbers that were losses, whatever the name of what they are added up in."""
    text = step(
        "total = 0.0\nfor v in x:\n    total += F.mse_loss(model(v), y).item()\n"
        "total = torch.tensor(total, requires_grad=True)\ntotal.backward()"
    )
    (finding,) = findings(text, select=("TRN207",))
    assert "`F.mse_loss(model(v), y).item()`" in finding.message
    shown = "total = torch.tensor(total)\nloss = F.mse_loss(model(x), y)\nloss.backward()"
    stays(text.replace(text[text.index("total = torch") :], shown), select=("TRN207",))
    fitted = (
        "w = torch.tensor(1.0, requires_grad=True)\nloss = F.mse_loss(w * x, y)\nloss.backward()"
    )
    stays(step(fitted), select=("TRN207",))
