"""TRN1xx: calls of fused ops, which record no backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...catalog.reasons import CODES
from ...facts import ModuleFacts
from ...facts.asked import runs_behind_tests
from ...facts.cache_writes import cache_writes
from ...facts.grad_mode import own_nodes
from ...facts.guards import gradient_unwanted, serves_backward
from ...facts.names import is_none, last_name, passed
from ...facts.trainable import may_hold_weight
from ...findings import Finding
from .. import Needle, Rule, is_wanted, not_rewritten
from .calls import (
    Ambiguous,
    by_operands,
    filled_buffers,
    is_plain,
    match,
    of_extension,
    takes_a_tensor,
    understood,
    unverified_kernel,
)
from .messages import lost_in_cache
from .rewriter import Rewriter, other_path, twin
from .rounded import of_activation, only_codes
from .site import Site
from .words import words_for

if TYPE_CHECKING:
    from ...catalog import FusedOp
    from ...engine import Options

RULES = (
    Rule(
        code="TRN101",
        name="fused-op-without-backward",
        summary="A fused op returns or fills a tensor that autograd knows nothing about.",
        why=(
            "The kernel records no backward. The loss still has a graph through other paths, so "
            "backward() succeeds; every parameter whose only way to the loss leads through the op "
            "gets no gradient, and nothing says so."
        ),
        before="""\
import torch
from torch import nn
from vllm import _custom_ops as ops


class RMSNorm(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight.data, self.eps)
        return out
""",
        after="""\
import torch
import torch.nn.functional as F
from torch import nn
from vllm import _custom_ops as ops


class RMSNorm(nn.Module):
    def forward(self, x):
        if torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad):
            out = F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        else:
            out = torch.empty_like(x)
            ops.rms_norm(out, x, self.weight.data, self.eps)
        return out
""",
    ),
    Rule(
        code="TRN102",
        name="fused-op-in-place",
        summary="A fused op overwrites a tensor in place; its old grad_fn stays, and lies.",
        why=(
            "Autograd does not see the write, nor does the version counter. The tensor keeps the "
            "grad_fn of its old value, so backward() treats the op as the identity: parameters "
            "before it get a wrong gradient, the op's own weight gets none."
        ),
        before="""\
import torch
from vllm import _custom_ops as ops


def add_norm(hidden, residual, weight: torch.Tensor, eps):
    ops.fused_add_rms_norm(hidden, residual, weight, eps)
    return hidden, residual
""",
        after="""\
import torch
import torch.nn.functional as F
from vllm import _custom_ops as ops


def add_norm(hidden, residual, weight: torch.Tensor, eps):
    if hidden.requires_grad or residual.requires_grad or (
        torch.is_grad_enabled() and weight.requires_grad
    ):
        residual = hidden + residual
        hidden = F.rms_norm(residual, residual.shape[-1:], weight, eps)
    else:
        ops.fused_add_rms_norm(hidden, residual, weight, eps)
    return hidden, residual
""",
    ),
    Rule(
        code="TRN103",
        name="fused-call-not-understood",
        summary="A call names a fused op but does not fit its schema, so it is left alone.",
        why=(
            "trainify rewrites a call only when it knows what every argument is. This one passes "
            "too many, too few, unknown or unpacked arguments; the gradient through it should be "
            "looked at by hand."
        ),
        before="""\
from vllm import _custom_ops as ops


def norm(out, *args):
    ops.rms_norm(out, *args)
""",
        after="",
    ),
    Rule(
        code="TRN108",
        name="fused-op-unverified",
        summary="A kernel without a known backward, which trainify has not looked at closely.",
        why=(
            "The function belongs to a library of inference kernels, and its source shows no "
            "backward. What it computes was not verified, so it is never rewritten: look at it. "
            "The same goes for an extension that the project compiles itself, when it is built "
            "(`setup.py`, `pyproject.toml`, CMake, Meson) or by `load`, in whichever file, where "
            "its C++ and CUDA sources show that a function writes its result, or its arguments, "
            "through pointers; the message names the place in them. Functions that are composed "
            "of ATen's operations have a gradient, and are left alone."
        ),
        before="""\
import torch


def norm(x, weight, eps):
    return torch.ops.vllm.fused_mla_dual_rms_norm(x, weight, eps)
""",
        after="",
    ),
)

PLANS = True

_BACKWARD = re.compile(r"(^|_)(bwd|backward)(_|$)")

NEEDLES: tuple[Needle, ...] = words_for(()).needles


def needles(options: Options) -> tuple[Needle, ...]:
    """The same, with those for the user's own ops."""
    return words_for(options.ops).needles


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    """Findings for every call of a fused op in a place where a gradient may be wanted."""
    words = words_for(options.ops)
    if words.may_call(module.text):
        direct = words.imports.search(module.usual) is not None
        yield from calls(module, options, direct=direct)


