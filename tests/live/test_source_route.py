"""The route *source*: functions that a model runs, rewritten where they are."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import linecache
import pickle
import subprocess
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_package import package
from torch import nn

from tests.each import in_turn
from tests.torch_process import TorchProcess
from trainify.live import apply, source
from trainify.live.reach import reached
from trainify.live.rewritten import Refused, Settings

H = 8
NORM = """
class Norm(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, n))

    def forward(self, x):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight.data, 1e-6)
        return out
"""


def find(model: nn.Module, *held: object, **settings: Any) -> source.Found:
    return source.find(model, Settings(**settings), reached(model, held))


def trainable(model: nn.Module, *held: object, **settings: Any) -> source.Found:
    found = find(model, *held, **settings)
    apply.apply(model, found.plan)
    return found


def gradients(model: nn.Module, x: torch.Tensor | None = None) -> list[torch.Tensor | None]:
    model.zero_grad()
    x = torch.arange(24.0).reshape(3, 8).sin() if x is None else x
    out = model(x)
    if out.requires_grad:
        out.square().sum().backward()
    return [p.grad for p in model.parameters()]


def is_right(model: nn.Module) -> bool:
    """Whether a model of one norm gets the gradient of F.rms_norm."""
    x = torch.arange(24.0).reshape(3, 8).sin()
    (weight,) = model.parameters()
    expected = torch.autograd.grad(F.rms_norm(x, (H,), weight, 1e-6).square().sum(), weight)
    (found,) = gradients(model, x)
    return found is not None and torch.allclose(found, expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
def test_trains_and_is_restored(tmp_path: Path, strategy: str) -> None:
    norm = package(tmp_path, norm=NORM)["norm"]
    model, other = norm.Norm(), norm.Norm()
    names = set(vars(norm))
    found = trainable(model, strategy=strategy)
    assert found.plan.methods == (f"{norm.__name__}:Norm.forward",)
    assert is_right(model)
    assert not is_right(other), "another module of the class is its owner's business"
    apply.restore(model)
    assert not is_right(model)
    assert type(model) is norm.Norm
    assert set(vars(norm)) == names


def test_applied_twice_is_applied_once(tmp_path: Path) -> None:
    norm = package(tmp_path, norm=NORM)["norm"]
    model = norm.Norm()
    trainable(model)
    trainable(model, strategy="replace")
    assert is_right(model)
    assert type(model).__mro__.count(norm.Norm) == 1
    apply.restore(model)
    assert type(model) is norm.Norm and not is_right(model)


SHAPES = {
    "super": NORM + """
class Model(Norm):
    def forward(self, x):
        return super().forward(x)
""",
    "super of what changes": NORM + """
class Model(Norm):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(self.weight.detach())

    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)
""",
    "mangled": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.__weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def __norm(self, x):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.__weight.data, 1e-6)
        return out

    def forward(self, x):
        return self.__norm(x)
""",
    "closure": """
def make():
    eps, count = 1e-6, 0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

        def forward(self, x):
            nonlocal count
            count += 1
            out = torch.empty_like(x)
            torch.ops._C.rms_norm(out, x, self.weight.data, eps)
            return out

        def count(self):
            return count

    return Model

Model = make()
""",
    "decorated": NORM + """
import functools

def logged(f):
    @functools.wraps(f)
    def inner(*args, **kwargs):
        return f(*args, **kwargs)
    return inner

def plain(f):
    def inner(*args):
        return f(*args)
    return inner

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    @logged
    @torch.no_grad()
    def forward(self, x):
        return self.norm(x)

    @plain
    def norm(self, x):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight.data, 1e-6)
        return out
""",
    "defaults": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x, *, eps=float("1e-6"), out=None):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight.data, eps)
        return out
""",
    "static": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    @staticmethod
    def norm(x, weight):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, weight.data, 1e-6)
        return out

    @classmethod
    def scale(cls, x, weight):
        return cls.norm(x, weight)

    def forward(self, x):
        return self.scale(x, self.weight)
""",
    "property": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    @property
    def normed(self):
        out = torch.empty_like(self.x)
        torch.ops._C.rms_norm(out, self.x, self.weight.data, 1e-6)
        return out

    def forward(self, x):
        self.x = x
        return self.normed
