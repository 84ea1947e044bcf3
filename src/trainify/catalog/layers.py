"""Layer classes of serving libraries whose forward is fused, and the differentiable twin they own.

Each of these runs a kernel; ``forward_native`` (once ``_forward``) is the same in plain PyTorch.
Where a release's twin is not differentiable either, or there is none, ``cut`` says so and the call
is only reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..releases import Release
from . import holds


@dataclass(frozen=True)
class FusedLayer:
    """Layer classes of one module that are alike.

    ``module``   where the classes are imported from.
    ``classes``  their names.
    ``twin``     the method that computes the same with a gradient; empty where it has none.
    ``source``   where that was read.
    ``cut``      why the twin has no gradient either; empty where it has.
    ``since``    the releases the row holds for, as ``"vllm>=0.20"``; empty for all.
    ``overwrites``  the arguments that the kernel writes its results into, and the twin does not,
                 by place and name: results come in this order.
    ``together`` whether it does so only where all of these are given.
    ``look_at``  what a person should check of the twin; where it is set, no fix is safe.
    """

    module: str
    classes: tuple[str, ...]
    source: str
    twin: str = "forward_native"
    cut: str = ""
    since: str = ""
    overwrites: tuple[tuple[int, str], ...] = ()
    together: bool = False
    look_at: str = ""

    @property
    def equivalent(self) -> str:
        return self.twin

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.module}.{name}" for name in self.classes)


HUB = {
    "kernels-community/activation": (
        *("SiluAndMul", "MulAndSilu", "GeluAndMul", "GeluTanhAndMul", "FatreluAndMul"),
        *("FastGELU", "NewGELU", "QuickGELU"),
    ),
}
"""Layers of Hugging Face kernels that have no backward and do not say so, by repository.

