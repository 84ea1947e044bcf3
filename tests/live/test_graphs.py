"""`trainify.fx`: graphs, traced and exported, checked and rewritten."""

from __future__ import annotations

import linecache
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import export
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

import trainify
import trainify.fx
from tests.each import in_turn
from trainify.catalog.own import _registered
from trainify.reference.rope import rotary_embedding

H, T = 8, 4


@pytest.fixture(scope="module", autouse=True)
def _fakes() -> Any:
    """What an export needs to know of ops that return nothing."""
    library = torch.library.Library("_C", "FRAGMENT")
    for name in ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding"):
        torch.library.register_fake(f"_C::{name}", lambda *args, **kwargs: None, lib=library)
    yield
    library._destroy()


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(H, H)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, H))
        self.register_buffer(
            "table", torch.randn(16, H, generator=torch.Generator().manual_seed(0))
        )

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Out(Norm):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        out = torch.empty_like(h)
        torch.ops._C.rms_norm(out, h, self.weight, 1e-6)
        return out * 2


class Detached(Norm):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        out = torch.empty_like(h)
        torch.ops._C.rms_norm(out, h, self.weight.detach(), 1e-6)
        return out


class InPlace(Norm):
    """What is written into is the output of one layer, and the input of the whole."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        residual = x * 1
        torch.ops._C.fused_add_rms_norm(h, residual, self.weight, 1e-6)
        return h + residual


class Split(Norm):
    """In place on what split() gives: autograd would refuse a write."""

    def forward(self, x: Tensor) -> Tensor:
        q, k = torch.cat((self.fc(x), self.fc(x * 2) * self.weight), -1).split(H, dim=-1)
        torch.ops._C.rotary_embedding(torch.arange(T), q, k, H, self.table, True)
        return q * k


class Aliased(Norm):
    """Another view of what is written into is read afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x) * 1
        flat = h.view(-1)
        residual = x * 1
        torch.ops._C.fused_add_rms_norm(h, residual, self.weight, 1e-6)
        return h + flat.view(T, H) + residual


class Scoped(Norm):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.fc(x)
        return F.rms_norm(h, (H,), self.weight, 1e-6)


