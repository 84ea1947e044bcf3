"""How close is close, per dtype."""

import torch


def ulps(actual, expected):
    """Distance in units of the last place, elementwise, for bfloat16."""

    def ordered(t):
        bits = t.contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (ordered(actual) - ordered(expected)).abs()


def flips(actual, expected):
    """The share of bfloat16 elements that differ at all."""
    return (ulps(actual, expected) != 0).float().mean().item()


def assert_rounded(actual, expected, atol=1e-6):
    """`actual` is `expected` (float64), rounded to the dtype of `actual`.

    float32: 1e-6 relative.  bfloat16: one unit in the last place, and that only where the exact
    value lies within float32 noise of a rounding boundary, about one element in ten thousand.
    """
    assert expected.dtype == torch.float64
    if actual.dtype == torch.float32:
        torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=atol)
        return
    expected = expected.to(actual.dtype)
    off = ulps(actual, expected)
    off[(actual.double() - expected.double()).abs() < atol] = 0
    assert off.max() <= 1
    assert (off != 0).float().mean() < 2e-3
