"""Grad modes on forward move to where inference starts, or follow the training flag."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from verbs import becomes, findings, fix, rules, stays

from tests.torch_process import TorchProcess
from trainify.engine import Options, fix_paths
from trainify.findings import Safety

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    {decorator}
    def forward(self, x):
        return self.head(x)
"""


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("", "@torch.no_grad()"),
        ("", "@torch.no_grad"),
        ("", "@torch.inference_mode()"),
        ("", "@torch.inference_mode(True)"),
        ("", "@torch.inference_mode(mode=True)"),
        ("", "@torch.set_grad_enabled(False)"),
        ("from torch import no_grad", "@no_grad()"),
        ("from torch import no_grad as ng", "@ng()"),
        ("from torch.autograd.grad_mode import no_grad", "@no_grad()"),
        ("frozen = torch.no_grad", "@frozen()"),
    ],
)
def test_spellings(imports: str, decorator: str) -> None:
    text = MODEL.format(decorator=decorator).replace("nn\n", f"nn\n{imports}\n", 1)
    assert rules(text) == ["TRN201"]


@pytest.mark.parametrize(
    "decorator",
    ["@torch.inference_mode(False)", "@torch.set_grad_enabled(True)", "@torch.enable_grad()"],
)
def test_gradients_that_are_on_stay(decorator: str) -> None:
    stays(MODEL.format(decorator=decorator))


TRAIN = """


def train(optimizer):
    model = Model()
    loss = model(torch.randn(2, 8)).square().mean()
    loss.backward()
"""
MAIN = """


{decorator}def main():
    model = Model()
    {scope}print(model(torch.randn(2, 8)).numpy())
"""
OTHER = "\n\ndef peek():\n    return Model()(torch.randn(2, 8))\n"


@pytest.mark.parametrize("train", ["", TRAIN])
@pytest.mark.parametrize(
    ("decorator", "scope", "other", "safety"),
    [
        ("@torch.no_grad()\n", "", "", Safety.SAFE),
        ("@torch.inference_mode()\n", "", "", Safety.SAFE),
        ("", "with torch.no_grad(): ", "", Safety.SAFE),
        ("", "", "", Safety.UNSAFE),
        ("@torch.no_grad()\n", "", OTHER, Safety.UNSAFE),
    ],
)
def test_what_infers_under_a_scope_needs_no_eval(
    train: str, decorator: str, scope: str, other: str, safety: Safety
) -> None:
    text = MODEL.format(decorator="@torch.inference_mode()")
    text += MAIN.format(decorator=decorator, scope=scope) + other + train
    (finding,) = findings(text)
    assert finding.fixes["flag"].safety is safety
    assert ("Inference has a scope of its own" in finding.message) is (safety is Safety.SAFE)


def test_with_nothing_that_starts_inference_it_follows_the_training_flag() -> None:
    becomes(
        """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    @torch.inference_mode()
    def forward(self, x):
        \"\"\"Logits.\"\"\"
        # one head
        y = self.head(x)

        return y  # done
""",
        """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        \"\"\"Logits.\"\"\"
        with torch.inference_mode(not (self.training and torch.is_grad_enabled())):
            # one head
            y = self.head(x)

            return y  # done
""",
        unsafe=True,
    )


EVALUATES = ["model.eval()", "model.train(False)", "model.train(mode=False)"]


def test_the_training_flag_is_followed_unseen_only_where_models_are_evaluated(
    tmp_path: Path,
) -> None:
    """A new model is in training mode: who serves without eval() would record graphs."""
    text = MODEL.format(decorator="@torch.no_grad()")
    (finding,) = findings(text)
    assert finding.fixes["flag"].safety is Safety.UNSAFE
    assert "eval()" in finding.fixes["flag"].look_at
    for evaluates in EVALUATES:
        assert (
            fix(
                f"{text}\n\ndef serve(x):\n    model = Model()\n    {evaluates}\n    return model(x)\n"
            )
            != text
        )
    assert fix(text, flag="training") == text  # which says what kernels ask, not who serves
    assert "self.training" in fix(text, training_decides=True)
    pretrained = text.replace("nn.Module", "LlamaPreTrainedModel").replace(
        "import torch\n", "import torch\nfrom transformers import LlamaPreTrainedModel\n", 1
    )
    assert "self.training" in fix(pretrained)
    (tmp_path / "model.py").write_text(text)
    assert not any(r.change for r in fix_paths([str(tmp_path)], Options()))
    (tmp_path / "serve.py").write_text("def serve(model, x):\n    return model.eval()(x)\n")
    assert not any(r.change for r in fix_paths([str(tmp_path)], Options()))  # which model it is
    serve = "from model import Model\n\n\ndef serve(x):\n    return Model().eval()(x)\n"
    (tmp_path / "serve.py").write_text(serve)
    assert any(r.change for r in fix_paths([str(tmp_path)], Options()))


