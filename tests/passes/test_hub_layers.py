"""TRN112: layers for Hugging Face's kernels that do not say that they have no backward."""

from __future__ import annotations

import pytest
from verbs import findings, fix, rules

LAYER = """\
import torch
from torch import nn
from .._ops import ops
from .functions import NormFunction


class Norm(nn.Module):
    \"\"\"A layer.\"\"\"

    can_torch_compile: bool = True
    weight: torch.Tensor

    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight, 1e-6)
        return out
"""


def test_a_layer_that_says_nothing() -> None:
    (found,) = findings(LAYER, select=("TRN112",))
    assert "`Norm` runs `ops.rms_norm`" in found.message
    assert fix(LAYER, select=("TRN112",)) == LAYER, "the build may register a formula"
    assert fix(LAYER, select=("TRN112",), unsafe=True) == LAYER.replace(
        "compile: bool = True\n", "compile: bool = True\n    has_backward: bool = False\n"
    )
    plain = LAYER.replace("can_torch_compile: bool = True", "can_torch_compile = True")
    assert "    has_backward = False\n" in fix(plain, select=("TRN112",), unsafe=True)


def test_a_known_op_counts_too() -> None:
    text = LAYER.replace("from .._ops import ops", "from vllm import _custom_ops as ops")
    assert "TRN112" in rules(text)


@pytest.mark.parametrize(
    "change",
    [
        ("    weight:", "    has_backward = False\n    weight:"),
        ("    weight:", "    has_backward: bool = True\n    weight:"),  # its author's word
        ("    can_torch_compile: bool = True\n", ""),  # no layer for kernels
        ("ops.rms_norm(out, x, self.weight, 1e-6)", "out = NormFunction.apply(x, self.weight)"),
        ("ops.rms_norm(out, x, self.weight, 1e-6)", "out = x * self.weight"),
        ("from .._ops import ops", "from .ops import ops"),
    ],
)
def test_layers_that_are_right(change: tuple[str, str]) -> None:
    assert change[0] in LAYER
    assert "TRN112" not in rules(LAYER.replace(*change))


# -- where they are registered --------------------------------------------------------------------

MAPPING = """\
from kernels import LayerRepository, Mode, kernelize, register_kernel_mapping

register_kernel_mapping(
    {
        "SiluAndMul": {
            "cuda": LayerRepository(
                repo_id="kernels-community/activation", layer_name="SiluAndMul", version=1
            )
        }
    }
)


def prepare(model):
    return kernelize(model, device="cuda", mode=Mode.TRAINING | Mode.TORCH_COMPILE)
"""


def test_a_layer_that_is_registered_for_every_mode() -> None:
    (found,) = findings(MAPPING)
    assert (found.rule, found.line) == ("TRN112", 6)
    assert found.message == (
        "`SiluAndMul` of kernels-community/activation has no backward, and does not say so: "
        "`kernelize` installs it for training too."
    )
    assert fix(MAPPING) == MAPPING
    fixed = fix(MAPPING, unsafe=True)
    assert fixed == MAPPING.replace(
        "LayerRepository(\n", "{Mode.INFERENCE | Mode.TORCH_COMPILE: LayerRepository(\n"
    ).replace("            )\n        }", "            )}\n        }")
    assert not findings(fixed)


def test_a_layer_that_is_registered_for_training() -> None:
    text = MAPPING.replace("LayerRepository(\n", "{Mode.TRAINING: LayerRepository(\n")
    text = text.replace("            )\n", "            )}\n").partition("\n\ndef")[0] + "\n"
    (found,) = findings(text)
    assert found.rule == "TRN112"
    assert not found.fixes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mode=Mode.TRAINING | Mode.TORCH_COMPILE", "mode=Mode.INFERENCE"),
        ("LayerRepository(\n", "{Mode.INFERENCE: LayerRepository(\n"),
        ("kernels-community/activation", "kernels-community/flash-attn"),
        ('layer_name="SiluAndMul"', 'layer_name="Silu"'),
        ("from kernels", "from other"),
        ('"cuda": LayerRepository', '"cuda": make(LayerRepository)'),
    ],
)
def test_registered_layers_that_are_right(old: str, new: str) -> None:
    assert old in MAPPING
    text = MAPPING.replace(old, new)
    if "{Mode" in new or "make" in new:
        text = text.replace("            )\n        }", "            )}\n        }")
        text = text.replace(")}", ")") if "make" in new else text
    compile(text, "m.py", "exec")
    assert not findings(text)


def test_a_layer_of_a_kernel_that_is_called() -> None:
    text = """\
from kernels import get_kernel
from torch import nn

activation = get_kernel("kernels-community/activation")


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = activation.layers.{layer}()

    def forward(self, x):
        return self.down(self.act(x))
"""
    (found,) = findings(text.replace("{layer}", "SiluAndMul"))
    assert (found.rule, found.line) == ("TRN109", 13)
    assert found.message == (
        "`self.act` runs a kernel without a backward. Not rewritten: it has no other forward."
    )
    assert not findings(text.replace("{layer}", "Unknown"))
