"""Where a scope must not go: onto a function that training sends gradients back through."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from trainify.engine import FileReport, Options, fix_paths

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    @torch.{mode}()
    def forward(self, x):
        return self.head(x)

    def predict(self, x):
        return self(x).softmax(-1)
"""
FOLLOWS = "not (self.training and torch.is_grad_enabled())"


def reports(tmp_path: Path, unsafe: bool = False, **files: str) -> dict[str, FileReport]:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    (tmp_path / "load.py").write_text("from model import Model\n\nmodel = Model().eval()\n")
    found = {Path(r.path).stem: r for r in fix_paths([str(tmp_path)], Options(unsafe=unsafe))}
    assert not [r.problem for r in found.values() if r.problem]
    return found


def fixed(tmp_path: Path, unsafe: bool = False, **files: str) -> dict[str, str]:
    """The files that change, as they are then."""
    found = reports(tmp_path, unsafe, **files)
    return {name: r.text for name, r in found.items() if r.change is not None}


# -- a loss is computed by what looks as if it started inference ----------------------------------


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize(
    "loss",
    [
        "loss = F.nll_loss(m.predict(x).log(), y)",
        "out = m.predict(x)\n        loss = F.cross_entropy(out, y)",
        "loss = objective(m, x, y)",
    ],
)
def test_a_method_that_a_loss_comes_from_gets_no_scope(
    tmp_path: Path, loss: str, unsafe: bool
) -> None:
    train = f"""\
import torch.nn.functional as F
from model import Model


def objective(m, x, y):
    return F.nll_loss(m.predict(x).log(), y)


def train(m, loader, opt):
    for x, y in loader:
        {loss}
        loss.backward()
        opt.step()
"""
    changed = fixed(tmp_path, unsafe, model=MODEL.format(mode="inference_mode"), train=train)
    assert list(changed) == ["model"]
    assert "@torch" not in changed["model"] and FOLLOWS in changed["model"]


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_function_that_a_loss_comes_from_gets_no_scope(
    tmp_path: Path, mode: str, unsafe: bool
) -> None:
    train = """\
import torch.nn.functional as F


def infer(model, x):
    return model(x)


def train(m, loader, opt):
    for x, y in loader:
        out = infer(m, x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        opt.step()
"""
    changed = fixed(tmp_path, unsafe, model=MODEL.format(mode=mode), train=train)
    assert list(changed) == ["model"]
    assert "    @torch.no_grad()\n    def predict" in changed["model"]


@pytest.mark.parametrize(
    "use",
    [
        "tokens = m.generate(x)\n        loss = F.cross_entropy(m(tokens), y)",
        "target = m.predict(x).detach()\n        loss = F.mse_loss(m(x), target)",
        "noise = dist.predict(x)\n        loss = F.mse_loss(m(x), noise)",
    ],
)
def test_what_no_gradient_comes_back_through_still_starts_inference(
    tmp_path: Path, use: str
) -> None:
    """Token ids, a target that is detached, the method of another object."""
    model = (
        MODEL.format(mode="no_grad")
        + """
    def generate(self, x):
        return self(x).argmax(-1)
"""
    )
    train = f"""\
import torch.nn.functional as F


def train(m, dist, loader, opt):
    for x, y in loader:
        {use}
        loss.backward()
        opt.step()
"""
    (text,) = fixed(tmp_path, model=model, train=train).values()
    assert "    @torch.no_grad()\n    def predict" in text
    assert "    @torch.no_grad()\n    def generate" in text


# -- one scope is enough --------------------------------------------------------------------------


def test_an_entry_that_relies_on_two_forwards_gets_one_scope(tmp_path: Path) -> None:
    one = MODEL.format(mode="no_grad")
    changed = fixed(tmp_path, one=one, two=MODEL.format(mode="inference_mode"))
    assert changed["one"].count("@torch") == changed["two"].count("@torch") == 1
    assert "    @torch.no_grad()\n    def predict" in changed["one"]


def test_two_forwards_of_one_file_give_an_entry_one_scope(tmp_path: Path) -> None:
    second = MODEL.format(mode="inference_mode").partition("\n\n\n")[2].replace("Model", "Other")
    text = MODEL.format(mode="no_grad") + "\n\n" + second
    (after,) = fixed(tmp_path, model=text).values()
    assert after.count("@torch.no_grad()\n    def predict") == 2
    assert after.count("@torch") == 2


def test_one_line_bodies_get_one_scope(tmp_path: Path) -> None:
    text = """\
import torch
from torch import nn
class M(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(3, 3)
    @torch.no_grad()
    def forward(self, x): return self.l(x)
    def generate(self, x): return self(x).argmax(-1)
"""
    changed = fixed(tmp_path, line=text, model=MODEL.format(mode="inference_mode"))
    assert changed["line"].count("@torch") == 1


