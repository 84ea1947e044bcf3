"""Whole models that are right as they stand: they train, and nothing is said about them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from right_models import MODELS
from verbs import stays

HEAD = """\
import copy
import functools
import math

import torch
import torch.nn.functional as F
from torch import nn


"""


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_trains_stays(name: str) -> None:
    text = HEAD + MODELS[name]
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    torch.manual_seed(0)
    net = scope["Net"]()
    for _ in range(3):
        net.zero_grad()
        net(torch.randn(2, 6, 8)).square().sum().backward()
        assert all(p.grad is not None for p in net.parameters() if p.requires_grad)
        if "use" in scope:
            scope["use"](net, torch.randn(2, 6, 8))
    stays(text)
