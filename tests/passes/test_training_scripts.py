"""Training scripts in the style of real repositories: right as they stand, nothing to report.

Each is run: it takes a few steps, and all that is to be trained has changed.  With one scope,
detach or optimizer misplaced, it fails or leaves something untrained, and that is found where it
stands.
"""

from __future__ import annotations

import copy
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from trainify.engine import check_text

SCRIPTS = sorted((Path(__file__).parent / "training_scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_nothing_to_report(script: Path) -> None:
    found = check_text(script.read_text(), str(script))
    assert not found, [f"{f.line}: {f.rule} {f.message}" for f in found]


def idle(script: Path) -> list[str]:
    """The parameters that a run of a script was to train, and did not."""
    torch.manual_seed(0)
    scope = runpy.run_path(str(script))
    model = scope["build"]()
    before = copy.deepcopy(model.state_dict())
    scope["train"](model)
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and (
            torch.equal(parameter, before[name]) if name in before else bool((parameter == 0).all())
        )
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_trains(script: Path) -> None:
    assert idle(script) == []


@dataclass(frozen=True)
class Mutant:
    """``before`` becomes ``after`` in a script; ``rule`` is found at the line with ``mark``."""

    script: str
    before: str
    after: str
    rule: str
    mark: str
    trains: bool = False
    """Whether everything is trained in the end, by a later phase."""


MUTANTS = (
    Mutant(
        "ddpm",
        "        pred = model(noisy, t, condition)\n",
        "        with torch.no_grad():  # here\n            pred = model(noisy, t, condition)\n",
        "TRN202",
        "# here",
    ),
    Mutant(
        "grpo",
        "        logps = get_logps(self.model, ids)\n        ratio",
        "        with torch.no_grad():  # here\n            logps = get_logps(self.model, ids)\n"
        "        ratio",
        "TRN202",
        "# here",
    ),
    Mutant(
        "ppo",
        "    with torch.no_grad():\n        for _ in range(episodes):",
        "    torch.set_grad_enabled(False)\n    if episodes:\n        for _ in range(episodes):",
        "TRN204",
        "torch.set_grad_enabled(False)",
    ),
    Mutant(
        "early_stopping",
        "        torch.set_grad_enabled(True)\n",
        "",
        "TRN204",
        "torch.set_grad_enabled(False)",
    ),
    Mutant(
        "early_stopping",
        "    def forward(self, x):\n",
        "    @torch.no_grad()\n    def forward(self, x):\n",
        "TRN201",
        "@torch.no_grad()",
    ),
    Mutant(
        "flow_matching",
        "return self.net(torch.cat([x, t], dim=-1))",
        "return self.net(torch.cat([x, t], dim=-1)).detach()",
        "TRN301",
        ".detach()",
    ),
    Mutant(
        "lora",
        "    model.q_proj = LoRALinear(model.q_proj)\n"
        "    model.v_proj = LoRALinear(model.v_proj)\n"
        "    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], "
        "lr=1e-2)\n",
        "    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], "
        "lr=1e-2)\n"
        "    model.q_proj = LoRALinear(model.q_proj)\n"
        "    model.v_proj = LoRALinear(model.v_proj)\n",
        "TRN604",
        "optimizer = torch.optim",
    ),
    Mutant(
        "amp_accumulation",
        "            with torch.autocast(\"cpu\", dtype=torch.bfloat16):\n"
        "                logits = model(x)\n",
        "            with torch.autocast(\"cpu\", dtype=torch.bfloat16), torch.no_grad():  # here\n"
        "                logits = model(x)\n",
        "TRN202",
        "loss = F.cross_entropy",
    ),
    Mutant(
        "vqvae",
        "        loss = F.mse_loss(z_q, z.detach()) + self.beta * F.mse_loss(z_q.detach(), z)\n"
        "        z_q = z + (z_q - z).detach()\n",
        "        z_q = z + (z_q - z).detach()\n"
        "        loss = F.mse_loss(z_q, z.detach()) + self.beta * F.mse_loss(z_q.detach(), z)\n",
        "TRN303",
        "loss = F.mse_loss(z_q",
    ),
    Mutant(
        "metric_logging",
        "        loss = criterion(output, target)\n",
        "        loss = torch.tensor(criterion(output, target).item(), requires_grad=True)\n",
        "TRN302",
        "loss = torch.tensor(",
    ),
    Mutant(
        "linear_probe",
        "return self.head(z[:, self.order.clone()])",
        "return self.head(z[:, self.order.clone()]) * self.mean[:3]",
        "TRN205",
        "@torch.inference_mode()\n    def build_tables",
    ),
    Mutant(
        "captioner",
        "        return self.llm(torch.cat(",
        "        with torch.no_grad():  # here\n            return self.llm(torch.cat(",
        "TRN206",
        "# here",
    ),
    Mutant(
        "captioner",
        "        return self.llm(torch.cat(",
        "        return torch.no_grad()(self.llm)(torch.cat(",
        "TRN206",
        "return torch.no_grad()",
    ),
    Mutant(
        "dpo",
        "        policy_chosen, policy_rejected = concatenated_forward(policy, batch)\n"
        "        with torch.no_grad():\n",
        "        with torch.no_grad():\n"
        "            policy_chosen, policy_rejected = concatenated_forward(policy, batch)\n",
        "TRN202",
        "with torch.no_grad():",
    ),
    Mutant(
        "maml",
        "            meta_loss = meta_loss + F.mse_loss(functional_call(model, adapted, (x_query,)), "
        "y_query)\n",
        "            with torch.no_grad():  # here\n"
        "                out = functional_call(model, adapted, (x_query,))\n"
        "            meta_loss = meta_loss + F.mse_loss(out, y_query)\n",
        "TRN202",
        "# here",
    ),
    Mutant(
        "adversarial",
        "            clean_probs = model(x).softmax(-1)\n        logits = model(x_adv)\n",
        "            clean_probs = model(x).softmax(-1)\n            logits = model(x_adv)\n",
        "TRN202",
        "with torch.no_grad():\n            clean",
    ),
    Mutant(
        "dqn",
        "        q = q_net(states).gather(1, actions[:, None]).squeeze(1)\n"
        "        with torch.no_grad():\n",
        "        with torch.no_grad():  # here\n"
        "            q = q_net(states).gather(1, actions[:, None]).squeeze(1)\n",
        "TRN202",
        "# here",
    ),
    Mutant(
        "truncated_bptt",
        "        self.state = (h.detach(), c.detach())\n",
        "        self.state = (h, c)\n",
        "TRN408",
        "self.state = (h, c)",
    ),
    Mutant(
        "gradual_unfreezing",
        "    run_epoch(model, optimizer)\n    for p in model.body.parameters():\n"
        "        p.requires_grad = True\n"
        "    optimizer.add_param_group({\"params\": model.body.parameters(), \"lr\": 1e-3})\n",
        "    for p in model.body.parameters():\n        p.requires_grad = True\n",
        "TRN604",
        "optimizer = torch.optim.Adam(",
        trains=True,
    ),
)  # fmt: skip


def mutated(mutant: Mutant) -> str:
    (script,) = (path for path in SCRIPTS if path.stem == mutant.script)
    text = script.read_text()
    assert text.count(mutant.before) == 1
    return text.replace(mutant.before, mutant.after)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.script}-{m.rule}")
def test_one_misplaced_line_is_found(mutant: Mutant) -> None:
    text = mutated(mutant)
    line = text[: text.index(mutant.mark)].count("\n") + 1
    found = check_text(text, "m.py")
    assert {f.line for f in found} == {line} and mutant.rule in {f.rule for f in found}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.script}-{m.rule}")
def test_one_misplaced_line_keeps_it_from_learning(mutant: Mutant, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(mutated(mutant))
    try:
        found = idle(tmp_path / "script.py")
    except RuntimeError:
        return
    finally:
        torch.set_grad_enabled(True)
    assert found or mutant.trains
