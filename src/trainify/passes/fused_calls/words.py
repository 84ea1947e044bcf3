"""Which files may call fused ops: by their bytes, before they are parsed, and by their imports."""

from __future__ import annotations

import re
from functools import cache, cached_property

from ...catalog import FusedOp, names_of_ops, roots, unverified
from ...facts.words import declare, places
from .. import Look, Needle

# The stems find calls through a project's own module that re-exports an op.
_STEMS = declare(b"rms_norm(", b"rmsnorm(", b"_and_mul(", b"rotary_embedding(")

(_IMPORT_MODULE,) = declare(b"import_module(")
_IMPORTED = re.compile(rb"import_module\(\s*[rbu]?[\"'](?:\.|([a-zA-Z_]\w*))")
"""The package that is imported by name; nothing of a name that begins with a dot: the user's."""
(_EXTENSION,) = declare(b"cpp_extension")
_CUDA = (b'.cu"', b".cu'", b"cuda_sources")
_SPACES = (b" ", b"\t")
_BARE_IMPORT = re.compile(rb"[ \t]*import[ \t]+(\w+)[ \t]*(?:#.*)?\r?$")
_CALL_OF_STEM = re.compile(
    rb"(\bdef |\bself\.|\bF\.)?(\w*(?:" + b"|".join(stem[:-1] for stem in _STEMS) + rb"))\("
)


def _calls_from_elsewhere(data: bytes) -> bool:
    """Whether a function with the stem of an op in its name is called, and is not of this file."""
    return any(
        not match[1] and b"def " + match[2] + b"(" not in data
        for stem in _STEMS
        for at in places(data, stem)
        for match in _CALL_OF_STEM.finditer(data, data.rfind(b"\n", 0, at) + 1, at + len(stem))
    )


def _builds_kernels(data: bytes) -> bool:
    return any(word in data for word in _CUDA)


class Words:
    """What calls of some ops are found by; ``own`` are the ops that the user added."""

    def __init__(self, own: tuple[FusedOp, ...] = ()) -> None:
        self.roots = roots(own)
        # A package of the user's own calls its kernels through relative imports.
        names = dict.fromkeys(name.rpartition(".")[2].encode() for op in own for name in op.names)
        self.stems = (*_STEMS, *names)
        self._whole = tuple(root for root in self.roots if "." in root)
        packages = "|".join(root for root in self.roots if "." not in root)
        others = r"(?:[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*,[ \t]*)*"  # import torch, flashinfer
        self._import = rf"[ \t]*(?:from|import)[ \t]+(?:{others})(?:{packages})\b"
        # Many packages have common words for names, so they are looked for in import statements
        # only.
        self._packages = declare(
            *(space + root.encode() for root in self.roots if "." not in root for space in _SPACES)
        )
        self._line = re.compile(rb"(?:\xef\xbb\xbf)?" + self._import.encode())
        self._own = own
        self._uses: dict[bytes, re.Pattern[bytes]] = {}

    @cached_property
    def needles(self) -> tuple[Needle, ...]:
        return (
            Look(self._packages, self._imports),
            Look((_IMPORT_MODULE,), self._imports_by_name),
            b"get_kernel",
            Look((_EXTENSION,), _builds_kernels),
            *(root.encode() for root in self._whole),
            Look(_STEMS, _calls_from_elsewhere),
            *self.stems[len(_STEMS) :],
        )

    def _imports(self, data: bytes) -> bool:
        """Whether a file imports a package with fused ops."""
        return any(
            self._imports_at(data, data.rfind(b"\n", 0, at) + 1)
            for package in self._packages
            for at in places(data, package)
        )

    def _imports_by_name(self, data: bytes) -> bool:
        named = (_IMPORTED.match(data, at) for at in places(data, _IMPORT_MODULE))
        return any(match and (not match[1] or match[1].decode() in self.roots) for match in named)

    def _imports_at(self, data: bytes, line: int) -> bool:
        match = self._line.match(data, line)
        if match is None:
            return False
        bare = _BARE_IMPORT.match(data, line, data.find(b"\n", match.end()))
        return bare is None or self._below(bare[1]).search(data) is not None

    def _below(self, package: bytes) -> re.Pattern[bytes]:
        """``deepspeed.ops``, which code that only says ``import deepspeed`` must go through."""
        if package not in self._uses:
            prefix = package.decode() + "."
            names = (*names_of_ops(self._own), *unverified())
            below = {n[len(prefix) :].partition(".")[0] for n in names if n.startswith(prefix)}
            got = rf"\bgetattr\(\s*{package.decode()}\s*,"
            self._uses[package] = re.compile(
                rf"\b{prefix}(?:{'|'.join(sorted(below))})\b|{got}".encode()
            )
        return self._uses[package]

    def exports(self, data: bytes) -> bool:
        """Whether a file may hand on an op under a name of its own."""
        return any(
            needle in data if isinstance(needle, bytes) else needle.matters(data)
            for needle in self.needles
        )

    def tells_exports(self, data: bytes, _: str) -> bool:
        """The same, as a question that a project asks each file once."""
        return self.exports(data)

    def may_call(self, text: str) -> bool:
        """Whether a file of this text imports from a library of kernels, or calls like one."""
        return self.imports.search(text) is not None or any(
            stem.decode() in text for stem in self.stems
        )

    @cached_property
    def imports(self) -> re.Pattern[str]:
        whole = "|".join(map(re.escape, self._whole))
        return re.compile(
            rf"import_module|get_kernel|cpp_extension|{whole}|^{self._import}", re.MULTILINE
        )


words_for = cache(Words)
