"""Functions that start inference and do more: what they keep, and what they differentiate.

Each program runs before and after its safe fix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, rules

from trainify.engine import Options, fix_paths
from trainify.findings import Safety

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.kept, self.seen = None, []

    @torch.inference_mode()
    def forward(self, ids):
        return self.head(self.embed(ids))

"""
KEEPS = {
    "collected": (
        "ids = self(ids).argmax(-1)\n        self.seen.append(ids)\n        return ids.tolist()",
        "F.cross_entropy(nn.Embedding(9, 9)(m.seen[0]), m.seen[0]).backward()",
    ),
    "an attribute": (
        "self.kept = torch.ones(3)\n        return self(ids).argmax(-1).tolist()",
        "m.kept.zero_()",
    ),
    "a module": (
        "self.kept = nn.Linear(8, 9, bias=False)\n"
        "        return (self(ids) + self.kept(self.embed(ids))).argmax(-1).tolist()",
        "m.kept(torch.ones(1, 8)).sum().backward()",
    ),
    "by a method": (
        "self.keep(self(ids).argmax(-1))\n        return []\n\n"
        "    def keep(self, ids):\n        self.kept = ids",
        "F.cross_entropy(nn.Embedding(9, 9)(m.kept), m.kept).backward()",
    ),
    "in a list that is given": (
        "ids = self(ids).argmax(-1)\n        out.append(ids)\n        return ids.tolist()",
        "F.cross_entropy(nn.Embedding(9, 9)(out[0]), out[0]).backward()",
    ),
}
DIFFERENTIATES = {
    "grad": "z = self(ids).clone().requires_grad_()\n"
    "        with torch.enable_grad():\n            y = z.softmax(-1).pow(2).sum()\n"
    "        return (z + torch.autograd.grad(y, z)[0]).argmax(-1).tolist()",
    "backward": "z = self(ids).clone().requires_grad_()\n        z.pow(2).sum().backward()\n"
    "        return (z + z.grad).argmax(-1).tolist()",
    "in a function": "return adapt(nn.Linear(9, 9), self(ids).clone()).tolist()\n\n\n"
    "def adapt(head, x):\n    head(x).sum().backward()\n    return head.weight.grad",
}
PLAIN = {
    "numbers": "ids = self(ids).argmax(-1)\n        return ids.tolist()",
    "a list of its own": "out = []\n        for _ in range(2):\n"
    "            ids = self(ids).argmax(-1)\n            out.append(ids.tolist())\n        return out",
    "a buffer of its own": "out = torch.zeros(3, dtype=torch.long)\n"
    "        out[:] = self(ids).argmax(-1)\n        return out.tolist()",
    "a count": "self.kept = True\n        return self(ids).argmax(-1).tolist()",
}


def program(body: str, more: str = "") -> str:
    serve = (
        "    m, out = Model(), []\n    ids = torch.arange(3)\n    given = m.generate(ids, out)\n"
    )
    return (
        f"{HEAD}    def generate(self, ids, out):\n        {body}\n\n\n"
        f"def serve():\n{serve}{more and f'    {more}'}\n    return given\n"
    )


def served(text: str) -> Any:
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    torch.manual_seed(0)
    space["Model"]()(torch.arange(3))
    torch.manual_seed(0)
    return space["serve"]()


@pytest.mark.parametrize(("body", "more"), KEEPS.values(), ids=KEEPS)
def test_what_is_kept_can_be_trained_on(body: str, more: str) -> None:
    text = program(body, more)
    fixed = fix(text)
    assert "    @torch.no_grad()\n    def generate" in fixed
    assert served(fixed) == served(text)
    assert fix(fixed) == fixed
    with pytest.raises(RuntimeError, match=r"[Ii]nference|does not require grad"):
        served(fixed.replace("@torch.no_grad()", "@torch.inference_mode()"))


@pytest.mark.parametrize("body", DIFFERENTIATES.values(), ids=DIFFERENTIATES)
def test_what_differentiates_is_looked_at(body: str) -> None:
    text = program(body)
    (found,) = findings(text)
    made = found.fixes["flag"]
    assert found.rule == "TRN201" and made.safety is Safety.UNSAFE
    assert "put under torch.inference_mode() what runs Model.forward in " in made.look_at
    assert "`Model.generate`" in made.look_at
    assert "torch.inference_mode()" not in fix(text, unsafe=True)  # on generate, say
    served(text)


@pytest.mark.parametrize("body", PLAIN.values(), ids=PLAIN)
def test_what_leaves_nothing_behind_stays_under_inference_mode(body: str) -> None:
    text = program(body)
    fixed = fix(text)
    assert "    @torch.inference_mode()\n    def generate" in fixed
    assert served(fixed) == served(text)


def test_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HEAD)
    head = "import torch\nfrom model import Model\n\n\nclass Engine:\n"
    head += "    def __init__(self, model: Model):\n        self.model = model\n\n"
    for body, scope in (
        ("return self.model(ids).argmax(-1).tolist()", "inference_mode"),
        ("self.kept = self.model(ids)\n        return self.kept.tolist()", "no_grad"),
        ("z = self.model(ids).clone().requires_grad_()\n        z.sum().backward()", ""),
    ):
        (tmp_path / "engine.py").write_text(f"{head}    def generate(self, ids):\n        {body}\n")
        found = {Path(r.path).name: r for r in fix_paths([str(tmp_path)], Options())}
        assert (found["engine.py"].change is not None) is bool(scope)
        if scope:
            assert f"    @torch.{scope}()\n    def generate" in found["engine.py"].text
        else:
            (trn201,) = found["model.py"].findings
            assert "`Engine.generate` (" in trn201.fixes["flag"].look_at
    assert rules(HEAD) == ["TRN201"]
