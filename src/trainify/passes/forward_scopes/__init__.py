"""TRN201 and TRN203: a model's forward that always runs with gradients switched off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_bytes import (
    FORWARD,
    MODES,
    decorated_elsewhere,
    decorators_of_forwards,
    is_mode_of_other_file,
)
from ...facts.instances import Instances
from ...findings import Finding
from .. import Look, Needle, Rule
from .beside import parts_to_learn
from .cover import owner_of
from .covers import covers_in
from .entries import bare_entries
from .forward import Known, covered_forward
from .instances import covered_instances
from .moved import moved_scopes
from .runs import bare_runs, parts_in_losses, scoped_runs
from .words import STARTS, is_decorated, may_start, scopes_forward

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts import Project

RULES = (
    Rule(
        code="TRN201",
        name="forward-without-grad",
        summary="A module's forward always runs with gradients switched off.",
        why=(
            "Nothing computed in forward has a grad_fn, so backward() either raises (element 0 of "
            "tensors does not require grad) or, where the loss has another path, leaves every "
            "parameter of the module without a gradient. The scope belongs where inference starts, "
            "in generate or predict: as no_grad where these give or keep tensors, since one made "
            "under inference_mode cannot be saved for backward. Where no such place shows, it can "
            "follow self.training, which serves as before only if the model is in eval mode there. "
            "A class that learns by another method, or by the base whose forward it only puts "
            "under a scope, acts by its forward: that scope is meant. What only ran because of the "
            "scope is repaired along where that costs no gradient: numpy() for a log is detached, "
            "a write into a weight stays under no_grad."
        ),
        before="""\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    @torch.inference_mode()
    def forward(self, x):
        return self.head(x)

    def generate(self, x):
        return self(x).argmax(-1).tolist()
""",
        after="""\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x)

    @torch.inference_mode()
    def generate(self, x):
        return self(x).argmax(-1).tolist()
""",
    ),
    Rule(
        code="TRN203",
        name="inference-entry-without-scope",
        summary="Inference relied on a scope that moves out of the model's forward.",
        why=(
            "The model's own forward switches gradients off (TRN201). When that scope goes, the "
            "functions that start inference must have it, or generation builds a graph and runs "
            "out of memory."
        ),
        before="",
        after="",
    ),
)

NEEDLES: tuple[Needle, ...] = (
    Look(MODES, scopes_forward),
    Look((FORWARD,), is_decorated),
    *STARTS,
)


def concerns(data: bytes, path: str, project: Project, options: Options) -> bool:
    """A file that merely starts inference matters where a forward near it has a scope."""
    if scopes_forward(data) or decorated_elsewhere(data):
        return True
    if any(
        is_mode_of_other_file(data, path, project, name) for name in decorators_of_forwards(data)
    ):
        return True
    return may_start(data) and any(project.summaries(path, moved_scopes, scopes_forward))


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    covers = covers_in(module)
    # One scope for all: an entry that several forwards lose theirs to gets it once.
    scope = covers[0].scope if covers else None
    if covers:
        # For the files around it, which then need not read this one again.
        module.project.keep_summary(module, moved_scopes)
        owned = [(owner_of(module, cover.function), cover.function) for cover in covers]
        instances = Instances(module, [cls for cls, _ in owned if cls is not None])
        parts = (parts_to_learn(module, cls, f) for cls, f in owned if cls is not None)
        names = frozenset(name for each in parts for name in each)
        known = Known(
            instances,
            bare_runs(instances),
            scoped_runs(instances),
            parts_in_losses(instances, names),
        )
        for cover in covers:
            yield covered_forward(module, cover, covers[0].scope, known, options)
    yield from covered_instances(module, options)
    yield from bare_entries(module, scope)
