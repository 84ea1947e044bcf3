"""Putting differentiable statements beside the author's own, or in their place.

Under strategy ``flag`` a run of statements becomes one ``if``: the differentiable form where a
gradient is wanted, the author's lines otherwise.  Under ``replace`` each statement is exchanged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.layers import training_flag
from ..facts.walk import walk
from ..findings import Edit, Fix, Safety
from . import layout
from .layout import CannotPlace as CannotPlace
from .unneeded import unneeded

if TYPE_CHECKING:
    from ..releases import Release
    from .specialize import Library, Use

_MAX_SPELLED_OUT = 3


@dataclass(frozen=True)
class Exchange:
    """A call with the expression that takes its place, and what it wants where it stands."""

    call: ast.Call
    text: str
    wants: list[str] | None = None
    optional: frozenset[str] = frozenset()


@dataclass(eq=False)
class Change:
    """One statement, or a run of them, with its differentiable form.

    ``lines`` take the place of ``statements`` (which follow each other); ``dropped`` are earlier
    statements, not needed by the new form.  ``wants`` are tensors of which one requires grad when a
    gradient is wanted, None when that cannot be spelled out; those in ``optional`` may be None, and
    those in ``overwritten`` are written by what stood there.  ``helpers`` are reference functions
    that the lines call.  ``copies`` are those of ``look_at`` for :attr:`~.Fix.only_copies`.
    """

    statements: list[ast.stmt]
    lines: list[str]
    dropped: list[ast.stmt] = field(default_factory=list)
    wants: list[str] | None = None
    optional: frozenset[str] = frozenset()
    overwritten: frozenset[str] = frozenset()
    helpers: list[str] = field(default_factory=list)
    look_at: list[str] = field(default_factory=list)
    copies: frozenset[str] = frozenset()
    title: str = ""
    expressions: list[Exchange] = field(default_factory=list)
    """Calls exchanged where they stand, for a statement that cannot be doubled (``if f(x):``), or
    that only makes a function of which the calls are run later (``norm = lambda x: f(x)``)."""

    @property
    def first(self) -> ast.stmt:
        return self.statements[0]

    @property
    def assigned(self) -> set[str]:
        text = "\n".join(line for line in self.lines)
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return set()
        return {
            n.id for n in walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }


class Vocabulary:
    """What a file calls torch, its functional module, and helper functions; adds what is missing.

    ``uses`` are all the places of the file in which an equivalent is to be written: they share
    their helpers.  ``modules`` are those that the equivalents name in full, of the user's own.
    ``releases`` are those of libraries that the file is written for.
    """

    def __init__(
        self,
        module: ModuleFacts,
        uses: Sequence[Use] = (),
        modules: Iterable[str] = (),
        releases: Sequence[Release] = (),
    ) -> None:
        self.module = module
        self.releases = releases
        self.uses = uses
        self.modules = tuple(dict.fromkeys(modules))

    @cached_property
    def torch(self) -> str:
        return layout.bound_at_top(self.module, "torch") or "torch"

    @cached_property
    def functional(self) -> str:
        known = layout.bound_at_top(self.module, "torch.nn.functional")
        if known:
            return known
        return f"{self.torch}.nn.functional" if layout.is_taken(self.module, "F") else "F"

    @cached_property
    def library(self) -> Library:
        """The helpers that the uses need: those that the file has from before, where they serve."""
        from .older_torch import lacks
        from .specialize import library

        uses = tuple(dict.fromkeys(self.uses))
        lacking = (*lacks(self.releases), *self._python_lacks)
        fresh = library(uses, lacking=lacking)
        there = layout.functions_at_top(self.module)
        keep = tuple(
            (name, frozenset(a.arg for a in there[name].args.args))
            for name in fresh.functions
            if name in there
        )
        if not keep:
            return fresh
        candidates = [
            fresh,
            library(uses, keep, lacking=lacking),
            library(uses, keep, sure=False, lacking=lacking),
        ]
        return max(candidates, key=lambda c: sum(self._names(c)[n] == n for n in c.functions))

    @cached_property
    def helper_names(self) -> dict[str, str]:
        """The name for each helper: its own, unless the file uses that for something else."""
        return self._names(self.library) if self.uses else {}

    def _names(self, of: Library) -> dict[str, str]:
        names: dict[str, str] = {}
        for helper in of.functions:
            name = helper
            while layout.is_taken(self.module, name):
                if self._is_there(of, helper, {**names, helper: name}):
                    break
                name += "_native"
            names[helper] = name
        return names

    def _is_there(self, of: Library, helper: str, names: dict[str, str]) -> bool:
        existing = layout.functions_at_top(self.module).get(names[helper])
        if existing is None:
            return False
        wanted = ast.parse(self._helper_text(of, helper, names)).body[0]
        return ast.dump(existing) == ast.dump(wanted)

    def _helper_text(self, of: Library, helper: str, names: dict[str, str]) -> str:
        from .specialize import helper_text

        evaluated = "from __future__ import annotations" not in self.module.text
        return helper_text(
            of.functions[helper],
            torch=self.torch,
            functional=self.functional,
            helper_names=tuple(names.items()),
            unit=self.module.indent_unit,
            width=layout.width(self.module),
            older=tuple(self._typing.items()),
            lacking=self._python_lacks if evaluated else (),
        )

    @cached_property
    def _python_lacks(self) -> tuple[str, ...]:
        from .older_python import lacks

        return lacks(self.releases)

    @cached_property
    def _typing(self) -> dict[str, str]:
        """What the file writes types with that are older than ``X | None`` and ``tuple[X]``."""
        found = {}
        for name, newer in (
            ("Optional", r"\| None\b|from __future__ import annotations"),
            ("Tuple", r"\btuple\["),
        ):
            own = layout.bound_at_top(self.module, f"typing.{name}")
            if own and not re.search(newer, self.module.text):
                found[name] = own
        return found

    def refuse_shadowed(self, statement: ast.stmt, used: str) -> None:
        """Raise :class:`CannotPlace` where ``torch`` or ``F`` means something else."""
        for name, qualified in ((self.torch, "torch"), (self.functional, "torch.nn.functional")):
            if not self._uses(used, name):
                continue
            root = name.partition(".")[0]
            wanted = qualified if root == name else "torch"
            for scope in self.module.ancestors(statement):
                if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
                    bindings = self.module.names.bindings(scope).get(root, ())
                    if any(binding.qualified != wanted for binding in bindings):
                        raise CannotPlace(f"`{root}` means something else here")

    def support(self, lines: Sequence[str], helpers: Sequence[str]) -> list[Edit]:
        """The imports and helper functions that new lines need and the file does not have."""
        names = self.helper_names
        texts = [
            self._helper_text(self.library, helper, names)
            for helper in helpers
            if not self._is_there(self.library, helper, names)
        ]
        used = "\n".join([*lines, *texts])
        edits: list[Edit] = []
        if self._uses(used, self.torch) and not layout.bound_at_top(self.module, "torch"):
            edits.append(layout.import_edit(self.module, "import torch"))
        known = layout.bound_at_top(self.module, "torch.nn.functional")
        if self.functional == "F" and self._uses(used, "F") and not known:
            edits.append(layout.import_edit(self.module, "import torch.nn.functional as F"))
        edits += [
            layout.import_edit(self.module, f"import {name}")
            for name in self.modules
            if self._uses(used, name) and not layout.imports(self.module, name)
        ]
        if edits:
            edits += layout.import_gap(self.module)
        edits += [layout.helper_edit(self.module, text) for text in texts]
        return edits

    @staticmethod
    def _uses(text: str, name: str) -> bool:
        return re.search(rf"(?<![\w.]){re.escape(name)}\.", text) is not None


def condition(module: ModuleFacts, changes: Sequence[Change], flag: str) -> str:
    """The test for "a gradient is wanted" that covers a run of changes.

    What requires a gradient is not overwritten, whether gradients are on or off: a reentrant
    checkpoint runs with gradients off first, and computes from the same tensors again.
    """
    training = training_flag(module, module.function(changes[0].first))
    if flag == "training" and training is not None:
        return training
    enabled = f"{layout.bound_at_top(module, 'torch') or 'torch'}.is_grad_enabled()"
    wants: dict[str, bool] = {}
    overwritten: set[str] = set()
    assigned: set[str] = set()
    for change in changes:
        if change.wants is None:
            return enabled
        for name in change.wants:
            if name.partition(".")[0] not in assigned:
                wants[name] = wants.get(name, True) and name in change.optional
                overwritten |= {name} & change.overwritten
        assigned |= change.assigned
    if not wants:
        return enabled
    others = {name: may_be_none for name, may_be_none in wants.items() if name not in overwritten}
    always = _any_requires_grad({n: wants[n] for n in wants if n in overwritten})
    test = _any_requires_grad(others)
    if not always:
        return f"{enabled} and {_bracketed(test)}"
    if not others:
        return always
    return f"{always} or ({enabled} and {_bracketed(test)})"


def _any_requires_grad(wants: Mapping[str, bool]) -> str:
    """Whether one of these tensors requires a gradient; each with whether it may be None."""
    tests = [_requires_grad(name, may_be_none) for name, may_be_none in wants.items()]
    if len(tests) > _MAX_SPELLED_OUT:
        each = _requires_grad("t", any(wants.values()))
        return f"any({each} for t in ({', '.join(wants)}))"
    if len(tests) == 1:
        return tests[0]
    return " or ".join(f"({test})" if " and " in test else test for test in tests)


def _bracketed(test: str) -> str:
    return f"({test})" if " or " in test else test


def _requires_grad(name: str, may_be_none: bool) -> str:
    test = f"{name}.requires_grad"
    return f"{name} is not None and {test}" if may_be_none else test


def group(module: ModuleFacts, changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Runs of changes that stand next to each other, to share one condition."""
    run: list[Change] = []
    for change in sorted(changes, key=lambda c: module.start(c.first)):
        if run and _adjacent(module, run, change):
            run.append(change)
        else:
            if run:
                yield run
            run = [change]
    if run:
        yield run


