"""Latent diffusion: a frozen autoencoder, self-conditioning, an EMA of the weights."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.time = nn.Embedding(10, width)
        self.inp = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x, t, condition):
        h = self.inp(torch.cat([x, condition], dim=-1)) + self.time(t)
        return self.out(F.silu(h))


class VAE(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.encoder = nn.Linear(width, width)
        self.scale = 0.18215

    def encode(self, x):
        return self.encoder(x)


@torch.no_grad()
def update_ema(ema, model, decay=0.99):
    for e, p in zip(ema.parameters(), model.parameters(), strict=True):
        e.mul_(decay).add_(p, alpha=1 - decay)


@torch.no_grad()
def sample(model, shape, alphas):
    x = torch.randn(shape)
    for i in reversed(range(len(alphas))):
        t = torch.full((shape[0],), i)
        x = (x - (1 - alphas[i]) * model(x, t, torch.zeros_like(x))) / alphas[i].sqrt()
    return x


def build():
    return Denoiser()


def train(model, steps=3):
    vae = VAE().eval().requires_grad_(False)
    ema = copy.deepcopy(model).requires_grad_(False)
    alphas = torch.linspace(0.9, 0.5, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        with torch.no_grad():
            latents = vae.encode(torch.randn(64, 8)) * vae.scale
        noise = torch.randn_like(latents)
        t = torch.randint(0, 10, (latents.shape[0],))
        a = alphas[t][:, None]
        noisy = a.sqrt() * latents + (1 - a).sqrt() * noise
        condition = torch.zeros_like(noisy)
        if step % 2:
            with torch.no_grad():
                condition = model(noisy, t, condition)
        pred = model(noisy, t, condition)
        loss = F.mse_loss(pred, noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        update_ema(ema, model)
    return sample(ema, (2, 8), alphas)
