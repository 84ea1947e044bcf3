"""What each fused op is: its names, its schema, and its differentiable equivalent.

One module per library; each defines ``OPS``, a tuple of :class:`FusedOp`.  A module is registered
by being in this package.  To add an op, add a row.

Two lists stand beside the rows: :mod:`.differentiable` names ops that bring their own backward and
are never reported, ``unverified.txt`` names kernels of which only the source was seen.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from ..facts.walk import walk
from ..releases import Release, admits, assumed_version
from .reasons import Reason
from .schema import BindError, Schema, SchemaError, parse_schema

__all__ = [
    "CONSTANTS",
    "LEARNED",
    "RETURNED",
    "BindError",
    "FusedOp",
    "Row",
    "Schema",
    "SchemaError",
    "all_ops",
    "by_library",
    "forms",
    "holds",
    "is_differentiable",
    "lookup",
    "named_releases",
    "names_of_ops",
    "opaque",
    "parse_schema",
    "roots",
    "split_since",
    "unverified",
]

# Argument names under which tensors carry no gradient: integers, tables, scales of quantized data.
CONSTANTS: frozenset[str] = frozenset(
    """
    positions position_ids pos_ids offsets indptr q_indptr qo_indptr kv_indptr kv_indices indices
    cos_sin_cache cos_sin cos_sin_cache_offsets cos sin rotary_cos rotary_sin freqs_cis sincos
    cos_h sin_h cos_w sin_w
    key_cache value_cache k_cache v_cache kv_cache block_table block_tables page_table slot_mapping
    cache_seqlens cache_batch_idx cache_leftpad leftpad_k seqused_q seqused_k
    cu_seqlens_q cu_seqlens_k cu_seqlens_k_new cu_seqlens max_seqlen_q max_seqlen_k
    seq_lens seqlens seq_len context_lens query_start_loc qo_segment_offsets kv_segment_offsets
    b_loc b_start_loc b_seq_len b_req_idx b_prompt_cache_len req_to_token req_to_tokens
    req_to_token_indexs q_start_loc q_seqlens kv_start_loc kv_seqlens
    k_scale v_scale q_scale q_descale k_descale v_descale output_scale
    alibi_slopes custom_mask packed_custom_mask attention_mask temperature
    exp_sums exp_sum max_logits tmp_out scheduler_metadata
    qweight kernel _kernel scales _scaling_factors scaling_factors qzeros zeros _zeros absmax code
    scale_a scale_b scales_a scales_b a_scale b_scale x_scale w_scale As Bs
    A_scale B_scale a_scales b_scales rms_scale linear_scale
    topk_ids topk_indices token_expert_indices dst2src_map correction_bias e_score_correction_bias
    scores_with_bias
    input_ids input_ freqs seqused_k start_q workspace
    Req_to_tokens B_req_idx B_Start_Loc B_Seqlen b_seq_start_loc kv_cache_loc block_table_
    cache_seqlens_ seqused seqused_k_ seqlen_q seqlen_k cum_seq_q cum_seq_k seq_len_tensor seq_idx
    conv_state_indices conv_state_indices_ state_indices state_batch_indices chunk_indices
    dst_state_batch_indices intermediate_state_indices gather_kv_indices lora_indices_tensor
    cache_indices has_initial_state topk_length token_lora_mapping offs
    m_indptr mask_indptr virtual_batch_idx rotary_seqlens window_kv_offsets
    """.split()
)

# Those of them that a model may learn, in place of what is usual.
LEARNED: frozenset[str] = frozenset(
    """
    cos_sin_cache cos_sin cos sin rotary_cos rotary_sin freqs_cis sincos cos_h sin_h cos_w sin_w
    alibi_slopes attention_mask temperature
    """.split()
)

# What an equivalent calls the value that an op returns beside what it writes.
RETURNED = "_"


@dataclass(frozen=True)
class FusedOp:
    """One fused op.

    ``names``       every qualified name under which user code can call it.
    ``schema``      a FunctionSchema; ``Tensor(a!)`` marks what is written.
    ``equivalent``  Python over the schema's argument names and the functions of
                    :mod:`trainify.reference`: ``"out = rms_norm(input, weight, epsilon)"`` assigns
                    what the op writes, ``"rms_norm(input, weight, eps)"`` gives what it returns,
                    ``"_, state = step(state, x)"`` does both: ``_`` is what the op returns.
                    None where nothing differentiable stands for it.
    ``source``      where schema and semantics were read.
    ``since``       the releases the row holds for, as ``"vllm>=0.9"``; empty for all.
    ``unsupported`` arguments for which the equivalent does not hold, unless they are left out or
                    given a literal that equals their default, or None where they are optional.
    ``look_at``     what a person should check of a call; where it is set, no fix is safe.
    ``loses``       the arguments that get no gradient, where the others do get theirs.
    ``codes``       the arguments that hold integers, to which no gradient can go.
    ``imports``     modules of the user's own that the equivalent names in full; :mod:`.own` only.

    A row without an equivalent, made by :func:`opaque`, may give the signature as the library
    writes it, and also has

    ``family``      what kind of op it is; with an equivalent, the reference module says that.
    ``note``        why nothing stands for it, as a clause.
    ``cuts``        whether a gradient is lost in it.  False where there is none to lose: token ids,
                    integer codes, cache bookkeeping, classes (a call of one builds a layer).
    """

    names: tuple[str, ...]
    schema: str
    equivalent: str | None
    source: str
    since: str = ""
    unsupported: tuple[str, ...] = ()
    look_at: str = ""
    loses: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    family: str = ""
    note: str = ""
    cuts: bool = True

    @cached_property
    def signature(self) -> Schema:
        return parse_schema(self.schema)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names that the equivalent computes from: arguments, functions; none without one."""
        statement = ast.parse(self.equivalent or "pass").body[0]
        value = getattr(statement, "value", None)
        nodes = walk(value) if value is not None else ()
        return frozenset(node.id for node in nodes if isinstance(node, ast.Name))

    @property
    def name(self) -> str:
        """The short name."""
        return self.names[0].rpartition(".")[2]


