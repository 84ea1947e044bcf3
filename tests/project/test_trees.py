"""Which syntax trees a project keeps, and what it remembers while one file is judged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainify.engine import check_text
from trainify.facts import Project, parse_module
from trainify.facts.instances import Instances, instances_of
from trainify.facts.instances import found as instances_found

MODEL = """
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return x
"""
USER = "from .net import Net\n\nnet = Net()\ny = net(1)\n"


class Small(Project):
    max_trees = 250
    max_trees_between = 150


def _files(folder: Path, count: int) -> list[Path]:
    files = [folder / f"m{i}.py" for i in range(count)]
    for file in files:
        file.write_text(f"x = {'0' * 96}")  # 100 characters
    return files


def test_the_trees_asked_for_last_are_kept(tmp_path: Path) -> None:
    a, b, c, d = _files(tmp_path, 4)
    project = Small([tmp_path])
    first = {file: project.load(file) for file in (a, b, c)}
    assert project.load(a) is first[a]
    project.load(d)
    assert project.load(a) is first[a]
    assert project.load(c) is first[c]
    assert project.load(b) is not first[b]


def test_fewer_are_kept_from_one_file_to_the_next(tmp_path: Path) -> None:
    a, b = _files(tmp_path, 2)
    project = Small([tmp_path])
    first = {file: project.load(file) for file in (a, b)}
    check_text("x = 1\n", str(tmp_path / "x.py"), project=project)
    assert project.load(b) is first[b]
    assert project.load(a) is not first[a]


def test_objects_are_found_once_while_a_file_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Counted(Instances):
        def __init__(self, module: object, classes: object) -> None:
            made.append("")
            super().__init__(module, classes)  # type: ignore[arg-type]

    monkeypatch.setattr(instances_found, "Instances", Counted)
    folder = tmp_path / "pkg"
    folder.mkdir()
    for name, text in {"__init__.py": "", "net.py": MODEL, "user.py": USER}.items():
        (folder / name).write_text(text)
    project = Project([tmp_path])
    module = parse_module(MODEL, str(folder / "net.py"), project)
    (cls,) = module.classes
    objects = instances_of(module, cls)
    assert [Path(file.path).name for file in objects.files] == ["net.py", "user.py"]
    assert instances_of(module, cls) is objects
    assert len(made) == 1
    project.begin()
    assert instances_of(module, cls) is not objects


def test_far_links_do_not_depend_on_the_order_of_a_set(tmp_path: Path) -> None:
    """Links are followed up to a number of files: which these are must not change by the run."""
    source = """
import sys
from pathlib import Path
from trainify.facts import Project, project

project._MAX_NEIGHBOURS = 5
folder = Path(sys.argv[1])
print(Project([folder]).linked(str(folder / "a.py"), str(folder / "z.py")))
"""
    (tmp_path / "a.py").write_text("import b, c\n")
    (tmp_path / "b.py").write_text("import d, e, f\n")
    (tmp_path / "c.py").write_text("import z\n")
    for name in "def":
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "z.py").touch()
    found = {
        subprocess.run(
            [sys.executable, "-c", source, str(tmp_path)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(8)
    }
    assert len(found) == 1


def test_files_around_are_read_once_while_one_is_judged(tmp_path: Path) -> None:
    files = _files(tmp_path, 40)
    read: list[Path] = []

    class Counted(Project):
        def read(self, path: Path) -> bytes:
            read.append(path)
            return super().read(path)

    project = Counted([tmp_path])
    module = parse_module("x = 1\n", str(files[0]), project)
    assert not project.says(module, rb"nothing") and not project.says(module, rb"no such word")
    assert sorted(read) == sorted(files[1:])
    project.begin()
    assert not project.says(module, rb"nothing")
    assert len(read) == 2 * len(files[1:])
