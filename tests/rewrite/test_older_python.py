"""What is written into a file runs on each Python that its project says it runs on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainify.engine import Options, fix_paths, fix_text
from trainify.releases import Release, find_releases
from trainify.rewrite.older_python import lacks
from trainify.rewrite.specialize import Use, helper_text, library, paths, reference

OLDEST = ("python<3.10", "python<3.9")
VARLEN = """\
import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func


def f(q, k, v, cu_q, cu_k, m, scale):
    return flash_attn_varlen_func(q, k, v, m, cu_q, m, cu_k, softmax_scale=scale, causal=True)
"""
MERGED = """\
import torch
from flashinfer.cascade import merge_state


def f(o1, s1, o2, s2):
    return merge_state(o1, s1, o2, s2)
"""


@pytest.mark.parametrize(
    ("specifier", "oldest"),
    [(">=3.8", 8), (">=3.8,<4", 8), (">3.8.1", 8), ("~=3.9", 9), (">=3.10", 10), ("==3.12.*", 12)],
)
def test_the_oldest_counts(specifier: str, oldest: int) -> None:
    lacking = OLDEST[: max(10 - oldest, 0)]
    assert lacks([Release("python", specifier, "pyproject.toml")]) == lacking


def test_nothing_said_is_the_newest() -> None:
    assert lacks([Release("torch", "==2.4", "uv.lock")]) == ()


@pytest.mark.parametrize(
    ("name", "text", "specifier"),
    [
        ("pyproject.toml", '[project]\nrequires-python = ">=3.9, <3.13"\n', ">=3.9,<3.13"),
        ("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.8"\n', ">=3.8"),
        ("setup.py", 'setup(\n    name="x",\n    python_requires=">=3.8",\n)\n', ">=3.8"),
        ("setup.cfg", "[options]\npython_requires = >= 3.8\n", ">=3.8"),
        ("pyproject.toml", '[project]\nname = "python"\ndependencies = ["x>=1"]\n', ""),
    ],
)
def test_what_a_project_says(tmp_path: Path, name: str, text: str, specifier: str) -> None:
    (tmp_path / name).write_text(text)
    found = find_releases(str(tmp_path), ("python",), installed_in=())
    assert [release.specifier for release in found] == ([specifier] if specifier else [])


def evaluated(text: str) -> Iterator[ast.expr]:
    """The types in the heads of functions that Python looks at when it defines them."""
    for node in ast.walk(ast.parse(text, feature_version=(3, 8))):
        if isinstance(node, ast.FunctionDef):
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            yield from (a.annotation for a in given if a.annotation is not None)
            yield from [node.returns] if node.returns is not None else []


def is_new(annotation: ast.expr) -> bool:
    return any(
        isinstance(part, ast.BinOp)
        or (isinstance(part, ast.Subscript) and ast.unparse(part.value) in ("tuple", "list"))
        for part in ast.walk(annotation)
    )


def test_all_that_may_be_written() -> None:
    plain = older = 0
    for name in list(paths())[::24]:
        function = reference(name)
        assert function is not None
        use = Use.of(f"{name}({', '.join(function.parameters)})", {}, late=True)
        for lacking in ((), OLDEST):
            made = library((use,), lacking=lacking).functions[name]
            text = helper_text(
                made, torch="torch", functional="F", helper_names=(), unit="    ", width=88,
                lacking=lacking,
            )  # fmt: skip
            new = "strict=" in text or any(map(is_new, evaluated(text)))
            plain, older = plain + (new and not lacking), older + (new and bool(lacking))
    assert plain and not older


@pytest.mark.parametrize("text", [VARLEN, MERGED])
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n\n"])
def test_in_a_file(text: str, future: str) -> None:
    def written(specifier: str) -> str:
        options = Options(releases=(Release("python", specifier, "setup.py"),))
        return fix_text(future + text, "m.py", options).text

    assert any(map(is_new, evaluated(written(">=3.10"))))
    fixed = written(">=3.8")
    assert fixed != text and "strict=" not in fixed
    assert any(map(is_new, evaluated(fixed))) is bool(future)


def test_in_a_project(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(VARLEN)
    (tmp_path / "pyproject.toml").write_text('[project]\nrequires-python = ">=3.8"\n')
    releases = find_releases(str(tmp_path), installed_in=())
    (report,) = fix_paths([str(tmp_path / "m.py")], Options(releases=releases))
    assert report.change is not None and b"strict" not in report.change.after
