import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.frozen import imports_stay_frozen  # noqa: F401

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="session", autouse=True)
def stand_ins() -> Iterator[None]:
    """`import vllm`, `flashinfer`, `sgl_kernel` find CPU kernels that have no backward."""
    added = [str(FIXTURES), str(FIXTURES / "standins")]
    sys.path[:0] = added
    yield
    for path in added:
        sys.path.remove(path)


@pytest.fixture(scope="session", autouse=True)
def transformers() -> None:
    """Imported by processes that run these tests; it is frozen like what tests/conftest.py has."""
    import transformers

    assert transformers.LlamaForCausalLM and transformers.MixtralForCausalLM
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """The models are tiny: threads would only wait for one another, long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint_of(stand_ins: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Hugging Face checkpoint directories by kind of model."""
    import checkpoints

    root = tmp_path_factory.mktemp("checkpoints")
    return {
        "llama": checkpoints.llama(root / "llama"),
        "gemma2": checkpoints.gemma2(root / "gemma2"),
    }


@pytest.fixture(scope="session")
def batch() -> torch.Tensor:
    """Token ids (2, 24): longer than a KV block, and than the sliding window."""
    return torch.randint(256, (2, 24), generator=torch.Generator().manual_seed(7))
