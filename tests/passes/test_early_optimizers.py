"""TRN604 where weights are unfrozen: what an optimizer is to hold, and what it is to leave out."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from torch import nn
from verbs import findings, fix, rules, stays

from trainify.findings import Safety

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


"""
FILTERED = "[p for p in model.parameters() if p.requires_grad]"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x).relu())  # type: ignore[no-any-return]


def moved(text: str) -> dict[str, bool]:
    """Which parameters a script's ``train`` changes, with a batch in each of its epochs."""
    names: dict[str, Any] = {}
    exec(text, names)
    torch.manual_seed(0)
    model = Net()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    names["train"](model, [(torch.randn(8, 4), torch.randint(0, 2, (8,)))])
    return {n: not torch.equal(p, before[n]) for n, p in model.named_parameters()}


def script(*lines: str) -> str:
    body = textwrap.indent("\n".join(lines), "    ")
    return f"{HEAD}def train(model, loader):\n{body}\n"


FREEZE = "for p in model.backbone.parameters():\n    p.requires_grad = False"
UNFREEZE = "for p in model.backbone.parameters():\n    p.requires_grad = True"
BATCH = """\
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()"""


def epochs(at: str = "epoch == 2") -> str:
    unfreeze, batch = textwrap.indent(UNFREEZE, " " * 8), textwrap.indent(BATCH, "    ")
    return f"for epoch in range(4):\n    if {at}:\n{unfreeze}\n{batch}"


BUILT = f"opt = torch.optim.SGD({FILTERED}, lr=0.1)"
LATER = {
    "in an epoch": script(FREEZE, BUILT, epochs()),
    "in a later phase": script(FREEZE, BUILT, BATCH, UNFREEZE, BATCH),
    "filter": script(
        "model.backbone.requires_grad_(False)",
        "opt = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)",
        epochs("epoch >= 2"),
    ),
}


@pytest.mark.parametrize("text", LATER.values(), ids=LATER.keys())
def test_what_is_unfrozen_during_training_learns_with_all_parameters_given(text: str) -> None:
    (found,) = findings(text)
    assert (
        found.rule == "TRN604"
        and found.related[0].line == 1 + text[: text.index("= True")].count("\n") - 1
    )
    assert fix(text) == text  # a rate of its own may be right for it
    assert not moved(text)["backbone.weight"]
    after = fix(text, unsafe=True)
    assert "(model.parameters(), lr=0.1)" in after and all(moved(after).values())
    stays(after)


def test_an_optimizer_of_the_head_alone() -> None:
    text = script(FREEZE, "opt = torch.optim.SGD(model.head.parameters(), lr=0.1)", epochs())
    (found,) = findings(text)
    assert found.rule == "TRN604" and not found.fixes
    assert not moved(text)["backbone.weight"]


RIGHT = {
    "added": epochs().replace(
        f"\n{' ' * 12}p.requires_grad = True",
        f"\n{' ' * 12}p.requires_grad = True\n"
        "        opt.add_param_group({'params': model.backbone.parameters()})",
    ),
    "built again": epochs().replace(
        f"\n{' ' * 12}p.requires_grad = True",
        f"\n{' ' * 12}p.requires_grad = True\n"
        "        opt = torch.optim.SGD(model.parameters(), lr=0.1)",
    ),
}


BOTH = "opt, schedule = (torch.optim.SGD(model.parameters(), lr=0.1), None)"


def test_an_optimizer_that_is_built_again_with_its_schedule() -> None:
    text = script(FREEZE, BUILT, BATCH, UNFREEZE, BOTH, BATCH)
    assert all(moved(text).values())
    stays(text)
    prepared = BOTH.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "opt")  # the same one
    text = script(FREEZE, BUILT, BATCH, UNFREEZE, prepared, BATCH)
    assert not moved(text)["backbone.weight"] and rules(text) == ["TRN604"]


def test_one_for_all_of_the_model_takes_over() -> None:
    final = "final = torch.optim.SGD(model.parameters(), lr=0.1)"
    text = script(
        FREEZE, BUILT, BATCH, UNFREEZE, final, BATCH.replace("opt", "final"), "print(opt)"
    )
    assert all(moved(text).values())
    stays(text)


@pytest.mark.parametrize("loop", RIGHT.values(), ids=RIGHT.keys())
def test_an_optimizer_that_gets_what_is_unfrozen(loop: str) -> None:
    text = script(FREEZE, BUILT, loop)
    assert all(moved(text).values())
    stays(text)


