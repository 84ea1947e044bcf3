from __future__ import annotations

import subprocess
from pathlib import Path

FAKE = Path(__file__).with_name("fake.py")


def git(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], input=stdin, capture_output=True, check=True)