@pytest.mark.parametrize("scope", ["inference_mode", "no_grad"])
def test_following_the_training_flag_does_what_it_says(
    scope: str, tmp_path: Path, torch_process: TorchProcess
) -> None:
    """Run the result: training records, eval does not, and an outer no_grad still holds."""
    text = fix(MODEL.format(decorator=f"@torch.{scope}()"), unsafe=True)
    probe = """
m, x = Model(), torch.ones(2, 8)
print(m(x).requires_grad, m.eval()(x).requires_grad)
m.train()
with torch.no_grad():
    print(m(x).requires_grad)
with torch.inference_mode():
    print(m(x).requires_grad, m(x).is_inference())
"""
    (tmp_path / "probe.py").write_text(text + probe)
    run = torch_process.run("probe.py", cwd=tmp_path)
    assert run.stdout.split() == ["True", "False", "False", "False", "True"]


def project(tmp_path: Path, **files: str) -> dict[str, str]:
    package = tmp_path / "serving"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "load.py").write_text("from .model import Model\n\nmodel = Model().eval()\n")
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    reports = fix_paths([str(tmp_path)], Options())
    return {Path(r.path).stem: r.text for r in reports if r.change is not None}


ENGINE = """\
class Engine:
    def __init__(self, model):
        self.model = model

    def generate(self, ids):
        return self.model(ids).argmax(-1)
"""


def test_the_scope_moves_to_another_file(tmp_path: Path) -> None:
    changed = project(
        tmp_path, model=MODEL.format(decorator="@torch.inference_mode()"), engine=ENGINE
    )
    assert "inference_mode" not in changed["model"]
    assert changed["engine"] == "import torch\n" + ENGINE.replace(
        "    def generate", "    @torch.no_grad()\n    def generate"
    )


@pytest.mark.parametrize("given", ["ids", "iter(ids)", "{'ids': ids}"])
def test_tensors_that_inference_gives_can_be_trained_on(
    given: str, tmp_path: Path, torch_process: TorchProcess
) -> None:
    """What a policy generates under inference_mode could not be saved for its backward."""
    text = f"""\
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.head = nn.Linear(8, 9)

    @torch.inference_mode()
    def forward(self, ids):
        return self.head(self.embed(ids))

    def generate(self, ids):
        for _ in range(3):
            ids = torch.cat([ids, self.forward(ids)[-1].argmax(-1, keepdim=True)])
        return {given}
"""
    fixed = fix(text)
    assert "inference_mode" not in fixed and "@torch.no_grad()\n    def generate" in fixed
    probe = """
m = Policy()
ids = m.generate(torch.tensor([1, 2]))
ids = ids["ids"] if isinstance(ids, dict) else torch.stack(list(ids))
nn.functional.cross_entropy(m(ids[:-1]), ids[1:]).backward()
print(len(ids), all(p.grad.abs().sum() > 0 for p in m.parameters()))
"""
    (tmp_path / "probe.py").write_text(fixed + probe)
    run = torch_process.run("probe.py", cwd=tmp_path)
    assert run.stdout == "5 True\n", run.stderr


@pytest.mark.parametrize("given", ["ids.tolist()", "ids.argmax(-1).item()"])
def test_numbers_that_inference_gives_need_no_more_than_inference_mode(given: str) -> None:
    text = MODEL.format(decorator="@torch.inference_mode()")
    text += f"\n    def predict(self, x):\n        ids = self(x)\n        return {given}\n"
    assert "@torch.inference_mode()\n    def predict" in fix(text)


