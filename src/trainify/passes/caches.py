"""TRN401: writes into caches that outlive the training step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.broadcasts import may_broadcast
from ..facts.cache_readers import is_about
from ..facts.cache_writes import are_apart
from ..facts.differentiation import MAKES_TENSOR
from ..facts.flow import is_allocation, is_view_method, view_of
from ..facts.guards import gradient_unwanted
from ..facts.integers import holds_integers
from ..facts.kept import is_same
from ..facts.layers import is_module_class
from ..facts.made_for_serving import made_for_serving
from ..facts.names import last_name
from ..facts.stops import is_named_so, keeps_value
from ..facts.walk import walk
from ..facts.words import declare, places
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule, is_wanted, not_rewritten

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN401",
        name="cache-keeps-graph",
        summary="Keys and values are written into a cache, and their graph with them.",
        why=(
            "The cache outlives the step. Its first write makes it part of the graph, so the "
            "second step's backward walks into the first one's, whose buffers are freed: 'Trying "
            "to backward through the graph a second time'. Where the cache is filled by a kernel "
            "or under no_grad instead, attention reads values without a gradient."
        ),
        before="""\
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, xq, xk, xv, start):
        end = start + xk.shape[1]
        self.cache_k[:, start:end] = xk
        self.cache_v[:, start:end] = xv
        keys = self.cache_k[:, :end]
        values = self.cache_v[:, :end]
        return (xq @ keys.mT).softmax(-1) @ values
""",
        after="""\
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, xq, xk, xv, start):
        end = start + xk.shape[1]
        if torch.is_grad_enabled() and (xk.requires_grad or xv.requires_grad):
            self.cache_k[:, start:end] = xk.detach()
            self.cache_v[:, start:end] = xv.detach()
            keys = torch.cat((self.cache_k[:, :start], xk), dim=1)
            values = torch.cat((self.cache_v[:, :start], xv), dim=1)
        else:
            self.cache_k[:, start:end] = xk
            self.cache_v[:, start:end] = xv
            keys = self.cache_k[:, :end]
            values = self.cache_v[:, :end]
        return (xq @ keys.mT).softmax(-1) @ values
