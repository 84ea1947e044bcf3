"""Semi-supervised: a mean teacher, confident pseudo-labels, a ramped-up consistency."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


class EMATeacher:
    def __init__(self, student, decay=0.99):
        self.model = copy.deepcopy(student).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, student):
        for e, p in zip(self.model.parameters(), student.parameters(), strict=True):
            e.lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def __call__(self, x):
        return self.model(x).softmax(-1)


def build():
    return Student()


def train(student, steps=3, threshold=0.3):
    teacher = EMATeacher(student)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    for step in range(steps):
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        unlabeled = torch.randn(16, 6)
        weak = unlabeled + 0.01 * torch.randn_like(unlabeled)
        strong = unlabeled + 0.3 * torch.randn_like(unlabeled)
        sup_loss = F.cross_entropy(student(x), y)
        confidence, pseudo = teacher(weak).max(-1)
        mask = (confidence > threshold).float()
        logits = student(strong)
        unsup_loss = (F.cross_entropy(logits, pseudo, reduction="none") * mask).mean()
        consistency = F.mse_loss(logits.softmax(-1), teacher(strong))
        loss = sup_loss + unsup_loss + (step / steps) * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(student)
        print(mask.mean().item(), sup_loss.item(), unsup_loss.item())
