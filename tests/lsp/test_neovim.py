"""The server in Neovim, as it comes from a distribution: push diagnostics, the built-in client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainify.engine import check_paths, fix_paths

HERE = Path(__file__).parent
LAYERS = HERE.parents[1] / "fixtures" / "llama_serving" / "layers"
NVIM = shutil.which("nvim")

pytestmark = pytest.mark.skipif(NVIM is None, reason="Neovim is not installed")


def session(file: Path, title: str, only: str = "") -> dict[str, object]:
    """Take the first action with this in its title at the first finding, and save the file."""
    environment = {
        **os.environ,
        "SESSION_FILE": str(file),
        "SESSION_TITLE": title,
        "SESSION_COMMAND": json.dumps([sys.executable, "-m", "trainify", "lsp"]),
        "XDG_STATE_HOME": str(file.parent / "state"),
        "XDG_CACHE_HOME": str(file.parent / "cache"),
        "XDG_DATA_HOME": str(file.parent / "data"),
    }
    if only:
        environment["SESSION_ONLY"] = only
    assert NVIM is not None
    done = subprocess.run(
        [NVIM, "--headless", "--clean", "-S", str(HERE / "neovim.lua")],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and "problem" not in seen, (seen, done.stderr)
    return seen


@pytest.mark.parametrize(
    ("name", "title", "only"),
    [
        ("activation.py", "Use the differentiable silu_and_mul when a gradient is wanted", ""),
        ("layernorm.py", "Fix all gradient cuts in this file", "source.fixAll"),
    ],
)
def test_saved_as_the_command_line_writes_it(
    name: str, title: str, only: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    shutil.copy(LAYERS / name, file)
    (tmp_path / "pyproject.toml").write_text("[tool.trainify]\n")
    (report,) = check_paths([str(file)])
    (fixed,) = fix_paths([str(file)])
    assert fixed.change is not None
    seen = session(file, title, only)
    assert seen["found"] == [[f.line, f.column - 1, f.rule, f.message] for f in report.findings]
    assert title in seen["titles"]
    assert file.read_bytes() == fixed.change.after
