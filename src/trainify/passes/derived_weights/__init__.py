"""TRN502: weights that are computed from others once, and used in place of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.layers import is_module_class
from ...facts.names import is_none
from ...facts.rebound import set_by_others
from ...facts.walk import walk
from ...findings import STRATEGIES, Edit, Finding, Fix, Proven, Safety
from .. import Look, Needle, Rule
from .cached import cached, memoized
from .derivation import Derivation, Place
from .fix import as_property, made_by
from .once import happens_once, is_lazy, is_reparametrized, is_used
from .words import WORDS, may_derive_weights
from .written import writers

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN502",
        name="weight-derived-once",
        summary="A weight is computed from others once, and used in place of them.",
        why=(
            "Weights that are concatenated, multiplied or transposed once are a copy: fast to "
            "serve, and stale after the first optimizer step. Training changes the weights that "
            "the copy was made of, the forward goes on using the copy, and behind `.data` no "
            "gradient gets to them at all. What a product saved for backward is gone after the "
            "first, so the second raises. Loading a checkpoint leaves the copy behind, too. "
            "Compute it where it is used."
        ),
        before="""\
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.qk_weight = torch.cat([self.q.weight.data, self.k.weight.data])

    def forward(self, x):
        return F.linear(x, self.qk_weight)
""",
        after="""\
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)

    @property
    def qk_weight(self):
        return torch.cat([self.q.weight, self.k.weight])

    def forward(self, x):
        return F.linear(x, self.qk_weight)
