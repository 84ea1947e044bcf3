"""In-place results: what backward needs is not overwritten, out= is not used with gradients."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

HEAD = (
    "import torch\nfrom torch import nn\n\n\nclass Head(nn.Module):\n    def forward(self, x, w):\n"
)


def body(*lines: str) -> str:
    return HEAD + "".join(f"        {line}\n" for line in lines)


def test_a_capped_logit() -> None:
    becomes(
        body("x.div_(30.0)", "torch.tanh(x, out=x)", "x.mul_(30.0)", "return x"),
        body(
            "x.div_(30.0)",
            "if torch.is_grad_enabled() and x.requires_grad:",
            "    x = torch.tanh(x)",
            "    x = x * 30.0",
            "else:",
            "    torch.tanh(x, out=x)",
            "    x.mul_(30.0)",
            "return x",
        ),
    )


def test_an_output_buffer() -> None:
    becomes(
        body("y = torch.empty(4, 4)", "torch.matmul(x, w, out=y)", "return y"),
        body("y = torch.matmul(x, w)", "return y"),
        strategy="replace",
    )


@pytest.mark.parametrize(
    "statement", ["y.mul_(2.0)", "y *= 2.0", "y.add_(1.0, alpha=2)", "y.clamp_(min=0.0)"]
)
def test_an_in_place_change_of_a_saved_result(statement: str) -> None:
    assert rules(body("y = torch.sigmoid(x)", statement, "return y")) == ["TRN403"]


@pytest.mark.parametrize(
    "lines",
    [
        ("y = x @ w", "y *= 2.0", "return y"),  # a matmul does not save its result
        ("y = torch.sigmoid(x)", "y = y + 1.0", "y *= 2.0", "return y"),
        ("y = torch.sigmoid(x)", "z = y * 2.0", "z.add_(1.0)", "return z"),
        ("with torch.no_grad():", "    torch.tanh(x, out=x)", "return x"),
        ("y = x.tanh()", "y.requires_grad_(True)", "return y"),
    ],
)
def test_right_as_it_is(lines: tuple[str, ...]) -> None:
    stays(body(*lines))


def test_a_write_that_autograd_does_not_see() -> None:
    (finding,) = findings(body("y = torch.softmax(x, -1)", "y.data[:, 0] = 0.0", "return y"))
    assert finding.rule == "TRN403" and "does not notice" in finding.message


def test_a_buffer_that_something_was_written_into_is_no_constant() -> None:
    lines = ("y = torch.zeros(4)", "y += x @ w", "y = torch.tanh(y)", "y.mul_(2.0)", "return y")
    assert rules(body(*lines)) == ["TRN403"]


def test_a_sampler_without_gradients_stays() -> None:
    stays(
        """\
import torch


class Sampler(torch.nn.Module):
    @torch.no_grad()
    def forward(self, logits, temps):
        p = torch.softmax(logits, -1, dtype=torch.float)
        p.div_(torch.empty_like(p).exponential_(1))
        return p.argmax(-1)
