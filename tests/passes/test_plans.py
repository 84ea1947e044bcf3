"""Finding first and planning afterwards finds what doing both at once does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.each import in_turn
from trainify import check_text, fix_text
from trainify.engine import Check, Options
from trainify.findings import STRATEGIES
from trainify.passes import all_rules

CASES = Path(__file__).parents[1] / "cases"
TEXTS = {rule.code: rule.before for rule in all_rules().values()}
TEXTS |= {path.parent.name: path.read_text() for path in sorted(CASES.glob("*/before.py"))}


NORM = """\
from torch import nn
from vllm import _custom_ops as ops


class Norm(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape)
        ops.rms_norm(out, x, self.weight, 1e-6)
        return out
"""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_other_strategies_would_do_is_not_worked_out_to_fix(strategy: str) -> None:
    (applied,) = fix_text(NORM, "a.py", Options(strategy=strategy)).applied
    assert set(applied.fixes) == ({"attach"} if strategy == "attach" else {"flag", "replace"})
    (found,) = check_text(NORM, "a.py", Options(strategy=strategy))
    assert set(found.fixes) == set(STRATEGIES)
    assert found.fix(strategy) == applied.fix(strategy)


@pytest.mark.parametrize(("name", "strategy"), in_turn(list(TEXTS), STRATEGIES))
def test_alone_a_strategy_fixes_the_same(name: str, strategy: str) -> None:
    alone, beside = (
        check_text(TEXTS[name], "a.py", Options(strategy=strategy, others=others))
        for others in (False, True)
    )
    for one, all_ in zip(alone, beside, strict=True):
        assert one.fix(strategy) == all_.fix(strategy)
        assert (one.message, bool(one.fixes)) == (all_.message, bool(all_.fixes))


@pytest.mark.parametrize("name", TEXTS)
def test_in_two_steps(name: str) -> None:
    at_once = check_text(TEXTS[name], "a.py")
    check = Check(TEXTS[name], "a.py")
    first = check.findings(plan=False)
    assert [(f.rule, f.start, f.end) for f in first] == [(f.rule, f.start, f.end) for f in at_once]
    for found, complete in zip(first, at_once, strict=True):
        assert complete.message.startswith(found.message)
        assert found.fixes in ({}, complete.fixes)
        assert replace(found, fixes={}, message="") == replace(complete, fixes={}, message="")
    assert check.findings() == at_once
    assert check.findings(plan=False) == at_once
