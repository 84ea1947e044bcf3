"""Caches with room to grow, into whose storage ``as_strided`` looks, are for a person to rewrite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainify.engine import Options, check_paths, fix_text
from trainify.findings import Safety

GROW = """\
def grow(cache, n):
    b, h, s, d = cache.shape
    return cache.as_strided((b, h, s + n, d), cache.stride())


def room(k, n):
    b, h, s, d = k.shape
    return k.new_empty(b, h, s + n, d).as_strided((b, h, s, d), (h * (s + n) * d, (s + n) * d, d, 1))
"""
USE = """\
def attend(q, k, cache):
    if cache is None:
        cache = room(k, 8)
        cache[...] = k
    else:
        s = cache.shape[2]
        cache = grow(cache, k.shape[2])
        cache[:, :, s:] = k
    return (q @ cache.mT).softmax(-1) @ cache, cache
"""


def test_in_one_file() -> None:
    text = f"import torch\n\n\n{GROW}\n\n{USE}"
    fixed = fix_text(text, "m.py", Options())
    assert fixed.text == text and fixed.remaining
    assert all(f.fixes["flag"].safety is Safety.UNSAFE for f in fixed.remaining)
    assert all("as_strided()" in f.fixes["flag"].look_at for f in fixed.remaining)

    module: dict[str, Any] = {}
    exec(text, module)
    first, second = (torch.ones(1, 2, 3, 4, requires_grad=True) * n for n in (1, 2))
    _, cache = module["attend"](first, first, None)
    module["attend"](second, second, cache)[0].sum().backward()  # goes through both turns


def test_where_another_file_makes_them(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text(GROW)
    (tmp_path / "m.py").write_text(f"import torch\nfrom utils import grow, room\n\n\n{USE}")
    (tmp_path / "n.py").write_text(f"import torch\nfrom others import grow, room\n\n\n{USE}")
    found = {
        Path(report.path).name: {f.fixes["flag"].safety for f in report.findings}
        for report in check_paths([str(tmp_path)], Options())
    }
    assert found["m.py"] == {Safety.UNSAFE} and found["n.py"] == {Safety.SAFE}
