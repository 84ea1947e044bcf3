"""Small models, each with one fault on the line that says ``# <- cut``."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

D = 16
HEADS = 2


def kernels() -> Any:
    """The kernels as pybind functions; tests/live/conftest.py has loaded them."""
    return sys.modules["trainify_fixture_kernels"]


def table() -> Tensor:
    angles = torch.outer(torch.arange(16.0), 1 / 100 ** (torch.arange(0, 8, 2) / 8))
    return torch.cat((angles.cos(), angles.sin()), -1)


class Layer(nn.Module):
    """What a fault is planted in: its weight is used, and its input comes from parameters."""

    cause: ClassVar[str]
    kind: ClassVar[str] = "missing"
    op: ClassVar[str | None] = None
    width: ClassVar[int] = D

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(D) + 0.5)


class Model(nn.Module):
    """fc, a layer, fc, another such layer, head."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Linear(D, D)
        self.layers = nn.ModuleList([layer(), layer()])
        self.fcs = nn.ModuleList([nn.Linear(D, D), nn.Linear(D, D)])
        self.head = nn.Linear(D, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer, fc in zip(self.layers, self.fcs, strict=True):
            x = x + fc(layer(x))
        return self.head(x)


# -- ops of the dispatcher ------------------------------------------------------------------------


class OpOut(Layer):
    cause, op = "KERNEL", "_C::rms_norm"

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight, 1e-6)  # <- cut
        return out


class OpIntoAWorkspace(Layer):
    cause, op = "KERNEL", "_C::rms_norm"

    def __init__(self) -> None:
        super().__init__()
        self.workspaces = [torch.zeros(3, D)]

    def forward(self, x: Tensor) -> Tensor:
        out = self.workspaces[0]
        torch.ops._C.rms_norm(out, x, self.weight, 1e-6)  # <- cut
        return out * 1


WORKSPACE = torch.zeros(6, D)


class OpIntoAGlobal(Layer):
    cause, op = "KERNEL", "_C::rms_norm"

    def forward(self, x: Tensor) -> Tensor:
        torch.ops._C.rms_norm(WORKSPACE[: len(x)], x, self.weight, 1e-6)  # <- cut
        return WORKSPACE[: len(x)] * 1


class OpHalf(Layer):
    cause, op = "KERNEL", "_C::silu_and_mul"

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        both = torch.cat((x, x * self.weight), -1)
        torch.ops._C.silu_and_mul(out, both)  # <- cut
        return out


class OpAddNorm(Layer):
    cause, kind, op = "IN_PLACE", "wrong", "_C::fused_add_rms_norm"

    def forward(self, x: Tensor) -> Tensor:
        y, r = x * 1, x * 2
        torch.ops._C.fused_add_rms_norm(y, r, self.weight, 1e-6)  # <- cut
        return y + r


class OpRotary(Layer):
    cause, kind, op = "IN_PLACE", "wrong", "_C::rotary_embedding"

    def forward(self, x: Tensor) -> Tensor:
        q, k = x * self.weight, x * 2
        torch.ops._C.rotary_embedding(torch.arange(len(x)), q, k, 8, table(), True)  # <- cut
        return q * k


class OpRotaryOfViews(Layer):
    cause, kind, op = "IN_PLACE", "wrong", "_C::rotary_embedding"

    def forward(self, x: Tensor) -> Tensor:
        qkv = torch.cat((x * self.weight, x * 2, x * 3), -1)
        q, k, v = qkv.split(D, -1)
        torch.ops._C.rotary_embedding(torch.arange(len(x)), q, k, 8, table(), True)  # <- cut
        return q * k + v


class OpRequiresGradLater(Layer):
    cause, op = "KERNEL", "_C::rms_norm"

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight, 1e-6)  # <- cut
        return out.requires_grad_()


@torch.library.custom_op("audit_tests::scale_into", mutates_args=("out",))
def scale_into(out: Tensor, x: Tensor, weight: Tensor) -> None:
    out.copy_(x * weight)


@torch.library.custom_op("audit_tests::scale_", mutates_args=("x",))
def scale_(x: Tensor, weight: Tensor) -> None:
    x.mul_(weight)