""",
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_shape_a_method_has(tmp_path: Path, shape: str) -> None:
    model = package(tmp_path, model=SHAPES[shape])["model"].Model()
    assert not is_right(model)
    trainable(model)
    assert is_right(model)
    apply.restore(model)
    assert gradients(model) == [None]


def test_state_in_cells_is_shared(tmp_path: Path) -> None:
    module = package(tmp_path, model=SHAPES["closure"])["model"]
    model, other = module.Model(), module.Model()
    trainable(model)
    gradients(model), gradients(other)
    assert model.count() == other.count() == 2


HELPERS = """
from functools import partial
from .norms import norm, Scale, fused as renamed, method, scoped
from . import norms

TABLE = {"norm": (norm,)}

def make(norm):
    return lambda *args: norm(*args)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        HELD

    def forward(self, x):
        return CALL
"""
CALLS = {
    "directly": ("", "norm(x, self.weight)"),
    "under another name": ("", "renamed(x, self.weight)"),
    "in a module": ("", "norms.norm(x, self.weight)"),
    "in a table": ("", "TABLE['norm'][0](x, self.weight)"),
    "in a partial": ("self.held = partial(norm, eps=1e-6)", "self.held(x, self.weight)"),
    "in an attribute": ("self.held = norm", "self.held(x, self.weight)"),
    "in a closure": ("self.held = make(norm)", "self.held(x, self.weight)"),
    "bound by hand": ("self.held = method.__get__(self)", "self.held(x)"),
    "bound in a closure": ("self.held = make(method.__get__(self))", "self.held(x)"),
    "in an object": ("self.held = Scale()", "self.held.run(x, self.weight)"),
    "in a class": ("", "Scale().run(x, self.weight)"),
    "imported late": ("", "__import__('importlib') and self.late(x)"),
    "with a grad mode": ("", "scoped(x, self.weight).square().mean() * norm(x, self.weight)"),
}


def with_helpers(root: Path, how: str = "directly") -> tuple[nn.Module, Any]:
    held, call = CALLS[how]
    text = HELPERS.replace("HELD", held).replace("CALL", call)
    if how == "imported late":
        text = text.replace("self.late(x)", "norm(x, self.weight)").replace(
            "        return __", "        from .norms import inner as norm\n        return __"
        )
    modules = package(root, norms=NORMS, model=text)
    return modules["model"].Model(), modules["norms"]


NORMS = """
def norm(x, weight, eps=1e-6):
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight.data, eps)
    return out

def inner(x, weight):
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight.data, 1e-6)
    return out

def fused(x, weight):
    return inner(x, weight)

@torch.no_grad()
def scoped(x, weight):
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, 1e-6)
    return out

def method(self, x):
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, self.weight.data, 1e-6)
    return out

class Scale:
    def run(self, x, weight):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, weight.data, 1e-6)
        return out

def unrelated(x, weight):
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight.data, 1e-6)
    return out
"""


@pytest.mark.parametrize("how", [how for how in CALLS if how != "with a grad mode"])
def test_helpers_wherever_they_are_held(tmp_path: Path, how: str) -> None:
    model, norms = with_helpers(tmp_path, how)
    assert not is_right(model)
    held, code = norms.norm, norms.unrelated.__code__
    trainable(model)
    assert is_right(model)
    assert norms.norm is held
    assert norms.unrelated.__code__ is code
    apply.restore(model)
    assert not is_right(model)
    assert "F" not in vars(norms)


BOUND = """
from functools import partial

class Holder(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)

def make(function):
    return lambda x: function(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.inner = nn.Identity()
        HELD

    def norm(self, x):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight.data, 1e-6)
        return out

    def before(self, module, args, scale=1.0):
        return self.norm(*args) * scale

    def after(self, module, args, result):
        out = torch.empty_like(result)
        torch.ops._C.rms_norm(out, result, self.weight.data, 1e-6)
        return out

    def forward(self, x):
        return CALL
