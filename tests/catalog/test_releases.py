"""Which release of a library the code is written for, and what that changes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.each import in_turn
from trainify.catalog import lookup, named_releases
from trainify.cli import cli
from trainify.config import ConfigError, load_config
from trainify.engine import Options, check_text, fix_paths, fix_text
from trainify.releases import LIBRARIES, Release, admits, assumed_version, find_releases

NORM = "vllm._custom_ops.rms_norm"

CODE = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


class Norm(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight.data, self.eps)
        return out
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_txt", ".txt").replace("_lock", ".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "specifier"),
    [
        ("requirements.txt", "torch\nvllm==0.8.5.post1  # served with\n", "==0.8.5.post1"),
        ("requirements.txt", "vLLM [all] >= 0.6, < 0.9 ; python_version > '3.9'\n", ">=0.6,<0.9"),
        ("requirements-gpu.txt", "vllm~=0.8.2\n", "~=0.8.2"),
        ("requirements/serve.txt", "--extra-index-url x\nvllm!=0.23.0\n", "!=0.23.0"),
        ("constraints.txt", "vllm==0.9.*\n", "==0.9.*"),
        ("pyproject.toml", '[project]\ndependencies = ["vllm[flash]>=0.9", "x"]\n', ">=0.9"),
        ("pyproject.toml", '[tool.poetry.dependencies]\nvllm = "==0.7"\n', "==0.7"),
        ("setup.py", "setup(install_requires=['vllm<0.20'])\n", "<0.20"),
        ("setup.cfg", "[options]\ninstall_requires =\n    vllm >=0.4\n", ">=0.4"),
        ("environment.yml", "dependencies:\n  - pip:\n    - vllm==0.8.1\n", "==0.8.1"),
        ("uv.lock", '[[package]]\nname = "vllm"\nversion = "0.8.4"\nsource = 1\n', "==0.8.4"),
        ("poetry.lock", '[[package]]\nname = "vllm"\nversion = "0.9.0+cu1"\n', "==0.9.0+cu1"),
        ("Pipfile.lock", '{"default": {"vllm": {"hashes": [], "version": "==0.6.0"}}}', "==0.6.0"),
    ],
)
def test_what_a_file_says(tmp_path: Path, name: str, text: str, specifier: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    (found,) = find_releases(str(tmp_path), installed_in=())
    assert (found.library, found.specifier, found.source) == ("vllm", specifier, name)
    assert assumed_version(found.specifier, ()) is not None


@pytest.mark.parametrize(
    "text",
    [
        "my-vllm==1.0\n",
        "vllm-flash-attn==2.6\n",
        "# vllm==0.8\n",
        "vllm @ git+https://x\n",
        "vllm\n",
    ],
)
def test_what_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    assert find_releases(str(tmp_path), installed_in=()) == ()


def test_the_most_certain_comes_first(tmp_path: Path) -> None:
    def found() -> str:
        return " ".join(f"{r} {r.source}" for r in find_releases(str(tmp_path), installed_in=()))

    write(tmp_path, requirements_txt="vllm>=0.6\n")
    assert found() == "vllm>=0.6 requirements.txt"
    metadata = tmp_path / ".venv/lib/python3.11/site-packages/vllm-0.8.2.dist-info"
    metadata.mkdir(parents=True)
    assert found() == "vllm 0.8.2 .venv"
    write(tmp_path, requirements_txt="vllm==0.7.0\n")
    assert found() == "vllm 0.7.0 requirements.txt"
    write(tmp_path, uv_lock='name = "vllm"\nversion = "0.6.1"\n')
    assert found() == "vllm 0.6.1 uv.lock"


def test_the_installed_package(tmp_path: Path) -> None:
    (tmp_path / "site/vllm-0.8.3.dist-info").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    places = [str(tmp_path / "site")]
    (found,) = find_releases(str(tmp_path / "code"), installed_in=places)
    assert (str(found), found.source) == ("vllm 0.8.3", "the installed package")
    (tmp_path / "code/requirements.txt").write_text("vllm>=0.20\n")
    (found,) = find_releases(str(tmp_path / "code"), installed_in=places)
    assert str(found) == "vllm>=0.20", "what is installed here is not what the project wants"


def test_folders_are_asked_upwards_to_the_end_of_the_repository(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="vllm==0.1\n", repo__requirements_txt="vllm==0.8.5\n")
    inner = tmp_path / "repo/src/models"
    inner.mkdir(parents=True)
    assert [str(r) for r in find_releases(str(inner), installed_in=())] == ["vllm 0.8.5"]
    (tmp_path / "repo/requirements.txt").unlink()
    (tmp_path / "repo/.git").mkdir()
    assert find_releases(str(inner), installed_in=()) == ()


@pytest.mark.parametrize(
    ("specifier", "function"),
    [
        ("==0.33.0", "rms_norm"),
        ("==0.23.0", "rms_norm_llama"),
        ("==0.23.1", "rms_norm"),
        ("==0.8.5.post1", "rms_norm_llama"),
        ("==0.8.5+cu121", "rms_norm_llama"),
        ("==0.20", "rms_norm"),
        ("<0.20", "rms_norm_llama"),
        ("~=0.8.2", "rms_norm_llama"),
        ("==0.8.*", "rms_norm_llama"),
        (">=0.6", "rms_norm"),
        (">=0.6,<0.24,!=0.23.0", "rms_norm"),
    ],
)
def test_the_row_is_that_of_the_release(specifier: str, function: str) -> None:
    op = lookup(NORM, (), (Release("vllm", specifier, "requirements.txt"),))
    assert op is not None and op.equivalent == f"out = {function}(input, weight, epsilon)"


def test_ops_that_a_release_does_not_have_are_still_known() -> None:
    name = "vllm.pos_encoding_ops.rotary_embedding_neox"
    assert lookup(name, (), (Release("vllm", "==0.33", "uv.lock"),)) is lookup(name)


def test_every_library_that_rows_tell_apart_is_looked_for() -> None:
    assert set(named_releases()) < set(LIBRARIES)
    for specifiers in named_releases().values():
        assert all(
            any(admits(s, v) for v in ("0.1", "0.3.3", "0.8", "0.16", "0.23.0", "99"))
            for s in specifiers
        )


def test_fixes_and_messages_follow_the_release(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(CODE)
    texts = {}
    for pinned in ("0.8.5", "0.33.0"):
        (tmp_path / "requirements.txt").write_text(f"vllm=={pinned}\n")
        config = load_config([str(tmp_path)])
        (report,) = fix_paths([str(tmp_path)], config.options, config=config)
        (finding,) = report.applied
        assert finding.message.endswith(f"(As in vllm {pinned}, says requirements.txt.)")
        texts[pinned] = report.text
    assert "F.rms_norm(x, x.shape[-1:], self.weight, self.eps)" in texts["0.33.0"]
    assert "F.rms_norm(x, x.shape[-1:], None, self.eps) * self.weight" in texts["0.8.5"]


def test_without_a_release_the_newest_is_assumed_and_said_to_be() -> None:
    (finding,) = check_text(CODE, "m.py", Options())
    assert finding.message.endswith(
        "(As in vllm>=0.20,!=0.23.0: nothing says which release is used, so the newest is assumed.)"
    )


TWO = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


class Norms(nn.Module):
    def forward(self, x, positions, q, k):
        one = torch.empty_like(x)
        ops.rms_norm(one, x, self.first.data, self.eps)
        two = torch.empty_like(x)
        ops.rms_norm(two, one, self.second.data, self.eps)
        ops.rotary_embedding(positions, q, k, 8, self.table, True)
        return two, q, k
"""
SAID = "nothing says which release is used, so the newest is assumed"


