"""Calls into extensions that a project compiles itself, judged by their C++ and CUDA sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import findings

from trainify.catalog import FusedOp
from trainify.engine import Options, check_paths, check_text, fix_text

SETUP = """\
from setuptools import setup
from torch.utils.cpp_extension import CUDAExtension

setup(name="mine", ext_modules=[CUDAExtension("mine._C", ["csrc/bind.cpp", "csrc/scale.cu"])])
"""

BIND = """\
#include <torch/extension.h>

torch::Tensor scale_cuda(torch::Tensor x, torch::Tensor w);

torch::Tensor scale(torch::Tensor x, torch::Tensor w) {
  TORCH_CHECK(x.is_cuda(), "x is not (yet { on the device");  // nor is w(
  return scale_cuda(x, w);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("fwd", &scale, "x * w");
}
"""

KERNEL = """\
#include <torch/extension.h>

template <typename scalar_t>
__global__ void scale_kernel(
    const scalar_t* __restrict__ x, const scalar_t* __restrict__ w, scalar_t* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * w[i];
}

torch::Tensor scale_cuda(torch::Tensor x, torch::Tensor w) {
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scale", ([&] {
    scale_kernel<scalar_t><<<1, 256>>>(
        x.data_ptr<scalar_t>(), w.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  }));
  return y;
}
"""

LAYER = """\
import torch
from mine import _C


class Scale(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n))

    def forward(self, x):
        y = _C.fwd(x, self.weight)
        return y