def _adjacent(module: ModuleFacts, run: Sequence[Change], change: Change) -> bool:
    block = module.block(run[-1].first)
    if change.first not in block or change.expressions or run[-1].expressions:
        return False
    between = block[block.index(run[-1].statements[-1]) + 1 : block.index(change.first)]
    return all(statement in change.dropped for statement in between)


def flag_edit(module: ModuleFacts, changes: Sequence[Change], flag: str) -> Edit:
    """One condition around a run of changes; raises :class:`CannotPlace` where it cannot stand."""
    block = module.block(changes[0].first)
    start = block.index(changes[0].first)
    dropped = [statement for change in changes for statement in change.dropped]
    while start > 0 and block[start - 1] in dropped:
        start -= 1
    first, last = block[start], changes[-1].statements[-1]
    room = layout.room(module, first, last)
    ind, unit, newline = room.indentation, module.indent_unit, module.newline
    limit = layout.width(module)
    lines = layout.fit(f"if {condition(module, changes, flag)}:", ind, unit, limit)
    for change in changes:
        for line in change.lines:
            lines += layout.fit(line, ind + unit, unit, limit)
    returns = isinstance(last, ast.Return) and len(changes[-1].statements) == 1
    shared = room.opening or room.closing
    if returns and not shared:
        return Edit(room.begin, room.begin, newline.join(lines) + newline)
    assert last.end_lineno is not None
    if returns:
        lines.append(layout.moved(module, first, last, room, ind))
    elif shared:
        lines += [f"{ind}else:", layout.moved(module, first, last, room, ind + unit)]
    else:
        lines += [f"{ind}else:", layout.indent(module, first.lineno, last.end_lineno, unit)]
    return Edit(room.begin, room.end, room.opening + newline.join(lines) + room.closing)


