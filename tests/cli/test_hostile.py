"""Files, streams and signals as they come: one line for each, and everything else still done."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from cli_tools import FAKE

from tests.each import in_turn
from trainify.facts import Project

GOOD = "a.py:1:1: TRN901"


@pytest.fixture(autouse=True)
def good_file(folder: Path) -> None:
    """Sorts before each bad file, and z.py after it."""
    Path("a.py").write_text("fused(1)\n")
    Path("z.py").write_text("fused(1)\n")


BAD = [
    (b"fused(\n", "m.py:1:6: cannot parse: '(' was never closed"),
    (b"x = 1\nfused(1) is is 2\n", "m.py:2:13: cannot parse: invalid syntax"),
    (b"fused(1)\x00\n", "m.py: cannot parse: source code string cannot contain null bytes"),
    (b"\x00" * 4096 + b"fused(", "cannot parse"),
    (b"fused(1)\nx = '\xff'\n", "m.py:2:6: cannot parse: byte 0xff is not utf-8"),
    (b"fused(1)\nx = '\xc3\xa9\xff'\n", "m.py:2:7: cannot parse: byte 0xff is not utf-8"),
    (b"\x7fELF\x02\x01\xfe fused(", "m.py:1:7: cannot parse: byte 0xfe is not utf-8"),
    (b"# coding: klingon\nfused(1)\n", "m.py: cannot parse: unknown encoding: klingon"),
    (b"# coding: rot13\nfused(1)\n", "m.py: cannot parse: 'rot13' is not a text encoding"),
    (b"\xef\xbb\xbf# coding: latin-1\nfused(1)\n", "m.py: cannot parse: encoding problem: utf-8"),
    (b"fused(" + b"(" * 5000, "m.py:1:206: cannot parse: too many nested parentheses"),
    (b"fused(1)\n" + b"-" * 100_000 + b"1", "m.py: cannot parse: nested too deeply"),
    (b"fused(1)\n" + b"if 1:\n " * 200, "cannot parse"),
    (b"\tfused(1)\n        x\n", "cannot parse: unexpected indent"),
    (b"import os\nx = '\xff'\n", "m.py:2:6: cannot parse: byte 0xff is not utf-8"),
    ("x = 1\n".encode("utf-16"), "m.py:1:1: cannot parse: byte 0xff is not utf-8"),
    (b"x = 1\x00\n", "m.py: cannot parse: source code string cannot contain null bytes"),
    (b"misbehave_raise()\n", "m.py: internal error in pass fake: KeyError: 'oops'"),
    (b"misbehave_recurse()\n", "m.py: cannot parse: nested too deeply"),
]
if sys.version_info >= (3, 11):  # 3.10 reads sums of any length
    BAD.append((b"fused(1 " + b"+ 1" * 100_000 + b")", "m.py: cannot parse: nested too deeply"))


@pytest.mark.parametrize(("data", "message", "command"), in_turn(BAD, ["check", "fix"]))
def test_bad_file(trainify, command: str, data: bytes, message: str) -> None:
    Path("m.py").write_bytes(data)
    result = trainify(command)
    assert result.exit_code == 2
    about = [line for line in result.stderr.splitlines() if line.startswith("trainify: m.py")]
    assert len(about) == 1
    assert message in about[0]
    assert "Traceback" not in result.stderr
    assert result.stdout.count("fused") >= 2 and "z.py" in result.stdout  # the rest is done


@pytest.mark.parametrize("command", ["check", "fix"])
def test_a_file_that_is_named_parses_or_is_reported(trainify, command: str) -> None:
    Path("m.py").write_bytes(b"import vllm\ndef f(:\n")
    for name in ("m.py", "./m.py", os.path.abspath("m.py")):
        result = trainify(command, "a.py", name)
        assert result.exit_code == 2
        assert result.stderr.count("m.py:2:7: cannot parse: invalid syntax\n") == 1
        assert "a.py" in result.stdout


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\xef\xbb\xbf",
        b"# only a comment",
        b"\x0c",
        b"def unfinished(:  # and without interest",
        b"fused_not_called = 1\n\x1a",
        b"x = '\\d'; assert (1, 'always'); x is 1; fused_ = 2\n",
    ],
)
def test_odd_but_fine(trainify, data: bytes) -> None:
    os.mkdir("odd")
    Path("odd/m.py").write_bytes(data)
    result = trainify("check", "odd")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_very_long_line(trainify) -> None:
    Path("m.py").write_text(f"x = [{'1, ' * 300_000}]; fused(1)\n")
    started = time.monotonic()
    assert "m.py:1:900009: TRN901" in trainify("check", "m.py").stdout
    assert time.monotonic() - started < 10


def test_pythons_warnings_are_not_ours(process) -> None:
    Path("m.py").write_text("x = '\\d' + fused('\\d')\nx is 1\n1 if () else x()\n")
    result = process("check", "m.py", "--exit-zero", PYTHONWARNINGS="error")
    assert (result.returncode, result.stderr) == (0, b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from trainify import fix_text

        assert fix_text("x = '\\d' + fused('\\d')\nx is 1\n").applied


def test_paths_that_are_not_there(trainify) -> None:
    Path("broken.py").symlink_to("nowhere.py")
    Path(".#lock.py").symlink_to("user@host.1234")
    result = trainify("check", ".", "missing.py", "missing_folder/")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "trainify: broken.py: cannot read: broken link",
        "trainify: missing.py: cannot read: No such file or directory",
        "trainify: missing_folder: cannot read: No such file or directory",
    ]
    assert GOOD in result.stdout


def test_a_notebook_is_not_said_to_be_without_fault(trainify) -> None:
    Path("model.ipynb").write_text('{"cells": [{"source": ["fused(1)"]}]}')
    result = trainify("check", "model.ipynb")
    assert result.exit_code == 2
    assert result.stderr == "trainify: model.ipynb: cannot read: a notebook, not Python\n"


def test_files_and_folders_without_permission(trainify, monkeypatch) -> None:
    """Root may read all, so the system's answer is played."""
    Path("locked").mkdir()
    Path("m.py").write_text("fused(1)\n")
    scandir, real_open = os.scandir, open

    def refuse(function, what):  # type: ignore[no-untyped-def]
        def wrapped(path, *arguments, **keywords):  # type: ignore[no-untyped-def]
            if path == what:
                raise PermissionError(13, "Permission denied", path)
            return function(path, *arguments, **keywords)

        return wrapped

    monkeypatch.setattr(os, "scandir", refuse(scandir, "locked"))
    monkeypatch.setattr("builtins.open", refuse(real_open, "m.py"))
    result = trainify("check")
    assert result.exit_code == 2
    assert sorted(result.stderr.splitlines()) == [
        "trainify: locked: cannot read: Permission denied",
        "trainify: m.py: cannot read: Permission denied",
    ]
    assert GOOD in result.stdout and "z.py:1:1" in result.stdout


