"""The types of the protocol, imported in a fraction of the time."""

from __future__ import annotations

import sys
from typing import Any

import attrs

_define = attrs.define


def import_types() -> None:
    """Import ``lsprotocol.types``, each class of which is then completed when it is first used.

    It defines some 550 classes with attrs, which takes longer than all else that a server does
    before it answers; a session uses about fifty.  The objects neither compare nor show what they
    hold: a server asks for neither.
    """
    if "lsprotocol.types" in sys.modules:
        return
    attrs.define = _later  # type: ignore[assignment]
    try:
        import lsprotocol.types  # noqa: F401
    finally:
        attrs.define = _define
    # A converter would have the types of all fields looked up, and with that all classes completed;
    # here each looks up its own.
    from lsprotocol import _hooks

    _hooks._resolved_forward_references = True


def _later(cls: type | None = None, **options: Any) -> Any:
    """What ``attrs.define`` does, when the class is instantiated or asked for its fields."""
    if cls is None or options:
        return _define(cls, **options)
    incomplete = cls

    def init(self: object, *args: Any, **kwargs: Any) -> None:
        _complete(incomplete)
        self.__init__(*args, **kwargs)  # type: ignore[misc]

    cls.__init__ = init  # type: ignore[misc]
    cls.__attrs_attrs__ = _Fields(incomplete)  # type: ignore[attr-defined]
    return cls


class _Fields:
    """Stands where a class that is not complete will have its fields."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type) -> object:
        _complete(self._cls)
        return owner.__attrs_attrs__  # type: ignore[attr-defined]


def _complete(cls: type) -> None:
    from lsprotocol.types import ALL_TYPES_MAP

    del cls.__init__, cls.__attrs_attrs__  # type: ignore[attr-defined,misc]
    # With slots, it would have to be another class than the one that everybody has by now.
    _define(cls, slots=False, eq=False, repr=False, order=False)
    attrs.resolve_types(cls, ALL_TYPES_MAP, {})
