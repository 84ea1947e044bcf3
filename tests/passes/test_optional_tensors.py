"""Tensors that may be None: the test whether a gradient is wanted asks for that, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import becomes, fix, rules, stays

from trainify.engine import fix_paths

HEAD = "import torch\nimport torch.nn.functional as F\nfrom vllm import _custom_ops as ops\n\n\n"


def test_a_weight_that_may_be_none() -> None:
    becomes(
        HEAD
        + """\
def f(x, w=None):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, w, 1e-6)
    return out
""",
        HEAD
        + """\
def f(x, w=None):
    if torch.is_grad_enabled() and (
        x.requires_grad or (w is not None and w.requires_grad)
    ):
        out = F.rms_norm(x, x.shape[-1:], w, 1e-6)
    else:
        out = torch.empty_like(x)
        ops.rms_norm(out, x, w, 1e-6)
    return out
""",
    )


def test_more_than_can_be_spelled_out() -> None:
    text = (
        HEAD
        + """\
def f(self, x, y):
    a = torch.empty_like(x)
    ops.rms_norm(a, x, self.w1, 1e-6)
    b = torch.empty_like(y)
    ops.rms_norm(b, y, self.w2, 1e-6)
    return a, b
"""
    )
    wanted = (
        "any(\n        t is not None and t.requires_grad for t in (x, self.w1, y, self.w2)\n    )"
    )
    assert wanted in fix(text)


@pytest.mark.parametrize("key", ["key.view(-1, 8)", "key.data"])
def test_what_has_methods_is_not_none(key: str) -> None:
    text = (
        HEAD
        + f"""\
def f(self, positions, query, key, table):
    ops.rotary_embedding(positions, query, {key}, 64, table, True)
    return query, key
"""
    )
    assert "is not None" not in fix(text, unsafe=True).partition("def f(")[2]


def test_an_annotated_tensor_is_not_none() -> None:
    text = (
        HEAD
        + """\
def f(self, positions, query: torch.Tensor, key: torch.Tensor, table: torch.Tensor):
    ops.rotary_embedding(positions, query, key, 64, table, True)
    return query, key
"""
    )
    assert "if query.requires_grad or key.requires_grad:" in fix(text, unsafe=True)


ROTATE = (
    HEAD
    + """\
def f(self, positions, query: torch.Tensor, key{0}, table: torch.Tensor = None):
    {1}
        ops.rotary_embedding(positions, query, key, 64, table, True)
    return query, key
"""
)
OPTIONAL = "query.requires_grad or (key is not None and key.requires_grad)"
PLAIN = "query.requires_grad or key.requires_grad"


@pytest.mark.parametrize("annotation", ["=None", ": torch.Tensor = None", ", *"])
def test_a_default_of_none(annotation: str) -> None:
    assert OPTIONAL in fix(ROTATE.format(annotation, "if self.on:"), unsafe=True)


@pytest.mark.parametrize(
    ("test", "wanted"),
    [
        ("if key is not None:", PLAIN),
        ("if self.on and key is not None:", PLAIN),
        ("if not (key is None or self.off):", PLAIN),
        ("assert key is not None\n    if self.on:", PLAIN),
        ("if key is None:\n        return query\n    if self.on:", PLAIN),
        ("if key is None:\n        pass\n    else:", PLAIN),
        ("if self.on or key is not None:", OPTIONAL),
        ("if not (key is None and self.off):", OPTIONAL),
        ("if query is not None:", OPTIONAL),
        ("if key is None:\n        self.seen = True\n    if self.on:", OPTIONAL),
        ("if self.off and key is None:\n        return query\n    if self.on:", OPTIONAL),
    ],
)
def test_a_test_for_none_before_the_call(test: str, wanted: str) -> None:
    text = fix(ROTATE.format(": torch.Tensor = None", test), unsafe=True)
    assert f"if {wanted}:" in text


def test_the_twin_of_a_layer() -> None:
    text = """\
import torch
from typing import Optional
from vllm import _custom_ops as ops
from vllm.model_executor.custom_op import CustomOp


class Gate(CustomOp):
    def forward_native(self, x: torch.Tensor, bias: {0} = None) -> torch.Tensor:
        return torch.sigmoid(x if bias is None else x + bias)

    def forward_cuda(self, x: torch.Tensor, bias: {0} = None) -> torch.Tensor:
        return torch.ops.vllm.fused_mla_dual_rms_norm(x, bias)
"""
    wanted = "x.requires_grad or (bias is not None and bias.requires_grad)"
    for annotation in ("Optional[torch.Tensor]", "torch.Tensor | None", "torch.Tensor"):
        assert wanted in fix(text.replace("{0}", annotation))


@pytest.mark.parametrize(
    ("test", "wanted"),
    [
        ("w is not None and w.requires_grad or x.requires_grad", True),
        ("x.requires_grad or w is not None and w.requires_grad", True),
        ("(w is None or not w.requires_grad) and not x.requires_grad", False),
    ],
)
def test_a_kernel_behind_such_a_test_is_right(test: str, wanted: bool) -> None:
    plain = "return F.rms_norm(x, x.shape[-1:], w, 1e-6)"
    kernel = "return ops.rms_norm(torch.empty_like(x), x, w, 1e-6)"
    first, last = (plain, kernel) if wanted else (kernel, plain)
    stays(HEAD + f"def f(x, w=None):\n    if {test}:\n        {first}\n    {last}\n")


@pytest.mark.parametrize("test", ["w is not None", "w is not None and x.is_cuda"])
def test_whether_it_is_none_says_nothing_of_gradients(test: str) -> None:
    text = (
        HEAD
        + f"""\
def f(x, w=None):
    if {test}:
        x = x + 1
    else:
        ops.rms_norm(x, x, w, 1e-6)
    return x
"""
    )
    assert rules(text) == ["TRN101"]


@pytest.mark.parametrize("strategy", ["flag", "attach", "replace"])
def test_a_key_that_may_be_none_is_written_only_where_there_is_one(strategy: str) -> None:
    text = """\
import torch


def rope(positions, query, key, table):
    torch.ops.sgl_kernel.rotary_embedding(positions, query, key, 4, table, True)
"""
    fixed = fix(text, strategy=strategy, unsafe=True)
    assert "key = None if key is None else key.copy_(key_new)" in fixed
    annotated = fix(text.replace("key,", "key: torch.Tensor,", 1), strategy=strategy, unsafe=True)
    assert " key.copy_(key_new)\n" in annotated
    assert "key = None if" not in annotated
    if strategy == "replace":
        space: dict[str, Any] = {}
        exec(fixed, space)
        query = torch.randn(3, 8)
        before = query.clone()
        space["rope"](torch.arange(3), query, None, torch.randn(3, 4))
        assert not torch.equal(query, before)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_weight_that_a_subclass_takes_away(tmp_path: Path, elsewhere: bool) -> None:
    text = (
        HEAD
        + """\
class Norm(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(d))

    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight, 1e-6)
        return out
"""
    )
    bare = """\
class Bare(Norm):
    def __init__(self, d):
        super().__init__(d)
        self.weight = None
"""
    files = {"norm": text if elsewhere else f"{text}\n\n{bare}"}
    if elsewhere:
        files["bare"] = f"from norm import Norm\n\n\n{bare}"
    for name, each in files.items():
        (tmp_path / f"{name}.py").write_text(each)
    (fixed,) = (r.text for r in fix_paths([str(tmp_path)]) if r.change)
    assert "self.weight is not None and self.weight.requires_grad" in fixed
    assert "is not None" not in fix(text)
