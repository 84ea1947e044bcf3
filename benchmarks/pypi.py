"""Packages as they were published: downloaded, never built, installed or run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# pip runs a source package's build system before it keeps the package.  This one hands out the
# metadata that the package carries, so that no setup.py runs and no compiler is needed.
_BACKEND = """\
import email.parser, pathlib, shutil, sys
def get_requires_for_build_wheel(config_settings=None):
    return []
def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    head = email.parser.HeaderParser().parsestr(pathlib.Path("PKG-INFO").read_text("utf-8"))
    name = head["Name"].replace("-", "_") + "-" + head["Version"] + ".dist-info"
    folder = pathlib.Path(metadata_directory, name)
    folder.mkdir(parents=True)
    shutil.copy("PKG-INFO", folder / "METADATA")
    return name
__legacy__ = sys.modules[__name__]
"""


def download(release: str, folder: Path, *, wheel: bool) -> Path:
    """The wheel, else the source archive, of ``name==version`` in a folder that may have it."""
    name, version = release.split("==")
    pattern = f"{name.replace('-', '?')}-{version}*{'.whl' if wheel else '.tar.gz'}"
    found = next(folder.glob(pattern), None)
    if found is not None:
        return found
    print("downloading", release, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
    with tempfile.TemporaryDirectory() as path:
        if wheel:
            command += ["--only-binary=:all:", "--python-version=3.12"]
        else:
            command += ["--no-binary=:all:", "--no-build-isolation", "--use-pep517"]
            backend = Path(path, "setuptools")
            backend.mkdir()
            (backend / "__init__.py").write_text("")
            (backend / "build_meta.py").write_text(_BACKEND)
        environment = os.environ if wheel else {**os.environ, "PYTHONPATH": path}
        subprocess.run([*command, release], check=True, env=environment)
    return next(folder.glob(pattern))
