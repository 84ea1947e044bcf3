"""A cache that a method writes and reads: the gradients are those of the module without a cache."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, stays

from tests.each import in_turn
from trainify.engine import Options, fix_text
from trainify.facts import Project

HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F


class Base(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.o = nn.Linear(d, d)
        self.register_buffer("ck", torch.zeros(4, 16, d), persistent=False)
        self.register_buffer("cv", torch.zeros(4, 16, d), persistent=False)


class Attention(Base):
    def forward(self, x, pos=0):
        B, T, _ = x.shape
"""
OWN = HEAD.replace("class Base", "class Attention").replace("\n\nclass Attention(Base):\n", "")
WRITES = {
    "set": "self.ck[:B, pos : pos + T] = self.k(x)\nself.cv[:B, pos : pos + T] = self.v(x)",
    "copy": (
        "self.ck[:B, pos : pos + T].copy_(self.k(x))\nself.cv[:B, pos : pos + T].copy_(self.v(x))"
    ),
    "index": (
        "at = torch.arange(pos, pos + T)\nself.ck[:B].index_copy_(1, at, self.k(x))\n"
        "self.cv[:B].index_copy_(1, at, self.v(x))"
    ),
    "names": (
        "xk, xv = self.k(x), self.v(x)\nself.ck[:B, pos : pos + T] = xk\n"
        "self.cv[:B, pos : pos + T] = xv"
    ),
    "moved": (
        "self.ck = self.ck.to(x)\nself.ck[:B, pos : pos + T] = self.k(x)\n"
        "self.cv[:B, pos : pos + T] = self.v(x)"
    ),
    "moved, names": (
        "self.ck = self.ck.to(x)\nself.cv = self.cv.to(x)\nxk, xv = self.k(x), self.v(x)\n"
        "self.ck[:B, pos : pos + T] = xk\nself.cv[:B, pos : pos + T] = xv"
    ),
    "within": (
        "with torch.autocast('cpu', enabled=False):\n"
        "    self.ck[:B, pos : pos + T] = self.k(x)\n    self.cv[:B, pos : pos + T] = self.v(x)"
    ),
}
READS = {
    "named": (
        "k = self.ck[:B, : pos + T]\nv = self.cv[:B, : pos + T]\n"
        "return self.o(F.scaled_dot_product_attention(self.q(x), k, v))"
    ),
    "together": (
        "k, v = self.ck[:B, : pos + T], self.cv[:B, : pos + T]\n"
        "return self.o(F.scaled_dot_product_attention(self.q(x), k, v))"
    ),
    "at once": (
        "return self.o(F.scaled_dot_product_attention("
        "self.q(x), self.ck[:B, : pos + T], self.cv[:B, : pos + T]))"
    ),
    "narrowed": (
        "k = self.ck.narrow(1, 0, pos + T)[:B]\n"
        "scores = (self.q(x) @ k.mT / 8**0.5).softmax(-1)\n"
        "return self.o(scores @ self.cv[:B].narrow(1, 0, pos + T))"
    ),
}
NAMES = {"buffers": ("ck", "cv"), "caches": ("k_cache", "v_cache")}


def attention(head: str, writes: str, reads: str, names: tuple[str, str] = ("ck", "cv")) -> str:
    text = head + textwrap.indent(f"{writes}\n{reads}\n", " " * 8)
    return text.replace("ck", names[0]).replace("cv", names[1])


def made(text: str) -> Any:
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    torch.manual_seed(0)
    return scope["Attention"]()


def steps(text: str) -> dict[str, torch.Tensor | None]:
    """The gradients of a second step of training."""
    model = made(text)
    x = torch.randn(2, 5, 8)
    for _ in range(2):
        model.zero_grad()
        model(x).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def without_a_cache() -> dict[str, torch.Tensor | None]:
    reads = "return self.o(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))"
    return steps(attention(OWN, "", reads))


def served(text: str) -> list[torch.Tensor]:
    """A prompt, then two tokens, without gradients; and what is cached after it."""
    model = made(text)
    x = torch.randn(2, 7, 8)
    with torch.no_grad():
        out = [model(x[:, :5], 0), model(x[:, 5:6], 5), model(x[:, 6:], 6)]
    return [*out, *model.buffers()]


