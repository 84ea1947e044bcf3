"""Moving grad modes: off a function, onto another, out of a ``with``, or to another mode."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.comments import with_comments
from ..facts.walk import walk
from ..findings import Edit
from . import layout

if TYPE_CHECKING:
    from ..facts.grad_mode import Scope
    from ..facts.leaving import Leaving
    from ..facts.module import FunctionNode


def removal(module: ModuleFacts, scope: Scope) -> list[Edit]:
    """Take a scope away, whatever stands for it; an empty list where that is not possible."""
    owner = scope.owner
    edit: Edit | None
    if scope.wraps is not None:
        return [unwrapped_call(module, scope.wraps)]
    if isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        edit = without_decorator(module, scope.node)
    elif isinstance(owner, (ast.With, ast.AsyncWith)):
        return unwrapped(module, owner, scope.node)
    elif module.grad_switches.get(owner) is not None:
        return without_switch(module, owner)
    else:
        edit = without_statement(module, owner) or _passed_over(module, owner)
    return [edit] if edit is not None else []


def end_line(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None
    return statement.end_lineno


# -- decorators -----------------------------------------------------------------------------------


def without_decorator(module: ModuleFacts, decorator: ast.expr) -> Edit | None:
    """Delete the line of a decorator; None where it shares its lines with something.

    Or the statement behind the function: ``f = torch.no_grad()(f)``.
    """
    behind = module.statement(decorator)
    if isinstance(behind, ast.Assign):
        return without_idle(module, behind)
    first, last = decorator.lineno, decorator.end_lineno
    assert last is not None
    start = module.line_starts[first - 1]
    end = module.line_starts[last] if last < len(module.line_starts) else len(module.text)
    before = module.text[start : module.start(decorator)].strip()
    after = module.text[module.end(decorator) : end].strip()
    return Edit(start, end, "") if before == "@" and not after else None


def with_decorator(module: ModuleFacts, function: FunctionNode, text: str) -> Edit:
    """Put a decorator right above ``def``, below the ones that are there."""
    start = module.line_starts[function.lineno - 1]
    return Edit(start, start, f"{module.indentation(function)}@{text}{module.newline}")


def can_decorate(function: FunctionNode) -> bool:
    """Whether a scope as a decorator holds while the function runs: not for a coroutine."""
    return not isinstance(function, ast.AsyncFunctionDef)


# -- statements -----------------------------------------------------------------------------------


def without_statement(module: ModuleFacts, statement: ast.stmt) -> Edit | None:
    """Delete a statement with its lines, and the smaller of the gaps around it.

    None where it shares its lines with more than the next ones, or is all that its block holds.
    """
    block = module.block(statement)
    if len(block) < 2:
        return None
    if not layout.owns_lines(module, statement):
        return _without_part(module, statement, statement)
    first, last = statement.lineno, end_line(statement)
    lines = len(module.line_starts)
    before = after = 0
    while first - before > 1 and not module.line_text(first - before - 1).strip():
        before += 1
    while last + after + 1 < lines and not module.line_text(last + after + 1).strip():
        after += 1
    if before <= after and statement is not block[0]:
        first -= before
    elif before or statement is block[0]:
        last += after
    end = module.line_starts[last] if last < lines else len(module.text)
    return Edit(module.line_starts[first - 1], end, "")


def _without_part(module: ModuleFacts, first: ast.stmt, last: ast.stmt) -> Edit | None:
    """Delete statements that follow one another on a line that holds more of them: ``a; b``."""
    block = module.block(first)
    i, j = block.index(first), block.index(last) + 1
    if i and end_line(block[i - 1]) == first.lineno:
        start, end = module.end(block[i - 1]), module.end(last)
        between = module.text[start : module.start(first)]
    elif j < len(block) and block[j].lineno == end_line(last):
        start, end = module.start(first), module.start(block[j])
        between = module.text[module.end(last) : end]
    else:
        return None
    return Edit(start, end, "") if between.strip() == ";" else None


def _without_each(module: ModuleFacts, statements: Sequence[ast.stmt]) -> list[Edit]:
    """Delete some statements; an empty list where one of them has to stay."""
    edits: list[Edit | None] = []
    runs: list[list[ast.stmt]] = []
    for each in sorted(statements, key=lambda s: (s.lineno, s.col_offset)):
        block = module.block(each)
        before = block[block.index(each) - 1] if each is not block[0] else None
        if runs and runs[-1][-1] is before and end_line(before) == each.lineno:
            runs[-1].append(each)
        else:
            runs.append([each])
    for run in runs:
        if len(run) == 1:
            edits.append(without_statement(module, *run))
        else:
            edits.append(_without_part(module, run[0], run[-1]) or _without_line(module, run))
    kept = [edit for edit in edits if edit is not None]
    return kept if len(kept) == len(edits) else []


def _without_line(module: ModuleFacts, statements: Sequence[ast.stmt]) -> Edit | None:
    """Delete a line whose statements are these; None where it has others."""
    first, last = statements[0], statements[-1]
    block = module.block(first)
    start, end = module.line_starts[first.lineno - 1], layout.line_end(module, last)
    alone = layout.starts_line(module, first) and not module.text[module.end(last) : end].strip()
    i = block.index(first)
    same = block[i : i + len(statements)] == list(statements) and len(block) > len(statements)
    if not alone or not same or end_line(last) != first.lineno:
        return None
    following = first.lineno < len(module.line_starts)
    return Edit(start, module.line_starts[first.lineno] if following else end, "")


def without_idle(module: ModuleFacts, statement: ast.stmt) -> Edit | None:
    """Delete a statement that would do nothing any more; None where a comment stands behind it."""
    if "#" in module.line_text(statement.lineno):
        return None
    return without_statement(module, statement)


def _passed_over(module: ModuleFacts, statement: ast.stmt) -> Edit | None:
    """``pass`` for a statement that is all that its block holds."""
    if len(module.block(statement)) > 1:
        return None
    return Edit(module.start(statement), module.end(statement), "pass")


def without_switch(module: ModuleFacts, statement: ast.stmt) -> list[Edit]:
    """Delete ``set_grad_enabled(False)``, and what ends it in its block.

    That is ``set_grad_enabled(True)``, or the earlier mode put back; the latter may stay where it
    stands elsewhere.  Of ``context.__enter__()``, ``context.__exit__(...)`` goes with it.  An empty
    list where something else sets the mode.  What a stack has entered ends with the stack.
    """
    entering = module.grad_switches[statement]
    if entering is None or not isinstance(statement, ast.Expr):
        return []
    if entering.entered is not None:
        return _without_entered(module, statement, entering.call)
    block = module.block(statement)
    after = block[block.index(statement) + 1 :]
    ends = next((s for s in after if s in module.grad_switches), None)
    if getattr(entering.call.func, "attr", "") == "__enter__":
        gone = _with_exit(module, statement, ends)
    elif ends is None or _only_remembered(module, ends):
        gone = [statement]
        if ends is not None and (kept := _puts_back(module, ends)) is not None:
            gone += [ends, kept]
    else:
        switch = module.grad_switches.get(ends)
        gone = [statement, ends] if switch is not None and switch.on else []
    return _without_each(module, gone)


def _only_remembered(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether all that sets the mode in a statement puts an earlier one back."""
    switches = [s for s, switch in module.grad_switches.items() if switch is not None]
    inside = [s for s in switches if s is statement or statement in module.ancestors(s)]
    return bool(inside) and all(_remembered(module, each) is not None for each in inside)