Read in ``activation/layers.py`` at 40d4194f48b6.
"""

_NORMS = "vllm.model_executor.layers.layernorm"
_FIRST = {
    _NORMS: ("RMSNorm",),
    "vllm.model_executor.layers.activation": ("SiluAndMul", "GeluAndMul", "NewGELU", "FastGELU"),
    "vllm.model_executor.layers.rotary_embedding": (
        *("RotaryEmbedding", "LinearScalingRotaryEmbedding"),
    ),
}
"""The layers that vLLM had before 0.5, when a twin was called ``_forward``."""

_RESIDUAL = ((0, "x"), (1, "residual"))
_ROTATED = ((1, "query"), (2, "key"))
_FIRST_WRITTEN = {
    _NORMS: _RESIDUAL,
    "vllm.model_executor.layers.rotary_embedding": _ROTATED,
}
_OF_CONFIG = (
    "that the rope which the configuration asks for has a `forward_native` (longrope's is plain "
    "PyTorch and has none)"
)
_CONTEXT = "the keys and values that it attends to come from a context of the server, not its call"
_EXPERTS = "its experts run kernels without a backward, and it has no other forward"

_WEIGHT_DATA = "its forward_native computes with `weight.data`: the weight gets no gradient"

LAYERS: tuple[FusedLayer, ...] = (
    FusedLayer(
        module=_NORMS,
        classes=("RMSNorm", "GemmaRMSNorm"),
        source="vllm 0.33.0",
        cut="its forward_native runs vllm.ir ops, which record no backward, on `weight.data`",
        since="vllm>=0.20",
    ),
    FusedLayer(
        module=_NORMS,
        classes=("RMSNorm",),
        source="vllm 0.11.2, 0.16.0 and 0.19.0",
        cut=_WEIGHT_DATA,
        since="vllm>=0.11.1,<0.20",
    ),
    FusedLayer(
        module=_NORMS,
        classes=("RMSNorm",),
        source="vllm 0.5.0, 0.8.5 and 0.11.0",
        since="vllm>=0.5,<0.11.1",
        overwrites=_RESIDUAL,
        together=True,
    ),
    FusedLayer(
        module=_NORMS,
        classes=("GemmaRMSNorm",),
        source="vllm 0.8.5, 0.11.0 and 0.14.0",
        cut=_WEIGHT_DATA,
        since="vllm<0.20",
    ),
    FusedLayer(
        module="vllm.model_executor.layers.activation",
        classes=(
            *("FatreluAndMul", "SiluAndMul", "SituAndMul", "SiluAndMulWithClamp", "MulAndSilu"),
            *("GELU", "GELUTanh", "GeluAndMul", "SwigluOAIAndMul", "SwigluStepAndMul", "NewGELU"),
            *("FastGELU", "QuickGELU", "ReLUSquaredActivation"),
        ),
        source="vllm 0.5.0 and 0.33.0",
        since="vllm>=0.5",
    ),
    FusedLayer(
        module="vllm.model_executor.layers.rotary_embedding",
        classes=("RotaryEmbedding", "LinearScalingRotaryEmbedding", "Llama3RotaryEmbedding"),
        source="vllm 0.5.0 and 0.33.0",
        since="vllm>=0.5",
        overwrites=_ROTATED,
    ),
    FusedLayer(
        module="vllm.model_executor.layers.rotary_embedding",
        classes=("get_rope",),
        source="vllm 0.5.0 and 0.33.0",
        since="vllm>=0.5",
        overwrites=_ROTATED,
        look_at=_OF_CONFIG,
    ),
    *(
        FusedLayer(module=module, classes=classes, source="vllm 0.8.5 and 0.33.0", twin="", cut=cut)
        for module, classes, cut in (
            ("vllm.attention", ("Attention", "layer.Attention", "layer.MLAAttention"), _CONTEXT),
            ("vllm.model_executor.layers.attention", ("Attention", "MLAAttention"), _CONTEXT),
            ("vllm.model_executor.layers.fused_moe", ("FusedMoE", "layer.FusedMoE"), _EXPERTS),
        )
    ),
    *(
        row
        for module, classes in _FIRST.items()
        for row in (
            FusedLayer(
                module=module,
                classes=classes,
                twin="_forward",
                source="vllm 0.2.3, 0.2.7, 0.3.3, 0.4.1 and 0.4.3",
                since="vllm>=0.2.3,<0.5",
                overwrites=_FIRST_WRITTEN.get(module, ()),
                together=module == _NORMS,
            ),
            FusedLayer(
                module=module,
                classes=classes,
                twin="",
                source="vllm 0.2.2",
                cut="it has no other forward",
                since="vllm<0.2.3",
            ),
        )
    ),
    FusedLayer(
        module="sglang.srt.layers.layernorm",
        classes=("RMSNorm", "LayerNorm", "GemmaRMSNorm", "Gemma3RMSNorm", "Gemma4RMSNorm"),
        source="sglang 0.5.23",
        overwrites=_RESIDUAL,
        together=True,
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
        overwrites=_ROTATED,
    ),
    FusedLayer(
        module="sglang.srt.layers.rotary_embedding",
        classes=("get_rope", "factory.get_rope"),
        source="sglang 0.5.23",
        overwrites=_ROTATED,
        look_at=_OF_CONFIG,
    ),
    FusedLayer(
        module="sglang.srt.layers.radix_attention",
        classes=("RadixAttention",),
        source="sglang 0.5.23",
        twin="",
        cut=_CONTEXT,
    ),
    FusedLayer(
        module="sglang.srt.layers.moe.fused_moe_triton",
        classes=("FusedMoE", "layer.FusedMoE"),
        source="sglang 0.5.23",
        twin="",
        cut=_EXPERTS,
    ),
    *(
        FusedLayer(
            module=f"kernels.get_kernel({repository!r}).layers",
            classes=classes,
            source="kernels-community 40d4194f48b6",
            twin="",
            cut="it has no other forward",
        )
        for repository, classes in HUB.items()
    ),
)


@cache
def _by_name(releases: tuple[Release, ...]) -> dict[str, FusedLayer]:
    rows = (*LAYERS[::-1], *(row for row in LAYERS[::-1] if holds(row, releases)))
    return {name: row for row in rows for name in row.names}


def lookup_layer(qualified_name: str, releases: tuple[Release, ...] = ()) -> FusedLayer | None:
    """The layer made by calling this class, or None.

    Of the rows for several releases, that for the one in ``releases`` is taken, else the newest.
    """
    return _by_name(releases).get(qualified_name)
