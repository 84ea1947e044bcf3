"""Losses that are computed in a scope come out of it; what belongs there stays."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

from trainify.engine import Options, check_paths, fix_text


def test_only_what_the_loss_needs_comes_out_of_the_scope() -> None:
    becomes(
        """\
import torch


def step(model, teacher, x, log):
    with torch.no_grad():
        # what to aim at
        target = teacher(x)
        # what comes out
        pred = model(x)
        log(pred)

        loss = (pred - target).square().mean()  # L2
    loss.backward()
""",
        """\
import torch


def step(model, teacher, x, log):
    with torch.no_grad():
        # what to aim at
        target = teacher(x)
    # what comes out
    pred = model(x)
    with torch.no_grad():
        log(pred)

    loss = (pred - target).square().mean()  # L2
    loss.backward()
""",
    )


def test_a_loss_from_outside_the_scope_stays() -> None:
    stays(
        """\
import torch


def step(model, teacher, x):
    with torch.no_grad():
        target = teacher(x)
    loss = (model(x) - target).square().mean()
    loss.backward()
"""
    )


def test_a_scope_with_more_than_one_item_is_reported() -> None:
    (finding,) = findings(
        """\
import torch


def step(model, x, lock):
    with lock, torch.no_grad():
        loss = model(x).sum()
    loss.backward()
"""
    )
    assert finding.rule == "TRN202" and not finding.fixes


def step(body: str, signature: str = "model, teacher, criterion, optimizer, x, y") -> str:
    body = textwrap.indent(textwrap.dedent(body), "    ")
    return f"import torch\nimport torch.nn.functional as F\n\n\ndef step({signature}):\n{body}"


@pytest.mark.parametrize(
    "backward",
    [
        "loss.backward()",
        "loss.backward(retain_graph=True)",
        "accelerator.backward(loss)",
        "self.accelerator.backward(loss)",
        "scaler.scale(loss).backward()",
        "(loss / 4).backward()",
        "fabric.backward(loss)",
        "torch.autograd.backward(loss)",
        "self.manual_backward(loss)",
    ],
)
def test_every_form_of_backward(backward: str) -> None:
    text = step(f"""\
        with torch.no_grad():
            loss = F.cross_entropy(model(x), y)
        {backward}
        """)
    assert rules(text, select=("TRN202",)) == ["TRN202"]


def test_a_prediction_in_the_scope_and_its_loss_outside() -> None:
    becomes(
        step("""\
        with torch.no_grad():
            # what to aim at
            target = teacher(x)
            # what comes out
            pred = model(x)
        loss = criterion(pred, y) + F.mse_loss(pred, target)
        loss.backward()
        """),
        step("""\
        with torch.no_grad():
            # what to aim at
            target = teacher(x)
        # what comes out
        pred = model(x)
        loss = criterion(pred, y) + F.mse_loss(pred, target)
        loss.backward()
        """),
    )


def test_a_scope_around_a_whole_step_is_narrowed_to_what_belongs_in_it() -> None:
    becomes(
        step("""\
        with torch.no_grad():
            # what to aim at
            target = teacher(x)
            pred = model(x)  # what comes out
            loss = F.mse_loss(pred, target)
            optimizer.zero_grad()
            loss.backward()

            optimizer.step()
            accuracy = (pred > 0).float().mean()
        return accuracy
        """),
        step("""\
        with torch.no_grad():
            # what to aim at
            target = teacher(x)
        pred = model(x)  # what comes out
        loss = F.mse_loss(pred, target)
        optimizer.zero_grad()
        loss.backward()

        optimizer.step()
        with torch.no_grad():
            accuracy = (pred > 0).float().mean()
        return accuracy
        """),
    )


def test_a_scope_around_a_loop() -> None:
    becomes(
        step(
            """\
        with torch.inference_mode():
            for x, y in loader:
                # frozen
                target = teacher(x)
                pred = model(x)
                loss = F.mse_loss(pred, target)
                loss.backward()
        """,
            "model, teacher, loader",
        ),
        step(
            """\
        for x, y in loader:
            # frozen
            with torch.inference_mode():
                target = teacher(x)
            pred = model(x)
            loss = F.mse_loss(pred, target)
            loss.backward()
        """,
            "model, teacher, loader",
        ).replace(
            "        # frozen\n        with torch.inference_mode():\n",
            "        with torch.inference_mode():\n            # frozen\n",
        ),
        select=("TRN202",),
    )


@pytest.mark.parametrize(
    "scope",
    [
        "with torch.no_grad() as g:",
        "with (\n        torch.no_grad()\n    ):",
        "with lock, torch.no_grad():",
        "with torch.no_grad(), lock:",
        "async with lock:\n      with torch.no_grad():",
    ],
)
def test_heads_of_every_shape(scope: str) -> None:
    extra = "  " if "async" in scope else ""
    body = f"    {scope}\n{extra}        loss = model(x).mean()\n{extra}        loss.backward()\n"
    text = f"import torch\n\n\nasync def step(model, x, lock):\n{body}"
    (finding,) = findings(text, select=("TRN202",))
    assert finding.fixes
    assert "no_grad" not in fix(text, select=("TRN202",))


def test_a_mode_that_is_entered_on_a_stack() -> None:
    text = step("""\
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            loss = model(x).mean()
            loss.backward()
        """)
    becomes(
        text,
        text.replace("        stack.enter_context(torch.no_grad())\n", ""),
        unsafe=True,
        select=("TRN202",),
    )


def test_lines_keep_their_ends() -> None:
    text = step("""\
        with torch.no_grad():
            target = teacher(x)
            loss = F.mse_loss(model(x), target)
            loss.backward()
        """).replace("\n", "\r\n")
    fixed = fix_text(text, "m.py", Options(select=("TRN202",))).text
    assert fixed.count("\r\n") == fixed.count("\n") and "    loss.backward()\r\n" in fixed


@pytest.mark.parametrize("decorator", ["@torch.no_grad()", "@torch.inference_mode()"])
def test_a_decorated_step(decorator: str) -> None:
    text = step("""\
        pred = model(x)
        target = teacher(x)
        loss = F.mse_loss(pred, target)
        loss.backward()
        optimizer.step()
        """)
    decorated = text.replace("def step", f"{decorator}\ndef step")
    scoped = f"    with {decorator[1:]}:\n        target = teacher(x)"
    becomes(
        decorated, text.replace("    target = teacher(x)", scoped), unsafe=True, select=("TRN202",)
    )


def test_a_helper_that_computes_the_prediction_under_a_mode() -> None:
    text = """\
