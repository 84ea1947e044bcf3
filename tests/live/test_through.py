"""`through=`: stops that the caller calls mistakes go, or the error says what hinders."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from live_package import package
from torch import nn

import trainify

HEAD = '''
import contextlib
import functools
import types

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(x).relu())

def guarded(function):
    @functools.wraps(function)
    def inner(*args):
        with torch.no_grad():
            return function(*args)
    return inner

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.m = Mlp()
        self.n = Mlp()
        self.head = nn.Linear(8, 8)
        self.serving = True
        self.wrap()

    def wrap(self):
        pass

    def run(self, h):
        return self.m(h) + self.n(h)

    def forward(self, x):
        h = self.a(x)
        return self.head(h + self.run(h)).square().mean()

class Model(Base):
'''  # fmt: skip


class Case(NamedTuple):
    text: str
    through: tuple[str, ...]
    """What may be named: functions, or what stands on a line."""


GONE = {
    "a closure that is bound to instances": Case(
        """
    def __init__(self):
        super().__init__()
        for module in (self.m, self.n):
            def forward(self, x, old=module.forward):
                with torch.no_grad():
                    return old(x)
            module.forward = types.MethodType(forward, module)
""",
        ("Mlp.forward", "with torch.no_grad():", "return self.down(self.up(x).relu())"),
    ),
    "an own decorator around methods of instances": Case(
        """
    def wrap(self):
        self.m.forward = guarded(self.m.forward)
        self.n.forward = guarded(self.n.forward)
""",
        ("guarded.inner", "inner", "model.py"),
    ),
    "switches on one line": Case(
        """
    def run(self, h):
        before = torch.is_grad_enabled(); torch.set_grad_enabled(False)
        y = self.m(h) + self.n(h)
        torch.set_grad_enabled(before)
        return y
""",
        ("Model.run", "run"),
    ),
    "a switch before what stands on its line": Case(
        """
    def run(self, h):
        torch.set_grad_enabled(False); y = self.m(h) + self.n(h); torch.set_grad_enabled(True)
        return y
""",
        ("Model.run",),
    ),
    "a stack that enters on one line": Case(
        """
    def run(self, h):
        with contextlib.ExitStack() as stack:
            if self.serving: stack.enter_context(torch.no_grad())
            y = self.m(h) + self.n(h)
        return y
""",
        ("Model.run", "if self.serving: stack.enter_context(torch.no_grad())"),
    ),
    "a flag": Case(
        """
    def run(self, h):
        with torch.set_grad_enabled(not self.serving):
            y = self.m(h) + self.n(h)
        return y
""",
        ("Model.run", "with torch.set_grad_enabled(not self.serving):"),
    ),
    "an expression in a generator": Case(
        """
    def run(self, h):
        return sum(each.detach() for each in (self.m(h), self.n(h)))
""",
        ("Model.run",),
    ),
}  # fmt: skip


def build(root: Path, text: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = package(root, model=HEAD + text.lstrip("\n"))["model"].Model()
    return model


def batch() -> torch.Tensor:
    return torch.linspace(-1, 1, 24).reshape(3, 8)


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    model.zero_grad()
    model(batch()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def line_of(model: nn.Module, text: str) -> int:
    lines = Path(inspect.getfile(type(model))).read_text().splitlines()
    found = [i for i, line in enumerate(lines, 1) if line.strip() == text]
    return found[-1]


def named(model: nn.Module, name: str) -> str:
    is_text = " " in name
    return f"model.py:{line_of(model, name)}" if is_text else name


@pytest.mark.parametrize("name", GONE)
def test_what_the_caller_calls_a_mistake_goes(tmp_path: Path, name: str) -> None:
    case = GONE[name]
    right = gradients(build(tmp_path, "    pass"))
    for through in case.through:
        model = build(tmp_path, case.text)
        before = gradients(model)
        assert before["m.up.weight"] is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", trainify.StopRemoved)
            trainify.trainify(model, batch(), through=[named(model, through)])
        torch.testing.assert_close(gradients(model), right)
        assert trainify.source_diff(model)
        trainify.restore(model)
        assert gradients(model)["m.up.weight"] is None
        assert trainify.source_diff(model) == ""


def test_a_wrapper_around_a_method_that_is_rewritten_too(tmp_path: Path) -> None:
    """What holds the method holds the new one, and both are as they were in the end."""
    text = """
    def wrap(self):
        self.m.forward = guarded(self.m.forward)

