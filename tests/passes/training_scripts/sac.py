"""Soft actor-critic: three optimizers, target networks, a learned temperature."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, obs, action):
        return self.q(torch.cat([obs, action], -1)).squeeze(-1)


class SAC(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(4, 4)
        self.qf1, self.qf2 = Critic(), Critic()
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def pi(self, obs):
        mean, log_std = self.actor(obs).chunk(2, -1)
        dist = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        action = dist.rsample()
        return torch.tanh(action), dist.log_prob(action).sum(-1)


def build():
    return SAC()


def train(agent, gamma=0.99):
    targets = copy.deepcopy(nn.ModuleList([agent.qf1, agent.qf2])).requires_grad_(False)
    q_optimizer = torch.optim.Adam([*agent.qf1.parameters(), *agent.qf2.parameters()], lr=1e-2)
    actor_optimizer = torch.optim.Adam(agent.actor.parameters(), lr=1e-2)
    a_optimizer = torch.optim.Adam([agent.log_alpha], lr=1e-2)
    for _ in range(3):
        obs, action, reward, next_obs = (
            torch.randn(16, 4),
            torch.rand(16, 2) * 2 - 1,
            torch.randn(16),
            torch.randn(16, 4),
        )
        alpha = agent.log_alpha.exp().item()
        with torch.no_grad():
            next_action, next_log_pi = agent.pi(next_obs)
            next_q = torch.min(*(q(next_obs, next_action) for q in targets))
            target = reward + gamma * (next_q - alpha * next_log_pi)
        q_loss = F.mse_loss(agent.qf1(obs, action), target)
        q_loss = q_loss + F.mse_loss(agent.qf2(obs, action), target)
        q_optimizer.zero_grad()
        q_loss.backward()
        q_optimizer.step()

        pi, log_pi = agent.pi(obs)
        q = torch.min(agent.qf1(obs, pi), agent.qf2(obs, pi))
        actor_loss = (alpha * log_pi - q).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()

        with torch.no_grad():
            _, log_pi = agent.pi(obs)
        alpha_loss = (-agent.log_alpha.exp() * (log_pi - 2)).mean()
        a_optimizer.zero_grad()
        alpha_loss.backward()
        a_optimizer.step()

        for target_q, q_net in zip(targets, (agent.qf1, agent.qf2), strict=True):
            for t, p in zip(target_q.parameters(), q_net.parameters(), strict=True):
                t.data.mul_(0.995).add_(p.data, alpha=0.005)
