"""What the kernels are for: they run on tensors that want a gradient and record none."""

import warnings

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

EPS = 1e-6


def live(*shape):
    """An activation: attached to the graph, not a leaf."""
    return torch.randn(*shape, requires_grad=True) * 2


def weight(n):
    return torch.nn.Parameter(torch.randn(n))


def cos_sin_cache():
    return torch.randn(10, 16)


def vllm_out(op, *args, width):
    import vllm  # noqa: F401  (registers torch.ops._C)

    out = torch.empty(*args[0].shape[:-1], width)
    op(out, *args)
    return out


def ops():
    from vllm import _custom_ops

    return _custom_ops


def flashinfer():
    import flashinfer

    return flashinfer


def sgl():
    import sgl_kernel

    return sgl_kernel


def deepspeed():
    from deepspeed.ops.transformer.inference import triton

    return triton


def kvcache(q, k, v):
    from flash_attn import flash_attn_with_kvcache

    return flash_attn_with_kvcache(q[None], k[None], v[None], causal=True)


NEW_TENSORS = {
    "vllm.rms_norm": lambda: vllm_out(
        lambda out, x, w: ops().rms_norm(out, x, w, EPS), live(3, 32), weight(32), width=32
    ),
    "vllm.silu_and_mul": lambda: vllm_out(
        lambda out, x: torch.ops._C.silu_and_mul(out, x), live(3, 32), width=16
    ),
    "flashinfer.rmsnorm": lambda: flashinfer().rmsnorm(live(3, 32), weight(32)),
    "flashinfer.gemma_rmsnorm": lambda: flashinfer().gemma_rmsnorm(live(3, 32), weight(32)),
    "flashinfer.layernorm": lambda: flashinfer().layernorm(live(3, 32), weight(32), weight(32)),
    "flashinfer.silu_and_mul": lambda: flashinfer().silu_and_mul(live(3, 32)),
    "flashinfer.softmax": lambda: flashinfer().sampling.softmax(live(3, 32)),
    "flashinfer.rope": lambda: flashinfer().apply_rope_with_cos_sin_cache(
        torch.arange(3), live(3, 32), live(3, 16), 16, cos_sin_cache()
    )[0],
    "flashinfer.prefill": lambda: flashinfer().single_prefill_with_kv_cache(
        live(3, 4, 8), live(5, 2, 8), live(5, 2, 8), causal=True
    ),
    "flashinfer.decode": lambda: flashinfer().single_decode_with_kv_cache(
        live(4, 8), live(5, 2, 8), live(5, 2, 8)
    ),
    "sgl_kernel.rmsnorm": lambda: sgl().rmsnorm(live(3, 32), weight(32)),
    "sgl_kernel.gelu_tanh_and_mul": lambda: sgl().gelu_tanh_and_mul(live(3, 32)),
    "flash_attn.kvcache": lambda: kvcache(live(1, 4, 8), live(5, 2, 8), live(5, 2, 8)),
    "deepspeed.layer_norm": lambda: deepspeed().layer_norm(
        live(3, 32), weight(32), weight(32), EPS
    ),
    "deepspeed.softmax": lambda: deepspeed().softmax(live(3, 32)),
}


