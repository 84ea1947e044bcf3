"""Modes that are set by statements, held in names, or wrapped around what is called."""

from __future__ import annotations

import textwrap
import warnings
from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

HEAD = """\
import contextlib
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F


{top}class Model(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.body = nn.Linear(d, d)
        self.head = nn.Linear(d, d)
{more}
"""
FROZEN = "        self.llm = nn.Linear(d, d).requires_grad_(False)\n"


def model(body: str, top: str = "", more: str = "") -> str:
    top = f"{textwrap.dedent(top).strip()}\n\n\n" if top else ""
    return HEAD.format(top=top, more=more) + textwrap.indent(textwrap.dedent(body), "    ")


# -- several around all that a forward does -------------------------------------------------------

SEVERAL = {
    "one after the other": """\
    def forward(self, x):
        with torch.no_grad():
            h = self.body(x)
        with torch.no_grad():
            return self.head(h)
""",
    "of two kinds": """\
    def forward(self, x):
        with torch.no_grad():
            h = self.body(x)
        h = h * 2
        with torch.inference_mode():
            y = self.head(h)
        return y
""",
    "one in another": """\
    def forward(self, x):
        with torch.no_grad():
            h = self.body(x)
            with torch.no_grad():
                return self.head(h)
""",
}


@pytest.mark.parametrize("body", SEVERAL.values(), ids=SEVERAL)
def test_several_scopes_that_hold_all_of_the_work(body: str) -> None:
    text = model(textwrap.dedent(body))
    (finding,) = findings(text)
    assert finding.rule == "TRN201" and "the first of 2 scopes" in finding.message
    fixed = fix(text, unsafe=True)
    stays(fixed)
    for each, learns in ((text, False), (fixed, True)):
        scope: dict[str, Any] = {}
        exec(compile(each, "m.py", "exec"), scope)
        made = scope["Model"]()
        loss = made(torch.ones(2, 8)).sum()
        assert loss.requires_grad is learns
        if learns:
            loss.backward()
            assert all(p.grad is not None for p in made.parameters())
        assert not made.eval()(torch.ones(2, 8)).requires_grad


DERIVED = """\
    def size(self):
        return 8


class Derived(Model):
    def forward(self, x):
        with torch.{}():
            return self.head(self.body(x))
"""


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_block_around_layers_that_a_base_has(mode: str) -> None:
    text = HEAD.format(top="", more="") + DERIVED.format(mode)
    assert rules(text) == ["TRN201"]
    head = "self.head = nn.Linear(d, d)\n"
    stays(text.replace(head, f"{head}        self.requires_grad_(False)\n"))


def test_several_scopes_move_to_where_inference_starts() -> None:
    body = SEVERAL["one after the other"].replace(
        "            return self.head(h)\n",
        "            y = self.head(h)\n        return y\n\n"
        "    def generate(self, x):\n        return self(x).argmax(-1)\n",
    )
    becomes(
        model(textwrap.dedent(body)),
        model(
            """\
            def forward(self, x):
                h = self.body(x)
                y = self.head(h)
                return y

            @torch.no_grad()
            def generate(self, x):
                return self(x).argmax(-1)
            """
        ),
    )


def test_what_is_in_no_scope_learns() -> None:
    text = model(textwrap.dedent(SEVERAL["of two kinds"])).replace("h = h * 2", "h = self.tail(h)")
    tail = "        self.head = nn.Linear(d, d)\n"
    found = findings(text.replace(tail, f"{tail}        self.tail = nn.Linear(d, d)\n"))
    assert "TRN201" not in {each.rule for each in found}


def test_what_a_list_takes_from_a_part_is_to_be_looked_at() -> None:
    body = """\
    def forward(self, x):
        with torch.no_grad():
            h = self.body(x)
            k = h.sum(0).{0}
            return self.head(h) * k[0]

    def generate(self, x):
        return self(x).argmax(-1)
"""
    (finding,) = findings(model(textwrap.dedent(body.format("tolist()"))))
    assert finding.fixes["flag"].safety == "unsafe"
    assert "`h.sum(0).tolist()` (line 18) gives a constant" in finding.fixes["flag"].look_at
    (finding,) = findings(model(textwrap.dedent(body.format("flatten()"))))
    assert finding.fixes["flag"].safety == "safe"


