"""Layers of serving libraries: their twin where it is differentiable, a report where it is not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from verbs import becomes, findings, fix, stays

from trainify.engine import Options, check_paths, check_text, fix_paths
from trainify.releases import Release

HEAD = """\
import torch
from torch import nn
from sglang.srt.layers.layernorm import RMSNorm


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(8)
        self.mine = nn.RMSNorm(8)

"""


def test_a_norm_asks_the_grad_mode_since_it_has_a_weight_of_its_own() -> None:
    becomes(
        HEAD
        + """\
    def forward(self, x, residual):
        x, residual = self.norm(x, residual)
        return self.mine(x) + residual
""",
        HEAD
        + """\
    def forward(self, x, residual):
        if torch.is_grad_enabled():
            x, residual = self.norm.forward_native(x, residual)
        else:
            x, residual = self.norm(x, residual)
        return self.mine(x) + residual
""",
    )


def test_a_twin_without_a_gradient_is_reported_only() -> None:
    (finding,) = findings(
        HEAD.replace("sglang.srt", "vllm.model_executor")
        + """\
    def forward(self, x):
        return self.norm(x)
"""
    )
    assert finding.rule == "TRN109" and not finding.fixes
    assert "Not rewritten" in finding.message


def test_inference_and_the_twin_itself_stay() -> None:
    stays(
        HEAD
        + """\
    def forward(self, x):
        with torch.no_grad():
            scale = self.norm(x)
        return self.norm.forward_native(x) * scale
"""
    )


def test_in_the_library_itself_the_class_is_fixed_not_its_callers(tmp_path: Path) -> None:
    layers = tmp_path / "sglang" / "srt" / "layers"
    layers.mkdir(parents=True)
    for folder in (layers, layers.parent, layers.parent.parent):
        (folder / "__init__.py").touch()
    user = HEAD + "    def forward(self, x):\n        return self.norm(x)\n"
    (tmp_path / "sglang" / "model.py").write_text(user)
    (layers / "layernorm.py").write_text(
        "import torch\nfrom sgl_kernel import rmsnorm\n\n\nclass RMSNorm:\n"
        "    def forward(self, x):\n        return rmsnorm(x, self.weight.data, self.eps)\n"
    )
    reports = check_paths([str(tmp_path / "sglang")], Options())
    found = {Path(report.path).name: report.findings for report in reports if report.findings}
    assert list(found) == ["layernorm.py"]
    assert [finding.rule for finding in found["layernorm.py"]] == ["TRN101"]


@pytest.mark.parametrize(
    ("stated", "told", "fixable"),
    [
        ("==0.2.2", "it has no other forward", False),
        ("==0.3.3", "`self.norm._forward` is differentiable. (As in vllm 0.3.3", True),
        ("==0.8.5", "`self.norm.forward_native` is differentiable. (As in vllm 0.8.5", True),
        ("==0.16.0", "the weight gets no gradient. (As in vllm 0.16.0, says", False),
        ("==0.33.0", "runs vllm.ir ops", False),
        ("", "nothing says which release is used", False),
    ],
)
def test_what_a_norm_of_vllm_computes_depends_on_the_release(
    stated: str, told: str, fixable: bool
) -> None:
    text = HEAD.replace("sglang.srt.layers", "vllm.model_executor.layers")
    text += "    def forward(self, x):\n        return self.norm(x)\n"
    releases = (Release("vllm", stated, "uv.lock"),) if stated else ()
    (finding,) = check_text(text, "m.py", Options(releases=releases))
    assert told in finding.message
    assert bool(finding.fixes) is fixable


ACT = """\
from torch import nn
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up = nn.Linear(d, 2 * d)
        self.act = SiluAndMul()

    def forward(self, x):
        return self.act(self.up(x))
