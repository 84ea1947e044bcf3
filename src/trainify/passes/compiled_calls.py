"""TRN108 for extensions that the project compiles itself: what is called works on raw memory.

Which calls these are, the project's own ``setup.py`` or ``load`` says, and what a function does is
read in its C++ and CUDA sources: what they compute with ATen's operations has a gradient, what they
write through pointers has none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.choices import only_chooses
from ..facts.dtypes import holds_codes
from ..facts.extensions import (
    Extension,
    built_around,
    effect_of,
    hands_on,
    loaded_around,
    loaded_in,
)
from ..facts.guards import gradient_unwanted, is_operator, serves_backward
from ..facts.integers import holds_integers
from ..facts.names import last_name, passed
from ..facts.words import declare, places
from ..findings import Finding
from . import Look, Needle, Rule
from .fused_calls import writes_backwards
from .fused_calls.calls import (
    Ambiguous,
    by_operands,
    is_plain,
    keeps_books,
    match,
    may_be_trained,
    unverified_kernel,
)
from .raw_launches import allocated

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts import Project
    from ..facts.flow import Definition
    from ..facts.module import FunctionNode
    from ..facts.native import Effect

RULES: tuple[Rule, ...] = ()

_EXTENSION, _OPERATORS = declare(b"cpp_extension", b"torch.ops.")
_IMPORTS = declare(b"from .", b"\nfrom ", b"\nimport ", b"\ntry:")

NEEDLES: tuple[Needle, ...] = (_EXTENSION, _OPERATORS, Look(_IMPORTS, bool))


def concerns(data: bytes, path: str, project: Project, options: Options) -> bool:
    if places(data, _EXTENSION) or hands_on(data, path, project):
        return True
    built = built_around(project, path)
    if any(_is_mentioned(data, extension) for extension in built):
        return True
    if not places(data, _OPERATORS):
        return False
    return any(_is_mentioned(data, extension) for extension in loaded_around(project, path))


def _is_mentioned(data: bytes, extension: Extension) -> bool:
    leaf = re.escape(extension.name.rpartition(".")[2].encode())
    if leaf and re.search(rb"\b%s\b" % leaf, data):
        return True
    if b"torch.ops." not in data:
        return False
    spaces = {name.partition(".")[0].encode() for name in extension.operators}
    return any(b"torch.ops.%s." % space in data for space in spaces)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    known = [*built_around(module.project, module.path), *loaded_in(module)]
    if "torch.ops." in module.usual:
        known += loaded_around(module.project, module.path)
    for call in module.calls:
        if is_plain(call, options.ops) or keeps_books(call):
            continue
        effect = _effect(module, call, known)
        if effect is None or _is_told_elsewhere(module, call, options):
            continue
        message = _message(module, call, effect)
        if message and not _is_meant(module, call):
            yield module.finding("TRN108", message, call)


def _effect(module: ModuleFacts, call: ast.Call, known: Sequence[Extension]) -> Effect | None:
    """What a call does with raw memory, if it is one of a function of the project's own C++."""
    loaded = effect_of(module, call.func)
    if loaded is not None:
        return loaded
    if not any(_has(extension, call.func) for extension in known):
        return None
    for target in module.resolve(call.func):
        if target.args or target.keywords:
            continue
        owner, _, name = target.name.removesuffix(".default").rpartition(".")
        for extension in known:
            if owner.startswith("torch.ops."):
                operator = f"{owner.removeprefix('torch.ops.')}.{name}"
                effect = extension.operators.get(operator)
                if effect is not None and _has_formula(module, name):
                    effect = None
            elif extension.name and _is_imported_as(module, owner, extension.name):
                effect = extension.functions.get(name)
            else:
                continue
            if effect is not None:
                return effect
    return None


def _is_imported_as(module: ModuleFacts, owner: str, name: str) -> bool:
    """Whether an import means an extension: nothing else of that name is there, and its package is.

    A build file may leave out the packages that a module goes into.
    """
    if not f".{owner}".endswith(f".{name}"):
        return False
    if module.project.find_module(module, owner) is not None:
        return False
    package = owner.removesuffix(name).rstrip(".")
    return not package or _is_here(module, package)


def _is_here(module: ModuleFacts, package: str) -> bool:
    """Whether a package, which may do without ``__init__.py``, is one of the project."""
    if module.project.find_module(module, package) is not None:
        return True
    folder = package.replace(".", "/")
    return any((above / folder).is_dir() for above in Path(module.path).absolute().parents)


def _has(extension: Extension, callee: ast.expr) -> bool:
    """Whether a function of an extension may be called by an expression, told by its names."""
    if isinstance(callee, ast.Name):
        return True  # it may go by another name
    names = {last_name(callee)}
    if isinstance(callee, ast.Attribute):
        names.add(last_name(callee.value))  # torch.ops.ns.name.default
    operators = {name.partition(".")[2] for name in extension.operators}
    return not names.isdisjoint(extension.functions) or not names.isdisjoint(operators)


def _has_formula(module: ModuleFacts, name: str) -> bool:
    """Whether Python registers a backward for an operator, here or in another file."""
    word = re.escape(name)
    pattern = rf"register_autograd[^\n]*\n?[^\n]*\b{word}\b|\b{word}\b[\"'][^\n]*Autograd"
    if re.search(pattern, module.usual):
        return True
    return module.project.says(module, pattern.encode())


