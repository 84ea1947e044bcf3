"""A scope leaves a forward unseen only where all that runs this very model is looked after."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from verbs import findings, fix

from tests.each import in_turn
from trainify.engine import FileReport, Options, fix_paths
from trainify.findings import STRATEGIES, Safety

NET = """\
import asyncio
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.head = nn.Linear(d, 8)

    @torch.inference_mode()
    def forward(self, x):
        return self.head(x)


def build():
    return Net()
"""
OTHER = """\

class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 8)

    def forward(self, x):
        return self.head(x)

"""
GENERATE = "\n\ndef generate(model, x):\n    return model(x).argmax(-1)\n"


def look_at(text: str, **options: object) -> str:
    """What its TRN201 says to look at; empty where the fix is safe."""
    (fixes,) = (f.fixes["flag"] for f in findings(text, **options) if f.rule == "TRN201")
    assert (fixes.safety is Safety.SAFE) is (fixes.look_at == "")
    return fixes.look_at


def project(tmp_path: Path, **files: str) -> dict[str, FileReport]:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return {Path(r.path).stem: r for r in fix_paths([str(tmp_path)], Options())}


# -- evaluation mode: of this model ---------------------------------------------------------------

EVALUATED = [
    "net = Net().eval()",
    "net = Net()\nnet.to('cpu').train(False)",
    "net = torch.compile(build())\nnet.eval()",
    "def load(path=None):\n    net = Net() if path is None else torch.load(path)\n    return net.eval()",
    "class Server:\n    def __init__(self):\n        self.net = build().eval()",
    "class Server:\n    def __init__(self, net):\n        self.net = net\n        self.net.eval()"
    "\n\n\nserver = Server(Net())",
    "def serve(net: Net):\n    net.eval()",
    "def serve(net):\n    net.eval()\n\n\nserve(Net())",
    "class Whole(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.net = Net()\n\n\nwhole = Whole()\nwhole.eval()",
    "class Sub(Net):\n    pass\n\n\nsub = Sub().eval()",
]
NOT_EVALUATED = [
    "net = Net()\nnet.train()",
    "def serve(net):\n    net.eval()",
    f"{OTHER}\nother = Other().eval()",
    f"{OTHER}\ndef serve(net: Other):\n    net.eval()",
    f"{OTHER}\nclass Server:\n    def __init__(self):\n        self.net = Other()\n"
    "        self.net.eval()",
    "def tidy(frame):\n    return frame.eval()",
]


@pytest.mark.parametrize("more", EVALUATED)
def test_what_puts_this_model_into_evaluation_mode(more: str) -> None:
    assert not look_at(f"{NET}\n\n{more}\n")


@pytest.mark.parametrize("more", NOT_EVALUATED)
def test_what_evaluates_something_else(more: str) -> None:
    assert "eval()" in look_at(f"{NET}\n\n{more}\n")


def test_files_that_evaluate_something_else(tmp_path: Path) -> None:
    found = project(
        tmp_path,
        net=NET,
        frame="def tidy(other):\n    other.eval()\n",
        probe="from torch import nn\n\n\ndef fit(head: nn.Module):\n    return head.eval()\n",
        twin=NET.replace("    @torch.inference_mode()\n", "") + "\n\nnet = Net().eval()\n",
    )
    assert not any(report.change for report in found.values())


@pytest.mark.parametrize(
    "load",
    [
        "from net import Net\n\nnet = Net().eval()\n",
        "from net import build\n\n\nclass Server:\n    def __init__(self):\n"
        "        self.net = build().eval()\n",
        "import net as nets\n\nnet = nets.build()\nnet.eval()\n",
    ],
)
def test_another_file_that_evaluates_it(tmp_path: Path, load: str) -> None:
    assert project(tmp_path, net=NET, load=load)["net"].change


@pytest.mark.parametrize("flag", ["grad", "training"])
def test_a_run_in_training_mode_is_looked_at(flag: str) -> None:
    text = f"{NET}\n\nnet = Net().eval()\n\n\ndef probe(x):\n    {{}}\n"
    assert not look_at(text.format("return net(x)"), flag=flag)
    for fresh in ("return Net()(x)", "net = Net()\n    return net(x).sum()"):
        assert "`probe`" in look_at(text.format(fresh), flag=flag)


KERNEL = """\
import torch
from torch import nn
from sgl_kernel import silu_and_mul


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 8)

    @torch.{scope}()
    def forward(self, x):
        {body}


