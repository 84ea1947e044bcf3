"""Stops in the middle of a model: mistakes are rewritten by what the audit says, the rest stays."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from live_package import package
from torch import nn

import trainify
from tests.each import some
from trainify.live.rewritten import source_of
from trainify.live.swap import plan_of

HEAD = '''
import numpy as np
import torch.nn.functional as F

def scoped(f):
    return torch.no_grad()(f)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.mid = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.target_net = nn.Linear(8, 8)
        self.seen = None

'''  # fmt: skip


class Case(NamedTuple):
    """A forward, and the same as a person would write it for training."""

    wrong: str
    right: str
    lines: tuple[str, ...]
    """What stands on the lines that the audit names, in order."""


MISTAKES = {
    "scope": Case(
        """
    def forward(self, x):
        with torch.no_grad():
            h = self.fc(x)
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h)
""",
        ("h = self.fc(x)",),
    ),
    "scope in one line": Case(
        """
    def forward(self, x):
        with torch.no_grad(): h = self.fc(x)
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h)
""",
        ("with torch.no_grad(): h = self.fc(x)",),
    ),
    "only what is needed leaves": Case(
        """
    def forward(self, x):
        with torch.no_grad():
            t = self.frozen(x)  # does not learn
            # through the first layer
            h = self.fc(x).relu()

            h = h + t
            self.seen = h.mean()
            best = h.argmax(-1)
        return self.head(h) * best[:, None]
""",
        """
    def forward(self, x):
        with torch.no_grad():
            t = self.frozen(x)  # does not learn
        # through the first layer
        h = self.fc(x).relu()

        h = h + t
        with torch.no_grad():
            self.seen = h.mean()
            best = h.argmax(-1)
        return self.head(h) * best[:, None]
""",
        ("h = self.fc(x).relu()",),
    ),
    "return in a scope": Case(
        """
    def features(self, x):
        with torch.inference_mode():
            h = self.fc(x)
            return h

    def forward(self, x):
        return self.head(self.features(x))
""",
        """
    def features(self, x):
        h = self.fc(x)
        return h

    def forward(self, x):
        return self.head(self.features(x))
""",
        ("h = self.fc(x)",),
    ),
    "nested scopes": Case(
        """
    def forward(self, x):
        with torch.no_grad():
            t = self.frozen(x)
            with torch.inference_mode():
                t = t * 2
                h = self.fc(x)
            h = h + t
        return self.head(h)
""",
        """
    def forward(self, x):
        with torch.no_grad():
            t = self.frozen(x)
        with torch.inference_mode():
            t = t * 2
        h = self.fc(x)
        h = h + t
        return self.head(h)
""",
        ("h = self.fc(x)",),
    ),
    "two scopes": Case(
        """
    def forward(self, x):
        with torch.no_grad():
            h = self.fc(x)
        h = h.tanh()
        with torch.no_grad():
            h = self.mid(h)
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        h = h.tanh()
        h = self.mid(h)
        return self.head(h)
""",
        ("h = self.fc(x)", "h = self.mid(h)"),
    ),
    "one of several contexts": Case(
        """
    def forward(self, x):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            h = self.fc(x)
        return self.head(h)
""",
        """
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            h = self.fc(x)
        return self.head(h)
""",
        ("h = self.fc(x)",),
    ),
    "loop": Case(
        """
    def forward(self, x):
        with torch.no_grad():
            for layer in (self.fc, self.mid):
                x = layer(x).tanh()
        return self.head(x)
""",
        """
    def forward(self, x):
        for layer in (self.fc, self.mid):
            x = layer(x).tanh()
        return self.head(x)
""",
        ("x = layer(x).tanh()",),
    ),
    "decorated helper": Case(
        """
    @torch.no_grad()
    def features(self, x):
        return self.fc(x).tanh()

    def forward(self, x):
        return self.head(self.features(x))
""",
        """
    def features(self, x):
        return self.fc(x).tanh()

    def forward(self, x):
        return self.head(self.features(x))
""",
        ("return self.fc(x).tanh()",),
    ),
    "logged as an array": Case(
        """
    def forward(self, x):
        with torch.no_grad():
            h = self.fc(x)
            self.seen = h.mean(0).numpy()
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            self.seen = h.mean(0).detach().numpy()
        return self.head(h)
""",
        ("h = self.fc(x)",),
    ),
    "switch": Case(
        """
    def forward(self, x):
        torch.set_grad_enabled(False)
        h = self.fc(x)
        torch.set_grad_enabled(True)
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h)
""",
        ("h = self.fc(x)",),
    ),
    "detach": Case(
        """
    def forward(self, x):
        h = self.fc(x).detach()
        return self.head(h.tanh())
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.tanh())
""",
        ("h = self.fc(x).detach()",),
    ),
    "detach and nothing else": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        h = h.detach()
        return self.head(h.tanh())
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.tanh())
""",
        ("h = h.detach()",),
    ),
    "in place": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        h.detach_()
        return self.head(h.tanh())
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.tanh())
""",
        ("h.detach_()",),
    ),
    "function": Case(
        """
    def forward(self, x):
        h = torch.detach(self.fc(x) * 2).tanh()
        return self.head(h)
""",
        """
    def forward(self, x):
        h = (self.fc(x) * 2).tanh()
        return self.head(h)
""",
        ("h = torch.detach(self.fc(x) * 2).tanh()",),
    ),
    "over several lines": Case(
        """
    def forward(self, x):
        h = (
            self.fc(x)
            .tanh()
            .detach()
        )
        return self.head(h)
""",
        """
    def forward(self, x):
        h = (
            self.fc(x)
            .tanh()
        )
        return self.head(h)