def replace_edits(module: ModuleFacts, changes: Sequence[Change]) -> list[Edit]:
    """Each statement exchanged for its differentiable form; what it made useless is deleted."""
    edits: list[Edit] = []
    limit, unit, newline = layout.width(module), module.indent_unit, module.newline
    absorbed: list[ast.stmt] = []
    for change in changes:
        first, last = change.first, change.statements[-1]
        block = module.block(first)
        while first is not block[0] and _goes_before(block[block.index(first) - 1], change, first):
            first = block[block.index(first) - 1]
            absorbed.append(first)
        room = layout.room(module, first, last)
        lines: list[str] = []
        for line in change.lines:
            lines += layout.fit(line, room.indentation, unit, limit)
        begin, end, text = module.start(first), module.end(last), newline.join(lines).lstrip(" \t")
        if (room.opening or room.closing) and not _fits(module, first, text, limit):
            one = "; ".join(change.lines)
            rest = layout.line_end(module, last) - end
            alone = not room.closing and first is block[0]
            if not alone and _fits(module, first, one, limit - rest) and _are_simple(change.lines):
                text = one
            else:
                begin, text = room.begin, room.opening + newline.join(lines)
                if room.closing:
                    end, text = room.end, text + room.closing
        edits.append(Edit(begin, end, text))
    dropped = [statement for change in changes for statement in change.dropped]
    gone = [*(s for change in changes for s in change.statements), *dropped]
    left = unneeded(module, gone, [line for change in changes for line in change.lines])
    edits += _deletions(module, [each for each in [*dropped, *left] if each not in absorbed])
    in_order = sorted(edits, key=lambda edit: edit.start)
    if any(after.start < before.end for before, after in pairwise(in_order)):
        raise CannotPlace("it shares its line with other code")
    return edits


