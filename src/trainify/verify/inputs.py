"""Random arguments for fused ops.

The equivalent of an op says which of its arguments is which parameter of a reference function, so
one maker of :mod:`.samples` serves every library's order and names; what an op takes beside that
(``max_seqlen_q``, a block size) follows from it.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..catalog import CONSTANTS
from ..catalog.schema import Argument
from ..facts.walk import walk
from .equivalent import Equivalent, reference_functions, value_of
from .samples import PLAIN, Draw, NoInputs, Values, sample


def arguments(equivalent: Equivalent, draw: Draw, *, all_of_them: bool = True) -> Values:
    """Values for what the equivalent reads, and for what else the op takes but does not write.

    What only the kernel is told (a block size) is left out unless ``all_of_them`` are wanted.

    Raises :class:`NoInputs` where nothing is known of an argument.
    """
    schema = {a.name: a for a in equivalent.op.signature.arguments}
    values: Values = {}
    for call in equivalent.calls:
        for name, value in _from_call(call, schema, draw):
            values.setdefault(name, value)
    plain = PLAIN.get(equivalent.op.signature.name)
    if plain is not None and not equivalent.calls:
        values = {name: value for name, value in plain(draw).items() if name in schema}
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


def _from_call(
    call: ast.Call, schema: Mapping[str, Argument], draw: Draw
) -> Iterator[tuple[str, Any]]:
    """Values for the arguments that a call of a reference function passes on."""
    assert isinstance(call.func, ast.Name)
    function = reference_functions()[call.func.id]
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
    made = sample(function, draw)
    elements: dict[str, dict[int, Any]] = {}
    for name, node in passed.arguments.items():
        if _is_literal(node):
            continue
        element = _element(node, schema)
        if element is not None:
            elements.setdefault(element[0], {})[element[1]] = made[name]
            continue
        with contextlib.suppress(_CannotUndo):
            yield from ((n, v) for n, v in _undone(node, made[name]) if n in schema)
    for name, found in elements.items():
        yield name, [found[i] for i in range(len(found))]


def _is_literal(node: ast.expr) -> bool:
    return not any(isinstance(n, (ast.Name, ast.Call)) for n in walk(node))


def _element(node: ast.expr, schema: Mapping[str, Argument]) -> tuple[str, int] | None:
    """Name and index of ``block_size[0]``, where that argument is a list."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        argument = schema.get(node.value.id)
        if argument is not None and "[" in argument.type and _is_literal(node.slice):
            return argument.name, int(ast.literal_eval(node.slice))
    return None


class _CannotUndo(Exception):
    """The names in an expression do not follow from its value."""


def _undone(node: ast.expr, value: Any) -> list[tuple[str, Any]]:
    """Arguments for which an expression over them gives the value."""
    if isinstance(node, ast.Name):
        return [(node.id, value)]
    if isinstance(value, int) and ast.unparse(node).endswith(".shape[-1]"):
        assert isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute)
        return _undone(node.value.value, torch.empty(1, value, dtype=torch.int32))
    if isinstance(node, ast.Tuple) and isinstance(value, tuple):
        pairs = zip(node.elts, value, strict=True)
        return [found for element, each in pairs for found in _undone(element, each)]
    if isinstance(node, ast.IfExp) and _is_literal(node.body):
        return _undone(node.test, value == ast.literal_eval(node.body))
    if not isinstance(value, torch.Tensor):
        raise _CannotUndo
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, *rest = _undone(node.left, value), *_undone(node.right, torch.zeros_like(value))
        return [*left, *rest]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if method == "embedding":
            places = torch.arange(len(value), device=value.device)
            return [*_undone(node.args[0], places), *_undone(node.args[1], value)]
        if method in ("to", "view", "view_as", "float"):
            return _undone(node.func.value, value)
        if method == "t" and not node.args:
            return _undone(node.func.value, value.t())
        if method == "repeat_interleave":
            runs, counts = torch.unique_consecutive(value, return_counts=True)
            return [*_undone(node.func.value, runs), *_undone(node.args[0], counts)]
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
        if name in ("weight", "w", "gamma", "bias", "b", "beta"):
            return draw.tensor(draw.features)
        shape = tuple(like.shape) if like is not None else (*draw.rows, draw.features)
        return draw.tensor(*shape)
    if argument.type == "Tensor[]":
        return [draw.tensor(*draw.rows, draw.features) for _ in range(2)]
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


def _recipe(made: Values) -> Any:
    """How PyTorch's scaled products call one scale for all, or one for each row."""
    scale = made["scale_b"][0] if isinstance(made["scale_b"], list) else made["scale_b"]
    kinds = torch.nn.functional.ScalingType
    return kinds.TensorWise if scale.numel() == 1 else kinds.RowWise


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
    "compute_log_sumexp": lambda made: False,
    "rot_dim": lambda made: made["cos_sin_cache"].shape[-1],
    "embed_dim": lambda made: made["proj_bias"].shape[0],
    **dict.fromkeys(("scale_recipe_a", "scale_recipe_b"), _recipe),
    **dict.fromkeys(("recipe_a", "recipe_b"), lambda made: [_recipe(made).value]),
    **dict.fromkeys(("swizzle_a", "swizzle_b"), lambda made: []),
}
