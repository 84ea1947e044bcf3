"""A callee that may be several things is named and left alone; so is a buffer that others hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import findings, fix, rules

from trainify.engine import fix_paths

OPS = "import flashinfer\nimport torch\nfrom functools import partial\n\n\n"


@pytest.mark.parametrize(
    "init",
    [
        "if gemma:\n            self.op = flashinfer.gemma_rmsnorm\n        else:\n            self.op = flashinfer.rmsnorm",
        "self.op = flashinfer.gemma_rmsnorm if gemma else flashinfer.rmsnorm",
        "self.op = partial(flashinfer.gemma_rmsnorm if gemma else flashinfer.rmsnorm, eps=1e-3)",
        "self.op = flashinfer.rmsnorm\n        if gemma:\n            self.op = flashinfer.gemma_rmsnorm",
        "self.op = flashinfer.rmsnorm if gemma else (lambda x, w: x)",
    ],
)
def test_an_attribute_with_several_values(init: str) -> None:
    text = (
        OPS
        + f"""\
class Norm(torch.nn.Module):
    def __init__(self, gemma):
        super().__init__()
        {init}

    def forward(self, x, w):
        return self.op(x, w)
"""
    )
    assert rules(text) == ["TRN103"] and fix(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "from flashinfer import rmsnorm\nif True:\n    def rmsnorm(x, w):\n        return x - w\n\n\ndef run(x, w):\n    return rmsnorm(x, w)\n",
        "import flashinfer\n\nact = flashinfer.silu_and_mul\nif not USE:\n    act = native\n\n\ndef run(x):\n    return act(x)\n",
        "from flashinfer import silu_and_mul as act\n\n\ndef setup():\n    global act\n    act = lambda g: g[:, :8]\n\n\ndef run(x):\n    return act(x)\n",
    ],
)
def test_a_name_with_several_values(text: str) -> None:
    assert rules(text) == ["TRN103"] and fix(text) == text


def test_a_local_name_is_what_it_was_last_bound_to() -> None:
    text = fix(
        """\
import flashinfer
import torch
import torch.nn.functional as F


def run(g):
    op = flashinfer.silu_and_mul
    a = op(g)
    op = flashinfer.gelu_and_mul
    return a, op(g)
