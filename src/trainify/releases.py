"""Which release of a library a project is written for, as its own files say.

What a kernel computes changes between releases (where it rounds, say).  Rows of the catalog that
hold for some releases only name them, and what is written into a file is not in every PyTorch; here
is what the project says.  Files are searched, not
parsed: the answer is a version or a range of them, and nothing is run or imported.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Release:
    """What a project says of a library: ``vllm``, ``==0.8.5``, and the file that says so."""

    library: str
    specifier: str
    source: str

    def __str__(self) -> str:
        return f"{self.library}{self.specifier}".replace("==", " ", 1)


_CLAUSE = r"(?:[=<>!~]=|[<>])[ ]*[\w.*+!]+"
_SPECIFIER = rf"(?:[ ]*\[[^\]]*\])?[ ]*\(?({_CLAUSE}(?:[ ]*,[ ]*{_CLAUSE})*)"
_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock")
_REQUIREMENTS = ("requirements*.txt", "requirements*.in", "requirements/*.txt", "constraints*.txt")
_METADATA = ("pyproject.toml", "setup.cfg", "setup.py", "Pipfile", "environment.y*ml")
_ENVIRONMENTS = (".venv", "venv", "env")
_ASKED = re.compile(
    "|".join(
        fnmatch.translate(pattern.partition("/")[0])
        for pattern in (*_LOCKS, *_REQUIREMENTS, *_METADATA, *_ENVIRONMENTS, "PKG-INFO")
    ),
    re.IGNORECASE,
)

LIBRARIES = ("vllm", "torch", "python")
"""Those of which releases are told apart: by rows of the catalog, or because what is written into a
file is not in all of them."""

_REQUIRES_PYTHON = re.compile(
    rf"""^[ \t]*(?:requires-python|python_requires|python)[ ]*=[ ]*["']?"""
    rf"""((?:{_CLAUSE}|\^[\d.]+)(?:[ ]*,[ ]*{_CLAUSE})*)""",
    re.MULTILINE,
)

_NEEDS = {"vllm": (("<0.5.4", "torch", "<2.4"), ("<0.10.2", "torch", "<2.8"))}
"""What releases of a library, which stands earlier above, require of another one."""


def find_releases(
    folder: str,
    libraries: Iterable[str] = LIBRARIES,
    installed_in: Iterable[str] | None = None,
    settled: Iterable[Release] = (),
) -> tuple[Release, ...]:
    """What holds for code in ``folder``, for each of the libraries that anything is said about.

    Nothing is asked about those that are ``settled``.  The source of the library itself comes
    first, then a lock file, then a version pinned by a requirement, then one that is installed (in
    the project's own environment, or in the folders ``installed_in``, which are those that this
    process imports from) and suits the other libraries, then a range.  Folders are asked from
    ``folder`` upwards, until one says something or a repository ends.
    """
    installed_in = tuple(sys.path if installed_in is None else installed_in)
    found = list(settled)
    for library in libraries:
        if any(release.library == library for release in found):
            continue
        stated = _in_project(os.path.abspath(folder), library)
        exact = [r for r in stated if r.specifier.startswith("==")]
        installed = _installed(installed_in, library, "the installed package")
        if exact:
            found.append(exact[0])
        elif installed and all(
            admits(r.specifier, installed.specifier[2:]) for r in (*stated, *needed(found, library))
        ):
            found.append(installed)
        elif stated:
            found.append(stated[0])
    return tuple(found)


def needed(releases: Iterable[Release], library: str) -> Iterator[Release]:
    """What other libraries, of the releases that a project has, need of this one."""
    for release in releases:
        needs = _NEEDS.get(release.library, ())
        version = assumed_version(release.specifier, tuple(of for of, _, _ in needs))
        for of, other, specifier in needs:
            if other == library and version is not None and admits(of, version):
                yield Release(library, specifier, str(release))
                break


def _in_project(folder: str, library: str) -> list[Release]:
    while True:
        stated = list(_stated(folder, library)) if _may_state(folder, library) else []
        parent = os.path.dirname(folder)
        if stated or parent == folder or os.path.exists(os.path.join(folder, ".git")):
            return stated
        folder = parent


def _may_state(folder: str, library: str) -> bool:
    """Whether anything lies there that is asked below: in most folders nothing does."""
    package = _package(library)
    if os.path.basename(folder).lower() == package.lower():
        return True
    try:
        names = os.listdir(folder)
    except OSError:
        return True
    return any(name.lower() == package.lower() or _ASKED.match(name) for name in names)


