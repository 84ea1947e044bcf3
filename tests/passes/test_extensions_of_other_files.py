"""Extensions that one file compiles and loads, and another one calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainify.engine import Options, check_paths

SOURCE = """\
#include <torch/extension.h>

torch::Tensor fwd(torch::Tensor x, torch::Tensor w) {
  auto y = torch::empty_like(x);
  float* to = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = x.data_ptr<float>()[i] * w.data_ptr<float>()[i];
  return y;
}

void norm(torch::Tensor& out, torch::Tensor x, torch::Tensor w) {
  float* to = out.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = x.data_ptr<float>()[i] * w.data_ptr<float>()[i];
}

torch::Tensor composed(torch::Tensor x, torch::Tensor w) { return x * w; }

class Scale : public torch::autograd::Function<Scale> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, torch::Tensor x,
                               torch::Tensor w) {
    ctx->save_for_backward({x, w});
    return fwd(x, w);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               torch::autograd::tensor_list grads) {
    auto saved = ctx->get_saved_variables();
    return {grads[0] * saved[1], grads[0] * saved[0]};
  }
};

torch::Tensor derived(torch::Tensor x, torch::Tensor w) { return Scale::apply(x, w); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("fwd", &fwd);
  m.def("norm", &norm);
  m.def("composed", &composed);
  m.def("derived", &derived);
}
"""

LOAD = 'load(name="mine_ext", sources=[os.path.join(os.path.dirname(__file__), "csrc/scale.cpp")])'
HEAD = "import os\n\nfrom torch.utils.cpp_extension import load\n\n"
USE = """\
import torch
from torch import nn
{imports}


class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return {callee}(x, self.weight)
"""


def found(folder: Path, texts: dict[str, str]) -> list[str]:
    """What is found in a package of these files, as ``file:line rule message``."""
    for name, text in ({"csrc/scale.cpp": SOURCE, "__init__.py": ""} | texts).items():
        path = folder / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [
        f"{Path(f.path).relative_to(folder / 'mine')}:{f.line} {f.rule} {f.message}"
        for report in check_paths([str(folder / "mine")], Options())
        for f in report.findings
    ]


def beside(folder: Path, loader: str, layer: str, **others: str) -> list[str]:
    """The same of two files, and others, by their names."""
    texts = {"_ext.py": loader, "layer.py": layer}
    return found(folder, texts | {f"{name}.py": text for name, text in others.items()})


DIRECT = f"{HEAD}ext = {LOAD}\n"
FUNCTION = f"{HEAD}\ndef get_ext():\n    return {LOAD}\n"
CACHED = FUNCTION.replace("\ndef get", "import functools\n\n@functools.cache\ndef get")
LAZY = f"""{HEAD}_ext = None


def get_ext():
    global _ext
    if _ext is None:
        _ext = {LOAD}
    return _ext
"""
FOLDER = """import importlib.util
import os

from torch.utils.cpp_extension import load

from .build import sources_below

name = "csrc"
if importlib.util.find_spec(name):
    import csrc as ext
else:
    folder = os.path.join(os.path.dirname(__file__), name)
    sources = sources_below(folder)
    ext = load(name=name, sources=sources)
"""
CLASS = f"{HEAD}\nclass Kernels:\n    ext = {LOAD}\n"
METHOD = f"""{HEAD}
class Kernels:
    _ext = None

    @classmethod
    def get(cls):
        if cls._ext is None:
            cls._ext = {LOAD}
        return cls._ext

    @staticmethod
    def fresh():
        return {LOAD}
"""
OBJECT = f"""{HEAD}
class Kernels:
    def __init__(self):
        self.ext = {LOAD}

    def get(self):
        return self.ext


kernels = Kernels()
"""
TRIED = f"""{HEAD}
try:
    ext = {LOAD}
except Exception:
    ext = None
