"""Much is measured and logged; none of it touches the loss."""

import numpy as np
import torch
from torch import nn


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def avg(self):
        return self.total / max(self.count, 1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)
        self.last_features = None

    def forward(self, x):
        h = self.features(x).relu()
        self.last_features = h.detach()
        return self.head(h)


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1)
        correct = pred.t().eq(target.view(1, -1))
        return [correct[:k].reshape(-1).float().sum().item() / target.size(0) for k in topk]


def gradient_norm(model):
    norms = [p.grad.detach().norm() for p in model.parameters() if p.grad is not None]
    return torch.stack(norms).norm().item()


def build():
    return Classifier()


def train(model):
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    losses, top1 = AverageMeter(), AverageMeter()
    confusion = np.zeros((4, 4))
    embeddings, ema_loss = [], None
    for _ in range(3):
        images, target = torch.randn(8, 8), torch.randint(0, 4, (8,))
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target, topk=(1, 2))[0], images.size(0))
        predicted = output.detach().argmax(1).cpu().numpy()
        np.add.at(confusion, (target.numpy(), predicted), 1)
        embeddings.append(model.last_features.cpu().numpy())
        value = float(loss.detach())
        ema_loss = value if ema_loss is None else 0.9 * ema_loss + 0.1 * value
        optimizer.zero_grad()
        loss.backward()
        print(f"{losses.avg:.3f} {top1.avg:.3f} {gradient_norm(model):.3f} {ema_loss:.3f}")
        optimizer.step()
    return confusion, np.concatenate(embeddings)
