"""Caches that an update writes and hands out whole, run: right gradients, the same values."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest
import torch
from verbs import findings, fix, stays

LAYER = """\
import torch


class StaticLayer:
    def __init__(self):
        self.keys = torch.zeros(1, 2, 6, 4)
        self.values = torch.zeros(1, 2, 6, 4)
        self.length = torch.tensor(0)

    def update(self, key_states, value_states):
        n = key_states.shape[-2]
        position = torch.arange(n) + self.length
        self.length.add_(n)
{body}
"""
COPIES = (
    "self.keys.index_copy_(2, position, key_states)\n"
    "self.values.index_copy_(2, position, value_states)\n"
)
SUBSCRIPTS = "self.keys[:, :, position] = key_states\nself.values[:, :, position] = value_states\n"
RETURN = "return self.keys, self.values\n"
TRY = (
    f"try:\n{textwrap.indent(COPIES, '    ')}except NotImplementedError:\n"
    f"{textwrap.indent(SUBSCRIPTS, '    ')}"
)
FAULTS = {
    "methods": COPIES + RETURN,
    "subscripts": SUBSCRIPTS + RETURN,
    "try": TRY + RETURN,
    "branch": f"if n > 0:\n{textwrap.indent(COPIES + RETURN, '    ')}return None, None\n",
    "sliced": COPIES + "return self.keys[:, :, :6], self.values\n",
    "something between": COPIES + "self.calls = 1\n" + RETURN,
}


def layer(body: str) -> str:
    return LAYER.format(body=textwrap.indent(body, "        "))


def run(text: str, *, grad: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What two updates hand out, and the gradients of their keys and values by half a square."""
    scope: dict[str, Any] = {}
    exec(compile(text, "layer", "exec"), scope)
    torch.manual_seed(0)
    made = scope["StaticLayer"]()
    given, handed_out = [], []
    for _ in range(2):
        fresh = [torch.randn(1, 2, 3, 4, requires_grad=grad) for _ in range(2)]
        out = made.update(*(each * 1.0 for each in fresh))
        if grad:
            sum(each.square().sum() / 2 for each in out).backward()
        given += fresh
        handed_out += [each.detach().clone() for each in out]
    assert not made.keys.requires_grad or not grad
    return handed_out, [each.grad - each.detach() for each in given if each.grad is not None]


@pytest.mark.parametrize("body", FAULTS.values(), ids=FAULTS)
def test_fresh_values_are_handed_out(body: str) -> None:
    with pytest.raises(RuntimeError, match="second time"):
        run(layer(body), grad=True)
    assert {f.rule for f in findings(layer(body))} == {"TRN401"}
    assert fix(layer(body)) == layer(body)  # earlier calls may be part of the same graph
    fixed = fix(layer(body), unsafe=True)
    assert not findings(fixed)
    expected, _ = run(layer(body), grad=False)
    for grad in (False, True):
        found, errors = run(fixed, grad=grad)
        assert all(map(torch.equal, found, expected))
        assert len(errors) == 4 * grad
        for error in errors:
            torch.testing.assert_close(error, torch.zeros_like(error))


@pytest.mark.parametrize(
    "body",
    [
        f"if n > 1:\n{textwrap.indent(COPIES, '    ')}{RETURN}",  # may not have run
        f"{COPIES}position = position + 1\n{RETURN}",
        f"{COPIES}position.add_(1)\n{RETURN}",
        f"{COPIES}key_states = key_states * 2\n{RETURN}",
        "self.keys.index_copy_(2, self.length + position, key_states)\nself.length.add_(1)\n"
        "return self.keys\n",
        f"{COPIES}{COPIES}{RETURN}",
        f"{COPIES}if n > 3:\n    return None, None\n{RETURN}",
        f"try:\n{textwrap.indent(COPIES, '    ')}except NotImplementedError:\n    pass\n{RETURN}",
        f"fresh_keys = 1\n{COPIES}{RETURN}",
    ],
)
def test_what_cannot_be_put_together_is_reported(body: str) -> None:
    text = layer(body)
    found = findings(text)
    assert found and not any(finding.fixes for finding in found)
    assert all("Not rewritten" in finding.message for finding in found)
    assert fix(text, unsafe=True) == text


def test_arrays_of_another_library_stay() -> None:
    text = layer(COPIES + RETURN)
    assert findings(text)
    stays(text.replace("import torch", "import mlx.core as mx"))


def shortened(text: str) -> str:
    for old, new in (("keys", "k"), ("values", "v")):
        text = re.sub(rf"(self\.|fresh_){old}\b", rf"\g<1>{new}", text)
    return text.replace("StaticLayer", "KVCache")


def test_one_letter_names_in_a_class_for_caches() -> None:
    """The fix is the one that is run above, by other names."""
    text = layer(SUBSCRIPTS + RETURN)
    short = shortened(text)
    assert "self.k[:, :, position] = key_states" in short
    assert {f.rule for f in findings(short)} == {"TRN401"}
    assert fix(short, unsafe=True) == shortened(fix(text, unsafe=True))
    stays(short.replace("KVCache", "Window"))
    stays(short.replace("torch.zeros(1, 2, 6, 4)", "{}").replace("[:, :, position]", "[position]"))
    stays(short.replace("    def update", "    @torch.no_grad()\n    def update"))
