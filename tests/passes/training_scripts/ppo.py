"""PPO, one file, in the manner of cleanrl."""

import torch
from torch import nn
from torch.distributions import Categorical


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def build():
    return Agent()


def evaluate(agent, episodes=2):
    agent.eval()
    returns = []
    with torch.no_grad():
        for _ in range(episodes):
            action, _, _, _ = agent.get_action_and_value(torch.randn(1, 4))
            returns.append(float(action == 1))
    agent.train()
    return sum(returns) / episodes


def train(agent, steps=16, gamma=0.99, lam=0.95):
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
    obs = torch.zeros(steps, 4)
    actions, logprobs = torch.zeros(steps), torch.zeros(steps)
    rewards, values = torch.zeros(steps), torch.zeros(steps)
    for update in range(2):
        next_obs = torch.randn(4)
        for step in range(steps):
            obs[step] = next_obs
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            rewards[step] = float(action == 1)
            next_obs = torch.randn(4)
        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1)
            advantages = torch.zeros_like(rewards)
            last = 0
            for t in reversed(range(steps)):
                following = next_value if t == steps - 1 else values[t + 1]
                delta = rewards[t] + gamma * following - values[t]
                advantages[t] = last = delta + gamma * lam * last
            returns = advantages + values
        clipfracs = []
        for _ in range(2):
            for index in torch.randperm(steps).split(8):
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    obs[index], actions.long()[index]
                )
                logratio = newlogprob - logprobs[index]
                ratio = logratio.exp()
                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean()
                    clipfracs += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
                advantage = advantages[index]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                pg_loss = torch.max(
                    -advantage * ratio, -advantage * torch.clamp(ratio, 0.8, 1.2)
                ).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - returns[index]) ** 2).mean()
                loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        print(update, approx_kl.item(), sum(clipfracs) / len(clipfracs), evaluate(agent))
