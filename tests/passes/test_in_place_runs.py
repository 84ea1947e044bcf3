"""In-place writes, run: as written backward raises, as fixed the gradients are right."""

from __future__ import annotations

import linecache
import textwrap
from typing import Any

import pytest
import torch
from verbs import fix, rules, stays

from tests.each import in_turn

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(d, d), nn.Tanh())

    def forward(self, x, scale=1.0):
        return self.inner(x) * scale


class Shift(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.shift = nn.Parameter(torch.ones(d))
        self.linear = nn.Linear(d, d)

    def forward(self, x, often=False):
        if often:
            return self.linear(x)
        return x + self.shift


class Deep(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.deep = nn.ModuleList()
        for _ in range(2):
            self.deep.append(Block(d))

    def forward(self, x):
        return self.sum(x, 0.0)

    def sum(self, x, y):
        for block in self.deep:
            y = y + block(x)
        return y


class Net(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.proj = nn.Linear(d, d)
        self.relu = nn.ReLU()
        self.act = nn.ELU(inplace=True)
        self.first = nn.Sequential(nn.ReLU(True), nn.Linear(d, d))
        self.row = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d), nn.ELU(1.0, True))
        self.gain = nn.Parameter(torch.ones(d))
        self.pos = nn.Parameter(torch.ones(3, d))
        self.wte = nn.Embedding(5, d)
        self.register_buffer("gauge", torch.ones(d))
        self.steps = 1
        self.f = nn.Sequential(nn.Linear(d, d), nn.GELU())
        self.g = Block(d)
        self.shift = Shift(d)
        self.deep = Deep(d)
        self.parts = nn.ModuleList(Block(d) for _ in range(2))
        self.shifts = nn.ModuleList([Shift(d), Shift(d)])

"""

FAULTS = {
    "TRN403": {
        "tanh": "h = torch.tanh(self.proj(x))\nh.mul_(2.0)\nx = h",
        "relu": "h = self.relu(self.proj(x))\nh += x\nx = h",
        "softmax part": "p = F.softmax(self.proj(x), dim=-1)\np[:, 0] = 0.0\nx = p",
        "view": "p = self.proj(x).sigmoid()\nv = p.view(-1)\nv = v * 1\np = p.view(2, 6)\np += 1.0\nx = p",
        "in place": "h = self.proj(x)\nh.sigmoid_()\nh += 1.0\nx = h",
        "in place, named": (
            "h = self.proj(x)\ne = (h - h.amax(-1, keepdim=True)).exp_()\n"
            "e /= e.sum(-1, keepdim=True)\nx = e"
        ),
        "in place, of a name": "h = self.proj(x)\ne = h.tanh_()\ne *= 2.0\nx = e",
        "in place, of a layer": "h = self.proj(x).relu_()\nh += x\nx = h",
        "in place, a view": "h = self.proj(x).exp_().view(2, 6)\nh[0] *= 2.0\nx = h",
        "in place, by a function": "h = torch.sigmoid_(self.proj(x))\nh.add_(1.0)\nx = h",
        "in place, then behind a test": (
            "h = self.proj(x)\nF.relu_(h)\nif self.steps:\n    h.mul_(2.0)\nx = h"
        ),
        "in place, read in between": (
            "h = self.proj(x)\nh.tanh_()\ny = h + 1.0\nh.mul_(2.0)\nx = h + y"
        ),
        "in place, in both branches": (
            "h = self.proj(x)\nif self.steps:\n    h.tanh_()\nelse:\n    h.exp_()\nh += 1.0\nx = h"
        ),
        "in place, in a branch": (
            "h = self.proj(x)\nif self.steps:\n    y = h.tanh_()\nh[:, 0] = 0.0\nx = h"
        ),
        "returned": "h = self.proj(x).exp()\nreturn h.mul_(2.0)",
        "slice": "y = torch.sigmoid(self.proj(x))\nv = y[:, :2]\nv.mul_(2.0)\nx = y",
        "flat view": "y = torch.sigmoid(self.proj(x))\nv = y.view(-1)\nv.mul_(2.0)\nx = y",
        "view of a view": "y = self.proj(x).exp()\nv = y.T\nw = v[0]\nw += 2.0\nx = y",
        "at once": "x = torch.sigmoid(self.proj(x)).mul_(2)",
        "at once, returned": "return torch.exp(self.proj(x)).add_(1.0).neg_()",
        "at once, in a product": "x = self.proj(x).norm(dim=-1, keepdim=True).clamp_(min=1e-6) * x",
        "at once, module": "x = self.relu(self.proj(x)).mul_(self.gain)",
        "at once, maximum": "x = x / self.proj(x).abs().amax(-1, keepdim=True).clamp_(min=1e-5)",
        "attention": (
            "h = self.proj(x)[None, None]\nh = F.scaled_dot_product_attention(h, h, h)\nh += x\nx = h"
        ),
        "distances": "d = torch.cdist(self.proj(x), x)\nd.mul_(-1.0)\nx = d.softmax(-1) @ x",
        "inplace": "y = torch.tanh(self.proj(x))\ny = F.relu(y, inplace=True)\nx = y",
        "inplace, alone": "y = torch.tanh(self.proj(x))\nF.elu(y, 1.0, inplace=True)\nx = y",
        "inplace, by place": "y = torch.tanh(self.proj(x))\nx = F.elu(y, 1.0, True)",
        "inplace, at once": "x = F.elu(torch.tanh(self.proj(x)), inplace=True)",
        "inplace, and on": "y = self.proj(x)\nx = F.relu(y, inplace=True).mul_(2.0)",
        "inplace of a result, and on": "x = F.relu(self.proj(x), inplace=True).mul_(2.0)",
        "inplace of a result, later": "x = F.relu(self.proj(x), inplace=True)\nx.mul_(2.0)",
        "inplace, later": "y = self.proj(x)\ny = F.relu(y, inplace=True)\ny.mul_(2.0)\nx = y",
        "inplace, within": "y = torch.tanh(self.proj(x))\nx = self.proj(F.elu(y, inplace=True))",
        "function": "y = torch.tanh(self.proj(x))\nF.elu_(y)\nx = y",
        "function of torch": "y = torch.tanh(self.proj(x))\ntorch.relu_(y)\nx = y",
        "module": "y = torch.tanh(self.proj(x))\nx = self.act(y)",
        "module, alone": "y = torch.tanh(self.proj(x))\nself.act(y)\nx = y",
        "module, at once": "x = self.act(torch.tanh(self.proj(x)))",
        "module, result": "y = self.act(self.proj(x))\ny += 1.0\nx = y",
        "sequential": "y = torch.tanh(self.proj(x))\nx = self.first(y)",
        "in a row": "net = nn.Sequential(nn.Tanh(), nn.ELU(inplace=True))\nx = net(self.proj(x))",
        "in a row, a view": (
            "net = nn.Sequential(\n    nn.Sigmoid(),  # gate\n    nn.Identity(),\n"
            "    nn.ELU(0.5, True),\n)\nx = net(self.proj(x))"
        ),
        "in a list": "layers = [nn.Tanh(), nn.ELU(1.0, True)]\nx = nn.Sequential(*layers)(self.proj(x))",
        "walrus": "if (y := torch.tanh(self.proj(x))) is not None:\n    y.mul_(2.0)\nx = y",
        "element": "ys = [torch.tanh(self.proj(x)), x]\nys[0].mul_(2.0)\nx = ys[0] + ys[1]",
        "elements": (
            "ys = [torch.tanh(self.proj(r)) for r in x]\nfor y in ys:\n    y.mul_(2.0)\nx = torch.stack(ys)"
        ),
        "each element": (
            "ys = [torch.tanh(self.proj(x)), torch.exp(self.proj(x))]\n"
            "for y in ys:\n    y *= 2.0\nx = ys[0] + ys[1]"
        ),
        "names": (
            "q, k = torch.tanh(self.proj(x)), torch.exp(self.proj(x))\n"
            "for y in (q, k):\n    y *= 2.0\nx = q + k"
        ),
        "names in a list": (
            "q, k = torch.tanh(self.proj(x)), self.proj(x)\nboth = [q, k]\n"
            "for y in both:\n    y *= 2.0\nx = q + k"
        ),
        "pieces of several": (
            "q, k = torch.softmax(self.proj(x), -1), torch.exp(self.proj(x))\n"
            "q[:, :1], k[:, :1] = q[:, :1] * 2, k[:, :1] * 2\nx = q + k"
        ),
        "nested": (
            "q, k = torch.softmax(self.proj(x), -1), torch.exp(self.proj(x))\n"
            "q[:, 1], (q[:, 0], k[:, 0]), k[:, 1] = 1.0, (0.5, 0.5), 2.0\nx = q + k"
        ),
        "numbered": (
            "ys = [torch.tanh(self.proj(r)) for r in x]\n"
            "for i, y in enumerate(ys):\n    y.mul_(i + 2.0)\nx = torch.stack(ys)"
        ),
        "attribute": "self.h = torch.tanh(self.proj(x))\nself.h.mul_(2.0)\nx = self.h",
        "attribute, part": "self.h = torch.tanh(self.proj(x))\nself.h[:, 0] = 0.0\nx = self.h",
        "closure": (
            "y = torch.sigmoid(self.proj(x))\n\ndef double():\n    y.mul_(2.0)\n\ndouble()\nx = y"
        ),
        "tuple": "a, b = torch.sigmoid(self.proj(x)), x\na.mul_(2.0)\nx = a + b",
        "targets": "y = self.proj(x).exp()\ny[:, 0], y[:, 1] = x[:, 0], x[:, 1]\nx = y",
        "tensor_split": (
            "a, b = torch.tensor_split(torch.exp(self.proj(x)), 2, dim=-1)\na.mul_(2.0)\nx = a + b"
        ),
    },
    "TRN402": {
        "two": (
            "v = torch.empty(3, dtype=x.dtype)\ni = torch.empty(3, dtype=torch.long)\n"
            "torch.max(self.proj(x), dim=-1, out=(v, i))\nx = x * v[:, None]"
        ),
        "two, assigned": (
            "v = torch.empty(3, 2, dtype=x.dtype)\ni = torch.empty(3, 2, dtype=torch.long)\n"
            "v, i = torch.topk(self.proj(x), 2, out=(v, i))\nx = x.gather(1, i) * v"
        ),
    },
    "TRN405": {
        "pieces of several": (
            "q, k = self.proj(x).chunk(2, -1)\n"
            "q[:, :1], k[:, :1] = q[:, :1] * 2, k[:, :1] * 2\nx = torch.cat((q, k), -1)"
        ),
        "chunk": "a, b = self.proj(x).chunk(2, dim=-1)\na += 1.0\nx = a * b",
        "split": "h = self.proj(x)\na, b = torch.split(h, 2, dim=-1)\na.mul_(2.0)\nx = a * b",
        "unbind": "a, b, c = self.proj(x).unbind(0)\nb -= a\nx = a * b * c",
        "part": "a, b = self.proj(x).chunk(2, dim=-1)\na[:, 0] = 0.0\nx = a * b",
        "one": "a = self.proj(x).chunk(2, dim=-1)[0]\na.neg_()\nx = a",
        "view": "a, b = self.proj(x).chunk(2, dim=-1)\na = a.unsqueeze(0)\na.add_(1.0)\nx = a * b",
        "asked": "a, b = self.proj(x).chunk(2, dim=-1)\nreturn F.silu(a, inplace=True) * b",
        "asked, and on": "a, b = self.proj(x).chunk(2, dim=-1)\nx = F.silu(a, inplace=True).mul_(b)",
        "asked for another": (
            "a, b = F.linear(x, self.proj.weight).chunk(2, -1)\na = F.silu(a, inplace=True)\n"
            "a.mul_(b)\nx = a"
        ),
    },
    "TRN406": {
        "parameter": "p = self.pos\np += 1.0\nx = x + p",
        "view": "p = self.pos[:2]\np.mul_(2.0)\nx = x[:2] + p",
        "expand": "p = self.gain.expand(3, 4)\np = p.view(3, 4)\np *= 2.0\nx = x + p",
    },
    "TRN404": {
        "view made since": (
            "g = self.proj(x)\ng.div_(g.norm(dim=-1, keepdim=True) + 1)\n"
            "h = self.proj(x)\npart = self.norm(h)\nh = h.unsqueeze(1)\n"
            "h[..., :2] = part.unsqueeze(1)[..., 2:]\nx = h.squeeze(1) + part * g"
        ),
        "norm": "x = x.to(x.dtype)\nv = x.pow(2).mean(-1, keepdim=True)\nx.mul_(torch.rsqrt(v + 1e-6))",
        "power": "h = self.proj(x)\ny = h**3\nh -= 1.0\nx = h * y",
        "sqrt": "h = self.proj(x)\nh.div_(h.norm(dim=-1, keepdim=True) + 1)\nx = h",
        "residual": "h = self.proj(x)\nres = h\nh = self.norm(h)\nres += h\nx = res",
        "prenorm": "x = x.clone()\nx += self.proj(self.norm(x))",
        "product": "h = self.proj(x)\ng = h * self.gain\nh.add_(g)\nx = h",
        "conversion": (
            "v = x.pow(2).mean(-1, keepdim=True)\nx.mul_(torch.rsqrt(v + 1e-6))\n"
            "x = x.to(x.dtype).mul_(self.gain)"
        ),
        "named like data": "image = self.proj(x)\nimage /= image.norm(dim=-1, keepdim=True)\nx = image",
        "slice": "h = self.proj(x)\ny = h[:, :2] * self.gain[:2]\nh[:, 2:] = y\nx = h",
        "inplace": "h = self.proj(x)\ny = self.norm(h)\nh = F.relu(h, inplace=True)\nx = h + y",
        "module": "h = self.proj(x)\ny = self.norm(h)\nx = self.act(h) + y",
        "sequential": "h = self.proj(x)\ny = self.norm(h)\nx = self.first(h) + y",
        "walrus": "if (h := self.proj(x)) is not None:\n    y = h**3\n    h -= 1.0\nx = h * y",
        "attribute": "self.h = self.proj(x)\ny = self.h**3\nself.h -= 1.0\nx = self.h * y",
        "attribute, method": "self.h = self.proj(x)\ny = self.norm(self.h)\nself.h.neg_()\nx = self.h + y",
        "buffer": (
            "h = self.proj(x)\nx = h * self.gauge\nwith torch.no_grad():\n    self.gauge.mul_(1.0)"
        ),
        "buffer, part": "x = self.proj(x) * self.gauge\nself.gauge[:2] = self.gauge[:2].clone()",
        "buffer, divided by": "x = self.proj(x) / self.gauge\nself.gauge.clamp_(min=0.5)",
        "of a view": "y = self.proj(x)\nz = y.pow(2)\nv = y[:, :2]\nv.mul_(2.0)\nx = y * z",
        "slice add": "h = self.proj(x)\nh[:, :2] += h[:, :2] * self.gain[:2]\nx = h",
        "chain": "h = self.proj(x)\ny = torch.cos(h)\nh.mul_(2.0).add_(y)\nx = h",
        "returned": "h = self.proj(x)\ny = F.silu(h)\nreturn h.mul_(y)",
        "assigned": "h = self.proj(x)\ny = F.gelu(h)\nx = h.mul_(2.0) + y",
        "loop": (
            "s = torch.zeros(4, dtype=x.dtype)\nys = []\nfor r in x.unbind(0):\n"
            "    k = self.proj(r)\n    s += k\n    ys.append(k * s)\nx = torch.stack(ys)"
        ),
        "scan": (
            "s = torch.zeros(4, dtype=x.dtype)\nys = []\nfor r in x.unbind(0):\n"
            "    s.mul_(torch.sigmoid(self.gain)).add_(self.proj(r))\n"
            "    ys.append(torch.einsum('d,d->', s, self.norm(r)))\nx = torch.stack(ys)"
        ),
        "layers": "x = self.proj(x)\nx += self.f(x)",
        "layers, before": "x = self.proj(x)\ny = self.f(x)\nx += y",
        "class": "x = self.proj(x)\nx.add_(self.g(x))",
        "class, of the input": "x += self.g(x, scale=2.0)",
        "class that holds another": "h = self.proj(x)\nh += self.deep(h)\nx = h",
        "class, another name": "x = self.proj(x)\nh = x\nx += self.g(x)\nx = x * h",
        "module of a list": "x = self.proj(x)\nx += self.parts[1](x)",
        "modules of a list": "x = self.proj(x)\nfor part in self.parts:\n    x += part(x)",
        "modules, counted": "x = self.proj(x)\nfor i, p in enumerate(self.parts):\n    x += p(x, i + 1)",
        "largest": "s = self.proj(x)\ns -= s.amax(-1, keepdim=True)\nx = s.exp()",
        "largest of all": "h = self.proj(x)\nh /= h.max() + 9.0\nx = h",
        "largest of all, by a function": "h = self.proj(x)\nh /= 9.0 - torch.min(h)\nx = h",
        "log of a sum": "h = self.proj(x)\ny = torch.logsumexp(h, -1, keepdim=True)\nh -= y\nx = h",
        "hinge": "h = self.proj(x)\ny = torch.maximum(h, 2 * x)\nh *= 2.0\nx = h + y",
        "clipped": "h = self.proj(x)\ny = h.clamp(-1.0, 1.0)\nh *= 2.0\nx = h + y",
        "recurrence": (
            "h = torch.zeros(3, 4, dtype=x.dtype)\nfor t in range(1, 3):\n"
            "    h[t] = self.proj(h[t - 1]) + x[t]\nx = h"
        ),
    },
}


def module(lines: str) -> str:
    return (
        HEAD + "    def forward(self, x):\n" + textwrap.indent(f"{lines}\nreturn x\n", "        ")
    )


def check_gradients(text: str) -> None:
    """Raise where backward does, or where it lies."""
    scope: dict[str, Any] = {"__name__": "net"}
    linecache.cache["net"] = (len(text), None, text.splitlines(True), "net")
    exec(compile(text, "net", "exec"), scope)
    torch.manual_seed(0)
    net = scope["Net"]().double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    net(x * 1.0).sum().backward()
    assert torch.autograd.gradcheck(lambda x: net(x * 1.0), (x,))


CASES = {
    f"{rule} {name}": (rule, lines)
    for rule, cases in FAULTS.items()
    for name, lines in cases.items()
}


@pytest.mark.parametrize(("rule", "lines", "strategy"), in_turn(CASES, ["flag", "replace"]))
def test_raises_as_written_and_learns_as_fixed(rule: str, lines: str, strategy: str) -> None:
    text = module(lines)
    with pytest.raises(RuntimeError):
        check_gradients(text)
    assert rule in rules(text)
    fixed = fix(text, strategy=strategy, unsafe=True)
    check_gradients(fixed)
    assert rule not in rules(fixed)


@pytest.mark.parametrize(
    "lines",
    [
        "h = self.proj(x)\ne = h.exp_()\ne *= 2.0\nx = e + h",
        "h = self.proj(x)\ne = h.exp_()\nh *= 2.0\nx = e + h",
        "h = self.proj(x)\nF.relu_(h)\nv = h[:, :2]\nv.mul_(2.0)\nx = h",
    ],
)
def test_what_another_name_reads_is_reported_only(lines: str) -> None:
    text = module(lines)
    with pytest.raises(RuntimeError):
        check_gradients(text)
    assert rules(text) == ["TRN403"]
    assert fix(text, unsafe=True) == text


RIGHT = {
    "in place, saves its input": "h = self.proj(x)\ne = (h * 2.0).sin_()\ne *= 2.0\nx = e",
    "in place, new value": "e = self.proj(x).exp_()\ne = e / e.sum(-1, keepdim=True)\nx = e",
    "in place, copied": "h = self.proj(x)\ne = h.exp_().clone()\ne *= 2.0\nx = e + h",
    "in place, detached": "h = self.proj(x)\ne = (x.detach() * 2).exp_()\ne *= 2.0\nx = h * 1.0",
    "in place, a table": "f = torch.arange(4, dtype=x.dtype).exp_()\nf *= 2.0\nx = self.proj(x) + f",
    "in place, a table behind a test": (
        "f = torch.arange(4, dtype=x.dtype)\nf.exp_()\nif self.steps:\n    f *= 2.0\nx = self.proj(x) * f"
    ),
    "in place, in another branch": (
        "h = self.proj(x)\nif self.steps:\n    h.tanh_()\nelse:\n    h += 1.0\nx = h"
    ),
    "in place, a new value in between": (
        "h = self.proj(x)\nh.tanh_()\nh = h + 1.0\nif self.steps:\n    h.mul_(2.0)\nx = h"
    ),
    "in place, another element": (
        "ys = [self.proj(x), self.proj(x)]\nys[0].tanh_()\nys[1].mul_(2.0)\nx = ys[0] + ys[1]"
    ),
    "in place, later": "h = self.proj(x)\nif self.steps:\n    h.mul_(2.0)\nh.tanh_()\nx = h",
    "a table": (
        "f = torch.exp(torch.arange(4, dtype=x.dtype) * -0.5)\nf *= 2.0\nx = self.proj(x) * f"
    ),
    "norm layer": "h = self.norm(x)\nh += x\nx = h",
    "relu of numbers": "n = torch.relu(torch.ones(3, 4) - 0.5)\nn += 1.0\nx = self.proj(x) + n",
    "fresh piece": "a, b = self.proj(x).chunk(2, dim=-1)\na = a + b\na += 1.0\nx = a",
    "tensor_split": "a, b = torch.tensor_split(self.proj(x), 2, dim=-1)\na += 1.0\nx = a * b",
    "slices": "h = self.proj(x)\na = h[:, :2]\na += 1.0\nx = h",
    "table": "a, b = torch.ones(3, 4).chunk(2, dim=-1)\na += 1.0\nx = self.proj(x)[:, :2] + a",
    "sum with parameter": "p = x + self.pos\np += 1.0\nx = p",
    "embedding": "e = self.wte(torch.zeros(3, dtype=torch.int64))\ne += x\nx = e",
    "matmul result": "h = self.proj(x)\nh *= 2.0\nx = h",
    "scores": "s = self.proj(x) @ x.mT\ns.masked_fill_(s > 0, -1.0)\nx = s.softmax(-1)",
    "residual": "h = self.proj(self.norm(x))\nh += x\nx = h",
    "fresh": "out = torch.empty(3, 4, dtype=x.dtype)\nfor i in range(3):\n    out[i] = self.proj(x[i])\nx = out",
    "sum": "h = self.proj(x)\nm = h.sum(-1, keepdim=True)\nh -= m\nx = h",
    "largest of a row": "h = self.proj(x)\nm = h.max(-1, keepdim=True).values\nh -= m\nx = h",
    "largest of a row, by a function": "h = self.proj(x)\nm, _ = torch.min(h, dim=-1, keepdim=True)\nh -= m\nx = h",
    "largest, detached": "h = self.proj(x)\nh -= h.detach().amax(-1, keepdim=True)\nx = h.softmax(-1)",
    "running sum": "h = self.proj(x)\ny = h.cumsum(-1)\nh *= 2.0\nx = h + y",
    "sorted": "h = self.proj(x)\ny = h.sort(-1).values + h.topk(4).values\nh *= 2.0\nx = h + y",
    "softmax in place": (
        "h = self.proj(x)\nh.sub_(h.max(-1, keepdim=True)[0]).exp_()\nx = h / h.sum(-1, keepdim=True)"
    ),
    "scaled": "h = self.proj(x)\ny = h * 2.0\nh += 1.0\nx = h + y",
    "gate": "h = self.proj(x)\nh *= torch.sigmoid(self.proj(x))\nx = h",
    "other name": "h = self.proj(x)\ny = h.pow(2)\nh = h + 1.0\nh *= 2.0\nx = h * y",
    "clone": "h = self.proj(x)\ny = h.pow(2)\nz = h.clone()\nz *= 2.0\nx = z * y",
    "branches": (
        "h = self.proj(x)\nif h.shape[0] > 100:\n    h = h.pow(2)\nelse:\n    h += 1.0\nx = h"
    ),
    "left": "h = self.proj(x)\nif h.shape[0] > 100:\n    return h.pow(2)\nh += 1.0\nx = h",
    "mask": "h = self.proj(x)\ny = self.norm(h[h[:, 0] > 9])\nh += 1.0\nx = h + y.sum()",
    "rebound": "h = self.proj(x)\nif h.shape[0] < 9:\n    y = h.pow(2)\n    h = h + y\nh *= 2.0\nx = h",
    "detached copy": "h = self.proj(x)\nn = x.detach().clone().pow(2)\nh += 1.0\nx = h + 0 * n",
    "loop": "ys = []\nfor r in range(3):\n    k = self.proj(x[r])\n    k += 1.0\n    ys.append(k.pow(2))\nx = torch.stack(ys)",
    "list": "ys = [x[0].clone(), x[1].clone()]\nfor i in range(2):\n    ys[i] += 1.0\n    ys[i] = ys[i] * self.gain\nx = torch.stack(ys)",
    "number": "n = 1\nn += 2\nx = x * n",
    "inplace": "h = self.proj(x)\nh = F.relu(h, inplace=True)\nx = self.norm(h)",
    "module": "h = self.act(self.proj(x))\nx = self.norm(h)",
    "module of a norm": "h = self.norm(self.proj(x))\nh += x\nx = self.proj(self.act(h))",
    "module, new value": "h = self.act(self.proj(x))\nh = h + x\nx = self.act(h)",
    "sequential": "x = self.first(self.proj(x))",
    "row": "x = self.row(x)",
    "row of others": "x = nn.Sequential(nn.GELU(), nn.ELU(inplace=True))(self.proj(x))",
    "the turn before": (
        "for i in range(2):\n    if i:\n        x = self.norm(x)\n    else:\n        x = self.proj(x)\n"
        "    x = self.act(x)"
    ),
    "no row": "acts = nn.ModuleList([nn.Tanh(), nn.ELU(inplace=True)])\nx = acts[0](self.proj(x))",
    "numbers in a list": "ys = [torch.tanh(self.proj(x)), self.proj(x)]\nys[1].mul_(2.0)\nx = ys[0] + ys[1]",
    "new elements": "ys = [torch.tanh(self.proj(x)), x]\nys[0] = ys[0] * 2\nx = ys[0]",
    "walrus": "if (y := self.proj(x)) is not None:\n    y.mul_(2.0)\nx = torch.tanh(y)",
    "walrus, new value": "y = torch.tanh(self.proj(x))\nif (y := y * 2.0) is not None:\n    y.mul_(2.0)\nx = y",
    "init": "t = torch.empty(4, dtype=x.dtype)\nnn.init.ones_(t)\nx = self.proj(x) * t",
    "buffer added": "x = self.proj(x) + self.gauge\nself.gauge.mul_(1.0)",
    "buffer, new": "x = self.proj(x) * self.gauge\nself.gauge = self.gauge * 1.0",
    "buffer, data": "x = self.proj(x) * self.gauge\nself.gauge.data.mul_(1.0)",
    "buffer, in evaluation": (
        "x = self.proj(x) * self.gauge\nif not self.training:\n    self.gauge.mul_(1.0)"
    ),
    "buffer, copied": "x = self.proj(x) * self.gauge[torch.arange(4)]\nself.gauge.mul_(1.0)",
    "number of steps": "x = self.proj(x) * self.steps\nself.steps += 0",
    "not inplace": "y = torch.tanh(self.proj(x))\nx = F.relu(y, inplace=False)",
    "table at once": "f = torch.exp(torch.arange(4, dtype=x.dtype)).mul_(2.0)\nx = self.proj(x) * f",
    "scores at once": "x = (self.proj(x) @ x.mT).mul_(0.5).softmax(-1) @ x",
    "clone at once": "x = torch.tanh(self.proj(x)).clone().mul_(2.0)",
    "view of a copy": "y = torch.tanh(self.proj(x)) * 2.0\nv = y[:, :2]\nv.mul_(2.0)\nx = y",
    "index": "y = torch.tanh(self.proj(x))\nv = y[[0, 2]]\nv.mul_(2.0)\nx = y[:2] + v",
    "attribute": "self.h = torch.tanh(self.proj(x))\nself.h = self.h + 1\nself.h *= 2.0\nx = self.h",
    "other attribute": "self.h = self.proj(x)\nself.h.mul_(2.0)\nx = torch.tanh(self.h)",
    "closure": (
        "y = self.proj(x)\n\ndef double():\n    y.mul_(2.0)\n\ndouble()\nx = torch.sigmoid(y)"
    ),
    "targets": "y = self.proj(x)\ny[:, 0], y[:, 1] = x[:, 0], x[:, 1]\nx = torch.exp(y)",
    "out of numbers": (
        "v = torch.empty(3, 2, dtype=x.dtype)\ni = torch.empty(3, 2, dtype=torch.long)\n"
        "torch.topk(self.proj(x).detach(), 2, out=(v, i))\nx = self.proj(x).gather(1, i)"
    ),
    "out of a table": (
        "t = torch.arange(4, dtype=x.dtype)\nc = torch.empty(4, dtype=x.dtype)\n"
        "torch.cos(t, out=c)\nx = self.proj(x) * c"
    ),
    "without out": "v, i = torch.max(self.proj(x), dim=-1)\nx = x * v[:, None]",
    "class that saves nothing": "h = self.proj(x)\nh += self.shift(h)\nx = h",
    "classes that save nothing": "h = self.proj(x)\nfor s in self.shifts:\n    h += s(h)\nx = h",
    "class, given a copy": "h = self.proj(x)\nh += self.g(h.clone())\nx = h",
    "class, given another": "h = self.proj(x)\nh += self.g(x)\nx = h",
    "class, later": "h = self.proj(x)\nh += x\nx = h + self.g(h)",
    "asked, a slice": "h = self.proj(x)\na = h[:, :2]\nx = F.silu(a, inplace=True).mul_(2.0)",
    "a number beside": (
        "h = self.proj(x)\np = h.softmax(-1)\np.mul_(2.0)\nself.level = p.mean().item()\nx = h"
    ),
    "indices": "h = self.proj(x)\ni = h.softmax(-1).mul_(2.0).argmax(-1)\nx = h * (i > 0)[:, None]",
    "values of a maximum": (
        "x = x / self.proj(x).abs().max(-1, keepdim=True).values.clamp_(min=1e-5)"
    ),
}


@pytest.mark.parametrize("lines", RIGHT.values(), ids=RIGHT)
def test_what_runs_stays(lines: str) -> None:
    check_gradients(module(lines))
    stays(module(lines))


TILED = """\
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Conv2d(3, 3, 3)
        self.conv_out = nn.Conv2d(3, 3, 3)

    def forward(self, x):
        x = self.conv_in(x)
        return self.conv_out(x)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def blend(self, a, b, n):
        for y in range(n):
            b[:, :, y] = a[:, :, -y] * 0.5 + b[:, :, y] * 0.5
        return b

    def forward(self, z):
        rows = []
        for i in range(2):
            row = []
            for j in range(2):
                tile = z[:, :, i : i + 10, j : j + 10]
                decoded = self.decoder(tile)
                row.append(decoded)
            rows.append(row)
        out = []
        for i, row in enumerate(rows):
            for j, tile in enumerate(row):
                if i > 0:
                    tile = self.blend(rows[i - 1][j], tile, 4)
                out.append(tile)
        return torch.cat(out)
"""


def test_the_name_of_a_loop_is_what_each_turn_begins_with() -> None:
    """A ``tile`` of the results is not the ``tile`` that the decoder saved."""
    stays(TILED)
    namespace: dict[str, Any] = {}
    exec(TILED, namespace)
    model = namespace["VAE"]()
    model(torch.randn(1, 3, 12, 12, requires_grad=True)).sum().backward()
    assert model.decoder.conv_in.weight.grad.abs().sum() > 0


def test_an_activation_that_is_initialized_is_reported() -> None:
    """A clone would run, and pass on the gradient of values that are gone."""
    text = module("y = torch.tanh(self.proj(x))\nnn.init.normal_(y)\nx = y")
    with pytest.raises(RuntimeError):
        check_gradients(text)
    assert rules(fix(text, unsafe=True)) == ["TRN403"]


def test_a_buffer_that_is_overwritten_before_it_is_read_stays() -> None:
    """It raises where two steps forward come before one backward, which does not show."""
    stays(module("self.gauge.mul_(0.5)\nx = self.proj(x) * self.gauge"))


def test_one_new_value_is_enough() -> None:
    text = module("h = self.act(self.proj(x))\nh += x\nx = self.act(h)")
    assert rules(text) == ["TRN403"]
    check_gradients(fix(text))


ESTIMATORS = {
    "straight-through": (
        "h = self.proj(x)\ns = h.abs().amax(-1, keepdim=True).clamp_(min=1e-5)\n"
        "q = (h / s).round() * s\nx = h + (q - h).detach()"
    ),
    "the straight-through estimator's power": (
        "h = self.proj(x)\nq = h * 1.0\nr = q.pow(2)\nq.round_()\nx = h + (r - h).detach()"
    ),
}


@pytest.mark.parametrize("lines", ESTIMATORS.values(), ids=ESTIMATORS)
def test_what_backward_does_not_go_through_stays(lines: str) -> None:
    scope: dict[str, Any] = {"__name__": "net"}
    exec(compile(module(lines), "net", "exec"), scope)
    scope["Net"]()(torch.randn(3, 4)).sum().backward()
    stays(module(lines))


def test_a_layer_that_other_code_exchanges_is_not_known() -> None:
    text = module("h = self.relu(self.proj(x))\nh += x\nx = h")
    assert rules(text) == ["TRN403"]
    for strip in ("net.relu = nn.Identity()", 'setattr(net, "relu", nn.Identity())'):
        stays(f"{text}\n\ndef strip(net):\n    {strip}\n")


def test_the_dtype_of_what_is_written_stays() -> None:
    before = module(
        "v = x.float().pow(2).mean(-1, keepdim=True)\nx.mul_(torch.rsqrt(v + 1e-6))\nx = self.proj(x)"
    )
    fixed = fix(before)
    assert "x = (x * torch.rsqrt(v + 1e-6)).to(x.dtype)" in fixed
    scope: dict[str, Any] = {"__name__": "net"}
    exec(compile(fixed, "net", "exec"), scope)
    net = scope["Net"]().bfloat16()
    x = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True)
    assert net(x * 1.0).dtype is torch.bfloat16


PROMOTED = {
    "norm": (
        "h = self.proj(x)\nv = h.float().pow(2).mean(-1, keepdim=True)\n"
        "h.mul_(torch.rsqrt(v + 1e-6))\nx = self.proj(h)"
    ),
    "gate": "g = torch.sigmoid(self.proj(x))\ng *= self.scale\nx = g",
    "method": "g = torch.sigmoid(self.proj(x))\ng.add_(self.scale, alpha=2)\nx = g",
    "chain": "g = torch.sigmoid(self.proj(x))\ng.mul_(self.scale).add_(self.scale)\nx = g",
    "returned": "g = self.proj(x).exp()\nreturn g.mul_(self.scale)",
}


@pytest.mark.parametrize(("lines", "strategy"), in_turn(PROMOTED, ["flag", "replace"]))
def test_a_write_promotes_nothing(lines: str, strategy: str) -> None:
    text = module(lines).replace(
        "self.relu =", "self.scale = torch.rand(d) + 0.3\n        self.relu ="
    )
    before, after = (_bfloat16(t) for t in (text, fix(text, strategy=strategy, unsafe=True)))
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    with torch.no_grad():
        expected = before(x.clone())
    found = after(x.clone())
    assert found.dtype is torch.bfloat16 is expected.dtype
    assert torch.equal(found, expected)
    found.sum().backward()


def _bfloat16(text: str) -> Any:
    scope: dict[str, Any] = {"__name__": "net"}
    exec(compile(text, "net", "exec"), scope)
    torch.manual_seed(0)
    return scope["Net"]().bfloat16()


def test_autocast_promotes_nothing() -> None:
    lines = "h = self.proj(x)\nv = h.pow(2).mean(-1, keepdim=True)\nh.mul_(torch.rsqrt(v + 1e-6))\nx = h"
    scope: dict[str, Any] = {"__name__": "net"}
    exec(compile(fix(module(lines)), "net", "exec"), scope)
    with torch.autocast("cpu", torch.bfloat16):
        found = scope["Net"]()(torch.randn(3, 4))
    assert found.dtype is torch.bfloat16


@pytest.mark.parametrize(
    "lines, fixed",
    [
        ("h = torch.tanh(self.proj(x))\nh *= 2.0\nx = h", "h = h * 2.0"),
        ("h = torch.tanh(self.proj(x))\nn = x.shape[0]\nh /= n\nx = h", "h = h / n"),
        ("h = torch.tanh(self.proj(x))\nh += h.mean()\nx = h", "h = h + h.mean()"),
        (
            "h = torch.tanh(self.proj(x))\nm = h.abs().mean(-1, keepdim=True)\nh -= m\nx = h",
            "h = h - m",
        ),
    ],
)
def test_what_cannot_promote_is_not_converted(lines: str, fixed: str) -> None:
    assert f"{fixed}\n" in fix(module(lines))