class Server:
    def __init__(self):
        self.net = Net().eval()

    def embed(self, x):
        return self.net(x).numpy()
"""


BODIES = {
    "at once": "return silu_and_mul(self.head(x))",
    "by a name": "h = self.head(x)\n        return silu_and_mul(h)",
}
SCOPED = {
    f"{name} {scope}": (body, scope)
    for name, body in BODIES.items()
    for scope in ("no_grad", "inference_mode")
}


@pytest.mark.parametrize(("body", "scope", "strategy"), in_turn(SCOPED, STRATEGIES))
def test_a_kernel_below_a_scope_that_follows_training(
    scope: str, strategy: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the result: served bit for bit by the kernel, and trained as plain torch would be."""
    ran = 0

    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        nonlocal ran
        ran += 1
        gate, up = x.detach().chunk(2, dim=-1)
        return nn.functional.silu(gate) * up

    library = ModuleType("sgl_kernel")
    monkeypatch.setattr(library, "silu_and_mul", silu_and_mul, raising=False)
    monkeypatch.setitem(sys.modules, "sgl_kernel", library)
    text = KERNEL.format(scope=scope, body=body)
    fixed = fix(text, strategy=strategy)
    assert fix(fixed, strategy=strategy) == fixed
    x, served = torch.ones(2, 4), []
    for each in (text, fixed):
        names: dict[str, Any] = {}
        exec(compile(each, "m.py", "exec"), names)
        torch.manual_seed(0)
        served.append(torch.from_numpy(names["Server"]().embed(x)))
    assert torch.equal(*served)
    assert ran == 1 + (strategy != "replace")
    net = names["Net"]()
    net(x).sum().backward()
    gate, up = nn.functional.linear(x, net.head.weight, net.head.bias).chunk(2, dim=-1)
    wanted = torch.autograd.grad((nn.functional.silu(gate) * up).sum(), net.head.weight)
    assert net.head.weight.grad.allclose(wanted[0])


# -- a scope that moves ---------------------------------------------------------------------------

SERVER = """\


class Server:
    def __init__(self):
        self.model = Net().eval()

    def step(self, x):
        y = self.model(x)
        return y.softmax(-1).numpy()
"""


def test_all_that_plainly_infers_gets_the_scope() -> None:
    """Run the result: what served still serves, and the model learns."""
    text = f"{NET}{SERVER}{GENERATE}"
    fixed = fix(text)
    assert "    @torch.inference_mode()\n    def step" in fixed
    assert "\n@torch.no_grad()\ndef generate" in fixed
    assert "    @torch.inference_mode()\n    def forward" not in fixed
    x, given = torch.ones(2, 4), []
    for each in (text, fixed):
        names: dict[str, Any] = {}
        exec(compile(each, "m.py", "exec"), names)
        torch.manual_seed(0)
        given.append(torch.from_numpy(names["Server"]().step(x)))
    assert torch.equal(*given)
    net = names["Net"]()
    assert not names["generate"](net, x).requires_grad
    net(x).sum().backward()
    assert net.head.weight.grad is not None
    assert fix(fixed) == fixed


