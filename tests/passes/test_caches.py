"""Caches: bypassed where they are read back, fed detached values where they are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

from trainify.findings import Safety

HEAD = "import torch\nfrom torch import nn\n\n\n"


def test_the_index_of_more_dimensions() -> None:
    becomes(
        HEAD
        + """\
class Attention(nn.Module):
    def forward(self, k, b, start, n):
        self.k_cache[:b, :, start : start + n] = k
        keys = self.k_cache[:b, :, : start + n]
        return keys
""",
        HEAD
        + """\
class Attention(nn.Module):
    def forward(self, k, b, start, n):
        if torch.is_grad_enabled() and k.requires_grad:
            self.k_cache[:b, :, start : start + n] = k.detach()
            keys = torch.cat((self.k_cache[:b, :, :start], k), dim=2)
        else:
            self.k_cache[:b, :, start : start + n] = k
            keys = self.k_cache[:b, :, : start + n]
        return keys
""",
    )


@pytest.mark.parametrize(
    "read",
    [
        "self.k_cache[:b, start : start + n]",  # not from the beginning
        "self.k_cache[:b, :n]",  # another end
        "self.k_cache[b:, : start + n]",  # other rows
        "self.k_cache",  # all of it
    ],
)
def test_a_read_that_does_not_match_is_of_a_copy(read: str) -> None:
    before = (
        HEAD
        + f"""\
class Attention(nn.Module):
    def forward(self, q, k, b, start, n):
        self.k_cache[:b, start : start + n] = k
        keys = {read}
        return q @ keys.mT
"""
    )
    fixed = fix(before)
    assert "fresh_k_cache = self.k_cache.clone()" in fixed
    assert "fresh_k_cache[:b, start : start + n] = k" in fixed
    assert f"keys = {read.replace('self', 'fresh').replace('.', '_', 1)}\n" in fixed


@pytest.mark.parametrize(
    "write",
    [
        "self.k_cache[slots] = k",
        "self.k_cache.view(-1, 8)[slot_mapping] = k",
        "self.k_cache.index_copy_(0, slots, k)",
        "self.k_cache[:, start:end].copy_(k)",
        "self.k_buffer[layer][loc] = k",
    ],
)
def test_a_cache_that_attention_does_not_read_here_gets_detached_values(write: str) -> None:
    before = (
        HEAD
        + f"""\
class Attention(nn.Module):
    def forward(self, q, k, slots, slot_mapping, start, end, layer, loc):
        {write}
        return q @ k.mT
"""
    )
    after = before.replace(" = k\n", " = k.detach()\n").replace("k)\n", "k.detach())\n")
    assert after != before
    becomes(before, after)


def test_detaching_needs_a_look_where_nothing_shows_that_fresh_values_are_used() -> None:
    before = (
        HEAD
        + """\
class Pool:
    def set_kv(self, loc, k):
        self.k_buffer[0][loc] = k
"""
    )
    assert fix(before) == before
    assert "= k.detach()" in fix(before, unsafe=True)


def test_callers_show_that_fresh_values_are_used() -> None:
    text = fix(
        HEAD
        + """\
class Pool:
    def set_kv(self, loc, k):
        self.k_buffer[0][loc] = k


class Attention(nn.Module):
    def forward(self, q, k, loc):
        self.pool.set_kv(loc, k)
        return q @ k.mT
"""
    )
    assert "= k.detach()" in text


@pytest.mark.parametrize(
    "statement",
    [
        "self.cache[token] = word",
        "self.linear_cache[layer_idx] = k",
        "self.cos_cache[:n] = cos",
        "self.k_cache[:n] = 0",
        "self.k_cache[:n] = k.detach()",
        "self.k_cache.data[:n] = k",
        "slot_cache[slots] = positions",
        "self.kv_cache[:n].copy_(torch.tensor(token))",
        "seq_len_cache[:n] = k",
        "self.kv_block_ids[:n] = k",
        "k = k.detach().transpose(0, 1); self.k_cache[:n] = k",
        "k = torch.tensor(token); self.k_cache[:n] = k",
    ],
)
def test_what_is_no_key_value_cache_stays(statement: str) -> None:
    stays(
        HEAD
        + f"""\
class Attention(nn.Module):
    def forward(self, k, token, word, layer_idx, n, cos, slots, slot_cache, positions):
        {statement}
        return k
"""
    )


def test_a_local_buffer_is_no_cache() -> None:
    stays(
        HEAD
        + """\
def forward(k, n):
    k_cache = torch.zeros(4, 8)
    k_cache[:n] = k
    return k_cache
"""
    )


def test_under_no_grad_stays() -> None:
    assert (
        rules(
            HEAD
            + """\
