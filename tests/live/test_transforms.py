"""Kernels that have got a backward under the transforms of torch.func, and in forward mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from live_kernels import router
from live_package import package
from test_attach_ops import CALLS, H, T, rms_norm
from torch import Tensor, nn
from torch.autograd import forward_ad

import trainify
from tests.each import case
from trainify.catalog.own import _registered
from trainify.live.symbol import symbol
from trainify.reference import norm

TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, x: torch.func.grad(lambda *x: f(*x).square().sum(), each(x))(*x),
    "vjp": lambda f, x: torch.func.vjp(f, *x)[1](f(*x)),
    "jacrev": lambda f, x: torch.func.jacrev(f, each(x))(*x),
    "vmap": lambda f, x: torch.func.vmap(f)(*pairs(x)),
    "samples": lambda f, x: torch.func.vmap(
        torch.func.grad(lambda *x: f(*x).square().sum(), each(x))
    )(*pairs(x)),
    "grad of vmap": lambda f, x: torch.func.grad(
        lambda *x: torch.func.vmap(f)(*x).square().sum(), each(x)
    )(*pairs(x)),
    "grad twice": lambda f, x: torch.func.grad(
        lambda y: torch.func.grad(lambda y: f(y, *x[1:]).square().sum())(y).square().sum()
    )(x[0]),
    "hessian": lambda f, x: torch.func.hessian(lambda y: f(y, *x[1:]).square().sum())(x[0]),
    "jvp": lambda f, x: torch.func.jvp(f, tuple(x), tuple(t.cos() for t in x)),
    "jvp twice": lambda f, x: torch.func.jvp(
        lambda y: torch.func.jvp(lambda y: f(y, *x[1:]), (y,), (y.cos(),))[1], (x[0],), (x[0],)
    ),
    "forward mode": lambda f, x: forward_mode(f, x),
    "compiled": lambda f, x: torch.compile(
        torch.func.grad(lambda *x: f(*x).square().sum(), each(x)), backend="aot_eager"
    )(*x),
}


def each(x: list[Tensor]) -> tuple[int, ...]:
    return tuple(range(len(x)))


def pairs(x: list[Tensor]) -> list[Tensor]:
    return [torch.stack((t, t.sin())) for t in x]


def forward_mode(f: Callable[..., Tensor], x: list[Tensor]) -> Any:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, t.cos()) for t in x]
        return forward_ad.unpack_dual(f(*duals)).tangent


@pytest.fixture
def functions(tmp_path: Path) -> Iterator[Any]:
    """A module of functions around kernels that no dispatcher knows."""
    found = package(tmp_path, kernels=KERNELS)["kernels"]
    known = list(_registered)
    row = "norm(Tensor x, Tensor weight, *, Tensor(a!)? out=None) -> Tensor"
    trainify.register(f"{found.__name__}.norm", row, "rms_norm(x, weight, 1e-6)")
    row = "add_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight) -> ()"
    equivalent = "x, residual = fused_add_rms_norm(x, residual, weight, 1e-6)"
    trainify.register(f"{found.__name__}.add_norm", row, equivalent)
    yield found
    _registered[:] = known


KERNELS = """
from trainify_fixture_kernels import fused_add_rmsnorm, rmsnorm

def norm(x, weight, *, out=None):
    out = torch.empty_like(x) if out is None else out
    rmsnorm(out, x, weight, 1e-6, False)
    return out

def add_norm(x, residual, weight):
    fused_add_rmsnorm(x, residual, weight, 1e-6, False)
"""


def assert_alike(
    kernel: Callable[..., Any], reference: Callable[..., Any], x: list[Tensor]
) -> None:
    for how, transform in TRANSFORMS.items():
        with case(how):
            found, expected = transform(kernel, x), transform(reference, x)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_registered_ops(call: Any) -> None:
    """What torch.func and forward mode give for the reference they give for the kernel."""
    op, kernel, reference, shapes = call
    torch.manual_seed(0)
    with trainify.attach(op):
        assert_alike(kernel, reference, [torch.randn(shape) for shape in shapes])


def test_functions(functions: Any) -> None:
    def out(x: Tensor, w: Tensor) -> Tensor:
        made = torch.empty_like(x)
        functions.norm(x, w, out=made)
        return made

    def in_place(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        x, r = x * 1, r * 1
        functions.add_norm(x, r, w)
        return x * 2 + r

    torch.manual_seed(0)
    x, r, w = torch.randn(T, H), torch.randn(T, H), torch.rand(H)
    made = [symbol(f"{functions.__name__}:{name}") for name in ("norm", "add_norm")]
    owner = nn.Module()
    for each in made:
        each.hold(owner)
    assert_alike(lambda x, w: functions.norm(x, w), lambda x, w: norm.rms_norm(x, w, 1e-6), [x, w])
    assert_alike(out, lambda x, w: norm.rms_norm(x, w, 1e-6), [x, w])
    assert_alike(in_place, CALLS["in place"][2], [x, r, w])
    for each in made:
        each.release(owner)


def test_a_gradient_outside_of_a_transform() -> None:
    """What the transform is not of is trained all the same."""
    x, w = torch.randn(T, H), torch.rand(H).requires_grad_()
    with trainify.attach("_C::rms_norm"):
        torch.func.grad(lambda x: rms_norm(x, w).square().sum())(x).square().sum().backward()
    found, w.grad = w.grad, None
    torch.func.grad(lambda x: norm.rms_norm(x, w, 1e-6).square().sum())(x).square().sum().backward()
    torch.testing.assert_close(found, w.grad)


def test_transforms_of_norms_that_write_into_one_residual() -> None:
    """Each needs for its gradient what the next one writes over."""

    def stack(op: Callable[..., Any], x: Tensor, w: Tensor) -> Tensor:
        residual = x.sin()
        for weight in w:
            x, residual = op(x.cos(), residual, weight)
        return x * residual

    def in_place(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        torch.ops._C.fused_add_rms_norm(x, r, w, 1e-6)
        return x, r

    x, w = torch.randn(T, H), torch.rand(3, H)
    with trainify.attach("_C::fused_add_rms_norm"):
        found = TRANSFORMS["grad"](partial(stack, in_place), [x, w])
    expected = TRANSFORMS["grad"](
        partial(stack, lambda x, r, w: norm.fused_add_rms_norm(x, r, w, 1e-6)), [x, w]
    )
    torch.testing.assert_close(found, expected)


def test_linearize_raises_and_folds_nothing() -> None:
    x, w = torch.randn(T, H), torch.rand(H)
    refused = pytest.raises(NotImplementedError, match=r"func\.linearize does not go")
    with trainify.attach("_C::rms_norm"), refused:
        torch.func.linearize(rms_norm, x, w)


def test_transforms_of_arguments_that_the_equivalent_does_not_cover() -> None:
    refused = pytest.raises(NotImplementedError, match="where correction_bias is given")
    with router() as route, trainify.attach(route), refused:
        torch.func.grad(lambda x: route(x, x, 2, False, torch.zeros(H))[0].sum())(torch.randn(T, H))