def _fits(module: ModuleFacts, statement: ast.stmt, text: str, limit: int) -> bool:
    """Whether a text fits on the line where a statement begins."""
    before = module.start(statement) - module.line_starts[statement.lineno - 1]
    return "\n" not in text and "\r" not in text and before + len(text) <= limit


def _goes_before(statement: ast.stmt, change: Change, first: ast.stmt) -> bool:
    """Whether a statement is on the line of a change, and goes with it: the buffer it fills."""
    return statement in change.dropped and statement.end_lineno == first.lineno


def _are_simple(lines: Sequence[str]) -> bool:
    """Whether statements may follow one another on a line."""
    return not any(hasattr(each, "body") for each in ast.parse("\n".join(lines)).body)


def _deletions(module: ModuleFacts, statements: Sequence[ast.stmt]) -> list[Edit]:
    """Delete statements, and with them the blank lines that would open a block or be doubled."""
    edits: list[Edit] = []
    gone: set[int] = set()
    for statement in sorted(statements, key=module.start):
        edit = _deletion(module, statement)
        first = module.position(edit.start)[0]
        if edit.start == module.line_starts[first - 1]:
            stop = module.position(edit.end)[0]
            above = first - 1
            while above in gone:
                above -= 1
            if _opens_block(module, above):
                while stop < len(module.line_starts) and not module.line_text(stop).strip():
                    stop += 1
            gone.update(range(first, stop))
            edit = Edit(edit.start, max(edit.end, module.line_starts[stop - 1]), "")
        edits.append(edit)
    return edits


def _opens_block(module: ModuleFacts, line: int) -> bool:
    """Whether a line is blank, or the head of the block that begins below it."""
    text = module.line_text(line).strip() if line else ""
    return not text or (text.endswith(":") and not text.startswith("#"))


def _deletion(module: ModuleFacts, statement: ast.stmt) -> Edit:
    """Delete a statement with its line; a comment on the line stays, on a line of its own."""
    if not layout.owns_lines(module, statement):
        return _deletion_on_line(module, statement)
    end = layout.line_end(module, statement)
    if module.text[module.end(statement) : end].strip():
        rest = module.text[module.end(statement) : end]
        return Edit(module.start(statement), end - len(rest.lstrip()), "")
    begin = layout.line_start(module, statement)
    assert statement.end_lineno is not None
    following = statement.end_lineno
    stop = module.line_starts[following] if following < len(module.line_starts) else end
    return Edit(begin, stop, "")