# -- around all that a forward does ---------------------------------------------------------------

WHOLE = [
    """\
    def forward(self, x):
        off = torch.no_grad()
        with off:
            return self.head(self.body(x))
    """,
    """\
    off = torch.no_grad()

    def forward(self, x):
        with self.off:
            return self.head(self.body(x))
    """,
    """\
    def forward(self, x):
        torch.set_grad_enabled(False)
        y = self.head(self.body(x))
        torch.set_grad_enabled(True)
        return y
    """,
    """\
    def forward(self, x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        try:
            return self.head(self.body(x))
        finally:
            torch.set_grad_enabled(before)
    """,
    """\
    def forward(self, x):
        scope = torch.no_grad()
        scope.__enter__()
        y = self.head(self.body(x))
        scope.__exit__(None, None, None)
        return y
    """,
    """\
    def forward(self, x):
        stack = contextlib.ExitStack()
        stack.enter_context(torch.no_grad())
        y = self.head(self.body(x))
        stack.close()
        return y
    """,
    """\
    def forward(self, x):
        stack = contextlib.ExitStack()
        stack.enter_context(torch.no_grad())
        with stack:
            return self.head(self.body(x))
    """,
    """\
    def forward(self, x):
        return torch.no_grad()(self.head)(x)
    """,
    """\
    def forward(self, x):
        return torch.inference_mode()(lambda: self.head(self.body(x)))()
    """,
    """\
    def forward(self, x):
        return torch.no_grad(self.head)(x)
    """,
    """\
    def _run(self, x):
        return self.head(self.body(x))

    forward = torch.no_grad()(_run)
    """,
]


@pytest.mark.parametrize("body", WHOLE)
def test_a_scope_of_any_form_around_a_forward(body: str) -> None:
    assert rules(model(body)) == ["TRN201"]


@pytest.mark.parametrize("body", WHOLE)
def test_what_becomes_of_it_records_in_training_only(body: str) -> None:
    """Run the result; what cannot be repaired is left as it is."""
    text = model(body)
    fixed = fix(text, unsafe=True)
    if "__enter__" in body:
        assert fixed == text
        return
    scope: dict[str, type] = {}
    exec(compile(fixed, "m.py", "exec"), scope)
    x = torch.ones(2, 8)
    for training in (True, False):
        made = scope["Model"]().train(training)
        with torch.enable_grad():
            assert made(x).requires_grad is training
        with torch.no_grad():
            assert not made(x).requires_grad


# -- on a stack that no with opens ----------------------------------------------------------------

STEP = """\
import contextlib
import torch
import torch.nn.functional as F


def step(model, teacher, x, y):
{body}
    loss.backward()
"""


@pytest.mark.parametrize("end", ["stack.close()", "stack.__exit__(None, None, None)"])
def test_a_loss_on_a_stack(end: str) -> None:
    """The stack goes with what it was for; it stays where it holds something else."""
    lines = [
        "stack = contextlib.ExitStack()",
        "stack.enter_context(torch.no_grad())",
        "loss = F.cross_entropy(model(x), y)",
        end,
    ]
    text = STEP.format(body=textwrap.indent("\n".join(lines), "    "))
    (finding,) = findings(text)
    assert finding.rule == "TRN202" and "`torch.no_grad()`" in finding.message
    assert fix(text, unsafe=True) == STEP.format(body=f"    {lines[2]}")
    lines.insert(1, "stack.enter_context(open('log'))")
    text = STEP.format(body=textwrap.indent("\n".join(lines), "    "))
    assert fix(text, unsafe=True) == text.replace(f"    {lines[2]}\n", "")


