"""WGAN-GP: several critic steps for each of the generator, samples for the critic without a graph."""

import torch
from torch import autograd, nn


class WGAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1, False))


def calc_gradient_penalty(critic, real, fake, weight=10):
    alpha = torch.rand(real.size(0), 1)
    interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = critic(interpolates)
    gradients = autograd.grad(
        outputs=score,
        inputs=interpolates,
        grad_outputs=torch.ones_like(score),
        create_graph=True,
        retain_graph=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean() * weight


def set_requires_grad(net, flag):
    for p in net.parameters():
        p.requires_grad = flag


def build():
    return WGAN()


def train(gan, iterations=2, critic_steps=2):
    opt_c = torch.optim.Adam(gan.critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_g = torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    for _ in range(iterations):
        set_requires_grad(gan.critic, True)
        for _ in range(critic_steps):
            real = torch.randn(8, 8)
            with torch.no_grad():
                fake = gan.generator(torch.randn(8, 4))
            penalty = calc_gradient_penalty(gan.critic, real, fake)
            loss_c = gan.critic(fake).mean() - gan.critic(real).mean() + penalty
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        set_requires_grad(gan.critic, False)
        loss_g = -gan.critic(gan.generator(torch.randn(8, 4))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
    set_requires_grad(gan.critic, True)
