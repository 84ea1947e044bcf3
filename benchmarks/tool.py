"""The command line on a large tree of model code, and its start-up."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .measure import Result, Usage, interleaved, ratio, spread, usage

TRAINIFY = (sys.executable, "-m", "trainify")


def results() -> Iterator[Result]:
    yield from start_up()
    with tempfile.TemporaryDirectory() as folder:
        yield from large_tree(Path(folder))


def start_up() -> Iterator[Result]:
    commands = {
        "trainify": [*TRAINIFY, "--version"],
        "python": [sys.executable, "-c", "pass"],
    }
    runs = {name: partial(usage, command, ".") for name, command in commands.items()}
    interleaved(2, runs)  # compiles bytecode, warms the page cache
    walls = {name: [u.wall for u in us] for name, us in interleaved(21, runs).items()}
    yield spread("`trainify --version`", walls["trainify"], "s", 0.15)
    yield spread("`python -c pass`", walls["python"], "s")


def large_tree(root: Path) -> Iterator[Result]:
    """The models of the installed transformers, copied so that nothing else is near them."""
    spec = importlib.util.find_spec("transformers")
    assert spec and spec.submodule_search_locations, "transformers is not installed"
    models = root / "models"
    shutil.copytree(
        Path(spec.submodule_search_locations[0]) / "models",
        models,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (root / "pyproject.toml").touch()  # the cache lies beside it
    files = len(list(models.rglob("*.py")))
    time.sleep(3)  # the cache trusts no file that was just written

    check = [*TRAINIFY, "check", "models"]
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F401", "--no-cache"]

    def cold() -> Usage:
        shutil.rmtree(root / ".trainify_cache", ignore_errors=True)
        return usage(check, str(root))

    runs: dict[str, Callable[[], Usage]] = {
        "cold": cold,
        # Whatever came before it, `cold` or itself, has left a cache.
        "warm": partial(usage, check, str(root)),
        "ruff": partial(usage, [*ruff, "models"], str(root)),
    }
    interleaved(1, runs)
    found = interleaved(9, runs)
    of = {
        name: [[getattr(u, each) for u in us] for each in ("wall", "cpu", "megabytes")]
        for name, us in found.items()
    }
    tree = f"{files:,} files"
    yield spread(f"`trainify check`, {tree}, cold: wall", of["cold"][0], "s", 2.5)
    yield spread(f"`trainify check`, {tree}, cold: CPU", of["cold"][1], "s")
    yield spread(f"`trainify check`, {tree}, cold: peak of a process", of["cold"][2], "MB", 60)
    yield spread(f"`trainify check`, {tree}, warm: wall", of["warm"][0], "s", 0.5)
    yield spread(f"`trainify check`, {tree}, warm: CPU", of["warm"][1], "s")
    yield spread(f"`trainify check`, {tree}, warm: peak of a process", of["warm"][2], "MB", 60)
    yield spread(f"`ruff check --select F401 --no-cache`, {tree}: wall", of["ruff"][0], "s")
    yield spread(f"`ruff check --select F401 --no-cache`, {tree}: CPU", of["ruff"][1], "s")
    yield ratio("`trainify check`, cold, against `ruff check`: wall", of["cold"][0], of["ruff"][0])
