"""Proving rewrites: each fused kernel held against the equivalent that takes its place.

:func:`verify` runs the checks in a process of its own, which is the only one that imports torch and
the libraries of the kernels; a kernel that crashes ends that process and no other.
"""

from __future__ import annotations

from .run import Environment, VerifyError, verify
from .verdict import Comparison, Job, Verdict, jobs_of

__all__ = ["Comparison", "Environment", "Job", "Verdict", "VerifyError", "jobs_of", "verify"]
