"""Models that share modules, and threads: what one needs changed stays when another lets it go."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from wrapped import assert_right, batch, build, is_cut

import trainify

Modules = dict[str, ModuleType]


def mend(model: nn.Module, strategy: str) -> nn.Module:
    return trainify.trainify(model, batch(), strategy=strategy)


def with_one_trunk(modules: Modules) -> tuple[nn.Module, nn.Module]:
    """Two models of two layers; the first layer is the same."""
    actor, critic = build(modules, "source"), build(modules, "source")
    critic.layers[0] = actor.layers[0]
    return actor, critic


@pytest.mark.parametrize("strategy", ["auto", "flag"])
def test_a_trunk_stays_changed_while_a_model_needs_it(modules: Modules, strategy: str) -> None:
    actor, critic = with_one_trunk(modules)
    mend(actor, strategy)
    mend(critic, strategy)
    assert_right(modules, actor)
    trainify.restore(actor)
    assert is_cut(actor)
    assert_right(modules, critic)
    trainify.restore(critic)
    assert is_cut(critic)
    assert type(critic.layers[0]) is modules["model"].Source


@pytest.mark.parametrize("strategy", ["flag", "replace"])
def test_by_source_also_where_another_model_has_given_a_kernel_its_backward(
    modules: Modules, strategy: str
) -> None:
    first, second = build(modules, "dispatcher"), build(modules, "dispatcher")
    mend(first, "auto")
    mend(second, strategy)
    assert trainify.source_diff(second)
    trainify.restore(first)
    assert is_cut(first)
    assert_right(modules, second)
    trainify.restore(second)


def test_a_backward_outlives_the_block_that_a_model_was_made_trainable_in(
    modules: Modules,
) -> None:
    model, other = build(modules, "dispatcher"), build(modules, "dispatcher")
    with trainify.attach("_C::rms_norm"):
        mend(model, "auto")
        assert_right(modules, model)
    assert_right(modules, model)
    trainify.restore(model)
    assert is_cut(model)
    with trainify.attach("_C::rms_norm"):
        mend(other, "auto")
        trainify.restore(other)
        assert_right(modules, other)
    assert is_cut(other)


def test_a_trunk_that_is_the_whole_of_another_model(modules: Modules) -> None:
    actor = build(modules, "source")
    critic = nn.Sequential(actor.layers[0], nn.Linear(8, 1))
    mend(actor, "flag")
    mend(critic, "flag")
    trainify.restore(critic)
    assert_right(modules, actor)
    trainify.restore(nn.Sequential(actor.layers[0]))  # which nobody has made trainable
    assert_right(modules, actor)
    trainify.restore(actor)
    assert is_cut(actor)


def test_who_fails_leaves_others_what_they_need(modules: Modules) -> None:
    actor, critic = with_one_trunk(modules)
    mend(actor, "flag")

    class Cut(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor(x.tolist()).roll(1, 0) if x.requires_grad else x

    critic.layers.append(Cut())
    Cut.forward.__code__ = Cut.forward.__code__.replace(co_filename="<nowhere>")
    with pytest.raises(trainify.NotTrainable):
        mend(critic, "flag")
    assert_right(modules, actor)


def test_a_second_try_that_fails_leaves_the_first(modules: Modules) -> None:
    model = build(modules, "source")
    mend(model, "flag")
    with pytest.raises(trainify.NotTrainable, match="ZeroDivisionError"):
        trainify.trainify(model, batch(), loss=lambda out: 1 / 0)
    assert_right(modules, model)


def test_a_model_that_died_needs_nothing(modules: Modules) -> None:
    actor, critic = with_one_trunk(modules)
    mend(actor, "flag")
    mend(critic, "flag")
    del actor
    trainify.restore(critic)
    assert is_cut(critic)


def test_restoring_what_a_model_is_in(modules: Modules) -> None:
    model = build(modules, "source")
    mend(model, "flag")
    trainify.restore(nn.Sequential(model))
    assert is_cut(model)


def test_restoring_a_part(modules: Modules) -> None:
    model = build(modules, "source")
    mend(model, "flag")
    trainify.restore(model.layers[0])
    assert type(model.layers[0]) is modules["model"].Source
    assert type(model.layers[1]) is not modules["model"].Source


@pytest.mark.parametrize("order", ["parametrized first", "trainable first"])
def test_parametrizations_go_when_they_are_removed(modules: Modules, order: str) -> None:
    model = build(modules, "source")
    layer = model.layers[0]
    if order == "parametrized first":
        parametrizations.weight_norm(layer, "weight", dim=0)
    mend(model, "flag")
    if order != "parametrized first":
        parametrizations.weight_norm(layer, "weight", dim=0)
    parametrize.remove_parametrizations(layer, "weight")
    assert isinstance(layer, modules["model"].Source)
    assert_right(modules, model)
    trainify.restore(model)
    assert type(layer) is modules["model"].Source


@pytest.mark.parametrize("strategy", ["auto", "flag"])
def test_two_threads_at_once(modules: Modules, strategy: str) -> None:
    models = [build(modules, "source"), build(modules, "dispatcher")]
    for model in models:
        model.recomputes = True  # the audit replaces what torch.utils.checkpoint calls
    errors: list[BaseException] = []
    start = threading.Barrier(2)

    def run(model: nn.Module) -> None:
        start.wait()
        try:
            mend(model, strategy)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for model in models:
        assert_right(modules, model)
        trainify.restore(model)
        assert is_cut(model)
