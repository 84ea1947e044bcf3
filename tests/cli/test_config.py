"""``[tool.trainify]``."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import IMPORT


def configure(text: str, folder: str = ".") -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "pyproject.toml").write_text(text)


@pytest.fixture(autouse=True)
def file(folder: Path) -> Path:
    Path("a.py").write_text("fused(1)\nrisky(1)\nhopeless(1)\n")
    return Path("a.py")


def test_every_setting(trainify, file: Path) -> None:
    configure(
        "[tool.trainify]\nstrategy = 'replace'\nunsafe = true\nflag = 'training'\n"
        "select = ['TRN9']\nignore = ['TRN911']\nexclude = ['skip', 'sub/[xy].py']\n"
        "[tool.trainify.per-file-ignores]\n'tests/*' = ['TRN901', 'TRN902']\n"
    )
    for path in ("skip/a.py", "sub/x.py", "sub/z.py", "tests/deep/a.py"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("fused(1)\n")
    result = trainify("check", "--format", "github")
    places = [line.split("file=")[1].split(",c")[0] for line in result.stdout.splitlines()]
    assert places == ["a.py,line=1", "a.py,line=2", "sub/z.py,line=1"]
    assert "+twice(1)\n" in trainify("fix").stdout


def test_the_command_line_wins(trainify) -> None:
    configure(
        "[tool.trainify]\nstrategy = 'replace'\nselect = ['TRN901']\nignore = ['TRN902']\n"
        "unsafe = true\n"
    )
    assert "+plain(1)\n" in trainify("fix", "--strategy", "flag").stdout
    assert "+safe(1)\n" not in trainify("fix", "--strategy", "flag").stdout
    assert "TRN911" in trainify("check", "--select", "TRN911").stdout
    assert "TRN902" in trainify("check", "--select", "TRN9", "--ignore", "TRN911").stdout


def test_a_file_that_is_named_is_checked_even_if_excluded(trainify) -> None:
    configure("[tool.trainify]\nexclude = ['a.py']\n")
    assert trainify("check", ".").exit_code == 0
    assert trainify("check", "a.py").exit_code == 1


def test_the_nearest_table_counts(trainify, monkeypatch, folder: Path) -> None:
    configure("[tool.trainify]\nselect = ['TRN901']\n")
    configure("[tool.other]\nx = 1\n", "pkg")
    configure("[tool.trainify]\nselect = ['TRN911']\n", "pkg/own")
    for path in ("pkg/b.py", "pkg/own/c.py"):
        Path(path).write_text("fused(1)\nhopeless(1)\n")
    assert trainify("check", "--format", "github", "pkg").stdout.count("TRN901") == 2
    assert "TRN901" not in trainify("check", "pkg/own").stdout
    monkeypatch.chdir("pkg/own")
    assert "TRN901" not in trainify("check").stdout
    stdin = trainify("check", "-", "--stdin-filename", "../b.py", stdin=b"hopeless(1)\n")
    assert stdin.exit_code == 0


def test_patterns_start_at_the_file_wherever_one_stands(trainify, monkeypatch) -> None:
    configure("[tool.trainify]\nexclude = ['pkg/gen', './pkg/one.py', '**/late.py']\n")
    for path in ("pkg/gen/a.py", "pkg/one.py", "pkg/late.py", "pkg/two.py", "gen/a.py", "late.py"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("fused(1)\n")
    monkeypatch.chdir("pkg")
    shown = trainify("check", "..").stdout
    assert [line.split(":")[0] for line in shown.splitlines() if "TRN901" in line] == [
        "../a.py",
        "../gen/a.py",
        "../pkg/two.py",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[tool.trainify]\n\nstratgy = 'flag'\n",
            "pyproject.toml:3: tool.trainify.stratgy: unknown key; did you mean 'strategy'?",
        ),
        (
            "[project]\nflag = 1\n[tool.trainify]\nflag = 'always'\n",
            "pyproject.toml:4: tool.trainify.flag: must be one of 'grad', 'training'",
        ),
        (
            "[tool.trainify]\nunsafe = 'yes'\n",
            "pyproject.toml:2: tool.trainify.unsafe: must be true or false",
        ),
        (
            "[tool.trainify]\nselect = 'TRN901'\n",
            "pyproject.toml:2: tool.trainify.select: must be a list of strings",
        ),
        (
            "[tool.trainify]\nignore = ['TRN901',\n  'XYZ']\n",
            "pyproject.toml:2: tool.trainify.ignore: no rule has the code 'XYZ'",
        ),
        (
            "[tool.trainify.per-file-ignores]\n'x.py' = []\n'a b.py' = ['TRN']\n'y' = [1]\n",
            "pyproject.toml:4: tool.trainify.per-file-ignores.'y': must be a list of strings",
        ),
        (
            "[tool.trainify]\nper-file-ignores = ['x']\n",
            "pyproject.toml:2: tool.trainify.per-file-ignores: must be a table",
        ),
        ("[tool]\ntrainify = 1\n", "pyproject.toml:2: tool.trainify must be a table"),
        (
            "[tool.trainify]\nx = 1\nwhat = \n",
            "pyproject.toml:3: not valid TOML: Invalid value (at line 3, column 8)",
        ),
        ("# trainify\n# \udcff\n", "pyproject.toml:2: not UTF-8"),
    ],
)
@pytest.mark.parametrize("command", ["check", "fix"])
def test_mistakes(trainify, command: str, text: str, message: str) -> None:
    Path("pyproject.toml").write_text(text, errors="surrogateescape")
    result = trainify(command)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"trainify: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["[tool.black\n", "[project]\nname = 'trainify-plugin'\n", ""])
def test_a_file_of_others_is_not_ours(trainify, text: str) -> None:
    configure(text)
    assert trainify("check").exit_code == 1


def test_what_is_ignored_adds_up(trainify) -> None:
    Path("pkg/deep").mkdir(parents=True)
    Path("pkg/deep/b.py").write_text("fused(1)\nrisky(1)\nhopeless(1)\n")
    configure("[tool.trainify.per-file-ignores]\n'pkg/deep' = ['TRN902']\n'b.py' = ['TRN911']\n")
    assert trainify("check", "pkg", "--select", "TRN901").exit_code == 1
    assert trainify("check", "pkg", "--ignore", "TRN901").exit_code == 0


def test_fixing_obeys_per_file_ignores(trainify, file: Path) -> None:
    configure("[tool.trainify.per-file-ignores]\n'a.py' = ['TRN902', 'TRN911']\n")
    assert trainify("fix", "--write").exit_code == 0
    assert file.read_text() == IMPORT + "plain(1)\nrisky(1)\nhopeless(1)\n"
