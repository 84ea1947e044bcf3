"""Rows under strategy attach: the kernel's results to the bit, the gradients of the equivalent."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.catalog.test_rows import FUNCTIONS, OF_A_KIND, REWRITTEN, example, identify, parsed
from tests.each import case
from trainify.catalog import RETURNED, FusedOp, split_since
from trainify.engine import Options, fix_text
from trainify.releases import Release

SCOPE = {"torch": torch, "F": F, **FUNCTIONS}


def equivalent(op: FusedOp, arguments: dict[str, Any]) -> tuple[Any, ...]:
    _, value = parsed(op)
    result = eval(compile(ast.Expression(value), op.names[0], "eval"), SCOPE, arguments)
    return result if isinstance(result, tuple) else (result,)


def kernel(op: FusedOp) -> Callable[..., Any]:
    """What the row says of the op, without a backward: it writes and returns as the schema has it."""
    targets, _ = parsed(op)
    names = [a.name for a in op.signature.arguments]
    defaults = {a.name: eval(a.default or "None", SCOPE) for a in op.signature.arguments}

    def run(*args: Any, **kwargs: Any) -> Any:
        assert not torch.is_grad_enabled()
        arguments = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        results = equivalent(op, arguments)
        if targets is None:
            return list(results) if len(results) > 1 else results[0]
        returned = None
        for name, result in zip(targets, results, strict=True):
            if name == RETURNED:
                returned = result
            elif result is not None:
                arguments[name].copy_(result)
        return returned

    return run


def source(op: FusedOp, arguments: dict[str, Any], literal: bool) -> tuple[str, list[str]]:
    """A function that makes its buffers and calls the op, below one line that binds ``fused``."""
    targets, value = parsed(op)
    reads = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    buffers = [a.name for a in op.signature.written if a.name not in reads and targets]
    passed = [n for n in arguments if n not in buffers]
    spelled = {
        n: repr(arguments[n])
        for n in passed
        if arguments[n] is None or (literal and "tensor(" not in repr(arguments[n]))
    }
    parts, named = [], False
    for a in op.signature.arguments:
        named = named or a.kwarg_only or a.name not in arguments
        if a.name in arguments:
            text = spelled.get(a.name, a.name)
            parts.append(f"{a.name}={text}" if named else text)
    call = f"fused({', '.join(parts)})"
    parameters = [n for n in passed if n not in spelled] + [f"{n}_shape" for n in buffers]
    lines = [f"    {n} = torch.empty({n}_shape)" for n in buffers]
    if targets is None:
        lines.append(f"    return {call}")
    else:
        outputs = ["returned" if t == RETURNED else t for t in targets]
        lines.append(f"    returned = {call}" if RETURNED in targets else f"    {call}")
        lines.append(f"    return {', '.join(n for n in outputs if n in (*arguments, 'returned'))}")
    name = op.names[0]
    owner, _, last = name.rpartition(".")
    bind = (
        f"fused = {name}" if name.startswith("torch.") else f"from {owner} import {last} as fused"
    )
    if "(" in name:
        bind = f"import kernels; fused = {name}"
    body = f"def f({', '.join(parameters)}):\n" + "\n".join(lines) + "\n"
    return f"import torch\n{bind}\n\n\n{body}", parameters


@pytest.mark.parametrize("number", range(len(OF_A_KIND)), ids=map(identify, OF_A_KIND))
def test_a_row_of_each_kind(number: int) -> None:
    """Every other one with its options spelled out in the call."""
    results_of_the_kernel_and_gradients_of_the_equivalent(OF_A_KIND[number], number % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("literal", [False, True], ids=["names", "literals"])
@pytest.mark.parametrize("part", range(4))
def test_every_row(part: int, literal: bool) -> None:
    for op in REWRITTEN[part::4]:
        with case(identify(op)):
            results_of_the_kernel_and_gradients_of_the_equivalent(op, literal)


def results_of_the_kernel_and_gradients_of_the_equivalent(op: FusedOp, literal: bool) -> None:
    arguments = example(op)
    for a in op.signature.arguments:
        if a.name in op.unsupported:
            arguments.pop(a.name, None)
        if a.default is None:
            arguments.setdefault(a.name, None)
    if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments.values()):
        return  # nothing to train
    text, parameters = source(op, arguments, literal)
    for name in op.loses:  # by its own name it may be a mask, which nothing trains
        text = re.sub(rf"\b{name}\b(?!=)", "bias", text)
    library, specifier = split_since(op)
    releases = (Release(library, specifier, "uv.lock"),) if op.since else ()
    options = Options(strategy="attach", unsafe=True, releases=releases)
    result = fix_text(text, "m.py", options)
    if "_fp8" in (op.equivalent or "") or "_quant(" in (op.equivalent or ""):
        (finding,) = result.remaining
        assert "Not rewritten: it gives quantized codes" in finding.message
        return
    assert "torch.autograd.Function" in result.text, result.remaining
    scope: dict[str, Any] = {"fused": kernel(op)}
    bind = text.splitlines()[1]
    exec(compile(result.text.replace(f"{bind}\n", "", 1), "m.py", "exec"), scope)

    results = equivalent(op, arguments)
    targets, _ = parsed(op)
    shapes = {
        f"{n}_shape": r.shape for n, r in zip(targets or (), results, strict=False) if r is not None
    }
    got = scope["f"](*[{**arguments, **shapes}[p] for p in parameters])
    got = got if isinstance(got, tuple) else (got,)
    pairs = [
        (g, r)
        for g, r in zip(
            (g for g in got if g is not None), (r for r in results if r is not None), strict=True
        )
    ]
    assert all(torch.equal(g, r) for g, r in pairs)
    pairs = [(g, r) for g, r in pairs if r.requires_grad]
    assert pairs and all(g.requires_grad for g, _ in pairs)
    leaves = [t for t in arguments.values() if isinstance(t, torch.Tensor) and t.requires_grad]
    weights = [torch.randn_like(r) for _, r in pairs]
    found, expected = (
        torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
        for outputs in zip(*pairs, strict=True)
    )
    for f, e in zip(found, expected, strict=True):
        assert (f is None) == (e is None)
        if e is not None:
            torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-5)