def opaque(family: str, reason: Reason, source: str, table: str) -> tuple[FusedOp, ...]:
    """Rows of one kind without an equivalent, one a line: names, then the signature.

    ``a.sort, torch.ops.a.sort(Tensor ids) -> Tensor``; deeper lines continue the one above.
    """
    rows = []
    for text in re.split(r"\n(?! )", textwrap.dedent(table).strip()):
        start = _SIGNATURE.search(text)
        end = start.start() if start else len(text)
        names, signature = tuple(text[:end].replace(",", " ").split()), text[end:]
        rows.append(
            FusedOp(
                names=names,
                schema=names[0].rpartition(".")[2] + " ".join(signature.split()),
                equivalent=None,
                source=source,
                family=family,
                note=reason.text,
                cuts=reason.cuts,
            )
        )
    return tuple(rows)


# What ``get_kernel('owner/name')`` and ``Builder().load()`` give is called by a name.
_SIGNATURE = re.compile(r"\((?![')])")


@cache
def by_library() -> dict[str, tuple[FusedOp, ...]]:
    """The rows of each module in this package."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module.OPS for name, module in modules.items() if hasattr(module, "OPS")}


@cache
def all_ops() -> tuple[FusedOp, ...]:
    """Every row of every module in this package."""
    return tuple(op for rows in by_library().values() for op in rows)


@cache
def _by_name(own: tuple[FusedOp, ...], releases: tuple[Release, ...] = ()) -> dict[str, FusedOp]:
    rows = (*own, *all_ops())
    table: dict[str, FusedOp] = {}
    # Where a project names its release, the rows for that come first; otherwise the newest does,
    # which stands first in its module.
    for op in (*(op for op in rows if holds(op, releases)), *rows):
        for name in op.names:
            table.setdefault(name, op)
    return table


class Row(Protocol):
    """What is right for some releases of a library only."""

    @property
    def since(self) -> str: ...


def holds(row: Row, releases: tuple[Release, ...]) -> bool:
    """Whether a row is right for the releases that a project is written for."""
    library, specifier = split_since(row)
    stated = next((r for r in releases if r.library == library), None)
    if not row.since or stated is None:
        return True
    version = assumed_version(stated.specifier, named_releases()[library])
    return version is None or admits(specifier, version)


def split_since(row: Row) -> tuple[str, str]:
    """``vllm>=0.20`` is ``vllm`` and ``>=0.20``."""
    library = re.match(r"[\w-]*", row.since)
    assert library is not None
    return library[0], row.since[library.end() :]


@cache
def named_releases() -> dict[str, tuple[str, ...]]:
    """For each library whose kernels changed, the ranges of releases that rows name."""
    from .layers import LAYERS

    named: dict[str, tuple[str, ...]] = {}
    rows: tuple[Row, ...] = (*all_ops(), *LAYERS)
    for row in rows:
        if row.since:
            library, specifier = split_since(row)
            named[library] = (*named.get(library, ()), specifier)
    return named


def lookup(
    qualified_name: str, own: tuple[FusedOp, ...] = (), releases: tuple[Release, ...] = ()
) -> FusedOp | None:
    """The op called by this qualified name, or None; ``own`` are looked at first.

    Of the rows for several releases, that for the one in ``releases`` is taken, else the newest.
    ``torch.ops.ns.op.default`` is ``torch.ops.ns.op``.
    """
    table = _by_name(own, releases)
    return table.get(qualified_name) or table.get(_without_overload(qualified_name))


@cache
def forms(qualified_name: str) -> tuple[FusedOp, ...]:
    """The rows for what is called by a name, in releases that nothing tells apart but the call."""
    names = {qualified_name, _without_overload(qualified_name)}
    return tuple(op for op in all_ops() if not op.since and not names.isdisjoint(op.names))


def _without_overload(qualified_name: str) -> str:
    if qualified_name.startswith("torch.ops.") and qualified_name.count(".") == 4:
        return qualified_name.rpartition(".")[0]
    return qualified_name


def is_differentiable(qualified_name: str) -> bool:
    """Whether the name is known to bring its own backward."""
    from .differentiable import NAMES

    return qualified_name in NAMES


@cache
def unverified() -> dict[str, str]:
    """Kernels of which nothing but the source was seen, and the family of each."""
    text = (Path(__file__).parent / "unverified.txt").read_text(encoding="utf-8")
    names: dict[str, str] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("#"):
            family = line.strip("# ")
        elif line:
            names[line] = family
    return names


def unverified_family(qualified_name: str) -> str | None:
    """The family of such a kernel, also of an overload that is named; None for other names."""
    known = unverified()
    return known.get(qualified_name) or known.get(_without_overload(qualified_name))


def names_of_ops(own: tuple[FusedOp, ...] = ()) -> Iterable[str]:
    """Every name by which an op is called."""
    return _by_name(own).keys()


@cache
def roots(own: tuple[FusedOp, ...] = ()) -> tuple[str, ...]:
    """Where the names of ops that cut a gradient begin: ``vllm``, ``flashinfer``, ``torch.ops``.

    PyTorch's own functions stand there in full, ``torch._scaled_mm``, or, where they have several
    ways to be called, by what these have in common: ``.scaled_mm`` of ``F.scaled_mm``.
    """
    seen: dict[str, None] = {}
    for name, op in _by_name(own).items():
        if not op.cuts:
            continue
        first = name.partition(".")[0]
        if first == "torch":
            first = "torch.ops" if name.startswith("torch.ops.") else name
            if name.startswith("torch.nn.functional."):
                first = f".{op.name}"
        seen[first] = None
    return tuple(seen)