""",
    ),
)

_WRITES = (b"index_copy_(", b"index_put_(", b"].copy_(", b"self.keys[:", b"self.values[:")
_OF_CACHE = (
    *(b"cache[", b"cache_k[", b"cache_v[", b"_cache.view("),
    *(b"cache.k[", b"cache.v[", b"cache.keys[", b"cache.values[", b"cache.key[", b"cache.value["),
    *(b"= self.k_cache", b"= self.v_cache", b"= self.key_cache", b"= self.cache_k"),
)
_OF_BUFFER = (b"k_buffer[", b"v_buffer[")
_OF_SELF = (b"self.k[", b"self.v[", b"self.key[", b"self.value[")


_CACHE = re.compile(r"cache|past_(key|value|kv)|(^|_)(k|v|kv|key|value)_buffer|(^|_)kv(_|$)")
_NOT_CACHE = re.compile(
    r"cos|sin|rope|freq|mask|pos|_loc|scale|table|len|conv|ssm|lru|ind(ptr|ices)|(^|_)i(ds?|dx)$|"
    r"^latent_cache$"  # what DeepSeek's code calls the latents of one step
)
_OF_OBJECT = frozenset("k v key value keys values".split())
_CACHE_CLASS = re.compile(r"Cache|(Static|Dynamic|Sliding\w*)Layer$")
_NOT_A_STEP = re.compile(
    r"__init__$|reset(_parameters)?$|clear$|_*mock_|(\w*_)?(load|restore|offload|swap|migrate)(_|$)|"
    r"\w*_(from_flat|cpu_copy)"
)
_CODES = re.compile(r"(^|_)(fp[48]|n?vfp4|u?int[48]|packed|codes)(_|$)")
_INDEX = re.compile(r"(^|_)(slots?|slot_mapping|loc|locs|indices|positions|pos)(_|$)")
_SETTERS = {"copy_": 0, "index_copy_": 2, "index_put_": 1, "scatter_": 2}

_ASSIGNED, *_SET = declare(b"] = ", *(f"{name}(".encode() for name in _SETTERS))
_NAME = re.compile(rb"[A-Za-z_]\w*")
_DECLARED = re.compile(rb"(?!(?:else|try|finally)\b)[\w.]+[ \t]*:")
_DEFINES_CACHE = re.compile(rb"^class \w*Cache", re.MULTILINE)
_LOCAL = re.compile(rb"(\w+)(?:\[|\.(?:\w+\(|$))")


def writes_cache(data: bytes) -> bool:
    """Whether something that may be a cache is written to, as far as a line shows."""
    return any(
        _may_be_cache(data, at, word) for word in (*_SET, _ASSIGNED) for at in places(data, word)
    )


def _may_be_cache(data: bytes, at: int, word: bytes) -> bool:
    line = data[data.rfind(b"\n", 0, at) + 1 : at].strip()
    names = [name.decode() for name in _NAME.findall(line)]
    if not names or line.startswith((b"]", b")", b".")):
        return True  # it begins on an earlier line
    if word == _ASSIGNED:
        addressed = b":" in line or b"..." in line or any(map(_INDEX.search, names))
        if not addressed or _DECLARED.match(line):
            return False
    elif not line.endswith((b"].", b").") if word == b"copy_(" else b"."):
        return False
    if b".keys" in line or b".values" in line:
        return True
    if line.startswith(_OF_SELF) and _DEFINES_CACHE.search(data):
        return True
    if any(_CACHE.search(name) and not _NOT_CACHE.search(name) for name in names):
        return True
    local = _LOCAL.match(line)
    return local is not None and re.search(_KEPT % local[1], data) is not None


_KEPT = rb"%s\b[^\n=]*=[^=]{0,200}?\.\w*(?:cache|past_|buffer|kv)\w*\b(?!\()"
"""``k_out, v_out = self.k_cache, self.v_cache``."""

NEEDLES: tuple[Needle, ...] = (Look((*_WRITES, *_OF_CACHE, *_OF_BUFFER, *_OF_SELF), writes_cache),)


@dataclass(eq=False)
class Write:
    """``base[index] = value``, or a method that does the same."""

    statement: ast.stmt
    target: ast.expr
    value: ast.expr
    base: ast.expr

    @cached_property
    def entry(self) -> str:
        """The cache itself, ``kv_cache["k"]`` of several, as :func:`ast.dump` shows it."""
        node, entry = self.target, self.base
        while node is not self.base:
            if isinstance(node, ast.Call):
                node = node.func
                continue
            assert isinstance(node, (ast.Subscript, ast.Attribute))
            if isinstance(node, ast.Subscript) and _is_key(node.slice):
                entry = node
                break
            node = node.value
        return _dumped(entry)

    @property
    def slices(self) -> ast.Subscript | None:
        """The target when it is one subscript of the cache itself."""
        if isinstance(self.target, ast.Subscript) and self.target.value is self.base:
            return self.target
        return None


_OTHER_ARRAYS = re.compile(
    r"^[ \t]*(?:import|from) (?:mlx|jax|flax|tensorflow|keras|paddle|mindspore)\b", re.MULTILINE
)
"""Imports of libraries whose arrays have no ``detach``, where torch is not imported as well."""


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    if _OTHER_ARRAYS.search(module.text) and "import torch" not in module.text:
        return
    writes: dict[FunctionNode, list[Write]] = {}
    for statement in module.statements:
        if not isinstance(statement, (ast.Assign, ast.Expr)):
            continue
        write = _write(module, statement)
        function = module.function(statement) if write is not None else None
        if write is None or function is None or _NOT_A_STEP.match(function.name):
            continue
        if not is_wanted(module, options, "TRN401", statement):
            continue
        cls = module.method_class(function)
        if cls is not None and not is_module_class(module, cls) and made_for_serving(module, cls):
            continue
        if not gradient_unwanted(module, statement) and not _begins_anew(module, write):
            writes.setdefault(function, []).append(write)
    for function, found in writes.items():
        yield from _judge(module, options, function, found)


def _write(module: ModuleFacts, statement: ast.Assign | ast.Expr) -> Write | None:
    """A write into what is called a cache, of values that may have a graph."""
    write = as_write(statement)
    if write is None or not _is_cache(module, write.base, statement):
        return None
    target, value, base = write.target, write.value, write.base
    if isinstance(value, ast.Constant):
        return None
    called = statement.value.func if isinstance(statement.value, ast.Call) else None
    if isinstance(target, ast.Subscript) and not _addresses_tensor(target):
        if isinstance(statement, ast.Assign) or called is None or last_name(called) == "copy_":
            return None  # one of several tensors is replaced; index_copy_ writes into it
    if not _is_activation(module, value, statement):
        return None
    return None if _is_from_cache(module, value, base, statement) else write


def as_write(statement: ast.stmt, unseen: bool = False) -> Write | None:
    """A statement that puts a value into a place of a tensor; by ``.data`` too if ``unseen``."""
    if isinstance(statement, ast.Assign):
        if len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Subscript):
            return None
        target: ast.expr = statement.targets[0]
        value = statement.value
    elif isinstance(statement, ast.Expr):
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return None
        position = _SETTERS.get(call.func.attr)
        if position is None or len(call.args) <= position:
            return None
        target, value = call.func.value, call.args[position]
        if call.func.attr == "copy_" and not isinstance(target, (ast.Subscript, ast.Call)):
            return None  # the state of a stream, replaced as a whole
        if any(k.arg == "non_blocking" for k in call.keywords):
            return None  # data on its way from the host
    else:
        return None
    base = _base(target, unseen)
    return Write(statement, target, value, base) if base is not None else None


def _addresses_tensor(target: ast.Subscript) -> bool:
    """Whether a subscript writes into a tensor: ``cache[layer] = x`` fills a list or a dict."""
    for part in _parts(target):
        if isinstance(part, ast.Slice) or _is_ellipsis(part):
            return True
        if isinstance(part, ast.Name) and _INDEX.search(part.id):
            return True
        if isinstance(part, ast.Attribute) and _INDEX.search(part.attr):
            return True
    return False


def _base(target: ast.expr, unseen: bool = False) -> ast.expr | None:
    """``self.k`` of ``self.k[i][loc]``, ``cache`` of ``cache.view(-1, h)[slots]``.

    Where ``unseen`` is true, of ``self.k.data[loc]`` as well.
    """
    node = target
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            if not unseen:
                return None  # a write that autograd does not see keeps no graph
            node = node.value
        else:
            return node if isinstance(node, (ast.Name, ast.Attribute)) else None


def names_cache(name: str) -> bool:
    """Whether a tensor is called what key-value caches are called, which this pass judges."""
    return bool(_CACHE.search(name)) and not _NOT_CACHE.search(name)


def _is_cache(module: ModuleFacts, base: ast.expr, statement: ast.stmt) -> bool:
    """Whether a tensor is a key-value cache that somebody keeps between calls."""
    name = base.attr if isinstance(base, ast.Attribute) else base.id  # type: ignore[attr-defined]
    if isinstance(base, ast.Name):  # k_out = self.k_cache
        flow = module.flow(module.function(statement) or module.tree)
        made = flow.only_definition(base.id, statement)
        kept = made.value if made is not None else None
        if isinstance(kept, ast.Subscript):  # self.key_cache[layer]
            kept = kept.value
        if isinstance(kept, ast.Attribute):
            name = kept.attr
            if names_cache(name):
                return True
    if isinstance(base, ast.Attribute) and name in _OF_OBJECT:
        owner = base.value  # self.cache.keys
        if isinstance(owner, ast.Attribute) and names_cache(owner.attr):
            return True
    if isinstance(base, ast.Attribute) and name in _OF_OBJECT:
        cls = module.method_class(module.function(statement))
        return cls is not None and bool(_CACHE_CLASS.search(cls.name))
    if not names_cache(name):
        return False
    if isinstance(base, ast.Attribute):
        return True
    assert isinstance(base, ast.Name)
    flow = module.flow(module.function(statement) or module.tree)
    definition = flow.only_definition(base.id, statement)
    if definition is None:
        return False
    if definition.is_parameter:
        return True
    value = definition.value
    # a local made here, torch.zeros(...) or a copy, dies with the call
    if value is None or is_allocation(value) or _is_copy(value):
        return False
    says_cache = _SAYS_CACHE if _computes(value) else _CACHE
    return any(
        isinstance(n, (ast.Name, ast.Attribute)) and says_cache.search(_identifier(n))
        for n in walk(value)
    )


_SAYS_CACHE = re.compile(r"cache|past_(key|value|kv)|(^|_)(k|v|kv|key|value)_buffer")
"""Names that are never those of keys and values of one step: ``self.kv_norm(kv)`` has none."""


def _computes(node: ast.expr) -> bool:
    """Whether an expression makes something new: it has calls that are not of views."""
    return any(
        isinstance(n, ast.Call)
        and not (isinstance(n.func, ast.Attribute) and is_view_method(n.func.attr))
        for n in walk(node)
    )


def _is_copy(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "clone"
    )


def _identifier(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _is_activation(module: ModuleFacts, value: ast.expr, at: ast.stmt) -> bool:
    """Whether a value may carry a graph: not ``x.detach()``, not numbers, nothing made of them."""
    for node in walk(value):
        if isinstance(node, ast.Attribute) and node.attr in ("detach", "data"):
            return False
    names = [n for n in walk(value) if isinstance(n, ast.Name)]
    base = _base(value)
    if not names or base is None or holds_integers(value) or _CODES.search(last_name(base)):
        return False
    if isinstance(value, ast.Call) and module.is_name(value.func, *MAKES_TENSOR):
        return False
    return not (isinstance(base, ast.Name) and _is_made_without(module, base.id, at))


def _is_made_without(module: ModuleFacts, name: str, at: ast.stmt) -> bool:
    """Whether a name has got a value without a graph: ``k = k.detach().transpose(1, 2)``."""
    made = module.flow(module.function(at) or module.tree).only_definition(name, at)
    if made is None or made.index is not None:
        return False
    node = made.value
    while isinstance(node, (ast.Call, ast.Subscript)):
        if isinstance(node, ast.Subscript):
            node = node.value
        elif module.is_name(node.func, "torch.tensor", "torch.from_numpy"):
            return True
        elif not isinstance(node.func, ast.Attribute):
            return False
        elif node.func.attr == "detach":
            return True
        else:
            node = node.func.value if is_view_method(node.func.attr) else None
    return False


def _is_from_cache(
    module: ModuleFacts, value: ast.expr, base: ast.expr, statement: ast.stmt
) -> bool:
    """Whether a value is made of nothing but what a cache holds: blocks copied or laid out anew."""
    flow = module.flow(module.function(statement) or module.tree)
    root = _base(value)
    if root is None or ast.dump(root) == ast.dump(base):
        return root is not None
    for _ in range(_MAX_STEPS):
        if not isinstance(root, ast.Name):
            break
        made = flow.only_definition(root.id, statement)
        if made is None or made.is_parameter:
            break
        root = _base(made.value) if made.value is not None and made.index is None else None
        if root is None or made.statement is None:
            return False
        statement = made.statement
    name = _identifier(root) if isinstance(root, (ast.Name, ast.Attribute)) else ""
    return ast.unparse(root) == ast.unparse(base) or _COPIED.search(name) is not None


_MAX_STEPS = 4
_COPIED = re.compile(r"^_?(?:src|source|old|host|cpu)_(?:\w*_)?(?:kv_)?caches?$")


def _judge(
    module: ModuleFacts, options: Options, function: ast.AST, writes: Sequence[Write]
) -> Iterator[Finding]:
    pairs = [(write, _reads(module, function, write)) for write in writes]
    concatenated = [(w, r) for w, r in pairs if r]
    fixes: dict[ast.AST, dict[str, Fix]] = {}
    for run in _runs(module, concatenated):
        result = _concatenate(module, options, run)
        for write, _ in run:
            fixes[write.statement] = result
    unsolved = [w for w, _ in pairs if not fixes.get(w.statement) and _hands_out(module, w)]
    fixes.update(_write_apart(module, options, unsolved))
    handed_out = _hand_out_fresh(module, options, function, [w for w, _ in pairs])
    reasons: dict[ast.AST, str] = {}
    for write in (w for w, _ in pairs if not fixes.get(w.statement)):
        fix, reasons[write.statement] = read_fresh(module, options, write)
        if fix is not None and (fix.safety is Safety.SAFE or write.statement not in handed_out):
            fixes[write.statement] = dict.fromkeys(STRATEGIES, fix)
        elif write.statement in handed_out:
            fixes[write.statement] = handed_out[write.statement]
    for write, reads in pairs:
        text = module.source(write.target)
        value = module.source(write.value)
        later = _read_later(module, function, write) or _read_behind(module, function, write)
        if reads or write in unsolved or later:
            message = (
                f"`{text}` is written and read back: the cache keeps the graph of `{value}`, and "
                "the next step's backward walks into it and fails."
            )
            if not fixes.get(write.statement):
                message += not_rewritten(reasons[write.statement] or _UNKNOWN)
            yield module.finding("TRN401", message, write.statement, fixes.get(write.statement))
        else:
            message = (
                f"`{text}` keeps the graph of `{value}` after the step: the next backward walks "
                "into it and fails."
            )
            fix = _detach(module, write)
            yield module.finding(
                "TRN401", message, write.statement, dict.fromkeys(STRATEGIES, fix) if fix else {}
            )


_UNKNOWN = (
    "where a gradient is wanted, what is read has to be put together from the old values and the "
    "fresh ones, and how does not show"
)


def read_fresh(module: ModuleFacts, options: Options, write: Write) -> tuple[Fix | None, str]:
    """The fix by which a method reads what it has written into an attribute, or why it has none."""
    from ..rewrite.fresh_reads import CannotRead, fresh_reads

    function = module.function(write.statement)
    owner = write.base.value if isinstance(write.base, ast.Attribute) else None
    if function is None or not isinstance(owner, ast.Name):
        return None, ""
    if module.names.self_class(owner) is None:
        return None, ""
    try:
        return fresh_reads(module, options, function, write), ""
    except CannotRead as reason:
        return None, str(reason)


def ends_on_purpose(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a gradient that ends at a statement is likely to be stopped on purpose.

    What is kept for the next call is to have no history, but what the same call reads of it is: a
    cache without gradients, of which the call can read fresh values instead.
    """
    if is_named_so(module, statement):
        return True
    return keeps_value(statement) and not is_read_back(module, statement)