LEFT = {
    "async": (
        "class Server:\n    def __init__(self):\n        self.model = build()\n\n"
        "    async def step(self, x):\n        return self.model(x).numpy()",
        "`Server.step`",
    ),
    "lambda": ("MODEL = build()\nhandlers = {'p': lambda x: MODEL(x).numpy()}", "the top level"),
    "logits": ("net = Net()\n\n\ndef logits(x):\n    return net(x)", "`logits`"),
    "own": (
        "class Sub(Net):\n    def act(self, x):\n        return self(x).argmax(-1), self(x)",
        "`Sub.act`",
    ),
    "given": ("def show(m, x):\n    print(m.forward(x).sum())\n\n\nshow(Net(), 1)", "`show`"),
    "declared": ("def show(m: Net, x):\n    print(m(x).sum())", "`show`"),
    "trains-too": (
        "def main(x):\n    net = Net()\n    fit(net)\n    print(net(x).numpy())",
        "`main`",
    ),
    "array-in-training": (
        "def train(net: Net, opt, x):\n    net(x).sum().backward()\n    opt.step()\n"
        "    return net(x).numpy()",
        "`train`",
    ),
}


@pytest.mark.parametrize(("more", "place"), LEFT.values(), ids=LEFT.keys())
def test_places_that_get_no_scope_are_named(more: str, place: str) -> None:
    assert place in look_at(f"{NET}\n\n{more}\n{GENERATE}")


RIGHT = {
    "scoped": "net = Net()\n\n\n@torch.no_grad()\ndef logits(x):\n    return net(x)",
    "training": "def step(net: Net, x):\n    net(x).sum().backward()",
    "loss": "def risk(net: Net, x):\n    return net(x).sum()\n\n\n"
    "def step(net, x):\n    loss = risk(net, x)\n    loss.backward()",
    "shape": "SIZE = Net()(torch.ones(1, 4)).shape[-1]\n\n\n"
    "def size():\n    net = Net()\n    return net(torch.ones(1, 4)).shape",
    "part": "class Whole(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.net = Net()\n\n    def forward(self, x):\n        return self.net(x)",
    "another": f"{OTHER}\n\nnet = Other()\n\n\ndef logits(x):\n    return net(x).numpy()",
    "below": "class Engine:\n    def __init__(self, net: Net):\n        self.model = net\n\n"
    "    def _next(self, x):\n        return self.model(x)[-1]\n\n"
    "    def _loop(self, x):\n        return self._next(x)\n\n"
    "    def generate(self, x):\n        self.model(x)\n        return self._loop(x)",
}


@pytest.mark.parametrize("more", RIGHT.values(), ids=RIGHT.keys())
def test_places_that_need_none(more: str) -> None:
    assert not look_at(f"{NET}\n\n{more}\n{GENERATE}")


# -- what runs the same model by other ways -------------------------------------------------------

