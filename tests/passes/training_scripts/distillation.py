"""Knowledge distillation of logits and features."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, 10)

    def forward(self, x):
        feature = F.relu(self.norm(self.stem(x)))
        logits = self.fc(feature.mean((2, 3)))
        return logits, feature


class Distiller(nn.Module):
    def __init__(self, temperature=4.0):
        super().__init__()
        self.teacher = Net(16)
        self.student = Net(8)
        self.connector = nn.Conv2d(8, 16, 1)
        self.temperature = temperature
        for p in self.teacher.parameters():
            p.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, image, target):
        logits_student, feature_student = self.student(image)
        with torch.no_grad():
            logits_teacher, feature_teacher = self.teacher(image)
        loss_ce = F.cross_entropy(logits_student, target)
        T = self.temperature
        loss_kd = F.kl_div(
            F.log_softmax(logits_student / T, dim=1),
            F.softmax(logits_teacher / T, dim=1),
            reduction="batchmean",
        )
        loss_feat = F.mse_loss(self.connector(feature_student), feature_teacher)
        losses = {"ce": loss_ce, "kd": loss_kd * T**2, "feat": loss_feat}
        return logits_student, losses


def build():
    return Distiller()


def train(distiller):
    learnable = [p for p in distiller.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(learnable, lr=0.05, momentum=0.9)
    distiller.train()
    meters = {"ce": 0.0, "kd": 0.0, "feat": 0.0}
    for _ in range(3):
        image, target = torch.randn(4, 3, 6, 6), torch.randint(0, 10, (4,))
        preds, losses_dict = distiller(image=image, target=target)
        loss = sum(value.mean() for value in losses_dict.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for key, value in losses_dict.items():
            meters[key] += value.detach().item()
        accuracy = (preds.argmax(1) == target).float().mean().item()
    return meters, accuracy
