"""Activation checkpointing: inputs that require no gradient, answers that are remembered."""

from __future__ import annotations

import pytest
from verbs import becomes, findings, rules, stays

HEAD = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


"""


def _model(made: str, body: str, more: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return (
        HEAD
        + f"""\
class Model(nn.Module):
    def __init__(self, table=None):
        super().__init__()
        self.embed = {made}
        self.drop = nn.Dropout(0.1)
        self.proj = nn.Linear(8, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
{more}
    def forward(self, x, attention_mask=None):
{lines}        return h
"""
    )


LOOP = """\
h = self.embed(x)
for layer in self.layers:
    h = checkpoint(layer, h, use_reentrant=True)
"""
FROZEN = "nn.Embedding(10, 8).requires_grad_(False)"


@pytest.mark.parametrize(
    ("made", "more"),
    [
        (FROZEN, ""),
        ("nn.Embedding.from_pretrained(table)", ""),
        ("nn.Embedding.from_pretrained(table, freeze=True)", ""),
        ("nn.Embedding(10, 8)", "        self.embed.weight.requires_grad = False\n"),
        ("nn.Embedding(10, 8)", "        self.embed.requires_grad_(False)\n"),
        (
            "nn.Embedding(10, 8)",
            "        for p in self.embed.parameters():\n            p.requires_grad = False\n",
        ),
    ],
)
def test_a_frozen_embedding_in_front(made: str, more: str) -> None:
    before = _model(made, LOOP, more)
    becomes(before, before.replace("use_reentrant=True", "use_reentrant=False"))


@pytest.mark.parametrize(
    "body",
    [
        LOOP.replace("self.embed(x)", "self.drop(self.embed(x)) * 8**0.5"),
        LOOP.replace("use_reentrant=True", "attention_mask, use_reentrant=True"),
        LOOP.replace("checkpoint(", "torch.utils.checkpoint.checkpoint("),
        "h = self.embed(x)\nh = checkpoint(self.proj, h, use_reentrant=True)",
        "h = self.embed(x).to(torch.float32)\nh = checkpoint(self.proj, h, use_reentrant=True)",
        "with torch.no_grad():\n    h = self.embed(x)\nh = checkpoint(self.proj, h)",
        "h = checkpoint(self.proj, x.detach())",
        "h = checkpoint(lambda: self.proj(x), use_reentrant=True)",
        """\
h = self.embed(x)
for layer in self.layers:
    if self.training:
        h = checkpoint(layer, h, use_reentrant=True)
    else:
        h = layer(h)
""",
        """\
h = self.embed(x)
for layer in self.layers:
    if not self.training:
        h = layer(h)
    else:
        h = checkpoint(layer, h, use_reentrant=True)
""",
        "ckpt = checkpoint\nh = ckpt(self.proj, self.embed(x))",
    ],
)
def test_other_ways_from_the_embedding_to_the_checkpoint(body: str) -> None:
    assert rules(_model(FROZEN, body)) == ["TRN505"]


@pytest.mark.parametrize(
    "body",
    [
        LOOP.replace("True", "False"),
        LOOP.replace("True", "self.reentrant"),
        LOOP.replace("use_reentrant=True", "**self.kwargs"),
        LOOP.replace("self.embed(x)", "self.proj(self.embed(x))"),
        LOOP.replace("self.embed(x)", "self.embed(x) + self.proj.bias"),
        LOOP.replace("self.embed(x)", "self.encode(x)"),
        LOOP.replace("self.embed(x)", "self.embed(x).requires_grad_()"),
        LOOP.replace("h, use", "h, self.proj.weight, use"),
        LOOP.replace("h, use", "h, torch.ones(1, requires_grad=True), use"),
        "with torch.no_grad():\n    h = checkpoint(self.proj, self.embed(x), use_reentrant=True)",
        "h = checkpoint(self.proj, x, use_reentrant=True)",
        "h = self.embed(x)\nif h.requires_grad:\n"
        "    h = checkpoint(self.proj, h, use_reentrant=True)",
        "h = x\nif self.training:\n    h = checkpoint(self.proj, h, use_reentrant=True)",
    ],
)
def test_inputs_that_may_require_a_gradient(body: str) -> None:
    stays(_model(FROZEN, body))


@pytest.mark.parametrize(
    "more",
    [
        "        self.layers.requires_grad_(False)\n",
        "        self.requires_grad_(False)\n",
        "\n    def train_all(self):\n        self.embed.requires_grad_(True)\n",
        "        self.embed.register_forward_hook(make_inputs_require_grad)\n",
    ],
)
def test_nothing_to_train_inside_or_made_to_require_after_all(more: str) -> None:
    stays(_model(FROZEN, LOOP, more))


@pytest.mark.parametrize(
    "made",
    [
        "nn.Embedding(10, 8)",
        "nn.Embedding.from_pretrained(table, freeze=False)",
        "nn.Embedding.from_pretrained(table, False)",
    ],
)
def test_an_embedding_that_is_trained(made: str) -> None:
    stays(_model(made, LOOP))


def test_the_embedding_of_a_teacher_is_another_one() -> None:
    stays(
        _model("nn.Embedding(10, 8)", LOOP)
        + "\n\ndef distill(teacher):\n    teacher.embed.requires_grad_(False)\n"
    )


def test_raw_features_do_not_require_a_gradient() -> None:
    before = (
        HEAD
        + """\
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(80, 8, 3)

    def forward(self, input_features):
        return checkpoint(
            self.conv,
            (input_features),  # (batch, mels, frames)
        )
"""
    )
    becomes(
        before,
        before.replace("(input_features),", "(input_features), use_reentrant=False,"),
    )


def test_the_checkpoint_of_a_partial_is_reported() -> None:
    (finding,) = findings(
        _model(FROZEN, "h = self.embed(x)\nh = ckpt(self.proj, h)").replace(
            "\n\nclass",
            "\nfrom functools import partial\n\nckpt = partial(checkpoint, use_reentrant=True)\n\n\n"
            "class",
        )
    )
    assert finding.rule == "TRN505" and not finding.fixes


WRAPPERS = {
    "attribute": """\
class Wrapper:
    def __init__(self):
        self.flag = None

    def __call__(self, layer, h):
        if self.flag is None:
            self.flag = any(p.requires_grad for p in layer.parameters())
        if self.flag:
            h = h.detach().requires_grad_(True)
        return checkpoint(layer, h, use_reentrant=False)
""",
    "hasattr": """\
class Wrapper:
    def run(self, block, h):
        if not hasattr(self, "flag"):
            self.flag = block.weight.requires_grad
        return checkpoint(block, h, use_reentrant=False) if self.flag else block(h)
""",
    "helper": """\
class Wrapper:
    flag = None

    def trained(self, layer):
        if self.flag is not None:
            return self.flag
        self.flag = any(p.requires_grad for p in layer.parameters())
        return self.flag

    def __call__(self, layer, h):
        return checkpoint(layer, h, use_reentrant=False) if self.trained(layer) else layer(h)
""",
    "nonlocal": """\
def make():
    flag = None

    def run(layer, h):
        nonlocal flag
        if flag is None:
            flag = any(p.requires_grad for p in layer.parameters())
        return checkpoint(layer, h, use_reentrant=False) if flag else layer(h)

    return run
""",
    "global": """\
FLAG = None


def run(layer, h):
    global FLAG
    FLAG = any(p.requires_grad for p in layer.parameters()) if FLAG is None else FLAG
    return checkpoint(layer, h, use_reentrant=False) if FLAG else layer(h)
""",
    "dict": """\
STATE = {}


def run(layer, h):
    if "trained" not in STATE:
        STATE["trained"] = any(p.requires_grad for p in layer.parameters())
    return checkpoint(layer, h, use_reentrant=False) if STATE["trained"] else layer(h)
""",
}


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_one_answer_for_all_layers(wrapper: str) -> None:
    (finding,) = findings(HEAD + wrapper)
    assert finding.rule == "TRN506" and not finding.fixes


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_a_memo_without_checkpoints_is_not_about_gradients(wrapper: str) -> None:
    stays(
        (HEAD + wrapper)
        .replace("checkpoint(layer,", "print(")
        .replace("checkpoint(block,", "print(")
    )


@pytest.mark.parametrize(
    "wrapper",
    [
        """\
class PerLayer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.flag = None

    def forward(self, h):
        if self.flag is None:
            self.flag = any(p.requires_grad for p in self.layer.parameters())
        return checkpoint(self.layer, h, use_reentrant=False) if self.flag else self.layer(h)
""",
        """\
class Keyed:
    def __init__(self):
        self.flags = {}

    def __call__(self, layer, h):
        if layer not in self.flags:
            self.flags[layer] = any(p.requires_grad for p in layer.parameters())
        return checkpoint(layer, h, use_reentrant=False) if self.flags[layer] else layer(h)
""",
        """\
def run(layer, h, flag=None):
    if flag is None:
        flag = any(p.requires_grad for p in layer.parameters())
    return checkpoint(layer, h, use_reentrant=False) if flag else layer(h)
""",
        """\
class Asked:
    def __call__(self, layer, h):
        self.flag = any(p.requires_grad for p in layer.parameters())
        return checkpoint(layer, h, use_reentrant=False) if self.flag else layer(h)
""",
    ],
)
def test_an_answer_for_each_layer(wrapper: str) -> None:
    stays(HEAD + wrapper)
