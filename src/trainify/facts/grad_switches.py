"""Statements that set the grad mode until another one does: ``torch.set_grad_enabled(False)``.

So do what enters a mode and does not leave it, and a stack that enters one and is closed later.
What they switch off is a scope for the code behind them; see :func:`.grad_mode.switched_before`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .grad_mode import SWITCHES, Mode, first_argument, mode_of, switches_on

if TYPE_CHECKING:
    from .module import ModuleFacts

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Switch:
    """A statement that sets the mode until something sets it again.

    ``mode`` is what it switches gradients off by, None where it does not, or where only the run
    knows.  ``on`` is whether it surely switches them on.  ``entered`` is what a stack enters, which
    gives the mode back when it is closed: ``stack.enter_context(torch.no_grad())``.
    """

    call: ast.Call
    mode: Mode | None
    on: bool = False
    entered: ast.expr | None = None

    @property
    def node(self) -> ast.expr:
        """What names the mode."""
        return self.entered or self.call


def _switch(module: ModuleFacts, statement: ast.stmt, aliased: bool) -> Switch | None:
    """What a statement sets the mode to, until something sets it again.

    ``torch.set_grad_enabled(False)`` as a statement, ``torch.no_grad().__enter__()``; not
    ``torch.no_grad()``, which does nothing.  ``aliased``: the function may have another name.
    """
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, (ast.Attribute, ast.Name)):
        return None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
    if not (aliased and isinstance(call.func, ast.Name)) and not _SETS.search(name):
        return None
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("__enter__", "__exit__"):
        entered = call.func.value
        mode = mode_of(module, entered, statement)
        if call.func.attr == "__exit__":  # back to what was before
            return Switch(call, None) if mode is not None else None
        if mode is not None:
            return Switch(call, mode)
        return Switch(call, None, True) if switches_on(module, entered, statement) else None
    if name == "enter_context":
        given = call.args[0] if _stack(module, call, statement) and call.args else None
        mode = mode_of(module, given, statement) if given is not None else None
        return Switch(call, mode, entered=given) if mode is not None else None
    names = {t.name for t in module.resolve(call.func, statement)}
    if not names or not names <= SWITCHES:
        return None
    argument = first_argument(call)
    if isinstance(argument, ast.Constant):
        return Switch(call, None if argument.value else "set_grad_enabled", bool(argument.value))
    return Switch(call, None)


def _stack(module: ModuleFacts, call: ast.Call, statement: ast.stmt) -> str | None:
    """The name of the ``ExitStack`` that ``stack.f(...)`` is of, which no ``with`` opened."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(owner, ast.Name):
        return None
    flow = module.flow(module.function(statement) or module.tree)
    made = [definition.value for definition in flow.reaching(owner.id, statement)]
    if made and all(
        isinstance(value, ast.Call) and module.is_name(value.func, "contextlib.ExitStack")
        for value in made
    ):
        return owner.id
    return None


def _closing(module: ModuleFacts, stacks: set[str]) -> Iterator[tuple[ast.stmt, Switch | None]]:
    """Where stacks that have entered a mode give it back; after a ``with`` over one it is gone."""
    for statement in module.statements:
        if isinstance(statement, ast.With):
            items = [item.context_expr for item in statement.items]
            if any(isinstance(item, ast.Name) and item.id in stacks for item in items):
                yield statement, None
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            if (
                call.func.attr in ("close", "__exit__")
                and _stack(module, call, statement) in stacks
            ):
                yield statement, Switch(call, None)


def switches_of(module: ModuleFacts) -> dict[ast.stmt, Switch | None]:
    """The statements of a file that set the mode; None for those that hold such a statement.

    :class:`ModuleFacts` asks once.
    """
    if not any(word in module.usual for word in _SETTERS):
        return {}
    found: dict[ast.stmt, Switch | None] = {}
    stacks: set[str] = set()
    aliased = _ALIAS.search(module.usual) is not None
    for statement in module.statements:
        if not isinstance(statement, (ast.Expr, ast.Assign)):
            continue
        switched = _switch(module, statement, aliased)
        if switched is None:
            continue
        found[statement] = switched
        if switched.entered is not None and (name := _stack(module, switched.call, statement)):
            stacks.add(name)
    for statement, closed in _closing(module, stacks) if stacks else ():
        found[statement] = closed
    for statement in list(found):
        for parent in module.ancestors(statement):
            if isinstance(parent, _FUNCTIONS) or not isinstance(parent, ast.stmt):
                break
            found.setdefault(parent, None)
    return found


_SETTERS = ("set_grad_enabled", "__enter__", "__exit__", "enter_context")
_SETS = re.compile("|".join(_SETTERS))
_ALIAS = re.compile(r"set_grad_enabled as |= *[\w.]*set_grad_enabled *$", re.MULTILINE)