@pytest.mark.parametrize(
    "lines",
    [
        # over when the loss is computed
        [
            "stack = contextlib.ExitStack()",
            "stack.enter_context(torch.no_grad())",
            "target = teacher(x)",
            "stack.close()",
            "loss = F.mse_loss(model(x), target)",
        ],
        [
            "stack = contextlib.ExitStack()",
            "stack.enter_context(torch.no_grad())",
            "with stack:",
            "    target = teacher(x)",
            "loss = F.mse_loss(model(x), target)",
        ],
        # another stack's, or nothing's
        [
            "stack = contextlib.ExitStack()",
            "stack.enter_context(open('log'))",
            "loss = F.cross_entropy(model(x), y)",
            "stack.close()",
        ],
    ],
)
def test_right_stacks(lines: list[str]) -> None:
    stays(STEP.format(body=textwrap.indent("\n".join(lines), "    ")))


FORWARD = "def forward(self, x):\n    return self.head(self.body(x))\n"
WRAPS = """\
def frozen(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        {body}
    return inner
"""


@pytest.mark.parametrize(
    "top",
    [
        "frozen = torch.no_grad()",
        WRAPS.format(body="with torch.no_grad():\n            return fn(*args, **kwargs)"),
        WRAPS.format(
            body="with torch.inference_mode():\n            y = fn(*args, **kwargs)\n        return y"
        ),
        WRAPS.format(
            body="torch.set_grad_enabled(False)\n        y = fn(*args, **kwargs)\n"
            "        torch.set_grad_enabled(True)\n        return y"
        ),
    ],
)
def test_decorators_under_a_name_of_their_own(top: str) -> None:
    assert rules(model(f"@frozen\n{FORWARD}", top)) == ["TRN201"]


@pytest.mark.parametrize(
    "body",
    [
        "return fn(*args, **kwargs)",
        "with torch.no_grad():\n            print(args)\n        return fn(*args, **kwargs)",
        "torch.set_grad_enabled(True)\n        return fn(*args, **kwargs)",
        "with torch.set_grad_enabled(FLAG):\n            return fn(*args, **kwargs)",
        "y = 0\n        with torch.no_grad():\n            y = args[0]\n"
        "        y += fn(*args, **kwargs)\n        return y",
    ],
)
def test_decorators_that_leave_gradients_on(body: str) -> None:
    stays(model(f"@frozen\n{FORWARD}", WRAPS.format(body=body)))


@pytest.mark.parametrize(
    ("decorator", "expected"),
    [
        ("cls.forward = torch.no_grad()(cls.forward)\n    return cls", ["TRN201"]),
        (
            "run = cls.forward\n\n    def forward(self, x):\n        with torch.no_grad():\n"
            "            return run(self, x)\n\n    cls.forward = forward\n    return cls",
            ["TRN201"],
        ),
        ("cls.predict = torch.no_grad()(cls.forward)\n    return cls", []),
        ("return cls", []),
    ],
)
def test_own_decorators_of_a_class(decorator: str, expected: list[str]) -> None:
    top = f"def frozen(cls):\n    {decorator}\n"
    text = model(FORWARD, top).replace("class Model", "@frozen\nclass Model")
    found = findings(text)
    assert [f.rule for f in found] == expected and not any(f.fixes for f in found)


def test_a_mode_on_a_class_is_only_about_making_an_object() -> None:
    text = model(FORWARD).replace("class Model", "@torch.no_grad()\nclass Model")
    stays(text)
    scope: dict[str, type] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        exec(compile(text, "m.py", "exec"), scope)
        assert scope["Model"]()(torch.ones(1, 8)).requires_grad


# -- between what is trained and the result -------------------------------------------------------

BETWEEN = [
    """\
    def forward(self, x):
        h = self.body(x)
        torch.set_grad_enabled(False)
        y = self.llm(h)
        torch.set_grad_enabled(True)
        return y
    """,
    """\
    def forward(self, x):
        h = self.body(x)
        return torch.no_grad()(self.llm)(h)
    """,
    """\
    def forward(self, x):
        h = self.body(x)
        return torch.no_grad()(lambda: self.llm(h))()
    """,
    """\
    def forward(self, x):
        frozen = torch.no_grad()(self.llm)
        return frozen(self.body(x))
    """,
]


