"""TRN105 with a fix: an autograd.Function whose kernel is known gets its backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

from trainify.findings import STRATEGIES

HEAD = "import torch\nfrom my_kernels import rms_norm_fwd_kernel, softmax_kernel\n\n\n"

BACKWARD = """\

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + ctx.eps)
        normed, grad = x.float() * scale, grad.float()
        grad_normed = grad * weight.float()
        grad_x = (
            grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True)
        ) * scale
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
        return grad_x.to(x.dtype), grad_weight, None
"""


def function(body: str, parameters: str = "x, weight, eps", after: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return (
        f"{HEAD}class Norm(torch.autograd.Function):\n    @staticmethod\n"
        f"    def forward(ctx, {parameters}):\n{lines}{after}"
    )


PLAIN = """\
y = torch.empty_like(x)
rms_norm_fwd_kernel[(x.shape[0],)](x, weight, y, eps)
return y"""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_backward_is_added(strategy: str) -> None:
    becomes(
        function(PLAIN),
        function("ctx.save_for_backward(x, weight)\nctx.eps = eps\n" + PLAIN, after=BACKWARD),
        strategy=strategy,
        unsafe=True,
    )


def test_a_backward_that_only_raises_is_exchanged() -> None:
    raising = (
        "\n    @staticmethod\n    def backward(ctx, grad):\n        raise NotImplementedError\n"
    )
    text = fix(function(PLAIN, after=raising + "\n    name = 1\n"), unsafe=True)
    assert "NotImplementedError" not in text
    assert BACKWARD + "\n    name = 1\n" in text
    assert rules(text) == []


def test_the_names_of_forward_are_its_own() -> None:
    text = fix(
        function(
            "out = torch.empty_like(inp)\nwith torch.cuda.device(inp.device):\n"
            "    rms_norm_fwd_kernel[(8,)](inp, gamma.contiguous(), out, epsilon)\nreturn out",
            "gamma, inp, epsilon=1e-6",
        ),
        unsafe=True,
    )
    assert "ctx.save_for_backward(gamma, inp)\n        ctx.eps = epsilon\n" in text
    assert "weight, x = ctx.saved_tensors" in text
    assert "return grad_weight, grad_x.to(x.dtype), None" in text


def test_rows_that_are_made_and_undone() -> None:
    rows = (
        "rows = x.contiguous().view(-1, N)\ny = torch.empty_like(rows)\n"
        "rms_norm_fwd_kernel[(rows.shape[0],)](rows, weight, y, eps)\nreturn y.view_as(x)"
    )
    text = fix(function(rows.replace("N", "x.shape[-1]")), unsafe=True)
    assert "ctx.save_for_backward(x, weight)" in text
    for other in (rows.replace("N", "weight.shape[0]"), rows.replace("y.view_as(x)", "y")):
        (finding,) = findings(function(other))
        assert not finding.fixes


def test_the_result_is_saved_where_backward_needs_it() -> None:
    text = fix(
        function("y = torch.empty_like(x)\nsoftmax_kernel[(8,)](x, y)\nreturn y", "x"), unsafe=True
    )
    assert "        ctx.save_for_backward(y)\n        return y\n" in text
    assert "(out,) = ctx.saved_tensors" in text


def test_an_op_of_the_catalog() -> None:
    text = fix(
        "import torch\nfrom vllm import _custom_ops as ops\n\n\n"
        "class Norm(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x, weight, eps):\n        out = torch.empty_like(x)\n"
        "        ops.rms_norm(out, x, weight, eps)\n        return out\n"
    )
    assert "def backward(ctx, grad):" in text
    assert "ctx.save_for_backward(x, weight)" in text


@pytest.mark.parametrize(
    "body",
    [
        PLAIN.replace("return y", "y.mul_(2)\nreturn y"),
        PLAIN.replace("return y", "y += 1\nreturn y"),
        PLAIN.replace("return y", "return y + x"),
        PLAIN.replace("return y", "return y, x"),
        "x = x * 2\n" + PLAIN,
        "ctx.save_for_backward(x)\n" + PLAIN,
        "ctx.mark_dirty(x)\n" + PLAIN,
        "if x.is_cuda:\n    x = x.cpu()\n" + PLAIN,
        PLAIN.replace("x, weight", "x.t(), weight"),
        "rms_norm_fwd_kernel[(8,)](x, weight, x, eps)\nreturn x",
        "y = other(x)\nreturn y",
    ],
)
def test_what_is_not_sure_has_no_fix(body: str) -> None:
    (finding,) = findings(function(body))
    assert finding.rule == "TRN105"
    assert not finding.fixes


# -- weights without a gradient -------------------------------------------------------------------

LINEAR = """\
import torch


