"""A module that is called like one which never learns, and that a step of its file trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import fix, rules, stays

from trainify.engine import check_paths

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 2)

    @torch.no_grad()
    def forward(self, x):
        return self.l(x)


class Student(nn.Linear):
    pass


criterion = nn.MSELoss()


def step(x, y):
    m = Scorer()
    s = Student(4, 2)
"""
TRAINED = {
    "at once": "m(x).pow(2).sum().backward()",
    "by names": "out = m(x)\nloss = (out**2).mean() / 2\nloss.backward()",
    "by a loss": "loss = F.mse_loss(m(x), y)\nloss.backward()",
    "by a criterion": "loss = criterion(m(x), y)\nloss.backward()",
    "moved": "m = Scorer().to(x.device).train()\nm(x).sum().backward()",
}
USED = {
    "as a target": "loss = F.mse_loss(s(x), m(x))\nloss.backward()",
    "as an input": "loss = F.mse_loss(m(x), s(x))\nloss.backward()",
    "as an input, named": "t = s(x)\nloss = F.mse_loss(m(x), t)\nloss.backward()",
    "as a factor": "loss = (m(x) * s(x)).sum()\nloss.backward()",
    "as a constant": "(m(x).detach() + s.weight.sum()).sum().backward()",
    "before another": "s(m(x).repeat(1, 2)).sum().backward()",
    "in no step": "return m(x).argmax(-1)",
    "another": "m = s\nm(x).sum().backward()",
}


def text(lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines.splitlines())


def run(code: str) -> None:
    scope: dict[str, Any] = {}
    exec(compile(code, "m.py", "exec"), scope)
    scope["step"](torch.ones(3, 4), torch.ones(3, 2))


@pytest.mark.parametrize("lines", TRAINED.values(), ids=TRAINED)
def test_what_a_step_trains_is_found_by_any_name(lines: str) -> None:
    before = text(lines)
    with pytest.raises(RuntimeError, match="does not require grad"):
        run(before)
    assert rules(before) == ["TRN201"]
    run(fix(before, unsafe=True))
    assert rules(before.replace("Scorer", "RewardModel")) == ["TRN201"]


@pytest.mark.parametrize("lines", USED.values(), ids=USED)
def test_what_a_step_only_uses_stays(lines: str) -> None:
    run(text(lines))
    stays(text(lines))


DECORATED = "    @torch.no_grad()\n    def forward(self, x):\n        return self.l(x)\n"
INSIDE = (
    "    def forward(self, x):\n        with torch.no_grad():\n"
    "            s = self.l(x)\n        return s\n"
)


@pytest.mark.parametrize("lines", TRAINED.values(), ids=TRAINED)
def test_a_scope_inside_of_a_forward_that_a_step_trains(lines: str) -> None:
    assert DECORATED in HEAD
    assert rules(text(lines).replace(DECORATED, INSIDE)) == ["TRN201"]


@pytest.mark.parametrize("lines", USED.values(), ids=USED)
def test_a_scope_inside_of_a_forward_that_a_step_uses(lines: str) -> None:
    stays(text(lines).replace(DECORATED, INSIDE))


@pytest.mark.parametrize("lines", [TRAINED["by a loss"], USED["as a target"]])
@pytest.mark.parametrize("forward", [DECORATED, INSIDE])
def test_what_a_step_of_another_file_trains(lines: str, forward: str, tmp_path: Path) -> None:
    model, step = text(lines).replace(DECORATED, forward).split("criterion")
    model, student = model.split("class Student")
    (tmp_path / "reward.py").write_text(model)
    (tmp_path / "train.py").write_text(
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
        f"from reward import Scorer\n\n\nclass Student{student}criterion{step}"
    )
    found = [(r.path, f.rule) for r in check_paths([str(tmp_path)]) for f in r.findings]
    trained = lines == TRAINED["by a loss"]
    assert found == ([(str(tmp_path / "reward.py"), "TRN201")] if trained else [])
