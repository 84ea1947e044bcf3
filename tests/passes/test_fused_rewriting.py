"""What a fused call becomes depends on who reads its buffers afterwards."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from verbs import becomes, findings, fix

from tests.each import in_turn
from trainify.engine import Options, fix_text
from trainify.findings import STRATEGIES, Safety

REPLACED = "import torch\nimport torch.nn.functional as F\n\n\n"
HEAD = f"{REPLACED.rstrip()}\nfrom vllm import _custom_ops as ops\n\n\n"


def test_replace_drops_the_buffer_and_keeps_comments() -> None:
    becomes(
        HEAD
        + """\
def f(x, w, eps):
    # norm first
    out = torch.empty_like(x)  # scratch
    # the kernel
    ops.rms_norm(out, x, w.data, eps)  # fused
    return out
""",
        REPLACED
        + """\
def f(x, w, eps):
    # norm first
    # scratch
    # the kernel
    out = F.rms_norm(x, x.shape[-1:], w, eps)  # fused
    return out
""",
        strategy="replace",
    )


def test_one_condition_for_calls_in_a_row() -> None:
    becomes(
        HEAD
        + """\
def f(q, k, wq: torch.Tensor, wk: torch.Tensor):
    q_out = torch.empty_like(q)
    ops.rms_norm(q_out, q, wq, 1e-6)
    k_out = torch.empty_like(k)
    ops.rms_norm(k_out, k, wk, 1e-6)
    return q_out, k_out
""",
        HEAD
        + """\
def f(q, k, wq: torch.Tensor, wk: torch.Tensor):
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, wq, k, wk)):
        q_out = F.rms_norm(q, q.shape[-1:], wq, 1e-6)
        k_out = F.rms_norm(k, k.shape[-1:], wk, 1e-6)
    else:
        q_out = torch.empty_like(q)
        ops.rms_norm(q_out, q, wq, 1e-6)
        k_out = torch.empty_like(k)
        ops.rms_norm(k_out, k, wk, 1e-6)
    return q_out, k_out
""",
    )


@pytest.mark.parametrize("kind", ["staticmethod", "classmethod"])
def test_who_has_no_self_asks_the_grad_mode(kind: str) -> None:
    first = "" if kind == "staticmethod" else "cls, "
    text = fix(
        HEAD
        + f"""\
class Norm(torch.nn.Module):
    @{kind}
    def norm({first}x, w: torch.Tensor):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, w, 1e-6)
        return out
""",
        flag="training",
    )
    assert "        if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):\n" in text


NORM = """\
class Norm({base}):
    def __init__(self, weight):
        {init}
        self.weight = weight

    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight.data, self.eps)
        return out
"""
SUPER = "super().__init__()"
ABSTRACT = "from abc import ABC\n"
OWN = "\n\nclass Base(ABC):\n    pass\n\n\n"


@pytest.mark.parametrize(
    ("imports", "base", "init", "asked"),
    [
        ("", "torch.nn.Module", SUPER, True),
        ("from vllm.model_executor.custom_op import CustomOp\n", "CustomOp", "pass", True),
        ("from other import Base\n", "Base", SUPER, True),
        ("from other import Base\n", "Base", "self.training = False", True),
        ("from other import Base\n", "Base", "pass", False),  # which no module's could do
        (ABSTRACT, "ABC", SUPER, False),
        (ABSTRACT + OWN, "Base", SUPER, False),
        (ABSTRACT + "from other import Own\n" + OWN.replace("ABC", "Own"), "Base", SUPER, True),
        ("", "object", "self.training = False", False),
    ],
)
def test_the_training_flag_is_that_of_a_module(
    imports: str, base: str, init: str, asked: bool
) -> None:
    text = fix(HEAD + imports + NORM.format(base=base, init=init), flag="training")
    assert ("        if self.training:\n" in text) is asked
    assert ("        if torch.is_grad_enabled()" in text) is not asked


def test_a_buffer_used_before_the_call_keeps_its_allocation() -> None:
    becomes(
        HEAD
        + """\
def f(x, w: torch.Tensor):
    out = torch.empty_like(x)
    print(out.shape)
    ops.rms_norm(out, x, w, 1e-6)
    return out
""",
        REPLACED
        + """\