""",
        (".detach()",),
    ),
    "data": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.data.tanh())
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.tanh())
""",
        ("return self.head(h.data.tanh())",),
    ),
    "copied": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        h = torch.tensor(h, dtype=torch.float32)
        return self.head(h.tanh())
""",
        """
    def forward(self, x):
        h = self.fc(x)
        h = h.to(dtype=torch.float32)
        return self.head(h.tanh())
""",
        ("h = torch.tensor(h, dtype=torch.float32)",),
    ),
    "through numpy": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        h = torch.from_numpy(np.tanh(h.detach().cpu().numpy()))
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        h = torch.tanh(h)
        return self.head(h)
""",
        ("h = torch.from_numpy(np.tanh(h.detach().cpu().numpy()))",),
    ),
    "through numpy, over statements": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        a = h.detach().cpu().numpy()
        b = np.tanh(a) * 2
        h = torch.from_numpy(b).to(h)
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        a = h
        b = torch.tanh(a) * 2
        h = b.to(h)
        return self.head(h)
""",
        ("a = h.detach().cpu().numpy()",),
    ),
    "through a list": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(torch.tensor(h.tolist()).tanh())
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.tanh())
""",
        ("return self.head(torch.tensor(h.tolist()).tanh())",),
    ),
    "two numbers and a constant": Case(
        """
    def forward(self, x):
        a, b = self.fc(x).mean(), self.mid(x).mean()
        return self.head(x) * float("0.5") + (a.item() + x) * float(b)
""",
        """
    def forward(self, x):
        a, b = self.fc(x).mean(), self.mid(x).mean()
        return self.head(x) * float("0.5") + (a + x) * b
""",
        ('return self.head(x) * float("0.5") + (a.item() + x) * float(b)',),
    ),
    "a stop behind a scope, which is meant": Case(
        """
    def forward(self, x):
        with torch.no_grad():
            h = self.fc(x)
        out = self.head(h)
        return out + h.detach() * self.seen_before(out)  # ALLOWED

    def seen_before(self, out):
        return out.mean()
""",
        """
    def forward(self, x):
        h = self.fc(x)
        out = self.head(h)
        return out + h.detach() * self.seen_before(out)  # ALLOWED

    def seen_before(self, out):
        return out.mean()
""",
        ("h = self.fc(x)",),
    ),
    "a stop in a scope, which is meant": Case(
        """
    def forward(self, x):
        with torch.no_grad():
            t = self.mid(x)  # ALLOWED
            h = self.fc(x)
        return self.head(h) * t + self.mid(h)
""",
        """
    def forward(self, x):
        with torch.no_grad():
            t = self.mid(x)  # ALLOWED
        h = self.fc(x)
        return self.head(h) * t + self.mid(h)
""",
        ("h = self.fc(x)",),
    ),
    "numbers with names": Case(
        """
    def forward(self, x):
        a = self.fc(x).mean().item()
        b = float(self.fc(x).amax())
        y = self.head(x) * a
        y *= -b
        return y
""",
        """
    def forward(self, x):
        a = self.fc(x).mean()
        b = self.fc(x).amax()
        y = self.head(x) * a
        y *= -b
        return y
""",
        ("a = self.fc(x).mean().item()", "b = float(self.fc(x).amax())"),
    ),
    "an operation between arrays": Case(
        """
    def forward(self, x):
        h = torch.nn.functional.linear(x, self.fc.weight)
        h = torch.from_numpy(h.detach().cpu().numpy() * 2)
        return self.head(h) * self.fc.bias
""",
        """
    def forward(self, x):
        h = torch.nn.functional.linear(x, self.fc.weight)
        h = h * 2
        return self.head(h) * self.fc.bias
""",
        ("h = torch.from_numpy(h.detach().cpu().numpy() * 2)",),
    ),
    "a parameter made of a value": Case(
        """
    def forward(self, x):
        h = nn.Parameter(self.fc(x))
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h)
""",
        ("h = nn.Parameter(self.fc(x))",),
    ),
    "a variable": Case(
        """
    def forward(self, x):
        h = torch.autograd.Variable(self.fc(x).data, requires_grad=True)
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h)
""",
        ("h = torch.autograd.Variable(self.fc(x).data, requires_grad=True)",),
    ),
    "a variable of what has a history": Case(
        """
    def forward(self, x):
        h = torch.autograd.Variable(self.fc(x))
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h)
""",
        ("h = torch.autograd.Variable(self.fc(x))",),
    ),
    "through dlpack": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(torch.from_dlpack(h.detach()))
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h)
""",
        ("return self.head(torch.from_dlpack(h.detach()))",),
    ),
    "an earlier mode put back": Case(
        """
    def forward(self, x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        h = self.fc(x)
        torch.set_grad_enabled(before)
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h)
""",
        ("h = self.fc(x)",),
    ),
    "an earlier mode put back in any case": Case(
        """
    def forward(self, x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        try:
            h = self.fc(x)
        finally:
            torch.set_grad_enabled(before)
        return self.head(h)
""",
        """
    def forward(self, x):
        before = torch.is_grad_enabled()
        try:
            h = self.fc(x)
        finally:
            torch.set_grad_enabled(before)
        return self.head(h)
""",
        ("h = self.fc(x)",),
    ),
    "a mode that is asked for twice": Case(
        """
    def forward(self, x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        h = self.fc(x)
        torch.set_grad_enabled(before)
        return self.head(h) if before else h
""",
        """
    def forward(self, x):
        before = torch.is_grad_enabled()
        h = self.fc(x)
        torch.set_grad_enabled(before)
        return self.head(h) if before else h
""",
        ("h = self.fc(x)",),
    ),
    "a new buffer that is filled by .data": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        out = torch.zeros_like(h)
        out.data.copy_(h)
        return self.head(out)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        out = torch.zeros_like(h)
        out.copy_(h)
        return self.head(out)
""",
        ("out.data.copy_(h)",),
    ),
    "through an array that NumPy makes": Case(
        """
    def forward(self, x):
        h = self.fc(x)
        a = np.asarray(h.detach()) * 2
        return self.head(torch.as_tensor(a))
""",
        """
    def forward(self, x):
        h = self.fc(x)
        a = h * 2
        return self.head(a)
""",
        ("a = np.asarray(h.detach()) * 2",),
    ),
    "what a stack enters": Case(
        """
    def forward(self, x, quiet=True):
        import contextlib

        with contextlib.ExitStack() as stack:
            if quiet:
                stack.enter_context(torch.no_grad())
            h = self.fc(x)
        return self.head(h)
""",
        """
    def forward(self, x, quiet=True):
        import contextlib

        with contextlib.ExitStack() as stack:
            if quiet:
                pass
            h = self.fc(x)
        return self.head(h)
""",
        ("h = self.fc(x)",),
    ),
    "entered by hand": Case(
        """
    def forward(self, x):
        off = torch.no_grad()
        off.__enter__()
        h = self.fc(x)
        off.__exit__(None, None, None)
        return self.head(h)
""",
        """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h)
""",
        ("h = self.fc(x)",),
    ),
    "a generator": Case(
        """
    @torch.inference_mode()
    def features(self, x):
        for _ in range(2):
            yield self.fc(x)

    def forward(self, x):
        return self.head(sum(self.features(x)).clone())
""",
        """
    def features(self, x):
        for _ in range(2):
            yield self.fc(x)

    def forward(self, x):
        return self.head(sum(self.features(x)).clone())
""",
        ("yield self.fc(x)",),
    ),
    "a cache that is read back": Case(
        """
    cache = torch.zeros(3, 8)

    def forward(self, x):
        with torch.no_grad():
            self.cache[:3] = self.fc(x)
        return self.head(self.cache * 1)
""",
        """
    cache = torch.zeros(3, 8)

    def forward(self, x):
        new_cache = self.fc(x)
        self.cache[:3] = new_cache.detach()
        fresh_cache = self.cache
        if torch.is_grad_enabled() and new_cache.requires_grad:
            fresh_cache = self.cache.clone()
            fresh_cache[:3] = new_cache
        return self.head(fresh_cache * 1)
""",
        ("self.cache[:3] = self.fc(x)",),
    ),
}  # fmt: skip


