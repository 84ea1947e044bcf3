"""Which calls in other files may run a function: files that hold none are not parsed for it."""

from pathlib import Path
from typing import Any

import pytest

from trainify import Options, engine
from trainify.facts import ModuleFacts, Project
from trainify.facts.module import parse_module

CACHE = """\
class Cache:
    def update(self, x):
        return x


def scaled(x):
    return x
"""


@pytest.mark.parametrize(
    ("function", "text", "calls", "parsed"),
    [
        ("update", "def f(cache, x): return cache.update(x)\n", 1, True),
        ("update", "def f(cache, x): return cache.update (x)\n", 1, True),
        ("update", "def f(cache, x): return (cache\n    .update(\n        x))\n", 1, True),
        ("update", "def f(cache, x): return update(x)\n", 0, True),
        ("update", "def f(cache): return cache.updated()  # update\n", 0, False),
        ("update", "def f(cache): return cache.update\n", 0, False),
        ("scaled", "from .cache import scaled as s\ny = s(1)\n", 1, True),
        ("scaled", "from .cache import scaled\ny = scaled (1)\n", 1, True),
        ("scaled", "y = 1\n", 0, False),
    ],
)
def test_calls_of(tmp_path: Path, function: str, text: str, calls: int, parsed: bool) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "cache.py").write_text(CACHE)
    (folder / "model.py").write_text(text)
    project = Project([tmp_path])
    module = parse_module(CACHE, str(folder / "cache.py"), project)
    (named,) = module.functions_named(function)
    found = list(project.calls_of(module, named))
    assert len(found) == calls
    assert (folder / "model.py" in project._modules) is parsed
    assert list(project.calls_of(module, named, lambda data: b"nothing" in data)) == []
    assert list(project.calls_of(module, named, elsewhere=True)) == found


def test_packages_need_no_init_file(tmp_path: Path) -> None:
    for name in ("serve/layers/norm.py", "serve/models/llama.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    for root in (tmp_path, tmp_path / "serve", tmp_path / "serve" / "models"):
        found = Project([root]).find_file(
            str(tmp_path / "serve/models/llama.py"), "serve.layers.norm"
        )
        assert found == tmp_path / "serve/layers/norm.py"


def test_what_has_no_name_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Project([Path()]).find_file("model.py", "") is None


ENCODER = """\
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x):
        return self.layer(x)
"""


def test_a_file_that_another_one_led_to_is_not_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(ENCODER)
    parsed = []

    def counting(text: str, path: str, *rest: Any) -> ModuleFacts:
        parsed.append(Path(path).name)
        return parse_module(text, path, *rest)

    monkeypatch.setattr("trainify.facts.module.parse_module", counting)
    reports = list(engine.check_paths([str(tmp_path)], Options(select=("TRN201",))))
    assert [len(report.findings) for report in reports] == [1, 1]
    assert parsed.count("b.py") == 1


@pytest.mark.parametrize("qualified", ["", ".", ".."])
def test_what_has_no_name_is_no_module(qualified: str) -> None:
    """As a relative import at the root of a file system is resolved to."""
    assert Project(()).find_below(Path("/"), qualified) is None
