"""Kernels with the backward that strategy attach writes: bits of the kernel, gradients of autograd."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from trainify.engine import Options, fix_text
from trainify.reference import activation, attention, norm, rope

VLLM = "from vllm import _custom_ops as ops\n"
T, HEADS, D, H = 6, 4, 8, 32


def attached(imports: str, body: str) -> Callable[..., Any]:
    """The function ``f`` of a file, fixed."""
    text = fix_text(f"import torch\n{imports}\n\n{body}", "m.py", Options(strategy="attach")).text
    assert ".apply(" in text
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    f: Callable[..., Any] = scope["f"]
    return f


def rms_norm() -> Callable[..., Any]:
    return attached(
        VLLM,
        "def f(x, w: torch.Tensor):\n    out = torch.empty_like(x)\n"
        "    ops.rms_norm(out, x, w, 1e-6)\n    return out\n",
    )


def add_norm() -> Callable[..., Any]:
    return attached(
        VLLM,
        "def f(x, r, w: torch.Tensor):\n    ops.fused_add_rms_norm(x, r, w, 1e-6)\n"
        "    return x, r\n",
    )


def rotary() -> Callable[..., Any]:
    return attached(
        VLLM,
        "def f(q, k, p: torch.Tensor, t: torch.Tensor):\n"
        f"    ops.rotary_embedding(p, q, k, {D}, t, True)\n    return q, k\n",
    )


def silu() -> Callable[..., Any]:
    return attached(
        VLLM,
        "def f(x):\n    out = x.new_empty(x.shape[0], x.shape[1] // 2)\n"
        "    torch.ops._C.silu_and_mul(out, x)\n    return out\n",
    )


def gemma() -> Callable[..., Any]:
    return attached(
        "from sgl_kernel import gemma_rmsnorm\n",
        "def f(x, w: torch.Tensor):\n    return gemma_rmsnorm(x, w, 1e-6)\n",
    )


def prefill() -> Callable[..., Any]:
    """Has no closed form."""
    return attached(
        "from flashinfer import single_prefill_with_kv_cache\n",
        "def f(q, k, v):\n    return single_prefill_with_kv_cache(q, k, v, causal=True)\n",
    )


def tensors(*shapes: tuple[int, ...], grad: bool = True) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*s, generator=generator).requires_grad_(grad) for s in shapes]


def angles() -> torch.Tensor:
    table = torch.outer(torch.arange(16.0), 100 ** -torch.linspace(0, 1, D // 2))
    return torch.cat((table.cos(), table.sin()), dim=-1)


def rotary_reference(q: Any, k: Any, p: Any, t: Any) -> Any:
    return rope.rotary_embedding(p, q, k, D, t, True)


CASES: dict[str, tuple[Callable[[], Any], Callable[..., Any], list[tuple[int, ...]], tuple[Any, ...]]] = {
    "rms_norm": (rms_norm, lambda x, w: norm.rms_norm(x, w, 1e-6), [(T, H), (H,)], ()),
    "add_norm": (add_norm, lambda x, r, w: norm.fused_add_rms_norm(x, r, w, 1e-6), [(T, H), (T, H), (H,)], ()),
    "rotary": (rotary, rotary_reference, [(T, HEADS * D), (T, 2 * D)], (torch.arange(T) + 2, angles())),
    "silu": (silu, activation.silu_and_mul, [(T, 2 * H)], ()),
    "gemma": (gemma, lambda x, w: norm.gemma_rms_norm(x, w, 1e-6), [(T, H), (H,)], ()),
    "prefill": (prefill, lambda q, k, v: attention.single_prefill(q, k, v, causal=True), [(T, HEADS, D), (T, 2, D), (T, 2, D)], ()),
}  # fmt: skip
cases = pytest.mark.parametrize("name", CASES)


def together(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def gradients(f: Callable[..., Any], leaves: list[torch.Tensor], *rest: Any) -> Any:
    """Of a sum that weighs every entry, by gradients that are not contiguous."""
    outputs = [o for o in together(f(*leaves, *rest)) if o.requires_grad]
    weights = [torch.linspace(-1, 2, o.numel()).view(o.mT.shape).mT for o in outputs]
    wanted = [t for t in leaves if t.requires_grad]
    return torch.autograd.grad(outputs, wanted, weights)


@cases
def test_gradients_are_those_of_the_reference(name: str) -> None:
    make, reference, shapes, rest = CASES[name]
    leaves = tensors(*shapes)
    got, want = gradients(make(), leaves, *rest), gradients(reference, leaves, *rest)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@cases
def test_inputs_keep_their_values_and_modes_share_their_bits(name: str) -> None:
    make, _, shapes, rest = CASES[name]
    f, leaves = make(), tensors(*shapes)
    before = [t.detach().clone() for t in leaves]
    trained = together(f(*leaves, *rest))
    assert all(o.requires_grad for o in trained)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            served = together(f(*leaves, *rest))
        assert all(
            torch.equal(s, t) and not s.requires_grad for s, t in zip(served, trained, strict=True)
        )
    assert all(torch.equal(t, b) for t, b in zip(leaves, before, strict=True))


@cases
def test_without_a_gradient_nothing_is_kept(name: str) -> None:
    make, _, shapes, rest = CASES[name]
    f, leaves = make(), tensors(*shapes)
    there = [weakref.ref(t) for t in leaves]
    with torch.no_grad():
        served = f(*leaves, *rest)
    leaves.clear()
    assert served is not None and not any(ref() is not None for ref in there)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["add_norm", "silu"])
def test_compiled_in_one_graph(name: str, grad: bool) -> None:
    make, _, shapes, rest = CASES[name]
    f, leaves = make(), tensors(*shapes)
    torch._dynamo.reset()
    with torch.set_grad_enabled(grad):
        got = together(torch.compile(f, backend="aot_eager", fullgraph=True)(*leaves, *rest))
        want = together(f(*leaves, *rest))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert all(o.requires_grad is grad for o in got)


@cases
def test_what_is_frozen_gets_none(name: str) -> None:
    """As the base weights under LoRA."""
    make, reference, shapes, rest = CASES[name]
    f = make()
    for trained in range(len(shapes)):
        leaves = [t.detach() for t in tensors(*shapes)]
        leaves[trained].requires_grad_()
        got, want = gradients(f, leaves, *rest), gradients(reference, leaves, *rest)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("name", ["add_norm", "rotary"])
def test_a_result_that_nobody_uses(name: str, used: int) -> None:
    make, reference, shapes, rest = CASES[name]
    leaves = tensors(*shapes)
    got = torch.autograd.grad(
        make()(*leaves, *rest)[used].square().sum(), leaves, allow_unused=True
    )
    want = torch.autograd.grad(
        reference(*leaves, *rest)[used].square().sum(), leaves, allow_unused=True
    )
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, torch.zeros_like(g) if w is None else w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
@cases
def test_checkpointing(name: str, reentrant: bool) -> None:
    make, _, shapes, rest = CASES[name]
    f, leaves = make(), tensors(*shapes)

    def step(run: Callable[..., Any]) -> list[torch.Tensor | None]:
        for leaf in leaves:
            leaf.grad = None
        outputs = together(run(*[t * 2 for t in leaves], *rest))
        torch.autograd.backward([o.square().sum() for o in outputs])
        return [leaf.grad for leaf in leaves]

    saved = step(lambda *arguments: checkpoint(f, *arguments, use_reentrant=reentrant))
    for plain, again in zip(step(f), saved, strict=True):
        assert plain is not None and again is not None and torch.equal(plain, again)


@pytest.mark.parametrize(
    "views", ["", "x, r = x.view(-1, x.shape[-1]), r.flatten(0, -2)", "x, r = x[0:], r[:]"]
)
def test_what_a_checkpoint_computes_from_twice_is_not_overwritten_under_flag(views: str) -> None:
    """A reentrant one runs without gradients first, and keeps its inputs themselves."""
    body = (
        f"import torch\n{VLLM}\ndef f(x, r, w: torch.Tensor):\n    {views or 'pass'}\n"
        "    ops.fused_add_rms_norm(x, r, w, 1e-6)\n    return x, r\n"
    )
    scope: dict[str, Any] = {}
    exec(fix_text(body, "m.py", Options(strategy="flag")).text, scope)
    found = []
    for reentrant in (True, False):
        leaves = tensors((T, H), (T, H), (H,))
        outputs = checkpoint(scope["f"], *[t * 2 for t in leaves], use_reentrant=reentrant)
        torch.autograd.backward([o.square().sum() for o in outputs])
        found.append([leaf.grad for leaf in leaves])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def penalty(f: Callable[..., Any], leaves: list[torch.Tensor], *rest: Any) -> torch.Tensor:
    outputs = together(f(*leaves, *rest))
    first = torch.autograd.grad(sum(o.sin().sum() for o in outputs), leaves, create_graph=True)
    return torch.stack([g.square().sum() for g in first]).sum()


@pytest.mark.parametrize("name", [n for n in CASES if n != "prefill"])
def test_differentiating_twice_through_a_closed_form(name: str) -> None:
    make, reference, shapes, rest = CASES[name]
    leaves = tensors(*shapes)
    got, want = (
        torch.autograd.grad(penalty(f, leaves, *rest), leaves) for f in (make(), reference)
    )
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_differentiating_twice_what_is_computed_anew_is_refused() -> None:
    make, _, shapes, _ = CASES["prefill"]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        penalty(make(), tensors(*shapes)).backward()


def test_pieces_of_one_tensor() -> None:
    f = attached(
        VLLM,
        "def f(qkv, p: torch.Tensor, t: torch.Tensor):\n"
        f"    q, k, v = qkv.split([{HEADS * D}, {2 * D}, {2 * D}], dim=-1)\n"
        f"    ops.rotary_embedding(p, q, k, {D}, t, True)\n    return q, k, v\n",
    )
    (qkv,) = tensors((T, (HEADS + 4) * D))
    rest = torch.arange(T), angles()

    def reference(qkv: torch.Tensor, p: torch.Tensor, t: torch.Tensor) -> Any:
        q, k, v = qkv.split([HEADS * D, 2 * D, 2 * D], dim=-1)
        return *rope.rotary_embedding(p, q, k, D, t, True), v

    torch.testing.assert_close(gradients(f, [qkv], *rest), gradients(reference, [qkv], *rest))
    assert torch.equal(f(qkv, *rest)[2], qkv[:, -2 * D :])
