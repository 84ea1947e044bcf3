"""TRN110: custom operators without an autograd formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, rules, stays

from trainify.engine import check_paths

HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"


def op(body: str, signature: str = "x: torch.Tensor, w: torch.Tensor", **options: str) -> str:
    name, returns = options.get("name", "scaled"), options.get("returns", "torch.Tensor")
    mutates = options.get("mutates", "()")
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return (
        f'{HEAD}@torch.library.custom_op("tests_custom_ops::{name}", mutates_args={mutates})\n'
        f"def {name}({signature}) -> {returns}:\n{lines}"
    )


USE = "\n\ndef use(x, w):\n    return scaled(x, w)\n"


def run(text: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    return scope


def test_one_result() -> None:
    text = op("# comes along\nreturn torch.tanh(x * factor) * w", name="one", signature=(
        "x: torch.Tensor, factor: float, w: torch.Tensor, index: torch.Tensor"
    )) + "\n\n@one.register_fake\ndef _(x, factor, w, index):\n    return torch.empty_like(x)\n"  # fmt: skip
    fixed = fix(text)
    assert "    # comes along\n" in fixed
    assert rules(fixed) == []
    one = run(fixed)["one"]
    x, w = (torch.randn(3, 4, dtype=torch.double, requires_grad=True) for _ in range(2))
    out = one(x, 0.5, w, torch.arange(3))
    expected = torch.tanh(x * 0.5) * w
    for ours, right in zip(
        torch.autograd.grad(out.square().sum(), (x, w)),
        torch.autograd.grad(expected.square().sum(), (x, w)),
        strict=True,
    ):
        torch.testing.assert_close(ours, right)
    w = w.detach()  # only one of them wants a gradient
    (ours,) = torch.autograd.grad(one(x, 0.5, w, torch.arange(3)).sum(), x)
    torch.testing.assert_close(ours, torch.autograd.grad((torch.tanh(x * 0.5) * w).sum(), x)[0])


def test_second_derivatives_and_one_tensor_for_two() -> None:
    text = op("return torch.tanh(x * found) * w", "x: torch.Tensor, w: torch.Tensor, found: float",
              name="again")  # fmt: skip
    again = run(fix(text))["again"]
    x, w = (torch.randn(3, dtype=torch.double, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(lambda x, w: again(x, w, 0.5), (x, w))
    (slope,) = torch.autograd.grad(again(x, w, 0.5).sum(), x, create_graph=True)
    found = torch.autograd.grad(slope.square().sum(), (x, w))
    (slope,) = torch.autograd.grad((torch.tanh(x * 0.5) * w).sum(), x, create_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(slope.square().sum(), (x, w)))
    (both,) = torch.autograd.grad(again(x, x, 0.5).sum(), x)
    torch.testing.assert_close(both, torch.autograd.grad((torch.tanh(x * 0.5) * x).sum(), x)[0])


def test_several_results_and_what_may_be_none() -> None:
    fixed = fix(
        op(
            "y = x.square().sum(-1)\nz = x * 2 if b is None else x * 2 + b\nreturn y, z",
            "x: torch.Tensor, b: torch.Tensor | None = None",
            name="several",
            returns="tuple[torch.Tensor, torch.Tensor]",
        )
    )
    several = run(fixed)["several"]
    x, b = (torch.randn(3, 4, dtype=torch.double, requires_grad=True) for _ in range(2))
    y, z = several(x, b)
    grads = torch.autograd.grad(y.sum() + (z * 3).sum(), (x, b))
    torch.testing.assert_close(grads[0], 2 * x + 6)
    torch.testing.assert_close(grads[1], torch.full_like(b, 3))
    y, z = several(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 2 * x)


def test_helpers_of_the_file_are_followed() -> None:
    text = op("return norm(x) * w", name="helped").replace(
        HEAD, HEAD + "def norm(x):\n    return F.normalize(x, dim=-1)\n\n\n"
    )
    (finding,) = findings(text)
    assert finding.fixes
    stays(text.replace("F.normalize(x, dim=-1)", "x.data / 2"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = torch.empty_like(x)\nkernel[(8,)](x, w, y)\nreturn y", "nothing is known"),
        ("kernel[(8,)](x, w)\nreturn x", "is launched"),
        ("return _C.scaled(x, w)", "nothing is known"),
        ("return torch.ops._C.scaled(x, w)", "nothing is known"),
        ("with torch.no_grad():\n    return x * w", "switches gradients off"),
        ("return x.detach() * w", "off the graph"),
        ("y = x.view(-1)\ny.mul_(2.0)\nreturn x * w", "writes in place"),
        ("x[0] = 1.0\nreturn x * w", "writes in place"),
        ("x += 1.0\nreturn x * w", "may write in place"),
        ("y = torch.tanh(x)\ny.mul_(w)\nreturn y", "writes in place"),
        (
            "y = x * w\nz = 0\nfor _ in range(2):\n    y += 1.0\n    z = y.square()\nreturn z",
            "may write",
        ),
        ("y = x * w\nz = y.square()\ny += 1.0\nreturn y * z", "may write in place"),
        ("return F.dropout(x) * w", "is random"),
        ("return F.scaled_dot_product_attention(x, w, w, dropout_p=0.1)", "is random"),
    ],
)
def test_what_autograd_cannot_do_again(body: str, reason: str) -> None:
    stays(op(body))
    (finding,) = findings(op(body) + USE)
    assert finding.rule == "TRN110"
    assert not finding.fixes
    assert reason in finding.message


@pytest.mark.parametrize(
    ("signature", "returns"),
    [
        ("x: list[torch.Tensor], w: list[torch.Tensor]", "torch.Tensor"),
        ("x: torch.Tensor, *, w: torch.Tensor", "torch.Tensor"),
        ("x: torch.Tensor, w: torch.Tensor", "list[torch.Tensor]"),
        ("ctx: torch.Tensor, w: torch.Tensor", "torch.Tensor"),
    ],
)
def test_signatures_that_a_formula_cannot_have(signature: str, returns: str) -> None:
    (finding,) = findings(op("return w", signature, returns=returns) + USE)
    assert not finding.fixes


@pytest.mark.parametrize(
    "after",
    [
        "\n\ndef b(ctx, g):\n    return g, g\n\n\nscaled.register_autograd(b)\n",
        '\n\ndef b(ctx, g):\n    return g, g\n\n\ntorch.library.register_autograd("tests_custom_ops::scaled", b)\n',
        "\n\nclass Scaled(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x, w):\n        return scaled(x, w)\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g, g\n",
        "\n\ndef use_backward(ctx, g):\n    return scaled(g, g)\n",
        "\n\ndef f(x, w):\n    with torch.no_grad():\n        return scaled(x, w)\n",
    ],
)
def test_a_formula_is_there_or_not_asked_for(after: str) -> None:
    stays(op("return x * w") + after)


@pytest.mark.parametrize(
    "text",
    [
        op("return x * w", name="scaled_backward"),
        op("return x * w", name="quantize_rows"),
        op("return 1", returns="int"),
        op("return x.new_empty(())", "n: int"),
        op("x.mul_(w)", returns="None", mutates='["x"]'),
        op(
            "hashes.copy_(x.long())",
            "x: torch.Tensor, hashes: torch.Tensor",
            returns="None",
            mutates='["hashes"]',
        ),
        HEAD + "@custom_op('a::b', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x * 2\n",
    ],
)
def test_operators_that_need_none(text: str) -> None:
    stays(text)


def test_a_formula_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(op("return x * w"))
    (tmp_path / "grads.py").write_text(
        "import torch\n\n\ndef b(ctx, g):\n    return g, g\n\n\n"
        'torch.library.register_autograd("tests_custom_ops::scaled", b)\n'
    )
    assert not [f for report in check_paths([str(tmp_path)]) for f in report.findings]


def test_names_that_are_taken() -> None:
    fixed = fix(op("return x * w", name="taken") + "\n\ndef taken_native():\n    pass\n")
    assert "def taken_native_(x: torch.Tensor" in fixed
    assert "    return taken_native_(x, w)\n" in fixed


# -- libraries --------------------------------------------------------------------------------------

LIBRARY = (
    HEAD
    + """\
