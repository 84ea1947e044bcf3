"""What the documents quote is what the tree says now; `python docs/build.py` renews it."""

import functools
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch

import trainify
from tests.each import some
from trainify.config import Config, load_config
from trainify.engine import check_text

ROOT = Path(__file__).parents[1]

_spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build)

NUMBER = re.compile(r"\d+\.\d+|\de-\d\d")
CURVE = re.compile("[▁▂▃▄▅▆▇█]+")


def measured(text):
    """The text without its measurements, and these."""
    return CURVE.sub("~", NUMBER.sub("#", text)), [float(n) for n in NUMBER.findall(text)]


def same(quoted, printed):
    """Equal; what was measured with floats may differ a little, from one processor to another."""
    (words, numbers), (words_now, numbers_now) = measured(quoted), measured(printed)
    assert words == words_now
    assert numbers == pytest.approx(numbers_now, rel=0.05, abs=1e-4)


TEXTS = {path: path.read_text(encoding="utf-8") for path in build.QUOTING}
BLOCKS = [block for text in TEXTS.values() for block in build._BLOCK.finditer(text)]
QUOTING = [b for b in BLOCKS if b["command"] or b["body"].startswith("$ ")]


# Blocks by the program that they quote: what one prints is asked for in one test, and so once.
PROGRAMS = {}
for _block in QUOTING:
    _command = _block["command"] or _block["body"].splitlines()[0]
    PROGRAMS.setdefault(_command.partition(" | ")[0], []).append(_block)


def test_blocks_are_seen():
    assert len(QUOTING) >= 5
    assert len(BLOCKS) == sum(text.count("\n```") for text in TEXTS.values()) // 2


DEMO = "python -m demo"


@pytest.fixture
def warm(monkeypatch, torch_process):
    """The command line runs in a process that has imported what it needs."""
    start = build.run

    @functools.cache
    def run(program):
        words = shlex.split(program.replace("trainify ", "python -m trainify ", 1))
        if words[:2] != ["python", "-m"]:
            return start(program)
        silent = words[-1:] == ["2>/dev/null"]
        done = torch_process.run(*words[1 : -1 if silent else None], cwd=ROOT)
        return done.stdout if silent else done.stdout + done.stderr

    monkeypatch.setattr(build, "run", run)


@pytest.mark.parametrize("program", some(PROGRAMS.keys() - {DEMO}, PROGRAMS))
def test_what_is_quoted(program, warm):
    for block in PROGRAMS[program]:
        same(block[0], build.with_outputs(block[0]))


def test_what_is_quoted_of_the_demo_ahead_of_its_training(monkeypatch, warm):
    """And that it trains, for a few of its steps."""
    run = build.run
    monkeypatch.setattr(build, "run", lambda program: run(f"{program} 4 2>/dev/null"))
    for block in PROGRAMS[DEMO]:
        parts = [text.partition("\n== ") for text in (block[0], build.with_outputs(block[0]))]
        same(*(ahead for ahead, _, _ in parts))
    assert build.run(DEMO).endswith(" claims hold.\n")


def bodies(kind):
    return [b["body"] for b in BLOCKS if b["kind"] == kind and not b["command"]]


@pytest.mark.parametrize("settings", bodies("toml"))
def test_settings_are_accepted(settings, tmp_path):
    (tmp_path / "pyproject.toml").write_text(settings)
    assert load_config([str(tmp_path)]) != Config()


def test_comment_silences():
    code = "from vllm import _custom_ops as ops\n\ndef f(out, x, weight, eps):\n    "
    (line,) = [body for body in bodies("python") if "trainify: ignore" in body]
    assert check_text(code + line, "norm.py") == []
    assert check_text(code + line.partition("#")[0], "norm.py") != []


def test_what_a_training_loop_calls():
    code = "".join(body for body in bodies("python") if "trainify.backward" in body)
    model = torch.nn.Linear(2, 1)
    exec(code, {"trainify": trainify, "model": model, "loss": model(torch.ones(1, 2)).sum()})
    assert model.weight.grad is not None


def test_hooks_exist():
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text()
    for hook in re.findall(r"- id: (\S+)", "".join(bodies("yaml"))):
        assert f"- id: {hook}\n" in hooks


def test_rules_page():
    assert (ROOT / "docs/rules.md").read_text(encoding="utf-8") == build.rules_page()


def test_links_lead_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
