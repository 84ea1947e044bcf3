"""What a fused call computes, its equivalent, and where that was read."""

from __future__ import annotations

from typing import cast

from ..catalog import FusedOp
from ..engine import Options, passes_for
from ..facts import Project, parse_module
from ..ops import reference_texts
from ..passes import Pass, fused_calls
from ..passes.fused_calls.calls import op_of

Hovered = tuple[str, int, int]
"""Markdown, and the stretch of the text that it is about."""


def hovered(
    text: str, path: str, offset: int, options: Options, project: Project
) -> Hovered | None:
    """What to show at an offset: something only on the callee of a fused call."""
    asked = passes_for(text.encode(errors="replace"), options)
    if cast("Pass", fused_calls) not in asked:
        return None
    try:
        module = parse_module(text, path, project)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for call in module.calls:  # inner ones come first
        start, end = module.start(call.func), module.end(call.func)
        if start <= offset <= end:
            op = op_of(module, call, options)
            if op is not None:
                return described(op), start, end
    return None


def described(op: FusedOp) -> str:
    """An op of the catalog, in Markdown."""
    parts = [f"**{op.name}**: fused, without a backward", _code(op.schema)]
    if op.equivalent is None:
        parts.append(f"Not rewritten: {op.note}." if op.note else "Nothing stands for it yet.")
    else:
        parts += ["Its differentiable equivalent:", _code(op.equivalent)]
        texts = [text.strip("\n") for text in reference_texts(op.equivalent)]
        if texts:
            parts += ["where", _code("\n\n\n".join(texts))]
    known = [f"for {op.since}"] if op.since else []
    known += [f"as in {op.source}"] if op.source else []
    if known:
        parts.append(f"*{', '.join(known)}*")
    return "\n\n".join(parts)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"