def _remembered(module: ModuleFacts, statement: ast.stmt) -> ast.stmt | None:
    """Where ``mode = torch.is_grad_enabled()`` was asked for, of ``set_grad_enabled(mode)``."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords:
        return None
    mode = call.args[0]
    if not isinstance(mode, ast.Name):
        return None
    flow = module.flow(module.function(statement) or module.tree)
    made = flow.only_definition(mode.id, statement)
    value = made.value if made is not None else None
    if not isinstance(value, ast.Call) or not isinstance(made and made.statement, ast.Assign):
        return None
    asks = module.is_name(value.func, "torch.is_grad_enabled")
    return made.statement if asks and made is not None else None


def _puts_back(module: ModuleFacts, statement: ast.stmt) -> ast.stmt | None:
    """The same, if the mode is asked for to be put back there and for nothing else."""
    made = _remembered(module, statement)
    if not isinstance(made, ast.Assign) or not isinstance(made.targets[0], ast.Name):
        return None
    name, function = made.targets[0].id, module.function(made) or module.tree
    uses = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == name]
    return made if len(uses) == 2 else None


def _with_exit(module: ModuleFacts, statement: ast.Expr, ends: ast.stmt | None) -> list[ast.stmt]:
    """``context.__enter__()`` with what leaves it and, if for these alone, what makes it."""
    left = ends.value if isinstance(ends, ast.Expr) else None
    if ends is None or not isinstance(left, ast.Call) or not isinstance(left.func, ast.Attribute):
        return []
    assert isinstance(statement.value, ast.Call)
    entered = statement.value.func
    assert isinstance(entered, ast.Attribute)
    context = entered.value
    if left.func.attr != "__exit__" or not isinstance(context, ast.Name):
        return []
    if not isinstance(left.func.value, ast.Name) or left.func.value.id != context.id:
        return []
    function = module.function(statement) or module.tree
    made = module.flow(function).only_definition(context.id, statement)
    uses = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == context.id]
    if made is None or not isinstance(made.statement, ast.Assign) or len(uses) != 3:
        return [statement, ends] if len(uses) == 2 else []
    return [statement, ends, made.statement]


def _without_entered(module: ModuleFacts, statement: ast.stmt, call: ast.Call) -> list[Edit]:
    """Delete ``stack.enter_context(mode)``, and the stack where it is for nothing else."""
    assert isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    if not isinstance(statement, ast.Expr):
        return []
    name = call.func.value.id
    function = module.function(statement) or module.tree
    uses = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == name]
    users = list(dict.fromkeys(module.statement(use) for use in uses))
    plain = all(isinstance(each, (ast.Expr, ast.Assign)) for each in users)
    closed = any(isinstance(each, ast.Expr) and each is not statement for each in users)
    if plain and closed and len(uses) == len(users) == 3:
        return _without_each(module, users)
    edit = without_statement(module, statement) or _passed_over(module, statement)
    return [edit] if edit is not None else []


def unwrapped_call(module: ModuleFacts, wraps: ast.Call) -> Edit:
    """``f`` for ``torch.no_grad()(f)``."""
    text = module.source(wraps.args[0])
    if not isinstance(wraps.args[0], (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        text = f"({text})"
    return Edit(module.start(wraps), module.end(wraps), text)


def unwrapped(module: ModuleFacts, scope: ast.With | ast.AsyncWith, node: ast.expr) -> list[Edit]:
    """Take a mode away from a ``with``: the whole statement, or one of several items.

    An empty list where the lines do not allow it.
    """
    if len(scope.items) > 1:
        return _without_item(module, scope, node)
    return lifted(module, scope, scope.body) or []


def _without_item(
    module: ModuleFacts, scope: ast.With | ast.AsyncWith, node: ast.expr
) -> list[Edit]:
    i = next(i for i, item in enumerate(scope.items) if item.context_expr is node)
    if _is_bound(module, scope.items[i]):
        return []
    if i + 1 < len(scope.items):
        return [Edit(module.start(node), module.start(scope.items[i + 1].context_expr), "")]
    before, item = scope.items[i - 1], scope.items[i]
    start = module.end(before.optional_vars or before.context_expr)
    return [Edit(start, module.end(item.optional_vars or node), "")]


def _is_bound(module: ModuleFacts, item: ast.withitem) -> bool:
    """Whether ``with mode as name`` gives a name that something reads."""
    name = item.optional_vars
    if not isinstance(name, ast.Name):
        return name is not None
    return any(
        isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Load)
        for node in walk(module.tree)
    )


def lifted(
    module: ModuleFacts, scope: ast.With | ast.AsyncWith, needed: Sequence[ast.stmt]
) -> list[Edit] | None:
    """Take some statements out of a ``with``, order and comments kept; the others stay in it."""
    item = scope.items[0]
    if len(scope.items) > 1 or _is_bound(module, item) or not layout.owns_lines(module, scope):
        return None
    if scope.body[0].lineno == scope.lineno:
        if any(statement not in needed for statement in scope.body):
            return None
        return [Edit(module.start(scope), module.start(scope.body[0]), "")]
    outer, inner = module.indentation(scope), module.indentation(scope.body[0])
    if not inner.startswith(outer):
        return None
    unit = inner[len(outer) :]
    head_start = module.line_starts[scope.lineno - 1]
    # comments between the head and the first statement belong to that statement
    header_line = module.position(module.end(item.optional_vars or item.context_expr))[0]
    while ":" not in module.line_text(header_line) and header_line < scope.body[0].lineno - 1:
        header_line += 1
    comment_start = module.line_starts[header_line]
    head = module.text[head_start:comment_start]
    edits: list[Edit] = []
    inside: bool | None = None
    for i, statement in enumerate(scope.body):
        begin = header_line + 1 if i == 0 else end_line(scope.body[i - 1]) + 1
        stays = statement not in needed
        if stays and inside is not True and i > 0:
            offset = module.line_starts[begin - 1]
            edits.append(Edit(offset, offset, head))
        if not stays:
            edits += layout.dedent_edits(module, begin, end_line(statement), unit)
        if i == 0 and not stays:
            edits.append(Edit(head_start, comment_start, ""))
        inside = stays
    return edits


def freed(module: ModuleFacts, scope: Scope, needed: Callable[[ast.stmt], bool]) -> list[Edit]:
    """Take out of a scope the statements of its body that are needed, and it where nothing is left.

    What only hands on what is there already goes with them.  An empty list where the lines do not
    allow it, or nothing is needed.  Other scopes than a ``with`` go as a whole.
    """
    owner = scope.owner
    if not isinstance(owner, (ast.With, ast.AsyncWith)):
        return removal(module, scope)
    out = [statement for statement in owner.body if needed(statement)]
    if all(statement in out or not _computes(statement) for statement in owner.body) and out:
        return unwrapped(module, owner, scope.node)
    return lifted(module, owner, out) or [] if out else []


def left(
    module: ModuleFacts, owner: ast.With | ast.AsyncWith, node: ast.expr, leaving: Leaving
) -> list[Edit]:
    """Let the statements leave a ``with`` that have to, and it go where nothing else is computed.

    An empty list where the lines do not allow it.
    """
    out = [
        statement
        for statement in owner.body
        if isinstance(statement, ast.Return) or leaving.holds(module, statement)
    ]
    if not out:
        return []
    rest = [statement for statement in owner.body if statement not in out]
    if leaving.stays and isinstance(owner, ast.With):
        kept = sorted([*rest, *leaving.stays], key=lambda s: s.lineno)
        return narrowed(module, owner, node, kept) or []
    if not any(_computes(statement) for statement in rest):
        return unwrapped(module, owner, node)
    return lifted(module, owner, out) or []


def _computes(statement: ast.stmt) -> bool:
    kinds = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.AugAssign)
    return any(isinstance(node, kinds) for node in walk(statement))


def narrowed(
    module: ModuleFacts, scope: ast.With, node: ast.expr, kept: Sequence[ast.stmt]
) -> list[Edit] | None:
    """Take a ``with`` away but for some statements, at any depth, that stay under its mode."""
    body = scope.body
    if len(scope.items) > 1 or _is_bound(module, scope.items[0]):
        return None if kept else _without_item(module, scope, node)
    if not layout.owns_lines(module, scope) or body[0].lineno == scope.lineno:
        return None
    if node.end_lineno != scope.lineno:  # a head over several lines
        return lifted(module, scope, body) if not kept else None
    outer, inner = module.indentation(scope), module.indentation(body[0])
    if not inner.startswith(outer):
        return None
    unit = inner[len(outer) :]
    stays = {line for k in kept for line in range(_first_line(module, k), end_line(k) + 1)}
    head_end = module.line_starts[scope.lineno]
    edits = []
    if body[0] not in kept:
        edits.append(Edit(module.line_starts[scope.lineno - 1], head_end, ""))
    for first in _run_starts(module, kept):
        if first is not body[0]:
            indent = module.indentation(first)[: -len(unit)]
            edits.append(_header(module, first, indent, module.source(node)))
    for line in range(scope.lineno + 1, end_line(body[-1]) + 1):
        if line not in stays:
            edits += layout.dedent_edits(module, line, line, unit)
    return edits


def around(module: ModuleFacts, kept: Sequence[ast.stmt], text: str) -> list[Edit]:
    """Put some statements, at any depth, under a mode."""
    edits = []
    for first in _run_starts(module, kept):
        edits.append(_header(module, first, module.indentation(first), text))
    for statement in kept:
        start = _first_line(module, statement)
        edits += layout.indent_edits(module, start, end_line(statement), module.indent_unit)
    return edits


def _header(module: ModuleFacts, statement: ast.stmt, indent: str, text: str) -> Edit:
    offset = module.line_starts[_first_line(module, statement) - 1]
    return Edit(offset, offset, f"{indent}with {text}:{module.newline}")


def _first_line(module: ModuleFacts, statement: ast.stmt) -> int:
    """The first line of a statement and the comments right above it."""
    return with_comments(module, statement.lineno)


def _run_starts(module: ModuleFacts, kept: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The first of each run of statements that follow one another in a block."""
    first = []
    for statement in kept:
        block = module.block(statement)
        i = block.index(statement)
        if i == 0 or block[i - 1] not in kept:
            first.append(statement)
    return first


