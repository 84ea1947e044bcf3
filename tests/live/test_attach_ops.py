"""`trainify.attach`: kernels that are registered get a backward, and keep their forward."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_kernels import router
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trainify
from tests.each import case
from trainify.catalog.own import _registered
from trainify.live.attach import _attached
from trainify.live.overwritten import _kept
from trainify.reference import activation, norm, rope
from trainify.reference.double import exact_in_double
from trainify.reference.softmax import softmax

T, H, HEADS, D = 6, 32, 4, 8


def table() -> Tensor:
    angles = torch.outer(torch.arange(16.0), 1 / 10000 ** (torch.arange(0, D, 2) / D))
    return torch.cat((angles.cos(), angles.sin()), -1)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, w, 1e-6)
    return out


def add_norm(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
    x, r = x * 1, r * 1
    torch.ops._C.fused_add_rms_norm(x, r, w, 1e-6)
    return x * 2 + r


def rotary(q: Tensor, k: Tensor) -> Tensor:
    q, k = q * 1, k * 1
    torch.ops._C.rotary_embedding(torch.arange(T), q, k, D, table(), True)
    return q * k


def rotary_of_slices(qk: Tensor) -> Tensor:
    """In place on views of a tensor whose other columns have a gradient of their own."""
    qkv = torch.cat((qk, qk[:, :4]), 1) * 1
    q, k = qkv[:, :H], qkv[:, H : 2 * H]
    torch.ops._C.rotary_embedding(torch.arange(T), q, k, D, table(), False)
    return qkv * qkv.detach().roll(1, 0)


def silu(x: Tensor) -> Tensor:
    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    torch.ops._C.silu_and_mul(out, x)
    return out


def silu_into_a_part(x: Tensor) -> Tensor:
    """Into columns of a tensor with a history; the others keep theirs."""
    out = torch.cat((x, x), 1) * 1
    torch.ops._C.silu_and_mul(out[:, : x.shape[1] // 2], x)
    return out


def by_reference_part(x: Tensor) -> Tensor:
    gate_up = activation.silu_and_mul(x)
    return torch.cat((gate_up, torch.cat((x, x), 1)[:, gate_up.shape[1] :]), 1)


def by_reference_slices(qk: Tensor) -> Tensor:
    q, k = rope.rotary_embedding(torch.arange(T), qk[:, :H], qk[:, H:], D, table(), False)
    qkv = torch.cat((q, k, qk[:, :4]), 1)
    return qkv * qkv.detach().roll(1, 0)


def by_reference_add(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
    x, r = norm.fused_add_rms_norm(x, r, w, 1e-6)
    return x * 2 + r


def by_reference_rotary(q: Tensor, k: Tensor) -> Tensor:
    q, k = rope.rotary_embedding(torch.arange(T), q, k, D, table(), True)
    return q * k


CALLS: dict[
    str, tuple[str, Callable[..., Tensor], Callable[..., Tensor], list[tuple[int, ...]]]
] = {
    "out": (
        "_C::rms_norm",
        rms_norm,
        lambda x, w: norm.rms_norm(x, w, 1e-6),
        [(T, H), (H,)],
    ),
    "in place": ("_C::fused_add_rms_norm", add_norm, by_reference_add, [(T, H), (T, H), (H,)]),
    "not first": (
        "_C::rotary_embedding",
        rotary,
        by_reference_rotary,
        [(T, H), (T, H)],
    ),
    "slices": ("_C::rotary_embedding", rotary_of_slices, by_reference_slices, [(T, 2 * H)]),
    "packed": ("_C::silu_and_mul", silu, activation.silu_and_mul, [(T, 2 * H)]),
    "into a part": ("_C::silu_and_mul", silu_into_a_part, by_reference_part, [(T, 2 * H)]),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Any:
    return CALLS[request.param]


def inputs(shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


@pytest.fixture(autouse=True)
def _nothing_stays_attached() -> Iterator[None]:
    tag = torch.compiler.config.cache_key_tag
    yield
    assert torch.compiler.config.cache_key_tag == tag
    assert not rms_norm(*inputs([(T, H), (H,)])).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_the_reference_and_bits_of_the_kernel(call: Any, dtype: torch.dtype) -> None:
    op, run, reference, shapes = call
    given = inputs(shapes, dtype)
    with torch.no_grad():
        served = run(*given)
    weight = torch.randn_like(served)
    with trainify.attach(op):
        result = run(*given)
        found = torch.autograd.grad((result * weight).sum(), given)
    assert torch.equal(result, served)
    right = torch.autograd.grad((reference(*given) * weight).sum(), given)
    for ours, theirs in zip(found, right, strict=True):
        tolerance = 1e-6 if dtype == torch.float32 else 2e-2
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def test_without_a_gradient_only_the_kernel_runs(call: Any, monkeypatch: Any) -> None:
    op, run, _, shapes = call
    with trainify.attach(op) as attached:
        (formula,) = attached._formulas
        monkeypatch.setattr(type(formula.equivalent), "__call__", None)
        with torch.no_grad():
            assert not run(*inputs(shapes)).requires_grad
        with torch.inference_mode():
            run(*inputs(shapes))
        run(*(t.detach() for t in inputs(shapes)))


def test_a_buffer_that_is_used_again_keeps_no_graph() -> None:
    buffer = torch.empty(T, H)
    x, w = inputs([(T, H), (H,)])
    with trainify.attach("_C::rms_norm"):
        for _ in range(3):
            torch.ops._C.rms_norm(buffer, x * 1, w, 1e-6)
            buffer.sum().backward()
    expected = torch.autograd.grad(3 * F.rms_norm(x, (H,), w, 1e-6).sum(), [x, w])
    torch.testing.assert_close([x.grad, w.grad], list(expected))


def test_an_input_that_is_overwritten() -> None:
    x, w = inputs([(T, H), (H,)])
    with trainify.attach("_C::rms_norm"):
        y = x * 1
        torch.ops._C.rms_norm(y, y, w, 1e-6)
        found = torch.autograd.grad(y.square().sum(), [x, w])
    right = torch.autograd.grad(F.rms_norm(x, (H,), w, 1e-6).square().sum(), [x, w])
    torch.testing.assert_close(found, right)


Defined = Callable[[str, str, Callable[..., Any]], str]


@pytest.fixture
def defined() -> Iterator[Defined]:
    """Defines and registers an op by its schema, its equivalent, and a kernel; its name."""
    library = torch.library.Library("trainify_tests", "FRAGMENT")
    before = list(_registered)

    def define(schema: str, equivalent: str, kernel: Callable[..., Any]) -> str:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, kernel, "CPU")
        trainify.register(f"torch.ops.trainify_tests.{name}", schema, equivalent)
        return f"trainify_tests::{name}"

    yield define
    _registered[:] = before
    library._destroy()


def doubles(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(s, dtype=torch.double, requires_grad=True) for s in shapes]


@pytest.mark.parametrize(
    ("schema", "equivalent", "shapes"),
    [
        ("(Tensor x)", "silu_and_mul(x)", [(3, 8)]),
        ("(Tensor x)", "gelu_and_mul(x)", [(3, 8)]),
        ("(Tensor x)", "gelu_tanh_and_mul(x)", [(3, 8)]),
        ("(Tensor x)", "softmax(x)", [(3, 8)]),
        ("(Tensor x, Tensor w)", "rms_norm(x, w, 1e-6)", [(3, 8), (8,)]),
        ("(Tensor x, Tensor w)", "gemma_rms_norm(x, w, 1e-6)", [(3, 8), (8,)]),
        ("(Tensor x, Tensor w, Tensor b)", "layer_norm(x, w, b, 1e-5)", [(3, 8), (8,), (8,)]),
    ],
)
def test_a_closed_form_is_of_float64_in_float64(
    defined: Defined, schema: str, equivalent: str, shapes: list[tuple[int, ...]]
) -> None:
    def exact(*given: Tensor) -> Tensor:
        names = dict(zip(re.findall(r"Tensor (\w)", schema), given, strict=True))
        with exact_in_double():
            return eval(equivalent, {**vars(activation), **vars(norm), "softmax": softmax, **names})

    name = defined(f"of{schema} -> Tensor", equivalent, lambda *given: exact(*given).clone())
    given = doubles(*shapes)
    grad = torch.randn(exact(*given).shape, dtype=torch.double)
    right = torch.autograd.grad(exact(*given), given, grad)
    with trainify.attach(name):
        found = torch.autograd.grad(torch.ops.trainify_tests.of(*given), given, grad)
    for ours, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


def test_second_derivatives(defined: Defined) -> None:
    """Of a closed form, with and without a result in it, and of an equivalent computed again."""

    def kernel(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        out.copy_(F.rms_norm(x, x.shape[-1:], weight, eps))

    schema = "(Tensor(a!) out, Tensor x, Tensor weight, float eps) -> ()"
    names = [
        defined(f"norm{schema}", "out = rms_norm(x, weight, eps)", kernel),
        defined(f"again{schema}", "out = 1 * rms_norm(x, weight, eps)", kernel),
    ]

    def run(op: Callable[..., None], x: Tensor, w: Tensor) -> Tensor:
        out = torch.empty_like(x)
        op(out, x, w, 1e-6)
        return out

    with trainify.attach(*names):
        for op in (torch.ops.trainify_tests.norm, torch.ops.trainify_tests.again):
            assert torch.autograd.gradcheck(partial(run, op), doubles((3, 4), (4,)))
            assert torch.autograd.gradgradcheck(partial(run, op), doubles((3, 4), (4,)))

    def add_norm(x: Tensor, r: Tensor, w: Tensor, eps: float) -> None:
        r += x
        x.copy_(F.rms_norm(r, r.shape[-1:], w, eps))

    name = defined(
        "add_norm(Tensor(a!) x, Tensor(b!) r, Tensor w, float eps) -> ()",
        "x, r = fused_add_rms_norm(x, r, w, eps)",
        add_norm,
    )

    def both(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x, r = x * 1, r * 1
        torch.ops.trainify_tests.add_norm(x, r, w, 1e-6)
        return x, r

    with trainify.attach(name):
        assert torch.autograd.gradcheck(both, doubles((3, 4), (3, 4), (4,)))
        assert torch.autograd.gradgradcheck(both, doubles((3, 4), (3, 4), (4,)))


def test_second_derivatives_where_one_argument_comes_of_another(defined: Defined) -> None:
    """The gradient of each argument stops at it, and does not count the way through the other."""
    name = defined(
        "mixed(Tensor a, Tensor b) -> Tensor",
        "a.square() * b.sin()",
        lambda a, b: a.square() * b.sin(),
    )

    def twice(f: Callable[..., Tensor], how: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Any:
        x = torch.linspace(-1, 1, 5).requires_grad_()
        (first,) = torch.autograd.grad(f(*how(x)).sum(), x, create_graph=True)
        return first, *torch.autograd.grad(first.square().sum(), x)

    pairs: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
        "the same": lambda x: (x, x),
        "a view": lambda x: (x, x[:]),
        "first of second": lambda x: (x.cos(), x),
        "second of first": lambda x: (x, x.cos()),
    }
    with trainify.attach(name):
        for what, how in pairs.items():
            with case(what):
                found = twice(torch.ops.trainify_tests.mixed, how)
                expected = twice(lambda a, b: a.square() * b.sin(), how)
                torch.testing.assert_close(found, expected)


def test_float64_is_not_cast_to_float32(defined: Defined) -> None:
    """In what is computed again for its gradient."""

    def cap(x: Tensor) -> Tensor:
        return 3.0 * torch.tanh(x / 3.0)

    name = defined("cap(Tensor x) -> Tensor", "soft_cap(x, 3.0)", cap)
    (x,) = doubles((3, 4))
    with trainify.attach(name):
        (found,) = torch.autograd.grad(torch.ops.trainify_tests.cap(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(found.sum(), x)
    (right,) = torch.autograd.grad(cap(x).sum(), x, create_graph=True)
    (right_second,) = torch.autograd.grad(right.sum(), x)
    torch.testing.assert_close((found, second), (right, right_second), rtol=1e-12, atol=1e-12)


def test_second_derivatives_of_what_is_overwritten_are_refused(defined: Defined) -> None:
    def kernel(x: Tensor) -> None:
        x.mul_(x)

    name = defined("square(Tensor(a!) x) -> ()", "x = x * x", kernel)

    def square(x: Tensor) -> Tensor:
        x = x * 1
        torch.ops.trainify_tests.square(x)
        return x

    (x,) = doubles((3,))
    with trainify.attach(name):
        assert torch.autograd.gradcheck(square, x)
        with pytest.raises(RuntimeError, match="has overwritten 'x'"):
            torch.autograd.grad(square(x).sum(), x, create_graph=True)


def test_a_table_that_is_trained_gets_its_gradient() -> None:
    """Which no closed form has."""
    q, k = inputs([(T, H), (T, H)])
    learned = table().requires_grad_()
    with trainify.attach("_C::rotary_embedding"):
        turned, other = q * 1, k * 1
        torch.ops._C.rotary_embedding(torch.arange(T), turned, other, D, learned, True)
        found = torch.autograd.grad((turned * other).sum(), [q, k, learned])
    turned, other = rope.rotary_embedding(torch.arange(T), q, k, D, learned, True)
    right = torch.autograd.grad((turned * other).sum(), [q, k, learned])
    torch.testing.assert_close(found, right)


def test_kernels_write_where_they_are_told_unless_that_is_a_view(defined: Defined) -> None:
    """No copies there and back."""
    written = []

    def kernel(out: Tensor, x: Tensor) -> None:
        written.append(out.data_ptr())
        out.copy_(x.sigmoid())

    name = defined("sigmoid(Tensor(a!) out, Tensor x) -> ()", "out = torch.sigmoid(x)", kernel)
    (x,) = inputs([(T, H)])
    with trainify.attach(name):
        for out, same in ((torch.empty(T, H), True), (torch.empty(T, H + 1)[:, 1:], False)):
            torch.ops.trainify_tests.sigmoid(out, x)
            (found,) = torch.autograd.grad(out.sum(), x)
            torch.testing.assert_close(found, x.sigmoid() * (1 - x.sigmoid()))
            assert (written.pop() == out.data_ptr()) == same


def test_what_backward_kept_may_not_be_overwritten() -> None:
    """An op that another one's gradient needs: an error, as for torch's own in-place ops."""
    x, w = inputs([(T, H), (H,)])
    with trainify.attach("_C::rms_norm", "_C::fused_add_rms_norm"):
        y, r = x * 1, x * 2
        squared = y.square()
        torch.ops._C.fused_add_rms_norm(y, r, w, 1e-6)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (squared.sum() + y.sum()).backward()
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            before = x.detach().clone()
            torch.ops._C.fused_add_rms_norm(x, r, w, 1e-6)
        assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("all_ops", [False, True])
def test_norms_that_write_into_one_residual(dtype: torch.dtype, all_ops: bool) -> None:
    """The layers of models in vLLM: what the first norm reads, each later one adds to."""

    def served(x: Tensor, w: Tensor) -> Tensor:
        residual = x * 1
        h = rms_norm(residual, w)
        for _ in range(3):
            h = (h * 3).sin()
            torch.ops._C.fused_add_rms_norm(h, residual, w, 1e-6)
        return h + residual

    def right(x: Tensor, w: Tensor) -> Tensor:
        residual = x
        h = norm.rms_norm(residual, w, 1e-6)
        for _ in range(3):
            h, residual = norm.fused_add_rms_norm((h * 3).sin(), residual, w, 1e-6)
        return h + residual

    given = inputs([(T, H), (H,)], dtype)
    with torch.no_grad():
        bits = served(*given)
    with trainify.attach(*() if all_ops else ("_C::rms_norm", "_C::fused_add_rms_norm")):
        result = served(*given)
        found = torch.autograd.grad(result.square().sum(), given, create_graph=True)
        twice = torch.autograd.grad(found[0].square().sum(), given[0])
    assert torch.equal(result, bits)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    expected = torch.autograd.grad(right(*given).square().sum(), given, create_graph=True)
    expected += torch.autograd.grad(expected[0].square().sum(), given[0])
    for ours, theirs in zip((*found, *twice), expected, strict=True):
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def test_a_kernel_without_a_gradient_that_writes_into_what_is_needed() -> None:
    """Nothing in autograd sees such a write."""
    x, w = inputs([(T, H), (H,)])
    with trainify.attach("_C::rms_norm", "_C::fused_add_rms_norm"):
        residual = x * 1
        normed = rms_norm(residual, w)
        with torch.no_grad():
            torch.ops._C.fused_add_rms_norm(torch.randn(T, H), residual, w, 1e-6)
        found = torch.autograd.grad(normed.square().sum(), [x, w])
    right = torch.autograd.grad(F.rms_norm(x, (H,), w, 1e-6).square().sum(), [x, w])
    torch.testing.assert_close(found, right)


def test_only_what_is_written_over_is_copied() -> None:
    x, w = inputs([(T, H), (H,)])
    with trainify.attach("_C::rms_norm", "_C::fused_add_rms_norm"):
        first, second = x * 1, x * 2
        normed = rms_norm(first, w), rms_norm(second, w)
        torch.ops._C.fused_add_rms_norm(x * 3, second[:, :], w, 1e-6)
    saved = [next(t for t in n.grad_fn.saved_tensors if t.shape == x.shape) for n in normed]
    assert saved[0].data_ptr() == first.data_ptr()
    assert saved[1].data_ptr() != second.data_ptr()
    assert torch.equal(saved[1], x * 2)
    assert _kept
    del normed, saved, first, second
    gc.collect()
    assert not _kept


def test_what_another_writes_over_is_an_error_with_a_reason() -> None:
    x, w = inputs([(T, H), (H,)])
    with trainify.attach("_C::rms_norm", "_C::fused_add_rms_norm"):
        residual, h = x * 1, x * 2
        torch.ops._C.fused_add_rms_norm(h, residual, w, 1e-6)
        residual.mul_(2)
        torch.ops._C.fused_add_rms_norm(x * 3, residual, w, 1e-6)
        reason = r"^_C::fused_add_rms_norm: its gradient needs .* modified .*Write into a copy"
        with pytest.raises(RuntimeError, match=reason):
            (h.sin() + residual).sum().backward()


def test_views_that_were_made_together_are_refused_with_a_reason() -> None:
    (qk,) = inputs([(T, 2 * H)])
    with trainify.attach("_C::rotary_embedding"):
        q, k = (qk * 1).split(H, dim=-1)
        with pytest.raises(RuntimeError, match="Take slices instead; `trainify fix`"):
            torch.ops._C.rotary_embedding(torch.arange(T), q, k, D, table(), True)


@pytest.mark.parametrize("neox", [True, False])
def test_rotated_back_from_within_a_head(neox: bool) -> None:
    q, k = inputs([(T, H), (T, H)])
    narrow, at = table()[:, [0, 1, 4, 5]], torch.arange(T)
    turned, keys = q * 1, k * 1
    with trainify.attach("_C::rotary_embedding"):
        torch.ops._C.rotary_embedding(at, turned, keys, D, narrow, neox, 4, True)
        got = torch.autograd.grad((turned * keys).sum(), [q, k])
    right = rope.rotary_embedding(at, q, k, D, narrow, neox, 4, True)
    torch.testing.assert_close([turned, keys], list(right))
    wanted = torch.autograd.grad(torch.mul(*right).sum(), [q, k])
    torch.testing.assert_close(got, wanted)


def test_buffers_that_are_written_where_they_are_given() -> None:
    """SGLang's rope may store k and v in a cache as well; with none given there is none."""
    q, k = inputs([(T, 2, D), (T, 2, D)])
    at, turned, keys = torch.arange(T), torch.empty(T, 2, D), torch.empty(T, 2, D)
    rotate = torch.ops.sgl_kernel.apply_rope_pos_ids_cos_sin_cache
    with trainify.attach(rotate):
        rotate(q, k, turned, keys, table(), at, False, False, None, None, None, None)
        got = torch.autograd.grad((turned * keys).sum(), [q, k])
    right = rope.rotary_embedding(at, q, k, D, table(), True)
    torch.testing.assert_close([turned, keys], list(right))
    torch.testing.assert_close(got, torch.autograd.grad(torch.mul(*right).sum(), [q, k]))