import torch
import torch.nn.functional as F


@torch.no_grad()
def predict(model, x):
    return model(x)


def step(model, x, y):
    loss = F.cross_entropy(predict(model, x), y)
    loss.backward()
"""
    becomes(text, text.replace("@torch.no_grad()\n", ""), unsafe=True, select=("TRN202",))


def test_a_helper_with_a_scope_inside() -> None:
    text = """\
import torch


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def train(model, loader, optimizer, loss_fn):
    for batch in loader:
        labels = batch.pop("labels")
        loss = loss_fn(logits_of(model, batch), labels)
        loss.backward()
        optimizer.step()
"""
    (finding,) = findings(text)
    assert finding.rule == "TRN202" and finding.fixes["flag"].safety == "unsafe"
    assert "\n    return model(**batch).logits\n" in fix(text, unsafe=True)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_loss_without_any_graph_is_one_finding(mode: str) -> None:
    assert rules(
        step(f"""\
        with torch.{mode}():
            logits = model(x).logits
        loss = F.cross_entropy(logits.view(-1, 10), y.view(-1))
        accelerator.backward(loss)
        """)
    ) == ["TRN202"]


@pytest.mark.parametrize(
    ("base", "name"),
    [("Trainer", "compute_loss"), ("pl.LightningModule", "training_step")],
)
def test_what_a_trainer_calls_backward_on(base: str, name: str) -> None:
    text = f"""\
import torch


class Mine({base}):
    @torch.no_grad()
    def {name}(self, batch, index):
        return self.model(batch).loss
