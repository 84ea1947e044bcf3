"""A whole project with eight cuts in it, and six things that only look like cuts.

fixtures/chat_serving is a repository for inference that somebody bolted a train.py on.  Before, it
trains in silence and to nowhere; after one command, it learns what a version written by hand does.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import by_hand
import project_steps
import pytest
import torch

from tests.torch_process import TorchProcess

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "fixtures" / "chat_serving"

CUTS = {
    ("layers.py", "ops.rms_norm(out, x, self.weight.data, self.eps)", "TRN101"),
    ("layers.py", "ops.rotary_embedding(positions, q, k, self.head_dim,", "TRN102"),
    ("cache.py", "@torch.no_grad()", "TRN206"),
    ("model.py", "self.blocks = [Block(config, i)", "TRN501"),
    ("model.py", "@torch.inference_mode()", "TRN201"),
    ("generate.py", "torch.set_grad_enabled(False)", "TRN204"),
    ("train.py", "logits = model(ids, KVCache(", "TRN301"),
    ("train.py", "optimizer = torch.optim.SGD(", "TRN604"),
}
SAID_ONLY = {("train.py", "if loss.requires_grad:", "TRN601")}
"""What hid the others; it is for a person to decide."""


def steps(python: TorchProcess, folder: Path) -> dict[str, Any]:
    """What the package in a folder does, in a process of its own."""
    out = folder / "seen.pt"
    path = [ROOT / "fixtures" / "standins"]
    done = python.run(project_steps.__file__, str(folder), str(out), cwd=folder, path=path)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = torch.load(out)
    return seen


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    shutil.copytree(PROJECT, folder / PROJECT.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def after(
    before: Path, tmp_path_factory: pytest.TempPathFactory, torch_process: TorchProcess
) -> Path:
    """The same after one command."""
    folder = tmp_path_factory.mktemp("after")
    shutil.copytree(before, folder, dirs_exist_ok=True)
    done = torch_process.run(
        "-m", "trainify", "fix", "--unsafe", "--write", PROJECT.name, cwd=folder
    )
    assert done.returncode in (0, 1), done.stderr
    return folder


def test_the_cuts_are_found_and_nothing_else(before: Path, torch_process: TorchProcess) -> None:
    import json

    done = torch_process.run(
        "-m", "trainify", "check", "--format", "json", PROJECT.name, cwd=before
    )
    found = set()
    for finding in json.loads(done.stdout):
        path = Path(finding["path"])
        line = (before / path).read_text().splitlines()[finding["line"] - 1].strip()
        found.add((path.name, line, finding["rule"]))

    def of(found: tuple[str, str, str]) -> tuple[str, str, str]:
        """The entry above that a finding is."""
        known = (e for e in CUTS | SAID_ONLY if e[::2] == found[::2] and found[1].startswith(e[1]))
        return next(known, found)

    assert set(map(of, found)) == CUTS | SAID_ONLY


@pytest.fixture(scope="module")
def seen_before(torch_process: TorchProcess, before: Path) -> dict[str, Any]:
    return steps(torch_process, before)


@pytest.fixture(scope="module")
def seen_after(torch_process: TorchProcess, after: Path) -> dict[str, Any]:
    return steps(torch_process, after)


def test_before_it_trains_in_silence_to_nowhere(seen_before: dict[str, Any]) -> None:
    seen = seen_before
    assert len(seen["said"]) == 4, "no step fails"
    assert seen["moved"] == []
    assert all(gradient is None for gradient in seen["gradients"].values())


def test_after_it_learns_what_the_version_written_by_hand_learns(
    seen_after: dict[str, Any],
) -> None:
    seen = seen_after
    loss, right = by_hand.loss_and_gradients(seen["weights"], project_steps.batches()[0])
    assert seen["loss"] == pytest.approx(loss, rel=1e-5)
    assert seen["gradients"].keys() == right.keys()
    for name, gradient in right.items():
        error = (seen["gradients"][name] - gradient).abs().max() / gradient.abs().max()
        assert error < 1e-5, (name, error)
    assert set(seen["moved"]) == set(right)


def test_after_it_says_what_it_said(
    seen_before: dict[str, Any], seen_after: dict[str, Any]
) -> None:
    assert seen_after["generated"] == seen_before["generated"]


def test_after_it_generates_under_one_scope(after: Path) -> None:
    text = (after / PROJECT.name / "generate.py").read_text()
    assert text.count("no_grad") + text.count("inference_mode") == 1


def test_the_command_is_done_after_one_run(after: Path, torch_process: TorchProcess) -> None:
    again = torch_process.run(
        "-m", "trainify", "fix", "--unsafe", "--diff", PROJECT.name, cwd=after
    )
    assert not again.stdout.strip(), again.stdout
