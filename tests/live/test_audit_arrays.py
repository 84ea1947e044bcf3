"""``trainify.audit``: NumPy that reads and writes the memory of tensors, by their addresses."""

import ctypes

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def array(tensor: Tensor) -> np.ndarray:
    pointer = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, tuple(tensor.shape))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    assert x.dtype == torch.float32
    out = torch.empty(x.shape)
    read, scale, written = array(x), array(weight), array(out)
    written[...] = read / np.sqrt((read * read).mean(-1, keepdims=True)) * scale
    return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        beside = self.c(x)
        return (h + self.b(norm(h, self.scale)) + beside).square().mean()


@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_what_lies_before_it_is_listed(size: float) -> None:
    model = Model()
    with torch.no_grad():
        model.b.weight.mul_(size)
    report = trainify.audit(model, X)
    (cut,) = report.cuts
    assert cut.function == "norm" and cut.kind == "missing"
    assert report.missing == ("scale",)
    assert report.wrong == ("a.weight", "a.bias")