def test_a_place_that_has_its_own_scope_keeps_it(tmp_path: Path) -> None:
    scoped = "import torch\n\n\n" + ENGINE.replace(
        "        return self.model(ids).argmax(-1)",
        "        with torch.no_grad():\n            return self.model(ids).argmax(-1)",
    )
    changed = project(
        tmp_path, model=MODEL.format(decorator="@torch.inference_mode()"), engine=scoped
    )
    assert list(changed) == ["model"] and "inference_mode" not in changed["model"]


def test_half_a_move_is_not_made_unseen(tmp_path: Path) -> None:
    """Only the model is looked at: the engine would lose its scope."""
    package = tmp_path / "serving"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "engine.py").write_text(ENGINE)
    model = package / "model.py"
    model.write_text(MODEL.format(decorator="@torch.no_grad()"))
    (report,) = fix_paths([str(model)], Options())
    assert report.change is None
    (finding,) = report.findings
    assert "engine.py" in finding.fixes["flag"].look_at


def test_a_library_s_other_models_do_not_rely_on_it(tmp_path: Path) -> None:
    """Nothing ties them together: what they run is their own, or was given by somebody else."""
    wave = MODEL.format(decorator="") + "\n    def inference(self, x):\n        return self(x)\n"
    changed = project(
        tmp_path,
        __init__="from .names import SIZE\nfrom .model import Model\nfrom .wave import Model as Wave\n",
        names="SIZE = 8\n",
        model=MODEL.format(decorator="@torch.no_grad()"),
        wave="from . import SIZE\n" + wave.replace("    \n", ""),
        chat=ENGINE.replace("self.model(ids)", "self._activate_model(ids)"),
    )
    assert list(changed) == ["model"] and "self.training" in changed["model"]


@pytest.mark.parametrize(
    ("engine", "driver"),
    [
        ("from .model import Model\n\n\n", ""),
        ("", "from .engine import Engine\nfrom serving import (\n    model,\n)\n"),
    ],
)
def test_imports_tie_a_start_to_a_model(engine: str, driver: str, tmp_path: Path) -> None:
    start = ENGINE.replace("self.model = model", "self.model = model or load()")
    changed = project(
        tmp_path,
        model=MODEL.format(decorator="@torch.no_grad()"),
        engine=engine + start,
        driver=driver,
    )
    assert list(changed) == ["engine", "model"] and "self.training" not in changed["model"]


FEATURES = """\
import torch
from torch import nn


class STFT(nn.Module):
    def __init__(self, size, window_fn=torch.hamming_window):
        super().__init__()
        self.window = window_fn(size)

    def forward(self, x):
        return x * self.window


class Covariance(nn.Module):
    def __init__(self, average=True):
        super().__init__()
        self.average = average{more}

    def forward(self, x):
        return x @ x.mT
"""
BEAMFORMER = """\
import torch
from torch import nn

from .features import STFT, Covariance


class DelaySum(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.stft = STFT(size)
        self.covariance = Covariance()

    def forward(self, x):
        with torch.no_grad():
            return self.covariance(self.stft(x))
"""


@pytest.mark.parametrize(
    ("more", "changed"), [("", []), ("\n        self.scale = nn.Linear(8, 8)", ["beamformer"])]
)
def test_parts_of_other_files_without_weights(
    more: str, changed: list[str], tmp_path: Path
) -> None:
    files = {"features": FEATURES.format(more=more), "beamformer": BEAMFORMER}
    files["load"] = "from .beamformer import DelaySum\n\nmodel = DelaySum().eval()\n"
    assert list(project(tmp_path, **files)) == changed