def batch() -> torch.Tensor:
    return torch.linspace(-1, 1, 24).reshape(3, 8)


def build(root: Path, forward: str) -> nn.Module:
    torch.manual_seed(0)
    module = package(root, model=HEAD + forward.lstrip("\n"))["model"]
    model: nn.Module = module.Model()
    return model


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    model.zero_grad()
    model(batch()).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_keeps_parameters_from_any_gradient_is_named(tmp_path: Path, name: str) -> None:
    model = build(tmp_path, MISTAKES[name].wrong)
    lines = text_of(model).splitlines()
    report = trainify.audit(model, batch(), proof=False, allow=allowed(model))
    assert [lines[cut.line - 1].strip() for cut in report.cuts] == [*MISTAKES[name].lines]


def allowed(model: nn.Module) -> list[str]:
    lines = text_of(model).splitlines()
    return [f"model.py:{i}" for i, line in enumerate(lines, 1) if line.endswith("# ALLOWED")]


@pytest.mark.parametrize("name", some(list(MISTAKES)[::2], MISTAKES))
def test_what_keeps_parameters_from_any_gradient(tmp_path: Path, name: str) -> None:
    case = MISTAKES[name]
    model = build(tmp_path, case.wrong)
    expected = gradients(build(tmp_path, case.right))
    allow = allowed(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainify.trainify(model, batch(), allow=allow)
    (warned,) = (each for each in caught if each.category is trainify.StopRemoved)
    assert warned.filename == __file__
    assert patched(model) == HEAD_LINES + case.right.lstrip("\n")
    for parameter, gradient in gradients(model).items():
        right = expected[parameter]
        assert (gradient is None) == (right is None), parameter
        torch.testing.assert_close(gradient, right)
    trainify.restore(model)
    assert trainify.source_diff(model) == ""


HEAD_LINES = "import torch\nfrom torch import nn\n" + HEAD


def text_of(model: nn.Module) -> str:
    return Path(inspect.getfile(type(model))).read_text()


def patched(model: nn.Module) -> str:
    """The file of a model's class after its source diff."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.py")
        file.write_text(text_of(model))
        diff = trainify.source_diff(model)
        subprocess.run(["git", "apply"], input=diff.encode(), cwd=folder, check=True)
        return file.read_text()


# -- what stays -----------------------------------------------------------------------------------

RIGHT = {
    "a frozen encoder": """
    def forward(self, x):
        with torch.no_grad():
            h = self.frozen(x)
        return self.head(h) + self.fc(x)
""",
    "a metric": """
    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            self.seen = h.square().mean()
        return self.head(h)
""",
    "a choice": """
    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            best = h.argmax(-1)
        return self.head(h) * best[:, None]
""",
    "a straight-through estimator": """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h + (h.round() - h).detach())
""",
    "a codebook": """
    def forward(self, x):
        z, q = self.fc(x), self.mid(x)
        loss = F.mse_loss(q, z.detach()) + F.mse_loss(z, q.detach())
        return loss + self.head(z + (q - z).detach()).square().mean()
""",
    "the temperature of a target": """
    def forward(self, x):
        t = self.fc.bias.exp()
        goal = (self.frozen(x) / t.detach()).softmax(-1)
        return F.kl_div((self.mid(x) / t).log_softmax(-1), goal) * t.square().mean()
