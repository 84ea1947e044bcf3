"""Arguments for ops that become PyTorch's own functions, by the name in their schema.

What is not here has operands of one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from .draw import Draw, Values


def codes(draw: Draw, *shape: int) -> torch.Tensor:
    """int8."""
    return draw.integers(255, *shape, dtype=torch.int8)


def scatter(draw: Draw) -> Values:
    """Rows of which some go to the same place, and some places get none."""
    return {
        **draw.shaped(self="an", src="mn"),
        "dim": 0,
        "index": draw.integers(2, *draw.sizes("mn")),
        "reduce": draw.pick("reduce", "multiply", "add"),
    }


def bags(draw: Draw) -> Values:
    return {
        "weight": draw.tensor(5, 3),
        "indices": draw.whole([0, 2, 4, 2]),
        "offsets": draw.whole([0, 1, 4]),
        "mode": draw.pick("mode", 0, 1),
        "scale_grad_by_freq": False,  # what backward alone does is no derivative
        "sparse": False,
        "include_last_offset": False,  # else what only a backward reads has another shape
        "per_sample_weights": None,
    }


PLAIN: Mapping[str, Callable[[Draw], Values]] = {
    "mm": lambda draw: draw.shaped(self="mk", mat2="kn"),
    "bmm": lambda draw: draw.shaped(self="bmk", mat2="bkn"),
    "addmm": lambda draw: draw.shaped(self="mn", mat1="mk", mat2="kn"),
    "_addmm_activation": lambda draw: draw.shaped(self="n", mat1="mk", mat2="kn"),
    "baddbmm": lambda draw: draw.shaped(self="bmn", batch1="bmk", batch2="bkn"),
    "gemm_half_half_half": lambda draw: draw.shaped(a="mk", b="kn", c="mn"),
    "mm_bf16": lambda draw: draw.shaped(a="mk", b="kn"),
    "bmm_bf16": lambda draw: draw.shaped(A="bmk", B="bkn"),
    "tgv_gemm_sm100": lambda draw: draw.shaped(a="mk", b="kn", bias="n"),
    "cublas_mm": lambda draw: draw.shaped(mat_a="mk", mat_b="kn", bias="n"),
    "dsv3_fused_a_gemm": lambda draw: draw.shaped(mat_a="mk", mat_b="kn"),
    "dsv3_router_gemm": lambda draw: draw.shaped(
        hidden_states="mk", router_weights="nk", mat_a="mk", mat_b="nk"
    ),
    "tinygemm_bf16": lambda draw: draw.shaped(input="mk", weight="nk", bias="n"),
    "bf16_gemm_nt": lambda draw: draw.shaped(a="mk", b="nk"),
    "bf16x3_router_gemm": lambda draw: draw.shaped(X="mk", W="nk"),
    "linear_batch_invariant": lambda draw: draw.shaped(input="mk", weight="nk", bias="n"),
    "_mkl_linear": lambda draw: draw.shaped(X="mk", ORI_W="nk", B="n"),
    "_weight_int8pack_mm": lambda draw: {
        **draw.shaped(self="mk", scales="n"),
        "mat2": codes(draw, *draw.sizes("nk")),
    },
    "matmul_dequantize_int8": lambda draw: {
        **draw.shaped(a="mk", b_scale="n"),
        "b": codes(draw, *draw.sizes("kn")),
    },
    "_triton_scaled_dot_attention": lambda draw: draw.shaped(q="bhmd", k="bhnd", v="bhnd"),
    "reduce": scatter,
    "_stack": lambda draw: {  # of a single row with a stride, the kernel reads beyond the end
        "tensors": [draw.tensor(*draw.sizes("mk")) for _ in range(2)],
        "dim": draw.pick("dim", 0, 1),
    },
    "_logcumsumexp": lambda draw: {**draw.shaped(self="mn"), "dim": draw.pick("dim", 0, 1)},
    "_embedding_bag_forward_only": bags,
    "fast_layer_norm": lambda draw: {
        **draw.shaped(hidden_states="mn", weight="n", bias="n"),
        "normalized_shape": list(draw.sizes("n")),
        "eps": 1e-5,
    },
    "bias_gelu_tanh": lambda draw: draw.shaped(input="mn", bias="n"),
    "moe_sum": lambda draw: draw.shaped(input="mkn", input_tensor="mkn"),
    "moe_sum_reduce": lambda draw: {
        **draw.shaped(input="mkn", input_tensor="mkn"),
        "routed_scaling_factor": draw.pick("scale", 2.5, 1.0),
    },
    "moe_reduce": lambda draw: draw.shaped(hidden_states="mkn", topk_weights="mk"),
    "concat_mla_absorb_q": lambda draw: draw.shaped(a="mhk", b="mhn"),
    "concat_mla_q": lambda draw: draw.shaped(ql_nope="mhk", q_pe="mhn"),
    "concat_mla_k": lambda draw: {
        **draw.shaped(k_nope="mhk"),
        "k_rope": draw.shaped(k_rope="mn")["k_rope"].unsqueeze(1),
    },
    "shuffle_rows": lambda draw: {
        "input_tensor": draw.tensor(3, 2),
        "dst2src_map": draw.integers(3, 4),
    },
}
