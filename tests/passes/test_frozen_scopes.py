"""A scope that stands between what is trained and the loss; and the many that are meant so."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import becomes, findings, rules, stays

from trainify.engine import Options, check_paths, fix_paths

HEAD = """\
import contextlib
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.embed = nn.Linear(d, d)
        self.head = nn.Linear(d, d)
        self.llm = nn.Linear(d, d).requires_grad_(False)

"""


def model(body: str) -> str:
    return HEAD + textwrap.indent(textwrap.dedent(body), "    ")


@pytest.mark.parametrize(
    "body",
    [
        """\
        def forward(self, x):
            with torch.no_grad():
                return self.llm(self.embed(x))
        """.replace("self.llm(self.embed(x))", "self.llm(h)").replace(
            "with", "h = self.embed(x)\n            with", 1
        ),
        """\
        def forward(self, x):
            h = self.embed(x)
            with torch.inference_mode():
                out = self.llm(h)
            return {"logits": out}
        """,
        """\
        def forward(self, x, lock):
            h = self.embed(x).relu()
            with lock, torch.set_grad_enabled(False):
                h = self.llm(h)
            return h
        """,
        """\
        def forward(self, x):
            h = self.embed(x)
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                out = self.llm(h)
            return out
        """,
        """\
        def forward(self, x):
            h = self.embed(x)
            off = torch.no_grad()
            with off:
                out = self.llm(h)
            return out
        """,
        """\
        def forward(self, x):
            return self.head(x) + self.decode(self.embed(x))

        @torch.no_grad()
        def decode(self, h):
            return self.llm(h)
        """,
        """\
        def forward(self, x):
            return self.decode(self.embed(x))

        def decode(self, h):
            with torch.no_grad():
                return self.llm(h)
        """,
        """\
        def forward(self, x):
            h = x
            for layer in [self.embed]:
                h = self.embed(h)
            with torch.no_grad():
                return self.llm(h)
        """,
    ],
)
def test_the_only_way_leads_through_a_scope(body: str) -> None:
    assert rules(model(body), select=("TRN206",)) == ["TRN206"]


@pytest.mark.parametrize(
    "helper",
    [
        "def off():\n    return torch.no_grad()\n\n\n",
        "@contextlib.contextmanager\ndef off():\n    with torch.no_grad():\n        yield\n\n\n",
    ],
)
def test_own_helpers_that_wrap_a_mode(helper: str) -> None:
    text = model("""\
        def forward(self, x):
            h = self.embed(x)
            with off():
                return self.llm(h)
        """)
    text = text.replace("class Model", helper + "class Model")
    assert rules(text, select=("TRN206",)) == ["TRN206"]


@pytest.mark.parametrize(
    "body",
    [
        # the frozen part comes first
        """\
        def forward(self, x):
            with torch.no_grad():
                h = self.llm(x)
            return self.head(h)
        """,
        # a target made from what is trained, which learns another way
        """\
        def forward(self, x):
            z = self.embed(x)
            with torch.no_grad():
                target = self.head(z)
            return F.mse_loss(self.head(z), target)
        """,
        # a network without gradients for all rounds but the last
        """\
        def forward(self, x, z):
            h = self.embed(x)
            with torch.no_grad():
                for _ in range(3):
                    z = self.head(z + h)
            return self.head(z + h)
        """,
        # indices, masks and counts
        """\
        def forward(self, x):
            scores = self.embed(x)
            with torch.no_grad():
                chosen = scores.topk(2).indices
                mask = F.one_hot(chosen, 8).sum(1)
            return self.head(x) * mask
        """,
        """\
        def forward(self, x):
            return self.assign(self.embed(x))

        @torch.no_grad()
        def assign(self, scores):
            return scores.argmax(-1)
        """,
        # the code says stop
        """\
        def forward(self, x):
            z = self.embed(x).detach()
            with torch.no_grad():
                return self.llm(z)
        """,
        """\
        def forward(self, x):
            z = self.embed(x)
            with torch.no_grad():
                return self.llm(z.detach())
        """,
        # evaluation only
        """\
        def forward(self, x):
            z = self.embed(x)
            if not self.training:
                with torch.no_grad():
                    return self.llm(z)
            return self.head(z)
        """,
        # weights alone: a kernel over latent parameters, in evaluation
        """\
        def forward(self, x):
            kernels = [self.embed(x)]
            for weight in self.latent:
                if not self.training:
                    with torch.no_grad():
                        kernels.append(self.head(weight))
                else:
                    kernels.append(self.head(weight))
            return kernels
        """,
        # for those who ask
        """\
        def forward(self, x, frozen):
            z = self.embed(x)
            with torch.no_grad() if frozen else contextlib.nullcontext():
                return self.llm(z)
        """,
        """\
        def forward(self, x):
            z = self.embed(x)
            with torch.set_grad_enabled(self.training):
                return self.llm(z)
        """,
        # back on
        """\
        def forward(self, x):
            z = self.embed(x)
            with torch.no_grad():
                with torch.enable_grad():
                    return self.llm(z)
        """,
        # what is logged
        """\
        def forward(self, x, y):
            logits = self.head(self.embed(x))
            with torch.no_grad():
                self.accuracy = (logits.argmax(-1) == y).float().mean()
            return F.cross_entropy(logits, y)
        """,
        """\
        def forward(self, x, y):
            logits = self.head(self.embed(x))
            accuracy = self.score(logits, y)
            return F.cross_entropy(logits, y), accuracy

        @torch.no_grad()
        def score(self, logits, y):
            return (logits.softmax(-1) - y).abs().mean()
        """,
        # statistics that a loss looks at besides
        """\
        def forward(self, x):
            z = self.embed(x)
            with torch.no_grad():
                mean = z.mean(0)
            return self.head(z - mean)
        """,
        # a queue of keys
        """\
        def forward(self, x):
            q = self.embed(x)
            with torch.no_grad():
                k = self.llm(x)
                self.enqueue(k)
            return q @ k.t()

        @torch.no_grad()
        def enqueue(self, k):
            self.queue = torch.cat((self.queue, k))
        """,
        # a balanced assignment of scores, used as targets
        """\
        def forward(self, x):
            scores = self.embed(x)
            q = self.sinkhorn(scores)
            return -(q * scores.log_softmax(-1)).sum()

        @torch.no_grad()
        def sinkhorn(self, scores):
            return (scores / 0.1).exp() / scores.sum()
        """,
        # rays are sampled where the coarse network says; that has no gradient
        """\
        def forward(self, x):
            coarse = self.embed(x)
            with torch.no_grad():
                t = self.sample(coarse)
            return self.head(t)

        def sample(self, weights):
            return torch.searchsorted(weights, 0.5).float()
        """,
        # straight through
        """\
        def forward(self, x):
            z = self.embed(x)
            with torch.no_grad():
                q = self.llm(z)
            return z + (q - z).detach()
        """,
    ],
)
def test_meant_so(body: str) -> None:
    stays(model(body), select=("TRN206",))


def test_a_module_frozen_only_by_the_scope_is_named() -> None:
    (finding,) = findings(
        model("""\
        def forward(self, x):
            h = self.embed(x)
            with torch.no_grad():
                return self.head(h)
        """)
    )
    fix = finding.fixes["flag"]
    assert finding.rule == "TRN206" and fix.safety == "unsafe" and "self.head" in fix.look_at


def test_what_does_not_lead_to_the_result_stays_in_the_scope() -> None:
    becomes(
        model("""\
        def forward(self, x):
            h = self.embed(x)
            with torch.no_grad():
                # for the log
                self.last = x.norm()
                # frozen
                out = self.llm(h)
            return out
        """),
        model("""\
        def forward(self, x):
            h = self.embed(x)
            with torch.no_grad():
                # for the log
                self.last = x.norm()
            # frozen
            out = self.llm(h)
            return out
        """),
    )


def test_one_of_several_items_goes() -> None:
    becomes(
        model("""\
        def forward(self, x, lock):
            h = self.embed(x)
            with torch.no_grad(), lock:
                return self.llm(h)
        """),
        model("""\
        def forward(self, x, lock):
            h = self.embed(x)
            with lock:
                return self.llm(h)
        """),
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            """\
            if self.training:
                # the kernel has a backward
                y = f(x, self.scale)
            else:
                with torch.no_grad():
                    y = f(x, self.scale)
            return y
            """,
            """\
            # the kernel has a backward
            y = f(x, self.scale)
            return y
            """,
        ),
        (
            """\
            if not self.training:
                with torch.inference_mode():
                    y = f(x)
                    z = y + 1
            else:
                y = f(x)
                z = y + 1
            return z
            """,
            """\
            y = f(x)
            z = y + 1
            return z
            """,
        ),
        (
            """\
            if self.training:
                return f(x)
            with torch.no_grad():
                return f(x)
            """,
            """\
            return f(x)
            """,
        ),
    ],
)
def test_the_same_work_in_both_arms_is_done_once(before: str, after: str) -> None:
    def method(body: str) -> str:
        return model("def forward(self, x):\n" + textwrap.indent(textwrap.dedent(body), "    "))

    becomes(method(before), method(after), select=("TRN206",), unsafe=True)


@pytest.mark.parametrize(
    "body",
    [
        """\
        if self.training:
            y = f(x)
        else:
            with torch.no_grad():
                y = f(x, cached=True)
        """,
        """\
        if torch.is_grad_enabled():
            y = f(x)
        else:
            y = f(x)
        """,
        """\
        if self.training:
            y = f(x)
        """,
    ],
)
def test_arms_that_differ_stay(body: str) -> None:
    text = model(
        "def forward(self, x):\n"
        + textwrap.indent(textwrap.dedent(body), "    ")
        + "    return y\n"
    )
    stays(text, select=("TRN206",))


# -- methods under a mode, given to the forwards of other files -----------------------------------

CACHE = """\
import torch


