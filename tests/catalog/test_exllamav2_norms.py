"""exllamav2's norms: no bias is a tensor on the meta device, and the buffer has its own dtype."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from trainify.engine import Options, check_text, fix_text

HEAD = """\
import torch
from torch import nn
from exllamav2.ext import exllamav2_ext as ext_c, none_tensor


"""
LAYER = (
    HEAD
    + """\
class Norm(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.bias = nn.Parameter(torch.ones(3)) if bias else None

    def forward(self, x):
        y = torch.empty_like(x)
        ext_c.layer_norm(x, self.weight.data, self.bias.data if self.bias is not None else none_tensor, y, 1e-5)
        return y
"""
)
RMS = (
    HEAD
    + """\
class Norm(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.weight, self.wide = nn.Parameter(torch.tensor([1.0, 2.0, 3.0])), wide

    def forward(self, x):
        if self.wide:
            y = torch.empty_like(x, dtype=torch.float)
        else:
            y = torch.empty_like(x)
        ext_c.rms_norm(x, self.weight, y, 1e-5)
        return y
"""
)


def layer_norm(x, weight, bias, y, eps):  # type: ignore[no-untyped-def]
    with torch.no_grad():
        y.copy_(F.layer_norm(x, (3,), weight, None if bias.is_meta else bias, eps))


def rms_norm(x, weight, y, eps):  # type: ignore[no-untyped-def]
    with torch.no_grad():
        y.copy_(F.rms_norm(x.float(), (3,), weight, eps))


@pytest.fixture(autouse=True)
def _extension(monkeypatch: pytest.MonkeyPatch) -> None:
    ext = ModuleType("exllamav2.ext")
    ext.exllamav2_ext, ext.none_tensor = ext, torch.empty((1, 1), device="meta")  # type: ignore[attr-defined]
    ext.layer_norm, ext.rms_norm = layer_norm, rms_norm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "exllamav2", ModuleType("exllamav2"))
    monkeypatch.setitem(sys.modules, "exllamav2.ext", ext)


def made(text: str, strategy: str, how: bool) -> torch.nn.Module:
    scope: dict[str, type[torch.nn.Module]] = {}
    exec(fix_text(text, "m.py", Options(strategy=strategy)).text, scope)
    return scope["Norm"](how)


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_norm_with_and_without_a_bias(bias: bool, strategy: str) -> None:
    norm = made(LAYER, strategy, bias)
    x = torch.tensor([[0.5, -1.0, 2.0]], requires_grad=True)
    again = x.detach().requires_grad_()
    right = F.layer_norm(again, (3,), norm.weight.detach(), torch.ones(3) if bias else None, 1e-5)
    out = norm(x)
    torch.testing.assert_close(out, right)
    out.square().sum().backward()
    right.square().sum().backward()
    torch.testing.assert_close(x.grad, again.grad)
    assert all(p.grad is not None for p in norm.parameters())


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
@pytest.mark.parametrize("wide", [True, False])
def test_an_rms_norm_into_a_wider_buffer(wide: bool, strategy: str) -> None:
    norm = made(RMS, strategy, wide)
    x = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.half, requires_grad=True)
    right = F.rms_norm(x.detach().float(), (3,), norm.weight.detach(), 1e-5)
    out = norm(x)
    assert out.dtype is (torch.float if wide else torch.half)
    torch.testing.assert_close(out, right.to(out.dtype), rtol=0, atol=0)
    out.float().square().sum().backward()
    assert x.grad is not None and norm.weight.grad is not None


def test_the_dtype_of_a_buffer_is_no_value_of_it() -> None:
    (finding,) = check_text(RMS, "m.py", Options())
    assert finding.rule == "TRN101"
    assert finding.message.endswith("no gradient reaches `x` and `self.weight`.")