def _deletion_on_line(module: ModuleFacts, statement: ast.stmt) -> Edit:
    """Delete a statement that others share the line with, and the semicolon."""
    room = layout.room(module, statement, statement)
    if room.closing:
        return Edit(module.start(statement), room.end, "")
    block = module.block(statement)
    if statement is block[0]:
        raise CannotPlace("it is all that stands behind a colon")
    return Edit(module.end(block[block.index(statement) - 1]), module.end(statement), "")


def _exchange(module: ModuleFacts, change: Change, flag: str | None) -> list[Edit]:
    """Exchange calls on the spot, under a conditional expression for strategy ``flag``."""
    edits = []
    for each in change.expressions:
        text, start = each.text, module.start(each.call)
        if flag is not None:
            asked = replace(change, wants=each.wants, optional=each.optional)
            text = f"({text} if {condition(module, [asked], flag)} else {module.source(each.call)})"
            line = module.position(start)[0]
            before = module.text[module.line_starts[line - 1] : start]
            if len(before) + len(text) > layout.width(module):
                text = _on_lines(text, before, module.indent_unit, module.newline)
        edits.append(Edit(start, module.end(each.call), text))
    return edits


def _on_lines(text: str, before: str, unit: str, newline: str) -> str:
    """A bracketed conditional expression with each of its parts on a line."""
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.IfExp)
    parts = [ast.get_source_segment(text, part) for part in (tree.body, tree.test, tree.orelse)]
    indentation = before[: len(before) - len(before.lstrip())]
    inner = newline + indentation + unit
    return f"({inner}{parts[0]}{inner}if {parts[1]}{inner}else {parts[2]}{newline}{indentation})"


def exchange_edits(module: ModuleFacts, changes: Sequence[Change]) -> list[Edit]:
    """Edits after which only the new form stands there."""
    if changes[0].expressions:
        return _exchange(module, changes[0], None)
    return replace_edits(module, changes)


def flag_edits(module: ModuleFacts, changes: Sequence[Change], flag: str) -> list[Edit]:
    """Edits after which the new form runs where a gradient is wanted, and else what stood there."""
    if changes[0].expressions:
        return _exchange(module, changes[0], flag)
    return [flag_edit(module, changes, flag)]


def new_text(changes: Sequence[Change]) -> list[str]:
    """What changes write."""
    lines = [line for change in changes for line in change.lines]
    return lines + [each.text for change in changes for each in change.expressions]


def insertion(offset: int, lines: Sequence[str], newline: str) -> Edit:
    """New lines before what stands at ``offset``."""
    return Edit(offset, offset, newline.join(lines))


def fix(changes: Sequence[Change], edits: Sequence[Edit], title: str) -> Fix:
    """The fix of these edits, as safe as the changes are; ``{}`` in the title are their titles."""
    look_at = dict.fromkeys(text for change in changes for text in change.look_at)
    names = ", ".join(dict.fromkeys(change.title for change in changes))
    safety = Safety.UNSAFE if look_at else Safety.SAFE
    copies = frozenset[str]().union(*(change.copies for change in changes))
    only_copies = bool(look_at) and copies.issuperset(look_at)
    return Fix(title.format(names), tuple(edits), safety, "; ".join(look_at), only_copies)


def fixes(
    module: ModuleFacts, vocabulary: Vocabulary, changes: Sequence[Change], flag: str
) -> dict[str, Fix]:
    """The fixes that run the differentiable form, by strategy; raises :class:`CannotPlace`."""
    helpers = list(dict.fromkeys(h for change in changes for h in change.helpers))
    asked = condition(module, changes, flag)
    when = "when training" if asked.endswith(".training") else "when a gradient is wanted"
    result: dict[str, Fix] = {}
    for strategy in ("flag", "replace"):
        if strategy == "replace":
            edits = exchange_edits(module, changes)
            lines = [edit.text for edit in edits]
            title = "Always use the differentiable {}"
        else:
            edits = flag_edits(module, changes, flag)
            lines = [*new_text(changes), asked]
            title = f"Use the differentiable {{}} {when}"
        vocabulary.refuse_shadowed(changes[0].first, "\n".join(lines))
        edits += vocabulary.support(lines, helpers)
        result[strategy] = fix(changes, edits, title)
    return result
