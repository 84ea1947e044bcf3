"""Rotary tables that learn: held as a parameter, made from one, or given by a caller."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from verbs import findings, fix

from tests.each import in_turn
from trainify.findings import STRATEGIES
from trainify.reference.rope import rotary_embedding

HEAD = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


def table():
    f = torch.outer(torch.arange(16.0), torch.tensor([1.0, 0.5]))
    return torch.cat((f.cos(), f.sin()), -1)


"""
MODELS = {
    "a parameter": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.table = nn.Linear(8, 8), nn.Parameter(table())

    def forward(self, x):
        q, k = self.a(x), 2 * self.a(x)
        ops.rotary_embedding(torch.arange(5), q, k, 4, self.table, True)
        return q * k
""",
    "a parameter by name": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8).requires_grad_(False)
        self.register_parameter("table", nn.Parameter(table()))

    def forward(self, x):
        q, k = self.a(x), 2 * self.a(x)
        ops.rotary_embedding(torch.arange(5), q, k, 4, self.table, True)
        return q * k
""",
    "what a layer gives": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.table = nn.Linear(8, 8), nn.Embedding(16, 4)
        self.a.requires_grad_(False)

    def forward(self, x):
        q, k = self.a(x), 2 * self.a(x)
        cache = self.table(torch.arange(16))
        ops.rotary_embedding(torch.arange(5), q, k, 4, cache, True)
        return q * k
""",
    "a parameter of a base": """\
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.table = nn.Linear(8, 8), nn.Parameter(table())


class Middle(Base):
    pass


class Model(Middle):
    def forward(self, x):
        q, k = self.a(x), 2 * self.a(x)
        ops.rotary_embedding(torch.arange(5), q, k, 4, self.table, True)
        return q * k
""",
    "made from a parameter": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.scale = nn.Linear(8, 8), nn.Parameter(torch.ones(4))
        self.register_buffer("table", table())

    def lookup(self):
        return self.table * self.scale

    def forward(self, x):
        q, k = self.a(x), 2 * self.a(x)
        cache = self.lookup().to(q.dtype)
        ops.rotary_embedding(torch.arange(5), q, k, 4, cache, True)
        return q * k
""",
    "of another module, given by the caller": """\
class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(table())

    def forward(self):
        return self.weight.float()


def rotate(q, k, cos_sin_cache):
    ops.rotary_embedding(torch.arange(5), q, k, 4, cos_sin_cache, True)
    return q, k


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.table = nn.Linear(8, 8), Table()

    def forward(self, x):
        q, k = rotate(self.a(x), 2 * self.a(x), self.table())
        return q * k
""",
    "the only thing that learns": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(table())
        self.a = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x):
        q, k = self.a(x), 2 * self.a(x)
        ops.rotary_embedding(torch.arange(5), q, k, 4, self.table, True)
        return q * k
""",
}
CONSTANT = {
    "a buffer": MODELS["a parameter"].replace(
        "self.a, self.table = nn.Linear(8, 8), nn.Parameter(table())",
        'self.a = nn.Linear(8, 8)\n        self.register_buffer("table", table())',
    ),
    "a frozen parameter": MODELS["a parameter"].replace(
        "nn.Parameter(table())", "nn.Parameter(table(), requires_grad=False)"
    ),
    "what a frozen layer gives": MODELS["what a layer gives"].replace(
        "self.a.requires_grad_(False)", "self.table.requires_grad_(False)"
    ),
    "a parameter that a base has frozen": MODELS["a parameter of a base"].replace(
        "nn.Parameter(table())\n",
        "nn.Parameter(table())\n        self.table.requires_grad_(False)\n",
    ),
    "a detached one": MODELS["made from a parameter"].replace("self.scale\n", "self.scale.data\n"),
}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.no_grad()
    def rotate(
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        head_size: int,
        cos_sin_cache: torch.Tensor,
        is_neox: bool,
    ) -> None:
        old = (query.clone(), key.clone())
        q, k = rotary_embedding(positions, *old, head_size, cos_sin_cache, is_neox)
        query.data.copy_(q)
        key.data.copy_(k)  # type: ignore[arg-type]

    library, ops = ModuleType("vllm"), ModuleType("vllm._custom_ops")
    vars(ops).update(rotary_embedding=rotate)
    vars(library).update(_custom_ops=ops)
    monkeypatch.setitem(sys.modules, "vllm", library)
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", ops)


def gradients(text: str) -> dict[str, torch.Tensor | None]:
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    torch.manual_seed(0)
    model = space["Model"]()
    x = torch.linspace(-1, 1, 40).view(5, 8)
    (model(x) * torch.arange(8)).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(("model", "strategy"), in_turn(MODELS, STRATEGIES))
def test_a_table_that_learns_gets_its_gradient(
    model: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gradients(fix(HEAD + model, strategy=strategy))

    def plain(q: Any, k: Any, *others: Any) -> tuple[Any, Any]:
        return rotary_embedding(torch.arange(5), q, k, *others)

    monkeypatch.setattr(sys.modules["vllm._custom_ops"], "plain", plain, raising=False)
    right = gradients(
        (HEAD + model).replace("ops.rotary_embedding(torch.arange(5), ", "q, k = ops.plain(")
    )
    assert found.keys() == right.keys()
    for name, gradient in right.items():
        assert gradient is not None and gradient.any()
        assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-4), name  # type: ignore[arg-type]


@pytest.mark.parametrize("model", CONSTANT.values(), ids=CONSTANT)
def test_other_tables_keep_the_closed_form(model: str) -> None:
    (found,) = findings(HEAD + model, strategy="attach")
    assert "once_differentiable" not in fix(HEAD + model, strategy="attach")
    assert "table" not in found.message and "cache" not in found.message