"""
    )


def test_functions_that_a_backward_is_written_for_are_left_alone() -> None:
    stays(
        """
        import torch
        from torch import nn

        def project(x, weight):
            out = torch.empty(x.shape[0], weight.shape[0])
            torch.mm(x, weight.t(), out=out)
            return out

        class Projection(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return project(x, weight)

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                return grad @ weight, grad.t() @ x

        class Head(nn.Module):
            def forward(self, x):
                return Projection.apply(x, self.weight)
        """
    )


@pytest.mark.parametrize(
    "text",
    [
        """\
class TopKSampler(nn.Module):
    def forward(self, logits, k):
        probs = torch.softmax(logits, dim=-1)
        probs[..., k:] = 0.0
        return torch.multinomial(probs, 1)
""",
        """\
class Model(nn.Module):
    def forward(self, x):
        return self.head(x)

    def sample(self, logits):
        probs = torch.softmax(logits, dim=-1)
        probs[..., 3:] = 0.0
        return torch.multinomial(probs, 1)
""",
        """\
class LogMelSpectrogram(nn.Module):
    def forward(self, x):
        power = x.pow(2)
        x /= power.sum()
        return x
""",
        """\
class Head(nn.Module):
    def forward(self, logits):
        probs = torch.softmax(logits, dim=-1)
        probs[..., 0] = 0.0
        return probs.argmax(dim=-1)
""",
    ],
)
def test_what_no_loss_is_computed_from_stays(text: str) -> None:
    stays("import torch\nfrom torch import nn\n\n\n" + text)


LAYER = """\
import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        {made}

    def forward(self, x):
        h = torch.tanh(self.dense(x))
        h.mul_(2.0)
        return h
"""


@pytest.mark.parametrize(
    "made",
    [
        "self.dense = nn.Linear(d, d)",
        "self.dense = nn.Sequential(nn.Conv1d(d, d, 1), nn.ReLU())",
        "self.dense = ConvBlock(d)",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "BertPredictionHeadTransform",
        "ConvFeatureExtractor",
        "FeatureExtractor",
        "GraphProcessor",
        "MelGANGenerator",
        "UpSampleBlock",
    ],
)
def test_a_layer_named_like_a_step_of_the_data_s(name: str, made: str) -> None:
    assert rules(LAYER.format(name=name, made=made)) == ["TRN403"]


@pytest.mark.parametrize(
    "name, made",
    [
        ("TopKSampler", "self.dense = nn.Linear(d, d)"),
        ("NoiseScheduler", "self.dense = nn.Linear(d, d)"),
        ("MelFrontend", "self.dense = MelSpectrogram(d)"),
        ("FeatureExtractor", "self.dense = torch.fft.rfft"),
    ],
)
def test_a_step_of_the_data_s_stays(name: str, made: str) -> None:
    stays(LAYER.format(name=name, made=made))


def test_a_network_of_logits() -> None:
    assert rules(
        """\
            import torch
            from torch import nn

            class LogitsProcessor(nn.Module):
                def __init__(self, config):
                    super().__init__()
                    self.cap = config.cap

                def forward(self, hidden_states, weight):
                    logits = torch.matmul(hidden_states, weight.T)
                    torch.tanh(logits, out=logits)
                    return logits
            """
    ) == ["TRN402"]


UNET = """\
import torch
from torch import nn


class UNet(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.conv = nn.Linear(d, d)

    def predict_noise(self, x):
        h = torch.sigmoid(self.conv(x))
        h += 1.0
        return h

    def forward(self, x):
        return {forward}

    def sample(self, x):
        return self.predict_noise(x)
"""


def test_a_prediction_that_forward_asks_for() -> None:
    assert rules(UNET.format(forward="self.predict_noise(x)")) == ["TRN403"]


@pytest.mark.parametrize(
    "forward", ["self.conv(x)", "self.conv(x) if self.training else self.predict_noise(x)"]
)
def test_a_prediction_that_only_a_sampler_asks_for(forward: str) -> None:
    stays(UNET.format(forward=forward))


def test_the_inference_form_of_a_forward_stays() -> None:
    text = UNET.format(forward="self.predict_noise(x)")
    stays(text.replace("predict_noise", "_inference_forward"))


@pytest.mark.parametrize(
    "lines, fixed",
    [
        (("r = torch.exp(x, out=b)", "return r"), "r = torch.exp(x)"),
        (("return torch.exp(x, out=b)",), "return torch.exp(x)"),
        (("y = x + torch.exp(x, out=b)", "return y"), "y = x + torch.exp(x)"),
        (("y = torch.matmul(x, w, out=torch.empty(3, 3))", "return y"), "y = torch.matmul(x, w)"),
        (("big = torch.zeros(9, 3)", "torch.add(x, 1, out=big[:3])", "return big"), "big[:3] = "),
    ],
)
def test_a_second_call_with_out(lines: tuple[str, ...], fixed: str) -> None:
    text = body("b = torch.empty_like(x)", "torch.mul(x, 2.0, out=b)", *lines)
    assert rules(text) == ["TRN402", "TRN402"]
    after = fix(text, strategy="replace", unsafe=True)
    assert fixed in after
    assert "out=" not in after


def test_a_result_in_a_buffer_without_a_name_is_reported() -> None:
    text = body(
        "b = torch.empty_like(x)",
        "torch.mul(x, 2.0, out=b)",
        "torch.matmul(x, w, out=torch.empty(3, 3))",
        "return b",
    )
    assert rules(text) == ["TRN402", "TRN402"]
    assert rules(fix(text)) == ["TRN402"]


def test_a_buffer_keeps_its_dtype() -> None:
    fixed = fix(body("torch.exp(x, out=x)", "return x"), strategy="replace")
    assert "x = torch.exp(x).to(x.dtype)" in fixed


def test_a_scale_of_integer_codes_stays() -> None:
    """No gradient gets past the codes, so the scale is not what is to be repaired."""
    lines = (
        "s = torch.linalg.vector_norm(x, ord=float('inf'), dim=1, keepdim=True)",
        "s = s.clamp_(min=1e-12).div_(127.0)",
        "codes = torch.mul(x, s.reciprocal()).round_().to(torch.int8)",
        "return torch._int_mm(codes, w).mul(s)",
    )
    stays(body(*lines))
    assert rules(body(*lines[:2], "return x / s")) == ["TRN403"]


@pytest.mark.parametrize(
    "made",
    [
        "torch.zeros(x.shape[0] + 1, dtype=torch.int32, device=x.device)",
        "torch.empty(x.shape, dtype=x.dtype, pin_memory=True)",
    ],
)
def test_buffers_for_integers_and_for_the_way_to_a_device_stay(made: str) -> None:
    lines = ("ends = {}", "torch.cumsum(x, 0, out=ends[1:])", "return ends")
    stays(body(*lines).format(made))
    assert rules(body(*lines).format("torch.zeros(x.shape[0] + 1)")) == ["TRN402"]


NOTED = """\
import torch
from torch import nn


class Base(nn.Module):
    def keep(self, t):
        self.kept = t

    @staticmethod
    def put(t, where):
        where.kept = t


class Net(Base):
    def __init__(self, d):
        super().__init__()
        self.linear = nn.Linear(d, d)

    def note(self, t):
        self.keep(t[None])

    def forward(self, x):
        y = torch.exp(self.linear(x))
        self.note(y)
        y *= 3
        return (self.kept * y).sum()
"""


@pytest.mark.parametrize("strategy", ["flag", "replace"])
@pytest.mark.parametrize(
    "call", ["self.note(y)", "self.note(t=y)", "self.keep(y)", "self.put(y, self)"]
)
def test_what_a_method_keeps_sees_the_write(strategy: str, call: str) -> None:
    """The expected gradient is that of the values: ``kept`` and ``y`` are one tensor."""
    text = NOTED.replace("self.note(y)", call)
    fixed = fix(text, strategy=strategy)
    assert fixed != text
    scope: dict[str, Any] = {}
    exec(compile(fixed, "m.py", "exec"), scope)
    torch.manual_seed(0)
    net, x = scope["Net"](4), torch.randn(3, 4)
    loss = net(x)
    loss.backward()
    weight = net.linear.weight.detach().clone().requires_grad_()
    right = (3 * torch.exp(torch.nn.functional.linear(x, weight, net.linear.bias))).square().sum()
    torch.testing.assert_close(loss, right)
    (grad,) = torch.autograd.grad(right, weight)
    torch.testing.assert_close(net.linear.weight.grad, grad)


def test_what_a_method_only_looks_at_is_bound_anew() -> None:
    text = NOTED.replace("self.keep(t[None])", "self.size = t.shape[0]")
    assert "clone()" not in fix(text.replace("self.kept * y", "y"))


def test_one_clone_is_enough_for_all_pieces() -> None:
    becomes(
        body("y = torch.relu(x)", "y[:, :2] = 0", "y[:, -2:] = 0", "return y.pow(2)"),
        body(
            "y = torch.relu(x)",
            "if torch.is_grad_enabled() and y.requires_grad:",
            "    y = y.clone()",
            "y[:, :2] = 0",
            "y[:, -2:] = 0",
            "return y.pow(2)",
        ),
    )


def test_a_clone_in_one_branch_does_not_help_the_other() -> None:
    lines = (
        "y = torch.relu(x)",
        "if w:",
        "    y[:, 0] = 0",
        "else:",
        "    y[:, 1] = 0",
        "return y",
    )
    assert fix(body(*lines)).count("y.clone()") == 2


ALIVE = """\
import torch
from torch import nn


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))

    def forward(self, states):
        total = torch.zeros(4)
        alive = torch.ones(4, dtype=torch.bool)
        for state in states:
            total = total + self.weight[state] * alive
            alive &= state != torch.arange(4)
        return total
