"""``from module import *`` brings every name that nothing else binds."""

from __future__ import annotations

import pytest
from verbs import becomes, findings, rules, stays

CALL = """\
import torch
import torch.nn.functional as F
from vllm._custom_ops import *


def norm(x, w: torch.Tensor):
    out = torch.empty_like(x)
    rms_norm(out, x, w, 1e-6)
    return out
"""


def test_a_kernel_by_a_star() -> None:
    becomes(
        CALL,
        CALL.replace(
            "    out = torch.empty_like(x)\n    rms_norm(out, x, w, 1e-6)\n",
            "    out = F.rms_norm(x, x.shape[-1:], w, 1e-6)\n",
        ),
        strategy="replace",
    )


def test_its_name_is_taken() -> None:
    """The helper for a rotation has the name of the kernel."""
    (finding,) = findings(
        "import torch\nfrom vllm._custom_ops import *\n\n\n"
        "def f(p, q: torch.Tensor, k: torch.Tensor, table):\n"
        "    rotary_embedding(p, q, k, 64, table, True)\n    return q, k\n"
    )
    texts = [edit.text for edit in finding.fixes["flag"].edits]
    assert any("def rotary_embedding_native(" in text for text in texts)
    assert not any("def rotary_embedding(" in text for text in texts)


@pytest.mark.parametrize(
    "bound",
    [
        "def rms_norm(out, x, w, eps):\n    out.copy_(x * w)\n",
        "rms_norm = plain\n",
        "from plain import rms_norm\n",
        "from plain import *\n",  # either may have it
    ],
)
def test_another_of_that_name(bound: str) -> None:
    stays(CALL.replace("import *\n", f"import *\n{bound}"))


def test_a_parameter_of_that_name() -> None:
    stays(CALL.replace("norm(x, w: torch.Tensor)", "norm(x, w: torch.Tensor, rms_norm)"))


def test_a_builtin_is_no_op() -> None:
    assert rules("from torch import *\n\n\ndef f(x):\n    return sum(max(x, 1), len(x))\n") == []


KEPT = """
class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            self.mean.lerp_(h.mean(0), 0.1)
        return h - self.mean
"""
STARS = [
    "from .common import *\n",
    "from fastai.torch_basics import *\n",
    "from .common import *\nfrom .more import *\n",
]


@pytest.mark.parametrize("stars", STARS)
def test_torch_by_a_star(stars: str) -> None:
    """A scope is one also where nothing says in this file what ``torch`` is."""
    assert rules(stars + KEPT) == rules("import torch\nfrom torch import nn\n" + KEPT) == []


@pytest.mark.parametrize("stars", STARS)
def test_what_is_found_is_found_behind_a_star(stars: str) -> None:
    body = """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight.data, 1e-6)
        return out
"""
    assert rules(stars + body) == rules("import torch\nfrom torch import nn\n" + body) != []


@pytest.mark.parametrize("scope", ["backend.no_grad()", "th.inference_mode()"])
def test_a_scope_of_which_only_the_name_is_known(scope: str) -> None:
    text = "import torch\nfrom torch import nn\nfrom .common import backend, th\n" + KEPT
    assert rules(text.replace("torch.no_grad()", scope)) == []
    assert rules(text.replace("torch.no_grad()", "backend.timed()")) == ["TRN408"]
