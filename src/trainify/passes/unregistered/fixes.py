"""``nn.ModuleList`` or the like in place of a list or dict, where it can be used the same."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from ...facts import ModuleFacts
from ...facts.layers import Made, after_init
from ...findings import STRATEGIES, Edit, Fix, Safety
from .held import Held
from .keys import key_trouble
from .loading import is_loaded
from .uses import READS, is_part
from .wrapping import Wrapping, wrap_added

_LIST_METHODS = frozenset({"append", "extend", "insert"})
_DICT_METHODS = frozenset({"items", "keys", "values", "update", "pop", "clear"})


def fixes_for(
    module: ModuleFacts,
    cls: ast.ClassDef,
    held: Held,
    kinds: Sequence[Made | None],
    uses: Iterable[ast.Attribute],
    reads: Iterable[ast.expr],
) -> dict[str, Fix]:
    """The fix of a list or dict that holds ``kinds``; none where one could change what it does.

    ``reads`` are the uses and those by local names.
    """
    if None in kinds or len({kind == "parameter" for kind in kinds}) > 1:
        return {}
    if not all(_is_supported(module, held, use) for use in reads):
        return {}
    if not after_init(module, held.statement):
        return {}
    look_at = ""
    if held.kind == "dict":
        verdict = key_trouble(module, held.keys)
        if verdict is None:
            return {}
        look_at = verdict
    if not look_at and is_loaded(module, cls):
        look_at = (
            "checkpoints that were saved before lack these weights, and load_state_dict() refuses "
            "them"
        )
    container = "Parameter" if kinds[0] == "parameter" else "Module"
    prefix, imports = _torch_nn(module)
    if prefix is None:
        return {}
    wrapping = Wrapping(module, f"{prefix}.{container}")
    edits = [*imports, *wrapping.edits(held.display, held.kind), *_annotation(module, held)]
    for use in uses:
        edits += wrap_added(module, wrapping, use)
    title = f"Register it: {prefix}.{container}{held.kind.capitalize()}"
    fix = Fix(title, tuple(edits), Safety.UNSAFE if look_at else Safety.SAFE, look_at)
    return dict.fromkeys(STRATEGIES, fix)


def _is_supported(module: ModuleFacts, held: Held, use: ast.expr) -> bool:
    """Whether a ModuleList or ModuleDict can be used like this too."""
    parent = module.parent(use)
    if isinstance(parent, ast.Subscript) and is_part(parent, use):
        return held.kind == "list" and _is_supported(module, held, parent)
    if isinstance(parent, ast.Assign):  # by another attribute it would be registered twice
        return held.kind == "list" and not isinstance(parent.targets[0], ast.Attribute)
    if isinstance(parent, ast.Attribute):
        return parent.attr in (_LIST_METHODS if held.kind == "list" else _DICT_METHODS)
    if isinstance(parent, ast.Call):  # of torch's functions, most take a list or tuple only
        if any(READS.match(target.name) for target in module.resolve(parent.func)):
            return False
        return isinstance(parent.func, ast.Name) and parent.func.id != "isinstance"
    if isinstance(parent, ast.Compare):
        return held.kind == "dict" and isinstance(parent.ops[0], (ast.In, ast.NotIn))
    if isinstance(parent, ast.Subscript):
        if held.kind == "list" and isinstance(parent.ctx, ast.Store):
            return not isinstance(parent.slice, ast.Slice)
        return isinstance(parent.ctx, ast.Load) or held.kind == "dict"
    return isinstance(
        parent,
        (ast.For, ast.AsyncFor, ast.comprehension, ast.Starred, ast.AugAssign, ast.If, ast.Assert),
    )


def _torch_nn(module: ModuleFacts) -> tuple[str | None, list[Edit]]:
    """How the file names ``torch.nn``, and the import where it does not yet."""
    from ...rewrite import layout

    name = layout.bound_at_top(module, "torch.nn")
    if name is not None:
        return name, []
    torch = layout.bound_at_top(module, "torch")
    if torch is not None:
        return f"{torch}.nn", []
    if layout.is_taken(module, "nn"):
        return None, []
    return "nn", [layout.import_edit(module, "from torch import nn")]


def _annotation(module: ModuleFacts, held: Held) -> list[Edit]:
    """``self.layers: list[nn.Module] = []`` is annotated as what it becomes."""
    statement = held.statement
    if not isinstance(statement, ast.AnnAssign):
        return []
    return [Edit(module.end(statement.target), module.end(statement.annotation), "")]
