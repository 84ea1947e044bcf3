from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

import trainify.verify.run as starting
from tests.torch_process import Popen, TorchProcess
from trainify.cli import cli

STANDINS = Path(__file__).parents[2] / "fixtures" / "standins"


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_process: TorchProcess
) -> Callable[..., Result]:
    """The command line in an empty project, with the stand-ins and ``lib`` as installed libraries.

    What verifies is forked from a process that has torch already.
    """
    (tmp_path / "project").mkdir()
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "lib"), str(STANDINS)]))

    def popen(command: list[str], **pipes: object) -> Popen:
        return Popen(torch_process, command, os.environ["PYTHONPATH"].split(os.pathsep))

    forking = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(starting, "subprocess", forking)
    return lambda *arguments: CliRunner().invoke(cli, [str(a) for a in arguments])


@pytest.fixture
def own_process(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What verifies is a Python started for it, as it is for users, and not forked."""
    monkeypatch.setattr(starting, "subprocess", subprocess)


@pytest.fixture
def library(run, tmp_path: Path) -> Callable[[str], None]:
    """Install ``my_kernels`` with this text."""

    def install(text: str, folder: str = "lib") -> None:
        (tmp_path / folder / "my_kernels.py").write_text(text)

    return install


@pytest.fixture
def own_op() -> Callable[..., None]:
    """An op of the project's own, and a file that calls it."""

    def write(
        equivalent: str, schema: str = "(Tensor x, Tensor w) -> Tensor", more: str = ""
    ) -> None:
        with open("pyproject.toml", "a") as file:
            file.write(
                f"[[tool.trainify.ops]]\nnames = 'my_kernels.op'\nschema = 'op{schema}'\n"
                f"equivalent = '{equivalent}'\n{more}\n"
            )
        Path("a.py").write_text(
            "import my_kernels\n\ndef f(x, w):\n    return my_kernels.op(x, w)\n"
        )

    return write
