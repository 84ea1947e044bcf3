"""A decorator of a grad mode is left as soon as a coroutine is made: it covers none of its work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, stays

from trainify.engine import Options, check_paths
from trainify.findings import Safety

HEAD = """\
import contextlib
import functools

import torch
from torch import nn


@contextlib.contextmanager
def quiet():
    with torch.no_grad():
        yield


def awaiting(function):
    @functools.wraps(function)
    async def run(*args):
        with torch.no_grad():
            return await function(*args)

    return run


"""
SERVER = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 8)

    @torch.inference_mode()
    def forward(self, x):
        return self.head(x)


class Server:
    def __init__(self):
        self.model = Net().eval()

    {decorator}
    async def generate(self, x):
        {work}
"""
WORK = "return self.model(x).numpy()"
COVERS = {
    "@torch.no_grad()": False,
    "@torch.inference_mode()": False,
    "@torch.no_grad": False,
    "@torch.set_grad_enabled(False)": False,
    "@quiet()": False,
    "@awaiting": True,
}


@pytest.mark.parametrize(("decorator", "covers"), COVERS.items())
def test_a_decorator_of_a_coroutine(decorator: str, covers: bool) -> None:
    """Run it: what serves goes on to serve, or the fix is not made unseen."""
    text = HEAD + SERVER.format(decorator=decorator, work=WORK)
    (finding,) = (f for f in findings(text) if f.rule == "TRN201")
    made = finding.fixes["flag"]
    assert (made.safety is Safety.SAFE) is covers
    assert covers or "put under torch.inference_mode() what runs Net.forward" in made.look_at
    for fixed, serves in ((text, True), (fix(text), True), (fix(text, unsafe=True), covers)):
        names: dict[str, Any] = {}
        exec(compile(fixed, "m.py", "exec"), names)
        try:
            asyncio.run(names["Server"]().generate(torch.ones(2, 4)))
        except RuntimeError:
            assert not serves
        else:
            assert serves


def test_a_block_in_a_coroutine() -> None:
    work = "with torch.inference_mode():\n            return self.model(x).numpy()"
    text = HEAD + SERVER.format(decorator="@torch.no_grad()", work=work)
    fixed = fix(text)
    assert fixed == text.replace("    @torch.inference_mode()\n    def forward", "    def forward")
    names: dict[str, Any] = {}
    exec(compile(fixed, "m.py", "exec"), names)
    asyncio.run(names["Server"]().generate(torch.ones(2, 4)))
    names["Net"]()(torch.ones(2, 4)).sum().backward()


def test_a_loss_in_a_coroutine_has_a_graph() -> None:
    text = """\
import torch


@torch.no_grad()
async def step(model, x, optimizer):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
"""
    stays(text)
    names: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), names)
    model = torch.nn.Linear(2, 2)
    asyncio.run(names["step"](model, torch.ones(1, 2), torch.optim.SGD(model.parameters())))
    assert model.weight.grad is not None


def test_all_that_runs_a_model_in_another_file_is_named(tmp_path: Path) -> None:
    net, _, server = (HEAD + SERVER.format(decorator="", work=WORK)).partition("class Server")
    more = "".join(f"\n    async def score{n}(self, x):\n        {WORK}\n" for n in range(3))
    (tmp_path / "net.py").write_text(net)
    (tmp_path / "serve.py").write_text(f"from net import Net\n\n\nclass Server{server}{more}")
    found = [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    (look_at,) = (f.fixes["flag"].look_at for f in found if f.rule == "TRN201")
    for name in ("`Server.generate`", "`Server.score0`", "`Server.score1`", "and 1 more"):
        assert name in look_at
    assert "@" not in look_at
