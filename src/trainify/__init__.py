"""Make inference-only transformer code trainable.

Importing this package imports nothing else; each name below is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .catalog.own import register
    from .engine import FixResult, Options, check_text, fix_text
    from .findings import Edit, Finding, Fix, Safety, apply_edits
    from .gradients import MissingGradients, NoGraph, backward, require_gradients
    from .live.apply import restore, source_diff
    from .live.attach import Attached, CannotAttach, attach
    from .live.audit.report import Cause, Cut, Report
    from .live.audit.run import audit
    from .live.confirm import StopRemoved
    from .live.swap import NotReapplied
    from .live.trainable import NotEverything, NotTrainable, trainify

__all__ = [
    "Attached",
    "CannotAttach",
    "Cause",
    "Cut",
    "Edit",
    "Finding",
    "Fix",
    "FixResult",
    "MissingGradients",
    "NoGraph",
    "NotEverything",
    "NotReapplied",
    "NotTrainable",
    "Options",
    "Report",
    "Safety",
    "StopRemoved",
    "__version__",
    "apply_edits",
    "attach",
    "audit",
    "backward",
    "check_text",
    "fix_text",
    "register",
    "require_gradients",
    "restore",
    "source_diff",
    "trainify",
]

__version__ = "0.1.0"

_HOME = {
    "Attached": "live.attach",
    "CannotAttach": "live.attach",
    "Cause": "live.audit.report",
    "Cut": "live.audit.report",
    "Edit": "findings",
    "Finding": "findings",
    "Fix": "findings",
    "FixResult": "engine",
    "MissingGradients": "gradients",
    "NoGraph": "gradients",
    "NotEverything": "live.trainable",
    "NotReapplied": "live.swap",
    "NotTrainable": "live.trainable",
    "Options": "engine",
    "Report": "live.audit.report",
    "Safety": "findings",
    "StopRemoved": "live.confirm",
    "apply_edits": "findings",
    "attach": "live.attach",
    "audit": "live.audit.run",
    "backward": "gradients",
    "check_text": "engine",
    "fix_text": "engine",
    "register": "catalog.own",
    "require_gradients": "gradients",
    "restore": "live.apply",
    "source_diff": "live.apply",
    "trainify": "live.trainable",
}


def __getattr__(name: str) -> object:
    import importlib

    if name == "fx":
        return importlib.import_module(".fx", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
