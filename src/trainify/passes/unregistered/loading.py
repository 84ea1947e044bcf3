"""Whether checkpoints of a class are loaded: those of before hold less than a fixed class wants."""

from __future__ import annotations

import ast
import re

from ...facts import ModuleFacts
from ...facts.frozen import is_false
from ...facts.names import last_name

_NO_MODEL = re.compile(r"optim|^opt|sched|scaler|sampler|loader|dataset|metric", re.IGNORECASE)


def is_loaded(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether ``load_state_dict`` is called of what may be of a class, here or where it is used."""
    files = module.project.mentioning(module, cls.name, containing=b"load_state_dict(")
    return any(
        _loads_checkpoint(file, cls, call)
        for file in files
        for call in file.calls_named("load_state_dict")
    )


def _loads_checkpoint(module: ModuleFacts, cls: ast.ClassDef, call: ast.Call) -> bool:
    """``net.load_state_dict(torch.load(path))``; what another model has now is no checkpoint."""
    if not isinstance(call.func, ast.Attribute) or not call.args:
        return False
    if any(k.arg == "strict" and is_false(k.value) for k in call.keywords):
        return False
    if isinstance(call.args[0], ast.Call) and last_name(call.args[0].func) == "state_dict":
        return False
    owner = call.func.value
    if _NO_MODEL.search(last_name(owner)):
        return False
    # what a class loads into a part of it is not what the class holds besides
    of_part = isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name)
    return not (of_part and module.names.self_class(owner.value) is cls)  # type: ignore[attr-defined]
