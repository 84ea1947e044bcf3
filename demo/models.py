"""The serving package as it is, without its decorator, and patched; and the model they must equal.

The packages are loaded and compared by the harness of the tests, so this shows what they assert.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "demo" / "out"
PACKAGE = "llama_serving"

# The stand-ins for vllm and flash_attn, the packages under test, and the harness.
sys.path[:0] = [str(ROOT / "fixtures"), str(ROOT / "fixtures/standins"), str(ROOT / "tests/models")]

import packages  # noqa: E402
import torch  # noqa: E402

RIGHT = 1e-5
"""Largest |ours - theirs| over largest |theirs| of a gradient that is right, in float32."""

Outcome = dict[str, float]
"""Relative error of the gradient by Hugging Face parameter name; infinite where there is none."""


class Served(packages.LlamaServing):
    """The package in a directory, with a checkpoint."""

    def __init__(self, directory: Path, checkpoint: Path) -> None:
        super().__init__(packages.load_package(directory), checkpoint)


class Oracle:
    """The Hugging Face model, behind the same face."""

    def __init__(self, checkpoint: Path) -> None:
        self.model = packages.load_oracle(packages.LlamaServing, checkpoint)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).logits


def copy_package(name: str) -> Path:
    """A fresh copy in the folder ``name`` of the output folder."""
    return packages.copy_package(PACKAGE, OUT / name)


def without_decorator(directory: Path) -> Path:
    """Take `@torch.inference_mode()` off forward, which is what one tries first."""
    file = directory / "model.py"
    decorated = "    @torch.inference_mode()\n    def forward("
    before, found, after = file.read_text().partition(decorated)
    assert found, f"no decorator in {file}"
    file.write_text(f"{before}    def forward({after}")
    return directory


def trainify(*arguments: str) -> str:
    """Run the command line and return what it says."""
    return _run(sys.executable, "-m", "trainify", *arguments).stderr.strip()


def git(*arguments: str) -> str:
    return _run("git", *arguments, ok=(0, 1) if arguments[0] == "diff" else (0,)).stdout


def _run(*command: str, ok: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in ok:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


def loss_of(model: Served | Oracle, ids: torch.Tensor) -> torch.Tensor:
    return packages.next_token_loss(model.logits(ids), ids)


def gradient_errors(model: Served, oracle: Oracle, ids: torch.Tensor) -> Outcome:
    """Hold every gradient of one backward against the oracle's."""
    for each in (model, oracle):
        each.model.zero_grad()
        loss_of(each, ids).backward()
    return packages.gradient_errors(model.hf_gradients(), oracle.model)


def kind(error: float) -> str:
    return "none" if error == float("inf") else "right" if error <= RIGHT else "wrong"


def grouped(names: Iterator[str]) -> dict[str, list[str]]:
    """Parameter names under a title for all of their kind: those of all layers, q k and v."""
    groups: dict[str, list[str]] = {}
    for name in names:
        words = name.removesuffix(".weight").split(".")
        title = ".".join("*" if word.isdigit() else word for word in words if word != "model")
        for siblings in (("q", "k", "v"), ("gate", "up")):
            if words[-1].removesuffix("_proj") in siblings:
                title = title.replace(words[-1], f"{{{','.join(siblings)}}}_proj")
        groups.setdefault(title, []).append(name)
    return groups
