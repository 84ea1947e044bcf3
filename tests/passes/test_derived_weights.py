"""Weights computed from others once: derived where they are used, or reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

from trainify.engine import Options, check_paths

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


"""


def attention(init: str, use: str = "F.linear(x, self.w)", more: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in init.splitlines())
    return (
        HEAD
        + f"""\
class Attention(nn.Module):
    def __init__(self, d, world):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.p = nn.Parameter(torch.zeros(d, d))
{lines}        self.d = d

    def forward(self, x):
        return {use}
{more}"""
    )


def with_property(value: str, use: str = "F.linear(x, self.w)") -> str:
    text = attention("pass", use).replace("        pass\n", "")
    made = f"    @property\n    def w(self):\n        return {value}\n\n"
    return text.replace("    def forward", f"{made}    def forward")


@pytest.mark.parametrize(
    ("init", "value"),
    [
        (
            "self.w = torch.cat([self.q.weight, self.k.weight])",
            "torch.cat([self.q.weight, self.k.weight])",
        ),
        (
            "self.w = torch.cat((self.q.weight.data, self.k.weight.detach()), dim=0)",
            "torch.cat((self.q.weight, self.k.weight), dim=0)",
        ),
        ("self.w = self.q.weight.t().contiguous()", "self.q.weight.t().contiguous()"),
        ("self.w = self.q.weight.data.t()", "self.q.weight.t()"),
        ("self.w = self.p.data.detach().clone()", "self.p.clone()"),
        ("self.w = self.q.weight * 0.5", "self.q.weight * 0.5"),
        ("self.w = (self.q.weight @ self.p.T).data", "self.q.weight @ self.p.T"),
        (
            "self.w = ( (self.q.weight @ self.p.T) ).detach().clone()",
            "( (self.q.weight @ self.p.T) ).clone()",
        ),
        (
            "self.register_buffer('w', torch.stack([self.q.weight, self.k.weight]))",
            "torch.stack([self.q.weight, self.k.weight])",
        ),
    ],
)
def test_becomes_a_property_after_a_look(init: str, value: str) -> None:
    before = attention(init)
    assert fix(before) == before
    becomes(before, with_property(value), unsafe=True)


@pytest.mark.parametrize(
    "value",
    ["-torch.exp(self.p)", "torch.exp(self.p.float())", "self.p.exp()", "F.softplus(self.p)"],
)
def test_what_a_parameter_is_held_for_in_any_product(value: str) -> None:
    use = "x * self.w"
    becomes(attention(f"self.w = {value}", use), with_property(value, use), unsafe=True)
    stays(attention(f"self.w = {value}", "x * len(self.w)"))
    stays(attention("self.w = self.p.abs()", use))  # a statistic of it, perhaps


def low_rank(value: str, use: str = "F.linear(x, self.w)") -> str:
    return (
        HEAD
        + f"""\
class LowRank(nn.Module):
    def __init__(self, d=4, scale=2.0):
        super().__init__()
        self.a = nn.Parameter(torch.ones(d, 2))
        self.b = nn.Parameter(torch.ones(2, d))
        self.c = nn.Parameter(torch.ones(d, d))
        self.scale = scale
        self.w = {value}

    def forward(self, x):
        return {use}
"""
    )


def trained(text: str, steps: int = 2) -> dict[str, bool]:
    """Which parameters some steps of training have changed."""
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    net = scope["LowRank"]()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    return {name: not torch.equal(before[name], p) for name, p in net.named_parameters()}


@pytest.mark.parametrize(
    ("value", "use"),
    [
        ("self.a @ self.b", "F.linear(x, self.w)"),
        ("(self.a @ self.b) * self.scale", "x + x @ self.w"),
        ("self.scale * (self.b.T @ self.a.T)", "x @ self.w"),
        ("torch.matmul(self.a, self.b)", "F.linear(x, self.w)"),
        ("self.a.mm(self.b)", "x.matmul(self.w)"),
        ("0.5 * self.c", "x @ self.w"),
        ("self.c * self.c.t()", "(x[:, None] * self.w).sum(-1)"),
    ],
)
def test_a_product_of_parameters(value: str, use: str) -> None:
    before = low_rank(value, use)
    (finding,) = findings(before)
    assert finding.rule == "TRN502" and "the second backward fails" in finding.message
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        trained(before)
    changed = trained(fix(before, unsafe=True))
    assert all(changed[name] for name in "abc" if f"self.{name}" in value)


