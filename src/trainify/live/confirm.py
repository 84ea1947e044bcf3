"""Which cuts that an audit has found are rewritten although the code may mean them.

A scope without gradients, a ``detach()``, ``.data`` or a round trip in the middle of a model can be
a mistake or a stop-gradient; the code looks the same.  The values tell them apart: what is stopped
on purpose learns by another way, or is not to learn and does not require a gradient.  So a cut is
confirmed as a mistake if a parameter gets no gradient at all because of it.

Left open is what a loss holds something that learns against (the target of a critic, the policy
that another is kept close to), and what stops a whole network (the features of an encoder that
stays as it is).  These often require gradients all the same, for a step that is not this one; so
does the network before a head that is trained alone.

What is kept for the next step with its graph is a mistake in any case.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from ..facts.grad_mode import flag_at
from ..findings import Proven
from ..passes.derived_weights import REFERENCE as OF_ANOTHER
from .audit import Cause, Cut, Report
from .audit.against import REFERENCE
from .audit.allowed import named_places
from .audit.messages import is_kept_view
from .audit.places import parsed
from .audit.report import patterns
from .hindered import hindered
from .inplace import original_code
from .loads import covers
from .makers import Made, is_all_that_is_made, made_at, makers
from .properties import KIND, stands_for
from .reach import members
from .rewritten import (
    Confirmed,
    Refused,
    Settings,
    confirmed,
    differ,
    facts_of,
    first_line,
    original_place,
)

_KINDS = {
    Cause.GRAD_MODE: "scope",
    Cause.DATA: "data",
    Cause.HOST: "value",
    Cause.DETACH: "detach",
}
"""What is rather a mistake comes first; any other cause is one in any case."""

_KEPT = "kept"


def _texts(path: str, line: int) -> list[str]:
    """By what a place may be named."""
    return [path, f"{path}:{line}", *_functions_at(path, line)]


def _is_named(texts: Iterable[str], patterns: Collection[str]) -> bool:
    return any(
        fnmatchcase(text, pattern) or fnmatchcase(text, f"*[/.]{pattern}")
        for text in texts
        for pattern in patterns
    )


class StopRemoved(UserWarning):
    """Gradients pass where the code stops them, and only an audit says that this is a mistake."""


class Mistakes:
    """What was confirmed so far, for the settings of a rewriting.

    ``through`` are places of stops that the caller says are mistakes.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        through: Iterable[str] = (),
        allow: Iterable[str] = (),
    ) -> None:
        self.settings = settings
        self.undecided = ""
        """What nothing but the caller can decide, of the report that was looked at last."""
        self._model = model
        self._through = named_places(through, "through")
        self._allow = named_places(allow, "allow")
        self._told: dict[_Site, str] = {}

    def learn(self, report: Report) -> bool:
        """Confirm the mistakes among the cuts of a report; whether that rewrites anything more."""
        before = self.settings
        unsaid = [cut for cut in report.cuts if not self.is_said(cut)]
        targets = {id(cut): held for cut in unsaid if (held := _held_against(report, cut))}
        networks = {
            id(cut): whole
            for cut in unsaid
            if id(cut) not in targets and (whole := _stopped_whole(self._model, report, cut))
        }
        flags = {id(cut): flag for cut in unsaid if (flag := _flag(cut))}
        asked = [*_asked(_TARGET, targets), *_asked(_WHOLE, networks), *_asked(_FLAG, flags), _HOW]
        self.undecided = "; ".join(asked) if len(asked) > 1 else ""
        said = {id(cut) for cut in report.cuts if self.is_said(cut)}
        open_ = {**targets, **networks, **flags}
        derived = [
            (made.path, Proven(made.line, KIND), names)
            for made, names in _derived(self._model, report, open_, said)
            if not _is_named(_texts(made.path, made.line), self._allow)
        ]
        for path, place, names in [*derived, *_mistakes(report.cuts, report, open_, said)]:
            found = confirmed(path, place)
            known = {_site(each): each for each in self.settings.confirmed}
            old = known.get(_site(found))
            if old is not None:
                lines = tuple(sorted({*old.place.lines, *place.lines}))
                found = replace(old, place=replace(old.place, lines=lines))
            known[_site(found)] = found
            more = replace(self.settings, confirmed=tuple(sorted(known.values())))
            if differ(path, self.settings, more):
                self.settings = more
                if not names:
                    continue  # no stop
                listed = ", ".join(patterns(names))
                self._told[_site(found)] = f"{path}:{place.line}: `{found.text}`, for {listed}"
        return self.settings != before

    def is_said(self, cut: Cut) -> bool:
        """Whether the caller has said that a stop is a mistake."""
        if not self._through:
            return False
        places = [(cut.path, cut.line), *([cut.scope_place] if cut.scope_place else [])]
        texts = [cut.function]
        for path, line in (original_place(*place) for place in places):
            texts += _texts(path, line)
        return _is_named(texts, self._through)

    def hindrances(self, report: Report) -> list[str]:
        """Why what the caller says is a mistake stays all the same, a place a line."""
        said = [cut for cut in report.cuts if self.is_said(cut)]
        found = [
            (f"{path}:{place.line}", hindered(path, place))
            for path, place, _ in _mistakes(said, report, (), {id(cut) for cut in said})
        ]
        found += [(cut.place, _NO_PROPERTY) for cut in said if is_kept_view(cut)]
        return [
            f"{place}: nothing was rewritten here, though through= names it: {why}"
            for place, why in found
        ]

    def is_mendable(self, cut: Cut) -> bool:
        """Whether a stop would be rewritten if the caller said that it is a mistake."""
        if not is_kept_view(cut):
            return True
        return any(_derived(self._model, Report(cuts=(cut,)), (), (id(cut),)))

    @property
    def told(self) -> str:
        """What is rewritten only because of an audit, and how to have it left alone."""
        if not self._told:
            return ""
        lines = "".join(f"\n  {line}" for line in self._told.values())
        return (
            "the code stops gradients of which the audit says that parameters learn by no other "
            f'way; they pass now:{lines}\nWhere that is meant, say so: allow=["FILE:LINE"], or '
            "`# trainify: stop-grad` on the line"
        )


