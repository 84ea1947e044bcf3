"""Where a scope has cut off a model and its reference, only the model gets its graph back."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from torch import nn
from verbs import findings, fix


class Net(nn.Module):
    """A model in parts, to be called as a whole or by them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.proj, self.head, self.aux = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).tanh())  # type: ignore[no-any-return]

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return (self(x) > 0).float()

    def generate_all(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)  # type: ignore[no-any-return]


def step(body: str, signature: str = "policy, ref, opt, x", before: str = "") -> str:
    body = textwrap.indent(textwrap.dedent(body), "    ")
    return (
        "import torch\nimport torch.nn.functional as F\n\n\n"
        f"{before}def step({signature}):\n{body}"
        "    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
    )


def gradients(text: str, names: tuple[str, ...]) -> dict[str, list[torch.Tensor | None]]:
    """What the parameters of each model have got after one run of ``step``."""
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec(text, space)
    models = {name: Net() for name in names}
    optimizer = torch.optim.SGD(models[names[0]].parameters(), lr=0.1)
    x = torch.randn(3, 4)
    space["step"](*models.values(), optimizer, x)
    return {n: [p.grad for p in m.parameters()] for n, m in models.items()}


def restored(text: str, right: str, *names: str, unsafe: bool = False) -> None:
    """The step raises as it is, and its fix gives each model what ``right`` gives it."""
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradients(text, names)
    fixed = fix(text, unsafe=unsafe)
    assert not findings(fixed, select=("TRN202",))
    found = gradients(fixed, names)
    expected = gradients(right, names)
    assert any(g is not None for g in expected[names[0]])
    for name in names:
        for mine, wanted in zip(found[name], expected[name], strict=True):
            assert (mine is None) == (wanted is None), (name, fixed)
            torch.testing.assert_close(mine, wanted)


KL = "loss = (p.exp() * (p - q)).sum(-1).mean()\n"


