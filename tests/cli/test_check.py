"""``trainify check``, ``rule`` and ``rules``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake import IMPORT


def test_nothing_to_report(folder: Path, trainify) -> None:
    Path("a.py").write_text("x = 1\n")
    Path("b.py").write_text("")
    result = trainify("check")
    assert (result.exit_code, result.output) == (0, "Found no gradient cuts in 2 files.\n")


def test_text(folder: Path, trainify) -> None:
    Path("a.py").write_text(
        "def f(x):\n\ty = fused(\n\t\tx)  # é\n\treturn risky('日本') + shown(y)\nhopeless(1)\n"
    )
    result = trainify("check", "a.py")
    assert result.exit_code == 1
    assert (
        result.stdout
        == """\
a.py:2:6: TRN901 `fused` cuts
  |
2 |     y = fused(
  |         ^^^^^^
3 |         x)  # é
  |         ^^
  |
  = fix: call plain
1 + from plain import plain
2 -     y = fused(
3 +     y = plain(

a.py:4:9: TRN902 `risky` cuts
  |
4 |     return risky('日本') + shown(y)
  |            ^^^^^^^^^^^^^
  |
  = unsafe fix: call safe
  = look at: the sign
4 -     return risky('日本') + shown(y)
4 +     return safe('日本') + shown(y)

a.py:4:23: TRN901 `shown` cuts
  |
4 |     return risky('日本') + shown(y)
  |                            ^^^^^^^^
  |
  = suggestion: think
4 -     return risky('日本') + shown(y)
4 +     return risky('日本') + think()

a.py:5:1: TRN911 `hopeless` cuts
  |
5 | hopeless(1)
  | ^^^^^^^^^^^

Found 4 gradient cuts in 1 file; 1 fixable with `trainify fix`, 1 with `--unsafe`.
"""
    )


def test_text_stays_on_the_screen(folder: Path, trainify) -> None:
    """A very long line is cropped, and nothing in a file can steer the terminal."""
    Path("long.py").write_text(f"x = '{'-' * 5000}'; fused(1); y = '{'-' * 5000}'\n")
    Path("nasty.py").write_text("fused('\x1b[2J')\n")
    Path("tall.py").write_text("fused(\n" + "1,\n" * 500 + ")\n")
    result = trainify("check")
    assert max(map(len, result.stdout.splitlines())) < 200
    assert "\x1b" not in result.stdout
    assert len(result.stdout.splitlines()) < 60
    lines = result.stdout.splitlines()
    source = next(line for line in lines if "fused(1)" in line)
    carets = lines[lines.index(source) + 1]
    assert source[carets.index("^") : carets.rindex("^") + 1] == "fused(1)"


def test_colour_only_when_asked(folder: Path, trainify, monkeypatch) -> None:
    Path("a.py").write_text("fused(1)\n")
    assert "\x1b" not in trainify("check").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[31m" in trainify("check").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in trainify("check").stdout


def test_json(folder: Path, trainify) -> None:
    Path("a.py").write_text("x = 1\r\nfused(\r\n  x)\r\nhopeless(1)\r\n")
    Path("bad.py").write_text("fused(\n")
    result = trainify("check", "--format", "json", ".")
    assert result.exit_code == 2
    assert "bad.py:1:6: cannot parse" in result.stderr
    first, second = json.loads(result.stdout)
    assert first == {
        "path": "a.py",
        "line": 2,
        "column": 1,
        "end_line": 3,
        "end_column": 5,
        "rule": "TRN901",
        "message": "`fused` cuts",
        "related": [],
        "safety": "safe",
        "fixes": {
            "flag": {
                "title": "call plain",
                "safety": "safe",
                "look_at": "",
                "edits": [
                    _edit(1, 1, 1, 1, IMPORT.strip() + "\r\n"),
                    _edit(2, 1, 3, 5, "plain(\r\n  x)"),
                ],
            },
            "replace": {
                "title": "call it twice",
                "safety": "safe",
                "look_at": "",
                "edits": [_edit(2, 1, 3, 5, "twice(\r\n  x)")],
            },
        },
    }
    assert (second["safety"], second["fixes"]) == (None, {})


def _edit(line: int, column: int, end_line: int, end_column: int, text: str) -> dict[str, object]:
    return {
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
        "text": text,
    }


def test_json_without_findings(folder: Path, trainify) -> None:
    assert json.loads(trainify("check", "--format", "json").stdout) == []


def test_github(folder: Path, trainify) -> None:
    Path("a,100%.py").write_text("\nfused(1)\n")
    result = trainify("check", "--format", "github")
    assert result.stdout == (
        "::error title=TRN901,file=a%2C100%25.py,line=2,col=1,endLine=2,endColumn=9::`fused` cuts\n"
    )


def test_statistics(folder: Path, trainify) -> None:
    Path("a.py").write_text("fused(1)\nhopeless(1)\n" + "risky(1)\n" * 10)
    result = trainify("check", "--statistics")
    assert result.stdout.splitlines() == [
        "10  TRN902  risky",
        " 1  TRN901  fused",
        " 1  TRN911  hopeless",
        "Found 12 gradient cuts in 1 file; 1 fixable with `trainify fix`, 10 with `--unsafe`.",
    ]
    assert trainify("check", "--statistics", "--format", "json").exit_code == 2


@pytest.mark.parametrize(
    ("text", "arguments", "summary"),
    [
        ("risky(1)", [], "1 gradient cut in 1 file; 1 fixable with `--unsafe`."),
        (
            "risky(1)",
            ["--unsafe"],
            "1 gradient cut in 1 file; 1 fixable with `trainify fix --unsafe`.",
        ),
        (
            "fused(1);risky(1)",
            ["--unsafe"],
            "cuts in 1 file; 2 fixable with `trainify fix --unsafe`.",
        ),
        ("hopeless(1);shown(1)", ["--unsafe"], "2 gradient cuts in 1 file."),
        ("risky(1)", ["--strategy", "replace"], "1 gradient cut in 1 file."),
    ],
)
def test_the_summary_tells_what_can_be_fixed(folder, trainify, text, arguments, summary) -> None:
    Path("a.py").write_text(text)
    assert trainify("check", *arguments).stdout.endswith(summary + "\n")


def test_exit_zero_hides_findings_but_not_errors(folder: Path, trainify) -> None:
    Path("a.py").write_text("fused(1)\n")
    assert trainify("check", "--exit-zero").exit_code == 0
    assert trainify("check", "--exit-zero", "missing.py").exit_code == 2


def test_select_on_the_command_line(folder: Path, trainify) -> None:
    Path("a.py").write_text("fused(1)\nhopeless(1)\n")
    assert "TRN911" not in trainify("check", "--select", "TRN901,TRN902").stdout
    assert "TRN911" not in trainify("check", "--ignore", "TRN91").stdout
    result = trainify("check", "--select", "TRN7")
    assert result.exit_code == 2
    assert "no rule has the code 'TRN7'" in result.stderr


def test_stdin(folder: Path, trainify) -> None:
    result = trainify("check", "-", "--stdin-filename", "pkg/m.py", stdin=b"fused(1)\n")
    assert result.exit_code == 1
    assert result.stdout.startswith("pkg/m.py:1:1: TRN901")
    assert trainify("check", "-", stdin=b"").exit_code == 0
    assert "<stdin>:1:6: cannot parse" in trainify("check", "-", stdin=b"fused(").stderr


@pytest.mark.parametrize("arguments", [("-", "a.py"), ("a.py", "--stdin-filename", "b.py")])
def test_stdin_misuse(folder: Path, trainify, arguments: tuple[str, ...]) -> None:
    assert trainify("check", *arguments).exit_code == 2


def test_rules(trainify) -> None:
    assert trainify("rules").stdout.splitlines()[1] == (
        "TRN902  risky: A call of `risky` may have no gradient."
    )
    for code in ("TRN901", "trn901"):
        result = trainify("explain", code)
        assert result.exit_code == 0
        assert "    fused(x)\n\n## Use instead\n\n    plain(x)\n" in result.stdout
        assert "# trainify: ignore[TRN901]" in result.stdout
    assert trainify("explain", "risky").stdout == trainify("explain", "TRN902").stdout
    every = trainify("explain", "TRN9").stdout
    assert "(TRN901)" in every and "(TRN902)" in every
    for unknown in ("TRN999", "", "no-such-rule"):
        assert trainify("explain", unknown).exit_code == 2


# -- which files ----------------------------------------------------------------------------------


def found(trainify, *paths: str) -> list[str]:
    lines = trainify("check", "--format", "github", *paths).stdout.splitlines()
    return [line.split("file=")[1].split(",")[0] for line in lines]


def make(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("fused(1)\n")


def test_discovery(folder: Path, trainify) -> None:
    make("b.py", "a/z.py", "a/a.py", "a.py", "a/c.txt", "a/.hidden/x.py")
    make(*(f"{skipped}/x.py" for skipped in (".git", ".venv", "venv", "node_modules", "a/build")))
    make("a/lib/site-packages/x.py", "__pycache__/x.py", ".tox/x.py", "dist/x.py")
    assert found(trainify) == ["a/.hidden/x.py", "a/a.py", "a/z.py", "a.py", "b.py"]
    assert found(trainify, "b.py", "./a", "b.py", "a/z.py", str(folder / "b.py")) == [
        "b.py",
        "a/.hidden/x.py",
        "a/a.py",
        "a/z.py",
    ]
    assert found(trainify, "venv", "a/c.txt", "a/build") == ["venv/x.py", "a/c.txt", "a/build/x.py"]


def test_links(folder: Path, trainify) -> None:
    make("real/a.py")
    Path("real/loop").symlink_to("..")
    Path("real/b.py").symlink_to("a.py")
    Path("link").symlink_to("real")
    assert found(trainify) == ["real/a.py"]
    assert found(trainify, "link") == ["link/a.py"]
    assert found(trainify, "link", "real", "real/b.py") == ["link/a.py"]


def test_a_loop_of_file_links_is_an_error_line(folder: Path, trainify) -> None:
    make("a.py")
    Path("x.py").symlink_to("y.py")
    Path("y.py").symlink_to("x.py")
    result = trainify("check")
    assert result.exit_code == 2
    assert result.stderr.count("cannot read: Too many levels of symbolic links") == 2
    assert "a.py:1:1" in result.stdout


# -- many files -----------------------------------------------------------------------------------


def test_worker_processes_give_the_same_in_the_same_order(folder: Path, trainify, monkeypatch):
    from trainify import cli, engine

    for number in range(100):
        Path(f"{number}.py").write_text(f"{'# ' * number}\nfused({number})\nhopeless(1)\n")
    Path("50a.py").write_text("fused(")
    Path("60.py").write_text("misbehave_raise()\n")
    monkeypatch.setattr(cli, "_cores", lambda: 1)
    alone = trainify("check", "--no-cache")
    monkeypatch.setattr(cli, "_cores", lambda: 3)
    monkeypatch.setattr(engine, "_WORTH_WORKERS", 0)
    monkeypatch.setattr(engine, "_look", None)  # must not be used
    together = trainify("check", "--no-cache")
    assert alone.stdout == together.stdout
    assert alone.stderr == together.stderr
    assert alone.stdout.count("TRN911") == 99
    assert (alone.exit_code, together.exit_code) == (2, 2)
    alone.stderr.index("50a.py:1:6: cannot parse")
    alone.stderr.index("60.py: internal error in pass fake: KeyError")


def test_a_worker_that_dies_costs_its_own_file_only(folder: Path, trainify, monkeypatch) -> None:
    from trainify import cli, engine

    for number in range(40):
        Path(f"{number:02}.py").write_text("fused(1)\n")
    Path("07.py").write_text("misbehave_die()\n")
    Path("20.py").write_text("misbehave_die()\n")
    monkeypatch.setattr(cli, "_cores", lambda: 2)
    monkeypatch.setattr(engine, "_WORTH_WORKERS", 0)
    result = trainify("check", "--no-cache")
    assert result.exit_code == 2
    assert result.stdout.count("TRN901") == 38
    assert result.stderr.splitlines()[:2] == [
        "trainify: 07.py: internal error: the worker process died",
        "trainify: 20.py: internal error: the worker process died",
    ]
