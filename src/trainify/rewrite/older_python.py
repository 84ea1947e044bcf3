"""Reference functions for the oldest Python that a project is to run on.

They are written for 3.10.  Before that ``zip`` takes no ``strict``, and types are evaluated where a
function is defined: those that cannot be are quoted.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..releases import Release, admits
from .expressions import code

# Without X | None and zip(strict=); without tuple[X].
_NO_UNIONS = "python<3.10"
_NO_SUBSCRIPTS = "python<3.9"

_SIGNS = {_NO_UNIONS: (" | ",), _NO_SUBSCRIPTS: ("tuple[", "list[")}


def lacks(releases: Sequence[Release]) -> tuple[str, ...]:
    """Which of the above hold for some Python that a project says it runs on."""
    stated = next((r.specifier for r in releases if r.library == "python"), None)
    if stated is None:
        return ()
    oldest = next((minor for minor in range(7, 100) if admits(stated, f"3.{minor}.999")), 10)
    return tuple(kind for kind, minor in ((_NO_UNIONS, 10), (_NO_SUBSCRIPTS, 9)) if oldest < minor)


def without_strict(function: cst.FunctionDef, lacking: Sequence[str]) -> cst.FunctionDef:
    """A function whose zips are not strict, where they must not be."""
    node = function.visit(_NotStrict()) if _NO_UNIONS in lacking else function
    assert isinstance(node, cst.FunctionDef)
    return node


class _NotStrict(cst.CSTTransformer):
    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if code(updated_node.func) != "zip":
            return updated_node
        kept = [a for a in updated_node.args if a.keyword is None or a.keyword.value != "strict"]
        return updated_node.with_changes(args=[*kept[:-1], kept[-1].with_changes(comma=_NONE)])


_NONE = cst.MaybeSentinel.DEFAULT


def quoted(head: str, lacking: Sequence[str]) -> str:
    """The head of a function, ``def f(x: X | None): pass``, with types quoted that have to be."""
    signs = [sign for kind in lacking for sign in _SIGNS.get(kind, ())]
    return code(cst.parse_statement(head).visit(_Quoted(signs))).strip() if signs else head


class _Quoted(cst.CSTTransformer):
    def __init__(self, signs: Sequence[str]) -> None:
        super().__init__()
        self._signs = signs

    def leave_Annotation(
        self, original_node: cst.Annotation, updated_node: cst.Annotation
    ) -> cst.Annotation:
        text = code(updated_node.annotation)
        if '"' in text or not any(sign in text for sign in self._signs):
            return updated_node
        return updated_node.with_changes(annotation=cst.SimpleString(f'"{text}"'))