@pytest.mark.parametrize(
    "text",
    [
        # a rotary table: no parameter comes in
        """\
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.register_buffer("inv_freq", torch.ones(4))

    @torch.no_grad()
    def forward(self, x, positions):
        freqs = positions[:, None] * self.inv_freq
        return freqs.cos(), freqs.sin()
""",
        # an indexer: what it returns has no gradient anyway
        MODEL.format(decorator="@torch.no_grad()").replace(
            "self.head(x)", "self.head(x).topk(2).indices.to(torch.int32)"
        ),
        # a teacher
        MODEL.format(decorator="@torch.no_grad()").replace("Model", "EMATeacher"),
        # what searches and draws is inference
        MODEL.format(decorator="@torch.no_grad()").replace("Model", "BeamSearchDecoderWithLM"),
        MODEL.format(decorator="@torch.no_grad()").replace("Model", "PredictorCorrectorSampler"),
        MODEL.format(decorator="@torch.no_grad()").replace("Model", "BasicEnsembleModel"),
        MODEL.format(decorator="@torch.no_grad()").replace("self.head(x)", "self._generate(x)"),
        # nothing is computed here, or by something that belongs to somebody else
        """\
import abc

import torch
from torch import nn


class Predictor(nn.Module, abc.ABC):
    def __init__(self, score):
        super().__init__()
        self.reverse = ReverseSDE(score)

    @abc.abstractmethod
    @torch.no_grad()
    def forward(self, state, time): ...


class Diffusion(Predictor):
    @torch.no_grad()
    def forward(self, state, time):
        return state - self.reverse.drift(state, time)


class ReverseSDE:
    def __init__(self, score):
        self.score = score

    def drift(self, state, time):
        return self.score(state, time) * time
""",
        # frozen on purpose
        MODEL.format(decorator="@torch.no_grad()").replace(
            "nn.Linear(8, 8)", "nn.Linear(8, 8).requires_grad_(False)"
        ),
        # evaluation and metrics
        """\
import torch


@torch.no_grad()
def evaluate(model, batches):
    return sum(model(b).mean() for b in batches)
""",
        # a statement that does nothing
        "import torch\n\ntorch.no_grad()\nx = torch.ones(2, requires_grad=True)\n(x * x).sum().backward()\n",
    ],
)
def test_right_as_it_is(text: str) -> None:
    stays(text)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("nn.Linear(8, 8)", ["TRN201"]),
        ("nn.Parameter(torch.ones(8))", ["TRN201"]),
        ("nn.ModuleList([nn.Linear(8, 8)])", ["TRN201"]),
        ("Gemma2Model(config)", ["TRN201"]),
        ("Transformer(args)", ["TRN201"]),
        ("nn.Buffer(torch.ones(8))", []),
        ("nn.Dropout(0.1)", []),
        ("SimpleNamespace(a=1)", []),
        ("LogitsProcessor(config)", []),
        ("ModelArgs(8)", []),
        ("torch.ones(8)", []),
    ],
)
def test_what_makes_a_class_trainable(call: str, expected: list[str]) -> None:
    text = MODEL.format(decorator="@torch.no_grad()").replace("nn.Linear(8, 8)", call)
    assert rules(text) == expected


BODY = """\
import contextlib
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)

{forward}
"""


def body(text: str) -> str:
    return BODY.format(forward=textwrap.indent(textwrap.dedent(text), "    ").rstrip())


@pytest.mark.parametrize(
    "text",
    [
        """\
        def forward(self, x):
            with torch.no_grad():
                return self.head(self.body(x))
        """,
        """\
        def forward(self, x):
            x = x.float()
            with torch.inference_mode():
                h = self.body(x)
                y = self.head(h)
            return {"logits": y}
        """,
        """\
        def forward(self, x, lock):
            with lock, torch.set_grad_enabled(False):
                return self.head(self.body(x))
        """,
        """\
        def forward(self, x):
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                return self.head(self.body(x))
        """,
    ],
)
def test_a_scope_around_the_body_follows_the_training_flag(text: str) -> None:
    assert rules(body(text)) == ["TRN201"]
    fixed = fix(body(text), unsafe=True)
    assert "self.training and torch.is_grad_enabled()" in fixed
    assert len(fixed.splitlines()) == len(body(text).splitlines())


def test_a_scope_around_the_body_moves_to_where_inference_starts() -> None:
    becomes(
        body("""\
        def forward(self, x):
            # logits
            with torch.no_grad():
                h = self.body(x)

                return self.head(h)

        def generate(self, x):
            return self(x).argmax(-1)
        """),
        body("""\
        def forward(self, x):
            # logits
            h = self.body(x)

            return self.head(h)

        @torch.no_grad()
        def generate(self, x):
            return self(x).argmax(-1)
        """),
    )


