"""What a command imports, and what the package exports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "libcst", "pygls", "rich", "numpy", "transformers"}


def imported(*command: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}


def roots(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_the_version_imports_next_to_nothing() -> None:
    modules = imported("-m", "trainify", "--version")
    assert "click" in modules
    assert not HEAVY & roots(modules)
    assert {m for m in modules if m.startswith("trainify")} == {
        "trainify",
        "trainify.__main__",
        "trainify.cli",
    } - ({"trainify.__main__"} - modules)


def test_importing_the_package_imports_nothing() -> None:
    modules = imported("-c", "import trainify")
    assert not (HEAVY | {"click", "ast", "dataclasses"}) & roots(modules)
    assert {m for m in modules if m.startswith("trainify")} == {"trainify"}


def test_checking_never_imports_torch(folder: Path) -> None:
    """Neither with the real passes, nor where a file imports it."""
    Path("a.py").write_text(
        "import torch\n\n@torch.no_grad()\ndef forward(self, x):\n    return x.detach()\n"
    )
    modules = imported("-m", "trainify", "check", "--exit-zero", "a.py")
    assert "trainify.engine" in modules
    assert "torch" not in roots(modules)


def test_a_clean_file_needs_no_parser(folder: Path) -> None:
    Path("a.py").write_text("x = 1\n")
    modules = imported("-m", "trainify", "check", "a.py")
    assert not (HEAVY | {"multiprocessing", "concurrent"}) & roots(modules)


def test_each_exported_name_is_there() -> None:
    import trainify

    assert set(trainify._HOME) | {"__version__"} == set(trainify.__all__)
    for name in trainify.__all__:
        assert getattr(trainify, name) is not None
        assert name in dir(trainify)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = trainify.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "command", [("-m", "trainify"), (str(Path(sys.executable).with_name("trainify")),)]
)
def test_both_ways_to_start(command: tuple[str, ...]) -> None:
    import trainify

    arguments = [sys.executable, *command] if command[0] == "-m" else list(command)
    for option in ("-V", "--version"):
        done = subprocess.run([*arguments, option], capture_output=True, text=True, check=True)
        assert done.stdout == f"trainify {trainify.__version__}\n"
    done = subprocess.run([*arguments, "-h"], capture_output=True, text=True, check=True)
    assert [word for word in ("check", "fix", "explain", "rules") if word not in done.stdout] == []


def test_misuse(process) -> None:
    for arguments in (
        ("frobnicate",),
        ("check", "--nope"),
        ("check", "--strategy", "magic"),
        ("explain",),
    ):
        done = process(*arguments)
        assert done.returncode == 2
        assert b"Usage: trainify" in done.stderr
        assert b"Traceback" not in done.stderr


def test_the_commit_hooks_are_commands(folder: Path, process) -> None:
    hooks = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"
    entries = [line.split()[1:] for line in hooks.read_text().splitlines() if " entry: " in line]
    assert len(entries) == 2
    for program, *arguments in entries:
        Path("a.py").write_text("fused(1)\n")
        done = process(*arguments, "a.py")
        assert program == "trainify"
        assert (done.returncode, "fix" in arguments) in ((1, False), (0, True))
        assert ("plain" in Path("a.py").read_text()) == ("fix" in arguments)
