"""Digests tell tensors apart by their bits, wherever these lie."""

import pytest
import torch

from trainify.live.audit.digest import digest

SIZES = [(4, 6), (300, 700)]
"""Less than is copied at a time, and more."""


def _drawn(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", SIZES)
def test_two_signs_are_not_lost(shape: tuple[int, int]) -> None:
    tensor = _drawn(*shape)
    found = digest(tensor)
    assert digest(tensor.neg()) != found
    tensor[0, :2] *= -1
    assert digest(tensor) != found


@pytest.mark.parametrize("shape", SIZES)
def test_gaps_do_not_count(shape: tuple[int, int]) -> None:
    across = _drawn(*shape).t()
    assert digest(across) == digest(across.contiguous())
    found = digest(across)
    across[-1, -1] += 1
    assert digest(across) != found
