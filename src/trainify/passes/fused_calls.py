"""TRN1xx: calls of fused ops, which record no backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Protocol, TypeGuard

from ..catalog import (
    CONSTANTS,
    RETURNED,
    BindError,
    FusedOp,
    lookup,
    names_of_ops,
    roots,
    split_since,
    unverified,
)
from ..facts import ModuleFacts, Target
from ..facts.flow import view_of
from ..facts.guards import gradient_unwanted, serves_backward
from ..facts.names import is_none
from ..facts.operands import recognize, root_of
from ..facts.trainable import is_buffer, may_hold_weight
from ..facts.words import declare, places
from ..findings import Finding, Fix, Related
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..rewrite.attach import Applied, Call
    from ..rewrite.branch import Change
    from ..rewrite.functionalize import Place, Write
    from ..rewrite.specialize import Use
    from ..rewrite.template import Rendered, Template

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
    if torch.is_grad_enabled() and (
        hidden.requires_grad or residual.requires_grad or weight.requires_grad
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
            "backward. What it computes was not verified, so it is never rewritten: look at it."
        ),
        before="""\
import torch


def norm(x, weight, eps):
    return torch.ops.vllm.fused_mla_dual_rms_norm(x, weight, eps)
""",
        after="",
    ),
)

_ANY = ast.Name("x")
_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)

# The stems find calls through a project's own module that re-exports an op.
_STEMS = declare(b"rms_norm(", b"rmsnorm(", b"_and_mul(", b"rotary_embedding(")


(_IMPORT_MODULE,) = declare(b"import_module(")
_IMPORTS_BY_NAME = re.compile(rb"import_module\(\s*[rbu]?[\"']")
_SPACES = (b" ", b"\t")
_BARE_IMPORT = re.compile(rb"[ \t]*import[ \t]+(\w+)[ \t]*(?:#.*)?\r?$")


_CALL_OF_STEM = re.compile(
    rb"(\bdef |\bself\.|\bF\.)?(\w*(?:" + b"|".join(stem[:-1] for stem in _STEMS) + rb"))\("
)


def _imports_by_name(data: bytes) -> bool:
    return any(_IMPORTS_BY_NAME.match(data, at) for at in places(data, _IMPORT_MODULE))


def _calls_from_elsewhere(data: bytes) -> bool:
    """Whether a function with the stem of an op in its name is called, and is not of this file."""
    return any(
        not match[1] and b"def " + match[2] + b"(" not in data
        for stem in _STEMS
        for at in places(data, stem)
        for match in _CALL_OF_STEM.finditer(data, data.rfind(b"\n", 0, at) + 1, at + len(stem))
    )


class _Words:
    """What calls of some ops are found by; ``own`` are the ops that the user added."""

    def __init__(self, own: tuple[FusedOp, ...] = ()) -> None:
        self.roots = roots(own)
        # A package of the user's own calls its kernels through relative imports.
        names = dict.fromkeys(name.rpartition(".")[2].encode() for op in own for name in op.names)
        self.stems = (*_STEMS, *names)
        packages = "|".join(root for root in self.roots if "." not in root)
        others = r"(?:[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*,[ \t]*)*"  # import torch, flashinfer
        self._import = rf"[ \t]*(?:from|import)[ \t]+(?:{others})(?:{packages})\b"
        # Many packages have common words for names, so they are looked for in import statements
        # only.
        self._packages = declare(
            *(space + root.encode() for root in self.roots if "." not in root for space in _SPACES)
        )
        self._line = re.compile(rb"(?:\xef\xbb\xbf)?" + self._import.encode())
        self._whole = tuple(root for root in self.roots if "." in root)
        self._own = own
        self._uses: dict[bytes, re.Pattern[bytes]] = {}

    @cached_property
    def needles(self) -> tuple[Needle, ...]:
        return (
            Look(self._packages, self._imports),
            Look((_IMPORT_MODULE,), _imports_by_name),
            b"get_kernel",
            *(root.encode() for root in self._whole),
            Look(_STEMS, _calls_from_elsewhere),
            *self.stems[len(_STEMS) :],
        )

    def _imports(self, data: bytes) -> bool:
        """Whether a file imports a package with fused ops."""
        return any(
            self._imports_at(data, data.rfind(b"\n", 0, at) + 1)
            for package in self._packages
            for at in places(data, package)
        )

    def _imports_at(self, data: bytes, line: int) -> bool:
        match = self._line.match(data, line)
        if match is None:
            return False
        bare = _BARE_IMPORT.match(data, line, data.find(b"\n", match.end()))
        return bare is None or self._below(bare[1]).search(data) is not None

    def _below(self, package: bytes) -> re.Pattern[bytes]:
        """``deepspeed.ops``, which code that only says ``import deepspeed`` must go through."""
        if package not in self._uses:
            prefix = package.decode() + "."
            names = (*names_of_ops(self._own), *unverified())
            below = {n[len(prefix) :].partition(".")[0] for n in names if n.startswith(prefix)}
            self._uses[package] = re.compile(rf"\b{prefix}(?:{'|'.join(sorted(below))})\b".encode())
        return self._uses[package]

    def exports(self, data: bytes) -> bool:
        """Whether a file may hand on an op under a name of its own."""
        return any(
            needle in data if isinstance(needle, bytes) else needle.matters(data)
            for needle in self.needles
        )

    @cached_property
    def imports(self) -> re.Pattern[str]:
        whole = "|".join(map(re.escape, self._whole))
        return re.compile(rf"import_module|get_kernel|{whole}|^{self._import}", re.MULTILINE)


_words = cache(_Words)

NEEDLES: tuple[Needle, ...] = _words().needles


def needles(options: Options) -> tuple[Needle, ...]:
    """The same, with those for the user's own ops."""
    return _words(options.ops).needles