class Linear(torch.autograd.Function):
    {docstring}

    @staticmethod
    def forward(ctx, x, weight, {more}):
        ctx.save_for_backward(weight)
        return linear(x, weight, {more})

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        return grad @ weight, None, None
"""
LEARNS = '"""A linear layer."""'


@pytest.mark.parametrize(
    "more",
    ["weight_scale_inv", "w_scale", "scales", "scale_inv", "weight_quant", "absmax", "quant_state"],
)
def test_a_weight_of_codes_gets_no_gradient(more: str) -> None:
    stays(LINEAR.format(docstring=LEARNS, more=more))


def test_a_weight_that_is_dequantized_gets_no_gradient() -> None:
    text = LINEAR.format(docstring=LEARNS, more="bias")
    stays(text.replace("grad @ weight", "grad @ weight.dequantize()"))


def test_a_weight_that_is_said_to_be_frozen() -> None:
    stays(LINEAR.format(docstring='"""For adapters. The weights are frozen."""', more="bias"))


@pytest.mark.parametrize("more", ["bias", "scale", "dropout"])
def test_other_weights_lose_theirs(more: str) -> None:
    assert rules(LINEAR.format(docstring=LEARNS, more=more)) == ["TRN106"]


CODES = """\
import torch


class Codes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, codebook):
        with torch.no_grad():
            indices = torch.cdist(x, codebook).argmin(-1)
            ctx.mark_non_differentiable({marked})
            return {returned}

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("codes have no derivative")
"""


@pytest.mark.parametrize(
    "marked, returned, expected",
    [
        ("indices", "indices", []),
        ("indices", "indices, x * 2", ["TRN105"]),
        ("", "indices", ["TRN105"]),
    ],
)
def test_results_that_are_marked_as_constants_need_no_backward(
    marked: str, returned: str, expected: list[str]
) -> None:
    text = CODES.format(marked=marked, returned=returned)
    assert rules(text) == expected
    scope: dict[str, Any] = {}
    exec(text, scope)
    results = scope["Codes"].apply(torch.randn(3, 2, requires_grad=True), torch.randn(4, 2))
    tensors = results if isinstance(results, tuple) else (results,)
    needs = any(t.requires_grad for t in tensors)
    assert needs == (len(tensors) > 1)


def test_results_are_marked_where_the_context_is_set_up() -> None:
    text = CODES.format(marked="", returned="indices").replace("forward(ctx, ", "forward(")
    text = text.replace("            ctx.mark_non_differentiable()\n", "")
    assert rules(text) == ["TRN105"]
    text += """
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output)
"""
    assert rules(text) == []


# -- backwards that give nothing ------------------------------------------------------------------

NOTHING = """\
import torch


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        {body}
"""


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "...",
        "return",
        '"""To do."""',
        "return None",
        "return (None,)",
        "return (None,) * 1",
    ],
)
def test_a_backward_that_gives_nothing(body: str) -> None:
    text = NOTHING.format(body=body)
    assert rules(text) == ["TRN105"]
    scope: dict[str, Any] = {}
    exec(text, scope)
    x = torch.randn(3, requires_grad=True)
    scope["Sine"].apply(x).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pass", "return grad"),
        ("pass", "ctx.done.set()"),  # there for what it does
        ("return x.sin()", "pass"),
        ("return x.sin()", "ctx.mark_non_differentiable(x)\n        return x"),
    ],
)
def test_a_backward_that_gives_something_or_has_nothing_to_give(old: str, new: str) -> None:
    stays(NOTHING.format(body="pass").replace(old, new))


# -- parameters whose gradient is dropped ---------------------------------------------------------

SHIFT = """\
import torch
from torch import nn


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, offset, step):
        return x + offset * step

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None


