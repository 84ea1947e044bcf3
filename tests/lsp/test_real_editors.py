"""The server in editors as a distribution has them, set up as docs/editors.md says.

Neovim 0.7 is sent diagnostics and resolves actions; Emacs with eglot gets actions with their edits.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.each import some
from trainify.engine import check_paths, fix_paths

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "editors.md"
LAYERS = HERE.parents[1] / "fixtures" / "llama_serving" / "layers"
EDITORS = {
    "nvim": ["--headless", "--clean", "-S", str(HERE / "neovim.lua")],
    "emacs": ["--batch", "--load", str(HERE / "emacs.el")],
}
CONFIGURATION = {"nvim": ("lua", "nvim_create_autocmd"), "emacs": ("elisp", "eglot")}


def blocks(kind: str) -> list[str]:
    """The blocks of a language in the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def session(editor: str, file: Path, title: str, only: str) -> dict[str, list]:
    """Take the first action with this in its title at the first finding, and save the file."""
    program = shutil.which(editor)
    if program is None:
        pytest.skip(f"{editor} is not installed")
    home = file.parent / "home"
    home.mkdir()
    kind, word = CONFIGURATION[editor]
    (configuration,) = [block for block in blocks(kind) if word in block]
    configured = file.parent / f"configuration.{kind}"
    configured.write_text(configuration)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
        "HOME": str(home),
        "SESSION_FILE": str(file),
        "SESSION_TITLE": title,
        "SESSION_CONFIGURATION": str(configured),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }
    if only:
        environment["SESSION_ONLY"] = only
    done = subprocess.run(
        [program, *EDITORS[editor]],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    if b"No such file or directory" in done.stderr and b"eglot" in done.stderr:
        pytest.skip("eglot is not installed")
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


ONE = ("activation.py", "Use the differentiable silu_and_mul when a gradient is wanted", "")
ALL = ("layernorm.py", "Fix all gradient cuts in this file", "source.fixAll.trainify")


@pytest.mark.parametrize(
    ("editor", "name", "title", "only"),
    some(
        {("nvim", *ONE), ("emacs", *ALL)}, ((name, *fix) for name in EDITORS for fix in (ONE, ALL))
    ),
)
def test_saved_as_the_command_line_writes_it(
    editor: str, name: str, title: str, only: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    shutil.copy(LAYERS / name, file)
    (tmp_path / "pyproject.toml").write_text("[tool.trainify]\n")
    (report,) = check_paths([str(file)])
    (fixed,) = fix_paths([str(file)])
    assert fixed.change is not None
    seen = session(editor, file, title, only)
    found = sorted(seen["found"])
    places = [(f.line, f.column - 1) for f in report.findings]
    assert [(line, column) for line, column, _ in found] == places
    for (*_, shown), finding in zip(found, report.findings, strict=True):
        assert finding.rule in shown and finding.message in shown
    assert title in seen["titles"] or only
    assert file.read_bytes() == fixed.change.after


def test_other_blocks_can_be_read() -> None:
    assert [json.loads(block) for block in blocks("json")]
    tomllib = pytest.importorskip("tomllib")
    (helix,) = map(tomllib.loads, blocks("toml"))
    assert helix["language-server"]["trainify"] == {"command": "trainify", "args": ["lsp"]}
