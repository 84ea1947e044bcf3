"""What the author says next to the code."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .module import ModuleFacts

_STOPS_GRADIENT = re.compile(
    r"detach|stop[- _]?grad|grad|back[- ]?prop|backward|freez|frozen|straight[- ]through|\bSTE\b",
    re.IGNORECASE,
)

_SPEAKS_OF_MODE = re.compile(
    r"no_grad|inference_mode|autograd|gradient|backward|freez|frozen", re.IGNORECASE
)
_IS_OPEN = re.compile(r"\btodo|\bfixme|\bhack|\btrain|\bfine-?tun", re.IGNORECASE)


def with_comments(module: ModuleFacts, line: int) -> int:
    """The first of the comment lines right above a line; the line itself where there are none."""
    while line > 1 and module.line_text(line - 1).lstrip().startswith("#"):
        line -= 1
    return line


def explained(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether a comment at an expression, or right above it, speaks of gradients."""
    assert node.end_lineno is not None
    first = with_comments(module, module.statement(node).lineno)
    for line in range(first, node.end_lineno + 1):
        _, hash_, comment = module.line_text(line).partition("#")
        if hash_ and _STOPS_GRADIENT.search(comment):
            return True
    function = module.function(node)
    text = ast.get_docstring(function, clean=False) if function is not None else None
    return text is not None and _STOPS_GRADIENT.search(text) is not None


def explains_mode(module: ModuleFacts, decorator: ast.expr) -> bool:
    """Whether a comment above a decorator says why gradients are off, and leaves it at that."""
    lines = range(with_comments(module, decorator.lineno), decorator.lineno)
    said = (module.line_text(line).strip().lstrip("# ") for line in lines)
    text = "\n".join(line for line in said if not line.startswith("@"))
    return bool(_SPEAKS_OF_MODE.search(text)) and not _IS_OPEN.search(text)
