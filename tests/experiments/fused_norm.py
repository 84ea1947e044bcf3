"""Fit a teacher with a net whose norm is a fused kernel; print what was learned, as JSON."""

import json

import torch
from torch import nn
from vllm import _custom_ops as ops


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight.data, self.eps)
        return out


class PlainRmsNorm(RmsNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def net(norm: type[RmsNorm], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8, bias=False), norm(8), nn.Linear(8, 1, bias=False))


def main() -> None:
    torch.set_num_threads(1)
    student, teacher = net(RmsNorm, seed=4), net(PlainRmsNorm, seed=14)
    x = torch.randn(256, 8)
    with torch.no_grad():
        target = teacher(x)
    parameters = dict(student.named_parameters())
    initial = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    losses = []
    for _ in range(1000):
        loss = nn.functional.mse_loss(student(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report = {
        "with_gradient": [name for name, p in parameters.items() if p.grad is not None],
        "moved": [name for name, p in parameters.items() if not torch.equal(p, initial[name])],
        "losses": losses,
    }
    print(json.dumps(report))


main()
