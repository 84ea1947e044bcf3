"""Differentiate a loss that was computed under no_grad; print the gradient, as JSON."""

import json

import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
with torch.no_grad():
    loss = (x * x).sum()
loss.backward()
print(json.dumps(x.grad.tolist()))