class Layer(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        return Shift.apply(x, self.offset, 2)
"""


def test_a_parameter_that_is_passed_gets_none() -> None:
    (finding,) = findings(SHIFT)
    assert (finding.rule, finding.line) == ("TRN106", 12)
    assert "returns None for `offset`: the parameter never gets a gradient." in finding.message
    scope: dict[str, Any] = {}
    exec(SHIFT, scope)
    layer = scope["Layer"](3)
    layer(torch.randn(2, 3, requires_grad=True)).sum().backward()
    assert layer.offset.grad is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return grad, None, None", "return grad, grad.sum(0) * 2, None"),
        ("torch.zeros(n))", "torch.zeros(n), requires_grad=False)"),
        ("torch.zeros(n))", "torch.zeros(n)).requires_grad_(False)"),
        ("torch.zeros(n))", "torch.zeros(n, dtype=torch.int8))"),
        ("nn.Parameter(torch.zeros(n))", "torch.zeros(n)"),
        ("super().__init__()", "super().__init__()\n        self.offset = None"),
        ("x, self.offset, 2", "x, 2, self.offset.detach()"),
        ("x, self.offset, 2", "*x, self.offset, 2"),
        (
            "return grad, None, None",
            "assert not ctx.needs_input_grad[1]\n        return grad, None, None",
        ),
        ("        return x +", '        """The offset is frozen."""\n        return x +'),
    ],
)
def test_a_parameter_that_gets_one_or_is_none(old: str, new: str) -> None:
    text = SHIFT.replace(old, new)
    assert text != SHIFT
    if "frozen" in new:
        text = SHIFT.replace("Function):\n", 'Function):\n    """The offset is frozen."""\n\n', 1)
    stays(text)


# -- backwards that leave their gradients elsewhere -----------------------------------------------

ELSEWHERE = """\
import torch


class Pipe(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, message):
        ctx.message = message
        return x * 2

    @staticmethod
    def backward(ctx, *grads):
        {line}
        return None, None
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ctx.message.put(grads[0])", []),
        ("ctx.message.tensors = tuple(grads)", []),
        ("_, ctx.message.grad = Copy.backward(ctx, ctx.message.grad)", []),
        ("run_backward_of(ctx.message)", []),
        ("ctx.seen = len(ctx.message)", ["TRN105"]),
        ("ctx.message.count()", ["TRN105"]),
        ("print(grads)", ["TRN105"]),
    ],
)
def test_gradients_that_are_sent_on(line: str, expected: list[str]) -> None:
    assert rules(ELSEWHERE.format(line=line)) == expected


ADDED = """\
import torch


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, head):
        ctx.save_for_backward(x, weight)
        ctx.head = head
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_weight = grad.T @ x
        {line}
        return grad @ weight, None, None
"""
GIVEN_OUT = {
    "ctx.head.weight.grad.add_(grad_weight)": [],
    "ctx.head.weight.main_grad += grad_weight": [],
    "ctx.head.weight.grad = grad_weight": [],
    "parts = torch.split(ctx.head.weight.grad, 2)\n        parts[0].add_(grad_weight)": [],
    "weight.mul_(2)": ["TRN106"],
    "norm = ctx.head.weight.grad.norm()": ["TRN106"],
}


@pytest.mark.parametrize(("line", "expected"), GIVEN_OUT.items())
def test_a_weight_whose_gradient_is_added_where_it_belongs(line: str, expected: list[str]) -> None:
    assert rules(ADDED.format(line=line)) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Linear(", "class LinearWithFrozenWeight("),
        ("(ctx, grad):\n", '(ctx, grad):\n        """The weight will never require grad."""\n'),
    ],
)
def test_a_weight_of_which_its_author_says_that_it_is_frozen(old: str, new: str) -> None:
    text = ADDED.format(line="pass")
    assert old in text
    stays(text.replace(old, new))


HOOK = """\
import torch


class Hook(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        {}
        return x * {}

    @staticmethod
    def backward(ctx, grad):
        return grad * {}, None, None


def hook(x, weight, bias):
    return Hook.apply(x, weight, bias)
"""


@pytest.mark.parametrize("kept", ["ctx.save_for_backward(weight, bias)", "ctx.weight = weight"])
def test_what_forward_only_keeps_has_no_gradient_to_lose(kept: str) -> None:
    text = HOOK.format(kept, 2, 2)
    stays(text)
    space: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), space)
    weight = torch.ones(3, requires_grad=True)
    x = torch.ones(3, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, weight: space["hook"](x, weight, None), (x.double(), weight.double())
    )
    assert rules(HOOK.format(kept, "weight", "ctx.w")) == ["TRN106"]
