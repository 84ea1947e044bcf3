"""The objects of a class in a project, and which files may hold one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..called import functions_in, positional
from ..layers import own_class
from ..memo import once_judged
from ..names import last_name, parameters, passed, self_name
from ..walk import walk
from .naming import ClassId, class_id, path_of
from .origins import MAX_FILES, Origin, Origins, evaluates
from .puts import keeps, puts

if TYPE_CHECKING:
    from ..module import FunctionNode, ModuleFacts

_MAX_ROUNDS = 3
_ARGUMENTS = (
    *(ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Starred, ast.Lambda),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict),
)


class Instances(Origins):
    """The objects of classes of one file, and of those derived from them, where these are known.

    ``files`` are those that can hold one, that of the classes first; ``are_all_seen`` says whether
    they are all that can.
    """

    def __init__(self, module: ModuleFacts, classes: Sequence[ast.ClassDef]) -> None:
        super().__init__([module], {(made := class_id(module, cls)): made for cls in classes})
        self._words = {cls.name for cls in classes}
        self.are_all_seen = True
        self._are_made = True
        self._find_files([module])
        for file in list(self.files):
            for cls in file.classes:
                self._hand_to_decorators(file, cls)
        self._are_made = bool(self._given) or any(map(self._makes_one, self.files))
        searched = 1
        for _ in range(_MAX_ROUNDS if self._are_made else 0):
            new = self._hand_on()
            if len(self.files) > searched:
                self._find_files(self.files[searched:])
                searched = len(self.files)
            elif not new:
                break
        self.are_all_seen = self.are_all_seen and self._left >= 0

    def origins(self, module: ModuleFacts, node: ast.expr) -> list[Origin]:
        """Those of an expression's origins that are such objects, by the classes of the file."""
        return [o for o in self._leading(module, node) if not o.makes and not o.held]

    def _leading(self, module: ModuleFacts, node: ast.expr) -> list[Origin]:
        """The same with what makes such objects, and what holds them."""
        if not self._are_made and not _is_own(module, node):
            return []
        return [
            replace(origin, made=self._roots[origin.made])
            for origin in self._origins(module, node)
            if origin.made in self._roots
        ]

    def is_evaluated(self, made: ClassId) -> bool:
        """Whether an object of the class, or what holds one, is put into evaluation mode."""
        return made in self._evaluated

    @cached_property
    def _evaluated(self) -> set[ClassId]:
        owners = self._owners()
        return {
            root
            for module in self.files
            for name in ("eval", "train")
            for call in module.calls_named(name)
            if isinstance(call.func, ast.Attribute) and evaluates(call)
            for origin in self._origins(module, call.func.value)
            if origin.made is not None and not origin.makes
            for root in (self._roots.get(origin.made), *owners.get(origin.made, ()))
            if root is not None
        }

    def _owners(self) -> dict[ClassId, set[ClassId]]:
        """The classes with such objects for attributes, each with the classes of these."""
        found: dict[ClassId, set[ClassId]] = {}
        for module in self.files:
            for owner in module.classes:
                for bindings in module.names.attributes(owner).values():
                    for value in (b.value for b in bindings if b.value is not None):
                        for origin in self.origins(module, value):
                            assert origin.made is not None
                            found.setdefault(class_id(module, owner), set()).add(origin.made)
        return found

    # -- files ----------------------------------------------------------------------------------

    def _find_files(self, new: list[ModuleFacts]) -> None:
        """Find the files that name a class, one derived from it, or a function that makes it.

        By what ``new`` ones among those that are known say of them.
        """
        module = self.files[0]
        while new:
            for other in new:
                self._derive(other)
            self._words |= {name for _, name in self._roots}
            for other in new:
                for name in self._makers(other):
                    self._words.add(name)
            self._known.clear()
            known = {path_of(other) for other in self.files}
            named = module.project.naming(module, self._words, {Path(path) for path in known})
            new = []
            for other in named:
                if path_of(other) in known:
                    continue
                if len(self.files) == MAX_FILES:
                    self.are_all_seen = False
                    return
                new.append(other)
                self.files.append(other)

    def _derive(self, module: ModuleFacts) -> None:
        """Note the classes of a file that have the forward of one of ours."""
        for each in module.classes:
            made = class_id(module, each)
            for base in each.bases if made not in self._roots else ():
                found = self._named(module, base)
                root = self._roots.get(found) if found is not None else None
                if root is not None and not any(f.name == "forward" for f in functions_in(each)):
                    self._roots[made] = root

    def _makers(self, module: ModuleFacts) -> Iterator[str]:
        """The names by which other files get at such objects: of tables, functions, methods."""
        for name, values in puts(module).items():
            if any(self._may_lead(module, v) and self._leading(module, v) for v, _ in values):
                yield name.lstrip(".")
        for statement in module.tree.body:
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
                continue
            if _exports(statement):
                continue
            if self._may_lead(module, statement.value):
                if self._leading(module, statement.value):
                    if isinstance(statement, ast.Assign):
                        yield from filter(None, map(last_name, statement.targets))
                    else:
                        yield last_name(statement.target)
        for function in module.functions:
            if self._makes(module, function):
                yield function.name

    def _makes(self, module: ModuleFacts, function: FunctionNode) -> bool:
        """Whether a function at the top of a file, or a method, gives such an object."""
        if function.name == "main" or not isinstance(
            module.parent(function), (ast.Module, ast.ClassDef)
        ):
            return False
        if not self._is_mentioned(module.source(function)):
            return False
        return any(origin.made in self._roots for origin in self._results(module, function, 0))

    def _may_lead(self, module: ModuleFacts, value: ast.expr) -> bool:
        return bool(self._given) or self._is_mentioned(module.source(value))

    def _is_mentioned(self, text: str) -> bool:
        return not self._words.isdisjoint(re.findall(r"\w+", text))

    def _makes_one(self, module: ModuleFacts) -> bool:
        """Whether a file may have an object that is not its methods' own, told by names."""
        if any(module.calls_named(word) for word in self._words):
            return True
        if _may_be_values(module, self._words):
            return True
        return any(
            last_name(node) in self._words
            for function in module.functions
            for argument in parameters(function.args)
            if argument.annotation is not None
            for node in walk(argument.annotation)
        )

    def _hand_on(self) -> bool:
        """Note which parameters get such an object from a call; whether there was a new one."""
        before = sum(map(len, self._given.values()))
        for module in list(self.files):
            for call in module.calls:
                held = [(a, o) for a in passed(call) for o in self._argument(module, a)]
                if not held:
                    continue
                for home, function in self._callees(module, call.func, load=True):
                    for argument, origin in held:
                        name = _parameter(home, function, call, argument)
                        self._give(home, function, name, origin)
                cls = own_class(module, call.func)
                for argument, origin in held if cls is not None else ():
                    if cls is not None:
                        self._give(module, cls, _field(cls, call, argument), origin)
        new = sum(map(len, self._given.values())) > before
        if new:
            self._known.clear()
        return new

    def _hand_to_decorators(self, module: ModuleFacts, cls: ast.ClassDef) -> None:
        """``@register`` and ``@register("name")`` on one of the classes."""
        root = self._roots.get(class_id(module, cls))
        for decorator in cls.decorator_list if root is not None else ():
            called = isinstance(decorator, ast.Call)
            function = decorator.func if isinstance(decorator, ast.Call) else decorator
            for home, callee in self._callees(module, function, load=True):
                for taker in functions_in(callee) if called else (callee,):
                    name = _first_parameter(home, taker)
                    if keeps(taker, name):  # rather than only to look at it
                        self._give(home, taker, name, Origin(root, makes=True))

    def _give(
        self, home: ModuleFacts, to: FunctionNode | ast.ClassDef, name: str, origin: Origin
    ) -> None:
        if name:
            self._given.setdefault((path_of(home), to.lineno, name), {})[origin] = None

    def _argument(self, module: ModuleFacts, node: ast.expr) -> list[Origin]:
        return self._leading(module, node) if isinstance(node, _ARGUMENTS) else []


