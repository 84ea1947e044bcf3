"""DPO: preferences against a frozen copy of the policy."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class LM(nn.Module):
    def __init__(self, vocabulary=16, width=8):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.mlp = nn.Linear(width, width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        return self.lm_head(F.gelu(self.mlp(self.wte(ids))))


def sequence_logps(logits, labels, mask):
    logps = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    return (logps * mask).sum(-1)


def concatenated_forward(model, batch):
    ids = torch.cat([batch["chosen"], batch["rejected"]])
    mask = torch.ones_like(ids[:, 1:]).float()
    logps = sequence_logps(model(ids[:, :-1]), ids[:, 1:], mask)
    n = batch["chosen"].shape[0]
    return logps[:n], logps[n:]


def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta=0.1):
    logits = (policy_chosen - policy_rejected) - (ref_chosen - ref_rejected)
    losses = -F.logsigmoid(beta * logits)
    chosen_rewards = beta * (policy_chosen - ref_chosen).detach()
    rejected_rewards = beta * (policy_rejected - ref_rejected).detach()
    return losses, chosen_rewards, rejected_rewards


def build():
    return LM()


def train(policy):
    reference = copy.deepcopy(policy)
    for p in reference.parameters():
        p.requires_grad = False
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
    for _ in range(3):
        batch = {k: torch.randint(0, 16, (8, 6)) for k in ("chosen", "rejected")}
        policy_chosen, policy_rejected = concatenated_forward(policy, batch)
        with torch.no_grad():
            ref_chosen, ref_rejected = concatenated_forward(reference, batch)
        losses, chosen, rejected = dpo_loss(
            policy_chosen, policy_rejected, ref_chosen, ref_rejected
        )
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = {
            "accuracy": (chosen > rejected).float().mean().item(),
            "margin": (chosen - rejected).mean().cpu().numpy().tolist(),
            "loss": loss.detach().cpu(),
        }
    return metrics
