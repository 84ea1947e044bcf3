"""Every reference function: forward against its definition, gradient against differences."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import pkgutil
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import trainify.reference
from tests.each import case
from tests.reference.cases import Case
from tests.reference.every_case import CASES
from trainify.reference import attention
from trainify.reference.double import exact_in_double

MODULES = [
    importlib.import_module(f"trainify.reference.{info.name}")
    for info in pkgutil.iter_modules(trainify.reference.__path__)
    if info.name not in ("backward", "double")
]
FUNCTIONS = [
    function
    for module in MODULES
    for function in vars(module).values()
    if isinstance(function, types.FunctionType) and function.__module__ == module.__name__
]
DEFINED = [f for f in FUNCTIONS if not f.__name__.endswith("_backward")]
some_seeds = pytest.mark.parametrize(
    "seeds", [pytest.param(2, id="quick"), pytest.param(8, id="thorough", marks=pytest.mark.slow)]
)


def tensors(result: Any) -> list[torch.Tensor]:
    results = result if isinstance(result, tuple) else (result,)
    return [t for t in results if isinstance(t, torch.Tensor)]


def closed(case: Case, args: tuple[Any, ...]) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The case as a function of its floating-point tensors alone, and those tensors."""
    places = [
        i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point()
    ]

    def function(*leaves: torch.Tensor) -> Any:
        full = list(args)
        for place, leaf in zip(places, leaves, strict=True):
            full[place] = leaf
        return tuple(t for t in tensors(case.function(*full)) if t.is_floating_point())

    return function, [args[i].detach().requires_grad_() for i in places]


def test_every_function_has_a_case() -> None:
    assert {c.function for c in CASES} == set(DEFINED)


@some_seeds
@pytest.mark.parametrize("each", CASES, ids=str)
def test_gradcheck(each: Case, seeds: int) -> None:
    """Random projections of the Jacobian; of some shapes each entry of it, where there is time."""
    for seed in range(seeds):
        function, leaves = closed(each, each.make(seed, torch.float64))
        if not leaves:
            return  # nothing to differentiate
        with exact_in_double():
            fast = seed > 0 or seeds < 3
            assert torch.autograd.gradcheck(function, leaves, fast_mode=fast)


@some_seeds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forward_is_the_definition(dtype: torch.dtype, seeds: int) -> None:
    for each, seed in itertools.product(CASES, range(seeds)):
        with case(f"{each}, seed {seed}"):
            args = each.make(seed, dtype)
            got, want = tensors(each.function(*args)), tensors(each.expected(*args))
            for g, w in zip(got, want, strict=True):
                assert g.shape == w.shape
                assert g.dtype == w.dtype
                if each.exact and dtype == torch.bfloat16:
                    assert torch.equal(g, w)
                elif dtype == torch.bfloat16:
                    torch.testing.assert_close(g, w, rtol=0.016, atol=0.01)
                else:
                    torch.testing.assert_close(g, w)


def test_float32_gradients_are_the_float64_ones() -> None:
    """The casts written in the functions, which gradcheck lifts, cost no more than rounding."""
    for each in CASES:
        function, leaves = closed(each, each.make(11, torch.float32))
        if not leaves:
            continue  # nothing to differentiate
        with case(each):
            outputs = function(*leaves)
            generator = torch.Generator().manual_seed(1)
            weights = [torch.randn(o.shape, generator=generator) for o in outputs]
            got = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
            with exact_in_double():
                doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
                outputs = function(*doubles)
                want = torch.autograd.grad(
                    outputs, doubles, [w.double() for w in weights], allow_unused=True
                )
            for g, w in zip(got, want, strict=True):
                assert (g is None) == (w is None)
                if g is not None and w is not None:
                    torch.testing.assert_close(g.double(), w, rtol=1e-5, atol=1e-5)


def test_bfloat16_backwards_are_finite_and_keep_dtypes() -> None:
    for each in CASES:
        function, leaves = closed(each, each.make(5, torch.bfloat16))
        if not leaves:
            continue  # nothing to differentiate
        with case(each):
            outputs = function(*leaves)
            grads = torch.autograd.grad(
                outputs, leaves, [torch.ones_like(o) for o in outputs], allow_unused=True
            )
            for leaf, grad in zip(leaves, grads, strict=True):
                if grad is not None:
                    assert grad.dtype == leaf.dtype
                    assert grad.isfinite().all()