def test_a_file_that_vanishes(trainify, monkeypatch) -> None:
    from trainify import discovery

    find = discovery.find_files

    def find_then_lose(*arguments):  # type: ignore[no-untyped-def]
        found = list(find(*arguments))
        Path("a.py").unlink()
        return found

    monkeypatch.setattr(discovery, "find_files", find_then_lose)
    result = trainify("check")
    assert result.exit_code == 2
    assert result.stderr == "trainify: a.py: cannot read: No such file or directory\n"
    assert "z.py:1:1: TRN901" in result.stdout


def test_a_pipe_is_not_waited_for(trainify) -> None:
    os.mkfifo("pipe.py")
    assert trainify("check").exit_code == 1
    result = trainify("check", "pipe.py")
    assert result.exit_code == 2
    assert result.stderr == "trainify: pipe.py: cannot read: no regular file\n"
    assert Project(["."]).content(Path("pipe.py")) == b""


def test_a_folder_called_like_a_file(trainify) -> None:
    Path("pkg.py").mkdir()
    Path("pkg.py/m.py").write_text("fused(1)\n")
    assert "pkg.py/m.py:1:1" in trainify("check").stdout


def test_names_that_are_no_text(process) -> None:
    Path(os.fsdecode(b"m\xff\n.py")).write_text("fused(1)\n")
    result = process("check", "--format", "json")
    assert (result.returncode, result.stderr) == (1, b"")
    assert rb"m\udcff\n.py" in result.stdout
    assert b"m" in process("check").stdout


def test_output_that_cannot_show_the_source(process) -> None:
    Path("m.py").write_text("fused('日本 é')\n", encoding="utf-8")
    result = process("check", "m.py", PYTHONIOENCODING="latin-1")
    assert (result.returncode, result.stderr) == (1, b"")
    assert rb"fused('\u65e5\u672c " + b"\xe9')" in result.stdout


def test_traceback_only_for_those_who_ask(process) -> None:
    Path("m.py").write_text("misbehave_raise()\n")
    quiet, loud = process("check", "m.py"), process("check", "m.py", TRAINIFY_DEBUG="1")
    assert quiet.returncode == loud.returncode == 2
    assert b"Traceback" not in quiet.stderr
    assert b"Traceback" in loud.stderr and b"_misbehave" in loud.stderr
    assert b"please report" in quiet.stderr


# -- streams and signals --------------------------------------------------------------------------


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(FAKE), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # unbuffered, a cut write goes unnoticed
    )


@pytest.mark.parametrize("command", [("check", "."), ("check", "--format", "json"), ("fix",)])
def test_a_reader_that_goes_away(command: tuple[str, ...]) -> None:
    for number in range(300):
        Path(f"{number}.py").write_text("fused(1)\n" * 20)
    running = start(*command)
    assert running.stdout and running.stderr
    running.stdout.read(10)
    running.stdout.close()
    assert running.wait(60) == 141
    assert running.stderr.read() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_stdout() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, str(FAKE), "check"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (2, b"trainify: No space left on device\n")


def test_without_any_stdout() -> None:
    command = f"exec {sys.executable} {FAKE} check >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def at_work(number: int, cores: int) -> subprocess.Popen[bytes]:
    """A run over many files, in a group of its own, that has begun to print."""
    # Small files: what a worker has begun, it ends first.
    for each in range(number):
        Path(f"{each}.py").write_text("fused(1)\n" * 50 + "x = 1\n" * 500)
    # Who runs the tests in the background has them ignore the signal, and so would the command.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += f"import os; os.sched_getaffinity = lambda _: range({cores})\n"
    code += f"import runpy, sys; sys.path.insert(0, {str(FAKE.parent)!r})\n"
    code += f"sys.argv[0] = {str(FAKE)!r}; runpy.run_path({str(FAKE)!r}, run_name='__main__')"
    running = subprocess.Popen(
        [sys.executable, "-c", code, "check", "--no-cache"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert running.stdout
    running.stdout.readline()
    return running


@pytest.mark.parametrize("many", [False, True])
def test_interrupt(many: bool) -> None:
    """As a terminal does it: every process of the group gets the signal."""
    running = at_work(1500 if many else 300, cores=2 if many else 1)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert errors == b"trainify: interrupted\n"


def test_workers_end_with_the_process_that_they_work_for() -> None:
    """It is killed where it ran too long, and nobody knows of them."""
    running = at_work(1500, cores=2)
    running.kill()
    try:
        running.communicate(timeout=60)  # they hold the other ends of its pipes
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