class Attention(nn.Module):
    def forward(self, k, n):
        with torch.no_grad():
            self.k_cache[:, :n] = k
        return k
"""
        )
        == []
    )


def test_a_cache_that_is_handed_back_gets_a_copy_with_fresh_values() -> None:
    """As in gpt-fast: attention reads what update() returns, so detaching would cut the gradient."""
    becomes(
        HEAD
        + """\
class KVCache(nn.Module):
    def update(self, input_pos, k_val, v_val):
        k_out = self.k_cache
        v_out = self.v_cache
        k_out[:, :, input_pos] = k_val
        v_out[:, :, input_pos] = v_val
        return k_out, v_out
""",
        HEAD
        + """\
class KVCache(nn.Module):
    def update(self, input_pos, k_val, v_val):
        k_out = self.k_cache
        v_out = self.v_cache
        if torch.is_grad_enabled() and (k_val.requires_grad or v_val.requires_grad):
            k_out[:, :, input_pos] = k_val.detach()
            k_out = k_out.clone()
            k_out[:, :, input_pos] = k_val
            v_out[:, :, input_pos] = v_val.detach()
            v_out = v_out.clone()
            v_out[:, :, input_pos] = v_val
        else:
            k_out[:, :, input_pos] = k_val
            v_out[:, :, input_pos] = v_val
        return k_out, v_out
""",
    )


HANDED_BACK = (
    HEAD
    + """\
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.key_cache = [torch.zeros(1, 6, 4)]

    def update(self, k, layer, positions):
        k_out = self.key_cache[layer]
        k_out.index_copy_(1, positions, k)
        return k_out
"""
)


def test_the_copy_lets_every_step_learn() -> None:
    def gradients(text: str) -> list[torch.Tensor]:
        scope: dict[str, Any] = {}
        exec(compile(text, "m.py", "exec"), scope)
        layer, found = scope["Layer"](), []
        for step in range(2):
            weight = torch.ones(4, requires_grad=True)
            k = weight * (step + 1.0) * torch.ones(1, 3, 4)
            layer.update(k, 0, torch.arange(3) + 3 * step).pow(2).sum().backward()
            assert weight.grad is not None
            found.append(weight.grad)
        assert layer.key_cache[0][0, :, 0].tolist() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
        return found

    with pytest.raises(RuntimeError, match="second time"):
        gradients(HANDED_BACK)
    first, second = gradients(fix(HANDED_BACK))
    assert first.tolist() == [6.0] * 4
    assert second.tolist() == [24.0] * 4


@pytest.mark.parametrize("name", ["StaticCache", "StaticLayer"])
def test_keys_and_values_of_a_cache_class(name: str) -> None:
    found = findings(
        HEAD
        + f"""\
class {name}:
    def update(self, key_states, value_states, cache_position):
        self.keys.index_copy_(2, cache_position, key_states)
        self.values[:, :, cache_position] = value_states
        return self.keys, self.values
"""
    )
    assert [f.rule for f in found] == ["TRN401", "TRN401"]
    assert all(f.fixes for f in found)  # without a gradient it returns the cache itself


def test_keys_of_something_else_stay() -> None:
    stays(
        HEAD
        + """\
class Table:
    def update(self, rows, values):
        self.keys[:, rows] = values
        return self.keys
"""
    )


def test_a_cache_that_is_reshaped_first_comes_to_an_end() -> None:
    text = fix(
        """
        import torch

        class Attention(torch.nn.Module):
            def forward(self, kv_cache, key, slot_mapping):
                shape = kv_cache.shape
                kv_cache = kv_cache.reshape(shape[0] * shape[1], -1)
                kv_cache[slot_mapping, ...] = key
                return kv_cache.reshape(shape)
        """,
        unsafe=True,
    )
    assert text.count(".clone()") == text.count("= key.detach()") == 1


@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("keep", "self.kv_tile_indices[: len(other)].copy_(other.kv_tile_indices)"),
        ("plan", "self.kv_indptr[1 : other + 1] = torch.cumsum(other, dim=0)"),
        ("move", "self.k_buffer[:, self.i] = self.k_buffer[:, self.j]"),
        ("store", "self.k_buffer[:, self.i] = other_fp4"),
        ("load_cpu_copy", "self.k_buffer[:, self.i] = other"),
        ("set_from_flat_page", "self.k_buffer[:, self.i] = other"),
    ],
)
def test_writes_of_what_has_no_graph(function: str, line: str) -> None:
    stays(HEAD + f"class Pool:\n    def {function}(self, other, other_fp4):\n        {line}\n")


def test_a_write_of_a_step_into_such_a_pool() -> None:
    line = "        self.k_buffer[:, self.i] = other\n"
    assert rules(HEAD + f"class Pool:\n    def store(self, other):\n{line}") == ["TRN401"]


BRANCHES = """\
class Workspace:
    def update(self, layer, start, end, k, prompt):
        if prompt:
            self.offset = 0
        else:
            self.kv_cache[layer][:, :, start:end] = k
        keys = self.kv_cache[layer][:, :, :end]
        return keys
