"""Scopes that stand on no forward and take its gradients: __call__, helpers, functions elsewhere."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, rules, stays

from trainify.engine import Options, check_paths, fix_paths

HEAD = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.body = nn.Linear(d, d)
        self.head = nn.Linear(d, d)

"""


def model(body: str) -> str:
    return HEAD + textwrap.indent(textwrap.dedent(body), "    ")


# -- all that a call of the module runs -----------------------------------------------------------

WHOLE = {
    "call": """\
        @torch.no_grad()
        def __call__(self, x):
            return self.head(self.body(x))
        """,
    "call-above-forward": """\
        @torch.inference_mode()
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

        def forward(self, x):
            return self.head(self.body(x))
        """,
    "inner-function": """\
        def forward(self, x):
            @torch.no_grad()
            def run(h):
                return self.head(self.body(h))

            return run(x)
        """,
    "method": """\
        @torch.no_grad()
        def _run(self, x):
            return self.head(self.body(x))

        def forward(self, x):
            y = self._run(x)
            return y, None
        """,
    "scope-in-a-method": """\
        def _run(self, x):
            with torch.no_grad():
                return self.head(self.body(x))

        def forward(self, x):
            return self._run(x) * 2
        """,
}


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE.keys())
def test_all_that_a_call_runs_is_under_a_scope(body: str) -> None:
    """Run the result: it records in training, and nowhere else."""
    text = model(body)
    assert rules(text) == ["TRN201"]
    names: dict[str, Any] = {}
    exec(compile(fix(text, unsafe=True), "m.py", "exec"), names)
    made, x = names["Model"](), torch.ones(2, 8)

    def output() -> torch.Tensor:
        y = made(x)
        return y[0] if isinstance(y, tuple) else y

    output().sum().backward()
    assert all(p.grad is not None for p in made.parameters())
    with torch.no_grad():
        assert not output().requires_grad
    made.eval()
    assert not output().requires_grad


def test_a_helper_that_others_call_too_is_looked_at() -> None:
    text = model(textwrap.dedent(WHOLE["method"]) + "\ndef predict(self, x):\n    return self(x)\n")
    assert fix(text).count("@torch.no_grad()\n    def predict") == 1
    embed = text + "\n    def embed(self, x):\n        return self._run(x)\n"
    (finding,) = findings(embed)
    assert "_run" in finding.fixes["flag"].look_at
    assert fix(embed) == embed


RIGHT = {
    "not-a-module": """\
        class Pipeline:
            def __init__(self):
                self.net = nn.Linear(8, 8)

            @torch.no_grad()
            def __call__(self, x):
                return self.net(x)
        """,
    "call-that-runs-no-forward": """\
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(8, 8)

            def forward(self, x):
                return self.net(x)

            @torch.no_grad()
            def __call__(self, x):
                return self.net(x) > 0.5
        """,
    "frozen": """\
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(8, 8)
                self.net.requires_grad_(False)

            @torch.no_grad()
            def __call__(self, x):
                return self.net(x)
        """,
    "features-before-a-head": """\
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(8, 8)
                self.head = nn.Linear(8, 8)

            @torch.no_grad()
            def encode(self, x):
                return self.net(x)

            def forward(self, x):
                return self.head(self.encode(x))
        """,
    "features": """\
        class FeatureExtractor(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(8, 8)

            @torch.no_grad()
            def encode(self, x):
                return self.net(x)

            def forward(self, x):
                return self.encode(x)
        """,
    "samples": """\
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(8, 8)

            @torch.no_grad()
            def sample(self, x):
                return self.net(x)

            def loss(self, x):
                return self.net(x).sum()

            def forward(self, x):
                return self.sample(x)
        """,
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT.keys())
def test_scopes_that_are_meant(text: str) -> None:
    stays("import torch\nimport torch.nn as nn\n\n\n" + textwrap.dedent(text))


# -- modules that serve, whatever trains beside them ----------------------------------------------

PREDICTOR = """\
class Predictor(nn.Module):
    def __init__(self, estimator):
        super().__init__()
        self.reverse = ReverseSolver(estimator)

    {abstract}
    @torch.inference_mode()
    def forward(self, state):
        ...


class Step(Predictor):
    @torch.inference_mode()
    def forward(self, state):
        return self.reverse.step(state)
"""


def test_a_scope_that_an_abstract_method_declares() -> None:
    text = "import abc\nimport torch\nimport torch.nn as nn\n\n\n" + PREDICTOR
    stays(text.format(abstract="@abc.abstractmethod"))
    assert "TRN201" in rules(text.format(abstract="# none"))


