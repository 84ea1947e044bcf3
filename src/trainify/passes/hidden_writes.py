"""TRN301: activations that are written by ``.data``, of which backward learns nothing.

What backward has saved is for the passes of that (TRN403, TRN404).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.carried import detached
from ..facts.comments import explained
from ..facts.destroyed import destroyed
from ..facts.gradients import Gradients
from ..facts.guards import gradient_unwanted, is_forward
from ..facts.words import declare, places
from ..facts.writes import Write, in_network, root_of
from ..findings import Finding
from . import Look, Needle, Rule, is_wanted, not_rewritten
from .inplace.results import overwritten, quantizes

if TYPE_CHECKING:
    from ..engine import Options

RULES: tuple[Rule, ...] = ()

_HIDES = declare(b".data", b".detach()")
_OF_NAME = re.compile(rb"\n[ \t]+\w+$")
_WRITES = re.compile(
    rb"\.(?:data|detach\(\))(?:\[[^\n]*\] [-+*/]?= | [-+*/]= |(?:\[[^\n]*\])?\.\w+_\()"
)


def _may_concern(data: bytes) -> bool:
    return b"def forward" in data and any(
        _WRITES.match(data, at) and _OF_NAME.search(data, max(0, at - 120), at)
        for word in _HIDES
        for at in places(data, word)
    )


NEEDLES: tuple[Needle, ...] = (Look(_HIDES, _may_concern),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    found = [w for w in module.writes.values() if _is_missed(module, options, w)]
    if not found:
        return
    from ..rewrite.out_of_place import fixes_for

    fixes = fixes_for(module, options, [(write, None) for write in found])
    for write, each in zip(found, fixes, strict=True):
        assert write.name is not None
        text = module.source(write.target)
        message = (
            f"`{text}` is written where backward does not see it: what `{write.name.id}` was made "
            "from gets the gradient of the values before."
        )
        if each.reason:
            message += not_rewritten(each.reason)
        yield module.finding("TRN301", message, write.statement, each.fixes)


def _is_missed(module: ModuleFacts, options: Options, write: Write) -> bool:
    """Whether backward misses a write into something that is trained through."""
    from ..rewrite.out_of_place import is_hidden

    statement = write.statement
    if write.name is None or not any(detached(node) for node in root_of(write.target)[1]):
        return False
    function = module.function(statement)
    if function is None or not is_forward(function) or not in_network(module, function):
        return False
    if not is_hidden(write) or not is_wanted(module, options, "TRN301", statement):
        return False
    if gradient_unwanted(module, statement) or explained(module, write.target):
        return False
    if not Gradients(module, function).value(write.name, statement).sure:
        return False
    if not module.flow(function).read_after(write.name.id, statement):
        return False
    known = destroyed(module, write) or overwritten(module, write)
    return known is None and not quantizes(module, function)
