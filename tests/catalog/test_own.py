"""Ops of the user's own: how they are read and refused, and that every way of running knows them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import trainify
from trainify import catalog, check_text, engine, fix_text
from trainify.catalog import lookup, own
from trainify.cli import cli

CONFIG = """\
[tool.trainify]
strategy = "flag"

[[tool.trainify.ops]]
names = "my_kernels.scaled_norm"
schema = "scaled_norm(Tensor(a!) out, Tensor x, Tensor weight, float eps, float scale=1.0) -> ()"
equivalent = "out = rms_norm(x, weight, eps) * scale"

[[tool.trainify.ops]]
names = ["my_kernels.gate", "torch.ops.mine.gate"]
schema = "gate(Tensor x, Tensor y) -> Tensor"
equivalent = "torch.sigmoid(x) * F.silu(y)"
"""
SOURCE = """\
import torch
import my_kernels


def f(x, y, weight):
    out = torch.empty_like(x)
    my_kernels.scaled_norm(out, x + y, weight, 0.1, 2)
    return my_kernels.gate(out, x)
"""
ROW = {
    "names": "my_kernels.norm",
    "schema": "norm(Tensor(a!) out, Tensor x, Tensor weight, float eps) -> ()",
    "equivalent": "out = rms_norm(x, weight, eps)",
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command line, in a folder with the two ops and a file that calls both."""
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(CONFIG)
    Path("a.py").write_text(SOURCE)
    return lambda *arguments: CliRunner().invoke(cli, arguments)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    monkeypatch.setattr(own, "_registered", [])
    yield trainify.register


def test_flag(run) -> None:
    assert run("check").stdout.count("TRN101") == 2
    assert run("fix", "--write").exit_code == 0
    assert Path("a.py").read_text() == SOURCE.replace(
        "import torch\n", "import torch\nimport torch.nn.functional as F\n"
    ).replace(
        "    out = torch",
        """\
    if torch.is_grad_enabled():
        x_ = x + y
        out = F.rms_norm(x_, x_.shape[-1:], weight, 0.1) * 2
        return torch.sigmoid(out) * F.silu(x)
    out = torch""",
    )
    assert run("fix", "--write").stderr == "Nothing to fix.\n"


def test_replace(run) -> None:
    run("fix", "--write", "--strategy", "replace")
    text = Path("a.py").read_text()
    assert "my_kernels." not in text
    assert text.endswith("* 2\n    return torch.sigmoid(out) * F.silu(x)\n")


@pytest.mark.parametrize("strategy", ["flag", "replace"])
def test_an_argument_that_is_named_twice_runs_once(register, strategy: str) -> None:
    register(
        names="my_kernels.mix",
        schema="mix(Tensor x, Tensor y, Tensor z) -> Tensor",
        equivalent="x + y * y.cos() - z",
    )
    text = """\
import my_kernels


def f(x, draw):
    return 2 * my_kernels.mix(draw(x), draw(x), draw(x))


def late(x, draw):
    return [my_kernels.mix(draw(x), draw(x), draw(x)) for _ in range(2)]


def views(x):
    return [my_kernels.mix(x, x.view(-1)[:3], x) for _ in range(2)]
"""
    text = fix_text(text, "a.py", engine.Options(strategy=strategy)).text
    scope: dict[str, Any] = {}
    exec(text.replace("import my_kernels\n", ""), scope)
    x = torch.rand(3, requires_grad=True)
    drawn: list[int] = []

    def draw(t: torch.Tensor) -> torch.Tensor:
        drawn.append(len(drawn))
        return t * (2 + len(drawn))

    out = scope["f"](x, draw)
    assert drawn == [0, 1, 2]
    torch.testing.assert_close(out, 2 * (3 * x + 4 * x * (4 * x).cos() - 5 * x))
    # Nothing can stand before the one in the comprehension; views may be written twice.
    assert "mix(draw(x), draw(x), draw(x)) for" in text
    torch.testing.assert_close(scope["views"](x)[0], x * x.cos())


def test_an_op_of_torch_ops(run) -> None:
    Path("a.py").write_text(
        "import torch\n\ndef f(x):\n    return torch.ops.mine.gate.default(x, x)\n"
    )
    assert "TRN101" in run("check").stdout


