"""What single operations do with the gradients of what they are given.

Of torch's functions and tensor methods, of NumPy's, and of Python's own; :mod:`.gradients` follows
values from one to the next.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from .carried import Carried, Cut, blurred, together
from .names import last_name, passed
from .views import is_allocation
from .walk import walk

NUMBER = Carried(plain=True)
TENSOR = Carried()
UNKNOWN = Carried(known=False)

PASSED_ON = frozenset(
    # methods and functions whose result carries the gradient of their first argument
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square abs tanh sigmoid sin cos tan erf "
    "relu relu6 elu gelu silu mish softplus leaky_relu hardtanh hardswish logsigmoid selu softsign "
    "softmax log_softmax softmin logsumexp sum mean prod norm var std cumsum cumprod clamp clip "
    "clamp_min clamp_max masked_fill masked_select gather index_select take_along_dim roll flip "
    "permute transpose reshape view flatten unflatten squeeze unsqueeze expand expand_as repeat "
    "repeat_interleave contiguous t narrow select split chunk unbind float double half bfloat16 "
    "type_as clone cuda cpu view_as reshape_as movedim swapaxes swapdims normalize "
    "dropout interpolate pad neg reciprocal nan_to_num tril triu "
    "diagonal amax amin adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d max_pool1d "
    "max_pool2d unfold fold glu requires_grad_ to type view_as_real view_as_complex "
    "cross_entropy nll_loss".split()  # targets are data
)
_COMBINED = frozenset(
    # whose result carries the gradient of all of their tensors
    "add sub mul div true_divide matmul mm bmm mv dot outer addmm baddbmm einsum pow where stack "
    "cat concat concatenate hstack vstack maximum minimum lerp linear "
    "layer_norm rms_norm group_norm batch_norm conv1d conv2d conv3d "
    "scaled_dot_product_attention cosine_similarity pairwise_distance cdist mse_loss l1_loss "
    "smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div triplet_margin_loss logaddexp atan2 cross rsub "
    "embedding".split()
)
_COMBINED_IN_PLACE = frozenset({"add_", "sub_", "mul_", "div_"})
WITH_INDICES = frozenset({"max", "min", "sort", "topk", "median", "kthvalue", "cummax", "cummin"})
_COUNTS = frozenset("size dim numel nelement ndimension get_device stride".split())
_FRESH = frozenset("rand randn rand_like randn_like arange linspace eye ones randint".split())
_DISCRETE = frozenset("argmax argmin argsort nonzero multinomial bincount searchsorted".split())
_INTEGERS = re.compile(r"\b(u?int\d*|long|short|bool|uint8|int\w+)\b")
_NUMPY_FLOAT = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sqrt square abs absolute fabs tanh sinh cosh sin cos tan "
    "arctan arcsin arccos reciprocal clip maximum minimum mean sum prod var std cumsum matmul dot "
    "power multiply add subtract divide logaddexp where transpose reshape squeeze expand_dims "
    "stack concatenate vstack hstack array asarray ascontiguousarray float32 float64 "
    "copy flatten ravel max min amax amin".split()
)
OF_MATH = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sqrt pow fabs tanh sinh cosh sin cos tan atan erf".split()
)
MAKES_TENSOR = (
    *("torch.tensor", "torch.as_tensor", "torch.asarray", "torch.from_numpy", "torch.FloatTensor"),
    *("torch.Tensor", "torch.DoubleTensor", "torch.autograd.Variable", "torch.autograd.variable"),
)
_LOSS_NAME = re.compile(r"(_loss|_entropy|_with_logits|kl_div)$")
_CUTS = frozenset({"detach", "item", "tolist", "numpy", "float", "from_numpy"})
_SHARES = ("torch.as_tensor", "torch.asarray", "torch.autograd.Variable")
"""Given a tensor, these hand on its gradient."""
_OLD = ("torch.Tensor", "torch.FloatTensor", "torch.DoubleTensor")
"""These do so too, but mostly are given a list."""


def of_torch(name: str, node: ast.Call, values: Sequence[Carried]) -> Carried:
    """What a function of torch gives for arguments that carry ``values``."""
    last = name.rpartition(".")[2]
    if name in MAKES_TENSOR or name.endswith("Tensor"):
        return made_tensor(name, node, values)
    if name.startswith("torch.nn.") and not name.startswith("torch.nn.functional."):
        return blurred(values)
    if is_allocation(node) or last in _FRESH or last in ("ones_like", "zeros_like"):
        return TENSOR
    if last in _DISCRETE:
        return UNKNOWN
    if last == "detach" and values:
        return cut(node, values[0], "detach")
    if last in PASSED_ON and values:
        return replace(values[0], plain=False)
    if last in _COMBINED and values:
        return replace(together(values), plain=False)
    if last in WITH_INDICES and len(values) == 1:
        return values[0]
    return blurred(values)


def is_loss(name: str) -> bool:
    """Whether a function of torch compares predictions with labels, and might learn by both."""
    last = name.rpartition(".")[2]
    functional = name.startswith("torch.nn.functional.") and last not in PASSED_ON
    return functional and _LOSS_NAME.search(last) is not None


def made_tensor(name: str, node: ast.Call, values: Sequence[Carried]) -> Carried:
    """What ``torch.tensor`` and its like make: a copy of values, or the tensor that was given."""
    if not values or not node.args:
        return blurred(values)
    if any(k.arg == "dtype" and _INTEGERS.search(ast.unparse(k.value)) for k in node.keywords):
        return UNKNOWN  # numbers, of which there is no gradient
    made, source = values[0], node.args[0]
    shares = name in _SHARES and not isinstance(source, (ast.List, ast.Tuple, ast.ListComp))
    if shares or (
        name in _OLD and not made.plain and isinstance(source, (ast.Subscript, ast.BinOp))
    ):
        if made.weights or not made.known:
            return made
    inside = {c for c in made.cuts if c.node in set(walk(source))}
    lost = made.weights.union(*(c.weights for c in inside))
    sure = made.sure or any(c.sure for c in inside)
    cuts = made.cuts - inside
    if lost or inside:
        kind: Literal["detach", "tensor"] = "tensor"
        if name == "torch.autograd.Variable" and all(c.kind == "detach" for c in inside):
            kind = "detach"
        cuts |= {Cut(node, kind, lost, sure)}
    elif not made.known:
        cuts |= {Cut(node, "tensor", frozenset(), False)}
    leaf = any(k.arg == "requires_grad" for k in node.keywords)
    return Carried(known=sure or not leaf, cuts=frozenset(cuts))


def of_numpy(last: str, node: ast.Call, values: Sequence[Carried]) -> Carried:
    """An array; only what stays a float of the same meaning remembers what it was cut from."""
    joined = together(values) if values else NUMBER
    if last not in _NUMPY_FLOAT or joined.weights:
        return blurred(values)
    if any(k.arg == "dtype" and _INTEGERS.search(ast.unparse(k.value)) for k in node.keywords):
        return UNKNOWN
    return replace(joined, plain=True)


def of_math(last: str, node: ast.Call, values: Sequence[Carried]) -> Carried:
    """What a function of Python's ``math`` gives: a number, also of a tensor with one element."""
    joined = together(values) if values else NUMBER
    if last not in OF_MATH:
        return blurred(values)
    return joined if joined.plain and not joined.weights else cut(node, joined, "number")


