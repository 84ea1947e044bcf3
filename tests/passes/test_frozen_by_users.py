"""A forward under a scope whose module is frozen by all that have one, and one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import rules

from trainify.engine import Options, check_paths

HEAD = "import torch\nfrom torch import nn\n\n\n"
TOWER = """\
class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x):
        return self.patch(x).relu()


"""


def model(line: str, then: str = "pass") -> str:
    return f"""\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = {line}
        self.head = nn.Linear(8, 8)
        {then}

    def forward(self, x):
        return self.head(self.vision(x))
"""


GIVEN = """\
class Model(nn.Module):
    def __init__(self, tower):
        super().__init__()
        self.vision, self.head = tower, nn.Linear(8, 8)
        self.vision.requires_grad_(False)

    def forward(self, x):
        return self.head(self.vision(x))


def build():
    return MADE
"""
FROZEN = {
    "where it is made": model("Tower().requires_grad_(False)"),
    "and evaluated": model("Tower().eval().requires_grad_(False)"),
    "and moved": model('Tower().requires_grad_(False).to("cpu")'),
    "by a statement": model("Tower()", "self.vision.requires_grad_(False)"),
    "by a loop": model(
        "Tower()", "for p in self.vision.parameters():\n            p.requires_grad = False"
    ),
    "in a list": model("nn.ModuleList([Tower().requires_grad_(False) for _ in range(2)])"),
    "as a list": model("nn.ModuleList([Tower()])", "self.vision.requires_grad_(False)"),
    "who is given it": GIVEN.replace("MADE", "Model(Tower())"),
    "who is given it by name": GIVEN.replace("MADE", "Model(tower=Tower().eval())"),
    "under a name": GIVEN.replace("        self.vision.requires_grad_(False)\n", "").replace(
        "return MADE",
        "tower = Tower()\n    tower.requires_grad_(False)\n    return Model(tower)",
    ),
}
LEARNS = {
    "nothing freezes it": model("Tower()"),
    "eval() freezes nothing": model("Tower().eval()"),
    "another part is frozen": model("Tower()", "self.head.requires_grad_(False)"),
    "one of two": model("Tower().requires_grad_(False)", "self.second = Tower()"),
    "its name is freed": model("Tower().requires_grad_(True)"),
    "who is given it frees it": GIVEN.replace("MADE", "Model(Tower())").replace(
        "requires_grad_(False)", "requires_grad_(True)"
    ),
}


@pytest.mark.parametrize("user", FROZEN.values(), ids=FROZEN)
def test_the_scope_of_a_frozen_tower_is_meant(user: str) -> None:
    assert "TRN201" not in rules(HEAD + TOWER + user)


@pytest.mark.parametrize("user", LEARNS.values(), ids=LEARNS)
def test_a_tower_that_one_user_trains_is_reported(user: str) -> None:
    assert "TRN201" in rules(HEAD + TOWER + user)


@pytest.mark.parametrize("second", [False, True], ids=["frozen by all", "trained by another"])
def test_users_of_other_files(tmp_path: Path, second: bool) -> None:
    (tmp_path / "tower.py").write_text(HEAD + TOWER)
    head = HEAD.replace("\n\n\n", "\nfrom tower import Tower\n\n\n")
    (tmp_path / "model.py").write_text(head + model("Tower().requires_grad_(False)"))
    if second:
        (tmp_path / "other.py").write_text(head + model("Tower()"))
    found = [f.rule for r in check_paths([str(tmp_path)], Options()) for f in r.findings]
    assert ("TRN201" in found) is second
