"""The cases of all modules of reference functions."""

from __future__ import annotations

from tests.reference import (
    cases,
    cases_attention,
    cases_matmul,
    cases_moe,
    cases_norm,
    cases_rope,
    cases_state_space,
)

CASES = [
    *cases.CASES,
    *cases_attention.CASES,
    *cases_matmul.CASES,
    *cases_moe.CASES,
    *cases_norm.CASES,
    *cases_rope.CASES,
    *cases_state_space.CASES,
]
