"""One extension: its name, and what its sources say of its functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..native import Effect, Sources, Unit


class Extension:
    """One extension; ``name`` is the dotted name of its import, empty where it has none."""

    def __init__(self, name: str, units: Iterable[Unit], names: Iterable[str] = ()) -> None:
        self.name = name
        self._units = units
        self._names = names

    @cached_property
    def _sources(self) -> Sources:
        from ..native import Sources  # which few projects have a use for

        return Sources(self._units, self.name.rpartition(".")[2], self._names)

    @property
    def functions(self) -> Mapping[str, Effect]:
        """What its functions do, by the names that Python calls them by."""
        return self._sources.functions

    @cached_property
    def operators(self) -> Mapping[str, Effect]:
        """The same of what it registers with the dispatcher, by ``namespace.name``."""
        return self._sources.operators