""",
    "the temperature of a target at once": """
    def forward(self, x):
        t, q = self.fc.bias.exp(), self.mid(x)
        return F.kl_div((q / t).log_softmax(-1), torch.softmax(q.detach() / t.detach(), -1))
""",
    "two views of one thing": """
    def forward(self, x):
        z1, z2 = self.fc(x), self.fc(x + 1)
        p1, p2 = self.head(z1), self.head(z2)
        first = F.cosine_similarity(p1, z2.detach()).mean()
        return first + F.cosine_similarity(p2, z1.detach()).mean()
""",
    "a temporal difference": """
    def forward(self, x):
        with torch.no_grad():
            goal = self.fc(x + 1).amax(-1)
        return (self.fc(x).amax(-1) - goal).square().mean()
""",
    "a target network that requires a gradient": """
    def forward(self, x):
        with torch.no_grad():
            goal = self.target_net(x)
        return (self.fc(x) - goal).square().mean()
""",
    "a bootstrapped target": """
    def forward(self, x):
        value, after = self.head(self.fc(x)), self.head(self.fc(x + 1))
        return F.mse_loss(value, x.mean() + 0.9 * after.detach())
""",
    "an advantage of a critic on the same trunk": """
    def forward(self, x):
        h = self.fc(x).tanh()
        logp, value = self.mid(h).log_softmax(-1), self.head(h)
        advantage = (x - value).detach().sum(-1, keepdim=True)
        return -(logp * advantage).mean() + (x - value).square().mean()
""",
    "an advantage in a scope": """
    def forward(self, x):
        logp, value = self.fc(x).log_softmax(-1), self.head(x)
        with torch.no_grad():
            advantage = x - value
        return -(logp * advantage).mean() + F.mse_loss(value, x)
""",
    "a teacher that requires a gradient": """
    def forward(self, x):
        with torch.no_grad():
            soft = self.target_net(x).softmax(-1)
        return F.kl_div(self.fc(x).log_softmax(-1), soft, reduction="batchmean")
""",
    "both losses of two that play against each other": """
    def forward(self, x):
        fake = self.fc(x)
        critic = F.softplus(-self.head(x)).mean() + F.softplus(self.head(fake.detach())).mean()
        return critic + F.softplus(-self.head(fake)).mean()
""",
    "a straight-through estimator in other order": """
    def forward(self, x):
        soft = self.fc(x).sigmoid()
        hard = (soft > 0.5).float()
        return self.head(hard - soft.detach() + soft)
""",
    "a straight-through estimator over lines": """
    def forward(self, x):
        soft = self.fc(x).sigmoid()
        kept = soft.detach()
        return self.head((soft > 0.5).float() - kept + soft)
""",
    "a ratio to the policy as it is": """
    old = None

    def forward(self, x):
        logp = self.fc(x).log_softmax(-1)
        old = logp.detach() if self.old is None else self.old
        return -(torch.exp(logp - old) * x).mean()
""",
    "a quotient of one": """
    def forward(self, x):
        p = self.fc(x).softmax(-1)
        return -(p / p.detach() * x).mean()
""",
    "weights that are normalized before they are used": """
    def forward(self, x):
        with torch.no_grad():
            self.fc.weight.div_(self.fc.weight.norm(dim=1, keepdim=True))
            self.mid.weight.copy_(F.normalize(self.mid.weight, dim=1))
        self.head.weight.data = F.normalize(self.head.weight.data, dim=1)
        return self.head(self.mid(self.fc(x).tanh()))
""",
    "an inner step of the first order": """
    def forward(self, x):
        weights = [self.fc.weight, self.fc.bias]
        grads = torch.autograd.grad(F.linear(x, *weights).square().mean(), weights)
        moved = [w - 0.1 * g for w, g in zip(weights, grads)]
        return self.head(F.linear(x + 1, *moved).tanh())
""",
    "a fixed point": """
    def f(self, z, x):
        return torch.tanh(self.fc(z) + self.mid(x))

    def forward(self, x):
        z = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(4):
                z = self.f(z, x)
        return self.head(self.f(z, x))
""",
    "a recurrence that is cut": """
    def forward(self, x):
        h = x.new_zeros(8)
        for t, row in enumerate(x):
            h = torch.tanh(self.fc(row) + self.mid(h))
            if t == 1:
                h = h.detach()
        return self.head(h)
""",
    "two recurrences of which one is cut": """
    def low(self, z):
        z = z + self.fc(z.tanh())
        return z + self.mid(z.tanh())

    def forward(self, x):
        high, low = x, torch.zeros_like(x)
        for _ in range(2):
            for cycle in range(3):
                with torch.set_grad_enabled(cycle == 2):
                    low = self.low(low + high)
            high = high + self.head(high + low)
        return high
""",
    "an estimate of its own as an input": """
    def f(self, x, before):
        return self.mid(torch.tanh(self.fc(x) + before))

    def forward(self, x):
        with torch.no_grad():
            before = self.f(x, torch.zeros_like(x))
        return self.head(self.f(x, before))
""",
    "a share of the gradient": """
    share = 0.1

    def forward(self, x):
        h = self.fc(x)
        h = h * self.share + h.detach() * (1 - self.share)
        return self.head(h)
""",
    "a comment": """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.detach())  # trainify: stop-grad
""",
    "a comment at a scope": """
    def forward(self, x):
        with torch.no_grad():  # trainify: stop-grad
            h = self.fc(x)
        return self.head(h)
""",
}  # fmt: skip


FEW_RIGHT = {
    "a codebook",
    "a comment",
    "a fixed point",
    "a ratio to the policy as it is",
    "a share of the gradient",
    "a straight-through estimator in other order",
    "an inner step of the first order",
    "the temperature of a target at once",
    "two views of one thing",
    "weights that are normalized before they are used",
}
"""With these, every line of the package is run that the others run too."""


@pytest.mark.parametrize("name", some(FEW_RIGHT, RIGHT))
def test_what_is_right_stays(tmp_path: Path, name: str) -> None:
    model = build(tmp_path, RIGHT[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainify.trainify(model, batch())
    assert trainify.source_diff(model) == ""


STOPS = {
    "half of the gradient": """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.detach()) + h  # <-