@pytest.mark.parametrize("name", ["MoEInference", "InferenceBlock", "ChatInferenceModel"])
def test_a_module_named_for_inference(name: str) -> None:
    text = model("@torch.no_grad()\ndef forward(self, x):\n    return self.head(self.body(x))\n")
    assert rules(text) == ["TRN201"]
    stays(text.replace("class Model", f"class {name}"))


HOLDER = """\
import torch.nn as nn
from vision import Model


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = Model()
        self.head = nn.Linear(8, 8)
        for param in self.vision.parameters():
            param.requires_grad = {trained}

    def forward(self, x):
        return self.head(self.vision(x))
"""


@pytest.mark.parametrize("trained", [False, True])
def test_a_module_that_who_holds_it_freezes(tmp_path: Path, trained: bool) -> None:
    text = model("@torch.no_grad()\ndef forward(self, x):\n    return self.head(self.body(x))\n")
    (tmp_path / "vision.py").write_text(text)
    (tmp_path / "captioner.py").write_text(HOLDER.format(trained=trained))
    found = [f.rule for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    assert found == (["TRN201"] if trained else [])


STAGE = """\
import abc
import torch
import torch.nn as nn


class Stage(abc.ABC):
    def run(self, x):
        return self.forward(x)


class Decoding(Stage):
    def __init__(self):
        super().__init__()
        self.vae = nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x):
        return self.vae(x)
"""


def test_a_forward_that_is_no_module_s() -> None:
    """It has no training flag that a scope could follow."""
    stays(STAGE)
    assert rules(STAGE.replace("abc.ABC", "nn.Module")) == ["TRN201"]


# -- where inference starts -----------------------------------------------------------------------

LIBRARY = {
    "chat": """\
        from registry import MODELS


        class Backbone(nn.Module):
            def forward(self, x):
                return x


        class Chat(nn.Module):
            def __init__(self, config):
                super().__init__()
                model = Backbone()
                self.model = model

            def generate(self, x):
                return self.model(x)
        """,
    "registry": "MODELS = {}\n",
    "tables": """\
        from model import Model


        class Plan:
            def infer_tp_plan(self, model):
                return model(1)
        """,
}


def test_what_runs_another_model_is_no_place_for_a_scope(tmp_path: Path) -> None:
    text = model("@torch.no_grad()\ndef forward(self, x):\n    return self.head(self.body(x))\n")
    files = {name: textwrap.dedent(each) for name, each in LIBRARY.items()}
    files["chat"] = "import torch\nimport torch.nn as nn\nfrom model import Model\n" + files["chat"]
    for name, each in (files | {"model": text}).items():
        (tmp_path / f"{name}.py").write_text(each)
    found = [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    assert [f.rule for f in found] == ["TRN201"]
    assert "does not show" in found[0].message
    chat = files["chat"].replace("Backbone()", "Model()")
    (tmp_path / "chat.py").write_text(chat)
    found = [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    assert {f.rule for f in found} == {"TRN201", "TRN203"}


# -- functions of other files ---------------------------------------------------------------------

ROPE = """\
import torch


{decorator}
def rotate(q, cos, sin):
    half = q.shape[-1] // 2
    return torch.cat((-q[..., half:], q[..., :half]), -1) * sin + q * cos


@torch.no_grad()
def positions(q):
    return torch.arange(q.shape[1])


@torch.no_grad()
def nearest(q, codes):
    index = torch.cdist(q, codes).argmin(-1)
    return index
"""
ATTENTION = """\
import torch.nn as nn

from rope import nearest, positions, rotate


class Attention(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.o = nn.Linear(d, d)

    def forward(self, x, cos, sin):
        q = self.q(x)
        return {result}
"""


def write(folder: Path, result: str, decorator: str = "@torch.no_grad()") -> None:
    (folder / "rope.py").write_text(ROPE.format(decorator=decorator))
    (folder / "attention.py").write_text(ATTENTION.format(result=result))


def test_a_function_of_another_file_that_takes_the_gradient(tmp_path: Path) -> None:
    write(tmp_path, "self.o(rotate(q, cos, sin))")
    (finding,) = [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    assert finding.rule == "TRN206"
    assert "`self.q` of `Attention`" in finding.message and "`rotate`" in finding.message
    assert not any(r.change for r in fix_paths([str(tmp_path)], Options()))
    (fixed,) = [r for r in fix_paths([str(tmp_path)], Options(unsafe=True)) if r.change]
    assert fixed.text == ROPE.format(decorator="").replace("\n\n\n\ndef", "\n\n\ndef", 1)


@pytest.mark.parametrize(
    ("result", "decorator"),
    [
        ("self.o(rotate(q, cos, sin))", ""),
        ("self.o(rotate(q, cos, sin)) + q", "@torch.no_grad()"),  # learns by another way
        ("self.o(x) + positions(q)", "@torch.no_grad()"),
        ("self.o(x)[nearest(q, cos)]", "@torch.no_grad()"),  # an index
    ],
)
def test_functions_of_other_files_that_are_right(
    tmp_path: Path, result: str, decorator: str
) -> None:
    write(tmp_path, result, decorator)
    assert not [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]


# -- adapters under a scope -----------------------------------------------------------------------

ADAPTED = """\
import torch
import torch.nn as nn
from peft import get_peft_model


class Captioner(nn.Module):
    def __init__(self, llm, config, d=8):
        super().__init__()
        for p in llm.parameters():
            p.requires_grad = False
        self.llm = {llm}{more}
        self.head = nn.Linear(d, d)

    def forward(self, x):
        with torch.no_grad():
            h = self.llm(x)
        return self.head(h){result}
"""


@pytest.mark.parametrize(
    "llm", ["get_peft_model(llm, config)", "LoraModel(llm, config, 'default')"]
)
def test_adapters_learn_nothing_under_a_scope(llm: str) -> None:
    text = ADAPTED.format(llm=llm, more="", result="")
    assert rules(text) == ["TRN206"]
    lifted = "        h = self.llm(x)\n"
    scoped = "        with torch.no_grad():\n            h = self.llm(x)\n"
    assert fix(text) == text.replace(scoped, lifted)


@pytest.mark.parametrize(
    ("llm", "more", "result"),
    [
        ("llm", "", ""),
        ("get_peft_model(llm, config)", "", " + self.llm(x)"),  # the scope is for a reference
        ("get_peft_model(llm, config)", "\n        self.llm.requires_grad_(False)", ""),
        ("get_peft_model(llm, config)", "\n        self.llm.eval()", ""),
        ("get_peft_model(llm, config).merge_and_unload()", "", ""),
        ("PeftModel.from_pretrained(llm, 'adapter')", "", ""),
    ],
)
def test_adapters_that_are_not_trained(llm: str, more: str, result: str) -> None:
    stays(ADAPTED.format(llm=llm, more=more, result=result))


ADAPTER = """\
import torch
import torch.nn.functional as F
from torch import nn


class {name}(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(r, base.in_features){more})
        self.B = nn.Parameter(torch.zeros(base.out_features, r){more})

    def forward(self, x):
        with torch.no_grad():
            delta = self.B @ self.A
        return self.base(x) + F.linear(x, delta){result}
"""


@pytest.mark.parametrize("name", ["LoRA", "LoRALinear", "QKVAdapter"])
def test_an_adapter_s_own_weights_learn_nothing_under_a_scope(name: str) -> None:
    text = ADAPTER.format(name=name, more="", result="")
    assert rules(text) == ["TRN206"]
    scoped = "        with torch.no_grad():\n            delta"
    assert fix(text) == text.replace(scoped, "        delta")


@pytest.mark.parametrize(
    ("name", "more", "result"),
    [
        ("Codebook", "", ""),  # its weights may follow an average
        ("Flora", "", ""),
        ("LoRA", ", requires_grad=False", ""),
        ("LoRA", "", " + F.linear(F.linear(x, self.A), self.B)"),
    ],
)
def test_weights_under_a_scope_that_learn_by_another_way(name: str, more: str, result: str) -> None:
    stays(ADAPTER.format(name=name, more=more, result=result))


BY_METHODS = """\
import torch
from torch import nn


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(4, 2)
        self.up = nn.Linear(2, 4)

    def squeeze(self, x):
        return self.down(x)

    def expand(self, z):
        return self.up(z)

    def forward(self, x):
        with torch.no_grad():
            z = self.squeeze(x)
            y = self.expand(z)
        return y


def build():
    codec = Codec()
    codec.eval()
    return codec
"""


def test_a_forward_that_works_by_methods_under_a_scope() -> None:
    assert rules(BY_METHODS) == ["TRN201"]
    scope: dict[str, Any] = {}
    exec(compile(fix(BY_METHODS, unsafe=True), "m.py", "exec"), scope)
    codec, x = scope["build"](), torch.ones(3, 4)
    assert not codec(x).requires_grad
    codec.train()(x).sum().backward()
    assert all(p.grad is not None for p in codec.parameters())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("            y = self.expand(z)", "        y = self.expand(z)"),
        ("super().__init__()", "super().__init__()\n        self.requires_grad_(False)"),
    ],
)
def test_methods_that_are_not_all_under_it(old: str, new: str) -> None:
    assert "TRN201" not in rules(BY_METHODS.replace(old, new))
