"""What a kernel's operands are, by how they are written, and which op that makes the kernel.

A kernel from another package shows a name and a call.  The name tells what kind of kernel it is,
see :mod:`trainify.catalog.kinds`; a fresh buffer is its output, ``norm.weight`` the weight,
``x.shape[-1]`` and ``x.stride(0)`` are numbers.  Where that leaves anything open, there is no
answer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..catalog import FusedOp
from ..catalog.kinds import Kind, kinds_of
from .names import is_none, last_name, parameters
from .triton import computes, loaded, stored
from .views import is_allocation, is_view_method

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_ROLES = {
    "weight": re.compile(r"(\w*_)?(weights?|gamma)|w", re.IGNORECASE),
    "bias": re.compile(r"(\w*_)?(bias|beta)|b", re.IGNORECASE),
    "eps": re.compile(r"(\w*_)?(eps|epsilon)", re.IGNORECASE),
    "cos": re.compile(r"(\w*_)?cos(_\w+)?", re.IGNORECASE),
    "sin": re.compile(r"(\w*_)?sin(_\w+)?", re.IGNORECASE),
    "q": re.compile(r"(\w*_)?(q|query|queries|query_states|q_proj)", re.IGNORECASE),
    "k": re.compile(r"(\w*_)?(k|key|keys|key_states|k_proj)", re.IGNORECASE),
    "gate": re.compile(r"(\w*_)?(gate|g)(_proj)?", re.IGNORECASE),
    "up": re.compile(r"(\w*_)?(up|u)(_proj)?", re.IGNORECASE),
}
_STATISTIC = re.compile(r"(\w*_)?(mean|mu|rstd|rms|inv_rms|inv_std|std|var|variance|stats?|lse)")
_POINTER = re.compile(r"(_?(ptr|pointer|base))$|^p_?(?=[a-z])", re.IGNORECASE)
_COUNT = re.compile(
    r"[mndMND]|n_?(rows|cols|elements|heads|tokens)|num_\w+|\w+_(size|dim|len|rows|cols)|"
    r"(hidden|head|block|batch|seq)_?(size|dim|len)|size|dim|rows|cols|strides?\w*|grid"
)
_NUMBERS = frozenset("size stride numel dim ndimension item element_size".split())
_NUMBER_CALLS = frozenset("len int bool min max cdiv next_power_of_2 ceil_div".split())
_SETTINGS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_pdl", "grid"})


@dataclass(frozen=True)
class _Operand:
    """One argument of a call: ``name`` is a keyword, or the kernel's own parameter."""

    node: ast.expr
    name: str
    keyword: bool
    role: str


def recognize(
    module: ModuleFacts, call: ast.Call, name: str, kernel: FunctionNode | None = None
) -> FusedOp | None:
    """The op that a kernel of this name is as it is called, with its arguments as they stand.

    ``kernel`` is its source where there is one, which must agree.
    """
    kinds = kinds_of(name.rpartition(".")[2])
    if not kinds or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    launched = isinstance(call.func, ast.Subscript)
    operands = _operands(module, call, kernel)
    for kind in kinds:
        if launched <= kind.launched and (kernel is None or computes(kernel, kind)):
            op = _op(module, call, name, kind, operands, kernel)
            if op is not None:
                return op
    return None


def _op(
    module: ModuleFacts,
    call: ast.Call,
    name: str,
    kind: Kind,
    operands: Sequence[_Operand],
    kernel: FunctionNode | None,
) -> FusedOp | None:
    roles = _assigned(kind, operands, isinstance(call.func, ast.Subscript))
    if roles is None or not _agrees(kernel, roles, operands):
        return None
    if any(isinstance(operand.node, (ast.IfExp, ast.BoolOp)) for operand in roles):
        return None  # ``w if w is not None else x``: something is passed that is not read
    names: list[str] = []
    parts: list[str] = []
    keywords = False
    for operand in operands:
        role = roles.get(operand, "")
        shown = operand.name if operand.keyword else role or _number_name(operand.node)
        while shown in names or shown in ("torch", "F", "_"):
            shown += "_"
        names.append(shown)
        if operand.keyword and not keywords:
            parts.append("*")
            keywords = True
        parts.append(f"{_type(module, call, operand, role, kind)} {shown}")
    called = {
        role: n for operand, n in zip(operands, names, strict=True) for role in [roles.get(operand)]
    }
    text = re.sub(
        r"\b[a-z]+\b(?![.(])",
        lambda m: (called.get(m[0]) or "None") if m[0] in kind.known else m[0],
        kind.equivalent,
    )
    written = called.get("out")
    returns = "()" if written else f"({', '.join(['Tensor'] * kind.returns)})"
    note = f"; {kind.look_at}" if kind.look_at else ""
    return FusedOp(
        names=(name,),
        schema=f"{name.rpartition('.')[2]}({', '.join(parts)}) -> {returns}",
        equivalent=f"{written} = {text}" if written else text,
        source="its name and operands",
        look_at=f"`{name.rpartition('.')[2]}` must compute {kind.what}{note}",
    )


def _type(module: ModuleFacts, call: ast.Call, operand: _Operand, role: str, kind: Kind) -> str:
    if role == "out":
        return "Tensor(a!)"
    if role == "eps":
        return "float"
    if not role:
        return "Any"
    optional = f"{role}?" in kind.roles and _may_be_none(module, call, operand.node)
    return "Tensor?" if optional else "Tensor"


def _may_be_none(module: ModuleFacts, call: ast.Call, node: ast.expr) -> bool:
    text = module.source(node)
    if any(isinstance(k.arg, str) and k.arg.upper().startswith("HAS_") for k in call.keywords):
        return True
    function = module.function(call)
    if function is None or f"{text} is" in module.source(function):
        return True
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = function.args.defaults
    pairs = [*zip(positional[len(positional) - len(defaults) :], defaults, strict=True)]
    return any(a.arg == text and is_none(d) for a, d in pairs)