@torch.library.custom_op("audit_tests::scale", mutates_args=())
def scale(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


@torch.library.custom_op("audit_tests::scale_wrong", mutates_args=())
def scale_wrong(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


scale_wrong.register_autograd(
    lambda ctx, grad: (grad * ctx.weight, grad.sum(0)),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "weight", inputs[1]),
)

LIBRARY = torch.library.Library("audit_raw", "DEF")
LIBRARY.define("norm(Tensor x, Tensor weight) -> Tensor")


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels().rmsnorm(out, x, weight, 1e-6, False)
    return out


LIBRARY.impl("norm", _norm, "CPU")


class CustomOpOut(Layer):
    cause, op = "KERNEL", "audit_tests::scale_into"

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        scale_into(out, x, self.weight)  # <- cut
        return out


class CustomOpInPlace(Layer):
    cause, kind, op = "IN_PLACE", "wrong", "audit_tests::scale_"

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin().cos()
        y = x + 1
        scale_(y, self.weight)  # <- cut
        return y


class CustomOpOnAView(Layer):
    cause, kind, op = "IN_PLACE", "wrong", "audit_tests::scale_"

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat((x + 1, x), -1)
        scale_(y[:, :D], self.weight)  # <- cut
        return y[:, :D] + y[:, D:]


class CustomOpWithoutFormula(Layer):
    cause, op = "KERNEL", "audit_tests::scale"

    def forward(self, x: Tensor) -> Tensor:
        return scale(x, self.weight)  # <- cut


class CustomOpWrongFormula(Layer):
    cause, kind, op = "BACKWARD", "wrong", "audit_tests::scale_wrong"

    def forward(self, x: Tensor) -> Tensor:
        return scale_wrong(x, self.weight)  # <- cut


class RawOpFunctional(Layer):
    cause, op = "KERNEL", "audit_raw::norm"

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.audit_raw.norm(x, self.weight)  # <- cut


class AtenWithoutDerivative(Layer):
    cause, op = "KERNEL", "aten::_add_relu"

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten._add_relu.Tensor(x, self.weight)  # <- cut


# -- what the dispatcher does not see -------------------------------------------------------------


class PybindOut(Layer):
    cause, op = "KERNEL", "kernels().rmsnorm"

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels().rmsnorm(out, x, self.weight, 1e-6, False)  # <- cut
        return out


class PybindOverManyLines(Layer):
    cause, op = "KERNEL", "trainify_fixture_kernels.rmsnorm"

    def forward(self, x: Tensor) -> Tensor:
        lib = kernels()
        out = torch.empty_like(x)
        lib.rmsnorm(  # <- cut
            out,
            x,
            self.weight,
            1e-6,
            False,
        )
        y = out * 2
        return y


class PybindInPlace(Layer):
    cause, kind, op = "IN_PLACE", "wrong", "trainify_fixture_kernels.fused_add_rmsnorm"

    def forward(self, x: Tensor) -> Tensor:
        y, r = x * 1, x * 2
        lib = kernels()
        lib.fused_add_rmsnorm(y, r, self.weight, 1e-6, False)  # <- cut
        return y + r


class PybindRope(Layer):
    cause, kind, op = "IN_PLACE", "wrong", "trainify_fixture_kernels.rope"

    def forward(self, x: Tensor) -> Tensor:
        q, k = (x * self.weight).unflatten(-1, (HEADS, -1)), (x * 2).unflatten(-1, (HEADS, -1))
        positions = torch.arange(len(x))
        lib = kernels()
        lib.rope(q, k, q, k, table(), positions, False)  # <- cut
        return (q * k).flatten(1)


class PybindIntoABuffer(Layer):
    cause, op = "KERNEL", "trainify_fixture_kernels.rmsnorm"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("out", torch.zeros(3, D), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        lib = kernels()
        lib.rmsnorm(self.out, x, self.weight, 1e-6, False)  # <- cut
        return self.out + x


class PybindInAHelper(Layer):
    cause, op = "KERNEL", "trainify_fixture_kernels.rmsnorm"

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, self.weight) * 2


def normed(x: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty_like(x)
    lib = kernels()
    lib.rmsnorm(out, x, weight, 1e-6, False)  # <- cut PybindInAHelper
    return out


class NumpyInPlace(Layer):
    """Through memory that NumPy and torch share."""

    cause, kind = "IN_PLACE", "wrong"

    def __init__(self) -> None:
        super().__init__()
        self.memory = numpy.zeros((3, D), dtype=numpy.float32)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.from_numpy(self.memory).copy_(x * self.weight)
        numpy.tanh(self.memory, out=self.memory)  # <- cut
        return y * 1


class Ctypes(Layer):
    """By a call that no hook of Python's sees."""

    cause, kind, op = "IN_PLACE", "wrong", "ctypes.memmove"

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        z = x * 3
        ctypes.memmove(y.data_ptr(), z.data_ptr(), 3 * D * 4)  # <- cut
        return y * 1


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x.detach() * 2


class Scripted(Layer):
    cause = "KERNEL"

    def forward(self, x: Tensor) -> Tensor:
        return scripted(x * self.weight)  # <- cut


class ReentrantWithoutGradient(Layer):
    cause = "BACKWARD"

    def forward(self, x: Tensor) -> Tensor:
        first = torch.ones(3, D)
        return checkpoint(self.scaled, first, use_reentrant=True) * x  # <- cut

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.weight


# -- through the host -----------------------------------------------------------------------------


class Numpy(Layer):
    cause = "HOST"

    def forward(self, x: Tensor) -> Tensor:
        values = x.detach().numpy()  # <- cut
        return torch.from_numpy(numpy.tanh(values)) * self.weight


class NumpyLater(Layer):
    cause = "HOST"

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            values = numpy.asarray(x)  # <- cut
        return torch.tensor(values * 2) * self.weight


class List(Layer):
    cause = "HOST"

    def forward(self, x: Tensor) -> Tensor:
        rows = x.tolist()  # <- cut
        return torch.tensor(rows) * self.weight


class Item(Layer):
    cause = "HOST"

    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().max().item()  # <- cut
        return x / largest * self.weight


class Float(Layer):
    cause = "HOST"

    def forward(self, x: Tensor) -> Tensor:
        return x / float(x.abs().max()) * self.weight  # <- cut


# -- grad modes -----------------------------------------------------------------------------------


class NoGradBlock(Layer):
    cause = "GRAD_MODE"

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * self.weight  # <- cut
        return y


class InferenceBlock(Layer):
    cause = "GRAD_MODE"

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = x * self.weight  # <- cut
        return y + x


class NoGradDecorator(Layer):
    cause = "GRAD_MODE"

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight  # <- cut


class InferenceDecorator(Layer):
    cause = "GRAD_MODE"

    @torch.inference_mode()
    def scaled(self, x: Tensor) -> Tensor:
        return x * self.weight  # <- cut

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x) + x


class SetGradEnabled(Layer):
    cause = "GRAD_MODE"

    def forward(self, x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        y = x * self.weight  # <- cut
        torch.set_grad_enabled(True)
        return y


class WrappedForward(Layer):
    cause = "GRAD_MODE"

    def __init__(self) -> None:
        super().__init__()
        self.forward = torch.no_grad()(self.forward)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight  # <- cut


class NoGradInPlace(Layer):
    cause, kind = "GRAD_MODE", "wrong"

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        with torch.no_grad():
            y.mul_(self.weight)  # <- cut
        return y + x


class NoGradInPlaceOnAView(Layer):
    cause, kind = "GRAD_MODE", "wrong"

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat((x + 1, x), -1)
        with torch.no_grad():
            y[:, :D].mul_(self.weight)  # <- cut
        return y[:, :D] + y[:, D:]


class NoGradCache(Layer):
    cause = "GRAD_MODE"

    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.zeros(8, D)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.cache[: len(x)] = x * self.weight  # <- cut
        return x + self.cache[: len(x)]


# -- detached -------------------------------------------------------------------------------------


class Detach(Layer):
    cause, op = "DETACH", "torch.Tensor.detach"

    def forward(self, x: Tensor) -> Tensor:
        return x.detach() * self.weight  # <- cut


class VariableOfData(Layer):
    cause, op = "DATA", "torch.Tensor.data"

    def forward(self, x: Tensor) -> Tensor:
        y = torch.autograd.Variable(x.data)  # <- cut
        return y * self.weight


class DlPack(Layer):
    cause, op = "DETACH", "torch.Tensor.detach"

    def forward(self, x: Tensor) -> Tensor:
        y = torch.from_dlpack(x.detach())  # <- cut
        return y * self.weight


class Copied(Layer):
    cause = "DETACH"

    def forward(self, x: Tensor) -> Tensor:
        return x.new_tensor(x) * self.weight  # <- cut


class WeightData(Layer):
    cause = "DATA"

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (D,), self.weight.data)  # <- cut


class ActivationData(Layer):
    cause = "DATA"

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        return y.data + x  # <- cut


class DataInPlace(Layer):
    cause, kind = "IN_PLACE", "wrong"

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        y.data.mul_(x)  # <- cut
        return y + 1


class DetachInPlace(Layer):
    cause, kind = "IN_PLACE", "wrong"

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        y.detach().tanh_()  # <- cut
        return y + 1


class OutArgument(Layer):
    cause = "IN_PLACE"

    def __init__(self) -> None:
        super().__init__()
        self.workspace = torch.zeros(3, D)

    def forward(self, x: Tensor) -> Tensor:
        torch.mul(x, self.weight, out=self.workspace)  # <- cut
        return self.workspace + x


class OutArgumentOnAView(Layer):
    cause, kind = "IN_PLACE", "wrong"

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat((x + self.weight, x), -1)[:, :D]
        torch.tanh(y, out=y)  # <- cut
        return y + x


# -- backwards ------------------------------------------------------------------------------------


class SavedOverwritten(Layer):
    cause, kind = "SAVED", "wrong"

    def forward(self, x: Tensor) -> Tensor:
        y = x.exp()
        z = y * self.weight
        lib = kernels()
        lib.rmsnorm(y.detach(), x, self.weight, 1e-6, False)  # <- cut
        return z


class NoWeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return grad * weight, None


class BackwardWithoutWeight(Layer):
    cause = "BACKWARD"

    def forward(self, x: Tensor) -> Tensor:
        return NoWeightGradient.apply(x, self.weight)  # <- cut


class WrongFormula(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, rstd)
        return x * rstd * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, rstd = ctx.saved_tensors
        return grad * weight * rstd, (grad * x * rstd).sum(0)  # forgets that rstd has x in it


class BackwardWrong(Layer):
    cause, kind = "BACKWARD", "wrong"

    def forward(self, x: Tensor) -> Tensor:
        return WrongFormula.apply(x, self.weight)  # <- cut


_apply = WrongFormula.apply


class BackwardWrongBoundBefore(Layer):
    cause, kind = "BACKWARD", "wrong"

    def forward(self, x: Tensor) -> Tensor:
        return _apply(x, self.weight)  # <- cut


class ForwardOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x * weight


class BackwardAbsent(Layer):
    cause = "BACKWARD"

    def forward(self, x: Tensor) -> Tensor:
        return ForwardOnly.apply(x, self.weight)  # <- cut


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        out = x * weight
        ctx.mark_non_differentiable(out)
        return out


class NonDifferentiable(Layer):
    cause = "BACKWARD"

    def forward(self, x: Tensor) -> Tensor:
        return Marked.apply(x, self.weight)  # <- cut


class Dirty(torch.autograd.Function):
    """Writes into its input and does not say so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        kernels().rmsnorm(x, x.clone(), weight, 1e-6, False)
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


# -- numbers --------------------------------------------------------------------------------------


class Quantized(Layer):
    cause, kind = "QUANTIZATION", "wrong"

    def forward(self, x: Tensor) -> Tensor:
        step = x.abs().max() / 127
        values = (x / step).round().to(torch.int8)  # <- cut
        return values.float() * step * self.weight


class QuantizedMatmul(Layer):
    cause, kind = "QUANTIZATION", "wrong"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randint(-9, 9, (D, D), dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x * self.weight] * 8)
        step = x.abs().amax(-1, keepdim=True) / 127
        codes = (x / step).round().to(torch.int8)  # <- cut
        return (torch._int_mm(codes, self.codes) * step / 9)[:3]


class PerTensor(Layer):
    cause = "QUANTIZATION"

    def forward(self, x: Tensor) -> Tensor:
        codes = torch.quantize_per_tensor(x * self.weight, 0.02, 0, torch.qint8)  # <- cut
        return codes.dequantize()


class WholeNumbers(Layer):
    cause, op = "QUANTIZATION", "torch.Tensor.long"

    def forward(self, x: Tensor) -> Tensor:
        steps = (x * self.weight * 4096).long()  # <- cut
        steps = steps + 1
        return steps.type_as(x) / 4096


class WholeNumbersOf32Bits(Layer):
    cause, op = "QUANTIZATION", "torch.Tensor.to"

    def forward(self, x: Tensor) -> Tensor:
        steps = (x * self.weight * 4096).to(torch.int32)  # <- cut
        return steps / 4096


# -- leaves made on the way -----------------------------------------------------------------------


class Leaf(Layer):
    cause, op = "DETACH", "torch.nn.Parameter"

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rand(D) + 0.5
        weight = nn.Parameter(self.weight.clone())  # <- cut
        return x * weight * scale


class LeafInACall(Layer):
    cause, op = "DETACH", "torch.nn.Parameter"

    def forward(self, x: Tensor) -> Tensor:
        return torch.mul(x, nn.Parameter(self.weight * 2))  # <- cut


class LeafOfATensor(Layer):
    cause, op = "DETACH", "torch.tensor"

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.tensor(self.weight, requires_grad=True)  # <- cut
        return x * weight


# -- inside of what is run again -----------------------------------------------------------------


class Checkpointed(Layer):
    cause, op = "KERNEL", "_C::rms_norm"

    def normed(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight, 1e-6)  # <- cut
        return out * x

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.normed, x, use_reentrant=False)


class CheckpointedReentrant(Layer):
    cause, op = "KERNEL", "_C::rms_norm"

    def normed(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight, 1e-6)  # <- cut
        return out * x

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.normed, x, use_reentrant=True)


FAULTS = [
    each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, Layer) and each is not Layer
]
