"""Recognition: which op a call runs, and whether its arguments are understood."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeGuard

from ...catalog import CONSTANTS, BindError, FusedOp, forms, lookup, unverified_family
from ...facts import ModuleFacts, Target
from ...facts.dtypes import holds_codes
from ...facts.getters import given_by_functions, is_property
from ...facts.names import default_of, last_name, passed
from ...facts.operands import recognize, root_of
from ...facts.rebound import Set, set_by_others, set_in_module
from ...facts.views import is_allocation
from ...facts.walk import walk
from .meaning import Meaning, meaning
from .site import Site
from .words import words_for

if TYPE_CHECKING:
    from ...engine import Options

# Families of which an unverified kernel gives nothing that a gradient should flow through.
HARMLESS = (
    "backward",
    "bookkeeping",
    "cache",
    "collective",
    "layer",
    "misc",
    "quantize",
    "sampling",
)


PLAIN = frozenset(
    "view reshape transpose permute contiguous float half bfloat16 double to type_as size dim "
    "numel stride unsqueeze squeeze flatten expand expand_as repeat repeat_interleave split chunk "
    "unbind narrow clone detach item tolist cpu cuda masked_fill index_select sum mean pow exp "
    "append extend pop get items keys values format join startswith endswith __init__ "
    "register_buffer parameters modules from_pretrained post_init eval requires_grad_ backward "
    "new_empty new_zeros".split()
)
"""Methods of tensors, modules, lists and text, by none of which any op is called."""


class Ambiguous(Exception):
    """A callee may be a fused op, or another, or something else."""


def match(module: ModuleFacts, call: ast.Call, options: Options) -> tuple[FusedOp, Target] | None:
    """The op that a call runs; raises :class:`Ambiguous` where the code leaves it open."""
    own, releases = options.ops, options.releases
    if is_plain(call, own):
        return None
    entries = [module.resolve(entry) for entry in module.names.entries(call.func)]
    if entries:
        targets = tuple(dict.fromkeys(target for entry in entries for target in entry))
        unknown = not all(entries)
    else:
        targets, unknown, entries = _candidates(module, call, own)
    found: list[tuple[FusedOp, Target]] = []
    others: list[str] = []
    for target in targets:
        op = lookup(target.name, own, releases)
        if op is not None or target.name.startswith("torch."):
            handed_on: tuple[Target, ...] = (target,)
        else:
            handed_on = module.project.follow(module, target, words_for(own).exports)
        for each in handed_on:
            op = lookup(each.name, own, releases)
            if op is None:
                others.append(each.name)
                continue
            same = each.args == target.args and each.keywords == target.keywords
            if same and "[" not in target.name:  # an entry of a table is no name
                each = target
            found.append((op, each))
    if not any(op.cuts for op, _ in found):
        return found[0] if found else None
    if entries and (others or unknown or not all(op.cuts for op, _ in found)):
        return None  # a registry, in which kernels are some of many
    alike = all(op is found[0][0] for op, _ in found)
    meanings = {_meaning(module, call, *each) for each in found} if not alike else set()
    bound = {(target.args, target.keywords) for _, target in found}
    if len(meanings) > 1 or len(bound) > 1:
        names = sorted({target.name for _, target in found})
        raise Ambiguous(f"it may be {' or '.join(f'`{name}`' for name in names)}")
    if others or unknown:
        other = f"`{others[0]}`" if others else "something else"
        raise Ambiguous(f"it may be `{found[0][1].name}` or {other}")
    if any(isinstance(n, ast.Name) and n.end_lineno is None for n in found[0][1].bound):
        raise Ambiguous("what `partial` binds in another file is no constant")
    for place in _other_kernels(module, call, found[0], options):
        raise Ambiguous(f"it may be `{found[0][1].name}` or what {place} sets")
    return found[0]


def _meaning(module: ModuleFacts, call: ast.Call, op: FusedOp, target: Target) -> Meaning:
    """What a call computes if it runs this op; by the row alone where it does not fit that."""
    if op.equivalent is None:
        return ()
    row, bound, doubt = understood(op, target, call)
    said = None if bound is None or doubt else meaning(module, call, row, target, bound)
    return said or (op.equivalent, *(a.name for a in op.signature.arguments))


def _other_kernels(
    module: ModuleFacts, call: ast.Call, found: tuple[FusedOp, Target], options: Options
) -> Iterator[str]:
    """Where a name that a class, or a file, gives to an op becomes another one by somebody else."""
    op, known = found
    for other, value, line in _set_elsewhere(module, call.func):
        if isinstance(value, ast.Constant):
            continue
        targets = other.names.resolve(value) if value is not None else ()
        if not targets or not all(
            lookup(target.name, options.ops, options.releases) is op
            and _dumped(target) == _dumped(known)
            for target in targets
        ):
            yield f"line {line}" if other is module else f"{other.path}:{line}"


def _set_elsewhere(module: ModuleFacts, callee: ast.expr) -> Iterator[Set]:
    if isinstance(callee, ast.Name):
        found = module.names.visible(callee)
        at_top = module.names.bindings(module.tree).get(callee.id, ())
        if any(binding.value is not None and binding in at_top for binding in found):
            yield from set_in_module(module, callee.id)
    elif isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name):
        cls = module.names.self_class(callee.value)
        if cls is None:  # Ops.norm
            found = module.names.visible(callee.value)
            cls = next((b.node for b in found if isinstance(b.node, ast.ClassDef)), None)
        if cls is not None:
            yield from set_by_others(module, cls, callee.attr)


def _dumped(target: Target) -> list[str]:
    """What ``partial`` binds, to be compared between files."""
    return [ast.dump(node) for node in (*target.args, *target.keywords)]


def _candidates(
    module: ModuleFacts, call: ast.Call, own: tuple[FusedOp, ...]
) -> tuple[tuple[Target, ...], bool, list[tuple[Target, ...]]]:
    """Everything that a callee can be, whether it can be something else, and of what registry.

    A function that returns one thing or another is such a one.
    """
    targets, unknown = module.names.candidates(call.func)
    if not targets or is_property(module, call.func):
        given = given_by_functions(module, call.func, words_for(own).tells_exports)
        if given:
            return given, False, [given] if len(given) > 1 else []
    if not any(lookup(target.name, own) for target in targets):
        otherwise = _defaults(module, call.func)
        return (*targets, *otherwise), unknown or bool(otherwise), []
    return targets, unknown, []


def _defaults(module: ModuleFacts, callee: ast.expr) -> tuple[Target, ...]:
    """What a callee is where nothing else is given, by its own name or as ``self.name``.

    The default of a parameter, or that of ``getattr(library, "norm", norm)``.
    """
    held = callee
    if isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name):
        cls = module.names.self_class(callee.value)
        bindings = module.names.attributes(cls).get(callee.attr, ()) if cls is not None else ()
        held = (bindings[0].value or held) if len(bindings) == 1 else held
    elif isinstance(callee, ast.Name):
        bindings = module.names.visible(callee)
        held = (bindings[0].value or held) if len(bindings) == 1 else held
    usual: ast.expr | None = None
    if isinstance(held, ast.Name):
        function = module.function(held)
        usual = default_of(function.args, held.id) if function is not None else None
    elif isinstance(held, ast.Call) and last_name(held.func) == "getattr" and len(held.args) == 3:
        usual = held.args[2]
    return module.resolve(usual) if isinstance(usual, (ast.Name, ast.Attribute)) else ()


def is_plain(call: ast.Call, own: tuple[FusedOp, ...]) -> bool:
    """Whether a call is that of a method by whose name no op goes, without a look at its owner."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in PLAIN:
        return False
    return not any(name.rpartition(".")[2] == function.attr for op in own for name in op.names)