_NO_PROPERTY = (
    "where it was computed before does not show, or is no statement that a property could stand for"
)
_TARGET = (
    "what learns meets what is stopped there, of {}, and no layer comes behind: targets and "
    "weights of a loss look like this"
)
_WHOLE = (
    "what is stopped there is all of {}, while others learn: targets, features and heads that "
    "learn alone look like this"
)
_FLAG = "whether gradients are off there is for {} to say"
_HOW = "if that is meant, allow it; if not, name the place: through= or --through"


def _asked(question: str, names: Mapping[int, tuple[str, ...]]) -> Iterator[str]:
    if names:
        listed = dict.fromkeys(name for each in names.values() for name in each)
        yield question.format(", ".join(map(repr, listed)))


def _flag(cut: Cut) -> tuple[str, ...]:
    """The value that decides, in the code, whether a scope switches gradients off."""
    if cut.scope_place is None:
        return ()
    path, line = original_place(*cut.scope_place)
    try:
        module = facts_of(path)
    except Refused:
        return ()
    flag = flag_at(module, line)
    return (ast.unparse(flag),) if flag is not None else ()


def _functions_at(path: str, line: int) -> Iterator[str]:
    """The functions around a line of a file, with their classes."""
    names: list[str] = []
    for node in _around(path, line):
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ".".join([*names, node.name])
            names = []


def _around(path: str, line: int) -> Iterator[ast.stmt]:
    """The statements around a line of a file, from outside in."""
    block: list[ast.stmt] = getattr(parsed(path), "body", [])
    while block:
        found = [s for s in block if first_line(s) <= line <= (s.end_lineno or 0)]
        if not found:
            return
        yield found[0]
        parts = ("body", "orelse", "finalbody", "handlers", "cases")
        block = [s for name in parts for s in getattr(found[0], name, ())]


def _held_against(report: Report, cut: Cut) -> tuple[str, ...]:
    """The parameters of which a cut makes a target; empty where it makes none."""
    names = [name for name in cut.parameters if name in report.missing]
    return tuple(patterns(names)) if cut.target else ()


