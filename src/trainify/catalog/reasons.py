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
CODED = Reason(
    "it multiplies integer codes, ahead of which the gradient is already lost", cuts=True
)
CODEBOOK = Reason("its weight is looked up in codebooks", cuts=True)
SPARSE = Reason("its weight is stored as 2:4 sparse blocks", cuts=True)
ROUNDS = Reason("it rounds its input to 8 bits, with scales of its own", cuts=True)
QUANTIZES = Reason("what it gives are codes of 8 bits, through which no gradient passes", cuts=True)
BUFFER = Reason("the dtype of its codes is that of a buffer, which only a run shows", cuts=True)
MAJOR = Reason("its scales lie in one of several layouts, which only a run shows", cuts=True)
OPTIONS = Reason("its many quantized and grouped forms share one signature", cuts=True)
MASKED = Reason("it leaves rows past the lengths it is given as they were", cuts=True)
MODULES = Reason("its experts are layers with quantized weights", cuts=True)
WRITES = Reason("it writes keys into a cache, in a format that only a run shows", cuts=True)
DEVICES = Reason("it sums over devices, in a workspace they share", cuts=True)
BUILDER = Reason("it is reached through a builder, whose kernels share a workspace", cuts=True)
DIFFERS = Reason("what it computes differs between releases", cuts=True)
FUNCTIONAL = Reason("functionalization writes it, not a person", cuts=True)
UNDOCUMENTED = Reason("its layout or its rounding is not documented", cuts=True)
STATES = Reason("its states lie in slots that a scheduler hands out", cuts=True)
STEPS = Reason(
    "it takes steps from states in a scheduler's slots: train with the kernel for whole sequences",
    cuts=True,
)
CACHED_LATENTS = Reason(
    "it reads latent keys from a server's cache: train with attention over the fresh ones",
    cuts=True,
)
FP8_PRODUCT = Reason(
    "it multiplies codes of 8 bits, ahead of which the gradient is already lost: train the "
    "checkpoint in bfloat16",
    cuts=True,
)
FP4_EXPERTS = Reason(
    "its experts are codes of 4 bits: train the checkpoint in bfloat16, into which they unpack",
    cuts=True,
)
INDEXER = Reason(
    "it scores keys by codes of 8 bits, to choose among them: train the indexer in floating "
    "point, on the attention to all keys",
    cuts=True,
)
