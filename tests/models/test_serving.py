"""The inference packages serve what Hugging Face computes."""

import pytest
import torch
from packages import FIXTURES, PACKAGES, load_oracle, load_package


@pytest.fixture(params=PACKAGES)
def cls(request):
    return PACKAGES[request.param]


@pytest.fixture
def package(cls):
    return load_package(FIXTURES / cls.name)


@torch.inference_mode()
def test_logits(cls, package, checkpoint_of, batch):
    checkpoint = checkpoint_of[cls.kind]
    logits = cls(package, checkpoint).logits(batch)
    expected = load_oracle(cls, checkpoint)(batch).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)


@torch.inference_mode()
def test_logits_in_bfloat16(cls, package, checkpoint_of, batch):
    """Not further from float32 than Hugging Face in bfloat16 is, give or take."""
    checkpoint = checkpoint_of[cls.kind]
    exact = load_oracle(cls, checkpoint)(batch).logits
    oracle = load_oracle(cls, checkpoint, torch.bfloat16)(batch).logits
    logits = cls(package, checkpoint, torch.bfloat16).logits(batch)
    assert logits.dtype == torch.float32
    assert (logits - exact).norm() < 1.5 * (oracle - exact).norm()


def test_greedy_tokens_of_prompts_of_different_lengths(cls, package, checkpoint_of, batch):
    """Both phases: prefill, then enough decoding to cross a KV block and leave the window."""
    checkpoint = checkpoint_of[cls.kind]
    prompts = [batch[0, :11].tolist(), batch[1].tolist(), batch[0, 5:8].tolist()]
    oracle = load_oracle(cls, checkpoint)
    expected = [greedy(oracle, prompt, 20) for prompt in prompts]
    tokens = cls(package, checkpoint).generate(prompts, 20)
    assert tokens == expected
    assert len({tuple(t) for t in tokens}) == len(prompts)


def test_bfloat16_generates(cls, package, checkpoint_of, batch):
    model = cls(package, checkpoint_of[cls.kind], torch.bfloat16)
    tokens = model.generate(batch.tolist(), 12)
    assert [len(t) for t in tokens] == [12, 12]
    assert tokens == model.generate(batch.tolist(), 12)


def test_sampling_follows_the_seed(cls, package, checkpoint_of, batch):
    model = cls(package, checkpoint_of[cls.kind])
    prompts = batch.tolist()
    first = model.generate(prompts, 12, temperature=0.8, seed=1)
    assert model.generate(prompts, 12, temperature=0.8, seed=1) == first
    assert model.generate(prompts, 12, temperature=0.8, seed=2) != first
    assert first != model.generate(prompts, 12)


@torch.inference_mode()
def greedy(oracle, prompt, n):
    ids = torch.tensor([prompt])
    output = oracle.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False
    )
    return output[0, len(prompt) :].tolist()
