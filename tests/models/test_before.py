"""What happens when the packages are trained as they are."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from packages import (
    FIXTURES,
    PACKAGES,
    copy_package,
    gradient_errors,
    load_oracle,
    load_package,
    next_token_loss,
)


def without_decorator(name, root):
    """A copy whose forward no longer switches gradients off: the fix that comes to mind first."""
    directory = copy_package(name, root)
    pattern = re.compile(r" +@torch\.(?:inference_mode|no_grad)\(\)\n(?= +def forward\()")
    changed = 0
    for file in directory.rglob("*.py"):
        source, n = pattern.subn("", file.read_text())
        file.write_text(source)
        changed += n
    assert changed == 1
    return load_package(directory)


def outcome(model, oracle, batch):
    """Hugging Face parameter names by what their gradient is: right, wrong or missing."""
    oracle.zero_grad()
    model.model.zero_grad()
    next_token_loss(oracle(batch).logits, batch).backward()
    next_token_loss(model.logits(batch), batch).backward()
    errors = gradient_errors(model.hf_gradients(), oracle)
    found = {"right": set(), "wrong": set(), "missing": set()}
    for name, error in errors.items():
        kind = "missing" if math.isinf(error) else "right" if error <= 1e-5 else "wrong"
        found[kind].add(name)
    return found


@pytest.mark.parametrize(
    "name, error",
    [
        ("llama_serving", "Inference tensors cannot be saved for backward"),
        ("llama_release", "does not require grad"),
        ("gemma_serving", "does not require grad"),
    ],
)
def test_as_it_is(name, error, checkpoint_of, batch):
    cls = PACKAGES[name]
    model = cls(load_package(FIXTURES / name), checkpoint_of[cls.kind])
    with pytest.raises(RuntimeError, match=error):
        next_token_loss(model.logits(batch), batch).backward()


@pytest.mark.parametrize(
    "name, wrong",
    [
        # The last norm writes over the output of this layer, after autograd took note of it.
        ("llama_serving", {"model.layers.2.mlp.down_proj.weight"}),
        ("llama_release", set()),
    ],
)
def test_without_the_decorator(name, wrong, tmp_path, checkpoint_of, batch):
    """The loss has a graph and falls, and nothing but the output layer learns what it should."""
    cls = PACKAGES[name]
    model = cls(without_decorator(name, tmp_path), checkpoint_of[cls.kind])
    found = outcome(model, load_oracle(cls, checkpoint_of[cls.kind]), batch)
    assert found["right"] == {"lm_head.weight"}
    assert found["wrong"] == wrong
    assert len(found["missing"]) == 3 * 9 + 3 - 1 - len(wrong)
    # Each step adds to a graph that nobody frees.
    assert any(tensor.requires_grad for tensor in model.state())


def test_gemma_without_the_decorator(tmp_path, checkpoint_of, batch):
    model = PACKAGES["gemma_serving"](
        without_decorator("gemma_serving", tmp_path), checkpoint_of["gemma2"]
    )
    with pytest.raises(RuntimeError, match=r"tanh\(\): functions with out="):
        model.logits(batch)


def test_release_with_a_norm_that_has_a_backward(tmp_path, checkpoint_of, batch, monkeypatch):
    """`.data` still cuts the norms off, and the cache of the first step breaks the second."""
    import flashinfer

    monkeypatch.setattr(
        flashinfer, "rmsnorm", lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps)
    )
    cls = PACKAGES["llama_release"]
    model = cls(without_decorator("llama_release", tmp_path), checkpoint_of["llama"])
    oracle = load_oracle(cls, checkpoint_of["llama"])
    found = outcome(model, oracle, batch)
    assert found["wrong"] == set()
    assert found["missing"] == {n for n, p in oracle.named_parameters() if p.dim() == 1}
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        outcome(model, oracle, batch)


def test_tensors_of_the_packages_are_parameters(checkpoint_of):
    """So that what a fix has to do is about gradients only."""
    for cls in PACKAGES.values():
        model = cls(load_package(FIXTURES / cls.name), checkpoint_of[cls.kind])
        assert all(p.requires_grad for p in model.model.parameters())
        names = {n for n, p in model.model.named_parameters() for n, _ in model.to_hf(n, p)}
        oracle = load_oracle(cls, checkpoint_of[cls.kind])
        assert names == {n for n, _ in oracle.named_parameters()}
        assert not torch.is_inference_mode_enabled()