@pytest.mark.parametrize("value", ["self.c + self.c.t()", "self.c - self.a[:, :1]"])
def test_a_sum_of_parameters_is_stale(value: str) -> None:
    before = low_rank(value)
    (finding,) = findings(before)
    assert finding.rule == "TRN502" and finding.message.endswith("does not arrive here.")
    trained(before)  # nothing raises
    stays(fix(before, unsafe=True))


@pytest.mark.parametrize(
    ("value", "use"),
    [
        ("self.c.transpose(0, 1)", "x @ self.w"),  # a view follows
        ("self.c + self.c.t()", "(x[:, None] * self.w).sum(-1)"),  # a statistic of it, perhaps
        ("nn.Parameter(self.a @ self.b)", "x @ self.w"),
        ("(self.a @ self.b).sum().item()", "x * self.w"),
        ("self.scale * self.a.shape[0]", "x * self.w"),
        ("self.a @ self.b", "self.w.norm() * 0.1 if not torch.is_grad_enabled() else x"),
        ("self.a @ self.b", "x * self.w.shape[0]"),
    ],
)
def test_what_a_product_of_parameters_is_not(value: str, use: str) -> None:
    stays(low_rank(value, use))


def test_the_last_statement_of_init() -> None:
    before = attention("self.w = self.p.data.t()").replace("        self.d = d\n", "")
    after = with_property("self.p.t()").replace("        self.d = d\n", "")
    becomes(before, after, unsafe=True)


@pytest.mark.parametrize(
    ("init", "value"),
    [
        ("self.width = d\nself.w = self.q.weight.data[:d]", "self.q.weight[:self.width]"),
        (
            "q = self.q.weight.data\nself.w = torch.cat([q, self.k.weight])",
            "torch.cat([self.q.weight, self.k.weight])",
        ),
        (
            "a, b = self.q.weight.data.split([2, 2])\nself.w = torch.cat([b, self.k.weight])",
            "torch.cat([self.q.weight.split([2, 2])[1], self.k.weight])",
        ),
        (
            "both = self.q.weight.detach() + 1\nself.w = torch.cat([both.t(), self.k.weight])",
            "torch.cat([(self.q.weight + 1).t(), self.k.weight])",
        ),
    ],
)
def test_local_names_become_what_they_stand_for(init: str, value: str) -> None:
    before = attention(init)
    (kept, _, _) = init.rpartition("\n")
    lines = "".join(f"        {line}\n" for line in kept.splitlines())
    after = with_property(value).replace("        self.d = d\n", f"{lines}        self.d = d\n")
    becomes(before, after, unsafe=True)


@pytest.mark.parametrize(
    "init",
    [
        "noise = torch.randn(d, d)\nself.w = self.q.weight.data @ noise",
        "self.w = self.q.weight.data @ torch.randn(4, 4)",
        "if world > 1:\n    d = 2\nself.w = self.q.weight.data[:d]",
        "d = d + 1\nself.width = d\nself.w = self.q.weight.data[:world]",
        "self.width = d\nself.width = world\nself.w = self.q.weight.data[: world + 1]",
    ],
)
def test_local_names_that_no_attribute_holds(init: str) -> None:
    (finding,) = findings(attention(init))
    assert finding.rule == "TRN502" and not finding.fixes


@pytest.mark.parametrize(
    "writes",
    [
        "self.w[0] = 0.0",
        "self.w.mul_(2)",
        "self.w.data.add_(1)",
        "self.w.view(-1)[:2].zero_()",
        "self.w += 1",
        "nn.init.zeros_(self.w)",
    ],
)
def test_what_somebody_writes_into_is_no_property(writes: str) -> None:
    """A property would throw the write away."""
    before = attention(f"self.w = self.q.weight.detach().clone()\n{writes}")
    assert fix(before, unsafe=True) == before
    outside = (
        f"\n\ndef make():\n    model = Attention(4, 1)\n    {writes.replace('self', 'model')}\n"
    )
    before = attention("self.w = self.q.weight.detach().clone()") + outside
    assert fix(before, unsafe=True) == before


