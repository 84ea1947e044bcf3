"""check_text and fix_text."""

from __future__ import annotations

import pytest
from fake import IMPORT

from trainify import Options, check_text, engine, fix_text
from trainify.findings import Safety
from trainify.passes import Look
from trainify.source import SourceError


def rules(text: str, **options: object) -> list[str]:
    return [finding.rule for finding in check_text(text, "a.py", Options(**options))]  # type: ignore[arg-type]


def test_findings_come_in_order_of_place_and_once() -> None:
    text = "hopeless(1)\nfused(2)\nrisky(3)\n"
    assert rules(text) == ["TRN911", "TRN901", "TRN902"]


def test_the_same_finding_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import fake

    once = fake.find
    monkeypatch.setattr(fake, "find", lambda *a: [*once(*a), *once(*a)])
    assert rules("fused(1)\nfused(2)\n") == ["TRN901", "TRN901"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["TRN901", "TRN911"]),
        ({"select": ("TRN90",)}, ["TRN901"]),
        ({"select": ("TRN901", "TRN911")}, ["TRN901", "TRN911"]),
        ({"ignore": ("TRN91",)}, ["TRN901"]),
        ({"select": ("TRN9",), "ignore": ("TRN901",)}, ["TRN911"]),
    ],
)
def test_select_and_ignore(options: dict[str, object], expected: list[str]) -> None:
    assert rules("fused(1)\nhopeless(1)\n", **options) == expected