def test_a_file_without_a_trace_of_them_is_not_parsed(run, monkeypatch) -> None:
    Path("a.py").write_text("import my_other\n\nmy_other.f()\n")
    monkeypatch.setattr(engine, "_parse", lambda *_: pytest.fail("parsed"))
    assert run("check").exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "from my_kernels import gate as g\n\ndef f(x):\n    return g(x, x)\n",
        "import my_kernels as k\n\ndef f(x):\n    return k.gate(x, x)\n",
        "import importlib\n\nk = importlib.import_module('my_kernels')\n\ndef f(x):\n    return k.gate(x, x)\n",
    ],
)
def test_ways_to_import(run, text: str) -> None:
    Path("a.py").write_text(text)
    assert run("check").stdout.count("TRN101") == 1


@pytest.mark.parametrize("line", ["from .kernels import norm", "from model import norm"])
def test_a_package_with_kernels_of_its_own(run, line: str) -> None:
    Path("model").mkdir()
    Path("model/__init__.py").write_text("from .kernels import norm\n")
    Path("model/layers.py").write_text(f"{line}\n\ndef f(x):\n    return norm(x)\n")
    Path("pyproject.toml").write_text(
        "[[tool.trainify.ops]]\nnames = 'model.kernels.norm'\n"
        "schema = 'norm(Tensor x) -> Tensor'\nequivalent = 'x - x.mean()'\n"
    )
    assert "+    return x - x.mean()" in run("fix", "--strategy", "replace", ".").stdout


def test_they_come_before_the_catalog(run) -> None:
    Path("pyproject.toml").write_text(
        "[[tool.trainify.ops]]\nnames = 'vllm._custom_ops.rms_norm'\n"
        "schema = 'rms_norm(Tensor x) -> Tensor'\nequivalent = 'x * 7'\n"
    )
    Path("a.py").write_text(
        "from vllm import _custom_ops as o\n\ndef f(x):\n    return o.rms_norm(x)\n"
    )
    assert "+    return x * 7" in run("fix", "--strategy", "replace").stdout


def test_workers_know_them(run, monkeypatch) -> None:
    monkeypatch.setattr(engine, "_WORTH_WORKERS", 0)
    monkeypatch.setattr("trainify.cli._cores", lambda: 2)
    for i in range(40):
        Path(f"b{i}.py").write_text(SOURCE)
    assert run("check").stdout.count("TRN101") == 82


def test_the_cache_knows_them(run) -> None:
    os.utime("a.py", (0, 0))
    Path("pyproject.toml").write_text("[tool.trainify]\n")
    assert run("check").exit_code == 0
    assert run("check").exit_code == 0
    Path("pyproject.toml").write_text(CONFIG)
    assert run("check").stdout.count("TRN101") == 2
    Path("pyproject.toml").write_text("[tool.trainify]\n")
    assert run("check").exit_code == 0


# -- equivalents with functions of the user's own -------------------------------------------------


def test_a_function_of_the_users_own(register) -> None:
    register(
        names="my_kernels.norm",
        schema=ROW["schema"],
        equivalent="out = my_pkg.reference.norm(x, weight, eps)",
        imports="my_pkg.reference",
    )
    text = "import torch\nimport my_kernels\n\n\ndef f(x, w, out):\n    my_kernels.norm(out, x, w, 1)\n"
    once = fix_text(text).text
    assert once.startswith("import torch\nimport my_pkg.reference\nimport my_kernels\n")
    assert "out.copy_(my_pkg.reference.norm(x, w, 1))" in once
    again = once + "\n\ndef g(x, w, out):\n    my_kernels.norm(out, x, w, 1)\n"
    assert fix_text(again).text.count("import my_pkg.reference") == 1


def test_its_name_is_used_for_something_else(register) -> None:
    register("my_kernels.norm", "norm(Tensor x) -> Tensor", "my_pkg.norm(x)", imports="my_pkg")
    (finding,) = check_text(
        "import my_kernels\n\ndef f(my_pkg):\n    return my_kernels.norm(my_pkg)\n"
    )
    assert "has the name `my_pkg` for something else" in finding.message
    assert not finding.fixes


# -- register -------------------------------------------------------------------------------------


