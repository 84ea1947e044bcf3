"""A head first, then the body as well, each phase with an optimizer that holds what trains."""

import torch
import torch.nn.functional as F
from torch import nn


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


def build():
    return Tuned()


def run_epoch(model, optimizer, batches=2):
    model.train()
    for _ in range(batches):
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(model):
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
    for p in model.body.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
    run_epoch(model, optimizer)
    for p in model.body.parameters():
        p.requires_grad = True
    optimizer.add_param_group({"params": model.body.parameters(), "lr": 1e-3})
    run_epoch(model, optimizer)
    final = torch.optim.SGD(model.parameters(), lr=1e-2)
    final.load_state_dict(final.state_dict())
    run_epoch(model, final)