"""
    assert rules(text, select=("TRN202",)) == ["TRN202"]
    stays(text.replace(name, "validation_step"), select=("TRN202",))


@pytest.mark.parametrize(
    "body",
    [
        # targets, rewards, references
        """\
        with torch.no_grad():
            target = teacher(x)
        loss = F.mse_loss(model(x), target)
        loss.backward()
        """,
        """\
        logprobs = model(x)
        with torch.no_grad():
            ref_logprobs = ref_model(x)
            advantages = reward_model(x) - y
        loss = -(logprobs - ref_logprobs).exp() * advantages
        loss.mean().backward()
        """,
        # a frozen encoder in front of a trained head
        """\
        with torch.no_grad():
            latents = vae.encode(x).sample()
            text = text_encoder(y)
        noise = torch.randn_like(latents)
        pred = unet(latents + noise, text)
        loss = F.mse_loss(pred, noise)
        accelerator.backward(loss)
        """,
        # an input of which nobody knows where it comes from
        """\
        with torch.no_grad():
            t = model(x)
        loss = F.mse_loss(hidden, t)
        loss.backward()
        """,
        # backward in a scope, the loss from outside
        """\
        loss = F.mse_loss(model(x), y)
        with torch.no_grad():
            loss.backward()
        """,
        # on again
        """\
        with torch.no_grad():
            with torch.enable_grad():
                loss = F.mse_loss(model(x), y)
            loss.backward()
        """,
        """\
        torch.set_grad_enabled(True)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        """,
        # optional
        """\
        with torch.set_grad_enabled(phase == "train"):
            loss = F.mse_loss(model(x), y)
        if phase == "train":
            loss.backward()
        """,
        # accumulated, partly with a graph
        """\
        loss = F.mse_loss(model(x), y)
        with torch.no_grad():
            weight = 1 / model(x).norm()
        (loss * weight).backward()
        """,
        # optimizing a tensor
        """\
        delta = torch.zeros_like(x, requires_grad=True)
        with torch.no_grad():
            clean = model(x)
        loss = F.mse_loss(model(x + delta), clean)
        loss.backward()
        """,
        """\
        w = torch.ones(3, requires_grad=True)
        with torch.no_grad():
            z = model(x)
        loss = (z * w).sum()
        loss.backward()
        """,
        # layers by the names of functions
        """\
        with torch.no_grad():
            z = model(x)
        loss = F.mse_loss(norm(z), y)
        loss.backward()
        """,
        """\
        with torch.no_grad():
            z = vae.encode(x)
        loss = model.loss(z)
        loss.backward()
        """,
        """\
        with torch.no_grad():
            z = model(x)
        loss = torch.vmap(run)(z).mean()
        loss.backward()
        """,
        # added up outside
        """\
        with torch.no_grad():
            total = torch.zeros(())
        for v in x:
            total += model(v).mean()
        total.backward()
        """,
        # metrics after it
        """\
        pred = model(x)
        loss = F.mse_loss(pred, y)
        loss.backward()
        with torch.no_grad():
            error = (pred - y).abs().mean()
        """,
    ],
)
def test_right_as_it_is(body: str) -> None:
    stays(
        step(body, "model, teacher, ref_model, reward_model, vae, text_encoder, unet, x, y"),
        select=("TRN202",),
    )


@pytest.mark.parametrize(
    "text",
    [
        # an optimizer with a closure
        """\
import torch


class SGD(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
            loss.backward()
""",
        # the loss comes from outside
        """\
import torch


@torch.no_grad()
def step(loss, optimizer):
    loss.backward()
    optimizer.step()
""",
        # parts of self
        """\
import torch


class Agent:
    def step(self, x):
        with torch.no_grad():
            _, log_pi = self.actor(x)
        alpha_loss = -(self.log_alpha.exp() * (log_pi + self.target_entropy)).mean()
        alpha_loss.backward()

    def second(self, x):
        with torch.no_grad():
            z = self.vae.encode(x)
        loss = self.model.loss(z)
        loss.backward()

    def third(self, x):
        with torch.no_grad():
            z = self.vae.encode(x)
        loss = self.loss_of(z)
        loss.backward()

    def loss_of(self, z):
        return self.model(z).mean()

    def fourth(self, x, y):
        with torch.no_grad():
            z = self.vae.encode(x)
        loss = self.criterion(self.norm(z), y)
        loss.backward()
""",
        # gradients of an input, in a sampler
        """\
import torch


def energy(model, x):
    with torch.enable_grad():
        return model(x.requires_grad_()).sum()


@torch.no_grad()
def sample(model, x):
    loss = energy(model, x)
    loss.backward()
    return x - x.grad
""",
        # evaluation
        """\
import torch


@torch.no_grad()
def evaluate(model, criterion, x, y):
    return criterion(model(x), y)


def step(model, criterion, x, y):
    loss = criterion(model(x), y)
    loss.backward()
    print(evaluate(model, criterion, x, y))
""",
    ],
)
def test_functions_that_are_right(text: str) -> None:
    stays(text, select=("TRN202",))


# -- reinforcement learning -----------------------------------------------------------------------

POLICY = """\
import torch


def logps(model, ids):
    return model(ids).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


{body}
"""


@pytest.mark.parametrize(
    "body",
    [
        """\
def step(policy, ids, advantages):
    with torch.no_grad():
        new = logps(policy, ids)
    loss = -(new * advantages).mean()
    loss.backward()
""",
        """\
def ppo(policy, ids, old_logps, adv, eps=0.2):
    with torch.no_grad():
        new = logps(policy, ids)
    ratio = (new - old_logps).exp()
    loss = -torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv).mean()
    loss.backward()
