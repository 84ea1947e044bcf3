"""A result that becomes an array with gradients on must not get a graph unseen.

Each text runs before and after its fix, with real tensors: what is said to be unsafe raises then,
what is safe serves the same bits.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from verbs import findings, fix

from trainify.engine import Options, fix_paths
from trainify.facts import ModuleFacts, array_ways, parse_module
from trainify.findings import Finding, Safety

NET = """\
import copy

import numpy as np
import torch
import torch.nn.functional as F
from sgl_kernel import rmsnorm, silu_and_mul
from torch import nn

X = torch.linspace(-1, 1, 8).view(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.weight = nn.Linear(4, 8), nn.Parameter(torch.ones(8))
        with torch.no_grad():
            self.lin.weight.copy_(torch.linspace(-1, 1, 32).view(8, 4))
            self.lin.bias.zero_()

    def forward(self, x):
        h = self.lin(x)
        return rmsnorm(h, self.weight, 1e-6)


class Act(nn.Module):
    def forward(self, x):
        return silu_and_mul(x)


"""


EMBED = """\
def embed(net, x):
    return rmsnorm(net.lin(x), net.weight, 1e-6)


def serve():
"""

OUT = """\
from dataclasses import dataclass


@dataclass
class Out:
    y: torch.Tensor
    mask: torch.Tensor | None = None


"""


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels as they are: what they give has no graph."""

    @torch.no_grad()
    def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)

    @torch.no_grad()
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    library = ModuleType("sgl_kernel")
    vars(library).update(rmsnorm=rmsnorm, silu_and_mul=silu_and_mul)
    monkeypatch.setitem(sys.modules, "sgl_kernel", library)


def served(text: str) -> Any:
    space: dict[str, Any] = {"__name__": "served"}
    try:
        exec(compile(text, "m.py", "exec"), space)
        return space["serve"]()
    finally:
        torch.set_grad_enabled(True)


def fused(text: str, **options: object) -> list[Finding]:
    return [f for f in findings(text, **options) if f.rule in ("TRN101", "TRN102")]


def serve(body: str) -> str:
    return NET + "def serve():\n    " + body.replace("\n", "\n    ") + "\n"