@pytest.mark.parametrize(("writes", "read"), in_turn(WRITES, list(READS)))
def test_the_gradients_are_those_without_a_cache(writes: str, read: str) -> None:
    reads = READS[read]
    right = without_a_cache()
    for head, kind in ((OWN, "buffers"), (HEAD, "buffers"), (HEAD, "caches")):
        if kind == "buffers" and "self.ck.to" in writes:
            continue  # for all that its file shows, it is set anew
        text = attention(head, writes, reads, NAMES[kind])
        with pytest.raises(RuntimeError, match="second time"):
            steps(text)
        fixed = fix(text)
        stays(fixed)
        torch.testing.assert_close(steps(fixed), right)
        assert all(map(torch.equal, served(fixed), served(text)))


def test_what_is_read_is_the_prefix_that_the_write_completes() -> None:
    becomes(
        attention(OWN, WRITES["set"].partition("\n")[0], "return F.relu(self.ck[:B, : pos + T])"),
        attention(
            OWN,
            """\
new_ck = self.k(x)
self.ck[:B, pos : pos + T] = new_ck.detach()
fresh_ck = self.ck[:B, : pos + T]
if torch.is_grad_enabled() and new_ck.requires_grad:
    fresh_ck = torch.cat((self.ck[:B, :pos], new_ck), dim=1)""",
            "return F.relu(fresh_ck)",
        ),
    )


def test_anything_else_is_read_from_a_copy() -> None:
    becomes(
        attention(
            OWN, "xk = self.k(x)\nself.ck[:B, pos : pos + T] = xk  # new", "return F.relu(self.ck)"
        ),
        attention(
            OWN,
            """\
xk = self.k(x)
self.ck[:B, pos : pos + T] = xk.detach()  # new
fresh_ck = self.ck
if torch.is_grad_enabled() and xk.requires_grad:
    fresh_ck = self.ck.clone()
    fresh_ck[:B, pos : pos + T] = xk""",
            "return F.relu(fresh_ck)",
        ),
    )


def test_an_index_ahead_of_the_dimension_that_grows() -> None:
    """Joined along dimension 2, which is another one behind an index, the heads would be more."""
    writes = "xk = self.k(x)\nself.ck[0, :, pos : pos + T] = xk"
    text = attention(OWN, writes, "keys = self.ck[0, :, : pos + T]\nreturn keys.relu()")
    for names in NAMES.values():
        renamed = text.replace("ck", names[0])
        renamed = renamed.replace("torch.zeros(4, 16, d)", "torch.zeros(1, 2, 16, d)")
        fixed = fix(renamed)
        assert fixed != renamed
        grad = steps(fixed)["k.weight"]
        assert grad is not None and grad.abs().sum() > 0


