"""A kernel on a fast path whose other path is PyTorch: take that one where a gradient is wanted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..facts import ModuleFacts
from ..facts.layers import training_flag
from ..facts.pure import why_not_follow
from ..facts.walk import walk
from ..findings import STRATEGIES, Edit, Fix, Safety
from . import layout

# What a fast path asks: whether a kernel can run, not which of several things is to be computed.
_ABILITY = re.compile(
    r"is_contiguous|is_cuda|\.device|cuda|triton|available|fused|fast|kernel|\bhas_|\buse_|\bHAS_|"
    r"\bUSE_"
)


@dataclass(frozen=True)
class _Fork:
    """A condition with a kernel on one side; ``taken`` is its value where the kernel runs."""

    condition: ast.If
    taken: bool
    other: Sequence[ast.stmt]


def fixes(module: ModuleFacts, call: ast.Call, flag: str) -> dict[str, Fix]:
    """The fix of a call that stands on such a path; empty where it does not."""
    function = module.function(call)
    torch = layout.bound_at_top(module, "torch")
    if function is None or torch is None:
        return {}
    statement = module.statement(call)
    for fork in _forks(module, statement, function):
        test = module.source(fork.condition.test)
        kernel_side = fork.condition.body if fork.taken else [statement]
        if not _ABILITY.search(test) or not _gives_the_same(kernel_side, fork.other):
            continue
        if why_not_follow(module, fork.other, function):
            continue
        training = training_flag(module, function) if flag == "training" else None
        wanted = training or f"{torch}.is_grad_enabled()"
        new = _joined(module, fork, test, wanted)
        fix = Fix(
            "Take the other path when a gradient is wanted",
            (_edit(module, fork.condition, new),),
            Safety.UNSAFE,
            f"what is done without `{' '.join(test.split())}` must compute the same"
            if fork.taken
            else f"what is done with `{' '.join(test.split())}` must compute the same",
        )
        return dict.fromkeys(STRATEGIES, fix)
    return {}


def _forks(module: ModuleFacts, statement: ast.stmt, function: ast.AST) -> Iterator[_Fork]:
    """The conditions of which a statement is one side, inner ones first."""
    current: ast.stmt = statement
    while True:
        parent = module.parent(current)
        block = module.block(current)
        for before in reversed(block[: block.index(current)]):
            if isinstance(before, ast.If) and not before.orelse and _leaves(before.body):
                yield _Fork(before, False, before.body)
        if isinstance(parent, ast.If):
            if current in parent.body:
                around = module.block(parent)
                rest = around[around.index(parent) + 1 :]
                if parent.orelse and not _is_elif(parent.orelse):
                    yield _Fork(parent, True, parent.orelse)
                elif not parent.orelse and _leaves(parent.body) and rest:
                    yield _Fork(parent, True, rest)
            elif not _is_elif(parent.orelse):
                yield _Fork(parent, False, parent.body)
        if parent is function or not isinstance(parent, (ast.If, ast.With)):
            return
        current = parent


def _leaves(block: Sequence[ast.stmt]) -> bool:
    return isinstance(block[-1], ast.Return) and block[-1].value is not None


def _is_elif(block: Sequence[ast.stmt]) -> bool:
    return len(block) == 1 and isinstance(block[0], ast.If)


def _gives_the_same(kernel_side: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> bool:
    """Whether the other side has a result: it returns one, or assigns what this one assigns."""
    if _leaves(other):
        return True
    here, there = _assigned(kernel_side), _assigned(other)
    return bool(here & there)


def _assigned(block: Sequence[ast.stmt]) -> set[str]:
    return {
        n.id
        for statement in block
        for n in walk(statement)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _joined(module: ModuleFacts, fork: _Fork, test: str, wanted: str) -> str:
    """The test with another operand, on a line of its own where those before it have theirs."""
    loose = (ast.Or,) if fork.taken else ()
    tree = fork.condition.test
    if isinstance(tree, (ast.IfExp, ast.Lambda, ast.NamedExpr)) or (
        isinstance(tree, ast.BoolOp) and isinstance(tree.op, loose)
    ):
        test = f"({test})"
    gap = " "
    last = tree.values[-1] if isinstance(tree, ast.BoolOp) else tree
    line = module.line_text(last.lineno)
    if last.lineno > tree.lineno and line.lstrip().startswith(("and ", "or ")):
        gap = module.newline + line[: len(line) - len(line.lstrip())]
    return f"{test}{gap}and not {wanted}" if fork.taken else f"{test}{gap}or {wanted}"


def _edit(module: ModuleFacts, condition: ast.If, test: str) -> Edit:
    """The head of the condition with another test, broken where it is too long."""
    start, end = module.start(condition.test), module.end(condition.test)
    if "\n" in test or not layout.starts_line(module, condition):
        return Edit(start, end, test)
    indent = module.indentation(condition)
    width = layout.width(module)
    whole = f"if {test}:" if len(f"{indent}if {test}:") <= width else f"if ({test}):"
    lines = layout.fit(whole, indent, module.indent_unit, width)
    if len(lines) > 1 or len(lines[0]) <= width:
        text = module.newline.join(lines)[len(indent) + 3 : -1]
        return Edit(start, end, text)
    inner = indent + module.indent_unit
    return Edit(start, end, f"({module.newline}{inner}{test}{module.newline}{indent})")
