"""Mixed precision, gradient accumulation, clipping and a warm-up."""

import torch
import torch.nn.functional as F
from torch import nn


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(16, 3)

    def forward(self, x):
        return self.fc2(self.drop(F.gelu(self.fc1(x))))


@torch.inference_mode()
def validate(model, batches):
    model.eval()
    total = correct = 0
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        correct += (logits.argmax(-1) == y).sum().item()
        total += y.numel()
    model.train()
    return correct / total


def build():
    return MLP()


def train(model, epochs=2, accumulate=2):
    data = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for _ in range(epochs):
        running = torch.zeros(())
        optimizer.zero_grad(set_to_none=True)
        for i, (x, y) in enumerate(data):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
                loss = F.cross_entropy(logits, y) / accumulate
            scaler.scale(loss).backward()
            running += loss.detach()
            if (i + 1) % accumulate == 0:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                scheduler.step()
        print(f"loss {running.item() / len(data):.3f}, accuracy {validate(model, data):.2f}")
