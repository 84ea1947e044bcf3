"""Which of torch's operations save their input for backward, by their names."""

from __future__ import annotations

INPUT_SAVED = frozenset(
    "pow square cos sin abs log log2 log10 log1p erf var std norm silu gelu mish softplus "
    "leaky_relu elu hardtanh clamp clamp_min layer_norm rms_norm group_norm batch_norm normalize "
    # by which elements won, or by all others of their row
    "amax amin logsumexp logcumsumexp cumprod prod vector_norm clamp_max maximum minimum "
    "var_mean std_mean nansum cosine_similarity logaddexp max_pool1d max_pool2d max_pool3d "
    # by their slope
    "hardswish hardsigmoid relu6 logsigmoid selu celu softsign softshrink hardshrink glu prelu "
    "asin acos atan sinh cosh asinh acosh atanh sinc erfc erfinv lgamma digamma logit atan2 hypot "
    "avg_pool1d avg_pool2d avg_pool3d instance_norm mse_loss smooth_l1_loss huber_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits".split()
)
"""Those that save the first of what they are given, where that has a gradient.

Each is held by a run, and so are those that look alike and are not here: ``max(dim)``, ``sort``,
``topk`` and ``kthvalue`` keep only indices, ``cumsum``, ``sum`` and ``l1_loss`` nothing of it.
"""
WHOLE_SAVED = frozenset({"max", "min", "median", "nanmedian"})
"""Those that do so over all elements, ``x.max()``, and keep only indices along a dimension."""
