"""Whether the fresh values are used behind a cache, or only mentioned there."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from verbs import findings, fix

from trainify.findings import Safety

MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("k_cache", torch.zeros(1, 8, 4), persistent=False)
        self.register_buffer("v_cache", torch.zeros(1, 8, 4), persistent=False)

    def attend(self, q, end):
        return F.scaled_dot_product_attention(q, self.k_cache[:, :end], self.v_cache[:, :end])

    def update(self, k, v, pos):
        self.k_cache[:, pos : pos + k.shape[1]] = k
        self.v_cache[:, pos : pos + k.shape[1]] = v{behind}

    def forward(self, x, pos=0):
        q, k, v = self.q(x), self.k(x), self.v(x)
        self.update(k, v, pos){then}
        return y
"""
ATTENDED = "\n        y = self.attend(q, pos + x.shape[1])"


def gradients(text: str) -> dict[str, torch.Tensor | None]:
    space: dict[str, type[nn.Module]] = {}
    exec(text, space)
    torch.manual_seed(0)
    model = space["Attention"]()
    model(torch.randn(1, 3, 4)).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "behind",
    [
        "",
        "\n        self.end = pos + k.size(1) + v.size(1)",
        "\n        print(k.device, v.dtype, len(k), f'{v}')",
        "\n        assert k is not None and v is not None",
        "\n        self.old_cache[:, pos : pos + 3] = k; self.old_cache[:, pos : pos + 3] = v",
        "\n        self.like = torch.zeros_like(k), v.new_zeros(3), k.detach(), v.data",
    ],
)
def test_a_mention_is_no_use(behind: str) -> None:
    text = MODEL.format(behind=behind, then=ATTENDED)
    found = [f for f in findings(text) if f.rule == "TRN401" and "old" not in f.message]
    assert len(found) == 2
    for each in found:
        assert each.fixes["flag"].safety is Safety.UNSAFE
        assert "must read the fresh" in each.fixes["flag"].look_at
    fixed = fix(text)
    if "old_cache" not in behind:
        assert all(g is not None for g in gradients(fixed).values())


@pytest.mark.parametrize(
    "then",
    [
        f"{ATTENDED} + k.mean() + v.mean()",
        f"{ATTENDED}\n        y = y + (k + v).mean()",
        "\n        y = k.mean() + v.mean() + self.attend(q, pos + x.shape[1])",
    ],
)
def test_used_as_well_as_read_from_the_cache(then: str) -> None:
    """What attention reads of the cache would lose its part of the gradient."""
    text = MODEL.format(behind="", then=then)
    before, after = gradients(text), gradients(fix(text))
    for name, gradient in before.items():
        assert gradient is not None and torch.equal(gradient, after[name])


@pytest.mark.parametrize(
    ("behind", "then"),
    [
        ("", "\n        y = F.scaled_dot_product_attention(q, k, v)"),
        ("", "\n        print(k.shape, v.shape); y = F.scaled_dot_product_attention(q, k, v)"),
        ("; self.seen = pos", "\n        k, v = k + 1, v * 2\n        y = (q @ k.mT) @ v"),
        (
            "\n        return (k @ k.mT).sum() + v.sum()",
            "\n        y = F.scaled_dot_product_attention(q, k, v)",
        ),
    ],
)
def test_what_is_used_is_cached_detached(behind: str, then: str) -> None:
    text = MODEL.format(behind=behind, then=then)
    fixed = fix(text)
    assert fixed.count(".detach()") == 2
    before, after = gradients(text), gradients(fixed)
    for name, gradient in before.items():
        assert gradient is not None and torch.equal(gradient, after[name])


MADE = '        self.register_buffer("v_cache", torch.zeros(1, 8, 4), persistent=False)\n'


@pytest.mark.parametrize(
    ("kept", "then"),
    [
        ("", "\n        both = self.kv\n        y = (q @ both[0][:, :3].mT) @ both[1][:, :3]"),
        (
            "self.both = [self.k_cache, self.v_cache]",
            "\n        y = self.both[0] @ self.both[1].mT",
        ),
        ("self.keys = self.k_cache[:, :3]", "\n        y = self.keys.square()"),
    ],
)
def test_read_by_another_name(kept: str, then: str) -> None:
    """The fresh values are used as well, so that only the other way would lose its gradient."""
    then += "\n        y = y.mean() + (k * v).mean()"
    behind = "\n\n    @property\n    def kv(self):\n        return self.k_cache, self.v_cache"
    text = MODEL.format(behind=behind, then=then).replace(MADE, f"{MADE}        {kept}\n")
    before, after = gradients(text), gradients(fix(text))
    for name, gradient in before.items():
        assert (gradient is None) == (after[name] is None)
        assert gradient is None or torch.equal(gradient, after[name])


BY_CALLERS = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4)

    def layer(self, x, kv_cache):
        k_cache, v_cache = kv_cache
        k, v = self.k(x), self.v(x)
        k_cache[:, :3] = k
        v_cache[:, :3] = v
        return k * v

    def forward(self, x):
        kv_cache = [torch.zeros(1, 8, 4), torch.zeros(1, 8, 4)]
        y = self.layer(x, kv_cache)
        return y + READ
"""


@pytest.mark.parametrize("read", ["kv_cache[0][:, :3]", "kv_cache[1].sum()"])
def test_read_by_who_gave_it(read: str) -> None:
    text = BY_CALLERS.replace("READ", read)
    for each in findings(text):
        assert each.fixes["flag"].safety is Safety.UNSAFE
    before, after = gradients(text), gradients(fix(text))
    for name, gradient in before.items():
        assert gradient is not None and torch.equal(gradient, after[name])


def test_not_read_by_who_gave_it() -> None:
    text = BY_CALLERS.replace(" + READ", "")
    fixed = fix(text)
    assert fixed.count(".detach()") == 2
    before, after = gradients(text), gradients(fixed)
    for name, gradient in before.items():
        assert gradient is not None and torch.equal(gradient, after[name])


APART = """\
import torch
import torch.nn.functional as F
from torch import nn


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k_cache", torch.zeros(1, 8, 4))
        self.register_buffer("v_cache", torch.zeros(1, 8, 4))

    def get(self, n):
        return self.k_cache[:, :n], self.v_cache[:, :n]

    @property
    def both(self):
        return self.get(3)

    def size(self):
        return self.k_cache.shape, self.v_cache.shape


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.cache = Cache()

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        self.cache.k_cache[:, : k.shape[1]] = k
        self.cache.v_cache[:, : v.shape[1]] = v
        y = F.scaled_dot_product_attention(q, k, v)
        THEN
        return y
"""


@pytest.mark.parametrize(
    "then",
    [
        "y = y + F.scaled_dot_product_attention(q, *self.cache.get(3))",
        "y = y + F.scaled_dot_product_attention(q, *self.cache.both)",
    ],
)
def test_read_by_a_getter_of_another_object(then: str) -> None:
    text = APART.replace("THEN", then)
    before, after = gradients(text), gradients(fix(text))
    for name, gradient in before.items():
        assert gradient is not None and torch.equal(gradient, after[name])


@pytest.mark.parametrize("then", ["pass", "self.seen = self.cache.size()"])
def test_another_object_that_is_not_read(then: str) -> None:
    text = APART.replace("THEN", then)
    fixed = fix(text)
    assert fixed.count(".detach()") == 2
    before, after = gradients(text), gradients(fixed)
    for name, gradient in before.items():
        assert gradient is not None and torch.equal(gradient, after[name])