lib = torch.library.Library("tests_custom_ops_lib", "FRAGMENT")
lib.define("{name}(Tensor x, float s, Tensor? b=None) -> Tensor")


def impl_{name}(x, s, b=None):
    return torch.sin(x) * s if b is None else torch.sin(x) * s + b


{register}
"""
)


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd"])
def test_an_operator_of_a_library(key: str) -> None:
    name = f"swirl_{key.lower()}"
    text = LIBRARY.format(name=name, register=f'lib.impl("{name}", impl_{name}, "{key}")')
    fixed = fix(text)
    assert rules(fixed) == []
    run(fixed)
    x, b = (torch.randn(3, dtype=torch.double, requires_grad=True) for _ in range(2))
    out = getattr(torch.ops.tests_custom_ops_lib, name)(x, 2.0, b)
    grads = torch.autograd.grad(out.sum(), (x, b))
    torch.testing.assert_close(grads[0], 2 * torch.cos(x))
    torch.testing.assert_close(grads[1], torch.ones_like(b))
    out = getattr(torch.ops.tests_custom_ops_lib, name)(x, 2.0)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], 2 * torch.cos(x))


def test_an_operator_that_a_decorator_implements() -> None:
    text = LIBRARY.format(name="plain", register="").replace(
        "def impl_plain", '@torch.library.impl(lib, "plain", "CPU")\ndef impl_plain'
    )
    fixed = fix(text)
    assert 'torch.library.register_autograd(\n    "tests_custom_ops_lib::plain",\n' in fixed
    assert "out = impl_plain(x, ctx.s, b)" in fixed
    run(fixed)


@pytest.mark.parametrize(
    "register",
    [
        'lib.impl("f", impl_f, "CompositeImplicitAutograd")',
        'lib.impl("f", impl_f, "CPU")\nlib.impl("f", impl_f, "Autograd")',
        'lib.impl("f", impl_f, "CPU")\n'
        'torch.library.register_autograd("tests_custom_ops_lib::f", backward)',
        'other.impl("f", impl_f, "CPU")',
        'lib.impl("g", impl_f, "CPU")',
    ],
)
def test_operators_of_libraries_that_need_none(register: str) -> None:
    stays(LIBRARY.format(name="f", register=register))


def test_an_operator_of_a_library_that_runs_a_kernel() -> None:
    text = LIBRARY.format(name="f", register='lib.impl("f", impl_f, "CUDA")')
    text = text.replace("    return torch.sin", "    return kernels.sin")
    stays(text)
    (finding,) = findings(
        text + "\n\ndef use(x):\n    return torch.ops.tests_custom_ops_lib.f(x, 1.0)\n"
    )
    assert (finding.rule, finding.fixes) == ("TRN110", {})


# -- kernels ----------------------------------------------------------------------------------------

KERNEL = """\
import torch
from my_kernels import rms_norm_kernel, softmax_kernel


