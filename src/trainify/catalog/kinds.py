"""Computations that so many kernels do that their names tell: ``layer_norm_fwd_kernel``.

A row of the catalog says what one op is.  A kind says what a kernel is that no row names, from the
words of its name and the roles of its operands; see :mod:`trainify.facts.operands`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Kind:
    """One computation.

    ``names``       the words that name it, in one of several spellings: "layer norm", "layernorm".
    ``what``        what it computes, as a noun.
    ``roles``       its operands; those with a question mark may be missing.
    ``equivalent``  an expression over the roles and the functions of :mod:`trainify.reference`.
    ``returns``     how many results it has.
    ``launched``    whether kernels that are launched do it alike; else only functions are known.
    ``look_at``     what else a person should check.
    """

    names: tuple[str, ...]
    what: str
    roles: tuple[str, ...]
    equivalent: str
    returns: int = 1
    launched: bool = True
    look_at: str = ""

    @cached_property
    def known(self) -> frozenset[str]:
        return frozenset(role.rstrip("?") for role in self.roles)


KINDS: tuple[Kind, ...] = (
    Kind(
        names=("layer norm", "layernorm", "ln"),
        what="a layer norm over the last dimension",
        roles=("x", "weight?", "bias?", "eps"),
        equivalent="layer_norm(x, weight, bias, eps)",
    ),
    Kind(
        names=("rms norm", "rmsnorm"),
        what="an RMSNorm over the last dimension that multiplies by the weight",
        roles=("x", "weight?", "eps"),
        equivalent="rms_norm(x, weight, eps)",
    ),
    Kind(
        names=("softmax",),
        what="a softmax over the last dimension",
        roles=("x",),
        equivalent="softmax(x)",
    ),
    Kind(
        names=("silu and mul", "silu mul", "swiglu"),
        what="silu(gate) * up",
        roles=("gate", "up"),
        equivalent="F.silu(gate) * up",
    ),
    Kind(
        names=("silu and mul",),
        what="silu(first half) * second half",
        roles=("x",),
        equivalent="silu_and_mul(x)",
    ),
    Kind(
        names=("rope", "rotary", "rotary emb", "rotary pos emb", "rotary embedding"),
        what="rotary embeddings that pair feature i with feature i + D/2",
        roles=("q", "k", "cos", "sin"),
        equivalent="rotate_by_tables(q, k, cos, sin)",
        returns=2,
        launched=False,
        look_at="its tables must broadcast against q and k",
    ),
)

# Words that say how a kernel works, or that it is one, and nothing of what it computes.
_FILLING = frozenset(
    """
    fwd forward kernel kernels fused triton cuda gpu jit impl fn func launch run apply call op inner
    1pass 2pass onepass single pass multi block blocks blocked tiled tile loop row rows rowwise
    persistent online naive simple basic fast small large opt optimized inference infer v1 v2 v3
    half fp16 bf16 fp32 llama qwen mistral
    """.split()
)


def words_of(name: str) -> tuple[str, ...]:
    """``rms_norm`` of ``_rms_norm_fwd_kernel``: the words of a name that say what it computes."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return tuple(w for w in spaced.lower().split("_") if w and w not in _FILLING)


def kinds_of(name: str) -> tuple[Kind, ...]:
    """The kinds of kernel that a name stands for; none where it says something else as well."""
    said = " ".join(words_of(name))
    return tuple(kind for kind in KINDS if said in kind.names)
