from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fake
import pytest
from cli_tools import FAKE, git
from click.testing import CliRunner, Result

from trainify import passes
from trainify.cli import cli

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(autouse=True)
def _fake_pass(monkeypatch: pytest.MonkeyPatch) -> object:
    """The engine sees the pass of fake.py only."""
    monkeypatch.setattr(passes, "all_passes", passes.all_passes)  # put back afterwards
    fake.install()
    yield
    passes.all_rules.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def repo(folder: Path) -> Path:
    """An empty git repository, which is the current folder."""
    git("init", "-q", ".")
    return folder


@pytest.fixture
def trainify(folder: Path) -> Callable[..., Result]:
    """The command line in this process."""

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(cli, [str(a) for a in arguments], input=stdin)

    return run


@pytest.fixture
def process(folder: Path) -> Run:
    """The command line in a process of its own."""

    def run(
        *arguments: object, stdin: bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, str(FAKE), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env=os.environ | environment,
            timeout=60,
        )

    return run
