"""``trainify.audit``: what is left of a value, without what it was rounded to."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def network(wide: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, wide))


class Residual(nn.Module):
    """A quantizer of several stages, as codecs have it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = network(), network()
        self.books = nn.ModuleList(nn.Embedding(5, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        rest = self.encoder(x)
        out, loss = 0, 0
        for book in self.books:
            code = self.nearest(rest, book)
            loss = loss + F.mse_loss(code, rest.detach()) + 0.25 * F.mse_loss(rest, code.detach())
            through = rest + (code - rest).detach()
            out = self.added(out, through, code)
            rest = self.left(rest, through)
        return F.mse_loss(self.decoder(out), x) + loss

    def nearest(self, rest: Tensor, book: nn.Embedding) -> Tensor:
        return book(torch.cdist(rest.detach(), book.weight.detach()).argmin(-1))

    def added(self, out, through, code):
        return out + through

    def left(self, rest, through):
        return rest - through.detach()


class OneHot(Residual):
    def nearest(self, rest, book):
        chosen = (rest.detach() @ book.weight.t()).max(-1).indices
        return F.one_hot(chosen, 5).to(rest.dtype) @ book.weight


class Rounded(Residual):
    """To whole numbers, by no table."""

    def forward(self, x):
        rest, out = self.encoder(x), 0
        for scale in (1, 2):
            small = torch.tanh(rest) * 2
            code = (small + (small.round() - small).detach()) / scale
            out = out + code
            rest = rest - code.detach()
        unused = sum(book.weight.sum() for book in self.books)
        return F.mse_loss(self.decoder(out), x) + 0.01 * (rest - 1).square().mean() + unused


@pytest.mark.parametrize("cls", [Residual, OneHot, Rounded])
def test_what_is_left_goes_on(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)
    assert "stopped or shaped on purpose" in report.notes[0]


class StoppedItself(Residual):
    def left(self, rest, through):
        return (rest - through).detach()


class Result(Residual):
    def added(self, out, through, code):
        return out + code.detach()


class ChosenByAnother(Residual):
    def forward(self, x):
        z = self.encoder(x)
        other = self.decoder(x)
        code = self.nearest(other, self.books[0])
        taught = F.mse_loss(code, other.detach()) + self.books[1].weight.square().sum()
        rest = z - code.detach()
        return F.mse_loss(self.decoder(rest), x) + taught + F.mse_loss(other, z)


@pytest.mark.parametrize("cls", [StoppedItself, Result, ChosenByAnother])
def test_what_is_no_remainder_is_told(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.wrong and not report.ok, str(report)
