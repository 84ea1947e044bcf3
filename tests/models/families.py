"""Families of decoders as ``fixtures/more_serving`` has them, and as Hugging Face has them."""

from __future__ import annotations

import torch

SIZE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
FAMILIES = {
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": 8},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
}


def load_oracle(family):
    import transformers

    config = getattr(transformers, f"{family}Config")(
        **SIZE, **FAMILIES[family], attn_implementation="eager", experts_implementation="eager"
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.15)
            if "norm" in name:
                parameter.add_(1)
    return model.eval()


def load_served(family, oracle, package):
    """The package's model, with the weights of Hugging Face's."""
    model = getattr(package, f"{family}ForCausalLM")(oracle.config)
    model.load_weights(oracle.state_dict().items())
    return model


def logits(model, package, ids):
    return model(package.PackedBatch.of(ids.tolist())).view(*ids.shape, -1)