@pytest.mark.parametrize("body", BETWEEN)
def test_a_scope_of_any_form_on_the_only_way(body: str) -> None:
    text = model(body, more=FROZEN)
    assert rules(text) == ["TRN206"]
    fixed = fix(text)
    assert "no_grad" not in fixed and "grad_enabled" not in fixed


@pytest.mark.parametrize(
    "body",
    [
        # what is wrapped comes first
        """\
        def forward(self, x):
            return self.head(torch.no_grad()(self.llm)(x))
        """,
        """\
        def forward(self, x):
            torch.set_grad_enabled(False)
            h = self.llm(x)
            torch.set_grad_enabled(True)
            return self.head(h)
        """,
        # on again before
        """\
        def forward(self, x):
            h = self.body(x)
            torch.set_grad_enabled(False)
            n = h.norm()
            torch.set_grad_enabled(True)
            print(n)
            return self.llm(h)
        """,
        # only sometimes
        """\
        def forward(self, x, frozen):
            h = self.body(x)
            if frozen:
                torch.set_grad_enabled(False)
            y = self.llm(h)
            torch.set_grad_enabled(True)
            return y
        """,
        """\
        def forward(self, x, frozen):
            h = self.body(x)
            torch.set_grad_enabled(not frozen)
            return self.llm(h)
        """,
        """\
        def forward(self, x):
            h = self.body(x)
            for _ in range(3):
                h = self.llm(h)
                torch.set_grad_enabled(False)
                print(h.norm())
                torch.set_grad_enabled(True)
            return h
        """,
        # a teacher beside
        """\
        def forward(self, x):
            target = torch.no_grad()(self.llm)(self.body(x))
            return F.mse_loss(self.head(self.body(x)), target)
        """,
        # statistics
        """\
        def forward(self, x):
            y = self.llm(self.body(x))
            self.norm = torch.no_grad()(torch.norm)(y)
            return y
        """,
    ],
)
def test_meant_so(body: str) -> None:
    stays(model(body, more=FROZEN))


# -- losses ---------------------------------------------------------------------------------------


def step(body: str, top: str = "") -> str:
    body = textwrap.indent(textwrap.dedent(body), "    ")
    top = f"{textwrap.dedent(top).strip()}\n\n\n" if top else ""
    head = "import torch\nimport torch.nn.functional as F\n\n\n"
    return f"{head}{top}def step(model, teacher, x, y):\n{body}"


@pytest.mark.parametrize(
    ("body", "top"),
    [
        ("loss = F.cross_entropy(torch.no_grad()(model)(x), y)", ""),
        ("torch.set_grad_enabled(False)\nout = model(x)\ntorch.set_grad_enabled(True)\n"
         "loss = F.cross_entropy(out, y)", ""),
        ("off = torch.no_grad()\nwith off:\n    out = model(x)\nloss = F.cross_entropy(out, y)", ""),
        ("loss = loss_of(model, x, y)", """\
        def loss_of(model, x, y):
            with torch.no_grad():
                loss = F.cross_entropy(model(x), y)
            return loss
        """),
        ("loss = loss_of(model, x, y) / 4", """\
        def loss_of(model, x, y):
            with torch.no_grad():
                logits = model(x)
            return F.cross_entropy(logits, y)
        """),
        ("loss = outer(model, x, y)", """\
        def outer(model, x, y):
            return 2 * loss_of(model, x, y)


        def loss_of(model, x, y):
            torch.set_grad_enabled(False)
            logits = model(x)
            torch.set_grad_enabled(True)
            return F.cross_entropy(logits, y)
        """),
    ],
)  # fmt: skip
def test_a_loss_under_a_scope_of_any_form(body: str, top: str) -> None:
    text = step(f"{body}\nloss.backward()\n", top)
    assert rules(text) == ["TRN202"]
    fixed = fix(text, unsafe=True).replace("off = torch.no_grad()", "")
    assert "no_grad" not in fixed and "grad_enabled" not in fixed and "off" not in fixed