"""
UNPACKED = f"""{HEAD}
OPTIONS = dict(name="mine_ext", sources=["csrc/scale.cpp"], extra_cflags=["-O3"])
ext = load(**OPTIONS)
"""


@pytest.mark.parametrize(
    ("loader", "imports", "callee"),
    [
        (DIRECT, "from ._ext import ext", "ext.fwd"),
        (DIRECT, "from mine._ext import ext", "ext.fwd"),
        (DIRECT, "from ._ext import ext as kernels", "kernels.fwd"),
        (DIRECT, "from . import _ext", "_ext.ext.fwd"),
        (DIRECT, "import mine._ext", "mine._ext.ext.fwd"),
        (DIRECT, "import mine._ext as loader", "loader.ext.fwd"),
        (DIRECT, "from ._ext import *", "ext.fwd"),
        (DIRECT, "from ._ext import ext\n\nfwd = ext.fwd", "fwd"),
        (DIRECT, "from ._ext import ext", 'getattr(ext, "fwd")'),
        (DIRECT + "fwd = ext.fwd\n", "from ._ext import fwd", "fwd"),
        (DIRECT + "fwd = ext.fwd\n", "from . import _ext", "_ext.fwd"),
        (FUNCTION, "from ._ext import get_ext", "get_ext().fwd"),
        (FUNCTION, "from . import _ext", "_ext.get_ext().fwd"),
        (FUNCTION, "from ._ext import get_ext\n\next = get_ext()", "ext.fwd"),
        (FUNCTION + "\n\next = get_ext()\n", "from ._ext import ext", "ext.fwd"),
        (CACHED, "from ._ext import get_ext", "get_ext().fwd"),
        (LAZY, "from ._ext import get_ext", "get_ext().fwd"),
        (FOLDER, "from ._ext import ext", "ext.fwd"),
        (CLASS, "from ._ext import Kernels", "Kernels.ext.fwd"),
        (CLASS, "from . import _ext", "_ext.Kernels.ext.fwd"),
        (METHOD, "from ._ext import Kernels", "Kernels.get().fwd"),
        (METHOD, "from ._ext import Kernels", "Kernels.fresh().fwd"),
        (OBJECT, "from ._ext import kernels", "kernels.ext.fwd"),
        (OBJECT, "from . import _ext", "_ext.kernels.get().fwd"),
        (OBJECT, "from ._ext import kernels\n\next = kernels.get()", "ext.fwd"),
        (TRIED, "from ._ext import ext", "ext.fwd"),
        (TRIED.replace("ext = None", f"ext = {LOAD}"), "from ._ext import ext", "ext.fwd"),
        (
            TRIED.replace(f"ext = {LOAD}", "from ._C import ext").replace("None", LOAD),
            *("from ._ext import ext", "ext.fwd"),
        ),
        (UNPACKED, "from ._ext import ext", "ext.fwd"),
        (f"{HEAD}get_ext = lambda: {LOAD}\n", "from ._ext import get_ext", "get_ext().fwd"),
    ],
)
def test_what_another_file_loads(tmp_path: Path, loader: str, imports: str, callee: str) -> None:
    layer = USE.format(imports=imports, callee=callee)
    (one,) = beside(tmp_path, loader, layer)
    line = layer[: layer.index("(x, self")].count("\n") + 1
    assert one == (
        f"layer.py:{line} TRN108 `{callee}` computes its result below autograd "
        "(`csrc/scale.cpp:6`), and shows no backward: no gradient reaches its inputs."
    )
    composed = layer.replace("fwd", "composed")
    assert not beside(tmp_path, loader.replace("fwd", "composed"), composed)
    derived = layer.replace("fwd", "derived")
    assert not beside(tmp_path, loader.replace("fwd", "derived"), derived)


def test_arguments_that_are_written(tmp_path: Path) -> None:
    layer = """\
import torch
from ._ext import get_ext


def norm(x, w):
    out = torch.empty_like(x)
    get_ext().norm(out, x, w)
    return out


