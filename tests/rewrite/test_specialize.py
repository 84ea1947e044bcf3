"""Specialized reference functions compute what the general ones do, bit for bit."""

from __future__ import annotations

import ast
import inspect
import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests import each
from tests.catalog.test_rows import FUNCTIONS, OF_A_KIND, example, identify, parsed
from tests.reference.cases import Case
from tests.reference.every_case import CASES
from trainify.catalog import FusedOp, all_ops
from trainify.engine import Options, fix_text
from trainify.rewrite.layout import fit
from trainify.rewrite.specialize import Library, Use, helper_text, library, reference
from trainify.rewrite.template import Place, Template

GOLDEN = Path(__file__).parent / "golden"
OPS = sorted(
    (op for op in all_ops() if op.equivalent is not None), key=lambda op: op.equivalent or ""
)
"""Those of one equivalent one after the other: what is made for the first serves the next."""
LITERALS = (type(None), bool, int, float, str, tuple)

torch.set_num_threads(1)


def texts(made: Library, width: int = 88) -> dict[str, str]:
    names = tuple((name, name) for name in made.functions)
    return {
        name: helper_text(
            function, torch="torch", functional="F", helper_names=names, unit="    ", width=width
        )
        for name, function in made.functions.items()
    }


def load(made: Library) -> dict[str, Any]:
    """The functions of a library, run from their texts alone."""
    namespace: dict[str, Any] = {"torch": torch, "F": F}
    for text in texts(made).values():
        exec(text, namespace)
    return namespace


def subsets(names: Iterable[str], limit: int) -> list[tuple[str, ...]]:
    """All subsets where they are few; else all, none and a random choice; or all names alone."""
    names = list(names)
    every = [c for n in range(len(names) + 1) for c in itertools.combinations(names, n)]
    if limit == 1:
        return every[-1:]
    if len(every) <= limit:
        return every
    return [every[0], every[-1], *random.Random(0).sample(every[1:-1], limit - 2)]