class KVCache:
    @torch.no_grad()
    def update(self, layer, k, v):
        if self.keys[layer] is not None:
            k = torch.cat((self.keys[layer], k))
        self.keys[layer] = k
        return k, v
"""

ATTENTION = """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, cache):
        k, v = cache.update(0, self.k(x), self.v(x))
        return attend(self.q(x), k, v)
"""


def in_project(folder: Path, cache: str, attention: str) -> list[str]:
    (folder / "cache.py").write_text(cache)
    (folder / "attention.py").write_text(attention)
    reports = list(check_paths([str(folder)], Options(select=("TRN206",))))
    assert not any(report.problem for report in reports)
    return [finding.message for report in reports for finding in report.findings]


def test_a_cache_in_another_file_that_hands_back_what_it_is_given(tmp_path: Path) -> None:
    (message,) = in_project(tmp_path, CACHE, ATTENTION)
    assert message.startswith("`self.k` and `self.v` of `Attention` reach its result only through")
    (fixed,) = [r for r in fix_paths([str(tmp_path)], Options(unsafe=True)) if r.change]
    assert fixed.text == CACHE.replace("    @torch.no_grad()\n", "")


@pytest.mark.parametrize(
    ("cache", "attention"),
    [
        (CACHE, ATTENTION.replace("cache.update", "counts.update")),  # of something else
        (CACHE, ATTENTION.replace("k, v = cache", "cache")),  # nothing is taken from it
        (CACHE, ATTENTION.replace("self.k(x), self.v(x)", "x, x")),  # nothing learns by it
        (CACHE, ATTENTION.replace("    def forward", "    @torch.no_grad()\n    def forward")),
        (CACHE.replace("return k, v", "return len(self.keys)"), ATTENTION),
        (CACHE.replace("    @torch.no_grad()\n", ""), ATTENTION),
    ],
)
def test_methods_under_a_mode_that_cut_nothing(tmp_path: Path, cache: str, attention: str) -> None:
    assert in_project(tmp_path, cache, attention) == []


# -- submodules in methods of their own -----------------------------------------------------------

ADAPTED = """\
def adapt(self, h):
    return h + self.embed(h)