def norm_(x, w):
    get_ext().norm(x, x, w)
    return x
"""
    filled, written = beside(tmp_path, LAZY, layer)
    assert filled == (
        "layer.py:7 TRN108 `get_ext().norm` fills `out` below autograd (`csrc/scale.cpp:12`): no "
        "gradient reaches its inputs."
    )
    assert written.startswith("layer.py:12 TRN108 `get_ext().norm` writes `x` below autograd")


@pytest.mark.parametrize(
    ("imports", "callee"),
    [
        ("from . import ext", "ext.fwd"),
        ("from mine import ext", "ext.fwd"),
        ("from mine.ops import ext", "ext.fwd"),
        ("from .ops import ext", "ext.fwd"),
        ("from . import ops", "ops.ext.fwd"),
        ("from .ops import fwd", "fwd"),
    ],
)
def test_what_a_package_hands_on(tmp_path: Path, imports: str, callee: str) -> None:
    texts = {
        "__init__.py": "from .ops.loader import ext\n",
        "ops/__init__.py": "from .loader import *\nfrom .loader import ext\n\nfwd = ext.fwd\n",
        "ops/loader.py": DIRECT.replace("__file__", "os.path.dirname(__file__)"),
        "layer.py": USE.format(imports=imports, callee=callee),
    }
    (one,) = found(tmp_path, texts)
    assert one.startswith(f"layer.py:12 TRN108 `{callee}` computes its result below autograd")


def test_objects_that_load(tmp_path: Path) -> None:
    layer = f"""\
import os
import torch
from functools import cached_property
from torch import nn
from torch.utils.cpp_extension import load


class Scale(nn.Module):
    @cached_property
    def ext(self):
        return {LOAD}

    def _load(self):
        return {LOAD}

    def forward(self, x):
        return self.ext.fwd(x, self.weight) + self._load().fwd(x, self.weight)
"""
    lines = [one.partition(" ")[0] for one in found(tmp_path, {"layer.py": layer})]
    assert lines == ["layer.py:17", "layer.py:17"]


def test_what_the_file_itself_imports_inside_a_function(tmp_path: Path) -> None:
    layer = """\
def scale(x, w):
    from ._ext import ext

    return ext.fwd(x, w)
"""
    (one,) = beside(tmp_path, DIRECT, layer)
    assert one.startswith("layer.py:4 TRN108")


def test_a_wrapper_is_told_once(tmp_path: Path) -> None:
    ops = "from ._ext import ext\n\n\ndef scale(x, w):\n    return ext.fwd(x, w)\n"
    layer = USE.format(imports="from .ops import scale", callee="scale")
    (one,) = beside(tmp_path, DIRECT, layer, ops=ops)
    assert one.startswith("ops.py:5 TRN108")


@pytest.mark.parametrize(
    ("loader", "imports", "callee"),
    [
        (DIRECT, "from .other import ext", "ext.fwd"),
        (DIRECT, "from ._ext import ext", "ext.none"),
        (DIRECT, "from ._ext import ext", "ext.load().fwd"),
        (DIRECT, "from somewhere._ext import ext", "ext.fwd"),
        (DIRECT + "ext = make(ext)\n", "from ._ext import ext", "ext.fwd"),
        (DIRECT + "\nif old:\n    ext = load(sources=OLD)\n", "from ._ext import ext", "ext.fwd"),
        (FUNCTION, "from ._ext import get_ext", "get_ext.fwd"),
        (OBJECT, "from ._ext import kernels", "kernels.get.fwd"),
        (OBJECT, "from ._ext import Kernels", "Kernels.other.fwd"),
        (CLASS, "from ._ext import Kernels", "Kernels.fwd"),
        (METHOD, "from ._ext import Kernels", "Kernels.get.fwd"),
        (METHOD, "from ._ext import Kernels", "Kernels.other().fwd"),
        (DIRECT.replace("torch.utils", "mine"), "from ._ext import ext", "ext.fwd"),
        ("from ._ext import ext  # cpp_extension\n", "from ._ext import ext", "ext.fwd"),
    ],
)
def test_what_is_not_known(tmp_path: Path, loader: str, imports: str, callee: str) -> None:
    assert not beside(tmp_path, loader, USE.format(imports=imports, callee=callee))


def test_a_function_with_a_backward(tmp_path: Path) -> None:
    layer = """\
