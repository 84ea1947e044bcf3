"""Building and loading the library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.fixture
def kernels():
    """The module fixtures/kernels, as the stand-ins load it."""
    import _standin_kernels

    _standin_kernels.library()
    return sys.modules["_trainify_fixtures_kernels"]


def test_load_twice(kernels):
    kernels.load()
    library = kernels.library()
    kernels.load()
    assert kernels.library() is library


def test_no_compiler_is_one_line(kernels, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError) as error:
        kernels._build(tmp_path, [])
    assert "no-such-compiler" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_cache_follows_flags_and_environment(kernels, tmp_path, monkeypatch):
    here = kernels._build_directory(["-O3"])
    assert here != kernels._build_directory(["-O2"])
    monkeypatch.setenv("TRAINIFY_KERNEL_CACHE", str(tmp_path))
    assert kernels._build_directory(["-O3"]) == tmp_path / here.name


@pytest.mark.slow
def test_two_processes_build_at_once(kernels, tmp_path):
    """One builds, one waits, both load; what a killed build left behind is no obstacle."""
    env = dict(os.environ, TRAINIFY_KERNEL_CACHE=str(tmp_path), MAX_JOBS="2")
    code = (
        f"import sys; sys.path.insert(0, {str(FIXTURES)!r}); import kernels, torch\n"
        "kernels.load()\n"
        "out = torch.empty(2, 8)\n"
        "torch.ops._C.rms_norm(out, torch.ones(2, 8), None, 0.0)\n"
        "assert torch.equal(out, torch.ones(2, 8))\n"
    )
    directory = tmp_path / kernels._build_directory(kernels._flags()).name
    directory.mkdir()
    (directory / "lock").touch()
    command = [sys.executable, "-c", code]
    workers = [
        subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors
    assert (directory / "done").exists()
    assert len(list(directory.glob("*.so"))) == 1
