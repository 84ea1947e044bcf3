"""The two experiments that this project began with, before and after `trainify fix`."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from trainify.cli import cli

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


PATH = [ROOT / "src", ROOT / "fixtures", ROOT / "fixtures/standins"]


@pytest.fixture(scope="module")
def run(torch_process):
    def run(file):
        result = torch_process.run(file.name, cwd=file.parent, path=PATH)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture(params=["flag", "replace", "attach"])
def fixed(request, tmp_path):
    """Copies an experiment and fixes the copy, from the command line."""

    def fix(name):
        file = Path(shutil.copy(HERE / name, tmp_path))
        command = ("fix", "--write", "--strategy", request.param, str(file))
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
        return file

    return fix


EVERY = ["0.weight", "1.weight", "2.weight"]


@pytest.fixture(scope="module")
def unfixed(run):
    return run(HERE / "fused_norm.py")


def test_fused_norm_as_it_is(unfixed):
    """The loss falls, so nothing seems wrong; only the layer behind the norm is learning."""
    assert unfixed["with_gradient"] == unfixed["moved"] == ["2.weight"]
    losses = unfixed["losses"]
    assert losses[-1] < losses[0] / 10
    assert losses[-1] > 0.99 * losses[len(losses) // 2]  # and no further


def test_fused_norm_fixed(run, unfixed, fixed):
    report = run(fixed("fused_norm.py"))
    assert report["with_gradient"] == report["moved"] == EVERY
    assert report["losses"][-1] < unfixed["losses"][-1] / 100
    # The kernel had computed the right loss all along.
    assert report["losses"][0] == pytest.approx(unfixed["losses"][0], rel=1e-6)


def test_loss_under_no_grad_as_it_is(torch_process):
    result = torch_process.run("loss_under_no_grad.py", cwd=HERE, path=PATH)
    assert "does not require grad" in result.stderr


def test_loss_under_no_grad_fixed(run, fixed):
    assert run(fixed("loss_under_no_grad.py")) == [2.0, 4.0, 6.0]
