"""Which expressions of a project hold an object of a class, and whether in evaluation mode.

By construction, through factories, annotations, attributes and arguments, over files; never by what
a name looks like. What does not show is told apart from what is surely another class.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .flow import Definition
from .graph import results
from .layers import own_class
from .memo import once
from .names import Binding, default_of, is_none, last_name, parameters, self_name

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

ClassId = tuple[str, str]
"""The file of a class, and its name."""

_SAME = frozenset(
    "to cuda cpu half bfloat16 float double type apply requires_grad_ share_memory".split()
)
_WRAPPERS = (
    "torch.compile",
    "torch.jit.script",
    "torch.nn.DataParallel",
    "torch.nn.parallel.",
    "copy.deepcopy",
    "copy.copy",
)
_MAX_DEPTH = 8
_MAX_FILES = 40
_MAX_ROUNDS = 3
_MAX_HANDED_ON = 3


@dataclass(frozen=True)
class Origin:
    """One thing that an expression may be; ``made`` is None where that does not show."""

    made: ClassId | None
    evaluated: bool = False


_UNKNOWN = Origin(None)


class Instances:
    """The objects of classes of one file, and of those derived from them, where these are known.

    ``files`` are those that can hold one, that of the classes first; ``are_all_seen`` says whether
    they are all that can.
    """

    def __init__(self, module: ModuleFacts, classes: Sequence[ast.ClassDef]) -> None:
        self._given: dict[tuple[str, int, str], set[Origin]] = {}
        self._known: dict[ast.expr, list[Origin]] = {}
        self._roots = {(made := class_id(module, cls)): made for cls in classes}
        self.files = [module]
        self._words = {cls.name for cls in classes}
        self._names: set[str] = set()
        self._seen = 0
        self.are_all_seen = True
        self._are_made = True
        self._find_files(module)
        self._are_made = any(map(self._makes_one, self.files))
        for _ in range(_MAX_ROUNDS if self._are_made else 0):
            if not self._hand_on():
                break

    def origins(self, module: ModuleFacts, node: ast.expr) -> list[Origin]:
        """Those of an expression's origins that are such objects, by the classes of the file."""
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
            if isinstance(call.func, ast.Attribute) and _evaluates(call)
            for origin in self._origins(module, call.func.value)
            if origin.made is not None
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

    def _find_files(self, module: ModuleFacts) -> None:
        """Find the files that name a class, one derived from it, or a function that makes it."""
        new = [module]
        while new:
            for other in new:
                self._derive(other)
            self._words |= {name for _, name in self._roots}
            self._words |= {f.name for m in new for f in m.functions if self._makes(m, f)}
            self._known.clear()
            known = {_path(other) for other in self.files}
            named = module.project.naming(module, self._words, {Path(path) for path in known})
            new = []
            for other in named:
                if _path(other) in known:
                    continue
                if len(self.files) == _MAX_FILES:
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
                if root is not None and not any(f.name == "forward" for f in _functions(each)):
                    self._roots[made] = root

    def _makes(self, module: ModuleFacts, function: FunctionNode) -> bool:
        """Whether a function at the top of a file, or a static method, gives such an object."""
        static = self_name(function) is None and module.method_class(function) is not None
        if function.name == "main" or not (static or module.parent(function) is module.tree):
            return False
        values = list(results(function))
        if not values or self._words.isdisjoint(re.findall(r"\w+", module.source(function))):
            return False
        return any(self.origins(module, value) for value, _ in values)

    def _makes_one(self, module: ModuleFacts) -> bool:
        """Whether a file may have an object that is not its methods' own, told by names."""
        if any(module.calls_named(word) for word in self._words):
            return True
        words = "|".join(map(re.escape, self._words))
        if re.search(rf"\b(?:{words})\.\w+\(", module.text):  # Model.from_pretrained(path)
            return True
        return any(
            last_name(node) in self._words
            for function in module.functions
            for argument in parameters(function.args)
            if argument.annotation is not None
            for node in ast.walk(argument.annotation)
        )

    def _hand_on(self) -> bool:
        """Note which parameters get such an object from a call; whether there was a new one."""
        new = False
        for module in list(self.files):
            for call in module.calls:
                given = [*call.args, *(k.value for k in call.keywords)]
                held = [(a, o) for a in given for o in self._arguments(module, a)]
                if not held:
                    continue
                for home, function in self._callees(module, call, found_too=True):
                    for argument, origin in held:
                        name = _parameter(home, function, call, argument)
                        key = _path(home), function.lineno, name
                        if name and origin not in self._given.setdefault(key, set()):
                            self._given[key].add(origin)
                            new = True
                cls = own_class(module, call.func)
                for argument, origin in held:
                    if cls is None:
                        break
                    key = _path(module), cls.lineno, _field(cls, call, argument)
                    if key[2] and origin not in self._given.setdefault(key, set()):
                        self._given[key].add(origin)
                        new = True
        if new:
            self._known.clear()
        return new

    def _arguments(self, module: ModuleFacts, node: ast.expr) -> list[Origin]:
        plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call))
        return self.origins(module, node) if plain else []

    # -- expressions ----------------------------------------------------------------------------

    def _origins(self, module: ModuleFacts, node: ast.expr, depth: int = 0) -> list[Origin]:
        if node not in self._known:
            if depth > _MAX_DEPTH:
                return [_UNKNOWN]
            self._known[node] = [_UNKNOWN]  # of what leads to itself
            self._known[node] = list(dict.fromkeys(self._find(module, node, depth + 1)))
        return self._known[node]

    def _find(self, module: ModuleFacts, node: ast.expr, depth: int) -> Iterable[Origin]:
        if is_none(node):
            return []
        if isinstance(node, ast.Call):
            return self._of_call(module, node, depth)
        if isinstance(node, ast.Name):
            return self._of_name(module, node, depth)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(module, node, depth)
        parts: list[ast.expr] = []
        if isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            parts = node.values
        elif isinstance(node, (ast.NamedExpr, ast.Await)):
            parts = [node.value]
        return [o for part in parts for o in self._origins(module, part, depth)] or [_UNKNOWN]

    def _of_call(self, module: ModuleFacts, call: ast.Call, depth: int) -> Iterator[Origin]:
        function = call.func
        if isinstance(function, ast.Attribute):
            if function.attr in _SAME or function.attr in ("eval", "train"):
                for origin in self._origins(module, function.value, depth):
                    sets = function.attr not in _SAME
                    yield replace(origin, evaluated=_evaluates(call)) if sets else origin
                return
            made = self._class_named(module, function.value)
            if made in self._roots and not self._is_of_objects(made, function.attr):
                yield Origin(made)  # Model.from_pretrained(path), Model.build(config)
                return
        if any(t.name.startswith(_WRAPPERS) for t in module.resolve(function)) and call.args:
            yield from self._origins(module, call.args[0], depth)
            return
        made = self._class_named(module, function)
        if made is not None:
            yield Origin(made)
            return
        known = False
        for home, callee in self._callees(module, call):
            for value, _ in results(callee):
                known = True
                yield from self._origins(home, value, depth)
        if not known:
            yield _UNKNOWN

    def _of_name(self, module: ModuleFacts, node: ast.Name, depth: int) -> Iterator[Origin]:
        function, at = module.function(node), module.statement(node)
        if at is function:  # in its head: a default, a decorator
            function = module.function(at)
        cls = module.method_class(function)
        if cls is not None and node.id == self_name(function):
            yield Origin(class_id(module, cls))
            return
        found = list(self._of_local(module, node, function, depth))
        if any(origin.made in self._roots for origin in found):
            text = module.text if function is None else module.source(function)
            if _puts_into_evaluation(text, node.id):
                found = [replace(origin, evaluated=True) for origin in found]
        yield from found

    def _of_local(
        self, module: ModuleFacts, node: ast.Name, function: FunctionNode | None, depth: int
    ) -> Iterator[Origin]:
        reaching: Iterable[Definition] = ()
        if function is not None:
            reaching = module.flow(function).reaching(node.id, module.statement(node))
        for definition in reaching:
            if definition.is_parameter and function is not None:
                yield from self._of_parameter(module, function, node.id, depth)
            elif definition.value is not None and definition.index is None:
                plain = isinstance(definition.statement, (ast.Assign, ast.AnnAssign))
                value = definition.value
                yield from self._origins(module, value, depth) if plain else [_UNKNOWN]
            else:
                yield _UNKNOWN
        if not reaching:
            yield from self._of_bindings(module, module.names.visible(node), depth)

    def _of_bindings(
        self, module: ModuleFacts, bindings: Iterable[Binding], depth: int
    ) -> Iterator[Origin]:
        for binding in bindings:
            if binding.value is not None:
                yield from self._origins(module, binding.value, depth)
            elif isinstance(binding.node, (ast.ImportFrom, ast.alias)) and binding.qualified:
                at = _place(module, binding.qualified)
                other = self._file(at[0]) if at is not None else None
                name = at[1] if at is not None else ""
                found = other.names.bindings(other.tree).get(name, ()) if other else ()
                for each in found if depth < _MAX_DEPTH else ():
                    if other is not None and each.value is not None:
                        yield from self._origins(other, each.value, depth)
            else:
                yield _UNKNOWN

    def _file(self, path: str) -> ModuleFacts | None:
        return next((module for module in self.files if _path(module) == path), None)

    def _named(self, module: ModuleFacts, node: ast.expr) -> ClassId | None:
        """What a name stands for, if one of the files has it."""
        own = own_class(module, node)
        if own is not None:
            return class_id(module, own)
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        for target in module.resolve(node):
            at = None
            if target.name.rpartition(".")[2] in self._tops:
                at = _place(module, target.name)
            if at is not None:
                return at
        return None

    @property
    def _tops(self) -> set[str]:
        """The names of what the files have."""
        for module in self.files[self._seen :]:
            self._names |= {getattr(statement, "name", "") for statement in module.tree.body}
        self._seen = len(self.files)
        return self._names

    def _class_named(self, module: ModuleFacts, node: ast.expr) -> ClassId | None:
        """The class of one of the files that a name stands for."""
        at = self._named(module, node)
        if at is None:
            return None
        home = self._file(at[0])
        classes = home.classes if home is not None else ()
        return at if any(cls.name == at[1] for cls in classes) else None

    def _is_of_objects(self, made: ClassId, name: str) -> bool:
        """Whether a name of a class is one of its objects' methods, or gives something else.

        What no class in sight has is taken for a library's way to make one.
        """
        return any(self_name(method) is not None for _, method in self._methods(made, name))

    def _methods(self, cls: ClassId, name: str) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
        """The methods by a name that stand in a class of one of the files."""
        home = self._file(cls[0])
        for each in home.classes if home is not None else ():
            if home is not None and each.name == cls[1]:
                yield from ((home, f) for f in _functions(each) if f.name == name)

    def _callees(
        self, module: ModuleFacts, call: ast.Call, found_too: bool = False
    ) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
        """The functions that a call runs, ``__init__`` of a class among them.

        Of other files only those that are known; or ``found_too``, which then are.
        """
        function = call.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            holder = module.names.self_class(function.value)
            if holder is not None:
                yield from ((module, f) for f in _functions(holder) if f.name == function.attr)
                return
        if isinstance(function, ast.Attribute):
            made = self._class_named(module, function.value)  # Zoo.create()
            found = self._methods(made, function.attr) if made is not None else ()
            static = [(home, method) for home, method in found if self_name(method) is None]
            if static:
                yield from static
                return
        if isinstance(function, ast.Name):
            nodes = [b.node for b in module.names.visible(function)]
            local = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
            if local:
                yield from ((module, each) for each in local)
                return
        at = named(module, function) if found_too else self._named(module, function)
        home = self._file(at[0]) if at is not None else None
        if at is not None and home is None and found_too and len(self.files) < _MAX_FILES:
            home = module.project.load(Path(at[0]))
            if home is not None:
                self.files.append(home)  # it need not name the class
        for statement in home.tree.body if home is not None else ():
            if home is None or at is None or getattr(statement, "name", None) != at[1]:
                continue
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield home, statement
            elif isinstance(statement, ast.ClassDef):
                yield from ((home, f) for f in _functions(statement) if f.name == "__init__")

    def _of_parameter(
        self, module: ModuleFacts, function: FunctionNode, name: str, depth: int
    ) -> Iterator[Origin]:
        given = self._given.get((_path(module), function.lineno, name), set())
        yield from given
        default = default_of(function.args, name)
        if default is not None:
            yield from self._origins(module, default, depth)
        declared = annotated(module, function, name, self._named)
        yield from map(Origin, declared)
        if not given and not declared:
            yield _UNKNOWN

    def _of_attribute(
        self, module: ModuleFacts, node: ast.Attribute, depth: int
    ) -> Iterator[Origin]:
        holder = module.names.self_class(node.value) if isinstance(node.value, ast.Name) else None
        if holder is not None:
            yield from self._of_member(module, holder, node, depth)
            return
        known = False
        for origin in self._origins(module, node.value, depth):
            path, name = origin.made or ("", "")
            other = self._file(path)
            for cls in other.classes if other is not None else ():
                if other is not None and cls.name == name:
                    for each in self._of_member(other, cls, node, depth):
                        known = True
                        yield each
        if not known:
            yield _UNKNOWN

    def _of_member(
        self, module: ModuleFacts, cls: ast.ClassDef, node: ast.Attribute, depth: int
    ) -> Iterator[Origin]:
        values = [b.value for b in module.names.attributes(cls).get(node.attr, ())]
        text = module.source(cls)
        evaluated = _puts_into_evaluation(text, f"self.{node.attr}")
        evaluated = evaluated and f"self.{node.attr}.train(" not in text
        for value in values:
            for origin in self._origins(module, value, depth) if value is not None else ():
                yield replace(origin, evaluated=origin.evaluated or evaluated)
        given = self._given.get((_path(module), cls.lineno, node.attr), set())
        yield from given
        if not given and (not values or None in values):
            yield _UNKNOWN