@pytest.mark.parametrize("wrong", [{"strategy": "best"}, {"flag": "maybe"}])
def test_options_are_checked(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        Options(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "silenced"),
    [
        ("fused(1)  # trainify: ignore\n", True),
        ("fused(1)  # trainify:ignore[TRN901]\n", True),
        ("fused(1)  # trainify: ignore[TRN911, TRN901] because\n", True),
        ("fused(1)  # noqa # trainify: ignore[TRN9]\n", True),
        ("fused(1)  # trainify: ignore[TRN911]\n", False),
        ("fused(1)  # trainify: ignore[]\n", False),
        ("fused(1)  # trainify: ignored\n", False),
        ("# trainify: ignore\nfused(1)\n", False),
        ("fused(\n  1,  # trainify: ignore\n  2)\n", True),
        ("fused(\n  1)  # trainify: ignore[TRN901]\n", True),
        ("fused('# trainify: ignore')\n", False),
        ("fused(1)\n# trainify: ignore-file\n", True),
        ("# trainify: ignore-file[TRN901]\nfused(1)\n", True),
        ("# trainify: ignore-file[TRN902]\nfused(1)\n", False),
        ("fused(1)  # trainify: ignore\r\n", True),
        ("x = 1\rfused(1)  # trainify: ignore\r", True),
    ],
)
def test_suppression(text: str, silenced: bool) -> None:
    assert rules(text) == ([] if silenced else ["TRN901"])


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("x = 1\ny = (\n", 2, 5, "never closed"),
        ("x = 1\x00", 0, 0, "null"),
        ("-" * 200_000 + "1", 0, 0, "nested too deeply|too complex"),
        ("(" * 1000 + ")" * 1000, 1, 201, "too many nested"),
    ],
)
def test_what_is_no_python(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        check_text(text)
    if line:
        assert (caught.value.line, caught.value.column) == (line, column)


def test_recursion_in_a_pass_is_the_files_fault() -> None:
    with pytest.raises(SourceError, match="nested too deeply"):
        check_text("misbehave_recurse()\n")


def test_nested_fixes_and_a_shared_import_in_one_run() -> None:
    result = fix_text("fused(fused(fused(1)))\nfused(2)\n")
    assert result.text == IMPORT + "plain(plain(plain(1)))\nplain(2)\n"
    assert len(result.applied) == 4
    assert result.remaining == []
    assert fix_text(result.text).text == result.text


def test_unsafe_fixes_only_when_asked() -> None:
    text = "risky(1)\nshown(2)\nhopeless(3)\n"
    result = fix_text(text)
    assert result.text == text
    assert [finding.line for finding in result.remaining] == [1, 2, 3]
    result = fix_text(text, options=Options(unsafe=True))
    assert result.text == "safe(1)\nshown(2)\nhopeless(3)\n"
    assert [finding.line for finding in result.remaining] == [2, 3]


def test_strategy() -> None:
    assert fix_text("fused(1)", options=Options(strategy="replace")).text == "twice(1)"


def test_a_fix_that_deletes_a_comment_is_unsafe() -> None:
    [fused, shown] = check_text("fused(  # keep me\n  1)\nshown(  # me too\n)\n")
    assert fused.fixes["flag"].safety is Safety.SAFE  # it keeps what is in the brackets
    assert shown.fixes["flag"].safety is Safety.DISPLAY


@pytest.mark.parametrize(
    ("text", "new", "lost"),
    [
        ("fused()  # why\n", "plain('#')\n", "# why"),
        ("fused()  # why\n", "plain('# why')\n", "# why"),
        ("fused(  # keep\n 1)  # keep me\n", "plain(1)  # keep me\n", "# keep"),
        ("fused()  # twice\nfused()  # twice\n", "plain()  # twice\n", "# twice"),
        ("fused()  # why\n", "if x:\n    plain()\nelse:\n    fused()  # why\n", None),
        ("fused('# no comment')\n", "plain()\n", None),
        ("fused('#', 1)  # why\n", "plain(1)  # why\n", None),
    ],
)
def test_comment_loss_lowers_safety(
    monkeypatch: pytest.MonkeyPatch, text: str, new: str, lost: str | None
) -> None:
    import fake

    from trainify.findings import Edit, Finding, Fix

    def find(module, options):  # type: ignore[no-untyped-def]
        fix = Fix("drop", (Edit(0, len(module.text), new),))
        yield Finding("a.py", "TRN901", "m", 0, 1, 1, 1, 1, 2, {"flag": fix})

    monkeypatch.setattr(fake, "find", find)
    [finding] = check_text(text)
    fix = finding.fixes["flag"]
    expected = (Safety.UNSAFE, f"deletes the comment `{lost}`") if lost else (Safety.SAFE, "")
    assert (fix.safety, fix.look_at) == expected


@pytest.mark.parametrize("name", ["ping", "pong"])
def test_fixes_that_undo_each_other(name: str) -> None:
    with pytest.raises(engine.NotConverged, match="TRN912"):
        fix_text(f"misbehave_{name}()\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("misbehave_syntax()\n", "do not parse, line 1"),
        ("if 1: misbehave_return()\n", "do not compile"),
    ],
)
def test_a_fix_that_breaks_the_file(text: str, message: str) -> None:
    with pytest.raises(engine.BrokenFix, match=message):
        fix_text(text)


def test_a_file_that_parses_but_never_compiled_can_be_fixed() -> None:
    assert fix_text("return fused(1)\n").text == IMPORT + "return plain(1)\n"


def test_crash_in_a_pass_names_it() -> None:
    with pytest.raises(engine.PassError, match=r"in pass fake: KeyError: 'oops'"):
        check_text("misbehave_raise()\n")


def test_a_pass_is_asked_only_where_a_needle_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    import fake

    class Other:
        RULES = fake.RULES
        NEEDLES = (b"set_no_grad", Look((b"ops.",), lambda data: b"graph" in data))

        @staticmethod
        def find(module: object, options: object) -> list[object]:
            raise ValueError

    both = (fake, Other)
    monkeypatch.setattr(engine.passes, "all_passes", lambda: both)
    assert engine.passes_for(b"no_grad, ops.x, not fused (", Options()) == ()
    assert engine.passes_for(b"x.set_no_grad()", Options()) == (Other,)
    assert engine.passes_for(b"fused(ops.graph)", Options()) == (fake, Other)
    assert rules("fused(1)\n") == ["TRN901"]
    with pytest.raises(engine.PassError):
        rules("fused(ops.graph)\n")