"""


def test_a_mask_that_a_product_saved() -> None:
    fixed = fix(ALIVE)
    states, scope = torch.tensor([1, 3]), dict[str, Any]()
    for text, raises in ((ALIVE, True), (fixed, False)):
        exec(compile(text, "m.py", "exec"), scope)
        net = scope["Scores"]()
        loss = net(states).sum()
        if raises:
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                loss.backward()
        else:
            loss.backward()
            assert net.weight.grad.tolist() == [0.0, 4.0, 0.0, 3.0]
    stays(ALIVE.replace("* alive", "* ~alive"))


def test_a_third_function_that_fills_a_buffer() -> None:
    """What two functions have written into is no empty buffer any more, nor in a set by add."""
    text = body(
        "h = torch.empty(3, 3)",
        "torch.mm(x, w, out=h)",
        "y = torch.empty_like(h)",
        "torch.add(h, w, out=y)",
        "torch.mul(y, h, out=h)",
        "return h + y",
    )
    assert rules(text) == ["TRN402"] * 3
    after = fix(text, strategy="replace")
    assert "out=" not in after
    assert rules(after) == []


@pytest.mark.parametrize(
    ("p", "writes"), [("0.0", False), ("p=0", False), ("0.1", True), ("p=0.5", True)]
)
def test_a_dropout_that_drops_nothing_writes_nothing(p: str, writes: bool) -> None:
    """Which torch's own dropout confirms: it gives back its input, and backward is right."""
    made = f"self.drop = nn.Dropout({p}, inplace=True)"
    init = f"    def __init__(self):\n        super().__init__()\n        {made}\n\n"
    module = body("return self.drop(torch.exp(x))").replace(
        "    def forward", f"{init}    def forward"
    )
    called = f"nn.functional.dropout(y, {p}, inplace=True)"
    for text in (module, body("y = torch.exp(x)", called, "return y")):
        assert ("TRN403" in rules(text)) is writes
    x = torch.ones(3, requires_grad=True)
    if not writes:
        torch.nn.functional.dropout(torch.exp(x), 0.0, inplace=True).sum().backward()
        assert torch.allclose(x.grad, torch.exp(x))  # type: ignore[arg-type]