def op_of(module: ModuleFacts, call: ast.Call, options: Options) -> FusedOp | None:
    """The op that a call runs, wherever the call stands; None where the code leaves it open."""
    try:
        matched = match(module, call, options)
    except Ambiguous:
        return None
    return matched[0] if matched else None


def site_of(module: ModuleFacts, call: ast.Call, options: Options) -> Site | None:
    """A call of an op that has an equivalent for it, wherever the call stands."""
    try:
        matched = match(module, call, options)
        if matched is None or matched[0].equivalent is None:
            return None
        op, bound, doubt = understood(*matched, call)
    except Ambiguous:
        return None
    if bound is None or doubt:
        return None
    site = Site(module, call, op, matched[1], bound)
    return None if site.unsupported() else site


def understood(
    op: FusedOp, target: Target, call: ast.Call
) -> tuple[FusedOp, dict[str, ast.expr | None] | None, str]:
    """The row that a call fits, its arguments by name, and why none fits, or none seems to.

    Where releases took other arguments by the same name, the call tells which of them is meant.
    """
    first: dict[str, ast.expr | None] | None = None
    doubts = []
    rows = forms(target.name)
    for row in rows if op in rows else (op,):
        bound = None
        try:
            bound = bind(row, target, call)
            doubt = misread(row, bound)
        except BindError as error:
            doubt = str(error)
        if not doubt:
            return row, bound, ""
        first = bound if row is op else first
        doubts.append(doubt)
    return op, first, doubts[0]


def bind(op: FusedOp, target: Target, call: ast.Call) -> dict[str, ast.expr | None]:
    """Arguments by name; a keyword of the call overrides one bound by ``functools.partial``."""
    values = passed(call)
    if any(isinstance(node, ast.NamedExpr) for value in values for node in walk(value)):
        raise BindError("an argument is assigned to a name in the call")
    given: list[ast.keyword] = []
    for keyword in [*target.keywords, *call.keywords]:
        given = [k for k in given if k.arg is None or k.arg != keyword.arg or k in call.keywords]
        given.append(keyword)
    return op.signature.bind([*target.args, *call.args], given)


# What is passed by these names is a table, and what is expected by those is a list of integers.
_TABLES = re.compile(r"(\w*_)?(cos|sin)")
_INTEGERS = re.compile(r"\w*(indptr|offsets|positions|pos_ids|position_ids|seqlens\w*|indices)")

