"""A view that an op has written into twice: torch dies where a hook is put on it unasked."""

from __future__ import annotations

from pathlib import Path

from tests.torch_process import TorchProcess

SCRIPT = """
import torch
from torch import Tensor, nn

import trainify


@torch.library.custom_op("tests_views_written_twice::gated_add", mutates_args=("x",))
def gated_add(x: Tensor, gate: Tensor, y: Tensor) -> None:
    x.add_(gate * y)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.gates = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        a, b = self.gates(t)[:, None].chunk(2, -1)
        gated_add(x, a, self.first(x.tanh()))
        gated_add(x, b, self.second(x.tanh()))
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Linear(4, 4), Block(), nn.Linear(4, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.head(self.block(self.embed(x), t))


model = Model()
report = trainify.audit(model, torch.randn(2, 6, 4), torch.randn(2, 4))
print(*sorted({name.rpartition(".")[0] for name in report.missing}))
print(*(cut.op for cut in report.cuts))
"""


def test_the_process_lives(tmp_path: Path, torch_process: TorchProcess) -> None:
    script = tmp_path / "written_twice.py"
    script.write_text(SCRIPT, encoding="utf-8")
    run = torch_process.run(script, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    missing, cuts = run.stdout.splitlines()
    assert missing == "block.first block.gates block.second"
    assert set(cuts.split()) == {"tests_views_written_twice::gated_add"}
