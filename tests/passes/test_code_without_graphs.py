"""What only runs without gradients, in a forward whose scope comes off.

Before, the model ran; so it does after a safe fix, and every gradient is that of the plain model.
"""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import findings, fix

from trainify.findings import STRATEGIES, Safety

HEAD = """\
import copy

import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.w = nn.Parameter(torch.ones(8))
        self.seen, self.last = [], None

    def note(self, h):
        self.seen.append(h.cpu().numpy())

    def top(self, h):
        rows = h.numpy()
        return float(rows.max())

    @torch.no_grad()
    def generate(self, x):
        return self(x).argmax(-1).tolist()

    @torch.no_grad()
    def forward(self, x):
"""

REPAIRED = {
    "in a list": ("self.seen.append(h.mean(0).numpy())", ""),
    "of a sum": ("self.last = (h + 1).numpy()", ""),
    "in a helper": ("self.note(h)", ""),
    "in a comprehension": ("self.last = [t.numpy() for t in h]", ""),
    "by a function of NumPy": ("self.last = np.asarray(h).max()", ""),
    "by one of a sum": ("self.last = np.linalg.norm(h * 2)", ""),
    "into rows of an array": ("out = np.zeros(8)\nout[:] = h[0]\nself.seen.append(out)", ""),
    "in a lambda": ("list(map(lambda t: self.seen.append(t.numpy()), h))", ""),
    "by its own protocol": ("self.last = h.__array__()", ""),
    "stacked": ("self.last = np.stack([t.numpy() for t in h])", ""),
    "several": ("self.last = np.stack([h, 2 * h])", ""),
    "only compared": ("if h.numpy().max() > 100:\n    raise ValueError(f'{h.numpy()}')", ""),
    "deepcopy": ("self.last = copy.deepcopy(h)", ""),
    "a row of a weight": (
        "self.b.weight[-1] = 0",
        "with torch.no_grad():\n    self.b.weight[-1] = 0",
    ),
    "a weight by another name": (
        "w = self.b.weight\nw.clamp_(-0.1, 0.1)",
        "with torch.no_grad():\n    self.b.weight.clamp_(-0.1, 0.1)",
    ),
    "a weight in a helper": (
        "self.limit()\nh = self.a(x)",
        "with torch.no_grad():\n    self.limit()\nh = self.a(x)",
    ),
    "inside of another scope": ("with torch.no_grad():\n    self.last = (h * 2).mean()", ""),
}
"""Lines between two layers, and what they are without a gradient."""

LEFT = {
    "a part of the result": "h = h - torch.from_numpy(h.numpy().mean(-1, keepdims=True))",
    "a divisor": "h = h / max(float(np.asarray(h).max()), 1.0)",
    "a helper gives it back": "h = h / self.top(h)",
    "collected and used": (
        "rows = []\nfor t in h:\n    rows.append(t.numpy())\nh = h + torch.tensor(np.stack(rows))"
    ),
    "a list of tensors": "self.last = np.array([t for t in h])",
    "a tuple of tensors": "self.last = np.array(h.chunk(2))",
    "a list by its name": "rows = [h]\nself.last = copy.deepcopy(rows)",
    "resized": "h.resize_(2, 8)",
    "a weight that backward needs": "h = self.b(h)\nself.b.weight.mul_(0.5)",
    "a view of a weight that is written": "w = self.b.weight.clamp_(-0.1, 0.1).t()\nh = h @ w",
    "below .data": "h.data.clamp_(-0.1, 0.1)",
    "a piece of a split": "parts = h.unbind(0)\nparts[0].mul_(0.5)",
}


LIMIT = """\
    def limit(self):
        self.a.weight.clamp_(-0.5, 0.5)

"""


def program(lines: str) -> str:
    helper = LIMIT if "limit" in lines else ""
    head = HEAD.replace("    def top", f"{helper}    def top")
    return head + textwrap.indent(f"h = self.a(x)\n{lines}\nreturn self.b(h)\n", " " * 8)


def run(text: str) -> dict[str, torch.Tensor | None]:
    """The gradients of a model, which has run without training before."""
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    torch.manual_seed(0)
    model = space["Model"]()
    x = torch.linspace(-1, 1, 16).view(2, 8)
    model.generate(x)
    (model(x) * torch.arange(8)).sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", REPAIRED)
def test_repaired_along(name: str) -> None:
    lines, plain = REPAIRED[name]
    fixed = fix(program(lines))
    # The scope of generate, which covers forward, stays: the plain model has only that.
    wanted = program(plain).replace("    @torch.no_grad()\n    def forward", "    def forward")
    found, right = run(fixed), run(wanted)
    assert found["a.weight"] is not None
    for parameter, gradient in right.items():
        torch.testing.assert_close(found[parameter], gradient)
    assert fix(fixed) == fixed
    assert not [f for f in findings(fixed) if f.rule in ("TRN201", "TRN407")]


@pytest.mark.parametrize("name", LEFT)
def test_left_with_a_reason(name: str) -> None:
    """The fix of the scope is unsafe, and names the line; the model runs as it did."""
    text = program(LEFT[name])
    (found,) = [f for f in findings(text) if f.rule == "TRN201"]
    for strategy in STRATEGIES:
        each = found.fix(strategy)
        assert each is not None and each.safety is Safety.UNSAFE
        assert " in line " in each.look_at
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(fix(text), "m.py", "exec"), space)
    assert space["Model"]()(torch.ones(2, 8)).grad_fn is None


def test_what_has_no_graph_is_left_alone() -> None:
    lines = (
        "ids = h.argmax(-1)\nself.seen.append(ids.numpy())\n"
        "self.seen.append(h.detach().numpy())\nscale = np.sqrt(h.shape[-1])\nh = h / scale"
    )
    fixed = fix(program(lines))
    assert textwrap.indent(lines, " " * 8) in fixed
    assert run(fixed)["a.weight"] is not None


def test_a_weight_under_a_scope_is_no_finding_of_its_own() -> None:
    text = program("self.b.weight[-1] = 0")
    assert [f.rule for f in findings(text)] == ["TRN201"]
    bare = text.replace("    @torch.no_grad()\n    def forward", "    def forward")
    assert [f.rule for f in findings(bare)] == ["TRN407"]


def test_a_loss_that_leaves_a_scope_is_still_logged() -> None:
    fixed = fix("""\
        import torch


        def train(model, optimizer, x, log):
            with torch.no_grad():
                loss = model(x).square().mean()
            log.append(loss.numpy())
            loss.backward()
            optimizer.step()
    """)
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(fixed, "m.py", "exec"), space)
    model, log = torch.nn.Linear(3, 3), []
    before = model.weight.detach().clone()
    x = torch.ones(2, 3)
    space["train"](model, torch.optim.SGD(model.parameters(), lr=0.1), x, log)
    assert len(log) == 1 and not torch.equal(model.weight, before)


def test_a_projector_before_a_frozen_model_is_still_logged() -> None:
    fixed = fix(
        """\
        import torch
        from torch import nn


        class Captioner(nn.Module):
            def __init__(self):
                super().__init__()
                self.projector = nn.Linear(8, 8)
                self.llm = nn.Linear(8, 8).requires_grad_(False)
                self.seen = []

            def forward(self, image):
                tokens = self.projector(image)
                with torch.no_grad():
                    h = self.llm(tokens)
                    self.seen.append(h.mean(0).numpy())
                return h
        """,
        unsafe=True,
    )
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(fixed, "m.py", "exec"), space)
    model = space["Captioner"]()
    model(torch.ones(2, 8)).sum().backward()
    assert model.projector.weight.grad is not None and len(model.seen) == 1
