"""LoRA: low-rank updates of a frozen model, injected before the optimizer is built."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2, alpha=4):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / rank
        self.merged = False

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.scaling * self.lora_B @ self.lora_A
        self.merged = True

    def forward(self, x):
        out = self.base(x)
        if self.merged:
            return out
        return out + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling


class Transformer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.q_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.lm_head = nn.Linear(width, 16)

    def forward(self, ids):
        x = self.embed(ids)
        weights = (self.q_proj(x) @ x.mT).softmax(-1)
        return self.lm_head(x + weights @ self.v_proj(x))


def build():
    model = Transformer()
    for name, p in model.named_parameters():
        p.requires_grad = "lm_head" in name
    return model


def train(model):
    model.q_proj = LoRALinear(model.q_proj)
    model.v_proj = LoRALinear(model.v_proj)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model.train()
    for _ in range(3):
        ids = torch.randint(0, 16, (4, 7))
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 16), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.q_proj.merge()
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
