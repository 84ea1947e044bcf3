"""Small tools on libcst expressions: text, parentheses, substitution."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import libcst as cst

_ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.Integer,
    cst.Float,
    cst.SimpleString,
    cst.List,
    cst.Dict,
    cst.Set,
    cst.Ellipsis,
)


@lru_cache(4096)
def code(node: cst.CSTNode) -> str:
    """The text of a node; nodes never change, and are asked for theirs often."""
    return cst.Module([]).code_for_node(node)


def expression(text: str) -> cst.BaseExpression:
    return cst.parse_expression(one_line(text))


def parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression as it can stand anywhere: with parentheses, unless it needs none."""
    if isinstance(node, _ATOMS):
        return bare(node)
    if node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def bare(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression as it can stand alone, between commas or at the end of a statement."""
    if not node.lpar or isinstance(
        node, (cst.Tuple, cst.GeneratorExp, cst.NamedExpr, cst.Yield, cst.Await, cst.Lambda)
    ):
        return node
    text = one_line(code(node))
    if "\n" in text:
        return node
    return cst.parse_expression(text).with_changes(lpar=[], rpar=[])


def one_line(text: str) -> str:
    """Code in brackets over several lines as one line; as it is where a comment or string forbids.

    A comma that only ended the last of the lines goes.
    """
    text = text.strip()
    if "\n" not in text and "\r" not in text:
        return text
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(f"({text}\n)").readline))
    except (tokenize.TokenError, SyntaxError):
        return text
    tokens = [t for t in tokens if t.type not in (tokenize.NL, tokenize.NEWLINE)][:-1]
    if any(t.type == tokenize.COMMENT or "\n" in t.string for t in tokens):
        return text
    done, commas = [""], [0]
    for before, token in pairwise(tokens):
        closes = token.string in (")", "]", "}")
        if token.start[0] == before.end[0]:
            gap = " " * (token.start[1] - before.end[1])
        elif closes and before.string == "," and not (_opens_tuple(done) and commas[-1] == 1):
            done[-1], gap = "", ""
        else:
            gap = "" if closes or before.string in ("(", "[", "{") else " "
        if token.string in ("(", "[", "{"):
            commas.append(0)
        elif closes:
            commas.pop()
        elif token.string == ",":
            commas[-1] += 1
        done += [gap, token.string]
    return "".join(done[:-2]).strip()


def _opens_tuple(pieces: list[str]) -> bool:
    """Whether the innermost open bracket is that of a tuple, not of a call or a subscript."""
    depth = 0
    for i in range(len(pieces) - 1, -1, -1):
        depth += (pieces[i] in (")", "]", "}")) - (pieces[i] in ("(", "[", "{"))
        if depth < 0:
            before = pieces[i - 2] if i >= 2 else ""
            return pieces[i] == "(" and not (before.isidentifier() or before in (")", "]"))
    return False


class Substitute(cst.CSTTransformer):
    """Replace names by expressions, with parentheses where the place needs them."""

    def __init__(self, mapping: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self.mapping = mapping

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        value = self.mapping.get(original_node.value)
        return updated_node if value is None else parenthesized(value)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        value = updated_node.value
        if isinstance(original_node.value, cst.Name):
            value = self.mapping.get(original_node.value.value, value)
        return updated_node.with_changes(keyword=original_node.keyword, value=value)