# Families of which an unverified kernel gives nothing that a gradient should flow through.
_HARMLESS = ("backward", "cache", "collective", "layer", "misc", "quantize", "sampling")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    """Findings for every call of a fused op in a place where a gradient may be wanted."""
    sites: list[Site] = []
    words = _words(options.ops)
    direct = words.imports.search(module.text) is not None
    if not direct and not any(stem.decode() in module.text for stem in words.stems):
        return
    for call in module.calls:
        try:
            match = _match(module, call, options)
        except _Ambiguous as error:
            if not gradient_unwanted(module, call):
                message = f"`{module.source(call.func)}` is not rewritten: {error}."
                yield module.finding("TRN103", message, call)
            continue
        if match is None:
            unverified = _unverified(module, call) if direct else None
            if unverified is not None and not gradient_unwanted(module, call):
                message = f"`{module.source(call.func)}` is a kernel without a known backward."
                site = _by_operands(module, call, unverified, "TRN108", message)
                if site is not None:
                    sites.append(site)
                else:
                    fixes = other_path(module, call, options)
                    yield module.finding("TRN108", message, call, fixes)
            continue
        op, target = match
        if not op.cuts or gradient_unwanted(module, call):
            continue
        function = module.function(call)
        if function is not None and "autograd.Function" in module.text:
            if serves_backward(module, function):
                continue
        if op.equivalent is None:
            if _takes_a_tensor(call, target):
                fixes = other_path(module, call, options)
                message = f"`{module.source(call.func)}` records no backward: no gradient reaches "
                message += "its inputs." if fixes else f"its inputs. Not rewritten: {op.note}."
                yield module.finding("TRN101", message, call, fixes)
            continue
        try:
            bound = _bind(op, target, call)
            misread = _misread(op, bound)
        except BindError as error:
            misread = str(error)
        if misread:
            message = (
                f"`{module.source(call.func)}` is called in a way trainify does not know: {misread}"
            )
            site = _by_operands(module, call, target, "TRN103", message)
            if site is not None:
                sites.append(site)
            else:
                yield module.finding("TRN103", message, call)
            continue
        lost = [node for name in op.loses if (node := bound[name]) is not None]
        if not op.loses or any(may_hold_weight(module, node) for node in lost):
            sites.append(Site(module, call, op, target, bound))
    if sites:
        yield from Rewriter(module, options, sites).findings()


def other_path(module: ModuleFacts, call: ast.Call, options: Options) -> dict[str, Fix]:
    """The fixes of a kernel that nothing stands for: to go round it, where there is a way."""
    if not any(isinstance(a, ast.If) for a in module.ancestors(call)):
        function = module.function(call)
        if function is None or not any(isinstance(s, ast.If) for s in function.body):
            return {}
    from ..rewrite.guard import fixes

    return fixes(module, call, options.flag)


def site_of(module: ModuleFacts, call: ast.Call, options: Options) -> Site | None:
    """A call of an op that has an equivalent for it, wherever the call stands."""
    try:
        match = _match(module, call, options)
        if match is None or match[0].equivalent is None:
            return None
        op, target = match
        site = Site(module, call, op, target, _bind(op, target, call))
    except (_Ambiguous, BindError):
        return None
    return None if site.unsupported() or _misread(op, site.bound) else site


def op_of(module: ModuleFacts, call: ast.Call, options: Options) -> FusedOp | None:
    """The op that a call runs, wherever the call stands; None where the code leaves it open."""
    try:
        match = _match(module, call, options)
    except _Ambiguous:
        return None
    return match[0] if match else None


def _unverified(module: ModuleFacts, call: ast.Call) -> Target | None:
    for target in module.resolve(call.func):
        family = unverified().get(target.name)
        if family is not None and family not in _HARMLESS and _takes_a_tensor(call, target):
            return target
    return None


# What is passed by these names is a table, and what is expected by those is a list of integers.
_TABLES = re.compile(r"(\w*_)?(cos|sin)")
_INTEGERS = re.compile(r"\w*(indptr|offsets|positions|pos_ids|position_ids|seqlens\w*|indices)")


