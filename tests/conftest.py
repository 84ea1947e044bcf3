from __future__ import annotations

import os

from hypothesis import settings

# The time that an example takes says more about the machine than about the code.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
