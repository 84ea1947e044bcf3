"""Flow matching with samples drawn every few steps."""

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width + 1, 16), nn.SiLU(), nn.Linear(16, width))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=-1))


class FlowMatching:
    def __init__(self, model):
        self.model = model

    def loss(self, x1):
        x0 = torch.randn_like(x1)
        t = torch.rand(x1.shape[0], 1)
        xt = (1 - t) * x0 + t * x1
        target = x1 - x0
        return (self.model(xt, t) - target).square().mean()

    @torch.inference_mode()
    def sample(self, n, steps=4):
        x = torch.randn(n, 4)
        for i in range(steps):
            t = torch.full((n, 1), i / steps)
            x = x + self.model(x, t) / steps
        return x


def build():
    return Field()


def train(model):
    flow = FlowMatching(model)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = []
    for it in range(4):
        loss = flow.loss(torch.randn(16, 4) * 0.5 + 1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        if it % 2 == 0:
            model.eval()
            samples = flow.sample(8)
            print(f"{it}: loss {loss.item():.3f}, mean {samples.mean().item():.3f}")
            model.train()
    return sum(history) / len(history)
