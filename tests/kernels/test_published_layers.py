"""Layers in the manner of published libraries, patched and trained: gradients of plain torch."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.each import in_turn
from trainify.engine import Options, fix_text

STRATEGIES = ["flag", "replace", "attach"]

NORM = """\
import torch
from vllm._C import ops


class Layer(torch.nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))
        self.eps = eps

    def forward(self, x, residual=None):
        if residual is not None:
            ops.fused_add_rms_norm(x, residual, self.weight.data, self.eps)
            return x, residual
        result = torch.empty_like(x)
        ops.rms_norm(result, x, self.weight.data, self.eps)
        return result
"""

ACTIVATION = """\
import torch
from vllm._C import ops


class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        size = x.shape[:-1] + (half,)
        result = torch.empty(size, dtype=x.dtype, device=x.device)
        ops.silu_and_mul(result, x)
        return result
"""

ROTARY = """\
import torch


class Layer(torch.nn.Module):
    def __init__(self, head_size, table):
        super().__init__()
        self.head_size = head_size
        self.register_buffer("table", table)

    def forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ):
        from vllm import _custom_ops as ops

        table = self.table.to(query.dtype)
        ops.rotary_embedding(positions, query, key, self.head_size, table, True)
        return query, key
"""

# One function that adds or not, as its results say.
ADDING = """\
import torch
from lmdeploy.pytorch.kernels.cuda import rms_norm


class Layer(torch.nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))
        self.eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor = None):
        if residual is None:
            x = rms_norm(x, self.weight, self.eps)
            return x
        else:
            x, residual = rms_norm(x, self.weight, self.eps, residual=residual)
            return x, residual
"""


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of the stand-ins under the names that other releases have for them."""
    from vllm import _custom_ops

    def rms_norm(x: Any, weight: Any, eps: float, residual: Any = None, out: Any = None) -> Any:
        out = x.detach().clone() if out is None else out
        if residual is None:
            _custom_ops.rms_norm(out, x.detach(), weight.detach(), eps)
            return out
        residual = residual.detach().clone()
        _custom_ops.fused_add_rms_norm(out, residual, weight.detach(), eps)
        return out, residual

    vllm = ModuleType("vllm._C")
    vllm.ops = ModuleType("vllm._C.ops")  # type: ignore[attr-defined]
    vllm.ops.rms_norm = _custom_ops.rms_norm  # type: ignore[attr-defined]
    vllm.ops.fused_add_rms_norm = _custom_ops.fused_add_rms_norm  # type: ignore[attr-defined]
    vllm.ops.silu_and_mul = torch.ops._C.silu_and_mul  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm._C", vllm)
    for name in ("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.kernels"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    cuda = ModuleType("lmdeploy.pytorch.kernels.cuda")
    cuda.rms_norm = rms_norm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, cuda.__name__, cuda)


def layer(text: str, strategy: str, *args: Any) -> Any:
    fixed = fix_text(text, "m.py", Options(strategy=strategy, unsafe=True))
    assert fixed.text != text
    scope: dict[str, Any] = {}
    exec(compile(fixed.text, "m.py", "exec"), scope)
    return scope["Layer"](*args)


def plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, 1e-5)


def agree(found: Any, wanted: Any, leaves: list[torch.Tensor]) -> None:
    """The same values and, for a random loss, the same gradients."""
    pairs = [(a, b) for a, b in zip(found, wanted, strict=True) if b is not None]
    assert [a is None for a in found] == [b is None for b in wanted]
    seeds = [torch.randn_like(b) for _, b in pairs]
    got = torch.autograd.grad([a for a, _ in pairs], leaves, seeds)
    right = torch.autograd.grad([b for _, b in pairs], leaves, seeds)
    for a, b in (*pairs, *zip(got, right, strict=True)):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("text", [NORM, ADDING], ids=["two ops", "one function"])
def test_a_norm_with_a_residual_or_without(text: str, strategy: str) -> None:
    norm = layer(text, strategy, 8)
    x, residual = (torch.randn(3, 8, requires_grad=True) for _ in "xr")
    agree([norm(x * 1.0)], [plain(x, norm.weight)], [x, norm.weight])
    total = x + residual
    wanted = [plain(total, norm.weight), total]
    agree(norm(x * 1.0, residual * 1.0), wanted, [x, residual, norm.weight])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gated_activation(strategy: str) -> None:
    x = torch.randn(2, 3, 8, requires_grad=True)
    gate, up = x.chunk(2, dim=-1)
    agree([layer(ACTIVATION, strategy)(x)], [F.silu(gate) * up], [x])


POSITIONS = torch.tensor([4, 0, 2])


def table() -> torch.Tensor:
    angles = torch.arange(10.0).reshape(5, 2)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def turned(x: torch.Tensor) -> torch.Tensor:
    cos, sin = table()[POSITIONS].chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@pytest.mark.parametrize(
    ("trained", "strategy"), in_turn(["query", "key", "query key", "query alone"], STRATEGIES)
)
def test_a_rotation_of_either_or_both(trained: str, strategy: str) -> None:
    rotary = layer(ROTARY, strategy, 4, table())
    query, key = (torch.randn(3, 4, requires_grad=n in trained) for n in ("query", "key"))
    leaves = [t for t in (query, key) if t.requires_grad]
    if trained == "query alone":
        agree(rotary(POSITIONS, query * 1.0), [turned(query), None], leaves)
    else:
        found = rotary(POSITIONS, query * 1.0, key * 1.0)
        wanted = [turned(query), turned(key)]
        index = 1 if trained == "key" else 0
        assert torch.allclose(found[1 - index], wanted[1 - index], atol=1e-6)
        agree([found[index]], [wanted[index]], leaves[:1])


@pytest.mark.parametrize("text", [NORM, ADDING], ids=["two ops", "one function"])
@pytest.mark.parametrize("strategy", ["flag", "attach"])
def test_serving_keeps_its_bits(strategy: str, text: str) -> None:
    torch.manual_seed(3)
    patched = layer(text, strategy, 8)
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    served = scope["Layer"](8)
    served.load_state_dict(patched.state_dict())
    x, residual = torch.randn(3, 8), torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(patched(x.clone()), served(x.clone()))
        pairs = zip(
            patched(x.clone(), residual.clone()), served(x.clone(), residual.clone()), strict=True
        )
        assert all(torch.equal(a, b) for a, b in pairs)