@pytest.mark.parametrize("beside", ["", "self.n = 1"])
@pytest.mark.parametrize("last", [False, True])
def test_the_scope_that_is_there_for_it_alone_goes_too(beside: str, last: bool) -> None:
    scope = "with torch.no_grad():\n    {}".format
    before = attention(scope(f"self.w = self.q.weight.t()\n    {beside}".rstrip()))
    after = with_property("self.q.weight.t()")
    if beside:
        lines = "".join(f"        {line}\n" for line in scope(beside).splitlines())
        after = after.replace("        self.d = d\n", f"{lines}        self.d = d\n")
    if last:
        before, after = (text.replace("        self.d = d\n", "") for text in (before, after))
    becomes(before, after, unsafe=True)


@pytest.mark.parametrize(
    "init",
    [
        "self.w, self.v = self.q.weight.data.chunk(2)",
        "with torch.no_grad():\n    self.w, self.v = self.q.weight.chunk(2)",
    ],
)
def test_several_parts_become_a_property_each(init: str) -> None:
    second = "    @property\n    def v(self):\n        return self.q.weight.chunk(2)[1]\n\n"
    after = with_property("self.q.weight.chunk(2)[0]").replace(
        "    def forward", f"{second}    def forward"
    )
    becomes(attention(init), after, unsafe=True)


def test_a_part_that_is_set_from_outside() -> None:
    text = attention("self.w, self.v = self.q.weight.data.chunk(2)")
    (finding,) = findings(f"{text}\n\ndef load(model: Attention):\n    model.v = None\n")
    assert "A `v` is set in line" in finding.message and not finding.fixes


@pytest.mark.parametrize(
    "init",
    [
        "with torch.no_grad():\n    self.w = torch.cat([self.q.weight, self.k.weight]).to(world)",
        "with torch.no_grad(), world:\n    self.w = torch.cat([self.q.weight, self.k.weight])",
        "if world > 1:\n    self.w = self.q.weight.data.t()",
        "q = self.q.weight.data\nself.w = torch.cat([q, self.k.weight])",
        "self.w = torch.cat([self.q.weight, self.k.weight, torch.zeros(d, d)])[:d]",
        "self.w = self.q.weight.data.t()  # for speed",
        "self.w, self.v = self.q.weight.data.chunk(2)\nself.v = self.v + 1",
    ],
)
def test_found_where_there_may_be_no_fix(init: str) -> None:
    assert rules(attention(init)) == ["TRN502"]


@pytest.mark.parametrize("name", ["load_weights", "post_init", "_make"])
def test_methods_that_run_when_a_model_is_made_or_loaded(name: str) -> None:
    more = f"\n    def {name}(self):\n        self.w = self.q.weight.data.t()\n"
    call = "self._make()" if name == "_make" else "pass"
    property_ = "\n    @property\n    def w(self):\n        return self.q.weight.t()\n"
    after = f"\n    def {name}(self):\n        pass\n{property_}"
    becomes(attention(call, more=more), attention(call, more=after), unsafe=True)
    more, after = (
        text.replace(f"{name}(self):\n", f"{name}(self):\n        self.n = 1\n")
        for text in (more, after)
    )
    after = after.replace("        pass\n", "")
    becomes(attention(call, more=more), attention(call, more=after), unsafe=True)


@pytest.mark.parametrize(
    "use",
    [
        "x @ self.w",
        "torch.matmul(x, self.w.to(x.dtype))",
        "F.linear(x, weight=self.w)",
        "torch.einsum('bd,dk->bk', x, self.w)",
        "x.mm(self.w)",
    ],
)
def test_ways_to_use_it(use: str) -> None:
    assert rules(attention("self.w = self.q.weight.data.t()", use)) == ["TRN502"]