import torch
from ._ext import ext


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return ext.fwd(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


@torch.no_grad()
def serve(x, w):
    return ext.fwd(x, w)
"""
    assert not beside(tmp_path, DIRECT, layer)


# -- operators ------------------------------------------------------------------------------------

OPERATORS = (
    SOURCE.partition("PYBIND11")[0]
    + """\
TORCH_LIBRARY(mine, m) {
  m.def("fwd(Tensor x, Tensor w) -> Tensor", &fwd);
  m.def("composed(Tensor x, Tensor w) -> Tensor", &composed);
}
"""
)


def test_operators_that_another_file_loads(tmp_path: Path) -> None:
    loader = f"{HEAD}{LOAD[:-1]}, is_python_module=False)\n"
    layer = USE.format(imports="from . import _ext", callee="torch.ops.mine.fwd")
    files = {"csrc/scale.cpp": OPERATORS, "_ext.py": loader}
    (one,) = found(tmp_path, files | {"layer.py": layer})
    assert one.startswith("layer.py:12 TRN108 `torch.ops.mine.fwd` computes its result below")
    assert not found(tmp_path, files | {"layer.py": layer.replace("fwd", "composed")})
    assert not found(tmp_path, files | {"layer.py": layer.replace("ops.mine", "ops.other")})


# -- load_inline ----------------------------------------------------------------------------------

INLINE = """\
from pathlib import Path
from torch.utils.cpp_extension import load_inline
{imports}
ext = load_inline("mine_ext", cpp_sources={sources}, functions=["fwd", "composed", "derived"])
"""
TEXT = SOURCE.partition("PYBIND11")[0]


@pytest.mark.parametrize(
    ("imports", "sources"),
    [
        ("", '(Path(__file__).parent / "csrc" / "scale.cpp").read_text()'),
        ("", 'open("csrc/scale.cpp").read()'),
        ('SOURCE = Path("csrc/scale.cpp").read_text()', "[SOURCE]"),
        ("from .texts import SOURCE", "SOURCE"),
        ("from .texts import SOURCE as TEXT", "['', TEXT]"),
        ("from . import texts", "texts.SOURCE"),
    ],
)
def test_sources_that_stand_elsewhere(tmp_path: Path, imports: str, sources: str) -> None:
    loader = INLINE.format(imports=imports, sources=sources)
    texts = f'SOURCE = r"""\n{TEXT}"""\n'
    files = {"texts.py": texts, "_ext.py": loader, "csrc/scale.cpp": TEXT}
    layer = USE.format(imports="from ._ext import ext", callee="ext.fwd")
    (one,) = found(tmp_path, files | {"layer.py": layer})
    assert "`ext.fwd` computes its result below autograd (`" in one
    assert ("texts.py:7`)" if "texts" in imports else "csrc/scale.cpp:6`)") in one
    for other in ("composed", "derived"):
        assert not found(tmp_path, files | {"layer.py": layer.replace("fwd", other)})


def test_a_source_that_is_filled_in(tmp_path: Path) -> None:
    filled = TEXT.replace("{", "{{").replace("}", "}}").replace("float", "{TYPE}")
    loader = INLINE.format(imports='TYPE = "float"', sources=f'f"""\n{filled}"""')
    layer = USE.format(imports="from ._ext import ext", callee="ext.fwd")
    (one,) = beside(tmp_path, loader, layer)
    assert "(`_ext.py:10`)" in one
    assert not beside(tmp_path, loader, layer.replace("fwd", "composed"))
