"""The package that only serves, and text to score: ``trainify audit demo/audited.py:llama``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

# Before anything imports them.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from torch import Tensor, nn

from demo.models import PACKAGE, ROOT, Served, loss_of

import checkpoints  # isort: skip  (found on the path that demo.models sets)


class Scored(nn.Module):
    """The loss of a text, by the model that is served."""

    def __init__(self, served: Served) -> None:
        super().__init__()
        self.llama = served.model.requires_grad_()
        self._served = [served]

    def forward(self, ids: Tensor) -> Tensor:
        return loss_of(self._served[0], ids)


def llama() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        served = Served(ROOT / "fixtures" / PACKAGE, checkpoints.llama(Path(folder) / "llama"))
    return Scored(served), torch.randint(0, 100, (2, 12))