@pytest.mark.parametrize(
    ("init", "use"),
    [
        ("self.w = self.q.weight", "F.linear(x, self.w)"),
        ("self.w = self.q.weight.t()", "x @ self.w"),  # a view follows, and has a gradient
        ("self.w = nn.Parameter(torch.cat([self.q.weight, self.k.weight]))", "x @ self.w"),
        ("self.initial_w = self.q.weight.detach().clone()", "x @ self.initial_w"),
        ("self.w_ref = self.q.weight.detach().clone()", "x @ self.w_ref"),
        ("self.w = self.q.weight.data.norm().item()", "x @ self.w"),
        ("self.w = self.q.weight.shape[0]", "x @ self.w"),
        ("self.w = pack(self.q.weight.data)", "x @ self.w"),
        ("self.w = self.table.data.t()", "x @ self.w"),
        ("self.w = self.q.weight.data.t()", "(x - self.w).sum()"),
        ("self.w = self.q.weight.data.t()", "x @ self.w if not self.training else self.q(x)"),
        ("self.q.requires_grad_(False)\nself.w = self.q.weight.data.t()", "x @ self.w"),
        ("self.w = None", "x @ self.w"),
        ("self.w = self.q.weight.data.t()", "self.k((x @ self.w).argmin(-1))"),  # a codebook
    ],
)
def test_aliases_references_and_what_is_not_trained(init: str, use: str) -> None:
    stays(attention(init, use))


MAKE = "self.w = torch.cat([self.q.weight, self.k.weight])"


@pytest.mark.parametrize(
    "more",
    [
        f"\n    def fuse(self):\n        {MAKE}\n",
        f"\n    def merge_weights(self):\n        {MAKE}\n",
        f"\n    def load_fused(self):\n        {MAKE}\n        del self.q\n        self.k = None\n",
        f"\n    def load(self):\n        {MAKE}\n\n    def reset(self):\n        self.w = None\n",
        f"\n    def load(self):\n        if not self.training:\n            {MAKE}\n",
        f"\n    def other(self):\n        {MAKE}\n",
    ],
)
def test_what_is_done_for_serving_on_request(more: str) -> None:
    stays(attention("pass", more=more))


@pytest.mark.parametrize("name", ["TeacherAttention", "FrozenAttention", "AttentionEMA"])
def test_classes_that_are_not_trained(name: str) -> None:
    text = attention("self.w = self.q.weight.data.t()")
    assert findings(text)
    stays(text.replace("class Attention", f"class {name}"))


def test_what_every_forward_does_again() -> None:
    stays(
        attention(
            "pass",
            f"self.refresh(x)\n\n    def refresh(self, x):\n        {MAKE}\n        return F.linear(x, self.w)",
        )
    )
    stays(
        attention("pass", "x").replace(
            "        return x", f"        {MAKE}\n        return F.linear(x, self.w)"
        )
    )


MERGED = "\n    def _merged(self):\n        return torch.cat([self.q.weight, self.k.weight])\n"
FUNCTION = "\n\ndef merged(a, b):\n    return torch.cat([a.weight, b.weight])\n"


