"""A mode that a statement puts on a function, as a decorator would: ``f = torch.no_grad()(f)``."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

METHOD = """\
import torch
from torch import nn, no_grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.llm = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 8)
{init}
    def feat(self, x):
        return self.llm(x).relu()
{body}
    def forward(self, x):
        return self.head(self.feat(self.proj(x)))
{end}"""
FUNCTION = """\
import torch
from torch import nn


def feat(llm, x):
    return llm(x).relu()


{end}class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.llm = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(feat(self.llm, self.proj(x)))
"""


def method(init: str = "", body: str = "", end: str = "") -> str:
    init = f"        {init}\n" if init else ""
    body = f"\n{textwrap.indent(body, '    ')}\n" if body else ""
    end = f"\n\n{end}\n" if end else ""
    return METHOD.format(init=init, body=body, end=end)


def gradients(text: str) -> list[torch.Tensor | None]:
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    torch.manual_seed(0)
    model = scope["Model"]()
    model(torch.randn(3, 8)).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


PLACES = [
    method(body="feat = {mode}(feat)"),
    method(end="Model.feat = {mode}(Model.feat)"),
    method(init="self.feat = {mode}(self.feat)"),
    FUNCTION.format(end="feat = {mode}(feat)\n\n\n"),
]


@pytest.mark.parametrize("mode", ["torch.no_grad()", "torch.set_grad_enabled(False)"])
@pytest.mark.parametrize("text", PLACES)
def test_a_scope_behind_a_function_on_the_only_way(text: str, mode: str) -> None:
    text = text.format(mode=mode)
    (finding,) = findings(text)
    assert finding.rule == "TRN206"
    fixed = fix(text, unsafe=True)
    assert mode not in fixed
    pairs = zip(gradients(fixed), gradients(method()), strict=True)
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["torch.no_grad", "no_grad", "no_grad()"])
def test_other_ways_to_name_the_mode(mode: str) -> None:
    assert rules(method(body=f"feat = {mode}(feat)")) == ["TRN206"]


@pytest.mark.parametrize("text", PLACES)
def test_features_that_cannot_be_saved(text: str) -> None:
    text = text.format(mode="torch.inference_mode()").replace("self.proj(x)", "x")
    fixed = fix(text)
    assert fixed == text.replace("inference_mode", "no_grad")
    *_, weight, bias = gradients(fixed)
    assert weight is not None and bias is not None
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        gradients(text)


@pytest.mark.parametrize(
    "body",
    [
        "train_feat = feat\nfeat = torch.no_grad()(feat)",  # goes on as it is
        "if FAST:\n    feat = torch.no_grad()(feat)",
        "feat = torch.set_grad_enabled(True)(feat)",
        "other = torch.no_grad()(feat)",
        "feat = torch.enable_grad()(torch.no_grad()(feat))",
    ],
)
def test_what_leaves_gradients_on(body: str) -> None:
    stays(f"FAST = False\n{method(body=body)}")


@pytest.mark.parametrize("mode", ["no_grad()", "torch.no_grad", "torch.inference_mode()"])
def test_a_forward(mode: str) -> None:
    text = """\
        import torch
        from torch import nn, no_grad


        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(8, 8)

            def forward(self, x):
                return self.head(x)
{behind}
{scope}            def generate(self, x):
                return self(x).argmax(-1).tolist()
        """
    before = text.format(behind=f"\n            forward = {mode}(forward)\n", scope="")
    becomes(before, text.format(behind="", scope=f"            @{mode}\n"))


# -- a loss under a mode --------------------------------------------------------------------------

STEP = """\
{top}
import functools
import torch
import torch.nn.functional as F


{decorator}def step(model, teacher, x):
    target = teacher(x)
    loss = F.mse_loss(model(x), target)
    loss.backward()
    return loss.item()
{end}"""
OWN = """

def quiet(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        with torch.no_grad():
            return fn(*args, **kwargs)

    return inner

"""


@pytest.mark.parametrize(
    ("decorator", "end"),
    [
        ("@torch.no_grad()\n", ""),
        ("@torch.no_grad\n", ""),
        (f"{OWN.strip()}\n\n\n@quiet\n", ""),
        ("", "\n\nstep = torch.no_grad()(step)\n"),
        ("", "\n\nstep = torch.no_grad(step)\n"),
    ],
)
def test_what_stays_under_the_mode_of_a_step(decorator: str, end: str) -> None:
    """The result runs: of what decorates a function, not all can be entered."""
    text = STEP.format(top="", decorator=decorator, end=end)
    fixed = fix(text, unsafe=True)
    assert "    with torch.no_grad():\n        target = teacher(x)\n" in fixed
    scope: dict[str, Any] = {}
    exec(compile(fixed, "m.py", "exec"), scope)
    model, teacher = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    scope["step"](model, teacher, torch.ones(2, 3))
    assert model.weight.grad is not None and teacher.weight.grad is None