"""
BOUND_IN = {
    "an attribute": ("self.held = self.norm", "self.held(x)"),
    "a table": ("self.held = {'norm': [self.norm]}", "self.held['norm'][0](x)"),
    "a closure": ("self.held = make(self.norm)", "self.held(x)"),
    "another module": ("self.inner = Holder(self.norm)", "self.inner(x)"),
    "a hook": ("self.inner.register_forward_hook(self.after)", "self.inner(x)"),
    "a hook before": ("self.inner.register_forward_pre_hook(self.before)", "self.inner(x)"),
    "a partial": (
        "self.inner.register_forward_pre_hook(partial(self.before, scale=1.0))",
        "self.inner(x)",
    ),
}


@pytest.mark.parametrize("where", BOUND_IN)
def test_methods_that_are_held_bound(tmp_path: Path, where: str) -> None:
    held, call = BOUND_IN[where]
    text = BOUND.replace("HELD", held).replace("CALL", call)
    model = package(tmp_path, model=text)["model"].Model()
    assert not is_right(model)
    for strategy in ("flag", "attach"):
        trainable(model, strategy=strategy)
        assert is_right(model)
        assert where == "a closure" or is_right(copy.deepcopy(model))  # which is not copied
        gc.collect()  # a copy needs it too
        apply.restore(model)
        assert not is_right(model)


AT_REST = """
def saved(module, *args):
    torch.ops._C.rms_norm(module.fc.weight, *args)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_state_dict_post_hook(saved)
        self.register_load_state_dict_post_hook(saved)
        self.make = lambda: torch.zeros(3)

    def forward(self, x):
        return self.fc(x)
"""


def test_what_no_step_runs_is_not_looked_at(tmp_path: Path) -> None:
    """Hooks of state, and lambdas in which nothing is to be mended."""
    found = find(package(tmp_path, model=AT_REST)["model"].Model())
    assert not found.plan and not found.remaining and not found.refused


def test_a_helper_stays_rewritten_for_the_last_that_needs_it(tmp_path: Path) -> None:
    first, _ = with_helpers(tmp_path)
    second = copy.deepcopy(first)
    trainable(first)
    trainable(second)
    third = copy.deepcopy(second)
    apply.restore(first)
    apply.restore(second)
    assert is_right(third)
    apply.restore(third)
    assert not is_right(third)


def test_two_ways_for_one_helper_are_refused(tmp_path: Path) -> None:
    first, _ = with_helpers(tmp_path)
    second = copy.deepcopy(first)
    trainable(first)
    said = (
        r"norms\.norm becomes `out = RMSNorm\..*` for Model, and is `out = F.* for Model; restore"
    )
    with pytest.raises(Refused, match=said):
        trainable(second, strategy="attach")
    assert "__trainify__" not in vars(type(second))
    apply.restore(first)
    trainable(second, strategy="attach")
    assert is_right(second)
    apply.restore(second)


def test_a_name_that_the_module_has_stays(tmp_path: Path) -> None:
    norm = package(tmp_path, norm=NORM)["norm"]
    norm.F = "mine"  # which no source says
    model = norm.Norm()
    with pytest.raises(Refused, match="has the name 'F' for something else"):
        trainable(model)
    assert norm.F == "mine" and type(model) is norm.Norm


@pytest.mark.parametrize("first", [0, 1])
def test_two_ways_side_by_side(tmp_path: Path, first: int) -> None:
    """Both need the same names in the module; the last one takes them away."""
    norm = package(tmp_path, norm=NORM)["norm"]
    names = set(vars(norm))
    models = norm.Norm(), norm.Norm()
    for model, when in zip(models, ("grad", "training"), strict=True):
        trainable(model, strategy="attach", when=when)
    assert all(map(is_right, models))
    apply.restore(models[first])
    assert is_right(models[1 - first]) and not is_right(models[first])
    apply.restore(models[1 - first])
    assert set(vars(norm)) == names


def test_a_cell_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file is missing, linecache has the lines."""
    text = "import torch\nfrom torch import nn\n" + NORM
    cell = "<ipython-input-3-0123>"
    monkeypatch.setitem(linecache.cache, cell, (len(text), None, text.splitlines(True), cell))
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, cell, "exec", dont_inherit=True), space)
    model = space["Norm"]()
    trainable(model)
    assert is_right(model)
    assert cell in apply.source_diff(model)
    apply.restore(model)
    assert not is_right(model) and "F" not in space


def test_tracebacks_and_inspect_show_the_new_lines(tmp_path: Path) -> None:
    norm = package(tmp_path, norm=NORM)["norm"]
    model = norm.Norm()
    trainable(model, strategy="replace")
    try:
        model("no tensor")
    except AttributeError:
        shown = traceback.format_exc()
    assert "out = F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)" in shown
    assert "F.rms_norm" in inspect.getsource(model.forward)


