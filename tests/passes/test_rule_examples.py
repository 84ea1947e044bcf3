"""Each rule carries its own before and after; they hold to the byte."""

from __future__ import annotations

import re

import pytest
from verbs import becomes, rules

from trainify.passes import Rule, all_passes, all_rules

EXAMPLES = [rule for rule in all_rules().values() if rule.before]


@pytest.mark.parametrize("rule", EXAMPLES, ids=lambda rule: rule.code)
def test_the_example_is_found_by_its_rule(rule: Rule) -> None:
    assert rule.code in rules(rule.before)


@pytest.mark.parametrize("rule", [r for r in EXAMPLES if r.after], ids=lambda rule: rule.code)
def test_the_example_becomes_what_the_rule_says(rule: Rule) -> None:
    becomes(rule.before, rule.after, unsafe=True)


@pytest.mark.parametrize("rule", EXAMPLES, ids=lambda rule: rule.code)
def test_the_object_may_have_another_name(rule: Rule) -> None:
    before, after = (re.sub(r"\bself\b", "this", text) for text in (rule.before, rule.after))
    assert rule.code in rules(before)
    if after:
        becomes(before, after, unsafe=True)


def test_every_rule_is_documented_once() -> None:
    codes = [rule.code for each in all_passes() for rule in each.RULES]
    assert len(codes) == len(set(codes)) == len(all_rules())
    for rule in all_rules().values():
        assert rule.summary.endswith(".") and rule.why.endswith(".")
        assert rule.name == rule.name.lower() and " " not in rule.name
