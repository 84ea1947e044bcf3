"""MAML: the inner loop is differentiated through; adaptation for a test is not."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(1, 16)
        self.l2 = nn.Linear(16, 1)

    def forward(self, x):
        return self.l2(torch.tanh(self.l1(x)))


def sample_task():
    phase, amplitude = torch.rand(()) * 3, torch.rand(()) + 0.5
    x = torch.rand(20, 1) * 6 - 3
    y = amplitude * torch.sin(x + phase)
    return x[:10], y[:10], x[10:], y[10:]


def adapt(model, x, y, lr=0.05, steps=2, create_graph=True):
    params = dict(model.named_parameters())
    for _ in range(steps):
        loss = F.mse_loss(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=create_graph)
        params = {name: p - lr * g for (name, p), g in zip(params.items(), grads, strict=True)}
    return params


def build():
    return Sine()


def train(model, iterations=2, tasks=3):
    meta_optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(iterations):
        meta_loss = 0.0
        for _ in range(tasks):
            x_support, y_support, x_query, y_query = sample_task()
            adapted = adapt(model, x_support, y_support)
            meta_loss = meta_loss + F.mse_loss(functional_call(model, adapted, (x_query,)), y_query)
        meta_optimizer.zero_grad()
        (meta_loss / tasks).backward()
        meta_optimizer.step()
    x_support, y_support, x_query, y_query = sample_task()
    adapted = adapt(model, x_support, y_support, create_graph=False)
    with torch.no_grad():
        return F.mse_loss(functional_call(model, adapted, (x_query,)), y_query).item()
