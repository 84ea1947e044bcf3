"""Runs a case file, in a process of its own: some switch grad mode off at import.

``case_runner.py FILE`` prints what the file's ``run()`` returns, or its error, as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

import torch


def _report(path: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("case", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["case"] = module  # so that its functions can be found again, by inspect say
    try:
        spec.loader.exec_module(module)
        report: dict[str, Any] = module.run()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return report


if __name__ == "__main__":
    torch.set_num_threads(1)
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # a case that prints does not disturb the answer
        json.dump(_report(sys.argv[1]), answer, default=str)
