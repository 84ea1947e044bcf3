"""What passes see in the bytes of a file: whether a closer look is worth parsing it."""

import pytest

from trainify import Options, engine

ATTENTION = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache_k = torch.zeros(1, 9, 4)

    def forward(self, x, p, slots):
        {write}
        return x
"""

ENCODER = """\
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    @torch.no_grad()
    def forward(self, x):
        {result}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)
"""


def asked(text: str) -> set[str]:
    found = engine.passes_for(text.encode(), Options())
    return {getattr(each, "__name__", "").rpartition(".")[2] for each in found}


@pytest.mark.parametrize(
    "write",
    [
        "self.cache_k[:, p] = x",
        "self.cache_k[slots] = x",
        "self.cache_k[\n            :, p\n        ] = x",
        "self.cache_k.index_copy_(1, p, x)",
        "self.cache_k[:, p].copy_(x)",
        "k = self.cache_k\n        k.index_copy_(1, p, x)",
        "k, v = self.cache_k, self.cache_v\n        k[:, p] = x",
        "if p: self.cache_k[:, p] = x",
        "if p: pass\n        else: self.cache_k[:, p] = x",
    ],
)
def test_writes_into_a_cache(write: str) -> None:
    text = ATTENTION.format(write=write)
    assert "caches" in asked(text)
    assert any(f.rule == "TRN401" for f in engine.check_text(text))


@pytest.mark.parametrize(
    "write",
    [
        "self.cache_k[p] = x",
        "self.names_of_cache: dict[str, int] = {}",
        "x[..., :4].copy_(self.cache_k[p])",
        "x = x + self.cache_k[:, p]",
    ],
)
def test_no_writes_into_a_cache(write: str) -> None:
    text = ATTENTION.format(write=write)
    assert "caches" not in asked(text)


@pytest.mark.parametrize(
    ("made", "result"),
    [
        ("self.layer = nn.Linear(8, 8)", "return self.layer(x)"),
        ("self.layer = (\n            nn.Linear(8, 8)\n        )", "return self.layer(x)"),
        ("self.layer: nn.Module = nn.Linear(8, 8)", "return self.layer(x)"),
        (
            "self.layer = nn.Linear(8, 8)",
            "if x is None:\n            return x\n        return self.layer(x).topk(2).indices",
        ),
    ],
)
def test_a_scope_on_a_forward_with_weights(made: str, result: str) -> None:
    text = ENCODER.format(made=made, result=result)
    assert "forward_scopes" in asked(text)
    assert any(f.rule == "TRN201" for f in engine.check_text(text))


@pytest.mark.parametrize(
    ("made", "result"),
    [
        ("self.scale = 2", "return x * self.scale"),
        ("self.layer = nn.Linear(8, 8)", "return self.layer(x).topk(2).indices.to(torch.int32)"),
    ],
)
def test_a_scope_on_a_forward_that_trains_nothing(made: str, result: str) -> None:
    text = ENCODER.format(made=made, result=result)
    assert "forward_scopes" not in asked(text)


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("scale_kernel[(n,)](x)", True),
        ("scale_kernel[lambda m: (cdiv(n, m['B'][0]),)](x)", True),
        ("size = config.conv_kernel[i](x[0])", True),
        ("size = config.conv_kernel[i]", False),
        ("size = config.conv_kernel[i], x[0](1)", False),
    ],
)
def test_launches(line: str, seen: bool) -> None:
    assert ("raw_launches" in asked(line + "\n")) is seen


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("layer.weight[0] = x", True),
        ("layer.weight.mul_(2)", True),
        ("layer.weight.copy_(x).mul_(2)", True),
        ("layer.weight.copy_(\n    x\n)", True),
        ("layer.weight.copy_(x)", False),
        ("layer.bias.zero_()", False),
        ("layer.bias.requires_grad_(False)", False),
    ],
)
def test_edits_of_weights(line: str, seen: bool) -> None:
    assert ("weight_edits" in asked(f"import torch\n{line}\n")) is seen
