"""What is said of an argument that keeps a call from being rewritten."""

from __future__ import annotations

import pytest

from trainify.catalog import all_ops
from trainify.catalog.arguments import ASKS
from trainify.engine import Options, check_text


def test_each_is_of_some_op() -> None:
    assert {name for op in all_ops() for name in op.unsupported} >= ASKS.keys()


@pytest.mark.parametrize("name", ["alibi_slopes", "k", "return_softmax_lse", "cache_batch_idx"])
def test_a_call_that_is_not_rewritten_says_why(name: str) -> None:
    text = f"""\
from flash_attn import flash_attn_with_kvcache


def attend(q, k_cache, v_cache, lengths, given):
    return flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, {name}=given)
"""
    (finding,) = check_text(text, "m.py", Options())
    assert f"Not rewritten: `{name}` is passed, which {ASKS[name]}." in finding.message
