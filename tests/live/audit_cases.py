"""Audits every case of tests/cases, each in a process of its own: prints a JSON line for each."""

import importlib.util
import json
import os
import sys
from pathlib import Path

CASES = Path(__file__).resolve().parents[1] / "cases"
sys.path.insert(0, str(CASES))

import _harness  # noqa: E402, F401
import _standins  # noqa: E402, F401
import torch  # noqa: E402
from torch import nn  # noqa: E402

from trainify import audit  # noqa: E402


def audited(path: Path) -> dict[str, object]:
    spec = importlib.util.spec_from_file_location("case", path)
    case = sys.modules["case"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(case)
        torch.manual_seed(0)
        model = case.build()

        class Step(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self):
                return case.loss_of(model)

        report = audit(Step(), proof=False)
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    return {"ok": report.ok, "causes": [cut.cause.value for cut in report.cuts]}


torch.set_num_threads(1)
for path in sorted(CASES.glob("*/*.py")):
    if path.stem in ("before", "after"):
        sys.stdout.flush()
        if os.fork() == 0:
            found = {"case": path.parent.name, "file": path.stem, **audited(path)}
            print(json.dumps(found), flush=True)
            os._exit(0)
        os.wait()