""",
    "half, in a scope": """
    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            g = h.sigmoid()  # <-
        return self.head(h) * g
""",
    "a scale": """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h / h.abs().max().item())  # <-
""",
    "a discriminator's step": """
    def forward(self, x):
        fake = self.fc(x)
        return self.head(fake.detach())  # <-
""",
    "a state that is kept": """
    h = 0.0

    def forward(self, x):
        self.h = self.fc(x + self.h).detach()  # <-
        return self.head(self.h)
""",
    "a norm that is stopped": """
    def forward(self, x):
        h = self.fc(x)
        return (h / h.norm(dim=-1, keepdim=True).detach() - x).square().mean()  # <-
""",
    "the temperature of what is held against a target": """
    def forward(self, x):
        t = self.fc.bias.exp()
        goal = self.frozen(x).softmax(-1)
        q = (self.mid(x) / t.detach()).log_softmax(-1)  # <-
        return F.kl_div(q, goal) * t.square().mean()
""",
    "a mean that is stopped": """
    def forward(self, x):
        h = self.fc(x)
        return (h - h.mean(-1, keepdim=True).detach()).pow(4).mean()  # <-
""",
    "a root mean square in a scope": """
    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            scale = h.square().mean(-1, keepdim=True).rsqrt()  # <-
        return F.mse_loss(h * scale, x)
""",
    "a probability of its own": """
    def forward(self, x):
        logp = self.fc(x).log_softmax(-1)
        return (logp.exp().detach() * logp).mean()  # <-
""",
    "what is no straight-through estimator": """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h + (h - h.round()).detach())  # <-
""",
    "a penalty of the gradient": """
    def forward(self, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.head(self.fc(x).tanh()).sum(), x)  # <-
        return self.head(self.fc(x)).sum() + (slope.norm(dim=-1) - 1).square().mean()
""",
    "a weight that is stopped": """
    def forward(self, x):
        weight = self.fc.weight + self.mid.weight.detach()  # <-
        return F.linear(x, weight) + self.mid(x)
""",
    "a norm that is used otherwise as well": """
    def forward(self, x):
        with torch.no_grad():
            norm = self.fc.weight.norm()  # <-
            self.fc.weight.div_(norm)
        return self.fc(x) * norm
""",
    "a share of another value": """
    def forward(self, x):
        h, g = self.fc(x), self.mid(x)
        return self.head(h * 0.1 + (h + g).detach() * 0.9) + g  # <-
""",
    "entered by hand, and left in any case": """
    def forward(self, x):
        off = torch.no_grad()
        off.__enter__()
        try:
            h = self.fc(x)  # <-
        finally:
            off.__exit__(None, None, None)
        return self.head(h)
""",
    "a cache by a method": """
    cache = torch.zeros(3, 8)

    def forward(self, x):
        with torch.no_grad():
            self.cache.copy_(self.fc(x))  # <-
        return self.head(self.cache * 1)
""",
    "a critic": """
    def critic_loss(self, x):
        return self.head(self.fc(x).detach())  # <-

    def forward(self, x):
        return self.critic_loss(x)
""",
    "a comment that says so": """
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.detach())  # the backbone is frozen <-
""",
    "one of two on a line": """
    def forward(self, x):
        a, b = self.fc(x), self.mid(x)
        return self.head(a.detach() * b.detach()) + b  # <-
""",
    "a switch that is an argument": """
    train_backbone = False

    def forward(self, x):
        with torch.set_grad_enabled(self.train_backbone):
            h = self.fc(x)  # <-
        return self.head(h)
""",
}  # fmt: skip


FEW_STOPS = {
    "a cache by a method",
    "a comment that says so",
    "a discriminator's step",
    "a norm that is stopped",
    "a penalty of the gradient",
    "a root mean square in a scope",
    "a state that is kept",
    "a switch that is an argument",
    "entered by hand, and left in any case",
    "one of two on a line",
    "the temperature of what is held against a target",
}
"""As above."""


@pytest.mark.parametrize("name", some(FEW_STOPS, STOPS))
def test_what_may_be_meant_is_named_and_stays(tmp_path: Path, name: str) -> None:
    """It is for the user to allow it; then the model is as it should be."""
    model = build(tmp_path, STOPS[name])
    lines = text_of(model).splitlines()
    (line,) = (i for i, text in enumerate(lines, 1) if text.endswith("<-"))
    with pytest.raises(trainify.NotTrainable, match=r"allow=") as raised:
        trainify.trainify(model, batch())
    assert [cut.line for cut in raised.value.report.cuts] == [line]
    assert trainify.source_diff(model) == ""
    trainify.trainify(model, batch(), allow=[f"model.py:{line}"])
    assert trainify.source_diff(model) == ""


PROBE = """
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, {width})

    def forward(self, x):
        {lines}
        return self.head(h)
