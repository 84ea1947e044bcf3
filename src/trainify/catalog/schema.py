"""PyTorch's FunctionSchema notation, read without torch.

``rms_norm(Tensor(a!) out, Tensor input, Tensor weight, float epsilon) -> ()`` says that the call
writes into ``out``.  The grammar is the one of ``torch/csrc/jit/frontend/function_schema_parser``,
as far as operator registrations use it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


class SchemaError(ValueError):
    """The text is not a FunctionSchema."""


class BindError(ValueError):
    """A call does not fit the schema; the message says why."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a schema; ``default`` is Python source, or None where there is none."""

    name: str
    type: str
    written: bool
    default: str | None
    kwarg_only: bool
    alias: str = ""
    """The name of its alias set, as ``a`` in ``Tensor(a!) out``; empty where it has none."""

    @property
    def is_tensor(self) -> bool:
        return self.type in ("Tensor", "Tensor?")

    @property
    def is_optional(self) -> bool:
        return self.type.endswith("?")


@dataclass(frozen=True)
class Schema:
    """A parsed FunctionSchema."""

    name: str
    arguments: tuple[Argument, ...]
    returns: tuple[str, ...]

    @property
    def handed_back(self) -> tuple[str | None, ...]:
        """For each return, the name of the argument that it is; None where it is a new value."""
        by_alias = {a.alias: a.name for a in self.arguments if a.alias}
        return tuple(by_alias.get(_alias(text)) for text in self.returns)

    @cached_property
    def written(self) -> tuple[Argument, ...]:
        """The arguments that the call writes into."""
        return tuple(a for a in self.arguments if a.written)

    def bind(
        self, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]
    ) -> dict[str, ast.expr | None]:
        """Map argument names to the call's expressions; None stands for "left at its default".

        Raises :class:`BindError` for ``*args``, ``**kwargs``, unknown, doubled, missing or too many
        arguments.
        """
        if any(isinstance(value, ast.Starred) for value in args):
            raise BindError("the call unpacks *args")
        bound: dict[str, ast.expr | None] = {}
        positional = [a for a in self.arguments if not a.kwarg_only]
        if len(args) > len(positional):
            raise BindError(f"it takes {len(positional)} arguments, the call passes {len(args)}")
        for argument, value in zip(positional, args, strict=False):
            bound[argument.name] = value
        known = {a.name for a in self.arguments}
        for keyword in keywords:
            if keyword.arg is None:
                raise BindError("the call unpacks **kwargs")
            if keyword.arg not in known:
                raise BindError(f"it has no argument named {keyword.arg!r}")
            if keyword.arg in bound:
                raise BindError(f"argument {keyword.arg!r} is passed twice")
            bound[keyword.arg] = keyword.value
        for argument in self.arguments:
            if argument.name not in bound:
                if argument.default is None:
                    raise BindError(f"argument {argument.name!r} is missing")
                bound[argument.name] = None
        return bound


_HEAD = re.compile(
    r"\s*(?P<name>[\w:.]+)\s*\((?P<args>.*)\)\s*->\s*(?P<returns>.*?)\s*$", re.DOTALL
)
_ARGUMENT = re.compile(
    r"(?P<type>[A-Za-z_]\w*)"
    r"(?P<alias>\([a-z*]+!?(?:\s*->\s*[a-z*]+)?\)|!)?"
    r"(?P<list>\[\d*\])?(?P<optional>\?)?(?P<list2>\[\d*\]\??)?"
    r"\s+(?P<name>\w+)\s*(?:=\s*(?P<default>.+))?$",
    re.DOTALL,
)


def parse_schema(text: str) -> Schema:
    """Parse one schema; raises :class:`SchemaError` with what is wrong."""
    head = _HEAD.match(text)
    if head is None:
        raise SchemaError(f"expected 'name(arguments) -> returns', got {text!r}")
    arguments: list[Argument] = []
    kwarg_only = False
    for part in _split(head["args"]):
        if part == "*":
            kwarg_only = True
            continue
        match = _ARGUMENT.match(part)
        if match is None:
            raise SchemaError(f"cannot read argument {part!r} of {head['name']!r}")
        default = match["default"]
        if default is not None and not _is_expression(default):
            raise SchemaError(f"{default!r} is no default value, in {head['name']!r}")
        arguments.append(
            Argument(
                name=match["name"],
                type=match["type"]
                + (match["list"] or "")
                + (match["optional"] or "")
                + (match["list2"] or ""),
                written="!" in (match["alias"] or ""),
                default=default.strip() if default is not None else None,
                kwarg_only=kwarg_only,
                alias=_alias(match["alias"] or ""),
            )
        )
    names = [a.name for a in arguments]
    if len(set(names)) != len(names):
        raise SchemaError(f"{head['name']!r} names an argument twice")
    returns = head["returns"].strip()
    if returns.startswith("(") and returns.endswith(")"):
        returns = returns[1:-1]
    return Schema(head["name"], tuple(arguments), tuple(_split(returns)))


def _alias(text: str) -> str:
    """The alias set in an argument's or a return's type, ``a`` in ``Tensor(a!)``."""
    found = re.search(r"\(([a-z]+)!?[^)]*\)", text)
    return found[1] if found else ""


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):  # a null byte is a ValueError on Python 3.11 and older
        return False
    return True


def _split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes; empty text has no parts."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []
