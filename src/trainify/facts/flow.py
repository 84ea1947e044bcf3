"""Where the local names of one function get their values, and who reads them afterwards.

The questions are those of functionalization: may this buffer be rebound instead of written?  Does
another name look at the same storage?  Answers are conservative: "may alias" and "may be read".
"""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .names import last_name, parameters, passed
from .views import is_allocation, is_display, is_new, is_view, looked_at, view_of
from .walk import children, walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


@dataclass(frozen=True)
class Definition:
    """One place that gives a local name its value; ``value`` is None where it is not a plain one.

    ``index`` is the position in a tuple target (``q, k = f()``), else None.
    """

    name: str
    statement: ast.stmt | None
    value: ast.expr | None = None
    index: int | None = None

    @property
    def is_parameter(self) -> bool:
        return self.statement is None


def _views_itself(definition: Definition) -> bool:
    """``x = x.view(-1)``, after which the name still has the storage that it had."""
    return definition.index is None and any(
        view.base == definition.name for view in looked_at(definition.value)
    )


class FunctionFlow:
    """Definitions and uses of the local names of one function (or of a module's top level)."""

    def __init__(self, module: ModuleFacts, function: FunctionNode | ast.Module) -> None:
        self.now_in(module)
        self.function = function
        self._definitions: dict[ast.stmt, tuple[list[Definition], list[Definition]]] = {}
        self._reaching: dict[tuple[str, ast.stmt], frozenset[Definition]] = {}

    def now_in(self, module: ModuleFacts) -> None:
        """Belong to a file, or to a newer text of it, in which the function is as it was."""
        # Without a cycle, a file's facts are freed as soon as the file is done.
        self.module: ModuleFacts = weakref.proxy(module)

    # -- tables ---------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        if isinstance(self.function, ast.Module):
            return ()
        return tuple(a.arg for a in parameters(self.function.args))

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """Every name that occurs in the function, so that a new one can be told apart."""
        names = {n.id for n in walk(self.function) if isinstance(n, ast.Name)}
        names |= {n.arg for n in walk(self.function) if isinstance(n, ast.arg)}
        return frozenset(names)

    def definitions_in(self, statement: ast.stmt) -> tuple[list[Definition], list[Definition]]:
        """Names that a statement surely defines, and those that it may define."""
        known = self._definitions.get(statement)
        if known is None:
            known = self._definitions[statement] = self._find_definitions(statement)
        return known

    def _find_definitions(self, statement: ast.stmt) -> tuple[list[Definition], list[Definition]]:
        sure, maybe = self._walruses(statement)
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                sure += _targets(target, statement.value, statement)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            sure += _targets(statement.target, statement.value, statement)
        elif isinstance(statement, ast.AugAssign):
            pass  # x += y writes into x's storage; the name keeps it
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            sure.append(Definition(statement.name, statement))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                sure.append(Definition((alias.asname or alias.name).partition(".")[0], statement))
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                if item.optional_vars is not None:
                    sure += _targets(item.optional_vars, None, statement)
            for inner in statement.body:
                s, m = self.definitions_in(inner)
                sure += s
                maybe += m
        else:
            if isinstance(statement, (ast.For, ast.AsyncFor)):
                maybe += _targets(statement.target, None, statement)
            for block in _blocks(statement):
                for inner in block:
                    s, m = self.definitions_in(inner)
                    maybe += s + m
        return sure, maybe

    def _walruses(self, statement: ast.stmt) -> tuple[list[Definition], list[Definition]]:
        """What ``(y := f(x))`` defines in a statement, blocks left out: surely, and maybe."""
        sure: list[Definition] = []
        maybe: list[Definition] = []
        if not self.module.has_walrus or isinstance(statement, _DEFINITIONS):
            return sure, maybe
        pending: list[tuple[ast.AST, bool]] = [
            (child, False)
            for child in children(statement)
            if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
        ]
        for node, depends in pending:  # grows meanwhile
            if isinstance(node, ast.NamedExpr):
                made = Definition(node.target.id, statement, node.value)
                (maybe if depends else sure).append(made)
            if not isinstance(node, ast.Lambda):
                depends = depends or isinstance(node, (ast.BoolOp, ast.IfExp, ast.comprehension))
                depends = depends or isinstance(node, _COMPREHENSIONS)
                pending += [(child, depends) for child in children(node)]
        return sure, maybe

    def reaching(self, name: str, statement: ast.stmt) -> frozenset[Definition]:
        """The definitions of ``name`` that may be the current one when ``statement`` starts."""
        key = name, statement
        if key not in self._reaching:
            self._reaching[key] = self._find_reaching(name, statement)
        return self._reaching[key]

    def _find_reaching(self, name: str, statement: ast.stmt) -> frozenset[Definition]:
        found: set[Definition] = set()
        current: ast.AST = statement
        while True:
            assert isinstance(current, (ast.stmt, ast.ExceptHandler, ast.match_case))
            block = self._siblings(current)
            for previous in reversed(block[: block.index(current)]) if block else ():
                assert isinstance(previous, ast.stmt)
                left, always = self._left_by(previous, name)
                found.update(left)
                if always:
                    return frozenset(found)
            parent = self.module.parent(current)
            if parent is None or parent is self.function:
                break
            sure, maybe = self._walruses(parent) if isinstance(parent, ast.stmt) else ([], [])
            found.update(d for d in maybe if d.name == name)
            if any(d.name == name for d in sure):
                return frozenset([*found, *(d for d in sure if d.name == name)])
            if isinstance(parent, (ast.For, ast.AsyncFor)) and current in parent.body:
                turns = [d for d in _targets(parent.target, None, parent) if d.name == name]
                if turns:  # each turn begins with it, whatever the last one made
                    return frozenset([*found, *turns])
            if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)):
                _, maybe = self.definitions_in(parent)
                found.update(d for d in maybe if d.name == name)
            elif isinstance(parent, (ast.With, ast.AsyncWith)):
                for item in parent.items:
                    for d in (
                        _targets(item.optional_vars, None, parent) if item.optional_vars else ()
                    ):
                        if d.name == name:
                            return frozenset({*found, d})
            current = parent
        if name in self.parameters:
            found.add(Definition(name, None))
        return frozenset(found)

    def _left_by(self, statement: ast.stmt, name: str) -> tuple[list[Definition], bool]:
        """The definitions of a name that hold after a statement, and whether one always does.

        Of those that stand one after the other under a test that is the last.
        """
        sure, maybe = self.definitions_in(statement)
        hits = [d for d in sure if d.name == name]
        found = [d for d in maybe if d.name == name]
        if len(found) > 1 and isinstance(statement, ast.If):
            _, found = self._walruses(statement)
            found = [d for d in found if d.name == name]
            for block in (statement.body, statement.orelse):
                for inner in reversed(block):
                    left, always = self._left_by(inner, name)
                    found += left
                    if always:
                        break
        return [*found, *hits[-1:]], bool(hits)

    def _siblings(self, node: ast.AST) -> Sequence[ast.AST]:
        if not isinstance(node, ast.stmt):
            return ()
        parent = self.module.parent(node)
        for block in _blocks(parent) if parent is not None else ():
            if node in block:
                return block
        return ()

    def is_local(self, name: str) -> bool:
        """Whether the function itself binds a name: others belong to a scope around it."""
        if name in self.parameters:
            return True
        if isinstance(self.function, ast.Module):
            return True
        return name in self._bound and not any(
            name in node.names and self.function in self.module.ancestors(node)
            for node in self.module.declarations
        )

    @cached_property
    def _bound(self) -> frozenset[str]:
        """The names that statements of the function bind."""
        return frozenset(definition.name for definition in self._all)

    @property
    def _all(self) -> Iterator[Definition]:
        for statement in self.function.body:
            for definitions in self.definitions_in(statement):
                yield from definitions

    def all_definitions(self, name: str) -> list[Definition]:
        """Every definition of ``name`` that statements of the function make."""
        return [definition for definition in self._all if definition.name == name]

    def stored_before(self, name: str, statement: ast.stmt) -> str | None:
        """The statement before ``statement`` that keeps a reference to ``name`` somewhere else.

        A list, a dict, an attribute, a closure: whoever reads it later expects to see writes.
        """
        from .keepers import keeps

        for definition in self.reaching(name, statement):
            made = definition.statement
            if isinstance(made, ast.Assign) and len(made.targets) > 1:
                if not all(isinstance(t, ast.Name) for t in made.targets):
                    return self.module.source(made)
        for node in walk(self.function):
            if not isinstance(node, ast.stmt) or node is self.function or node is statement:
                continue
            if isinstance(node, COMPOUND) or not self._runs_before(node, statement):
                continue
            stored = stores(node, name) or keeps(self.module, node, name)
            if stored and self._same_reaching(name, node, statement):
                if self._made_since(name, node, statement):
                    continue
                return " ".join(self.module.source(node).split())
        return None

    def _made_since(self, name: str, stored: ast.stmt, statement: ast.stmt) -> bool:
        """Whether a later statement of a loop stored what an earlier turn had made."""
        if stored.lineno <= statement.lineno:
            return False
        around = list(self.module.ancestors(statement))
        shared = set(self.module.ancestors(stored))
        loop = next((a for a in around if isinstance(a, _LOOPS) and a in shared), None)
        return loop is not None and all(
            isinstance(made := definition.statement, (ast.Assign, ast.AnnAssign))
            and is_allocation(definition.value)
            and made.lineno < statement.lineno
            and loop in self.module.ancestors(made)
            and any(s is statement or s in around for s in self.module.block(made))
            for definition in self.reaching(name, statement)
        )

    def _runs_before(self, first: ast.stmt, last: ast.stmt) -> bool:
        if (first.lineno, first.col_offset) < (last.lineno, last.col_offset):
            return True
        return any(  # the next turn of a loop
            isinstance(a, (ast.For, ast.AsyncFor, ast.While)) and a in self.module.ancestors(first)
            for a in self.module.ancestors(last)
        )

    def _same_reaching(self, name: str, first: ast.stmt, last: ast.stmt) -> bool:
        sure, _ = self.definitions_in(first)
        if any(d.name == name for d in sure):
            return True
        return bool(self.reaching(name, first) & self.reaching(name, last))

    def written_later(self, name: str, statement: ast.stmt) -> str | None:
        """A later statement that writes in place into what ``name`` is now: ``x.add_(y)``."""
        for node in walk(self.function):
            if not isinstance(node, ast.stmt) or isinstance(node, COMPOUND) or node is statement:
                continue
            if node.lineno <= statement.lineno or not _writes_into(node, name):
                continue
            if self.reaching(name, node) & self.reaching(name, statement):
                return " ".join(self.module.source(node).split())
        return None

    # -- uses -----------------------------------------------------------------------------------

    def read_after(self, name: str, statement: ast.stmt) -> bool:
        """Whether the value that ``name`` has when ``statement`` ends may be read later."""
        current: ast.AST = statement
        while True:
            block = self._siblings(current)
            for later in block[block.index(current) + 1 :] if block else ():
                assert isinstance(later, ast.stmt)
                verdict = self._reads(later, name)
                if verdict is not None:
                    return verdict
            parent = self.module.parent(current)
            if parent is None or parent is self.function:
                return self._read_by_functions(name)
            if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)):
                verdict = self._reads_block(parent.body, name)
                if verdict is None and isinstance(parent, ast.While) and _loads(parent.test, name):
                    verdict = True
                if verdict:
                    return True
            current = parent

    def _read_by_functions(self, name: str) -> bool:
        """Whether functions read a name of the module's top level."""
        return isinstance(self.function, ast.Module) and any(
            _loads(function, name) for function in self.module.functions
        )

    def _reads_block(self, block: Sequence[ast.stmt], name: str) -> bool | None:
        for statement in block:
            verdict = self._reads(statement, name)
            if verdict is not None:
                return verdict
        return None

    def _reads(self, statement: ast.stmt, name: str) -> bool | None:
        """True: reads it.  False: gives it up (new value, or leaves).  None: neither."""
        if _loads(statement, name):
            return True
        sure, _ = self.definitions_in(statement)
        if any(d.name == name for d in sure):
            return False
        if isinstance(statement, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            # continue and break stay in the function: the enclosing loop answers for them
            return False if isinstance(statement, (ast.Return, ast.Raise)) else None
        return None

    def read_between(self, name: str, first: ast.stmt, last: ast.stmt) -> bool:
        """Whether statements of one block between two others mention ``name``."""
        block = self.module.block(first)
        if last not in block:
            return True
        between = block[block.index(first) + 1 : block.index(last)]
        return any(_mentions(statement, name) for statement in between)

    # -- storage --------------------------------------------------------------------------------

    def observers(self, name: str, statement: ast.stmt) -> frozenset[str]:
        """Other local names that may look at the storage of ``name`` when ``statement`` starts.

        Pieces of one tensor that do not overlap (``q, k, v = qkv.split(...)``) do not see each
        other; the tensor they were cut from sees all of them.
        """
        found: set[str] = set()
        pending = [name]
        while pending:
            current = pending.pop()
            around = self._bases(current, statement) | self._views(current, statement)
            for other in around | self._renamed(current, statement):
                if other == name or other in found:
                    continue
                if self._apart(name, other, statement):
                    continue
                found.add(other)
                pending.append(other)
        return frozenset(found)

    def _apart(self, a: str, b: str, statement: ast.stmt) -> bool:
        """Whether two names are, or look at, pieces that do not overlap."""
        return any(
            self._disjoint(x, y, statement)
            for x in self._within(a, statement)
            for y in self._within(b, statement)
        )

    def _within(self, name: str, statement: ast.stmt) -> list[str]:
        """``name``, and what it surely is a view of all or a part of, from the inside out."""
        found = [name]
        while len(found) < _MAX_VIEWS:
            definition = self.only_definition(found[-1], statement)
            views = looked_at(definition.value) if definition is not None else []
            if definition is None or len(views) != 1 or views[0].base in found:
                break
            if not self._same_value(views[0].base, definition, statement):
                break
            found.append(views[0].base)
        return found

    def _bases(self, name: str, statement: ast.stmt) -> set[str]:
        bases = set()
        for definition in self.reaching(name, statement):
            for view in looked_at(definition.value):
                if view.base != name and self._same_value(view.base, definition, statement):
                    bases.add(view.base)
            made = definition.statement
            if isinstance(made, ast.Assign) and len(made.targets) > 1 and definition.index is None:
                bases |= {  # h = y = value
                    t.id for t in made.targets if isinstance(t, ast.Name) and t.id != name
                }
            if isinstance(made, (ast.For, ast.AsyncFor)) and is_display(made.iter):
                bases |= {view.base for view in looked_at(made.iter) if view.base != name}
            if isinstance(definition.value, ast.NamedExpr):  # h = (y := value)
                other = definition.value.target.id
                if other != name and all(
                    d.statement is made for d in self.reaching(other, statement)
                ):
                    bases.add(other)
        return bases

    def _views(self, name: str, statement: ast.stmt) -> set[str]:
        return {
            other
            for other in self.identifiers
            if other != name and name in self._bases(other, statement)
        }

    def _renamed(self, name: str, statement: ast.stmt) -> set[str]:
        """What ``name`` looked at, or what looked at it, before one became a view of itself.

        ``x`` of ``a``, and ``a`` of ``x``, after ``a = x[:n]; x = x.view(-1)``.
        """
        found: set[str] = set()
        for base in self._own_views:
            for viewer in self.identifiers - {name} if base == name else {name}:
                if any(
                    any(view.base == base for view in looked_at(definition.value))
                    and self._keeps_storage(base, definition.statement, statement)
                    for definition in self.reaching(viewer, statement)
                ):
                    found.add(viewer if base == name else base)
        return found

    @cached_property
    def _own_views(self) -> frozenset[str]:
        """The names that somewhere become views of themselves: ``x = x.view(-1)``."""
        return frozenset(definition.name for definition in self._all if _views_itself(definition))

    def _keeps_storage(self, name: str, first: ast.stmt | None, last: ast.stmt) -> bool:
        """Whether ``name`` has become, by ``last``, a view of what it was at ``first``."""
        before = self.reaching(name, first) if first is not None else frozenset()
        seen: set[Definition] = set()
        pending = list(self.reaching(name, last) - before)
        while pending:
            definition = pending.pop()
            if definition in seen or definition.statement is None or not _views_itself(definition):
                continue
            seen.add(definition)
            earlier = self.reaching(name, definition.statement)
            if earlier & before:
                return True
            pending += earlier
        return False

    def is_steady(self, value: ast.AST, made: ast.stmt, later: ast.stmt) -> bool:
        """Whether the names in an expression still have, later on, the values that it read."""
        names = {n.id for n in walk(value) if isinstance(n, ast.Name)}
        return all(self.reaching(n, made) == self.reaching(n, later) for n in names)

    def _same_value(self, name: str, definition: Definition, statement: ast.stmt) -> bool:
        """Whether ``name`` still is at ``statement`` what it was when ``definition`` read it."""
        if definition.statement is None:
            return True
        if self.reaching(name, definition.statement) != self.reaching(name, statement):
            return False
        return not self._renewed(name, definition.statement, statement)

    def _renewed(self, name: str, made: ast.stmt, statement: ast.stmt) -> bool:
        """Whether ``name`` gets a new tensor on each way from one statement to another in a loop.

        There the same definitions reach both, and yet the value is that of another turn:
        ``r = h; h = norm(h)`` in one turn, ``add_norm(h, r)`` in the next.
        """
        around = list(self.module.ancestors(made))
        if not isinstance(made, (ast.Assign, ast.AnnAssign)):
            return False
        if not any(isinstance(each, _LOOPS) for each in around):
            return False
        current: ast.AST = made
        for parent in around:
            block = self._siblings(current)
            for each in block[block.index(current) + 1 :] if current in block else ():
                assert isinstance(each, ast.stmt)
                if self._is_within(statement, each) or _jumps(each):
                    return False
                if self._gets_new(each, name):
                    return True
            if isinstance(parent, _LOOPS) and current in parent.body:
                return any(
                    self._gets_new(each, name)
                    for each in self._before(statement, parent.body)
                    if not _jumps(each)
                )
            if not isinstance(parent, (ast.If, ast.With)):
                return False
            current = parent
        return False

    def _before(self, statement: ast.stmt, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements of a block before the one that another is, or stands in."""
        for i, each in enumerate(block):
            if self._is_within(statement, each):
                return list(block[:i])
        return []

    def _is_within(self, statement: ast.stmt, other: ast.stmt) -> bool:
        return statement is other or other in self.module.ancestors(statement)

    def _gets_new(self, statement: ast.stmt, name: str) -> bool:
        sure, _ = self.definitions_in(statement)
        values = [d.value for d in sure if d.name == name]
        return bool(values) and values[-1] is not None and is_new(values[-1])

    def _disjoint(self, a: str, b: str, statement: ast.stmt) -> bool:
        """Whether two names hold pieces that do not overlap, whatever they were last set to."""
        left, right = self.reaching(a, statement), self.reaching(b, statement)
        if not left or not right or a == b:
            return False
        if a in self._above(b, statement) or b in self._above(a, statement):
            return False
        return all(self._separate(x, y, statement) for x in left for y in right)

    def _separate(self, x: Definition, y: Definition, statement: ast.stmt) -> bool:
        if x.value is None or y.value is None:
            return False
        if x.statement is y.statement:
            return x.index is not None and y.index is not None and x.index != y.index
        if is_new(x.value) or is_new(y.value):
            return True
        if not self._mean_the_same(x, y):
            return False
        others = [d.value for d in self._slices(statement) if self._mean_the_same(d, x)]
        return _separate_slices(x.value, y.value, others)

    def _mean_the_same(self, x: Definition, y: Definition) -> bool:
        """Whether the names in two values stand for the same where either was computed."""
        values = [each.value for each in (x, y) if each.value is not None]
        if x.statement is None or y.statement is None:
            return False
        return all(self.is_steady(value, x.statement, y.statement) for value in values)

    def _above(self, name: str, statement: ast.stmt) -> set[str]:
        """What a name may look at, at any depth."""
        found: set[str] = set()
        pending = [name]
        while pending:
            more = self._bases(pending.pop(), statement) - found
            found |= more
            pending += more
        return found

    def _slices(self, statement: ast.stmt) -> Iterator[Definition]:
        for name in self.identifiers:
            for definition in self.reaching(name, statement):
                if isinstance(definition.value, ast.Subscript):
                    yield definition

    def only_definition(self, name: str, statement: ast.stmt) -> Definition | None:
        """The definition of ``name`` at ``statement`` when there is exactly one."""
        reaching = self.reaching(name, statement)
        return next(iter(reaching)) if len(reaching) == 1 else None


_MAX_VIEWS = 6
"""So many views of views are followed."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPOUND = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match),
    *(ast.ClassDef,),
)
_KEEPERS = frozenset(
    "append extend insert add put setdefault update appendleft push register_buffer dict list "
    "tuple set partial SimpleNamespace setattr deque".split()
)
_LAZY = frozenset("iter zip enumerate reversed map filter chain cycle islice starmap".split())
_CLASS = re.compile(r"[A-Z]\w*[a-z]")


def _jumps(statement: ast.stmt) -> bool:
    """Whether a turn of a loop may end in a statement."""
    return any(isinstance(node, (ast.Continue, ast.Break)) for node in walk(statement))


def stores(statement: ast.stmt, name: str) -> bool:
    """Whether a statement puts ``name`` itself (not a value computed from it) somewhere."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return _loads(statement, name)
    if isinstance(statement, (ast.Return, ast.Raise, ast.Delete)):
        return False
    if _is_lazy(statement, name):
        return True
    for node in walk(statement):
        if isinstance(node, ast.Lambda):
            if _loads(node, name):
                return True
        elif isinstance(node, ast.Call):
            keeper = last_name(node.func)
            of_torch = ast.unparse(node.func) == f"torch.{keeper}"  # no set's add
            if (keeper in _KEEPERS and not of_torch) or _CLASS.match(keeper):
                if any(is_view(argument, name) for argument in passed(node)):
                    return True
        elif isinstance(node, ast.Yield):
            if any(view.base == name for view in looked_at(node.value)):
                return True
        elif isinstance(node, (ast.List, ast.Dict, ast.Set)):
            elements = node.values if isinstance(node, ast.Dict) else node.elts
            if any(e is not None and is_view(e, name) for e in elements):
                return True
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        value = statement.value
        elements = value.elts if isinstance(value, ast.Tuple) else [value]
        if any(is_view(e, name) for e in elements):
            if any(not isinstance(t, (ast.Name, ast.Tuple)) for t in targets):
                return True
            if any(isinstance(t, ast.Tuple) and _keeps(t, value, name) for t in targets):
                return True
            return isinstance(value, ast.Tuple) and any(isinstance(t, ast.Name) for t in targets)
    return False


def _is_lazy(statement: ast.stmt, name: str) -> bool:
    """``later = (f(x) for x in (h, r))``: what looks at a tensor when somebody asks for more."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return False
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
        return False  # q, k = map(f, (q, k))
    value = statement.value
    if isinstance(value, ast.GeneratorExp):
        return _loads(value, name)
    return (
        isinstance(value, ast.Call)
        and last_name(value.func) in _LAZY
        and any(
            is_view(part, name)
            for argument in passed(value)
            for part in (argument.elts if isinstance(argument, ast.Tuple) else [argument])
        )
    )


def _keeps(target: ast.Tuple, value: ast.expr, name: str) -> bool:
    """Whether ``self.a, b = x, y`` puts ``name`` where others find it."""
    values = value.elts if isinstance(value, ast.Tuple) else []
    if len(values) != len(target.elts):
        return any(not isinstance(t, ast.Name) for t in target.elts)
    pairs = zip(target.elts, values, strict=True)
    return any(is_view(v, name) and not isinstance(t, ast.Name) for t, v in pairs)


def _writes_into(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.AugAssign):
        target: ast.expr = statement.target
        while isinstance(target, ast.Subscript):
            target = target.value
        return isinstance(target, ast.Name) and target.id == name
    if isinstance(statement, ast.Assign):
        return any(
            isinstance(t, ast.Subscript) and (v := view_of(t)) is not None and v.base == name
            for t in statement.targets
        )
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr.endswith("_"):
            view = view_of(function.value)
            return view is not None and view.base == name and not function.attr.endswith("__")
    return False


def _targets(target: ast.expr, value: ast.expr | None, statement: ast.stmt) -> list[Definition]:
    if isinstance(target, ast.Name):
        return [Definition(target.id, statement, value)]
    if isinstance(target, ast.Starred):
        return _targets(target.value, None, statement)
    if isinstance(target, (ast.Tuple, ast.List)):
        found: list[Definition] = []
        for i, element in enumerate(target.elts):
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                found += _targets(element, value.elts[i], statement)
            elif isinstance(element, ast.Name):
                found.append(Definition(element.id, statement, value, i))
            else:
                found += _targets(element, None, statement)
        return found
    return []


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for handler in getattr(node, "handlers", ()):
        yield handler.body
    for case in getattr(node, "cases", ()):
        yield case.body


def _loads(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Store)
        for n in walk(node)
    ) or (
        isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == name
    )


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in walk(node))


