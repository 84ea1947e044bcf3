"""TRN303: codebook losses that pull the encoder instead of the codebook."""

from __future__ import annotations

import textwrap

import pytest
from verbs import findings, rules, stays

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.encoder = nn.Linear(d, d)
        self.codebook = nn.Embedding(n, d)

    def nearest(self, z):
        return self.codebook(torch.cdist(z, self.codebook.weight).argmin(-1))

    def quantize(self, z):
        codes = self.nearest(z)
        return z + (codes - z).detach()

    def lookup(self, x, z):
        codes = self.nearest(z)
        out = (codes - z).detach() + z
        return out, codes


"""


def quantizer(body: str) -> str:
    method = "    def forward(self, x):\n" + textwrap.indent(textwrap.dedent(body), " " * 8)
    return HEAD + method + "\n"


@pytest.mark.parametrize(
    "estimate",
    [
        "q = z + (codes - z).detach()",
        "q = (codes - z).detach() + z",
        "q = z - (z - codes).detach()",
        "q = self.quantize(z)",
        "q, _ = self.lookup(x, z)",
        "q, _ = self.lookup(x, z=z)",
        "q = codes = z + (codes - z).detach()",
    ],
)
@pytest.mark.parametrize(
    "loss",
    [
        "(q - z.detach()).pow(2).mean()",
        "((q - z.detach()) ** 2).mean()",
        "(z.detach() - q).square().mean()",
        "torch.square(z.detach() - q).mean()",
        "F.mse_loss(q, z.detach())",
        "F.mse_loss(z.detach(), q)",
        "nn.functional.smooth_l1_loss(q, z.data)",
    ],
)
def test_a_loss_on_the_estimate(estimate: str, loss: str) -> None:
    text = quantizer(
        f"""\
        z = self.encoder(x)
        codes = self.nearest(z)
        {estimate}
        loss = {loss}
        return q, loss
        """
    )
    (found,) = findings(text)
    assert found.rule == "TRN303"
    assert not found.fixes
    assert text.splitlines()[found.line - 1].strip().startswith("loss =")


def test_the_codes_may_have_been_overwritten() -> None:
    text = quantizer(
        """\
        z = self.encoder(x)
        q = self.nearest(z)
        q = z + (q - z).detach()
        return q, F.mse_loss(q, z.detach())
        """
    )
    (found,) = findings(text)
    assert "as it was before" in found.message


def test_a_quantizer_that_is_a_module_of_its_own() -> None:
    model = """

class Model(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.encoder = nn.Linear(d, d)
        self.quantizer = Quantizer(n, d)

    def forward(self, x):
        z = self.encoder(x)
        q = self.quantizer(z)
        return (q - z.detach()).pow(2).mean() + 0.25 * (z - q.detach()).pow(2).mean()
"""
    body = "codes = self.nearest(x)\nreturn x + (codes - x).detach()"
    assert rules(quantizer(body) + model) == ["TRN303"]
    learns = "codes = self.nearest(x)\nreturn x + (codes - x).detach(), codes"
    stays(quantizer(learns) + model.replace("q = self", "q, codes = self"))


@pytest.mark.parametrize(
    "body",
    [
        # on the codes
        """\
        z = self.encoder(x)
        codes = self.nearest(z)
        loss = F.mse_loss(codes, z.detach()) + 0.25 * F.mse_loss(z, codes.detach())
        return z + (codes - z).detach(), loss
        """,
        # before the name becomes the estimate
        """\
        z = self.encoder(x)
        q = self.nearest(z)
        loss = torch.mean((q - z.detach()) ** 2) + torch.mean((q.detach() - z) ** 2)
        q = z + (q - z).detach()
        return q, loss
        """,
        # a commitment loss
        """\
        z = self.encoder(x)
        q = self.quantize(z)
        return q, (z - q.detach()).pow(2).mean()
        """,
        # the codebook learns from another loss
        """\
        z = self.encoder(x)
        codes = self.nearest(z)
        q = z + (codes - z).detach()
        return q, F.mse_loss(q, z.detach()) + F.mse_loss(codes, z.detach())
        """,
        # rounding: there is no codebook
        """\
        z = self.encoder(x)
        codes = z.round()
        q = z + (codes - z).detach()
        return q, F.mse_loss(q, z.detach())
        """,
        # the codes keep their gradient
        """\
        z = self.encoder(x)
        codes = self.nearest(z)
        q = codes - z.detach() + z
        return q, F.mse_loss(q, z.detach())
        """,
        # another z
        """\
        z = self.encoder(x)
        q = self.quantize(z)
        z = self.encoder(q)
        return q, F.mse_loss(q, z.detach())
        """,
        # a distance to something else
        """\
        z = self.encoder(x)
        q = self.quantize(z)
        return q, F.mse_loss(q, x.detach())
        """,
        # no distance
        """\
        z = self.encoder(x)
        q = self.quantize(z)
        return z + (q - z.detach())
        """,
    ],
)
def test_what_is_right_stays(body: str) -> None:
    stays(quantizer(body))
