"""The packages made trainable in memory: held against Hugging Face, and against themselves."""

from __future__ import annotations

import itertools

import pytest
import torch
from packages import (
    FIXTURES,
    PACKAGES,
    gradient_errors,
    load_oracle,
    load_package,
    next_token_loss,
)

import trainify
from tests.each import some
from trainify.reference.double import exact_in_double

STRATEGIES = ("auto", "attach", "flag", "replace")
EACH_ONCE = {
    ("llama_serving", "attach"),
    ("llama_release", "flag"),
    ("gemma_serving", "replace"),
    ("gemma_serving", "auto"),
}


@pytest.fixture(params=PACKAGES)
def cls(request):
    return PACKAGES[request.param]


@pytest.fixture
def model(cls, checkpoint_of):
    package = cls(load_package(FIXTURES / cls.name), checkpoint_of[cls.kind])
    yield package
    trainify.restore(package.model)


def called_with(model, batch):
    """What the package calls its model with."""
    calls = []
    hook = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    with torch.no_grad():
        model.logits(batch)
    hook.remove()
    return calls[0]


def step(model, oracle, batch, tolerance=1e-5):
    """A training step of both, and whether loss and gradients are the same."""
    loss = next_token_loss(model.logits(batch), batch)
    loss.backward()
    expected = next_token_loss(oracle(batch).logits, batch)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    errors = gradient_errors(model.hf_gradients(), oracle)
    assert {name: error for name, error in errors.items() if not error <= tolerance} == {}
    return loss.item(), expected.item()


@pytest.mark.parametrize(
    ("cls", "strategy"),
    some(EACH_ONCE, itertools.product(PACKAGES, STRATEGIES)),
    indirect=["cls"],
)
def test_every_gradient_is_right(cls, model, strategy, checkpoint_of, batch):
    """In eval() as well, and again after it has generated, and from one step to the next."""
    trainify.trainify(model.model, strategy=strategy)
    oracle = load_oracle(cls, checkpoint_of[cls.kind])
    for training in (True, False):
        model.model.train(training)
        step(model, oracle, batch)
        model.model.zero_grad()
        oracle.zero_grad()
        with torch.no_grad():
            model.generate(batch[:, :9].tolist(), 6)
    assert not any(tensor.requires_grad for tensor in model.state())


@pytest.mark.parametrize("cls", some(("llama_release",), PACKAGES), indirect=True)
def test_audited(cls, model, checkpoint_of, batch):
    args, kwargs = called_with(model, batch)
    before = trainify.audit(model.model, *args, **kwargs)
    assert not before.ok
    trainify.trainify(model.model, *args, **kwargs)
    assert trainify.audit(model.model, *args, **kwargs).ok
    oracle = load_oracle(cls, checkpoint_of[cls.kind])
    for _ in range(2):  # caches of the first step are in the way of none
        step(model, oracle, batch)
        model.model.zero_grad()
        oracle.zero_grad()


@pytest.mark.parametrize("strategy", some(("attach",), ("auto", "attach")))
def test_the_kernels_that_serve_are_those_that_train(cls, model, strategy, checkpoint_of, batch):
    """The forward of a training step is that of serving, bit for bit, whatever is learned."""
    original = cls(load_package(FIXTURES / cls.name), checkpoint_of[cls.kind])
    trainify.trainify(model.model, strategy=strategy)
    optimizer = torch.optim.SGD(model.model.parameters(), lr=0.05)
    for _ in range(3):
        logits = model.logits(batch)
        with torch.no_grad():
            assert torch.equal(logits, original.logits(batch))
        next_token_loss(logits, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        original.model.load_state_dict(model.model.state_dict())


@pytest.mark.parametrize(
    ("cls", "strategy"),
    some(EACH_ONCE, itertools.product(PACKAGES, STRATEGIES)),
    indirect=["cls"],
)
def test_serving_stays_bit_for_bit(cls, model, strategy, checkpoint_of, batch):
    original = cls(load_package(FIXTURES / cls.name), checkpoint_of[cls.kind])
    trainify.trainify(model.model, strategy=strategy)
    model.model.eval()
    if strategy != "replace":
        with torch.no_grad():
            assert torch.equal(model.logits(batch), original.logits(batch))
    trainify.restore(model.model)
    with torch.no_grad():
        assert torch.equal(model.logits(batch), original.logits(batch))
    assert {type(m) for m in model.model.modules()} == {
        next(t for t in map(type, model.model.modules()) if t.__name__ == m.__name__)
        for m in {type(m) for m in model.model.modules()}
    }
    with pytest.raises(RuntimeError):
        next_token_loss(model.logits(batch), batch).backward()


@pytest.mark.parametrize(
    ("cls", "strategy"),
    some({("llama_serving", "auto")}, itertools.product(PACKAGES, ("auto", "flag"))),
    indirect=["cls"],
)
def test_thirty_steps_of_adamw(cls, model, strategy, checkpoint_of, batch):
    trainify.trainify(model.model, strategy=strategy)
    oracle = load_oracle(cls, checkpoint_of[cls.kind])
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model.model, oracle)]
    generator = torch.Generator().manual_seed(3)
    for _ in range(30):
        ids = torch.randint(256, (2, 12), generator=generator)
        ours = next_token_loss(model.logits(ids), ids)
        theirs = next_token_loss(oracle(ids).logits, ids)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        for loss, optimizer in zip((ours, theirs), optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("cls", "strategy"),
    some(
        {("llama_serving", "flag"), ("llama_release", "flag"), ("gemma_serving", "replace")},
        itertools.product(PACKAGES, ("flag", "replace")),
    ),
    indirect=["cls"],
)
def test_in_double(cls, model, strategy, checkpoint_of, batch):
    """What takes the place of the kernels is exact, where nobody rounds to float32."""
    trainify.trainify(model.model, strategy=strategy)
    model.double()
    oracle = load_oracle(cls, checkpoint_of[cls.kind], torch.float64)
    with exact_in_double():
        step(model, oracle, batch, tolerance=1e-9)