def test_arguments_are_left_alone() -> None:
    for each in CASES:
        args = each.make(2, torch.float32)
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        each.function(*args)
        with case(each):
            for was, now in zip(before, args, strict=True):
                assert torch.equal(was, now) if isinstance(was, torch.Tensor) else was == now


def test_texts_stand_alone() -> None:
    """The text can be put into any module that imports torch and F: nothing else is named."""
    builtin = {"int", "float", "bool", "str", "tuple", "isinstance", "len", "set", "zip"}
    for function in FUNCTIONS:
        tree = ast.parse(inspect.getsource(function)).body[0]
        assert isinstance(tree, ast.FunctionDef)
        siblings = {f.__name__ for f in FUNCTIONS if f.__module__ == function.__module__}
        bound = {a.arg for a in tree.args.args}
        names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
        bound |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
        loaded = {n.id for n in names if isinstance(n.ctx, ast.Load)}
        with case(function.__qualname__):
            assert ast.get_docstring(tree)
            assert loaded <= bound | siblings | builtin | {"torch", "F"}
            kinds = (ast.Import, ast.Global, ast.Lambda)
            assert not any(isinstance(n, kinds) for n in ast.walk(tree))


def is_inlined(function: types.FunctionType) -> bool:
    """Straight-line and short: its statements, and no helper, stand in the user's function."""
    tree = ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    *body, last = tree.body[1:]
    siblings = {f.__name__ for f in FUNCTIONS if f.__module__ == function.__module__}
    return (
        all(isinstance(s, ast.Assign) for s in body)
        and isinstance(last, ast.Return)
        and len(body) <= 3
        and not any(isinstance(n, ast.IfExp) for n in ast.walk(tree))
        and not any(isinstance(n, ast.Name) and n.id in siblings for n in ast.walk(tree))
    )


def test_norms_and_activations_are_written_in_place_of_the_call() -> None:
    modules = ("trainify.reference.norm", "trainify.reference.activation")
    helpers = {f.__name__ for f in DEFINED if f.__module__ in modules and not is_inlined(f)}
    assert helpers == {
        "dropout_add_norm",
        "fused_add_rms_norm_fp32_fp8",
        "fused_add_rms_norm_fp8",
        "fused_add_rms_norm_weight_dtype",
        "gated_by_projection",
        "gated_rms_norm",
        "gemma_norm_of_gated_heads",
        "gemma_norm_of_heads",
        "head_layer_norm_clamped",
        "joined_norms",
        "layer_norm_of_sum",
        "quantize_through",
        "residual_add_bias",
        "rms_norm_dynamic_quant",
        "rms_norm_fp8",
        "rms_norm_maybe_add",
        "rms_norm_weight_dtype",
        "shifted_rms_norm",
        "silu_and_mul_up_to",
        "situ_and_mul",
    }


def test_merge_attn_states_leaves_out_an_empty_side() -> None:
    prefix, suffix = torch.full((4, 1, 3), 2.0), torch.full((4, 1, 3), 5.0)
    inf = float("inf")
    prefix_lse = torch.tensor([[-inf, inf, 1.0, -inf]]).requires_grad_()  # flash-attention 2: inf
    suffix_lse = torch.tensor([[1.0, 1.0, inf, -inf]])
    merged = attention.merge_attn_states(prefix, prefix_lse, suffix, suffix_lse)
    assert merged[:, 0, 0].tolist() == [5.0, 5.0, 2.0, 2.0]
    merged.sum().backward()
    assert prefix_lse.grad is not None
    assert torch.isfinite(prefix_lse.grad).all()


def test_merge_state_leaves_out_an_empty_side() -> None:
    v_a, v_b = torch.full((3, 1, 2), 2.0), torch.full((3, 1, 2), 5.0)
    inf = float("inf")
    s_a = torch.tensor([[-inf], [1.0], [-inf]]).requires_grad_()
    s_b = torch.tensor([[1.0], [-inf], [-inf]])
    for v, s in (
        attention.merge_state(v_a, s_a, v_b, s_b),
        attention.merge_states(torch.stack((v_a, v_b), 1), torch.stack((s_a, s_b), 1)),
    ):
        assert v[:, 0, 0].tolist() == [5.0, 2.0, 0.0]
        assert s[:, 0].tolist() == [1.0, 1.0, -inf]
        (grad,) = torch.autograd.grad(v.sum(), s_a)
        assert torch.isfinite(grad).all()