def test_it_holds_what_was_never_frozen() -> None:
    text = script("model.head.requires_grad_(False)", BUILT, epochs())
    assert moved(text)["backbone.weight"]
    stays(text)
    text = script("model.requires_grad_(False)", UNFREEZE, BUILT, epochs())
    assert moved(text)["backbone.weight"]
    stays(text)


SECOND = {
    "its own": "second = torch.optim.SGD(model.backbone.parameters(), lr=0.1)",
    "a local": "part = model.backbone\nsecond = torch.optim.SGD(part.parameters(), lr=0.1)",
    "groups": "groups = [{'params': model.backbone.parameters()}]\nsecond = make(groups)",
    "a helper": "second = make(model.backbone.parameters())",
}


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND.keys())
@pytest.mark.parametrize("end", ["return opt, second", f"{BATCH}\n    second.step()"])
def test_what_another_optimizer_holds_is_left_out(second: str, end: str) -> None:
    stays(
        script(FREEZE, BUILT, UNFREEZE, second, end).replace("\n\n\n", "\n\n\nmake = print\n\n\n")
    )
    text = script(BUILT, "model.extra = nn.Linear(4, 2)", "return model, opt")
    assert rules(text) == ["TRN604"]
    held = "other = torch.optim.SGD(model.extra.parameters(), lr=0.1)"
    stays(script(BUILT, "model.extra = nn.Linear(4, 2)", held, "return model, opt, other"))


def test_one_of_another_function_holds_it() -> None:
    text = script(BUILT, UNFREEZE, "return opt")
    other = "\n\ndef second(net):\n    return torch.optim.Adam(net.backbone.parameters())\n"
    assert rules(text) == ["TRN604"]
    stays(text + other)


@pytest.mark.parametrize(
    "between",
    [
        "g = torch.autograd.grad(model(x).sum(), model.backbone.weight)\n"
        "model.backbone.requires_grad_(False)",
        f"torch.autograd.grad(model(x).sum(), model.backbone.weight)\n{FREEZE}",
        "for _ in range(2):\n    torch.autograd.grad(model(x).sum(), model.backbone.weight)\n"
        "freeze(model.backbone)",
        "set_requires_grad(model.backbone, False)",
    ],
)
@pytest.mark.parametrize("unfreeze", [UNFREEZE, "model.requires_grad_(True)"])
def test_what_is_frozen_again_before_a_step(unfreeze: str, between: str) -> None:
    text = script(BUILT, unfreeze, between, BATCH)
    stays(text)
    assert rules(text.replace(textwrap.indent(between, "    "), "    pass")) == ["TRN604"]


def test_frozen_in_turns() -> None:
    frozen, unfrozen = (textwrap.indent(s, "    ") for s in (FREEZE, UNFREEZE))
    batch = textwrap.indent(BATCH, "    ")
    stays(script(FREEZE, BUILT, f"for epoch in range(4):\n{frozen}\n{batch}\n{unfrozen}"))


def test_frozen_only_while_the_optimizer_is_built() -> None:
    """Which is how to leave something out; the only one that takes steps is to have it all."""
    stays(script(FREEZE, BUILT, UNFREEZE, "return opt"))
    stays(script(FREEZE, BUILT, UNFREEZE, BATCH, "other.step()"))
    text = script(FREEZE, BUILT, UNFREEZE, BATCH, "scheduler.step()")
    (found,) = findings(text)
    fixed = found.fix("flag")
    assert found.rule == "TRN604" and fixed is not None and fixed.safety is Safety.SAFE
    text = script(FREEZE, BUILT, UNFREEZE, BATCH)
    assert not moved(text)["backbone.weight"] and all(moved(fix(text)).values())


def test_without_a_step_in_sight_somebody_should_look() -> None:
    (found,) = findings(script(BUILT, UNFREEZE, "return opt"))
    fixed = found.fix("flag")
    assert fixed is not None and fixed.safety is Safety.UNSAFE
    assert "no other optimizer" in fixed.look_at


TOLD = {
    "helper": "add_layers(opt, model.backbone)",
    "state": "callback(State(model=model, optimizer=opt))",
    "dict": "callback({'optimizer': opt})",
    "alias": "other = opt\ncallback()",
    "trains": "train_critic(x)",
}


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD.keys())
def test_what_something_else_may_do_with_the_optimizer(told: str) -> None:
    stays(script(FREEZE, BUILT, epochs(), told))
    stays(script(FREEZE, BUILT, UNFREEZE, BATCH, told))
    harmless = "print(opt)\nschedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)"
    assert rules(script(FREEZE, BUILT, epochs(), harmless)) == ["TRN604"]
