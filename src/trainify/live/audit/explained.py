"""Stops that their author explains: in a comment on the line, or in those right above it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence

from .cuts import Suspect
from .places import Place
from .trace import Trace, made_by, own_name, result, tensor_of

_MEANT = re.compile(
    r"^(?:a )?stop[- _]?grad|treat\w*\b.{0,80}\bas (?:a )?constants?\b|straight[- ]through|"
    r"detach\w*[^.]{0,40}from the (?:gradient|autograd|computation) |"
    r"no gradients? (?:go(?:es)?|flows?|pass(?:es)?|is passed)? ?(?:through|back|into)\b|"
    r"(?:not|won.?t|don.?t|never|without) back-?prop|(?:not|won.?t|never) receive any gradient|"
    r"gradients? (?:should|must|do|does|will) ?not (?:flow|go|pass|reach)",
    re.IGNORECASE,
)
"""What says that no gradient is to go on."""

_FOR_SERVING = re.compile(
    r"infer|serv(?:e|ing)|eval|speed|fast|memory|generat|deploy|kernel|fused|numpy|\bneed|tracked|"
    r"\brepo\b|\bcopy|\bbug\b|cuda|cache|\bops?\b|operator|c\+\+|quanti[sz]|int8|fp8|export|onnx|"
    r"overhead|support|todo|fixme|hack",
    re.IGNORECASE,
)
"""What gives another reason for it, which training does not have."""


def is_explained(trace: Trace, group: Sequence[Suspect]) -> bool:
    """Whether a comment says that no gradient goes on from suspects at one site.

    Or from a later ``detach()``, through which all goes that is made of what they stop.
    """
    if all(_says_so(each.scope or each.place) for each in group):
        return True
    made = {tensor_of(sight) for each in group for sight in made_by(each.call)}
    stopped = False
    for call in trace.calls:
        if made.isdisjoint(map(tensor_of, call.ins)):
            continue
        if own_name(call) == "detach" and _says_so(call.place):
            stopped = True
        elif call.function is result:
            return False
        else:
            made.update(map(tensor_of, made_by(call)))
    return stopped


def _says_so(place: Place) -> bool:
    lines = [linecache.getline(place.path, place.line).partition("#")[2]]
    number = place.line - 1
    while (line := linecache.getline(place.path, number).lstrip()).startswith("#"):
        lines.append(line)
        number -= 1
    said = " ".join(line.strip("# \t\n") for line in reversed(lines))
    return bool(_MEANT.search(said)) and not _FOR_SERVING.search(said)
