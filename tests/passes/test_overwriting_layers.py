"""Layers whose kernel writes its results into its arguments, which their native twin does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in_kernels import stand_in
from torch import nn
from verbs import findings, fix

from trainify.engine import Options, check_paths
from trainify.findings import Safety

ROPE = """\
import torch
from torch import nn
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding, get_rope


class Attention(nn.Module):
    def __init__(self, d, **config):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.rope = RotaryEmbedding(d)

    def forward(self, positions, x):
        qkv = self.qkv(x)
        q, k, v = qkv.chunk(3, dim=-1)
        q, k = self.rope(positions, q, k)
        return (q * k).sum(-1, keepdim=True) * v
"""
GIVEN = ROPE.replace("RotaryEmbedding(d)", "get_rope(d, rope_parameters=config)")
NORM = """\
import torch
from torch import nn
from sglang.srt.layers.layernorm import RMSNorm


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = RMSNorm(d)

    def forward(self, x, residual):
        x, residual = self.norm(x, residual)
        return x, residual
"""


class RotaryEmbedding(nn.Module):
    """Turns all of a vector by its position, in place where no gradient was thought of."""

    def __init__(self, d: int, **config: Any) -> None:
        super().__init__()

    def forward(self, positions: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
        with torch.no_grad():
            for x, new in zip((q, k), self.forward_native(positions, q, k), strict=True):
                x.data.copy_(new)
        return q, k

    def forward_native(self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> Any:
        angle = positions.unsqueeze(-1).to(q.dtype)
        return tuple(
            torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
            for a, b in (x.chunk(2, dim=-1) for x in (q, k))
        )


def model(text: str, monkeypatch: pytest.MonkeyPatch, *args: Any) -> Any:
    stand_in(
        monkeypatch,
        "vllm.model_executor.layers.rotary_embedding",
        RotaryEmbedding=RotaryEmbedding,
        get_rope=RotaryEmbedding,
    )
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    torch.manual_seed(0)
    return scope["Attention"](*args).double()


@pytest.mark.parametrize("text", [ROPE, GIVEN])
def test_what_is_rotated_has_its_gradient(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = model(fix(text, unsafe=True), monkeypatch, 4)
    right = model(text.replace("self.rope(", "self.rope.forward_native("), monkeypatch, 4)
    x, positions = torch.randn(3, 4, dtype=torch.float64), torch.tensor([1, 2, 5])
    for one in (fixed, right):
        one(positions, x).square().sum().backward()
    torch.testing.assert_close(fixed.qkv.weight.grad, right.qkv.weight.grad)
    assert torch.equal(fixed(positions, x), right(positions, x))


def test_a_part_that_is_put_back_is_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "qkv[:, :4], k = self.rope(positions, qkv[:, :4], k)"
    text = ROPE.replace("q, k = self.rope(positions, q, k)", line)
    text = text.replace("q, k, v = qkv.chunk(3, dim=-1)", "k, v = qkv[:, 4:8] * 1, qkv[:, 8:] * 1")
    text = text.replace("(q * k)", "(qkv[:, :4] * k)")
    (found,) = findings(text)
    assert found.fixes["flag"].safety is Safety.SAFE
    x, positions = torch.randn(3, 4, dtype=torch.float64), torch.tensor([1, 2, 5])
    fixed = model(fix(text), monkeypatch, 4)
    right = model(ROPE.replace("self.rope(", "self.rope.forward_native("), monkeypatch, 4)
    for one in (fixed, right):
        one(positions, x).square().sum().backward()
    torch.testing.assert_close(fixed.qkv.weight.grad, right.qkv.weight.grad)


def test_what_a_configuration_asks_for_is_to_be_looked_at() -> None:
    (found,) = findings(GIVEN)
    assert found.fixes["flag"].safety is Safety.UNSAFE
    assert "longrope" in found.fixes["flag"].look_at
    (found,) = findings(ROPE)
    assert found.fixes["flag"].safety is Safety.SAFE


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("q, k = self.rope(", "self.rope(", "overwrites `q`, and `q` is read later"),
        ("q, k = self.rope(", "turned, k = self.rope(", "overwrites `q`, and `q` is read later"),
        ("* v\n", "* v + qkv.sum()\n", "`qkv` shares storage with `q` and is read later"),
        (
            "q, k = self.rope(positions, q, k)",
            "old = [q]\n        q, k = self.rope(positions, q, k)\n        v = v + old[0]",
            "overwrites `q`",
        ),
    ],
)
def test_who_reads_what_the_kernel_overwrites_keeps_it(old: str, new: str, reason: str) -> None:
    assert old in ROPE
    (found,) = findings(ROPE.replace(old, new))
    assert reason in found.message and not found.fixes


def test_a_norm_overwrites_both_where_it_has_a_residual() -> None:
    assert "self.norm.forward_native(x, residual)" in fix(NORM)
    kept = NORM.replace("x, residual = self", "x, total = self").replace("return x, ", "return ")
    (found,) = findings(kept)
    assert "overwrites `residual`" in found.message and not found.fixes
    alone = NORM.replace("x, residual = self.norm(x, residual)", "y = self.norm(x)")
    assert "y = self.norm.forward_native(x)" in fix(alone.replace("return x,", "return x + y,"))


def test_what_a_caller_reads_is_to_be_looked_at() -> None:
    text = NORM.replace(
        "x, residual = self.norm(x, residual)\n        return x, residual",
        "return self.norm(x, residual)",
    )
    assert findings(text)[0].fixes["flag"].safety is Safety.SAFE
    user = """

class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.block = Block(d)

    def forward(self, x, residual):
        y, _ = self.block(x, residual)
        return y + residual
"""
    (found,) = findings(text + user)
    assert found.fixes["flag"].safety is Safety.UNSAFE
    assert "no caller reads `residual`" in found.fixes["flag"].look_at


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("vllm.attention", "Attention"),
        ("vllm.model_executor.layers.attention", "Attention"),
        ("sglang.srt.layers.radix_attention", "RadixAttention"),
    ],
)
def test_attention_of_a_server_is_reported_and_keeps_no_fix_beside_it(
    library: str, name: str
) -> None:
    text = ROPE.replace(
        "import RotaryEmbedding, get_rope\n",
        f"import RotaryEmbedding\nfrom {library} import {name} as Attend\n",
    )
    text = text.replace(
        "RotaryEmbedding(d)", "RotaryEmbedding(d)\n        self.attend = Attend(1, d)"
    )
    text = text.replace("return (q * k).sum(-1, keepdim=True) * v", "return self.attend(q, k, v)")
    rope, attention = findings(text)
    assert rope.fixes and not attention.fixes
    assert "`self.attend` runs a kernel" in attention.message
    assert "come from a context of the server" in attention.message


def test_in_the_library_itself_what_makes_a_layer_is_judged_where_it_is(tmp_path: Path) -> None:
    user, layers = tmp_path / "vllm" / "model.py", tmp_path / "vllm" / "model_executor" / "layers"
    layers.mkdir(parents=True)
    for folder in (layers, layers.parent, layers.parent.parent):
        (folder / "__init__.py").touch()
    for each in (user, tmp_path / "alone" / "model.py"):
        each.parent.mkdir(exist_ok=True)
        each.write_text(GIVEN)
    alone = check_paths([str(tmp_path / "alone")], Options())
    (layers / "rotary_embedding.py").write_text("def get_rope(head_size, **config): ...\n")
    beside = check_paths([str(tmp_path / "vllm")], Options())
    told = [{f.rule for report in each for f in report.findings} for each in (alone, beside)]
    assert told == [{"TRN109"}, set()]