# -- methods that a forward trains through --------------------------------------------------------

HELPED = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    {encode}

    @torch.{mode}()
    def forward(self, x):
        return self.head(self.encode(x))
"""
ENCODERS = [
    "@torch.{mode}()\n    def encode(self, x):\n        return self.enc(x)",
    "def encode(self, x):\n        with torch.{mode}():\n            return self.enc(x)",
    "def encode(self, x):\n        return self.embed(x)\n\n"
    "    @torch.{mode}()\n    def embed(self, x):\n        y = self.enc(x)\n        return y",
    "@torch.{mode}()\n    def encode(self, x):\n        return self.scaled(self.enc(x))\n\n"
    "    @torch.{mode}()\n    def scaled(self, x):\n        return 2 * x",
]
STEP = """
model = Model()
model(torch.ones(2, 4)).sum().backward()
learns = all(p.grad is not None for p in model.parameters())
records = model.eval().encode(torch.ones(2, 4)).requires_grad
"""


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize(
    "predict", ["", "\n    def predict(self, x):\n        return self(x).argmax(-1)\n"]
)
def test_the_scope_of_a_method_goes_with_that_of_forward(
    tmp_path: Path, encode: str, mode: str, predict: str
) -> None:
    """Run the result: every parameter gets a gradient, and eval records none."""
    text = HELPED.format(encode=encode.format(mode=mode), mode=mode) + predict
    (after,) = fixed(tmp_path, model=text).values()
    names: dict[str, object] = {}
    exec(after + STEP, names)
    assert names["learns"]
    assert not names["records"]
    (tmp_path / "model.py").write_text(after)
    assert not reports(tmp_path)["model"].findings


@pytest.mark.parametrize(
    "encode",
    [
        "@torch.no_grad()\n    def encode(self, x): return self.enc(x)",
        "@staticmethod\n    @torch.no_grad()\n    def scaled(x):\n        return x\n\n"
        "    @torch.no_grad()\n    def encode(self, x): return self.enc(x)",
    ],
)
def test_a_half_that_cannot_be_repaired_leaves_both_reported(tmp_path: Path, encode: str) -> None:
    found = reports(tmp_path, model=HELPED.format(encode=encode, mode="no_grad"))["model"]
    assert found.change is None
    assert [f.rule for f in found.findings] == ["TRN201"]
    assert "`Model.encode`" in found.findings[0].message


def test_a_method_that_trains_nothing_keeps_its_scope(tmp_path: Path) -> None:
    encode = (
        "@torch.no_grad()\n    def positions(self, x):\n        return torch.arange(4)\n\n"
        "    def encode(self, x):\n        return self.enc(x + self.positions(x))"
    )
    (after,) = fixed(tmp_path, model=HELPED.format(encode=encode, mode="no_grad")).values()
    assert after.count("@torch.no_grad()") == 1


# -- callers that count on the scope of forward ---------------------------------------------------

SERVE = """\
import torch
from model import Model

model = Model().eval()


{decorator}
def handle(request):
    return model(torch.tensor(request)).numpy()
"""


@pytest.mark.parametrize("predict", [True, False])
def test_a_caller_that_makes_an_array_is_to_be_looked_at(tmp_path: Path, predict: bool) -> None:
    model = MODEL.format(mode="inference_mode")
    model = model if predict else model.partition("\n    def predict")[0]
    found = reports(tmp_path, model=model, serve=SERVE.format(decorator=""))["model"]
    assert found.change is None
    assert "serve.py:9" in found.findings[0].fixes["flag"].look_at


def test_a_caller_with_a_scope_of_its_own_is_not(tmp_path: Path) -> None:
    serve = SERVE.format(decorator="@torch.no_grad()")
    assert list(fixed(tmp_path, model=MODEL.format(mode="no_grad"), serve=serve)) == ["model"]


GIVEN = """\
{imports}
def export(model, x):
    {before}return model(x).numpy()
"""


@pytest.mark.parametrize(
    ("before", "counts"),
    [("", True), ("x = x.float()\n    ", True), ("with torch.no_grad():\n        ", False)],
)
def test_a_caller_that_gets_the_model_as_an_argument(
    tmp_path: Path, before: str, counts: bool
) -> None:
    export = GIVEN.format(imports="import torch\n\n", before=before)
    found = reports(tmp_path, model=MODEL.format(mode="no_grad"), export=export)["model"]
    assert (found.change is None) is counts
    if counts:
        assert "export.py:" in found.findings[0].fixes["flag"].look_at