class Scoped(Mlp):
    def forward(self, x):
        with torch.no_grad():
            y = self.up(x).relu()
        return self.down(y)

_Model = Model

class Model(_Model):
    def __init__(self):
        super().__init__()

    def wrap(self):
        self.m.__class__ = Scoped
        super().wrap()
"""
    model = build(tmp_path, text)
    right = gradients(build(tmp_path, "    pass"))
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", trainify.StopRemoved)
            trainify.trainify(model, batch(), through=["model.py"])
        torch.testing.assert_close(gradients(model), right)
        trainify.restore(model)
        assert gradients(model)["m.down.weight"] is None
        assert trainify.source_diff(model) == ""


WRITTEN = """
    def forward(self, x):
        h = self.a(x) * 1
        {scope}
            h[..., 0].mul_(3.0)
        return self.head(h + self.run(h)).square().mean()
"""


def test_a_write_that_autograd_is_not_to_see_becomes_one_that_it_sees(tmp_path: Path) -> None:
    right = gradients(build(tmp_path, WRITTEN.format(scope="if True:")))
    model = build(tmp_path, WRITTEN.format(scope="with torch.no_grad():"))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients(model), right)
    with pytest.raises(trainify.NotTrainable, match="a tensor is overwritten"):
        trainify.trainify(model, batch())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trainify.StopRemoved)
        trainify.trainify(model, batch(), through=["Model.forward"])
    torch.testing.assert_close(gradients(model), right)


HINDERED = {
    "a comment": (
        """
    def run(self, h):
        # the experts are frozen here
        with torch.no_grad():
            return self.m(h) + self.n(h)
""",
        "a comment says that it is meant",
    ),
    "a mode around a method of an instance": (
        """
    def wrap(self):
        self.m.forward = torch.no_grad()(self.m.forward)
        self.n.forward = torch.no_grad()(self.n.forward)
""",
        "gradients were switched off around that function when the model was made",
    ),
    "what is kept": (
        """
    weight = None

    def run(self, h):
        if self.weight is None:
            self.weight = self.m.up.weight.detach().t().contiguous()
        return self.n(h) + self.m.down((h @ self.weight + self.m.up.bias).relu())
""",
        "what is computed there is kept for a later call",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HINDERED)
def test_what_hinders_is_said(tmp_path: Path, name: str) -> None:
    text, why = HINDERED[name]
    model = build(tmp_path, text)
    with pytest.raises(trainify.NotTrainable) as raised:
        trainify.trainify(model, batch(), through=["model.py"])
    assert f"nothing was rewritten here, though through= names it: {why}" in str(raised.value)
    assert "If that is meant" not in str(raised.value)
    assert trainify.source_diff(model) == ""


def test_the_line_of_a_scope_is_in_the_error(tmp_path: Path) -> None:
    text = """
    def wrap(self):
        del self.n

    def run(self, h):
        with torch.no_grad():
            y = self.m(h)
        return y
"""
    model = build(tmp_path, text)
    file, scope = inspect.getfile(type(model)), line_of(model, "with torch.no_grad():")
    said = rf"{file}:\d+: Gradients are switched off at {file}:{scope}: what is computed"
    with pytest.raises(trainify.NotTrainable, match=said):
        trainify.trainify(model, batch())


def test_what_a_flag_decides_is_asked_about(tmp_path: Path) -> None:
    model = build(tmp_path, GONE["a flag"].text)
    with pytest.raises(trainify.NotTrainable, match=r"is for '.*self\.serving' to say;"):
        trainify.trainify(model, batch())
    assert trainify.source_diff(model) == ""


@pytest.mark.parametrize("flag", ["self.training", "mode"])
def test_a_flag_that_training_decides_stays(tmp_path: Path, flag: str) -> None:
    text = f"""
    def run(self, h):
        mode = self.training
        with torch.set_grad_enabled({flag}):
            return self.m(h) + self.n(h)
"""
    model = build(tmp_path, text).eval()
    with pytest.raises(trainify.NotTrainable, match="names it: "):
        trainify.trainify(model, batch(), through=["model.py"])