def test_arguments_that_the_equivalent_does_not_cover() -> None:
    (gating,) = inputs([(T, H)])
    with router() as route, trainify.attach(route):
        assert route(gating, gating, 2, False)[0].requires_grad
        with pytest.raises(NotImplementedError, match="where correction_bias is given"):
            route(gating, gating, 2, False, torch.zeros(H))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant: bool) -> None:
    x, w = inputs([(T, H), (H,)])
    with trainify.attach("_C::rms_norm"):
        checkpoint(rms_norm, x, w, use_reentrant=reentrant).square().sum().backward()
    right = torch.autograd.grad(F.rms_norm(x, (H,), w, 1e-6).square().sum(), [x, w])
    torch.testing.assert_close([x.grad, w.grad], list(right))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("view", [False, True])
def test_what_a_checkpoint_computes_from_twice_is_not_overwritten(
    reentrant: bool, view: bool
) -> None:
    """As with torch's own writes in place, backward says so instead of computing from the rest."""

    def added(x: Tensor, residual: Tensor, w: Tensor) -> Tensor:
        if view:
            x = x.view(-1, H)
        torch.ops._C.fused_add_rms_norm(x, residual, w, 1e-6)
        return x + residual

    x, residual, w = inputs([(T, H), (T, H), (H,)])
    with trainify.attach("_C::fused_add_rms_norm"):
        out = checkpoint(added, x * 1, residual * 1, w, use_reentrant=reentrant)
        with pytest.raises(RuntimeError, match="operation"):
            out.square().sum().backward()


