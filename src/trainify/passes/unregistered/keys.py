"""Which keys of a dict a ``ModuleDict`` can have."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...facts import ModuleFacts
from .displays import made_locally
from .loops import loops_around, stored_names

RESERVED = frozenset(
    "T_destination add_module apply bfloat16 buffers call_super_init children clear compile cpu "
    "cuda double dump_patches eval extra_repr float forward get_buffer get_extra_state "
    "get_parameter get_submodule half ipu items keys load_state_dict modules mtia named_buffers "
    "named_children named_modules named_parameters parameters pop register_backward_hook "
    "register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook "
    "register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_load_state_dict_pre_hook register_module register_parameter "
    "register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state "
    "set_submodule share_memory state_dict to to_empty train training type update values xpu "
    "zero_grad "
    "copy fromkeys get popitem setdefault".split()
)
"""What nn.ModuleDict and nn.ParameterDict have as attributes: no key can be called so."""


def key_trouble(module: ModuleFacts, keys: Iterable[ast.expr]) -> str | None:
    """What to look at in the keys of a dict; None where a ModuleDict cannot have them."""
    look_at = ""
    for key in keys:
        literals = _literals(module, key)
        if literals is not None:
            if not all(_is_allowed(literal) for literal in literals):
                return None
        elif isinstance(key, ast.Name) and _counts(module, key):
            return None
        elif not isinstance(key, ast.JoinedStr) and not _is_str(key):
            look_at = f"a ModuleDict takes strings without dots as keys: is `{ast.unparse(key)}`?"
    return look_at


def _is_allowed(key: ast.expr) -> bool:
    """Whether a literal can be a key: a string that is no attribute of the container."""
    value = key.value if isinstance(key, ast.Constant) else None
    return (
        isinstance(value, str)
        and value != ""
        and "." not in value
        and value not in RESERVED
        and not value.startswith("_")
    )


def _literals(module: ModuleFacts, key: ast.expr) -> list[ast.expr] | None:
    """What a key can be where it is written out: ``"a"``, or ``k`` of ``for k in ("a", "b")``."""
    if isinstance(key, ast.Constant):
        return [key]
    if not isinstance(key, ast.Name):
        return None
    for target, source in loops_around(module, key):
        if key.id in stored_names(target):
            return _taken_from(module, target, source, key.id)
    definition = made_locally(module, key)
    return [definition] if isinstance(definition, ast.Constant) else None


def _taken_from(
    module: ModuleFacts, target: ast.expr, source: ast.expr, name: str
) -> list[ast.expr] | None:
    """The literals that a loop gives a name, where they are written out."""
    if isinstance(source, ast.Name):
        names = module.names.bindings(module.tree).get(source.id, ())
        made = made_locally(module, source)
        values = [made] if made is not None else [b.value for b in names]
        if len(values) != 1 or values[0] is None:
            return None
        source = values[0]
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Name):
        if source.func.id in ("sorted", "reversed", "list", "tuple", "set") and source.args:
            return _taken_from(module, target, source.args[0], name)
        if source.func.id == "enumerate" and source.args and isinstance(target, ast.Tuple):
            return _taken_from(module, target.elts[-1], source.args[0], name)
        if source.func.id == "zip" and isinstance(target, ast.Tuple):
            for part, given in zip(target.elts, source.args, strict=False):
                if name in stored_names(part):
                    return _taken_from(module, part, given, name)
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
        if source.func.attr == "items" and isinstance(target, ast.Tuple):
            return _taken_from(module, target.elts[0], source.func.value, name)
        if source.func.attr == "keys":
            return _taken_from(module, target, source.func.value, name)
    elements: list[ast.expr | None]
    if isinstance(source, ast.Dict):
        elements = list(source.keys)
    elif isinstance(source, (ast.Tuple, ast.List, ast.Set)):
        elements = list(source.elts)
    else:
        return None
    if isinstance(target, ast.Tuple):
        at = next((i for i, e in enumerate(target.elts) if name in stored_names(e)), 0)
        elements = [
            e.elts[at] if isinstance(e, (ast.Tuple, ast.List)) and at < len(e.elts) else None
            for e in elements
        ]
    found = [e for e in elements if e is not None]
    return found if len(found) == len(elements) and found and _are_literals(found) else None


def _are_literals(nodes: Iterable[ast.expr]) -> bool:
    return all(isinstance(node, ast.Constant) for node in nodes)


def _is_str(key: ast.expr) -> bool:
    return isinstance(key, ast.Call) and isinstance(key.func, ast.Name) and key.func.id == "str"


def _counts(module: ModuleFacts, key: ast.Name) -> bool:
    """Whether a key is the number of a turn: ``for i in range(n)``."""
    for target, source in loops_around(module, key):
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Name):
            if source.func.id == "range" and key.id in stored_names(target):
                return True
            if source.func.id == "enumerate" and isinstance(target, ast.Tuple):
                if key.id in stored_names(target.elts[0]):
                    return True
    return False