# -- roles ----------------------------------------------------------------------------------------


def _assigned(
    kind: Kind, operands: Sequence[_Operand], launched: bool
) -> dict[_Operand, str] | None:
    """The role of each operand that has one; None where they do not make this kind of kernel."""
    roles: dict[_Operand, str] = {}
    tensors: list[_Operand] = []
    for operand in operands:
        if operand.role in ("number", "statistic"):
            continue
        if operand.role == "fresh":
            if "out" in roles.values():
                return None
            roles[operand] = "out"
        elif operand.role in kind.known and operand.role not in roles.values():
            roles[operand] = operand.role
        else:
            tensors.append(operand)
    missing = [r for r in kind.roles if not r.endswith("?") and r not in roles.values()]
    if len(tensors) != len(missing) or len(tensors) > 1 or "eps" in missing:
        return None
    roles.update(zip(tensors, missing, strict=True))
    if launched and "out" not in roles.values():
        return None
    return roles


def _agrees(
    kernel: FunctionNode | None, roles: dict[_Operand, str], operands: Sequence[_Operand]
) -> bool:
    """Whether the kernel's source reads and writes what the roles say."""
    if kernel is None:
        return True
    reads, writes = loaded(kernel), stored(kernel)
    for operand in operands:
        role = roles.get(operand, "")
        if not operand.name:
            return False
        if (operand.name in writes) != (role == "out" or operand.role == "statistic"):
            return False
        if (operand.name in reads) != (role not in ("", "out", "eps")):
            return False
    return True


def _operands(module: ModuleFacts, call: ast.Call, kernel: FunctionNode | None) -> list[_Operand]:
    own = [a.arg for a in parameters(kernel.args)] if kernel is not None else []
    found = []
    for i, node in enumerate(call.args):
        name = own[i] if i < len(own) else ""
        found.append(_Operand(node, name, False, _role(module, call, node, name)))
    for keyword in call.keywords:
        name = keyword.arg or ""
        if kernel is None or name in own:
            role = _role(module, call, keyword.value, name)
        else:
            role = "number"  # num_warps
        found.append(_Operand(keyword.value, name, True, role))
    return found


def _role(module: ModuleFacts, call: ast.Call, node: ast.expr, name: str) -> str:
    if name in _SETTINGS or is_number(module, node):
        value = node.value if isinstance(node, ast.Constant) else None
        named = _ROLES["eps"].fullmatch(name)
        small = isinstance(value, float) and 0 < value <= 1e-2
        return "eps" if named or (small and not name) else "number"
    root = root_of(node)
    fresh = _fresh(module, call, node)
    if fresh:
        said = (root, _POINTER.sub("", name).lower())
        return "statistic" if any(_STATISTIC.fullmatch(s) for s in said) else "fresh"
    for role, pattern in _ROLES.items():
        if pattern.fullmatch(root) or (name and pattern.fullmatch(_POINTER.sub("", name))):
            return role
    if not name and isinstance(node, ast.Name) and _counts(module, call, node.id):
        return "number"
    return "tensor"


def _fresh(module: ModuleFacts, call: ast.Call, node: ast.expr) -> bool:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if not is_view_method(node.func.attr):
            return False
        node = node.func.value
    if not isinstance(node, ast.Name):
        return False
    statement = module.statement(call)
    definition = module.flow(module.function(call) or module.tree).only_definition(
        node.id, statement
    )
    return definition is not None and is_allocation(definition.value)


def _counts(module: ModuleFacts, call: ast.Call, name: str) -> bool:
    """Whether a name that the function is given, or that nobody knows, stands for a number."""
    function = module.function(call)
    flow = module.flow(function or module.tree)
    if any(d.value is not None for d in flow.reaching(name, module.statement(call))):
        return False  # what it is was looked at
    for argument in parameters(function.args) if function is not None else ():
        if argument.arg == name and argument.annotation is not None:
            return ast.unparse(argument.annotation) in ("int", "float", "bool")
    return (name.isupper() and len(name) > 1) or _COUNT.fullmatch(name) is not None


def root_of(node: ast.expr) -> str:
    """What an operand is called: ``weight`` of ``self.norm.weight.view(-1)``."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if not is_view_method(node.func.attr):
                return node.func.attr  # self.q_proj(x)
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in ("data", "T", "mT"):
            node = node.value
        elif isinstance(node, ast.Attribute):
            return node.attr
        else:
            return node.id if isinstance(node, ast.Name) else ""


def is_number(module: ModuleFacts, node: ast.expr, depth: int = 4) -> bool:
    """Whether an expression surely is no tensor: a size, a stride, a constant, a dtype."""
    if isinstance(node, (ast.Constant, ast.Compare, ast.Lambda)):
        return True
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.Tuple)):
        children = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
        return all(is_number(module, c, depth) for c in children)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Attribute):
        return node.attr in ("shape", "dtype", "device", "ndim", "is_cuda")
    if isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in _NUMBERS:
            return True
        name = last_name(called)
        return name in _NUMBER_CALLS
    if isinstance(node, ast.Name) and depth:
        statement = module.statement(node)
        flow = module.flow(module.function(statement) or module.tree)
        found = flow.reaching(node.id, statement)
        return bool(found) and all(
            d.value is not None
            and (
                is_number(module, d.value, depth - 1)
                or (isinstance(d.value, ast.Attribute) and d.value.attr == "shape")
            )
            for d in found
        )
    return False


def _number_name(node: ast.expr) -> str:
    root = root_of(node)
    return root if root and root not in ("shape", "stride") and root.isidentifier() else "size"
