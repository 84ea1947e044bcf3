from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.torch_process import TorchProcess, look_for_less_garbage

# Here, and in what is started: tensors are small, threads would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The time that an example takes says more about the machine than about the code.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def torch_process() -> Iterator[TorchProcess]:
    """Runs scripts that use torch, each in a process of its own."""
    with TorchProcess() as python:
        yield python


@pytest.fixture
def group() -> Iterator[None]:
    """A process group with this process alone in it."""
    import torch.distributed as dist  # the tests that need no torch do without its import

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


gc.disable()  # what is imported is no garbage


def pytest_collection_finish() -> None:
    look_for_less_garbage()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # libraries complain of what they find at the end


_TRANSFORMERS = tuple(
    f"tests/{place}"
    for place in (
        "models/",
        "live/test_audit_transformers.py",
        "live/test_trainify.py",
        "live/test_wrappers.py",
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The demo, then what imports transformers, then the rest.

    The demo is the longest single test: begun last, all other processes would wait for it.  What is
    imported for some tests takes seconds, and the processes take their tests from the list's parts.
    """
    items.sort(
        key=lambda item: (
            item.path.name != "test_documents.py",
            not item.nodeid.startswith(_TRANSFORMERS),
        )
    )