@pytest.mark.parametrize(
    ("body", "top"),
    [
        ("loss = F.mse_loss(model(x), torch.no_grad()(teacher)(x))", ""),
        ("torch.set_grad_enabled(False)\nt = teacher(x)\ntorch.set_grad_enabled(True)\n"
         "loss = F.mse_loss(model(x), t)", ""),
        ("loss = loss_of(model, teacher, x)", """\
        def loss_of(model, teacher, x):
            with torch.no_grad():
                target = teacher(x)
            return F.mse_loss(model(x), target)
        """),
        ("loss = F.mse_loss(model(x), target_of(teacher, x))", """\
        def target_of(teacher, x):
            with torch.no_grad():
                target = teacher(x)
            return target
        """),
        ("loss = loss_of(model, x, y)", """\
        def loss_of(model, x, y):
            loss = F.cross_entropy(model(x), y)
            with torch.no_grad():
                metric = loss.exp()
            print(metric)
            return loss
        """),
        ("loss = total(model, x)", """\
        def total(model, x):
            with torch.no_grad():
                loss = torch.zeros(())
            for v in x:
                loss += model(v).mean()
            return loss
        """),
        ("loss = scaled(model(x).mean())", """\
        def scaled(loss):
            with torch.no_grad():
                weight = 1 / loss.norm()
            return weight * loss
        """),
    ],
)  # fmt: skip
def test_losses_that_have_a_graph(body: str, top: str) -> None:
    stays(step(f"{body}\nloss.backward()\n", top))


def test_a_kernel_between_two_switches_is_right() -> None:
    text = """\
        import torch
        import vllm._custom_ops as ops


        def forward(x, out, w):
            torch.set_grad_enabled(False)
            ops.rms_norm(out, x, w, 1e-6)
            torch.set_grad_enabled(True)
            {later}return out
        """
    stays(text.format(later=""))
    later = "ops.rms_norm(out, x, w, 1e-6)\n            "
    assert [f.line for f in findings(text.format(later=later))] == [9]


# -- what becomes of them -------------------------------------------------------------------------

ENTRY = """\
    def forward(self, x):
        torch.set_grad_enabled(False)
        # logits
        y = self.head(self.body(x))
        torch.set_grad_enabled(True)
        return y

    def generate(self, x):
        return self(x).argmax(-1)
"""


def test_a_pair_of_switches_moves_to_where_inference_starts() -> None:
    becomes(
        model(ENTRY),
        model(
            ENTRY.replace("        torch.set_grad_enabled(False)\n", "")
            .replace("        torch.set_grad_enabled(True)\n", "")
            .replace("    def generate", "    @torch.set_grad_enabled(False)\n    def generate")
        ),
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.set_grad_enabled(True)", "torch.set_grad_enabled(before)"),
        (
            "y = self.head(self.body(x))\n        torch.set_grad_enabled(True)",
            "try:\n            y = self.head(self.body(x))\n        finally:\n"
            "            torch.set_grad_enabled(True)",
        ),
    ],
)
def test_switches_that_cannot_be_taken_away_are_reported(before: str, after: str) -> None:
    text = model(ENTRY.replace(before, after))
    (finding,) = findings(text)
    assert finding.rule == "TRN201" and not finding.fixes


@pytest.mark.parametrize("wrapped", ["self.llm", "self.llm if x.ndim else self.llm", "lambda h: h"])
def test_what_was_wrapped_stays_one_expression(wrapped: str) -> None:
    text = model(
        f"""\
        def forward(self, x):
            h = self.body(x)
            return torch.no_grad()({wrapped})(h)
        """,
        more=FROZEN,
    )
    fixed = fix(text, unsafe=True)
    inner = wrapped if wrapped == "self.llm" else f"({wrapped})"
    assert f"return {inner}(h)\n" in fixed


def test_what_else_stands_between_two_switches_is_to_be_looked_at() -> None:
    text = model(BETWEEN[0], more=FROZEN)
    assert findings(text)[0].fixes["flag"].safety == "safe"
    (finding,) = findings(
        text.replace("y = self.llm", "torch.manual_seed(0)\n        y = self.llm")
    )
    assert finding.fixes["flag"].safety == "unsafe" and "records" in finding.fixes["flag"].look_at