@once_judged
def instances_of(module: ModuleFacts, cls: ast.ClassDef) -> Instances:
    """The objects of one class; finding the files that have them takes longer than any question."""
    return Instances(module, [cls])


# -- what there is in a file ----------------------------------------------------------------------


def _may_be_values(module: ModuleFacts, words: Iterable[str]) -> bool:
    """Whether classes are used for more than to derive from them, by the text of a file."""
    for found in re.finditer(rf"\b(?:{'|'.join(map(re.escape, words))})\b", module.text):
        line, column = module.position(found.start())
        before = module.line_text(line)[: column - 1]
        exported = _EXPORTING.match(before)
        if exported and len(re.findall(rf"\b{exported[1]}\b", module.text)) == 1:
            continue
        if not _NAMING.match(before) and not before.endswith(_QUOTING):
            if line not in module.string_lines(line, line):
                return True
    return False


def _exports(statement: ast.Assign | ast.AnnAssign) -> bool:
    """``EntryClass = Model``, which a library looks for by that name: no file imports it."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    value = statement.value
    parts = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
    return all(isinstance(part, ast.Name) for part in parts) and not any(
        last_name(target).isupper() for target in targets
    )


_EXPORTING = re.compile(r"(\w+) = [\[(]?[\w, ]*$")
_NAMING = re.compile(
    r"\s*(?:class|from|import|#)\b|.*\bis(?:instance|subclass)\([^()]*, *\(?[\w, ]*$"
)
_QUOTING = ('"', "'", "`", "super(")


def _is_own(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an expression is the object of its method: ``self``, ``super()``."""
    if not isinstance(node, ast.Name):
        return isinstance(node, ast.Call) and last_name(node.func) == "super"
    return node.id == self_name(module.function(node))


def _parameter(
    module: ModuleFacts, function: FunctionNode, call: ast.Call, argument: ast.expr
) -> str:
    """The name of the parameter that an argument of a call becomes; empty where none shows."""
    for keyword in call.keywords:
        if keyword.value is argument:
            return keyword.arg or ""
    names = positional(module, function)
    at = call.args.index(argument)
    starred = any(isinstance(a, ast.Starred) for a in call.args[: at + 1])
    return names[at] if at < len(names) and not starred else ""


def _first_parameter(module: ModuleFacts, function: FunctionNode) -> str:
    return next(iter(positional(module, function)), "")


def _field(cls: ast.ClassDef, call: ast.Call, argument: ast.expr) -> str:
    """The field of a dataclass that an argument becomes; empty for other classes."""
    if any(function.name == "__init__" for function in functions_in(cls)):
        return ""
    fields = [last_name(s.target) for s in cls.body if isinstance(s, ast.AnnAssign)]
    named = next((k.arg for k in call.keywords if k.value is argument), None)
    at = call.args.index(argument) if named is None else -1
    name = named or (fields[at] if at < len(fields) else "")
    return name if name in fields else ""
