"""The checks for a training loop, on steps that train, that train nothing, and that train a part."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainify
from trainify import MissingGradients, NoGraph


class Cut(nn.Module):
    """``head(kernel(norm(x)))`` where the kernel records nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.norm(x).relu()
        return self.head(y).pow(2).mean()


def whole() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def x() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_backward_gives_the_gradients_of_backward() -> None:
    model = whole()
    model(x()).sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    trainify.backward(model(x()).sum(), model)
    for p, grad in zip(model.parameters(), expected, strict=True):
        assert torch.equal(p.grad, grad)


def test_what_got_nothing_is_named() -> None:
    model = Cut()
    with pytest.raises(MissingGradients, match=r"2 of 4 .*: norm\.weight, norm\.bias\.") as error:
        trainify.backward(model(x()), model)
    assert error.value.names == ("norm.weight", "norm.bias")
    assert model.head.weight.grad is not None, "what backward computed stays"


def test_gradients_of_an_earlier_step_hide_nothing() -> None:
    model = Cut()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(MissingGradients, match="norm"):
        trainify.backward(model(x()), model)


@pytest.mark.parametrize("switch", ["no_grad", "inference_mode"])
def test_a_loss_without_a_graph_is_refused(switch: str) -> None:
    model = whole()
    with getattr(torch, switch)():
        loss = model(x()).sum()
    with pytest.raises(NoGraph, match="gradients off"):
        trainify.backward(loss, model)


def test_a_loss_that_was_told_to_require_a_gradient_is_refused() -> None:
    model = whole()
    loss = model(x()).sum().detach().requires_grad_(True)
    with pytest.raises(NoGraph, match="by hand"):
        trainify.backward(loss, model)
    with pytest.raises(NoGraph, match="by hand"):
        trainify.require_gradients(model, loss)
    assert all(p.grad is None for p in model.parameters()) and loss.grad is None


def test_a_parameter_may_be_its_own_loss() -> None:
    p = nn.Parameter(torch.tensor(2.0))
    trainify.backward(p, [p])
    assert p.grad == 1


def test_frozen_parameters_are_not_asked_for() -> None:
    model = Cut()
    model.norm.requires_grad_(False)
    trainify.backward(model(x()), model)
    model.requires_grad_(False)
    with pytest.raises(MissingGradients, match="nothing to train: all 4 parameters are frozen"):
        trainify.require_gradients(model)
    with pytest.raises(MissingGradients, match="there are no parameters"):
        trainify.require_gradients(nn.ReLU())


def test_a_gradient_of_zeros_has_arrived() -> None:
    a, b = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(4, 2))
    trainify.backward((x() @ a.t() @ b.t()).sum(), [("lora_A", a), ("lora_B", b)])
    assert a.grad is not None and not a.grad.any()


def test_names_can_be_allowed() -> None:
    model = Cut()
    trainify.backward(model(x()), model, allow=["norm.*"])
    with pytest.raises(MissingGradients, match=r"1 of 4 .*norm\.bias"):
        trainify.backward(model(x()), model, allow=["*.weight"])


def test_an_optimizer_or_tensors_will_do() -> None:
    model = Cut()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(MissingGradients, match=r"param_groups\[0\]\['params'\]\[0\]"):
        trainify.backward(model(x()), optimizer)
    named = torch.optim.SGD(model.named_parameters())
    with pytest.raises(MissingGradients, match=r"norm\.weight"):
        trainify.backward(model(x()), named)
    with pytest.raises(MissingGradients, match="parameter 0, parameter 1"):
        trainify.backward(model(x()), model.parameters())
    with pytest.raises(TypeError, match="several tensors"):
        trainify.backward(model(x()), model.norm.weight)
    with pytest.raises(TypeError, match="several tensors, not int"):
        trainify.backward(model(x()), 3)  # type: ignore[arg-type]


def test_several_modules_will_do() -> None:
    model, other = Cut(), nn.Linear(4, 1)
    with pytest.raises(MissingGradients, match=r"4 of 6 .*norm\.weight"):
        trainify.backward(model(x()), [model, other])
    with pytest.raises(TypeError, match="str is no parameter"):
        trainify.backward(model(x()), ["norm"])


def test_same_names_of_two_modules_are_two_parameters() -> None:
    one, two = nn.Linear(4, 1), nn.Linear(4, 1)
    both = [*one.named_parameters(), *two.named_parameters()]
    with pytest.raises(MissingGradients, match="2 of 4"):
        trainify.backward(one(x()).sum(), both)


def test_tied_parameters_count_once() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    trainify.backward(model["a"](x()).sum(), model, allow=["b.bias"])


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parameters_arrive(reentrant: bool) -> None:
    model = whole()
    start = x().requires_grad_()
    trainify.backward(checkpoint(model, start, use_reentrant=reentrant).sum(), model)


