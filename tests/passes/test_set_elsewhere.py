"""An attribute that holds a kernel may hold another one where a subclass or a caller sets it.

Each program runs before and after its fix: what every object computes stays the same.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from verbs import fix, rules

from tests.each import in_turn
from trainify.engine import Options, fix_paths
from trainify.findings import STRATEGIES

MLP = """\
import sgl_kernel
import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = sgl_kernel.silu_and_mul

    def forward(self, x):
        return self.act(x)


"""
ANOTHER = {
    "subclass": "class Gelu(Mlp):\n    def __init__(self):\n        super().__init__()\n"
    "        self.act = sgl_kernel.gelu_and_mul\n\n\ndef make():\n    return Gelu()\n",
    "subclass of a subclass": "class More(Mlp):\n    pass\n\n\nclass Gelu(More):\n"
    "    def __init__(self):\n        super().__init__()\n"
    "        self.act = sgl_kernel.gelu_and_mul\n\n\ndef make():\n    return Gelu()\n",
    "outside": "def make():\n    mlp = Mlp()\n    mlp.act = sgl_kernel.gelu_and_mul\n    return mlp\n",
    "a function of its own": "def act(x):\n    return sgl_kernel.gelu_and_mul(x)\n\n\n"
    "def make():\n    mlp = Mlp()\n    mlp.act = act\n    return mlp\n",
    "setattr": "def make():\n    mlp = Mlp()\n    setattr(mlp, 'act', sgl_kernel.gelu_and_mul)\n"
    "    return mlp\n",
    "keywords": "def configure(m, **given):\n    for name, value in given.items():\n"
    "        setattr(m, name, value)\n    return m\n\n\n"
    "def make():\n    return configure(Mlp(), act=sgl_kernel.gelu_and_mul)\n",
}
SAME = {
    "the same": "def make():\n    mlp = Mlp()\n    mlp.act = sgl_kernel.silu_and_mul\n    return mlp\n",
    "nothing": "def make():\n    return Mlp()\n",
    "another class": "class Other(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.act = nn.GELU()\n\n\ndef make():\n    return Mlp()\n",
    "a keyword of something else": "def keep(act):\n    return act\n\n\n"
    "GELU = keep(act=sgl_kernel.gelu_and_mul)\n\n\ndef make():\n    return Mlp()\n",
}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.no_grad()
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    @torch.no_grad()
    def gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.gelu(gate) * up

    library = ModuleType("sgl_kernel")
    vars(library).update(silu_and_mul=silu_and_mul, gelu_and_mul=gelu_and_mul)
    monkeypatch.setitem(sys.modules, "sgl_kernel", library)


def computed(text: str) -> torch.Tensor:
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    result = space["make"]()(x)
    assert isinstance(result, torch.Tensor)
    return result.detach()


@pytest.mark.parametrize(("more", "strategy"), in_turn(ANOTHER, STRATEGIES))
def test_another_kernel(more: str, strategy: str) -> None:
    text = MLP + more
    assert "TRN103" in rules(text)
    fixed = fix(text, strategy=strategy)
    assert torch.allclose(computed(text), computed(fixed), rtol=0, atol=1e-6)


@pytest.mark.parametrize("more", SAME.values(), ids=SAME.keys())
def test_the_same_kernel(more: str) -> None:
    text = MLP + more
    assert rules(text) == ["TRN101"]
    fixed = fix(text)
    assert fixed != text
    assert torch.allclose(computed(text), computed(fixed), rtol=0, atol=1e-6)


@pytest.mark.parametrize("more", ANOTHER.values(), ids=ANOTHER.keys())
def test_another_file(more: str, tmp_path: Path) -> None:
    (tmp_path / "mlp.py").write_text(MLP)
    (tmp_path / "make.py").write_text(f"import sgl_kernel\nfrom mlp import Mlp\n\n\n{more}")
    (report,) = (r for r in fix_paths([str(tmp_path)], Options()) if r.path.endswith("mlp.py"))
    assert [f.rule for f in report.findings] == ["TRN103"] and report.change is None
    assert "make.py:" in report.findings[0].message
