"""Random inputs for fused ops.

Each family of reference functions has a maker, which gives values by parameter name.  The
equivalent of an op says which argument is which parameter, so one maker serves every library's
order and names; what an op takes beside that (``max_seqlen_q``, a block size) follows from it.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..catalog import CONSTANTS
from ..catalog.schema import Argument
from . import more_inputs
from .equivalent import Equivalent, reference_functions, value_of

Values = dict[str, Any]


class NoInputs(Exception):
    """Nothing is known of what an argument should be."""


class Draw:
    """Random shapes, strides and values, the same for the same seed.

    ``strides`` is ``contiguous``, ``rows`` (the last dimension is contiguous) or ``any``; ``large``
    sizes are such that kernels take them.  ``fixed`` are parameters that have to have a value.
    """

    def __init__(
        self,
        seed: int,
        dtype: torch.dtype,
        device: str = "cpu",
        *,
        large: bool = False,
        strides: str = "contiguous",
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.device = device
        self.large = large
        self.strides = strides
        self.fixed = dict(fixed or {})
        self.never_none: set[str] = set()
        self.features = self.random.choice((64, 256, 1024) if large else (2, 4, 6))
        self.head_dim = self.random.choice((64, 128)) if large else 4
        self.rows = (self.random.choice((1, 3, 33) if large else (1, 2, 3)),)
        self.scale = self.pick("magnitude", 2.0, 0.02)

    def size(self, low: int = 1, high: int = 4) -> int:
        return self.random.randint(low, high)

    def pick(self, name: str, *choices: Any) -> Any:
        """A value for a parameter; seed 0 takes the first."""
        if name in self.fixed:
            return self.fixed[name]
        allowed = [c for c in choices if c is not None or name not in self.never_none]
        return allowed[0] if self.seed == 0 else self.random.choice(allowed)

    def tensor(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Any:
        kind = self.strides
        if kind == "any":
            kind = self.random.choice(("contiguous", "rows", "transposed"))
        if kind == "rows" and len(shape) > 1:
            x = self._randn(*shape[:-1], shape[-1] + 8)
        elif kind == "transposed" and len(shape) > 1:
            x = self._randn(shape[1], shape[0], *shape[2:]).transpose(0, 1)
        else:
            x = self._randn(*shape)
        x = (x * scale).to(dtype or self.dtype).to(self.device)
        return x[..., : shape[-1]] if kind == "rows" and len(shape) > 1 else x

    def _randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    @property
    def wide(self) -> torch.dtype:
        """float32, or float64 where that is what is drawn."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Any:
        drawn = torch.randint(high, shape, generator=self.generator)
        return drawn.to(self.device, dtype)

    def whole(self, values: list[int], dtype: torch.dtype = torch.int32) -> Any:
        return torch.tensor(values, device=self.device, dtype=dtype)

    def angles(self, *shape: int, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
        """Cosines and sines of random angles."""
        drawn = self._randn(*shape) * 3
        return tuple(t.to(dtype or self.dtype).to(self.device) for t in (drawn.cos(), drawn.sin()))  # type: ignore[return-value]


# -- makers ---------------------------------------------------------------------------------------


def _norm(draw: Draw) -> Values:
    shape = (*draw.rows, draw.features)
    return {
        **{name: draw.tensor(*shape, scale=draw.scale) for name in ("x", "y", "z", "residual")},
        "weight": draw.tensor(draw.features),
        "bias": draw.tensor(draw.features),
        "eps": draw.pick("eps", 1e-5, 1e-6),
        "residual_in_fp32": draw.dtype == torch.float32,
        "is_rms_norm": draw.pick("is_rms_norm", False, True),
    }


def _wide_weight(draw: Draw) -> Values:
    values = _norm(draw)
    return values | {name: values[name].to(draw.wide) for name in ("weight", "bias")}


def _head_norm(draw: Draw) -> Values:
    heads = draw.size(1, 3)
    x = draw.tensor(*draw.rows, heads, draw.head_dim, scale=2)
    return {"x": x, "weight": draw.tensor(heads, draw.head_dim), "eps": 1e-5}


def _gated(draw: Draw) -> Values:
    return {
        "input": draw.tensor(*draw.rows, 2 * draw.features, scale=2),
        "threshold": draw.pick("threshold", 0.25),
        "alpha": draw.pick("alpha", 1.702, 0.9),
        "limit": draw.pick("limit", 7.0, 1.5),
        "beta": draw.pick("beta", 1.0, 0.5),
        "linear_beta": draw.pick("linear_beta", -1.0, 0.7),
        "std_multiplier": draw.pick("std_multiplier", 0.2),
        "approximate": draw.pick("approximate", "none", "tanh"),
    }


def _pointwise(draw: Draw) -> Values:
    x = draw.tensor(*draw.rows, draw.features, scale=2)
    return {"input": x, "x": x, "cap": draw.pick("cap", 1.5), "multiplier": 0.7}


def _softmax(draw: Draw) -> Values:
    x = draw.tensor(*draw.rows, draw.features, scale=3)
    per_row = draw.tensor(*draw.rows, dtype=draw.wide).abs() + 0.5
    wide = x.to(draw.wide)
    return {"x": x, "logits": wide, "temperature": draw.pick("temperature", None, per_row)}


def _rotary(draw: Draw) -> Values:
    """Query and key with grouped heads; the table covers all features of a head or half of them."""
    (tokens,), dim = draw.rows, draw.head_dim
    heads, kv_heads = draw.pick("heads", (4, 2), (2, 2), (3, 1))
    covered = draw.pick("covered", dim, dim // 2)
    dtype = draw.pick("table", draw.dtype, draw.wide)
    table = torch.cat(draw.angles(32, covered // 2, dtype=dtype), -1)
    flat = draw.pick("flat", draw.large, False, True)
    shapes = [(n * dim,) if flat else (n, dim) for n in (heads, kv_heads)]
    query, key = (draw.tensor(tokens, *shape, scale=2) for shape in shapes)
    return {
        "positions": draw.integers(32, tokens),
        "query": query,
        "key": key,
        "head_size": dim,
        "cos_sin_cache": table,
        "is_neox": draw.pick("is_neox", True, False),
    }


def _rope_at(draw: Draw) -> Values:
    dim = draw.head_dim
    lengths = [draw.size(1, 3), draw.size(1, 5)]
    indptr = draw.whole([0, lengths[0], sum(lengths)])
    q, k = draw.tensor(sum(lengths), 4, dim), draw.tensor(sum(lengths), 2, dim)
    return {
        "q": q,
        "k": k,
        "positions": draw.integers(40, sum(lengths), dtype=torch.int32),
        "indptr": indptr,
        "offsets": draw.integers(9, 2, dtype=torch.int32),
        "rotary_dim": draw.pick("rotary_dim", None, dim // 2),
        "interleave": draw.pick("interleave", False, True),
        "rope_scale": draw.pick("rope_scale", 1.0, 2.0),
        "rope_theta": draw.pick("rope_theta", 1e4, 5e5),
        "low_freq_factor": draw.pick("low_freq_factor", 1.0),
        "high_freq_factor": draw.pick("high_freq_factor", 4.0),
        "old_context_len": draw.pick("old_context_len", 8192.0, 64.0),
    }


def _tables(draw: Draw) -> Values:
    (tokens,), dim = draw.rows, draw.head_dim
    cos, sin = draw.angles(tokens, dim // 2)
    q, k = draw.tensor(tokens, 4, dim), draw.tensor(tokens, 2, dim)
    return {"q": q, "k": k, "cos": cos, "sin": sin, "is_neox": draw.pick("is_neox", True, False)}


def _tables_or_pairs(draw: Draw) -> Values:
    """Tables [T, R] whose halves are alike, or [T, R/2] where neighbours pair."""
    values = {**_tables(draw), "complex_mode": draw.pick("complex_mode", True, False)}
    repeats = (1, 1 if values["complex_mode"] else 2)
    return {**values, "cos": values["cos"].repeat(repeats), "sin": values["sin"].repeat(repeats)}


def _full_tables(draw: Draw) -> Values:
    """Hugging Face's layout: tables [B, S, D] whose halves are alike."""
    batch, steps, dim = draw.size(1, 2), draw.size(1, 4), draw.head_dim
    cos, sin = (t.repeat(1, 1, 2) for t in draw.angles(batch, steps, dim // 2))
    q, k = draw.tensor(batch, 4, steps, dim), draw.tensor(batch, 2, steps, dim)
    return {"q": q, "k": k, "cos": cos, "sin": sin, "unsqueeze_dim": 1}


def _broadcast_tables(draw: Draw) -> Values:
    values = _full_tables(draw)
    cos, sin = (values[name].unsqueeze(1) for name in ("cos", "sin"))
    return {**values, "cos": cos, "sin": sin}


def _two_halves(draw: Draw) -> Values:
    (tokens,), half = draw.rows, draw.head_dim // 2
    cos, sin = draw.angles(tokens, 1, half)
    x1, x2 = draw.tensor(tokens, 3, half), draw.tensor(tokens, 3, half)
    return {"x1": x1, "x2": x2, "cos": cos, "sin": sin, "conj": draw.pick("conj", False, True)}


def _apply_rotary(draw: Draw) -> Values:
    batch, steps, dim = draw.size(1, 2), draw.size(1, 4), draw.head_dim
    cos, sin = draw.angles(16, draw.pick("covered", dim, dim // 2) // 2)
    return {
        "x": draw.tensor(batch, steps, 2, dim),
        "cos": cos,
        "sin": sin,
        "seqlen_offsets": draw.pick("seqlen_offsets", 0, 5, draw.integers(9, batch)),
        "interleaved": draw.pick("interleaved", False, True),
        "conjugate": draw.pick("conjugate", False, True),
    }


def _qk_norm_rope(draw: Draw) -> Values:
    (tokens,), dim = draw.rows, draw.head_dim
    table = torch.cat(draw.angles(32, dim // 2, dtype=draw.wide), -1)
    return {
        "qkv": draw.tensor(tokens, 4 * dim),
        "num_heads_q": 2,
        "num_heads_k": 1,
        "num_heads_v": 1,
        "head_dim": dim,
        "eps": 1e-5,
        "q_weight": draw.tensor(dim),
        "k_weight": draw.tensor(dim),
        "cos_sin_cache": table,
        "is_neox": draw.pick("is_neox", True, False),
        "position_ids": draw.integers(32, tokens),
    }


def _options(draw: Draw) -> Values:
    left, right = draw.pick("bounds", (-1, -1), (3, -1), (2, 0))
    window = draw.pick("window", (-1, -1), (left, right))
    causal = draw.pick("causal", False, True)
    return {
        "scale": draw.pick("scale", None, 0.3),
        "causal": causal,
        "window": window,
        "left": left,
        "right": right,
        "window_left": left,
        "window_right": right,
        "softcap": draw.pick("softcap", 0.0, 5.0),
    }


def _heads(draw: Draw) -> tuple[int, int]:
    return draw.pick("heads", (2, 2), (4, 2), (4, 1))  # type: ignore[no-any-return]


def _dense(draw: Draw) -> Values:
    (heads, kv_heads), dim, batch = _heads(draw), draw.head_dim, draw.size(1, 2)
    q_len, k_len = draw.pick("lengths", (5, 5), (2, 6), (4, 3))
    q = draw.tensor(batch, q_len, heads, dim)
    k, v = (draw.tensor(batch, k_len, kv_heads, dim) for _ in range(2))
    return {"q": q, "k": k, "v": v, **_options(draw)}


def _varlen(draw: Draw) -> Values:
    (heads, kv_heads), dim = _heads(draw), draw.head_dim
    q_lens, k_lens = draw.pick(
        "lengths", ([3, 5], [3, 5]), ([1, 4], [6, 4]), ([3, 1, 2], [5, 1, 3])
    )
    q = draw.tensor(sum(q_lens), heads, dim)
    k, v = (draw.tensor(sum(k_lens), kv_heads, dim) for _ in range(2))
    starts = [draw.whole([sum(n[:i]) for i in range(len(n) + 1)]) for n in (q_lens, k_lens)]
    return {
        "q": q,
        "k": k,
        "v": v,
        "cu_seqlens_q": starts[0],
        "cu_seqlens_k": starts[1],
        **_options(draw),
    }


def _packed(draw: Draw) -> Values:
    values = _varlen(Draw(draw.seed, draw.dtype, draw.device, large=draw.large,
                          fixed={**draw.fixed, "lengths": ([3, 5], [3, 5])}))  # fmt: skip
    return {**values, "b_seq_len": draw.whole([3, 5])}


def _cached(draw: Draw) -> Values:
    (heads, kv_heads), dim = _heads(draw), draw.head_dim
    batch, steps, page = draw.size(1, 3), draw.pick("steps", 1, 2), 256 if draw.large else 2
    lengths = [draw.size(steps, 2 * page) for _ in range(batch)]
    table = None
    shape = (batch, 2 * page, kv_heads, dim)
    if draw.pick("paged", False, True):
        table = torch.randperm(2 * batch, generator=draw.generator).view(batch, 2)
        table = table.to(draw.device, torch.int32)
        shape = (2 * batch, page, kv_heads, dim)
    return {
        "q": draw.tensor(batch, steps, heads, dim),
        "k_cache": draw.tensor(*shape),
        "v_cache": draw.tensor(*shape),
        "cache_seqlens": draw.whole(lengths),
        "block_table": table,
        **_options(draw),
    }


def _paged(draw: Draw) -> Values:
    sequences, blocks, size, dim = draw.size(1, 3), 6, 16 if draw.large else 2, draw.head_dim
    inner = (16 // draw.dtype.itemsize) if draw.large else 2
    lengths = [draw.size(1, 2 * size) for _ in range(sequences)]
    return {
        "query": draw.tensor(sequences, 4, dim),
        "key_cache": draw.tensor(blocks, 2, dim // inner, size, inner),
        "value_cache": draw.tensor(blocks, 2, dim, size),
        "block_tables": draw.integers(blocks, sequences, 2, dtype=torch.int32),
        "seq_lens": draw.whole(lengths),
        "scale": 0.3,
    }


def _single(draw: Draw) -> Values:
    (heads, kv_heads), dim = _heads(draw), draw.head_dim
    q_len, k_len = draw.pick("lengths", (5, 5), (2, 6))
    k, v = (draw.tensor(k_len, kv_heads, dim) for _ in range(2))
    layout = draw.pick("kv_layout", "NHD", "HND")
    if layout == "HND":
        k, v = (t.transpose(0, 1).contiguous() for t in (k, v))
    return {
        "q": draw.tensor(q_len, heads, dim),
        "k": k,
        "v": v,
        "kv_layout": layout,
        "scale": draw.pick("scale", None, 0.3),
        "causal": draw.pick("causal", False, True),
        "window_left": draw.pick("window_left", -1, 2),
        "softcap": draw.pick("softcap", None, 5.0),
    }


def _single_decode(draw: Draw) -> Values:
    values = _single(draw)
    return {**values, "q": values["q"][0].contiguous()}


def _pooled(draw: Draw) -> Values:
    dim = draw.head_dim
    return {
        "q": draw.tensor(2, 4, dim),
        "k": draw.tensor(9, 2, dim),
        "v": draw.tensor(9, 2, dim),
        "req_to_tokens": draw.integers(9, 3, 5, dtype=torch.int32),
        "b_req_idx": draw.whole([2, 0]),
        "b_seq_len": draw.whole([2, 5]),
    }


def _states(draw: Draw) -> Values:
    tokens, heads = draw.size(1, 4), draw.size(1, 3)
    v, s = ([draw.tensor(tokens, heads, draw.head_dim) for _ in range(2)],
            [draw.tensor(tokens, heads, scale=3, dtype=draw.wide) for _ in range(2)])  # fmt: skip
    return {
        "v_a": v[0],
        "s_a": s[0],
        "v_b": v[1],
        "s_b": s[1],
        "v": torch.stack(v, 1),
        "s": torch.stack(s, 1),
        "prefix_output": v[0],
        "prefix_lse": s[0].mT.contiguous(),
        "suffix_output": v[1],
        "suffix_lse": s[1].mT.contiguous(),
    }


def _conv_update(draw: Draw) -> Values:
    batch, width = draw.size(1, 2), draw.size(2, 4)
    return {
        "x": draw.tensor(batch, draw.features),
        "conv_state": draw.tensor(batch, draw.features, width - 1),
        "weight": draw.tensor(draw.features, width),
        "bias": draw.pick("bias", None, draw.tensor(draw.features)),
        "activation": draw.pick("activation", None, "silu"),
    }


def _state_update(draw: Draw) -> Values:
    batch, features, order = draw.size(1, 2), draw.features, 16 if draw.large else 3
    inner = draw.tensor(features, dtype=draw.wide)
    rows = {name: draw.tensor(batch, features) for name in ("x", "dt", "z")}
    return {
        **rows,
        "state": draw.tensor(batch, features, order),
        "A": -draw.tensor(features, order, dtype=draw.wide).abs(),
        **{name: draw.tensor(batch, order) for name in ("B", "C")},
        "D": draw.pick("D", None, inner),
        "z": draw.pick("z", None, rows["z"]),
        "dt_bias": draw.pick("dt_bias", None, inner + 1),
        "dt_softplus": draw.pick("dt_softplus", False, True),
    }


_GATED = """
    silu_and_mul silu_and_mul_fp32 silu_and_mul_up_to mul_and_silu gelu_and_mul gelu_and_mul_fp32
    gelu_tanh_and_mul gelu_tanh_and_mul_fp32 fatrelu_and_mul swigluoai_and_mul clamped_swiglu
    swiglustep_and_mul situ_and_mul gelu_and_mul_sparse
""".split()
_POINTWISE = """
    gelu_tanh gelu_new gelu_fast gelu_quick relu_squared soft_cap scaled_soft_cap rotate_half
""".split()

MAKERS: Mapping[str, Callable[[Draw], Values]] = {
    **dict.fromkeys(_GATED, _gated),
    **dict.fromkeys(_POINTWISE, _pointwise),
    "layer_norm_fp32_weight": _wide_weight,
    "head_layer_norm": _head_norm,
    "softmax": _softmax,
    "softmax_temperature": _softmax,
    **dict.fromkeys(("rotary_embedding", "rotary_embedding_rounded"), _rotary),
    **dict.fromkeys(("rope_at", "llama31_rope_at", "rope_ragged", "llama31_rope_ragged"), _rope_at),
    "rotate_query_key": _tables,
    "rotate_query_key_or_pairs": _tables_or_pairs,
    "rotate_query_key_fp32": _full_tables,
    "apply_rotary_pos_emb": _broadcast_tables,
    "rotate_two_halves": _two_halves,
    "apply_rotary": _apply_rotary,
    "fused_qk_norm_rope": _qk_norm_rope,
    **dict.fromkeys(("attention", "attention_fwd"), _dense),
    **dict.fromkeys(("varlen_attention", "varlen_attention_fwd"), _varlen),
    "prefill_attention": _packed,
    "cached_attention": _cached,
    "paged_attention": _paged,
    "single_prefill": _single,
    "single_decode": _single_decode,
    "pooled_attention": _pooled,
    **dict.fromkeys(("merge_state", "merge_states", "merge_attn_states"), _states),
    "causal_conv1d_update": _conv_update,
    "selective_state_update": _state_update,
    **more_inputs.MAKERS,
}
"""By reference function; those of :mod:`trainify.reference.norm` not named here share one."""


# -- the arguments of an op -----------------------------------------------------------------------


def arguments(equivalent: Equivalent, draw: Draw, *, all_of_them: bool = True) -> Values:
    """Values for what the equivalent reads, and for what else the op takes but does not write.

    What only the kernel is told (a block size) is left out unless ``all_of_them`` are wanted.

    Raises :class:`NoInputs` where nothing is known of an argument.
    """
    schema = {a.name: a for a in equivalent.op.signature.arguments}
    values: Values = {}
    for call in equivalent.calls:
        _from_call(call, schema, draw, values)
    like = next((v for v in values.values() if isinstance(v, torch.Tensor)), None)
    for argument in schema.values():
        name = argument.name
        if name in values or (argument.written and name not in equivalent.reads):
            continue
        if name in equivalent.reads:
            values[name] = _guess(argument, draw, like)
        elif argument.default is None and all_of_them:
            values[name] = _derived(argument, values)
    return values


def _from_call(call: ast.Call, schema: Mapping[str, Argument], draw: Draw, values: Values) -> None:
    """Values for the arguments that a call of a reference function passes on."""
    assert isinstance(call.func, ast.Name)
    function = reference_functions()[call.func.id]
    maker = MAKERS.get(call.func.id)
    if maker is None and function.__module__.endswith(".norm"):
        maker = _norm
    if maker is None:
        raise NoInputs(f"no inputs are known for {call.func.id}")
    signature = inspect.signature(function)
    passed = signature.bind(*call.args, **{k.arg: k.value for k in call.keywords if k.arg})
    for name, parameter in signature.parameters.items():
        node = passed.arguments.get(name)
        if node is None:
            draw.fixed[name] = parameter.default
        elif _is_literal(node):
            draw.fixed[name] = ast.literal_eval(node)
        elif isinstance(node, ast.Name) and node.id in schema:
            if not schema[node.id].is_optional and schema[node.id].type != "Any":
                draw.never_none.add(name)
        elif name == "head_size":  # read off the query, which then is not flat
            draw.fixed["flat"] = False
    made = maker(draw)
    for name, node in passed.arguments.items():
        if _is_literal(node):
            continue
        if name not in made:
            raise NoInputs(f"no input is known for {name!r} of {call.func.id}")
        with contextlib.suppress(_CannotUndo):
            for argument, value in _undone(node, made[name]):
                if argument in schema:
                    values.setdefault(argument, value)


def _is_literal(node: ast.expr) -> bool:
    return not any(isinstance(n, (ast.Name, ast.Call)) for n in ast.walk(node))


class _CannotUndo(Exception):
    """The names in an expression do not follow from its value."""


def _undone(node: ast.expr, value: Any) -> list[tuple[str, Any]]:
    """Arguments for which an expression over them gives the value."""
    if isinstance(node, ast.Name):
        return [(node.id, value)]
    if isinstance(value, int) and ast.unparse(node).endswith(".shape[-1]"):
        assert isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute)
        return _undone(node.value.value, torch.empty(1, value, dtype=torch.int32))
    if not isinstance(value, torch.Tensor):
        raise _CannotUndo
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "0":
        if isinstance(node.value, ast.Name):  # the one of a list
            return [(node.value.id, [value])]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, *rest = _undone(node.left, value), *_undone(node.right, torch.zeros_like(value))
        return [*left, *rest]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if method in ("to", "view_as", "float"):
            return _undone(node.func.value, value)
        if method == "t" and not node.args:
            return _undone(node.func.value, value.t())
    if isinstance(node, ast.Subscript):
        whole = ast.unparse(node)
        if whole.endswith(".chunk(2, -1)[0]"):
            assert isinstance(node.value, ast.Call)
            assert isinstance(node.value.func, ast.Attribute)
            return _undone(node.value.func.value, torch.cat((value, value), -1))
        if whole.endswith("[:, ::2]"):
            return _undone(node.value, value.repeat_interleave(2, -1))
    raise _CannotUndo


def _guess(argument: Argument, draw: Draw, like: torch.Tensor | None) -> Any:
    """A value for an argument outside of every reference function, by its type and name."""
    name = argument.name
    if argument.is_tensor and name not in CONSTANTS:
        if name in _MATRICES:
            batch = (2,) if name in ("batch1", "batch2") else ()
            return draw.tensor(*batch, draw.features, draw.features)
        if name in ("weight", "w", "gamma", "bias", "b", "beta"):
            return draw.tensor(draw.features)
        shape = tuple(like.shape) if like is not None else (*draw.rows, draw.features)
        return draw.tensor(*shape)
    if argument.type.rstrip("?") == "ScalarType":
        return draw.dtype
    if argument.default is not None:
        default = value_of(argument.default)
        if isinstance(default, torch.dtype):  # a narrow one would blunt finite differences
            return draw.dtype
        if isinstance(default, bool):
            return draw.pick(name, default, not default)
        return draw.pick(name, default, default * 0.7) if isinstance(default, float) else default
    if argument.is_optional:
        return None
    if argument.type in ("float", "Scalar", "number"):
        return 1e-6 if "eps" in name else draw.pick(name, 0.7, 1.3)
    if argument.type == "bool":
        return draw.pick(name, False, True)
    raise NoInputs(f"no input is known for '{argument.type} {name}'")


_MATRICES = frozenset({"mat1", "mat2", "batch1", "batch2", "B"})
"""Factors of a product: square, so that any order of them fits."""


def _derived(argument: Argument, made: Values) -> Any:
    """What a kernel wants to be told besides, given the values made so far."""
    if argument.is_optional:
        return None
    name = argument.name
    try:
        if name in _DERIVED:
            return _DERIVED[name](made)
    except KeyError:
        pass
    raise NoInputs(f"no input is known for '{argument.type} {name}'")


def _lengths(made: Values) -> Any:
    return made["seq_lens"] if "seq_lens" in made else made["context_lens"]


def _partitions(made: Values) -> tuple[int, ...]:
    sequences, heads, _ = made["query"].shape
    return sequences, heads, -(-int(_lengths(made).max()) // 512)


def _float_zeros(made: Values) -> torch.Tensor:
    return torch.zeros(_partitions(made), device=made["query"].device)


def _scale_one(made: Values) -> torch.Tensor:
    return torch.ones(1, device=made["query"].device)


_DERIVED: Mapping[str, Callable[[Values], Any]] = {
    "max_seqlen_q": lambda made: int(made["cu_seqlens_q"].diff().max()),
    "max_seqlen_k": lambda made: int(made["cu_seqlens_k"].diff().max()),
    "max_input_len": lambda made: int(made["b_seq_len"].max()),
    "b_start_loc": lambda made: (made["b_seq_len"].cumsum(0) - made["b_seq_len"]).int(),
    "num_kv_heads": lambda made: made["key_cache"].shape[1],
    "block_size": lambda made: made["key_cache"].shape[3],
    "max_seq_len": lambda made: int(_lengths(made).max()),
    "max_context_len": lambda made: int(_lengths(made).max()),
    "kv_cache_dtype": lambda made: "auto",
    "k_scale": _scale_one,
    "v_scale": _scale_one,
    "exp_sum": _float_zeros,
    "exp_sums": _float_zeros,
    "max_logits": _float_zeros,
    "tmp_out": lambda made: made["query"].new_zeros(*_partitions(made), made["query"].shape[-1]),
    "enable_pdl": lambda made: False,
    "rot_dim": lambda made: made["cos_sin_cache"].shape[-1],
}
