"""State that a step writes and reads again with its history: right programs, which stay right."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, rules

from tests.each import in_turn
from trainify.engine import Options, check_paths

PROGRAM = """\
import torch
from torch import nn


class Outer(nn.Module):
    def forward(self, model):
        return model.h.tanh()


class Reader(nn.Module):
    def __init__(self, tensor):
        super().__init__()
        self.tensors = [tensor]

    def forward(self, x):
        return self.tensors[0].tanh()


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("h", torch.zeros(3, 4))
        self.outer = OUTER()
        KEPT

    def read(self):
        return torch.tanh(self.h)

    @property
    def now(self):
        return self.read()

    def write(self, x):
        self.h.add_(self.a(x))

    def forward(self, x):
        with torch.no_grad():
            self.h.fill_(0.5)
        READ
        return y
"""
WRITES = (
    "self.h.add_(self.a(x))",
    "self.h.mul_(torch.sigmoid(self.a(x))).add_(self.a(x))",
    "self.h[:] = self.a(x)",
    "self.write(x)",
)
READS = {
    "method": "y = self.read()",
    "property": "y = self.now",
    "other module": "y = self.outer(self)",
    "element": "y = torch.empty_like(x)\ny[:] = torch.tanh(self.h)",
    "added to": "y = torch.zeros_like(x)\ny += self.h",
    "added to an element": "y = torch.zeros_like(x)\ny[0] += self.h[0]",
    "copied": "y = torch.empty_like(x)\ny.copy_(self.h)",
    "put by index": "y = torch.zeros_like(x)\ny.index_add_(0, torch.arange(3), self.h)",
    "list": "ys = [torch.zeros_like(x)]\nys += [self.h.tanh()]\ny = ys[1]",
    "dict": 'd = {}\nd["y"] = self.h.tanh()\ny = d["y"]',
    "view of what is filled": "y = torch.empty_like(x)\nv = y[:]\nv[:] = self.h.tanh()",
    "several elements": "y = torch.empty_like(x)\n"
    "y[..., :2], y[..., 2:] = self.h.tanh().chunk(2, -1)",
    "buffers": 'y = self._buffers["h"].tanh()',
    "getattr": 'y = getattr(self, "h").tanh()',
}


KEPT = {
    "last": "self.last = self.h[:, :]",
    "both": "self.both = [self.h, self.a.bias]",
    "reader": "self.reader = Reader(self.h)",
}
"""What ``__init__`` keeps of the buffer."""


def program(write: str, read: str) -> str:
    outer = "Outer" if "outer(" in read else "nn.Identity"
    body = textwrap.indent(f"{write}\n{read}", " " * 8).strip()
    kept = next((line for name, line in KEPT.items() if f"self.{name}" in write), "")
    text = PROGRAM.replace("OUTER", outer).replace("READ", body).replace("KEPT", kept)
    return text if outer == "Outer" else text.replace("model.h.tanh()", "model(0)")


def gradients(text: str) -> list[torch.Tensor | None]:
    space: dict[str, Any] = {}
    exec(text, space)
    torch.manual_seed(0)
    cell = space["Cell"]()
    weights = torch.arange(12.0).view(3, 4)
    (cell(torch.randn(3, 4)) * weights).sum().backward()
    return [parameter.grad for parameter in cell.parameters()]


@pytest.mark.parametrize(("read", "write"), in_turn(READS, WRITES))
def test_a_value_that_is_read_again_keeps_its_history(read: str, write: str) -> None:
    before = program(write, read)
    expected = gradients(before)
    assert None not in expected
    torch.testing.assert_close(gradients(fix(before)), expected)


ADD = "self.h.add_(self.a(x))"


@pytest.mark.parametrize(
    "write",
    [
        f'{ADD}\ny = self.state_dict(keep_vars=True)["h"].tanh()',
        f'{ADD}\ny = self.get_buffer("h").tanh()',
        f"{ADD}\ny = self.last.tanh()",
        f"{ADD}\ny = self.both[0].tanh()",
        f"{ADD}\ny = self.reader(x)",
        "y = self.h.add_(self.a(x)).tanh()",
        "y = torch.relu(self.h.copy_(self.a(x)))",
        "y = self.h.mul_(0.5).add_(self.a(x))",
        "ys = [self.h.add_(self.a(x))]\ny = ys[0].tanh()",
        "later = (t.tanh() for t in [self.h])\nself.h.add_(self.a(x))\ny = next(later)",
        "both = self.h, x\nself.h.add_(self.a(x))\ny = both[0].tanh()",
    ],
)
def test_a_value_that_is_read_by_another_name_keeps_its_history(write: str) -> None:
    before = program(write, "").replace("torch.tanh(self.h)", "torch.tanh(self.a.bias)")
    expected = gradients(before)
    assert None not in expected
    torch.testing.assert_close(gradients(fix(before)), expected)


@pytest.mark.parametrize("read", ["y = self.a(x)", "y = self.a(x) + self.h.detach()"])
@pytest.mark.parametrize("write", WRITES[:2])
def test_a_value_that_nothing_reads_is_kept_without(write: str, read: str) -> None:
    before = program(write, read).replace("torch.tanh(self.h)", "torch.tanh(self.a.bias)")
    assert rules(before) == ["TRN408"]
    after = fix(before)
    assert after.count(".detach()") > before.count(".detach()")
    torch.testing.assert_close(gradients(after), gradients(before))


HOLDER = """\
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.seen = []

    def newest(self):
        return self.seen[-1].tanh()

    def forward(self, x):
        old = self.seen[-1] if len(self.seen) else 0
        self.seen.append(self.a(x + old))
        READ
        return y