def f(x, w: torch.Tensor):
    out = torch.empty_like(x)
    print(out.shape)
    out = F.rms_norm(x, x.shape[-1:], w, 1e-6)
    return out
""",
        strategy="replace",
    )


def test_a_view_of_the_buffer_is_brought_along() -> None:
    """``out`` is read later, though the kernel was handed ``rows``."""
    becomes(
        HEAD
        + """\
def f(x, w: torch.Tensor):
    out = torch.empty(2, 3, 8)
    rows = out.view(-1, 8)
    ops.rms_norm(rows, x, w, 1e-6)
    return out
""",
        REPLACED
        + """\
def f(x, w: torch.Tensor):
    out = torch.empty(2, 3, 8)
    rows = out.view(-1, 8)
    out = F.rms_norm(x, x.shape[-1:], w, 1e-6).reshape(out.shape)
    return out
""",
        strategy="replace",
    )


def test_a_view_as_argument() -> None:
    becomes(
        HEAD
        + """\
def f(x, w: torch.Tensor):
    out = torch.empty_like(x)
    ops.rms_norm(out.view(-1, 8), x.view(-1, 8), w, 1e-6)
    return out
""",
        REPLACED
        + """\
def f(x, w: torch.Tensor):
    input = x.view(-1, 8)
    out = F.rms_norm(input, input.shape[-1:], w, 1e-6).reshape(x.shape)
    return out
""".replace("input", "x_"),
        strategy="replace",
    )


def test_views_taken_before_the_write_are_taken_again() -> None:
    becomes(
        HEAD
        + """\
def f(x, w: torch.Tensor):
    out = torch.empty_like(x)
    left = out[:, :4]
    ops.rms_norm(out, x, w, 1e-6)
    return left.sum()
""",
        REPLACED
        + """\
def f(x, w: torch.Tensor):
    out = torch.empty_like(x)
    left = out[:, :4]
    out = F.rms_norm(x, x.shape[-1:], w, 1e-6)
    left = out[:, :4]
    return left.sum()
""",
        strategy="replace",
    )


def test_a_slice_of_a_buffer_is_assigned() -> None:
    becomes(
        HEAD
        + """\
def f(x, y, w: torch.Tensor):
    out = torch.empty(4, 16)
    ops.rms_norm(out[:, :8], x, w, 1e-6)
    ops.rms_norm(out[:, 8:], y, w, 1e-6)
    return out
""",
        REPLACED
        + """\
def f(x, y, w: torch.Tensor):
    out = torch.empty(4, 16)
    out[:, :8] = F.rms_norm(x, x.shape[-1:], w, 1e-6)
    out[:, 8:] = F.rms_norm(y, y.shape[-1:], w, 1e-6)
    return out
""",
        strategy="replace",
    )


def test_in_place_on_pieces_of_one_tensor() -> None:
    """q, k and v do not overlap, and nothing reads qkv afterwards."""
    text = fix(
        HEAD
        + """\
def f(self, qkv, positions, cache):
    q, k, v = qkv.split([32, 8, 8], dim=-1)
    ops.rotary_embedding(positions, q, k, 8, cache, True)
    return q, k, v
"""
    )
    assert "        q, k = rotary_embedding(" in text
    assert "    if q.requires_grad:\n" in text


def test_in_place_on_pieces_whose_whole_is_read_later_is_refused() -> None:
    (finding,) = findings(
        HEAD
        + """\
def f(self, qkv, positions, cache):
    q, k, v = qkv.split([32, 8, 8], dim=-1)
    ops.rotary_embedding(positions, q, k, 8, cache, True)
    return qkv