@pytest.mark.parametrize("helper", ["return y.clamp_(-9, 9)", "y /= 3\n        return y"])
@pytest.mark.parametrize(("made", "saves"), [("tanh", True), ("neg", False)])
def test_a_result_without_a_name_that_a_method_overwrites(
    helper: str, made: str, saves: bool
) -> None:
    text = textwrap.dedent("""\
        import torch
        from torch import nn


        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

            def forward(self, x):
                return self.b(self.bound(torch.MADE(self.a(x))))

            def bound(self, y):
                HELPER
    """)
    assert ("TRN403" in rules(text.replace("MADE", made).replace("HELPER", helper))) is saves


CAPPED = """
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, cap, scale):
        super().__init__()
        self.cap, self.scale = cap, scale
        self.head = nn.Linear(8, 16)

    def forward(self, x):
        z = self.head(x)
        if self.cap is not None:
            z = z / self.cap
            z = torch.tanh(z)
            {last}
        if self.scale != 1.0:
            z *= self.scale
        return z
"""


@pytest.mark.parametrize(
    ("last", "found"),
    [("z = z * self.cap", []), ("pass", ["TRN403"]), ("z = z.view(-1, 16)", ["TRN403"])],
)
def test_what_a_branch_ends_with_counts(last: str, found: list[str]) -> None:
    """A soft cap: what tanh saved is not what is written into, where a product comes between."""
    text = CAPPED.format(last=last)
    assert rules(text) == found
    module: dict[str, Any] = {}
    exec(text, module)
    model = module["Head"](30.0, 2.0)
    loss = model(torch.randn(3, 8)).sum()
    if found:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    else:
        loss.backward()
