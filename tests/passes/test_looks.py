"""What passes see in the bytes of a file: whether a closer look is worth parsing it."""

import pytest

from trainify import Options, engine

ATTENTION = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache_k = torch.zeros(1, 9, 4)

    def forward(self, x, p, slots):
        {write}
        return x
"""

ENCODER = """\
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    @torch.no_grad()
    def forward(self, x):
        {result}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)
"""


def asked(text: str) -> set[str]:
    found = engine.passes_for(text.encode(), Options())
    return {getattr(each, "__name__", "").rpartition(".")[2] for each in found}


@pytest.mark.parametrize(
    "write",
    [
        "self.cache_k[:, p] = x",
        "self.cache_k[slots] = x",
        "self.cache_k[\n            :, p\n        ] = x",
        "self.cache_k.index_copy_(1, p, x)",
        "self.cache_k[:, p].copy_(x)",
        "k = self.cache_k\n        k.index_copy_(1, p, x)",
        "k, v = self.cache_k, self.cache_v\n        k[:, p] = x",
        "if p: self.cache_k[:, p] = x",
        "if p: pass\n        else: self.cache_k[:, p] = x",
    ],
)
def test_writes_into_a_cache(write: str) -> None:
    text = ATTENTION.format(write=write)
    assert "caches" in asked(text)
    assert any(f.rule == "TRN401" for f in engine.check_text(text))


@pytest.mark.parametrize(
    "write",
    [
        "self.cache_k[p] = x",
        "self.names_of_cache: dict[str, int] = {}",
        "x[..., :4].copy_(self.cache_k[p])",
        "x = x + self.cache_k[:, p]",
    ],
)
def test_no_writes_into_a_cache(write: str) -> None:
    text = ATTENTION.format(write=write)
    assert "caches" not in asked(text)


@pytest.mark.parametrize(
    ("made", "result"),
    [
        ("self.layer = nn.Linear(8, 8)", "return self.layer(x)"),
        ("self.layer = (\n            nn.Linear(8, 8)\n        )", "return self.layer(x)"),
        ("self.layer: nn.Module = nn.Linear(8, 8)", "return self.layer(x)"),
        (
            "self.layer = nn.Linear(8, 8)",
            "if x is None:\n            return x\n        return self.layer(x).topk(2).indices",
        ),
    ],
)
def test_a_scope_on_a_forward_with_weights(made: str, result: str) -> None:
    text = ENCODER.format(made=made, result=result)
    assert "forward_scopes" in asked(text)
    assert any(f.rule == "TRN201" for f in engine.check_text(text))


@pytest.mark.parametrize(
    ("made", "result"),
    [
        ("self.scale = 2", "return x * self.scale"),
        ("self.layer = nn.Linear(8, 8)", "return self.layer(x).topk(2).indices.to(torch.int32)"),
    ],
)
def test_a_scope_on_a_forward_that_trains_nothing(made: str, result: str) -> None:
    text = ENCODER.format(made=made, result=result)
    assert "forward_scopes" not in asked(text)


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("scale_kernel[(n,)](x)", True),
        ("scale_kernel[lambda m: (cdiv(n, m['B'][0]),)](x)", True),
        ("size = config.conv_kernel[i](x[0])", True),
        ("size = config.conv_kernel[i]", False),
        ("size = config.conv_kernel[i], x[0](1)", False),
    ],
)
def test_launches(line: str, seen: bool) -> None:
    assert ("raw_launches" in asked(line + "\n")) is seen


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("layer.weight[0] = x", True),
        ("layer.weight.mul_(2)", True),
        ("layer.weight.copy_(x).mul_(2)", True),
        ("layer.weight.copy_(\n    x\n)", True),
        ("layer.weight.copy_(x)", False),
        ("layer.bias.zero_()", False),
        ("layer.bias.requires_grad_(False)", False),
    ],
)
def test_edits_of_weights(line: str, seen: bool) -> None:
    assert ("weight_edits" in asked(f"import torch\n{line}\n")) is seen


@pytest.mark.parametrize(
    ("name", "made", "seen"),
    [
        ("Encoder", "self.table = nn.Buffer(torch.ones(8))", False),
        ("Encoder", "self.table = nn.Buffer(Table()(8))", True),
        ("RotaryEncoder", "self.scale = Scale()", False),
    ],
)
def test_classes_that_hold_weights(name: str, made: str, seen: bool) -> None:
    text = ENCODER.replace("class Encoder", f"class {name}")
    text = text.format(made=made, result="return self.scale(x)")
    assert ("forward_scopes" in asked(text)) is seen
    nested = text.replace(
        "    def __init__", "    class Part(nn.Module): pass\n\n    def __init__", 1
    )
    assert ("forward_scopes" in asked(nested)) is (seen or "Rotary" in name)


SQUARES = """\
import torch
from torch import nn


