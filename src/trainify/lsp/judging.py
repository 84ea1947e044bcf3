"""One judgement for each revision of a source, and what to show until there is one.

A judgement comes in two steps: what is found, which is to be seen at once, and then the fixes, some
of which take several times as long to work out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from ..findings import Edit, Finding
from ..passes import NOT_REWRITTEN
from ..source import SourceError
from .documents import Source
from .moving import moved

log = logging.getLogger(__name__)

Find = Callable[[Source, bool], Awaitable[list[Finding]]]
"""Finds in a source as it is now; the flag says that something had been found before."""

Plan = Callable[[Source], Awaitable[list[Finding]]]
"""Finds the same, with all fixes."""


@dataclass(frozen=True)
class Judgement:
    """What there is to say about one revision of a source.

    Where that does not parse, ``findings`` are the last that were found, moved with the edits.
    """

    revision: int
    findings: tuple[Finding, ...] = ()
    parsed: bool = True
    planned: bool = False
    """Whether the fixes are complete, and the messages that say why there is none."""

    def shows(self) -> list[tuple[object, ...]]:
        """What can be seen of it."""
        return [(f.rule, f.start, f.end, f.message, f.related) for f in self.findings]


@dataclass(eq=False)
class _State:
    """What is known of a source."""

    judgement: Judgement = Judgement(-1)
    good: tuple[Finding, ...] | None = None
    """The findings of the last text that parsed, where they are now."""
    running: asyncio.Task[None] | None = None
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    """The complete messages of the last planned judgement, by rule and beginning."""
    since: list[Edit] = field(default_factory=list)
    """The edits since what is running began."""


class Judge:
    """Has each revision judged that somebody asks about, and remembers the last."""

    def __init__(self, find: Find, plan: Plan) -> None:
        self._find = find
        self._plan = plan
        self._states: dict[Source, _State] = {}

    def opened(self, source: Source) -> None:
        self._states[source] = _State()

    def closed(self, source: Source) -> None:
        state = self._states.pop(source, None)
        if state and state.running:
            state.running.cancel()

    def edited(self, source: Source, edits: list[Edit]) -> None:
        """Take note of edits, each in the text before it."""
        state = self._states[source]
        state.since += edits
        if state.good is not None:
            state.good = moved(state.good, edits)
            if state.running:  # else what it finds, moved, is better than nothing
                state.running.cancel()

    async def judgement(self, source: Source, *, planned: bool = False) -> Judgement:
        """The judgement of the newest revision; an empty one where the source has been closed."""
        while (state := self._states.get(source)) is not None:
            done = state.judgement
            if done.revision == source.revision:
                if done.planned or not planned or not done.parsed:
                    return done
            if state.running is None or state.running.done():
                state.running = asyncio.create_task(self._run(source, state))
            await asyncio.wait([state.running])
        return Judgement(source.revision)

    async def _run(self, source: Source, state: _State) -> None:
        """Take the next step of the newest revision."""
        revision = source.revision
        planned = state.judgement.revision == revision
        state.since = []
        try:
            if planned:
                found = await self._plan(source)
                state.reasons = {
                    (f.rule, f.message.partition(NOT_REWRITTEN)[0]): f.message for f in found
                }
            else:
                found = await self._find(source, bool(state.good))
                found = [_with_reason(finding, state.reasons) for finding in found]
        except Exception as error:
            if not isinstance(error, SourceError):
                log.error("%s: internal error", source.path, exc_info=error)
            if revision == source.revision:
                state.judgement = Judgement(revision, state.good or (), parsed=False)
            return
        if revision == source.revision:
            state.good = tuple(found)
            state.judgement = Judgement(revision, state.good, planned=planned)
        else:
            state.good = moved(found, state.since)


def _with_reason(finding: Finding, reasons: Mapping[tuple[str, str], str]) -> Finding:
    """A finding with the message that it had when it was last planned."""
    message = reasons.get((finding.rule, finding.message))
    return replace(finding, message=message) if message is not None else finding
