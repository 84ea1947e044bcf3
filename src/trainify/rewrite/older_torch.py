"""Reference functions for the release of PyTorch that a project runs on.

They call what the newest has.  For a release that lacks it, or that rounds otherwise, the functions
of :mod:`trainify.reference.older_torch` are called instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..releases import Release, admits, assumed_version, needed
from .expressions import code

# The releases without F.rms_norm, those that round it ahead of the weight, those without grouped
# queries in F.scaled_dot_product_attention.
_NO_RMS_NORM = "<2.4.dev0"
_ROUNDS_EARLY = "<2.8.dev0"
_NO_GROUPS = "<2.5.dev0"

NAMES = ("rms_norm_in_float32", "grouped_query_attention")


def lacks(releases: Sequence[Release]) -> tuple[str, ...]:
    """Which of the above hold for the PyTorch of some releases; none where they do not tell it."""
    named = [r for r in releases if r.library == "torch"]
    exact = [r for r in named if r.specifier.startswith("==")]
    stated = next(iter([*exact, *needed(releases, "torch"), *named]), None)
    if stated is None:
        return ()
    kinds = (_NO_RMS_NORM, _ROUNDS_EARLY, _NO_GROUPS)
    version = assumed_version(stated.specifier, kinds)
    return tuple(kind for kind in kinds if version is not None and admits(kind, version))


def for_release(function: cst.FunctionDef, lacking: Sequence[str]) -> cst.FunctionDef:
    """A reference function without what is lacking."""
    node = function.visit(_Older(lacking)) if lacking else function
    assert isinstance(node, cst.FunctionDef)
    return node


class _Older(cst.CSTTransformer):
    def __init__(self, lacking: Sequence[str]) -> None:
        super().__init__()
        self.lacking = lacking

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        called = code(updated_node.func)
        if called == "F.rms_norm":
            x, _, weight, eps = updated_node.args
            # A weight that is cast meets float32 values, which no release rounds.
            bare = isinstance(weight.value, cst.Name) and weight.value.value != "None"
            if _NO_RMS_NORM in self.lacking or (bare and _ROUNDS_EARLY in self.lacking):
                return cst.Call(cst.Name("rms_norm_in_float32"), [x, weight, eps])
        if called == "F.scaled_dot_product_attention" and _NO_GROUPS in self.lacking:
            kept = [a for a in updated_node.args if not _is_named(a, "enable_gqa")]
            if len(kept) < len(updated_node.args):
                return cst.Call(cst.Name("grouped_query_attention"), kept)
        return updated_node


def _is_named(argument: cst.Arg, name: str) -> bool:
    return argument.keyword is not None and argument.keyword.value == name
