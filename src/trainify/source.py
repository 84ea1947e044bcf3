"""Reading source files, and writing them back so that untouched text keeps its bytes."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

_NEWLINE = re.compile(r"\r\n|\r|\n")
_NOT_ASCII = re.compile(rb"[\x80-\xff]")


class SourceError(Exception):
    """A file that is not readable Python; ``line`` and ``column`` are 0 when not known."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message, line, column)
        self.message = message
        self.line = line
        self.column = column


def decode(data: bytes) -> tuple[str, str]:
    """Return the text of a Python file and its encoding, as Python itself would read it.

    Line endings stay as they are.  A byte order mark belongs to the encoding, not to the text.
    """
    # A cookie counts for the line that it stands in too; tokenize wants that line to be UTF-8.
    bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    head = b"\n".join(data[len(bom) :].split(b"\n", 2)[:2])
    try:
        encoding = (
            _stated(bom + _NOT_ASCII.sub(b"?", head)) if bom or b"coding" in head else "utf-8"
        )
        return data.decode(encoding), encoding
    except SyntaxError as error:
        raise SourceError(str(error)) from None
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line_start = before.rfind(b"\n") + 1
        raise SourceError(
            f"byte 0x{data[error.start]:02x} is not {error.encoding}",
            before.count(b"\n") + 1,
            len(before[line_start:].decode(encoding, "replace")) + 1,
        ) from None
    except (LookupError, UnicodeError) as error:  # a codec that is not for text, such as rot13
        raise SourceError(str(error)) from None


def _stated(head: bytes) -> str:
    import tokenize

    encoding, _ = tokenize.detect_encoding(io.BytesIO(head).readline)
    return encoding


def encode(text: str, encoding: str) -> bytes:
    """The inverse of :func:`decode`."""
    try:
        return text.encode(encoding)
    except UnicodeError as error:
        raise SourceError(f"cannot be written as {encoding}: {error}") from None


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` without their ends, split only where Python's parser splits."""
    return _NEWLINE.split(text)


class Positions:
    """Turns character offsets into line and column, both counted from 1."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]
        self._end = len(text)
        self.lines = len(self._starts)

    def start(self, line: int) -> int:
        """The offset at which a line begins."""
        return self._starts[line - 1]

    def end(self, line: int) -> int:
        """The offset behind the end of a line."""
        return self._starts[line] if line < self.lines else self._end

    def at(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


@dataclass(frozen=True, slots=True)
class Change:
    """A file's bytes before and after."""

    path: str
    before: bytes
    after: bytes


class WriteError(Exception):
    """Nothing was written, because ``path`` could not be."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def write_changes(changes: Iterable[Change]) -> None:
    """Write every change, or none: raises :class:`WriteError` with every file as it was.

    All new files are first written next to the old ones and only then renamed over them.
    """
    staged: list[tuple[Change, str, str]] = []  # change, temporary file, target
    replaced = 0
    path = ""
    try:
        for change in changes:
            path = change.path
            target = os.path.realpath(path)  # a link stays a link
            with open(target, "rb") as file:
                if file.read() != change.before:
                    raise OSError("changed while it was being fixed")
            if not os.access(target, os.W_OK):  # a rename would succeed even then
                raise PermissionError(None, "file is read-only")
            staged.append((change, _stage(target, change.after), target))
        for change, temporary, target in staged:
            path = change.path
            os.replace(temporary, target)
            replaced += 1
    except OSError as error:
        for change, _, target in staged[:replaced]:
            os.replace(_stage(target, change.before), target)
        raise WriteError(path, error.strerror or str(error)) from error
    finally:
        for _, temporary, _ in staged[replaced:]:
            _remove(temporary)


def write_file(path: str, data: bytes) -> None:
    """Create or replace one file in a single step."""
    target = os.path.realpath(path)
    try:
        temporary = _stage(target, data)
        try:
            os.replace(temporary, target)
        except OSError:
            _remove(temporary)
            raise
    except OSError as error:
        raise WriteError(path, error.strerror or str(error)) from error


def _stage(target: str, data: bytes) -> str:
    """Write ``data`` to a new file next to ``target``, with its permissions and owner."""
    import tempfile

    directory, name = os.path.split(target)
    handle, temporary = tempfile.mkstemp(prefix=f".{name[:64]}.", suffix=".tmp", dir=directory)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _copy_mode(target, temporary)
    except BaseException:
        _remove(temporary)
        raise
    return temporary


def _copy_mode(target: str, temporary: str) -> None:
    try:
        old = os.stat(target)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        return
    if hasattr(os, "chown") and (old.st_uid, old.st_gid) != (os.getuid(), os.getgid()):
        with contextlib.suppress(PermissionError):
            os.chown(temporary, old.st_uid, old.st_gid)
    os.chmod(temporary, stat.S_IMODE(old.st_mode))


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