REFUSED = {
    "a loop": (
        "for t in range(T):\n    self.ck[:B, t] = self.k(x[:, t])\n    x = x + self.ck[:B].sum(1)",
        "loop",
    ),
    "twice": (
        "self.ck[:B, :T] = self.k(x)\nself.ck[:B, :T] = self.v(x)\nx = x + self.ck[:B, :T]",
        "more than once",
    ),
    "another name before": (
        "old = self.ck[:B, :T]\nself.ck[:B, :T] = self.k(x)\nx = x + old + self.ck[:B, :T]",
        "before",
    ),
    "not surely written": (
        "if T > 1:\n    self.ck[:B, :T] = self.k(x)\n    x = x + self.ck[:B, :T]\n"
        "x = x + self.ck[:B, :T]",
        "may not have run",
    ),
    "written where it is read": (
        "self.ck[:B, :T] = self.k(x)\nkept = self.ck\nkept[:B, :T].mul_(2)\nx = x + kept[:B, :T]",
        "what it has read",
    ),
    "set afterwards": (
        "self.ck[:B, :T] = self.k(x)\nx = x + self.ck[:B, :T]\nself.ck = self.ck * 2",
        "sets the cache",
    ),
    "run later": (
        "self.ck[:B, :T] = self.k(x)\nread = lambda: self.ck[:B, :T]\nx = x + read()",
        "whenever it runs",
    ),
    "in a text": (
        "self.ck[:B, :T] = self.k(x)\nprint(f'{self.ck[0]}')\nx = x + self.ck[:B, :T]",
        "a text is made",
    ),
    "handed on": ("self.ck[:B, :T] = self.k(x)\nx = (x, self.ck)[0]", "handed on"),
    "another order": (
        "self.ck[:B, : self.length()].copy_(self.grown(x))\nx = x + self.ck[:B, :T]",
        "computed first",
    ),
    "asked twice": ("self.ck[:B, next(x)] = self.k(x)\nx = x + self.ck[:B, :T]", "asking twice"),
    "the module is given": (
        "self.ck[:B, :T] = self.k(x)\nx = x + self.ck[:B, :T] + helper(self)",
        "the whole module",
    ),
    "a method reads it, too": (
        "self.ck[:B, :T] = self.k(x)\nx = x + self.ck[:B, :T] + self.outer(T)",
        "reads the cache, too",
    ),
    "the base's forward": (
        "self.ck[:B, :T] = self.k(x)\nx = x + self.ck[:B, :T] + super().forward(x)",
        "reads the cache, too",
    ),
}
MORE = """
    def outer(self, n):
        return self.inner(n) * 2

    def inner(self, n):
        return self.ck[:, :n].sum()
"""