""",
    ),
)

NEEDLES: tuple[Needle, ...] = (Look(WORDS, may_derive_weights),)

REFERENCE = re.compile(
    r"init|orig|anchor|old|\bref|_ref|ema|teacher|prev|base|backup|frozen|saved|target|snapshot|"
    r"momentum|mask|prior|shadow",
    re.IGNORECASE,
)
"""Names of copies that are kept to compare with."""

_ANOTHER = re.compile(r"Teacher|EMA|Ema|Frozen|Momentum|Target")
"""Names of classes that are not trained themselves."""


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for cls in module.classes:
        if _ANOTHER.search(cls.name) or not is_module_class(module, cls):
            continue
        if "pre_hook" in module.source(cls):
            continue  # which may compute it before each forward
        places = _places(module, cls)
        deleted = frozenset(_deleted(cls))
        for name, found in places.items():
            if REFERENCE.search(name) or name in deleted or _is_given_up(module, cls, name):
                continue
            derived = [Derivation(module, cls, place) for place in found]
            if not derived or not all(each.is_stale for each in derived):
                continue
            sources = [source.split(".")[1] for source in derived[0].sources]
            if any(s in deleted or _is_given_up(module, cls, s) for s in sources):
                continue
            lazy = len(found) == 1 and is_lazy(module, cls, name, found[0].statement)
            functions = {module.function(place.statement) for place in found}
            if not lazy and not all(
                f is not None and happens_once(module, cls, f) for f in functions
            ):
                continue
            uses = list(module.names.uses(cls, name))
            anyhow = all(each.saves or is_reparametrized(each.place.value) for each in derived)
            if writers(module, name) - functions:
                continue  # somebody moves it: a shadow of the weight
            makers = () if lazy else functions
            if any(is_used(module, use, makers, anyhow) for use in uses):
                yield _finding(module, cls, name, found, derived[0])
        for name, entry in cached(module, cls):
            if not REFERENCE.search(name):
                yield _finding(module, cls, name, [entry.place, entry.place], entry)
        for method, decorator, entry in memoized(module, cls):
            if not REFERENCE.search(method.name):
                yield _of_method(module, method, decorator, entry)


def proven(module: ModuleFacts, place: Proven) -> Iterator[Finding]:
    """What a line computes from weights and keeps, by whatever name, and whoever uses it."""
    if place.kind != "derived":
        return
    for cls in module.classes:
        deleted = frozenset(_deleted(cls))
        for name, found in _places(module, cls).items():
            statement = found[0].statement
            if statement.lineno <= place.line <= (statement.end_lineno or 0):
                derived = Derivation(module, cls, found[0], known=True)
                sources = {source.split(".")[1] for source in derived.sources}
                if derived.is_stale and deleted.isdisjoint({name, *sources}):
                    yield _finding(module, cls, name, found, derived, known=True)


def _finding(
    module: ModuleFacts,
    cls: ast.ClassDef,
    name: str,
    found: list[Place],
    derived: Derivation,
    *,
    known: bool = False,
) -> Finding:
    """The finding for an attribute; where it is ``known`` to be used, nobody need look at a fix."""
    message = _said(name, derived)
    fixes: dict[str, Fix] = {}
    made = made_by(module, cls, name, found[0].statement)
    settings = ((each, s) for each in made for s in set_by_others(module, cls, each))
    if (setting := next(settings, None)) is not None:
        attribute, (other, _, line) = setting
        place = f"line {line}" if other is module else f"{other.path}:{line}"
        message += f" A `{attribute}` is set in {place}, which a property would not take."
    elif len(found) == 1:
        edits = as_property(module, cls, name, found[0], derived, anyhow=known)
        if edits:
            look_at = f"`{name}` is computed again each time it is used"
            if found[0].is_buffer:
                look_at += ", and is no longer in the state dict"
            title = f"Make {' and '.join(made)} {'properties' if made[name] else 'a property'}"
            fix = Fix(title, edits, makes_properties=True)
            fixes = dict.fromkeys(STRATEGIES, fix if known else fix.unsafe(look_at))
    return module.finding("TRN502", message, found[0].statement, fixes)


def _said(name: str, derived: Derivation) -> str:
    sources = ", ".join(f"`{source}`" for source in dict.fromkeys(derived.sources))
    message = (
        f"`self.{name}` is computed from {sources} once: what training changes there does not "
        "arrive here"
    )
    if derived.detached:
        return f"{message}, and no gradient goes back."
    return message + (", and the second backward fails." if derived.saves else ".")


def _of_method(
    module: ModuleFacts, method: FunctionNode, decorator: ast.expr, derived: Derivation
) -> Finding:
    """The finding for ``@cached_property``, which a plain property could stand for."""
    fixes: dict[str, Fix] = {}
    if module.is_name(decorator, "functools.cached_property") and not derived.detached:
        edit = Edit(module.start(decorator), module.end(decorator), "property")
        look_at = f"`{method.name}` is computed again each time it is used"
        fix = Fix(f"Make {method.name} a plain property", (edit,), Safety.UNSAFE, look_at)
        fixes = dict.fromkeys(STRATEGIES, fix)
    return module.finding("TRN502", _said(method.name, derived), decorator, fixes)


def _places(module: ModuleFacts, cls: ast.ClassDef) -> dict[str, list[Place]]:
    """Where each attribute gets a value; those that get something unclear are left out."""
    places: dict[str, list[Place]] = {}
    unclear: set[str] = set()
    for name, bindings in module.names.attributes(cls).items():
        for binding in bindings:
            node, value = binding.node, binding.value
            if is_none(value):
                continue
            plain = isinstance(node, ast.AnnAssign) or (
                isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
            )
            if value is None or not plain or not isinstance(node, ast.stmt):
                unclear.add(name)
            else:
                places.setdefault(name, []).append(Place(node, value))
    for node in walk(cls):
        if isinstance(node, ast.Assign) and (name := _first_part(module, cls, node)):
            places.setdefault(name, []).append(Place(node, node.value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "register_buffer" and len(node.args) >= 2:
                name_node, value = node.args[0], node.args[1]
                if isinstance(name_node, ast.Constant) and isinstance(name_node.value, str):
                    place = Place(module.statement(node), value, True)
                    places.setdefault(name_node.value, []).append(place)
    return {name: found for name, found in places.items() if name not in unclear}


_SPLITS = frozenset("chunk split unbind tensor_split split_with_sizes".split())


def _first_part(module: ModuleFacts, cls: ast.ClassDef, node: ast.Assign) -> str:
    """The first attribute that gets a part of a tensor: ``self.q, self.k = w.chunk(2)``."""
    target, value = node.targets[0], node.value
    if not isinstance(target, (ast.Tuple, ast.List)) or not isinstance(value, ast.Call):
        return ""
    if not isinstance(value.func, ast.Attribute) or value.func.attr not in _SPLITS:
        return ""
    first = target.elts[0]
    if not isinstance(first, ast.Attribute) or not isinstance(first.value, ast.Name):
        return ""
    return first.attr if module.names.self_class(first.value) is cls else ""


def _deleted(cls: ast.ClassDef) -> Iterator[str]:
    """The attributes of a class that are deleted."""
    for node in walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Del):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "delattr":
                yield from (str(a.value) for a in node.args if isinstance(a, ast.Constant))


def _is_given_up(module: ModuleFacts, cls: ast.ClassDef, name: str) -> bool:
    """Whether a method other than ``__init__`` sets an attribute to None: ``self.q = None``."""
    for binding in module.names.attributes(cls).get(name, ()):
        function = module.function(binding.node)
        if is_none(binding.value) and function is not None and function.name != "__init__":
            return True
    return False
