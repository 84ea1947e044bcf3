"""Double DQN with a replay buffer and a target network."""

import random
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 16)
        self.value = nn.Linear(16, 1)
        self.advantage = nn.Linear(16, 2)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        a = self.advantage(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


class ReplayBuffer:
    def __init__(self):
        self.items = deque(maxlen=100)

    def add(self, state, action, reward, following):
        self.items.append((state, action, reward, following))

    def sample(self, n):
        states, actions, rewards, following = zip(*random.sample(self.items, n), strict=True)
        return (
            torch.stack(states),
            torch.tensor(actions),
            torch.tensor(rewards),
            torch.stack(following),
        )


def build():
    return QNetwork()


def act(q_net, state, epsilon):
    if random.random() < epsilon:
        return random.randrange(2)
    with torch.no_grad():
        return q_net(state).argmax().item()


def train(q_net, steps=24, gamma=0.99, tau=0.05):
    target_net = QNetwork()
    target_net.load_state_dict(q_net.state_dict())
    optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-2)
    buffer = ReplayBuffer()
    state = torch.randn(4)
    for step in range(steps):
        action = act(q_net, state, 0.5)
        following = torch.randn(4)
        buffer.add(state, action, float(action), following)
        state = following
        if step < 16:
            continue
        states, actions, rewards, followings = buffer.sample(8)
        q = q_net(states).gather(1, actions[:, None]).squeeze(1)
        with torch.no_grad():
            best = q_net(followings).argmax(1, keepdim=True)
            next_q = target_net(followings).gather(1, best).squeeze(1)
            target = rewards + gamma * next_q
        loss = F.smooth_l1_loss(q, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for t, p in zip(target_net.parameters(), q_net.parameters(), strict=True):
            t.data.copy_(tau * p.data + (1 - tau) * t.data)
