"""Train a package that only serves: before, the patch, after.  Exits with 1 if a claim fails.

``python -m demo 20`` trains for so many steps, and claims nothing of how far a loss falls.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

# Before anything imports them: two threads wait longer for one another than these models compute.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

import torch
import transformers

from . import training
from .models import (
    OUT,
    PACKAGE,
    RIGHT,
    ROOT,
    Oracle,
    Outcome,
    Served,
    copy_package,
    git,
    gradient_errors,
    grouped,
    kind,
    loss_of,
    trainify,
    without_decorator,
)

import checkpoints  # isort: skip  (found on the path that .models sets)

PATCH = OUT / "trainify.patch"
KINDS = ("none", "wrong", "right")

claims: dict[str, bool] = {}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*an autograd kernel was not registered.*")
    sys.stdout.reconfigure(errors="replace", line_buffering=True)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    tell(int(sys.argv[1]) if sys.argv[1:] else training.STEPS)
    failed = [what for what, holds in claims.items() if not holds]
    if failed:
        sys.exit("\n".join(f"FAILED: {what}" for what in failed))
    print(f"\nAll {len(claims)} claims hold.")


def tell(steps: int) -> None:
    introduce()
    checkpoint = checkpoints.llama(OUT / "checkpoint")
    oracle = Oracle(checkpoint)
    ids = training.batches(1)[0][:4]

    heading("Before")
    as_is = Served(ROOT / "fixtures" / PACKAGE, checkpoint)
    raised = ""
    try:
        loss_of(as_is, ids).backward()
    except RuntimeError as error:
        raised = str(error).split(".")[0]
    print(f"As it is, loss.backward() raises: {raised}.")
    claim("Inference tensors" in raised, "as it is, backward raises")
    stripped = without_decorator(copy_package("decorator_off"))
    before = gradient_errors(Served(stripped, checkpoint), oracle, ids)
    numbers = tally(before, before)
    (wrong,) = (name for name, error in before.items() if kind(error) == "wrong")
    print(
        "Without @torch.inference_mode() on forward it runs, and the loss falls. Of "
        f"{len(before)} parameters,\nheld against Hugging Face with the same weights, "
        f"{numbers['none']} get no gradient, {numbers['wrong']} a wrong one,\n"
        f"off by {before[wrong]:.0%} ({wrong}), and {numbers['right']} the right one."
    )
    claim(
        [name for name, error in before.items() if kind(error) == "right"] == ["lm_head.weight"],
        "with the decorator off, only lm_head learns what it should",
    )

    heading("The patch")
    patched = patch()

    heading("After")
    served = Served(patched, checkpoint)
    after = gradient_errors(served, oracle, ids)
    table(before, after)
    claim(
        all(kind(error) == "right" for error in after.values()), "patched, every gradient is right"
    )
    serves_as_before(as_is, served, ids)

    heading(f"{steps} steps of training")
    train(Served(stripped, checkpoint), Served(patched, checkpoint), Oracle(checkpoint), steps)


def introduce() -> None:
    from kernels import _build_directory, _flags

    print(
        f"fixtures/{PACKAGE} serves Llama checkpoints: paged KV cache, kernels of vLLM and\n"
        "flash-attn. Here `vllm` and `flash_attn` are stand-ins: the libraries' signatures over\n"
        "C++ kernels for the CPU which, like the real ones, have no backward. Random weights:\n"
        f"3 layers, width 64, float32. Reference: transformers {transformers.__version__}."
    )
    if not (_build_directory(_flags()) / "done").exists():
        print("(Compiling the kernels: once, half a minute.)")


def patch() -> Path:
    """Patch a copy as a user would; where it is."""
    original, patched = copy_package("original"), copy_package("patched")
    target, file = (str(path.relative_to(ROOT)) for path in (patched.parent, PATCH))
    print(style(f"$ trainify fix {target} -o {file}", "1"))
    print(trainify("fix", target, "-o", file))
    print(style(f"$ git apply {file}", "1"))
    git("apply", file)
    numbers = [line.split("\t") for line in git("apply", "--numstat", file).splitlines()]
    added, removed = (sum(int(line[i]) for line in numbers) for i in (0, 1))
    print(
        f"{len(numbers)} files: {added} lines added, {removed} removed; what was indented is both."
    )
    diff = git(
        *("diff", "--no-index", "-w", "-U8", "--no-color"),
        *(str(package / "layers/layernorm.py") for package in (original, patched)),
    )
    print("In layers/layernorm.py, without what was only indented:")
    for line in first_change(diff.splitlines(), "rms_norm("):
        print(style(line, {"+": "32", "-": "31"}.get(line[:1], "")))
    return patched


def first_change(diff: list[str], what: str) -> list[str]:
    """The first stretch of changed lines that mentions ``what``, and the lines about it."""
    first = next(i for i, line in enumerate(diff) if line.startswith("+") and what in line)
    while diff[first - 1].startswith(("+", "-")):
        first -= 1
    last = first
    while diff[last].startswith(("+", "-")):
        last += 1
    return diff[first - 1 : last + 6]


def serves_as_before(original: Served, patched: Served, ids: torch.Tensor) -> None:
    with torch.inference_mode():
        same_logits = torch.equal(original.logits(ids), patched.logits(ids))
    prompts = [row[:16].tolist() for row in ids]
    tokens = original.generate(prompts, 32)
    same_tokens = tokens == patched.generate(prompts, 32)
    print(
        f"Serving: logits {'bit-identical' if same_logits else 'DIFFERENT'}, "
        f"{sum(map(len, tokens))} generated tokens {'identical' if same_tokens else 'DIFFERENT'}, "
        "patched against unpatched."
    )
    claim(same_logits and same_tokens, "serving is unchanged")


def train(before: Served, after: Served, oracle: Oracle, steps: int) -> None:
    runs = {
        "before: decorator off": training.train(before, steps),
        "after: patched": training.train(after, steps),
        "Hugging Face": training.train(oracle, steps),
    }
    everything = [loss for losses in runs.values() for loss in losses]
    low, high = min(everything), max(everything)
    for name, losses in runs.items():
        line = training.sparkline(losses, min(50, steps), low, high)
        print(f"{name:22} {line}  {losses[0]:.3f} -> {training.final(losses):.3f}")
    first, patched, reference = runs.values()
    apart = max(abs(a - b) for a, b in zip(patched, reference, strict=True))
    picture = OUT / "loss.png"
    training.draw(runs, picture)
    print(
        f"Loss on text not seen before; after and Hugging Face differ by {apart:.0e} at most.\n"
        f"Picture: {picture.relative_to(ROOT)}"
    )
    if steps >= training.STEPS:
        claim(training.final(first) < first[0] - 1, "with the decorator off, the loss falls")
        claim(training.final(patched) < training.final(first) - 0.3, "patched, it falls further")
    claim(apart < 1e-3, "patched, it is Hugging Face's")


# -- printing -------------------------------------------------------------------------------------


def table(before: Outcome, after: Outcome) -> None:
    """How many parameters of each kind have no, a wrong, the right gradient."""
    print(f"{'':38}{'decorator off':^21} {'patched':^21}".rstrip())
    head = "".join(f"{name:>7}" for name in KINDS)
    print(f"{'gradient of':35}{'':3}{head} {head}   error")
    for title, names in {**grouped(iter(before)), "all": list(before)}.items():
        line = f"{title:35}{len(names):3}"
        for outcome in (before, after):
            line += "".join(f"{count or '.':>7}" for count in tally(outcome, names).values()) + " "
        print(f"{line}  {max(after[name] for name in names):.0e}")
    print(
        "Error, patched: largest |difference| over largest |entry| of Hugging Face's gradient. "
        f"Right: {RIGHT:.0e}."
    )


def tally(outcome: Outcome, names: Iterable[str]) -> dict[str, int]:
    kinds = [kind(outcome[name]) for name in names]
    return {each: kinds.count(each) for each in KINDS}


def heading(title: str) -> None:
    print(f"\n{style(f'== {title}', '1')}")


def style(text: str, code: str) -> str:
    plain = not code or not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\33[{code}m{text}\33[0m"


def claim(holds: bool, what: str) -> None:
    claims[what] = holds


if __name__ == "__main__":
    main()