def test_register(register) -> None:
    assert check_text(SOURCE) == []
    register(
        names="my_kernels.gate", schema="gate(Tensor x, Tensor y) -> Tensor", equivalent="x * y"
    )
    assert [f.rule for f in check_text(SOURCE)] == ["TRN101"]
    register("my_kernels.gate", "gate(Tensor x, Tensor y) -> Tensor", "x - y")
    assert "return out - x" in fix_text(SOURCE).text
    register("my_kernels.gate", "gate(Tensor x, Tensor y) -> Tensor", "x - y")
    assert len(own.registered()) == 2
    assert lookup("my_kernels.gate") is None


def test_what_is_registered_counts_beside_a_configuration(run, register) -> None:
    register("other.gate", "gate(Tensor x) -> Tensor", "x * 2")
    Path("b.py").write_text("import other\n\ndef f(x):\n    return other.gate(x)\n")
    assert run("check").stdout.count("TRN101") == 3


def test_register_refuses(register) -> None:
    with pytest.raises(ValueError, match="equivalent: does not assign 'out', which is marked"):
        register("a.b", "b(Tensor(a!) out, Tensor(b!) x) -> ()", "x = x * 2")
    with pytest.raises(ValueError, match="equivalent: does not assign '_', the new value"):
        register("a.b", "b(Tensor(a!) x) -> (Tensor, Tensor(a!))", "x = x * 2")
    assert own.registered() == ()


def test_a_new_value_beside_a_written_one_is_not_rewritten(register) -> None:
    register(
        "my_kernels.step", "step(Tensor(a!) x) -> (Tensor, Tensor(a!))", "_, x = x.sum(), x * 2"
    )
    text = "import my_kernels\n\n\ndef f(x):\n    total, x = my_kernels.step(x)\n    return total + x\n"
    result = fix_text(text, options=engine.Options(unsafe=True))
    assert result.text == text
    (finding,) = result.remaining
    assert "it returns more than its equivalent gives" in finding.message


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schemas": "x"}, "schemas: unknown key; did you mean 'schema'?"),
        ({"colour": 1}, "colour: unknown key; known are names, schema, equivalent, imports, "),
        ({"names": None}, "has no names"),
        ({"schema": None}, "has no schema"),
        ({"equivalent": None}, "has no equivalent"),
        ({"names": []}, "names: must hold a name"),
        ({"names": [1]}, "names: must be a string or a list of strings"),
        ({"names": "norm"}, "names: 'norm' is no dotted name"),
        ({"names": ["a.b", "a b.c"]}, "names: 'a b.c' is no dotted name"),
        ({"schema": 3}, "schema: must be a string"),
        ({"schema": "norm"}, "schema: expected 'name(arguments) -> returns', got 'norm'"),
        ({"schema": "norm(x) -> ()"}, "schema: cannot read argument 'x' of 'norm'"),
        ({"schema": "norm(Tensr x) -> ()"}, "schema: cannot read argument 'Tensr x': no such type"),
        ({"schema": "n(Tensor x) -> ("}, "schema: cannot read '(', which it returns: no such type"),
        ({"schema": "n(Tensor x) -> Tensr"}, "schema: cannot read 'Tensr', which it returns"),
        ({"schema": "n(Tensor x) -> (Tensor, 3)"}, "schema: cannot read '3', which it returns"),
        ({"schema": "n(int a=1, int b) -> ()"}, "schema: argument 'b' needs a default"),
        ({"schema": "n(Tensor F) -> ()"}, "schema: no argument can be called 'F'"),
        ({"equivalent": "out = ("}, "equivalent: not Python: "),
        ({"equivalent": ""}, "equivalent: must be one expression, or one assignment"),
        ({"equivalent": "out = x; y = x"}, "equivalent: must be one expression, or one assignment"),
        ({"equivalent": "out = [y for y in x]"}, "equivalent: must do without lambda"),
        ({"equivalent": "x.out = x"}, "equivalent: must assign to names of arguments"),
        ({"equivalent": "out = x = x"}, "equivalent: must assign to names of arguments"),
        ({"equivalent": "out, out = x"}, "equivalent: must assign to names of arguments"),
        (
            {"equivalent": "x = x"},
            "equivalent: assigns 'x', which is not marked as written: Tensor(a!) x",
        ),
        ({"equivalent": "out, _ = x"}, "equivalent: assigns '_', which is not marked"),
        ({"equivalent": "x * 2"}, "equivalent: gives a value, but the op writes out: assign it"),
        ({"equivalent": "out = inpt * 2"}, "equivalent: uses 'inpt', which is neither an argument"),
        ({"equivalent": "out = my.norm(x)"}, "equivalent: uses 'my', which is neither an argument"),
        ({"equivalent": "out = norm(x)"}, "equivalent: uses 'norm', which is neither an argument"),
        ({"equivalent": "out = x(rms_norm)"}, "equivalent: uses 'rms_norm', which is neither"),
        ({"equivalent": "out = rms_norm(x)"}, "equivalent: rms_norm(x, weight, eps): missing a"),
        (
            {"equivalent": "out = rms_norm(x, x, 1, 2)"},
            "equivalent: rms_norm(x, weight, eps): too many",
        ),
        ({"equivalent": "out = rms_norm(x, x, e=1)"}, "equivalent: rms_norm(x, weight, eps): "),
        ({"equivalent": "out = rms_norm(*x)"}, "equivalent: must call rms_norm without * and **"),
        ({"imports": "my pkg"}, "imports: 'my pkg' is no module's name"),
        ({"unsupported": ["y"]}, "unsupported: the schema has no argument 'y'"),
        (
            {"schema": "norm(Tensor x) -> ()", "equivalent": "x * 2"},
            "equivalent: gives a value, but by its schema the op returns and writes nothing",
        ),
    ],
)
def test_mistakes(change: dict[str, object], message: str) -> None:
    fields = {k: v for k, v in {**ROW, **change}.items() if v is not None}
    with pytest.raises(own.OpError) as caught:
        own.own_op(fields)
    assert str(caught.value).startswith(message)


