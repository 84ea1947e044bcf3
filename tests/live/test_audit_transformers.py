"""No false alarm on Hugging Face's models, and their gradients proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trainify import audit

SMALL = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
IDS = torch.arange(24).reshape(2, 12) * 7 % 100

Made = tuple[nn.Module, dict[str, Any]]


def tokens(name: str, head: str = "ForCausalLM", **config: Any) -> Callable[[], Made]:
    def made() -> Made:
        import transformers

        model = getattr(transformers, name + head)(getattr(transformers, f"{name}Config")(**config))
        return model, {"input_ids": IDS, "labels": IDS.flip(0)}

    return made


def vit() -> Made:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        image_size=16, patch_size=4,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return model, {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}


MODELS: dict[str, Callable[[], Made]] = {
    "llama": tokens("Llama", **GROUPED),
    "gpt2 with dropout": tokens(
        "GPT2", "LMHeadModel", vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=64
    ),
    "mixtral": tokens("Mixtral", **GROUPED, num_local_experts=4),
    "qwen2": tokens("Qwen2", **GROUPED),
    "qwen3": tokens("Qwen3", **GROUPED, head_dim=8),
    "mistral": tokens("Mistral", **GROUPED, sliding_window=4),
    "gemma2": tokens("Gemma2", **GROUPED, head_dim=8),
    "phi": tokens("Phi", **SMALL),
    "bert": tokens("Bert", "ForMaskedLM", **SMALL),
    "t5": tokens(
        "T5", "ForConditionalGeneration", vocab_size=128, d_model=32, d_kv=8, d_ff=64,
        num_layers=2, num_heads=4, decoder_start_token_id=0,
    ),
    "vit": vit,
    "mamba": tokens("Mamba", vocab_size=128, hidden_size=32, num_hidden_layers=2, state_size=4),
}  # fmt: skip
QUICK = ("llama", "gpt2 with dropout", "mixtral")


def audited(name: str, dtype: torch.dtype = torch.float32, prepare: Any = None) -> Any:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.train().to(dtype)
    if prepare:
        prepare(model)
    return audit(model, **{
        n: v.to(dtype) if v.is_floating_point() else v for n, v in inputs.items()
    })  # fmt: skip


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_model_is_ok(name: str) -> None:
    report = audited(name)
    assert report.ok and not report.notes, str(report)
    assert report.proof.startswith("float64"), str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2", "t5", "vit"])
def test_model_in_bfloat16_is_ok(name: str) -> None:
    report = audited(name, torch.bfloat16)
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_model_is_ok(reentrant: bool) -> None:
    def prepare(model: Any) -> None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()

    report = audited("llama", prepare=prepare)
    assert report.ok and report.proof.startswith("float64"), str(report)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_is_ok(attention: str) -> None:
    report = audited("llama", prepare=lambda model: model.set_attn_implementation(attention))
    assert report.ok and report.proof, str(report)
