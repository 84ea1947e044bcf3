"""Changes outside of a module's own class, which last as long as a module needs them."""

from __future__ import annotations

import weakref

from torch import nn


class Shared:
    """Something global that is changed for whoever holds it.

    It is changed when the first module holds it and changed back when the last one that still lives
    lets it go.  A module that dies without being restored only stops counting: what is changed here
    does nothing where no gradient is wanted, and an undo in the middle of a garbage collection
    could hit any code.  :func:`undo_unheld` makes up for it.
    """

    def __init__(self) -> None:
        self._holders: dict[int, weakref.ref[nn.Module]] = {}
        self._changed = False

    @property
    def in_effect(self) -> bool:
        """Whether it is changed, for anybody."""
        return self._changed

    def change(self) -> None:
        """Make the change; raises where that cannot be, having changed nothing."""
        raise NotImplementedError

    def undo(self) -> None:
        """Take it back."""
        raise NotImplementedError

    @property
    def owners(self) -> str:
        """The classes of the modules that hold it."""
        held = (reference() for reference in self._holders.values())
        return ", ".join(
            dict.fromkeys(type(each).__qualname__ for each in held if each is not None)
        )

    def hold(self, owner: nn.Module) -> None:
        """Keep it for ``owner``; twice is once."""
        if not self._changed:
            self.change()
            self._changed = True
            _in_effect.append(self)
        key = id(owner)
        self._holders[key] = weakref.ref(owner, lambda _: self._holders.pop(key, None))

    def release(self, owner: nn.Module) -> None:
        """``owner`` needs it no more."""
        self._holders.pop(id(owner), None)
        self._undo_unless_held()

    def _undo_unless_held(self) -> bool:
        if not self._changed or self._holders:
            return False
        self._changed = False
        _in_effect.remove(self)
        self.undo()
        return True


_in_effect: list[Shared] = []


def undo_unheld() -> bool:
    """Take back what only modules needed that have died since; whether there was anything."""
    return sum([each._undo_unless_held() for each in _in_effect[:]]) > 0
