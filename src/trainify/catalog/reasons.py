"""Why an op has no equivalent, and whether a gradient is lost in it."""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """A clause that follows "Not rewritten:"; ``cuts`` as in :class:`~.FusedOp`."""

    text: str
    cuts: bool = False


# Nothing is lost.
TOKENS = Reason("it gives token ids, which have no derivative")
FILTER = Reason("it filters scores for sampling, which no loss reads")
CACHE = Reason("it keeps keys and values for later steps, which training does without")
ORDER = Reason("it orders tokens by expert: all integers")
CODES = Reason("it gives integer or fp8 codes, through which no gradient passes")
UNPACK = Reason("it unpacks frozen weights, none of which is trained")
COLLECTIVE = Reason("it sums over devices: torch.distributed.nn has collectives with a backward")
LAYER = Reason("a call of the class builds a layer")

# A gradient is lost.
OPEN = Reason("no equivalent has been written yet", cuts=True)
RAISES = Reason("its autograd.Function has no working backward", cuts=True)
TILED = Reason("its weight is tiled for the kernel: dequantize the checkpoint's format", cuts=True)
FP4 = Reason("its fp4 codes have a layout of scales that is not documented", cuts=True)
GGML = Reason("its weight is in one of ggml's block formats", cuts=True)
HANDLE = Reason("it works on a handle that only the kernel can read", cuts=True)
CONTEXT = Reason(
    "its keys, values and lengths come from a plan or a context, not a call", cuts=True
)
