"""A result is only put where Python can put it: not into frozen objects, tuples and properties."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from verbs import findings, fix

from trainify.engine import Options, check_paths

HEAD = """\
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from vllm import _custom_ops as ops

"""
STATES = {
    "frozen": """\
        @dataclass(frozen=True)
        class State:
            x: Any = None
            residual: Any = None
        """,
    "frozen base": """\
        @dataclass(frozen=True)
        class Base:
            x: Any = None

        @dataclass(frozen=True)
        class State(Base):
            residual: Any = None
        """,
    "named tuple": """\
        class State(NamedTuple):
            x: Any = None
            residual: Any = None
        """,
    "named tuple by a call": """\
        class State(namedtuple("State", "x residual", defaults=(None, None))):
            pass
        """,
    "property": """\
        class State:
            @property
            def x(self):
                return 1

            @property
            def residual(self):
                return 1
        """,
    "dataclass": """\
        @dataclass
        class State:
            x: Any = None
            residual: Any = None
        """,
    "not frozen": """\
        @dataclass(frozen=False, eq=True)
        class State:
            x: Any = None
            residual: Any = None
        """,
    "plain": """\
        class State:
            def __init__(self):
                self.x = self.residual = None
        """,
    "property with a setter": """\
        class State:
            @property
            def x(self):
                return 1

            @x.setter
            def x(self, value):
                pass
        """,
}
USES = [
    "def norm(s: State, w):\n    ops.fused_add_rms_norm(s.x, s.residual, w, 1e-6)\n    return s\n",
    'def norm(s: "State", w):\n    ops.fused_add_rms_norm(s.x, s.residual, w, 1e-6)\n    return s\n',
    "def norm(w, s: Optional[State] = None):\n    ops.fused_add_rms_norm(s.x, s.residual, w, 1e-6)\n",
    "def norm(w):\n    s = State()\n    ops.fused_add_rms_norm(s.x, s.residual, w, 1e-6)\n    return s\n",
    "class Layer:\n    def __init__(self):\n        self.state = State()\n\n"
    "    def norm(self, w):\n"
    "        ops.fused_add_rms_norm(self.state.x, self.state.residual, w, 1e-6)\n",
]


def can_be_set(state: str) -> bool:
    space: dict[str, Any] = {"__name__": __name__}
    exec(compile(HEAD.replace("from vllm", "# from vllm") + state, "m.py", "exec"), space)
    try:
        space["State"]().x = 1
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("state", list(map(textwrap.dedent, STATES.values())), ids=STATES.keys())
@pytest.mark.parametrize("use", USES)
def test_fields(state: str, use: str) -> None:
    text = f"{HEAD}\n{state}\n\n{use}"
    (found,) = findings(text)
    assert found.rule == "TRN102"
    assert bool(found.fixes) is can_be_set(state)
    assert ("cannot be set: `State`" in found.message) is not can_be_set(state)


def test_fields_of_another_file(tmp_path: Path) -> None:
    for frozen, state in ((True, STATES["frozen"]), (False, STATES["dataclass"])):
        (tmp_path / "state.py").write_text(f"{HEAD}\n{textwrap.dedent(state)}")
        (tmp_path / "norm.py").write_text(f"{HEAD}from state import State\n\n\n{USES[0]}")
        (found,) = (f for r in check_paths([str(tmp_path)], Options()) for f in r.findings)
        assert bool(found.fixes) is not frozen


@pytest.mark.parametrize(
    ("use", "is_tuple"),
    [
        ("def norm(w, *states):\n    {}", True),
        ("def norm(w, states: tuple):\n    {}", True),
        ("def norm(w, states: tuple[Any, Any]):\n    {}", True),
        ("class S(NamedTuple):\n    x: Any\n    y: Any\n\ndef norm(w, states: S):\n    {}", True),
        ("def norm(w, xs):\n    states = tuple(xs)\n    {}", True),
        ("def norm(w, states: list):\n    {}", False),
        ("def norm(w, states):\n    {}", False),
        ("def norm(w, *states):\n    states = list(states)\n    {}", False),
    ],
)
def test_elements(use: str, is_tuple: bool) -> None:
    call = "ops.fused_add_rms_norm(states[0], states[1], w, 1e-6)\n    return states[0]\n"
    text = HEAD + use.format(call)
    (found,) = findings(text)
    assert bool(found.fixes) is not is_tuple
    assert (fix(text, unsafe=True) == text) is is_tuple