"""


def test_what_is_read_behind_a_branch_keeps_its_gradient() -> None:
    """Detached there, the step's own keys would learn nothing."""
    (finding,) = findings(HEAD + BRANCHES)
    assert finding.rule == "TRN401" and "read back" in finding.message
    assert finding.fix("flag") is None
    assert fix(HEAD + BRANCHES, unsafe=True) == HEAD + BRANCHES


GIVEN = """\
class Attention(nn.Module):
    def forward(self, q, k, v, kv_cache, start, end, prompt):
        if prompt:
            out = attend(q, k, v)
        else:
            kv_cache["v"][:, start:end] = v
            values = kv_cache["READ"]
            out = attend(q, k, values[:, :end])
        return out


class Branched(nn.Module):
    def forward(self, q, k, v, kv_cache, start, end, prompt):
        if prompt:
            start = 0
        else:
            kv_cache["v"][:, start:end] = v
        values = kv_cache["READ"]
        return attend(q, k, v, values[:, :end])
"""


def test_a_cache_that_was_given_is_read_by_its_name() -> None:
    """``v.detach()`` would be all that attention reads, and ``v`` would learn nothing."""
    text = HEAD + GIVEN.replace("READ", "v")
    found = findings(text)
    assert [f.rule for f in found] == ["TRN401", "TRN401"]
    first, branched = (f.fix("flag") for f in found)
    assert branched is None and first is not None and first.safety is Safety.UNSAFE
    fixed = fix(text, unsafe=True)
    assert "            values = fresh_kv_cache_v\n" in fixed
    assert fixed.split("\n\n\n")[-1] == text.split("\n\n\n")[-1]


def test_another_entry_of_the_same_dict_is_another_cache() -> None:
    text = GIVEN.split("\n\n\n")[1].replace("READ", "k")
    (finding,) = findings(HEAD + text)
    assert "read back" not in finding.message


ANEW = """\
class Attention(nn.Module):
    def forward(self, q, k, v, kv_cache, start, end, shift):
        RESET
        kv_cache["v"][:, start:end] = v
        return attend(q, k, kv_cache["v"][:, :end])
"""
IN_PLACE = 'kv_cache["v"] = kv_cache["v"].detach().clone()'
IN_BOTH = """\
if shift:
            kv_cache["v"] = kv_cache["v"].detach()[:, shift:]
        else:
            kv_cache["v"] = kv_cache["v"].detach()"""


@pytest.mark.parametrize("reset", [IN_PLACE, IN_BOTH], ids=["once", "in-both-arms"])
def test_a_cache_that_begins_anew_keeps_one_step(reset: str) -> None:
    stays(HEAD + ANEW.replace("RESET", reset), select=("TRN401",))


@pytest.mark.parametrize(
    "reset",
    [
        'kv_cache["k"] = kv_cache["k"].detach()',  # another entry
        'if shift:\n            kv_cache["v"] = kv_cache["v"].detach()',  # not always
        'kv_cache["v"] = kv_cache["v"].clone()',  # with its graph
        'other["v"] = kv_cache["v"].detach()',  # elsewhere
    ],
)
def test_a_cache_that_keeps_its_graph_is_found(reset: str) -> None:
    assert rules(HEAD + ANEW.replace("RESET", reset)) == ["TRN401"]


COPIES = """\
def insert(src_cache, dst_cache, src_block_indices, dst_block_indices):
    blocks = src_cache[src_block_indices]
    dst_cache[dst_block_indices] = blocks.to(dst_cache.device)


def relayout(cache, indices):
    blocks = cache.index_select(0, indices)
    permuted = blocks.transpose(1, 2).flatten(2, 3)
    cache.index_copy_(0, indices, permuted)
"""
LATENT = """\
class Attention(nn.Module):
    def forward(self, x, cos):
        self.seen[:1].copy_(x.detach())
        kv = self.wkv(x)
        kv = self.kv_norm(kv)
        rope = kv[..., -4:] * cos
        kv[..., -4:] = rope
        return self.attend(x, kv)
"""


STAGED = """\
class Experts:
    def install(self, staging, slot_index):
        self._cache[slot_index].copy_(staging, non_blocking=True)
"""


