"""What a tensor says of itself beside its values."""

from __future__ import annotations

TRAITS = frozenset("shape dtype device ndim layout is_cuda itemsize".split())
"""Attributes that no gradient passes, and that computing another value does not change."""

SIZES = frozenset("size dim numel stride".split())
"""Methods that give the same."""

METADATA = TRAITS | SIZES