"""


def project(folder: Path, layer: str = LAYER, **files: str) -> list[str]:
    """What is found in ``mine/layer.py`` of a project, as ``line rule message``."""
    texts = {"setup.py": SETUP, "csrc/bind.cpp": BIND, "csrc/scale.cu": KERNEL}
    named = {"setup": "setup.py", "bind": "csrc/bind.cpp", "kernel": "csrc/scale.cu"}
    texts |= {named[name]: text for name, text in files.items()}
    texts |= {"mine/__init__.py": "", "mine/layer.py": layer}
    for path, text in texts.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return [
        f"{f.line} {f.rule} {f.message}"
        for report in check_paths([str(folder / "mine")], Options())
        for f in report.findings
    ]


def test_a_result_that_a_kernel_fills(tmp_path: Path) -> None:
    (found,) = project(tmp_path)
    assert found == (
        "11 TRN108 `_C.fwd` computes its result below autograd (`csrc/scale.cu:13`), and shows no "
        "backward: no gradient reaches its inputs."
    )


BODY = BIND.replace("  return scale_cuda(x, w);", "{body}").replace("\n}\n\nPY", "\n}}\n\nPY", 1)


def bind(body: str, returns: str = "torch::Tensor", helpers: str = "") -> str:
    """A source in which ``fwd`` is a function of ``x`` and ``w`` with this body."""
    return (
        "#include <torch/extension.h>\n"
        f"{helpers}\n{returns} scale(torch::Tensor x, torch::Tensor w) {{\n{body}\n}}\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("fwd", &scale); }\n'
    )


ATOMIC = """\
__global__ void add(torch::PackedTensorAccessor32<float, 1> y, const float* x) {
  atomicAdd(&y[threadIdx.x], x[threadIdx.x]);
}
"""
LAUNCHER = """\
void launch(const float* x, float* y, int n, cudaStream_t stream) {
  scale_kernel<float><<<1, n, 0, stream>>>(x, x, y, n);
}
"""


@pytest.mark.parametrize(
    "source",
    [
        bind(  # a loop over an accessor
            "auto y = torch::zeros({x.size(0)}, x.options());\n"
            "auto from = x.accessor<float, 1>();\nauto to = y.accessor<float, 1>();\n"
            "for (int i = 0; i < x.size(0); i++) to[i] = from[i];\nreturn y;"
        ),
        bind(  # over a pointer
            "at::Tensor y = at::empty_like(x);\nfloat* to = y.data_ptr<float>();\n"
            "const float* from = x.data_ptr<float>();\n"
            "for (int64_t i = 0; i < x.numel(); ++i) { *(to + i) = from[i]; }\nreturn y.view({-1});"
        ),
        bind(  # an older spelling
            "auto y = at::zeros_like(x);\n"
            "run<<<1, 1>>>(x.data<float>(), y.data<float>());\nreturn {y};",
            returns="std::vector<at::Tensor>",
        ),
        bind(
            "auto y = x.new_empty({4});\nParams p;\np.out = y.data_ptr();\nrun(p);\n"
            "return std::make_tuple(y, x);",
            returns="std::tuple<torch::Tensor, torch::Tensor>",
        ),
        bind(
            "torch::Tensor y;\ny = torch::zeros_like(x);\n"
            "add<<<1, 4>>>(y.packed_accessor32<float, 1>(), x.data_ptr<float>());\nreturn y;",
            helpers=ATOMIC,
        ),
        bind(
            "auto y = torch::empty_like(x);\n"
            "launch(x.data_ptr<float>(), y.data_ptr<float>(), 4, stream);\nreturn y;",
            helpers=LAUNCHER,
        ),
        bind("auto y = scale_cuda(x, w);\nreturn y;"),
        bind("std::vector<at::Tensor> r;\nauto y = scale_cuda(x, w);\nr.push_back(y);\nreturn r;"),
        bind("return scale_cuda(x * 2, w).to(x.dtype());"),
        BIND.replace("&scale", "[](torch::Tensor x, torch::Tensor w) { return scale_cuda(x, w); }"),
        BIND.replace("&scale", "torch::wrap_pybind_function(scale_cuda)"),
        BIND.replace("TORCH_EXTENSION_NAME, m", "_C, ext").replace("m.def", "ext.def"),
        BIND.replace("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)", "void add_to(py::module& m)"),
        BIND.replace(";\n}\n\nPY", ";\n}\n\n#define PTR(t) t.data_ptr<float>()\n\nPY"),
    ],
)
def test_forms_of_raw_memory(tmp_path: Path, source: str) -> None:
    (found,) = project(tmp_path, bind=source)
    assert found.startswith("11 TRN108 `_C.fwd` computes its result below autograd (`csrc/")


@pytest.mark.parametrize(
    "source",
    [
        bind("return x * w;"),  # of ATen's operations, which record their backward
        bind("auto y = torch::empty_like(x);\nat::mul_out(y, x, w);\nreturn y;"),
        bind(  # integers say where, and ATen computes
            "auto n = w.data_ptr<int64_t>()[0];\nreturn x.narrow(0, 0, n) * 2;"
        ),
        bind("auto n = w.accessor<int, 1>();\nauto y = x * n[0];\nreturn y;"),
        bind(  # indices
            "auto y = torch::empty({4}, x.options().dtype(torch::kInt));\n"
            "find<<<1, 4>>>(x.data_ptr<float>(), y.data_ptr<int>());\nreturn y;"
        ),
        bind(
            "auto options = torch::TensorOptions().dtype(torch::kLong);\n"
            "auto y = torch::zeros({4}, options);\n"
            "find<<<1, 4>>>(x.data_ptr<float>(), y.data_ptr());\nreturn y;"
        ),
        bind(  # what is read by pointers is checked, not written
            "const float* p = x.data_ptr<float>();\nTORCH_CHECK(p[0] > 0);\nreturn x * w;"
        ),
        bind("return Scale::apply(x, w);"),
        bind("if (x.requires_grad()) return x * w;\nreturn scale_cuda(x, w);"),
        bind("return scale_cuda(x, w) + x * w;"),  # part of it has a gradient
        bind("// return scale_cuda(x, w);\n/* auto y = scale_cuda(x, w); return y; */\nreturn x;"),
        BIND.replace('"fwd"', '"other"'),
        BIND.replace("m.def(", "// m.def("),
    ],
)
def test_what_has_a_gradient_or_none_by_nature(tmp_path: Path, source: str) -> None:
    assert not project(tmp_path, bind=source)


FILL = """\
#include <torch/extension.h>

__global__ void scale_kernel(float* x, const float* w, float* y, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = x[i] * w[i];
}

void fill(at::Tensor& y, at::Tensor x, const at::Tensor& w) {
  scale_kernel<<<1, 256>>>(
      x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), x.numel());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("fill", fill, py::arg("y"), py::arg("x")); }
