"""The cases of all modules of reference functions."""

from __future__ import annotations

from tests.reference import cases, cases_norm, cases_rope

CASES = [*cases.CASES, *cases_norm.CASES, *cases_rope.CASES]
