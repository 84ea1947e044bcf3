"""One judgement for each revision of a source, and what to show until there is one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..findings import Edit, Finding
from ..source import SourceError
from .documents import Source
from .moving import moved

log = logging.getLogger(__name__)

Find = Callable[[Source, bool], Awaitable[list[Finding]]]
"""Finds in a source as it is now; the flag says that something had been found before."""


@dataclass(frozen=True)
class Judgement:
    """What there is to say about one revision of a source.

    Where that does not parse, ``findings`` are the last that were found, moved with the edits.
    """

    revision: int
    findings: tuple[Finding, ...] = ()
    parsed: bool = True


@dataclass(eq=False)
class _State:
    """What is known of a source."""

    judgement: Judgement = Judgement(-1)
    good: tuple[Finding, ...] | None = None
    """The findings of the last text that parsed, where they are now."""
    running: asyncio.Task[None] | None = None
    since: list[Edit] = field(default_factory=list)
    """The edits since what is running began."""


class Judge:
    """Has each revision judged that somebody asks about, and remembers the last."""

    def __init__(self, find: Find) -> None:
        self._find = find
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

    async def judgement(self, source: Source) -> Judgement:
        """The judgement of the newest revision; an empty one where the source has been closed."""
        while (state := self._states.get(source)) is not None:
            if state.judgement.revision == source.revision:
                return state.judgement
            if state.running is None or state.running.done():
                state.running = asyncio.create_task(self._run(source, state))
            await asyncio.wait([state.running])
        return Judgement(source.revision)

    async def _run(self, source: Source, state: _State) -> None:
        revision = source.revision
        state.since = []
        try:
            found = await self._find(source, bool(state.good))
        except Exception as error:
            if not isinstance(error, SourceError):
                log.error("%s: internal error", source.path, exc_info=error)
            if revision == source.revision:
                state.judgement = Judgement(revision, state.good or (), parsed=False)
            return
        if revision == source.revision:
            state.good = tuple(found)
            state.judgement = Judgement(revision, state.good)
        else:
            state.good = moved(found, state.since)
