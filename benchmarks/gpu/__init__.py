"""The reference functions held against the libraries' own kernels: ``python -m benchmarks.gpu``.

``fetch`` downloads the pinned packages and takes the few source files out of them, ``build``
compiles those, ``run`` compares and writes results.json, ``page`` turns that into
docs/verification.md.  Nothing of the packages is installed or imported, and nothing of them is
kept in the repository.  Without a GPU, ``--emulate`` compiles the same CUDA sources for the host,
one thread to a block.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "gpu"  # where build/ is ignored by git
