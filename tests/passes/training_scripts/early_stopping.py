"""Validation inside the loop, with gradients off for it and on again, and early stopping."""

import copy

import torch
from torch import nn


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def build():
    return Regressor()


def train(model, epochs=4, patience=2):
    x_val, y_val = torch.randn(16, 5), torch.randn(16)
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    best, best_state, waited = float("inf"), None, 0
    for epoch in range(epochs):
        model.train()
        for _ in range(2):
            x, y = torch.randn(8, 5), torch.randn(8)
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        torch.set_grad_enabled(False)
        val_loss = loss_fn(model(x_val), y_val).item()
        torch.set_grad_enabled(True)
        scheduler.step(val_loss)
        if val_loss < best:
            best, waited = val_loss, 0
            best_state = copy.deepcopy(model.state_dict())
        else:
            waited += 1
            if waited > patience:
                break
        print(f"epoch {epoch}: {val_loss:.3f}, best {best:.3f}")
    model.load_state_dict(best_state)