""",
        strategy="replace",
    )
    assert text.index("F.silu(") < text.index("F.gelu(")


def test_an_import_that_may_fail_has_its_stand_in() -> None:
    text = "try:\n    from flashinfer import rmsnorm\nexcept ImportError:\n    def rmsnorm(x, w):\n        return x\n\n\ndef run(x, w):\n    return rmsnorm(x, w)\n"
    assert rules(text) == ["TRN101"]


def test_a_partial_keeps_the_value_that_its_name_had() -> None:
    text = fix(
        OPS + "EPS = 1e-2\nf = partial(flashinfer.rmsnorm, eps=EPS)\nEPS = 1.0\n\n\n"
        "def run(x, w):\n    return f(x, w)\n",
        strategy="replace",
    )
    assert 'F.rms_norm(x, x.shape[-1:], w, f.keywords["eps"])' in text


HEAD = "import torch\nfrom vllm import _custom_ops as ops\n\n\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("out = torch.empty_like(x)\n    d = {'out': out}\n    ops.rms_norm(out, x, w, 1e-6)\n    return d", "kept elsewhere"),
        ("out = torch.empty_like(x)\n    outs.append(out)\n    ops.rms_norm(out, x, w, 1e-6)\n    return outs", "kept elsewhere"),
        ("out = torch.empty_like(x)\n    self.last = out\n    ops.rms_norm(out, x, w, 1e-6)\n    return out", "kept elsewhere"),
        ("self.last = out = torch.empty_like(x)\n    ops.rms_norm(out, x, w, 1e-6)\n    return out", "kept elsewhere"),
        ("out = torch.empty_like(x)\n    f = lambda: out * 2\n    ops.rms_norm(out, x, w, 1e-6)\n    return f()", "kept elsewhere"),
        ("for h in (x * 1, r * 1):\n        ops.fused_add_rms_norm(h, r, w, 1e-6)\n    return r", "part of something else"),
        ("with hold(x) as y:\n        ops.fused_add_rms_norm(y, r, w, 1e-6)\n    return x, y, r", "part of something else"),
        ("def step():\n        ops.fused_add_rms_norm(x, r, w, 1e-6)\n    step()\n    return x, r", "belongs to a scope around"),
        ("def step():\n        nonlocal x\n        ops.fused_add_rms_norm(x, r, w, 1e-6)\n    step()\n    return x, r", "belongs to a scope around"),
    ],
)  # fmt: skip
def test_a_tensor_that_others_hold_is_not_rebound(body: str, reason: str) -> None:
    text = HEAD + f"def run(self, x, r, w, outs, hold):\n    {body}\n"
    (finding,) = findings(text)
    assert not finding.fixes and reason in finding.message


@pytest.mark.parametrize(
    "body",
    [
        "h = r if keep else r.clone()\n    ops.fused_add_rms_norm(x, h, w, 1e-6)\n    return x, r",
        "h = y = x * 2\n    ops.fused_add_rms_norm(h, r, w, 1e-6)\n    return y, r",
        "out = x if inplace else torch.empty_like(x)\n    ops.rms_norm(out, x, w, 1e-6)\n    return out + x",
        "y = (h := r)\n    ops.fused_add_rms_norm(x, h, w, 1e-6)\n    return x + y + r",
    ],
)
def test_a_name_that_may_be_the_same_tensor_is_not_left_behind(body: str) -> None:
    """Either it is refused, or a person is asked to look, or the other name is brought along."""
    text = HEAD + f"def run(x, r, w, keep, inplace):\n    {body}\n"
    (finding,) = findings(text)
    fixed = fix(text)
    followed = any(line.strip() in ("y = h", "r = h") for line in fixed.splitlines())
    assert not finding.fixes or finding.fixes["flag"].look_at or followed or ".copy_(" in fixed


MLP = """\
from torch import nn
from vllm import _custom_ops as ops


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up = nn.Linear(d, 2 * d)
        self.act = ops.silu_and_mul

    def forward(self, x):
        h = self.up(x)
        out = h.new_empty(*h.shape[:-1], h.shape[-1] // 2)
        self.act(out, h)
        return out
"""
SET_BY_OTHERS = {
    "subclass": "class Gelu(MLP):\n    def __init__(self, d):\n        super().__init__(d)\n"
    "        self.act = ops.gelu_and_mul\n",
    "class-attribute": "class Gelu(MLP):\n    act = staticmethod(ops.gelu_and_mul)\n",
    "subclass-of-subclass": "class Plain(MLP):\n    pass\n\n\nclass Gelu(Plain):\n"
    "    def use(self, kernel):\n        self.act = kernel\n",
    "partial": "import functools\n\n\nclass Bound(MLP):\n    def use(self):\n"
    "        self.act = functools.partial(ops.silu_and_mul, limit=7.0)\n",
    "outside": "def build(d):\n    mlp = MLP(d)\n    mlp.act = ops.gelu_and_mul\n    return mlp\n",
    "unknown": "def build(d, act):\n    mlp = MLP(d)\n    mlp.act = act\n    return mlp\n",
    "by-name": "def build(d):\n    mlp = MLP(d)\n    setattr(mlp, 'act', ops.gelu_and_mul)\n"
    "    return mlp\n",
    "by-keyword": "def configure(mlp, **given):\n    for name, value in given.items():\n"
    "        setattr(mlp, name, value)\n\n\nmlp = configure(MLP(8), act=ops.gelu_and_mul)\n",
}


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("more", SET_BY_OTHERS.values(), ids=SET_BY_OTHERS.keys())
def test_an_attribute_that_others_set_to_another_kernel(
    tmp_path: Path, more: str, elsewhere: bool
) -> None:
    """Fixed, the classes and objects that have the other one would compute with this one."""
    files = {"mlp": MLP if elsewhere else f"{MLP}\n\n{more}"}
    if elsewhere:
        files["build"] = f"from mlp import MLP\nfrom vllm import _custom_ops as ops\n\n\n{more}"
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    reports = {Path(r.path).stem: r for r in fix_paths([str(tmp_path)])}
    assert reports["mlp"].change is None
    (finding,) = reports["mlp"].findings
    assert finding.rule == "TRN103"
    assert ("build.py:" if elsewhere else "what line ") in finding.message


@pytest.mark.parametrize(
    "more",
    [
        "class Same(MLP):\n    def __init__(self, d):\n        super().__init__(d)\n"
        "        self.act = ops.silu_and_mul\n",
        "class Other(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.act = nn.GELU()\n        self.mlp = MLP(8)\n",
        "def configured(d, config):\n    config.act = 'silu'\n    return MLP(d)\n",
    ],
)
def test_an_attribute_of_that_name_of_others(tmp_path: Path, more: str) -> None:
    (tmp_path / "mlp.py").write_text(MLP)
    imports = "from torch import nn\nfrom mlp import MLP\nfrom vllm import _custom_ops as ops\n"
    (tmp_path / "build.py").write_text(f"{imports}\n\n{more}")
    reports = {Path(r.path).stem: r for r in fix_paths([str(tmp_path)])}
    assert "F.silu(" in reports["mlp"].text


def test_a_kernel_that_a_mixin_sets_for_classes_that_set_another(tmp_path: Path) -> None:
    mixed = MLP.replace("class MLP(nn.Module)", "class Mixin").replace("super().__init__()", "pass")
    (tmp_path / "mlp.py").write_text(f"{mixed}\n\nclass MLP(Mixin, nn.Module):\n    pass\n")
    build = "from mlp import MLP\nfrom vllm import _custom_ops as ops\n\n\n"
    (tmp_path / "build.py").write_text(build + SET_BY_OTHERS["subclass"])
    reports = {Path(r.path).stem: r for r in fix_paths([str(tmp_path)])}
    assert [f.rule for f in reports["mlp"].findings] == ["TRN103"]


def test_a_name_of_a_file_that_another_one_sets(tmp_path: Path) -> None:
    text = MLP.replace("        self.act = ops.silu_and_mul\n", "").replace("self.act(", "act(")
    text = text.replace("\n\n\nclass", "\n\nact = ops.silu_and_mul\n\n\nclass")
    (tmp_path / "mlp.py").write_text(text)
    (reports,) = fix_paths([str(tmp_path)])
    assert "F.silu(" in reports.text
    patch = "import mlp\nfrom vllm import _custom_ops as ops\n\nmlp.act = ops.gelu_and_mul\n"
    (tmp_path / "build.py").write_text(patch)
    reports = {Path(r.path).stem: r for r in fix_paths([str(tmp_path)])}
    assert [f.rule for f in reports["mlp"].findings] == ["TRN103"]