"""
    )
    assert finding.rule == "TRN102" and not finding.fixes
    assert "`qkv` shares storage with `q`" in finding.message


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("a, b = t\n{}(a, b, w, 1e-6)\nreturn t", "`t` holds `a` and is read later"),
        ("t = (h, r)\na, b = t\n{}(a, b, w, 1e-6)\nreturn h, r", "`t = (h, r)`"),
        ("s.h, s.r = h, r\n{}(h, r, w, 1e-6)\nreturn s", "`s.h, s.r = h, r`"),
        ("s.h, k = h, r\n{}(h, r, w, 1e-6)\nreturn s.h + k", "`s.h, k = h, r`"),
        ('d = {{"h": h}}\n{}(d["h"], r, w, 1e-6)\nreturn h', "`d` holds `h`"),
        ("d = [h, r]\n{}(d[0], d[1], w, 1e-6)\nreturn h", "`d` holds `h`"),
        ("d = s, h\n{}(d[1], r, w, 1e-6)\nreturn d", "`d` is a tuple"),
        ('d = {{}}\nd["h"] = h\n{}(d["h"], r, w, 1e-6)\nreturn h', "`d` holds `h`"),
        ('d = {{}}\nv = h\nd["h"] = v\n{}(d["h"], r, w, 1e-6)\nreturn h', "`d` holds `h`"),
        ("g = (t * 2 for t in (h, r))\n{}(h, r, w, 1e-6)\nreturn sum(g)", "`g = (t * 2"),
        ("g = zip((h, r), (1, 2))\n{}(h, r, w, 1e-6)\nreturn dict(g)", "`g = zip("),
        ("g = reversed((h, r))\n{}(h, r, w, 1e-6)\nreturn next(g)", "`g = reversed("),
        ("g = zip(h.unbind(0), s)\n{}(h, r, w, 1e-6)\nreturn next(g)", "`g = zip("),
        ("p = Pair(h, r)\n{}(h, r, w, 1e-6)\nreturn p", "`p = Pair("),
    ],
)
def test_tensors_that_something_holds_are_refused(lines: str, why: str) -> None:
    """A tuple, a dict or an object sees the write of the kernel, and would not see a new name."""
    body = textwrap.indent(lines.format("ops.fused_add_rms_norm"), "    ")
    (finding,) = findings(HEAD + f"def f(s, t, h, r, w):\n{body}\n")
    assert finding.rule == "TRN102" and not finding.fixes
    assert why in finding.message


KEPT = """\
def f(xs, w):
    outs = []
    {first}
    for x in xs:
        {second}
        {third}
            {fourth}
            ops.rms_norm(out, x, w, 1e-6)
            outs.append(out)
    return outs
"""
MADE = "out = torch.empty_like(x)"


@pytest.mark.parametrize(
    ("lines", "fixed"),
    [
        (("pass", MADE, "if True:", "pass"), True),
        (("pass", "pass", "for _ in w:", MADE), True),
        (("pass", MADE, "for _ in w:", "pass"), False),  # the same one twice
        ((MADE, "pass", "if True:", "pass"), False),
        (("pass", f"if w is x: {MADE}", "if True:", "pass"), False),
        ((MADE, "out_ = out", "if True:", "out = out_"), False),
    ],
)
def test_buffers_that_each_turn_of_a_loop_makes_and_keeps(
    lines: tuple[str, ...], fixed: bool
) -> None:
    names = ("first", "second", "third", "fourth")
    (finding,) = findings(HEAD + KEPT.format(**dict(zip(names, lines, strict=True))))
    assert bool(finding.fixes) == fixed
    assert fixed or "kept elsewhere by `outs.append(out)`" in finding.message


@pytest.mark.parametrize(
    "view",
    [
        "torch.Tensor.view(x, -1)",
        "torch.narrow(x, 0, 0, 1)",
        "x.as_strided((2, 2), (1, 1))",
        "einops.rearrange(x, 'b d -> (b d)')",
        "rearrange(x, 'b d -> (b d)')",
        "x.ravel()",
    ],
)
def test_views_of_every_spelling_are_made_again(view: str) -> None:
    head = HEAD + "import torch, einops\nfrom einops import rearrange\n"
    body = f"    v = {view}\n    ops.fused_add_rms_norm(x, r, w, 1e-6)\n    return v, x, r\n"
    fixed = fix(f"{head}def f(s, r, w):\n    x = s + 1\n{body}")
    assert f"x = F.rms_norm(r, r.shape[-1:], w, 1e-6)\n        v = {view}\n" in fixed


@pytest.mark.parametrize(
    "before",
    ["k, v = map(torch.clone, (x, r))", "k = sum(t.sum() for t in (x, r))", "k = max(zip(s, s))"],
)
def test_what_is_done_with_before_the_write_does_not_matter(before: str) -> None:
    text = (
        HEAD
        + "import torch\n"
        + (
            f"def f(s, r, w):\n    x = s + 1\n    {before}\n"
            "    ops.fused_add_rms_norm(x, r, w, 1e-6)\n    return k, x, r\n"
        )
    )
    assert "F.rms_norm" in fix(text)


def test_an_alias_that_is_read_later_is_not_left_behind() -> None:
    """``skip`` sees the write of the kernel; after rebinding ``x`` it must see it too."""
    becomes(
        HEAD
        + """\