@pytest.mark.parametrize(
    "text", [COPIES, LATENT, STAGED], ids=["blocks-of-caches", "a-step-s-own", "from-the-host"]
)
def test_what_keeps_nothing_of_a_step_stays(text: str) -> None:
    stays(HEAD + text, select=("TRN401",))


BY_TURNS = """\
class Attention(nn.Module):
    def forward(self, q, k, v, cache, start, fills):
        if fills:
            cache["k"][:, :start] = k
            cache["v"][:, :start] = v
        else:
            k = torch.cat((cache["k"][:, :start], k), 1)
            v = torch.cat((cache["v"][:, :start], v), 1)
        return (q @ k.mT).softmax(-1) @ v
"""


def test_a_step_of_several_calls_may_go_back_through_the_cache() -> None:
    """With the graph in the cache, the first call's weights learn by what the second reads."""
    text = HEAD + BY_TURNS
    assert fix(text) == text
    (first, _) = findings(text)
    assert "earlier calls" in first.fixes["flag"].look_at
    kernel = "self.kernel(q, cache, k, v); k, v = k * 1, v * 1"
    alone = 'k = torch.cat((cache["k"][:, :start], k), 1)'
    other = 'v = torch.cat((cache["v"][:, :start], v), 1)'
    served = text.replace(alone, kernel).replace(other, "pass")
    assert fix(served).count(".detach()") == 2


def test_a_pool_that_a_test_fills_stays() -> None:
    stays(
        HEAD
        + """\
def mock_caches(k, k_cache, table):
    for i, block in enumerate(k):
        k_cache[table[i], :] = block
    return k
"""
    )


@pytest.mark.parametrize("cache", ["self.k_cache", "self.cache[0]"])
def test_what_a_helper_caches_and_its_caller_reads_back_is_no_safe_fix(cache: str) -> None:
    """Cached detached, the keys would lose the gradient that attention has by them, in silence."""
    text = """\
        import torch
        from torch import nn


        class Attention(nn.Module):
            def __init__(self, d=8):
                super().__init__()
                self.k, self.q = nn.Linear(d, d), nn.Linear(d, d)
                self.k_cache = torch.zeros(16, d)

            def store(self, k, slots):
                self.k_cache.index_copy_(0, slots, k)

            def forward(self, x):
                slots = torch.arange(x.shape[0])
                k = self.k(x)
                self.store(k, slots)
                return (self.q(x) @ KEYS.T).softmax(-1) @ k
        """
    text = text.replace("self.k_cache =", "self.k_cache, self.cache =").replace(
        "torch.zeros(16, d)", "torch.zeros(16, d), [torch.zeros(16, d)]"
    )
    text = text.replace("self.k_cache.", f"{cache}.")
    read_back = text.replace("KEYS", f"{cache}[: x.shape[0]]")
    (found,) = findings(read_back)
    each = found.fix("flag")
    assert found.rule == "TRN401" and each is not None and each.safety is Safety.UNSAFE
    assert "must read the fresh `k`" in each.look_at
    fresh = fix(text.replace("KEYS", "k"))
    assert "index_copy_(0, slots, k.detach())" in fresh
    scope: dict[str, Any] = {}
    exec(compile(fresh, "m.py", "exec"), scope)
    model = scope["Attention"]()
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
    assert model.k.weight.grad is not None


COPIED = """\
import torch
from torch import nn


class Ring(nn.Module):
    def __init__(self):
        super().__init__()
        self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(2, 6, 8, 4))

    def forward(self, x, slots, at):
        k, v = self.k(x), self.v(x)
        row_cache = self.cache.index_select(1, slots)
        keys = torch.cat((row_cache[0], k), dim=1)
        values = torch.cat((row_cache[1], v), dim=1)
        row_cache[0].scatter_(1, at, k)
        row_cache[1].scatter_(1, at, v)
        self.cache.index_copy_(1, slots, row_cache)
        return (keys @ values.mT).square().sum()
"""


def test_rows_that_are_copied_out_are_no_cache_but_what_they_are_written_back_to() -> None:
    (found,) = findings(COPIED)
    assert (found.rule, found.line) == ("TRN401", 18)
    fixed = fix(COPIED, unsafe=True)
    assert "self.cache.index_copy_(1, slots, row_cache.detach())" in fixed
    space: dict[str, Any] = {}
    exec(fixed, space)
    ring = space["Ring"]()
    for _ in range(2):  # as written, the second step raises
        at = torch.arange(3)[None, :, None].expand(2, 3, 4)
        ring(torch.randn(2, 3, 4), torch.tensor([1, 4]), at).backward()
    assert all(p.grad is not None for p in ring.parameters())
