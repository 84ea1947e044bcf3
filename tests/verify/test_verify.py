"""``trainify verify``: what is right passes, what is wrong is found, what cannot run is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from trainify.catalog import FusedOp, all_ops, lookup
from trainify.catalog.layers import FusedLayer
from trainify.output.verdicts import table
from trainify.passes import all_rules
from trainify.verify import Comparison, Job, Verdict, VerifyError, verify
from trainify.verify.checks import gradient
from trainify.verify.kernels import Libraries

SERVING = Path(__file__).parents[2] / "fixtures" / "gemma_serving"
GATE = "import torch\n\ndef op(x, w):\n    return torch.sigmoid(x.detach()) * w.detach()\n"


def job(name: str, **changes: object) -> Job:
    op = lookup(name)
    assert op is not None
    fields = {n: getattr(op, n) for n in ("names", "schema", "equivalent", "source")}
    return Job(name, FusedOp(**{**fields, **changes}))  # type: ignore[arg-type]


def own_job(name: str, module: str = "my_kernels") -> Job:
    op = FusedOp(
        (f"{module}.{name}",), f"{name}(Tensor x, Tensor w) -> Tensor", "torch.sigmoid(x) * w", ""
    )
    return Job(op.names[0], op)


# -- kernels that run -----------------------------------------------------------------------------


def test_the_stand_ins_agree(run) -> None:
    result = run("verify", "--format", "json", SERVING)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["summary"].startswith("6 of 6 kernels ran here on")
    assert "Gradients: 6 of 6 checked" in told["summary"]
    assert told["torch"]
    norm = next(op for op in told["ops"] if op["op"] == "sgl_kernel.gemma_rmsnorm")
    assert norm["calls"] >= 1
    assert norm["source"] and norm["gradcheck"] == "ok" and not norm["wrong"]
    assert norm["attached"] == "closed form, ok"
    assert {op["attached"] for op in told["ops"]} == {"closed form, ok", "computed anew"}
    single, half = norm["forward"]
    assert (single["dtype"], half["dtype"]) == ("float32", "bfloat16")
    assert single["scaled"] < 1e-6 and single["cases"] > 6 and half["equal"] > 0.99


@pytest.mark.slow
def test_every_gradient_in_the_catalog() -> None:
    jobs = [Job(op.names[0], op) for op in all_ops() if op.equivalent is not None]
    verdicts, _ = verify(jobs)
    assert {v.job.name: v.gradient for v in verdicts if v.gradient != "ok"} == {}
    attached = Counter(v.attached for v in verdicts)
    assert set(attached) == {"computed anew", "closed form, ok"}, attached


GRADIENTS = {
    "x.round().to(torch.int8) * y": "x gets no gradient in float32",  # to gradcheck it is x * y
    "quantize_through(x, torch.int8) * y": "",
    "x.detach() * y": "gradcheck: ",
    "torch.stack(xs).prod(0)": "",
    "xs[0].detach() * xs[1]": "gradcheck: ",
}


def test_what_a_gradient_can_get_wrong() -> None:
    for equivalent, wrong in GRADIENTS.items():
        arguments = "Tensor[] xs" if "xs" in equivalent else "Tensor x, Tensor y"
        op = FusedOp(("mine.op",), f"op({arguments}) -> Tensor", equivalent, "")
        said, _, found = gradient(Job("mine.op", op), Libraries())
        assert said == ("wrong" if wrong else "ok"), equivalent
        assert found.startswith(wrong) and bool(found) == bool(wrong)


WRONG = [
    ("vllm._custom_ops.rms_norm", "out = rms_norm(input, weight, epsilon * 2)"),
    ("vllm._custom_ops.rms_norm", "out = gemma_rms_norm(input, weight, epsilon)"),
    (
        "vllm._custom_ops.fused_add_rms_norm",
        "residual, input = fused_add_rms_norm(input, residual, weight, epsilon)",
    ),
    ("torch.ops._C.silu_and_mul", "out = mul_and_silu(input)"),
    ("torch.ops._C.gelu_tanh_and_mul", "out = gelu_and_mul(input)"),
    (
        "flashinfer.single_decode_with_kv_cache",
        "single_decode(q, k, v, kv_layout, sm_scale, window_left, sm_scale)",
    ),
    (
        "flash_attn.flash_attn_with_kvcache",
        "cached_attention(q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, True)",
    ),
    ("vllm._custom_ops.rotary_embedding",
     "query, key = rotary_embedding(positions, query, key, head_size, cos_sin_cache, not is_neox)"),
]  # fmt: skip


def test_wrong_rows_are_found(run) -> None:
    verdicts, _ = verify([job(name, equivalent=equivalent) for name, equivalent in WRONG])
    for verdict in verdicts:
        assert verdict.ran and verdict.wrong, verdict
        assert verdict.gradient == "ok"


def test_another_rounding_is_told(run) -> None:
    equivalent = "out = rms_norm_llama(input, weight, epsilon)"
    (verdict,), _ = verify([job("vllm._custom_ops.rms_norm", equivalent=equivalent)])
    notes = {each.dtype: each.note for each in verdict.forward}
    assert notes == {"float32": "", "bfloat16": "rounds otherwise"}
    assert not verdict.wrong


# -- ops of one's own -----------------------------------------------------------------------------


def test_an_own_op(run, library, own_op) -> None:
    library(GATE)
    own_op("torch.sigmoid(x) * w")
    result = run("verify")
    assert result.exit_code == 0
    table, said = result.stdout.split("\n\n")
    assert "my_kernels.op" in table and "attached: computed anew" in table
    assert "1 of 1 kernel ran here" in said


def test_an_own_op_with_a_wrong_equivalent(run, library, own_op) -> None:
    library(GATE)
    own_op("torch.tanh(x) * w")
    result = run("verify")
    assert result.exit_code == 1
    assert "WRONG: my_kernels.op" in result.stdout
    assert result.stderr.startswith("wrong: my_kernels.op: float32: differs by ")


KERNELS = {
    "nans": ("return torch.sigmoid(x) * w.new_tensor(float('nan'))", "has NaN"),
    "wide": ("return (torch.sigmoid(x) * w).double()", "gives float64"),
    "short": ("return (torch.sigmoid(x) * w)[..., :1]", "gives float32"),
    "none": ("pass", "gives NoneType, not float32"),
    "one": ("y = torch.sigmoid(x) * w; y[-1, -1] += 1e-3; return y", "differs by"),
}


def test_what_a_kernel_can_get_wrong(run, library) -> None:
    library(
        "import torch\n" + "".join(f"def {n}(x, w):\n    {t}\n" for n, (t, _) in KERNELS.items())
    )
    verdicts, _ = verify([own_job(name) for name in KERNELS])
    for verdict, (_, wrong) in zip(verdicts, KERNELS.values(), strict=True):
        assert wrong in verdict.wrong[0]


WRITES = {
    "x": "y = torch.sigmoid(x) * w; x.zero_(); return y",
    "x, w": "y = torch.sigmoid(x) * w; x += 1; w.data.neg_(); return y",
    "": "x, w = x.clone(), w.clone(); y = torch.sigmoid(x) * w; x.zero_(); w.zero_(); return y",
}


def test_a_kernel_that_writes_more_than_its_schema_says(run, library, own_op) -> None:
    bodies = "".join(f"def op{i}(x, w):\n    {t}\n" for i, t in enumerate(WRITES.values()))
    library("import torch\n" + bodies)
    verdicts, _ = verify([own_job(f"op{i}") for i in range(len(WRITES))])
    for verdict, names in zip(verdicts, WRITES, strict=True):
        said = f"it writes into {names}, which its schema does not mark (a!)"
        assert {each.wrong for each in verdict.forward} == ({said} if names else {""}), verdict
        assert verdict.ran and bool(verdict.wrong) == bool(names)


def test_what_a_schema_marks_may_be_written(run, library, own_op) -> None:
    library("def op(x, w):\n    x.mul_(w)\n")
    own_op("x = x * w", "(Tensor(a!) x, Tensor w) -> ()")
    result = run("verify")
    assert result.exit_code == 0, result.output
    library("def op(x, w):\n    x.mul_(w); w.zero_()\n")
    result = run("verify")
    assert result.exit_code == 1
    assert "it writes into w" in result.stderr


def test_a_kernel_that_leaves_its_output_alone(run, library, own_op) -> None:
    library("def op(out, x):\n    out[..., 1:] = x[..., 1:] * 2\n")
    own_op("out = x * 2", "(Tensor(a!) out, Tensor x) -> ()")
    assert "has NaN" in run("verify").stderr


def test_a_buffer_that_only_says_how_many(run, library) -> None:
    library(
        "def op(w, ids, gating):\n"
        "    values, found = gating.float().softmax(-1).topk(ids.shape[-1])\n"
        "    w.copy_(values), ids.copy_(found)\n"
    )
    schema = "op(Tensor(a!) w, Tensor(b!) ids, Tensor gating) -> ()"
    equivalent = "w, ids = softmax_topk(gating, ids.shape[-1])"
    (verdict,), _ = verify(
        [Job("my_kernels.op", FusedOp(("my_kernels.op",), schema, equivalent, ""))]
    )
    assert [each.cases for each in verdict.forward] == [12, 12, 12] and not verdict.wrong


def test_a_wrong_gradient(run, library, own_op) -> None:
    library(GATE)
    own_op("torch.sigmoid(x) * w.detach()")
    result = run("verify")
    assert result.exit_code == 1
    assert "wrong: my_kernels.op: gradcheck: " in result.stderr


def test_rows_with_a_stride_are_the_kernels_own_mistake(run, library, own_op) -> None:
    library(
        "import torch\n\ndef op(x, w):\n    return torch.sigmoid(x if x.is_contiguous() else x + 1) * w\n"
    )
    own_op("torch.sigmoid(x) * w")
    result = run("verify")
    assert result.exit_code == 0
    assert "(not so for inputs with a row stride)" in result.stdout
    assert "but see the notes on 1" in result.stdout


def test_an_equivalent_with_a_function_of_ones_own(run, library, own_op, tmp_path: Path) -> None:
    library(GATE)
    (tmp_path / "lib" / "my_reference.py").write_text(
        "def gate(x, w):\n    return x.sigmoid() * w\n"
    )
    own_op("my_reference.gate(x, w)", more="imports = 'my_reference'")
    assert run("verify").exit_code == 0
    (tmp_path / "lib" / "my_reference.py").write_text("def gate(x, w):\n    return x.sigmoid()\n")
    assert run("verify").exit_code == 1


# -- layers that own a twin -----------------------------------------------------------------------


LAYERS = """
import torch
from torch import nn


