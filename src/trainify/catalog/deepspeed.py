"""DeepSpeed's inference kernels in Triton.

Its CUDA kernels are reached through modules and an op builder, not by a name.
"""

from . import FusedOp

OPS = (
    FusedOp(
        names=("deepspeed.ops.transformer.inference.triton.layer_norm.layer_norm",),
        schema="layer_norm(Tensor a, Tensor weight, Tensor bias, float eps) -> Tensor",
        equivalent="layer_norm(a, weight, bias, eps)",
        source="deepspeed/ops/transformer/inference/triton/layer_norm.py",
    ),
    FusedOp(
        names=("deepspeed.ops.transformer.inference.triton.softmax.softmax",),
        schema="softmax(Tensor input, Tensor? mask=None, int dim=-1) -> Tensor",
        equivalent="softmax(input)",
        source="deepspeed/ops/transformer/inference/triton/softmax.py",
        unsupported=("mask", "dim"),
    ),
)
