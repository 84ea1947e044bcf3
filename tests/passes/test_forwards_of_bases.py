"""A subclass that only puts the forward of a trained class under a scope: that scope is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import rules, stays

from trainify.engine import Options, check_paths

HEAD = """\
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


"""
ACTS = """\
class RolloutPolicy(Policy):
    @torch.{scope}()
    def forward(self, x):
        {body}

    def act(self, x):
        {act}


"""
USED = 'POLICIES = {"learner": Policy, "rollout": RolloutPolicy}\n'
BODIES = [
    "return super().forward(x)",
    "x = x.float()\n        return super(RolloutPolicy, self).forward(x).clamp(-9, 9)",
]
ACT = {
    "drawn": "return torch.distributions.Categorical(logits=self(x)).sample()",
    "drawn-later": "d = torch.distributions.Categorical(logits=self(x))\n        return d.sample()",
    "array": "return torch.as_tensor(self(x).numpy().argmax(-1))",
}


@pytest.mark.parametrize("scope", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("act", ACT.values(), ids=ACT.keys())
def test_a_copy_that_acts_beside_what_learns(scope: str, body: str, act: str) -> None:
    """Run it: the base learns, by what the copy chose."""
    step = "\n\ndef step(learner, worker, x):\n    chosen = worker.act(x).clone()\n"
    step += "    loss = learner(x).log_softmax(-1).gather(-1, chosen[:, None]).mean()\n"
    step += "    loss.backward()\n"
    text = HEAD + ACTS.format(scope=scope, body=body, act=act) + USED + step
    stays(text)
    stays(text, flag="training")
    names: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), names)
    learner = names["Policy"]()
    names["step"](learner, names["RolloutPolicy"](), torch.ones(3, 4))
    assert all(weight.grad is not None for weight in learner.parameters())


TRAINED = {
    "alone": f"{USED}\n\ndef step(x):\n    worker = RolloutPolicy()\n"
    "    worker(x).sum().backward()\n",
    "declared": f"{USED}\n\ndef step(worker: RolloutPolicy, criterion, other, x):\n"
    "    loss = criterion(worker(x), other(x))\n    loss.backward()\n",
    "base unused": "def step(worker, x):\n    worker(x).sum().backward()\n",
}


@pytest.mark.parametrize("more", TRAINED.values(), ids=TRAINED.keys())
def test_what_a_loss_runs_or_might_run_itself(more: str) -> None:
    acts = ACTS.format(scope="no_grad", body=BODIES[0], act=ACT["array"])
    assert rules(HEAD + acts + more) == ["TRN201"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("super().forward(x)", "self.more(super().forward(x))"),  # has weights of its own
        ("super().forward(x)", "self.head(self.body(x))"),
    ],
)
def test_a_subclass_that_does_more(old: str, new: str) -> None:
    acts = ACTS.format(scope="no_grad", body=BODIES[0].replace(old, new), act=ACT["array"])
    init = (
        "    def __init__(self):\n        super().__init__()\n        self.more = nn.Linear(2, 2)\n"
    )
    if "more" in new:
        acts = acts.replace("(Policy):\n", f"(Policy):\n{init}\n")
    assert rules(HEAD + acts + USED) == ["TRN201"]


def test_over_files(tmp_path: Path) -> None:
    acts = ACTS.format(scope="no_grad", body=BODIES[0], act=ACT["array"])
    (tmp_path / "net.py").write_text(HEAD)
    (tmp_path / "work.py").write_text(f"import torch\n\nfrom net import Policy\n\n\n{acts}")
    assert [f.rule for r in check_paths([str(tmp_path)], Options()) for f in r.findings] == [
        "TRN201"
    ]
    (tmp_path / "learn.py").write_text("from net import Policy\n\nlearner = Policy()\n")
    assert not [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    (tmp_path / "step.py").write_text(
        "from work import RolloutPolicy\n\n\ndef step(x):\n    worker = RolloutPolicy()\n"
        "    loss = worker(x).sum()\n    loss.backward()\n"
    )
    assert [f.rule for r in check_paths([str(tmp_path)], Options()) for f in r.findings] == [
        "TRN201"
    ]