class Right(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, size))

    def forward_native(self, x):
        return torch.sigmoid(x.float()).to(x.dtype) * self.weight

    @torch.no_grad()
    def forward(self, x):
        return self.forward_native(x)


class Other(Right):
    def forward(self, x):
        return self.forward_native(x) + 1


class Alone(Right):
    def __init__(self, size=8):
        super().__init__(size)
        self._forward_method = self.forward_native


class Cut(Right):
    def forward_native(self, x):
        return torch.sigmoid(x) * self.weight.data


class Needy(Right):
    def __init__(self, config):
        config.size


class Older(nn.Module):
    pass


def get_norm(config):
    return Right(config.size)
"""


def test_twins(run, tmp_path: Path) -> None:
    (tmp_path / "lib" / "serving_norms.py").write_text(LAYERS)
    names = ("Right", "Other", "Alone", "Cut", "Needy", "Older", "get_norm")
    layer = FusedLayer(module="serving_norms", classes=names, source="read")
    elsewhere = FusedLayer(module="serving_more.norms", classes=("Right",), source="read")
    jobs = [Job(name, each) for each in (layer, elsewhere) for name in each.names]
    right, other, alone, cut, needy, older, given, absent = verify(jobs)[0]
    assert [each.dtype for each in right.forward] == ["float32", "bfloat16", "float16"]
    assert right.gradient == "ok" and not right.wrong
    assert "differs by" in other.wrong[0]
    assert (alone.not_run, alone.gradient) == ("the layer runs its twin here", "ok")
    assert cut.gradient == "wrong" and cut.wrong[0].startswith("gradcheck: ")
    assert needy.not_run.startswith("it cannot be made by itself: AttributeError")
    assert needy.gradient == f"not checked: {needy.not_run}" and not needy.wrong
    gone = "the serving_norms installed has no forward_native in serving_norms.Older"
    assert older.wrong == [gone]
    assert given.not_run == "a configuration says which layer it gives" and not given.wrong
    assert absent.not_run == "serving_more is not installed"
    assert absent.gradient == "not checked: serving_more is not installed" and not absent.wrong


def test_a_twin_of_a_library_that_is_not_here(run) -> None:
    Path("a.py").write_text(all_rules()["TRN109"].before.replace("vllm.", "absent.", 1))
    assert "nothing to verify" in run("verify").stdout
    text = all_rules()["TRN109"].before
    text = text.replace("vllm.model_executor.layers", "sglang.srt.layers")
    Path("a.py").write_text(text)
    result = run("fix", "-o", "x.patch", "--verify")
    assert result.exit_code == 0, result.output
    head = Path("x.patch").read_text().partition("\ndiff --git")[0]
    assert "sglang.srt.layers.activation.SiluAndMul" in head
    assert "# 0 of 1 kernel ran here" in head
    assert "1 did not (sglang is not installed): there the semantics are those read in" in head
    assert "Gradients: 0 of 1 checked" in head


# -- what does not run ----------------------------------------------------------------------------


def test_a_missing_library(run, own_op) -> None:
    own_op("torch.sigmoid(x) * w", more="source = 'my/kernels.cu'")
    result = run("verify")
    assert result.exit_code == 0
    assert "not run: my_kernels is not installed" in result.stdout
    assert (
        "1 did not (my_kernels is not installed): there the semantics are those read in my/kernels.cu."
        in result.stdout
    )
    assert "Gradients: 1 of 1 checked" in result.stdout


CANNOT = {
    "empty": ("", "the empty_ installed has no empty_.op"),
    "broken": ("1 / 0", "broken_ cannot be imported: ZeroDivisionError: division by zero"),
    "needs": ("import nowhere", "needs_ cannot be imported: No module named 'nowhere'"),
    "gpu": ("def op(x, w):\n    raise RuntimeError('not built for CPU')", "no CUDA device"),
    "spoiled": (
        "def op(x, w):\n    raise RuntimeError('CUDA error: x')",
        "RuntimeError: CUDA error: x",
    ),
    "other": (
        "def op(x):\n    pass",
        "TypeError: op() takes 1 positional argument but 2 were given",
    ),
}


def test_kernels_that_cannot_run(run, tmp_path: Path) -> None:
    for name, (text, _) in CANNOT.items():
        (tmp_path / "lib" / f"{name}_.py").write_text(text)
    verdicts, _ = verify([own_job("op", f"{name}_") for name in CANNOT])
    for verdict, (_, why) in zip(verdicts, CANNOT.values(), strict=True):
        if why != "no CUDA device" or not torch.cuda.is_available():
            assert verdict.not_run == why
        assert not verdict.ran and not verdict.wrong
        assert verdict.gradient == "ok"


def test_a_kernel_that_crashes_takes_nobody_with_it(run, library, own_op) -> None:
    library(GATE + "\nimport ctypes\n\ndef crash(x):\n    ctypes.string_at(0)\n")
    own_op("torch.sigmoid(x) * w")
    own_op_text = Path("pyproject.toml").read_text()
    Path("pyproject.toml").write_text(
        "[[tool.trainify.ops]]\nnames = 'my_kernels.crash'\nschema = 'crash(Tensor x) -> Tensor'\n"
        "equivalent = 'x * 2'\n" + own_op_text
    )
    Path("a.py").write_text(
        "import my_kernels as k\n\ndef f(x, w):\n    return k.op(k.crash(x), w)\n"
    )
    result = run("verify")
    assert result.exit_code == 0
    assert "not run: the kernel crashed with SIGSEGV" in result.stdout
    assert "1 of 2 kernels ran here" in result.stdout
    assert "Gradients: 2 of 2 checked" in result.stdout


@pytest.mark.slow
def test_a_kernel_that_hangs(run, library) -> None:
    library("import time\n\ndef op(x):\n    time.sleep(60)\n")
    op = FusedOp(("my_kernels.op",), "op(Tensor x) -> Tensor", "x * 2", "")
    (verdict,), _ = verify([Job("my_kernels.op", op)], timeout=15)
    assert "was killed (it took longer than 15 s" in verdict.not_run


def test_a_library_that_prints(run, library, own_op) -> None:
    library(GATE + "\nprint('hello')\nimport os\nos.system('echo hello')\n")
    own_op("torch.sigmoid(x) * w")
    result = run("verify")
    assert result.exit_code == 0
    assert "hello" not in result.output


def test_no_torch(run, own_process, own_op, tmp_path: Path) -> None:
    (tmp_path / "lib" / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    own_op("torch.sigmoid(x) * w")
    result = run("verify")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "trainify: verify needs torch, which cannot be imported (No module named 'torch'): "
        "pip install 'trainify[torch]'\n"
    )


def test_a_process_that_dies_at_once(run, own_process, own_op, tmp_path: Path) -> None:
    (tmp_path / "lib" / "torch.py").write_text("import os\nos._exit(7)\n")
    own_op("torch.sigmoid(x) * w")
    with pytest.raises(VerifyError, match="ended with exit code 7 before it began"):
        verify([job("torch.ops._C.silu_and_mul")])
    assert run("verify").exit_code == 2


def test_nothing_to_verify(run) -> None:
    Path("a.py").write_text("import torch\n")
    result = run("verify")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "No fused call that trainify rewrites: nothing to verify.\n"


# -- whose code runs ------------------------------------------------------------------------------


def test_the_files_looked_at_are_not_run(run, library, own_op, monkeypatch) -> None:
    """Neither because they are there, nor because a library has their name."""
    library("raise SystemExit('run')\n", "project")
    Path("vllm.py").write_text("raise SystemExit('run')\n")
    own_op("torch.sigmoid(x) * w")
    result = run("verify")
    assert "my_kernels is not installed" in result.stdout
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    result = run("verify")
    assert "my_kernels is among the files looked at, of which none is run" in result.stdout


def test_processes_as_users_have_them(run, library, own_op) -> None:
    """One that asks, without torch, and one that it starts."""
    library(GATE)
    own_op("torch.sigmoid(x) * w")
    code = "import sys; from trainify.cli import cli\ntry: cli(['verify'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    path = [os.environ["PYTHONPATH"], *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"1 of 1 kernel ran here" in done.stdout


# -- patches --------------------------------------------------------------------------------------


def test_a_patch_says_what_was_verified(run, library, own_op) -> None:
    library(GATE)
    own_op("torch.sigmoid(x) * w")
    assert run("fix", "-o", "x.patch", "--verify").exit_code == 0
    head, _, patch = Path("x.patch").read_text().partition("\ndiff --git")
    assert all(line.startswith("#") for line in head.splitlines() if line)
    assert "# 1 of 1 kernel ran here on" in head
    assert "nothing was run" not in head
    assert patch
    subprocess.run(["git", "init", "-q", "."], check=True)
    subprocess.run(["git", "apply", "x.patch"], check=True)
    assert "torch.sigmoid(x) * w" in Path("a.py").read_text()


def test_a_patch_that_is_proved_wrong_is_not_written(run, library, own_op) -> None:
    library(GATE)
    own_op("torch.tanh(x) * w")
    result = run("fix", "-o", "x.patch", "--verify")
    assert result.exit_code == 1
    assert "x.patch was not written" in result.stderr
    assert not Path("x.patch").exists()


def test_a_patch_without_fused_calls(run) -> None:
    Path("a.py").write_text(all_rules()["TRN402"].before)
    assert run("fix", "--unsafe", "-o", "x.patch", "--verify").exit_code == 0
    assert "# No fused call is among the changes" in Path("x.patch").read_text()


def test_verify_goes_with_output(run) -> None:
    assert run("fix", "--verify").exit_code == 2


def test_a_comparison_crosses_processes() -> None:
    from dataclasses import asdict

    assert Comparison(**json.loads(json.dumps(asdict(Comparison("float32", "cpu"))))).equal == 1


def test_what_is_not_equal_is_not_said_to_differ_by_nothing() -> None:
    small = Comparison("bfloat16", "cpu", equal=0.984)
    op = lookup("sgl_kernel.silu_and_mul")
    assert op is not None
    verdict = Verdict(Job("a.b", op), forward=[small])
    assert any("98.4 % equal, all but small values" in line for line in table([verdict]))
    small.ulps = 2
    assert any("98.4 % equal, 2 ulp" in line for line in table([verdict]))
