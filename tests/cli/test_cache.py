"""What is remembered between runs is right, or is not used."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainify import cache, engine


@pytest.fixture(autouse=True)
def project(folder: Path) -> Path:
    Path("pyproject.toml").write_text("[project]\n")
    write("clean.py", "fused_not = 'fused('\n# trainify: ignore-file\nfused(1)\n")
    write("other.py", "x = 1\n")
    write("found.py", "fused(1)\n")
    return folder


def write(name: str, text: str, age: float = 100) -> None:
    """Write a file that was last changed ``age`` seconds ago."""
    path = Path(name)
    path.write_text(text)
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))


@pytest.fixture
def looked(monkeypatch) -> list[str]:
    """The files that were opened since the list was last cleared."""
    opened: list[str] = []
    file = engine.Session.file

    def spy(session: engine.Session, path: str) -> engine.FileReport | None:
        opened.append(path)
        return file(session, path)

    monkeypatch.setattr(engine.Session, "file", spy)
    return opened


def check(trainify, looked: list[str], *arguments: str) -> list[str]:
    looked.clear()
    trainify("check", *arguments)
    return list(looked)


ALL = ["clean.py", "found.py", "other.py"]


@pytest.mark.parametrize("style", ["text", "json", "github"])
def test_nothing_is_looked_at_again(trainify, looked, style: str) -> None:
    first = trainify("check", "--format", style)
    assert looked == ALL
    looked.clear()
    again = trainify("check", "--format", style)
    assert looked == []
    assert (again.output, again.exit_code) == (first.output, 1)
    assert Path(".trainify_cache/.gitignore").read_text() == "*\n"


def test_a_finding_appears_after_an_edit(trainify, looked) -> None:
    check(trainify, looked)
    write("other.py", "fused(1)\n", 50)
    assert "other.py:1:1" in trainify("check").stdout


def test_an_edit_that_keeps_the_size(trainify, looked) -> None:
    write("other.py", "f_sed(1)\n")
    check(trainify, looked)
    write("other.py", "fused(1)\n", 50)
    assert "other.py:1:1" in trainify("check").stdout


def test_a_file_that_was_changed_just_now_is_not_trusted(trainify, looked) -> None:
    write("other.py", "f_sed(1)\n", 0)
    time = Path("other.py").stat().st_mtime_ns
    check(trainify, looked)
    Path("other.py").write_text("fused(1)\n")
    os.utime("other.py", ns=(time, time))  # on a coarse clock, an edit may not show
    assert "other.py:1:1" in trainify("check").stdout


def test_a_clean_file_may_rest_on_other_files(trainify, looked) -> None:
    """Once a wrapper cuts, so do its callers, also where only they are asked about."""
    Path("pkg").mkdir()
    write("pkg/user.py", "wrapped(1)\n")
    write("wrapper.py", "fine\n")
    for paths in ((), ("pkg",)):
        assert "user.py" not in trainify("check", *paths).stdout
        assert "pkg/user.py" not in check(trainify, looked, *paths)
    write("wrapper.py", "cuts\n", 50)
    for paths in ((), ("pkg",)):
        assert "pkg/user.py:1:1" in trainify("check", *paths).stdout


def test_files_that_are_named_are_always_looked_at(trainify, looked) -> None:
    assert check(trainify, looked, *ALL) == ALL
    assert check(trainify, looked, *ALL) == ALL
    assert not Path(".trainify_cache").exists()


def test_an_unrelated_edit_keeps_what_never_mattered(trainify, looked) -> None:
    check(trainify, looked)
    write("found.py", "fused(2)\n", 50)
    assert check(trainify, looked) == ["clean.py", "found.py"]
    assert check(trainify, looked) == []


def test_a_file_that_cannot_be_parsed_is_looked_at_again(trainify, looked) -> None:
    write("other.py", "fused(\n")
    first = trainify("check")
    assert check(trainify, looked) == ["other.py"]
    assert trainify("check").output == first.output


def test_what_was_found_may_rest_on_other_files(trainify, looked) -> None:
    check(trainify, looked)
    write("other.py", "fused(1)\n", 50)
    check(trainify, looked)
    write("other.py", "x = 2\n", 40)
    assert check(trainify, looked) == ALL
    assert "other.py" not in trainify("check").stdout


def test_new_and_lost_files(trainify, looked) -> None:
    check(trainify, looked)
    write("new.py", "fused(1)\n")
    assert check(trainify, looked) == ["clean.py", "found.py", "new.py"]
    Path("new.py").unlink()
    assert check(trainify, looked) == ["clean.py", "found.py"]


def test_one_file_for_each_way_to_call_it(trainify, looked, monkeypatch) -> None:
    for version in ("0.1.1", "0.1.2"):
        monkeypatch.setattr(cache, "__version__", version)
        check(trainify, looked)
    assert len(list(Path(".trainify_cache").glob("*.json"))) == 1


@pytest.mark.parametrize("what", ["version", "python", "rules", "options", "config"])
def test_another_trainify_or_other_settings(trainify, looked, monkeypatch, what: str) -> None:
    check(trainify, looked)
    arguments: tuple[str, ...] = ()
    if what == "version":
        monkeypatch.setattr(cache, "__version__", "0.1.1")
    elif what == "python":
        monkeypatch.setattr("sys.version_info", (3, 99, 0))
    elif what == "rules":
        fingerprint = cache._fingerprint
        monkeypatch.setattr(cache, "_fingerprint", lambda: fingerprint() + "edited")
    elif what == "options":
        arguments = ("--select", "TRN901")
    else:
        Path("pyproject.toml").write_text("[tool.trainify]\nexclude = ['x']\n")
    assert check(trainify, looked, *arguments) == ALL


def test_the_fingerprint_knows_each_module(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "passes").mkdir()
    for name in ("cache.py", "passes/one.py"):
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    before = cache._fingerprint()
    assert cache._fingerprint() == before
    (tmp_path / "passes/one.py").write_text("x = 22\n")
    assert cache._fingerprint() != before


def test_no_cache(trainify, looked) -> None:
    assert check(trainify, looked, "--no-cache") == ALL
    assert not Path(".trainify_cache").exists()
    check(trainify, looked)
    assert check(trainify, looked, "--no-cache") == ALL


def test_without_a_project_there_is_no_cache(trainify, looked, monkeypatch) -> None:
    from trainify import config

    monkeypatch.setattr(config, "find_upwards", lambda *arguments: None)
    assert check(trainify, looked) == ALL
    assert check(trainify, looked) == ALL
    assert not Path(".trainify_cache").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"{}", b"[]", b"null", b"[" * 100_000]
    + [json.dumps(x).encode() for x in ({"files": 1, "verdicts": [], "others": 2}, {"files": {}})],
)
def test_a_damaged_cache_is_replaced(trainify, looked, content: bytes) -> None:
    check(trainify, looked)
    [stored] = Path(".trainify_cache").glob("*.json")
    stored.write_bytes(content)
    assert check(trainify, looked) == ALL
    assert check(trainify, looked) == []


def test_a_cache_that_cannot_be_written(trainify, looked) -> None:
    Path(".trainify_cache").write_text("in the way")
    result = trainify("check")
    assert (result.exit_code, result.stderr) == (1, "")
    assert Path(".trainify_cache").read_text() == "in the way"


def test_an_interrupted_write_leaves_nothing(trainify, looked, monkeypatch) -> None:
    def failing(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", failing)
    assert trainify("check").exit_code == 1
    assert [path.name for path in Path(".trainify_cache").iterdir()] == [".gitignore"]


def test_worker_processes_tell_what_they_read(trainify, monkeypatch) -> None:
    from trainify import cli

    monkeypatch.setattr(cli, "_cores", lambda: 2)
    monkeypatch.setattr(engine, "_WORTH_WORKERS", 0)
    Path("pkg").mkdir()
    for name in ("a.py", "b.py"):
        write(f"pkg/{name}", "wrapped(1)\n")
    write("wrapper.py", "fine\n")
    assert trainify("check", "pkg").exit_code == 0
    assert trainify("check", "pkg").exit_code == 0
    write("wrapper.py", "cuts\n", 50)
    assert trainify("check", "pkg").exit_code == 1
