"""What leaves a scope that stood before the loss: all of the computation, and no more than that.

The fixed programs are run, and learn what they learn with no scope at all.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from verbs import findings, fix

from tests.torch_process import TorchProcess

HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        torch.manual_seed(0)
        self.proj, self.head = nn.Linear(d, d), nn.Linear(d, 3)
        self.lm = nn.Linear(d, d).requires_grad_(False)
        self.tail = nn.Sequential(nn.Linear(d, d), nn.Tanh()).requires_grad_(False)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3)).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()))
        self.hist, self.log = [], {}

    def keep(self, h):
        self.kept = h

    def forward(self, x, flag=True):
        h = self.proj(x)
        with torch.no_grad():
"""

PROBE = """
model = Model()
x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
for _ in range(2):
    model(x).square().sum().backward()
print([(n, p.grad.flatten().tolist()) for n, p in model.named_parameters() if p.grad is not None])
print(model.seen.requires_grad, [h.requires_grad for h in model.hist])
"""

WHOLE = {
    "a product": "h = self.lm(h); q = h * 2; return self.head(q)",
    "a chain": "h = self.lm(h); s = h.norm(); q = h / s; return self.head(q)",
    "a slice": "h = self.lm(h); q = torch.cat([h[:, :4], -h[:, 4:]], 1); return self.head(q)",
    "a dict": "o = {'h': self.lm(h)}; m = o['h'].mean(); h = o['h'] - m; return self.head(h)",
    "an alias": "h = self.lm(h); q = h; return self.head(q)",
    "an item assigned": "h = self.lm(h); h += 1; h[:, 0] = 0; return self.head(h)",
    "methods in place": "h = self.lm(h); h.mul_(2); h[:, 0].zero_(); return self.head(h)",
    "through a view": "h = self.lm(h); v = h[:, 0]; v.zero_(); return self.head(h)",
    "a function in place": "h = self.lm(h); q = h * 2; torch.neg_(q); return self.head(q)",
    "through out": "h = self.lm(h); q = h + 1; q.add_(h); return self.head(q)",
}
"""All of the scope goes: bodies, one statement of the forward after another."""


def model(body: str) -> str:
    inside, _, after = body.rpartition("; ")
    lines = textwrap.indent(inside.replace("; ", "\n"), " " * 12)
    return f"{HEAD}{lines}\n        {after}\n"


def run(text: str, folder: Path, python: TorchProcess) -> list[str]:
    (folder / "probe.py").write_text(text + PROBE)
    ran = python.run("probe.py", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
def test_all_of_the_computation_leaves(
    body: str, tmp_path: Path, torch_process: TorchProcess
) -> None:
    text = model(body)
    fixed = fix(text)
    assert "no_grad" not in fixed and fix(fixed) == fixed
    right = text.replace("with torch.no_grad():", "if True:")
    assert run(fixed, tmp_path, torch_process) == run(right, tmp_path, torch_process)
    assert run(text, tmp_path, torch_process) != run(right, tmp_path, torch_process)


PARTS = {
    "buffers": """\
h = self.lm(h)
self.seen.add_(h.mean())
self.lm.bias.clamp_(-1, 1)
w = self.head.weight
w.clamp_(-1, 1)
q = h * 2
""",
    "a loop": """\
q = self.lm(h)
for layer in self.layers:
    q = layer(q) + h
    self.seen.add_(q.mean())
    self.hist.append(q.norm())
""",
    "a branch": """\
if flag:
    q = self.lm(h)
    self.seen.add_(q.mean())
else:
    q = h * 1
    self.seen.zero_()
q = q + 1
""",
    "before the frozen part": """\
self.seen.add_(h.mean())
h[:, 0] = 0
q = self.lm(h)
""",
}


@pytest.mark.parametrize("inside", PARTS.values(), ids=PARTS)
def test_what_only_looks_at_it_stays(
    inside: str, tmp_path: Path, torch_process: TorchProcess
) -> None:
    text = f"{HEAD}{textwrap.indent(inside, ' ' * 12)}        return self.head(q)\n"
    fixed = fix(text)
    assert fix(fixed) == fixed
    grads, kept = run(fixed, tmp_path, torch_process)
    assert "proj.weight" in grads and "True" not in kept
    calm = "\n".join(line for line in text.splitlines() if "self.seen." not in line)
    calm = calm.replace("no_grad():", "enable_grad():")
    calm = "\n".join(line for line in calm.splitlines() if ".clamp_(" not in line)
    assert grads == run(calm, tmp_path, torch_process)[0]


@pytest.mark.parametrize(
    ("body", "doubt"),
    [
        ("h = self.tail(h); h[:, 0] = 0; return self.head(h)", "overwrites"),
        ("h = torch.tanh(self.lm(h)); h += 1; return self.head(h)", "overwrites"),
        ("h = self.lm(h); s = h * h; h[:, 0] = 0; return self.head(h + s)", "overwrites"),
        ("h = self.lm(h); torch.add(h, 1, out=h); return self.head(h)", "raises"),
        ("h = self.lm(h); a, b = h.chunk(2, -1); a.mul_(2); return self.head(h)", "raises"),
        ("h = self.lm(h); h.data[:, 0] = 0; return self.head(h)", "not seen"),
        ("h = self.lm(h); d = h.detach(); d.zero_(); return self.head(h)", "not seen"),
        ("h = self.lm(h); self.hist.append(h); return self.head(h)", "keeps `h`"),
        ("h = self.lm(h); self.log['h'] = h; return self.head(h)", "keeps `h`"),
        ("h = self.lm(h); self.keep(h); return self.head(h)", "keeps `h`"),
        ("h = self.lm(h); self.log['n'] = h.numpy(); return self.head(h)", "makes an array"),
    ],
)
def test_what_may_not_have_a_graph_is_said(body: str, doubt: str) -> None:
    (finding,) = findings(model(body), select=("TRN206",))
    found = finding.fixes["flag"]
    assert found.safety == "unsafe" and doubt in found.look_at
