import sys
from pathlib import Path

import pytest
import torch

STANDINS = Path(__file__).resolve().parents[2] / "fixtures" / "standins"


@pytest.fixture(autouse=True)
def standins(monkeypatch):
    """Puts the stand-ins on the path and takes them off again, with the modules they brought."""
    monkeypatch.syspath_prepend(str(STANDINS))
    before = set(sys.modules)
    torch.manual_seed(0)
    yield
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None) or ""
        if origin.startswith(str(STANDINS)):
            del sys.modules[name]


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request):
    return request.param


@pytest.fixture
def threads():
    """Sets the thread count; the old one comes back."""
    count = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(count)
