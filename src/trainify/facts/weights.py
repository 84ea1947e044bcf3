"""Where a tensor is used as a weight: the second argument of ``F.linear``, right of ``@``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .module import ModuleFacts

_POSITIONS = {
    **dict.fromkeys(
        ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"), (1, 2)
    ),
    **dict.fromkeys(("embedding", "embedding_bag", "matmul", "mm", "bmm", "mv", "prelu"), (1,)),
    **dict.fromkeys(("layer_norm", "group_norm"), (2, 3)),
    "rms_norm": (2,),
    "addmm": (0, 2),
    "bilinear": (2, 3),
}
"""At which arguments functions of torch and torch.nn.functional take a weight or a bias."""

_SAME_TENSOR = frozenset(
    "t T mT transpose permute contiguous to type type_as float half bfloat16 double view reshape "
    "unsqueeze squeeze cuda data detach clone".split()
)


def is_weight_use(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an expression, or a view or cast of it, is used as a weight or bias."""
    while True:
        parent = module.parent(node)
        if isinstance(parent, ast.Attribute) and parent.attr in _SAME_TENSOR:
            call = module.parent(parent)
            node = call if isinstance(call, ast.Call) and call.func is parent else parent
        elif isinstance(parent, ast.Subscript) and parent.value is node:
            node = parent
        else:
            break
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.MatMult) and parent.right is node
    if isinstance(parent, ast.keyword):
        call = module.parent(parent)
        return parent.arg in ("weight", "bias") and _function(module, call) in _POSITIONS
    if isinstance(parent, ast.Call) and node in parent.args:
        if isinstance(parent.func, ast.Attribute) and parent.func.attr in ("matmul", "mm", "bmm"):
            if not _function(module, parent):  # x.matmul(weight)
                return True
        return parent.args.index(node) in _POSITIONS.get(_function(module, parent), ())
    return False


def _function(module: ModuleFacts, call: ast.AST | None) -> str:
    """The name of the function of torch that is called; empty for others."""
    if not isinstance(call, ast.Call):
        return ""
    for target in module.resolve(call.func):
        owner, _, name = target.name.rpartition(".")
        if owner in ("torch", "torch.nn.functional"):
            return name
    return ""
