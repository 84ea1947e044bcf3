"""The types of the protocol, imported in a third of the time."""

from __future__ import annotations

import sys
from typing import Any

import attrs


def import_types() -> None:
    """Import ``lsprotocol.types``, whose objects then neither compare nor show what they hold.

    It defines some 550 classes with attrs; most of what that takes goes into methods that a server
    never calls.
    """
    if "lsprotocol.types" in sys.modules:
        return
    define: Any = attrs.define

    def quick(cls: type | None = None, **options: Any) -> Any:
        return define(cls, **{"eq": False, "repr": False, "order": False} | options)

    attrs.define = quick  # type: ignore[assignment]
    try:
        import lsprotocol.types  # noqa: F401
    finally:
        attrs.define = define
