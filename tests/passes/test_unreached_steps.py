"""TRN605, run: which optimizers change nothing, and whether it is those that are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from verbs import findings, rules, stays

from trainify import Options, engine

SCRIPT = """\
import itertools

import torch
from torch import nn

criterion = nn.BCEWithLogitsLoss()


def train(generator, critic, loader):
    first = torch.optim.SGD({first}, lr=0.1)
    second = torch.optim.SGD(list(critic.parameters()), lr=0.1)
    for real in loader:
        noise = torch.randn(8, 4)
{body}
"""
CRITIC = (
    "loss = critic(fake.detach()).mean() - critic(real).mean()\nloss.backward()\nsecond.step()\n"
)
STEP = "loss.backward()\nfirst.step()\n"
WRONG = {
    "detached": f"fake = generator(noise).detach()\n{CRITIC}loss = -critic(fake).mean()\n{STEP}",
    "detached again": f"fake = generator(noise)\n{CRITIC}loss = -critic(fake.detach()).mean()\n{STEP}",
    "no_grad": (
        "with torch.no_grad():\n    fake = generator(noise)\n"
        f"{CRITIC}loss = critic(fake).square().sum()\n{STEP}"
    ),
    "other": f"fake = generator(noise)\n{CRITIC}loss = -critic(real).mean()\n{STEP}",
    "other optimizer": f"fake = generator(noise)\n{CRITIC}first.step()\n",
    "criterion": (
        f"fake = generator(noise).detach()\n{CRITIC}out = critic(fake)\n"
        f"loss = criterion(out, torch.ones_like(out))\n{STEP}"
    ),
    "numbers": f"fake = generator(noise)\n{CRITIC}loss = critic((fake > 0).float()).mean()\n{STEP}",
}
RIGHT = {
    "gan": f"fake = generator(noise)\n{CRITIC}loss = -critic(fake).mean()\n{STEP}",
    "again": (
        f"fake = generator(noise).detach()\n{CRITIC}fake = generator(noise)\nout = critic(fake)\n"
        f"loss = criterion(out, torch.ones_like(out))\n{STEP}"
    ),
    "given": (
        "fake = torch.utils.checkpoint.checkpoint(generator, noise, use_reentrant=False)\n"
        f"{CRITIC}loss = -critic(fake).mean()\n{STEP}"
    ),
    "by hand": (
        f"fake = generator(noise)\n{CRITIC}loss = -critic(fake).mean()\n"
        "grads = torch.autograd.grad(loss, list(generator.parameters()))\n"
        "for p, g in zip(generator.parameters(), grads):\n    p.grad = g\nfirst.step()\n"
    ),
    "both": f"fake = generator(noise)\nloss = critic(fake).mean()\n{STEP}second.step()\n",
    "held": f"gan = nn.Sequential(generator, critic)\nloss = gan(noise).mean()\n{STEP}",
}


def script(body: str, first: str = "generator.parameters()") -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return SCRIPT.format(first=first, body=lines)


def changes(text: str) -> bool:
    """Whether the generator is another one after the script."""
    scope: dict[str, Any] = {}
    exec(compile(text, "script", "exec"), scope)
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    before = generator.weight.detach().clone()
    scope["train"](generator, critic, [torch.randn(8, 4)])
    return not torch.equal(before, generator.weight)


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_what_never_learns_is_reported(body: str) -> None:
    assert not changes(script(body))
    (found,) = findings(script(body))
    assert found.rule == "TRN605"
    assert "`first` steps the parameters of `generator`" in found.message


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_what_learns_stays(body: str) -> None:
    assert changes(script(body))
    stays(script(body))


def test_where_the_graph_ends() -> None:
    (found,) = findings(script(WRONG["detached again"]))
    assert "`fake.detach()` is on the way" in found.message
    assert [related.message for related in found.related] == ["The graph ends here."]


@pytest.mark.parametrize(
    "first",
    [
        "itertools.chain(generator.parameters(), critic.parameters())",
        "list(generator.parameters()) + list(critic.parameters())",
        "[p for p in generator.parameters()]",
        "generator.head.parameters()",
        "make_groups(generator)",
    ],
)
def test_an_optimizer_of_more_than_one_model_stays(first: str) -> None:
    stays(script(WRONG["other"], first))


AGENT = """\
import torch