@pytest.mark.parametrize(
    ("value", "more"), [("self._merged()", MERGED), ("merged(self.q, self.k)", FUNCTION)]
)
def test_a_function_that_computes_it(value: str, more: str) -> None:
    text = attention(f"self.qk_weight = {value}", "F.linear(x, self.qk_weight)", more)
    (finding,) = findings(text)
    assert "`self.q.weight`, `self.k.weight`" in finding.message
    fixed = fix(text, unsafe=True)
    assert f"    @property\n    def qk_weight(self):\n        return {value}\n" in fixed
    scope: dict[str, Any] = {}
    exec(compile(fixed, "m.py", "exec"), scope)
    net = scope["Attention"](4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        before = net.q.weight.detach().clone()
        loss = net(torch.ones(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
        assert not torch.equal(before, net.q.weight)
    torch.testing.assert_close(net.qk_weight[:4], net.q.weight)


@pytest.mark.parametrize(
    "more",
    [
        MERGED.replace(".q.weight", ".q.weight.data"),
        MERGED.replace("    def", "    @torch.no_grad()\n    def"),
        MERGED.replace("return", "with torch.no_grad():\n            return"),
        FUNCTION.replace("a.weight", "a.weight.detach()"),
    ],
)
def test_a_function_that_cuts_the_gradient_is_reported_only(more: str) -> None:
    value = "self._merged()" if "_merged" in more else "merged(self.q, self.k)"
    use = "F.linear(x, self.qk_weight)"
    (finding,) = findings(attention(f"self.qk_weight = {value}", use, more))
    assert "no gradient goes back" in finding.message and not finding.fixes


def test_a_method_for_serving_that_init_always_calls() -> None:
    more = f"\n    def fuse_weights(self):\n        {MAKE}\n"
    assert rules(attention("self.fuse_weights()", more=more)) == ["TRN502"]
    stays(attention("if world > 1:\n    self.fuse_weights()", more=more))


@pytest.mark.parametrize(
    ("value", "more"),
    [
        (
            "self._merged()",
            MERGED.replace("torch.cat([self.q.weight, self.k.weight])", "self.p.t()"),
        ),
        ("merged(self.q, self.k)", FUNCTION.replace("torch.cat([a.weight, b.weight])", "a.weight")),
        ("merged(self.q, world)", FUNCTION.replace("[a.weight, b.weight]", "[b.weight, b.bias]")),
        ("self._merged()", MERGED.replace("torch.cat([self.q.weight, self.k.weight])", "F.x()")),
        ("nn.Parameter(self._merged())", MERGED),
    ],
)
def test_functions_that_derive_nothing(value: str, more: str) -> None:
    use = "F.linear(x, self.qk_weight)"
    stays(attention(f"self.qk_weight = {value}", use, more))


SETS = {
    "another function": "def refresh(m):\n    m.w = torch.cat([m.q.weight.data, m.k.weight.data])",
    "by name": 'def refresh(m, w):\n    setattr(m, "w", w)',
    "a subclass": "class Sub(Attention):\n    def refresh(self, w):\n        self.w = w",
}


@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
@pytest.mark.parametrize("apart", [False, True])
def test_what_is_set_from_outside_is_no_property(sets: str, apart: bool, tmp_path: Path) -> None:
    text = attention("self.w = torch.cat([self.q.weight.data, self.k.weight.data])")
    assert "class Attention" in text
    more = f"import torch\nfrom m import Attention\n\n\n{sets}\n"
    (tmp_path / "m.py").write_text(text if apart else f"{text}\n\n{sets}\n")
    (tmp_path / "load.py").write_text(more if apart else "")
    found = [f for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    assert [f.rule for f in found] == ["TRN502"]
    assert "A `w` is set in " in found[0].message and not found[0].fixes


def test_what_another_class_sets() -> None:
    text = attention("self.w = torch.cat([self.q.weight.data, self.k.weight.data])")
    other = "\n\nclass Other:\n    def refresh(self, w):\n        self.w = w\n"
    (found,) = findings(text + other)
    assert found.fixes


LAZY = """\
class Linear(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d, d))
        self.packed = None
{init}
    def forward(self, x):
        {body}
        return x @ self.packed
{more}"""
FIRST = "if self.packed is None:\n            self.packed = self.weight.t().contiguous()"

GIVEN = "        return self.packed\n\n"


def lazy(body: str = FIRST, init: str = "", more: str = "") -> str:
    return HEAD + LAZY.format(body=body, init=init, more=more)


PROPERTY = (
    lazy("x = x * 1")
    .replace("x @ self.packed", "x @ self.w")
    .replace(
        "    def forward",
        f"    @property\n    def w(self):\n        {FIRST}\n{GIVEN}    def forward",
    )
)
EARLY = """if self.packed is not None:
            return self.packed
        self.packed = self.weight.t().contiguous()"""
MEMOIZED = PROPERTY.replace("@property", "@functools.cached_property").replace(
    f"{FIRST}\n{GIVEN}", "return self.weight.t().contiguous()\n\n"
)
MEMOIZED = f"import functools\n{MEMOIZED}"
ONCE = {
    "is None": lazy(),
    "hasattr": lazy(FIRST.replace("self.packed is None", 'not hasattr(self, "packed")')).replace(
        "        self.packed = None\n", ""
    ),
    "in a method": lazy("self.pack()", more=f"\n    def pack(self):\n        {FIRST}\n"),
    "by a method": lazy(
        "if self.packed is None:\n            self.fuse()",
        more="\n    def fuse(self):\n        self.packed = self.weight.t().contiguous()\n",
    ),
    "detached": lazy(FIRST.replace("self.weight.t().contiguous()", "self.weight.data.t()")),
    "in a property": PROPERTY,
    "in a property, by a local name": PROPERTY.replace(
        "return x @ self.w", "w = self.w\n        return x @ w"
    ),
    "in a method that gives it": PROPERTY.replace("    @property\n", "").replace(
        "x @ self.w", "F.linear(x, self.w())"
    ),
    "in a method, by a local name": PROPERTY.replace("    @property\n", "").replace(
        "return x @ self.w", "w = self.w()\n        return x @ w"
    ),
    "given back early": PROPERTY.replace(FIRST, EARLY),
    "given back early, by hasattr": PROPERTY.replace(
        FIRST, EARLY.replace("self.packed is not None", 'hasattr(self, "packed")')
    ).replace("        self.packed = None\n", ""),
    "by an lru_cache": MEMOIZED.replace("cached_property", "lru_cache").replace(
        "x @ self.w", "x @ self.w()"
    ),
}
ANEW = {
    "while training": lazy(FIRST.replace("is None", "is None or self.training")),
    "serving": lazy("if self.training:\n            return x @ self.weight.t()\n        " + FIRST),
    "given up": lazy(more="\n    def train(self, mode=True):\n        self.packed = None\n"),
    "given up by others": lazy(
        more="\n\ndef step(optimizer, m):\n    optimizer.step()\n    m.packed = None\n"
    ),
    "by a method each time": lazy(
        "self.fuse()",
        more="\n    def fuse(self):\n        self.packed = self.weight.t().contiguous()\n",
    ),
    "by a method that others call": lazy(
        "if self.packed is None:\n            self.fuse()",
        more="\n    def fuse(self):\n        self.packed = self.weight.t().contiguous()\n"
        "\n    def step(self, optimizer):\n        optimizer.step()\n        self.fuse()\n",
    ),
    "asked for something else": lazy(FIRST.replace("self.packed is None", "x is None")),
    "a property for serving": PROPERTY.replace(
        "        if self.packed",
        "        if self.training:\n            return self.weight.t()\n        if self.packed",
    ),
    "a property that is asked for its size": PROPERTY.replace(
        "x @ self.w", "x * self.w.abs().max()"
    ),
    "a property that is given up": PROPERTY
    + "\n    def reset(self):\n        self.packed = None\n",
    "a table": lazy(FIRST.replace("self.weight.t().contiguous()", "torch.eye(4)")),
    "early, for serving": PROPERTY.replace(
        FIRST, f"if self.training:\n            return self.weight.t()\n        {EARLY}"
    ),
    "early, not while training": PROPERTY.replace(
        FIRST, EARLY.replace("is not None", "is not None and not self.training")
    ),
    "early, of something else": PROPERTY.replace(FIRST, EARLY.replace("if self.packed", "if x")),
    "early, given up": PROPERTY.replace(FIRST, EARLY)
    + "\n    def train(self, mode=True):\n        self.packed = None\n",
    "memoized, forgotten": MEMOIZED + "\n    def train(self, mode=True):\n        del self.w\n",
    "memoized, forgotten by name": MEMOIZED
    + '\n    def train(self, mode=True):\n        self.__dict__.pop("w", None)\n',
    "a memoized view": MEMOIZED.replace(".contiguous()", ""),
    "a memoized table": MEMOIZED.replace("self.weight.t().contiguous()", "torch.eye(4)"),
    "memoized, of no use": MEMOIZED.replace("x @ self.w", "x * self.w.abs().max()"),
}


@pytest.mark.parametrize("text", ONCE.values(), ids=ONCE)
def test_a_copy_that_the_first_forward_makes(text: str) -> None:
    """Run two steps: the second one computes with what the first one had."""
    assert rules(text) == ["TRN502"]
    assert not findings(text)[0].fixes
    assert not follows(text) or "data" in text  # which shares the storage


def follows(text: str) -> bool:
    """Whether a second step computes with the weight that it has then."""
    space: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), space)
    layer, x = space["Linear"](), torch.ones(2, 4)
    before = layer(x)
    with torch.no_grad():
        layer.weight += 1
    return not torch.equal(layer(x), before)


def test_a_memoized_weight_becomes_a_plain_property() -> None:
    """Run two steps: as written the second one computes with what the first one had."""
    (finding,) = findings(MEMOIZED)
    assert finding.rule == "TRN502" and finding.fixes["flag"].safety == "unsafe"
    fixed = fix(MEMOIZED, unsafe=True)
    stays(fixed)
    assert not follows(MEMOIZED) and follows(fixed)


@pytest.mark.parametrize("text", ANEW.values(), ids=ANEW)
def test_a_copy_that_training_makes_anew(text: str) -> None:
    stays(text)


@pytest.mark.parametrize(
    "value",
    [
        "torch.mm(self.p, self.r).detach()",
        "(self.p @ self.r.T).detach()",
        "torch.matmul(self.p, self.r)",
    ],
)
@pytest.mark.parametrize("sets", ["self.w = {}", 'self.register_buffer("w", {})'])
def test_products_in_attributes_and_buffers(value: str, sets: str) -> None:
    text = attention(
        f"self.r = nn.Parameter(torch.zeros(d, d))\n{sets.format(value)}", "x @ self.w"
    )
    assert rules(text) == ["TRN502"]


CACHED = """\
class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d, d))
        self.lin = nn.Linear(d, d)
        self.cache = {}

    def forward(self, x):
        key = x.dtype
"""
BY_KEY = {
    "cast": "if key not in self.cache:\n    self.cache[key] = self.weight.to(key)\n"
    "return F.linear(x, self.cache[key])",
    "turned": "if self.cache.get(key) is None:\n    self.cache[key] = self.lin.weight.t().contiguous()\n"
    "w = self.cache[key]\nreturn x @ w",
    "detached": "if key not in self.cache:\n    self.cache[key] = self.weight.detach()\n"
    "return F.linear(x, self.cache[key])",
    "otherwise": "if key in self.cache:\n    w = self.cache[key]\nelse:\n"
    "    self.cache[key] = self.weight.to(key)\n    w = self.cache[key]\nreturn F.linear(x, w)",
}
NOT_KEPT = {
    "anew": "self.cache[key] = self.weight.to(key)\nreturn F.linear(x, self.cache[key])",
    "emptied": BY_KEY["cast"]
    + "\n\n    def step(self):\n        self.cache.clear()\n".replace("    ", "", 1),
    "for inference": "if not torch.is_grad_enabled() and key not in self.cache:\n"
    "    self.cache[key] = self.weight.to(key)\nreturn F.linear(x, self.weight)",
    "no weight": "if key not in self.cache:\n    self.cache[key] = x.to(key)\n"
    "return F.linear(x, self.cache[key])",
    "another key": "if x.shape not in self.cache:\n    self.cache[key] = self.weight.to(key)\n"
    "return F.linear(x, self.cache[key])",
}


def _cached(body: str) -> str:
    return HEAD + CACHED + "".join(f"        {line}\n".rstrip(" ") for line in body.splitlines())


@pytest.mark.parametrize("name", BY_KEY)
def test_weights_that_are_kept_by_a_key(name: str) -> None:
    text = _cached(BY_KEY[name])
    (finding,) = findings(text)
    assert finding.rule == "TRN502" and not finding.fixes
    assert finding.message.startswith("`self.cache` is computed from `self.")
    scope: dict[str, Any] = {}
    exec(text, scope)
    layer = scope["Layer"](2)
    # In another dtype than the weight, which is that itself in its own.
    x = torch.ones(1, 2, dtype=torch.bfloat16 if name in ("cast", "otherwise") else torch.float32)
    before = layer(x).sum().item()
    with torch.no_grad():
        layer.weight.mul_(2.0), layer.lin.weight.mul_(2.0)
    assert layer(x).sum().item() == before or name == "detached"


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_is_not_kept_by_a_key(name: str) -> None:
    assert "TRN502" not in rules(_cached(NOT_KEPT[name]))


@pytest.mark.parametrize(
    "use", ["scan(x, self.w.to(x.dtype))", "scan(x, a=self.w)", "x[:, None] + self.w.float()"]
)
def test_what_a_parameter_is_held_for_is_handed_to_a_scan(use: str) -> None:
    scan = "def scan(x, a):\n    return torch.cumsum(x[:, None] * a, 0)\n\n\n"
    text = low_rank("-torch.exp(self.c.data)", f"{use} + self.a.sum()").replace(
        "class LowRank", f"{scan}class LowRank"
    )
    assert rules(text) == ["TRN502"] and not trained(text)["c"]
    assert trained(fix(text, unsafe=True))["c"]
    stays(text.replace("-torch.exp(self.c.data)", "-torch.exp(torch.zeros(d, d))"))