# Methods of tensors that give one.
_TENSORS = frozenset(
    "float half bfloat16 to type_as contiguous clone detach view reshape flatten unflatten squeeze "
    "unsqueeze transpose permute t expand empty empty_like zeros zeros_like new_empty".split()
)

# Formats whose scales are neither one number nor one for each row.
_BLOCKS = re.compile(r"float4_|float8_e8m0|BlockWise")


def misread(op: FusedOp, bound: Mapping[str, ast.expr | None]) -> str:
    """Why a call that fits the schema by number cannot mean it; empty where it can."""
    for name, node in bound.items():
        if node is not None and _INTEGERS.fullmatch(name) and _TABLES.fullmatch(root_of(node)):
            return f"`{root_of(node)}` is passed for {name!r}"
    tensors = {a.name for a in op.signature.arguments if a.is_tensor}
    numbers = {a.name for a in op.signature.arguments if a.type in ("int", "float", "bool")}
    for name in tensors & bound.keys():  # of a fork that takes others by the same name
        node = bound[name]
        if isinstance(node, ast.Name) and node.id in numbers:
            return f"`{node.id}` is passed for {name!r}"
    for name in numbers & bound.keys():  # of a release that took others
        node = bound[name]
        if isinstance(node, ast.Name) and node.id in tensors:
            return f"`{node.id}` is passed for {name!r}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _TENSORS:
                return f"`{ast.unparse(node)}` is passed for {name!r}"
    if op.equivalent is not None and op.equivalent.startswith("scaled_mm("):
        for node in bound.values():
            for part in walk(node) if node is not None else ():
                if isinstance(part, ast.Attribute) and _BLOCKS.match(part.attr):
                    return f"`{part.attr}` stands for codes with a scale for each block"
    return ""


def unverified_kernel(module: ModuleFacts, call: ast.Call) -> Target | None:
    relevant = words_for(()).tells_exports
    targets = module.resolve(call.func) or given_by_functions(module, call.func, relevant)
    for target in targets:
        if of_extension(target):
            return target
        family = unverified_family(target.name)
        if family is not None and family not in HARMLESS and takes_a_tensor(call, target):
            return target
    return None


_BOOKS = re.compile(
    r"(^|_)(\w*quant\w*|bwd|backward|grad|copy|cache|index|ids|topk|sample|pack|repack|sort"
    r"|re(arrange|order)_(\w+_)?weights?)(_|$)"
)


def keeps_books(call: ast.Call) -> bool:
    """Whether the name of what is called says that it gives indices, codes or a gradient."""
    return _BOOKS.search(last_name(call.func)) is not None


def filled_buffers(module: ModuleFacts, call: ast.Call) -> list[str]:
    """The fresh buffers that a call whose result nobody takes is there to fill, in backticks."""
    statement = module.statement(call)
    function = module.function(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call or function is None:
        return []
    if keeps_books(call):
        return []
    flow = module.flow(function)
    made = {
        node.id: flow.only_definition(node.id, statement)
        for node in call.args
        if isinstance(node, ast.Name) and flow.read_after(node.id, statement)
    }
    return [
        f"`{name}`"
        for name, d in made.items()
        if d is not None and d.value is not None and is_allocation(d.value)
        if not holds_codes(module, d.value)
    ]


def of_extension(target: Target) -> bool:
    """Whether a function is one of a CUDA extension that the code builds itself."""
    return target.name.startswith("torch.utils.cpp_extension.load().")


def by_operands(
    module: ModuleFacts, call: ast.Call, target: Target, rule: str, message: str
) -> Site | None:
    """A call whose meaning only the name of the kernel and those of its operands tell."""
    if target.args or target.keywords or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return None
    op = recognize(module, call, target.name)
    if op is None:
        return None
    return Site(
        module, call, op, target, op.signature.bind(call.args, call.keywords), rule, message
    )


def takes_a_tensor(call: ast.Call, target: Target) -> bool:
    """Whether an argument is something else than a number, a shape or a constant's name."""
    values = [*call.args, *target.args]
    values += [k.value for k in (*call.keywords, *target.keywords) if k.arg not in CONSTANTS]
    return any(map(may_be_trained, values))


def may_be_trained(node: ast.expr) -> bool:
    """The same of one argument."""
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Tuple, ast.List, ast.IfExp)):
        return any(may_be_trained(n) for n in ast.iter_child_nodes(node) if _is_value(n))
    if isinstance(node, ast.Call):
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
        return name not in ("size", "numel", "dim", "stride", "item", "len", "int", "float")
    if isinstance(node, ast.Attribute):
        return node.attr not in CONSTANTS | {"shape", "dtype", "device", "ndim"}
    return isinstance(node, ast.Starred) or (
        isinstance(node, ast.Name) and node.id not in CONSTANTS and not node.id.isupper()
    )


def _is_value(node: ast.AST) -> TypeGuard[ast.expr]:
    return isinstance(node, ast.expr) and not isinstance(node, ast.Slice)