""",
        """\
class Trainer:
    def __init__(self, policy, ref):
        self.policy, self.ref = policy, ref
        self.beta = 0.1

    @torch.no_grad()
    def get_logps(self, model, ids):
        return logps(model, ids)

    def step(self, ids, rewards):
        adv = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        new = self.get_logps(self.policy, ids)
        ref = self.get_logps(self.ref, ids)
        kl = (ref - new).exp() - (ref - new) - 1
        loss = -(new * adv[:, None] - self.beta * kl).mean()
        loss.backward()
""",
    ],
)
def test_the_policy_s_own_probabilities_under_a_mode(body: str) -> None:
    text = POLICY.format(body=body)
    assert rules(text) == ["TRN202"]
    assert "no_grad" not in fix(text, unsafe=True)


def test_old_and_reference_probabilities_under_a_mode() -> None:
    stays(
        POLICY.format(
            body="""\
def ppo(policy, ref, value, prompts, reward_fn, eps=0.2):
    with torch.no_grad():
        ids = policy.generate(prompts)
        old = logps(policy, ids)
        ref_logps = logps(ref, ids)
        rewards = reward_fn(ids) - 0.1 * (old - ref_logps)
        adv = rewards - value(ids)
    for _ in range(4):
        ratio = (logps(policy, ids) - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv).mean()
        loss = loss + 0.5 * (value(ids) - rewards).pow(2).mean()
        loss.backward()


class GRPO:
    def step(self, ids, mask, adv, old=None):
        new = logps(self.policy, ids)
        old = new.detach() if old is None else old
        with torch.no_grad():
            ref = logps(self.ref, ids)
        kl = (ref - new).exp() - (ref - new) - 1
        loss = ((0.1 * kl - torch.exp(new - old) * adv) * mask).sum() / mask.sum()
        loss.backward()

    @torch.no_grad()
    def rollout(self, prompts):
        ids = self.policy.generate(prompts)
        return ids, logps(self.policy, ids)


def actor_critic(actor, critic, s, a, r, s2):
    with torch.no_grad():
        target = r + 0.99 * critic(s2)
        adv = target - critic(s)
    (critic(s) - target).pow(2).mean().backward()
    loss = -(actor(s).log_prob(a) * adv).mean()
    loss.backward()


def probe(backbone, head, x, weights):
    with torch.no_grad():
        features = backbone(x)
    loss = (features @ head.T * weights).sum()
    loss.backward()
"""
        )
    )


# -- helpers in other files -----------------------------------------------------------------------

LOSSES = """\
import torch
import torch.nn.functional as F


def compute_loss(model, x, y):
    with torch.no_grad():
        logits = model(x)
    return F.cross_entropy(logits, y)


@torch.no_grad()
def eval_loss(model, x, y):
    return F.cross_entropy(model(x), y)


def kd_loss(model, teacher, x):
    with torch.no_grad():
        target = teacher(x)
    return F.mse_loss(model(x), target)
"""

CALLER = """\
import losses
from losses import compute_loss, eval_loss, kd_loss