class Squares(nn.Module):
    def {method}(self, x):
        y = x.pow(2)
        {write}
        return y


def after():
    return nn.functional
"""


@pytest.mark.parametrize(
    ("method", "write", "rules"),
    [
        ("forward", "x += 1", {"TRN404"}),
        ("forward", "torch.mul(y, 2, out=y)", {"TRN402"}),
        ("squares", "x += 1", set()),
        ("squares", "y.exp().mul_(2)", set()),
        ("squares", "torch.mul(y, 2, out=y)", set()),
    ],
)
def test_writes_in_classes_with_and_without_a_forward(
    method: str, write: str, rules: set[str]
) -> None:
    text = SQUARES.format(method=method, write=write)
    assert bool(asked(text) & {"saved_inputs", "inplace"}) is bool(rules)
    assert {f.rule for f in engine.check_text(text)} == rules
    trained = f"{text}\n\ndef train(x):\n    Squares().{method}(x).sum().backward()\n"
    assert asked(trained) & {"saved_inputs", "inplace"}


def test_a_counter_is_no_tensor() -> None:
    text = SQUARES.format(method="forward", write="x += 1")
    assert "saved_inputs" in asked(text)
    assert "saved_inputs" not in asked(text.replace("x += 1", "i += 1").replace("x.pow", "i.pow"))
    assert "saved_inputs" in asked(text.replace("x += 1", "i += 1.5").replace("x.pow", "i.pow"))


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("'flash_attn'", True),
        ("'vllm._custom_ops'", True),
        ("'.ops', __package__", True),
        ("'transformers'", False),
        ("'flash_attn_of_mine'", False),
        ("name", False),
    ],
)
def test_modules_imported_by_name(name: str, seen: bool) -> None:
    text = f"import importlib\n\nmodule = importlib.import_module({name})\n"
    assert ("fused_calls" in asked(text)) is seen


TABLE = """\
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {made}

    def forward(self, i):
        {result}
"""


@pytest.mark.parametrize(
    ("made", "result", "seen"),
    [
        ("nn.Buffer(torch.ones(8, 8))", "return self.table[i].detach()", True),
        ("nn.Buffer(torch.ones(8, 8))", "return self.table.index_select(0, i).detach()", False),
        ("nn.Buffer(torch.ones(8, 8))", "return self.table.view(-1, i.size(0)).detach()", False),
        ("nn.Parameter(torch.ones(8, 8))", "return self.table.index_select(0, i).detach()", True),
        ("(\n            nn.Parameter(i)\n        )", "return self.table.view(-1).detach()", True),
        ("torch.ones(8)", "y = i.softmax(-1) - i.detach() + i\n        return y", False),
        ("torch.ones(8)", "y = i.softmax(-1) - i.detach() + 1\n        return y", True),
        ("torch.ones(8)", "y = i.softmax(-1) - i.detach()\n        return y", True),
    ],
)
def test_what_is_detached(made: str, result: str, seen: bool) -> None:
    text = TABLE.format(made=made, result=result)
    assert ("detached" in asked(text)) is seen
    assert "detached" in asked(text + "\n\ndef train(x):\n    x.backward()\n") or "- i" in result


KEPT = """\
import torch
from torch import nn


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("{name}", torch.zeros(8))

    def {method}(self, x):
        {write}
        return x
