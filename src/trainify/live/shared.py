"""Changes outside of a module's own class, which last as long as a module needs them."""

from __future__ import annotations

import weakref

from torch import nn


class Shared:
    """Something global that is changed for whoever holds it.

    It is changed when the first module holds it and changed back when the last one that still lives
    lets it go.  A module that dies without being restored only stops counting: what is changed here
    does nothing where no gradient is wanted, and an undo in the middle of a garbage collection
    could hit any code.
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
        key = id(owner)
        self._holders[key] = weakref.ref(owner, lambda _: self._holders.pop(key, None))

    def release(self, owner: nn.Module) -> None:
        """``owner`` needs it no more."""
        self._holders.pop(id(owner), None)
        if self._changed and not self._holders:
            self._changed = False
            self.undo()
