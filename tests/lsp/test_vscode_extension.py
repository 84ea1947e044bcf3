"""The extension for VS Code: what it offers as settings is what the server takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from trainify import __version__
from trainify.lsp.actions import FIX_ALL
from trainify.lsp.settings import ClientSettings

FOLDER = Path(__file__).parents[2] / "editors" / "vscode"
PACKAGE = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
SETTINGS = {
    key.removeprefix("trainify."): about
    for key, about in PACKAGE["contributes"]["configuration"]["properties"].items()
}


def nested(settings: dict[str, object]) -> dict[str, object]:
    """As the editor sends them: a dot in a name is a level."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        first, _, rest = key.partition(".")
        found[first] = {rest: value} if rest else value
    return found


def test_defaults_change_nothing() -> None:
    defaults = nested({key: about["default"] for key, about in SETTINGS.items()})
    assert ClientSettings.read(defaults) == ClientSettings()


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, about in SETTINGS.items() for value in about.get("enum", ())],
)
def test_choices_are_accepted(key: str, value: str | None) -> None:
    assert not ClientSettings.read(nested({key: value})).mistakes


def test_same_version_and_actions() -> None:
    assert PACKAGE["version"] == __version__
    source = (FOLDER / "src" / "extension.ts").read_text(encoding="utf-8")
    assert re.search(r'FIX_ALL = "(.*)"', source)[1] == FIX_ALL


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("npm") is None or not (FOLDER / "node_modules").is_dir(),
    reason="run `make vscode` first",
)
def test_types() -> None:
    subprocess.run(["npm", "run", "--silent", "check"], cwd=FOLDER, check=True, timeout=120)
