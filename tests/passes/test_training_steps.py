"""TRN601 to TRN604: training steps that do nothing and say nothing."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from torch import nn
from verbs import becomes, findings, rules, stays

from trainify.findings import Safety, apply_edits

# -- TRN601: backward() only where there is a graph -----------------------------------------------


@pytest.mark.parametrize(
    "guarded",
    [
        "if loss.requires_grad:\n        loss.backward()",
        "if loss.requires_grad: loss.backward()",
        "if loss.grad_fn is not None:\n        loss.backward()",
        "if step > 0 and loss.requires_grad:\n        scaler.scale(loss).backward()",
        "if loss.requires_grad:  # may be frozen\n        accelerator.backward(loss)",
        "if loss.requires_grad:\n        self.manual_backward(loss)",
        "if out.loss.requires_grad:\n        out.loss.backward(retain_graph=True)",
        "if loss.requires_grad:\n        (loss / steps).backward()\n    optimizer.step()",
    ],
)
def test_backward_that_is_skipped_in_silence(guarded: str) -> None:
    text = f"def f(loss, out, step, steps, scaler, accelerator, optimizer, self):\n    {guarded}\n"
    if "(loss / steps)" in guarded:
        stays(text)  # of another tensor: not judged
    else:
        assert rules(text) == ["TRN601"]


@pytest.mark.parametrize(
    "told",
    [
        "if loss.requires_grad:\n        loss.backward()\n    else:\n        raise RuntimeError",
        "if loss.requires_grad:\n        loss.backward()\n    else:\n        log.warning('no graph')",
        "if not loss.requires_grad:\n        raise RuntimeError\n    loss.backward()",
        "if x.requires_grad:\n        loss.backward()",
        "if self.training:\n        loss.backward()",
        "if loss.requires_grad:\n        metrics.append(loss.item())",
        "if loss.grad_fn is None:\n        loss.backward()",
        "if penalty.requires_grad:\n        penalty.backward()\n    loss.backward()",
    ],
)
def test_backward_that_is_not(told: str) -> None:
    stays(f"def f(self, loss, x, log, metrics):\n    {told}\n")


def test_what_to_write_instead_is_shown_only() -> None:
    (found,) = findings("def f(loss):\n    if loss.requires_grad:\n        loss.backward()\n")
    fix = found.fix("flag")
    assert fix is not None and fix.safety is Safety.DISPLAY
    assert [edit.text for edit in fix.edits] == [
        '\n    else:\n        raise RuntimeError("the loss has no graph: no parameter would learn")'
    ]


def test_a_test_of_something_else_too_gets_no_otherwise() -> None:
    (found,) = findings(
        "def f(loss, step):\n    if step > 0 and loss.requires_grad:\n        loss.backward()\n"
    )
    assert found.rule == "TRN601" and not found.fixes


# -- TRN602: updates that skip -------------------------------------------------------------------


@pytest.mark.parametrize(
    "update",
    [
        "p.data.add_(p.grad, alpha=-lr)",
        "p.data = p.data - lr * p.grad",
        "p -= lr * p.grad",
        "p.data -= lr * p.grad.data",
        "p.sub_(lr * p.grad)",
        "p.copy_(p - lr * p.grad)",
    ],
)
@pytest.mark.parametrize(
    "loop",
    [
        "for p in model.parameters():\n        if p.grad is not None:\n            {}",
        "for name, p in model.named_parameters():\n        if p.grad is None:\n"
        "            continue\n        {}",
    ],
)
def test_an_update_that_skips(loop: str, update: str) -> None:
    assert rules(f"def f(model, lr):\n    {loop.format(update)}\n") == ["TRN602"]


def test_the_parameter_is_named_in_what_to_write_instead() -> None:
    before = """
        def f(model, lr):
            for name, p in model.named_parameters():
                if p.grad is None:
                    continue  # not used
                p.data.add_(p.grad, alpha=-lr)
    """
    after = """
        def f(model, lr):
            for name, p in model.named_parameters():
                if p.grad is None:
                    if p.requires_grad:
                        raise RuntimeError(f"{name} has no gradient")
                    continue  # not used
                p.data.add_(p.grad, alpha=-lr)
    """
    (found,) = findings(before)
    fix = found.fix("flag")
    assert fix is not None and fix.safety is Safety.DISPLAY
    assert apply_edits(textwrap.dedent(before), fix.edits) == textwrap.dedent(after)
    stays(after)
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(after), namespace)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    model[1](torch.ones(1, 2)).sum().backward()
    namespace["f"](model, 0.1)  # what is frozen has none to miss
    model[0].weight.requires_grad_()
    with pytest.raises(RuntimeError, match=r"^0\.weight has no gradient$"):
        namespace["f"](model, 0.1)


@pytest.mark.parametrize(
    "body",
    [
        "if p.grad is not None:\n            total += p.grad.norm() ** 2",
        "if p.grad is not None:\n            p.grad.mul_(scale)",
        "if p.grad is not None:\n            p.grad = None",
        "if p.grad is not None:\n            p.data.add_(p.grad)\n        else:\n            raise E",
        "if p.grad is None:\n            print(name)\n            continue\n        p.data.add_(p.grad)",
        "if p.grad is not None:\n            buffer.add_(p.grad)",
        "if p.grad is not None:\n            p.data.add_(noise)",
        "if q.grad is not None:\n            q.data.add_(q.grad)",
    ],
)
def test_other_things_done_to_gradients(body: str) -> None:
    stays(
        f"def f(model, q, scale, total, noise, buffer, E):\n"
        f"    for name, p in model.named_parameters():\n        {body}\n"
    )


@pytest.mark.parametrize(
    "head",
    [
        "class SGD(torch.optim.Optimizer):\n    def update(self):",
        "class Sam:\n    def first_step(self):",
        "class MyOptimizer:\n    def update(self):",
    ],
)
def test_an_optimizer_has_to_skip(head: str) -> None:
    stays(
        f"import torch\n\n{head}\n        for p in self.params:\n"
        "            if p.grad is None:\n                continue\n            p.add_(p.grad)\n"
    )


# -- TRN603: step() without backward() -------------------------------------------------------------

LOOP = """
import torch

