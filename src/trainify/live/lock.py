"""One audit or change at a time: for a while they replace functions of torch, and of users."""

from __future__ import annotations

import threading

LOCK = threading.RLock()
