"""Which classes are ``nn.Module``s, and which expressions make modules and parameters."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .names import last_name, self_name
from .walk import statements, walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

Made = Literal["parameter", "weights", "plain"]
"""A parameter, a module that has some, or a module without any (an activation, a loss)."""

_WITH_WEIGHTS = re.compile(
    r"(Lazy)?(Conv(Transpose)?[123]d|(Batch|Instance)Norm[123]d|Linear)$|"
    r"(Bilinear|Embedding(Bag)?|GroupNorm|LayerNorm|RMSNorm|SyncBatchNorm|PReLU)$|"
    r"(MultiheadAttention|Transformer\w*|(RNN|LSTM|GRU)(Cell)?)$"
)
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})
_PARAMETER_CONTAINERS = frozenset({"ParameterList", "ParameterDict"})
_FOREIGN_MODULE = re.compile(r"[a-z]Module$|PreTrainedModel$|ModelMixin$")
# The base classes by which vLLM and SGLang pick a forward for the platform.
PICKS_FORWARD = re.compile(r"CustomOp|BaseFusedOp|MultiPlatformOp")
_SAME_MODULE = frozenset("to cuda cpu half bfloat16 float double apply train type".split())
_WRAPPERS = ("torch.nn.utils.", "torch.compile", "torch.jit.script", "torch.jit.trace")
_MAX_DEPTH = 6


def is_module_class(module: ModuleFacts, cls: ast.ClassDef, depth: int = 0) -> bool:
    """Whether a class surely derives from ``nn.Module``."""
    if depth > _MAX_DEPTH:
        return False
    for base in cls.bases:
        for target in module.resolve(base, cls):
            if target.name.startswith("torch.nn."):
                return True
            if _is_module_base(module, cls, base, target.name, depth):
                return True
    return False


def _is_module_base(
    module: ModuleFacts, cls: ast.ClassDef, base: ast.expr, qualified: str, depth: int
) -> bool:
    """The same of one base; of another file's classes, which many derive from, asked once."""
    path = _other_file(module, base, qualified)
    known = module.project.module_classes
    if path is not None:
        if (path, qualified) in known:
            return known[path, qualified]
        known[path, qualified] = False  # for classes that derive from one another
        depth = 0
    home = definition_of(module, base, qualified)
    if home is None:
        found = _FOREIGN_MODULE.search(qualified.rpartition(".")[2]) is not None
    else:
        found = home[1] is not cls and is_module_class(*home, depth + 1)
    if path is not None:
        known[path, qualified] = found
    return found


def training_flag(module: ModuleFacts, function: FunctionNode | None) -> str | None:
    """``self.training`` in a method of an ``nn.Module``; None elsewhere.

    A class of another library is taken for one where its own ``__init__`` calls the one above, as a
    module's has to, or where it reads the flag already.
    """
    cls, me = module.method_class(function), self_name(function)
    if cls is None or me is None:
        return None
    flag = f"{me}.training"
    if is_module_class(module, cls) or any(
        PICKS_FORWARD.search(module.source(base)) for base in cls.bases
    ):
        return flag
    text = module.source(cls)
    told = flag in text or "super().__init__(" in text
    return flag if told and any(_is_foreign(module, cls, base) for base in cls.bases) else None