def f(y, r, w: torch.Tensor):
    x = y * 2
    skip = x
    ops.fused_add_rms_norm(x, r, w, 1e-6)
    return x + skip, r
""",
        REPLACED
        + """\
def f(y, r, w: torch.Tensor):
    x = y * 2
    skip = x
    r = x + r
    x = F.rms_norm(r, r.shape[-1:], w, 1e-6)
    skip = x
    return x + skip, r
""",
        strategy="replace",
    )


def test_a_residual_taken_before_a_new_value_is_not_an_alias() -> None:
    becomes(
        HEAD
        + """\
def f(x, w: torch.Tensor):
    residual = x
    x = x * 2
    out = torch.empty_like(x)
    ops.rms_norm(out, x, w, 1e-6)
    return out + residual
""",
        REPLACED
        + """\
def f(x, w: torch.Tensor):
    residual = x
    x = x * 2
    out = F.rms_norm(x, x.shape[-1:], w, 1e-6)
    return out + residual
""",
        strategy="replace",
    )


def test_a_buffer_of_the_caller_is_copied_into() -> None:
    becomes(
        HEAD
        + """\
def norm(x, w: torch.Tensor, out):
    ops.rms_norm(out, x, w, 1e-6)
    return out
""",
        HEAD
        + """\
def norm(x, w: torch.Tensor, out):
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        out.copy_(F.rms_norm(x, x.shape[-1:], w, 1e-6))
    else:
        ops.rms_norm(out, x, w, 1e-6)
    return out
""",
    )


@pytest.mark.parametrize(
    "call", ["ops.rms_norm(x, x, w, 1e-6)", "ops.fused_add_rms_norm(x, r, w, 1e-6)"]
)
def test_what_only_the_caller_reads_is_copied_into_where_a_person_looks(call: str) -> None:
    """Autograd may have saved the value that the copy overwrites."""
    before = HEAD + f"def norm_(x, r, w: torch.Tensor):\n    {call}\n"
    assert fix(before) == before
    assert "        x.copy_(F.rms_norm(" in fix(before, unsafe=True)


def test_a_caller_that_drops_the_result_expects_the_write() -> None:
    text = fix(
        HEAD
        + """\
class Norm(torch.nn.Module):
    def forward(self, x, residual):
        ops.fused_add_rms_norm(x, residual, self.weight.data, 1e-6)
        return x, residual


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()

    def forward(self, x, residual):
        x = x * 2
        residual = residual * 2
        self.norm(x, residual)
        return x + residual
""",
        unsafe=True,
    )
    assert "x.copy_(F.rms_norm(" in text and "residual.copy_(" in text


def test_a_caller_that_uses_the_result_does_not() -> None:
    text = fix(
        HEAD
        + """\
class Norm(torch.nn.Module):
    def forward(self, x, residual):
        ops.fused_add_rms_norm(x, residual, self.weight.data, 1e-6)
        return x, residual


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()

    def forward(self, x, residual):
        x, residual = self.norm(x * 2, residual)
        return x + residual
"""
    )
    assert "            residual = x + residual\n            x = F.rms_norm(" in text


STEP = """\
import torch
from causal_conv1d import causal_conv1d_update


class Mixer(torch.nn.Module):
    def forward(self, x, cache):
        state = cache.state(self)
        {call}
        return y

    def step(self, x, state):
        x = causal_conv1d_update(x, state, self.weight, self.bias, "silu")
        return self.out(x), state