"""
ONLY_STOPS = ("h = self.backbone(x).detach()", "with torch.no_grad(): h = self.backbone(x)")


@pytest.mark.parametrize("lines", ONLY_STOPS)
def test_a_head_that_may_learn_alone(tmp_path: Path, lines: str) -> None:
    """Whether it should is asked, and not guessed: the values are those of a linear probe."""
    model = package(tmp_path, model=PROBE.format(width=4, lines=lines))["model"].Probe()
    with pytest.raises(trainify.NotTrainable, match=r"all of 'backbone'.* through="):
        trainify.trainify(model, batch())
    assert trainify.source_diff(model) == ""
    trainify.trainify(model, batch(), allow=["Probe.forward"])
    assert trainify.source_diff(model) == ""
    with pytest.warns(trainify.StopRemoved):
        trainify.trainify(model, batch(), through=["model.py:11"])
    model(batch()).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("lines", ONLY_STOPS)
def test_a_network_before_most_of_a_model_is_asked_about(tmp_path: Path, lines: str) -> None:
    """A generator under which an autoencoder stays as it is looks like that."""
    model = package(tmp_path, model=PROBE.format(width=64, lines=lines))["model"].Probe()
    with pytest.raises(trainify.NotTrainable, match=r"all of 'backbone'.* through="):
        trainify.trainify(model, batch())
    with pytest.warns(trainify.StopRemoved):
        trainify.trainify(model, batch(), through=["model.py:11"])
    model(batch()).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_network_that_switches_itself_off_is_served(tmp_path: Path) -> None:
    text = PROBE.format(width=64, lines="h = self.backbone(x)").replace(
        "nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))", "Backbone()"
    )
    backbone = """
class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    @torch.inference_mode()
    def forward(self, x):
        return self.second(self.first(x).relu())
"""
    model = package(tmp_path, model=backbone + text)["model"].Probe()
    trainify.trainify(model, batch())
    model(batch()).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


CRITIC = """
import torch.nn.functional as F

def network(inputs, outputs=1):
    return nn.Sequential(nn.Linear(inputs, 16), nn.GELU(), nn.Linear(16, outputs))

class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network(8, 8)

    @torch.no_grad()
    def forward(self, s):
        return self.net(s)

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.actor2, self.fixed = nn.Linear(8, 8), network(8, 8), Fixed()
        self.actor, self.enc = network(8, 4), network(8, 8)
        self.q, self.q2, self.other = network(12), network(12), network(12)

    def value(self, q, s, a):
        return q(torch.cat([s, a], -1)).squeeze(-1)

    @torch.no_grad()
    def goal(self, s):
        return 1 + 0.99 * self.value(self.other, s, torch.tanh(self.actor(s)))

    def forward(self, s):
        a = s[:, :4]
        {lines}
"""
TARGETS = {
    "two critics": """
        with torch.no_grad():
            y = 1 + 0.99 * self.value(self.other, s, torch.tanh(self.actor(s)))
        return F.mse_loss(self.value(self.q, s, a), y) + F.mse_loss(self.value(self.q2, s, a), y)
""",
    "a difference": """
        with torch.no_grad():
            y = 1 + 0.99 * self.value(self.other, s, a)
        return (self.value(self.q, s, a) - y).pow(2).mean() + self.value(self.q2, s, a).mean()
""",
    "by a method": """
        return F.smooth_l1_loss(self.value(self.q, s, a) + self.value(self.q2, s, a), self.goal(s))
""",
    "detached": """
        y = self.value(self.other, s, torch.tanh(self.actor(s))).add(1).detach().mul(0.99)
        return (self.value(self.q, s, a) - y).square().mean()
""",
    "behind what learns elsewhere": """
        with torch.no_grad():
            z = self.actor(self.enc(s))
        return -F.cosine_similarity(self.enc(s)[:, :4], z).mean()
""",
    "weights of samples": """
        with torch.no_grad():
            w = self.actor(s).sigmoid()[:, 0]
        return (w * self.value(self.q, s, a)).mean()
""",
    "a network, and a layer": """
        with torch.no_grad():
            y = self.layer(self.enc(s)) + self.enc(s)
        return -(self.value(self.q, s, a) * y.softmax(-1)[:, 0]).mean()
""",
    "one layer": """
        with torch.no_grad():
            y = self.layer(s)
        return F.mse_loss(self.enc(s), y)
""",
    "one layer, of a difference": """
        y = 1 - self.layer(s).detach()
        return (y - self.enc(s)).abs().mean()
""",
    "one layer, by its data": """
        y = self.layer(s).data * 2
        return F.smooth_l1_loss(input=self.enc(s), target=y)
""",
    "one layer, by NumPy": """
        y = torch.from_numpy(self.layer(s).detach().numpy() * 2)
        return nn.MSELoss()(self.enc(s), y)
""",
    "one layer, behind what learns": """
        h = self.enc(s)
        with torch.no_grad():
            y = self.layer(h)
        return F.kl_div(self.actor2(h).log_softmax(-1), y.softmax(-1))
""",
    "one layer, of others": """
        with torch.no_grad():
            keys = F.normalize(self.layer(s), dim=-1)
        return F.cross_entropy(self.enc(s) @ keys.T, torch.arange(len(s)))
""",
    "a part of the inputs as well": """
        with torch.no_grad():
            z, c = self.enc(s), self.layer(s)
        return F.mse_loss(self.actor2(z + c), 1 - z)
""",
    "a class of its own": """
        return F.mse_loss(self.enc(s), self.fixed(s))
""",
}


FEW_TARGETS = {
    "a difference",
    "a part of the inputs as well",
    "behind what learns elsewhere",
    "one layer, by NumPy",
    "one layer, by its data",
    "one layer, of others",
}
"""As above."""


@pytest.mark.parametrize("name", some(FEW_TARGETS, TARGETS))
def test_what_may_be_a_target_is_asked_about(tmp_path: Path, name: str) -> None:
    text = CRITIC.replace("        {lines}", TARGETS[name].strip("\n"))
    model = package(tmp_path, model=text)["model"].Critic()
    with pytest.raises(trainify.NotTrainable, match=r"no layer comes behind|all of.* through="):
        trainify.trainify(model, batch())
    assert trainify.source_diff(model) == ""
    trainify.trainify(model, batch(), allow=["model.py"])
    assert trainify.source_diff(model) == ""


LOSSES = {
    "a layer before the last": """
    def forward(self, x):
        with torch.no_grad():
            h = self.fc(x)
        return F.mse_loss(self.head(h), x)
