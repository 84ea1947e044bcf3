"""Edits and diffs, for any text."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from cli_tools import git
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainify.findings import Edit, Finding, Fix, OverlapError, apply_edits, select_fixes
from trainify.output.diff import LineMap, hunks, opcodes, unified_diff
from trainify.source import Change, Positions, SourceError, decode, encode, split_lines

texts = st.text(alphabet="ab\n\r\té日\x0c", max_size=30)


@st.composite
def texts_and_edits(draw: st.DrawFn) -> tuple[str, list[Edit]]:
    """A text, and edits of it that do not overlap."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pairs = zip(cuts[::2], cuts[1::2], strict=False)
    return text, [Edit(start, end, draw(texts)) for start, end in pairs]


@given(texts_and_edits(), st.randoms(use_true_random=False))
def test_edits_replace_what_they_name_and_nothing_else(given_, random) -> None:
    text, edits = given_
    expected, shift = text, 0
    for edit in edits:  # one after the other, moving along
        expected = expected[: edit.start + shift] + edit.text + expected[edit.end + shift :]
        shift += len(edit.text) - (edit.end - edit.start)
    if len({(e.start, e.end) for e in edits}) == len(edits):
        shuffled = edits + edits  # applying an edit twice is applying it once
        random.shuffle(shuffled)
        assert apply_edits(text, shuffled) == expected


@pytest.mark.parametrize(
    "other", [Edit(1, 4, "x"), Edit(2, 3, "x"), Edit(3, 9, "x"), Edit(2, 2, "x")]
)
def test_edits_that_overlap_are_refused(other: Edit) -> None:
    with pytest.raises(OverlapError, match="character"):
        apply_edits("0123456789", [Edit(1, 4, ""), other])


@given(texts, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), texts), max_size=6))
def test_what_is_selected_can_be_applied(text: str, raw: list[tuple[int, int, str]]) -> None:
    findings = []
    for a, b, new in raw:
        start, end = sorted((min(a, len(text)), min(b, len(text))))
        fix = Fix("t", (Edit(start, end, new), Edit(0, 0, "import x\n")))
        findings.append(Finding("p", "R", "m", start, end, 1, 1, 1, 1, {"flag": fix}))
    chosen = select_fixes(findings, "flag")
    assert [f for f, _ in chosen] == [f for f in findings if f in [c for c, _ in chosen]]
    try:
        result = apply_edits(text, [edit for _, fix in chosen for edit in fix.edits])
    except OverlapError:
        pytest.fail("selected fixes overlap")
    assert not chosen or result.count("import x\n") >= 1
    assert not findings or chosen


LINE = "    return f(x)\n"
INDENTED = (Edit(0, 0, "    with scope:\n"), Edit(0, 0, "    "))


@pytest.mark.parametrize(
    ("moved", "put_above", "taken"),
    [
        ((Edit(0, len(LINE), "    with scope:\n        return f(x)\n"),), "    pass\n", 1),
        (INDENTED, "    pass\n", 1),
        ((Edit(0, 0, "import x\n"),), "import y\n", 2),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_what_goes_above_a_line_that_moves_waits_for_it(
    moved: tuple[Edit, ...], put_above: str, taken: int, turned: bool
) -> None:
    each = [Fix("t", moved), Fix("t", (Edit(0, 0, put_above),))]
    found = [Finding("p", "R", "m", 0, 0, 1, 1, 1, 1, {"flag": fix}) for fix in each]
    assert len(select_fixes(found[::-1] if turned else found, "flag")) == taken


@given(texts)
def test_positions_are_those_of_the_lines(text: str) -> None:
    positions, lines = Positions(text), split_lines(text)
    for offset in range(len(text) + 1):
        line, column = positions.at(offset)
        assert text[offset : offset + 1] in (lines[line - 1][column - 1 : column], "\r", "\n")
        assert text[offset - column + 1 : offset].startswith(lines[line - 1][: column - 1])


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_opcodes_turn_old_into_new(old: list[str], new: list[str]) -> None:
    codes = opcodes(old, new)
    assert [x for _, a, b, _, _ in codes for x in old[a:b]] == old
    assert [x for _, _, _, c, d in codes for x in new[c:d]] == new
    assert all((tag == "equal") == (old[a:b] == new[c:d]) for tag, a, b, c, d in codes)
    for context in range(4):
        shown = [code for hunk in hunks(codes, context) for code in hunk]
        assert [c for c in shown if c[0] != "equal"] == [c for c in codes if c[0] != "equal"]
    where = LineMap(old, new)
    for tag, a, _, c, d in codes:
        for line in range(c, d):
            assert where.old_line(line + 1) == (a + line - c if tag == "equal" else a) + 1


contents = st.one_of(
    st.lists(
        st.sampled_from([b"a\n", b"b\n", b"\n", b"a\r\n", b"\\ x\n", b"-- \n", b"\xff\r\n"])
    ).map(b"".join),
    st.binary(max_size=40).filter(lambda data: b"\x00" not in data),
)
names = st.text(
    st.characters(exclude_characters="/\x00", exclude_categories=("Cs",)), min_size=1, max_size=12
).filter(
    lambda name: name not in (".", "..") and ".git" not in name.lower() and len(name.encode()) < 200
)


@pytest.fixture(scope="module")
def work_tree() -> object:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        yield Path(folder)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(contents, min_size=2, max_size=2, unique=True), names, st.integers(0, 3))
def test_git_apply_gives_the_new_bytes(
    work_tree: Path, pair: list[bytes], name: str, context: int
) -> None:
    before, after = pair
    path = work_tree / name
    path.write_bytes(before)
    if before and after:  # git has another header for files that come or go
        patch = unified_diff(Change(str(path), before, after), name, context)
        zero = [] if context else ["--unidiff-zero"]
        git("-C", str(work_tree), "apply", "--whitespace=nowarn", *zero, stdin=patch)
        assert path.read_bytes() == after
    path.unlink()


def test_a_hunk_of_no_lines_starts_after_the_line_before() -> None:
    before, after = b"a\nb\n", b"a\nnew\nb\n"
    assert b"@@ -1,0 +2 @@\n" in unified_diff(Change("x", before, after), "x", 0)
    assert b"@@ -2 +1,0 @@\n" in unified_diff(Change("x", after, before), "x", 0)


@given(st.sampled_from(["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-7", "shift_jis"]), texts)
def test_text_survives_reading_and_writing(encoding: str, text: str) -> None:
    cookie = "" if encoding == "utf-8-sig" else f"# coding: {encoding}\n"
    try:
        data = (cookie + text).encode(encoding)
    except UnicodeEncodeError:
        return
    decoded, found = decode(data)
    assert decoded == cookie + text
    assert encode(decoded, found) == data


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        text, encoding = decode(data)
    except SourceError:
        return
    assert encode(text, encoding) == data or encoding != "utf-8"
