"""One fault in a model that was right: found at its line, and fixed to the right gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from right_models import MODELS
from test_right_models import HEAD
from verbs import findings, fix, stays


@dataclass(frozen=True)
class Mutant:
    """``old`` of a model becomes ``new``; ``right`` is how that is done without the fault."""

    model: str
    old: str
    new: str
    rule: str
    at: str
    """The line of the finding."""
    right: str | None = None
    fault: str = "raises"
    """Or ``idle``: parameters are missing; ``leaks``: a buffer keeps a graph."""
    fixable: bool = True


MUTANTS = {
    "probabilities masked in place": Mutant(
        "masks on logits of one's own",
        "attn = attn.masked_fill(attn < 1e-4, 0.0)",
        "attn.masked_fill_(attn < 1e-4, 0.0)",
        "TRN403",
        "attn.masked_fill_(attn < 1e-4, 0.0)",
    ),
    "a view of probabilities": Mutant(
        "masks on logits of one's own",
        "attn = attn.masked_fill(attn < 1e-4, 0.0)",
        "first = attn[:, :1]\n        first.mul_(0.5)",
        "TRN403",
        "first.mul_(0.5)",
        "attn = torch.cat((attn[:, :1] * 0.5, attn[:, 1:]), dim=1)",
    ),
    "probabilities kept, then scaled": Mutant(
        "masks on logits of one's own",
        "attn = attn.masked_fill(attn < 1e-4, 0.0)",
        "self.attn = attn = F.softmax(scores, dim=-1)\n        self.attn *= 2.0",
        "TRN403",
        "self.attn *= 2.0",
        "attn = attn * 2.0",
    ),
    "probabilities scaled by an inner function": Mutant(
        "masks on logits of one's own",
        "attn = attn.masked_fill(attn < 1e-4, 0.0)",
        "\n        def scale():\n            attn.mul_(2.0)\n\n        scale()",
        "TRN403",
        "attn.mul_(2.0)",
        "attn = attn * 2.0",
    ),
    "gates scaled at once": Mutant(
        "scattered outputs",
        "gates = sparse.softmax(dim=-1)",
        "gates = sparse.softmax(dim=-1).mul_(2.0)",
        "TRN403",
        "gates = sparse.softmax(dim=-1).mul_(2.0)",
        "gates = sparse.softmax(dim=-1) * 2.0",
    ),
    "residual after the activation": Mutant(
        "activations and dropout in place",
        "out += identity\n        out = self.relu(out)",
        "out = self.relu(out)\n        out += identity",
        "TRN403",
        "out += identity",
        "out = self.relu(out) + identity",
    ),
    "residual into what the norm saved": Mutant(
        "residuals added in place",
        "x = self.mlp(self.norm2(x))\n        x += residual",
        "x += self.mlp(self.norm2(x))",
        "TRN404",
        "x += self.mlp(self.norm2(x))",
    ),
    "a state written in place": Mutant(
        "recurrent states",
        "state = state * torch.sigmoid(self.decay) + self.inp(x[:, t])",
        "state.mul_(torch.sigmoid(self.decay)).add_(self.inp(x[:, t]))",
        "TRN404",
        "state.mul_(torch.sigmoid(self.decay)).add_(self.inp(x[:, t]))",
    ),
    "queries scaled in place": Mutant(
        "relative position bias",
        "attn = (q * 0.5) @",
        "q *= 0.5\n        attn = q @",
        "TRN405",
        "q *= 0.5",
    ),
    "a top-k into buffers": Mutant(
        "experts gathered and added",
        "weights, selected = torch.topk(probs, self.top_k, dim=-1)",
        "weights = torch.empty(12, 2)\n        selected = torch.empty(12, 2, dtype=torch.long)\n"
        "        torch.topk(probs, self.top_k, dim=-1, out=(weights, selected))",
        "TRN402",
        "torch.topk(probs, self.top_k, dim=-1, out=(weights, selected))",
    ),
    "a loss that overwrites its probabilities": Mutant(
        "metrics in the step",
        "pt = logp.exp().detach()",
        "pt = logp.exp()",
        "TRN403",
        "pt.neg_().add_(1.0).pow_(gamma)",
    ),
    "a cache in training": Mutant(
        "static cache for evaluation",
        "if not self.training:\n            end = start_pos + x.shape[1]\n"
        "            self.cache_k[: x.shape[0], start_pos:end] = k\n"
        "            self.cache_v[: x.shape[0], start_pos:end] = v\n"
        "            k, v = self.cache_k[: x.shape[0], :end], self.cache_v[: x.shape[0], :end]",
        "end = start_pos + x.shape[1]\n"
        "        self.cache_k[: x.shape[0], start_pos:end] = k\n"
        "        keys = self.cache_k[: x.shape[0], :end]\n"
        "        k = keys",
        "TRN401",
        "self.cache_k[: x.shape[0], start_pos:end] = k",
    ),
    "statistics with their graph": Mutant(
        "statistics of detached values",
        "self.mean.mul_(0.9).add_(batch_mean, alpha=0.1)\n        return h - self.mean",
        "self.mean.mul_(0.9).add_(h.mean((0, 1)), alpha=0.1)\n        return h",
        "TRN408",
        "self.mean.mul_(0.9).add_(h.mean((0, 1)), alpha=0.1)",
        "return h",
        fault="leaks",
    ),
    "a scratch buffer that is kept": Mutant(
        "masks and tables that are kept",
        "h = self.proj(x)",
        'h = _MASKS.setdefault("h", torch.zeros(2, 6, 8))\n        h[:] = self.proj(x)',
        "TRN408",
        "h[:] = self.proj(x)",
    ),
    "a weight derived once": Mutant(
        "weight norm",
        "        self.bias = nn.Parameter(torch.zeros(o))\n\n    @property\n    def weight(self):\n"
        "        return self.weight_g * self.weight_v / self.weight_v.norm(dim=1, keepdim=True)\n",
        "        self.bias = nn.Parameter(torch.zeros(o))\n"
        "        self.weight = self.weight_g * self.weight_v / self.weight_v.norm(dim=1, keepdim=True)\n",
        "TRN502",
        "self.weight = self.weight_g * self.weight_v / self.weight_v.norm(dim=1, keepdim=True)",
    ),
    "an edit without no_grad": Mutant(
        "reset_parameters in place",
        "    @torch.no_grad()\n",
        "",
        "TRN407",
        "self.weight.div_(self.weight.norm(dim=1, keepdim=True).clamp_(min=1.0))",
        fixable=False,
    ),
    "layers in a tuple": Mutant(
        "layers by hand",
        "nn.ModuleList([Linear(8, 8) for _ in range(2)])",
        "tuple(Linear(8, 8) for _ in range(2))",
        "TRN501",
        "self.layers = tuple(Linear(8, 8) for _ in range(2))",
        fault="idle",
    ),
    "layers in a dict": Mutant(
        "layers by hand",
        "nn.ModuleDict(dict(a=Linear(8, 2), b=Linear(8, 2)))",
        "dict(a=Linear(8, 2), b=Linear(8, 2))",
        "TRN501",
        "self.heads = dict(a=Linear(8, 2), b=Linear(8, 2))",
        fault="idle",
    ),
    "parameters in a list": Mutant(
        "layers by hand",
        "nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])",
        "list(nn.Parameter(torch.ones(8)) for _ in range(2))",
        "TRN501",
        "self.scales = list(nn.Parameter(torch.ones(8)) for _ in range(2))",
        fault="idle",
    ),
    "a gain that is a buffer": Mutant(
        "layers by hand",
        "self.gain = nn.Parameter(torch.ones(d))",
        'self.register_buffer("gain", torch.ones(d))',
        "TRN503",
        'self.register_buffer("gain", torch.ones(d))',
        fault="idle",
    ),
    "a weight that is a plain tensor": Mutant(
        "layers by hand",
        "self.weight = nn.Parameter(torch.randn(o, i))",
        "self.weight = torch.empty(o, i).normal_()",
        "TRN503",
        "self.weight = torch.empty(o, i).normal_()",
        fault="idle",
    ),
}


def train(text: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Two steps; the module, and the gradients of the second."""
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    torch.manual_seed(0)
    net = scope["Net"]()
    for _ in range(2):
        net.zero_grad()
        net(torch.randn(2, 6, 8)).square().sum().backward()
        if "use" in scope:
            scope["use"](net, torch.randn(2, 6, 8))
    return net, {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_and_fixed(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.old in MODELS[mutant.model]
    text = HEAD + MODELS[mutant.model].replace(mutant.old, mutant.new, 1)
    right = HEAD + MODELS[mutant.model].replace(mutant.old, mutant.right or mutant.old, 1)
    if mutant.model == "metrics in the step":
        right = text.replace("pt.neg_().add_(1.0).pow_(gamma)", "pt = (1.0 - pt).pow(gamma)")
    _, expected = train(right)
    if mutant.fault == "raises":
        with pytest.raises(RuntimeError):
            train(text)
    elif mutant.fault == "idle":
        assert len(train(text)[1]) < len(expected)
    else:
        assert any(b.grad_fn is not None for b in train(text)[0].buffers())
    (finding,) = findings(text)
    line = text.splitlines()[finding.line - 1].strip()
    assert (finding.rule, line) == (mutant.rule, mutant.at)
    if not mutant.fixable:
        assert not finding.fixes
        return
    fixed = fix(text, unsafe=True)
    stays(fixed)
    net, gradients = train(fixed)
    assert gradients.keys() == expected.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[key], msg=lambda m, key=key: f"{key}: {m}")
    assert all(b.grad_fn is None for b in net.buffers())