def may_be_module(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a class derives from ``nn.Module``, or from something that cannot be looked at."""
    return is_module_class(module, cls) or any(
        PICKS_FORWARD.search(module.source(base))
        or _is_foreign(module, cls, base)
        or not (module.resolve(base, cls) or hasattr(builtins, module.source(base)))
        for base in cls.bases
    )


def _is_foreign(module: ModuleFacts, cls: ast.ClassDef, base: ast.expr) -> bool:
    """Whether a base class, or one of its own, is of a library that cannot be looked at."""
    for target in module.resolve(base, cls):
        home = definition_of(module, base, target.name)
        if home is not None:
            owner, above = home
            if above is not cls and any(_is_foreign(owner, above, b) for b in above.bases):
                return True
        elif "." in target.name and target.name.split(".")[0] not in sys.stdlib_module_names:
            return True
    return False


def bases_of(module: ModuleFacts, cls: ast.ClassDef) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
    """The classes of the project that a class derives from, each with its file."""
    for base in cls.bases:
        yield from classes_named(module, base, cls)


def made_by(module: ModuleFacts, node: ast.expr, depth: int = 0) -> Made | None:
    """What a fresh module or parameter an expression makes; None where that does not show."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(node, ast.IfExp):
        arms = [made_by(module, arm, depth + 1) for arm in (node.body, node.orelse)]
        return None if None in arms else _most(arm for arm in arms if arm)
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_MODULE:
        return made_by(module, node.func.value, depth + 1)
    for target in module.resolve(node.func):
        if target.name.startswith(_WRAPPERS) and node.args:
            return made_by(module, node.args[0], depth + 1)
        if target.name.startswith("torch.nn."):
            return _made_by_torch(module, node, target.name.rpartition(".")[2], depth)
        home = definition_of(module, node.func, target.name)
        if home is not None and is_module_class(*home):
            return "weights" if has_weights(*home, depth + 1) else "plain"
    return _made_by_function(module, node.func, depth)


def _made_by_function(module: ModuleFacts, callee: ast.expr, depth: int) -> Made | None:
    """What a function of the file makes anew each time it is called."""
    if not isinstance(callee, ast.Name):
        return None
    functions = [binding.node for binding in module.names.visible(callee)]
    if len(functions) != 1 or not isinstance(functions[0], ast.FunctionDef):
        return None
    if functions[0].decorator_list:  # it may give the same one again
        return None
    returned = [n.value for n in statements(functions[0]) if isinstance(n, ast.Return)]
    kinds = [made_by(module, v, depth + 1) if v is not None else None for v in returned]
    return None if None in kinds or not kinds else _most(kind for kind in kinds if kind)


def has_weights(module: ModuleFacts, cls: ast.ClassDef, depth: int = 0) -> bool:
    """Whether a module class surely makes parameters of its own, or modules that have some."""
    if depth > _MAX_DEPTH:
        return False
    for bindings in module.names.attributes(cls).values():
        for binding in bindings:
            if binding.value is not None:
                if made_by(module, binding.value, depth + 1) in ("weights", "parameter"):
                    return True
    for base in cls.bases:
        for target in module.resolve(base, cls):
            name = target.name.rpartition(".")[2]
            if target.name.startswith("torch.nn.") and _WITH_WEIGHTS.match(name):
                return True
            home = definition_of(module, base, target.name)
            if home is not None and home[1] is not cls and has_weights(*home, depth + 1):
                return True
    return False


_WITHOUT_WEIGHTS = ("torch.nn.Module", "torch.nn.modules.module.Module", "abc.ABC")
_WITHOUT_MODULES = ("torch.", "math.", "numpy.", "functools.", "collections.", "copy.deepcopy")
_ADDS = frozenset({"register_parameter", "add_module", "register_module", "setattr"})


def is_empty(module: ModuleFacts, cls: ast.ClassDef, depth: int = 0) -> bool:
    """Whether a class surely has no parameters: a transform, a table, no module at all.

    What it is given, it only uses.
    """
    if depth > _MAX_DEPTH:
        return False
    for base in cls.bases:
        names = [t.name for t in module.resolve(base, cls)]
        if names and all(name in _WITHOUT_WEIGHTS for name in names):
            continue
        home = next((h for n in names if (h := definition_of(module, base, n)) is not None), None)
        if home is None or home[1] is cls or not is_empty(*home, depth + 1):
            return False
    for method in cls.body:
        for node in walk(method):
            if isinstance(node, ast.Call) and last_name(node.func) in _ADDS:
                return False
    return not any(
        _may_make_weights(module, node, depth)
        for bindings in module.names.attributes(cls).values()
        for binding in bindings
        if binding.value is not None
        for node in walk(binding.value)
        if isinstance(node, ast.Call)
    )


def _may_make_weights(module: ModuleFacts, call: ast.Call, depth: int) -> bool:
    names = [t.name for t in module.resolve(call.func)]
    if any(name.startswith("torch.nn.") for name in names):
        return made_by(module, call, depth + 1) != "plain"
    if names and all(name.startswith(_WITHOUT_MODULES) for name in names):
        return False
    for name in names:
        home = definition_of(module, call.func, name)
        if home is not None:
            return not is_empty(*home, depth + 1)
    if isinstance(call.func, ast.Name):
        function = module.function(call)
        given = function is not None and call.func.id in module.flow(function).parameters
        return not given and not hasattr(builtins, call.func.id)
    return isinstance(call.func, ast.Attribute) and call.func.attr[:1].isupper()


def _made_by_torch(module: ModuleFacts, call: ast.Call, name: str, depth: int) -> Made | None:
    if name == "Parameter":
        return "parameter"
    if name in _CONTAINERS:
        return _most(
            part
            for argument in call.args
            for element in elements(argument)
            if (part := made_by(module, element, depth + 1)) is not None
        )
    if name in _PARAMETER_CONTAINERS or _WITH_WEIGHTS.match(name):
        return "weights"
    return "plain" if name[:1].isupper() else None


def after_init(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether ``nn.Module.__init__`` has run when a module is assigned."""
    function = module.function(statement)
    if function is None or function.name != "__init__":
        return True
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "__init__"
        and node.lineno < statement.lineno
        for node in walk(function)
    )


def elements(node: ast.expr) -> Iterable[ast.expr]:
    """What a display or comprehension is made of; another expression is its own element."""
    if isinstance(node, ast.Starred):
        return elements(node.value)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [inner for element in node.elts for inner in elements(element)]
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return elements(node.elt)
    if isinstance(node, ast.Dict):
        return [inner for value in node.values for inner in elements(value)]
    if isinstance(node, ast.DictComp):
        return elements(node.value)
    return [node]


def _most(kinds: Iterable[Made]) -> Made:
    """What several parts make together."""
    return "weights" if {"weights", "parameter"} & set(kinds) else "plain"


def own_class(module: ModuleFacts, node: ast.expr) -> ast.ClassDef | None:
    """The class of this file that a name stands for."""
    found = module.names.visible(node) if isinstance(node, ast.Name) else []
    return next((b.node for b in found if isinstance(b.node, ast.ClassDef)), None)


def _other_file(module: ModuleFacts, node: ast.expr, qualified: str) -> Path | None:
    """The file of the project that a name is imported from."""
    owner = qualified.rpartition(".")[0]
    if not owner or own_class(module, node) is not None:
        return None
    path = module.project.find_module(module, owner)
    return None if path is None or path.absolute() == Path(module.path).absolute() else path


def imported_function(
    module: ModuleFacts, node: ast.expr
) -> tuple[ModuleFacts, ast.FunctionDef] | None:
    """The function of another file of the project that a call of ``node`` runs.

    A file that only hands it on is followed to the one that has it.
    """
    for target in module.resolve(node):
        found = _function_elsewhere(module, _other_file(module, node, target.name), target.name)
        if found is not None:
            return found
    return None


def _function_elsewhere(
    module: ModuleFacts, path: Path | None, qualified: str, depth: int = 3
) -> tuple[ModuleFacts, ast.FunctionDef] | None:
    other = module.project.load(path) if path is not None else None
    if other is None or depth == 0:
        return None
    for binding in other.names.bindings(other.tree).get(qualified.rpartition(".")[2], ()):
        if isinstance(binding.node, ast.FunctionDef):
            return other, binding.node
        if isinstance(binding.node, ast.ImportFrom) and binding.qualified is not None:
            owner = binding.qualified.rpartition(".")[0]
            beyond = other.project.find_module(other, owner)
            return _function_elsewhere(other, beyond, binding.qualified, depth - 1)
    return None


def classes_named(
    module: ModuleFacts, node: ast.expr, at: ast.stmt | None = None
) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
    """The classes of the project that a name stands for, each with its file; ``at`` as there."""
    for target in module.resolve(node, at):
        found = definition_of(module, node, target.name)
        if found is not None:
            yield found


def definition_of(
    module: ModuleFacts, node: ast.expr, qualified: str
) -> tuple[ModuleFacts, ast.ClassDef] | None:
    """The class behind a name: of this file, or imported from another one of the project."""
    own = own_class(module, node)
    if own is not None:
        return module, own
    path = _other_file(module, node, qualified)
    name = qualified.rpartition(".")[2]
    other = module.project.load(path) if path is not None else None
    for statement in other.tree.body if other is not None else ():
        if other is not None and isinstance(statement, ast.ClassDef) and statement.name == name:
            return other, statement
    return None
