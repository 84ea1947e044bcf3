"""The same training run for several models, and pictures of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .models import Oracle, Served, loss_of

STEPS = 200
BATCH = 8
LENGTH = 64


def text() -> torch.Tensor:
    """English that every Python carries, as bytes: the help topics of the language reference."""
    from pydoc_data.topics import topics

    return torch.tensor(list("\n".join(topics[key] for key in sorted(topics)).encode()))


def batches(steps: int) -> list[torch.Tensor]:
    """Token ids (BATCH, LENGTH) for each step, in a fixed random order; no text comes twice."""
    pieces = text().unfold(0, LENGTH, LENGTH)
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))
    return [pieces[i] for i in order[: steps * BATCH].split(BATCH)]


def train(model: Served | Oracle, steps: int) -> list[float]:
    """Losses of a run with AdamW.  Each is of text not seen before."""
    model.model.train()
    optimizer = torch.optim.AdamW(model.model.parameters(), lr=3e-3)
    losses = []
    for ids in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def final(losses: Sequence[float]) -> float:
    """The mean of the last tenth: a single batch says little."""
    last = losses[-len(losses) // 10 :]
    return sum(last) / len(last)


def sparkline(losses: Sequence[float], width: int, low: float, high: float) -> str:
    ramp = "▁▂▃▄▅▆▇█"
    if not (sys.stdout.encoding or "").lower().startswith("utf"):
        ramp = "_.-=+*%#"
    columns = [
        losses[len(losses) * i // width : len(losses) * (i + 1) // width] for i in range(width)
    ]
    heights = [(sum(c) / len(c) - low) / (high - low) for c in columns]
    return "".join(ramp[min(int(h * len(ramp)), len(ramp) - 1)] for h in heights)


def draw(runs: dict[str, list[float]], file: Path) -> None:
    """Loss curves, legible on white and on black: the background is transparent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    grey = "#7d8590"
    styles = (
        {"color": "#e5534b", "linewidth": 1.6},
        {"color": "#2f81f7", "linewidth": 3.2},
        {"color": "#f0b72f", "linewidth": 1.2, "linestyle": (0, (2, 2))},
    )
    colours = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), grey)
    colours |= {f"{axis}tick.{of}": grey for axis in "xy" for of in ("color", "labelcolor")}
    with pyplot.rc_context({**colours, "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=(7.2, 3.0), layout="constrained")
        for (name, losses), style in zip(runs.items(), styles, strict=True):
            axes.plot(range(1, len(losses) + 1), losses, label=name, **style)
        axes.set(xlabel="training step", ylabel="next-byte loss (nats)", xlim=(1, len(losses)))
        axes.grid(color=grey, alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(file, dpi=130, transparent=True, pil_kwargs={"optimize": True})
        pyplot.close(figure)