@pytest.mark.parametrize(("pinned", "reason"), [("", f": {SAID}"), ("==0.33.0", ", says")])
def test_text_says_it_once_for_a_file(tmp_path: Path, pinned: str, reason: str) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(TWO)
    if pinned:
        (tmp_path / "requirements.txt").write_text(f"vllm{pinned}\n")
    shown = CliRunner().invoke(cli, ["check", str(tmp_path), "--no-cache"]).output
    assert shown.count(reason) == 2 and shown.count("TRN10") == 6
    for each in shown.split("b.py:", 1):
        assert reason in each.split("TRN10")[1]
    named = re.findall(r"\(As in (vllm[^:,)]*)", shown)
    assert len(named) == 2 * len(set(named))
    # What is read by machines, or alone, says all of it.
    told = json.loads(
        CliRunner().invoke(cli, ["check", str(tmp_path), "--no-cache", "--format", "json"]).output
    )
    assert sum(reason in each["message"] for each in told) == 6


def test_a_release_can_be_stated(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.trainify]\nreleases = ["vllm == 0.8.5"]\n')
    (tmp_path / "requirements.txt").write_text("vllm==0.33.0\n")
    (stated,) = load_config([str(tmp_path)]).options.releases
    assert (str(stated), stated.source) == ("vllm 0.8.5", "pyproject.toml")
    for wrong, message in [
        ('["vllm"]', "'' is no version specifier"),
        ('["vllm=0.8"]', "'=0.8' is no version specifier"),
        ('["vlm==0.8"]', "releases of 'vlm' make no difference; those do of: vllm, torch"),
        ('"vllm==0.8"', "must be a list of strings"),
    ]:
        path.write_text(f"[tool.trainify]\nstrategy = 'flag'\nreleases = {wrong}\n")
        with pytest.raises(ConfigError, match=message) as error:
            load_config([str(tmp_path)])
        assert error.value.line == 3


def test_the_verdicts_are_about_the_row_that_was_used(tmp_path: Path) -> None:
    from trainify.verify import jobs_of

    options = Options(releases=(Release("vllm", "==0.8.5", "uv.lock"),))
    (job,) = jobs_of(check_text(CODE, "m.py", options), options)
    assert job.op.since == "vllm<0.20"
    assert json.dumps(job.op.equivalent) == '"out = rms_norm_llama(input, weight, epsilon)"'


# -- PyTorch --------------------------------------------------------------------------------------