"""


STEPS = [
    ("y, state = self.step(x, state)\n        cache.keep(state)", False),
    ("y, self.state = self.step(x, self.state)", False),
    ("y, _ = self.step(x, state)", True),  # it is in the cache
    ("y, state = self.step(x, state)", True),
    ("y, _ = self.step(x, self.state)", True),
    ("y = self.step(x, self.state)[0]", True),
    ("y = self.step(x, state[0])[0]\n        y = y + state.mean()", True),
]


@pytest.mark.parametrize(("call", "expected", "strategy"), in_turn(STEPS, STRATEGIES))
def test_a_caller_whose_state_outlives_the_call_expects_the_write(
    call: str, expected: bool, strategy: str
) -> None:
    text = STEP.format(call=call)
    (finding,) = findings(text)
    assert (finding.fixes[strategy].safety is Safety.UNSAFE) == expected
    assert ("state.copy_(" in fix(text, strategy=strategy, unsafe=True)) == expected


def test_a_caller_that_ignores_a_residual_does_not_hold_it() -> None:
    text = fix(
        HEAD
        + """\
def norm(x, residual, w: torch.Tensor):
    ops.fused_add_rms_norm(x, residual, w, 1e-6)
    return x, residual


def last(x, residual, w):
    x, _ = norm(x, residual, w)
    return x
"""
    )
    assert "        residual = x + residual\n" in text


def test_a_buffer_that_the_new_form_reads_is_made_in_any_case() -> None:
    text = """\
import awq_ext
import torch


def route(gating, k):
    weights = torch.empty(gating.shape[0], k, device=gating.device)
    ids = torch.empty(gating.shape[0], k, dtype=torch.int32, device=gating.device)
    rows = torch.empty_like(ids)
    awq_ext.topk_softmax(weights, ids, rows, gating)
    return weights, ids
"""
    for strategy in ("flag", "replace"):
        fixed = fix(text, strategy=strategy)
        head, _, rest = fixed.partition("k_ = ids.shape[-1]\n")
        assert rest and head.count("    ids = torch.empty(") == 1
        assert "    ids = torch.empty(" not in rest


def test_an_attribute_made_here() -> None:
    becomes(
        HEAD
        + """\
class Norm(torch.nn.Module):
    def forward(self, x):
        self.out = torch.empty_like(x)
        ops.rms_norm(self.out, x, self.weight.data, self.eps)
        return self.out
""",
        REPLACED
        + """\
class Norm(torch.nn.Module):
    def forward(self, x):
        self.out = F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return self.out
""",
        strategy="replace",
    )


def test_a_result_inside_an_expression_and_a_return() -> None:
    becomes(
        """\
import torch
import torch.nn.functional as F
from sgl_kernel import rmsnorm, silu_and_mul


class MLP(torch.nn.Module):
    def forward(self, x):
        return self.down(silu_and_mul(self.up(rmsnorm(x, self.weight.data, self.eps))))
""",
        """\
import torch
import torch.nn.functional as F
from sgl_kernel import rmsnorm, silu_and_mul


class MLP(torch.nn.Module):
    def forward(self, x):
        if torch.is_grad_enabled():
            input_ = self.up(F.rms_norm(x, x.shape[-1:], self.weight, self.eps))
            gate, up = input_.float().chunk(2, dim=-1)
            return self.down((F.silu(gate) * up).to(input_.dtype))
        return self.down(silu_and_mul(self.up(rmsnorm(x, self.weight.data, self.eps))))
""",
    )


def test_in_the_head_of_a_compound_statement() -> None:
    becomes(
        """\
import torch
from sgl_kernel import rmsnorm


def f(x, w):
    if rmsnorm(x, w).sum() > 0:
        return x
""",
        """\
import torch
import torch.nn.functional as F
from sgl_kernel import rmsnorm


def f(x, w):
    if (
        F.rms_norm(x, x.shape[-1:], w, 1e-6)
        if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)
        else rmsnorm(x, w)
    ).sum() > 0:
        return x
""",
    )


def test_names_of_the_author_are_not_reused() -> None:
    text = fix(
        """\
import torch
from sgl_kernel import silu_and_mul


def f(x, gate):
    y = silu_and_mul(x)
    return y * gate
"""
    )
    assert "gate_, up = x.float().chunk(2, dim=-1)" in text


def test_values_that_a_partial_captured_elsewhere() -> None:
    text = fix(
        """\
from functools import partial

import torch
from sgl_kernel import rmsnorm


