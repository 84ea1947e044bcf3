"""REINFORCE with a learned baseline and rewards that are plain numbers."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(3, 2)
        self.log_std = nn.Parameter(torch.zeros(2))
        self.value = nn.Linear(3, 1)

    def forward(self, state):
        return Normal(self.mean(state), self.log_std.exp()), self.value(state).squeeze(-1)


def build():
    return Actor()


def train(actor, episodes=3):
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
    running = None
    for _ in range(episodes):
        log_probs, values, rewards, entropies = [], [], [], []
        state = torch.randn(3)
        for _ in range(6):
            dist, value = actor(state)
            action = dist.sample()
            log_probs.append(dist.log_prob(action).sum())
            entropies.append(dist.entropy().sum())
            values.append(value)
            rewards.append(-action.pow(2).sum().item())
            state = torch.randn(3)
        returns, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + 0.9 * total
            returns.insert(0, total)
        returns = torch.tensor(returns)
        values = torch.stack(values)
        advantage = returns - values.detach()
        policy_loss = -(torch.stack(log_probs) * advantage).mean()
        value_loss = F.smooth_l1_loss(values, returns)
        loss = policy_loss + 0.5 * value_loss - 0.01 * torch.stack(entropies).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = total if running is None else 0.9 * running + 0.1 * total
    return running