def test_what_is_installed_has_to_suit_the_other_libraries(tmp_path: Path) -> None:
    (tmp_path / "site/torch-2.13.0.dist-info").mkdir(parents=True)

    def found(requirements: str) -> list[str]:
        write(tmp_path / "code", requirements_txt=requirements)
        return [
            str(r)
            for r in find_releases(str(tmp_path / "code"), installed_in=[str(tmp_path / "site")])
        ]

    assert found("vllm>=0.2\n") == ["vllm>=0.2", "torch 2.13.0"]
    assert found("vllm==0.10.2\n") == ["vllm 0.10.2", "torch 2.13.0"]
    assert found("vllm==0.10.1\n") == ["vllm 0.10.1"]
    assert found("vllm==0.2.7\ntorch>=2.1\n") == ["vllm 0.2.7", "torch>=2.1"]
    assert found("vllm==0.2.7\ntorch == 2.1.2\n") == ["vllm 0.2.7", "torch 2.1.2"]


RELEASES = [
    ("==2.1.2", "==0.2.7", True),  # has no F.rms_norm
    ("==2.4.0", "==0.8.5", False),  # rounds nothing where there is no weight
    ("==2.7.1", "==0.33.0", True),  # rounds ahead of the weight
    ("==2.8.0", "==0.33.0", False),
    (">=2.0", "==0.33.0", False),
    (None, "==0.2.7", True),  # which needs torch 2.1
    (">=2.0", "==0.2.7", True),
]


@pytest.mark.parametrize(
    ("torch", "vllm", "spelled_out", "strategy"), in_turn(RELEASES, ["flag", "replace"])
)
def test_a_norm_is_spelled_out_for_a_torch_that_has_none(
    torch: str | None, vllm: str, spelled_out: bool, strategy: str
) -> None:
    releases = [Release("vllm", vllm, "x")] + ([Release("torch", torch, "x")] if torch else [])
    text = fix_text(CODE, "m.py", Options(strategy=strategy, releases=tuple(releases))).text
    assert ("def rms_norm_in_float32(" in text) == spelled_out
    assert ("F.rms_norm" in text) != spelled_out
    assert ("functional as F" in text) != spelled_out


def test_queries_are_grouped_for_a_torch_that_does_not() -> None:
    code = """\
import torch
from flashinfer import single_prefill_with_kv_cache


def attend(q, k, v):
    return single_prefill_with_kv_cache(q, k, v, causal=True)
"""
    for torch, own in (("==2.4.0", True), ("==2.5.0", False)):
        options = Options(strategy="replace", releases=(Release("torch", torch, "x"),))
        text = fix_text(code, "m.py", options).text
        assert ("def grouped_query_attention(" in text) == own
        assert ("enable_gqa=" in text) != own


TYPED = """\
import torch
from torch import nn
from typing import Optional
from vllm import _custom_ops as ops


class Layer(nn.Module):
    def forward(self, x, weight: Optional[torch.Tensor]):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, weight, self.eps)
        return out
"""


def test_helpers_write_types_as_the_file_does() -> None:
    options = Options(strategy="replace", releases=(Release("torch", "==2.7", "x"),))
    text = fix_text(TYPED, "m.py", options).text
    assert "weight: Optional[torch.Tensor], eps" in text and "| None" not in text
    newer = fix_text("from __future__ import annotations\n" + TYPED, "m.py", options).text
    assert "weight: torch.Tensor | None, eps" in newer


def test_a_type_of_several_is_quoted_where_the_file_has_no_name_for_it() -> None:
    source = """\
import torch
from typing import Optional
from flash_attn import flash_attn_with_kvcache


def decode(q, k_cache, v_cache, n: Optional[torch.Tensor], scale: float):
    return flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=n, softmax_scale=scale)
"""
    text = fix_text(source, "m.py", Options(strategy="replace")).text
    assert 'cache_seqlens: "torch.Tensor | int | None",' in text
    assert "scale: Optional[float]" in text


# -- the library itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("PKG-INFO", "Metadata-Version: 2.4\nName: vllm\nVersion: 0.8.5.post1\n"),
        ("vllm/_version.py", "__version__: str\n\n__version__ = version = '0.8.5.post1'\n"),
        ("vllm/__init__.py", '"""vLLM."""\n__version__ = "0.8.5.post1"\n'),
    ],
)
@pytest.mark.parametrize("asked", ["", "vllm", "vllm/layers"])
def test_the_source_of_a_library_says_its_own_release(
    tmp_path: Path, path: str, text: str, asked: str
) -> None:
    (tmp_path / "vllm" / "layers").mkdir(parents=True)
    (tmp_path / path).write_text(text)
    (tmp_path / "requirements.txt").write_text("vllm>=0.20\n")
    (release,) = find_releases(str(tmp_path / asked), installed_in=())
    assert release.specifier == "==0.8.5.post1"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("PKG-INFO", "Name: vllm-tools\nVersion: 0.8.5\n"),
        ("__init__.py", '__version__ = "0.8.5"\n'),
        ("vllm/_version.py", "version = tuple\nversions = '1.0'\n"),
    ],
)
def test_other_versions_are_not_its_own(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / path).write_text(text)
    assert find_releases(str(tmp_path), installed_in=()) == ()