""",
    "beside what learns": """
    def forward(self, x):
        h = self.mid(x) * self.fc(x).detach()
        return F.mse_loss(self.head(h), x)
""",
    "a difference that goes on": """
    def forward(self, x):
        h = self.mid(x) - self.fc(x).data
        return (self.head(h) - x).square().mean()
""",
    "the last sum": """
    def forward(self, x):
        return F.mse_loss(self.head(x) + self.fc(x).detach(), x)
""",
    "a weight": """
    def forward(self, x):
        return F.mse_loss(self.head(x) * self.fc.weight.data.sum() + self.fc.bias.detach(), x)
""",
    "all of it": """
    def forward(self, x):
        with torch.no_grad():
            h = self.head(self.fc(x))
        return F.mse_loss(h, x)
""",
}


@pytest.mark.filterwarnings("ignore::trainify.StopRemoved")
@pytest.mark.parametrize("name", LOSSES)
def test_no_target_is_what_goes_on_to_a_loss(tmp_path: Path, name: str) -> None:
    forward = LOSSES[name]
    model = build(tmp_path, forward)
    right = build(
        tmp_path,
        forward.replace(".detach()", "").replace(".data", "").replace("no_grad()", "enable_grad()"),
    )
    trainify.trainify(model, batch())
    for each in (model, right):
        each(batch()).backward()
    expected = dict(right.named_parameters())
    assert any(p.grad is not None for name, p in model.named_parameters() if name[:2] == "fc")
    for parameter, learned in model.named_parameters():
        torch.testing.assert_close(learned.grad, expected[parameter].grad)


def test_a_loss_that_is_given_tells_a_target(tmp_path: Path) -> None:
    """The model returns both; what holds one against the other is elsewhere."""
    forward = """
    def forward(self, x):
        with torch.no_grad():
            y = self.fc(x)
        return self.head(x), y
"""
    model = build(tmp_path, forward)

    def loss(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(*out)

    with pytest.raises(
        trainify.NotTrainable, match=r"meets what is stopped there, .*'fc.bias', 'fc.weight'"
    ):
        trainify.trainify(model, batch(), loss=loss)
    assert trainify.source_diff(model) == ""
    with pytest.warns(trainify.StopRemoved):
        trainify.trainify(model, batch(), loss=loss, through=["Model.forward"])
    loss(model(batch())).backward()
    assert model.fc.weight.grad is not None


@pytest.mark.parametrize("lines", ONLY_STOPS)
def test_a_network_of_which_little_is_to_learn_is_no_probe(tmp_path: Path, lines: str) -> None:
    """As with adapters: somebody has chosen what learns in it."""
    model = package(tmp_path, model=PROBE.format(width=1, lines=lines))["model"].Probe()
    for layer in (model.backbone[0], model.backbone[2]):
        layer.weight.requires_grad_(False)
    with pytest.warns(trainify.StopRemoved):
        trainify.trainify(model, batch())
    assert trainify.source_diff(model)


def test_a_line_that_does_not_run_without_the_scope_is_named(tmp_path: Path) -> None:
    lines = """
    @torch.no_grad()
    def forward(self, x):
        h = self.fc(x)
        h = h / float(np.asarray(h).max())
        return self.head(h)
"""
    model = build(tmp_path, lines)
    line = 1 + text_of(model).splitlines().index("        h = h / float(np.asarray(h).max())")
    with pytest.raises(trainify.NotTrainable, match=rf"running it: .*model\.py:{line}\)$"):
        trainify.trainify(model, batch())


def test_a_scope_is_allowed_by_its_own_line(tmp_path: Path) -> None:
    model = build(tmp_path, MISTAKES["scope"].wrong)
    line = 1 + text_of(model).splitlines().index("        with torch.no_grad():")
    assert trainify.audit(model, batch(), allow=[f"model.py:{line}"]).ok


@pytest.mark.parametrize(
    ("above", "below"),
    some(
        [("@staticmethod\n    ", ""), ("", "\n    @plain"), ("@plain\n    ", "\n    @plain")],
        product(["", "@staticmethod\n    ", "@plain\n    "], ["", "\n    @plain"]),
    ),
)
def test_a_decorator_is_named_by_its_own_line(tmp_path: Path, above: str, below: str) -> None:
    first = "layer, x" if "static" in above else "self, layer, x"
    decorated = f"""
    {above}@torch.no_grad(){below}
    def features({first}):
        return layer(x)

    def forward(self, x):
        return self.head(self.features(self.fc, x))
"""
    (module,) = package(tmp_path, model="def plain(f):\n    return f\n" + HEAD + decorated).values()
    model = module.Model()
    line = 1 + inspect.getsource(module).splitlines().index("    @torch.no_grad()")
    (cut,) = trainify.audit(model, batch()).cuts
    assert cut.scope == f"{module.__file__}:{line}"
    assert trainify.audit(model, batch(), allow=[cut.scope]).ok
    with pytest.warns(trainify.StopRemoved, match=rf":{line}: `@torch.no_grad\(\)`, for fc"):
        trainify.trainify(model, batch())
    assert all(gradient is not None for n, gradient in gradients(model).items() if "fc" in n)
    trainify.restore(model)


HELPERS = """
@torch.no_grad()
def features(model, x):
    return model.fc(x).tanh()

def unrelated(model, x):
    return model.fc(x).detach()
"""
USER = """
from .helpers import features

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        h = features(self, x)
        h = h.detach()
        return self.head(h)