PAIR = """

def pair():
    return Net().eval(), torch.ones(1, 4)


class Engine:
    def __init__(self):
        self.model, self.x = pair()

    def generate(self):
        return self.model(self.x).argmax(-1).tolist()

    {other}
"""
HANDED = {
    "map": "def score(net: Net, xs):\n    return [y.numpy() for y in map(net, xs)]",
    "partial": "from functools import partial\n\nrun = partial(build())",
    "forward": "class Stage:\n    def __init__(self, fn):\n        self.fn = fn\n\n\n"
    "def score():\n    return Stage(build().forward)",
    "thread": "from threading import Thread\n\n\n@torch.no_grad()\ndef score(net: Net, x):\n"
    "    Thread(target=net, args=(x,)).start()",
    "stage": "class Stage:\n    def __init__(self, fn):\n        self.fn = fn\n\n"
    "    def score(self, xs):\n        return list(map(self.fn, xs))\n\n\nstage = Stage(build())",
}
HANDED["fields"] = (
    "from dataclasses import dataclass\n\n\n@dataclass\nclass Stage:\n    name: str\n    fn: object\n\n"
    "    def score(self, x):\n        return self.fn(x)\n\n\nstage = Stage('a', build())"
)
HELD = {
    "dict": "NETS = {'a': build()}\n\n\ndef score(x):\n    return NETS['a'](x)",
    "dict-of-classes": "NETS = {'a': Net}\n\n\ndef score(x):\n    return NETS['a']()(x)",
    "dict-of-factories": "NETS = {'a': build}\n\n\ndef score(x):\n    return NETS.get('a')()(x)",
    "put": "class Hub:\n    def __init__(self):\n        self.nets = {}\n"
    "        self.nets['a'] = build()\n\n    def score(self, x):\n"
    "        net = self.nets.get('a')\n        return net(x)",
    "values": "def score(x):\n    nets = {'a': Net()}\n    for net in nets.values():\n"
    "        print(net(x).sum())",
    "items": "def score(x):\n    nets = {'a': Net()}\n    for name, net in nets.items():\n"
    "        print(name, net(x).sum())",
    "append": "def score(x):\n    nets = []\n    nets.append(Net())\n    return nets[0](x)",
    "comprehension": "def score(x):\n    nets = [Net() for _ in range(3)]\n"
    "    return [net(x) for net in nets]",
    "zip": "def score(xs):\n    nets = [Net(), Net()]\n"
    "    return [net(x) for net, x in zip(nets, xs)]",
    "classes": "def score(x):\n    for cls in (Net,):\n        net = cls()\n        print(net(x).sum())",
    "pair": "def both():\n    return Net(), 1\n\n\ndef score(x):\n    net, y = both()\n    return net(x)",
    "partial-class": "import functools\nmake = functools.partial(Net, 3)\n\n\n"
    "def score(x):\n    return make()(x)",
    "lambda": "make = lambda: Net()\n\n\ndef score(x):\n    return make()(x)",
    "namespace": "import types\n\n\ndef score(x):\n    b = types.SimpleNamespace(net=Net())\n"
    "    return b.net(x)",
    "context": "import contextlib\n\n\n@contextlib.contextmanager\ndef loaded():\n    yield Net()\n\n\n"
    "def score(x):\n    with loaded() as net:\n        return net(x)",
    "generator": "def nets():\n    yield Net()\n\n\ndef score(x):\n    for net in nets():\n"
    "        print(net(x).sum())",
    "property": "class Hub:\n    @property\n    def net(self):\n        return Net()\n\n"
    "    def score(self, x):\n        return self.net(x)",
    "module-list": "class Hub:\n    def __init__(self):\n        self.nets = nn.ModuleList([Net()])\n\n"
    "    def score(self, x):\n        return [net(x) for net in self.nets]",
    "module-dict": "class Hub:\n    def __init__(self):\n"
    "        self.nets = nn.ModuleDict({'a': Net()})\n\n"
    "    def score(self, x):\n        return self.nets['a'](x)",
    "sequential": "def score(x):\n    return nn.Sequential(Net(), nn.ReLU())(x)",
    "inherited": "class Base:\n    def __init__(self):\n        self.net = Net()\n\n\n"
    "class Hub(Base):\n    def score(self, x):\n        return self.net(x)",
    "by-name": "class Hub:\n    def __init__(self):\n        self.net = Net()\n\n"
    "    def score(self, x):\n        return getattr(self, 'net')(x)",
    "next": "def score(x):\n    net = next(iter([Net()]))\n    return net(x)",
    "own-class": "class Sub(Net):\n    def again(self):\n        return type(self)()\n\n\n"
    "def score(x):\n    return Sub().again()(x)",
    "register": "KNOWN = {}\n\n\ndef register(cls):\n    KNOWN[cls.__name__] = cls\n    return cls\n\n\n"
    "register(Net)\n\n\ndef score(x):\n    return KNOWN['Net']()(x)",
}
KEPT = {
    "scoped": "@torch.no_grad()\ndef score(net: Net, xs):\n    return list(map(net, xs))",
    "trained": "def step(net: Net, xs):\n    sum(map(net, xs)).sum().backward()",
    "compiled": "net = build()\nnet.forward = torch.compile(net.forward)",
    "looked-at": "import inspect\n\nnames = inspect.signature(build().forward)",
    "saved": "net = build()\nstate = {'net': net}\ntorch.save(state['net'].state_dict(), 'f')",
    "another": f"{OTHER}\n\nothers = {{'a': Other()}}\n\n\ndef score(x):\n"
    "    return others['a'](x), list(map(Other(), [x]))",
}