class Agent:
    def __init__(self, actor, critic):
        self.actor = {actor}
        self.critic = critic
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters())
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters())

    def actor_loss(self, state):
        return -self.critic(state, self.actor(state)).mean()

    def differentiate(self, state):
        self.actor_loss(state).backward()

    def update(self, state, action, reward):
        loss = (self.critic(state, action) - self.gamma * reward).square().mean()
        loss.backward()
        self.critic_optimizer.step()
        {loss}
        self.actor_optimizer.step()
"""


@pytest.mark.parametrize(
    ("actor", "loss", "reported"),
    [
        ("actor", "(-self.critic(state, action).mean()).backward()", True),
        ("actor", "(-self.critic(state, self.actor(state).detach()).mean()).backward()", True),
        ("actor", "(-self.critic(state, self.actor(state)).mean()).backward()", False),
        ("actor", "self.actor_loss(state).backward()", False),
        ("actor", "self.differentiate(state)", False),
        ("actor", "self.policy_loss(state).backward()", False),  # of a base class
        ("actor", "(-self.critic(state, action).mean() + self.kept).backward()", False),
        ("critic.actor", "(-self.critic(state, action).mean()).backward()", False),
    ],
)
def test_an_actor_and_a_critic(actor: str, loss: str, reported: bool) -> None:
    found = findings(AGENT.format(actor=actor, loss=loss))
    assert [f.rule for f in found] == ["TRN605"] * reported


PARTS = """\
import torch
from torch import nn


def train({parameters}loader):
    {made}
    first = torch.optim.Adam(head.parameters())
    second = torch.optim.Adam(model.parameters())
    for x in loader:
        model(x).mean().backward()
        first.step()
        second.step()
"""


@pytest.mark.parametrize(
    ("parameters", "made"),
    [
        ("model, head, ", ""),
        ("model, ", "head = model.head"),
        ("", "head = nn.Linear(4, 4)\n    model = nn.Sequential(nn.Linear(4, 4), head)"),
        ("", "model, head = build()"),
    ],
)
def test_a_part_of_what_is_reached_stays(parameters: str, made: str) -> None:
    stays(PARTS.format(parameters=parameters, made=made))


ONE_OPTIMIZER = """\
import torch
import torch.nn.functional as F
from torch import nn


def optimizer_of(net, lr=0.1):
    return torch.optim.SGD(net.parameters(), lr=lr)


def loss_of(net, x):
    return F.mse_loss(net(x), torch.zeros(3, 4))


def train(batches):
    first = nn.Linear(4, 4)
    second = nn.Linear(4, 4)
    {made}
    before = second.weight.detach().clone()
    for x in batches:
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return not torch.equal(before, second.weight)
"""
PLAIN = "optimizer = torch.optim.SGD(second.parameters(), lr=0.1)"


@pytest.mark.parametrize(
    ("made", "loss", "learns"),
    [
        (PLAIN, "first(x).square().mean()", False),
        (PLAIN, "loss_of(first, x)", False),
        ("optimizer = optimizer_of(second)", "loss_of(first, x)", False),
        ("optimizer = optimizer_of(lr=0.2, net=second)", "first(x).square().mean()", False),
        (PLAIN, "loss_of(second, x)", True),
        ("optimizer = optimizer_of(second)", "second(first(x)).square().mean()", True),
        (f"first.head = second; {PLAIN}", "first.head(first(x)).square().mean()", True),
        (f"both = nn.Sequential(first, second); {PLAIN}", "both(x).square().mean()", True),
    ],
)
def test_one_optimizer_and_the_model_that_it_was_given(made: str, loss: str, learns: bool) -> None:
    text = ONE_OPTIMIZER.format(made=made, loss=loss)
    scope: dict[str, Any] = {}
    exec(compile(text, "script", "exec"), scope)
    assert scope["train"]([torch.randn(3, 4)]) is learns
    assert rules(text, select=("TRN605",)) == ([] if learns else ["TRN605"])


def test_helpers_of_another_file(tmp_path: Path) -> None:
    head, train = ONE_OPTIMIZER.split("def train", 1)
    names = "from torch import nn\nfrom build import optimizer_of, loss_of\n\n\n"
    (tmp_path / "build.py").write_text(head)
    text = train.format(made="optimizer = optimizer_of(second)", loss="loss_of(first, x)")
    (tmp_path / "main.py").write_text(f"import torch\n{names}def train{text}")
    reports = engine.check_paths([str(tmp_path)], Options())
    assert [f.rule for r in reports for f in r.findings] == ["TRN605"]


# -- one of the models of an optimizer ------------------------------------------------------------

TWO = """\
import itertools