def summed_up(add_norm: Callable[..., Any], x: Tensor, residual: Tensor, w: Tensor) -> Tensor:
    """A residual stream that three norms add to, each in place."""
    residual = residual * 1
    for _ in range(3):
        x, residual = add_norm(x * 2, residual, w)
    return (x.sin() + residual).square().sum()


def added_norm(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    torch.ops._C.fused_add_rms_norm(x, residual, w, 1e-6)
    return x, residual


def checkpointed(*args: Any) -> Tensor:
    return checkpoint(summed_up, *args, use_reentrant=False)


def kept_elsewhere(*args: Any) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return summed_up(*args)


@pytest.mark.parametrize("run", [checkpointed, kept_elsewhere])
def test_what_is_saved_through_hooks_is_not_overwritten(run: Callable[..., Tensor]) -> None:
    """Autograd does not check it, so that it would be computed from other values in silence."""

    def plain(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        residual = x + residual
        return F.rms_norm(residual, (H,), w, 1e-6), residual

    given = inputs([(T, H), (T, H), (H,)])
    right = torch.autograd.grad(summed_up(plain, *given), given, create_graph=True)
    twice = torch.autograd.grad(sum(g.square().sum() for g in right), given)
    with trainify.attach("_C::fused_add_rms_norm"):
        found = torch.autograd.grad(run(added_norm, *given), given, create_graph=True)
        torch.testing.assert_close(found, right)
        again = torch.autograd.grad(sum(g.square().sum() for g in found), given)
        torch.testing.assert_close(again, twice, rtol=1e-3, atol=1e-3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(H, 2 * H)
        self.norm = nn.Parameter(torch.rand(H))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(silu(self.up(x)), self.norm)


def gradients(model: nn.Module, forward: Callable[..., Tensor], x: Tensor) -> list[Any]:
    model.zero_grad()
    forward(x).square().sum().backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_in_full(backend: str) -> None:
    model, x = Model(), torch.randn(T, H)
    with trainify.attach("_C::rms_norm", "_C::silu_and_mul"):
        eager = gradients(model, model, x)
        compiled = gradients(model, torch.compile(model, backend=backend, fullgraph=True), x)
    assert all(g is not None for g in eager)
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)


def test_what_was_compiled_before_is_compiled_again() -> None:
    model, x = Model(), torch.randn(T, H)
    compiled = torch.compile(model, backend="aot_eager")

    def reached() -> list[bool]:
        model.zero_grad()
        loss = compiled(x).square().sum()
        if loss.requires_grad:
            loss.backward()
        return [p.grad is not None for p in model.parameters()]

    assert not any(reached())
    with trainify.attach("_C::rms_norm", "_C::silu_and_mul"):
        assert all(reached())
    assert not any(reached())


def test_a_call_that_nobody_keeps_lasts() -> None:
    trainify.attach("_C::rms_norm")
    gc.collect()
    assert rms_norm(*inputs([(T, H), (H,)])).requires_grad
    _attached["_C::rms_norm"].undo()


def test_everything_that_is_known() -> None:
    with trainify.attach() as attached:
        assert {"_C::rms_norm", "_C::rotary_embedding", "sgl_kernel::silu_and_mul"} <= set(
            attached.ops
        )
        assert not any(name.startswith("aten::") for name in attached.ops)
        assert rms_norm(*inputs([(T, H), (H,)])).requires_grad
        assert "_C::rms_norm" in repr(attached)
    attached.undo()


def test_what_cannot_be_attached() -> None:
    library = torch.library.Library("trainify_tests", "FRAGMENT")
    for overload in ("a", "b"):
        library.define(f"two.{overload}(Tensor x) -> Tensor")
    for op, reason in [
        ("_C::nothing", "'_C::nothing' is not registered; import its library first"),
        ("aten::add.Tensor", "not registered"),
        (torch.ops.trainify_tests.two, "several overloads; name one: a, b"),
        (torch.ops.aten.relu, "aten::relu is not in the catalog"),
        (print, "print is no registered op"),
        ("_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::reshape_and_cache_flash: "),
    ]:
        with pytest.raises(trainify.CannotAttach, match=reason):
            trainify.attach(op)
    attached = trainify.attach("_C::rms_norm")
    with attached, pytest.raises(trainify.CannotAttach, match="given a backward already"):
        trainify.attach(torch.ops._C.rms_norm)
    with pytest.raises(trainify.CannotAttach, match="already"):
        trainify.attach("_C::rms_norm", torch.ops._C.rms_norm)


def test_another_op_of_the_same_name_is_refused() -> None:
    library = torch.library.Library("trtllm", "FRAGMENT")
    library.define("rms_norm_of_another_kind(Tensor x, Tensor w) -> Tensor")
    trainify.register(
        "torch.ops.trtllm.rms_norm_of_another_kind",
        "rms_norm_of_another_kind(Tensor(a!) out, Tensor x, Tensor w) -> ()",
        "out = rms_norm(x, w, 1e-6)",
    )
    with pytest.raises(trainify.CannotAttach, match="is written by one of them only"):
        trainify.attach("trtllm::rms_norm_of_another_kind")
    library._destroy()


ANOTHER_PROCESS = """
import sys
sys.path[:0] = {paths!r}
from live_kernels import register_kernels
register_kernels()
import torch, trainify
from test_attach_ops import Model, gradients
torch.manual_seed(0)
if sys.argv[1] == "attached":
    trainify.attach("_C::rms_norm", "_C::silu_and_mul")
model = Model()
loss = torch.compile(model)(torch.randn(6, 32)).square().sum()
if loss.requires_grad:
    loss.backward()
print(sum(p.grad is None for p in model.parameters()))
"""


@pytest.mark.slow
def test_caches_on_disk_of_a_process_without_are_not_used(tmp_path: Path) -> None:
    """Compiled graphs are kept on disk under keys that know nothing of registered backwards."""
    script = tmp_path / "process.py"
    here = Path(__file__).parent
    script.write_text(ANOTHER_PROCESS.format(paths=[str(here), str(here.parents[1])]))
    missing = [
        subprocess.run(
            [sys.executable, str(script), how],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for how in ("plain", "attached", "plain")
    ]
    assert missing == ["3", "0", "3"]
