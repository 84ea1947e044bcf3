"""``trainify.audit``: backwards that somebody wrote, wrong by little or rounded on purpose."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify


class Unary(torch.autograd.Function):
    """Saves its input, or what it makes of it."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x


class OnePercent(Unary):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2.02 * x * grad


class LeakyReLU(Unary):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, 0.01 * x)


class AnotherSlope(LeakyReLU):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad, 0.02 * grad)


class NoSlope(LeakyReLU):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad, 0 * grad)


class CastInside(Unary):
    """As kernels for half precision are written."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.float())
        return (x.float() ** 2).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (2.02 * x * grad.float()).to(grad.dtype)


class NormOfWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        y = x * scale
        grad_y = grad * weight
        grad_x = scale * (grad_y - y * (grad_y * y).mean(-1, keepdim=True))
        return grad_x, 0.99 * (grad * y).flatten(0, -2).sum(0)


@torch.library.custom_op("by_little::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


cube.register_autograd(lambda ctx, g: 3.03 * ctx.saved_tensors[0] ** 2 * g, setup_context=save)


class Model(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.function is NormOfWeight:
            return self.last(NormOfWeight.apply(h, self.weight))
        if isinstance(self.function, type):
            return self.last(self.function.apply(h))
        return self.last(self.function(h))


@pytest.mark.parametrize("rows", [2, 500])
@pytest.mark.parametrize("function", [OnePercent, AnotherSlope, NoSlope, CastInside, cube])
def test_a_backward_that_is_wrong_by_little_is_found(function, rows: int) -> None:
    report = trainify.audit(Model(function), torch.randn(rows, 8))
    assert report.wrong == ("first.weight", "first.bias")
    (cut,) = report.cuts
    assert cut.function == "Model.forward"
    assert cut.message.endswith("is not the derivative of its forward.")


def test_it_is_found_of_which_input() -> None:
    report = trainify.audit(Model(NormOfWeight), torch.randn(5, 8))
    assert report.wrong == ("weight",)


class SavedInHalf(Unary):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.bfloat16())
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x.to(grad.dtype) * grad


class SavedInEightBits(SavedInHalf):
    @staticmethod
    def forward(ctx, x):
        scale = 100 / x.abs().max()
        ctx.scale = scale
        ctx.save_for_backward((x * scale).round().to(torch.int8))
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * (x.to(grad.dtype) / ctx.scale) * grad


class GradientInFloat8(Unary):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad.to(torch.float8_e4m3fn).to(grad.dtype)


class GradientOnAGrid(Unary):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        step = grad.abs().max() / 100
        return 2 * x * (step * torch.special.round(grad / step))


class Approximated(Unary):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.ops.aten.gelu_backward(grad, x, approximate="tanh")


class Noisy(Unary):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad + 0.01 * grad.abs().mean() * torch.randn_like(grad)


class Exact(LeakyReLU):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad, 0.01 * grad)


class Clamped(Unary):
    """The gradient goes on over the few that are clamped."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-2, 2)

    @staticmethod
    def backward(ctx, grad):
        return grad


class InFloat32(Unary):
    """Through NumPy, so that torch sees nothing of the type that is computed in."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach().numpy().astype("float32")
        return torch.from_numpy(ctx.x**2).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return torch.from_numpy(2 * ctx.x * grad.numpy().astype("float32")).to(grad.dtype)


@torch.library.custom_op("by_little::only_float32", mutates_args=())
def only_float32(x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise TypeError("float32 is what there is a kernel for")
    return x.bfloat16().float() ** 2


only_float32.register_autograd(
    lambda ctx, g: 2 * ctx.saved_tensors[0].bfloat16() * g, setup_context=save
)


@pytest.mark.parametrize("rows", [2, 500])
@pytest.mark.parametrize(
    "function",
    [
        SavedInHalf, SavedInEightBits, GradientInFloat8, GradientOnAGrid, Approximated, Noisy,
        Exact, Clamped, InFloat32, only_float32,
    ],
)  # fmt: skip
def test_rounding_on_purpose_is_no_fault(function, rows: int) -> None:
    report = trainify.audit(Model(function), torch.randn(rows, 8))
    assert report.ok, report


def test_what_lies_in_a_kink_is_no_fault() -> None:
    model = Model(Exact)
    with torch.no_grad():  # which leaves half of what comes out of it at the kink
        model.first.weight[::2], model.first.bias[::2] = 0.0, 0.0
    assert trainify.audit(model, torch.randn(50, 8)).ok