class Norm(torch.nn.Module):
    def __init__(self, eps, other):
        super().__init__()
        self.eps = eps
        self.a = partial(rmsnorm, eps=eps)
        self.b = partial(rmsnorm, eps=other + 1)
        self.c = partial(rmsnorm, eps=1e-3)

    def forward(self, x, w):
        return self.a(x, w) + self.b(x, w) + self.c(x, w)
""",
        strategy="replace",
    )
    text = "".join(text.split())
    assert "F.rms_norm(x,x.shape[-1:],w,self.eps)" in text
    assert 'F.rms_norm(x,x.shape[-1:],w,self.b.keywords["eps"])' in text
    assert "F.rms_norm(x,x.shape[-1:],w,1e-3)" in text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("unit", ["    ", "  ", "\t"])
def test_the_author_s_layout_is_kept(newline: str, unit: str) -> None:
    before = (
        HEAD
        + "def f(x, w: torch.Tensor):\n    out = torch.empty_like(x)\n"
        + "    ops.rms_norm(out, x, w, 1e-6)\n    return out\n"
    )
    before = before.replace("    ", unit).replace("\n", newline)
    from trainify.engine import fix_text

    after = fix_text(before, "m.py").text
    assert (
        f"{unit * 2}out = F.rms_norm(x, x.shape[-1:], w, 1e-6){newline}{unit}else:{newline}"
        in after
    )
    assert after.count("\n") == after.count(newline)


def test_strings_over_several_lines_keep_their_text() -> None:
    becomes(
        HEAD
        + """\
