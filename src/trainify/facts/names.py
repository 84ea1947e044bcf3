"""What a name stands for: imports, scopes, aliases, attributes of ``self``.

A name can stand for several things (``try: import a as m / except ImportError: m = None``), so
:meth:`Names.resolve` gives every candidate.  Values that are not names of something (numbers,
tensors, results of calls) resolve to nothing.
"""

from __future__ import annotations

import ast
import builtins
import re
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from .walk import BLOCKS, walk

if TYPE_CHECKING:
    from .module import ModuleFacts

Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_BUILTINS = frozenset(dir(builtins))

_USUAL = {"torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional"}
_MAX_DEPTH = 12
_MAX_BASES = 4
_TRANSPARENT_CALLS = (
    "torch.compile",
    "torch.jit.script",
    "torch.no_grad",
    "torch.compiler.disable",
)
_BUILDER = re.compile(r"deepspeed\.[\w.]*Builder(\(\)\.load)?")
_EXTENSIONS = ("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline")


_LOOKS = ("get", "keys", "values", "items", "copy")
"""The methods of a dict that only read it."""

_BINDING = frozenset(
    {
        *(ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign),
        *(kind for kind, blocks in BLOCKS.items() if blocks),
    }
)
"""The kinds of statement that bind names, or hold others that do."""


class Target(NamedTuple):
    """One thing a name can stand for.

    ``name`` is the qualified name; ``args`` and ``keywords`` were bound by ``functools.partial``.
    Those that another file binds have no place: constants, and names for what is no constant.
    """

    name: str
    args: tuple[ast.expr, ...] = ()
    keywords: tuple[ast.keyword, ...] = ()

    @property
    def bound(self) -> list[ast.expr]:
        """All that is bound."""
        return [*self.args, *(keyword.value for keyword in self.keywords)]

    @property
    def bound_elsewhere(self) -> bool:
        """Whether another file bound something."""
        return any(node.end_lineno is None for node in self.bound)


class Binding(NamedTuple):
    """One place that binds a name in a scope.

    Exactly one of ``qualified`` (imports, definitions) and ``value`` (assignments) is set; neither
    is for parameters, loop variables and the like.  ``always`` says that nothing conditional
    stands around the place.
    """

    node: ast.AST
    qualified: str | None = None
    value: ast.expr | None = None
    always: bool = True


