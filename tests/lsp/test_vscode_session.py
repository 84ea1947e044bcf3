"""The extension in VS Code itself, in headless Chromium; ``make vscode-test`` brings the former."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainify.engine import check_paths, fix_paths

ROOT = Path(__file__).parents[2]
SESSION = ROOT / "editors" / "vscode" / "test"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")


@pytest.mark.slow
@pytest.mark.skipif(
    CHROMIUM is None or not (SESSION / "node_modules" / "code-server").is_dir(),
    reason="run `make vscode-test`",
)
def test_light_bulb(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    file = folder / "activation.py"
    shutil.copy(ROOT / "fixtures" / "llama_serving" / "layers" / file.name, file)
    (folder / "pyproject.toml").write_text("[tool.trainify]\n")
    (report,) = check_paths([str(file)])
    (finding,) = report.findings
    (fixed,) = fix_paths([str(file)])
    assert fixed.change is not None
    server = str(Path(sys.executable).with_name("trainify"))
    picture = str(tmp_path / "menu.png")
    done = subprocess.run(
        ["node", "session.mjs", str(folder), file.name, str(finding.line), server, picture],
        cwd=SESSION,
        env={**os.environ, "CHROMIUM": CHROMIUM, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, (done.stderr, f"see {picture}")
    titles = [fix.title for fix in finding.fixes.values()]
    assert json.loads(done.stdout) == [*titles, "Silence TRN101 on this line"]
    assert file.read_bytes() == fixed.change.after