@pytest.mark.parametrize(
    "text",
    [
        # only a part of the work
        """\
        def forward(self, x):
            with torch.no_grad():
                h = self.body(x)
            return self.head(h)
        """,
        # only for evaluation
        """\
        def forward(self, x):
            if not self.training:
                with torch.no_grad():
                    return self.head(self.body(x))
            return self.head(self.body(x))
        """,
        """\
        def forward(self, x):
            with torch.no_grad() if x is None else contextlib.nullcontext():
                return self.head(self.body(x))
        """,
        """\
        def forward(self, x):
            with torch.set_grad_enabled(self.training):
                return self.head(self.body(x))
        """,
        # numbers
        """\
        def forward(self, x):
            with torch.no_grad():
                return self.head(self.body(x)).argmax(-1)
        """,
    ],
)
def test_scopes_in_a_forward_that_stay(text: str) -> None:
    stays(body(text))


@pytest.mark.parametrize("name", ["FeatureExtractor", "VGGPerceptual", "FrozenText"])
def test_modules_around_a_network_that_is_only_used(name: str) -> None:
    text = body("""\
        def forward(self, x):
            with torch.no_grad():
                return self.head(self.body(x))
        """)
    stays(text.replace("class Model", f"class {name}"))


@pytest.mark.parametrize(
    "wrapper",
    [
        "        self.forward = torch.no_grad()(self.forward)\n",
        "        self.forward = torch.inference_mode()(self.forward)\n",
        "        self.forward = torch.set_grad_enabled(False)(self.forward)\n",
    ],
)
def test_a_forward_that_is_wrapped(wrapper: str) -> None:
    text = body("""\
        def forward(self, x):
            return self.head(self.body(x))

        def generate(self, x):
            return self.forward(x).argmax(-1)
        """)
    wrapped = text.replace("\n\n    def forward", f"\n{wrapper}\n    def forward")
    mode = wrapper.partition("= ")[2].partition("(self")[0]
    mode = mode.replace("inference_mode", "no_grad")  # what generate gives is a tensor
    expected = text.replace("    def generate", f"    @{mode}\n    def generate")
    becomes(wrapped, expected)


def test_a_wrapped_forward_follows_the_training_flag() -> None:
    text = body("""\
        def forward(self, x):
            return self.head(self.body(x))

        forward = torch.no_grad()(forward)
        """)
    fixed = fix(text, unsafe=True)
    assert "forward = torch" not in fixed
    assert "with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):" in fixed


SEGMENT = """\
        @torch.no_grad()
        def forward(self, x):
            logits = self.head(self.body(x))
            masks = logits > 0
            return {"masks": masks, "logits": logits}
        """


def test_a_forward_that_is_wrapped_behind_its_class() -> None:
    text = MODEL.format(decorator="# plain")
    fixed = fix(text + "\n\nModel.forward = torch.no_grad()(Model.forward)\n", unsafe=True)
    assert "Model.forward" not in fixed and "with torch.set_grad_enabled(self.training" in fixed
    stays(text + "\n\nOther.forward = torch.no_grad()(Other.forward)\n")


def test_a_loss_on_a_threshold_needs_more_than_the_scope_moved() -> None:
    loss = "\n\ndef loss_of(model, x, y):\n    out = model(x)\n"
    text = body(SEGMENT) + loss + "    return nn.functional.mse_loss(out['masks'].float(), y)\n"
    (finding,) = findings(text)
    assert finding.rule == "TRN201" and not finding.fixes
    assert "`masks` (line 15)" in finding.message
    right = body(SEGMENT) + loss + "    return nn.functional.mse_loss(out['logits'], y)\n"
    (finding,) = findings(right)
    assert finding.fixes


@pytest.mark.parametrize("step", ["    loss = model(x).mean()\n    loss.backward()\n"])
def test_a_wrapped_instance_that_is_trained(step: str) -> None:
    text = f"import torch\n\n\ndef train(model, x):\n    {{wrapper}}\n{step}"
    becomes(
        text.format(wrapper="x = x.float()\n    model.forward = torch.no_grad()(model.forward)"),
        text.format(wrapper="x = x.float()"),
    )
    stays(text.format(wrapper="teacher.forward = torch.no_grad()(teacher.forward)"))


HANDED = """\
import torch


def freeze(model):
    model.eval()
    model.forward = torch.no_grad()(model.forward)
    return model


def train(model, teacher, x):
    loss = model(x).mean(){more}
    loss.backward()


def main(build, x):
    model, teacher = build(), build()
    {main}
"""


