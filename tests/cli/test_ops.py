"""``trainify ops``: the catalog, listed and searched."""

from __future__ import annotations

import json

from trainify.catalog import all_ops
from trainify.ops import entries, search


def test_without_a_pattern_everything_researched_is_listed(trainify) -> None:
    done = trainify("ops")
    head, *lines = done.output.splitlines()
    assert done.exit_code == 0
    assert head.split() == ["op", "library", "becomes", "releases", "confidence", "source"]
    assert len(lines) > len(all_ops())
    assert not [line for line in lines if "unverified" in line]


def test_a_pattern_is_part_of_a_name_or_a_glob(trainify) -> None:
    assert "sgl_kernel.gelu_quick" in trainify("ops", "GELU_QUICK").output
    lines = trainify("ops", "vllm._custom_ops.*_norm").output.splitlines()[1:]
    assert lines and all(line.startswith("vllm._custom_ops.") for line in lines)


def test_a_full_name_shows_everything(trainify) -> None:
    text = trainify("ops", "vllm._custom_ops.rms_norm").output
    for part in (
        "also       torch.ops._C.rms_norm",
        "releases   vllm>=0.20,!=0.23.0",
        "releases   vllm<0.20",
        "rms_norm(Tensor(a!) out, Tensor input, Tensor? weight, float epsilon) -> ()",
        "  out = rms_norm(input, weight, epsilon)",
        "def rms_norm_llama(",
        "RMSNorm in float32, rounded before the weight multiplies.",
    ):
        assert part in text


def test_helpers_of_a_reference_function_are_shown(trainify) -> None:
    text = trainify("ops", "flash_attn.flash_attn_with_kvcache").output
    assert text.index("def cached_attention(") < text.index("def attention_bhsd(")


def test_an_op_without_equivalent_says_why(trainify) -> None:
    text = trainify("ops", "flashinfer.sampling.sampling_from_probs").output
    assert "Not rewritten: it gives token ids, which have no derivative." in text
    assert "sampling_from_probs(probs, indices=None" in text
    text = trainify("ops", "flash_attn.flash_attn_func").output
    assert "Not rewritten: it has its own backward." in text
    text = trainify("ops", "sglang.kernels.ops.layernorm.norm.rmsnorm").output
    assert "confidence unverified" in text


def test_libraries_and_families(trainify) -> None:
    assert {e.library for e in search(None, "flashinfer", None)} == {"flashinfer"}
    found = search(None, "vllm", "rope")
    assert "vllm._custom_ops.rotary_embedding" in {e.name for e in found}
    assert {e.family for e in found} == {"rope"}
    assert len(trainify("ops", "--library", "xformers").output.splitlines()) > 3


def test_json(trainify) -> None:
    rows = json.loads(trainify("ops", "--family", "norm", "--format", "json").output)
    row = next(row for row in rows if row["name"] == "flashinfer.rmsnorm")
    assert row["equivalent"] == "rms_norm(input, weight, eps)"
    assert row["confidence"] == "tested"
    assert set(row) >= {"names", "library", "family", "note", "releases", "source", "schema"}


def test_nothing_matches(trainify) -> None:
    done = trainify("ops", "no_such_op")
    assert done.exit_code == 1
    assert "no op matches" in done.output


def test_every_entry_has_a_place() -> None:
    for entry in entries():
        assert entry.library
        assert entry.family or "backward" in entry.note
        assert entry.family != "misc" or entry.equivalent is None or "aten" in entry.library


def test_ops_of_ones_own_come_first(trainify, folder) -> None:
    config = folder / "pyproject.toml"
    config.write_text(
        """
[[tool.trainify.ops]]
names = ["my_kernels.rms_norm"]
schema = "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor"
equivalent = "rms_norm(x, weight, eps)"
"""
    )
    first = trainify("ops", "rms_norm").output.splitlines()[1].split()
    assert first[:2] == ["my_kernels.rms_norm", "my_kernels"] and "yours" in first
    shown = trainify("ops", "my_kernels.rms_norm").output
    assert "confidence yours" in shown and "def rms_norm(" in shown
    config.write_text(config.read_text().replace("names", "name"))
    done = trainify("ops")
    assert done.exit_code == 2 and "pyproject.toml:3" in done.output