def test_no_hook_stays_behind() -> None:
    model = Cut()
    for _ in range(2):
        with pytest.raises(MissingGradients):
            trainify.backward(model(x()), model)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_double_backward_passes_through() -> None:
    p = nn.Parameter(torch.tensor(3.0))
    trainify.backward(p**3, [p], create_graph=True)
    (second,) = torch.autograd.grad(p.grad, p)
    assert second == 18
    p.grad = None  # or the graph of the gradient holds itself
    with pytest.raises(RuntimeError, match="scalar outputs"):
        trainify.backward(p * torch.ones(2), [p])
    trainify.backward(p * torch.ones(2), [p], gradient=torch.ones(2))


def test_after_somebody_elses_backward() -> None:
    model = Cut()
    loss = model(x())
    loss.backward()
    with pytest.raises(MissingGradients, match="norm"):
        trainify.require_gradients(model, loss)
    trainify.require_gradients(model.head)


def test_layers_dropped_now_and_then_are_given_time() -> None:
    model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
    for step in range(6):
        model.zero_grad()
        model[step % 2](x()).sum().backward()
        trainify.require_gradients(model, within=2)
    model.zero_grad()
    model[1](x()).sum().backward()
    with pytest.raises(MissingGradients, match=r"in 2 steps: 0\.weight, 0\.bias"):
        trainify.require_gradients(model, within=2)


def test_nothing_is_kept_alive() -> None:
    from trainify import gradients

    gc.collect()
    before = len(gradients._calls_without)
    model = Cut()
    model(x()).backward()
    trainify.require_gradients(model, within=2)
    assert len(gradients._calls_without) == before + 2
    del model
    gc.collect()
    assert len(gradients._calls_without) == before


def test_long_lists_are_cut_in_the_message_only() -> None:
    model = nn.ModuleList([nn.Linear(4, 1) for _ in range(10)])
    with pytest.raises(MissingGradients, match=r"18 of 20 .*4\.bias and 10 more") as error:
        trainify.backward(model[0](x()).sum(), model)
    assert len(error.value.names) == 18


def test_a_name_and_not_a_module_until_it_is_used() -> None:
    code = "import trainify, sys; trainify.register; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_allow_may_be_one_name() -> None:
    used, other = nn.Linear(2, 2), nn.Linear(2, 2)
    both = nn.ModuleList([used, other])
    trainify.backward(used(torch.ones(1, 2)).sum(), both, allow="1.*")
    with pytest.raises(trainify.MissingGradients):  # its letters are no patterns
        trainify.backward(used(torch.ones(1, 2)).sum(), both, allow="2.*")


def test_misuse_is_said() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="the loss is float, not a tensor"):
        trainify.backward(1.0, layer)  # type: ignore[arg-type]
    layer(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match="within must be 1 or more"):
        trainify.require_gradients(layer, within=0)


def step_in_backward(model: nn.Module) -> None:
    """What optimizers do that run in backward: the gradient is gone once it was used."""
    for parameter in model.parameters():

        def take(parameter: torch.Tensor) -> None:
            parameter.data.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(take)


def one_bucket(model: nn.Module) -> None:
    """What DDP does with ``gradient_as_bucket_view``: gradients are views of one tensor."""
    bucket = torch.zeros(sum(p.numel() for p in model.parameters()))
    parts = bucket.split([p.numel() for p in model.parameters()])
    for parameter, part in zip(model.parameters(), parts, strict=True):
        parameter.grad = part.view_as(parameter)


def zeroed(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


@pytest.mark.parametrize("prepare", [step_in_backward, one_bucket, zeroed])
def test_arrivals_are_told_however_gradients_are_kept(prepare) -> None:
    model = whole()
    prepare(model)
    for _ in range(2):
        trainify.backward(model(x()).pow(2).mean(), model)
    cut = Cut()
    prepare(cut)
    with pytest.raises(MissingGradients) as error:
        trainify.backward(cut(x()), cut)
    assert error.value.names == ("norm.weight", "norm.bias")


def test_gradients_of_rows_arrive() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    for _ in range(2):
        trainify.backward(table(torch.tensor([1, 2])).pow(2).sum(), table)
    assert table.weight.grad.is_sparse


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("reshards", [None, True, False])
def test_gradients_arrive_at_what_fsdp_has_gathered(reshards: bool | None) -> None:
    """The root, and what is told so, stays gathered between forward and backward."""
    from torch.distributed.fsdp import fully_shard

    def sharded(model: nn.Module) -> nn.Module:
        for part in list(model.children())[:2]:
            fully_shard(part, reshard_after_forward=reshards)
        return fully_shard(model, reshard_after_forward=reshards)

    model = sharded(whole())
    optimizer = torch.optim.SGD(model.parameters())
    for holder in (model, model, model.parameters(), optimizer):
        trainify.backward(model(x()).pow(2).mean(), holder)
    cut = sharded(Cut())
    for _ in range(2):
        with pytest.raises(MissingGradients) as error:
            trainify.backward(cut(x()), cut)
        assert error.value.names == ("norm.weight", "norm.bias")
