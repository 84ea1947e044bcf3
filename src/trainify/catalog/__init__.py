"""What each fused op is: its names, its schema, and its differentiable equivalent.

One module per library; each defines ``OPS``, a tuple of :class:`FusedOp`.  A module is registered
by being in this package.  To add an op, add a row.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from .schema import BindError, Schema, SchemaError, parse_schema

__all__ = [
    "CONSTANTS",
    "BindError",
    "FusedOp",
    "Schema",
    "SchemaError",
    "all_ops",
    "lookup",
    "parse_schema",
]

# Argument names under which tensors carry no gradient: integers, tables, scales of quantized data.
CONSTANTS: frozenset[str] = frozenset(
    """
    positions position_ids pos_ids offsets indptr q_indptr qo_indptr kv_indptr kv_indices indices
    cos_sin_cache cos_sin cos_sin_cache_offsets cos sin rotary_cos rotary_sin freqs_cis sincos
    key_cache value_cache k_cache v_cache kv_cache block_table block_tables page_table slot_mapping
    cache_seqlens cache_batch_idx cache_leftpad leftpad_k seqused_q seqused_k
    cu_seqlens_q cu_seqlens_k cu_seqlens_k_new cu_seqlens max_seqlen_q max_seqlen_k
    seq_lens seqlens seq_len context_lens query_start_loc qo_segment_offsets kv_segment_offsets
    b_loc b_start_loc b_seq_len b_req_idx b_prompt_cache_len req_to_token req_to_tokens
    req_to_token_indexs q_start_loc q_seqlens kv_start_loc kv_seqlens
    k_scale v_scale q_scale q_descale k_descale v_descale output_scale
    alibi_slopes custom_mask packed_custom_mask attention_mask temperature
    exp_sums exp_sum max_logits tmp_out scheduler_metadata
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class FusedOp:
    """One fused op.

    ``names``       every qualified name under which user code can call it.
    ``schema``      a FunctionSchema; ``Tensor(a!)`` marks what is written.
    ``equivalent``  Python over the schema's argument names and the functions of
                    :mod:`trainify.reference`: ``"out = rms_norm(input, weight, epsilon)"`` assigns
                    what the op writes, ``"rms_norm(input, weight, eps)"`` gives what it returns.
                    None where nothing differentiable stands for it.
    ``source``      where schema and semantics were read.
    ``since``       the release range the row holds for, as ``"vllm>=0.9"``; empty for all.
    ``unsupported`` arguments for which the equivalent does not hold, unless they are left out or
                    given a literal that equals their default, or None where they are optional.
    """

    names: tuple[str, ...]
    schema: str
    equivalent: str | None
    source: str
    since: str = ""
    unsupported: tuple[str, ...] = ()

    @cached_property
    def signature(self) -> Schema:
        return parse_schema(self.schema)

    @property
    def name(self) -> str:
        """The short name, as in the schema."""
        return self.signature.name


@cache
def all_ops() -> tuple[FusedOp, ...]:
    """Every row of every module in this package."""
    rows: list[FusedOp] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        rows.extend(getattr(module, "OPS", ()))
    return tuple(rows)


@cache
def _by_name() -> dict[str, FusedOp]:
    table: dict[str, FusedOp] = {}
    for op in all_ops():
        for name in op.names:
            table.setdefault(name, op)  # the newest release stands first in its module
    return table


def lookup(qualified_name: str) -> FusedOp | None:
    """The op called by this qualified name, or None.

    ``torch.ops.ns.op.default`` is ``torch.ops.ns.op``.
    """
    table = _by_name()
    op = table.get(qualified_name)
    if op is None and qualified_name.startswith("torch.ops."):
        op = (
            table.get(qualified_name.rpartition(".")[0]) if qualified_name.count(".") == 4 else None
        )
    return op


def roots() -> Iterator[str]:
    """The top-level packages that own a fused op (``vllm``, ``flashinfer``, ``torch.ops``)."""
    seen: dict[str, None] = {}
    for name in _by_name():
        first, _, rest = name.partition(".")
        seen["torch.ops" if first == "torch" and rest.startswith("ops.") else first] = None
    return iter(seen)
