"""Every row: its schema reads, its equivalent fits it, runs and lets the gradient through."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import pkgutil
import subprocess
import sys
import types
from collections import defaultdict
from typing import Any

import torch
import torch.nn.functional as F
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import trainify.reference
from tests.each import case
from trainify.catalog import CONSTANTS, RETURNED, FusedOp, all_ops, lookup, parse_schema, roots
from trainify.catalog.kinds import KINDS
from trainify.passes.fused_calls.rounded import FORMS
from trainify.reference.backward import CLOSED_FORMS
from trainify.rewrite.older_torch import NAMES as OLDER
from trainify.verify import inputs
from trainify.verify.equivalent import Equivalent, value_of
from trainify.verify.kernels import Libraries
from trainify.verify.samples import Draw

ROWS = all_ops()
FUNCTIONS: dict[str, types.FunctionType] = {}
for _info in pkgutil.iter_modules(trainify.reference.__path__):
    _module = importlib.import_module(f"trainify.reference.{_info.name}")
    for _name, _value in vars(_module).items():
        if isinstance(_value, types.FunctionType) and _value.__module__ == _module.__name__:
            assert _name not in FUNCTIONS, f"two reference functions are called {_name}"
            FUNCTIONS[_name] = _value


def identify(op: FusedOp) -> str:
    return f"{op.names[0]}{' ' if op.since else ''}{op.since}"


REWRITTEN = [op for op in ROWS if op.equivalent is not None]


def parsed(op: FusedOp) -> tuple[list[str] | None, ast.expr]:
    """The names that the equivalent assigns, or None for an expression; and its value."""
    assert op.equivalent is not None
    (statement,) = ast.parse(op.equivalent).body
    if isinstance(statement, ast.Expr):
        return None, statement.value
    assert isinstance(statement, ast.Assign)
    (target,) = statement.targets
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    assert all(isinstance(n, ast.Name) for n in names)
    return [n.id for n in names if isinstance(n, ast.Name)], statement.value


def called(value: ast.expr) -> list[ast.Call]:
    return [
        n
        for n in ast.walk(value)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in FUNCTIONS
    ]


def kind(op: FusedOp) -> tuple[str, int, bool]:
    """What code written for a row depends on: whose backward it has, and where its results go."""
    targets, value = parsed(op)
    names = [ast.unparse(call.func) for call in called(value)]
    function = names[0] if names else ""
    if function and function not in CLOSED_FORMS:  # autograd's, whatever the function
        function = FUNCTIONS[function].__module__
    return function, len(targets or ()), RETURNED in (targets or ())


OF_A_KIND = list({kind(op): op for op in reversed(REWRITTEN)}.values())
"""A row of each."""


def test_every_row_says_where_it_comes_from_and_what_becomes_of_it() -> None:
    for op in ROWS:
        assert op.names and len(set(op.names)) == len(op.names)
        assert op.name.isidentifier()
        assert op.source
        assert (op.equivalent is None) == bool(op.note), op.names
        # The module of the reference function says it, where there is one.
        assert bool(op.family) == (op.equivalent is None or not called(parsed(op)[1])), op.names
        assert op.cuts or op.equivalent is None
        assert not op.note.endswith(".")


def test_schemas_read() -> None:
    for op in REWRITTEN:
        with case(identify(op)):
            assert parse_schema(op.schema).name
            # A default must follow a default, as in a Python signature, or binding would misread
            # calls.
            positional = [a for a in op.signature.arguments if not a.kwarg_only]
            with_default = [a.default is not None for a in positional]
            assert with_default == sorted(with_default)


def test_unsupported_are_arguments() -> None:
    for op in REWRITTEN:
        with case(identify(op)):
            assert set(op.unsupported) <= {a.name for a in op.signature.arguments}
            tree = ast.parse(op.equivalent or "")
            used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            assert not used & set(op.unsupported)


def test_equivalents_assign_what_the_schema_writes() -> None:
    for op in REWRITTEN:
        targets, _ = parsed(op)
        written = list(op.signature.written)
        with case(identify(op)):
            if targets is None:
                # An expression gives what is returned; it can only stand for outputs that are
                # optional.
                assert op.signature.returns
                assert all(a.default == "None" for a in written)
            else:
                assert [t for t in targets if t != RETURNED] == [a.name for a in written]
                assert (RETURNED in targets) <= (len(op.signature.returns) == 1)


def test_equivalents_name_only_what_they_may() -> None:
    for op in REWRITTEN:
        _, value = parsed(op)
        arguments = {a.name for a in op.signature.arguments}
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        with case(identify(op)):
            assert names <= arguments | set(FUNCTIONS) | {"torch", "F"}
            for call in called(value):
                assert isinstance(call.func, ast.Name)
                signature = inspect.signature(FUNCTIONS[call.func.id])
                signature.bind(*call.args, **{k.arg: k.value for k in call.keywords if k.arg})


def test_equivalents_call_one_reference_function_at_most() -> None:
    """And nothing around it, so that its text, or a call of it, can stand for the equivalent."""
    for op in REWRITTEN:
        _, value = parsed(op)
        calls = called(value)
        with case(identify(op)):
            assert not calls or calls == [value]


def example(op: FusedOp, *, all_of_them: bool = False) -> dict[str, Any]:
    """Arguments of the op; tensors that may carry a gradient ask for one.

    What only the kernel is told is left out, unless ``all_of_them`` are wanted.
    """
    alone = "rms_norm_maybe_add" in (op.equivalent or "")  # with a residual it returns two
    fixed = {"residual": None} if alone else {}
    draw = Draw(0, torch.float32, strides="contiguous", fixed=fixed)
    equivalent = Equivalent(op, Libraries())
    drawn = inputs.arguments(equivalent, draw, all_of_them=all_of_them)
    if equivalent.measured & set(equivalent.outputs):  # of buffers the shape alone was drawn
        results = dict(zip(equivalent.outputs, equivalent(drawn), strict=True))
        drawn |= {n: torch.zeros_like(results[n]) for n in results if n in equivalent.measured}
    values: dict[str, Any] = {}
    for a in op.signature.arguments:
        if a.name in drawn or a.default is not None or a.is_optional:
            values[a.name] = drawn.get(a.name, value_of(a.default or "None"))
    chooses = "topk" in (op.equivalent or "")  # a bias there has no gradient
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            trained = name not in CONSTANTS and not (chooses and name == "bias")
            values[name] = value.detach().clone().requires_grad_(trained)
        elif isinstance(value, list) and name not in CONSTANTS:
            values[name] = [x.requires_grad_() if isinstance(x, torch.Tensor) else x for x in value]
    return values


def test_equivalents_run_and_let_the_gradient_through() -> None:
    for op in REWRITTEN:
        with case(identify(op)):
            runs_and_lets_the_gradient_through(op)


def test_integers_are_known_to_take_no_gradient() -> None:
    """Else a message names them, and a fix asks whether they require one."""
    for op in REWRITTEN:
        given = {a.name for a in op.signature.arguments if a.is_tensor and not a.written}
        values = inputs.arguments(
            Equivalent(op, Libraries()), Draw(0, torch.float32), all_of_them=False
        )
        integers = {
            name
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
            and not (value.is_floating_point() or value.is_complex())
        }
        with case(identify(op)):
            assert integers & given & op.reads <= CONSTANTS | set(op.codes)
            assert set(op.codes) <= given


def runs_and_lets_the_gradient_through(op: FusedOp) -> None:
    targets, value = parsed(op)
    arguments = example(op)
    equivalent = Equivalent(op, Libraries())
    used = equivalent.reads
    code = compile(ast.Expression(value), op.names[0], "eval")
    result = eval(code, {"torch": torch, "F": F, **FUNCTIONS}, arguments)
    results = result if isinstance(result, tuple) else (result,)
    assert len(results) == len(targets or op.signature.returns)
    for target, output in zip(targets or (), results, strict=bool(targets)):
        if isinstance(arguments.get(target), torch.Tensor) and target in used - equivalent.measured:
            assert output.shape == arguments[target].shape
            assert output.dtype == arguments[target].dtype
    leaves = {
        name: t
        for name, t in arguments.items()
        if name in used - equivalent.measured and isinstance(t, torch.Tensor) and t.requires_grad
    }
    for name in used & set(arguments):
        if isinstance(arguments[name], list):
            lists = {f"{name}[{i}]": t for i, t in enumerate(arguments[name])}
            tensors = {k: t for k, t in lists.items() if isinstance(t, torch.Tensor)}
            leaves |= {k: t for k, t in tensors.items() if name not in CONSTANTS}
    total = sum((output + output.square()).sum() for output in results if output is not None)
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for name, grad in zip(leaves, grads, strict=True):
        assert grad is not None, f"{name} gets no gradient"
        assert grad.isfinite().all()
        assert grad.any(), f"{name} gets a gradient of zeros"


def test_every_reference_function_is_used() -> None:
    values = [parsed(op)[1] for op in ROWS if op.equivalent]
    values += [ast.parse(kind.equivalent, mode="eval").body for kind in KINDS]
    used = {ast.unparse(call.func) for value in values for call in called(value)}
    used |= {name for name, _ in FORMS.values()}
    used |= {
        name
        for function in FUNCTIONS.values()
        for name in function.__code__.co_names
        if name in FUNCTIONS
    }
    assert set(FUNCTIONS) == used | set(CLOSED_FORMS.values()) | set(OLDER)
    assert used >= set(CLOSED_FORMS)


def specifiers(since: str) -> SpecifierSet:
    return SpecifierSet(since.lstrip("abcdefghijklmnopqrstuvwxyz_-") if since else "")


def test_since_is_a_range_of_the_library() -> None:
    for op in ROWS:
        specifiers(op.since)


def told_apart(one: FusedOp, other: FusedOp) -> bool:
    """Whether a tensor of the one stands where the other has a number, at least."""
    pairs = zip(one.signature.arguments, other.signature.arguments, strict=False)
    return any(a.is_tensor is not b.is_tensor for a, b in pairs)


def test_no_name_means_two_things_in_one_release() -> None:
    by_name: defaultdict[str, list[FusedOp]] = defaultdict(list)
    for op in ROWS:
        for name in op.names:
            by_name[name].append(op)
    for name, ops in by_name.items():
        for one, other in itertools.combinations(ops, 2):
            if not (one.since or other.since):
                assert told_apart(one, other), f"{name}: a call does not tell which it means"
                continue
            ranges = specifiers(one.since), specifiers(other.since)
            edges = [Version(s.version) for r in ranges for s in r]
            probes = [Version("0"), Version("999"), *edges]
            probes += [Version(f"{e}.1") for e in edges]
            both = [v for v in probes if all(v in r for r in ranges)]
            assert not both, f"{name}: {one.since!r} and {other.since!r} share {both}"


def test_the_newest_release_is_looked_up() -> None:
    op = lookup("vllm._custom_ops.rms_norm")
    assert op is not None
    assert op.since == "vllm>=0.20,!=0.23.0"
    assert lookup("torch.ops._C.silu_and_mul.default") is lookup("torch.ops._C.silu_and_mul")
    assert lookup("torch.ops._C") is None
    assert lookup("vllm._custom_ops") is None
    assert lookup("somewhere.rms_norm") is None


def test_constants_are_not_what_is_trained() -> None:
    trained = {"weight", "bias", "gamma", "beta", "input", "x", "query", "key", "value", "residual"}
    assert not CONSTANTS & trained


def test_roots_are_packages() -> None:
    assert {"vllm", "torch.ops", "flashinfer", "sgl_kernel"} <= set(roots())
    assert all("." not in root or root.startswith(("torch.", ".scaled_")) for root in roots())
    assert "torch" not in roots()
    assert "bitsandbytes" not in roots()  # what cuts there is called through torch.ops


def test_reading_the_catalog_does_not_import_torch() -> None:
    code = (
        "import sys, trainify.catalog as c; ops = c.all_ops(); [op.signature for op in ops if op.equivalent];"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
