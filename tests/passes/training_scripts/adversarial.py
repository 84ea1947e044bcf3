"""Adversarial training: PGD inside, the model's own step outside."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


def pgd(model, x, y, eps=0.1, alpha=0.03, steps=3):
    delta = torch.empty_like(x).uniform_(-eps, eps).requires_grad_(True)
    for _ in range(steps):
        loss = F.cross_entropy(model(x + delta), y)
        (grad,) = torch.autograd.grad(loss, delta)
        with torch.no_grad():
            delta += alpha * grad.sign()
            delta.clamp_(-eps, eps)
    return (x + delta).detach().clamp(0, 1)


def build():
    return Net()


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x, y = torch.rand(6, 1, 5, 5), torch.randint(0, 3, (6,))
        model.eval()
        x_adv = pgd(model, x, y)
        model.train()
        with torch.no_grad():
            clean_probs = model(x).softmax(-1)
        logits = model(x_adv)
        robust = F.kl_div(logits.log_softmax(-1), clean_probs, reduction="batchmean")
        loss = F.cross_entropy(logits, y) + robust
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
