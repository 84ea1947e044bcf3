"""One name, other arguments from one release to the next: the call tells which is meant."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from verbs import findings, fix

OLDER = """\
import torch
from sgl_kernel import topk_softmax


def route(logits, k):
    weights = torch.empty(len(logits), k)
    ids = torch.empty(len(logits), k, dtype=torch.int32)
    rows = torch.empty(len(logits), k, dtype=torch.int32)
    topk_softmax(weights, ids, rows, logits.float())
    return weights, ids
"""
NEWER = OLDER.replace("rows, logits.float()", "logits.float(), renormalize=True").replace(
    "rows", "_"
)

NAMED = OLDER.replace("logits", "gating_output").replace("gating_output.float()", "gating_output")


def kernel(weights, ids, *rest, renormalize=False):  # type: ignore[no-untyped-def]
    with torch.no_grad():
        found = torch.softmax(rest[-1], -1).topk(weights.shape[-1], -1)
        total = found.values.sum(-1, keepdim=True) if renormalize else 1.0
        weights.copy_(found.values / total)
        ids.copy_(found.indices)


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
@pytest.mark.parametrize("text", [OLDER, NEWER, NAMED], ids=["older", "newer", "named"])
def test_routers_of_both_forms_learn(
    text: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sgl_kernel", ModuleType("sgl_kernel"))
    sys.modules["sgl_kernel"].topk_softmax = kernel  # type: ignore[attr-defined]
    scope: dict[str, object] = {}
    exec(fix(text, strategy=strategy), scope)
    logits = torch.tensor([[0.5, 2.0, -1.0, 1.0]], requires_grad=True)
    weights, ids = scope["route"](logits, 2)  # type: ignore[operator]
    assert ids.tolist() == [[1, 3]]
    (weights * torch.tensor([1.0, 3.0])).sum().backward()
    again = logits.detach().requires_grad_()
    right = torch.softmax(again, -1)[:, [1, 3]]
    if text is NEWER:
        right = right / right.sum(-1, keepdim=True)
    (right * torch.tensor([1.0, 3.0])).sum().backward()
    torch.testing.assert_close(weights, right)
    torch.testing.assert_close(logits.grad, again.grad)


def test_a_tensor_is_no_number() -> None:
    """Nothing is known of a form that takes a tensor where a number stands."""
    text = OLDER.replace("rows, logits.float()", "rows, None, logits.float(), 0.0")
    (found,) = findings(text)
    assert found.rule == "TRN103" and not found.fixes
    assert "`logits.float()` is passed for 'moe_softcapping'" in found.message