class Names:
    """Scopes and bindings of one module."""

    def __init__(self, module: ModuleFacts) -> None:
        # Without a cycle, a file's facts are freed as soon as the file is done.
        self.module: ModuleFacts = weakref.proxy(module)
        self._attributes: dict[ast.ClassDef, dict[str, list[Binding]]] = {}
        self._answers: dict[tuple[ast.expr, ast.stmt | None], tuple[tuple[Target, ...], bool]] = {}
        self._opaque: list[Binding] = []  # bindings met by the latest question that say nothing
        self._fallbacks: dict[ast.AST, bool] = {}
        self._values: dict[ast.expr, tuple[list[Target], list[Binding]]] = {}
        self._named: dict[tuple[str, Scope], tuple[list[Target], list[Binding]]] = {}

    # -- scopes ---------------------------------------------------------------------------------

    def bindings(self, scope: ast.AST) -> dict[str, list[Binding]]:
        """Every binding made in a scope, in source order."""
        table = self.module.inside.bindings.get(scope)
        if table is None:
            table = {}
            for name, binding in self._collect(scope):
                table.setdefault(name, []).append(binding)
            self.module.inside.bindings[scope] = table
        return table

    def _collect(self, scope: ast.AST) -> Iterator[tuple[str, Binding]]:
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for argument in parameters(scope.args):
                yield argument.arg, Binding(argument)
        if isinstance(scope, ast.Lambda):
            return
        assert isinstance(scope, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        yield from self._collect_block(scope.body, True, self._prefix(scope))
        if isinstance(scope, ast.Module) and "global " in self.module.usual:
            yield from self._collect_globals()

    def _collect_globals(self) -> Iterator[tuple[str, Binding]]:
        """What functions assign to the module's names, at a time that nobody knows."""
        declared: dict[ast.AST, set[str]] = {}
        for statement in self.module.declarations:
            if isinstance(statement, ast.Global):
                for around in self.module.ancestors(statement):
                    declared.setdefault(around, set()).update(statement.names)
        for function in self.module.functions:
            names = declared.get(function)
            if names:
                for name, binding in self._collect_block(function.body, False, ""):
                    if name in names:
                        yield name, binding

    def _prefix(self, scope: ast.AST) -> str:
        parts = [self.module.module_name]
        names = [
            s.name
            for s in [scope, *self.module.ancestors(scope)]
            if isinstance(s, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        return ".".join([p for p in parts if p] + names[::-1])

    def _collect_block(
        self, block: Sequence[ast.stmt], always: bool, prefix: str
    ) -> Iterator[tuple[str, Binding]]:
        for node in block:
            if node.__class__ not in _BINDING:  # most statements
                continue
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        yield alias.asname, Binding(node, alias.name, always=always)
                    else:
                        top = alias.name.partition(".")[0]
                        yield top, Binding(node, top, always=always)
            elif isinstance(node, ast.ImportFrom):
                base = self.module.project.absolute_import(self.module, node)
                for alias in node.names:
                    qualified = f"{base}.{alias.name}" if base else alias.name
                    yield alias.asname or alias.name, Binding(node, qualified, always=always)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}.{node.name}" if prefix else node.name
                yield node.name, Binding(node, name, always=always)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from self._collect_target(target, node.value, node, always)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                yield from self._collect_target(node.target, node.value, node, always)
            elif isinstance(node, ast.AugAssign):
                yield from self._collect_target(node.target, None, node, always)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                yield from self._collect_target(node.target, None, node, False)
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                for item in node.items:
                    if item.optional_vars is not None:
                        yield from self._collect_target(item.optional_vars, None, node, always)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            if not BLOCKS[node.__class__]:  # nothing is in it
                continue
            inner = always and isinstance(node, (ast.With, ast.AsyncWith))
            for name in ("body", "orelse", "finalbody"):
                yield from self._collect_block(getattr(node, name, ()), inner, prefix)
            for handler in getattr(node, "handlers", ()):
                yield from self._collect_block(handler.body, False, prefix)
            for case in getattr(node, "cases", ()):
                yield from self._collect_block(case.body, False, prefix)

    def _collect_target(
        self, target: ast.expr, value: ast.expr | None, node: ast.AST, always: bool
    ) -> Iterator[tuple[str, Binding]]:
        if isinstance(target, ast.Name):
            yield target.id, Binding(node, value=value, always=always)
        elif isinstance(target, ast.Starred):
            yield from self._collect_target(target.value, None, node, always)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values: Sequence[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                values = value.elts
            for element, part in zip(target.elts, values, strict=True):
                yield from self._collect_target(element, part, node, always)

    def attributes(self, cls: ast.ClassDef) -> dict[str, list[Binding]]:
        """What ``self.name`` can be: class-level names, and assignments in the methods."""
        table = self._attributes.get(cls)
        if table is None:
            table = {name: list(found) for name, found in self.bindings(cls).items()}
            for attribute, binding in self._assignments_to_self.get(cls, ()):
                table.setdefault(attribute, []).append(binding)
            self._attributes[cls] = table
        return table

    def uses(self, cls: ast.ClassDef, name: str) -> Iterator[ast.Attribute]:
        """Every ``self.name`` in the methods of a class, read, written or deleted."""
        for node in walk(cls):
            if isinstance(node, ast.Attribute) and node.attr == name:
                if isinstance(node.value, ast.Name) and self.self_class(node.value) is cls:
                    yield node

    @cached_property
    def _assignments_to_self(self) -> dict[ast.ClassDef, list[tuple[str, Binding]]]:
        """What the methods of each class assign to attributes, in order."""
        found: dict[ast.ClassDef, list[tuple[str, Binding]]] = {}
        for node in self.module.statements:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            for each in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(each, ast.Name):  # most targets
                    continue
                for target, value in attributes_set(each, node.value):
                    function = self.module.function(node)
                    cls = self.module.method_class(function)
                    if cls is not None and target.value.id == self_name(function):  # type: ignore[attr-defined]
                        binding = Binding(node, value=value, always=False)
                        found.setdefault(cls, []).append((target.attr, binding))
        return found

    # -- resolution -----------------------------------------------------------------------------

    def resolve(self, node: ast.expr, at: ast.stmt | None = None) -> tuple[Target, ...]:
        """What ``node`` can stand for; ``at`` is its statement, where the caller knows it."""
        return self._answer(node, at)[0]

    def _answer(self, node: ast.expr, at: ast.stmt | None) -> tuple[tuple[Target, ...], bool]:
        """What ``node`` can stand for, and whether it can be something else."""
        answer = self._answers.get((node, at))
        if answer is None:
            self._opaque = []
            targets = tuple(dict.fromkeys(self._resolve(node, 0, at)))
            answer = self._answers[node, at] = targets, bool(self._opaque)
        return answer

    def at_top(self, name: str) -> tuple[tuple[Target, ...], bool]:
        """What a name of the module stands for to other files, and whether it can be else."""
        self._opaque = []
        found = self.bindings(self.module.tree).get(name) or self._from_stars(name)
        return tuple(dict.fromkeys(self._resolve_bindings(found, 0))), bool(self._opaque)

    def resolve_name(self, name: str, at: ast.AST) -> tuple[Target, ...]:
        """What a name stands for at some place of the file."""
        return tuple(dict.fromkeys(self._resolve_name(name, self.module.scope(at), 0)))

    def _resolve(self, node: ast.expr, depth: int, at: ast.stmt | None = None) -> Iterator[Target]:
        if depth > _MAX_DEPTH:
            return
        if isinstance(node, ast.Name):
            yield from self._resolve_name(node.id, self.module.scope(at or node), depth)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and at is None:
                cls = self.self_class(node.value)
                if cls is not None:
                    yield from self._resolve_attribute(cls, node.attr, depth)
                    return
                kept = self._kept_in_class(node.value, node.attr)
                if kept is not None:
                    yield from self._resolve(kept, depth + 1)
                    return
            held = self._held(node, depth) if at is None else None
            if held is not None:
                yield from self._resolve(held, depth + 1)
                return
            for base in self._resolve(node.value, depth + 1, at):
                yield Target(f"{base.name}.{node.attr}")
        elif isinstance(node, (ast.IfExp, ast.BoolOp)):
            arms = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
            for arm in arms:
                yield from self._resolve_bindings([Binding(arm, value=arm)], depth)
        elif isinstance(node, ast.NamedExpr):
            yield from self._resolve(node.value, depth + 1)
        elif isinstance(node, ast.Subscript):
            yield from self._resolve_entry(node.value, node.slice, depth)
        elif isinstance(node, ast.Call):
            yield from self._resolve_call(node, depth)

    def _resolve_entry(self, table: ast.expr, key: ast.expr, depth: int) -> Iterator[Target]:
        """What ``TABLE['norm']`` is, or ``TABLE.get('norm')``."""
        entry = self._entry(table, key)
        if entry is not None:
            yield from self._resolve(entry, depth + 1)
        else:
            yield from self._imported_entry(table, key, depth)

    def _entry(self, table: ast.expr, literal: ast.expr) -> ast.expr | None:
        """What stands under a literal key of a dict that nobody changes."""
        if not isinstance(literal, ast.Constant):
            return None
        made = self._table(table)
        values = (
            [
                value
                for key, value in zip(made.keys, made.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == literal.value
            ]
            if made is not None
            else []
        )
        return values[0] if len(values) == 1 else None

    def entry(self, name: str, key: str) -> ast.expr | None:
        """What stands under a key, given by its ``repr``, of a dict at the top of the module."""
        found = self.bindings(self.module.tree).get(name, ())
        made = found[0].value if len(found) == 1 else None
        if not isinstance(made, ast.Dict) or self._may_change(name, ast.Name):
            return None
        values = [
            value
            for each, value in zip(made.keys, made.values, strict=True)
            if isinstance(each, ast.Constant) and repr(each.value) == key
        ]
        return values[0] if len(values) == 1 and None not in made.keys else None

    def _imported_entry(self, table: ast.expr, literal: ast.expr, depth: int) -> Iterator[Target]:
        """``pkg.kernels.TABLE['norm']``, of a dict that another file makes and this one reads."""
        key = literal.value if isinstance(literal, ast.Constant) else None
        if not isinstance(key, str) or "." in key:
            return
        if isinstance(table, ast.Attribute):  # kernels.TABLE['norm']
            owners = tuple(self._resolve(table, depth + 1))
            if len(owners) == 1 and not self._may_change(table.attr, ast.Attribute):
                yield Target(f"{owners[0].name}[{key!r}]")
            return
        if not isinstance(table, ast.Name):
            return
        found = self._visible(table.id, self.module.scope(table))
        if len(found) == 1 and isinstance(found[0].node, ast.ImportFrom):
            if not self._may_change(table.id, ast.Name):
                yield Target(f"{found[0].qualified}[{key!r}]")

    def entries(self, node: ast.expr) -> Sequence[ast.expr]:
        """All that ``TABLE[key]`` can be for a key that varies; empty for other expressions.

        It is looked up in a dict that nobody changes, there or in the one assignment of a name or
        of an attribute of ``self``.
        """
        if not self._has_tables:
            return ()
        if isinstance(node, ast.Name):
            function, statement = self.module.function(node), self.module.statement(node)
            if function is None or function is statement:  # a decorator, a default
                return ()
            flow = self.module.flow(function)
            made = flow.only_definition(node.id, statement) if flow.is_local(node.id) else None
            node = made.value if made is not None and made.value is not None else node
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            cls = self.self_class(node.value)
            set_to = self.attributes(cls).get(node.attr, ()) if cls is not None else ()
            node = set_to[0].value or node if len(set_to) == 1 else node
        if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Constant):
            return ()
        table = self._table(node.value)
        return table.values if table is not None else ()

    @cached_property
    def _has_tables(self) -> bool:
        """Whether a dict with something in it is given a name."""
        return any(
            isinstance(statement, (ast.Assign, ast.AnnAssign))
            and isinstance(statement.value, ast.Dict)
            and bool(statement.value.keys)
            for statement in self.module.statements
        )

    def _table(self, node: ast.expr) -> ast.Dict | None:
        """The dict of the module, or of ``self``, that a name stands for, if nobody changes it."""
        if isinstance(node, ast.Name):
            found = self._visible(node.id, self.module.scope(node))
            known = self.bindings(self.module.tree).get(node.id, ())
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            cls = self.self_class(node.value)
            found = known = self.attributes(cls).get(node.attr, []) if cls is not None else []
            name = node.attr
        else:
            return None
        if len(found) != 1 or found[0] not in known:
            return None
        made = found[0].value
        if not isinstance(made, ast.Dict) or self._may_change(name, type(node)):
            return None
        return made if all(isinstance(key, ast.Constant) for key in made.keys) else None

    def _may_change(self, name: str, kind: type[ast.expr]) -> bool:
        """Whether the file uses a dict otherwise than by looking something up in it."""
        for node in walk(self.module.tree):
            if isinstance(node, kind) and name == getattr(node, "id", getattr(node, "attr", None)):
                if isinstance(getattr(node, "ctx", None), ast.Load) and not self._looks_up(node):
                    return True
        return False

    def _looks_up(self, table: ast.AST) -> bool:
        """``TABLE[key]``, ``TABLE.get(key)`` and ``key in TABLE``, of the table."""
        parent = self.module.parent(table)
        if isinstance(parent, ast.Subscript):
            return parent.value is table and isinstance(parent.ctx, ast.Load)
        if isinstance(parent, ast.Compare):
            return all(isinstance(op, (ast.In, ast.NotIn)) for op in parent.ops)
        return isinstance(parent, ast.Attribute) and parent.attr in _LOOKS

    def _held(self, node: ast.Attribute, depth: int) -> ast.expr | None:
        """What ``OPS.norm`` is, of an object that is made in one place and never set to another."""
        owner = node.value
        if isinstance(owner, ast.Name):
            found: Sequence[Binding] = self.visible(owner)
        elif isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name):
            cls = self.self_class(owner.value)
            found = self.attributes(cls).get(owner.attr, ()) if cls is not None else ()
        else:
            return None
        made = found[0].value if len(found) == 1 else None
        held = self._in_object(made, node.attr, depth) if isinstance(made, ast.Call) else None
        return held if held is not None and self._only_asked(owner) else None

    def _only_asked(self, owner: ast.Name | ast.Attribute) -> bool:
        """Whether the file reads nothing but attributes of an object."""
        name = last_name(owner)
        return all(
            isinstance(parent := self.module.parent(node), ast.Attribute) and parent.value is node
            for node in walk(self.module.tree)
            if isinstance(node, type(owner)) and last_name(node) == name
            if isinstance(node.ctx, ast.Load)
        )

    def held_at_top(self, owner: str, name: str) -> ast.expr | None:
        """What ``owner.name`` is, of a class or of such an object at the top of the module."""
        found = self.bindings(self.module.tree).get(owner, ())
        if len(found) != 1:
            return None
        if isinstance(found[0].node, ast.ClassDef):
            return self._in_class(found[0].node, name)
        made = found[0].value
        if not isinstance(made, ast.Call) or not self._only_asked(ast.Name(owner)):
            return None
        return self._in_object(made, name, 0)

    def _in_class(self, cls: ast.ClassDef, name: str) -> ast.expr | None:
        kept = self.bindings(cls).get(name, ())
        made = kept[0].value if len(kept) == 1 else None
        return made if made is not None and name not in self._set_anywhere else None

    def _in_object(self, made: ast.Call, name: str, depth: int) -> ast.expr | None:
        """What an attribute is of what a call makes: a namespace, or a class of the file."""
        held = self._made_with(made, name, depth)
        if held is None or "setattr(" in self.module.usual or name in self._set_anywhere:
            return None
        return held

    def _made_with(self, made: ast.Call, name: str, depth: int) -> ast.expr | None:
        """What an attribute is right after the call, whatever it may be set to later."""
        if any(k.arg is None for k in made.keywords):
            return None
        given = next((k.value for k in made.keywords if k.arg == name), None)
        cls = None
        if isinstance(made.func, ast.Name):
            known = self.visible(made.func)
            if len(known) == 1 and isinstance(known[0].node, ast.ClassDef):
                cls = known[0].node
        if cls is None and last_name(made.func) != "SimpleNamespace":  # most calls
            return None
        if cls is None:
            makers = {target.name for target in self._resolve(made.func, depth + 1)}
            return given if makers == {"types.SimpleNamespace"} else None
        if cls.decorator_list and "dataclass" in ast.unparse(cls.decorator_list[0]):
            fields = [
                s.target.id
                for s in cls.body
                if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
            ]
            changed = (attribute for attribute, _ in self._assignments_to_self.get(cls, ()))
            if cls.bases or name not in fields or name in changed:
                return None
            place = fields.index(name)
            if place < len(made.args):
                is_plain = not any(isinstance(a, ast.Starred) for a in made.args[: place + 1])
                return made.args[place] if is_plain else None
            return given or self._in_class(cls, name)
        set_to = self.attributes(cls).get(name, ())
        return set_to[0].value if len(set_to) == 1 and not cls.bases else None

    @cached_property
    def _set_anywhere(self) -> frozenset[str]:
        """The attributes that are set or deleted otherwise than by methods on their own object."""
        return frozenset(
            node.attr
            for node in walk(self.module.tree)
            if isinstance(node, ast.Attribute)
            and not isinstance(node.ctx, ast.Load)
            and self.self_class(node.value) is None
        )

    def _resolve_call(self, node: ast.Call, depth: int) -> Iterator[Target]:
        """``functools.partial(f, ...)``, ``getattr(m, "f")``, wrappers that keep the meaning.

        ``kernels.get_kernel('owner/name')`` is its own name, ``InferenceBuilder().load()`` as well,
        and ``torch.utils.cpp_extension.load()`` is that of an extension with CUDA sources.
        """
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            if all(is_none(default) for default in node.args[1:]):
                yield from self._resolve_entry(node.func.value, node.args[0], depth)
            return
        function = {target.name for target in self._resolve(node.func, depth + 1)}
        yield from (Target(f"{name}()") for name in function if _BUILDER.fullmatch(name))
        if not function.isdisjoint(_EXTENSIONS):
            if _has_cuda(node):
                yield Target("torch.utils.cpp_extension.load()")
            given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
            if given and isinstance(given[0], ast.Constant) and isinstance(given[0].value, str):
                yield Target(given[0].value)
        if not node.args:
            return
        if isinstance(node.func, ast.Name) and node.func.id == "staticmethod":
            yield from self._resolve(node.args[0], depth + 1)
        elif isinstance(node.func, ast.Name) and node.func.id == "getattr":
            name = node.args[1] if len(node.args) >= 2 else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                for base in self._resolve(node.args[0], depth + 1):
                    yield Target(f"{base.name}.{name.value}")
        elif "functools.partial" in function:
            for target in self._resolve(node.args[0], depth + 1):
                yield target._replace(
                    args=(*target.args, *node.args[1:]),
                    keywords=(*target.keywords, *node.keywords),
                )
        elif "importlib.import_module" in function:
            if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield Target(node.args[0].value)
        elif "kernels.get_kernel" in function:
            if isinstance(node.args[0], ast.Constant):
                yield Target(f"kernels.get_kernel({node.args[0].value!r})")
        elif not function.isdisjoint(_TRANSPARENT_CALLS):
            yield from self._resolve(node.args[0], depth + 1)

    def self_class(self, node: ast.AST | None) -> ast.ClassDef | None:
        """The class of a method's first parameter when an expression is that parameter."""
        if not isinstance(node, ast.Name):
            return None
        function = self.module.function(node)
        while function is not None:
            cls = self.module.method_class(function)
            if cls is not None:
                return cls if self_name(function) == node.id else None
            function = self.module.function(function)  # a function nested in a method
        return None

    def _resolve_attribute(self, cls: ast.ClassDef, name: str, depth: int) -> Iterator[Target]:
        found = self.attributes(cls).get(name)
        if found is not None:
            yield from self._resolve_bindings(found, depth)
            return
        for base in self.own_bases(cls):
            yield from self._resolve_attribute(base, name, depth + 1)

    def own_bases(self, cls: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """The classes of the file that a class names as its bases."""
        for base in cls.bases:
            for other in self.module.classes:
                if isinstance(base, ast.Name) and other.name == base.id and other is not cls:
                    yield other

    def with_bases(self, cls: ast.ClassDef) -> list[ast.ClassDef]:
        """A class, and those of the file that it derives from."""
        found = [cls]
        for each in found:  # grows meanwhile
            found += [base for base in self.own_bases(each) if base not in found]
        return found

    def inherited(self, cls: ast.ClassDef, name: str, depth: int = 0) -> Sequence[Binding]:
        """What an attribute is bound to in a class, or in one of the file that it derives from."""
        found: Sequence[Binding] = self.attributes(cls).get(name, ())
        if found or depth > _MAX_BASES:
            return found
        bases = (self.inherited(base, name, depth + 1) for base in self.own_bases(cls))
        return next(filter(None, bases), ())

    def _kept_in_class(self, owner: ast.Name, name: str) -> ast.expr | None:
        """What ``Ops.norm`` is set to in the body of a class of the file."""
        found = self.visible(owner)
        if len(found) != 1 or not isinstance(found[0].node, ast.ClassDef):
            return None
        kept = self.bindings(found[0].node).get(name, ())
        return kept[0].value if len(kept) == 1 else None

    def visible(self, node: ast.Name) -> list[Binding]:
        """The bindings that a name can have where it stands."""
        return self._visible(node.id, self.module.scope(node))

    def visible_at(self, name: str, at: ast.AST) -> list[Binding]:
        """The bindings that a name can have at some place of the file."""
        return self._visible(name, self.module.scope(at))

    def _visible(self, name: str, scope: Scope) -> list[Binding]:
        current: ast.AST = scope
        while True:
            found = self.bindings(current).get(name)
            if found is not None and (current is scope or not isinstance(current, ast.ClassDef)):
                return found
            if isinstance(current, ast.Module):
                return []
            current = self.module.scope(current)

    def _resolve_name(self, name: str, scope: Scope, depth: int) -> list[Target]:
        """What a name stands for in a scope, asked once: in a function it occurs many times."""
        key = name, scope
        if key not in self._named:
            found = self._visible(name, scope) or self._from_stars(name)
            before, self._opaque = self._opaque, []
            targets = list(self._resolve_bindings(found, depth))
            self._named[key] = targets, self._opaque
            self._opaque = before
        targets, opaque = self._named[key]
        self._opaque += opaque
        return targets

    def _from_stars(self, name: str) -> list[Binding]:
        """What a name that is bound nowhere is where one ``from module import *`` can bring it.

        By the names that everybody has for them, torch and its modules come with any.
        """
        stars = self.bindings(self.module.tree).get("*", ())
        usual = _USUAL.get(name) if stars else None
        if usual is not None and (name == "torch" or self._has_torch_from_stars):
            return [Binding(next(iter(stars)).node, usual)]
        if len(stars) != 1 or name in _BUILTINS or stars[0].qualified is None:
            return []
        return [Binding(stars[0].node, stars[0].qualified.removesuffix("*") + name)]

    @cached_property
    def _has_torch_from_stars(self) -> bool:
        """Whether ``torch`` is read, and nothing but an ``import *`` binds it."""
        bound = self.bindings(self.module.tree).get("torch")
        return not bound and re.search(r"\btorch\.", self.module.usual) is not None

    def _resolve_bindings(self, found: Sequence[Binding], depth: int) -> Iterator[Target]:
        # An unconditional binding hides the ones before it, seen from code that runs later; what an
        # except clause binds is a stand-in for what could not be imported.
        current = found
        if len(found) > 1:
            last = max((i for i, b in enumerate(found) if b.always), default=0)
            current = found[last:]
        if len(current) > 1:
            current = [b for b in current if not self._is_fallback(b)] or current
        for binding in reversed(current):
            if binding.qualified is not None:
                yield Target(binding.qualified)
            elif binding.value is not None:
                targets = self._resolve_value(binding.value, depth + 1)
                yield from targets
                if not targets and not is_none(binding.value):
                    self._opaque.append(binding)
            else:
                self._opaque.append(binding)

    def _resolve_value(self, value: ast.expr, depth: int) -> list[Target]:
        """What a value that a name is bound to stands for, asked once.

        One that leads back to itself (``x = x.view(-1)``) adds nothing the second time; without
        that, n such lines would be followed in n to the power of depth ways.
        """
        if value not in self._values:
            self._values[value] = [], []
            before, self._opaque = self._opaque, []
            targets = list(self._resolve(value, depth))
            self._values[value] = targets, self._opaque
            self._opaque = before
        targets, opaque = self._values[value]
        self._opaque += opaque
        return targets

    def _is_fallback(self, binding: Binding) -> bool:
        node = binding.node
        if node not in self._fallbacks:
            around = self.module.ancestors(node)
            self._fallbacks[node] = any(isinstance(a, ast.ExceptHandler) for a in around)
        return self._fallbacks[node]

    def candidates(self, node: ast.expr) -> tuple[tuple[Target, ...], bool]:
        """Everything that a callee can be where it stands, and whether it can be something else.

        A local name is what it was last bound to; others count with all their bindings.
        """
        if isinstance(node, ast.Name):
            function = self.module.function(node)
            statement = self.module.statement(node)
            flow = self.module.flow(function or self.module.tree)
            if statement is not function and (function is None or flow.is_local(node.id)):
                scope: ast.AST = function or self.module.tree
                reaching = flow.reaching(node.id, statement)
                made = {d.statement for d in reaching}
                found = [b for b in self.bindings(scope).get(node.id, ()) if b.node in made]
                if reaching and len(found) >= len(reaching):
                    found = [b._replace(always=False) for b in found]
                    self._opaque = []
                    return tuple(dict.fromkeys(self._resolve_bindings(found, 0))), bool(
                        self._opaque
                    )
        return self._answer(node, None)


def _has_cuda(node: ast.Call) -> bool:
    """Whether an extension is made of CUDA sources, as its call says."""
    if any(keyword.arg == "cuda_sources" for keyword in node.keywords):
        return True
    texts = (n.value for n in walk(node) if isinstance(n, ast.Constant))
    return any(isinstance(text, str) and text.endswith(".cu") for text in texts)


def attributes_set(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """``self.a = v``; of ``self.a, self.b = v, w`` each, and of ``(f() for _ in range(2))``."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        yield target, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        for i, element in enumerate(target.elts):
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                yield from attributes_set(element, value.elts[i])
            elif isinstance(value, (ast.GeneratorExp, ast.ListComp)):
                yield from attributes_set(element, value.elt)


def is_none(node: ast.expr | None) -> bool:
    """Whether an expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_getter(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method is a plain property, whose decorator is nothing but that."""
    return [last_name(each) for each in function.decorator_list] == ["property"]


def last_name(node: ast.AST | None) -> str:
    """``relu`` of ``relu`` and of ``F.relu``; an empty string for what is neither."""
    return str(getattr(node, "attr", None) or getattr(node, "id", ""))


def passed(call: ast.Call) -> list[ast.expr]:
    """What a call passes, in order, the names of keywords left out."""
    return [*call.args, *(k.value for k in call.keywords)]


def parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    """All parameters of a function, in order."""
    yield from arguments.posonlyargs
    yield from arguments.args
    if arguments.vararg:
        yield arguments.vararg
    yield from arguments.kwonlyargs
    if arguments.kwarg:
        yield arguments.kwarg


def placed(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The names of the parameters that arguments without a keyword may fill, in order."""
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args)]


def base_name(node: ast.expr) -> str | None:
    """The name that a place belongs to: ``x`` for ``x[0].y``."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def default_of(arguments: ast.arguments, name: str) -> ast.expr | None:
    """The default of a parameter, if it has one."""
    placed = [*arguments.posonlyargs, *arguments.args]
    pairs: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(placed[::-1], arguments.defaults[::-1], strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((default for argument, default in pairs if argument.arg == name), None)


def self_name(function: ast.AST | None) -> str | None:
    """The name of a method's first parameter (static methods have none)."""
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod"):
            return None
    positional = [*function.args.posonlyargs, *function.args.args]
    return positional[0].arg if positional else None
