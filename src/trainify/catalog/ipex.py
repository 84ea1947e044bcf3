"""Intel Extension for PyTorch."""

from . import FusedOp

_IPEX = "intel_extension_for_pytorch/llm/functional/fusions.py"

OPS = (
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.rms_norm",),
        schema="rms_norm(Tensor hidden_states, Tensor weight, float eps) -> Tensor",
        equivalent="rms_norm(hidden_states, weight, eps)",
        source=_IPEX,
    ),
    FusedOp(
        names=("torch.ops.torch_ipex.rmsnorm",),
        schema="rmsnorm(Tensor input, Tensor weight, float eps) -> Tensor",
        equivalent="rms_norm(input, weight, eps)",
        source="csrc/cpu/aten/RMSNorm.cpp",
    ),
    FusedOp(
        # add_back writes the sum into residual, which the op's own schema does not declare.
        names=("intel_extension_for_pytorch.llm.functional.add_rms_norm",),
        schema="add_rms_norm(Tensor residual, Tensor x, Tensor weight, Tensor? bias, float eps, "
        "bool add_back=False) -> Tensor",
        equivalent="rms_norm(residual + x, weight, eps)",
        source=_IPEX,
        unsupported=("bias", "add_back"),
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.add_layer_norm",),
        schema="add_layer_norm(Tensor residual, Tensor x, Tensor weight, Tensor? bias, float eps, "
        "bool add_back=False) -> Tensor",
        equivalent="layer_norm(residual + x, weight, bias, eps)",
        source=_IPEX,
        unsupported=("add_back",),
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.silu_mul",),
        schema="silu_mul(Tensor x, Tensor y, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="F.silu(x) * y",
        source=_IPEX,
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.gelu_mul",),
        schema="gelu_mul(Tensor x, Tensor y, Tensor(a!)? out=None, str approximate='none')"
        " -> Tensor(a!)",
        equivalent="F.gelu(x, approximate=approximate) * y",
        source=_IPEX,
    ),
)