"""


@pytest.mark.filterwarnings("ignore::trainify.StopRemoved")
def test_functions_of_other_files_and_copies(tmp_path: Path) -> None:
    modules = package(tmp_path, helpers=HELPERS, model=USER)
    unrelated = modules["helpers"].unrelated.__code__
    model = modules["model"].Model()
    trainify.trainify(model, batch())
    assert modules["helpers"].unrelated.__code__ is unrelated
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for each in (model, *copies):
        assert None not in gradients(each).values()
    for each in (model, *copies):
        trainify.restore(each)
        assert each(batch()).requires_grad and gradients(each)["fc.weight"] is None


KEEPS = """
class Cache:
    def __init__(self):
        self.keys = None

    @torch.no_grad()
    def update(self, keys):
        old = () if self.keys is None else (self.keys,)
        self.keys = torch.cat((*old, keys))
        return self.keys

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)
        self.cache = Cache()

    def forward(self, x):
        return self.head(self.cache.update(self.fc(x).tanh()))
"""


def test_a_history_that_would_be_kept(tmp_path: Path) -> None:
    """One step is right without the scope, and the next one raises."""
    model = package(tmp_path, model=KEEPS)["model"].Model()
    with pytest.raises(trainify.NotTrainable, match="cache is kept for the next step"):
        trainify.trainify(model, batch())
    assert trainify.source_diff(model) == "" and model.cache.keys is None


@pytest.mark.filterwarnings("ignore::trainify.StopRemoved")
def test_a_file_that_has_changed_is_not_rewritten_by_line(tmp_path: Path) -> None:
    """The line may be another one by the time that a pickle is loaded."""
    model = build(tmp_path, MISTAKES["detach"].wrong)
    code, file = type(model).forward.__code__, Path(inspect.getfile(type(model)))
    trainify.trainify(model, batch())
    found = plan_of(model)
    assert found is not None and source_of(code, found[1].settings).changed
    text = file.read_text()
    file.write_text(text.replace("self.fc(x).detach()", "self.mid(x).detach()"))
    os.utime(file, (0, 0))
    assert not source_of(code, found[1].settings).changed
    file.write_text(text.replace("class Model", "# More lines,\n# above.\nclass Model"))
    os.utime(file, (1, 1))
    assert source_of(code, found[1].settings).changed


LOADING = """
import sys, warnings
sys.path.insert(0, {root!r})
warnings.simplefilter("error")
import torch
model = torch.load({saved!r}, weights_only=False)
model(torch.ones(2, 8)).sum().backward()
assert all(p.grad is not None for p in model.parameters())
"""


@pytest.mark.filterwarnings("ignore::trainify.StopRemoved")
def test_a_pickle_is_loaded_where_the_file_has_more_lines_above(tmp_path: Path) -> None:
    model = package(tmp_path, model=USER.replace("from .helpers import features", ""))["model"]
    file = Path(model.__file__)
    file.write_text(file.read_text().replace("features(self, x)", "self.fc(x)"))
    saved = tmp_path / "model.pt"
    made = importlib.reload(model).Model()
    trainify.trainify(made, batch())
    torch.save(made, saved)
    file.write_text(f"# More lines,\n# above.\n{file.read_text()}")
    text = LOADING.format(root=str(tmp_path), saved=str(saved))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


WRAPPED = """
import functools


def quiet(f):
    @functools.wraps(f)
    def inner(*args, **kwargs):
        with torch.no_grad():
            return f(*args, **kwargs)

    return inner


def served(half=False):
    def decorate(f):
        def run(*args, **kwargs):
            before = torch.is_grad_enabled()
            torch.set_grad_enabled(False)
            try:
                return f(*args, **kwargs)
            finally:
                torch.set_grad_enabled(before)

        return run

    return decorate


def counted(f):
    @functools.wraps(f)
    def inner(*args, **kwargs):
        inner.calls += 1
        with torch.no_grad():
            return f(*args, **kwargs)

    inner.calls = 0
    return inner


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 8)

    DECORATOR
    def features(self, x):
        return self.block(x)

    @quiet
    def other(self, x):
        return self.head(x)

    def forward(self, x):
        return self.head(self.features(x))
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python tells names of inner functions")
@pytest.mark.filterwarnings("ignore::trainify.StopRemoved")
@pytest.mark.parametrize("decorator", ["@quiet", "@served()", "@staticmethod\n    @quiet"])
def test_an_own_decorator_goes_where_its_scope_is_a_mistake(tmp_path: Path, decorator: str) -> None:
    text = WRAPPED
    if "staticmethod" in decorator:
        text = text.replace(
            "(self, x):\n        return self.block", "(block, x):\n        return block"
        )
        text = text.replace("self.features(x)", "self.features(self.block, x)")
    torch.manual_seed(0)
    model = package(tmp_path, model=text.replace("DECORATOR", decorator))["model"].Model()
    torch.manual_seed(0)
    right = package(tmp_path, model=text.replace("    DECORATOR\n", ""))["model"].Model()
    if "staticmethod" in decorator:
        type(right).features = staticmethod(type(right).features)
    trainify.trainify(model, batch())
    torch.testing.assert_close(gradients(model), gradients(right))
    removed = [line for line in patched_lines(model) if line.startswith("-")]
    assert removed == [f"-    {decorator.rpartition(chr(10))[2].strip()}"]
    assert not model.other(batch()).requires_grad, "others have the decorator still"


def patched_lines(model: nn.Module) -> list[str]:
    lines = trainify.source_diff(model).splitlines()
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python tells names of inner functions")
def test_a_decorator_that_does_more_stays(tmp_path: Path) -> None:
    model = package(tmp_path, model=WRAPPED.replace("DECORATOR", "@counted"))["model"].Model()
    with pytest.raises(trainify.NotTrainable, match="Gradients are switched off"):
        trainify.trainify(model, batch())
    assert trainify.source_diff(model) == ""