def test_names_that_are_a_text_are_refused() -> None:
    row = catalog.FusedOp("a.b", "b(Tensor x) -> Tensor", "x", "")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"names of an op are a tuple, not 'a\.b'"):
        trainify.Options(ops=(row,))


def test_what_is_right_is_taken() -> None:
    assert own.own_op(ROW).names == ("my_kernels.norm",)
    both = {**ROW, "schema": "n(Tensor(a!) x, *, float eps=1.0) -> Tensor"}
    assert own.own_op({**both, "equivalent": "_, x = x * eps, x + 1"})
    for returns in ("(Tensor y, int[])", "Tensor[2]?", "(Tensor(a), SymInt)", "(float, Tensor?)"):
        assert own.own_op({**ROW, "schema": f"n(Tensor x) -> {returns}", "equivalent": "x"})
    optional = {**ROW, "schema": "n(Tensor x, Tensor(a!)? out=None) -> Tensor"}
    assert own.own_op({**optional, "equivalent": "rms_norm(x, x, eps=1)"})


@pytest.mark.parametrize("command", ["check", "fix"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Tensor weight", "Tensr weight", "6: tool.trainify.ops[0].schema: cannot read argument 'Tensr"),
        ('names = ["', 'name = ["', "10: tool.trainify.ops[1].name: unknown key; did you mean 'names'?"),
        ("equivalent = \"torch", "# \"torch", "9: tool.trainify.ops[1]: has no equivalent"),
        ("my_kernels.gate", "my_kernels.scaled_norm", "10: tool.trainify.ops[1].names: "
         "'my_kernels.scaled_norm' is the name of ops[0] too"),
        ("F.silu", "G.silu", "12: tool.trainify.ops[1].equivalent: uses 'G'"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_line(
    run, command: str, old: str, new: str, message: str
) -> None:
    Path("pyproject.toml").write_text(CONFIG.replace(old, new))
    result = run(command)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"trainify: pyproject.toml:{message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.trainify]\nops = 1\n", "2: tool.trainify.ops: must be an array of tables"),
        ("[tool.trainify]\nops = ['a.b']\n", "2: tool.trainify.ops: must be an array of tables"),
        ("[tool.trainify]\nops = [{names = 'a.b'}]\n", "2: tool.trainify.ops[0]: has no schema"),
    ],
)
def test_mistakes_in_the_array(run, text: str, message: str) -> None:
    Path("pyproject.toml").write_text(text)
    assert run("check").stderr.startswith(f"trainify: pyproject.toml:{message}")