def f(x, w: torch.Tensor):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, w, float(\"\"\"
1e-6
\"\"\"))
    return out
""",
        HEAD
        + """\
def f(x, w: torch.Tensor):
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        out = F.rms_norm(x, x.shape[-1:], w, float(\"\"\"
1e-6
\"\"\"))
    else:
        out = torch.empty_like(x)
        ops.rms_norm(out, x, w, float(\"\"\"
1e-6
\"\"\"))
    return out
""",
    )


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
def test_where_torch_means_something_else_nothing_is_written(strategy: str) -> None:
    before = (
        "import flashinfer\n\ntorch = None\n\n\ndef f(x, w):\n    return flashinfer.rmsnorm(x, w)\n"
    )
    assert fix(before, strategy=strategy) == before


# -- a file that imports torch under a condition --------------------------------------------------


def test_torch_is_not_imported_twice() -> None:
    guarded = """\
from .utils import is_torch_available

if is_torch_available():
    import torch
    from torch import nn
    from vllm import _custom_ops as ops


class Norm(nn.Module):
    def forward(self, out, x):
        ops.silu_and_mul(out, x)
"""
    fixed = fix(guarded.replace("nn.Module", "torch.nn.Module"))
    assert fixed.count("import torch\n") == 1
    assert "if torch.is_grad_enabled() and x.requires_grad:" in fixed
    assert fix(guarded.replace("(nn.Module)", "")).count("import torch\n") == 2


def test_an_import_is_parted_from_those_of_the_file_s_own_package(tmp_path: Path) -> None:
    text = """\
# Copyright
from mine.kernels import fast
from vllm._custom_ops import silu_and_mul


def f(x, out):
    silu_and_mul(out, x)
    return fast(out)
"""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").touch()
    path = tmp_path / "mine/act.py"
    fixed = fix_text(text, str(path), Options(unsafe=True)).text
    head = "# Copyright\nimport torch\nimport torch.nn.functional as F\n\nfrom mine.kernels"
    assert fixed.startswith(head)


PROCEDURE = """\
class Backend:
    def rotate_and_store(self, positions, query, key, table, cache: torch.Tensor):
        if self.encoder:
            return
        ops.rotary_embedding(positions, query, key, 64, table, True)
        self.store(key, cache)
"""


@pytest.mark.parametrize("returned", ["", "        return key\n"])
def test_what_a_procedure_writes_is_for_its_callers(returned: str) -> None:
    text = fix(HEAD + PROCEDURE + returned, unsafe=True)
    assert "query.copy_(query_new)\n" in text
    assert ("key.copy_(key_new)\n" in text) is (not returned)


def test_strings_have_the_quotes_that_formatters_put() -> None:
    text = fix(
        HEAD
        + """\
def route(logits: torch.Tensor, bias: torch.Tensor):
    if bias.is_cuda:
        return ops.grouped_topk(logits, 8, 4, 2, True, 1.0, bias, 0)
    return ops.grouped_topk(logits, 8, 4, 2, True, 1.0, bias, 1)
""",
        unsafe=True,
    )
    assert 'scoring="sigmoid"' in text


def test_a_key_keeps_its_quotes() -> None:
    text = fix(
        HEAD
        + """\
def norm(x, weights):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, weights["norm2"], 1e-6)
    return out
"""
    )
    assert "'" not in text and 'weights["norm2"].requires_grad' in text


# -- calls in calls -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "asked"),
    [
        ("rmsnorm(x, w, 1e-6)", "torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)"),
        ("rmsnorm(x, w, 1e-6).view(-1, 8)[0]", "(x.requires_grad or w.requires_grad)"),
        ("gelu_and_mul(silu_and_mul(x))", "torch.is_grad_enabled() and x.requires_grad"),
        ("rmsnorm(x @ y, w, 1e-6)", "torch.is_grad_enabled()"),
        ("proj(rmsnorm(x, w, 1e-6))", "torch.is_grad_enabled()"),
    ],
)
def test_what_a_call_gets_from_another_is_asked_there(inner: str, asked: str) -> None:
    text = f"""\
import torch
from flashinfer import gelu_and_mul, rmsnorm, silu_and_mul


def f(x, y, w, proj):
    return proj(silu_and_mul({inner}))
"""
    assert f"{asked}:\n" in fix(text)


def test_an_argument_over_several_lines() -> None:
    text = fix(
        """\
import torch
from vllm import _custom_ops as ops


def f(x, w: torch.Tensor, eps):
    out = torch.empty_like(x)
    ops.rms_norm(
        out,
        x
        if eps
        else x.contiguous(),
        w,
        1e-6
        if eps is None
        else eps,
    )
    return out
"""
    )
    assert "F.rms_norm(" in text and text.count("if eps is None") == 2


def test_a_value_that_an_older_release_gives_has_no_place() -> None:
    """An op of a newer release writes into ``out=``, and gives nothing."""
    text = """\
    from torch import nn
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update


    class Mixer(nn.Module):
        def forward(self, x, state, dt, b, c):
            out = selective_state_update(state, x, dt, self.A, b, c, self.D, None)
            return out.mean()
    """
    (found,) = findings(text)
    assert not found.fixes
    assert "its value is used, and no `out` is passed to hold that" in found.message


def test_tables_of_a_rotation_are_cut_to_its_steps() -> None:
    """Without offsets there are no positions to speak of."""
    fixed = fix(
        """\
        from flash_attn.ops.triton.rotary import apply_rotary


        def f(x, cos, sin):
            return apply_rotary(x, cos, sin)
        """,
        strategy="replace",
    )
    assert "cos[:length], sin[:length]" in fixed
    assert "positions" not in fixed


@pytest.mark.parametrize(
    "alias",
    [
        "x.mul_(2)",
        "torch.relu_(x)",
        "F.silu(x, inplace=True)",
        "torch.nn.functional.relu(x, inplace=True)",
        "torch.atleast_2d(x)",
    ],
)
def test_what_an_operation_returns_that_writes_in_place(alias: str) -> None:
    text = f"{HEAD}def f(x, r, w: torch.Tensor):\n    h = {alias}\n"
    becomes(
        text + "    ops.fused_add_rms_norm(h, r, w, 1e-6)\n    return x, r\n",
        text.replace(HEAD, REPLACED)
        + """\
    r = h + r
    x = F.rms_norm(r, r.shape[-1:], w, 1e-6).reshape(x.shape)
    return x, r
""",
        strategy="replace",
    )


def test_what_copies_under_the_name_of_a_view() -> None:
    """``F.unfold``, where ``x.unfold`` is a view."""
    text = f"{HEAD}def f(x, r, w: torch.Tensor):\n    h = F.unfold(x, 3)\n"
    becomes(
        text + "    ops.fused_add_rms_norm(h, r, w, 1e-6)\n    return x, h, r\n",
        text.replace(HEAD, REPLACED)
        + """\
    r = h + r
    h = F.rms_norm(r, r.shape[-1:], w, 1e-6)
    return x, h, r
""",
        strategy="replace",
    )