def is_read_back(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a call reads what a statement of it caches, and can read fresh values instead."""
    from ..engine import Options

    write = as_write(statement, unseen=True)
    fix = read_fresh(module, Options(), write)[0] if write is not None else None
    return fix is not None and fix.safety is Safety.SAFE


# -- written and read back ------------------------------------------------------------------------


def _reads(module: ModuleFacts, function: ast.AST, write: Write) -> list[ast.stmt]:
    """The statements of the same block that read the cache after the write."""
    key = ast.dump(write.base)
    block = module.block(write.statement)
    targets = {id(write.base)}
    found = []
    for statement in block[block.index(write.statement) + 1 :]:
        for node in walk(statement):
            if isinstance(node, type(write.base)) and ast.dump(node) == key:
                other = (
                    _write(module, statement)
                    if isinstance(statement, (ast.Assign, ast.Expr))
                    else None
                )
                if id(node) not in targets and not (other is not None and other.base is node):
                    found.append(statement)
                    break
    return found


def _read_later(module: ModuleFacts, function: ast.AST, write: Write) -> bool:
    """Whether the cache is read after the write, outside of its block: ``return self.keys``."""
    if not _outlives(module, write):
        return False
    return any(
        _reads_entry(later, write)
        for later in walk(function)
        if isinstance(later, ast.Return) and later.lineno > write.statement.lineno
    )


def _read_behind(module: ModuleFacts, function: ast.AST, write: Write) -> bool:
    """Whether the cache is read behind the branch that the write stands in."""
    if not _outlives(module, write):
        return False
    inside: ast.AST = write.statement
    for around in module.ancestors(write.statement):
        if inside is not write.statement and isinstance(inside, ast.stmt):
            block = module.block(inside)
            for later in block[block.index(inside) + 1 :]:
                if isinstance(later, (ast.Assign, ast.AnnAssign)) and later.value is not None:
                    if _reads_entry(later.value, write):
                        return True
        if around is function:
            return False
        inside = around
    return False


def _outlives(module: ModuleFacts, write: Write) -> bool:
    """Whether the name of the cache is no local one: it is an attribute, or was given."""
    if isinstance(write.base, ast.Attribute):
        return True
    assert isinstance(write.base, ast.Name)
    flow = module.flow(module.function(write.statement) or module.tree)
    made = flow.only_definition(write.base.id, write.statement)
    return made is not None and made.is_parameter


def _reads_entry(node: ast.AST, write: Write) -> bool:
    return any(
        isinstance(each, (ast.Name, ast.Attribute, ast.Subscript)) and _dumped(each) == write.entry
        for each in walk(node)
    )


def _dumped(node: ast.expr) -> str:
    """What an expression is, read or written."""
    return re.sub(r"ctx=\w+\(\)", "", ast.dump(node))


def _is_key(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _begins_anew(module: ModuleFacts, write: Write) -> bool:
    """Whether the cache was detached before: ``cache["k"] = cache["k"].detach()``.

    Then it has the graph of one step alone, which that step goes back through.
    """
    inside: ast.AST = write.statement
    for around in module.ancestors(write.statement):
        if isinstance(inside, ast.stmt):
            block = module.block(inside)
            if any(_detaches(before, write) for before in block[: block.index(inside)]):
                return True
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        inside = around
    return False


def _detaches(statement: ast.stmt, write: Write) -> bool:
    """Whether a statement puts the cache without its graph in its place, whatever is asked."""
    if isinstance(statement, ast.If):
        return all(
            any(_detaches(each, write) for each in arm)
            for arm in (statement.body, statement.orelse)
        )
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    value = statement.value
    while isinstance(value, (ast.Subscript, ast.Call)):
        if isinstance(value, ast.Subscript):
            value = value.value
        elif not isinstance(value.func, ast.Attribute):
            return False
        elif value.func.attr == "detach":
            kept = _dumped(value.func.value) == write.entry
            return kept and _dumped(statement.targets[0]) == write.entry
        else:
            value = value.func.value
    return False


def _hands_out(module: ModuleFacts, write: Write) -> bool:
    """Whether the cache has a local name, by which it is read after the write."""
    if not isinstance(write.base, ast.Name):
        return False
    name, statement = write.base.id, write.statement
    flow = module.flow(module.function(statement) or module.tree)
    made = flow.only_definition(name, statement)
    return (
        made is not None
        and not made.is_parameter
        and flow.read_after(name, statement)
        and not any(flow.read_after(o, statement) for o in flow.observers(name, statement))
    )


def _hand_out_fresh(
    module: ModuleFacts, options: Options, function: ast.AST, writes: Sequence[Write]
) -> dict[ast.AST, dict[str, Fix]]:
    """Detached values into caches that a ``return`` hands out whole, fresh ones into what it gives.

    Those of one block, or of the branches of one ``try``, are rewritten together.
    """
    from ..rewrite.fresh import fresh_return

    groups: dict[int, list[Write]] = {}
    for write in writes:
        if isinstance(write.base, ast.Attribute) and _read_later(module, function, write):
            around = module.parent(write.statement)
            if isinstance(around, ast.ExceptHandler):
                around = module.parent(around)
            key = id(around) if isinstance(around, ast.Try) else id(module.block(write.statement))
            groups.setdefault(key, []).append(write)
    fixes: dict[ast.AST, dict[str, Fix]] = {}
    for group in groups.values():
        edits = [edit for write in group for edit in detached(module, write.value)]
        fix = fresh_return(module, options, group, edits)
        if fix is not None:
            fixes.update((write.statement, dict.fromkeys(STRATEGIES, fix)) for write in group)
    return fixes


def _write_apart(
    module: ModuleFacts, options: Options, writes: Sequence[Write]
) -> dict[ast.AST, dict[str, Fix]]:
    """Detached values into the cache, fresh ones into a copy that is read from then on."""
    from ..rewrite import branch, layout

    changes = []
    for write in writes:
        assert isinstance(write.base, ast.Name)
        name = write.base.id
        again = " ".join(module.source(write.statement).split())
        lines = [_detached(module, write), f"{name} = {name}.clone()", again]
        wants = _wants(module, [write])
        changes.append(branch.Change([write.statement], lines, wants=wants, title="copy"))
    vocabulary = branch.Vocabulary(module)
    fixes: dict[ast.AST, dict[str, Fix]] = {}
    for run in branch.group(module, changes):
        try:
            result = branch.fixes(module, vocabulary, run, options.flag)
        except layout.CannotPlace:
            continue
        fix = replace(result["flag"], title="Attend to fresh values when a gradient is wanted")
        fixes.update((change.first, dict.fromkeys(STRATEGIES, fix)) for change in run)
    return fixes


def _runs(
    module: ModuleFacts, pairs: Sequence[tuple[Write, list[ast.stmt]]]
) -> Iterator[list[tuple[Write, list[ast.stmt]]]]:
    """Writes of one block with their reads, which are rewritten together."""
    blocks: dict[int, list[tuple[Write, list[ast.stmt]]]] = {}
    for write, reads in pairs:
        blocks.setdefault(id(module.block(write.statement)), []).append((write, reads))
    yield from blocks.values()


def _concatenate(
    module: ModuleFacts, options: Options, run: Sequence[tuple[Write, list[ast.stmt]]]
) -> dict[str, Fix]:
    """Read what was cached before, and the fresh values after it, without a detour by the cache."""
    from ..rewrite import branch, layout

    block = module.block(run[0][0].statement)
    lines: dict[ast.stmt, str] = {}
    for write, reads in run:
        for read in reads:
            line = _joined(module, write, read)
            if line is None or read in lines:
                return {}
            lines[read] = line
    involved = [w.statement for w, _ in run] + list(lines)
    first = min(block.index(s) for s in involved)
    last = max(block.index(s) for s in involved)
    statements = block[first : last + 1]
    if any(s not in involved for s in statements):
        return {}
    detached = {w.statement: _detached(module, w) for w, _ in run}
    change = branch.Change(
        statements=statements,
        lines=[lines[s] if s in lines else detached[s] for s in statements],
        wants=_wants(module, [w for w, _ in run]),
        title="concatenation",
    )
    vocabulary = branch.Vocabulary(module)
    try:
        result = branch.fixes(module, vocabulary, [change], options.flag)
    except layout.CannotPlace:
        return {}
    # generation goes on through the cache, whatever becomes of the fused calls
    fix = replace(result["flag"], title="Attend to fresh values when a gradient is wanted")
    return dict.fromkeys(STRATEGIES, fix)


def _detached(module: ModuleFacts, write: Write) -> str:
    """The write with a detached value: the cache stays complete, and keeps no graph."""
    text = module.source(write.statement)
    start = module.start(write.value) - module.start(write.statement)
    end = module.end(write.value) - module.start(write.statement)
    value = text[start:end]
    if not isinstance(write.value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        value = f"({value})"
    return " ".join(f"{text[:start]}{value}.detach(){text[end:]}".split())


def _wants(module: ModuleFacts, writes: Sequence[Write]) -> list[str] | None:
    names = []
    for write in writes:
        view = view_of(write.value)
        if view is None:
            return None
        names.append(view.base)
    return list(dict.fromkeys(names))


def _joined(module: ModuleFacts, write: Write, read: ast.stmt) -> str | None:
    """``keys = torch.cat((cache[:b, :start], xk), dim=1)`` for a matching write and read."""
    if not isinstance(read, ast.Assign) or not isinstance(read.value, ast.Subscript):
        return None
    if not isinstance(write.statement, ast.Assign) or view_of(write.value) is None:
        return None  # what is computed is computed once
    if may_broadcast(module, write.value):
        return None  # the cache has it several times
    found = prefix_before(module, write, read.value)
    if found is None:
        return None
    before, dim = found
    target, value = module.source(read.targets[0]), module.source(write.value)
    return f"{target} = {_torch(module)}.cat(({before}, {value}), dim={dim})"


def prefix_before(module: ModuleFacts, write: Write, read: ast.Subscript) -> tuple[str, int] | None:
    """What a read has of the time before a write that is its end, and along which dimension.

    ``cache[:b, :start]`` and 1, of ``cache[:b, start:end] = xk`` and ``cache[:b, :end]``.
    """
    written = write.slices
    if written is None or ast.dump(read.value) != ast.dump(write.base):
        return None
    left, right = _parts(written), _parts(read)
    dims = [i for i, part in enumerate(left) if isinstance(part, ast.Slice) and part.lower]
    if len(dims) != 1 or not all(isinstance(part, ast.Slice) for part in left[: dims[0]]):
        return None  # after an index, which may be a number or a tensor, it is another dimension
    dim = dims[0]
    if len(right) < len(left):
        right = [*right, *[ast.Slice() for _ in range(len(left) - len(right))]]
    if len(right) != len(left):
        return None
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if i == dim:
            assert isinstance(a, ast.Slice)
            if not isinstance(b, ast.Slice) or b.lower is not None or a.upper is None:
                return None
            if b.upper is None or ast.dump(a.upper) != ast.dump(b.upper) or a.step or b.step:
                return None
        elif ast.dump(a) != ast.dump(b):
            return None
    cut = left[dim]
    assert isinstance(cut, ast.Slice) and cut.lower is not None
    before = [*[_source(module, p) for p in left[:dim]], f":{module.source(cut.lower)}"]
    before += [_source(module, p) for p in left[dim + 1 :]]
    return f"{module.source(write.base)}[{', '.join(before)}]", dim


def _torch(module: ModuleFacts) -> str:
    from ..rewrite import layout

    return layout.bound_at_top(module, "torch") or "torch"


def _source(module: ModuleFacts, part: ast.expr) -> str:
    if not isinstance(part, ast.Slice):
        return module.source(part)
    lower = module.source(part.lower) if part.lower else ""
    return f"{lower}:{module.source(part.upper) if part.upper else ''}"


def _parts(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


# -- written only ---------------------------------------------------------------------------------


def detached(module: ModuleFacts, value: ast.expr) -> tuple[Edit, ...]:
    """A value with ``.detach()`` behind it."""
    start, end = module.start(value), module.end(value)
    if isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return (Edit(end, end, ".detach()"),)
    return (Edit(start, start, "("), Edit(end, end, ").detach()"))


def _detach(module: ModuleFacts, write: Write) -> Fix | None:
    """Cache detached values: attention has the fresh ones."""
    edits = detached(module, write.value)
    look_at = (
        "what earlier calls have cached passes no gradient on" if _is_copied(module, write) else ""
    )
    if not _fresh_values_used(module, write) or _read_by_callers(module, write):
        value = module.source(write.value)
        look_at = f"attention must read the fresh `{value}` in training, not the cache"
    safety = Safety.UNSAFE if look_at else Safety.SAFE
    return Fix(f"Cache {module.source(write.value)} detached", edits, safety, look_at)


def _read_by_callers(module: ModuleFacts, write: Write) -> bool:
    """Whether a method of the same object reads the cache behind a call of the one that writes."""
    function = module.function(write.statement)
    if function is None or not isinstance(write.base, ast.Attribute):
        return False
    cls = module.method_class(function)
    for call in module.calls_named(function.name):
        caller = module.function(call)
        if caller is None or caller is function or module.method_class(caller) is not cls:
            continue
        at = module.statement(call)
        for node in walk(caller):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                behind = node.lineno > (at.end_lineno or at.lineno)
                if behind and is_same(node, write.base) and not is_about(module, node):
                    if not are_apart(module, at, node) and not gradient_unwanted(module, node):
                        return True
    return False


_COPYING = frozenset("cat concat concatenate stack pad where".split())


def _is_copied(module: ModuleFacts, write: Write) -> bool:
    """Whether another call of the function copies what is cached: ``torch.cat((cache[:n], k))``.

    Of a copy nothing is saved that a later write destroys, so several calls of one step can be
    gone back through for as long as the cache keeps their graph.
    """
    function = module.function(write.statement)
    return function is not None and any(
        _reads_entry(argument, write)
        for node in walk(function)
        if isinstance(node, ast.Call) and last_name(node.func) in _COPYING
        for argument in node.args
    )


def _fresh_values_used(module: ModuleFacts, write: Write) -> bool:
    """Whether the written values themselves are read after the write, here or by every caller."""
    view = view_of(write.value)
    if view is None:
        return False
    function = module.function(write.statement)
    flow = module.flow(function or module.tree)
    if flow.read_after(view.base, write.statement):
        return True
    if function is None or view.base not in flow.parameters:
        return False
    calls = list(module.project.calls_of(module, function))
    for other, call in calls:
        argument = module.project.argument(module, function, call, view.base)
        seen = view_of(argument) if argument is not None else None
        if seen is None:
            return False
        caller = other.flow(other.function(call) or other.tree)
        if not caller.read_after(seen.base, other.statement(call)):
            return False
    return bool(calls)