@pytest.mark.parametrize(("body", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_may_read_something_else_is_reported_only(body: str, reason: str) -> None:
    text = attention(HEAD, body, "return x")
    if "self.outer" in body:
        text += MORE
    if "super()" in body:
        text = text.replace(
            "\n\nclass Attention", MORE.replace("outer", "forward") + "\n\nclass Attention"
        )
    text = text.replace("ck", "k_cache")
    found = [f for f in findings(text) if f.rule == "TRN401"]
    assert found and not any(f.fixes for f in found)
    assert any(reason in f.message for f in found), [f.message for f in found]
    assert fix(text, unsafe=True, select=("TRN401",)) == text


READ = "return F.relu(self.ck[:B, :T])"
DOUBTFUL = {
    "another method reads it": (
        READ,
        "\n    def kept(self):\n        return self.ck\n",
        "`kept` reads",
    ),
    "a class that derives from it": (
        READ,
        "\n\nclass Other(Attention):\n    def kept(self):\n        return self.ck\n",
        "`kept` reads",
    ),
    "it is set back": (
        READ,
        "\n    def begin(self):\n        self.ck.detach_()\n",
        "earlier calls",
    ),
    "a function is given it": ("return attend(x, self.ck[:B, :T])", "", "`attend` must not"),
    "it is handed out": ("keys = self.ck[:B, :T]\nreturn keys, x", "", "earlier calls"),
}


@pytest.mark.parametrize(("read", "more", "look_at"), DOUBTFUL.values(), ids=DOUBTFUL)
def test_what_others_may_do_with_the_cache_is_to_be_looked_at(
    read: str, more: str, look_at: str
) -> None:
    text = attention(HEAD, "self.ck[:B, :T] = self.k(x)", read) + more
    (finding,) = [f for f in findings(text) if f.rule == "TRN408"]
    made = finding.fix("flag")
    assert made is not None and made.safety == "unsafe" and look_at in made.look_at
    assert fix(text) == text and "fresh_ck" in fix(text, unsafe=True)


def test_what_has_nothing_to_do_with_it_is_no_reason_to_look() -> None:
    other = MORE.replace("\n    def", "\n\nclass Other(nn.Module):\n    def", 1)
    sibling = MORE.replace("\n    def", "\n\nclass Sibling(Base):\n    def", 1)
    text = attention(HEAD, WRITES["set"], READS["named"]) + other + sibling
    assert "fresh_ck" in fix(text)


def test_another_file_that_reads_it(tmp_path: Path) -> None:
    text = attention(HEAD, WRITES["set"], READS["named"])
    path = tmp_path / "model.py"
    path.write_text(text)
    (tmp_path / "serve.py").write_text("def peek(model):\n    return model.ck\n")
    fixed = fix_text(text, str(path), Options(), Project([tmp_path])).text
    assert "fresh_cv" in fixed and "fresh_ck" not in fixed


CUT = {
    "in a scope": (
        "with torch.no_grad():\n    self.ck[:B, pos : pos + T] = self.k(x)\n"
        "    self.cv[:B, pos : pos + T] = self.v(x)"
    ),
    "names in a scope": (
        "xk, xv = self.k(x), self.v(x)\nwith torch.no_grad():\n"
        "    self.ck[:B, pos : pos + T] = xk\n    self.cv[:B, pos : pos + T].copy_(xv)"
    ),
    "made in a scope": (
        "with torch.no_grad():\n    xk = self.k(x)\n    self.ck[:B, pos : pos + T] = xk\n"
        "    self.cv[:B, pos : pos + T] = self.v(x)"
    ),
    "detached": (
        "self.ck[:B, pos : pos + T] = self.k(x).detach()\n"
        "self.cv[:B, pos : pos + T] = self.v(x).data"
    ),
    "by its data": (
        "self.ck.data[:B, pos : pos + T] = self.k(x)\n"
        "self.cv.data[:B, pos : pos + T].copy_(self.v(x))"
    ),
}


@pytest.mark.parametrize("writes", CUT.values(), ids=CUT)
def test_what_is_cached_without_a_gradient_learns_after_a_look(writes: str) -> None:
    right = without_a_cache()
    for head, reads in zip((OWN, HEAD, OWN, HEAD), READS.values(), strict=True):
        text = attention(head, writes, reads, NAMES["caches"])
        assert steps(text)["k.weight"] is None
        assert {f.rule for f in findings(text)} == {"TRN409"} and fix(text) == text
        fixed = fix(text, unsafe=True)
        stays(fixed)
        torch.testing.assert_close(steps(fixed), right)
        assert all(map(torch.equal, served(fixed), served(text)))


MEANT = {
    "trained elsewhere": (
        "xk = self.k(x)\nself.ck[:B, :T] = xk.detach()\nx = xk + self.ck[:B, :T]"
    ),
    "kept for the next call": "x = x + self.ck[:B, :T]\nself.ck[:B, :T] = self.k(x).detach()",
    "of no layer": "self.ck[:B, :T] = x.detach()\nx = self.k(x) + self.ck[:B, :T]",
    "read without a gradient": (
        "self.ck[:B, :T] = self.k(x).detach()\nwith torch.no_grad():\n    n = self.ck[:B, :T].norm()\n"
        "x = x / n"
    ),
    "explained": (
        "# no gradient through the cache\nself.ck[:B, :T] = self.k(x).detach()\n"
        "x = x + self.ck[:B, :T]"
    ),
    "read by others": (
        "self.ck[:B, :T] = self.k(x).detach()\nx = x + self.ck[:B, :T] + helper(self)"
    ),
    "a target": "self.ck[:B, :T] = self.k(x).detach()\ntarget_loss(self.ck[:B, :T])",
}


@pytest.mark.parametrize("body", MEANT.values(), ids=MEANT)
def test_what_may_be_cached_without_a_gradient(body: str) -> None:
    text = attention(OWN, body, "return x", NAMES["caches"])
    stays(text, select=("TRN409",))


def test_a_forward_that_is_served_caches_as_it_likes() -> None:
    text = attention(OWN, CUT["in a scope"], READS["named"], NAMES["caches"])
    stays(text.replace("    def forward", "    @torch.no_grad()\n    def generate"))


def test_layers_of_a_base_class_in_another_file(tmp_path: Path) -> None:
    """That they are layers, and may run before the place in the cache is asked for, shows there."""
    text = attention(HEAD, WRITES["copy"], READS["at once"], NAMES["caches"])
    base, own = text.split("\n\nclass Attention")
    (tmp_path / "base.py").write_text(base)
    path = tmp_path / "model.py"
    head = "import torch\nimport torch.nn.functional as F\nfrom base import Base\n\n\n"
    path.write_text(head + "class Attention" + own)
    fixed = fix_text(path.read_text(), str(path), Options(), Project([tmp_path])).text
    assert fixed.count(".detach()") == 2
    joined = base + "\n\n" + fixed[fixed.index("class Attention") :]
    torch.testing.assert_close(steps(joined), without_a_cache())
    (tmp_path / "base.py").write_text(base.replace("nn.Linear(d, d)", "grown(d)"))
    fixed = fix_text(path.read_text(), str(path), Options(), Project([tmp_path])).text
    assert ".detach()" not in fixed


REPEATED = {
    "over time": "self.k(x.mean(1, keepdim=True))",
    "a batch of one": "self.k(self.p).unsqueeze(0)",
    "in a condition": "self.k(x)[:, -1:] if T > 1 else self.k(x)",
    "a weight": "self.p",
    "scaled": "self.p * 0.5",
}


NAMED, UNDER_NO_GRAD = "xk = VALUE\nAT = xk", "with torch.no_grad():\n    AT = VALUE"


@pytest.mark.parametrize(
    ("value", "write"),
    [
        *((value, NAMED) for value in REPEATED.values()),
        *((REPEATED[how], UNDER_NO_GRAD) for how in ("over time", "a batch of one")),
    ],
)
def test_what_the_write_repeats_is_repeated(value: str, write: str) -> None:
    """Joined as it is, it would be one row where the cache has T."""
    weight = "        self.p = nn.Parameter(torch.randn(1, d))\n"
    head = OWN.replace("        self.o =", weight + "        self.o =")
    result = "return self.o(self.q(x) @ k.mT @ k)"
    writes = write.replace("AT", "self.ck[:B, pos : pos + T]").replace("VALUE", value)
    reads = f"k = self.ck[:B, : pos + T]\n{result}"
    text = attention(head, writes, reads, NAMES["caches"])
    fixed = fix(text, unsafe=True)  # under no_grad it may be meant
    assert fixed != text
    right = attention(head, f"k = ({value}).expand(B, T, 8)", result)
    torch.testing.assert_close(steps(fixed), steps(right))
    assert all(map(torch.equal, served(fixed), served(text)))


def test_means_on_the_way_to_a_value_repeat_nothing() -> None:
    norm = "x = x * x.pow(2).mean(-1, keepdim=True).rsqrt()\n"
    write = "xk = self.k(x)\nself.ck[:B, pos : pos + T] = xk"
    text = attention(OWN, norm + write, "keys = self.ck[:B, : pos + T]\nreturn keys.relu()")
    assert "torch.cat((self.ck[:B, :pos], xk), dim=1)" in fix(text)


# -- one of several -------------------------------------------------------------------------------

SEVERAL = """\
import torch
from torch import nn

CACHES = [torch.zeros(2, 16, 8) for _ in range(2)]


class Held:
    def __init__(self):
        self.kv = [torch.zeros(2, 16, 8) for _ in range(2)]


class Attention(nn.Module):
    def __init__(self, d=8, n=2):
        super().__init__()
        self.qs = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.ks = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.vs = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.i = 1
        self.held = Held()
        self.caches = [torch.zeros(2, 16, d) for _ in range(n)]
        self.cache = {"k": torch.zeros(2, 16, d), "v": torch.zeros(2, 16, d)}

    def forward(self, x, pos=0):
        T = x.shape[1]
        slots = torch.arange(pos, pos + T)
BODY

    def attend(self, x, caches, held, pos):
        T = x.shape[1]
        slots = torch.arange(pos, pos + T)
GIVEN
"""
PLACES = {
    "of a list": ("self.caches[self.i]", True),
    "of a list by number": ("self.caches[0]", True),
    "of a dict": ('self.cache["k"]', True),
    "of a global": ("CACHES[self.i]", False),
}
OF_ONE = """\
PLACE[:, pos : pos + T] = self.ks[0](x)
keys = PLACE[:, : pos + T]
return (self.qs[0](x) @ keys.mT).softmax(-1) @ keys"""
OF_PAIR = """\
PLACE["k"][:, pos : pos + T] = self.ks[0](x)
PLACE["v"][:, pos : pos + T] = self.vs[0](x)
k, v = PLACE["k"][:, : pos + T], PLACE["v"][:, : pos + T]
return (self.qs[0](x) @ k.mT).softmax(-1) @ v"""
IN_TURN = """\
for i, (q, k) in enumerate(zip(self.qs, self.ks)):
    self.caches[i][:, pos : pos + T] = k(x)
    keys = self.caches[i][:, : pos + T]
    x = x + (q(x) @ keys.mT).softmax(-1) @ keys
return x"""
BY_INDEX = """\
PLACE[:, slots] = self.ks[0](x)
keys = PLACE[:, : pos + T]
return (self.qs[0](x) @ keys.mT).softmax(-1) @ keys"""


def several(body: str, given: str = "pass") -> str:
    body, given = (textwrap.indent(text, " " * 8) for text in (body, given))
    return SEVERAL.replace("BODY", body).replace("GIVEN", given)


def learned(text: str, right: str, unsafe: bool) -> None:
    """The gradients are those of the code without caches, what is served is what was served."""
    with pytest.raises(RuntimeError, match="second time"):
        steps(text)
    if unsafe:
        assert fix(text) == text
    fixed = fix(text, unsafe=unsafe)
    stays(fixed)
    torch.testing.assert_close(steps(fixed), steps(several(right)))
    assert all(map(torch.equal, served(fixed), served(text)))


ALONE = "keys = self.ks[0](x)\nreturn (self.qs[0](x) @ keys.mT).softmax(-1) @ keys"


@pytest.mark.parametrize("body", [OF_ONE, BY_INDEX])
@pytest.mark.parametrize(("place", "safe"), PLACES.values(), ids=PLACES)
def test_one_of_several_caches(place: str, safe: bool, body: str) -> None:
    learned(several(body.replace("PLACE", place)), ALONE, not safe)


def test_two_entries_of_a_dict() -> None:
    right = "k, v = self.ks[0](x), self.vs[0](x)\nreturn (self.qs[0](x) @ k.mT).softmax(-1) @ v"
    learned(several(OF_PAIR.replace("PLACE", "self.cache")), right, unsafe=False)


@pytest.mark.parametrize(
    ("given", "place"), [("self.caches, None", "caches[self.i]"), ("None, self.held", "held.kv[0]")]
)
def test_caches_that_are_handed_over(given: str, place: str) -> None:
    """Whoever holds them may read them, too."""
    call = f"return self.attend(x, {given}, pos)"
    learned(several(call, OF_ONE.replace("PLACE", place)), ALONE, unsafe=True)


def test_one_each_turn_of_a_loop() -> None:
    right = """\
for q, k in zip(self.qs, self.ks):
    keys = k(x)
    x = x + (q(x) @ keys.mT).softmax(-1) @ keys
return x"""
    learned(several(IN_TURN), right, unsafe=False)


OTHERS = {
    "another one is read": (
        "self.caches[self.i][:, :T] = self.ks[0](x)\n"
        "return self.caches[self.i][:, :T] + self.caches[self.i - 1][:, :T]",
        "holds several tensors",
    ),
    "all are handed on": (
        "self.caches[0][:, :T] = self.ks[0](x)\nreturn helper(self.caches, self.caches[0][:, :T])",
        "holds several tensors",
    ),
    "set in between": (
        "self.caches[self.i][:, :T] = self.ks[0](x)\nself.i = 0\n"
        "return self.caches[self.i][:, :T] * 2",
        "`self.i` is set after the write",
    ),
    "the same one in every turn": (
        "for q, k in zip(self.qs, self.ks):\n    self.caches[0][:, :T] = k(x)\n"
        "    x = x + q(x) * self.caches[0][:, :T].sum()\nreturn x",
        "loop",
    ),
}


@pytest.mark.parametrize(("body", "reason"), OTHERS.values(), ids=OTHERS)
def test_one_of_several_that_may_be_another(body: str, reason: str) -> None:
    (found,) = findings(several(body), select=("TRN401",))
    assert not found.fixes and reason in found.message
