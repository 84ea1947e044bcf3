"""A mixture of experts with a load-balancing loss and a bias that is balanced by hand."""

import torch
import torch.nn.functional as F
from torch import nn


class MoE(nn.Module):
    def __init__(self, width=8, experts=3, k=2):
        super().__init__()
        self.k, self.n = k, experts
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 16), nn.SiLU(), nn.Linear(16, width))
            for _ in range(experts)
        )
        self.register_buffer("balance", torch.zeros(experts))
        self.aux_loss = None

    def forward(self, x):
        logits = self.router(x)
        probs = logits.softmax(-1)
        _, chosen = torch.topk(probs + self.balance, self.k, dim=-1)
        weights = probs.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        with torch.no_grad():
            load = F.one_hot(chosen, self.n).float().sum(1).mean(0)
            if self.training:
                self.balance += 1e-3 * (load.mean() - load).sign()
        self.aux_loss = self.n * (load * probs.mean(0)).sum()
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            if rows.numel():
                y = expert(x[rows]) * weights[rows, slots, None]
                out = out.index_add(0, rows, y)
        return out


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 8)
        self.moe = MoE()
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        h = self.inp(x)
        return self.out(h + self.moe(h))


def build():
    return Model()


def train(model):
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        x, y = torch.randn(64, 6), torch.randint(0, 2, (64,))
        logits = model(x)
        loss = F.cross_entropy(logits, y) + 0.01 * model.moe.aux_loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        print({"loss": loss.item(), "balance": model.moe.balance.tolist()})
