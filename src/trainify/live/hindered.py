"""Why a stop that the caller calls a mistake stays: in words, for the error."""

from __future__ import annotations

from ..facts import ModuleFacts
from ..facts.comments import explained
from ..facts.grad_mode import scope_at, scope_of_flag
from ..facts.guards import gradient_unwanted
from ..facts.scope_wrappers import only_switches
from ..findings import Proven
from ..passes.caches import ends_on_purpose
from .rewritten import Refused, Settings, confirmed, differ, facts_of

_BY_COMMENT = "a comment says that it is meant"
_BY_TEST = "the code there runs only where no gradient is wanted, by the tests around it"
_KEPT = "what is computed there is kept for a later call"


def hindered(path: str, place: Proven) -> str:
    """What hinders a rewriting of a place in a file that is imported."""
    try:
        module = facts_of(path)
    except Refused as reason:
        return str(reason)
    if differ(path, Settings(), Settings(confirmed=(confirmed(path, place),))):
        return "the function that it stands in is held where nothing leads to it from the model"
    return _scope(module, place) if place.kind == "scope" else _value(module, place)


def _scope(module: ModuleFacts, place: Proven) -> str:
    scope = scope_at(module, place.line) or scope_of_flag(module, place.line)
    if scope is None and any(f.lineno == place.line for f in module.functions):
        return (
            "gradients were switched off around that function when the model was made; take it "
            "away there"
        )
    if scope is None:
        return "what switches gradients off there is not known; take it away by hand"
    if explained(module, scope.node):
        return _BY_COMMENT
    if gradient_unwanted(module, scope.owner):
        return _BY_TEST
    if scope.node in getattr(scope.owner, "decorator_list", ()):
        if not only_switches(module, scope.node):
            return "the decorator does more than to switch gradients off"
    body = getattr(scope.owner, "body", ())
    if any(ends_on_purpose(module, statement) for statement in body):
        return _KEPT
    return "it shares its lines with other statements, or what else runs under it has to stay there"


def _value(module: ModuleFacts, place: Proven) -> str:
    for statement in module.statements:
        if statement.lineno <= place.line <= (statement.end_lineno or 0):
            if place.kind != "value" and ends_on_purpose(module, statement):
                return _KEPT
            if gradient_unwanted(module, statement):
                return _BY_TEST
    for node in module.calls:
        if node.lineno <= place.line <= (node.end_lineno or 0) and explained(module, node):
            return _BY_COMMENT
    if place.kind == "value":
        return "how it comes back from there is nothing that has a known equivalent in torch"
    if not place.wholly:
        return "several are detached on the line, or what they hold learns by another way as well"
    return "no known rewriting fits what stands there"
