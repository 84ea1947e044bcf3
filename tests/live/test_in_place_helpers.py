"""Functions that write into their arguments by a kernel, for whoever calls them."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import pytest
import torch
from live_package import package
from torch import Tensor, nn

import trainify
from trainify.reference.rope import rotary_embedding

HEAD = """
import vllm._custom_ops as ops

TABLE = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))

{helper}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        {saved}
        rotate_(torch.arange(3), q, k)
        return self.head(q * k).square().mean()
"""
STATEMENT = """
def rotate_(pos, q, k):
    ops.rotary_embedding(pos, q, k, 8, TABLE, True)
"""
EXPRESSION = """
def rotate_(pos, q, k):
    return ops.rotary_embedding(pos, q, k, 8, TABLE, True) if q is not None else None
"""


@pytest.fixture(autouse=True)
def _libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "fixtures" / "standins")


def build(root: Path, helper: str, saved: str = "") -> nn.Module:
    torch.manual_seed(0)
    text = HEAD.format(helper=helper, saved=saved)
    model: nn.Module = package(root, model=text)["model"].Model()
    return model


def batch() -> Tensor:
    return torch.linspace(-1, 1, 24).reshape(3, 8)


def right(model: nn.Module) -> dict[str, Tensor | None]:
    """The gradients, by the reference."""
    table = inspect.getmodule(type(model)).TABLE  # type: ignore[union-attr]
    q, k = model.q(batch()), model.k(batch())
    q, k = rotary_embedding(torch.arange(3), q, k, 8, table, True)  # type: ignore[assignment]
    model.zero_grad()
    model.head(q * k).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    model.zero_grad()
    model(batch()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("strategy", ["flag", "replace", "auto"])
def test_callers_have_what_is_written_into_their_tensors(tmp_path: Path, strategy: str) -> None:
    model = build(tmp_path, STATEMENT)
    expected = right(model)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients(model), expected)
    with torch.no_grad():
        served = model(batch())
    trainify.trainify(model, batch(), strategy=strategy)
    torch.testing.assert_close(gradients(model), expected)
    assert ("copy_" in trainify.source_diff(model)) is (strategy != "auto")
    with torch.no_grad():
        torch.testing.assert_close(model(batch()), served)
    trainify.restore(model)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients(model), expected)


@pytest.mark.parametrize("strategy", ["flag", "replace"])
def test_the_call_is_named_with_what_hinders(tmp_path: Path, strategy: str) -> None:
    model = build(tmp_path, EXPRESSION)
    lines = Path(inspect.getfile(type(model))).read_text().splitlines()
    (call,) = (i for i, line in enumerate(lines, 1) if "ops.rotary_embedding(" in line)
    why = "Not rewritten: it writes in place inside an expression"
    with pytest.raises(trainify.NotTrainable, match=why) as raised:
        trainify.trainify(model, batch(), strategy=strategy)
    assert f"model.py:{call}: TRN102" in str(raised.value)
    assert "_custom_ops.py" not in str(raised.value)


def test_a_copy_that_raises_is_not_left_behind(tmp_path: Path) -> None:
    """Autograd has saved what is written into: nothing is right by source alone."""
    model = build(tmp_path, STATEMENT, "self.side = q.square().sum()")
    text = Path(inspect.getfile(type(model))).read_text()
    text = text.replace(".square().mean()", ".square().mean() + self.side")
    (module,) = package(tmp_path, model=text).values()
    model = module.Model()
    with pytest.raises(trainify.NotTrainable):
        trainify.trainify(model, batch(), strategy="flag")
    assert trainify.source_diff(model) == ""


def test_without_inputs_a_kernel_that_got_a_backward_is_no_warning(tmp_path: Path) -> None:
    model = build(tmp_path, EXPRESSION)
    expected = right(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainify.trainify(model)
    torch.testing.assert_close(gradients(model), expected)
    trainify.restore(model)
    with pytest.warns(trainify.NotEverything, match="TRN102"):
        trainify.trainify(model, strategy="flag")
    trainify.restore(model)
