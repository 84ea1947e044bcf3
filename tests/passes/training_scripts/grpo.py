"""GRPO: groups of completions, old and reference log-probabilities without gradients."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Policy(nn.Module):
    def __init__(self, vocabulary=12, width=8):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.Linear(width, width)
        self.lm_head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.lm_head(torch.tanh(self.body(self.embed(ids))))

    @torch.no_grad()
    def generate(self, ids, length):
        for _ in range(length):
            probs = self(ids)[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
        return ids


def get_logps(model, ids):
    logits = model(ids[:, :-1])
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def reward(ids):
    return (ids % 2 == 0).float().mean(-1)


class GRPOTrainer:
    def __init__(self, model, group=6, beta=0.04, clip=0.2):
        self.model, self.group, self.beta, self.clip = model, group, beta, clip
        self.ref_model = copy.deepcopy(model).eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.metrics = {"kl": [], "reward": []}

    def rollout(self, prompts):
        prompts = prompts.repeat_interleave(self.group, 0)
        with torch.no_grad():
            ids = self.model.generate(prompts, 6)
            old_logps = get_logps(self.model, ids)
            ref_logps = get_logps(self.ref_model, ids)
            rewards = reward(ids)
            grouped = rewards.view(-1, self.group)
            advantages = (grouped - grouped.mean(1, keepdim=True)) / (
                grouped.std(1, keepdim=True) + 1e-4
            )
        return ids, old_logps, ref_logps, advantages.flatten(), rewards

    def compute_loss(self, ids, old_logps, ref_logps, advantages):
        logps = get_logps(self.model, ids)
        ratio = torch.exp(logps - old_logps)
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        gain = torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
        kl = torch.exp(ref_logps - logps) - (ref_logps - logps) - 1
        self.metrics["kl"].append(kl.mean().item())
        return -(gain - self.beta * kl).mean()

    def train(self, steps=3, epochs=2):
        for _ in range(steps):
            *batch, rewards = self.rollout(torch.randint(0, 12, (4, 2)))
            self.metrics["reward"].append(rewards.mean().item())
            for _ in range(epochs):
                loss = self.compute_loss(*batch)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()


def build():
    return Policy()


def train(model):
    trainer = GRPOTrainer(model)
    trainer.train()
    return F.softmax(model(torch.zeros(1, 1, dtype=torch.long)), -1).detach()
