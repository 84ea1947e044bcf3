"""A kernel in a function that is only run behind a test of the grad mode is right as it is."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from verbs import rules, stays

from trainify.engine import Options, check_paths

HEAD = """\
import functools
import torch
import torch.nn.functional as F
from sgl_kernel import silu_and_mul


"""
PLAIN = "def plain(x):\n    a, b = x.chunk(2, -1)\n    return F.silu(a) * b\n\n\n"
FAST = "def fast(x):\n    return silu_and_mul(x)\n\n\n"
METHODS = """\
class Act(torch.nn.Module):
    {init}
    def native(self, x):
        a, b = x.chunk(2, -1)
        return F.silu(a) * b

    def fast(self, x):
        return silu_and_mul(x)

    def forward(self, x):
        {body}
"""
INIT = "def __init__(self):\n        super().__init__()\n        {}\n"
TEST = "if torch.is_grad_enabled():\n            return self.native(x)\n        "
ASKED = {
    "method": METHODS.format(init="", body=TEST + "return self.fast(x)"),
    "attribute": METHODS.format(
        init=INIT.format("self._run = self.fast"), body=TEST + "return self._run(x)"
    ),
    "picked": METHODS.format(
        init=INIT.format("self._run = self.pick()")
        + "\n    def pick(self):\n        return self.fast if F is not None else self.native\n",
        body=TEST + "return self._run(x)",
    ),
    "local": METHODS.format(
        init="",
        body=TEST + "run = self.fast if x.is_cuda else self.native\n        return run(x)",
    ),
    "every tensor": METHODS.format(
        init="",
        body="if any(isinstance(t, torch.Tensor) and t.requires_grad for t in (x,)):\n"
        "            return self.native(x)\n        return self.fast(x)",
    ),
    "function": f"{PLAIN}{FAST}def act(x):\n    return plain(x) if x.requires_grad else fast(x)\n",
    "through another": f"{PLAIN}{FAST}def faster(x):\n    return fast(x)\n\n\n"
    "def act(x):\n    if x.requires_grad:\n        return plain(x)\n    return faster(x)\n",
    "also while inferring": f"{PLAIN}{FAST}def act(x):\n"
    "    return plain(x) if x.requires_grad else fast(x)\n\n\n"
    "@torch.no_grad()\ndef score(x):\n    return fast(x).sum().item()\n",
    "refused": "def refuse(*xs):\n    if torch.is_grad_enabled():\n        raise RuntimeError\n\n\n"
    "def act(x):\n    refuse(x)\n    return silu_and_mul(x)\n",
    "wrapper": "def only(fn):\n    @functools.wraps(fn)\n    def run(*a):\n"
    "        if torch.is_grad_enabled():\n            raise RuntimeError(fn.__name__)\n"
    f"        return fn(*a)\n\n    return run\n\n\n@only\n{FAST}",
    "wrapper with a twin": f"{PLAIN}def beside(twin):\n    def around(fn):\n        def run(*a):\n"
    "            if not torch.is_grad_enabled():\n                return fn(*a)\n"
    "            return twin(*a)\n\n        return run\n\n    return around\n\n\n"
    f"@beside(plain)\n{FAST}",
    "launch": "import triton\n\n\n@triton.jit\ndef act_kernel(x, y, n):\n    pass\n\n\n"
    "def fast(x):\n    y = torch.empty_like(x)\n    act_kernel[(1,)](x, y, x.numel())\n    return y\n"
    f"\n\n{PLAIN}def act(x):\n    return plain(x) if x.requires_grad else fast(x)\n",
}
NOT_ASKED = {
    "one way": METHODS.format(init="", body=TEST + "return self.fast(x)")
    + "\n    def again(self, x):\n        return self.fast(x)\n",
    "the wrong way": METHODS.format(init="", body=TEST.replace("native", "fast") + "return x"),
    "attribute": METHODS.format(
        init=INIT.format("self._run = self.fast"),
        body=TEST + "return self._run(x)\n\n    def again(self, x):\n        return self._run(x)",
    ),
    "handed on": f"{PLAIN}{FAST}def act(x):\n    return plain(x) if x.requires_grad else fast(x)\n"
    "\n\nACTS = {'fast': fast}\n",
    "by a name that is put together": METHODS.format(
        init="",
        body=TEST + "return self.fast(x)\n\n    def again(self, x, how):\n"
        "        return getattr(self, how)(x)",
    ),
    "only without gradients": f"{FAST}@torch.no_grad()\ndef score(x):\n    return fast(x).sum()\n",
    "by nobody": f"{FAST}def act(x):\n    return x if x.requires_grad else 2 * x\n",
    "wrapper that asks for something else": "def only(fn):\n    def run(x):\n"
    "        if not x.is_cuda:\n            raise RuntimeError\n        return fn(x)\n\n"
    f"    return run if torch.is_grad_enabled() else fn\n\n\n@only\n{FAST}",
    "decorated with what nobody knows": f"{PLAIN}@functools.singledispatch\n{FAST}"
    "def act(x):\n    return plain(x) if x.requires_grad else fast(x)\n",
}


@pytest.mark.parametrize("text", ASKED.values(), ids=ASKED.keys())
def test_asked_by_all_callers(text: str) -> None:
    stays(HEAD + text)
    stays(HEAD + text, strategy="replace")


@pytest.mark.parametrize("text", NOT_ASKED.values(), ids=NOT_ASKED.keys())
def test_not_asked_by_one(text: str) -> None:
    assert rules(HEAD + text) == ["TRN101"]


FILES = {
    "function": {
        "k": f"{HEAD}{FAST}",
        "act": f"{HEAD}from k import fast\n\n\n{PLAIN}def act(x):\n"
        "    return plain(x) if x.requires_grad else fast(x)\n",
    },
    "renamed": {
        "k": f"{HEAD}{FAST}",
        "act": f"{HEAD}from k import fast as quick\n\n\n{PLAIN}def act(x):\n"
        "    return plain(x) if x.requires_grad else quick(x)\n",
    },
    "of its module": {
        "k": f"{HEAD}{FAST}",
        "act": f"{HEAD}import k\n\n\n{PLAIN}def act(x):\n"
        "    return plain(x) if x.requires_grad else k.fast(x)\n",
    },
    "base": {
        "base": "import torch\n\n\nclass Op(torch.nn.Module):\n    def forward(self, x):\n"
        "        if torch.is_grad_enabled():\n            return self.native(x)\n"
        "        return self.fast(x)\n",
        "act": f"{HEAD}from base import Op\n\n\n"
        + METHODS.format(init="", body="")
        .replace("torch.nn.Module", "Op")
        .partition("    def for")[0],
    },
    "autograd.Function": {
        "k": f"{HEAD}{FAST}",
        "act": f"{HEAD}from k import fast\n\n\n"
        + textwrap.dedent(
            """\
            class Act(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    ctx.save_for_backward(x)
                    return fast(x)

                @staticmethod
                def backward(ctx, grad):
                    (x,) = ctx.saved_tensors
                    with torch.enable_grad():
                        y = x.detach().requires_grad_()
                        a, b = y.chunk(2, -1)
                        out = F.silu(a) * b
                    return torch.autograd.grad(out, y, grad)[0]
            """
        ),
    },
    "wrapper": {
        "guard": "import torch\n\n\ndef only(fn):\n    def run(*a):\n"
        "        if torch.is_grad_enabled():\n            raise RuntimeError\n"
        "        return fn(*a)\n\n    return run\n",
        "act": f"{HEAD}from guard import only\n\n\n@only\n{FAST}",
    },
}


@pytest.mark.parametrize("files", FILES.values(), ids=FILES.keys())
def test_asked_in_another_file(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert not [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    if "k" not in files:
        return
    more = (
        "from k import fast\n\n\nclass Layer:\n    def forward(self, x):\n        return fast(x)\n"
    )
    (tmp_path / "more.py").write_text(more)
    found = [f.rule for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    assert found == ["TRN101"]
