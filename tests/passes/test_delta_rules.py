"""The layers of Qwen3-Next and Kimi Linear as vLLM computes them, over packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from verbs import findings, fix

_OPS = "vllm.third_party.flash_linear_attention.ops"


def trained(text: str, unsafe: bool = False) -> dict[str, Any]:
    fixed = fix(text, strategy="replace", unsafe=unsafe)
    assert not findings(fixed)
    scope: dict[str, Any] = {}
    exec(fixed, scope)
    return scope


def steps_of(q: Any, k: Any, v: Any, g: Any, rates: Any, state: Any) -> tuple[Any, Any]:
    """Of one head: the state is values by keys; g is a number or one for each key."""
    out = []
    for t in range(len(q)):
        state = state * torch.exp(g[t])
        state = state + torch.outer(rates[t] * (v[t] - state @ k[t]), k[t])
        out.append(state @ q[t] * q.shape[-1] ** -0.5)
    return torch.stack(out), state


def agree(got: Any, want: Any, leaves: list[torch.Tensor]) -> None:
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    mine = torch.autograd.grad(got.double().square().sum(), leaves)
    right = torch.autograd.grad(want.square().sum(), leaves, retain_graph=True)
    for a, b in zip(mine, right, strict=True):
        assert b.abs().max() > 1e-4
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_packed_sequences_of_a_gated_delta_net() -> None:
    scope = trained(f"""\
        from {_OPS} import chunk_gated_delta_rule, fused_post_conv_prep


        def forward(mixed, a, b, A_log, dt_bias, state, ends):
            q, k, v, g, beta = fused_post_conv_prep(mixed, a, b, A_log, dt_bias, 1, 3, 2)
            return chunk_gated_delta_rule(
                q[None],
                k[None],
                v[None],
                g[None],
                beta[None],
                initial_state=state,
                output_final_state=True,
                cu_seqlens=ends,
                use_qk_l2norm_in_kernel=False,
            )
    """)
    torch.manual_seed(0)
    shapes = {"mixed": (5, 10), "a": (5, 2), "b": (5, 2), "A_log": (2,), "dt_bias": (2,)}
    leaves = {n: torch.randn(s, dtype=torch.float64).requires_grad_() for n, s in shapes.items()}
    state = torch.randn(2, 2, 2, 3, dtype=torch.float64).requires_grad_()
    out, last = scope["forward"](*leaves.values(), state, torch.tensor([0, 3, 5]))

    mixed, a, b, A_log, dt_bias = leaves.values()
    q, k = (
        x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (mixed[:, :3], mixed[:, 3:6])
    )
    g, rates = -A_log.exp() * F.softplus(a + dt_bias), b.sigmoid()
    results, states = [], []
    for i, own in enumerate((slice(0, 3), slice(3, 5))):
        for h in range(2):
            v = mixed[own, 6 + 2 * h : 8 + 2 * h]
            result, end = steps_of(q[own], k[own], v, g[own, h], rates[own, h], state[i, h])
            results.append(result)
            states.append(end)
    rows = [torch.stack(results[:2], 1), torch.stack(results[2:], 1)]
    want = torch.cat((torch.cat(rows).flatten(), torch.stack(states).flatten()))
    agree(torch.cat((out.flatten(), last.flatten())), want, [*leaves.values(), state])


@pytest.mark.parametrize("bound", [None, -5.0])
def test_decays_of_each_feature_in_kimis_delta_attention(bound: float | None) -> None:
    scope = trained(f"""\
        from {_OPS}.kda import chunk_kda, chunk_kda_with_fused_gate, fused_kda_gate


        def apart(q, k, v, x, rates, A, bias):
            g = fused_kda_gate(x.flatten(-2), A, 3, g_bias=bias, lower_bound={bound})
            return chunk_kda(q, k, v, g, rates)[0]


        def fused(q, k, v, x, rates, A, bias):
            return chunk_kda_with_fused_gate(q, k, v, x, rates, A, bias, lower_bound={bound})[0]
    """)
    torch.manual_seed(0)
    shapes = [(1, 4, 1, 3), (1, 4, 1, 3), (1, 4, 1, 2), (1, 4, 1, 3), (1, 4, 1), (1,), (3,)]
    leaves = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]
    q, k, v, x, rates, A, bias = leaves
    soft = A.exp() * (x[0, :, 0] + bias)
    if bound is None:
        g = -A.exp() * torch.log1p(torch.exp(x[0, :, 0] + bias))
    else:
        g = bound / (1 + torch.exp(-soft))
    zero = torch.zeros(2, 3, dtype=torch.float64)
    want, _ = steps_of(q[0, :, 0], k[0, :, 0], v[0, :, 0], g, rates[0, :, 0], zero)
    for name in ("apart", "fused"):
        agree(scope[name](*leaves)[0, :, 0], want, leaves)


def test_the_short_convolution_of_packed_sequences() -> None:
    scope = trained(
        """\
        from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn


        def forward(x, weight, bias, states, ends, slots, known):
            return causal_conv1d_fn(
                x.transpose(0, 1),
                weight,
                bias,
                activation="silu",
                conv_states=states,
                has_initial_state=known,
                cache_indices=slots,
                query_start_loc=ends,
            ).transpose(0, 1)
    """,
        unsafe=True,
    )
    torch.manual_seed(0)
    shapes = [(5, 2), (2, 3), (2,)]
    x, weight, bias = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes)
    states = torch.randn(4, 2, 2, dtype=torch.float64)
    begin, ends, slots = states[3].clone(), torch.tensor([0, 3, 5]), torch.tensor([3, 1])
    got = scope["forward"](x, weight, bias, states, ends, slots, torch.tensor([True, False]))
    first = F.conv1d(torch.cat((begin, x[:3].T), 1)[None], weight[:, None], bias, groups=2)
    second = F.conv1d(F.pad(x[3:].T, (2, 0))[None], weight[:, None], bias, groups=2)
    want = F.silu(torch.cat((first[0], second[0]), 1)).T
    agree(got, want, [x, weight, bias])
    torch.testing.assert_close(states[3], x[1:3].T.detach())
    torch.testing.assert_close(states[1], x[3:].T.detach())


@pytest.mark.parametrize("body", ["x = {call}\n    return x", "return {call}"])
def test_an_update_hands_back_its_input_alone(body: str) -> None:
    """It writes the states as well, which it does not return."""
    call = "causal_conv1d_update(x, states, weight, bias, 'silu', conv_state_indices=slots)"
    scope = trained(
        "from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update\n\n\n"
        f"def forward(x, states, weight, bias, slots):\n    {body.format(call=call)}\n",
        unsafe=True,
    )
    torch.manual_seed(0)
    shapes = [(2, 2), (2, 3), (2,)]
    x, weight, bias = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes)
    states = torch.randn(3, 2, 2, dtype=torch.float64)
    window = torch.cat((states[1:].clone(), x[..., None]), -1)
    got = scope["forward"](x.clone(), states, weight, bias, torch.tensor([1, 2]))
    agree(got, F.silu((window * weight).sum(-1) + bias), [x, weight, bias])
    torch.testing.assert_close(states[1:], window[..., 1:].detach())


@pytest.mark.parametrize(
    "name",
    [
        "fused_sigmoid_gating_delta_rule_update",
        "fused_recurrent_gated_delta_rule",
        "fused_recurrent_gated_delta_rule_packed_decode",
        "kda.fused_recurrent_kda",
    ],
)
def test_what_serves_single_steps_says_what_to_train_instead(name: str) -> None:
    module, _, function = f"{_OPS}.{name}".rpartition(".")
    text = f"from {module} import {function}\n\n\ndef f(q, k, v, g):\n    return {function}(q, k, v, g)\n"
    (found,) = findings(text)
    assert "train with the kernel for whole sequences" in found.message
    assert not found.fixes