def forward(self, x):
    h = self.adapt(x)
    with torch.no_grad():
        return self.llm(h)
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ADAPTED, ["TRN206"]),
        (ADAPTED.replace("h + self.embed(h)", "h + self.inner(h)\n\ndef inner(self, h):\n"
                         "    return self.embed(h).relu()"), ["TRN206"]),
        # something else that learns by it
        (ADAPTED + "\ndef loss(self, x):\n    return self.adapt(x).mean()\n", []),
        (ADAPTED + "\ndef loss(self, x):\n    return self.embed(x).mean()\n", []),
        (ADAPTED.replace("return self.llm(h)", "t = self.llm(h)\n    return F.mse_loss(h, t)"), []),
        # stopped on purpose
        (ADAPTED.replace("self.embed(h)", "self.embed(h).detach()"), []),
        (ADAPTED.replace("def adapt", "@torch.no_grad()\ndef adapt"), []),
    ],
)  # fmt: skip
def test_a_method_of_its_own_before_the_scope(body: str, expected: list[str]) -> None:
    assert rules(model(body), select=("TRN206",)) == expected


HANDED_ON = """\
import torch
from torch import nn


class Fold(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        logits = self.head(self.trunk(x))
        with torch.no_grad():
            scores = logits.softmax(-1)
            output = HELD
        return output
"""


@pytest.mark.parametrize(
    "held", ['{"logits": logits, "scores": scores}', "(logits, scores)", "[*(logits,), scores]"]
)
def test_what_is_put_side_by_side_under_a_scope_keeps_its_gradient(held: str) -> None:
    text = HANDED_ON.replace("HELD", held)
    stays(text)
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    output = scope["Fold"]()(torch.ones(2, 4))
    assert (output["logits"] if isinstance(output, dict) else output[0]).requires_grad


@pytest.mark.parametrize("held", ['{"logits": self.head(logits)}', "(self.head(logits), scores)"])
def test_what_is_computed_between_has_none(held: str) -> None:
    assert set(rules(HANDED_ON.replace("HELD", held))) == {"TRN206"}
