"""Names that tell a tensor of integers, which has no gradient: positions, lengths, tables."""

from __future__ import annotations

import ast
import re

_INTEGERS = re.compile(
    r"(^|_)(idx|index|indices|indptr|loc|locs|slots?|pos|positions|lens?|lengths?|ids?|masks?|"
    r"counts?|counters?|offsets?|cursors?|perms?|epoch|page_tables?|block_tables?|token_map|"
    r"start_tokens|num_\w+|req_to_token|req_pool|dst_rows|schedules?|cu|(cu_|cache_)?seq_?lens?|"
    r"(prev|kept|last)_\w*(len|tokens|accepted)|sampled|valid|ranks|visible|bitmask)"
    r"(_(cpu|gpu|out|int32|int64|q|k))?$"
)


def holds_integers(node: ast.AST) -> bool:
    """Whether a variable or an attribute, or a part or view of one, holds integers by its name."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Attribute):
            return _INTEGERS.search(node.attr) is not None
        else:
            return isinstance(node, ast.Name) and _INTEGERS.search(node.id) is not None
