"""The extensions that a project compiles itself: when it is built, or when they are loaded.

``CUDAExtension("pkg._C", ["csrc/norm.cu"])`` says under which name C++ is imported, and in which
files it stands, and so do other files that say how a project is built, see :mod:`.built`;
``load(name="ext", sources=[...])`` and ``load_inline`` say it where they are called, see
:mod:`.loaded`, and :mod:`.held` follows what they give to where it is used.  What the sources bind
is read from them, see :mod:`..native`.
"""

from .built import built_around
from .extension import Extension
from .held import Held, effect_of, hands_on
from .loaded import loaded_around, loaded_in

__all__ = [
    "Extension",
    "Held",
    "built_around",
    "effect_of",
    "hands_on",
    "loaded_around",
    "loaded_in",
]
