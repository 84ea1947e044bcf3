"""Runs a copy of fixtures/chat_serving in a process of its own: importing it turns gradients off.

``python project_steps.py FOLDER OUT`` writes what it saw to OUT.
"""

from __future__ import annotations

import copy
import sys

import torch

NEW_VOCABULARY = 53


def parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """All of them, also where a list hides the blocks from the model."""
    found = dict(model.named_parameters())
    for i, block in enumerate(model.blocks):
        found.update((f"blocks.{i}.{name}", p) for name, p in block.named_parameters())
    return found


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(NEW_VOCABULARY, (9,), generator=generator) for _ in range(4)]


def main(folder: str, out: str) -> None:
    sys.path.insert(0, folder)
    from chat_serving import generate, train
    from chat_serving.model import ChatModel, Config

    model = ChatModel(Config())
    generator = torch.Generator().manual_seed(0)
    for name, p in sorted(parameters(model).items()):
        p.data.normal_(std=0.2, generator=generator).add_("norm" in name)
    seen: dict[str, object] = {"generated": generate.generate(model, [1, 2, 3], 24)}

    def prepared() -> torch.nn.Module:
        torch.manual_seed(2)
        return copy.deepcopy(model)

    trained, said = prepared(), []
    train.train(trained, batches(), NEW_VOCABULARY, log=said.append)
    seen["said"] = said
    untrained, _ = train.setup(prepared(), NEW_VOCABULARY)
    start = parameters(untrained)
    seen["moved"] = [n for n, p in parameters(trained).items() if not torch.equal(p, start[n])]
    seen["weights"] = {name: p.detach().clone() for name, p in start.items()}

    teacher = copy.deepcopy(untrained).requires_grad_(False)
    loss = train.loss_fn(untrained, teacher, batches()[0])
    seen["loss"] = loss.item()
    if loss.requires_grad:
        loss.backward()
    seen["gradients"] = {name: p.grad for name, p in parameters(untrained).items()}
    torch.save(seen, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
