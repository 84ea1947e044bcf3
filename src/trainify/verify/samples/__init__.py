"""Random arguments for every reference function and every fused op.

A module here stands beside one of :mod:`trainify.reference`: a maker draws, for one or more of its
functions, values by parameter name.  The tests of the functions draw from it, and so does whatever
checks an op, for which :func:`trainify.verify.inputs.arguments` finds out which argument is which
parameter.  Ops that become PyTorch's own functions are in :mod:`.plain`, by their own names.
"""

from __future__ import annotations

from . import attention, cached, matmul, moe, norm, rope, state_space  # noqa: F401  they register
from .draw import Draw, NoInputs, Values, sample
from .plain import PLAIN

__all__ = ["PLAIN", "Draw", "NoInputs", "Values", "sample"]
