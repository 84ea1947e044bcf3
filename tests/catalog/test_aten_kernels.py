"""ATen ops without a derivative that run here: the op against its equivalent."""

from __future__ import annotations

import ast

import pytest
import torch
import torch.nn.functional as F

from tests.catalog.test_rows import FUNCTIONS, example, parsed
from trainify.catalog import lookup

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
    arguments = example(row)
    positional = [a.name for a in row.signature.arguments if not a.kwarg_only]
    named = {a.name: arguments[a.name] for a in row.signature.arguments if a.kwarg_only}
    got = op(*(arguments[n] for n in positional), **named)
    _, value = parsed(row)
    scope = {"torch": torch, "F": F, **FUNCTIONS}
    want = eval(compile(ast.Expression(value), name, "eval"), scope, arguments)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        torch.testing.assert_close(g, w)