def test_what_cannot_be_rewritten_says_why(tmp_path: Path) -> None:
    text = (
        NORM
        + "class Lambda(Norm):\n    forward = lambda self, x: torch.ops._C.rms_norm(x, x, x, 1)\n"
    )
    norm = package(tmp_path, norm=text)["norm"]
    (reason,) = find(norm.Lambda()).refused
    assert reason.endswith("norm.py:14: a lambda has no body to rewrite")
    space: dict[str, Any] = {"nn": nn, "torch": torch, "__name__": "elsewhere"}
    exec(NORM, space)
    (reason,) = find(space["Norm"]()).refused
    assert reason == "<string>: no source, so there is nothing to rewrite"
    scripted = torch.jit.script(nn.Linear(2, 2))
    (reason,) = find(scripted).refused
    assert reason == "Linear: what torch.jit compiled has no source that runs"


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    norm = package(tmp_path, norm=NORM)["norm"]
    file = Path(norm.__file__)
    file.write_text("# a new line\n" + file.read_text())
    found = find(norm.Norm())
    assert found.plan.methods == ()
    assert found.refused == (f"{file} is not what was imported of it; import it again",)


def test_what_only_a_constructor_could_do_is_not_done(tmp_path: Path) -> None:
    text = (
        NORM
        + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [Norm() for _ in range(3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""
    )
    model = package(tmp_path, model=text)["model"].Model()
    found = trainable(model)
    assert [finding.rule for finding in found.remaining] == ["TRN501"]
    assert all("__init__" not in name for name in found.plan.methods)
    apply.restore(model)


def test_the_diff_that_it_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, _ = with_helpers(tmp_path)
    assert apply.source_diff(model) == ""
    trainable(model)
    diff = apply.source_diff(model)
    subprocess.run(["git", "apply", "--check"], input=diff.encode(), check=True)
    assert "+import torch.nn.functional as F" in diff
    assert diff.count("+    if torch.is_grad_enabled()") == 1, "of what is not run, nothing"
    apply.restore(model)
    assert apply.source_diff(model) == ""


BESIDE = (
    NORM
    + """
from torch.nn.functional import silu, relu

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 16)

    def forward(self, x):
        out = torch.empty(x.shape)
        torch.ops._C.silu_and_mul(out, self.fc(x))
        return out

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x):
        return self.fc(x)
"""
)


@pytest.mark.parametrize(
    ("name", "strategy"), in_turn(["Norm", "Gate", "Plain"], ["flag", "replace", "attach"])
)
def test_the_diff_has_what_the_model_needs_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    module = package(tmp_path, beside=BESIDE)["beside"]
    model = getattr(module, name)()
    trainable(model, strategy=strategy)
    diff = apply.source_diff(model)
    apply.restore(model)
    for other in {"Norm", "Gate"} - {name}:
        assert other not in "".join(line for line in diff.splitlines() if line[:1] in "+-")
    subprocess.run(["git", "apply"], input=diff.encode(), check=True)
    text = Path(module.__file__).read_text()
    assert "\n\n\n\n" not in text
    patched: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(text, "patched", "exec"), patched)
    model = patched[name]()
    assert all(gradient is not None for gradient in gradients(model))


BETWEEN = {
    "a function": "def helper():\n    return 1\n",
    "a decorated function": "@torch.no_grad()\ndef helper(x):\n    return x\n",
    "a class": "class Other(nn.Module):\n    def forward(self, x):\n        return x\n",
    "a decorated class": "@dataclass\nclass Settings:\n    eps: float = 1e-6\n",
    "a value": "LIMIT = 3\n",
    "a condition": "if torch.cuda.is_available():\n\n    def helper():\n        return 1\n",
    "a function with cuts": "@torch.no_grad()\ndef loss(x, y):\n    return (x - y).mean()\n",
}


@pytest.mark.parametrize("lines", [0, 1, 2])
@pytest.mark.parametrize(("between", "strategy"), in_turn(BETWEEN, ["attach", "flag", "replace"]))
def test_what_stands_before_a_class_is_not_in_the_way_of_the_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str, strategy: str, lines: int
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "from dataclasses import dataclass\n" + "\n" * lines + between + BESIDE
    module = package(tmp_path, beside=text)["beside"]
    functions = {"Norm": "RMSNorm", "Gate": "SiluAndMul"}
    for name, function in functions.items():
        model = getattr(module, name)()
        trainable(model, strategy=strategy)
        diff = apply.source_diff(model)
        apply.restore(model)
        subprocess.run(["git", "apply"], input=diff.encode(), check=True)
        patched: dict[str, Any] = {"__name__": module.__name__}
        exec(compile(Path(module.__file__).read_text(), "patched", "exec"), patched)
        subprocess.run(["git", "apply", "-R"], input=diff.encode(), check=True)
        assert between in Path(module.__file__).read_text()
        added = functions.values() & patched.keys()
        assert added == ({function} if strategy == "attach" else set())
        assert all(gradient is not None for gradient in gradients(patched[name]()))


# -- the module stays the user's ------------------------------------------------------------------


def test_it_is_still_the_module(tmp_path: Path) -> None:
    norm = package(tmp_path, norm=NORM)["norm"]
    model = norm.Norm()
    keys, shown = list(model.state_dict()), repr(model)
    trainable(model)
    assert isinstance(model, norm.Norm)
    assert list(model.state_dict()) == keys and repr(model) == shown
    assert type(model).__qualname__ == "Norm" and type(model).__module__ == norm.__name__


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a copy": lambda m: copy.deepcopy(copy.deepcopy(m)),
    **{
        f"pickle {n}": functools.partial(lambda n, m: pickle.loads(pickle.dumps(m, n)), n)
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "torch.save": lambda m: (
        torch.save(m, b := io.BytesIO()), b.seek(0), torch.load(b, weights_only=False)
    )[2],
}  # fmt: skip


@pytest.mark.parametrize("how", COPIES)
def test_copies_train_too(tmp_path: Path, how: str) -> None:
    norm = package(tmp_path, norm=NORM)["norm"]
    model = norm.Norm()
    trainable(model)
    made = COPIES[how](model)
    apply.restore(model)
    assert is_right(made) and not is_right(model)
    apply.restore(made)
    assert type(made) is norm.Norm and not is_right(made)


def test_state_of_its_own_and_slots(tmp_path: Path) -> None:
    text = (
        NORM
        + """
class Model(Norm):
    def __getstate__(self):
        return {**self.__dict__, "saved": True}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.loaded = True
"""
    )
    model = package(tmp_path, model=text)["model"].Model()
    trainable(model)
    made = pickle.loads(pickle.dumps(model))
    assert made.saved and made.loaded and is_right(made)
    apply.restore(made), apply.restore(model)


ANOTHER = """
import sys, warnings
sys.path[:0] = [{root!r}, {tests!r}]
from live_kernels import register_kernels
register_kernels()
import torch
warnings.simplefilter("error" if {strict} else "always")
model = torch.load({file!r}, weights_only=False)
out = model(torch.ones(3, 8))
print(out.requires_grad)
"""


@pytest.mark.parametrize("stale", [False, True])
def test_a_fresh_process(tmp_path: Path, torch_process: TorchProcess, stale: bool) -> None:
    """The change comes back; where it cannot, loading says so."""
    model, norms = with_helpers(tmp_path)
    trainable(model)
    torch.save(model, tmp_path / "model.pt")
    apply.restore(model)
    if stale:
        file = Path(norms.__file__)
        file.write_text(file.read_text().replace("torch.ops._C.rms_norm(out", "print(out"))
    script = tmp_path / "process.py"
    script.write_text(
        ANOTHER.format(
            root=str(tmp_path),
            tests=str(Path(__file__).parent),
            file=str(tmp_path / "model.pt"),
            strict=not stale,
        )
    )
    run = torch_process.run(script, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == str(not stale), run.stderr
    if stale:
        assert "Model was made trainable when it was saved, and is not now" in run.stderr
        assert "Call trainify.trainify(model) again" in run.stderr


def test_what_a_model_was_constructed_by_is_not_followed(tmp_path: Path) -> None:
    code = f"""
{NORM}
class Other(Norm):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)

class Inner(Norm):
    def forward(self, x):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight, 1e-6)
        return out

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x)

class Model(nn.Module):
    def __init__(self, kind="norm"):
        super().__init__()
        self.layer = dict(norm=Norm, other=Other)[kind]()
        self.late = None

    def forward(self, x):
        if self.late is None:
            self.late = Late()
        return self.late(self.layer(x))
"""
    made = package(tmp_path, a=code)["a"]
    methods = {m.function.__qualname__ for m in reached(made.Model()).methods}
    assert {"Model.forward", "Norm.forward", "Late.forward", "Inner.forward"} <= methods
    assert not any(name.startswith("Other.") for name in methods)