def _stated(folder: str, library: str) -> Iterator[Release]:
    """What the files right in a folder say, the most certain first."""
    if library == "python":
        for path, text in _texts(folder, ("pyproject.toml", "setup.cfg", "setup.py")):
            if match := _REQUIRES_PYTHON.search(text):
                yield Release(library, match[1].replace(" ", "").replace("^", ">="), path)
        return
    yield from _itself(folder, library)
    name = re.sub(r"[-_.]+", "[-_.]", library)
    locked = re.compile(
        rf"""name = "{name}"\s+version = "([^"]+)"|"{name}": \{{[^}}]*?"version": "==([^"]+)\"""",
        re.IGNORECASE,
    )
    for path, text in _texts(folder, _LOCKS):
        if match := locked.search(text):
            yield Release(library, f"=={match[1] or match[2]}", path)
    line = re.compile(rf"^[ \t]*(?:-[ ]*)?{name}{_SPECIFIER}", re.IGNORECASE | re.MULTILINE)
    for path, text in _texts(folder, _REQUIREMENTS):
        if match := line.search(text):
            yield Release(library, match[1].replace(" ", ""), path)
    inside = re.compile(
        rf"""(?:["']|^[ \t]*(?:-[ ]*)?){name}(?:["']?[ ]*=[ ]*["'])?{_SPECIFIER}""",
        re.IGNORECASE | re.MULTILINE,
    )
    for path, text in _texts(folder, _METADATA):
        if match := inside.search(text):
            yield Release(library, match[1].replace(" ", ""), path)
    for environment in _ENVIRONMENTS:
        for pattern in ("lib/python3*/site-packages", "Lib/site-packages"):
            places = glob.glob(os.path.join(glob.escape(folder), environment, pattern))
            if installed := _installed(places, library, environment):
                yield installed


_OWN_VERSION = re.compile(
    r"""^(?:__version__|version)\b[^=\n]*(?:=[^=\n"']*)+["'](\d[\w.]*)""", re.M
)


def _itself(folder: str, library: str) -> Iterator[Release]:
    """The release that the folder itself is the source of, or lies in."""
    package = _package(library)
    for path, text in _texts(folder, ("PKG-INFO",)):
        if match := re.search(rf"^Name: {library}\nVersion: (\d[\w.]*)", text, re.MULTILINE):
            yield Release(library, f"=={match[1]}", path)
    names = ("_version.py", "version.py", "__init__.py")
    inside = [f"{package}/{name}" for name in names]
    for path, text in _texts(folder, names if os.path.basename(folder) == package else inside):
        if match := _OWN_VERSION.search(text):
            yield Release(library, f"=={match[1]}", path)


def _package(library: str) -> str:
    return re.sub(r"[-.]+", "_", library)


def _texts(folder: str, patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The files of a folder whose names match, with their names."""
    for pattern in patterns:
        for path in sorted(glob.glob(pattern, root_dir=folder)):
            try:
                with open(os.path.join(folder, path), encoding="utf-8", errors="replace") as file:
                    yield path, file.read()
            except OSError:
                continue  # a folder, or not for us to read


def _installed(places: Iterable[str], library: str, source: str) -> Release | None:
    """The release whose metadata lies in one of some folders of packages."""
    stem = re.sub(r"[-_.]+", "_", library)
    for place in places:
        for path in glob.glob(f"{stem}-*.dist-info", root_dir=place or os.curdir):
            version = path[len(stem) + 1 : -len(".dist-info")]
            return Release(library, f"=={version}", source)
    return None


@cache
def admits(specifier: str, version: str) -> bool:
    """Whether a version is one of those that a specifier (``>=0.20,!=0.23.0``) names."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False


_NEWEST = "99999"
"""Stands for a release newer than any that is named somewhere."""


@cache
def assumed_version(specifier: str, named: tuple[str, ...]) -> str | None:
    """The newest version that a specifier admits, out of those that it or ``named`` name."""
    from packaging.version import InvalidVersion, Version

    candidates = [_NEWEST, "0"]
    for text in (specifier, *named):
        candidates += re.findall(r"[=<>!~]=?[ ]*([\w.+!]*\w)", text)
    versions = []
    for candidate in candidates:
        try:
            versions.append((Version(candidate), candidate))
        except InvalidVersion:
            continue
    versions.sort(reverse=True)
    return next((text for _, text in versions if admits(specifier, text)), None)