def _misread(op: FusedOp, bound: Mapping[str, ast.expr | None]) -> str:
    """Why a call that fits the schema by number cannot mean it; empty where it can."""
    for name, node in bound.items():
        if node is not None and _INTEGERS.fullmatch(name) and _TABLES.fullmatch(root_of(node)):
            return f"`{root_of(node)}` is passed for {name!r}"
    return ""


def _by_operands(
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


def _takes_a_tensor(call: ast.Call, target: Target) -> bool:
    """Whether an argument is something else than a number, a shape or a constant's name."""
    values = [*call.args, *target.args]
    values += [k.value for k in (*call.keywords, *target.keywords) if k.arg not in CONSTANTS]
    return any(map(_may_be_trained, values))


def _may_be_trained(node: ast.expr) -> bool:
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Tuple, ast.List, ast.IfExp)):
        return any(_may_be_trained(n) for n in ast.iter_child_nodes(node) if _is_value(n))
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


class _Ambiguous(Exception):
    """A callee may be a fused op, or another, or something else."""


def _match(module: ModuleFacts, call: ast.Call, options: Options) -> tuple[FusedOp, Target] | None:
    """The op that a call runs; raises :class:`_Ambiguous` where the code leaves it open."""
    own, releases = options.ops, options.releases
    targets, unknown = module.names.candidates(call.func)
    found: list[tuple[FusedOp, Target]] = []
    others: list[str] = []
    for target in targets:
        op = lookup(target.name, own, releases)
        if op is None and not target.name.startswith("torch."):
            name = module.project.follow(module, target.name, _words(own).exports)
            op = lookup(name, own, releases)
        if op is not None:
            found.append((op, target))
        else:
            others.append(target.name)
    if not found:
        return None
    meanings = {
        (op.equivalent, tuple(a.name for a in op.signature.arguments) if op.equivalent else ())
        for op, _ in found
    }
    bound = {(target.args, target.keywords) for _, target in found}
    if len(meanings) > 1 or len(bound) > 1:
        names = sorted({target.name for _, target in found})
        raise _Ambiguous(f"it may be {' or '.join(f'`{name}`' for name in names)}")
    if others or unknown:
        other = f"`{others[0]}`" if others else "something else"
        raise _Ambiguous(f"it may be `{found[0][1].name}` or {other}")
    return found[0]


def _bind(op: FusedOp, target: Target, call: ast.Call) -> dict[str, ast.expr | None]:
    """Arguments by name; a keyword of the call overrides one bound by ``functools.partial``."""
    values = [*call.args, *(k.value for k in call.keywords)]
    if any(isinstance(node, ast.NamedExpr) for value in values for node in ast.walk(value)):
        raise BindError("an argument is assigned to a name in the call")
    own = {keyword.arg for keyword in call.keywords}
    kept = [keyword for keyword in target.keywords if keyword.arg not in own]
    return op.signature.bind([*target.args, *call.args], [*kept, *call.keywords])


