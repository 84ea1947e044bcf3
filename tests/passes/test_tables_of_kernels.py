"""A kernel that is looked up in a dict, by a literal key or by one that varies."""

from __future__ import annotations

import pytest
from verbs import becomes, findings, fix, stays

TABLE = """\
import torch
import torch.nn.functional as F
from vllm import _custom_ops as ops

KERNELS = {"norm": ops.rms_norm, "plain": plain_norm}


def norm(x, w: torch.Tensor):
    out = torch.empty_like(x)
    KERNELS["norm"](out, x, w, 1e-6)
    return out
"""


def test_by_a_literal_key() -> None:
    becomes(
        TABLE,
        TABLE.replace(
            '    out = torch.empty_like(x)\n    KERNELS["norm"](out, x, w, 1e-6)\n',
            "    out = F.rms_norm(x, x.shape[-1:], w, 1e-6)\n",
        ),
        strategy="replace",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('KERNELS["norm"](out', 'KERNELS["plain"](out'),
        ('KERNELS["norm"](out', "KERNELS[which](out"),
        ('"plain": plain_norm}', "**others}"),
        ("plain_norm}\n", 'plain_norm}\nKERNELS["norm"] = plain_norm\n'),
        ("plain_norm}\n", "plain_norm}\nKERNELS.update(others)\n"),
        ("plain_norm}\n", "plain_norm}\nregister(KERNELS)\n"),
        ("norm(x, w: torch.Tensor)", "norm(x, w: torch.Tensor, KERNELS)"),
    ],
)
def test_what_may_be_another(old: str, new: str) -> None:
    assert old in TABLE
    stays(TABLE.replace(old, new))


LAYER = """\
import torch
import torch.nn.functional as F
from vllm import _custom_ops as ops


class Norm(torch.nn.Module):
    def __init__(self, fast):
        super().__init__()
        self.kernels = {"norm": ops.rms_norm}

    def forward(self, x):
        out = torch.empty_like(x)
        self.kernels["norm"](out, x, self.weight, 1e-6)
        return out
"""


def test_a_dict_of_a_layer() -> None:
    call = "out = F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)"
    assert call in fix(LAYER, strategy="replace")
    stays(LAYER.replace("super().__init__()", "super().__init__()\n        add(self.kernels)"))


# -- by a key that varies -------------------------------------------------------------------------

ACTIVATIONS = """\
import torch
import torch.nn.functional as F
from vllm import _custom_ops as ops

ACTIVATIONS = {"silu": ops.silu_and_mul, "gelu": ops.gelu_and_mul}


def activate(kind, x):
    out = torch.empty_like(x)
    ACTIVATIONS[kind](out, x)
    return out
"""


@pytest.mark.parametrize(
    "text",
    [
        ACTIVATIONS,
        ACTIVATIONS.replace(
            "    ACTIVATIONS[kind](out, x)", "    act = ACTIVATIONS[kind]\n    act(out, x)"
        ),
    ],
)
def test_all_in_the_dict_are_kernels(text: str) -> None:
    (finding,) = findings(text)
    assert finding.rule == "TRN103" and not finding.fixes
    assert "may be `vllm._custom_ops.gelu_and_mul` or `vllm._custom_ops.silu_and_mul`" in (
        finding.message
    )


LAYER_OF_ONE = """
import torch
from vllm import _custom_ops as ops

ACTIVATIONS = {"silu": ops.silu_and_mul, "gelu": ops.gelu_and_mul}


class Act(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.fn = ACTIVATIONS[kind]

    def forward(self, x):
        out = torch.empty_like(x)
        self.fn(out, x)
        return out
"""


def test_a_layer_that_keeps_one_of_the_kernels() -> None:
    (finding,) = findings(LAYER_OF_ONE)
    assert finding.rule == "TRN103" and "`self.fn` is not rewritten: it may be" in finding.message
    literal = fix(LAYER_OF_ONE.replace("ACTIVATIONS[kind]", 'ACTIVATIONS["silu"]'))
    assert "F.silu(" in literal
    stays(LAYER_OF_ONE.replace("ops.gelu_and_mul}", "torch.relu}"))
    stays(LAYER_OF_ONE.replace("(self, x):", "(self, x):\n        self.fn = torch.relu"))


def test_all_in_the_dict_are_one_kernel() -> None:
    text = ACTIVATIONS.replace("ops.gelu_and_mul", "torch.ops._C.silu_and_mul")
    (finding,) = findings(text)
    assert finding.rule == "TRN101" and finding.fixes


@pytest.mark.parametrize("value", ["F.gelu", "gelu", "lambda out, x: x", "nn.GELU()"])
def test_a_registry_in_which_some_are_kernels(value: str) -> None:
    stays(ACTIVATIONS.replace("ops.gelu_and_mul", value))


@pytest.mark.parametrize("local", ["pass", "act = x"])
def test_decorators_and_defaults_look_nothing_up(local: str) -> None:
    head = f"@act(1)\ndef f(x, y=act(2)):\n    {local}\n\n\n"
    assert [f.rule for f in findings(ACTIVATIONS.replace("def activate", head + "def activate"))]
