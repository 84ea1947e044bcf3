"""TRN104 on a fast path: the other path, which is PyTorch, is taken where a gradient is wanted."""

from __future__ import annotations

import pytest
from verbs import becomes, findings

from trainify.findings import STRATEGIES

HEAD = "import torch\nfrom my_kernels import swirl_kernel\n\n\n"
KERNEL = "{0}y = torch.empty_like(x)\n{0}swirl_kernel[(8,)](x, w, y, x.numel())\n"
FAST = KERNEL.format(" " * 8) + "        return y\n"
SLOW = "    return torch.sin(x * w) / w.norm()\n"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_rest_of_the_function(strategy: str) -> None:
    text = HEAD + "def swirl(x, w):\n    if x.is_contiguous():\n" + FAST + SLOW
    becomes(
        text,
        text.replace("is_contiguous():", "is_contiguous() and not torch.is_grad_enabled():"),
        strategy=strategy,
        unsafe=True,
    )


def test_else() -> None:
    text = (
        HEAD
        + "def swirl(x, w):\n    if x.is_cuda or HAS_TRITON:\n"
        + KERNEL.format(" " * 8)
        + "    else:\n        y = torch.sin(x * w)\n    return y\n"
    )
    becomes(
        text,
        text.replace(
            "x.is_cuda or HAS_TRITON:", "(x.is_cuda or HAS_TRITON) and not torch.is_grad_enabled():"
        ),
        unsafe=True,
    )


def test_the_kernel_on_the_other_side() -> None:
    text = HEAD + "def swirl(x, w):\n    if not x.is_cuda:\n    " + SLOW + KERNEL.format("    ")
    text += "    return y\n"
    becomes(
        text,
        text.replace("x.is_cuda:", "x.is_cuda or torch.is_grad_enabled():"),
        unsafe=True,
    )


def test_in_a_module_that_is_told_to_train() -> None:
    text = (
        "import torch\nfrom my_kernels import swirl_kernel\n\n\nclass Swirl(torch.nn.Module):\n"
        "    def forward(self, x, w):\n        if self.use_kernel:\n"
        + KERNEL.format(" " * 12)
        + "            return y\n        return self.slow(x, w)\n"
    )
    becomes(
        text,
        text.replace("use_kernel:", "use_kernel and not self.training:"),
        unsafe=True,
        flag="training",
    )


def test_functions_of_kernel_libraries() -> None:
    call = "        return torch.ops.aten._weight_int4pack_mm(x, w, 32, scales)\n"
    text = (
        "import torch\n\n\ndef product(x, w, scales):\n    if x.is_cuda:\n"
        + call
        + "    return x @ unpacked(w, scales)\n\n\ndef unpacked(w, scales):\n    return w * scales\n"
    )
    becomes(text, text.replace("cuda:", "cuda and not torch.is_grad_enabled():"), unsafe=True)


@pytest.mark.parametrize(
    "body",
    [
        "    if x.ndim == 2:\n" + FAST + SLOW,  # which of two things?
        "    if x.is_cuda:\n" + FAST + "    raise ValueError(x)\n",
        "    if x.is_cuda:\n" + FAST,
        "    if x.is_cuda:\n" + FAST + "    return other.swirl(x, w)\n",
        "    if x.is_cuda:\n" + FAST + "    return torch.ops.mine.swirl(x, w)\n",
        "    if x.is_cuda:\n" + FAST + "    with torch.no_grad():\n    " + SLOW,
        "    if x.is_cuda:\n" + FAST.replace("return y", "pass") + "    else:\n        pass\n",
    ],
)
def test_no_other_path(body: str) -> None:
    for finding in findings(HEAD + "import other\n\n\ndef swirl(x, w):\n" + body):
        assert finding.rule == "TRN104"
        assert not finding.fixes


def test_an_operand_on_a_line_of_its_own() -> None:
    text = (
        "import torch\nfrom my_kernels import swirl_kernel\n\n\n"
        "def swirl(x, w):\n    if (\n        x.is_cuda\n        and x.dtype == torch.bfloat16\n    ):\n"
        + KERNEL.format(" " * 8)
        + "        return y\n    return slow(x, w)\n\n\ndef slow(x, w):\n    return x * w\n"
    )
    becomes(
        text,
        text.replace("bfloat16\n", "bfloat16\n        and not torch.is_grad_enabled()\n"),
        unsafe=True,
    )