import torch
from torch import nn
import torch.nn.functional as F


def train(body, head, loader):
    optimizer = torch.optim.SGD({params}, lr=0.1)
    for x, y in loader:
        with torch.no_grad():
            h = body(x)
        loss = F.cross_entropy(head(h){more}, y)
        loss.backward()
        optimizer.step()
"""
BOTH = [
    "[*body.parameters(), *head.parameters()]",
    "list(body.parameters()) + list(head.parameters())",
    "itertools.chain(body.parameters(), head.parameters())",
    '[{"params": body.parameters(), "lr": 1e-4}, {"params": head.parameters()}]',
]


@pytest.mark.parametrize("params", BOTH)
def test_a_model_that_is_trained_and_run_under_a_mode(params: str) -> None:
    """Its optimizer says that it is to learn."""
    text = TWO.format(params=params, more="")
    (finding,) = findings(text)
    assert finding.rule == "TRN605" and "`body`" in finding.message
    assert "`head`" not in finding.message and "`torch.no_grad()`" in finding.message
    names: dict[str, Any] = {}
    exec(text, names)
    body, head = nn.Linear(4, 4), nn.Linear(4, 2)
    before = body.weight.detach().clone(), head.weight.detach().clone()
    names["train"](body, head, [(torch.randn(8, 4), torch.randint(2, (8,)))])
    assert torch.equal(body.weight, before[0]) and not torch.equal(head.weight, before[1])


@pytest.mark.parametrize(
    ("params", "more", "after"),
    [
        ("head.parameters()", "", ""),
        (BOTH[0], " + head(body(x))", ""),
        (
            BOTH[0],
            "",
            "\n\ndef other(body, x, y):\n    F.mse_loss(body(x), y).backward()\n    optimizer.step()\n",
        ),
    ],
    ids=["not-handed", "another-way", "another-step"],
)
def test_models_of_an_optimizer_that_learn(params: str, more: str, after: str) -> None:
    text = TWO.format(params=params, more=more)
    if after:
        text = text.replace("def train(body, head, loader):\n    opt", "opt").replace(
            "\n    for", "\n\n\ndef train(body, head, loader):\n    for", 1
        )
    stays(text + after)


DISTILL = """\
import torch
import torch.nn.functional as F


def distill(teacher, student, loader):
    optimizer = torch.optim.SGD({trained}.parameters(), lr=0.1)
    for x in loader:
        with torch.no_grad():
            goal = teacher(x)
        loss = F.mse_loss(student(x), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("trained", ["teacher", "student"])
def test_the_optimizer_has_the_teacher(trained: str) -> None:
    text = DISTILL.format(trained=trained)
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    teacher, student = nn.Linear(4, 4), nn.Linear(4, 4)
    before = [p.detach().clone() for p in (*teacher.parameters(), *student.parameters())]
    scope["distill"](teacher, student, [torch.ones(2, 4)])
    moved = any(
        not torch.equal(p, b)
        for p, b in zip((*teacher.parameters(), *student.parameters()), before, strict=True)
    )
    assert rules(text) == ([] if moved else ["TRN605"])
    assert moved is (trained == "student")


@pytest.mark.parametrize("given", ["loss_fn", "model", "forward"])
def test_what_is_given_may_run_the_model_of_the_optimizer(given: str) -> None:
    stays(DISTILL.format(trained="teacher").replace("student", given))


@pytest.mark.parametrize(("whole", "part"), [("model", "head"), ("autoencoder", "encoder")])
def test_what_is_given_may_be_a_part_of_the_model(whole: str, part: str) -> None:
    text = DISTILL.format(trained="teacher").replace("teacher", whole).replace("student", part)
    stays(text)
