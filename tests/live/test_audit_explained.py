"""Stops of what learns by another way, and what a comment next to them says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainify.live.audit.explained import _says_so
from trainify.live.audit.places import Place
from trainify.live.audit.run import audit

D = 8


class Scaled(nn.Module):
    """A layer whose rows are brought to a learned length, as DoRA's are."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(D, D)
        self.base = nn.Linear(D, D, bias=False)
        self.base.weight.requires_grad_(False)
        self.a, self.b = nn.Linear(D, 2, bias=False), nn.Linear(2, D, bias=False)
        self.length = nn.Parameter(torch.linspace(0.5, 1.5, D))

    def scaled(self, x: Tensor, norm: Tensor) -> Tensor:
        return (self.base(x) + self.b(self.a(x))) * (self.length / norm)

    def change(self) -> Tensor:
        return self.b.weight @ self.a.weight

    def norm(self, change: Tensor) -> Tensor:
        return (self.base.weight + change).norm(dim=1)


class Explained(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        # The norm is treated as a constant: no gradient goes through it.
        norm = self.norm(self.change()).detach()
        return self.scaled(x, norm)


class OnTheLine(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        norm = self.norm(self.change()).detach()  # stop-gradient, as in the paper
        return self.scaled(x, norm)


class Later(Scaled):
    """What is stopped goes on through another detach() alone, which is explained."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        norm = self.norm(self.change().detach())
        # Thereby detaching it from the gradient graph.
        norm = norm.detach()
        return self.scaled(x, norm)


class Bare(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.scaled(x, self.norm(self.change()).detach())


class ForSpeed(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        # No gradient is needed in inference.
        norm = self.norm(self.change()).detach()
        return self.scaled(x, norm)


SAYS = {
    "treated as a constant in the backward pass": True,
    "stop-gradient: the norm must not train the adapter": True,
    "We do not backpropagate through the norm (section 4.3 of the paper)": True,
    "Gradients should not flow back into the adapter from here.": True,
    "no gradient through the scale, as in the paper": True,
    "we suggest treating it as a constant, thereby detaching it from the gradient graph": True,
    "no gradient for CUDA graph capture": False,
    "stop gradient so the C++ op accepts it": False,
    "autograd is not supported by this op: no gradient flows": False,
    "treated as a constant by the exporter (ONNX)": False,
    "make sure that no gradient is lost here": False,
    "vLLM expects tensors without gradient": False,
    "The fused kernel has no gradient, so detach": False,
    "this is not a stop-gradient, just a copy for the buffer": False,
    "x itself is a constant (it has no gradient)": False,
    "we never need gradients in this repo": False,
    "no gradient is tracked here (faster)": False,
    "BUG: gradient does not flow through the gate": False,
    "numpy() cannot be called on a tensor that requires grad, so stop the gradient": False,
}


@pytest.mark.parametrize("comment", SAYS)
def test_what_comments_say(comment: str, tmp_path: Path) -> None:
    file = tmp_path / "said.py"
    file.write_text(f"# {comment}\nx = y.detach()\nz = y.detach()  # {comment}\n")
    for line in (2, 3):
        assert _says_so(Place(str(file), line, "f")) is SAYS[comment]


class Beside(Scaled):
    """What is stopped goes on past the explained detach(), too."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        change = self.change().detach()
        # Treated as a constant.
        norm = self.norm(change).detach()
        return self.scaled(x, norm) + x @ change


class Missing(Scaled):
    """A comment does not excuse that something does not learn at all."""

    def forward(self, x: Tensor) -> Tensor:
        # Treated as a constant.
        x = self.embed(x).detach()
        return self.scaled(x, self.norm(self.change()))


def squares(out: Tensor) -> Tensor:
    return out.square().mean()


@pytest.mark.parametrize("cls", [Explained, OnTheLine, Later])
def test_what_a_comment_says_is_meant(cls: type[Scaled]) -> None:
    report = audit(cls(), torch.randn(3, D), loss=squares)
    assert report.ok, str(report)


@pytest.mark.parametrize("cls", [Bare, ForSpeed, Beside, Missing])
def test_what_no_comment_says_is_meant(cls: type[Scaled]) -> None:
    report = audit(cls(), torch.randn(3, D), loss=squares)
    (cut,) = report.cuts
    assert cut.cause.value == "detach", str(report)
    assert bool(report.missing) == (cls is Missing)


def test_dora() -> None:
    peft = pytest.importorskip("peft")
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D))
    config = peft.LoraConfig(r=2, target_modules=["0", "2"], use_dora=True, init_lora_weights=False)
    report = audit(peft.get_peft_model(model, config), torch.randn(3, D), loss=squares)
    assert report.ok, str(report)
