"""``trainify audit``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.torch_process import TorchProcess
from trainify.cli import cli

HERE = Path(__file__).parent
MODELS = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x).detach() + x


def right():
    print("made")
    return nn.Linear(8, 8), torch.ones(2, 8)

def cut():
    return nn.Sequential(nn.Linear(8, 8), Block(), Block()), (torch.ones(2, 8),)

def with_loss():
    return nn.Linear(8, 8), {"input": torch.ones(2, 8)}, lambda out: out.square().sum()

def raises():
    raise KeyError("no weights")

def raises_in_forward():
    return nn.Linear(8, 8), torch.ones(2, 9)

def raises_in_a_line():
    return Block(), torch.ones(2, 9)

def leaves():
    raise SystemExit(0)

def nothing():
    return None

def four():
    return 1, 2, 3, 4

model = nn.Linear(2, 2)
number = 3
"""


@pytest.fixture
def run(tmp_path: Path, torch_process: TorchProcess):
    (tmp_path / "models.py").write_text(MODELS)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return torch_process.run("-m", "trainify", "audit", *arguments, cwd=tmp_path)

    return run


def test_right_and_cut(run) -> None:
    done = run("models.py:right")
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "ok: 2 of 2 parameters get a gradient",
    )
    done = run("models:cut")
    assert done.returncode == 1 and "models.py:11 in Block.forward: detach" in done.stdout
    assert run("models:cut", "--allow", "Block.forward").returncode == 0


STOPPED = """\
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            h = self.fc(x)
        return self.head(h)

class Half(Model):
    def forward(self, x):
        h = self.fc(x)
        return self.head(h.detach()) + h

def make():
    return Model(), torch.ones(2, 8)

def make_half():
    return Half(), torch.ones(2, 8)
"""


def test_the_change_after_which_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stopped.py").write_text(STOPPED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def audit(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["audit", *arguments])

    done = audit("stopped.py:make", "--diff", "change.patch")
    assert done.exit_code == 1 and "stopped.py:11 in Model.forward: grad mode" in done.stdout
    assert "stopped.py:10: `with torch.no_grad():`, for fc.bias, fc.weight" in done.stderr
    done = audit("stopped.py:make_half", "--diff", "none.patch")
    assert done.exit_code == 1 and "no change was found after which all is well" in done.stderr
    assert not Path("none.patch").exists()
    printed = audit("stopped.py:make", "--diff", "-", "-o", "-").stdout
    assert printed.endswith(Path("change.patch").read_text()) and "grad mode" in printed
    subprocess.run(["git", "apply", "change.patch"], check=True)
    assert audit("stopped.py:make", "--diff", "none.patch").exit_code == 0
    assert not Path("none.patch").exists() and not Path("-").exists()


COPIED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)
        self.both = torch.cat([self.a.weight.data, self.b.weight.data])

    def forward(self, x):
        return nn.functional.linear(x, self.both)

def make():
    torch.manual_seed(0)
    return Model(), torch.ones(2, 8)
"""


def test_a_change_by_which_a_copied_weight_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copied.py").write_text(COPIED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = CliRunner().invoke(cli, ["audit", "copied.py:make", "--diff", "change.patch"])
    assert "a.weight, b.weight is unused, and what was made of it once is in both" in done.stdout
    assert "copied.py:9: `self.both = torch.cat(" in done.stderr
    subprocess.run(["git", "apply", "change.patch"], check=True)
    done = CliRunner().invoke(cli, ["audit", "copied.py:make"])
    assert done.exit_code == 0 and "ok: 2 of 4 parameters get a gradient" in done.stdout


def test_json(run) -> None:
    done = run("models.py:cut", "--format", "json")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and not report["ok"] and report["cuts"][0]["line"] == 11
    done = run("models.py:with_loss", "--format", "json", "--no-proof")
    assert json.loads(done.stdout)["ok"] and json.loads(done.stdout)["proof"] == ""


def test_page(run, tmp_path: Path) -> None:
    done = run("models.py:cut", "--format", "html", "-o", "page.html")
    assert (done.returncode, done.stdout) == (1, "")
    page = (tmp_path / "page.html").read_text()
    assert "models.py:11" in page and "return self.fc(x).detach() + x" in page
    assert not re.search(r'(src|href)="(?!#)', page) and "@import" not in page

    class Balanced(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attributes: object) -> None:
            if tag not in ("meta", "rect", "circle", "path"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("rect", "circle", "path"):
                assert self.open.pop() == tag

    parser = Balanced()
    parser.feed(page)
    assert parser.open == []


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("models.py", "'models.py' is not FILE.py:FACTORY nor PACKAGE.MODULE:FACTORY"),
        ("other.py:right", "there is no file other.py"),
        ("other.module:right", "there is no module 'other.module'"),
        ("models.py:left", "models.py has no 'left'"),
        ("models.py:number", "models.py:number is int, not a function that makes a model"),
        ("models.py:model", "models.py:model is Linear, not a function that makes a model"),
        ("models.py:nothing", "models.py:nothing makes NoneType, not a torch.nn.Module"),
        ("models.py:four", "models.py:four returns 4 things, not a model, its inputs and a loss"),
        ("models.py:raises", "models.py:raises: KeyError: 'no weights' (models.py:25)"),
        ("models.py:leaves", "models.py:leaves: SystemExit: 0 (models.py:34)"),
        ("models.py:raises_in_a_line", "(2x9 and 8x8) (models.py:11)"),
        ("models.py:raises_in_forward", "mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_misuse_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: str
) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = CliRunner().invoke(cli, ["audit", target])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr.replace(f"{tmp_path}{os.sep}", "").splitlines()[-1]
    assert "Traceback" not in done.stderr