NEEDED = {
    "numpy": serve("return Net().eval()(X).numpy()"),
    "by a name": serve("net = Net()\ny = net(X)\nreturn y.float().cpu().numpy()"),
    "copied": serve("return copy.deepcopy(Net()(X))"),
    "given to NumPy": serve("return np.asarray(Net()(X))"),
    "collected": serve(
        "net = Net()\nys = []\nfor x in (X, X + 1):\n    ys.append(net(x))\n"
        "return np.concatenate([y.numpy() for y in ys])"
    ),
    "divided by its own norm": serve(
        "y = Net()(X)\ny = y / y.norm(dim=-1, keepdim=True)\nreturn y.numpy()"
    ),
    "handed on": NET
    + """\
class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Net()

    def forward(self, x):
        return F.normalize(self.norm(x), dim=-1)


def embed(model, x):
    return model(x).numpy()


def serve():
    return embed(Embedder(), X)
""",
    "behind weights of another": NET
    + """\
class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.up = nn.Linear(4, 8)
        self.act = Act()

    def forward(self, x):
        return self.act(self.up(x))


def serve():
    torch.manual_seed(0)
    return Mlp()(X).numpy()
""",
    "kept": NET
    + """\
class Server:
    def __init__(self, model):
        self.model, self.items = model, {}

    def put(self, key, x):
        self.items[key] = self.model(x)

    def copied(self):
        return copy.deepcopy(self.items)["a"]


def serve():
    server = Server(Net())
    server.put("a", X)
    return server.copied()
""",
    "given by a method": NET
    + """\
class Server:
    def __init__(self):
        self.model = Net()

    def run(self, x):
        return self.model(x)

    def array(self, x):
        return self.run(x).numpy()


def serve():
    return Server().array(X)
""",
    "by a function": NET.replace("return rmsnorm(h", "return norm(h")
    + "def norm(x, w, eps):\n    return rmsnorm(x, w, eps)\n\n\n"
    + "def serve():\n    return Net()(X).numpy()\n",
    "a field": NET.replace(
        "return rmsnorm(h, self.weight, 1e-6)", "return Out(rmsnorm(h, self.weight, 1e-6))"
    )
    + OUT
    + "def serve():\n    out = Net().eval()(X)\n    return out.y.numpy()\n",
    "a keyword field": NET.replace(
        "return rmsnorm(h, self.weight, 1e-6)",
        "return Out(mask=None, y=rmsnorm(h, self.weight, 1e-6))",
    )
    + OUT
    + "def serve():\n    return Net().eval()(X).y.float().numpy()\n",
    "a thread": serve(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor() as pool:\n    y = pool.submit(Net(), X).result()\nreturn y.numpy()"
    ),
    "awaited": NET
    + """\
import asyncio


class Server:
    def __init__(self):
        self.model = Net().eval()

    async def handle(self, x):
        loop = asyncio.get_running_loop()
        y = await loop.run_in_executor(None, self.model, x)
        return y.cpu().numpy()


def serve():
    return asyncio.run(Server().handle(X))
""",
    "yielded": NET
    + "def embed(net, xs):\n    for x in xs:\n        yield net(x)\n\n\n"
    + "def serve():\n    return [y.numpy() for y in embed(Net(), [X])][0]\n",
    "a row of an array": serve(
        "net = Net()\nrows = np.zeros((2, 8), dtype=np.float32)\n"
        "for i, x in enumerate(X):\n    rows[i] = net(x[None])[0]\nreturn rows"
    ),
    "a row of a tensor": NET
    + """\
class Pool:
    def __init__(self):
        self.model, self.slots = Net(), torch.zeros(4, 8)

    def put(self, i, x):
        self.slots[i] = self.model(x)[0]

    def dump(self):
        return self.slots.numpy().copy()


def serve():
    pool = Pool()
    pool.put(1, X)
    return pool.dump()
""",
    "a queue": NET
    + """\
import queue


def work(net, inbox, outbox):
    outbox.put(net(inbox.get()))


def serve():
    inbox, outbox = queue.Queue(), queue.Queue()
    inbox.put(X)
    work(Net(), inbox, outbox)
    return outbox.get().numpy()
""",
    "a subclass": NET
    + """\
class Pooled(Net):
    def forward(self, x):
        return super().forward(x).mean(0)

    @property
    def bias(self):
        return self(X).squeeze(0).numpy()


def serve():
    return Pooled().bias
""",
    "made by a function": NET
    + "def arrays(ys):\n    return [y.numpy() for y in ys]\n\n\n"
    + "def serve():\n    net = Net()\n    return arrays([net(X), net(X)])[0]\n",
    "made by a method": NET
    + """\
class Server:
    def __init__(self):
        self.model = Net()

    def out(self, y, scale):
        return scale * y.numpy()

    def array(self, x):
        return self.out(self.model(x), scale=2)


def serve():
    return Server().array(X)
""",
    "a function alone": NET.partition("class Net")[0]
    + "def norm(x, w):\n    return rmsnorm(x, w, 1e-6)\n\n\n"
    + "def serve():\n    w = torch.ones(4, requires_grad=True)\n    return norm(X, w).numpy()\n",
}
PLAIN = {
    "scope": serve("with torch.no_grad():\n    y = Net()(X)\nreturn y.numpy()"),
    "scope of the caller": NET
    + "def embed(net, x):\n    return net(x).numpy()\n\n\n"
    + "def serve():\n    with torch.inference_mode():\n        return embed(Net(), X)\n",
    "scope of the function": serve("return Net()(X).numpy()").replace(
        "def serve", "@torch.no_grad()\ndef serve"
    ),
    "off for the file": serve("return Net()(X).numpy()").replace(
        "X = ", "torch.set_grad_enabled(False)\nX = "
    ),
    "off in a caller": NET
    + "def embed(net, x):\n    return net(x).numpy()\n\n\n"
    + "def serve():\n    torch.set_grad_enabled(False)\n    return embed(Net(), X)\n",
    "detached": serve("return Net()(X).detach().numpy()"),
    "forced": serve("return Net()(X).numpy(force=True)"),
    "detached by a function": NET
    + "def plain(y):\n    return y.detach()\n\n\n"
    + "def serve():\n    return plain(Net()(X)).numpy()\n",
    "a field, detached": NET.replace(
        "return rmsnorm(h, self.weight, 1e-6)", "return Out(rmsnorm(h, self.weight, 1e-6))"
    )
    + OUT
    + "def serve():\n    return Net()(X).y.detach().numpy()\n",
    "a row of a list": serve("rows = [None]\nrows[0] = Net()(X)\nreturn rows[0].tolist()"),
    "a row, detached": serve(
        "rows = np.zeros((2, 8), dtype=np.float32)\nrows[:] = Net()(X).detach()\nreturn rows"
    ),
    "its shape": serve("return np.zeros(Net()(X).shape)"),
    "a list": serve("return Net()(X).tolist()"),
    "an index": serve("return Net()(X).argmax(-1).numpy()"),
    "frozen": serve("net = Net().requires_grad_(False)\nreturn net(X).numpy()"),
    "frozen in a loop": serve(
        "net = Net()\nfor p in net.parameters():\n    p.requires_grad = False\n"
        "return net(X).numpy()"
    ),
    "no weights": serve("return Act()(X).numpy()"),
    "a graph already": serve("net = nn.Sequential(Net(), nn.Linear(8, 2))\nreturn X.numpy()"),
    "of another": serve("y = Net()(X)\nreturn X.numpy()"),
    "a function of plain values": NET.partition("class Net")[0]
    + "def norm(x, w):\n    return rmsnorm(x, w, 1e-6)\n\n\n"
    + "def serve():\n    return norm(X, torch.ones(4)).numpy()\n",
}


