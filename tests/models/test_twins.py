"""More families of models as they are served, made trainable in memory, against Hugging Face."""

from __future__ import annotations

import itertools

import pytest
import torch
from families import FAMILIES, load_oracle, load_served, logits
from packages import FIXTURES, load_package, next_token_loss

import trainify
from tests.each import some
from trainify.reference.double import exact_in_double

STRATEGIES = ("auto", "attach", "flag", "replace")


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def oracle(family):
    return load_oracle(family)


@pytest.fixture
def package():
    return load_package(FIXTURES / "more_serving")


@pytest.fixture
def served(family, oracle, package):
    model = load_served(family, oracle, package)
    yield model
    trainify.restore(model)


def gradients(model, oracle):
    """Those of Hugging Face's parameters in the layout of the served model."""
    twin = type(model)(oracle.config).to(oracle.lm_head.weight.dtype)
    twin.load_weights((name, p.grad) for name, p in oracle.named_parameters())
    return dict(twin.named_parameters())


def assert_same_step(model, oracle, package, ids, tolerance=1e-5):
    loss = next_token_loss(logits(model, package, ids), ids)
    loss.backward()
    expected = next_token_loss(oracle(ids).logits, ids)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    right = gradients(model, oracle)
    errors = {
        name: ((p.grad - right[name]).abs().max() / right[name].abs().max()).item()
        for name, p in model.named_parameters()
    }
    assert {name: error for name, error in errors.items() if not error <= tolerance} == {}


@torch.no_grad()
def test_serves_what_hugging_face_computes(served, oracle, package, batch):
    torch.testing.assert_close(
        logits(served, package, batch), oracle(batch).logits, rtol=0, atol=5e-5
    )


EACH_ONCE = {("Qwen2", "attach"), ("Qwen3", "flag"), ("Mistral", "replace"), ("Mixtral", "auto")}


@pytest.mark.parametrize(
    ("family", "strategy"),
    some(EACH_ONCE, itertools.product(FAMILIES, STRATEGIES)),
    indirect=["family"],
)
def test_every_gradient_is_right(served, oracle, package, batch, strategy):
    trainify.trainify(served, strategy=strategy)
    assert_same_step(served, oracle, package, batch)


@pytest.mark.parametrize("family", some(("Qwen2", "Mixtral"), FAMILIES), indirect=True)
def test_in_double(served, oracle, package, batch):
    """What takes the place of the kernels is exact, where nobody rounds to float32."""
    trainify.trainify(served, strategy="replace")
    for parameter in (*served.parameters(), *oracle.parameters()):
        parameter.data = parameter.data.double()
    with exact_in_double():
        assert_same_step(served, oracle, package, batch, tolerance=1e-9)


@pytest.mark.parametrize("family", some(("Qwen3", "Mixtral"), FAMILIES), indirect=True)
def test_the_kernels_that_serve_are_those_that_train(served, package, batch):
    with torch.no_grad():
        expected = logits(served, package, batch)
    trainify.trainify(served, strategy="attach")
    trained = logits(served, package, batch)
    assert trained.requires_grad and torch.equal(trained, expected)


@pytest.mark.parametrize("family", some(("Mixtral",), FAMILIES), indirect=True)
def test_audited(served, oracle, package, batch):
    before = {name: type(module) for name, module in served.named_modules()}
    trainify.trainify(served, package.PackedBatch.of(batch.tolist()))
    assert_same_step(served, oracle, package, batch)
    forward = logits(served, package, batch)
    assert forward.requires_grad
    trainify.restore(served)
    assert {name: type(module) for name, module in served.named_modules()} == before
    with torch.no_grad():
        assert torch.equal(forward, logits(served, package, batch)), "trained is what is served"


@pytest.mark.slow
def test_thirty_steps_of_adamw(served, oracle, package):
    trainify.trainify(served)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (served, oracle)]
    generator = torch.Generator().manual_seed(3)
    for _ in range(30):
        ids = torch.randint(256, (2, 12), generator=generator)
        losses = [
            next_token_loss(logits(served, package, ids), ids),
            next_token_loss(oracle(ids).logits, ids),
        ]
        torch.testing.assert_close(*losses, rtol=0, atol=1e-5)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