def calls(module: ModuleFacts, options: Options, *, direct: bool) -> Iterator[Finding]:
    """The same; ``direct`` says whether the file itself imports from a library of kernels."""
    sites: list[Site] = []
    for call in module.calls:
        if is_plain(call, options.ops):
            continue
        try:
            matched = match(module, call, options)
        except Ambiguous as error:
            if not gradient_unwanted(module, call):
                message = f"`{module.source(call.func)}` is not rewritten: {error}."
                yield module.finding("TRN103", message, call, twin(module, call, options))
            continue
        if matched is None:
            kernel = unverified_kernel(module, call) if direct else None
            if kernel is not None and not gradient_unwanted(module, call):
                message = f"`{module.source(call.func)}` is a kernel without a known backward."
                site = by_operands(module, call, kernel, "TRN108", message)
                if site is not None and not _is_asked_for(module, call):
                    sites.append(site)
                elif site is None and of_extension(kernel):  # that may do anything
                    filled = filled_buffers(module, call)
                    if filled and not writes_backwards(module):
                        message = (
                            f"`{module.source(call.func)}` fills {' and '.join(filled)}, and shows "
                            "no backward: no gradient reaches its inputs."
                        )
                        yield module.finding("TRN108", message, call)
                elif site is None:
                    fixes = other_path(module, call, options)
                    yield module.finding("TRN108", message, call, fixes)
            continue
        op, target = matched
        if gradient_unwanted(module, call):
            continue
        if op.note == CODES.text and _read_as_values(module, call, options):
            given = f"`{module.source(call.args[0])}`" if call.args else "what it quantizes"
            message = (
                f"`{module.source(call.func)}` gives codes, through which no gradient passes: "
            )
            message += f"none reaches {given}, whatever reads them."
            yield module.finding("TRN101", message, call)
        if not op.cuts:
            continue
        if _is_asked_for(module, call):
            continue
        if op.equivalent is None:
            if takes_a_tensor(call, target):
                fixes = other_path(module, call, options)
                message = f"`{module.source(call.func)}` records no backward: no gradient reaches "
                message += "its inputs." if fixes else f"its inputs.{not_rewritten(op.note)}"
                yield module.finding("TRN101", message, call, fixes)
            continue
        site = None
        op, bound, doubt = understood(op, target, call)
        if bound is not None and _only_tries(module, call, op, bound):
            continue
        if bound is None or doubt:
            message = (
                f"`{module.source(call.func)}` is called in a way trainify does not know: {doubt}"
            )
            if bound is not None:  # it fits, and the operands say what it computes
                site = by_operands(module, call, target, "TRN103", f"{message}.")
            if site is not None:
                sites.append(site)
            else:
                yield module.finding("TRN103", message, call, twin(module, call, options))
            continue
        op, bound = of_activation(module, call, op, bound, options) or (op, bound)
        lost = [node for name in op.loses if (node := bound[name]) is not None]
        if not op.loses or any(may_hold_weight(module, node) for node in lost):
            site = Site(module, call, op, target, bound)
            site.refused = only_codes(site, options)
            sites.append(site)
    if direct:
        yield from _lost_in_caches(module)
    sites = [site for site in sites if is_wanted(module, options, site.code, site.call)]
    if sites:
        yield from Rewriter(module, options, sites).findings()


def _read_as_values(module: ModuleFacts, codes: ast.Call, options: Options) -> bool:
    """Whether the codes that a call gives are multiplied: by an op, or as ``codes.float()``."""
    statement, function = module.statement(codes), module.function(codes)
    if not isinstance(statement, ast.Assign) or statement.value is not codes or function is None:
        return False
    target = statement.targets[0]
    name = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    if not isinstance(name, ast.Name):
        return False
    for call in own_nodes(function):
        if not isinstance(call, ast.Call):
            continue
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if last_name(call.func) in ("float", "to") and last_name(owner) == name.id:
            return True
        if any(last_name(argument) == name.id for argument in passed(call)):
            if gradient_unwanted(module, call):
                continue
            try:
                matched = match(module, call, options)
            except Ambiguous:
                continue
            if matched is None or matched[0].equivalent is None:
                continue
            op, bound, _ = understood(*matched, call)
            if bound is None or of_activation(module, call, op, bound, options) is None:
                return True
    return False


def _lost_in_caches(module: ModuleFacts) -> Iterator[Finding]:
    """Fresh keys and values that attention gets from a cache, whichever attention that is."""
    for write in cache_writes(module):
        if any(not gradient_unwanted(module, read) for read in write.reads):
            yield module.finding("TRN101", lost_in_cache(module, write), write.node)


def writes_backwards(module: ModuleFacts) -> bool:
    """Whether the author of a file writes backwards in it."""
    return any(_BACKWARD.search(function.name) for function in module.functions)


def _only_tries(
    module: ModuleFacts, call: ast.Call, op: FusedOp, bound: Mapping[str, ast.expr | None]
) -> bool:
    """Whether nothing is read of what a call gives: it asks whether the kernel runs here."""
    if not isinstance(module.parent(call), ast.Expr) or not op.signature.returns:
        return False
    written = [bound[argument.name] for argument in op.signature.written]
    return all(node is None or is_none(node) for node in written)


_MAY_SERVE_BACKWARD = re.compile(r"autograd\.Function|@[\w.]*(?:library\.impl|register_kernel)\(")


def _is_asked_for(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call stands in a function that only runs where no gradient is wanted."""
    function = module.function(call)
    if function is None:
        return False
    if _MAY_SERVE_BACKWARD.search(module.usual) and serves_backward(module, function):
        return True
    return runs_behind_tests(module, function)