OUTPUT = NET.replace(
    "class Net",
    "class Output(NamedTuple):\n    h: torch.Tensor\n    ids: object = None\n\n\nclass Net",
).replace("import copy", "import copy\nfrom typing import NamedTuple")
POSITIONAL = OUTPUT.replace(
    "return rmsnorm(h, self.weight, 1e-6)", "return Output(rmsnorm(h, self.weight, 1e-6))"
)
BY_KEYWORD = OUTPUT.replace(
    "return rmsnorm(h, self.weight, 1e-6)",
    "h = rmsnorm(h, self.weight, 1e-6)\n        return Output(ids=h.argmax(-1), h=h)",
)
NEEDED |= {
    "a field": POSITIONAL + "def serve():\n    out = Net()(X)\n    return out.h.cpu().numpy()\n",
    "a field by keyword": BY_KEYWORD + "def serve():\n    return Net()(X).h[0].numpy()\n",
    "a field of what a function gives": BY_KEYWORD
    + "def run(net, x):\n    return net(x)\n\n\ndef serve():\n    return run(Net(), X).h.numpy()\n",
    "from a table of classes": NET
    + "NETS = {'net': Net}\n\n\ndef serve():\n    return NETS['net']().eval()(X).numpy()\n",
    "yielded": NET
    + "def outputs(net, xs):\n    for x in xs:\n        yield net(x)\n\n\n"
    + "def serve():\n    return [y.numpy() for y in outputs(Net(), [X, X])][1]\n",
    "in an executor": NET.replace("import copy", "import asyncio\nimport copy")
    + "async def handle(net, x):\n    loop = asyncio.get_running_loop()\n"
    + "    y = await loop.run_in_executor(None, net, x)\n    return y.cpu().numpy()\n\n\n"
    + "def serve():\n    return asyncio.run(handle(Net(), X))\n",
    "into a row": NET
    + "def serve():\n    rows = np.zeros((2, 8))\n    rows[0] = Net()(X)[0]\n    return rows\n",
    "into an own row": NET
    + """\
class Index:
    def __init__(self):
        self.model, self.rows = Net(), np.zeros((2, 8))

    def add(self, i, x):
        self.rows[i] = self.model(x)[0]


def serve():
    index = Index()
    index.add(1, X)
    return index.rows
""",
    "into a pool": NET
    + """\
class Pool:
    def __init__(self):
        self.model, self.slots = Net(), torch.zeros(2, 8)

    def put(self, i, x):
        self.slots[i] = self.model(x)[0]

    def dump(self):
        return self.slots.numpy().copy()


def serve():
    pool = Pool()
    pool.put(1, X)
    return pool.dump()
""",
    "of a base": NET
    + """\
class Pooled(Net):
    def forward(self, x):
        return super().forward(x).mean(0)

    def array(self):
        return self(X).numpy()


def serve():
    return Pooled().array()
""",
    "in a function of NumPy": serve("return np.linalg.norm(Net()(X), axis=-1)"),
    "by partial": serve("import functools\nrun = functools.partial(Net())\nreturn run(X).numpy()"),
    "by partial, at once": serve(
        "import functools\nreturn functools.partial(Net().forward, X)().numpy()"
    ),
    "mapped": serve("return [y.numpy() for y in map(Net(), (X, X + 1))][0]"),
    "of what scores": serve("return Net()(X).numpy()").replace("Net", "Scorer"),
    "by a function that is given the model": NET + EMBED + "    return embed(Net(), X).numpy()\n",
    "by such a function, partial": NET
    + EMBED
    + "    import functools\n\n    net = Net().eval()\n"
    + "    run = functools.partial(embed, net)\n    return run(X).numpy()\n",
}
PLAIN |= {
    "by a function that is given a frozen model": NET
    + EMBED
    + "    net = Net()\n    for p in net.parameters():\n        p.requires_grad = False\n"
    + "    return embed(net, X).numpy()\n",
    "about a field": POSITIONAL + "def serve():\n    return np.array(Net()(X).h.shape)\n",
    "a row of a tensor": NET
    + "def serve():\n    rows = torch.zeros(2, 8)\n    with torch.no_grad():\n"
    + "        rows[0] = Net()(X)[0]\n    return rows.numpy()\n",
}