def _separate_slices(a: ast.expr, b: ast.expr, others: Sequence[ast.expr | None]) -> bool:
    """Whether two slices of one tensor are known to be apart: ``x[..., :n]`` and ``x[..., n:]``."""
    spans = [s for s in (_span(node) for node in (a, b, *others) if node is not None) if s]
    left, right = _span(a), _span(b)
    if left is None or right is None or left[0] != right[0]:
        return False

    def precedes(first: tuple[str, str, str], last: tuple[str, str, str]) -> bool:
        reached, pending = set(), [first[2]]
        while pending:
            bound = pending.pop()
            if not bound or bound in reached:
                continue
            reached.add(bound)
            if bound == last[1]:
                return True
            pending += [s[2] for s in spans if s[0] == first[0] and s[1] == bound]
        return False

    return precedes(left, right) or precedes(right, left)


def _span(node: ast.expr) -> tuple[str, str, str] | None:
    """(everything but the bounds, lower, upper) of a slice along one dimension."""
    if not isinstance(node, ast.Subscript):
        return None
    index = node.slice
    parts = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    cuts = [i for i, p in enumerate(parts) if isinstance(p, ast.Slice) and (p.lower or p.upper)]
    if len(cuts) != 1:
        return None
    cut = parts[cuts[0]]
    assert isinstance(cut, ast.Slice)
    if cut.step is not None:
        return None
    rest = [ast.dump(p) for i, p in enumerate(parts) if i != cuts[0]]
    key = f"{ast.dump(node.value)}|{cuts[0]}|{rest}"
    lower = ast.unparse(cut.lower) if cut.lower else ""
    return key, lower, ast.unparse(cut.upper) if cut.upper else ""
