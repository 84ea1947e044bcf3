"""SwAV: balanced assignments without a gradient, prototypes of unit length."""

import torch
import torch.nn.functional as F
from torch import nn


class SwAV(nn.Module):
    def __init__(self, prototypes=6):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.prototypes = nn.Linear(8, prototypes, bias=False)

    def forward(self, x):
        z = F.normalize(self.backbone(x), dim=-1)
        return z, self.prototypes(z)


@torch.no_grad()
def sinkhorn(scores, iterations=3):
    Q = torch.exp(scores / 0.5).t()
    Q /= Q.sum()
    for _ in range(iterations):
        Q /= Q.sum(dim=1, keepdim=True) * Q.shape[0]
        Q /= Q.sum(dim=0, keepdim=True) * Q.shape[1]
    return (Q * Q.shape[1]).t()


def build():
    return SwAV()


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        with torch.no_grad():
            w = model.prototypes.weight.data.clone()
            w = F.normalize(w, dim=1, p=2)
            model.prototypes.weight.copy_(w)
        x = torch.randn(16, 6)
        views = [x + 0.1 * torch.randn_like(x) for _ in range(2)]
        _, scores = model(torch.cat(views))
        first, second = scores.chunk(2)
        with torch.no_grad():
            q_first, q_second = sinkhorn(first), sinkhorn(second.detach())
        loss = -(q_first * second.log_softmax(-1)).sum(1).mean()
        loss -= (q_second * first.log_softmax(-1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
