"""The plain data of an audit, and its table."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import trainify
from trainify.live.audit import Cause, Cut, Flow, Passage, Report
from trainify.live.audit.report import patterns
from trainify.output.audit import table
from trainify.output.audit_page import page

CUT = Cut(
    cause=Cause.KERNEL,
    kind="missing",
    op="_C::rms_norm",
    path="/models/norm.py",
    line=12,
    function="RMSNorm.forward",
    message="_C::rms_norm records nothing: no gradient reaches its input.",
    modules=("layers.0.norm", "layers.1.norm"),
    parameters=("layers.0.fc.weight", "layers.1.fc.weight"),
)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (("layers.0.fc", "layers.1.fc"), ("layers.*.fc",)),
        (("layers.0.fc", "layers.0.norm"), ("layers.0.fc", "layers.0.norm")),
        (("a.0.b.1", "a.0.b.2", "c"), ("a.0.b.*", "c")),
        (("fc", "fc"), ("fc",)),
        ((), ()),
    ],
)
def test_names_in_short(names: tuple[str, ...], short: tuple[str, ...]) -> None:
    assert patterns(names) == short


def test_ok_means_that_nothing_is_cut() -> None:
    assert Report().ok
    assert Report(unused=("head.weight",), notes=("not compared",)).ok
    assert not Report(cuts=(CUT,)).ok
    assert not Report(missing=("fc.weight",)).ok
    assert not Report(wrong=("fc.weight",)).ok


def test_json_has_everything() -> None:
    report = Report(missing=CUT.parameters, cuts=(CUT,), loss=1.5, trainable=3)
    read = json.loads(report.to_json())
    assert read["ok"] is False and read["loss"] == 1.5
    assert read["cuts"][0]["cause"] == "kernel without backward"
    assert read["cuts"][0]["modules"] == ["layers.0.norm", "layers.1.norm"]
    assert pickle.loads(pickle.dumps(report)) == report


def test_page_draws_equal_layers_once() -> None:
    layers = [
        Passage(f"layers.{i}{name}", kind, Flow.ENDS if (i, name) == (7, ".fc") else Flow.FLOWS, 1)
        for i in range(24)
        for name, kind in (("", "Block"), (".fc", "Linear"))
    ]
    report = Report(cuts=(replace(CUT, modules=("layers.7.fc",)),), passages=tuple(layers))
    text = page(report, "a <model>", root="/models")
    assert "a &lt;model&gt;" in text and "<model>" not in text
    assert ">0 … 6<" in text and ">8 … 23<" in text and text.count(">fc<") == 3
    assert text.count('href="#cut-1"') == 1 and 'id="cut-1"' in text


def test_page_tells_zeros_from_a_gradient() -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((self.first(x) * 8).round())

    report = trainify.audit(Rounded(), torch.randn(3, 4))
    flows = {each.module: each.flow for each in report.passages}
    assert report.ok and flows["first"] is Flow.ZEROS and flows["last"] is Flow.FLOWS
    assert "first: zeros alone arrive" in page(report)


def test_table_names_place_and_parameters() -> None:
    report = Report(missing=CUT.parameters, cuts=(CUT,), trainable=3, notes=("not compared",))
    assert table(report, root="/models").splitlines() == [
        "1 gradient cut; of 3 parameters, 2 get no gradient",
        "",
        "norm.py:12 in RMSNorm.forward: kernel without backward",
        "    _C::rms_norm records nothing: no gradient reaches its input.",
        "    op          _C::rms_norm",
        "    module      layers.*.norm",
        "    parameters  2: layers.*.fc.weight",
        "",
        "missing      2  layers.*.fc.weight",
        "",
        "note: not compared",
    ]
    assert table(Report(trainable=4)) == "ok: 4 of 4 parameters get a gradient"


def test_zeros_alone_are_counted_apart() -> None:
    report = Report(trainable=4, zeros=("fc.weight",), unused=("head.weight",))
    assert report.ok and json.loads(report.to_json())["zeros"] == ["fc.weight"]
    first, _, *rows = table(report).splitlines()
    assert first == ("ok: 2 of 4 parameters get a gradient, 1 gets zeros alone, the rest is unused")
    assert rows == ["zeros        1  fc.weight", "unused       1  head.weight"]
    assert "zeros alone</th><td>1</td><td><code>fc.weight</code></td>" in page(report)
    cut = Report(missing=CUT.parameters, cuts=(CUT,), trainable=6, zeros=("a", "b"))
    assert table(cut).startswith(
        "1 gradient cut; of 6 parameters, 2 get no gradient and 2 get zeros alone\n"
    )


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("memory", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.mm(self.first(x), self.last.weight, out=self.memory)
        return self.last(self.memory).sum()


def test_a_product_goes_by_its_name() -> None:
    """``torch.mm == torch.spmm``, so that a table of functions has one name for both."""
    (cut,) = trainify.audit(Product(), torch.ones(2, 3)).cuts
    assert cut.op == "torch.mm" and "torch.mm with out=" in cut.message