@pytest.mark.parametrize(
    ("main", "more", "expected"),
    [
        ("model = freeze(model)\n    train(model, teacher, x)", "", 1),
        ("freeze(model)\n    train(model, teacher, x)", "", 1),
        ("train(freeze(model), teacher, x)", "", 1),
        ("train(teacher, freeze(model), x)", "", 0),
        ("train(teacher=teacher, x=x, model=freeze(model))", "", 1),
        ("train(model, teacher, x)\n    freeze(model)", "", 0),  # when all is done
        ("freeze(teacher)\n    train(model, teacher, x)", " + teacher(x).mean()", 0),
        ("freeze(model)\n    train(teacher, model, x)", "", 0),
        ("freeze(model)\n    print(model(x))", "", 0),
    ],
)
def test_a_wrapped_instance_that_is_handed_on(main: str, more: str, expected: int) -> None:
    text = HANDED.format(main=main, more=more)
    assert rules(text) == ["TRN201"] * expected
    if expected:
        becomes(text, text.replace("    model.forward = torch.no_grad()(model.forward)\n", ""))


def test_a_teacher_that_is_wrapped_beside_a_student() -> None:
    stays(
        """\
        import torch


        def train(student, big, x):
            big.forward = torch.no_grad()(big.forward)
            loss = (student(x) - big(x)).square().mean()
            loss.backward()
        """
    )


SMART = """\
import torch


def smart_inference_mode():
    def decorate(fn):
        if torch.is_inference_mode_enabled():
            return fn
        return (torch.inference_mode if NEW else torch.no_grad)()(fn)

    return decorate


def no_gradients(fn):
    def run(*args, **kwargs):
        with torch.no_grad():
            return fn(*args, **kwargs)

    return run


def maybe_no_grad(fn):
    return torch.no_grad()(fn) if FAST else fn
"""


@pytest.mark.parametrize(
    ("decorator", "expected"),
    [("smart_inference_mode()", 1), ("no_gradients", 1), ("maybe_no_grad", 0)],
)
def test_own_decorators(decorator: str, expected: int) -> None:
    text = MODEL.format(decorator=f"@{decorator}").partition("\n")[2]
    assert rules(f"{SMART}\n\n{text}") == ["TRN201"] * expected


def test_an_own_decorator_of_another_file(tmp_path: Path) -> None:
    model = MODEL.format(decorator="@smart_inference_mode()").replace(
        "import torch\n", "import torch\nfrom serving.modes import smart_inference_mode\n"
    )
    changed = project(tmp_path, modes=SMART, model=model)
    assert "    @smart" not in changed["model"] and "self.training" in changed["model"]


MODES = """\
import functools

import torch

frozen_scope = torch.no_grad()


def frozen(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        with torch.no_grad():
            return fn(*args, **kwargs)

    return inner


def evaluated(fn):
    return fn
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("frozen", True), ("frozen_scope", True), ("evaluated", False), ("freezes", False)],
)
def test_a_decorator_of_another_file_in_a_file_without_a_mode(
    tmp_path: Path, name: str, expected: bool
) -> None:
    imports = f"import torch\nfrom serving.modes import {name}\n"
    model = MODEL.format(decorator=f"@{name}").replace("import torch\n", imports)
    changed = project(tmp_path, modes=MODES, model=model)
    assert ("model" in changed) is expected
    if expected:
        assert f"    @{name}" not in changed["model"] and "self.training" in changed["model"]


def test_a_training_step_that_goes_through_forward() -> None:
    text = MODEL.format(decorator="@torch.no_grad()")
    text += "\n    def training_step(self, batch, index):\n        return {}.mean()\n"
    assert rules(text.format("self(batch)")) == ["TRN201"]
    assert rules(text.format("self.forward(batch)")) == ["TRN201"]
    stays(text.format("self.head(batch)"))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("RoPEAttention", True),
        ("RotarySelfAttention", True),
        ("PropertyHead", True),
        ("RotaryEmbedding", False),
        ("VisionRoPE2DEmbed", False),
    ],
)
def test_letters_in_a_name_are_no_table(name: str, found: bool) -> None:
    text = MODEL.format(decorator="@torch.inference_mode()").replace("Model", name)
    assert rules(text) == (["TRN201"] if found else [])