def step(model, teacher, x, y):
    {body}
    loss.backward()
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("loss = compute_loss(model, x, y)", 6),
        ("loss = losses.compute_loss(model, x, y) / 4", 6),
        ("loss = eval_loss(model, x, y)", 6),
        ("loss = kd_loss(model, teacher, x)", 0),
        ("loss = kd_loss(model, teacher, x) + compute_loss(model, x, y)", 0),
        ("loss = kd_loss(model, teacher, x)\n    print(eval_loss(model, x, y))", 0),
        ("loss = other(model, x)", 0),
    ],
)
def test_a_helper_of_another_file(body: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(LOSSES)
    (tmp_path / "train.py").write_text(CALLER.format(body=body))
    reports = list(check_paths([str(tmp_path)], Options()))
    assert not [r.problem for r in reports if r.problem]
    found = [(f.rule, f.line) for r in reports for f in r.findings]
    assert found == ([("TRN202", expected)] if expected else [])
    for report in reports:
        for finding in report.findings:
            assert not finding.fixes and Path(finding.related[0].path).name == "losses.py"


def test_helpers_of_files_that_call_one_another(tmp_path: Path) -> None:
    helper = """\
import torch
from {other} import {other}_loss


def {name}_loss(model, x, depth):
    with torch.no_grad():
        y = model(x)
    return {other}_loss(model, y, depth - 1) if depth else y.mean()
"""
    names = ("first", "second", "third")
    for name, other in zip(names, (*names[1:], names[0]), strict=True):
        (tmp_path / f"{name}.py").write_text(helper.format(name=name, other=other))
    (tmp_path / "train.py").write_text(
        "from first import first_loss\n\n\ndef step(model, x):\n"
        "    loss = first_loss(model, x, 2)\n    loss.backward()\n"
    )
    reports = check_paths([str(tmp_path)], Options())
    assert not any(report.problem for report in reports)


# -- what a trainer is handed back ----------------------------------------------------------------

HANDED = """\
import torch
import torch.nn.functional as F
from {library} import {base}


class Mine({base}):
    def {method}(self, model, inputs, return_outputs=False):
{body}
"""


def handed(body: str, base: str = "transformers.Trainer", method: str = "compute_loss") -> str:
    library, _, name = base.rpartition(".")
    body = textwrap.indent(textwrap.dedent(body), "        ")
    return HANDED.format(library=library, base=name, method=method, body=body)


PREDICTION = """\
with torch.no_grad():
    out = model(**inputs)
loss = F.cross_entropy(out.logits, inputs["labels"])
return (loss, out) if return_outputs else loss
"""


@pytest.mark.parametrize(
    ("body", "base", "method"),
    [
        (PREDICTION, "transformers.Trainer", "compute_loss"),
        (PREDICTION, "lightning.LightningModule", "training_step"),
        (
            "with torch.no_grad():\n    loss = self.net(inputs).mean()\nreturn {'loss': loss}\n",
            "lightning.LightningModule",
            "training_step",
        ),
    ],
)
def test_a_scope_in_what_a_trainer_differentiates(body: str, base: str, method: str) -> None:
    text = handed(body, base, method)
    assert rules(text, select=("TRN202",)) == ["TRN202"]
    assert "no_grad" not in fix(text)
    stays(text.replace(f"def {method}", "def evaluate"), select=("TRN202",))


@pytest.mark.parametrize(
    "body",
    [
        """\
        with torch.no_grad():
            reference = logps(self.ref_model, inputs)
        margin = logps(model, inputs) - reference
        loss = -F.logsigmoid(margin).mean()
        return (loss, margin) if return_outputs else loss
        """,
        """\
        with torch.no_grad():
            features = self.encoder(inputs)
        return F.mse_loss(self.head(features), inputs)
        """,
        """\
        with torch.no_grad():
            latents = self.vae.encode(inputs).latent_dist.sample()
        loss = self.shared_step(latents)
        return {"loss": loss}
        """,
        """\
        if model.training:
            return model(**inputs).loss
        with torch.no_grad():
            return model(**inputs).loss
        """,
    ],
)
@pytest.mark.parametrize(
    ("base", "method"),
    [("transformers.Trainer", "compute_loss"), ("lightning.LightningModule", "training_step")],
)
def test_what_a_trainer_may_differentiate(body: str, base: str, method: str) -> None:
    stays(handed(body, base, method), select=("TRN202",))


@pytest.mark.parametrize(
    "body",
    [
        "total = 0\nfor x in inputs:\n    with torch.no_grad():\n"
        "        total = total + model(x).mean()\ntotal.backward()",
        "with torch.no_grad():\n    loss = model(inputs).mean()\nacc.backward(loss)",
    ],
)
def test_sums_and_whoever_calls_backward(body: str) -> None:
    text = "import torch\n\n\ndef step(model, inputs, acc):\n" + textwrap.indent(body, "    ")
    assert rules(text + "\n", select=("TRN202",)) == ["TRN202"]
    assert "no_grad" not in fix(text + "\n")


# -- torch.autograd.grad --------------------------------------------------------------------------

PENALTY = """\
import torch


def penalty(critic, x):
    x = x.detach().requires_grad_(True)
    with torch.no_grad():
        score = critic(x)
        (grad,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    return ((grad.norm(dim=1) - 1) ** 2).mean()
"""
SALIENCY = """\
import torch


@torch.no_grad()
def saliency(model, x):
    x = x.detach().requires_grad_(True)
    score = model(x).sum()
    return torch.autograd.grad(score, x)[0]
"""


@pytest.mark.parametrize(("text", "unsafe"), [(PENALTY, False), (SALIENCY, True)])
def test_what_autograd_is_asked_for_under_a_mode(text: str, unsafe: bool) -> None:
    (finding,) = findings(text)
    assert finding.rule == "TRN202" and "`torch.autograd.grad`" in finding.message
    weight = torch.tensor([[1.0, 2.0]])
    names: dict[str, Any] = {}
    exec(text, names)
    function = "penalty" if text is PENALTY else "saliency"
    with pytest.raises(RuntimeError, match="does not require grad"):
        names[function](lambda x: x @ weight.t(), torch.ones(3, 2))
    exec(fix(text, unsafe=unsafe), names)
    found = names[function](lambda x: x @ weight.t(), torch.ones(3, 2))
    expected = (weight.norm() - 1) ** 2 if text is PENALTY else weight.expand(3, 2)
    torch.testing.assert_close(found, expected)


def test_gradients_that_are_switched_on_for_autograd() -> None:
    stays(
        """\
        import torch


        @torch.no_grad()
        def sample(model, classifier, x):
            for _ in range(3):
                with torch.enable_grad():
                    z = x.detach().requires_grad_(True)
                    (grad,) = torch.autograd.grad(classifier(z).sum(), z)
                x = model(x) + grad
            return x


        def forces(model, pos):
            with torch.no_grad():
                start = model(pos)
            pos.requires_grad_(True)
            return torch.autograd.grad((model(pos) - start).sum(), pos)[0]
        """
    )


AROUND = """\
import torch
import torch.nn.functional as F


def train(model, ema, loader, opt, meter):
    hist, total = [], torch.zeros(())
    for x, y in loader:
        with torch.no_grad():
            out = model(x)
            loss = F.mse_loss(out, y)
            STEP
            model.weight.mul_(0.99)
            model.bias += 0.1
            model.weight[0] = 0
            for p, q in zip(ema.parameters(), model.parameters()):
                p.lerp_(q, 0.5)
            total.add_(loss)
            running = 0.9 * total + 0.1 * loss
            hist.append(loss)
            meter.append(out.numpy())
            print(f"{loss:.3f}", loss.item())
        REST
    return hist, total, running
"""
STEPS = ("opt.zero_grad()", "loss.backward()", "opt.step()")


def around(*, inside: bool) -> str:
    lines = ("\n" + " " * (12 if inside else 8)).join(STEPS)
    before, after = (lines, "pass") if inside else ("pass", lines)
    return AROUND.replace("STEP", before).replace("REST", after)


@pytest.mark.parametrize("inside", [True, False])
def test_what_reads_the_loss_or_writes_weights_stays_without_gradients(inside: bool) -> None:
    """With gradients on, the writes would raise, and the sums keep the graph of every step."""
    fixed = fix(around(inside=inside))
    assert fixed != around(inside=inside)
    scope: dict[str, Any] = {}
    exec(compile(fixed, "m.py", "exec"), scope)
    torch.manual_seed(0)
    model, ema = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    twin = torch.nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    x, y, meter = torch.randn(5, 3), torch.randn(5, 2), []
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    _, total, running = scope["train"](model, ema, [(x, y)], opt, meter)
    assert not total.requires_grad and not running.requires_grad and len(meter) == 1
    torch.nn.functional.mse_loss(twin(x), y).backward()
    torch.testing.assert_close(model.weight.grad, twin.weight.grad)
    torch.testing.assert_close(model.bias.grad, twin.bias.grad)