"""


@pytest.mark.parametrize(
    "read", ["y = self.newest()", "f = lambda: self.newest()\n        y = f()"]
)
def test_what_a_list_keeps_is_read_by_a_method(read: str) -> None:
    before = HOLDER.replace("READ", read)
    assert rules(before) == ["TRN408"]
    torch.testing.assert_close(gradients(fix(before)), gradients(before))
    kept = HOLDER.replace("READ", "y = self.a(x)").replace("self.seen[-1].tanh()", "self.seen")
    assert "append(self.a(x + old).detach())" in fix(kept.replace("self.seen\n\n", "0\n\n"))


GOT = """\
import torch
from torch import nn


class State(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("h", torch.zeros(3, 4))

    @property
    def now(self):
        return self.h

    def forward(self, x):
        self.h.add_(self.a(x))
        return 0


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = State()

    def forward(self, x):
        self.state(x)
        return self.state.now.tanh()
"""
SHARED = """\
import torch
import torch.nn.functional as F
from torch import nn


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Linear(4, 4)
        self.register_buffer("k_cache", torch.zeros(8, 4), persistent=False)

    def forward(self, x):
        k = self.k(x)
        self.k_cache[: x.shape[0]] = k
        return F.scaled_dot_product_attention(x, k, k)


class Second(nn.Module):
    def forward(self, x, source):
        k = source.k_cache[: x.shape[0]]
        return F.scaled_dot_product_attention(x, k, k)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = First(), Second()

    def forward(self, x):
        return self.second(x + self.first(x), self.first)
"""


@pytest.mark.parametrize("before", [GOT, SHARED], ids=["property", "another layer"])
def test_what_others_read_of_a_module_is_looked_at_first(before: str) -> None:
    assert rules(before) in (["TRN408"], ["TRN401"])
    assert fix(before) == before
    (found,) = findings(before)
    assert all("no gradient goes back" in each.look_at for each in found.fixes.values())


def test_what_another_file_reads_is_looked_at_first(tmp_path: Path) -> None:
    state, cell = GOT.split("class Cell")
    head = "from state import State\nfrom torch import nn\n\n\nclass Cell"
    (tmp_path / "state.py").write_text(state.replace("return self.h", "return 0"))
    (tmp_path / "cell.py").write_text(head + cell.replace("state.now", "state.h"))
    (report,) = [r for r in check_paths([str(tmp_path)], Options()) if r.findings]
    (found,) = report.findings
    assert all("another file reads `self.h`" in each.look_at for each in found.fixes.values())


ONLY_KEPT = """\
import operator
import torch
from torch import nn


class Peek(nn.Module):
    name = "h"

    def peek(self):
        return getattr(self, self.name)


class Cell(Peek):
    hidden = property(operator.attrgetter("h"))

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("h", torch.zeros(3, 4))
        self.get = lambda: self.h

    def forward(self, x):
        self.h.add_(self.a(x))
        RETURN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()
        self.cell.register_forward_hook(lambda m, i, o: setattr(self, "seen", list(m.buffers())))

    def forward(self, x):
        y = self.cell(x)
        return READ
"""


@pytest.mark.parametrize(
    "read",
    [
        "self.cell.get()",
        "self.cell.peek()",
        "self.cell.hidden",
        "self.seen[0]",
        "next(self.buffers())",
        'vars(self.cell)["_buffers"]["h"]',
        'dict(self.named_buffers())["cell.h"]',
        'operator.attrgetter("cell.h")(self)',
    ],
)
@pytest.mark.parametrize("result", ["self.count = 1", "return x.mean()"])
def test_a_layer_that_has_no_other_way_is_looked_at_first(read: str, result: str) -> None:
    """In some way its value is read, or it would be there for nothing."""
    before = ONLY_KEPT.replace("READ", read).replace("RETURN", result)
    (found,) = findings(before)
    assert "does not reach what `forward` returns" in found.fixes["flag"].look_at
    space: dict[str, Any] = {}
    exec(fix(before), space)
    net = space["Net"]()
    net(torch.randn(3, 4)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


@pytest.mark.parametrize(
    "result",
    ["return self.a(x)", "h = self.b(x)\n        return h", "return self.b(x), 1"],
)
def test_a_layer_that_has_another_way_is_not(result: str) -> None:
    before = ONLY_KEPT.replace("self.get = lambda: self.h", "").replace("RETURN", result)
    before = before.replace("READ", "y").replace("    def forward", f"{OWN}    def forward", 1)
    fixed = fix(before)
    assert ".add_(self.a(x).detach())" in fixed


OWN = "    def b(self, x):\n        return self.a(x) * 2\n\n"