"""


@pytest.mark.parametrize(
    ("name", "method", "write", "seen"),
    [
        ("mean", "forward", "self.mean.mul_(0.9).add_(x)", True),
        ("mean", "forward", "m = self.mean\n        m.mul_(0.9)", True),
        ("mean", "forward", "mean = x.mean()\n        mean.mul_(0.9)", False),
        ("mean", "update", "self.mean.mul_(0.9).add_(x)", False),
        ("key_cache", "forward", "self.key_cache.mul_(0.9).add_(x)", False),
        ("mean", "forward", "self.old = torch.cat([self.old, x])", True),
        ("mean", "update", "self.old = torch.cat([self.old, x])", False),
        ("mean", "reset", "self.old = torch.cat([self.old, x])", False),
    ],
)
def test_what_is_kept_from_call_to_call(name: str, method: str, write: str, seen: bool) -> None:
    text = KEPT.format(name=name, method=method, write=write)
    assert ("kept_graphs" in asked(text)) is seen


@pytest.mark.parametrize(
    ("method", "seen"), [("__init__", True), ("lazily", False), ("forward", False)]
)
def test_buffers_that_are_not_registered(method: str, seen: bool) -> None:
    text = KEPT.format(name="other", method="forward", write="self.mean.add_(x)")
    text += f"\n    def {method}(self):\n        self.mean = torch.zeros(8)\n"
    assert ("kept_graphs" in asked(text)) is seen
    inner = "\n    def __init__(self):\n        def init():\n            return 0\n\n"
    assert "kept_graphs" in asked(text + inner + "        self.mean = torch.zeros(8)\n")


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("pool(3)", True),
        ("POOL.setdefault(3, x)", True),
        ("(\n        pool(3)\n    )", True),
        ("torch.zeros(3)", False),
        ("x", False),
    ],
)
def test_memoized_buffers(value: str, seen: bool) -> None:
    text = (
        "import torch\nfrom functools import lru_cache\n\n\n@lru_cache\ndef pool(n):\n"
        "    return torch.empty(n)\n\n\ndef forward(x):\n    out = {}\n    out.copy_(x)\n"
        "    return torch.nn.functional.relu(out)\n"
    )
    assert ("kept_graphs" in asked(text.format(value))) is seen


RESULT = """\
import math

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.act: nn.Module = nn.Sigmoid()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        {made}
        y *= 2
        return y
"""


@pytest.mark.parametrize(
    ("made", "seen"),
    [
        ("y = x.softmax(-1)", True),
        ("y = torch.linalg.norm(x)", True),
        ("y = self.act(x)", True),
        ("y = self.norm(x)", False),
        ("y = x / math.sqrt(8)", False),
        ("y = nn.functional.layer_norm(x, (8,))", False),
        ("y = x + 1\n        my = x.softmax(-1)", False),
    ],
)
def test_results_that_are_saved(made: str, seen: bool) -> None:
    text = RESULT.format(made=made)
    assert ("inplace" in asked(text)) is seen
    assert [f.rule for f in engine.check_text(text)] == ["TRN403"] * seen


HELPER = """\
from torch import nn


def scale(probs{more}):
    {write}


class {name}(nn.Module):
    def {method}(self, x):
        probs = x.softmax(-1)
        scale(probs)
        return probs
"""


@pytest.mark.parametrize(
    ("method", "more", "write", "seen"),
    [
        ("forward", "", "probs *= 2", True),
        ("post_process", "", "probs *= 2", False),
        ("forward", "=None, all_rows=0", "rows = []; rows += [1]", False),
    ],
)
def test_results_that_are_handed_to_who_overwrites_them(
    method: str, more: str, write: str, seen: bool
) -> None:
    text = HELPER.format(name="Net", method=method, more=more, write=write)
    text += "\n\ndef after():\n    return nn.functional\n"
    assert ("inplace" in asked(text)) is seen
    assert [f.rule for f in engine.check_text(text)] == ["TRN403"] * seen


TRIP = """\
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, largest=3.0):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.scale = {held}

    def forward(self, x):
        x = self.layer(x)
        return {value}
"""


@pytest.mark.parametrize(
    ("held", "value", "seen"),
    [
        ("nn.Parameter(torch.ones(()))", "x * float(self.scale)", True),
        ("largest", "x * float(self.scale)", False),
        ("config.largest  # of all", "x * float(self.scale)", False),
        ("nn.Parameter(torch.ones(()))", "x * math.exp(self.scale)", True),
        ("largest", "x * math.exp(self.scale)", False),
        ("largest", "x.new_tensor(self.layer(x))", True),
        ("largest", "torch.as_tensor(self.layer(x))", True),
        ("largest", "unfold_tensor(self.layer(x))", False),
        ("largest", "torch.LongTensor(self.layer(x))", False),
    ],
)
def test_round_trips(held: str, value: str, seen: bool) -> None:
    assert ("round_trips" in asked(TRIP.format(held=held, value=value))) is seen


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("torch.cat([self.layer.weight, x])", True),
        ("torch.cat(\n            [self.layer.weight, x]\n        )", True),
        ("torch.cat(x)\n        return self.layer(x)", False),
    ],
)
def test_what_is_computed_of_weights(value: str, seen: bool) -> None:
    text = TRIP.format(held=value, value="x")
    assert ("derived_weights" in asked(text)) is seen
