"""A class that learns by one method and acts by its forward: the scope on that forward is meant."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from verbs import findings, rules, stays

from trainify.engine import Options, check_paths
from trainify.findings import Safety

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

"""

MEANT = {
    "acts": """\
        class Agent(nn.Module):
            def __init__(self):
                super().__init__()
                self.pi = nn.Linear(4, 2)
                self.v = nn.Linear(4, 1)

            @torch.no_grad()
            def forward(self, obs):
                dist = torch.distributions.Categorical(logits=self.pi(obs))
                action = dist.sample()
                return action, dist.log_prob(action), self.v(obs)

            def evaluate(self, obs, action):
                dist = torch.distributions.Categorical(logits=self.pi(obs))
                return dist.log_prob(action), dist.entropy(), self.v(obs)


        def step(made, x):
            action, old, value = made(x)
            new, entropy, now = made.evaluate(x, action)
            loss = -((new - old).exp() * (1 - value)).mean() + now.pow(2).mean() - entropy.mean()
            loss.backward()
        """,
    "targets": """\
        class Agent(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

            def q(self, state):
                return self.net(state).max(-1).values

            @torch.no_grad()
            def forward(self, state):
                return self.net(state).max(-1).values


        def step(made, x):
            target = 1 + 0.9 * made(x)
            F.mse_loss(made.q(x), target).backward()
        """,
    "stopped": """\
        class Agent(nn.Module):
            def __init__(self):
                super().__init__()
                self.enc = nn.Linear(4, 4)
                self.pred = nn.Linear(4, 4)

            def project(self, x):
                return F.normalize(self.enc(x), dim=-1)

            @torch.no_grad()
            def forward(self, x):
                return F.normalize(self.enc(x), dim=-1)


        def loss_of(made, a, b):
            return (F.normalize(made.pred(made.project(a)), dim=-1) - made(b)).pow(2).mean()


        def step(made, x):
            loss = loss_of(made, x, x + 0.1)
            loss.backward()
        """,
    "members": """\
        class Agent(nn.Module):
            def __init__(self):
                super().__init__()
                self.members = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

            @torch.no_grad()
            def forward(self, x):
                return torch.stack([m(x).softmax(-1) for m in self.members]).mean(0)

            def risk(self, x):
                return sum(m(x).logsumexp(-1).mean() for m in self.members)


        def step(made, x):
            made.risk(x).backward()
        """,
    "by-itself": """\
        class Agent(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Linear(4, 1)

            def _run(self, x):
                return self.head(self.body(x).relu())

            @torch.inference_mode()
            def forward(self, x):
                return self._run(x).sigmoid()

            def update(self, x):
                F.softplus(-self._run(x)).mean().backward()


        def step(made, x):
            made.update(x)
        """,
    "base": """\
        class Scorer(nn.Module):
            def score(self, x):
                return self.head(x)


        class Agent(Scorer):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(4, 1)

            @torch.no_grad()
            def forward(self, x):
                return self.head(x) + 1


        def step(made, x):
            made.score(x).mean().backward()
        """,
    "derived": """\
        class Acting(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(4, 1)

            @torch.no_grad()
            def forward(self, x):
                return self.head(x) + 1


        class Agent(Acting):
            def score(self, x):
                return self.head(x)


        def step(made, x):
            made.score(x).mean().backward()
        """,
}


@pytest.mark.parametrize("text", MEANT.values(), ids=MEANT.keys())
def test_a_forward_beside_what_a_class_learns_by(text: str) -> None:
    """As it is, all of it that is in the loss learns: there is nothing to repair."""
    text = HEAD + textwrap.dedent(text)
    names: dict[str, object] = {}
    exec(compile(text, "m.py", "exec"), names)
    made = names["Agent"]()  # type: ignore[operator]
    names["step"](made, torch.randn(6, 4))  # type: ignore[operator]
    assert all(p.grad is not None for p in made.parameters())
    stays(text)


def test_what_a_class_learns_by_is_called_in_another_file(tmp_path: Path) -> None:
    model, step = textwrap.dedent(MEANT["acts"]).split("\n\n\n")
    evaluates = "\n\ndef play(agent, env):\n    agent.eval()\n    return agent(env.reset())\n"
    (tmp_path / "agent.py").write_text(HEAD + model + "\n")
    (tmp_path / "ppo.py").write_text(f"from agent import Agent\n\n\n{step}\n{evaluates}")
    assert not [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]


CUT = """\
        class Agent(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Linear(4, 1)

            @torch.no_grad()
            def forward(self, x):
                return self.head(self.body(x))

            {method}


        def step(made, x):
            (made(x).mean() + made.score(x).mean()).backward()
        """


@pytest.mark.parametrize(
    "method",
    [
        "def score(self, x): return self.body(x)",  # the head learns by no other way
        "def score(self, x): return self(x)",
        "def score(self, x):\n                with torch.no_grad():\n"
        "                    return self.head(self.body(x))",
        "def score(self, x): return self.head(self.body(x)).detach()",
    ],
)
def test_methods_that_a_class_does_not_learn_by(method: str) -> None:
    assert rules(HEAD + textwrap.dedent(CUT.format(method=method))) == ["TRN201"]


def test_another_way_that_no_loss_shows_for_is_looked_at() -> None:
    text = textwrap.dedent(CUT.format(method="def score(self, x): return self.head(self.body(x))"))
    stays(HEAD + text)
    model = HEAD + text.partition("\n\n\n")[0] + "\n\n\nmade = Agent().eval()\n"
    (finding,) = findings(model)
    assert finding.fixes["flag"].safety is Safety.UNSAFE
    assert "`Agent.score` runs the same modules" in finding.fixes["flag"].look_at


OWNED = """\
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Linear(4, 2)

    @torch.no_grad()
    def forward(self, obs):
        return self.pi(obs).softmax(-1)


class Algorithm:
    def __init__(self, agent):
        self.agent = agent

    def step(self, obs):
        loss = {loss}.logsumexp(-1).mean()
        loss.backward()


algorithm = Algorithm(Agent().eval())
"""


@pytest.mark.parametrize(
    ("loss", "safe"), [("self.agent.pi(obs)", False), ("self.agent(obs)", True)]
)
def test_an_owner_that_trains_the_parts_is_looked_at(loss: str, safe: bool) -> None:
    (finding,) = findings(HEAD + OWNED.format(loss=loss))
    assert (finding.fixes["flag"].safety is Safety.SAFE) is safe
    assert ("`Algorithm.step` runs the same" in finding.fixes["flag"].look_at) is not safe
