"""What a run of ``make proof`` has shown of the catalog, for machines on which nothing is run.

``record.tsv`` has a line for each row whose equivalent passed ``gradcheck`` in float64, with the
backward that strategy ``attach`` writes: its name, a digest of what was checked, and against which
running kernel it was held, if any.  A row that has changed since then is in no line.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ..catalog import FusedOp
from ..ops import reference_texts

FILE = Path(__file__).with_name("record.tsv")


def recorded(op: FusedOp) -> str | None:
    """The kernel that a row's equivalent agreed with, empty where none ran; None if unproven."""
    return _read().get((op.names[0], _digest(op)))


def lines(proven: Mapping[FusedOp, str]) -> list[str]:
    """The lines of ``record.tsv`` for these rows, each with the kernel that it was held against."""
    return sorted({f"{op.names[0]}\t{_digest(op)}\t{kernel}" for op, kernel in proven.items()})


@cache
def _read() -> dict[tuple[str, str], str]:
    split = (line.split("\t") for line in FILE.read_text("utf-8").splitlines())
    return {(name, digest): kernel for name, digest, kernel in split}


@cache
def _digest(op: FusedOp) -> str:
    """Of everything that decides what the equivalent computes."""
    assert op.equivalent is not None
    text = "\n".join((op.schema, op.equivalent, *reference_texts(op.equivalent)))
    return f"{zlib.crc32(text.encode()):08x}"
