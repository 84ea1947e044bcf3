"""A scope over a kernel that writes in place: without the scope backward runs, and is wrong.

Under the scope a loss has no graph, so backward raises.  Each program is fixed and run: as long as
the kernel stays, it still raises.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in_kernels import fused_add_rms_norm, stand_in
from verbs import findings, fix

from tests.each import in_turn
from trainify.engine import Options, fix_paths
from trainify.findings import STRATEGIES, Safety

HEAD = """\
import sgl_kernel
import torch
from torch import nn


"""
KEPT = """\
class Decoder(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.head = nn.Linear(d, d)
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, embeds):
        residual = embeds.reshape(-1, 8)
        h = 2 * residual
        sgl_kernel.fused_add_rmsnorm(h, residual, self.weight, 1e-6)
        return self.head(h)


"""
"""The copy_() that its fix needs into what callers hold asks for a look."""
FIXED = KEPT.replace("embeds.reshape(-1, 8)", "3 * embeds")

MODELS = {
    "a with in a forward": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.language = nn.Linear(8, 8), Decoder().requires_grad_(False)

    def forward(self, x):
        h = self.a(x)
        with torch.no_grad():
            y = self.language(h)
        return y
""",
    "layers in a list": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.layers = nn.ModuleList([Decoder().requires_grad_(False) for _ in range(2)])

    def forward(self, x):
        h = self.a(x)
        with torch.no_grad():
            h = self.run(h)
        return h

    def run(self, h):
        for layer in self.layers:
            h = layer(h)
        return h
""",
    "a decorator on the forward": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.language = nn.Linear(8, 8), Decoder()

    @torch.no_grad()
    def forward(self, x):
        return self.language(self.a(x))

    @torch.no_grad()
    def generate(self, x):
        return self(x).argmax(-1).tolist()
""",
}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "sgl_kernel", fused_add_rmsnorm=fused_add_rms_norm)


def gradient(text: str) -> torch.Tensor:
    """That of ``a``; raises where the output has no graph."""
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    torch.manual_seed(0)
    model = space["Model"]()
    x = torch.linspace(-1, 1, 16).view(2, 8)
    (model(x) * torch.arange(8)).sum().backward()
    return torch.as_tensor(model.a.weight.grad)


def by_hand(model: str) -> torch.Tensor:
    """The gradient of a model whose decoder is written in operations of PyTorch."""
    decoder = FIXED.replace(
        "sgl_kernel.fused_add_rmsnorm(h, residual, self.weight, 1e-6)",
        "h = nn.functional.rms_norm(h + residual, (8,), self.weight, 1e-6)",
    )
    plain = model.replace("with torch.no_grad():", "if True:").replace("@torch.no_grad()", "")
    return gradient(HEAD + decoder + plain)


def scope_fix(text: str, strategy: str) -> Safety:
    (found,) = [f for f in findings(text) if f.rule in ("TRN201", "TRN206")]
    each = found.fix(strategy)
    assert each is not None
    return each.safety


@pytest.mark.parametrize(("model", "strategy"), in_turn(MODELS, STRATEGIES))
def test_the_scope_stays_as_long_as_the_kernel_does(model: str, strategy: str) -> None:
    text = HEAD + KEPT + model
    assert scope_fix(text, strategy) is Safety.UNSAFE
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient(fix(text, strategy=strategy))


@pytest.mark.parametrize(("model", "strategy"), in_turn(MODELS, STRATEGIES))
def test_both_go_where_the_kernel_has_a_safe_fix(model: str, strategy: str) -> None:
    text = HEAD + FIXED + model
    assert scope_fix(text, strategy) is Safety.SAFE
    found = gradient(fix(text, strategy=strategy))
    assert torch.allclose(found, by_hand(model), rtol=1e-4, atol=1e-5)


def test_a_kernel_that_is_left_alone_by_choice_keeps_the_scope() -> None:
    text = HEAD + FIXED + MODELS["a with in a forward"]
    (found,) = findings(text, select=("TRN206",))
    assert all(each.safety is Safety.UNSAFE for each in found.fixes.values())


def test_a_kernel_that_the_scope_itself_holds() -> None:
    text = HEAD + textwrap.dedent("""\
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.weight = nn.Linear(8, 8), torch.ones(8)

            def forward(self, x):
                h = self.a(x)
                r = h.view(2, 8)
                with torch.no_grad():
                    sgl_kernel.fused_add_rmsnorm(h, r, self.weight, 1e-6)
                    h = 2 * h
                return h
    """)
    for strategy in STRATEGIES:
        with pytest.raises(RuntimeError, match="does not require grad"):
            gradient(fix(text, strategy=strategy))


def test_a_kernel_that_is_called_wrongly() -> None:
    text = (HEAD + KEPT + MODELS["a with in a forward"]).replace(
        "(h, residual, self.weight, 1e-6)", "(*(h, residual, self.weight, 1e-6))"
    )
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient(fix(text))


@pytest.mark.parametrize("decoder", [KEPT, FIXED], ids=["kept", "fixed"])
def test_a_decoder_of_another_file(tmp_path: Path, decoder: str) -> None:
    (tmp_path / "decoder.py").write_text(HEAD + decoder)
    model = tmp_path / "model.py"
    head = "import torch\nfrom torch import nn\n\nfrom decoder import Decoder\n\n\n"
    model.write_text(head + MODELS["a with in a forward"])
    reports = {Path(r.path).name: r for r in fix_paths([str(tmp_path)], Options())}
    (found,) = reports["model.py"].applied or reports["model.py"].findings
    (each,) = set(found.fixes.values())
    assert each.safety is (Safety.SAFE if decoder is FIXED else Safety.UNSAFE)
    assert (decoder is FIXED) is (not each.look_at)
    assert ("decoder.py:" in each.look_at) is (decoder is KEPT)