class Unscoped(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(self.fc(x), (H,), self.weight, 1e-6)


class Nested(Norm):
    """A region in a region, with a fused op in it."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.fc(x)
            with torch.enable_grad():
                out = torch.empty_like(h)
                torch.ops._C.rms_norm(out, h, self.weight, 1e-6)
            h = h + out
        return h


class Packed(Norm):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat((self.fc(x), self.weight * x), -1)
        out = torch.empty(T, H)
        torch.ops._C.silu_and_mul(out, h)
        return out


MODELS = [Out, Detached, InPlace, Split, Aliased, Scoped, Packed]


def in_memory(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    """The right gradients: of the module itself, made trainable."""
    if isinstance(model, Scoped):
        model.__class__ = Unscoped
    trainify.trainify(model, strategy="replace")
    found = gradients(model, model, x)
    trainify.restore(model)
    return found


def gradients(model: nn.Module, run: Callable[..., Tensor], x: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    out = run(x)
    if out.requires_grad:
        out.square().sum().backward()
    return [p.grad for p in model.parameters()]


GRAPHS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "traced": lambda model, x: symbolic_trace(model),
    "exported": lambda model, x: export(model, (x,)),
    "functionalized": lambda model, x: export(model, (x,)).run_decompositions(),
}


def cases(decomposed: tuple[type[Norm], ...]) -> list[Any]:
    """Traced and decomposed graphs have lost the scope, and train.

    To decompose takes half a second: outside of the soak these are.
    """
    return [
        pytest.param(
            kind,
            cls,
            id=f"{cls.__name__}-{kind}",
            marks=() if kind != "functionalized" or cls in decomposed else pytest.mark.slow,
        )
        for kind in GRAPHS
        for cls in MODELS
        if cls is not Scoped or kind == "exported"
    ]


@pytest.mark.parametrize("kind, cls", cases(decomposed=(Out, InPlace, Split)))
def test_rewritten(kind: str, cls: type[Norm]) -> None:
    torch.manual_seed(0)
    model, x = cls(), torch.randn(T, H)
    with torch.no_grad():
        served = model(x)
    right = in_memory(cls_copy(model), x)
    graph = trainify.fx.rewrite(GRAPHS[kind](model, x))
    assert trainify.fx.check(graph) == ()
    torch.testing.assert_close(graph(x), served, rtol=1e-5, atol=1e-6)
    found = gradients(graph, graph, x)
    torch.testing.assert_close(dict(by_name(graph, found)), dict(by_name(model, right)))
    assert "torch.ops._C" not in graph.code
    graph.train().eval()


class Rows(Norm):
    """Into some rows, and both halves of a base at once."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat((self.fc(x), x * self.weight), -1)
        torch.ops._C.fused_add_rms_norm(h[1:, :H], h[1:, H:], self.weight, 1e-6)
        return h.cos()


def right_rows(model: Norm, x: Tensor) -> Tensor:
    a, b = model.fc(x), x * model.weight
    residual = a[1:] + b[1:]
    normed = F.rms_norm(residual, (H,), model.weight, 1e-6)
    return torch.cat((torch.cat((a[:1], normed)), torch.cat((b[:1], residual))), -1).cos()


class Reshaped(Norm):
    def forward(self, x: Tensor) -> Tensor:
        h, residual = self.fc(x), (x * self.weight).clone()
        view = h.view(2, T // 2, H)
        torch.ops._C.fused_add_rms_norm(view, residual.view(2, T // 2, H), self.weight, 1e-6)
        return h.cos() + view.reshape(T, H) * residual


def right_reshaped(model: Norm, x: Tensor) -> Tensor:
    residual = model.fc(x) + x * model.weight
    normed = F.rms_norm(residual, (H,), model.weight, 1e-6)
    return normed.cos() + normed * residual


@pytest.mark.parametrize(("cls", "formula"), [(Rows, right_rows), (Reshaped, right_reshaped)])
def test_views_of_a_functionalized_base(
    cls: type[Norm], formula: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    """They are put together with the rest of it, as slices or by strides."""
    torch.manual_seed(0)
    model, x = cls(), torch.randn(T, H)
    with torch.no_grad():
        served = model(x)
    right = gradients(model, partial(formula, model), x)
    exported = export(model, (x,)).run_decompositions()
    assert "_base_index" in exported.graph_module.code
    graph = trainify.fx.rewrite(exported)
    torch.testing.assert_close(graph(x), served, rtol=1e-5, atol=1e-6)
    found = gradients(graph, graph, x)
    torch.testing.assert_close(dict(by_name(graph, found)), dict(by_name(model, right)))


class Rolling(Norm):
    """Into rows of a buffer, twice, and read back."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(T + 2, H))

    def forward(self, x: Tensor) -> Tensor:
        torch.ops._C.rms_norm(self.rows[:T], self.fc(x), self.weight, 1e-6)
        torch.ops._C.rms_norm(self.rows[T:], self.fc(x)[:2] * 2, self.weight, 1e-6)
        return self.rows.cos()


@pytest.mark.parametrize("kind", ["exported", "functionalized"])
def test_rows_of_a_buffer_step_by_step(kind: str) -> None:
    """Each call begins without the history that the last one has left in the buffer."""
    model, x = Rolling(), torch.randn(T, H)
    a = F.rms_norm(model.fc(x), (H,), model.weight, 1e-6)
    b = F.rms_norm(model.fc(x)[:2] * 2, (H,), model.weight, 1e-6)
    loss = torch.cat((a, b)).cos().square().sum()
    right = torch.autograd.grad(loss, [p for _, p in sorted(model.named_parameters())])
    graph = trainify.fx.rewrite(GRAPHS[kind](model, x))
    for _ in range(3):
        found = dict(by_name(graph, gradients(graph, graph, x)))
        torch.testing.assert_close(list(found.values()), list(right))


class Bits(Norm):
    def forward(self, x: Tensor) -> Tensor:
        h, residual = self.fc(x), x * 1
        again = h.view(torch.int32).view(torch.float32)
        torch.ops._C.fused_add_rms_norm(again, residual, self.weight, 1e-6)
        return h + residual


@pytest.mark.parametrize("kind", ["traced", "exported"])
def test_bits_of_numbers_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="which no gradient goes through"):
        trainify.fx.rewrite(GRAPHS[kind](Bits(), torch.randn(T, H)))


class Constant(Norm):
    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty(T, 2 * H)
        torch.ops._C.rms_norm(out[:, :H], self.fc(x), self.weight, 1e-6)
        return out[:, :H]


def test_a_part_of_what_was_made_while_it_was_traced_is_refused() -> None:
    """The parts of a constant are constants of their own, of which nothing says that they are one."""
    with pytest.raises(ValueError, match="node rms_norm: _C::rms_norm writes into a part"):
        trainify.fx.rewrite(symbolic_trace(Constant()))
    trainify.fx.rewrite(export(Constant(), (torch.randn(T, H),)))


class Cached(nn.Module):
    """Writes into a buffer what the parameters made, and goes on from there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(H, H)
        self.register_buffer("kept", torch.zeros(T + 2, H))

    def forward(self, x: Tensor) -> Tensor:
        self.kept[:T] = self.linear(x)
        return self.kept[:T].cumsum(0)


def test_a_decomposed_copy_has_a_derivative() -> None:
    model, x = Cached(), torch.randn(T, H)
    expected = torch.autograd.grad(
        model.linear(x).cumsum(0).square().sum(), tuple(model.parameters())
    )
    exported = export(model, (x,)).run_decompositions()
    assert "aten.copy.default" in exported.graph_module.code
    graph = trainify.fx.rewrite(exported)
    assert trainify.fx.check(graph) == ()
    torch.testing.assert_close(gradients(graph, graph, x), list(expected))


def cls_copy(model: Norm) -> Norm:
    made = type(model)()
    made.load_state_dict(model.state_dict())
    return made


def by_name(model: nn.Module, found: list[Tensor | None]) -> list[tuple[str, Tensor | None]]:
    return sorted(zip((n for n, _ in model.named_parameters()), found, strict=True))


FOUND = {
    Out: ("missing", "_C::rms_norm", "torch.ops._C.rms_norm(out"),
    Detached: ("missing", "_C::rms_norm", "torch.ops._C.rms_norm(out"),
    InPlace: ("wrong", "_C::fused_add_rms_norm", "torch.ops._C.fused_add"),
    Split: ("wrong", "_C::rotary_embedding", "torch.ops._C.rotary"),
    Aliased: ("wrong", "_C::fused_add_rms_norm", "torch.ops._C.fused_add"),
    Scoped: ("missing", None, "h = self.fc(x)"),
    Packed: ("missing", "_C::silu_and_mul", "torch.ops._C.silu"),
}


@pytest.mark.parametrize("kind, cls", cases(decomposed=(Split,)))
def test_found(kind: str, cls: type[Norm]) -> None:
    """Each cut once, at its line, with the parameters whose gradient it takes."""
    (cut,) = trainify.fx.check(GRAPHS[kind](cls(), torch.randn(T, H)))
    fault, op, line = FOUND[cls]
    assert cut.op == op
    assert "fc.weight" in cut.parameters
    if kind != "functionalized":
        assert cut.kind == fault
    if kind == "exported":
        text = linecache.getline(cut.path, cut.line)
        assert line in text, text


class Right(Norm):
    """Nothing to report: tables, arguments that learn nothing, what the output does not need."""

    def forward(self, x: Tensor) -> Tensor:
        self.fc(x).detach().norm()
        table = self.table.detach() * 2
        return F.rms_norm(self.fc(x), (H,), self.weight, 1e-6) + table[:T]


@pytest.mark.parametrize("kind", GRAPHS)
def test_what_is_right(kind: str) -> None:
    x = torch.randn(T, H)
    graph = GRAPHS[kind](Right(), x)
    assert trainify.fx.check(graph) == ()
    rewritten = trainify.fx.rewrite(graph)
    torch.testing.assert_close(rewritten(x), rewritten(x))


def test_nested_regions() -> None:
    model, x = Nested(), torch.randn(T, H)
    graph = trainify.fx.rewrite(export(model, (x,)))
    assert all(grad is not None for grad in gradients(graph, graph, x))
    torch.testing.assert_close(graph(x), model(x))


class StopGradient(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).detach() * self.weight


@pytest.mark.parametrize("kind", ["traced", "exported"])
def test_a_stop_gradient_is_reported_and_stays(kind: str) -> None:
    x = torch.randn(T, H)
    graph = GRAPHS[kind](StopGradient(), x)
    (cut,) = trainify.fx.check(graph)
    assert cut.cause is trainify.Cause.DETACH and cut.parameters == ("fc.bias", "fc.weight")
    rewritten = trainify.fx.rewrite(graph)
    assert trainify.fx.check(rewritten) != ()


class Cond(Norm):
    """A kernel in a branch, and in a region that keeps its graph."""

    def __init__(self, region: bool, fused: bool = True) -> None:
        super().__init__()
        self.region, self.fused = region, fused
        self.other = nn.Linear(H, H)

    def norm(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        if not self.fused:
            return F.rms_norm(h, (H,), self.weight, 1e-6).clone()
        out = torch.empty_like(h)
        torch.ops._C.rms_norm(out, h, self.weight, 1e-6)
        return out.clone()

    def forward(self, x: Tensor) -> Tensor:
        if self.region:
            with torch.autocast("cpu", enabled=False):
                return self.norm(x) + self.other(x)
        y: Tensor = torch.cond(x.sum() > -99, self.norm, lambda x: self.other(x).cos(), (x,))
        return y


@pytest.mark.parametrize("region", [False, True])
def test_graphs_in_a_graph(region: bool) -> None:
    model, plain = Cond(region), Cond(region, fused=False)
    plain.load_state_dict(model.state_dict())
    x = torch.randn(T, H)
    exported = export(model, (x,))
    (cut,) = trainify.fx.check(exported)
    assert (cut.cause, cut.op) == (trainify.Cause.KERNEL, "_C::rms_norm")
    assert set(cut.parameters) == {"fc.weight", "fc.bias", "weight"}
    assert "self.norm" in linecache.getline(cut.path, cut.line), "as far as the graph knows it"
    assert trainify.fx.check(export(plain, (x,))) == ()
    trained = trainify.fx.rewrite(exported)
    assert trainify.fx.check(trained) == ()
    assert len(trainify.fx.check(exported)) == 1, "what was given stays as it is"
    trained(x).square().sum().backward()
    plain(x).square().sum().backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(trained.get_parameter(name).grad, parameter.grad, msg=name)


def test_an_op_that_nobody_knows() -> None:
    library = torch.library.Library("graph_tests", "FRAGMENT")
    library.define("opaque(Tensor x) -> Tensor")
    library.impl("opaque", lambda x: x.detach() * 2, "CompositeExplicitAutograd")

    class Model(Norm):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = torch.ops.graph_tests.opaque(self.fc(x))
            return y

    (cut,) = trainify.fx.check(export(Model(), (torch.randn(T, H),)))
    assert cut.op == "graph_tests::opaque" and "records no backward" in cut.message
    library._destroy()


def test_arguments_that_the_equivalent_does_not_cover() -> None:
    class Model(Norm):
        def forward(self, x: Tensor) -> Tensor:
            q, k = self.fc(x).unsqueeze(1), self.fc(x).unsqueeze(1)
            torch.ops.sgl_kernel.apply_rope_pos_ids_cos_sin_cache(
                q, k, q, k, self.table, torch.arange(T), False, False, k, None, None, None
            )
            return q + k

    with pytest.raises(ValueError, match="no backward is known where v is given"):
        trainify.fx.rewrite(symbolic_trace(Model()))


@pytest.mark.parametrize("do", [trainify.fx.check, trainify.fx.rewrite])
@pytest.mark.parametrize("given, name", [(3, "int"), (nn.Linear(2, 2), "Linear")])
def test_what_is_no_graph(do: Callable[[Any], Any], given: object, name: str) -> None:
    with pytest.raises(TypeError, match=rf"that is {name}, not a torch.fx.GraphModule"):
        do(given)


# -- writes into what was read before -------------------------------------------------------------


class Residual(Norm):
    """The first layer of a model in vLLM: the second norm adds to what the first has read."""

    def forward(self, x: Tensor) -> Tensor:
        residual = self.before(x)
        h = torch.empty_like(residual)
        torch.ops._C.rms_norm(h, residual, self.weight, 1e-6)
        h = self.fc(h)
        torch.ops._C.fused_add_rms_norm(h, residual, self.weight, 1e-6)
        return h * 2 + residual

    def before(self, x: Tensor) -> Tensor:
        return self.fc(x)

    def right(self, x: Tensor) -> Tensor:
        residual = self.before(x)
        h = self.fc(F.rms_norm(residual, (H,), self.weight, 1e-6))
        residual = h + residual
        return F.rms_norm(residual, (H,), self.weight, 1e-6) * 2 + residual


class Unknown(Residual):
    """A module that may give what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.maybe = nn.Dropout(0.0)

    def before(self, x: Tensor) -> Tensor:
        return self.maybe(self.fc(x))  # type: ignore[no-any-return]


class Given(Residual):
    """What the caller gave is written into, and the caller sees it."""

    def before(self, x: Tensor) -> Tensor:
        return x


class Viewed(Residual):
    """What was read before, and is read afterwards, are views of what is written into."""

    def forward(self, x: Tensor) -> Tensor:
        residual = self.fc(x) * 1
        flat = residual.view(-1)
        squares = flat.square().sum() + residual.square().sum()
        h = self.fc(x)
        torch.ops._C.fused_add_rms_norm(h, residual, self.weight, 1e-6)
        return h * 2 + flat.view(T, H) + squares

    def right(self, x: Tensor) -> Tensor:
        residual, h = self.fc(x), self.fc(x)
        squares = 2 * residual.square().sum()
        residual = h + residual
        return F.rms_norm(residual, (H,), self.weight, 1e-6) * 2 + residual + squares


class Repeated(Residual):
    """Written into again and again, and read in between."""

    def forward(self, x: Tensor) -> Tensor:
        residual, total = x, 0.0
        for _ in range(3):
            h = self.fc(residual.sin())
            torch.ops._C.fused_add_rms_norm(h, residual, self.weight, 1e-6)
            total = total + h * residual
        return total  # type: ignore[return-value]

    def right(self, x: Tensor) -> Tensor:
        residual, total = x, 0.0
        for _ in range(3):
            residual = self.fc(residual.sin()) + residual
            total = total + F.rms_norm(residual, (H,), self.weight, 1e-6) * residual
        return total  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("cls", "kind"),
    in_turn(
        {each.__name__: each for each in (Residual, Unknown, Given, Viewed, Repeated)},
        ["traced", "exported"],
    ),
)
def test_what_was_read_before_it_is_written(kind: str, cls: type[Residual]) -> None:
    torch.manual_seed(0)
    model, x = cls(), torch.randn(T, H)
    served_x, right_x, found_x = x.clone(), x.clone().requires_grad_(), x.clone().requires_grad_()
    with torch.no_grad():
        served = model(served_x)
    right = gradients(model, model.right, right_x)
    graph = trainify.fx.rewrite(GRAPHS[kind](model, x.clone()))
    assert trainify.fx.check(graph) == ()
    seen = found_x * 1
    torch.testing.assert_close(graph(seen), served, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen, served_x, rtol=1e-5, atol=1e-5)
    found = gradients(graph, lambda x: graph(x * 1), found_x)
    torch.testing.assert_close(dict(by_name(graph, found)), dict(by_name(model, right)))
    torch.testing.assert_close(found_x.grad, right_x.grad)


class Filled(Residual):
    """A buffer is written into by what nobody knows, read, and then written into by an op."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        out = torch.empty_like(h)
        flat = out.view(-1)
        fill(out)
        out.add_(1)
        product = out * h
        torch.ops._C.rms_norm(out, h, self.weight, 1e-6)
        return flat.view(T, H) + product

    def right(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return F.rms_norm(h, (H,), self.weight, 1e-6) + 3 * h


def fill(x: Tensor) -> None:
    x.fill_(2)


torch.fx.wrap("fill")


def test_what_writes_is_given_no_copy() -> None:
    model, x = Filled(), torch.randn(T, H)
    right = gradients(model, model.right, x)
    traced = symbolic_trace(model)
    (adds,) = [node for node in traced.graph.nodes if node.target == "add_"]
    adds.op, adds.target = "call_function", operator.iadd  # as Dynamo has them
    graph = trainify.fx.rewrite(traced)
    torch.testing.assert_close(graph(x), model.right(x))
    found = gradients(graph, graph, x)
    torch.testing.assert_close(dict(by_name(graph, found)), dict(by_name(model, right)))


def test_nothing_is_copied_where_nobody_sees_the_write() -> None:
    graph = trainify.fx.rewrite(symbolic_trace(Residual()))
    called = {str(node.target) for node in graph.graph.nodes}
    assert not called & {"clone", "copy_"}


class Padded(Residual):
    """The op writes into a part of what is read as a whole."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        out = x.new_zeros(2 * T, H)
        torch.ops._C.rms_norm(out[:T], h, self.weight, 1e-6)
        return out * 2

    def right(self, x: Tensor) -> Tensor:
        out = F.rms_norm(self.fc(x), (H,), self.weight, 1e-6) * 2
        return torch.cat((out, torch.zeros_like(out)))


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_part_of_a_buffer_that_is_written_into(kind: str) -> None:
    model, x = Padded(), torch.randn(T, H)
    graph = GRAPHS[kind](model, x)
    (cut,) = trainify.fx.check(graph)
    assert (cut.kind, cut.op) == ("missing", "_C::rms_norm")
    assert cut.parameters == ("fc.bias", "fc.weight", "weight")
    if kind == "functionalized":
        return  # which rewrite refuses
    rewritten = trainify.fx.rewrite(graph)
    assert trainify.fx.check(rewritten) == ()
    right, found = gradients(model, model.right, x), gradients(rewritten, rewritten, x)
    torch.testing.assert_close(dict(by_name(rewritten, found)), dict(by_name(model, right)))


class Kept(Residual):
    """The op fills a buffer of the module."""

    def forward(self, x: Tensor) -> Tensor:
        torch.ops._C.rms_norm(self.table, self.fc(x), self.weight, 1e-6)
        return self.table * 2

    def right(self, x: Tensor) -> Tensor:
        return F.rms_norm(self.fc(x), (H,), self.weight, 1e-6) * 2


@pytest.mark.parametrize(
    ("cls", "kind"),
    in_turn(
        {each.__name__: each for each in (Given, Repeated, Kept)}, ["functionalized", "exported"]
    ),
)
def test_what_is_written_back_is_read_as_it_was(kind: str, cls: type[Residual]) -> None:
    """A decomposed graph writes into inputs and buffers at its end, step by step."""
    model, x = cls(), torch.randn(T, H)
    model.table = torch.zeros(T, H)
    served_x = x.clone()
    right = gradients(model, model.right, x.clone())
    with torch.no_grad():
        served = model(served_x)
    graph = trainify.fx.rewrite(GRAPHS[kind](model, x.clone()))
    for _ in range(3):
        seen = x.clone()
        found = gradients(graph, graph, seen)
        torch.testing.assert_close(dict(by_name(graph, found)), dict(by_name(model, right)))
        torch.testing.assert_close(seen, served_x, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(graph(x.clone()), served, rtol=1e-5, atol=1e-5)


class Divided(Norm):
    """Pieces are written into, and what they are pieces of is read before and afterwards."""

    pieces = staticmethod(lambda h: h.split(H, dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat((self.fc(x), self.fc(x * 2) * self.weight, x), -1).sin()
        q, k, v = type(self).pieces(h)
        before = q.exp() * k
        self.rotate(x, q, k)
        return self.read(h, before, v)

    def rotate(self, x: Tensor, q: Tensor, k: Tensor) -> None:
        torch.ops._C.rotary_embedding(torch.arange(T), q, k, H, self.table, True)

    def read(self, h: Tensor, before: Tensor, v: Tensor) -> Tensor:
        return h[:, :H] * h[:, H : 2 * H] * v + h[:, 2 * H :] * before

    def right(self, x: Tensor) -> Tensor:
        h = torch.cat((self.fc(x), self.fc(x * 2) * self.weight, x), -1).sin()
        q, k, v = h[:, :H], h[:, H : 2 * H], h[:, 2 * H :]
        q_after, k_after = rotary_embedding(torch.arange(T), q, k, H, self.table, True)
        assert k_after is not None
        return self.read(torch.cat((q_after, k_after, v), -1), q.exp() * k, v)


class DividedDetached(Divided):
    def rotate(self, x: Tensor, q: Tensor, k: Tensor) -> None:
        super().rotate(x, q.detach().view(T, 1, H), k.detach())


def _pieces(h: Tensor) -> tuple[Tensor, ...]:
    first, v = h.split((2 * H, H), -1)
    q, k = first.chunk(2, dim=-1)
    return q, k, v


DIVIDED: dict[str, Callable[[Tensor], Any]] = {
    "split": lambda h: h.split(H, dim=-1),
    "sizes": lambda h: torch.split(h, [H, H, H], dim=-1),
    "chunk": lambda h: torch.chunk(h, 3, -1),
    "unbind": lambda h: h.view(T, 3, H).unbind(1),
    "unsafe_split": lambda h: h.unsafe_split(H, -1),
    "tensor_split": lambda h: h.tensor_split(3, dim=-1),
    "hsplit": lambda h: h.hsplit(3),
    "in two steps": _pieces,
}


@pytest.mark.parametrize(
    "kind, pieces, cls",
    [
        *(("traced", pieces, cls) for pieces in DIVIDED for cls in (Divided, DividedDetached)),
        # torch.export keeps no write into what is detached
        *(("exported", pieces, Divided) for pieces in ("sizes", "unbind", "unsafe_split")),
    ],
)
def test_pieces_that_are_written_into_and_read(
    kind: str, pieces: str, cls: type[Divided], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cls, "pieces", staticmethod(DIVIDED[pieces]), raising=False)
    torch.manual_seed(0)
    model, x = cls(), torch.randn(T, H)
    graph = trainify.fx.rewrite(GRAPHS[kind](model, x))
    assert trainify.fx.check(graph) == ()
    torch.testing.assert_close(graph(x), model.right(x), rtol=1e-5, atol=1e-6)
    right, found = gradients(model, model.right, x), gradients(graph, graph, x)
    torch.testing.assert_close(dict(by_name(graph, found)), dict(by_name(model, right)))


def test_what_is_split_and_written_into_as_a_whole() -> None:
    class Model(Norm):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc(x)
            a, b = h.split(H // 2, dim=-1)
            torch.ops._C.fused_add_rms_norm(h, x * 1, self.weight, 1e-6)
            return torch.cat((b, a), -1)

        def right(self, x: Tensor) -> Tensor:
            h = F.rms_norm(self.fc(x) + x, (H,), self.weight, 1e-6)
            return torch.cat((h[:, H // 2 :], h[:, : H // 2]), -1)

    model, x = Model(), torch.randn(T, H)
    graph = trainify.fx.rewrite(symbolic_trace(model))
    right, found = gradients(model, model.right, x), gradients(graph, graph, x)
    torch.testing.assert_close(dict(by_name(graph, found)), dict(by_name(model, right)))


def test_pieces_that_are_written_into_and_read_all_together() -> None:
    class Model(Norm):
        def forward(self, x: Tensor) -> Tensor:
            pieces = self.fc(x).split(H // 2, dim=-1)
            torch.ops._C.rms_norm(pieces[0], x[:, : H // 2] * 1, self.weight[: H // 2], 1e-6)
            return torch.cat(pieces)

    with pytest.raises(ValueError, match="is split into"):
        trainify.fx.rewrite(symbolic_trace(Model()))


def test_parameters_that_are_inputs() -> None:
    """Of what ``make_fx`` traces, also with its backward in it."""

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    model, x = InPlace(), torch.randn(T, H)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    plain = trainify.fx.rewrite(symbolic_trace(model))
    expected = torch.func.grad(lambda p: torch.func.functional_call(plain, p, (x,)).square().sum())(
        parameters
    )
    assert len(expected) == 3 and all(gradient.abs().sum() > 0 for gradient in expected.values())

    graph = trainify.fx.rewrite(make_fx(loss)(parameters, x))
    torch.testing.assert_close(torch.func.grad(graph)(parameters, x), expected)

    with trainify.attach("_C::fused_add_rms_norm"):
        graph = make_fx(torch.func.grad(loss))(parameters, x)
        torch.testing.assert_close(graph(parameters, x), expected)
    assert trainify.fx.check(graph) == ()
    torch.testing.assert_close(trainify.fx.rewrite(graph)(parameters, x), expected)


@pytest.mark.parametrize("decomposed", [False, True])
def test_what_is_written_only_where_it_is_given(decomposed: bool) -> None:
    """``Tensor(b!)? residual``: given, it is added and takes the sum."""
    library = torch.library.Library("trainify_graphs", "FRAGMENT")
    schema = "added(Tensor(a!) out, Tensor(b!)? residual, Tensor x, Tensor weight) -> ()"

    def kernel(out: Tensor, residual: Tensor | None, x: Tensor, weight: Tensor) -> None:
        if residual is not None:
            residual += x
        out.copy_((x if residual is None else residual) * weight)

    library.define(schema)
    library.impl("added", kernel, "CPU")
    before = list(_registered)
    sums = "x if residual is None else residual + x"
    trainify.register(
        "torch.ops.trainify_graphs.added",
        schema,
        f"out, residual = ({sums}) * weight, None if residual is None else residual + x",
    )

    class Model(Norm):
        def forward(self, x: Tensor) -> Tensor:
            h, residual, out = self.fc(x), x * self.weight, torch.empty(T, 2 * H)
            torch.ops.trainify_graphs.added(out[:, :H], None, h, self.weight)
            torch.ops.trainify_graphs.added(out[:, H:], residual, h, self.weight)
            return out.cos() * residual.repeat(1, 2)

    def formula(model: Norm, x: Tensor) -> Tensor:
        h, weight = model.fc(x), model.weight
        residual = x * weight + h
        return torch.cat((h * weight, residual * weight), -1).cos() * residual.repeat(1, 2)

    try:
        model, x = Model(), torch.randn(T, H)
        right = gradients(model, partial(formula, model), x)
        exported = export(model, (x,))
        graph = trainify.fx.rewrite(exported.run_decompositions() if decomposed else exported)
        found = gradients(graph, graph, x)
        torch.testing.assert_close(dict(by_name(graph, found)), dict(by_name(model, right)))
    finally:
        _registered[:] = before
        library._destroy()
