"""The inference packages behind one face, and what Hugging Face says they should compute."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import torch
import torch.nn.functional as F

FIXTURES = Path(__file__).parents[2] / "fixtures"

Named = dict[str, "torch.Tensor | None"]


class Package:
    """One package, its model loaded from a checkpoint."""

    name: str
    kind: str  # of checkpoint
    oracle: str  # of transformers

    def __init__(self, package: ModuleType, checkpoint: Path, dtype: torch.dtype = torch.float32):
        self.package = package
        self.load(str(checkpoint), dtype)

    model: torch.nn.Module

    def load(self, checkpoint: str, dtype: torch.dtype) -> None:
        raise NotImplementedError

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Of every position (B, S, V), by the call a training loop would make."""
        raise NotImplementedError

    def generate(
        self, prompts: list[list[int]], n: int, temperature: float = 0.0, seed: int | None = None
    ) -> list[list[int]]:
        raise NotImplementedError

    def warm_up(self) -> None:
        """Whatever else the package runs the model for."""

    def state(self) -> list[torch.Tensor]:
        """Tensors that outlive a call and are no parameters."""
        raise NotImplementedError

    def double(self) -> None:
        """Parameters and caches in float64; tables stay as they are."""
        for parameter in self.model.parameters():
            parameter.data = parameter.data.double()

    def to_hf(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The Hugging Face parameters that a parameter (or its gradient) holds."""
        raise NotImplementedError

    def hf_gradients(self) -> Named:
        """Gradients by Hugging Face name; None where there is none."""
        found: Named = {}
        for name, parameter in self.model.named_parameters():
            gradient = parameter.grad
            for hf_name, part in self.to_hf(name, parameter if gradient is None else gradient):
                found[hf_name] = None if gradient is None else part
        return found

    def hand_weights_to(self, oracle: torch.nn.Module) -> None:
        """Give a Hugging Face model the weights as they are now."""
        parts = [
            part
            for name, p in self.model.named_parameters()
            for part in self.to_hf(name, p.detach())
        ]
        weights = dict(parts)
        for name, parameter in oracle.named_parameters():
            parameter.data.copy_(weights[name])


class LlamaServing(Package):
    name = "llama_serving"
    kind = "llama"
    oracle = "LlamaForCausalLM"

    def load(self, checkpoint: str, dtype: torch.dtype) -> None:
        name = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[dtype]
        self.model = self.package.load_model(checkpoint, dtype=name)
        self.llm = self.package.LLM(self.model, block_size=16, max_model_len=128)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        n, length = ids.shape
        metadata = sys.modules[f"{self.package.__name__}.attn_metadata"]
        hidden = self.model(
            ids.flatten(),
            torch.arange(length).repeat(n),
            self.llm.kv_caches,
            metadata.dummy_prefill_metadata(n, length, self.llm.block_size, ids.device),
        )
        return self.model.compute_logits(hidden).view(n, length, -1)

    def generate(
        self, prompts: list[list[int]], n: int, temperature: float = 0.0, seed: int | None = None
    ) -> list[list[int]]:
        return self.llm.generate(
            prompts, self.package.SamplingParams(max_tokens=n, temperature=temperature, seed=seed)
        )

    def warm_up(self) -> None:
        self.llm.profile_run(2, 8)

    def state(self) -> list[torch.Tensor]:
        return [*self.llm.kv_caches, *self.model.buffers()]

    def double(self) -> None:
        super().double()
        self.llm.kv_caches = [cache.double() for cache in self.llm.kv_caches]

    def to_hf(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        return unpack(self.model.config, name, tensor)


class GemmaServing(Package):
    name = "gemma_serving"
    kind = "gemma2"
    oracle = "Gemma2ForCausalLM"

    def load(self, checkpoint: str, dtype: torch.dtype) -> None:
        loader = sys.modules[f"{self.package.__name__}.loader"]
        self.model = loader.get_model(checkpoint, dtype)
        self.engine = self.package.Engine(self.model, context_length=128)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        self.engine.flush_cache()
        inputs = self.engine.make_extend_batch(ids.tolist(), return_logprob=True)
        return self.model(*inputs).view(*ids.shape, -1)

    def generate(
        self, prompts: list[list[int]], n: int, temperature: float = 0.0, seed: int | None = None
    ) -> list[list[int]]:
        return self.engine.generate(prompts, n, temperature, seed)

    def state(self) -> list[torch.Tensor]:
        pool = self.engine.token_to_kv_pool
        workspace = self.model.model.layers[0].mlp.act_fn.workspace.buffer
        kept = [] if workspace is None else [workspace]
        return [*pool.k_buffer, *pool.v_buffer, *self.model.buffers(), *kept]

    def double(self) -> None:
        super().double()
        pool = self.engine.token_to_kv_pool
        pool.k_buffer = [buffer.double() for buffer in pool.k_buffer]
        pool.v_buffer = [buffer.double() for buffer in pool.v_buffer]

    def to_hf(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        return unpack(self.model.config, name, tensor)


class LlamaRelease(Package):
    name = "llama_release"
    kind = "llama"
    oracle = "LlamaForCausalLM"

    NAMES: ClassVar[dict[str, str]] = {
        "tok_embeddings": "model.embed_tokens",
        "norm": "model.norm",
        "output": "lm_head",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attention.wq": "self_attn.q_proj",
        "attention.wk": "self_attn.k_proj",
        "attention.wv": "self_attn.v_proj",
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w2": "mlp.down_proj",
        "feed_forward.w3": "mlp.up_proj",
    }

    def load(self, checkpoint: str, dtype: torch.dtype) -> None:
        self.llama = self.package.Llama.build(checkpoint, max_seq_len=128, dtype=dtype)
        self.model = self.llama.model

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, 0)

    def generate(
        self, prompts: list[list[int]], n: int, temperature: float = 0.0, seed: int | None = None
    ) -> list[list[int]]:
        return self.llama.generate(prompts, n, temperature, seed)

    def state(self) -> list[torch.Tensor]:
        caches = [c for layer in self.model.layers for c in vars(layer.attention).values()]
        return [c for c in caches if isinstance(c, torch.Tensor)] + [self.model.freqs_cis]

    def double(self) -> None:
        super().double()
        # torch.polar rounds otherwise than Hugging Face's sine and cosine.
        inverse = 1.0 / 10000.0 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(len(self.model.freqs_cis)).float(), inverse)
        self.model.freqs_cis = torch.complex(angles.cos(), angles.sin())

    def to_hf(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        stem, parameter = name.rsplit(".", 1)
        prefix = ""
        if stem.startswith("layers."):
            _, index, stem = stem.split(".", 2)
            prefix = f"model.layers.{index}."
        if stem in ("attention.wq", "attention.wk"):
            # From neighbouring pairs back to halves.
            rows, columns = tensor.shape
            pairs = tensor.view(-1, self.head_dim // 2, 2, columns)
            tensor = pairs.transpose(1, 2).reshape(rows, columns)
        yield f"{prefix}{self.NAMES[stem]}.{parameter}", tensor

    @property
    def head_dim(self) -> int:
        return self.model.params.dim // self.model.params.n_heads


PACKAGES = {cls.name: cls for cls in (LlamaServing, LlamaRelease, GemmaServing)}


def unpack(config, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Parts of packed qkv and gate_up weights."""
    kv = config.num_key_value_heads * config.head_dim
    if "qkv_proj" in name:
        packed, parts = "qkv_proj", ("q_proj", "k_proj", "v_proj")
        sizes = [config.num_attention_heads * config.head_dim, kv, kv]
    elif "gate_up_proj" in name:
        packed, parts = "gate_up_proj", ("gate_proj", "up_proj")
        sizes = [config.intermediate_size] * 2
    else:
        yield name, tensor
        return
    for part, rows in zip(parts, tensor.split(sizes), strict=True):
        yield name.replace(packed, part), rows


_copies = itertools.count()


def load_package(directory: Path) -> ModuleType:
    """The package in `directory`, under a name of its own: copies of it live side by side."""
    name = f"{directory.name}_{next(_copies)}"
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    return package


def copy_package(name: str, root: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(FIXTURES / name, root / name, ignore=ignore))


def load_oracle(cls: type[Package], checkpoint: Path, dtype: torch.dtype = torch.float32):
    import transformers

    oracle = getattr(transformers, cls.oracle)
    return oracle.from_pretrained(checkpoint, dtype=dtype, attn_implementation="eager").eval()


def next_token_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def gradient_errors(ours: Named, oracle: torch.nn.Module) -> dict[str, float]:
    """max|a-b| / max|b| per Hugging Face parameter; infinite where a gradient is missing."""
    expected = {name: p.grad for name, p in oracle.named_parameters()}
    assert ours.keys() == expected.keys()
    return {
        name: float("inf")
        if ours[name] is None
        else ((ours[name] - grad).abs().max() / grad.abs().max()).item()
        for name, grad in expected.items()
    }
