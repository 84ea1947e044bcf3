"""Every op that was researched is recognized, and as what it is.

``recognized.txt`` holds the researched names under what they are expected to be: an op with an
equivalent, one that cuts a gradient, one that has none to lose, one with its own backward.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trainify.catalog import (
    by_library,
    is_differentiable,
    lookup,
    names_of_ops,
    roots,
    unverified,
)
from trainify.catalog.differentiable import NAMES
from trainify.engine import check_text
from trainify.passes.fused_calls.calls import PLAIN


def expected() -> dict[str, list[str]]:
    text = (Path(__file__).parent / "recognized.txt").read_text(encoding="utf-8")
    table: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            names = table.setdefault(line[2:], [])
        elif line:
            names.append(line)
    return table


EXPECTED = expected()


def standing(name: str) -> str:
    op = lookup(name)
    if op is None:
        return "differentiable" if is_differentiable(name) else "unknown"
    if op.equivalent is not None:
        return "equivalent"
    return "cuts" if op.cuts else "harmless"


@pytest.mark.parametrize("kind", EXPECTED)
def test_every_researched_name_is_recognized(kind: str) -> None:
    assert len(EXPECTED[kind]) > 50
    wrong = {name: standing(name) for name in EXPECTED[kind] if standing(name) != kind}
    assert not wrong


def test_no_name_is_two_things() -> None:
    rows = {name for ops in by_library().values() for op in ops for name in op.names}
    assert not rows & NAMES
    assert not rows & set(unverified())
    assert not NAMES & set(unverified())


def call_of(name: str) -> str:
    """A file that calls an op by its name and uses what it gives."""
    owner, _, function = name.rpartition(".")
    if owner.startswith("kernels."):
        head, value = "from kernels import get_kernel\n", f"{owner[len('kernels.') :]}.{function}"
    elif owner.endswith(".load()"):
        package, _, builder = owner.removesuffix("().load()").rpartition(".")
        head, value = f"from {package} import {builder}\n", f"{builder}().load().{function}"
    elif owner.startswith("torch."):
        head, value = "import torch\n", name
    else:
        head, value = f"from {owner} import {function}\n", function
    return f"{head}\n\ndef apply(x, y, z):\n    return {value}(x, y, z)\n"


@pytest.mark.parametrize("kind", ["differentiable", "harmless"])
def test_what_loses_no_gradient_is_never_reported(kind: str) -> None:
    names = [*EXPECTED[kind], *(NAMES if kind == "differentiable" else ())]
    assert not [name for name in names if check_text(call_of(name))]


def test_what_cuts_is_reported_and_left_alone() -> None:
    for name in EXPECTED["cuts"]:
        op = lookup(name)
        assert op is not None
        if ".load()" in name:  # what DeepSpeed's builder gives is not followed
            continue
        (finding,) = check_text(call_of(name))
        assert finding.rule == "TRN101", name
        assert finding.message.endswith(f"Not rewritten: {op.note}.")
        assert not finding.fixes


def test_unverified_kernels_are_reported_more_quietly() -> None:
    assert len(unverified()) > 1500
    (finding,) = check_text(call_of("sglang.kernels.ops.layernorm.norm.rmsnorm"))
    assert (finding.rule, finding.fixes) == ("TRN108", {})
    text = call_of("sglang.kernels.ops.layernorm.norm.rmsnorm")
    assert not check_text(text.replace("(x, y, z):\n", "(x):\n").replace("(x, y, z)", "(4, 2)"))
    assert not check_text(call_of("torch.ops._C.awq_marlin_repack"))  # packs weights


def test_unverified_names_are_qualified_and_their_packages_looked_for() -> None:
    packages = {name.partition(".")[0] for name in unverified()}
    assert packages - set(roots()) <= {"torch", "gptqmodel"}
    for name in unverified():
        assert not name.startswith("torch.") or name.startswith("torch.ops.")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sglang.kernels.ops.attention.metadata.normal_decode_set_metadata", False),
        ("sglang.kernels.ops.moe.cutlass_prepare_moe_input.cutlass_prepare_moe_input", False),
        ("sglang.kernels.ops.gemm.fused_a_gemm.fused_a_gemm_weight_eligible", False),
        ("sglang.kernels.ops.gemm.fused_a_gemm.linear_with_fused_a_gemm", True),
    ],
)
def test_bookkeeping_is_no_kernel_on_the_way_of_a_gradient(name: str, told: bool) -> None:
    package, _, function = name.rpartition(".")
    text = f"from {package} import {function}\n\n\ndef f(x, w):\n    return {function}(x, w)\n"
    assert [f.rule for f in check_text(text, "m.py")] == ["TRN108"] * told


def test_methods_of_tensors_that_are_never_looked_up_are_no_names_of_ops() -> None:
    called = (*names_of_ops(), *unverified(), *NAMES)
    assert not PLAIN & {name.rpartition(".")[2] for name in called}
