"""What a kernel takes for memory, its equivalent has to take for tensors: shapes and aliases."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from verbs import findings, fix

HEAD = "import torch\nfrom vllm import _custom_ops as ops\n\n\n"
KERNELS = """\
class ops:
    def rms_norm(out, x, w, eps):
        out.view(-1).copy_(torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps).view(-1))
"""


def run(text: str, name: str, *arguments: object) -> object:
    namespace: dict[str, object] = {"torch": torch}
    exec(text.replace("from vllm import _custom_ops as ops\n", KERNELS), namespace)
    return namespace[name](*arguments)  # type: ignore[operator]


@pytest.mark.parametrize(
    "lines",
    [
        "ops.rms_norm(out, x.view(-1, 4), w, 1e-6)",
        "rows = x.reshape(-1, x.shape[-1])\n    ops.rms_norm(out, rows, w, 1e-6)",
        "x = x.flatten(0, 1)\n    ops.rms_norm(out, x, w, 1e-6)",
        "ops.rms_norm(out, x, w, 1e-6)",
    ],
)
@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
def test_a_result_has_the_shape_of_its_buffer(lines: str, strategy: str) -> None:
    text = f"{HEAD}def f(x, w):\n    out = torch.empty_like(x)\n    {lines}\n    return out\n"
    x, w = torch.randn(2, 3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    fixed = fix(text, strategy=strategy)
    result = run(fixed, "f", x, w)
    torch.testing.assert_close(result, F.rms_norm(x, (4,), w, 1e-6))
    assert isinstance(result, torch.Tensor) and result.requires_grad


@pytest.mark.parametrize(
    "lines",
    [
        "q1, q2 = q[..., :2], q[..., 2:]\n    rotary_emb.apply_rotary(q1, q2, cos, sin, q1, q2, False)",
        "rotary_emb.apply_rotary(q[..., :2], q[..., 2:], cos, sin, q[..., :2], q[..., 2:], False)",
    ],
)
@pytest.mark.parametrize("strategy", ["flag", "attach"])
def test_halves_that_are_rotated_in_place(lines: str, strategy: str) -> None:
    """In float32 ``q1.float()`` is q1, which the first copy overwrites."""
    kernel = """\
class rotary_emb:
    def apply_rotary(a, b, cos, sin, c, d, conj):
        c[:], d[:] = a * cos - b * sin, a * sin + b * cos
"""
    text = f"import torch\nimport rotary_emb\n\n\ndef f(q, cos, sin):\n    {lines}\n"
    text = fix(text, unsafe=True, strategy=strategy).replace("import rotary_emb\n", kernel)
    x, angles = torch.randn(3, 4, requires_grad=True), torch.randn(3, 2)
    cos, sin = angles.cos(), angles.sin()
    q = x * 1
    run(text, "f", q, cos, sin)
    a, b = x.chunk(2, dim=-1)
    right = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    torch.testing.assert_close(q, right)
    (given,) = torch.autograd.grad(q.square().sum(), x)
    torch.testing.assert_close(given, torch.autograd.grad(right.square().sum(), x)[0])


def test_another_op_of_that_name() -> None:
    """A fork's ``rotary_embedding`` takes cos and sin, and no positions."""
    (found,) = findings(
        f"{HEAD}def f(q, key, head_size, cos, sin):\n    ops.rotary_embedding(q, key, head_size, cos, sin, True)\n"
    )
    assert found.rule == "TRN103" and not found.fixes
    assert "`head_size` is passed for 'key'." in found.message


@pytest.mark.parametrize(
    ("index", "asked"),
    [("self.layer_num_", "pool[self.layer_num_]"), ("i", "pool[i]"), ("rows", "pool")],
)
def test_the_tensor_of_a_layer_in_a_list(index: str, asked: str) -> None:
    """A list has no ``requires_grad``."""
    text = fix(
        f"{HEAD}class A:\n    def f(self, pool, w: torch.Tensor, i, rows):\n        out = torch.empty_like(pool[{index}])\n"
        f"        ops.rms_norm(out, pool[{index}], w, 1e-6)\n        return out\n"
    )
    assert f"({asked}.requires_grad or w.requires_grad)" in re.sub(
        r"(?<=\()\s+|\s+(?=\))", "", text
    )