def _stopped_whole(model: nn.Module, report: Report, cut: Cut) -> tuple[str, ...]:
    """The networks that a cut keeps from learning as wholes; empty where it may be no stop."""
    if cut.cause not in (Cause.GRAD_MODE, Cause.DETACH):
        return ()
    probed = _probed(model, report)
    if probed:
        return (probed,)
    own = {*cut.parameters} & {*report.missing}
    if cut.cause is Cause.GRAD_MODE and not cut.branch:
        return ()
    networks = tuple(_networks(model, own))
    covered = {name for name in own if any(name.startswith(f"{n}.") for n in networks)}
    frozen = sum(
        p.numel()
        for name, p in model.named_parameters()
        if not p.requires_grad and any(name.startswith(f"{n}.") for n in networks)
    )
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    if not own or covered != own or frozen > sum(sizes[name] for name in own):
        return ()  # layers, of a model that goes on behind them, or adapters
    if own.union(report.unused) >= {n for n, p in model.named_parameters() if p.requires_grad}:
        return ()  # nothing else is there to learn
    return () if _switches_itself_off(model, networks, cut) else networks


def _networks(model: nn.Module, missing: set[str]) -> Iterator[str]:
    """The outermost modules of more than one layer of which all that could learn is missing."""
    found: list[str] = []
    for name, module in model.named_modules():
        if not name or any(name.startswith(f"{each}.") for each in found):
            continue
        own = [f"{name}.{n}" for n, p in module.named_parameters() if p.requires_grad]
        layers = {each.rpartition(".")[0] for each in own}
        if len(layers) > 1 and missing.issuperset(own):
            found.append(name)
            yield name


def _switches_itself_off(model: nn.Module, networks: Collection[str], cut: Cut) -> bool:
    """Whether it is the networks' own code that has gradients off: served, not stopped."""
    if cut.scope_place is None:
        return False
    place = original_place(*cut.scope_place)
    classes = {
        cls
        for name, module in model.named_modules()
        if any(f"{name}.".startswith(f"{each}.") for each in networks)
        for cls in type(module).__mro__
    }
    return any(
        covers(original_code(member.function), *place)
        for cls in classes
        if not cls.__module__.startswith("torch.")
        for member in members(cls)
    )


def _probed(model: nn.Module, report: Report) -> str:
    """The network of whose result a head alone learns; empty where that is not what a stop does."""
    if len(report.cuts) != 1 or report.cuts[0].cause not in (Cause.GRAD_MODE, Cause.DETACH):
        return ""
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    missing = {name: size for name, size in sizes.items() if name in report.missing}
    around = [
        name for name, _ in model.named_modules() if all(m.startswith(f"{name}.") for m in missing)
    ]
    network = max(around, key=len, default="")
    behind = {name for name in sizes if name.startswith(f"{network}.")}
    frozen = sum(
        p.numel()
        for name, p in model.named_parameters()
        if name.startswith(f"{network}.") and name not in sizes
    )
    if frozen > sum(missing.values()):
        return ""  # somebody has chosen what learns in it: adapters
    layers = {name.rpartition(".")[0] for name in missing}
    others = sum(sizes.values()) - sum(missing.values())
    whole = behind == missing.keys() and len(layers) > 1
    return network if whole and 0 < others <= sum(missing.values()) else ""


_Site = tuple[str, int, str]


def _site(each: Confirmed) -> _Site:
    return each.file, each.place.line, each.place.kind


def _derived(
    model: nn.Module, report: Report, open_: Collection[int], said: Collection[int]
) -> Iterator[tuple[Made, tuple[str, ...]]]:
    """Where what a step reads was computed from weights, once, and which; as :func:`_mistakes`."""
    found: dict[str, dict[str, None]] = {}
    views: dict[str, tuple[str, ...]] = {}
    for cut in (cut for cut in report.cuts if cut.derived and id(cut) not in open_):
        names = [name for name in cut.parameters if name in report.missing]
        if cut.cause is Cause.KEPT or id(cut) in said:
            for attribute in cut.derived:
                found.setdefault(attribute, {}).update(dict.fromkeys(names or cut.parameters))
            continue
        for name in names:
            own = [each for each in cut.derived if _is_beside(each, name)]
            views[name] = (*views.get(name, ()), *own)
    for name, attributes in _made_again(model, {**report.copies, **views}).items():
        for attribute in attributes:
            found.setdefault(attribute, {})[name] = None
    for derived, each in found.items():
        made = _made_at(model, derived)
        if made is not None and _is_made_again(model, derived, made):
            yield made, tuple(each)


