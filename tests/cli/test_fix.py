"""``trainify fix``: patches that git takes, and changes in place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cli_tools import git
from fake import IMPORT

from trainify import source

FILES = {
    "plain.py": b"x = 1\nfused(x)\n",
    "crlf.py": b"# c\r\nfused(1)\r\nx = 2\r\n",
    "mixed ends.py": b"fused(1)\r\nx = 2\ny = 3\r",
    "bom.py": b"\xef\xbb\xbf# c\nfused('\xc3\xa9')\n",
    "latin.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\nfused('\xe9')\n",
    "cp1252.py": b"#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\nfused('\x80')\n",
    "no_newline.py": b"x = 1\nfused(x)",
    "no_newline_far.py": b"fused(1)\n" + b"x = 1\n" * 20 + b"y = 2",
    "form\ffeed.py": b"x = 1\n\x0c\nfused(x)\n",
    "sub/dir with blank/été.py": b"fused(1)\n",
    "sub/日本.py": "fused('日本')\n".encode(),
    'quote"back\\slash.py': b"fused(1)\n",
    "tab\there.py": b"fused(1)\n",
    "only.py": b"fused(1)",
}
if os.sep == "/":
    FILES[os.fsdecode(b"not\xffutf8.py")] = b"fused(1)\n"


def expected(name: str) -> bytes:
    """``FILES[name]`` as fake.py would fix it."""
    data = FILES[name].replace(b"fused(", b"plain(")
    newline = b"\r\n" if b"\r\n" in data else b"\n"
    where = 0
    for line in data.splitlines(keepends=True):
        if not line.removeprefix(b"\xef\xbb\xbf").startswith(b"#"):
            break
        where += len(line)
    return data[:where] + IMPORT.strip().encode() + newline + data[where:]


@pytest.fixture
def files(repo: Path) -> Path:
    for name, data in FILES.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    git("add", "-A")
    return repo


def contents(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in FILES}


FIXED = {name: expected(name) for name in FILES}


def test_the_printed_patch_applies(files: Path, trainify) -> None:
    result = trainify("fix")
    assert result.exit_code == 0
    assert contents(files) == FILES
    assert result.stderr == f"Would fix {len(FILES)} gradient cuts in {len(FILES)} files.\n"
    git("apply", "--check", stdin=result.stdout_bytes)
    git("apply", "--index", stdin=result.stdout_bytes)
    assert contents(files) == FIXED
    assert trainify("fix").stdout_bytes == b""
    git("apply", "-R", stdin=result.stdout_bytes)
    assert contents(files) == FILES


def test_the_written_patch_applies(files: Path, trainify) -> None:
    result = trainify("fix", "-o", "all.patch", ".")
    assert result.exit_code == 0
    assert result.stdout_bytes == b""
    head = Path("all.patch").read_bytes().split(b"\n\n")[0].decode()
    assert all(line.startswith("#") for line in head.splitlines())
    assert f"  {len(FILES)}  TRN901  fused" in head
    assert "nothing was run on this machine" in head
    git("apply", "--check", "all.patch")
    git("apply", "all.patch")
    assert contents(files) == FIXED


def test_worker_processes_give_the_same_patch(files: Path, trainify, monkeypatch) -> None:
    from trainify import cli, engine

    alone = trainify("fix")
    monkeypatch.setattr(cli, "_cores", lambda: 2)
    monkeypatch.setattr(engine, "_WORTH_WORKERS", 0)
    monkeypatch.setattr(engine, "_look", None)  # must not be used
    together = trainify("fix")
    assert together.stdout_bytes == alone.stdout_bytes
    assert together.stderr == alone.stderr


def test_in_place(files: Path, trainify) -> None:
    result = trainify("fix", "--write")
    assert result.exit_code == 0
    assert result.stdout_bytes == b""
    assert result.stderr == f"Fixed {len(FILES)} gradient cuts in {len(FILES)} files.\n"
    assert contents(files) == FIXED
    again = trainify("fix", "--write")
    assert (again.exit_code, again.stderr) == (0, "Nothing to fix.\n")
    assert contents(files) == FIXED


@pytest.mark.parametrize("paths", [(".",), ("../plain.py", "."), ("dir with blank", "日本.py")])
def test_from_a_subfolder_paths_still_start_at_the_top(files, trainify, monkeypatch, paths) -> None:
    monkeypatch.chdir(files / "sub")
    patch = trainify("fix", *paths).stdout_bytes
    monkeypatch.chdir(files)
    git("apply", stdin=patch)
    changed = {name for name, data in contents(files).items() if data != FILES[name]}
    named = {name for name in FILES if name.startswith("sub/")}
    assert changed == named | ({"plain.py"} if "../plain.py" in paths else set())


def test_like_git_diff(files: Path, trainify) -> None:
    """Apart from blob ids, the patch is what git itself would say."""
    patch = trainify("fix").stdout_bytes
    trainify("fix", "--write")
    theirs = git("diff", "--no-color", "--no-ext-diff", "--diff-algorithm=myers").stdout

    def kept(text: bytes) -> list[bytes]:
        lines = [line for line in text.split(b"\n") if not line.startswith(b"index ")]
        # git adds the enclosing function to @@ lines
        return sorted(b"@@".join(line.split(b"@@")[:2]) for line in lines)

    assert kept(patch) == kept(theirs)


def test_outside_of_git(folder: Path, trainify, monkeypatch) -> None:
    Path("here/sub").mkdir(parents=True)
    Path("here/sub/a.py").write_text("fused(1)\n")
    assert b"--- a/here/sub/a.py\n" in trainify("fix").stdout_bytes
    Path("there").mkdir()
    monkeypatch.chdir("there")
    patch = trainify("fix", folder / "here").stdout_bytes
    assert b"--- a/a.py\n" in patch
    monkeypatch.chdir(folder / "here/sub")
    git("apply", stdin=patch)
    assert Path("a.py").read_text() == IMPORT + "plain(1)\n"


def test_a_linked_file_is_changed_where_it_is(repo: Path, trainify) -> None:
    Path("real").mkdir()
    Path("real/a.py").write_text("fused(1)\n")
    Path("link.py").symlink_to("real/a.py")
    patch = trainify("fix", "link.py").stdout_bytes
    assert b"--- a/real/a.py\n" in patch
    git("apply", "--check", stdin=patch)
    assert trainify("fix", "--write", "link.py").exit_code == 0
    assert Path("link.py").is_symlink()
    assert Path("real/a.py").read_text() == IMPORT + "plain(1)\n"


def test_mode_is_kept(folder: Path, trainify) -> None:
    for name, mode in (("a.py", 0o755), ("b.py", 0o640), ("c.py", 0o666)):
        Path(name).write_text("fused(1)\n")
        Path(name).chmod(mode)
    trainify("fix", "--write")
    modes = [stat.S_IMODE(Path(name).stat().st_mode) for name in ("a.py", "b.py", "c.py")]
    assert modes == [0o755, 0o640, 0o666]
    assert Path("a.py").read_text() == IMPORT + "plain(1)\n"


def test_a_new_patch_has_the_mode_of_any_new_file(folder: Path, trainify) -> None:
    Path("a.py").write_text("fused(1)\n")
    Path("other").write_text("")
    trainify("fix", "-o", "p.patch")
    assert Path("p.patch").stat().st_mode == Path("other").stat().st_mode


# -- what is not fixed ----------------------------------------------------------------------------


def test_the_rest_is_reported_where_it_is_now(folder: Path, trainify) -> None:
    text = "x = 1\nfused(x)\nrisky(x)\nhopeless(x)\nshown(x)\n"
    Path("a.py").write_text(text)
    result = trainify("fix")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "not fixed: a.py:3:1 TRN902 needs --unsafe; look at: the sign",
        "not fixed: a.py:4:1 TRN911 `hopeless` cuts",
        "not fixed: a.py:5:1 TRN901 only a suggestion",
        "Would fix 1 gradient cut in 1 file; 3 remain.",
    ]
    result = trainify("fix", "--write", "--unsafe")
    assert result.stderr.splitlines() == [
        "not fixed: a.py:5:1 TRN911 `hopeless` cuts",  # a line further down, after the new import
        "not fixed: a.py:6:1 TRN901 only a suggestion",
        "Fixed 2 gradient cuts in 1 file; 2 remain.",
    ]


def test_what_the_fix_of_another_file_mends_does_not_remain(folder: Path, trainify) -> None:
    (folder / "pkg").mkdir()
    Path("wrapper.py").write_text("fused(1)\n")
    Path("pkg/a.py").write_text("wrapped(1)\n")
    found = trainify("check")
    assert found.stdout.splitlines()[-1].startswith("Found 2 gradient cuts in 2 files; 1 fixable")
    result = trainify("fix")
    assert (result.exit_code, result.stderr) == (0, "Would fix 1 gradient cut in 1 file.\n")
    assert trainify("fix", "--write").stderr == "Fixed 1 gradient cut in 1 file.\n"
    assert trainify("check").stdout == "Found no gradient cuts in 2 files.\n"


def test_worker_processes_know_files_as_fixed(folder: Path, trainify, monkeypatch) -> None:
    monkeypatch.setattr("trainify.cli._cores", lambda: 2)
    monkeypatch.setattr("trainify.engine._WORTH_WORKERS", 0)
    (folder / "pkg").mkdir()
    Path("wrapper.py").write_text("fused(1)\n")
    for number in range(40):
        Path(f"pkg/a{number}.py").write_text(f"wrapped({number})\nhopeless(1)\n")
    lines = trainify("fix").stderr.splitlines()
    assert lines[-1] == "Would fix 1 gradient cut in 1 file; 40 remain."
    assert all("hopeless" in line for line in lines[:-1])


def test_what_only_shows_behind_another_is_counted(folder: Path, trainify) -> None:
    Path("a.py").write_text("fused(1)\nbehind(2)\n")
    assert "Found 1 gradient cut in 1 file; 1 fixable" in trainify("check").stdout
    result = trainify("fix")
    assert result.stderr.splitlines() == [
        "not fixed: a.py:2:1 TRN901 `behind` cuts",
        "Would fix 1 gradient cut in 1 file; 1 remains. "
        "1 of these showed only once others were fixed.",
    ]


def test_another_strategy_is_named(folder: Path, trainify) -> None:
    Path("a.py").write_text("risky(1)\n")
    result = trainify("fix", "--strategy", "replace")
    assert "TRN902 `risky` cuts; there is one with --strategy flag" in result.stderr
    assert (result.exit_code, result.stdout) == (1, "")
    Path("a.py").write_text("fused(1)\n")
    assert b"+twice(1)\n" in trainify("fix", "--strategy", "replace").stdout_bytes


def test_selected_rules_only(folder: Path, trainify) -> None:
    Path("a.py").write_text("fused(1)\nrisky(1)\n")
    assert trainify("fix", "--select", "TRN901", "--write").exit_code == 0
    assert Path("a.py").read_text() == IMPORT + "plain(1)\nrisky(1)\n"


def test_nothing_to_fix_writes_no_patch(folder: Path, trainify) -> None:
    Path("a.py").write_text("x = 1\n")
    result = trainify("fix", "-o", "p.patch")
    assert result.exit_code == 0
    assert "nothing to fix, so p.patch was not written" in result.stderr
    assert not Path("p.patch").exists()


def test_a_hyphen_is_standard_output(folder: Path, trainify) -> None:
    Path("a.py").write_text("fused(1)\n")
    printed = trainify("fix", "-o", "-")
    trainify("fix", "-o", "p.patch")
    assert printed.stdout_bytes == Path("p.patch").read_bytes() != b""
    assert "see" not in printed.stderr
    assert not Path("-").exists()
    Path("a.py").write_text("x = 1\n")
    assert trainify("fix", "-o", "-").stdout_bytes == b""


def test_write_and_output_exclude_each_other(folder: Path, trainify) -> None:
    assert trainify("fix", "--write", "-o", "p.patch").exit_code == 2


def test_stdin(folder: Path, trainify) -> None:
    result = trainify("fix", "-", "--stdin-filename", "sub/a.py", stdin=b"fused(1)\r\n")
    assert result.exit_code == 0
    assert result.stdout_bytes.startswith(b"diff --git a/sub/a.py b/sub/a.py\n")
    result = trainify("fix", "-", "--write", stdin=b"# \xe9 coding: latin-1\r\nfused(1)")
    assert result.stdout_bytes == b"# \xe9 coding: latin-1\r\nfrom plain import plain\r\nplain(1)"
    assert trainify("fix", "-", "--write", stdin=b"x = 1").stdout_bytes == b"x = 1"
    broken = trainify("fix", "-", "--write", stdin=b"fused(")
    assert (broken.exit_code, broken.stdout_bytes) == (2, b"")


# -- when something goes wrong --------------------------------------------------------------------


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if ".tmp" in p.name)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_failed_rename_leaves_every_file_as_it_was(
    folder: Path, trainify, monkeypatch, fails_at: int
) -> None:
    for name in ("a.py", "b.py", "c.py"):
        Path(name).write_text("fused(1)\n")
    replace, calls = os.replace, []

    def failing(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    result = trainify("fix", "--write")
    monkeypatch.undo()
    assert result.exit_code == 2
    name = ("a.py", "b.py", "c.py")[fails_at - 1]
    assert f"trainify: {name}: cannot write: No space left on device" in result.stderr
    assert {Path(folder, n).read_text() for n in ("a.py", "b.py", "c.py")} == {"fused(1)\n"}
    assert leftovers(folder) == []


def test_a_failed_write_leaves_every_file_as_it_was(folder, trainify, monkeypatch) -> None:
    Path("a.py").write_text("fused(1)\n")
    Path("b.py").write_text("fused(1)\n")
    calls = []

    def failing(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    result = trainify("fix", "--write")
    assert result.exit_code == 2
    assert "trainify: b.py: cannot write: Input/output error" in result.stderr
    assert Path("a.py").read_text() == Path("b.py").read_text() == "fused(1)\n"
    assert leftovers(folder) == []


def test_a_failed_patch_leaves_the_old_one(folder: Path, trainify, monkeypatch) -> None:
    Path("a.py").write_text("fused(1)\n")
    Path("p.patch").write_text("old")

    def failing(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", failing)
    result = trainify("fix", "-o", "p.patch")
    assert result.exit_code == 2
    assert "p.patch: cannot write" in result.stderr
    assert Path("p.patch").read_text() == "old"
    assert leftovers(folder) == []
    assert trainify("fix", "-o", "no/such/folder/p.patch").exit_code == 2


def test_a_file_that_changed_meanwhile_is_left_alone(folder: Path) -> None:
    Path("a.py").write_text("fused(1)\n")
    Path("b.py").write_text("mine\n")
    changes = [
        source.Change("a.py", b"fused(1)\n", b"new\n"),
        source.Change("b.py", b"fused(1)\n", b"new\n"),
    ]
    with pytest.raises(source.WriteError, match="changed while it was being fixed") as caught:
        source.write_changes(changes)
    assert caught.value.path == "b.py"
    assert (Path("a.py").read_text(), Path("b.py").read_text()) == ("fused(1)\n", "mine\n")
    assert leftovers(folder) == []


def test_a_read_only_file_is_not_replaced(folder: Path, trainify, monkeypatch) -> None:
    Path("a.py").write_text("fused(1)\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anything
    result = trainify("fix", "--write")
    assert result.exit_code == 2
    assert "a.py: cannot write: file is read-only" in result.stderr
    assert Path("a.py").read_text() == "fused(1)\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("misbehave_ping()\n", "internal error fixes of TRN912 do not come to an end"),
        ("misbehave_syntax()\n", "internal error fixes of TRN912 do not parse"),
        ("misbehave_raise()\n", "internal error in pass fake: KeyError: 'oops'"),
    ],
)
def test_internal_errors_leave_the_file_alone(folder, trainify, text: str, message: str) -> None:
    Path("a.py").write_text(text)
    Path("b.py").write_text("fused(1)\n")
    result = trainify("fix", "--write")
    assert result.exit_code == 2
    assert f"trainify: a.py: {message}" in result.stderr
    assert "please report" in result.stderr
    assert "Traceback" not in result.stderr
    assert Path("a.py").read_text() == text
    assert Path("b.py").read_text() == IMPORT + "plain(1)\n"


def test_what_the_encoding_cannot_hold(folder: Path, trainify, monkeypatch) -> None:
    import fake

    monkeypatch.setattr(fake, "IMPORT", "from plain import 日本\n")
    data = b"# coding: latin-1\nfused(1)\n"
    Path("a.py").write_bytes(data)
    result = trainify("fix", "--write")
    assert result.exit_code == 2
    assert "a.py: cannot parse: cannot be written as iso-8859-1" in result.stderr
    assert Path("a.py").read_bytes() == data