@pytest.mark.parametrize(
    ("other", "place"),
    [
        ("def logits(self):\n        return self.model(self.x).numpy()", "`Engine.logits`"),
        ("def logits(self):\n        return self.model.forward(self.x)", "`Engine.logits`"),
        ("async def logits(self):\n        return self.model(self.x).sum()", "`Engine.logits`"),
        ("@torch.no_grad()\n    def logits(self):\n        return self.model(self.x)", ""),
        ("def predict(self):\n        return self.model(self.x).softmax(-1)", ""),
        ("def step(self):\n        self.model(self.x).sum().backward()", ""),
        ("def fresh(self, model):\n        return model(self.x).numpy()", ""),
    ],
)
def test_what_else_runs_the_model_of_a_start_is_named(other: str, place: str) -> None:
    """Also where the expression does not show of which class it is."""
    said = look_at(NET + PAIR.format(other=other))
    assert place in said and bool(said) is bool(place)


def test_a_model_that_a_start_of_another_file_shares(tmp_path: Path) -> None:
    context = "from net import Net\n\n\nclass Context:\n    net = None\n\n\nCTX = Context()\n"
    context += "\n\ndef startup():\n    CTX.net = Net().eval()\n"
    routes = "from context import CTX\n\n\ndef generate(x):\n    return CTX.net(x).tolist()\n"
    health = "\n\ndef health(x):\n    return float(CTX.net(x).numpy().sum())\n"
    net = project(tmp_path, net=NET, context=context, routes=routes + health)["net"]
    assert net.change is None
    assert "`health` " in net.findings[0].fixes["flag"].look_at
    (tmp_path / "routes.py").write_text(routes)
    net = project(tmp_path, net=NET, context=context, routes=routes)["net"]
    assert net.change is not None


@pytest.mark.parametrize("more", HANDED.values(), ids=HANDED.keys())
def test_a_model_that_is_handed_on_as_a_function(more: str) -> None:
    place = "the top level" if more.endswith("partial(build())") else "score`"
    assert place in look_at(f"{NET}\n\n{more}\n{GENERATE}")


@pytest.mark.parametrize("more", HELD.values(), ids=HELD.keys())
def test_a_model_that_is_taken_out_of_what_holds_it(more: str) -> None:
    assert "score`" in look_at(f"{NET}\n\n{more}\n{GENERATE}")


def test_what_makes_numbers_of_a_model_in_a_table_gets_the_scope() -> None:
    more = "NETS = {'a': build()}\n\n\ndef score(name, x):\n    return NETS[name](x).numpy()\n"
    fixed = fix(f"{NET}\n\n{more}\n{GENERATE}")
    assert "@torch.inference_mode()\ndef score" in fixed
    names: dict[str, Any] = {}
    exec(compile(fixed, "m.py", "exec"), names)
    assert names["score"]("a", torch.ones(2, 4)).shape == (2, 8)


REGISTRY = """\
KNOWN = {}


def register(name):
    def put(cls):
        KNOWN[name] = cls
        return cls

    return put


class Registry:
    def __init__(self):
        self.known = {}

    def register(self, cls):
        self.known[cls.__name__] = cls
        return cls

    def build(self, name):
        return self.known[name]()


NETS = Registry()


def build(name):
    return KNOWN[name]()
"""


@pytest.mark.parametrize(
    ("decorator", "imported", "made"),
    [
        ("register('net')", "build", "build('net')"),
        ("register('net')", "KNOWN", "KNOWN['net']()"),
        ("NETS.register", "NETS", "NETS.build('Net')"),
    ],
)
def test_a_model_that_a_registry_of_another_file_makes(
    tmp_path: Path, decorator: str, imported: str, made: str
) -> None:
    name = decorator.partition(".")[0].partition("(")[0]
    net = NET.replace("class Net", f"from registry import {name}\n\n\n@{decorator}\nclass Net")
    net = net.replace("\n\n\ndef build():\n    return Net()\n", "\n")
    serve = SERVE.format(module="registry", made=f"{made}.eval()")
    serve = serve.replace("import build", f"import {imported}")
    found = project(tmp_path, registry=REGISTRY, net=net + GENERATE, serve=serve)["net"]
    assert found.change is None
    assert "serve.py:9" in found.findings[0].fixes["flag"].look_at