@pytest.mark.parametrize("name", NEW_TENSORS)
def test_a_new_tensor_is_detached(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = NEW_TENSORS[name]()
    assert not out.requires_grad
    assert out.grad_fn is None
    with pytest.raises(RuntimeError, match="does not require grad"):
        out.sum().backward()


def rotate_vllm(q, k):
    ops().rotary_embedding(torch.arange(3), q, k, 16, cos_sin_cache(), True)


def rotate_flashinfer(q, k):
    flashinfer().apply_rope_with_cos_sin_cache_inplace(torch.arange(3), q, k, 16, cos_sin_cache())


def rotate_sgl(q, k):
    sgl().apply_rope_with_cos_sin_cache_inplace(torch.arange(3), q, k, 16, cos_sin_cache())


def cache_write(k_cache, v_cache):
    one = torch.ones(1)
    kv = torch.randn(3, 2, 16)
    ops().reshape_and_cache_flash(
        kv,
        kv,
        k_cache.view(1, 3, 2, 16),
        v_cache.view(1, 3, 2, 16),
        torch.arange(3),
        "auto",
        one,
        one,
    )


IN_PLACE = {
    "vllm.fused_add_rms_norm": lambda a, b: ops().fused_add_rms_norm(a, b, weight(32), EPS),
    "vllm.rotary_embedding": rotate_vllm,
    "vllm.reshape_and_cache_flash": cache_write,
    "flashinfer.fused_add_rmsnorm": lambda a, b: flashinfer().fused_add_rmsnorm(a, b, weight(32)),
    "flashinfer.apply_rope_inplace": rotate_flashinfer,
    "sgl_kernel.fused_add_rmsnorm": lambda a, b: sgl().fused_add_rmsnorm(a, b, weight(32)),
    "sgl_kernel.gemma_fused_add_rmsnorm": lambda a, b: sgl().gemma_fused_add_rmsnorm(
        a, b, weight(32)
    ),
    "sgl_kernel.apply_rope_inplace": rotate_sgl,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_written_tensor_keeps_a_stale_grad_fn(name):
    """Backward runs, silently, and treats the kernel as the identity."""
    leaves = [torch.randn(3, 32, requires_grad=True) for _ in range(2)]
    tensors = [leaf * 2 for leaf in leaves]
    before = [(t.grad_fn, t._version, t.detach().clone()) for t in tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IN_PLACE[name](*tensors)
        for t, (grad_fn, version, values) in zip(tensors, before, strict=True):
            assert t.grad_fn is grad_fn
            assert t._version == version
            assert not torch.equal(t, values)
        sum(t.sum() for t in tensors).backward()
    for leaf in leaves:
        assert torch.equal(leaf.grad, torch.full_like(leaf, 2.0))


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_leaf_is_written_without_complaint(name):
    leaves = [torch.randn(3, 32, requires_grad=True) for _ in range(2)]
    IN_PLACE[name](*leaves)
    assert all(leaf.is_leaf and leaf._version == 0 for leaf in leaves)


def test_varlen_attention_only_warns():
    """A functional dispatcher op: attached, but to a node that has no derivative."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    leaf = torch.randn(3, 4, 8, requires_grad=True)
    cu = torch.tensor([0, 3], dtype=torch.int32)
    kv = torch.randn(3, 2, 8)
    out = flash_attn_varlen_func(leaf * 2, kv, kv, 3, cu, 3, cu, causal=True)
    assert out.requires_grad
    assert "WarnNotImplemented" in out.grad_fn.name()
    with pytest.warns(UserWarning, match="autograd kernel was not registered"):
        out.sum().backward()
    assert leaf.grad is None


class Names(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class DispatchedNames(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Names, DispatchedNames])
def test_modes_see_dispatcher_ops_and_not_bound_functions(mode):
    x, w = live(3, 32), weight(32)
    with mode() as visible:
        ops().rms_norm(torch.empty(3, 32), x, w, EPS)
        sgl().rmsnorm(x, w)
    assert any("_C.rms_norm" in name for name in visible.seen)
    assert any("sgl_kernel.rmsnorm" in name for name in visible.seen)
    with mode() as invisible:
        flashinfer().rmsnorm(x, w)
    assert len(invisible.seen) == 1
    assert "empty_like" in invisible.seen[0]


@pytest.mark.parametrize(
    "name",
    [
        "_C::rms_norm",
        "_C::fused_add_rms_norm",
        "_C::rotary_embedding",
        "_C::silu_and_mul",
        "_C_cache_ops::reshape_and_cache_flash",
        "_vllm_fa2_C::varlen_fwd",
        "sgl_kernel::rmsnorm",
        "sgl_kernel::rotary_embedding",
    ],
)
def test_no_autograd_kernel_is_registered(name):
    import sgl_kernel  # noqa: F401
    import vllm  # noqa: F401

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has(name, "CPU")
    for key in ("Autograd", "AutogradCPU", "CompositeImplicitAutograd"):
        assert not has(name, key)


@pytest.mark.parametrize(
    ("op", "schema"),
    [
        ("_C.rms_norm", "rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon)"),
        (
            "_C.fused_add_rms_norm",
            "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon)",
        ),
        (
            "_C.rotary_embedding",
            "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, "
            "Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False)",
        ),
        ("_C.silu_and_mul", "silu_and_mul(Tensor! result, Tensor input)"),
        (
            "sgl_kernel.rmsnorm",
            "rmsnorm(Tensor! output, Tensor input, Tensor weight, float eps, bool enable_pdl)",
        ),
    ],
)
def test_schemas_are_those_of_the_libraries(op, schema):
    import sgl_kernel  # noqa: F401
    import vllm  # noqa: F401

    namespace, name = op.split(".")
    expected = torch._C.parse_schema(f"{namespace}::{schema} -> ()")
    assert getattr(getattr(torch.ops, namespace), name).default._schema == expected


def test_every_package_says_that_it_is_a_stand_in():
    import importlib

    for name in ("vllm", "flashinfer", "sgl_kernel", "flash_attn", "deepspeed"):
        package = importlib.import_module(name)
        assert package.__standin__ is True
        assert "stand-in" in package.__doc__
        assert "Not the real library" in " ".join(package.__doc__.split())
        assert package.__version__