def f(model, x, sched, train_one):
    opt = torch.optim.Adam(model.parameters())
    model(x).mean().backward()
    for i in range(9):
        {}
"""


@pytest.mark.parametrize(
    "body",
    ["opt.step()\n        opt.zero_grad()", "opt.zero_grad(set_to_none=True)\n        opt.step()"],
)
def test_steps_without_gradients(body: str) -> None:
    assert rules(LOOP.format(body)) == ["TRN603"]


@pytest.mark.parametrize(
    "body",
    [
        "opt.zero_grad()\n        model(x).mean().backward()\n        opt.step()",
        "opt.step()\n        sched.step()",  # how a schedule is drawn
        "opt.step()",  # the same gradients again and again: somebody may want that
        "opt.zero_grad()\n        train_one(model, x)\n        opt.step()",
        "opt.zero_grad()\n        opt.step(lambda: model(x).mean())",
        "opt.zero_grad()\n        model.weight.grad = x\n        opt.step()",
    ],
)
def test_steps_that_may_have_gradients(body: str) -> None:
    stays(LOOP.format(body))


# -- TRN604: optimizers that come too early ---------------------------------------------------------


@pytest.mark.parametrize(
    "late",
    [
        "model.head = nn.Linear(4, 2)",
        "model.net[0].bias = nn.Parameter(torch.zeros(4))",
        "model.resize_token_embeddings(100)",
        "model = get_peft_model(model, config)",
        "model.add_module('head', nn.Linear(4, 2))",
    ],
)
def test_parameters_that_come_after_their_optimizer(late: str) -> None:
    head = "import torch\nfrom torch import nn\n\ndef f(model, config):\n"
    made = "    # as in the paper\n    opt = torch.optim.SGD(model.parameters(), lr=0.1)  # no momentum\n"
    tail = "    return model, opt\n"
    becomes(f"{head}{made}    {late}\n{tail}", f"{head}    {late}\n{made}{tail}")


def test_weights_that_are_unfrozen_after_a_filter() -> None:
    head = "from torch.optim import AdamW\n\ndef f(model):\n"
    for given in (
        "filter(lambda p: p.requires_grad, model.parameters())",
        "[p for p in model.parameters() if p.requires_grad]",
    ):
        made = f"    opt = AdamW({given})\n"
        late = "    model.encoder.requires_grad_(True)\n"
        after = f"{head}{late}{made}    return opt\n"
        becomes(f"{head}{made}{late}    return opt\n", after, unsafe=True)
    stays(f"{head}    opt = AdamW(model.parameters())\n    model.encoder.requires_grad_()\n")
    stays(f"{head}{made}    model.encoder.requires_grad_(False)\n    return opt\n")


LOADED = "opt.load_state_dict(torch.load(config)['opt'])"


@pytest.mark.parametrize(
    "between",
    [
        LOADED,
        f"if config:\n        model.load_state_dict(torch.load(config))\n        {LOADED}",
        "opt.zero_grad()",
        "for p in model.body.parameters():\n        p.requires_grad = False",
        "for n, p in model.named_parameters():\n        if 'bias' in n:\n"
        "            p.requires_grad_(False)",
    ],
)
def test_what_comes_in_between_is_no_step(between: str) -> None:
    text = "import torch\nfrom torch import nn\n\ndef f(model, config):\n"
    text += f"    opt = torch.optim.SGD(model.parameters(), lr=0.1)\n    {between}\n"
    assert rules(text + "    model.head = nn.Linear(4, 2)\n    return opt\n") == ["TRN604"]
    stays(text + "    return opt\n")


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        ("for p in model.body.parameters():\n        p.requires_grad = True", 1),
        ("for n, p in model.named_parameters():\n        if 'lora' in n:\n"
         "            p.requires_grad_()", 1),
        ("for p in model.body.parameters():\n        p.requires_grad = False", 0),
        ("for p in teacher.parameters():\n        p.requires_grad = True", 0),
        ("for p in model.body.parameters():\n        p.data.normal_()", 0),
    ],
)  # fmt: skip
def test_a_loop_that_unfreezes_after_a_filter(late: str, expected: int) -> None:
    head = "import torch\n\ndef f(model, teacher):\n"
    made = "    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad])\n"
    text = f"{head}{made}    {late}\n    return opt\n"
    assert rules(text) == ["TRN604"] * expected
    if expected:
        becomes(text, f"{head}    {late}\n{made}    return opt\n", unsafe=True)
    stays(text.replace("[p for p in model.parameters() if p.requires_grad]", "model.parameters()"))


def test_parameters_that_are_replaced_as_they_are_loaded() -> None:
    """``assign=True`` binds the loaded tensors; without it, they are written into the old ones."""
    text = """\
        import torch

        def f(model, state):
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            model.load_state_dict(state, assign=True)
            return opt
        """
    assert rules(text) == ["TRN604"]
    stays(text.replace("True", "False"))
    stays(text.replace(", assign=True", ""))
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    held = list(model.parameters())
    model.load_state_dict(other.state_dict())
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
    model.load_state_dict(other.state_dict(), assign=True)
    assert not any(a is b for a, b in zip(held, model.parameters(), strict=True))


@pytest.mark.parametrize(
    "rest",
    [
        "model.head = nn.Linear(4, 2)\n    opt.add_param_group({'params': model.head.parameters()})",
        "model.head = nn.Linear(4, 2)\n    opt = torch.optim.SGD(model.parameters())",
        "train(model, opt)\n    model.head = nn.Linear(4, 2)",
        "for x in data:\n        train(model)\n    model.head = nn.Linear(4, 2)",
        "model.loss = nn.CrossEntropyLoss()",
        "model.act = nn.ReLU()",
        "model.target_net = nn.Linear(4, 2)",
        "other.head = nn.Linear(4, 2)",
        "model.name = str(1)",
        "model.body = nn.DataParallel(model.body)",
    ],
)
def test_optimizers_that_hold_what_they_should(rest: str) -> None:
    stays(
        "import torch\nfrom torch import nn\n\ndef f(model, other, data, train):\n"
        f"    opt = torch.optim.SGD(model.parameters(), lr=0.1)\n    {rest}\n"
    )


def test_a_schedule_in_between_leaves_the_finding_without_a_fix() -> None:
    (found,) = findings(
        """
        import torch
        from torch import nn

        class Lit:
            def __init__(self, width):
                self.body = nn.Linear(width, width)
                self.opt = torch.optim.Adam(self.parameters())
                self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 10)
                self.head = nn.Linear(width, 2)
        """
    )
    assert found.rule == "TRN604" and not found.fixes and "self.head = nn.Linear" in found.message