@torch.library.custom_op("tests_custom_ops::norm", mutates_args=())
def norm(gamma: torch.Tensor, x: torch.Tensor, eps: float, n: int) -> torch.Tensor:
    y = torch.empty_like(x)
    rms_norm_kernel[(n,)](x, gamma, y, eps)
    return y


@torch.library.custom_op("tests_custom_ops::soft", mutates_args=())
def soft(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    softmax_kernel[(8,)](x, y)
    return y
"""


class Launched:
    """A kernel as it is launched: below autograd, into the tensors that it is given."""

    def __init__(self, body: Any) -> None:
        self.body = body

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.body


def test_an_operator_that_runs_a_known_kernel() -> None:
    assert "must compute" in findings(KERNEL)[0].fixes["flag"].look_at
    fixed = fix(KERNEL, unsafe=True)
    assert rules(fixed) == []
    kernels = {
        "rms_norm_kernel": Launched(
            lambda x, w, y, eps: y.copy_(torch.nn.functional.rms_norm(x, w.shape, w, eps))
        ),
        "softmax_kernel": Launched(lambda x, y: y.copy_(torch.softmax(x, -1))),
    }
    text = fixed.replace("from my_kernels import rms_norm_kernel, softmax_kernel\n", "")
    scope: dict[str, Any] = dict(kernels)
    exec(compile(text, "m.py", "exec"), scope)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    weights = torch.randn(3, 4)
    expected = torch.nn.functional.rms_norm(x, w.shape, w, 1e-6)
    for ours, right in zip(
        torch.autograd.grad((scope["norm"](w, x, 1e-6, 3) * weights).sum(), (x, w)),
        torch.autograd.grad((expected * weights).sum(), (x, w)),
        strict=True,
    ):
        torch.testing.assert_close(ours, right)
    (ours,) = torch.autograd.grad((scope["soft"](x) * weights).sum(), x)
    (right,) = torch.autograd.grad((torch.softmax(x, -1) * weights).sum(), x)
    torch.testing.assert_close(ours, right)


FORMS = {
    "clone": ("y = x.clone()\ny.mul_(w)\nreturn y", "x: torch.Tensor, w: torch.Tensor"),
    "piece": ("y = x * 2.0\ny[0] = w[0]\nreturn y", "x: torch.Tensor, w: torch.Tensor"),
    "sum": ("y = x @ w.t() @ w\ny += x\nreturn y", "x: torch.Tensor, w: torch.Tensor"),
    "by_name": (
        "return torch.tanh(x) * w * factor",
        "x: torch.Tensor, w: torch.Tensor, *, factor: float = 2.0",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_bodies_and_signatures(name: str) -> None:
    body, signature = FORMS[name]
    fixed = fix(op(body, signature, name=name))
    stays(fixed)
    scope = run(fixed)
    x, w = (torch.randn(3, 4, dtype=torch.double, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(scope[name], (x, w))
    plain: dict[str, Any] = {"torch": torch}
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    exec(f"def plain({signature}):\n{lines}", plain)
    torch.testing.assert_close(scope[name](x, w), plain["plain"](x, w))


@pytest.mark.parametrize("kind", ["list[torch.Tensor]", "Sequence[torch.Tensor]"])
@pytest.mark.parametrize(
    "signature", ["xs: {}", "w: torch.Tensor, xs: {}", "xs: {}, w: torch.Tensor"]
)
def test_a_list_of_tensors(kind: str, signature: str) -> None:
    name = f"joined{abs(hash((kind, signature)))}"
    body = "return torch.cat(list(xs)).square()" + (" * w" if "w:" in signature else "")
    text = op(body, signature.format(kind), name=name)
    fixed = fix(
        text.replace("import torch\n", "from collections.abc import Sequence\nimport torch\n", 1)
    )
    stays(fixed)
    joined = run(fixed)[name]
    a, b, w = (torch.randn(2, 3, dtype=torch.double, requires_grad=True) for _ in range(3))
    w = w.detach()[:1].requires_grad_()

    def call(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if "w:" not in signature:
            return joined([a, b]) * w
        return joined(w, [a, b]) if signature.startswith("w") else joined([a, b], w)

    assert torch.autograd.gradcheck(call, (a, b, w))
    assert torch.autograd.gradcheck(lambda a: call(a, b.detach(), w.detach()), (a,))


def test_an_operator_called_f() -> None:
    assert "\ndef f_native(x" in fix(op("return torch.tanh(x) * w", name="f"))


# -- operators that call operators ------------------------------------------------------------------

INNER = """\
@torch.library.custom_op("tests_custom_ops::{0}_inner", mutates_args={1})
def inner(x: torch.Tensor) -> {2}:
    {3}


"""


def outer(name: str, body: str, mutates: str = "()", returns: str = "torch.Tensor") -> str:
    inner = INNER.format(name, mutates, returns, body)
    text = op("y = inner(x)\nreturn w * (x if y is None else y)", name=name)
    return text.replace(HEAD, HEAD + inner)


@pytest.mark.parametrize("helper", [False, True])
def test_an_operator_that_calls_another_has_both_registered(helper: bool) -> None:
    text = outer(f"both{helper}", "return torch.sin(x)")
    if helper:
        text = text.replace("y = inner(x)", "y = run(x)")
        text += "\n\ndef run(x):\n    return inner(x)\n"
    fixed = fix(text)
    assert rules(fixed) == []
    assert rules(text) == ["TRN110"]  # of the outer: nothing else calls the inner one
    x, w = (torch.randn(3, dtype=torch.double, requires_grad=True) for _ in range(2))
    ours = torch.autograd.grad(run(fixed)[f"both{helper}"](x, w).sum(), (x, w))
    right = torch.autograd.grad((torch.sin(x) * w).sum(), (x, w))
    torch.testing.assert_close(ours, right)


def test_both_are_registered_once_where_both_are_called() -> None:
    text = outer("shared", "return torch.sin(x)") + "\n\ndef use(x, w):\n"
    text += "    return inner(x) + shared(x, w)\n"
    assert rules(text) == ["TRN110", "TRN110"]
    fixed = fix(text)
    assert rules(fixed) == [] and fixed.count("inner.register_autograd") == 1
    x, w = (torch.randn(3, dtype=torch.double, requires_grad=True) for _ in range(2))
    ours = torch.autograd.grad(run(fixed)["use"](x, w).sum(), (x, w))
    right = torch.autograd.grad((torch.sin(x) * (1 + w)).sum(), (x, w))
    torch.testing.assert_close(ours, right)


def test_an_inner_operator_with_a_formula_of_its_own() -> None:
    text = outer("known", "return torch.from_numpy(x.detach().numpy() ** 2)")
    formula = (
        "\n\ninner.register_autograd(lambda ctx, grad: grad * 2 * ctx.saved_tensors[0],\n"
        "    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))\n"
    )
    assert "`torch.from_numpy`" in findings(text + USE.replace("scaled", "known"))[-1].message
    fixed = fix(text + formula)
    assert rules(fixed) == []
    x, w = (torch.randn(3, dtype=torch.double, requires_grad=True) for _ in range(2))
    ours = torch.autograd.grad(run(fixed)["known"](x, w).sum(), (x, w))
    torch.testing.assert_close(ours, torch.autograd.grad((x**2 * w).sum(), (x, w)))


def test_an_inner_operator_that_cannot_have_one(tmp_path: Path) -> None:
    text = outer("writing", "torch.sin(x, out=x)", '("x",)', "None")
    (finding,) = findings(text + USE.replace("scaled", "writing"))
    assert not finding.fixes and "`inner` writes in place" in finding.message
    text = outer("apart", "return torch.sin(x)")
    inner = text[: text.index('@torch.library.custom_op("tests_custom_ops::apart"')]
    (tmp_path / "kernels.py").write_text(inner.rstrip() + "\n")
    (tmp_path / "m.py").write_text(
        text.replace(inner, HEAD.replace("\n\n\n", "\nfrom kernels import inner\n\n\n"))
        + USE.replace("scaled", "apart")
    )
    reports = check_paths([str(tmp_path)])
    (finding,) = (f for report in reports for f in report.findings if f.path.endswith("m.py"))
    assert not finding.fixes and "`inner` has no autograd formula" in finding.message