"""


def filling(call: str, made: str = "torch.empty_like(x)") -> str:
    text = LAYER.replace(
        "        y = _C.fwd(x, self.weight)", f"        y = {made}\n        {call}"
    )
    assert call in text
    return text


def test_arguments_that_are_filled(tmp_path: Path) -> None:
    (found,) = project(tmp_path, filling("_C.fill(y, x, self.weight)"), bind=FILL)
    assert found == (
        "12 TRN108 `_C.fill` fills `y` below autograd (`csrc/bind.cpp:9`): no gradient reaches its "
        "inputs."
    )
    (found,) = project(tmp_path, filling("_C.fill(x=x, w=self.weight, y=y)"), bind=FILL)
    assert found.startswith("12 TRN108 `_C.fill` fills `y` below")


TWICE = """\
#include <torch/extension.h>

void twice(torch::Tensor x) {
  auto p = x.accessor<float, 1>();
  for (int i = 0; i < x.numel(); i++) p[i] *= 2;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice_", &twice); }
"""


def test_an_argument_that_is_written_in_place(tmp_path: Path) -> None:
    script = "import torch\nfrom mine import _C\n\nx = torch.ones(3, requires_grad=True) * 3\n"
    (found,) = project(tmp_path, script + "_C.twice_(x)\n", bind=TWICE)
    assert found == (
        "5 TRN108 `_C.twice_` writes `x` below autograd (`csrc/bind.cpp:5`): `x` keeps its old "
        "grad_fn if it has one, so what comes before gets a wrong gradient."
    )


def test_arguments_that_are_overwritten(tmp_path: Path) -> None:
    (found,) = project(tmp_path, filling("_C.fill(y, x, self.weight)", "x * 2"), bind=FILL)
    assert found == (
        "12 TRN108 `_C.fill` writes `y` below autograd (`csrc/bind.cpp:9`): `y` keeps its old "
        "grad_fn if it has one, so what comes before gets a wrong gradient, its other inputs none."
    )


@pytest.mark.parametrize(
    "layer",
    [
        filling("_C.fill(y, x, self.weight)", "torch.empty_like(x, dtype=torch.int8)"),
        filling("_C.fill(self.cache, x, self.weight)"),
        filling("_C.fill(slots, x, self.weight)"),
        LAYER.replace("def forward", "@torch.no_grad()\n    def step"),
        LAYER.replace("Scale(torch.nn.Module)", "ScanDataset(Dataset)").replace("forward", "read"),
        LAYER.replace("def forward(self, x)", "def __getitem__(self, x)"),
        LAYER.replace("y = _C.fwd(x, self.weight)", "if not self.training: y = _C.fwd(x, x)"),
        LAYER.replace("y = _C.fwd(x, self.weight)", "indices = _C.fwd(x, self.weight); y = x"),
        LAYER.replace("_C.fwd(x, self.weight)", "_C.fwd(x, self.weight).argmax(-1)"),
        LAYER.replace("_C.fwd(x, self.weight)", "_C.fwd(3, offsets)"),
        LAYER.replace("_C.fwd(x, self.weight)", "_C.fwd(x.detach(), x.argmax(-1))"),
        filling("_C.fill(y, x.detach(), 3)", "x.detach() * 2"),
        LAYER.replace("_C.fwd", "_C.fwd_backward"),
        LAYER.replace("from mine import _C", "from other import _C"),
        LAYER.replace("_C.fwd", "_C.composed"),
        """\
import torch
from mine import _C

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return _C.fwd(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x
""",
        """\
import torch
from mine import _C

@torch.library.custom_op("mine::scale", mutates_args=())
def scale(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return _C.fwd(x, w)

scale.register_autograd(lambda ctx, grad: (grad, None))
""",
    ],
)
def test_calls_that_stay(tmp_path: Path, layer: str) -> None:
    text = FILL if "_C.fill" in layer else BIND
    assert not project(tmp_path, layer, bind=text)


def test_a_function_that_another_file_gives_a_backward(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/function.py").write_text(
        "import torch\nfrom .layer import run\n\n\n"
        "class Scale(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x, w):\n        return run(x, w)\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return grad, grad\n"
    )
    layer = "import torch\nfrom mine import _C\n\n\ndef run(x, w):\n    return _C.fwd(x, w)\n"
    assert not project(tmp_path, layer)
    (tmp_path / "mine/function.py").unlink()
    assert len(project(tmp_path, layer)) == 1


@pytest.mark.parametrize(
    ("imports", "callee"),
    [
        ("import mine._C", "mine._C.fwd"),
        ("import mine._C as ext", "ext.fwd"),
        ("from . import _C", "_C.fwd"),
        ("from mine._C import fwd", "fwd"),
        ("from ._C import fwd as scale", "scale"),
        ("try:\n    from mine import _C\nexcept ImportError:\n    _C = None", "_C.fwd"),
    ],
)
def test_imports_of_an_extension(tmp_path: Path, imports: str, callee: str) -> None:
    layer = LAYER.replace("from mine import _C", imports).replace("_C.fwd", callee)
    (found,) = project(tmp_path, layer)
    assert f"TRN108 `{callee}` computes" in found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('["csrc/bind.cpp", "csrc/scale.cu"]', 'sources=glob.glob("csrc/*.c*")'),
        ('["csrc/bind.cpp", "csrc/scale.cu"]', '[os.path.join(here, "bind.cpp"), "scale.cu"]'),
        ('CUDAExtension("mine._C", [', 'CUDAExtension(name="mine._C", sources=["./csrc/none.cu", '),
        ("setup(name", 'NAME = "mine"\n\nsetup(name'),
        ("setup(name", "kind = CUDAExtension\n\nsetup(name"),
        ("setup(name", "kind = CUDAExtension if cuda else CppExtension\n\nsetup(name"),
        ('["csrc/bind.cpp", "csrc/scale.cu"]', '["{}/bind.cpp".format(d), "%s/scale.cu" % d]'),
        ('["csrc/bind.cpp", "csrc/scale.cu"]', 'glob(f"{d}/*.cpp") + list(Path(d).rglob("*.cu"))'),
    ],
)
def test_spellings_of_setup(tmp_path: Path, old: str, new: str) -> None:
    setup = SETUP.replace(old, new)
    assert setup != SETUP
    if "NAME" in new:
        setup = setup.replace('"mine._C"', 'f"{NAME}._C"')
    if "kind" in new:
        setup = setup.replace("[CUDAExtension(", "[kind(")
    assert len(project(tmp_path, setup=setup)) == 1


@pytest.mark.parametrize(
    "setup",
    [
        SETUP.replace("CUDAExtension(", "Extension("),
        SETUP.replace('"csrc/bind.cpp", ', ""),  # nothing binds it
        SETUP.replace('"csrc/bind.cpp", "csrc/scale.cu"', "*found()"),
    ],
)
def test_a_setup_that_does_not_tell(tmp_path: Path, setup: str) -> None:
    assert not project(tmp_path, setup=setup)


def test_what_a_source_includes(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/scale.cuh").write_text(KERNEL)
    kernel = '#include "scale.cuh"\n'
    (found,) = project(tmp_path, kernel=kernel)
    assert "(`csrc/scale.cuh:13`)" in found


# -- operators of the dispatcher -------------------------------------------------------------------

LIBRARY = """\
TORCH_LIBRARY(mine, m) {
  m.def("fwd(Tensor x, Tensor w) -> Tensor");
}
TORCH_LIBRARY_IMPL(mine, CUDA, m) {
  m.impl("fwd", TORCH_FN(scale));
}
"""
REGISTERED = BIND.partition("PYBIND11")[0] + LIBRARY
OPERATOR = LAYER.replace("_C.fwd", "torch.ops.mine.fwd")


@pytest.mark.parametrize(
    ("source", "callee"),
    [
        (REGISTERED, "torch.ops.mine.fwd"),
        (REGISTERED, "torch.ops.mine.fwd.default"),
        (REGISTERED.replace("TORCH_FN(scale)", "&scale"), "torch.ops.mine.fwd"),
        (REGISTERED.replace('Tensor");', 'Tensor", &scale);'), "torch.ops.mine.fwd"),
        (REGISTERED.replace("LIBRARY(", "LIBRARY_FRAGMENT("), "torch.ops.mine.fwd"),
        (
            REGISTERED.replace("_IMPL(mine, CUDA, m)", "_FRAGMENT(mine, m)").replace(
                '"fwd", T', '"fwd", c10::DispatchKey::CUDA, T'
            ),
            "torch.ops.mine.fwd",
        ),
    ],
)
def test_operators(tmp_path: Path, source: str, callee: str) -> None:
    layer = OPERATOR.replace("torch.ops.mine.fwd", callee)
    (found,) = project(tmp_path, layer, bind=source)
    assert found.startswith(f"11 TRN108 `{callee}` computes its result below autograd")


@pytest.mark.parametrize(
    ("source", "layer"),
    [
        (REGISTERED.replace("mine, ", "other, "), OPERATOR),
        (REGISTERED.replace("TORCH_FN(scale)", "TORCH_FN(composed)"), OPERATOR),
        (
            REGISTERED + 'TORCH_LIBRARY_IMPL(mine, Autograd, m) { m.impl("fwd", &derived); }\n',
            OPERATOR,
        ),
        (REGISTERED, OPERATOR + '\ntorch.library.register_autograd(\n    "mine::fwd", backward)\n'),
        (
            REGISTERED,
            OPERATOR + '\n@torch.library.impl("mine::fwd", "AutogradCUDA")\ndef f(): ...\n',
        ),
    ],
)
def test_operators_with_a_backward(tmp_path: Path, source: str, layer: str) -> None:
    assert not project(tmp_path, layer, bind=source)


# -- extensions that are loaded where they are used ------------------------------------------------

LOADED = LAYER.replace(
    "from mine import _C",
    'from torch.utils.cpp_extension import load\n\n_C = load(name="c", sources=SOURCES)',
)
HERE = "f'{here}/../csrc/bind.cpp', os.path.join(here, 'csrc', 'scale.cu')"
LAZY = """\
import torch
from torch.utils.cpp_extension import load

_ext = None


def extension():
    global _ext
    if _ext is None:
        _ext = load(name="c", sources=["csrc/bind.cpp", "csrc/scale.cu"])
    return _ext


def scale(x, w):
    return extension().fwd(x, w)
"""


@pytest.mark.parametrize(
    "layer",
    [
        LOADED.replace("SOURCES", '["../csrc/bind.cpp", "../csrc/scale.cu"]'),
        LOADED.replace("SOURCES", f"[{HERE}]"),
        LOADED.replace("SOURCES", "SOURCES").replace("_C =", f"SOURCES = [{HERE}]\n_C ="),
        LOADED.replace("_C.fwd", "self.ext.fwd")
        .replace("\n_C = ", "\next = ")
        .replace("self.weight =", "self.ext = ext; self.weight =")
        .replace("SOURCES", f"[{HERE}]"),
        LAZY,
    ],
)
def test_loaded_sources(tmp_path: Path, layer: str) -> None:
    (found,) = project(tmp_path, layer, setup="")
    assert "computes its result below autograd (`csrc/scale.cu:13`)" in found


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    assert not project(tmp_path, LOADED.replace("SOURCES", '["none.cpp"]'), setup="")


INLINE = '''\
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
torch::Tensor fwd(torch::Tensor x) {
  auto y = torch::empty_like(x);
  float* p = y.data_ptr<float>();
  for (int i = 0; i < x.numel(); i++) p[i] = 2 * x.data_ptr<float>()[i];
  return y;
}
torch::Tensor composed(torch::Tensor x) { return 2 * x; }
"""
ext = load_inline("c", cpp_sources=[SOURCE], functions=["fwd", "composed"])


def twice(x):
    return ext.fwd(x) + ext.composed(x)
'''


@pytest.mark.parametrize("functions", ['["fwd", "composed"]', '"fwd"', '{"fwd": "twice x"}'])
def test_sources_in_the_file_itself(functions: str) -> None:
    (found,) = findings(INLINE.replace('["fwd", "composed"]', functions))
    assert (found.rule, found.line) == ("TRN108", 17)
    assert "`ext.fwd` computes its result below autograd (`" in found.message
    assert ":8`)" in found.message
    assert not found.fixes


ROW = FusedOp(
    names=("mine_ext.double",),
    schema="double(Tensor(a!) out, Tensor x) -> ()",
    equivalent="out = 2 * x",
    source="",
)


@pytest.mark.parametrize("name", ['"mine_ext", ', 'name="mine_ext", '])
@pytest.mark.parametrize("load", ["load", "load_inline"])
def test_a_row_of_ones_own_for_an_extension_by_its_name(name: str, load: str) -> None:
    text = f"""\
import torch
from torch.utils import cpp_extension

ext = cpp_extension.{load}({name}sources=["a.cpp"])


def twice(x):
    out = torch.empty_like(x)
    ext.double(out, x)
    return out
"""
    found = check_text(text, "m.py", Options(ops=(ROW,)))
    assert [(f.rule, f.op) for f in found] == [("TRN101", "mine_ext.double")]
    assert "out = 2 * x" in fix_text(text, "m.py", Options(ops=(ROW,), strategy="replace")).text
