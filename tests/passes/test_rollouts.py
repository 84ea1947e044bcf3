"""What is sampled under inference_mode, and trained on afterwards, as in PPO and GRPO."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import findings, fix, stays

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Policy(nn.Module):
    def __init__(self, v=8, d=4):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.head = nn.Linear(d, v)

    def forward(self, ids):
        return self.head(self.emb(ids))

    @torch.inference_mode()
    def rollout(self, ids, n=2):
        for _ in range(n):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids

    @torch.inference_mode()
    def act(self, ids):
        logits = self(ids)[:, -1]
        action = logits.argmax(-1)
        return action, logits.log_softmax(-1).gather(1, action[:, None]).squeeze(1)

    @torch.inference_mode()
    def score(self, ids):
        return self(ids).mean().item()


@torch.inference_mode()
def generate(policy, ids):
    return policy(ids).argmax(-1)


@torch.inference_mode()
def collect(policy, ids):
    return {"ids": policy(ids).argmax(-1), "weight": policy(ids).mean((1, 2))}


def sample(policy, ids):
    with torch.inference_mode():
        seqs = policy(ids).argmax(-1)
    return seqs


def logprobs(policy, ids):
    logp = policy(ids[:, :-1]).log_softmax(-1)
    return logp.gather(-1, ids[:, 1:, None]).squeeze(-1)


def last(policy, ids):
    return policy(ids)[:, -1].log_softmax(-1)


def update(policy, seqs):
    loss = -logprobs(policy, seqs).mean()
    loss.backward()


def step(policy, ids):
"""
LOSS = "loss = -logp.mean()\nloss.backward()"
FOUND = {
    "a function": "seqs = generate(policy, ids)\nlogp = logprobs(policy, seqs)",
    "a method": "logp = logprobs(policy, policy.rollout(ids))",
    "a scope in a function": "seqs = sample(policy, ids)\nlogp = policy(seqs)",
    "a dict": "logp = last(policy, collect(policy, ids)['ids'])",
    "a dict, by name": "batch = collect(policy, ids)\nlogp = policy(batch['ids'])",
    "a product": "logp = last(policy, ids) * collect(policy, ids)['weight'][:, None]",
    "a tuple": "a, old = policy.act(ids)\nlogp = last(policy, ids).gather(1, a[:, None])",
    "a tuple, weighted": "a, old = policy.act(ids)\nlogp = old * last(policy, ids)[:, 0]",
    "an index": "a, old = policy.act(ids)\nlogp = last(policy, ids)[torch.arange(3), a]",
    "a target": "a, old = policy.act(ids)\nlogp = F.cross_entropy(policy(ids)[:, -1], a)",
    "a scope": (
        "with torch.inference_mode():\n    a = policy(ids)[:, -1].argmax(-1)\n"
        "logp = last(policy, ids).gather(1, a.unsqueeze(1))"
    ),
    "a scope, summed": (
        "with torch.inference_mode():\n    a = policy(ids)[:, -1].argmax(-1)\n    w = a * 0.5\n"
        "logp = (last(policy, ids).sum(-1) - 1.0) * w"
    ),
}


def program(lines: str) -> str:
    return HEAD + textwrap.indent(f"{lines}\n{LOSS}\n", "    ")


def gradient(text: str) -> torch.Tensor:
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    torch.manual_seed(0)
    policy = scope["Policy"]()
    scope["step"](policy, torch.randint(0, 8, (3, 4)))
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


@pytest.mark.parametrize("lines", FOUND.values(), ids=FOUND)
def test_what_is_trained_on_is_made_under_no_grad(lines: str) -> None:
    text = program(lines)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        gradient(text)
    assert {f.rule for f in findings(text)} == {"TRN205"}
    fixed = fix(text)
    assert fixed.count("no_grad") == 1
    stays(fixed)
    by_hand = text.replace("inference_mode", "no_grad")
    torch.testing.assert_close(gradient(fixed), gradient(by_hand))


CALLERS = {
    "an argument": "update(policy, generate(policy, ids))",
    "a name": "seqs = policy.rollout(ids)\nupdate(policy, seqs=seqs)",
}


@pytest.mark.parametrize("lines", CALLERS.values(), ids=CALLERS)
def test_what_is_handed_to_a_function_that_trains(lines: str) -> None:
    text = HEAD + textwrap.indent(f"{lines}\n", "    ")
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        gradient(text)
    (finding,) = findings(text)
    assert finding.rule == "TRN205" and "which `update` trains on" in finding.message
    assert gradient(fix(text)).any()


RIGHT = {
    "copied": "seqs = generate(policy, ids).clone()\nlogp = logprobs(policy, seqs)",
    "a number": "logp = last(policy, ids) * policy.score(ids)",
    "only added": "a, old = policy.act(ids)\nlogp = (last(policy, ids)[:, 0] - old).exp()",
    "computed from": (
        "w = collect(policy, ids)['weight']\nw = w - w.mean()\n"
        "logp = last(policy, ids) * w[:, None]"
    ),
    "masked": "seqs = generate(policy, ids)\nlogp = last(policy, ids) * (seqs > 3).float()[:, :1]",
    "a list": "seqs = generate(policy, ids).tolist()\nlogp = policy(torch.tensor(seqs))",
    "indexed": "seqs = generate(policy, ids)\nlogp = policy(seqs[torch.tensor([1, 0])])",
    "no gradient": (
        "seqs = generate(policy, ids)\nwith torch.no_grad():\n    old = policy(seqs)\n"
        "logp = last(policy, ids) - old[:, -1]"
    ),
    "the input": (
        "with torch.inference_mode():\n    part = ids[:, :2]\n    part = part\nlogp = policy(part)"
    ),
    "one to compare with": (
        "ref_model = Policy().requires_grad_(False)\nseqs = generate(policy, ids)\n"
        "logp = last(policy, ids) - ref_model(seqs)[:, -1]"
    ),
    "a frozen one": (
        "ref = Policy().requires_grad_(False)\nseqs = generate(policy, ids)\n"
        "logp = last(policy, ids) - ref(seqs)[:, -1]"
    ),
}


@pytest.mark.parametrize("lines", RIGHT.values(), ids=RIGHT)
def test_what_nothing_keeps_stays(lines: str) -> None:
    text = program(lines)
    assert gradient(text).any()
    stays(text, select=("TRN205",))


def test_a_network_that_first_makes_something_else_of_its_input() -> None:
    text = program("seqs = generate(policy, ids)\nlogp = policy(seqs)").replace(
        "self.emb(ids)", "self.emb(ids + 0)"
    )
    assert gradient(text).any()
    stays(text, select=("TRN205",))
