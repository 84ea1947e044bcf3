"""Gradients switched off for a whole run, where something trains in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import becomes, findings, rules, stays

from trainify.engine import Options, fix_paths

SCRIPT = """\
import torch
import torch.nn.functional as F

{switch}


def predict(model, image):
    return model(image).argmax(-1)


def train(model, optimizer, image, label):
    loss = F.cross_entropy(model(image), label)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "switch",
    [
        "torch.set_grad_enabled(False)",
        "torch.set_grad_enabled(mode=False)",
        "torch.autograd.set_grad_enabled(False)",
        "torch.autograd.grad_mode.set_grad_enabled(False)",
        "torch._C._set_grad_enabled(False)",
        "_ = torch.set_grad_enabled(False)",
        "torch.inference_mode().__enter__()",
        "torch.no_grad().__enter__()",
        "from torch import set_grad_enabled as grads\ngrads(False)",
    ],
)
def test_spellings(switch: str) -> None:
    assert rules(SCRIPT.format(switch=switch)) == ["TRN204"]


def test_it_becomes_a_scope_around_inference() -> None:
    becomes(
        SCRIPT.format(switch="torch.set_grad_enabled(False)  # save memory").replace(
            "  # save memory", ""
        ),
        """\
import torch
import torch.nn.functional as F


@torch.no_grad()
def predict(model, image):
    return model(image).argmax(-1)


def train(model, optimizer, image, label):
    loss = F.cross_entropy(model(image), label)
    loss.backward()
    optimizer.step()
""",
        unsafe=True,
    )


def test_an_entered_inference_mode_keeps_its_kind() -> None:
    becomes(
        """\
import torch


class Tool:
    def __init__(self, model):
        torch.inference_mode().__enter__()
        self.model = model
        self.fit()

    def evaluate(self, x):
        return self.model(x)

    def fit(self):
        self.model(1).sum().backward()
""",
        """\
import torch


class Tool:
    def __init__(self, model):
        self.model = model
        self.fit()

    @torch.inference_mode()
    def evaluate(self, x):
        return self.model(x)

    def fit(self):
        self.model(1).sum().backward()
""",
        unsafe=True,
    )


def test_a_validation_that_leaves_it_off() -> None:
    becomes(
        """\
import torch


def check(model, batches):
    torch.set_grad_enabled(False)
    model.eval()
    return sum(model(b).mean() for b in batches)


def fit(model, batches, optimizer):
    for batch in batches:
        model(batch).mean().backward()
        optimizer.step()
        check(model, batches)
""",
        """\
import torch


@torch.no_grad()
def check(model, batches):
    model.eval()
    return sum(model(b).mean() for b in batches)


def fit(model, batches, optimizer):
    for batch in batches:
        model(batch).mean().backward()
        optimizer.step()
        check(model, batches)
""",
        unsafe=True,
    )


@pytest.mark.parametrize(
    "main",
    [
        "if __name__ == '__main__':\n    torch.set_grad_enabled(False)\n    run()\n",
        "def main():\n    torch.set_grad_enabled(False)\n    run()\n",
    ],
)
def test_the_start_of_a_run_that_trains(main: str) -> None:
    run = "import torch\n\n\ndef run():\n    fit()\n\n\ndef fit(model, x):\n    model(x).backward()\n\n\n"
    (finding,) = findings(run + main)
    assert finding.rule == "TRN204"
    stays(run + main.replace("run()\n", "show()\n"))


EPOCHS = """\
import torch


def train(model, batches, optimizer, test):
    for epoch in range(3):
        for batch in batches:
            model(batch).mean().backward()
            optimizer.step()
        {body}


def step(model, batch):
    model(batch).mean().backward()
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("torch.set_grad_enabled(False)\n        test(model)", 1),
        ("model.eval()\n        torch.set_grad_enabled(False)", 1),
        ("torch.no_grad().__enter__()\n        test(model)", 1),
        ("torch.set_grad_enabled(False)\n        test(model)\n        torch.set_grad_enabled(True)", 0),
        ("if epoch == 2:\n            torch.set_grad_enabled(False)", 0),
        ("for x in test:\n            torch.set_grad_enabled(False)\n            print(model(x))", 1),
    ],
)  # fmt: skip
def test_the_end_of_a_turn(body: str, expected: int) -> None:
    """What is switched off at the end of a loop's body is off when its next turn trains."""
    assert rules(EPOCHS.format(body=body)) == ["TRN204"] * expected


def test_a_loop_that_calls_what_trains() -> None:
    text = EPOCHS.format(body="torch.set_grad_enabled(False)")
    text = text.replace(
        "model(batch).mean().backward()\n            opt", "step(model, batch)\n            opt"
    )
    assert rules(text) == ["TRN204"]
    stays(text.replace("step(model, batch)\n", "test(model, batch)\n"))