"""


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(
    ("more", "fixed"),
    [
        ("class Sub(MLP):\n    def use(self):\n        self.act = nn.ReLU()\n", False),
        ("class Sub(MLP):\n    def use(self, act):\n        self.act = act\n", False),
        ("def wrap(mlp: MLP, adapter):\n    mlp.act = adapter(mlp.act)\n", False),
        ("class Sub(MLP):\n    def use(self):\n        self.act = GeluAndMul()\n", True),
        ("class Other(nn.Module):\n    def use(self):\n        self.act = nn.ReLU()\n", True),
    ],
)
def test_a_layer_that_others_replace(
    tmp_path: Path, more: str, fixed: bool, elsewhere: bool
) -> None:
    """What they put there need not have the twin that the fix calls."""
    (tmp_path / "mlp.py").write_text(ACT if elsewhere else f"{ACT}\n\n{more}")
    if elsewhere:
        imports = ACT.partition("\n\n")[0] + "\nfrom mlp import MLP\n"
        (tmp_path / "more.py").write_text(f"{imports}\n\n{more}")
    (report,) = (r for r in fix_paths([str(tmp_path)]) if r.path.endswith("mlp.py"))
    assert (report.change is not None) is fixed
    if not fixed:
        (finding,) = report.findings
        assert finding.rule == "TRN109" and "may have no twin" in finding.message


HELD = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from sglang.srt.layers.activation import GeluAndMul, SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {}

    def forward(self, x, name="b"):
        {}
        return x
"""
LIST = "self.norms = nn.ModuleList([RMSNorm(4) for _ in range(2)])"
TABLE = 'self.norms = nn.ModuleDict({"a": RMSNorm(4), "b": RMSNorm(4)})'
BY = {
    "index": (LIST, "x = self.norms[0](x)"),
    "loop": (LIST, "for norm in self.norms:\n            x = norm(x)"),
    "enumerate": (LIST, "for i, norm in enumerate(self.norms):\n            x = norm(x) * i"),
    "zip": (LIST, "for y, norm in zip([x, x], self.norms):\n            x = norm(x) + y"),
    "slice": (LIST, "for norm in self.norms[1:]:\n            x = norm(x)"),
    "name": (LIST, "norm = self.norms[1]\n        x = norm(x)"),
    "added": (
        "self.norms = nn.ModuleList()\n        self.norms.append(RMSNorm(4))",
        "x = self.norms[0](x)",
    ),
    "key": (TABLE, 'x = self.norms["a"](x)'),
    "any key": (TABLE, "x = self.norms[name](x)"),
    "values": (TABLE, "for norm in self.norms.values():\n            x = norm(x)"),
    "items": (TABLE, "for key, norm in self.norms.items():\n            x = norm(x)"),
    "one of a dict": ('self.ops = {"a": RMSNorm(4), "b": nn.Identity()}', 'x = self.ops["a"](x)'),
    "checkpoint": ("self.norm = RMSNorm(4)", "x = checkpoint(self.norm, x, use_reentrant=False)"),
    "checkpoint of one": (LIST, "x = checkpoint(self.norms[0], x, use_reentrant=False)"),
}
OPEN = {
    "another beside it": (
        "self.ops = [RMSNorm(4), nn.Identity()]",
        "for op in self.ops:\n            x = op(x)",
    ),
    "another added": (
        f"{LIST}\n        self.norms.append(nn.Identity())",
        "x = self.norms[name](x)",
    ),
    "another set": (
        "self.norm = RMSNorm(4)\n        if x is None:\n            self.norm = nn.LayerNorm(4)",
        "x = self.norm(x)",
    ),
    "one replaced": (
        f"{TABLE}\n        self.norms['b'] = nn.Identity()",
        "x = self.norms[name](x)",
    ),
}


class _Norm(nn.Module):
    """A layer as the library has it: its forward records nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.forward_native(x)

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


def _gradients(monkeypatch: pytest.MonkeyPatch, text: str, layer: type[nn.Module]) -> list[Any]:
    package = "sglang.srt.layers"
    for name in ("sglang", "sglang.srt", package, f"{package}.layernorm", f"{package}.activation"):
        module = ModuleType(name)
        vars(module).update(RMSNorm=layer, GeluAndMul=None, SiluAndMul=None)
        monkeypatch.setitem(sys.modules, name, module)
    scope: dict[str, Any] = {"__name__": "held"}
    exec(text, scope)
    model: nn.Module = scope["Model"]()
    x = torch.linspace(-1, 2, 8).view(2, 4).requires_grad_()
    out = model(x)
    out.sin().sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("name", BY)
def test_a_layer_that_a_container_holds(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = HELD.format(*BY[name])
    fixed = fix(text)
    assert fixed != text and fix(fixed) == fixed
    plain = type("Plain", (_Norm,), {"forward": _Norm.forward_native})
    got, want = _gradients(monkeypatch, fixed, _Norm), _gradients(monkeypatch, text, plain)
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b)


@pytest.mark.parametrize("name", OPEN)
def test_what_may_be_another_layer(name: str) -> None:
    (finding,) = findings(HELD.format(*OPEN[name]))
    assert finding.rule == "TRN109" and not finding.fixes
    assert "it may be something that has no such twin" in finding.message


def test_layers_of_torch_in_containers() -> None:
    stays(HELD.format(LIST.replace("RMSNorm", "nn.RMSNorm"), "x = self.norms[0](x)"))
    stays(HELD.format("self.norms = build(4)", "for norm in self.norms:\n            x = norm(x)"))


@pytest.mark.parametrize(
    "more", ["", "class Other(Model):\n    def change(self):\n        self.norms = None\n"]
)
def test_a_container_that_others_replace(more: str) -> None:
    text = HELD.format(*BY["loop"]) + f"\n\n{more}"
    (finding,) = findings(text)
    assert bool(finding.fixes) is not bool(more)
