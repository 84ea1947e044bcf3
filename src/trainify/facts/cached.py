"""Writes into key-value caches: which they are, by names, and what they complete."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .differentiation import MAKES_TENSOR
from .global_objects import is_global_object
from .integers import holds_integers
from .made_here import is_given_fresh, is_made_here
from .names import last_name
from .views import is_view_method
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts

_CACHE = re.compile(r"cache|past_(key|value|kv)|(^|_)(k|v|kv|key|value)_buffer|(^|_)kv(_|$)")
_NOT_CACHE = re.compile(
    r"cos|sin|rope|freq|mask|pos|_loc|scale|table|len|conv|ssm|lru|ind(ptr|ices)|(^|_)i(ds?|dx)$|"
    r"^latent_cache$"  # what DeepSeek's code calls the latents of one step
)
_OF_OBJECT = frozenset("k v key value keys values".split())
_CACHE_CLASS = re.compile(r"Cache|(Static|Dynamic|Sliding\w*)Layer$")
_CODES = re.compile(r"(^|_)(fp[48]|n?vfp4|u?int[48]|packed|codes)(_|$)")
INDEX = re.compile(r"(^|_)(slots?|slot_mapping|loc|locs|indices|positions|pos)(_|$)")
SETTERS = {"copy_": 0, "index_copy_": 2, "index_put_": 1, "scatter_": 2}


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
        return dumped(entry)

    @property
    def slices(self) -> ast.Subscript | None:
        """The target when it is one subscript of the cache itself."""
        if isinstance(self.target, ast.Subscript) and self.target.value is self.base:
            return self.target
        return None


def cache_write(module: ModuleFacts, statement: ast.Assign | ast.Expr) -> Write | None:
    """A write into what is called a cache, of values that may have a graph."""
    write = as_write(statement)
    if write is None or not _is_cache(module, write.base, statement):
        return None
    target, value, base = write.target, write.value, write.base
    if isinstance(value, ast.Constant):
        return None
    called = statement.value.func if isinstance(statement.value, ast.Call) else None
    if isinstance(target, ast.Subscript) and not addresses_tensor(target):
        if isinstance(statement, ast.Assign) or called is None or last_name(called) == "copy_":
            return None  # one of several tensors is replaced; index_copy_ writes into it
    if not _is_activation(module, value, statement):
        return None
    if _is_from_cache(module, value, base, statement) and not _is_filled(module, value, statement):
        return None
    return write


def _is_filled(module: ModuleFacts, value: ast.expr, at: ast.stmt) -> bool:
    """Whether rows that were copied out of a cache have got new values since."""
    function = module.function(at)
    return isinstance(value, ast.Name) and any(
        write.name is not None
        and write.name.id == value.id
        and statement.lineno < at.lineno
        and module.function(statement) is function
        and isinstance(statement, (ast.Assign, ast.Expr))
        and cache_write(module, statement) is not None
        for statement, write in module.writes.items()
    )


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
        position = SETTERS.get(call.func.attr)
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


def addresses_tensor(target: ast.Subscript) -> bool:
    """Whether a subscript writes into a tensor: ``cache[layer] = x`` fills a list or a dict."""
    for part in _parts(target):
        if isinstance(part, ast.Slice) or _is_ellipsis(part):
            return True
        if isinstance(part, ast.Name) and INDEX.search(part.id):
            return True
        if isinstance(part, ast.Attribute) and INDEX.search(part.attr):
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
    name = name.lower() if name.isupper() else name
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
        if isinstance(owner, ast.Name) and is_global_object(module, owner):
            return True  # CTX.k
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
        return not flow.is_local(base.id) and is_global_object(module, base)
    if definition.is_parameter:
        function = module.function(statement)
        return function is None or not is_given_fresh(module, function, base.id)
    value = definition.value
    if value is None or is_made_here(module, definition):
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


def _identifier(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _is_activation(module: ModuleFacts, value: ast.expr, at: ast.stmt) -> bool:
    """Whether a value may carry a graph: not ``x.detach()``, not numbers, nothing made of them."""
    for node in walk(value):
        if isinstance(node, ast.Attribute) and node.attr in ("detach", "data"):
            return False
    names = [n for n in walk(value) if isinstance(n, ast.Name)]
    base = _base(value)
    if base is None and isinstance(value, ast.Call):
        base = _layer(module, value.func, at)
    if not names or base is None or holds_integers(value) or _CODES.search(last_name(base)):
        return False
    if isinstance(value, ast.Call) and module.is_name(value.func, *MAKES_TENSOR):
        return False
    return not (isinstance(base, ast.Name) and _is_made_without(module, base.id, at))


def _layer(module: ModuleFacts, called: ast.expr, at: ast.stmt) -> ast.expr | None:
    """What is called where that is held by a name or an object: ``layer(x)``, ``self.k[i](x)``."""
    while isinstance(called, ast.Subscript):
        called = called.value
    if isinstance(called, ast.Name):
        flow = module.flow(module.function(at) or module.tree)
        return called if flow.is_local(called.id) else None
    return called if isinstance(called, ast.Attribute) else None


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


def reads_entry(node: ast.AST, write: Write) -> bool:
    return any(
        isinstance(each, (ast.Name, ast.Attribute, ast.Subscript)) and dumped(each) == write.entry
        for each in walk(node)
    )


def dumped(node: ast.expr) -> str:
    """What an expression is, read or written."""
    return re.sub(r"ctx=\w+\(\)", "", ast.dump(node))


def _is_key(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


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


def _source(module: ModuleFacts, part: ast.expr) -> str:
    if not isinstance(part, ast.Slice):
        return module.source(part)
    lower = module.source(part.lower) if part.lower else ""
    return f"{lower}:{module.source(part.upper) if part.upper else ''}"


def _parts(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis
