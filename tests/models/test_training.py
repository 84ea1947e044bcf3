"""The proof: what `trainify fix` writes can be trained, and serves as before."""

import contextlib
import functools
import importlib
import itertools

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from packages import (
    FIXTURES,
    PACKAGES,
    copy_package,
    gradient_errors,
    load_oracle,
    load_package,
    next_token_loss,
)

from tests.each import some
from trainify.cli import cli

VARIANTS = {
    "flag": ["--strategy", "flag"],
    "flag-training": ["--strategy", "flag", "--flag", "training"],
    "replace": ["--strategy", "replace"],
    "attach": ["--strategy", "attach"],
}

# Each variant and each package; all pairs of them in the soak.
EACH_ONCE = {
    ("llama_serving", "attach"),
    ("llama_serving", "flag-training"),
    ("llama_release", "flag"),
    ("gemma_serving", "replace"),
}


def pairs(chosen, variants=VARIANTS):
    return pytest.mark.parametrize(
        ("cls", "variant"),
        some(chosen, itertools.product(PACKAGES, variants)),
        indirect=["cls", "variant"],
    )


each_once = pairs(EACH_ONCE)

# Files in which there is nothing to fix.  They hold `.data` and `copy_` of weight loaders, in-place
# bookkeeping of a scheduler, RoPE tables.
RIGHT_AS_THEY_ARE = {
    "llama_serving": [
        "__init__.py",
        "attn_metadata.py",
        "config.py",
        "layers/__init__.py",
        "layers/linear.py",
        "platforms.py",
        "weights.py",
    ],
    "llama_release": ["__init__.py"],
    "gemma_serving": ["__init__.py", "forward_batch.py", "layers/__init__.py", "loader.py"],
}


@pytest.fixture(scope="session")
def fix(tmp_path_factory):
    """Runs `trainify fix --write`, in this process, on a copy of a package; its directory."""

    @functools.cache
    def run(name, variant):
        root = tmp_path_factory.mktemp(f"{name}-{variant}")
        directory = copy_package(name, root)
        with contextlib.chdir(root):
            result = CliRunner().invoke(cli, ["fix", name, "--write", *VARIANTS[variant]])
        assert result.exit_code in (0, 1), result.output
        assert sources(directory) != sources(FIXTURES / name), result.output
        return directory

    return run


@pytest.fixture(params=PACKAGES)
def cls(request):
    return PACKAGES[request.param]


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


@pytest.fixture
def fixed(cls, variant, fix, checkpoint_of):
    """The model of a fixed copy, by dtype."""

    def load(dtype=torch.float32):
        return cls(load_package(fix(cls.name, variant)), checkpoint_of[cls.kind], dtype)

    return load


def sources(directory):
    return {str(f.relative_to(directory)): f.read_bytes() for f in directory.rglob("*.py")}


def training_step(model, batch):
    model.model.train()
    loss = next_token_loss(model.logits(batch), batch)
    loss.backward()
    model.model.eval()
    return loss.detach()


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.05)


def greedy(oracle, prompts, n):
    output = oracle.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=n, do_sample=False
    )
    return output[:, prompts.shape[1] :].tolist()


@each_once
def test_every_gradient_is_right_at_every_step(cls, fixed, checkpoint_of, batch):
    model = fixed()
    oracle = load_oracle(cls, checkpoint_of[cls.kind])
    optimizer = sgd(model.model)
    prompts = batch[:, :9]
    assert model.generate(prompts.tolist(), 6) == greedy(oracle, prompts, 6)
    for _ in range(3):
        # Whatever generation leaves in the caches, training does not see it, and the reverse.
        model.generate(prompts.tolist(), 6)
        loss = training_step(model, batch)
        expected = next_token_loss(oracle(batch).logits, batch)
        expected.backward()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=0)
        errors = gradient_errors(model.hf_gradients(), oracle)
        assert {name: error for name, error in errors.items() if not error <= 1e-5} == {}
        optimizer.step()
        optimizer.zero_grad()
        oracle.zero_grad()
        model.hand_weights_to(oracle)  # which differ by their roundings after steps of its own
    assert model.generate(prompts.tolist(), 6) == greedy(oracle, prompts, 6)


@each_once
def test_nothing_that_outlives_a_step_holds_a_graph(fixed, batch):
    model = fixed()
    for _ in range(2):
        training_step(model, batch)
        assert [tensor.shape for tensor in model.state() if tensor.requires_grad] == []


@pairs(
    EACH_ONCE - {("gemma_serving", "replace")} | {("gemma_serving", "flag")},
    [v for v in VARIANTS if v != "replace"],
)
def test_serving_stays_bit_for_bit(cls, variant, fixed, checkpoint_of, batch):
    model = fixed()
    original = cls(load_package(FIXTURES / cls.name), checkpoint_of[cls.kind])
    for trained in (False, True):
        if trained:
            optimizer = sgd(model.model)
            training_step(model, batch)
            optimizer.step()
            original.model.load_state_dict(model.model.state_dict())
        with torch.no_grad():
            assert torch.equal(model.logits(batch), original.logits(batch))
        prompts = batch[:, :9].tolist()
        for sampling in ({}, {"temperature": 0.8, "seed": 3}):
            assert model.generate(prompts, 12, **sampling) == original.generate(
                prompts, 12, **sampling
            )


def test_the_kernels_that_serve_are_those_that_train(cls, fix, checkpoint_of, batch):
    """Under strategy attach: the forward pass of a training step, bit for bit."""
    patched = cls(load_package(fix(cls.name, "attach")), checkpoint_of[cls.kind])
    original = cls(load_package(FIXTURES / cls.name), checkpoint_of[cls.kind])
    optimizer = sgd(patched.model)
    for _ in range(3):
        patched.model.train()
        logits = patched.logits(batch)
        with torch.no_grad():
            assert torch.equal(logits, original.logits(batch))
        next_token_loss(logits, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        original.model.load_state_dict(patched.model.state_dict())


@each_once
def test_inference_records_no_graph(fixed, batch):
    """forward had switched gradients off for it; now something else has to."""
    model = fixed()
    recorded = set()

    def note(module, inputs, output):
        outputs = output if isinstance(output, tuple) else (output,)
        if any(tensor.requires_grad for tensor in outputs):
            recorded.add(type(module).__name__)

    for module in model.model.modules():
        module.register_forward_hook(note)
    model.generate(batch[:, :9].tolist(), 3)
    model.warm_up()
    assert recorded == set()


@pytest.mark.parametrize("variant", some(("attach", "flag"), VARIANTS))
def test_the_branch_that_no_model_takes(variant, fix):
    """llama_serving's norm has a way of its own for rows that are not dense."""
    package = load_package(fix("llama_serving", variant))
    layernorm = importlib.import_module(f"{package.__name__}.layers.layernorm")
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).T.requires_grad_()
    norm = layernorm.RMSNorm(8, eps=1e-6)
    ours = torch.autograd.grad(norm(x).square().sum(), [x, norm.weight])
    expected = F.rms_norm(x, (8,), norm.weight, 1e-6).square().sum()
    torch.testing.assert_close(ours, torch.autograd.grad(expected, [x, norm.weight]))


@each_once
@torch.no_grad()
def test_logits_stay_within_rounding(cls, fixed, checkpoint_of, batch):
    expected = load_oracle(cls, checkpoint_of[cls.kind])(batch).logits
    torch.testing.assert_close(fixed().logits(batch), expected, rtol=0, atol=2e-5)


@each_once
def test_bfloat16_trains_after_it_generated(cls, fixed, checkpoint_of, batch):
    """Caches that change their dtype while generating must not be inference tensors in training."""
    model = fixed(torch.bfloat16)
    model.generate(batch[:, :9].tolist(), 4)
    training_step(model, batch)
    model.generate(batch[:, :9].tolist(), 4)
    oracle = load_oracle(cls, checkpoint_of[cls.kind])
    next_token_loss(oracle(batch).logits, batch).backward()
    gradients = model.hf_gradients()
    for name, parameter in oracle.named_parameters():
        assert gradients[name] is not None, name
        similarity = F.cosine_similarity(
            gradients[name].float().flatten(), parameter.grad.flatten(), dim=0
        )
        assert similarity > 0.97, (name, similarity.item())


@each_once
def test_what_is_right_keeps_its_bytes(cls, variant, fix):
    before, after = sources(FIXTURES / cls.name), sources(fix(cls.name, variant))
    assert before.keys() == after.keys()
    assert [f for f in RIGHT_AS_THEY_ARE[cls.name] if before[f] != after[f]] == []