def of_builtin(name: str, node: ast.Call, values: Sequence[Carried]) -> Carried | None:
    """What a function of Python's gives; None where it is not one of those that matter."""
    if name in ("len", "range", "isinstance", "str", "id", "type"):
        return NUMBER
    if name == "float" and len(values) == 1:
        return values[0] if values[0].plain else cut(node, values[0], "number")
    if name in ("sum", "list", "tuple", "abs", "reversed") and values:
        return values[0]
    return None


def of_method(
    name: str, node: ast.Call, owner: Carried, given: Callable[[], Sequence[Carried]]
) -> Carried | None:
    """What a method of a tensor or array gives, or None; ``given`` is what its arguments carry."""
    if name == "detach":
        return cut(node, owner, "detach")
    if name in _COUNTS:
        return NUMBER
    if name in _DISCRETE:
        return UNKNOWN  # numbers, of which there is no gradient
    if name in ("item", "tolist", "numpy"):
        return cut(node, owner, "number")
    if name == "new_tensor":
        return made_tensor("torch.tensor", node, given())
    if is_allocation(node):
        return TENSOR
    if owner.plain:
        return owner if name in _NUMPY_FLOAT else blurred([owner])
    if name in ("to", "type"):
        if _INTEGERS.search(" ".join(ast.unparse(a) for a in passed(node))):
            return UNKNOWN
    if name == "cpu":
        cuts = (replace(c, kind="host") if c.kind == "detach" else c for c in owner.cuts)
        return replace(owner, cuts=frozenset(cuts))
    if name == "requires_grad_":
        return replace(owner, known=False)
    if name in PASSED_ON or (name in WITH_INDICES and not node.args and not node.keywords):
        return owner
    if name in _COMBINED or name in _COMBINED_IN_PLACE:
        return together([owner, *given()])
    return None


def cut(node: ast.expr, inner: Carried, kind: Literal["detach", "number"]) -> Carried:
    """What ``detach()`` leaves, or a number: with a cut, unless there was nothing to lose."""
    plain = kind == "number"
    if inner.nothing:
        before = frozenset(c for c in inner.cuts if plain and c.kind != "tensor")
        if before:  # x.detach().numpy()
            weights = frozenset[str]().union(*(c.weights for c in before))
            merged = Cut(node, kind, weights, any(c.sure for c in before))
            return Carried(cuts=inner.cuts - before | {merged}, plain=plain)
        return Carried(cuts=inner.cuts, plain=plain)
    made = Cut(node, kind, inner.weights, inner.sure and bool(inner.weights))
    return Carried(cuts=inner.cuts | {made}, plain=plain)


def may_cut(node: ast.expr) -> bool:
    """Whether an expression looks like a cut: ``x.detach()``, ``x.data``, ``torch.tensor(x)``."""
    if isinstance(node, ast.Attribute):
        return node.attr == "data"
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    if name in OF_MATH:
        return isinstance(node.func, ast.Attribute) and last_name(node.func.value) == "math"
    return name in _CUTS or str(name).endswith(("ensor", "ariable", "asarray"))
