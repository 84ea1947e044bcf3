"""Layer classes of serving libraries whose forward is fused, and the differentiable twin they own.

Each of these dispatches to a kernel by platform; ``forward_native`` is the same in plain PyTorch.
Where a release's twin is not differentiable either, ``cut`` says so and the call is only reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class FusedLayer:
    """Layer classes of one module that are alike.

    ``module``   where the classes are imported from.
    ``classes``  their names.
    ``twin``     the method that computes the same with a gradient.
    ``source``   where that was read.
    ``cut``      why the twin has no gradient either; empty where it has.
    """

    module: str
    classes: tuple[str, ...]
    source: str
    twin: str = "forward_native"
    cut: str = ""

    @property
    def equivalent(self) -> str:
        return self.twin

    @property
    def since(self) -> str:
        return ""  # the installed class is asked whether it has the twin

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.module}.{name}" for name in self.classes)


LAYERS: tuple[FusedLayer, ...] = (
    FusedLayer(
        module="vllm.model_executor.layers.layernorm",
        classes=("RMSNorm", "GemmaRMSNorm"),
        source="vllm 0.33.0",
        cut="its forward_native runs vllm.ir ops, which record no backward, on `weight.data`",
    ),
    FusedLayer(
        module="vllm.model_executor.layers.activation",
        classes=(
            *("FatreluAndMul", "SiluAndMul", "SituAndMul", "SiluAndMulWithClamp", "MulAndSilu"),
            *("GELU", "GELUTanh", "GeluAndMul", "SwigluOAIAndMul", "SwigluStepAndMul", "NewGELU"),
            *("FastGELU", "QuickGELU", "ReLUSquaredActivation"),
        ),
        source="vllm 0.33.0",
    ),
    FusedLayer(
        module="vllm.model_executor.layers.rotary_embedding",
        classes=("RotaryEmbedding", "LinearScalingRotaryEmbedding", "Llama3RotaryEmbedding"),
        source="vllm 0.33.0",
    ),
    FusedLayer(
        module="sglang.srt.layers.layernorm",
        classes=("RMSNorm", "LayerNorm", "GemmaRMSNorm", "Gemma3RMSNorm", "Gemma4RMSNorm"),
        source="sglang 0.5.23",
    ),
    FusedLayer(
        module="sglang.srt.layers.activation",
        classes=("SiluAndMul", "SituAndMul", "GeluAndMul", "NewGELU", "ReLU2", "QuickGELU"),
        source="sglang 0.5.23",
    ),
    FusedLayer(
        module="sglang.srt.layers.rotary_embedding.base",
        classes=("RotaryEmbedding", "LinearScalingRotaryEmbedding"),
        source="sglang 0.5.23",
    ),
)


@cache
def _by_name() -> dict[str, FusedLayer]:
    return {name: layer for layer in LAYERS for name in layer.names}


def lookup_layer(qualified_name: str) -> FusedLayer | None:
    """The layer made by calling this class, or None."""
    return _by_name().get(qualified_name)