@dataclass(eq=False)
class Site:
    """One call of a fused op, with its arguments by name."""

    module: ModuleFacts
    call: ast.Call
    op: FusedOp
    target: Target
    bound: dict[str, ast.expr | None]
    rule: str = ""
    """The rule that found it, and what to say; those of this pass where there is none."""
    said: str = ""

    @cached_property
    def statement(self) -> ast.stmt:
        return self.module.statement(self.call)

    def name(self, options: Options) -> str:
        """A name by which the op is looked up, the one of the call if it can be; or none."""
        names = (self.target.name, *self.op.names)
        found = (n for n in names if lookup(n, options.ops, options.releases) is self.op)
        return next(found, "")

    @cached_property
    def value(self) -> str:
        """The equivalent, as an expression."""
        assert self.op.equivalent is not None
        tree = ast.parse(self.op.equivalent).body[0]
        assert isinstance(tree, (ast.Assign, ast.Expr))
        return ast.unparse(tree.value)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The arguments that the equivalent reads."""
        tree = ast.parse(self.value)
        return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name))

    @cached_property
    def outputs(self) -> list[str]:
        """What the equivalent assigns, in order; empty where it is an expression."""
        assert self.op.equivalent is not None
        tree = ast.parse(self.op.equivalent).body[0]
        if not isinstance(tree, ast.Assign):
            return []
        return [n.id for n in ast.walk(tree.targets[0]) if isinstance(n, ast.Name)]

    @cached_property
    def differentiable(self) -> list[str]:
        """The tensor arguments that a gradient can flow to."""
        return [
            a.name
            for a in self.op.signature.arguments
            if a.is_tensor
            and a.name not in CONSTANTS
            and (not a.written or a.name in self.reads)
            and (node := self.bound[a.name]) is not None
            and not is_none(node)
            and (a.written or not is_buffer(self.module, node))
        ]

    @property
    def lost(self) -> list[str]:
        """Those of them that the op gives no gradient."""
        return [n for n in self.differentiable if not self.op.loses or n in self.op.loses]

    @property
    def in_place(self) -> list[str]:
        """The arguments that are read and overwritten."""
        return [
            a.name
            for a in self.op.signature.written
            if a.name in self.reads and a.name in self.differentiable
        ]

    def unsupported(self) -> str | None:
        """An argument, as written, for which the equivalent does not hold."""
        defaults = {a.name: a.default for a in self.op.signature.arguments}
        for name in self.op.unsupported:
            node = self.bound.get(name)
            if node is None or is_none(node) or _equals(node, defaults[name]):
                continue
            return name
        return None

    def shown(self, name: str) -> str:
        """An argument as the user knows it, without ``.data``."""
        node = self.bound[name]
        assert node is not None
        while True:
            if isinstance(node, ast.Attribute) and node.attr == "data":
                node = node.value
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "detach"
            ):
                node = node.func.value
            else:
                return self.module.source(node)

    def captured(self, name: str) -> str | None:
        """How to say an argument that ``functools.partial`` bound in another scope."""
        node = self.bound[name]
        partial = [*self.target.args, *(k.value for k in self.target.keywords)]
        if node is None or not any(node is value for value in partial):
            return None
        if isinstance(node, ast.Constant) or self._visible(node):
            return self.module.source(node)
        made_in = self.module.function(node)
        cls = self.module.method_class(made_in)
        if cls is not None and isinstance(node, ast.Name):
            for attribute, bindings in self.module.names.attributes(cls).items():
                if len(bindings) == 1 and isinstance(bindings[0].value, ast.Name):
                    if bindings[0].value.id == node.id:
                        return f"self.{attribute}"
        callee = self.module.source(self.call.func)
        for i, argument in enumerate(self.target.args):
            if argument is node:
                return f"{callee}.args[{i}]"
        return f'{callee}.keywords["{name}"]'

    def _visible(self, node: ast.expr) -> bool:
        """Whether an expression of another scope means the same where the call stands."""
        scope = self.module.scope(node)
        if scope is self.module.scope(self.call) or isinstance(scope, ast.Module):
            # partial keeps the value, a name may have another one by now
            names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
            bindings = self.module.names.bindings(scope)
            return all(len(bindings.get(name, ())) <= 1 for name in names)
        return isinstance(node, ast.Attribute) and all(
            isinstance(n, ast.Attribute) or (isinstance(n, ast.Name) and n.id == "self")
            for n in ast.walk(node)
            if isinstance(n, ast.expr)
        )

    def writes(self) -> Iterator[tuple[str, Write]]:
        """Where each argument goes that the op writes; raises ``CannotFunctionalize``."""
        from ..rewrite.functionalize import functionalize

        for argument in self.op.signature.written:
            node = self.bound[argument.name]
            if node is not None and not is_none(node):
                read = argument.name in self.reads or self._read_elsewhere(argument.name)
                yield argument.name, functionalize(self.module, self.statement, node, read=read)

    def related(self) -> Iterator[Related]:
        """The places where tensors are made only to be filled by the op."""
        from ..rewrite.functionalize import CannotFunctionalize

        try:
            for name, write in self.writes():
                if write.allocation is not None:
                    message = f"`{self.shown(name)}` is made here, for the op to fill."
                    yield self.module.related(message, write.allocation)
        except CannotFunctionalize:
            return

    def known(self) -> tuple[dict[str, str | None], set[str]]:
        """The arguments as they would be written, None for what is left out; and those not None."""
        texts: dict[str, str | None] = {}
        sure: set[str] = set()
        for argument in self.op.signature.arguments:
            name = argument.name
            captured = self.captured(name)
            text = captured or (self.shown(name) if self.bound[name] is not None else None)
            texts[name] = text
            optional = argument.is_optional or argument.type == "Any"
            if text is not None and (not optional or (captured is None and self.is_tensor(text))):
                sure.add(name)
        return texts, sure

    def _read_elsewhere(self, written: str) -> bool:
        """Whether another argument looks at the tensor that is written: ``rms_norm(x, x, w)``."""
        node = self.bound[written]
        roots = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if node else set()
        return any(
            isinstance(n, ast.Name) and n.id in roots and n.id != "self"
            for name, other in self.bound.items()
            if other is not None and name != written
            for n in ast.walk(other)
        )

    @cached_property
    def late(self) -> bool:
        """Whether the call runs conditionally, repeatedly, or not now."""
        for ancestor in self.module.ancestors(self.call):
            if ancestor is self.statement:
                return False
            if isinstance(
                ancestor,
                (
                    ast.Lambda,
                    ast.ListComp,
                    ast.SetComp,
                    ast.DictComp,
                    ast.GeneratorExp,
                    ast.IfExp,
                    ast.BoolOp,
                ),
            ):
                return True
        return False

    def is_tensor(self, text: str) -> bool:
        """Whether a name surely is a tensor where the call stands, not None."""
        function = self.module.function(self.statement)
        flow = self.module.flow(function or self.module.tree)
        if text.isidentifier():
            definition = flow.only_definition(text, self.statement)
            if definition is None or function is None:
                return False
            if not definition.is_parameter:
                return definition.value is not None and not is_none(definition.value)
            for argument in (*function.args.posonlyargs, *function.args.args):
                if argument.arg == text and argument.annotation is not None:
                    return self.module.is_name(argument.annotation, "torch.Tensor")
            return False
        cls = self.module.method_class(function)
        if cls is None or not text.startswith("self."):
            return False
        bindings = self.module.names.attributes(cls).get(text[len("self.") :], [])
        return bool(bindings) and all(
            isinstance(b.value, ast.Call)
            and self.module.source(b.value.func).rpartition(".")[2] in ("Parameter", "Buffer")
            for b in bindings
        )


def _equals(node: ast.expr, default: str | None) -> bool:
    """Whether an expression is a literal of the same value as a default."""
    try:
        return bool(ast.literal_eval(node) == ast.literal_eval(default or ""))
    except (ValueError, SyntaxError):
        return False


@dataclass
class _Plan:
    """A site with its fixes, or the reasons why there is none, by strategy."""

    site: Site
    reasons: dict[str, str] = field(default_factory=dict)
    fixes: dict[str, Fix] = field(default_factory=dict)


class _Writer(Protocol):
    """A way to write calls of fused ops anew."""

    strategies: tuple[str, ...]

    def template(
        self, call: ast.Call, arguments: Mapping[str, str | None]
    ) -> Template | Applied: ...

    def makes(self, call: ast.Call, argument: str) -> bool:
        """Whether an output is made, so that the buffer for it is not needed."""

    def leaves_out(self, call: ast.Call, index: int) -> bool:
        """Whether the new form has None for this one of several results."""

    def fixes(self, changes: Sequence[Change]) -> dict[str, Fix]: ...


class Rewriter:
    """Plans the rewriting of all sites of a file."""

    def __init__(self, module: ModuleFacts, options: Options, sites: Sequence[Site]) -> None:
        self.module = module
        self.options = options
        self.plans = {site.call: _Plan(site) for site in sites}

    def findings(self) -> Iterator[Finding]:
        from ..rewrite.attach import Functions

        sites = [plan.site for plan in self.plans.values()]
        uses = {site: _use(site) for site in sites if site.unsupported() is None}
        self._plan(_Equivalents(self.module, uses, self.options.flag))
        calls = [call for site in sites if (call := _attachable(site)) is not None]
        self._plan(Functions(self.module, calls))
        for plan in self.plans.values():
            yield self._finding(plan)

    def _plan(self, writer: _Writer) -> None:
        """Find the fixes that a writer has."""
        from ..rewrite import branch
        from ..rewrite.attach import CannotAttach
        from ..rewrite.functionalize import CannotFunctionalize

        by_statement: dict[ast.stmt, list[_Plan]] = {}
        for plan in self.plans.values():
            by_statement.setdefault(plan.site.statement, []).append(plan)
        changes: list[Change] = []
        for statement, plans in by_statement.items():
            sites = [plan.site for plan in plans]
            try:
                changes.append(_StatementRewriter(self.module, statement, sites, writer).change())
            except (_NoRewrite, CannotFunctionalize, CannotAttach) as error:
                for plan in plans:
                    plan.reasons.update(dict.fromkeys(writer.strategies, str(error)))
        for run in branch.group(self.module, changes):
            for plan in (plan for change in run for plan in by_statement[change.first]):
                try:
                    plan.fixes.update(writer.fixes(run))
                except branch.CannotPlace as error:
                    plan.reasons.update(dict.fromkeys(writer.strategies, str(error)))

    def _finding(self, plan: _Plan) -> Finding:
        site = plan.site
        rule = site.rule or ("TRN102" if site.in_place else "TRN101")
        message = (site.said or _message(site)) + _release(site.op, self.options)
        reason = plan.reasons.get(self.options.strategy)
        if reason:
            message += f" Not rewritten: {reason}."
        found = self.module.finding(rule, message, site.call, plan.fixes, tuple(site.related()))
        return replace(found, op=site.name(self.options))


def _message(site: Site) -> str:
    name = site.module.source(site.call.func)
    tensors = [f"`{site.shown(n)}`" for n in site.lost]
    overwritten = [f"`{site.shown(n)}`" for n in site.in_place]
    if overwritten:
        others = [t for t in tensors if t not in overwritten]
        text = (
            f"`{name}` overwrites {_and(overwritten)} in place and autograd does not see it: what "
            f"comes before gets a wrong gradient"
        )
        text += f", {_and(others)} none." if others else "."
    else:
        text = f"`{name}` records no backward: no gradient reaches {_and(tensors) or 'its inputs'}."
        if site.op.loses:
            text = f"`{name}` has no derivative for {_and(tensors)}: it raises where one is wanted."
    detached = [
        f"`{site.module.source(node)}`"
        for n in site.lost
        if (node := site.bound[n]) is not None and site.shown(n) != site.module.source(node)
    ]
    if detached:
        text += f" {_and(detached)} cuts the gradient a second time."
    return text


def _release(op: FusedOp, options: Options) -> str:
    """For which release the equivalent is right, and why that one, where it makes a difference."""
    if not op.since:
        return ""
    library, _ = split_since(op)
    stated = next((r for r in options.releases if r.library == library), None)
    if stated is None:
        return f" (As in {op.since}: nothing says which release is used, so the newest is assumed.)"
    return f" (As in {stated}, says {stated.source}.)"


def _and(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


class _NoRewrite(Exception):
    pass


def _use(site: Site) -> Use:
    """The equivalent to be written, with what is known of its arguments."""
    from ..rewrite.specialize import Use

    texts, sure = site.known()
    defaults = {a.name: a.default or "None" for a in site.op.signature.arguments}
    late = site.late or not isinstance(site.statement, _SIMPLE)
    return Use.of(site.value, {n: t or defaults[n] for n, t in texts.items()}, sure, late)


class _Equivalents:
    """Calls become their differentiable equivalents."""

    strategies: tuple[str, ...] = ("flag", "replace")

    def __init__(self, module: ModuleFacts, uses: Mapping[Site, Use], flag: str) -> None:
        from ..rewrite.branch import Vocabulary

        self.module = module
        self.flag = flag
        self.uses = {site.call: (site.op, use) for site, use in uses.items()}
        modules = [name for site in uses for name in site.op.imports]
        self.vocabulary = Vocabulary(module, list(uses.values()), modules)

    def template(self, call: ast.Call, arguments: Mapping[str, str | None]) -> Template:
        from ..rewrite.template import Template

        op, use = self.uses[call]
        return Template(
            op,
            arguments,
            library=self.vocabulary.library,
            use=use,
            torch=self.vocabulary.torch,
            functional=self.vocabulary.functional,
            helper_names=self.vocabulary.helper_names,
        )

    def makes(self, call: ast.Call, argument: str) -> bool:
        return True

    def leaves_out(self, call: ast.Call, index: int) -> bool:
        from ..rewrite.specialize import is_none_result, reference

        tree = ast.parse(self.uses[call][1].value, mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            return False
        function = reference(tree.func.id)
        return function is not None and is_none_result(function, index)

    def fixes(self, changes: Sequence[Change]) -> dict[str, Fix]:
        from ..rewrite import branch

        return branch.fixes(self.module, self.vocabulary, changes, self.flag)


def _attachable(site: Site) -> Call | None:
    """A call as strategy ``attach`` sees it, unless its results have no place to go."""
    from ..rewrite.attach import Call
    from ..rewrite.functionalize import CannotFunctionalize

    if site.unsupported() is not None:
        return None
    try:
        writes = dict(site.writes())
    except CannotFunctionalize:
        return None
    texts, sure = site.known()
    return Call(
        node=site.call,
        op=site.op,
        target=site.target,
        value=site.value,
        outputs=tuple(site.outputs),
        texts=texts,
        keywords=frozenset(k.arg for k in site.call.keywords if k.arg is not None),
        sure=frozenset(sure),
        trained=frozenset(site.differentiable),
        buffers={
            name: (node, write.allocation)
            for name, write in writes.items()
            if name not in site.reads and (node := site.bound[name]) is not None
        },
    )


def _places(
    outputs: Sequence[str], writes: Mapping[str, Write], returned: str
) -> list[Place | None]:
    """Where the outputs go of an op that both writes and returns."""
    from ..rewrite.functionalize import Place

    places: list[Place | None] = []
    for output in outputs:
        place = writes[output].place if output in writes else None
        if output == RETURNED:
            place = Place(returned)
        elif place is not None and place.text == returned:  # x = f(x): the name is taken
            if writes[output].followers:
                raise _NoRewrite(f"another name holds the `{returned}` that it overwrites")
            place = None
        places.append(place)
    return places


class _StatementRewriter:
    """The differentiable form of one statement with the fused calls in it."""

    def __init__(
        self,
        module: ModuleFacts,
        statement: ast.stmt,
        sites: Sequence[Site],
        writer: _Writer,
    ) -> None:
        self.module = module
        self.statement = statement
        self.sites = {site.call: site for site in sites}
        self.writer = writer
        self.flow = module.flow(module.function(statement) or module.tree)
        self.before: list[str] = []
        self.after: list[str] = []
        self.dropped: list[ast.stmt] = []
        self.look_at: list[str] = []
        self.helpers: list[str] = []
        self.exchanged: list[tuple[ast.Call, str]] = []
        self.taken = self.flow.identifiers

    def change(self) -> Change:
        """Raises :class:`_NoRewrite`, or what the writer and functionalization raise."""
        from ..rewrite.branch import Change

        lines = self._lines()
        return Change(
            statements=[self.statement],
            lines=lines,
            dropped=self.dropped,
            wants=self._wants(),
            helpers=list(dict.fromkeys(self.helpers)),
            look_at=self.look_at,
            title=", ".join(dict.fromkeys(site.op.name for site in self.sites.values())),
            expressions=self.exchanged,
        )

    # -- text -----------------------------------------------------------------------------------

    def _lines(self) -> list[str]:
        statement = self.statement
        for site in self.sites.values():
            unsupported = site.unsupported()
            if unsupported is not None:
                raise _NoRewrite(f"`{unsupported}` is passed, which its equivalent does not cover")
        if isinstance(statement, ast.Expr) and statement.value in self.sites:
            self._effect(self.sites[statement.value], None)
            return [*self.before, *self.after]
        if isinstance(statement, ast.Assign) and statement.value in self.sites:
            site = self.sites[statement.value]
            if len(statement.targets) == 1 and self._effect(site, statement.targets[0]):
                return [*self.before, *self.after]
        if not isinstance(statement, _SIMPLE):
            self._expressions()
            return []
        from ..rewrite.expressions import one_line

        text = one_line(self._splice(statement))
        return [*self.before, text, *self.after]

    def _expressions(self) -> None:
        """Calls in the head of a compound statement: each is exchanged on the spot."""
        for call in self._outermost(self.statement):
            text = self._value(self.sites[call], call)
            if self.before or self.dropped:
                raise _NoRewrite("it stands in the head of a compound statement")
            self.exchanged.append((call, text))

    def _splice(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node with the fused calls in it exchanged, on one line where it was not."""
        start = self.module.start(node)
        text = self.module.source(node)
        outer = list(self._outermost(node))
        for call in sorted(outer, key=self.module.start, reverse=True):
            value = self._value(self.sites[call], node)
            exchanged, value = self._element(call, value)
            a, b = self.module.start(exchanged) - start, self.module.end(exchanged) - start
            text = text[:a] + value + text[b:]
        return text

    def _element(self, call: ast.Call, value: str) -> tuple[ast.expr, str]:
        """``f(x)[0]``, where f gives a tuple that is written out, becomes its element."""
        parent = self.module.parent(call)
        if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
            tree = ast.parse(value, mode="eval").body
            if isinstance(tree, ast.Tuple) and isinstance(parent.slice.value, int):
                return parent, ast.unparse(tree.elts[parent.slice.value])
        return call, value

    def _outermost(self, node: ast.AST) -> Iterator[ast.Call]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and child in self.sites:
                yield child
            else:
                yield from self._outermost(child)

    # -- arguments ------------------------------------------------------------------------------

    def _argument(self, site: Site, name: str) -> str | None:
        """The text of an argument in the new call; tensors lose ``.data`` and ``.detach()``."""
        from ..rewrite.template import strip_detach

        node = site.bound[name]
        if node is None:
            return None
        captured = site.captured(name)
        if captured is not None:
            return captured
        text = self._splice_expression(node)
        tensor = name in site.differentiable
        return strip_detach(text) if tensor else text

    def _splice_expression(self, node: ast.expr) -> str:
        if isinstance(node, ast.Call) and node in self.sites:
            return self._value(self.sites[node], node)
        return self._splice(node)

    # -- calls ----------------------------------------------------------------------------------

    def _template(self, site: Site) -> Template | Applied:
        arguments = {name: self._argument(site, name) for name in site.bound}
        self._remind(site.op.look_at)
        return self.writer.template(site.call, arguments)

    def _writes(self, site: Site) -> dict[str, Write]:
        writes = dict(site.writes())
        for name, write in writes.items():
            if write.allocation is not None and write.allocation not in self.dropped:
                if self.writer.makes(site.call, name):
                    self.dropped.append(write.allocation)
            self._remind(write.look_at)
            self._look_ahead(site)
        return writes

    def _remind(self, look_at: str) -> None:
        if look_at and look_at not in self.look_at:
            self.look_at.append(look_at)

    def _look_ahead(self, site: Site) -> None:
        """Autograd saves what the new form reads: a later write in place makes backward raise."""
        written = set(site.op.signature.written)
        for argument in site.op.signature.arguments:
            node = site.bound[argument.name]
            if argument in written or not isinstance(node, ast.Name):
                continue
            later = self.flow.written_later(node.id, self.statement)
            if later is not None and argument.name in site.differentiable:
                self._remind(
                    f"`{later}` writes into `{node.id}`, which the new form saves for backward"
                )

    def _effect(self, site: Site, target: ast.expr | None) -> bool:
        """Write out a call whose result goes to names: its statement, or an assignment of it."""
        from ..rewrite.functionalize import Place

        writes = self._writes(site)
        template = self._template(site)
        outputs = site.outputs
        if target is None and outputs:
            places = [writes[o].place if o in writes else None for o in outputs]
            self._take(template.render(places, self.taken))
        elif target is None:
            if len(writes) != 1:
                raise _NoRewrite("its result is not used")
            (write,) = writes.values()
            self._take(template.render([write.place], self.taken))
        else:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if not all(isinstance(n, (ast.Name, ast.Attribute)) for n in names):
                return False
            texts = [self.module.source(n) for n in names]
            if RETURNED in outputs:
                if len(texts) != 1:
                    return False
                self._take(template.render(_places(outputs, writes, texts[0]), self.taken))
            elif outputs:
                if len(names) != len(outputs):
                    return False
                places = [
                    Place(t)
                    if o not in writes or writes[o].place.kind == "assign"
                    else writes[o].place
                    for t, o in zip(texts, outputs, strict=True)
                ]
                self._take(template.render(places, self.taken))
                for text, output in zip(texts, outputs, strict=True):
                    place = writes[output].place if output in writes else None
                    if place is not None and place.text != text and self._still_read(place.text):
                        self.after.append(f"{place.text} = {text}")
            else:
                self._refuse_missing(site, texts)
                self._take(template.render([Place(t) for t in texts], self.taken))
                for write in writes.values():
                    if write.place.text not in texts and self._still_read(write.place.text):
                        self.after.append(f"{write.place.text} = {texts[0]}")
        for write in writes.values():
            self.after += write.followers
        return True

    def _refuse_missing(self, site: Site, texts: Sequence[str]) -> None:
        for i, text in enumerate(texts):
            if self.writer.leaves_out(site.call, i) and len(texts) > 1 and text != "_":
                if self._still_read(text):
                    raise _NoRewrite(f"its equivalent does not give `{text}`, which is read later")

    def _still_read(self, text: str) -> bool:
        return not text.isidentifier() or self.flow.read_after(text, self.statement)

    def _take(self, rendered: Rendered) -> None:
        self.before += rendered.statements
        self.helpers += rendered.helpers

    def _value(self, site: Site, root: ast.AST) -> str:
        """The expression that takes the place of a call whose value is used on the spot."""
        from ..rewrite.template import fresh

        writes = list(self._writes(site).values())
        template = self._template(site)
        late = site.late
        if site.outputs:
            if late:
                raise _NoRewrite("it writes in place inside an expression")
            if RETURNED in site.outputs:
                result = fresh("result", self.taken)
                self.taken |= {result}
                named = dict(zip((a.name for a in site.op.signature.written), writes, strict=True))
                self._take(template.render(_places(site.outputs, named, result), self.taken))
                return result
            places = [w.place for w in writes]
            self._take(template.render(places, self.taken))
            texts = [w.place.text for w in writes]
            return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
        if late and not template.is_expression:
            raise _NoRewrite("it stands where no statement can come before it")
        rendered = template.render((), self.taken, value=True)
        self._take(rendered)
        assert rendered.value is not None
        value = rendered.value
        for write in writes:
            if self._still_read(write.place.text):
                if late:
                    raise _NoRewrite("its output buffer is read later")
                self.before.append(f"{write.place.text} = {value}")
                value = write.place.text
        parent = self.module.parent(site.call)
        if isinstance(parent, (ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Compare)):
            tree = ast.parse(value, mode="eval").body
            if not isinstance(tree, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Tuple)):
                value = f"({value})"
        return value

    # -- condition ------------------------------------------------------------------------------

    def _wants(self) -> list[str] | None:
        """Tensors of which one requires grad when a gradient is wanted; None if nameless."""
        wants: dict[str, str] = {}
        optional = {
            (site.call, a.name)
            for site in self.sites.values()
            for a in site.op.signature.arguments
            if a.is_optional
        }
        for site in self.sites.values():
            for name in site.lost:
                node = site.bound[name]
                assert node is not None
                text = self._root(ast.parse(site.shown(name).strip(), mode="eval").body)
                if text is None or site.late:
                    return None
                detached = site.shown(name) != self.module.source(node)  # None has no .data
                if (site.call, name) in optional and not detached and not site.is_tensor(text):
                    return None
                wants.setdefault(self._storage(text), text)
        return list(wants.values())

    def _root(self, node: ast.expr) -> str | None:
        """``x`` of ``x.view(-1, h)[0]``; ``self.weight`` as it is; None for other expressions."""
        while True:
            chain = node
            while isinstance(chain, ast.Attribute):
                chain = chain.value
            if isinstance(chain, ast.Name):
                break
            if isinstance(node, ast.Subscript):
                if isinstance(node.slice, ast.Constant):
                    return ast.unparse(node)  # an element of a list or a dict, for all we know
                node = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if view_of(ast.Call(ast.Attribute(_ANY, node.func.attr), [], [])) is None:
                    return None
                node = node.func.value
            else:
                return None
        bare = isinstance(node, ast.Name)
        if bare and self.module.names.resolve_name(chain.id, self.statement):
            return None  # a module: torch.flatten(x)
        return ast.unparse(node)

    def _storage(self, text: str) -> str:
        """Pieces cut from one tensor require grad together: name them once."""
        if not text.isidentifier():
            return text
        definition = self.flow.only_definition(text, self.statement)
        if definition is not None and definition.value is not None:
            view = view_of(definition.value)
            if view is not None and view.kind == "part":
                return view.base
        return text