def _is_told_elsewhere(module: ModuleFacts, call: ast.Call, options: Options) -> bool:
    """Whether the catalog knows what is called, by its name or by its operands."""
    try:
        if match(module, call, options) is not None:
            return True
    except Ambiguous:
        return True
    kernel = unverified_kernel(module, call)
    return kernel is not None and by_operands(module, call, kernel, "TRN108", "") is not None


# -- what is there to say -------------------------------------------------------------------------


def _message(module: ModuleFacts, call: ast.Call, effect: Effect) -> str:
    """What a call cuts; empty where nothing that a gradient could pass."""
    name = module.source(call.func)
    fresh = allocated(module, call)
    written = [node for node in _written(call, effect) if not _holds_none(module, node, fresh)]
    others = [node for node in passed(call) if node not in written and not holds_integers(node)]
    taken = any(may_be_trained(node) and not _is_cut(module, node) for node in others)
    if written:
        overwritten = [n for n in written if not (isinstance(n, ast.Name) and n.id in fresh)]
        lies = any(not _is_cut(module, node) for node in overwritten)
        if all(isinstance(n, ast.Attribute) for n in written) or not (taken or lies):
            return ""
        listed = ", ".join(f"`{module.source(node)}`" for node in written)
        if not overwritten:
            return (
                f"`{name}` fills {listed} below autograd (`{effect.at}`): no gradient reaches its "
                "inputs."
            )
        olds = ", ".join(f"`{module.source(node)}`" for node in overwritten)
        keeps = "keeps its old grad_fn if it has one"
        if len(overwritten) > 1:
            keeps = "keep their old grad_fn if they have one"
        return (
            f"`{name}` writes {listed} below autograd (`{effect.at}`): {olds} {keeps}, so what "
            f"comes before gets a wrong gradient{', its other inputs none' if taken else ''}."
        )
    if not effect.result or not taken or not _is_used(module, call):
        return ""
    return (
        f"`{name}` computes its result below autograd (`{effect.at}`), and shows no backward: no "
        "gradient reaches its inputs."
    )


def _written(call: ast.Call, effect: Effect) -> list[ast.expr]:
    """The arguments of a call that are written, as far as it shows which they are."""
    found = []
    for index, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            break
        if index in effect.writes:
            found.append(argument)
    names = {effect.parameters[index] for index in effect.writes}
    return found + [keyword.value for keyword in call.keywords if keyword.arg in names]


def _holds_none(module: ModuleFacts, node: ast.expr, fresh: Mapping[str, Definition]) -> bool:
    """Whether what is written holds integers or codes, which have no gradient."""
    if holds_integers(node):
        return True
    made = fresh.get(node.id) if isinstance(node, ast.Name) else None
    return made is not None and made.value is not None and holds_codes(module, made.value)


_CUTS = frozenset(
    "detach argmax argmin argsort nonzero bool int long item tolist size dim numel stride".split()
)


def _is_cut(module: ModuleFacts, node: ast.expr, depth: int = 3) -> bool:
    """Whether a value shows that it has no gradient: ``x.detach()``, and what is made of it."""
    if isinstance(node, ast.Name) and depth:
        flow = module.flow(module.function(node) or module.tree)
        made = flow.only_definition(node.id, module.statement(node))
        value = made.value if made is not None and made.index is None else None
        return value is not None and _is_cut(module, value, depth - 1)
    if isinstance(node, ast.Attribute):
        return node.attr in ("data", "shape")
    if isinstance(node, ast.BinOp):
        return _is_cut(module, node.left, depth) and _is_cut(module, node.right, depth)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _CUTS
    return isinstance(node, ast.Constant)


def _is_used(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether the result of a call is more than an index."""
    statement = module.statement(call)
    if isinstance(statement, ast.Expr) and statement.value is call:
        return False
    if isinstance(statement, ast.Assign) and statement.value is call:
        targets = [
            e for t in statement.targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])
        ]
        if all(map(holds_integers, targets)):
            return False
    return not only_chooses(module, call)


_PREPARES = re.compile(
    r"(^|_)(__getitem__|__iter__|collate\w*|pre_?process\w*|augment\w*|tokenize|voxelize|test|bench|"
    r"benchmark|profile|timeit|visuali[sz]e|export)(_|$)|^__(getitem|iter|next)__$"
)
_DATA = re.compile(r"(Dataset|Sampler|Loader|DataModule|Transform|Collator|Processor|TestCase)$")


def _is_meant(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether no gradient is wanted of a call, or something else has a backward for it."""
    if gradient_unwanted(module, call) or writes_backwards(module):
        return True
    function: FunctionNode | None = module.function(call)
    if function is not None:
        if is_operator(module, function) or serves_backward(module, function):
            return True
    while function is not None:
        cls = module.method_class(function)
        if _PREPARES.search(function.name):
            return True
        if cls is not None and any(
            _DATA.search(name) for name in (cls.name, *map(last_name, cls.bases))
        ):
            return True
        function = module.function(function)
    return False