def call(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Results, and gradients with respect to every floating-point tensor."""
    leaves = {
        name: value.detach().clone().requires_grad_()
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    result = function(**{**arguments, **leaves})
    results = list(result) if isinstance(result, tuple) else [result]
    outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not outputs or not leaves:
        return results, dict.fromkeys(leaves)
    weights = [torch.linspace(-1, 1, o.numel()).view(o.shape).to(o.dtype) for o in outputs]
    grads = torch.autograd.grad(outputs, list(leaves.values()), weights, allow_unused=True)
    return results, dict(zip(leaves, grads, strict=True))


def same(a: Iterable[Any], b: Iterable[Any]) -> bool:
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x is y
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("number", range(0, len(CASES), 6), ids=map(str, CASES[::6]))
def test_reference_functions(number: int) -> None:
    """Every sixth with all options known; some of them with some and with none known too."""
    specialized_is_general(CASES[number], limit=1 if number % 24 else 3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_functions_thoroughly(case: Case) -> None:
    specialized_is_general(case, limit=40)


def specialized_is_general(case: Case, limit: int) -> None:
    name = case.function.__name__
    signature = inspect.signature(case.function).parameters
    defaults = {n: p.default for n, p in signature.items() if p.default is not p.empty}
    for seed in range(1 if limit < 10 else 5):
        drawn = dict(zip(signature, case.make(3 + seed, torch.float32), strict=False))
        arguments = {**defaults, **drawn}
        if seed == 1:
            arguments.update(defaults)  # a call that leaves all options alone
        try:
            expected, gradients = call(case.function, arguments)
        except (RuntimeError, TypeError, ValueError, IndexError):
            assert seed == 1  # the shapes were drawn for other options
            continue
        options = [n for n, v in arguments.items() if isinstance(v, LITERALS)]
        given = frozenset(n for n, v in arguments.items() if v is not None)
        for i, known in enumerate(subsets(options, limit)):
            use = Use.of(
                f"{name}({', '.join(signature)})",
                {n: repr(arguments[n]) for n in known},
                given if i % 2 else frozenset(),
                late=True,
            )
            made = library((use,))
            function = load(made)[name]
            left = [*inspect.signature(function).parameters]
            assert not set(left) & set(known)
            got, grads = call(function, {n: arguments[n] for n in left})
            assert same(got, expected), texts(made)[name]
            assert {n: g for n, g in gradients.items() if n in left}.keys() == grads.keys()
            assert same(grads.values(), [gradients[n] for n in grads]), texts(made)[name]


FORMS = ("literals", "variables", "left alone")


@pytest.mark.parametrize(
    ("op", "form"), each.in_turn({identify(op): op for op in OF_A_KIND}, FORMS)
)
def test_a_row_of_each_kind(op: FusedOp, form: str) -> None:
    as_written_at_a_call(op, [form])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_row(part: int) -> None:
    for op in OPS[len(OPS) * part // 4 : len(OPS) * (part + 1) // 4]:
        with each.case(identify(op)):
            as_written_at_a_call(op, FORMS)


def as_written_at_a_call(op: FusedOp, forms: Iterable[str]) -> None:
    """With options left alone, as literals, as variables."""
    targets, value = parsed(op)
    arguments = example(op)
    scope = {"torch": torch, "F": F, **FUNCTIONS}
    expected = eval(compile(ast.Expression(value), "row", "eval"), scope, arguments)
    expected = expected if isinstance(expected, tuple) else (expected,)
    defaults = {a.name: a.default for a in op.signature.arguments}
    options = {
        n: repr(v)
        for n, v in arguments.items()
        if isinstance(v, LITERALS) and "tensor(" not in repr(v)
    }
    alone = {n for n, text in options.items() if text == defaults[n]}
    as_literals: dict[str, str | None] = {n: options.get(n, n) for n in arguments}
    as_variables: dict[str, str | None] = {n: n for n in arguments}
    left_alone = {n: None if n in alone else text for n, text in as_literals.items()}
    of_form = {
        "literals": (as_literals, False),
        "variables": (as_variables, True),
        "left alone": (left_alone, False),
    }
    for chosen, late in map(of_form.__getitem__, forms):
        written = {**dict.fromkeys(defaults), **chosen}
        shown = {n: str(defaults[n]) if text is None else text for n, text in written.items()}
        use = Use.of(ast.unparse(value), shown, late=late)
        made = library((use,))
        template = Template(op, written, library=made, use=use)
        places = [Place(f"result_{i}") for i in range(len(expected))]
        if late and targets is None and len(expected) == 1:
            rendered = template.render((), frozenset(arguments), value=True)
            assert not rendered.statements
            lines = [f"result_0 = {rendered.value}"]
        else:
            lines = template.render(places, frozenset(arguments)).statements
        scope = {**load(made), **arguments}
        exec("\n".join(lines), scope)
        assert same([scope[p.text] for p in places], expected), "\n".join(lines)
        assert set(template.needs) <= set(made.functions)


EVERY_FIFTH = list(FUNCTIONS)[::5]


@pytest.mark.parametrize(
    ("name", "known"),
    each.some(
        [(name, ("all", "none")[number % 2]) for number, name in enumerate(EVERY_FIFTH)],
        itertools.product(FUNCTIONS, ("all", "none")),
    ),
)
def test_texts_are_true_and_fit(name: str, known: str) -> None:
    """No docstring speaks of a parameter that is gone, unless of an option that is taken."""
    function = reference(name)
    assert function is not None
    options = function.defaults if known == "all" else {}
    use = Use.of(f"{name}({', '.join(function.parameters)})", options, late=True)
    helpers = texts(library((use,)))
    assert all(len(x) <= 88 for text in helpers.values() for x in text.split("\n"))
    definition = ast.parse(helpers[name]).body[0]
    assert isinstance(definition, ast.FunctionDef)
    docstring = ast.get_docstring(definition)
    assert docstring, f"nothing is left to say of {name}"
    gone = [p for p in options if options[p] != "True"]
    assert not [p for p in gone if re.search(rf"\b{p}\b", docstring, re.IGNORECASE)]


# -- a file at a time


HEAD = """\
import torch
import torch.nn.functional as F
from flash_attn import flash_attn_with_kvcache
from vllm.vllm_flash_attn import flash_attn_varlen_func


"""
CAUSAL = """\
def causal(q, k, v, cu, n):
    return flash_attn_varlen_func(q, k, v, n, cu, n, cu, causal=True)
"""
FULL = """\
def full(q, k, v, cu, n):
    return flash_attn_varlen_func(q, k, v, n, cu, n, cu)
"""
CAPPED = """\
def capped(q, k, v, cu, n, cap):
    return flash_attn_varlen_func(q, k, v, n, cu, n, cu, causal=True, softcap=cap)
"""


@cache
def fixed(text: str) -> str:
    done = fix_text(text, "m.py", Options()).text
    assert fix_text(done, "m.py", Options()).text == done
    return done


def functions(text: str) -> list[str]:
    return [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]


def evaluate(text: str, name: str, *arguments: Any) -> torch.Tensor:
    text = re.sub(r"^from (flash_attn|vllm).*\n", "", text, flags=re.MULTILINE)
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    result = namespace[name](*arguments)
    assert isinstance(result, torch.Tensor)
    return result


def packed() -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(6, 2, 4, generator=generator).requires_grad_() for _ in range(3))
    return q, k, v, torch.tensor([0, 2, 6]), 4


def test_calls_share_one_helper() -> None:
    text = fixed(HEAD + CAUSAL + "\n\n" + FULL)
    assert functions(text).count("varlen_attention") == 1
    assert "causal=True" in text and "causal=False" in text
    general = FUNCTIONS["varlen_attention"]
    q, k, v, cu, n = packed()
    for name in ("causal", "full"):
        got = evaluate(text, name, q, k, v, cu, n)
        assert torch.equal(got, general(q, k, v, cu, cu, causal=name == "causal"))


@pytest.mark.parametrize(
    ("first", "second"), [(CAUSAL, CAUSAL), (CAUSAL, FULL), (FULL, CAPPED), (CAPPED, CAUSAL)]
)
def test_a_call_that_is_added_later(first: str, second: str) -> None:
    """It uses the helper from before where that serves, and else brings its own."""
    second = second.replace("def ", "def later_")
    text = fixed(fixed(HEAD + first) + "\n\n" + second)
    general = FUNCTIONS["varlen_attention"]
    q, k, v, cu, n = packed()
    for definition in (first, second):
        name = definition[4 : definition.index("(")]
        more = (2.0,) if "cap" in name else ()
        got = evaluate(text, name, q, k, v, cu, n, *more)
        options = {"causal": "full" not in name, "softcap": more[0] if more else 0.0}
        assert torch.equal(got, general(q, k, v, cu, cu, **options))
    if first.split("def ")[1] == second.split("later_")[1]:
        assert "_native" not in text


def test_a_more_general_helper_is_used_again() -> None:
    both = fixed(HEAD + CAUSAL + "\n\n" + FULL)
    more = fixed(both + "\n\n" + CAUSAL.replace("causal(", "again("))
    assert functions(more) == [*functions(both), "again"]


def test_a_name_of_the_file_is_left_alone() -> None:
    own = 'def varlen_attention(q):\n    """Mine."""\n    return q\n\n\n'
    text = fixed(HEAD + own + CAUSAL)
    assert own in text
    assert "varlen_attention_native" in functions(text)


def test_where_no_statement_can_stand_the_helper_is_called() -> None:
    text = fixed(
        "from vllm import _custom_ops as ops\n"
        "from sgl_kernel import fused_add_rmsnorm, silu_and_mul\n\n\n"
        "def f(xs):\n    return [silu_and_mul(x.view(2, -1)) for x in xs]\n"
    )
    assert "silu_and_mul_fp32(x.view(2, -1))" in text


# -- what users get


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    """A file before and after, with a line of dashes between them."""
    before, after = re.split(r"^-{20,}\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert fixed(before) == after


# -- formulas over long operands ------------------------------------------------------------------

SCALED = """\
import torch


class Experts(torch.nn.Module):
    def forward(self, x, scale, bias=None):
        gate = torch._scaled_mm(
            x,
            self.gate_up_proj[0].transpose(0, 1)[: self.expert_dim].contiguous().t(),
            scale_a=scale.unsqueeze(-1),
            scale_b=self.gate_up_proj_scale[0].view(-1, 1).contiguous().t(),
            out_dtype=torch.bfloat16,
        )
        return gate
"""


def test_long_operands_of_a_formula_get_names() -> None:
    text = fix_text(SCALED, "m.py", Options(strategy="replace", unsafe=True)).text
    assert (
        """\
        b = self.gate_up_proj[0].transpose(0, 1)[: self.expert_dim].contiguous().t()
        scale_b = self.gate_up_proj_scale[0].view(-1, 1).contiguous().t()
        out = (
            (x.float() @ b.float())
            * scale.unsqueeze(-1).float().reshape(-1, 1)
            * scale_b.float().reshape(1, -1)
        )
"""
        in text
    )
    assert all(len(line) <= 88 for line in text.splitlines())


def test_a_function_that_stands_there_anyway_is_called() -> None:
    more = SCALED.replace("out_dtype=torch.bfloat16,", "out_dtype=torch.bfloat16, bias=bias,")
    _, _, body = more.partition("torch.nn.Module):\n")
    text = SCALED + "\n" + body.replace("def forward", "def biased")
    fixed = fix_text(text, "m.py", Options(strategy="replace", unsafe=True)).text
    assert fixed.count("gate = scaled_mm(") == 2
    assert "bias=None," in fixed


def test_operands_stand_below_each_other() -> None:
    line = "total = first_operand(1) * second_operand + third_operand(2, 3) - (fourth + fifth)"
    assert fit(line, "", "    ", 50) == [
        "total = (",
        "    first_operand(1) * second_operand",
        "    + third_operand(2, 3)",
        "    - (fourth + fifth)",
        ")",
    ]
    for other in ("x = a - b if c else d", "x = a + b and c", "x = a < b - c", "f(a + b)"):
        assert fit(other, "", "    ", 5) == [other] or "(" in other
