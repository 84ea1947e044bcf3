"""BYOL: an online network predicts what its moving average sees."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class BYOL(nn.Module):
    def __init__(self, decay=0.99):
        super().__init__()
        self.online_encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.predictor = nn.Linear(8, 8)
        self.target_encoder = copy.deepcopy(self.online_encoder)
        for p in self.target_encoder.parameters():
            p.requires_grad = False
        self.decay = decay

    @torch.no_grad()
    def update_moving_average(self):
        for online, target in zip(
            self.online_encoder.parameters(), self.target_encoder.parameters(), strict=True
        ):
            target.data = self.decay * target.data + (1 - self.decay) * online.data

    @staticmethod
    def loss_fn(x, y):
        return 2 - 2 * (F.normalize(x, dim=-1) * F.normalize(y, dim=-1)).sum(dim=-1)

    def forward(self, one, two):
        pred_one = self.predictor(self.online_encoder(one))
        pred_two = self.predictor(self.online_encoder(two))
        with torch.no_grad():
            target_one = self.target_encoder(one)
            target_two = self.target_encoder(two)
        loss = self.loss_fn(pred_one, target_two.detach())
        loss = loss + self.loss_fn(pred_two, target_one.detach())
        return loss.mean()


def build():
    return BYOL()


def train(learner):
    opt = torch.optim.Adam(learner.parameters(), lr=3e-3)
    for _ in range(3):
        x = torch.randn(8, 6)
        loss = learner(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        learner.update_moving_average()