@pytest.mark.parametrize(
    ("model", "reference"),
    [
        ("policy", "ref"),
        ("model", "ref_model"),
        ("actor", "teacher"),
        ("model", "old_policy"),
        ("student", "frozen"),
        ("net", "reference"),
        ("online", "target_net"),
        ("net", "ema"),
        ("schema", "prev_model"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_model_and_its_reference(model: str, reference: str, first: bool) -> None:
    p, q = f"p = {model}(x).log_softmax(-1)\n", f"q = {reference}(x).log_softmax(-1)\n"
    under = textwrap.indent(p + q if first else q + p, "    ")
    signature = f"{model}, {reference}, opt, x"
    text = step(f"with torch.no_grad():\n{under}{KL}", signature)
    right = step(f"{p}with torch.no_grad():\n    {q}{KL}", signature)
    restored(text, right, model, reference)


DPO = "loss = -F.logsigmoid(0.1 * ((pc - pr) - (rc - rr))).mean()\n"


def test_every_statement_of_the_model() -> None:
    text = step(f"""\
with torch.no_grad():
    pc = policy(x).mean()
    rc = ref(x).mean()
    pr = policy(-x).mean()
    rr = ref(-x).mean()
{DPO}""")
    right = step(f"""\
with torch.no_grad():
    rc = ref(x).mean()
    rr = ref(-x).mean()
pc = policy(x).mean()
pr = policy(-x).mean()
{DPO}""")
    restored(text, right, "policy", "ref")


@pytest.mark.parametrize(
    "body",
    [
        # parts of one model, one behind the other
        "h = policy.body(x)\nz = policy.proj(h)\nw = policy.aux(x)\n",
        "h = policy.body(x)\nh = h.tanh()\nz = policy.proj(h)\nw = policy.aux(x) * 2\nz = z + w\n",
        "z = policy.body(x) - 1\nw = policy.aux(z)\nz = z - w\n",
        "z, w = policy.body(x), policy.aux(x)\n",
        "a = policy(x)\nz = a[:2]\nw = a[2:]\n",
        "mask = x > 0\nz = policy(x * mask)\nw = z * mask\n",
        "z = policy(x)\nz *= 2\nw = policy.aux(x)\nz -= w\n",
        "z = policy(x)\nz.mul_(2).add_(1)\nw = policy.aux(x)\n",
        "z = policy(x)\nw = z.clone()\nw[0] = 0\nw[1] = policy.aux(x)[1]\n",
        "z = policy(x)\nw = []\nw.append(z * 2)\nw = w[0]\n",
        "e = policy(x)\nd = e * 2\nz = d - 1\nw = z * d\n",
    ],
)
def test_statements_that_build_on_each_other(body: str) -> None:
    loss = "loss = z.pow(2).mean() + w.pow(3).mean()\n"
    under = textwrap.indent(body, "    ")
    restored(step(f"with torch.no_grad():\n{under}{loss}"), step(body + loss), "policy", "ref")


def test_differences_that_are_taken_in_the_scope() -> None:
    text = step("""\
with torch.no_grad():
    p = policy(x)
    q = ref(x)
    q = q / 2
    d = p - q
loss = d.pow(2).mean()
""")
    right = step("""\
p = policy(x)
with torch.no_grad():
    q = ref(x)
    q = q / 2
d = p - q
loss = d.pow(2).mean()
""")
    restored(text, right, "policy", "ref")


def test_a_loop_that_runs_both() -> None:
    text = step("""\
loss = 0
with torch.no_grad():
    d = 0
    for _ in range(2):
        p = policy(x)
        q = ref(x)
        d = d + (p - q).pow(2).mean()
    e = ref(x)
loss = d * e.mean()
""")
    right = step("""\
d = 0
for _ in range(2):
    p = policy(x)
    with torch.no_grad():
        q = ref(x)
    d = d + (p - q).pow(2).mean()
with torch.no_grad():
    e = ref(x)
loss = d * e.mean()
""")
    restored(text, right, "policy", "ref")


def test_a_reference_that_is_run_on_what_the_model_gives() -> None:
    body = "p = policy(x)\nq = ref(p)\n"
    loss = "loss = q.pow(2).mean()\n"
    under = textwrap.indent(body, "    ")
    restored(step(f"with torch.no_grad():\n{under}{loss}"), step(body + loss), "policy", "ref")


def test_a_reference_that_is_run_on_what_the_model_chose() -> None:
    text = step("""\
with torch.no_grad():
    ids = policy.generate(x)
    p = policy(ids)
    q = ref(ids)
loss = (p - q).pow(2).mean()
""")
    right = step("""\
with torch.no_grad():
    ids = policy.generate(x)
    q = ref(ids)
p = policy(ids)
loss = (p - q).pow(2).mean()
""")
    restored(text, right, "policy", "ref")


def test_a_whole_step_in_the_scope() -> None:
    text = step("""\
with torch.no_grad():
    p = policy(x).log_softmax(-1)
    q = ref(x).log_softmax(-1)
    loss = (p.exp() * (p - q)).sum(-1).mean()
    opt.zero_grad()
    loss.backward()
""").rpartition("    opt.zero_grad()")[0]
    right = step(f"""\
p = policy(x).log_softmax(-1)
with torch.no_grad():
    q = ref(x).log_softmax(-1)
{KL}""")
    restored(text, right, "policy", "ref")


HELPER = "def logps(model, x):\n    return model(x).log_softmax(-1)\n\n\n"


def test_models_that_a_helper_runs() -> None:
    text = step(
        f"with torch.no_grad():\n    p = logps(policy, x)\n    q = logps(ref, x)\n{KL}",
        before=HELPER,
    )
    right = step(
        f"p = logps(policy, x)\nwith torch.no_grad():\n    q = logps(ref, x)\n{KL}", before=HELPER
    )
    restored(text, right, "policy", "ref")


THREE = "loss = (p - q).pow(2).mean() + (p - r).pow(2).mean()\n"


@pytest.mark.parametrize(
    "told",
    [
        "opt = torch.optim.SGD({0}.parameters(), lr=0.1)",
        "params = list({0}.parameters())\n    opt = torch.optim.SGD(params, lr=0.1)",
        "opt = torch.optim.SGD([{{'params': {0}.parameters()}}], lr=0.1)",
        "{1}.requires_grad_(False)\n    {2}.eval()",
        "for p in {1}.parameters():\n        p.requires_grad_(False)\n    {2}.eval()",
    ],
)
def test_three_models_of_which_the_file_says_which_is_trained(told: str) -> None:
    models = ("first", "second", "third")
    signature = "first, second, third, opt, x"
    main = f"\n\ndef main(first, second, third):\n    {told.format(*models)}\n"
    under = "    r = third(x)\n    p = first(x)\n    q = second(x)\n"
    text = step(f"with torch.no_grad():\n{under}{THREE}", signature) + main
    right = step(
        f"with torch.no_grad():\n    r = third(x)\n    q = second(x)\np = first(x)\n{THREE}",
        signature,
    )
    restored(text, right, *models)


def test_the_names_that_a_caller_has() -> None:
    text = step(f"with torch.no_grad():\n    p = a(x)\n    q = b(x)\n{KL}", "a, b, opt, x")
    right = step(f"p = a(x)\nwith torch.no_grad():\n    q = b(x)\n{KL}", "a, b, opt, x")
    main = """

def main(net, copied, x):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    step(net, copied, opt, x)
"""
    restored(text + main, right, "a", "b")


BOTH = """

def main(first, second):
    a = torch.optim.SGD(first.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    "more",
    [
        "    b = torch.optim.SGD(second.parameters(), lr=0.1)\n",
        "    torch.nn.utils.clip_grad_norm_(second.parameters(), 1.0)\n",
        "    b = instantiate(config, second.parameters())\n",
    ],
)
def test_two_that_may_both_be_trained(more: str) -> None:
    under = "    p = first(x)\n    q = second(x)\n"
    text = step(f"with torch.no_grad():\n{under}{KL}", "first, second, opt, x") + BOTH + more
    (finding,) = findings(text, select=("TRN202",))
    assert finding.fixes["flag"].safety == "unsafe"


def test_two_in_one_optimizer() -> None:
    under = "p = first(x)\nq = second(x)\n"
    text = step(
        f"with torch.no_grad():\n{textwrap.indent(under, '    ')}{KL}", "first, second, opt, x"
    )
    main = BOTH.replace("first.parameters()", "[*first.parameters(), *second.parameters()]")
    restored(text + main, step(under + KL, "first, second, opt, x"), "first", "second")


def test_an_evaluation_says_nothing_about_training() -> None:
    text = step(
        f"with torch.no_grad():\n    p = first(x)\n    q = second(x)\n{KL}", "first, second, opt, x"
    )
    text += "\n\ndef evaluate(first, x):\n    first.eval()\n    return first(x)\n"
    (finding,) = findings(text, select=("TRN202",))
    assert finding.fixes["flag"].safety == "unsafe"


def test_a_generator_alone() -> None:
    body = "p = policy.generate_all(x)\nloss = p.pow(2).mean()\n"
    text = step(f"with torch.no_grad():\n{textwrap.indent(body, '    ')}")
    restored(text, step(body), "policy", "ref")


@pytest.mark.parametrize("inside", [False, True])
def test_models_of_which_nothing_says_which_is_trained(inside: bool) -> None:
    under = "    p = first(x)\n    q = second(x)\n"
    loss = "loss = (p - q).pow(2).mean()\n"
    loss = f"    {loss}    loss.backward()\n" if inside else loss
    text = step(f"with torch.no_grad():\n{under}{loss}", "first, second, opt, x")
    (finding,) = findings(text, select=("TRN202",))
    chosen = finding.fixes["flag"]
    assert chosen.safety == "unsafe" and "`first`, `second`" in chosen.look_at
    assert fix(text, select=("TRN202",)) == text


def test_a_statement_that_runs_both_is_not_moved_without_asking() -> None:
    text = step("with torch.no_grad():\n    p, q = policy(x), ref(x)\nloss = (p - q).norm()\n")
    (finding,) = findings(text)
    assert finding.fixes["flag"].safety == "unsafe" and "`ref`" in finding.fixes["flag"].look_at
    frozen = text + "\n\ndef main(ref):\n    ref.requires_grad_(False)\n"
    assert fix(frozen) != frozen


# -- ratios of new to old probabilities -----------------------------------------------------------

RATIO = """\
import torch


{decorator}def logps(model, x):
    return model(x).log_softmax(-1)[:, 0]


def step(policy, reference, opt, x, {old}=torch.zeros(()), adv=torch.arange(3.0)):
{lp}
    ratio = {ratio}
    loss = -(ratio * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("old", ["old", "old2", "behaviour", "old_lp", "ref", "rollout"])
@pytest.mark.parametrize(
    ("decorator", "lp"),
    [
        ("@torch.no_grad()\n", "    lp = logps(policy, x)"),
        ("", "    with torch.no_grad():\n        lp = logps(policy, x)"),
        ("", "    with torch.inference_mode():\n        lp = logps(policy, x)"),
    ],
)
def test_a_ratio_to_what_the_policy_was(decorator: str, lp: str, old: str) -> None:
    ratio = f"torch.exp(lp - {old})"
    text = RATIO.format(decorator=decorator, lp=lp, old=old, ratio=ratio)
    right = RATIO.format(decorator="", lp="    lp = logps(policy, x)", old=old, ratio=ratio)
    restored(text, right, "policy", "reference", unsafe=True)


@pytest.mark.parametrize("ratio", ["torch.exp(lp - lp.detach())", "lp / lp.detach() - 1"])
def test_a_ratio_to_itself(ratio: str) -> None:
    text = RATIO.format(
        decorator="@torch.no_grad()\n", lp="    lp = logps(policy, x)", old="old", ratio=ratio
    )
    right = text.replace("@torch.no_grad()\n", "")
    restored(text, right, "policy", "reference", unsafe=True)


def test_a_penalty_by_a_reference_that_the_same_helper_runs() -> None:
    right = """\
import torch


def logps(model, x):
    return model(x).log_softmax(-1)[:, 0]


def step(policy, ref, opt, x):
    losses = []
    for each, advantage in zip(x.split(1), (1.0, 2.0, -1.0)):
        with torch.no_grad():
            reference = logps(ref, each)
        lp = logps(policy, each)
        ratio = torch.exp(lp - lp.detach())
        kl = torch.exp(reference - lp) - (reference - lp) - 1
        losses.append((0.04 * kl - ratio * advantage).mean())
    loss = torch.stack(losses).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    text = right.replace("def logps", "@torch.no_grad()\ndef logps")
    (finding,) = findings(text, select=("TRN202",))
    assert finding.line == 4
    restored(text, right, "policy", "ref", unsafe=True)


@pytest.mark.parametrize(
    ("lp", "ratio"),
    [
        # what is given may be the policy's
        ("    with torch.no_grad():\n        lp = logps(reference, x)", "torch.exp(new - lp)"),
        ("    with torch.no_grad():\n        lp = logps(policy, x)", "torch.exp(new - lp)"),
        ("    new = logps(policy, x)\n    with torch.no_grad():\n        lp = new + 0", "new - lp"),
        (
            "    with torch.no_grad():\n        old = logps(policy, x)\n    lp = logps(policy, x)",
            "torch.exp(lp - old)",
        ),
        # stopped in the loss as well
        (
            "    with torch.no_grad():\n        v = policy.value(x)\n    lp = logps(policy, x)",
            "lp * v.detach()",
        ),
    ],
)
def test_a_ratio_with_a_graph(lp: str, ratio: str) -> None:
    text = RATIO.format(decorator="", lp=lp, old="new", ratio=ratio)
    assert not findings(text, select=("TRN202",))


@pytest.mark.parametrize("end", [".detach()", ".data"])
@pytest.mark.parametrize("ratio", ["torch.exp(lp - old)", "torch.exp(lp - lp.detach())", "lp"])
def test_probabilities_that_are_detached(end: str, ratio: str) -> None:
    lp = "    lp = logps(policy, x)"
    text = RATIO.format(decorator="", lp=lp + end, old="old", ratio=ratio)
    assert [f.rule for f in findings(text)] == ["TRN301"]
    right = RATIO.format(decorator="", lp=lp, old="old", ratio=ratio)
    restored(text, right, "policy", "reference", unsafe=True)


@pytest.mark.parametrize(
    ("lp", "ratio"),
    [
        ("    lp = logps(policy, x).detach()", "torch.exp(new - lp)"),
        ("    lp = logps(policy, x)", "torch.exp(lp - lp.detach())"),
        ("    lp = logps(policy, x).detach()", "torch.exp(reference(x)[:, 0] - lp)"),
        ("    lp = logps(reference, x).detach()", "torch.exp(logps(policy, x) - lp)"),
        ("    lp = logps(policy, x).detach()\n    x.requires_grad_()", "lp * x.sum(-1)"),
        ("    lp = logps(policy, x).detach()", "policy.loss(lp)"),
    ],
)
def test_probabilities_that_are_detached_beside_a_graph(lp: str, ratio: str) -> None:
    text = RATIO.format(decorator="", lp=lp, old="new", ratio=ratio)
    assert not findings(text, select=("TRN301",))