# -- modes ----------------------------------------------------------------------------------------


def as_context(module: ModuleFacts, scope: Scope) -> str | None:
    """What puts statements under the mode of a decorator: an own one wraps functions alone."""
    called = scope.node.func if isinstance(scope.node, ast.Call) else scope.node
    names = [target.name for target in module.resolve(called)]
    if names and all(name.startswith("torch.") for name in names):
        return module.source(scope.node) + "()" * (called is scope.node)
    torch = layout.bound_at_top(module, "torch")
    arguments = "False" if scope.mode == "set_grad_enabled" else ""
    return f"{torch}.{scope.mode}({arguments})" if torch is not None else None


def as_no_grad(module: ModuleFacts, node: ast.expr, decorated: bool = False) -> list[Edit]:
    """``torch.no_grad()`` in place of an ``inference_mode``."""
    call = node.func if isinstance(node, ast.Call) else node
    edits = []
    if isinstance(call, ast.Attribute):
        text = module.source(call.value) + ".no_grad"
    else:
        name = layout.bound_at_top(module, "torch.no_grad")
        torch = layout.bound_at_top(module, "torch")
        if name is None and torch is None:
            edits.append(layout.import_edit(module, "import torch"))
        text = name or f"{torch or 'torch'}.no_grad"
    if isinstance(node, ast.Call) or decorated:
        text += "()"
    return [*edits, Edit(module.start(node), module.end(node), text)]