@pytest.mark.parametrize("text", NEEDED.values(), ids=NEEDED)
def test_a_fix_that_would_raise_is_not_safe(text: str) -> None:
    served(text)
    fixes = [f.fixes[strategy] for f in fused(text) for strategy in f.fixes]
    looks = {each.look_at for each in fixes if each.safety is Safety.UNSAFE}
    assert len(looks) == 1 and "with gradients on" in looks.pop()
    served(fix(text))
    with pytest.raises(RuntimeError, match=r"requires grad|Only Tensors created explicitly"):
        served(fix(text, unsafe=True))


@pytest.mark.parametrize("text", PLAIN.values(), ids=PLAIN)
def test_what_serves_as_before_is_safe(text: str) -> None:
    found = fused(text)
    assert found
    assert all(each.safety is Safety.SAFE for f in found for each in f.fixes.values())
    assert fix(text) != text
    before, after = served(text), served(fix(text))
    assert (torch.as_tensor(before) == torch.as_tensor(after)).all()


def test_the_training_flag_serves_a_model_in_evaluation_mode() -> None:
    """It asks for the mode of the module, so that no graph is there to raise."""
    evaluated, not_set = NEEDED["numpy"], NEEDED["by a name"]
    (found,) = (f for f in fused(evaluated, flag="training") if "rmsnorm" in f.message)
    assert found.fixes["flag"].safety is Safety.SAFE
    assert found.fixes["replace"].safety is Safety.UNSAFE
    assert (served(fix(evaluated, flag="training")) == served(evaluated)).all()
    (found,) = (f for f in fused(not_set, flag="training") if "rmsnorm" in f.message)
    assert found.fixes["flag"].safety is Safety.UNSAFE


def test_calls_under_one_condition_are_judged_together() -> None:
    text = serve("return Net()(X).numpy()").replace(
        "        return rmsnorm(h,", "        h = silu_and_mul(h)\n        return rmsnorm(h,"
    )
    of_net = fused(text)[:2]
    edits = [f.fixes["flag"].edits for f in of_net]
    safeties = [f.fixes["flag"].safety for f in of_net]
    assert safeties[1] is Safety.UNSAFE and (edits[0] != edits[1] or safeties[0] is safeties[1])


def test_the_place_may_be_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    api = "from net import Net\n\n\ndef embed(x):\n    model = Net().eval()\n    return model(x)"
    (tmp_path / "api.py").write_text(api + ".numpy()\n")
    (report,) = (r for r in fix_paths([str(tmp_path)], Options()) if r.path.endswith("net.py"))
    found = [f for f in report.findings if "rmsnorm" in f.message]
    assert [f.fixes["flag"].look_at for f in found] == [
        f"`embed` ({tmp_path / 'api.py'}:6) makes an array of the result with gradients on, which "
        "raises once it has a graph: put that run under torch.no_grad(), or detach() the result"
    ]
    (tmp_path / "api.py").write_text(api + ".tolist()\n")
    (report,) = (r for r in fix_paths([str(tmp_path)], Options()) if r.path.endswith("net.py"))
    assert all(f.fixes["flag"].safety is Safety.SAFE for f in report.findings)


def test_a_read_that_many_ways_lead_to_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would be doubled by each line: 24 of them took minutes."""
    lines = "".join(f"    if x.dim() > {i}:\n        y = y.to({i})\n" for i in range(24))
    text = f"def run(model, x):\n    y = model(x)\n{lines}    return y.numpy()\n"
    module = parse_module(text, "m.py")
    followed: list[ast.expr] = []
    loads_of = array_ways.loads_of

    def counted(module: ModuleFacts, target: ast.expr, at: ast.stmt) -> Iterator[ast.expr]:
        followed.append(target)
        return loads_of(module, target, at)

    monkeypatch.setattr(array_ways, "loads_of", counted)
    (call,) = module.calls_named("model")
    ends = [end for end, _ in array_ways.array_ways(module, call)]
    assert ends == ["array"]
    assert len(followed) < 200
