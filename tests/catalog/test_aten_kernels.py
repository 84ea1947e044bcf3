"""ATen ops without a derivative that run here: the op against its equivalent."""

from __future__ import annotations

import ast

import pytest
import torch
import torch.nn.functional as F

from tests.catalog.test_rows import FUNCTIONS, example, parsed
from trainify.catalog import lookup
from trainify.engine import check_text

NAMES = """
    torch.ops.aten.scatter.reduce torch.ops.aten._stack torch.ops.aten._logcumsumexp
    torch.ops.prims.add torch.ops.aten._embedding_bag_forward_only
    torch.ops.aten._transform_bias_rescale_qkv torch.ops.aten._native_multi_head_attention
    torch.ops.aten._transformer_encoder_layer_fwd
""".split()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_op_gives_what_the_equivalent_gives(name: str) -> None:
    row = lookup(name)
    assert row is not None
    op = torch.ops
    for part in name.split(".")[2:]:
        op = getattr(op, part)
    arguments = example(row, all_of_them=True)
    positional = [a.name for a in row.signature.arguments if not a.kwarg_only]
    named = {a.name: arguments[a.name] for a in row.signature.arguments if a.kwarg_only}
    got = op(*(arguments[n] for n in positional), **named)
    _, value = parsed(row)
    scope = {"torch": torch, "F": F, **FUNCTIONS}
    want = eval(compile(ast.Expression(value), name, "eval"), scope, arguments)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        torch.testing.assert_close(g, w)


@torch.no_grad()
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_scaled_products(rows: bool, out_dtype: torch.dtype) -> None:
    a = torch.randn(32, 48).to(torch.float8_e4m3fn)
    b = torch.randn(16, 48).to(torch.float8_e4m3fn).t()
    scales = (torch.rand(32, 1), torch.rand(1, 16)) if rows else (torch.rand(1), torch.rand(1))
    recipe = F.ScalingType.RowWise if rows else F.ScalingType.TensorWise
    want = FUNCTIONS["scaled_mm"](a, b, *scales, out_dtype)
    got = F.scaled_mm(a, b, scales[0], recipe, scales[1], recipe, output_dtype=out_dtype)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if out_dtype == torch.bfloat16 else {}
    torch.testing.assert_close(got, want, **tolerance)
    number = [recipe.value]
    again = torch._scaled_mm_v2(
        a, b, [scales[0]], number, [], [scales[1]], number, [], None, out_dtype
    )
    torch.testing.assert_close(again, want, **tolerance)


@pytest.mark.parametrize("text", ["F.scaled_mm", "torch.nn.functional.scaled_mm"])
def test_the_public_product_is_found(text: str) -> None:
    found = check_text(
        f"import torch\nimport torch.nn.functional as F\n\n\ndef f(a, b, s, t, kind):\n"
        f"    return {text}(a, b, s, kind, t, kind)\n"
    )
    assert [finding.rule for finding in found] == ["TRN101"]
    assert "recipes must be TensorWise or RowWise" in found[0].fixes["flag"].look_at