@pytest.mark.parametrize("more", KEPT.values(), ids=KEPT.keys())
def test_a_model_that_nobody_else_calls(more: str) -> None:
    assert not look_at(f"{NET}\n\n{more}\n{GENERATE}")


SERVE = "from {module} import build\n\n\nclass Server:\n    def __init__(self):\n        self.model = {made}\n\n    def step(self, x):\n        return self.model(x).tolist()\n"


def test_places_of_other_files(tmp_path: Path) -> None:
    serve = SERVE.format(module="net", made="build().eval()")
    found = project(tmp_path, net=NET + GENERATE, serve=serve)["net"]
    assert found.change is None
    assert "serve.py:9" in found.findings[0].fixes["flag"].look_at


def test_places_that_a_factory_of_another_file_leads_to(tmp_path: Path) -> None:
    zoo = "from net import Net\n\n\ndef create():\n    return Net()\n"
    serve = SERVE.format(module="zoo", made="build().eval()").replace("build", "create")
    found = project(tmp_path, net=NET + GENERATE, zoo=zoo, serve=serve)["net"]
    assert found.change is None
    assert "serve.py:9" in found.findings[0].fixes["flag"].look_at


@pytest.mark.parametrize(
    ("method", "made"),
    [
        ("    @classmethod\n    def build(cls):\n        return cls()\n", "Net.build()"),
        ("    @staticmethod\n    def load():\n        return Net().eval()\n", "Net.load()"),
        ("", "Net.from_pretrained('a').eval()"),
    ],
)
def test_places_that_a_constructor_of_the_class_leads_to(
    tmp_path: Path, method: str, made: str
) -> None:
    """Where no call of the class itself stands in the file that runs the object."""
    net = NET.replace("\n\n\ndef build():\n    return Net()\n", f"\n\n{method}") + GENERATE
    serve = SERVE.format(module="net", made="build()").replace("import build", "import Net")
    serve = serve.replace("build()", made)
    found = project(tmp_path, net=net, serve=serve)["net"]
    assert found.change is None
    assert "serve.py:9" in found.findings[0].fixes["flag"].look_at


def test_more_files_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainify.facts.instances.found.MAX_FILES", 2)
    load = "from net import Net\n\nnet = Net().eval()\n"
    assert project(tmp_path, net=NET, a=load)["net"].change
    found = project(tmp_path, net=NET, a=load, b=load)["net"]
    assert found.change is None
    assert "more files" in found.findings[0].fixes["flag"].look_at


def test_models_of_other_files_under_the_same_name(tmp_path: Path) -> None:
    other = NET.replace("    @torch.inference_mode()\n", "")
    serve = SERVE.format(module="other", made="build().eval()")
    tested = "from net import Net\n\n\ndef test_net():\n    assert Net()(1).sum() > 0\n"
    found = project(tmp_path, net=NET + GENERATE, other=other, serve=serve, test_net=tested)
    assert [name for name, report in found.items() if report.change] == ["net"]


def test_what_is_declared_to_run_another_class_is_no_start_of_this_one(tmp_path: Path) -> None:
    predict = f"import torch\nfrom torch import nn\n{OTHER}\n"
    predict += "\ndef predict(x, model: Other):\n    return model(x).numpy()\n"
    found = project(tmp_path, net=NET + SERVER, other=predict)
    assert [name for name, report in found.items() if report.change] == ["net"]
    assert "self.training" in found["net"].text
    within = f"{NET}{OTHER}\n    def predict(self, x):\n        return self(x)\n"
    assert "self.training" in fix(within, unsafe=True)