@pytest.mark.parametrize(
    "text",
    [
        # nothing trains
        """\
import torch

torch.set_grad_enabled(False)


def predict(model, image):
    return model(image).argmax(-1)
""",
        # a loss as a score
        """\
import torch
import torch.nn.functional as F

torch.set_grad_enabled(False)


def perplexity(model, ids):
    loss = F.cross_entropy(model(ids), ids)
    return loss.exp().item()


def eval_loss(model, ids):
    return F.cross_entropy(model(ids), ids)
""",
        # on again where it matters
        SCRIPT.format(switch="torch.set_grad_enabled(False)").replace(
            "    loss = F", "    torch.set_grad_enabled(True)\n    loss = F"
        ),
        SCRIPT.format(switch="torch.set_grad_enabled(False)").replace(
            "def train", "@torch.enable_grad()\ndef train"
        ),
        # put back
        """\
import torch


def check(model, x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = model(x)
    torch.set_grad_enabled(before)
    return y


def fit(model, x):
    model(x).backward()
    check(model, x)
""",
        # a phase decides
        """\
import torch


def run(model, x, phase):
    torch.set_grad_enabled(phase == "train")
    loss = model(x).mean()
    if phase == "train":
        loss.backward()
""",
        """\
import torch


def run(model, x, phase):
    with torch.set_grad_enabled(phase == "train"):
        loss = model(x).mean()
    if phase == "train":
        loss.backward()
""",
        """\
import sys
import torch

if "--eval" in sys.argv:
    torch.set_grad_enabled(False)


def fit(model, x):
    model(x).backward()
""",
        # does nothing
        """\
import torch

torch.no_grad()
torch.inference_mode()


def fit(model, x):
    model(x).backward()
""",
        # a scope
        """\
import torch

with torch.set_grad_enabled(False):
    table = torch.ones(3)


def fit(model, x):
    model(x).backward()
""",
    ],
)
def test_right_as_it_is(text: str) -> None:
    stays(text)


ELSEWHERE = """\
import torch

torch.set_grad_enabled(False)


class Trainer:
    {decorator}
    def {name}(self, x):
        {body}

    def step(self, x):
        self.loss(x).backward()

    def loss(self, x):
        return self.model(x).mean()

    {outer}
    def fit(self, x):
        self.step(x)
"""
PLAIN = {"decorator": "", "name": "saliency", "body": "return self.model(x)", "outer": ""}


@pytest.mark.parametrize(
    "on",
    [
        {"decorator": "@torch.enable_grad()"},
        {"body": "with torch.enable_grad():\n            return self.model(x)"},
        {"body": "torch.set_grad_enabled(True)\n        torch.set_grad_enabled(False)"},
    ],
)
def test_gradients_that_are_on_for_something_else(on: dict[str, str]) -> None:
    assert rules(ELSEWHERE.format(**{**PLAIN, **on})) == ["TRN204"]


@pytest.mark.parametrize(
    "on",
    [
        {"outer": "@torch.enable_grad()"},
        {"decorator": "@torch.enable_grad()", "body": "self.fit(x)"},
        {"decorator": "@torch.enable_grad()", "body": "self.step(x)"},
        {"body": "torch.set_grad_enabled(True)"},
        {"name": "model", "body": "with torch.enable_grad():\n            return x * self.w"},
        {"name": "step_of", "outer": "@torch.set_grad_enabled(True)"},
    ],
)
def test_gradients_that_are_on_for_what_trains(on: dict[str, str]) -> None:
    stays(ELSEWHERE.format(**{**PLAIN, **on}))


def project(folder: Path, **files: str) -> dict[str, str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    reports = list(fix_paths([str(folder)], Options(unsafe=True, select=("TRN204",))))
    return {Path(r.path).stem: r.text for r in reports if r.applied or r.findings}


HELPER = "import torch\n\ntorch.set_grad_enabled(False)\n\n\ndef show(x):\n    return x\n"
TRAINER = "import {name}\n\n\ndef fit(model, x):\n    model(x).backward()\n"


def test_a_helper_that_a_training_script_imports(tmp_path: Path) -> None:
    changed = project(tmp_path, helper=HELPER, trainer=TRAINER.format(name="helper"))
    assert list(changed) == ["helper"] and "set_grad_enabled" not in changed["helper"]


def test_a_demo_that_no_training_script_imports(tmp_path: Path) -> None:
    assert not project(tmp_path, demo=HELPER, trainer=TRAINER.format(name="json"))


def test_a_trainer_that_switches_on_what_a_helper_switched_off(tmp_path: Path) -> None:
    trainer = TRAINER.format(name="helper").replace(
        "    model(x)", "    import torch\n\n    with torch.enable_grad():\n        model(x)"
    )
    assert not project(tmp_path, helper=HELPER, trainer=trainer)


LOSS = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_grad_enabled(False)


def build():
    return nn.Linear(6, 3)


def loss_of(model, x, y):
    {head}
        return F.cross_entropy(model(x), y)
"""


def test_a_function_that_gives_a_loss_with_gradients_on() -> None:
    stays(LOSS.format(head="with torch.set_grad_enabled(True):"))
    assert rules(LOSS.format(head="if x.numel():")) == ["TRN204"]


def test_a_helper_that_is_entered_and_sets_the_mode_itself() -> None:
    text = """\
from contextlib import contextmanager

import torch
import torch.nn.functional as F


@contextmanager
def quiet():
    torch.set_grad_enabled(False)
    yield
    torch.set_grad_enabled(True)


def train(model, optimizer, image, label):
    scope = quiet()
    scope.__enter__()
    quiet().__enter__()
    target = model(image).argmax(-1)
    scope.__exit__(None, None, None)
    loss = F.cross_entropy(model(image), target)
    loss.backward()
    optimizer.step()
"""
    assert rules(text) == []
