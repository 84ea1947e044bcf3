"""What an expression may be: one of some objects, what makes one, or what holds one.

By construction, through factories, containers, annotations, attributes and arguments, over files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..called import functions_in
from ..flow import Definition
from ..graph import results
from ..layers import own_class
from ..memo import once
from ..names import Binding, base_name, default_of, is_none, passed, self_name
from ..walk import statements, walk
from .naming import ClassId, annotated, class_id, named, path_of, place_of
from .puts import puts

if TYPE_CHECKING:
    from ..module import FunctionNode, ModuleFacts

_SAME = frozenset(
    "to cuda cpu half bfloat16 float double type apply requires_grad_ share_memory".split()
)
_WRAPPERS = (
    "torch.compile",
    "torch.jit.script",
    "torch.nn.DataParallel",
    "torch.nn.parallel.",
    "torch.nn.Sequential",
    "copy.deepcopy",
    "copy.copy",
)
"""What runs as one of the objects that it is made of."""
_SAME_HOLDERS = (
    *("torch.nn.ModuleList", "torch.nn.ModuleDict", "collections.deque"),
    *("collections.OrderedDict", "itertools.chain", "itertools.cycle", "itertools.islice"),
)
"""What holds what one that it is given does."""
_SAME_BUILTINS = frozenset("list tuple set frozenset dict sorted reversed iter filter".split())
_TAKING = frozenset("get pop popleft setdefault".split())
"""Methods of containers that give something that is in them."""
_PROPERTIES = frozenset({"property", "cached_property"})
_LOOPS = (ast.For, ast.AsyncFor)
_SCOPES = (ast.With, ast.AsyncWith)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict, *_COMPREHENSIONS)
_MAX_DEPTH = 20
_MAX_EXPRESSIONS = 20_000
"""More expressions than this are not asked what they may be, which takes about a second."""
MAX_FILES = 40
"""More files than this are not read for the objects of one class."""


@dataclass(frozen=True)
class Origin:
    """One thing that an expression may be; ``made`` is None where that does not show.

    An object of the class; or, where it ``makes`` one, the class itself or a function that gives
    such an object; or a list, a dict or the like with either in it, so many times ``held``.
    """

    made: ClassId | None
    evaluated: bool = False
    makes: bool = False
    held: int = 0


_UNKNOWN = Origin(None)


class Origins:
    """What the expressions of some files may be.

    ``roots`` are the classes whose objects are looked for, each with that of the forward it has.
    """

    def __init__(self, files: Sequence[ModuleFacts], roots: dict[ClassId, ClassId]) -> None:
        self.files = list(files)
        self._roots = roots
        self._given: dict[tuple[str, int, str], dict[Origin, None]] = {}
        """What calls give to parameters and fields, by file, line of the ``def``, and name.

        In their order: what is asked first decides what is still asked when there is too much.
        """
        self._known: dict[ast.expr, list[Origin]] = {}
        self._names: set[str] = set()
        self._seen = 0
        self._left = _MAX_EXPRESSIONS

    def _origins(self, module: ModuleFacts, node: ast.expr, depth: int = 0) -> list[Origin]:
        if node not in self._known:
            if depth > _MAX_DEPTH or self._left < 0:
                return [_UNKNOWN]
            self._left -= 1
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
        if isinstance(node, (ast.Subscript, ast.Starred)):
            return _taken(self._origins(module, node.value, depth))
        if isinstance(node, ast.Lambda):
            return _makers(self._origins(module, node.body, depth))
        if isinstance(node, _DISPLAYS):
            return _holding(o for e in _elements(node) for o in self._origins(module, e, depth))
        parts: list[ast.expr] = []
        if isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            parts = node.values
        elif isinstance(node, (ast.NamedExpr, ast.Await)):
            parts = [node.value]
        return [o for part in parts for o in self._origins(module, part, depth)] or [_UNKNOWN]

    # -- calls ----------------------------------------------------------------------------------

    def _of_call(self, module: ModuleFacts, call: ast.Call, depth: int) -> Iterator[Origin]:
        function = call.func
        if isinstance(function, ast.Attribute):
            if function.attr in _SAME or function.attr in ("eval", "train"):
                for origin in self._origins(module, function.value, depth):
                    sets = function.attr not in _SAME
                    yield replace(origin, evaluated=evaluates(call)) if sets else origin
                return
            made = self._class_named(module, function.value)
            if made in self._roots and not self._is_of_objects(made, function.attr):
                yield Origin(made)  # Model.from_pretrained(path), Model.build(config)
                return
            held = [o for o in self._origins(module, function.value, depth) if o.held]
            if held and function.attr in _TAKING:
                yield from _taken(held)
                return
            if held and function.attr in ("values", "copy", "items"):
                yield from _holding(held) if function.attr == "items" else held
                return
        made = self._class_named(module, function)
        if made is not None:
            yield Origin(made)
            return
        if isinstance(function, ast.Name) and function.id == "super":
            cls = module.method_class(module.function(call))
            bases = self._bases(module, cls) if cls is not None else ()
            yield from [Origin(class_id(*base)) for base in bases] or [_UNKNOWN]
            return
        if (of_library := self._of_library(module, call, depth)) is not None:
            yield from of_library
            return
        known = False
        for home, callee in self._callees(module, function, depth):
            for origin in self._results(home, callee, depth):
                known = True
                yield origin
        if not known:
            makers = [o for o in self._origins(module, function, depth) if o.makes and not o.held]
            yield from (replace(origin, makes=False) for origin in makers)
            if not makers:
                yield _UNKNOWN

    def _of_library(
        self, module: ModuleFacts, call: ast.Call, depth: int
    ) -> Iterable[Origin] | None:
        """What functions of libraries make of what they are given; None for those not known."""
        function = call.func
        given = passed(call)
        if not given:
            return None
        if isinstance(function, ast.Name) and not module.names.visible(function):  # a builtin
            if function.id in _SAME_BUILTINS:
                named = [keyword.value for keyword in call.keywords]
                return [
                    *(o for each in call.args for o in self._origins(module, each, depth)),
                    *_holding(o for each in named for o in self._origins(module, each, depth)),
                ]
            if function.id in ("zip", "enumerate"):
                return _holding(o for each in given for o in self._origins(module, each, depth))
            if function.id == "next":
                return _taken(self._origins(module, given[0], depth))
            if function.id == "type":
                return _makers(self._origins(module, given[0], depth))
            return self._got(module, call, depth) if function.id == "getattr" else None
        names = [target.name for target in module.resolve(function)]
        if any(name.startswith((*_WRAPPERS, *_SAME_HOLDERS)) for name in names):
            return [o for each in given for o in self._origins(module, each, depth)]
        if "functools.partial" in names:
            node = given[0]
            if isinstance(node, ast.Attribute) and node.attr in ("forward", "__call__"):
                node = node.value
            return self._origins(module, node, depth)
        if "random.choice" in names:
            return _taken(self._origins(module, given[0], depth))
        return None

    def _got(self, module: ModuleFacts, call: ast.Call, depth: int) -> Iterable[Origin] | None:
        """``getattr(self, "net")``."""
        name = call.args[1] if len(call.args) > 1 else None
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            return None
        node = ast.Attribute(value=call.args[0], attr=name.value, ctx=ast.Load())
        return self._of_attribute(module, node, depth)

    def _results(self, home: ModuleFacts, function: FunctionNode, depth: int) -> Iterator[Origin]:
        """What a function gives; what it yields, to a loop or to a ``with``."""
        for value, _ in results(function):
            yield from self._origins(home, value, depth)
        for statement in statements(function):
            node = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(node, (ast.Yield, ast.YieldFrom)) and node.value is not None:
                yield from _holding(self._origins(home, node.value, depth))

    def _callees(
        self, module: ModuleFacts, function: ast.expr, depth: int = 0, *, load: bool = False
    ) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
        """The functions that a call runs, ``__init__`` of a class among them.

        Of other files only those that are known; or ``load``, which then are.
        """
        if isinstance(function, ast.Attribute):
            if load:
                self._home(module, function.value)
            methods = list(self._methods_called(module, function, depth))
            if methods:
                yield from methods
                return
        if isinstance(function, ast.Name):
            nodes = [b.node for b in module.names.visible(function)]
            local = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
            if local:
                yield from ((module, each) for each in local)
                return
        at = named(module, function) if load else self._named(module, function)
        home = self._home(module, function) if load else self._file(at[0]) if at else None
        for statement in home.tree.body if home is not None else ():
            if home is None or at is None or getattr(statement, "name", None) != at[1]:
                continue
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield home, statement
            elif isinstance(statement, ast.ClassDef):
                yield from ((home, f) for f in functions_in(statement) if f.name == "__init__")

    def _home(self, module: ModuleFacts, node: ast.expr) -> ModuleFacts | None:
        """The file of what a name stands for, from now on one of these; it may name no class."""
        at = named(module, node)
        home = self._file(at[0]) if at is not None else None
        if at is not None and home is None and len(self.files) < MAX_FILES:
            home = module.project.load(Path(at[0]))
            if home is not None:
                self.files.append(home)
        return home

    def _methods_called(
        self, module: ModuleFacts, function: ast.Attribute, depth: int
    ) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
        """``self.make()``, ``Zoo.create()``, ``registry.build(name)``."""
        if isinstance(function.value, ast.Name):
            holder = module.names.self_class(function.value)
            if holder is not None:
                methods = (f for f in functions_in(holder) if f.name == function.attr)
                yield from ((module, method) for method in methods)
                return
        made = self._class_named(module, function.value)
        if made is not None:
            for home, method in self._methods(made, function.attr):
                if self_name(method) is None:
                    yield home, method
            return
        for origin in self._origins(module, function.value, depth):
            if origin.made is not None and not origin.makes and not origin.held:
                yield from self._methods(origin.made, function.attr)

    # -- names ----------------------------------------------------------------------------------

    def _of_name(self, module: ModuleFacts, node: ast.Name, depth: int) -> Iterator[Origin]:
        function, at = module.function(node), module.statement(node)
        if at is function:  # in its head: a default, a decorator
            function = module.function(at)
        cls = module.method_class(function)
        if cls is not None and node.id == self_name(function):
            yield Origin(class_id(module, cls))
            return
        generator = _generator(module, node)
        if generator is not None:
            yield from self._looped(module, generator.iter, generator.target, depth)
            return
        found = list(self._of_local(module, node, function, depth))
        if any(origin.made in self._roots for origin in found):
            text = module.text if function is None else module.source(function)
            if _puts_into_evaluation(text, node.id):
                found = [replace(origin, evaluated=True) for origin in found]
        yield from found
        yield from self._put_into(module, node.id, depth)

    def _of_local(
        self, module: ModuleFacts, node: ast.Name, function: FunctionNode | None, depth: int
    ) -> Iterator[Origin]:
        reaching: Iterable[Definition] = ()
        if function is not None:
            reaching = module.flow(function).reaching(node.id, module.statement(node))
        visible = not reaching
        for definition in reaching:
            made = definition.statement
            if made is None and function is not None:
                yield from self._of_parameter(module, function, node.id, depth)
            elif isinstance(made, (ast.Assign, ast.AnnAssign)) and definition.value is not None:
                found = self._origins(module, definition.value, depth)
                yield from found if definition.index is None else _taken(found)
            elif isinstance(made, _LOOPS):
                yield from self._looped(module, made.iter, made.target, depth)
            elif isinstance(made, _SCOPES):
                yield from self._entered(module, made, node.id, depth)
            elif isinstance(made, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
                visible = True
            else:
                yield _UNKNOWN
        if visible:
            yield from self._of_bindings(module, module.names.visible(node), depth)

    def _looped(
        self, module: ModuleFacts, iterated: ast.expr, target: ast.expr, depth: int
    ) -> Iterable[Origin]:
        """``for net in nets``, ``for name, net in nets.items()``."""
        found = _taken(self._origins(module, iterated, depth))
        return found if isinstance(target, ast.Name) else _taken(found)

    def _entered(
        self, module: ModuleFacts, scope: ast.With | ast.AsyncWith, name: str, depth: int
    ) -> Iterator[Origin]:
        """``with loaded() as net``: what the function yields, or what it gives."""
        for item in scope.items:
            if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name:
                found = self._origins(module, item.context_expr, depth)
                yield from found
                yield from _taken(found)

    def _of_bindings(
        self, module: ModuleFacts, bindings: Iterable[Binding], depth: int
    ) -> Iterator[Origin]:
        for binding in bindings:
            node = binding.node
            if binding.value is not None:
                yield from self._origins(module, binding.value, depth)
            elif isinstance(node, ast.ClassDef):
                yield Origin(class_id(module, node), makes=True)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = self._results(module, node, depth + 1) if depth < _MAX_DEPTH else ()
                yield from _makers(given)
            elif isinstance(node, _LOOPS):
                yield from self._looped(module, node.iter, node.target, depth)
            elif isinstance(node, (ast.ImportFrom, ast.alias)) and binding.qualified:
                yield from self._imported(module, binding.qualified, depth)
            else:
                yield _UNKNOWN

    def _imported(self, module: ModuleFacts, qualified: str, depth: int) -> Iterator[Origin]:
        """What a name stands for that another file gives."""
        at = place_of(module, qualified)
        other = self._file(at[0]) if at is not None else None
        if at is None or other is None or depth >= _MAX_DEPTH:
            return
        found = other.names.bindings(other.tree).get(at[1], ())
        yield from self._of_bindings(other, found, depth + 1)
        yield from self._put_into(other, at[1], depth)

    def _of_parameter(
        self, module: ModuleFacts, function: FunctionNode, name: str, depth: int
    ) -> Iterator[Origin]:
        given = self._given.get((path_of(module), function.lineno, name), {})
        yield from given
        default = default_of(function.args, name)
        if default is not None:
            yield from self._origins(module, default, depth)
        declared = annotated(module, function, name, self._named)
        yield from map(Origin, declared)
        if not given and not declared:
            yield _UNKNOWN

    def _put_into(self, module: ModuleFacts, name: str, depth: int) -> Iterator[Origin]:
        """``nets.append(net)``, ``NETS[name] = net``: what a container of this name may hold."""
        for value, times in puts(module).get(name, ()):
            for origin in self._origins(module, value, depth):
                if origin.made is not None and origin.held + times:
                    yield replace(origin, held=origin.held + times)

    # -- attributes -----------------------------------------------------------------------------

    def _of_attribute(
        self, module: ModuleFacts, node: ast.Attribute, depth: int
    ) -> Iterator[Origin]:
        holder = module.names.self_class(node.value)
        if holder is not None:
            yield from self._of_member(module, holder, node, depth)
            return
        if node.attr == "__class__":
            yield from _makers(self._origins(module, node.value, depth))
            return
        known = False
        for origin in self._origins(module, node.value, depth):
            path, name = origin.made if origin.made and not origin.held else ("", "")
            other = self._file(path)
            for cls in other.classes if other is not None else ():
                if other is not None and cls.name == name:
                    for each in self._of_member(other, cls, node, depth):
                        known = True
                        yield each
        for value, _ in puts(module).get(f".{node.attr}", ()):  # holder.net = net
            known = True
            yield from self._origins(module, value, depth)
        for target in module.resolve(node) if not known and base_name(node) else ():
            for each in self._imported(module, target.name, depth):  # models.NETS
                known = True
                yield each
        if not known:
            yield _UNKNOWN

    def _of_member(
        self, module: ModuleFacts, cls: ast.ClassDef, node: ast.Attribute, depth: int
    ) -> Iterator[Origin]:
        bindings = module.names.attributes(cls).get(node.attr, ())
        evaluated = node.attr in _evaluated_members(module, cls)
        known = bool(bindings)
        for binding in bindings:
            found: Iterable[Origin] = ()
            if binding.value is not None:
                found = self._origins(module, binding.value, depth)
            elif isinstance(binding.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found = self._of_method(module, binding.node, depth)
            else:
                known = False
            for origin in found:
                yield replace(origin, evaluated=origin.evaluated or evaluated)
        given = self._given.get((path_of(module), cls.lineno, node.attr), {})
        yield from given
        yield from self._put_into(module, node.attr, depth)
        if not bindings and not given:
            for home, base in self._bases(module, cls) if depth < _MAX_DEPTH else ():
                known = True
                yield from self._of_member(home, base, node, depth + 1)
        if not given and not known:
            yield _UNKNOWN

    def _bases(
        self, module: ModuleFacts, cls: ast.ClassDef
    ) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
        """The classes of the files that a class derives from, with their files."""
        for base in cls.bases:
            made = self._class_named(module, base)
            home = self._file(made[0]) if made is not None else None
            for each in home.classes if home is not None else ():
                if home is not None and made is not None and each.name == made[1]:
                    yield home, each

    def _of_method(
        self, module: ModuleFacts, function: FunctionNode, depth: int
    ) -> Iterable[Origin]:
        """A method that is not called here: what a property gives, else what makes that."""
        given = list(self._results(module, function, depth)) if depth < _MAX_DEPTH else []
        names = {getattr(d, "attr", getattr(d, "id", "")) for d in function.decorator_list}
        return given if names & _PROPERTIES else _makers(given)

    # -- classes --------------------------------------------------------------------------------

    def _file(self, path: str) -> ModuleFacts | None:
        return next((module for module in self.files if path_of(module) == path), None)

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
                at = place_of(module, target.name)
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
                yield from ((home, f) for f in functions_in(each) if f.name == name)


def _taken(origins: Iterable[Origin]) -> Iterator[Origin]:
    """What comes out of containers."""
    return (replace(origin, held=origin.held - 1) for origin in origins if origin.held)


def _holding(origins: Iterable[Origin]) -> Iterator[Origin]:
    """A container with these in it."""
    return (replace(origin, held=origin.held + 1) for origin in origins if origin.made is not None)


def _makers(origins: Iterable[Origin]) -> Iterator[Origin]:
    """A function that gives these."""
    plain = (o for o in origins if o.made is not None and not o.makes and not o.held)
    return (replace(origin, makes=True) for origin in plain)


def _elements(node: ast.expr) -> list[ast.expr]:
    """The expressions of what a display holds."""
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, ast.DictComp):
        return [node.value]
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return [node.elt]
    return node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []


def _generator(module: ModuleFacts, name: ast.Name) -> ast.comprehension | None:
    """The part of a comprehension whose variable a name is."""
    for around in module.ancestors(name):
        if isinstance(around, ast.stmt):
            return None
        for generator in around.generators if isinstance(around, _COMPREHENSIONS) else ():
            targets = walk(generator.target)
            if any(isinstance(node, ast.Name) and node.id == name.id for node in targets):
                return generator
    return None


def evaluates(call: ast.Call) -> bool:
    """``model.eval()``, ``model.train(False)``."""
    if getattr(call.func, "attr", "") == "eval":
        return not call.args
    return any(isinstance(g, ast.Constant) and g.value is False for g in passed(call))


@once
def _evaluated_members(module: ModuleFacts, cls: ast.ClassDef) -> frozenset[str]:
    """The attributes that a class puts into evaluation mode, and never into training."""
    text = module.source(cls)
    found = re.findall(rf"(?<![\w.])self\.(\w+){_EVALUATING}", text)
    return frozenset(name for name in found if f"self.{name}.train(" not in text)


def _puts_into_evaluation(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}{_EVALUATING}", text) is not None


_EVALUATING = r"\.(?:eval\(\)|train\((?:mode\s*=\s*)?False\))"
