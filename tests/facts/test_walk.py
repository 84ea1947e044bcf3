"""Going through a tree finds what ``ast.walk`` finds, in whatever syntax this Python has."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from trainify.facts import parse_module
from trainify.facts.walk import walk

EVERYTHING = """
@decorator
async def f(a, /, b: int = 1, *args, c=None, d, **kwargs) -> "T":
    global g
    async with a as b, c: await d
    async for x in y: yield x
    else: pass
    try: raise E from e
    except E as e: return lambda: 1
    finally: del x[1:2, ...]
    match p, q:
        case None: f(1)
        case True | -1 | "s" | a.b: f(2)
        case [x, *rest] if x: f(3)
        case {"k": v, **others}: f(4)
        case C(a, b=2) as c: f(5)
        case _: f(6)
    return [*a, {**b, c: d}, {e for e in f if g}, {k: v for k, v in z}, (i async for i in j)]

class C(B, metaclass=M):
    x: int = (y := 1)
    def g(self):
        nonlocal_ = f"{self!r:>{width}} {1}" if not a < b <= c else a @ -b
        assert x, "message"
        import a.b as c; from . import d
        while True: break
        else: continue_ = 1
        x += yield from y
"""
if sys.version_info >= (3, 12):
    EVERYTHING += "\ntype Alias[T: int, *Ts, **P] = list[T]\ndef h[T](x: T): f(7)\n"
if sys.version_info >= (3, 14):
    EVERYTHING += "\nt = t'{f(8)!r:>{width}}'\n"


def nodes(found: object) -> set[ast.AST]:
    skipped = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
    return {node for node in found if not isinstance(node, skipped)}  # type: ignore[attr-defined]


def test_every_node_is_found() -> None:
    tree = ast.parse(EVERYTHING)
    assert nodes(walk(tree)) == nodes(ast.walk(tree))


def test_every_call_is_found() -> None:
    module = parse_module(EVERYTHING, "m.py", None)
    assert set(module.calls) == {n for n in ast.walk(module.tree) if isinstance(n, ast.Call)}


@pytest.mark.parametrize("path", sorted(Path(ast.__file__).parent.glob("a*.py")), ids=str)
def test_files_of_the_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_bytes())
    assert nodes(walk(tree)) == nodes(ast.walk(tree))