# -- what there is in a file ----------------------------------------------------------------------


def _is_own(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an expression is the object of the method that it stands in."""
    if not isinstance(node, ast.Name):
        return False
    return node.id == self_name(module.function(node))


def class_id(module: ModuleFacts, cls: ast.ClassDef) -> ClassId:
    """What tells a class of a file from others of its name."""
    return _path(module), cls.name


def annotated(
    module: ModuleFacts,
    function: FunctionNode,
    name: str,
    stands_for: Callable[[ModuleFacts, ast.expr], ClassId | None] | None = None,
) -> list[ClassId]:
    """The classes that a parameter is declared to be; none where it may be any module."""
    argument = next((a for a in parameters(function.args) if a.arg == name), None)
    node = argument.annotation if argument is not None else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return []
    found: list[ClassId] = []
    for each in ast.walk(node) if node is not None else ():
        if not isinstance(each, (ast.Name, ast.Attribute)):
            continue
        word, own = last_name(each), own_class(module, each)
        if word in _ANY or word.endswith("Protocol") or len(word) == 1:
            return []
        if own is not None and any(last_name(base) in ("Protocol", "ABC") for base in own.bases):
            return []
        place = (stands_for or named)(module, each)
        if place is not None:
            found.append(place)
        elif word in _PLAIN:
            found.append(("", word))
    return found


_ANY = frozenset("Module Any Callable object ModuleType".split())
_PLAIN = frozenset("int float str bool bytes Tensor ndarray Path".split())


def named(module: ModuleFacts, node: ast.expr) -> ClassId | None:
    """The file of the project that has what a name stands for, and its name there.

    A class or a function: no other file is parsed to tell them apart.
    """
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return None
    own = own_class(module, node)
    if own is not None:
        return class_id(module, own)
    places = (_place(module, target.name) for target in module.resolve(node))
    return next((place for place in places if place is not None), None)


@once
def _place(module: ModuleFacts, qualified: str) -> ClassId | None:
    """The same of a qualified name, past packages that only hand it on."""
    for _ in range(_MAX_HANDED_ON):
        owner, _, name = qualified.rpartition(".")
        path = module.project.find_module(module, owner) if owner else None
        if path is None:
            return None
        beyond = next(iter(module.project.taken(path, name)), None)
        if beyond is None:
            return str(path.absolute()), name
        qualified = beyond
    return None


def _functions(cls: ast.ClassDef) -> Iterator[FunctionNode]:
    return (s for s in cls.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _parameter(
    module: ModuleFacts, function: FunctionNode, call: ast.Call, argument: ast.expr
) -> str:
    """The name of the parameter that an argument of a call becomes; empty where none shows."""
    for keyword in call.keywords:
        if keyword.value is argument:
            return keyword.arg or ""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    static = any(last_name(each) == "staticmethod" for each in function.decorator_list)
    if module.method_class(function) is not None and not static:
        names = names[1:]
    at = call.args.index(argument)
    starred = any(isinstance(a, ast.Starred) for a in call.args[: at + 1])
    return names[at] if at < len(names) and not starred else ""


def _field(cls: ast.ClassDef, call: ast.Call, argument: ast.expr) -> str:
    """The field of a dataclass that an argument becomes; empty for other classes."""
    if any(function.name == "__init__" for function in _functions(cls)):
        return ""
    fields = [last_name(s.target) for s in cls.body if isinstance(s, ast.AnnAssign)]
    named = next((k.arg for k in call.keywords if k.value is argument), None)
    at = call.args.index(argument) if named is None else -1
    name = named or (fields[at] if at < len(fields) else "")
    return name if name in fields else ""


def _evaluates(call: ast.Call) -> bool:
    """``model.eval()``, ``model.train(False)``."""
    if last_name(call.func) == "eval":
        return not call.args
    given = [*call.args, *(k.value for k in call.keywords)]
    return any(isinstance(g, ast.Constant) and g.value is False for g in given)


def _puts_into_evaluation(text: str, name: str) -> bool:
    return bool(
        re.search(
            rf"(?<![\w.]){re.escape(name)}\.(?:eval\(\)|train\((?:mode\s*=\s*)?False\))", text
        )
    )


def _path(module: ModuleFacts) -> str:
    return str(Path(module.path).absolute())
