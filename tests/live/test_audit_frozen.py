"""``trainify.audit``: what a forward freezes."""

import torch
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


class Actor(nn.Module):
    """The critic is switched off, and left so."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = nn.Linear(8, 4), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        for parameter in self.critic.parameters():
            parameter.requires_grad_(False)
        return -self.critic(torch.cat([x, self.taken(x)], -1)).mean()

    def taken(self, x: Tensor) -> Tensor:
        return self.actor(x).tanh()


def test_what_a_forward_freezes_is_frozen() -> None:
    model = Actor()
    report = trainify.audit(model, X)
    assert report.ok and report.trainable == 2, str(report)
    assert "critic.weight" in report.notes[0] and "taken for frozen" in report.notes[0]
    assert all(each.requires_grad for each in model.parameters())


class Stopped(Actor):
    def taken(self, x):
        return self.actor(x).tanh().detach() + 0 * self.actor.bias[:4]


def test_others_are_told() -> None:
    report = trainify.audit(Stopped(), X)
    assert not report.ok and report.missing == ("actor.weight",), str(report)