def _made_again(
    model: nn.Module, copies: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """What properties can stand for: of one in which several weights lie, for all of these."""
    left = {n: held for n, held in copies.items() if _are_all_that_is_made(model, n, held)}
    while True:
        others = {each for n, held in copies.items() if n not in left for each in held}
        rest = {n: held for n, held in left.items() if others.isdisjoint(held)}
        if len(rest) == len(left):
            return rest
        left = rest


def _are_all_that_is_made(model: nn.Module, weight: str, attributes: Collection[str]) -> bool:
    """Whether properties can stand for copies or views of a weight, and it was read for no more.

    A weight of which one part learns and another one does not is worse than none.
    """
    holders = {each.rpartition(".")[0] for each in attributes}
    holder = "".join(holders)
    if len(holders) != 1 or not all(_is_beside(each, weight) for each in attributes):
        return False
    if any(OF_ANOTHER.search(each) for each in attributes):
        return False
    made = {each: _made_at(model, each) for each in attributes}
    if not all(at is not None and _is_made_again(model, each, at) for each, at in made.items()):
        return False
    own = weight.removeprefix(f"{holder}.") if holder else weight
    names = [each.rpartition(".")[2] for each in attributes]
    return all(
        is_all_that_is_made(module, own, names)
        for module in model.modules()
        if any(at in makers(module, name) for at in made.values() for name in names)
    )


def _is_beside(attribute: str, weight: str) -> bool:
    """Whether a weight is of the module that holds an attribute, or of one in it."""
    return f".{weight}".startswith(f".{attribute}".rpartition(".")[0] + ".")


def _made_at(model: nn.Module, derived: str) -> Made | None:
    path, _, attribute = derived.rpartition(".")
    return made_at(model.get_submodule(path), attribute)


def _is_made_again(model: nn.Module, derived: str, made: Made) -> bool:
    """Whether a property can stand for an attribute, and gives what that holds."""
    path, _, attribute = derived.rpartition(".")
    place = confirmed(made.path, Proven(made.line, KIND))
    return stands_for(model.get_submodule(path), attribute, Settings(confirmed=(place,)))


def _mistakes(
    cuts: Iterable[Cut], report: Report, open_: Collection[int], said: Collection[int]
) -> Iterator[tuple[str, Proven, tuple[str, ...]]]:
    """Files, places in them as they are on disk, and what gets no gradient because of these.

    Of some of the cuts of a report, and not of those, by their id, that are ``open_``; of those
    that the caller has ``said`` to be mistakes also where something learns by another way.
    """
    missing = {name for name in report.missing if not REFERENCE.search(name)}
    blamed = {id(cut) for name in missing for cut in _plainest(report.cuts, name)}
    for cut in cuts:
        if cut.cause is Cause.KEPT and not cut.derived:
            file, line = original_place(cut.path, cut.line)
            yield file, Proven(line, _KEPT), ()
        if id(cut) not in {*blamed, *said} or id(cut) in open_ or cut.cause not in _KINDS:
            continue
        if cut.derived:
            continue  # no line in forward can be mended
        names = tuple(name for name in cut.parameters if name in missing) or cut.parameters
        for each in cut.wrapped_places:  # the decorator goes, which others may have as well
            file, line = original_place(*each)
            yield file, Proven(line, "scope"), names
        if cut.wrapped:
            continue
        ends = cut.scope_place if cut.cause is Cause.GRAD_MODE else (cut.path, cut.line)
        if ends is None:
            continue
        file, line = original_place(*ends)
        lines = {original_place(ends[0], each)[1] for each in cut.lines}
        wholly = missing.issuperset(cut.parameters)
        place = Proven(line, _KINDS[cut.cause], tuple(sorted(lines)), wholly)
        yield file, place, names


def _plainest(cuts: Iterable[Cut], parameter: str) -> Iterator[Cut]:
    """The cuts that a parameter is behind, of the plainest kind only: the others may be meant."""
    behind = [cut for cut in cuts if parameter in cut.parameters]
    first = min(map(_rank, behind), default=0)
    return (cut for cut in behind if _rank(cut) == first)


def _rank(cut: Cut) -> int:
    return 1 + list(_KINDS).index(cut.cause) if cut.cause in _KINDS else 0
