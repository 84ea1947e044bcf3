"""How projects say which C++ becomes which module: ``setup.py``, ``pyproject.toml``, CMake, Meson."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainify.engine import Options, check_paths

SCALE = """\
#include <torch/extension.h>

void scale_into(torch::Tensor x, torch::Tensor y) {
  float* to = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * x.data_ptr<float>()[i];
}
"""
BIND = """\
#include <torch/extension.h>

void scale_into(torch::Tensor x, torch::Tensor y);

torch::Tensor scale(torch::Tensor x) {
  auto y = torch::empty_like(x);
  scale_into(x, y);
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("scale", &scale);
  m.def("composed", [](torch::Tensor x) { return 2 * x; });
}
"""
LAYER = "import torch\nfrom {package} import {module}\n\n\ndef twice(x):\n    return {module}.scale(x)\n"


def found(
    folder: Path, texts: dict[str, str], package: str = "mine", module: str = "_C"
) -> list[str]:
    """What is found in a package beside these files, without its place."""
    layer = LAYER.format(package=package, module=module)
    sources = {"csrc/bind.cpp": BIND, "csrc/scale.cu": SCALE, "mine/__init__.py": ""}
    for name, text in (sources | {"mine/layer.py": layer} | texts).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    reports = check_paths([str(folder / "mine")], Options())
    return [f"{f.rule} {f.message}" for report in reports for f in report.findings]


SAYS = (
    "TRN108 `_C.scale` computes its result below autograd (`csrc/scale.cu:5`), and shows no "
    "backward: no gradient reaches its inputs."
)

SETUP = """\
import glob, os
from pathlib import Path
from setuptools import setup
from torch.utils import cpp_extension
from torch.utils.cpp_extension import CppExtension, CUDAExtension

NAME = "mine"
FILES = ["bind.cpp", "scale.cu"]
here = Path(__file__).parent
{before}
setup(name=NAME, ext_modules={modules})
"""


@pytest.mark.parametrize(
    ("modules", "before"),
    [
        ('[CUDAExtension("mine._C", [str(here / "csrc" / f) for f in FILES])]', ""),
        ('[CppExtension(sources=FILES, name="mine._C")]', ""),
        ('[cpp_extension.CUDAExtension("mine._C", sources=sorted(glob.glob("csrc/*.c*")))]', ""),
        (
            '[CUDAExtension("mine._C", sources)]',
            'sources = glob.glob("csrc/*.cpp")\nsources += ["scale.cu"]',
        ),
        ('[CUDAExtension("mine" + "._C", FILES)]', ""),
        ('[CUDAExtension("%s._C" % NAME, FILES)]', ""),
        ('[CUDAExtension("{}.{}".format(NAME, "_C"), FILES)]', ""),
        ('[CUDAExtension(f"{NAME}._C", FILES)]', ""),
        ("modules", 'modules = []\nmodules.append(CUDAExtension(name="mine._C", sources=FILES))'),
        ("modules()", 'def modules():\n    return [CUDAExtension("mine._C", FILES)]'),
        (
            '[make(name="_C", module="mine", sources=["bind.cpp", "scale.cu"])]',
            "def make(name, module, sources):\n"
            '    return CUDAExtension(name=f"{module}.{name}",\n'
            '        sources=[os.path.join(*module.split("."), s) for s in sources])',
        ),
        (
            '[make("_C", FILES)]',
            'def make(name, sources, module="mine"):\n'
            "    kind = CUDAExtension if cuda else CppExtension\n"
            '    return kind("%s.%s" % (module, name), sources)',
        ),
    ],
)
def test_spellings_of_setup(tmp_path: Path, modules: str, before: str) -> None:
    setup = SETUP.format(modules=modules, before=before)
    compile(setup, "setup.py", "exec")
    assert found(tmp_path, {"setup.py": setup}) == [SAYS]


@pytest.mark.parametrize(
    "modules",
    [
        '[CUDAExtension("mine._D", FILES)]',
        '[CUDAExtension("other._C", FILES)]',
        "[CUDAExtension(name(), FILES)]",
        '[CUDAExtension("%s._C", FILES)]',
        '[CUDAExtension("mine._C", ["csrc/none.cpp"])]',
    ],
)
def test_a_setup_that_says_something_else(tmp_path: Path, modules: str) -> None:
    assert not found(tmp_path, {"setup.py": SETUP.format(modules=modules, before="")})


PYPROJECT = """\
[build-system]
requires = ["setuptools>=77", "torch"]

[tool.setuptools]
packages = ["mine"]
ext-modules = [
  {name = "mine._C", sources = ["csrc/bind.cpp", "csrc/scale.cu"]},
]
"""
TABLES = (
    PYPROJECT.partition("ext-modules")[0]
    + """\

[[tool.setuptools.ext-modules]]
name = "mine._C"
sources = ["csrc/bind.cpp", "csrc/scale.cu"]
"""
)
CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(mine LANGUAGES CXX CUDA)
find_package(Torch REQUIRED)
pybind11_add_module(_C MODULE csrc/bind.cpp csrc/scale.cu)  # with(
target_link_libraries(_C PRIVATE ${TORCH_LIBRARIES})
install(TARGETS _C LIBRARY DESTINATION mine)
"""
VARIABLES = """\
set(NAME "_C")
set(SOURCES
  "${CMAKE_CURRENT_SOURCE_DIR}/csrc/bind.cpp")
list(APPEND SOURCES csrc/scale.cu)
Python_add_library(${NAME} MODULE WITH_SOABI ${SOURCES})
"""
GLOBBED = """\
file(GLOB_RECURSE SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/*.cpp" csrc/*.cu)
nanobind_add_module(_C ${SOURCES})
"""
LINKED = """\
add_library(kernels STATIC csrc/scale.cu)
pybind11_add_module(_C csrc/bind.cpp)
target_link_libraries(_C PRIVATE kernels)
"""
ADDED = """\
pybind11_add_module(_C)
target_sources(_C PRIVATE csrc/bind.cpp csrc/scale.cu)
"""
OWN_FUNCTION = """\
set(SRC "csrc/bind.cpp" "csrc/scale.cu")
define_gpu_extension_target(
  _C
  DESTINATION mine
  LANGUAGE CUDA
  SOURCES ${SRC}
  WITH_SOABI)
"""
MESON = """\
py.extension_module('_C', 'csrc/bind.cpp', files('csrc/scale.cu'),  # of mine
  subdir: 'mine', dependencies: [torch], install: true)
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", PYPROJECT),
        ("pyproject.toml", TABLES),
        ("CMakeLists.txt", CMAKE),
        ("CMakeLists.txt", VARIABLES),
        ("CMakeLists.txt", GLOBBED),
        ("CMakeLists.txt", LINKED),
        ("CMakeLists.txt", ADDED),
        ("CMakeLists.txt", OWN_FUNCTION),
        ("meson.build", MESON),
    ],
)
def test_other_files_that_say_it(tmp_path: Path, name: str, text: str) -> None:
    assert found(tmp_path, {name: text}) == [SAYS]
    module = LAYER.format(package="mine", module="_C")
    assert not found(tmp_path, {name: text, "mine/layer.py": module.replace("scale", "composed")})
    assert not found(tmp_path, {name: text, "mine/layer.py": module.replace("_C", "_D")})
    assert not found(tmp_path, {name: text}, package="other")
    weights = {"csrc/bind.cpp": BIND.replace('"scale"', '"reorder_kn_weight"')}
    layer = module.replace("scale", "reorder_kn_weight")
    assert not found(tmp_path, {name: text, "mine/layer.py": layer} | weights)


def test_a_module_at_the_top(tmp_path: Path) -> None:
    layer = "import torch\nimport scale_cuda\n\n\ndef twice(x):\n    return scale_cuda.scale(x)\n"
    cmake = CMAKE.replace("_C", "scale_cuda")
    (one,) = found(tmp_path, {"CMakeLists.txt": cmake, "mine/layer.py": layer})
    assert one.startswith("TRN108 `scale_cuda.scale` computes its result below autograd")


def test_lists_of_the_folders_below(tmp_path: Path) -> None:
    texts = {
        "CMakeLists.txt": "add_subdirectory(csrc)\nadd_subdirectory(none)\n",
        "csrc/CMakeLists.txt": CMAKE.replace("csrc/", ""),
    }
    assert found(tmp_path, texts) == [SAYS]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", PYPROJECT.replace('"mine._C"', "1")),
        ("pyproject.toml", PYPROJECT.replace("[tool", "[[tool")),
        ("pyproject.toml", PYPROJECT.replace("ext-modules = [", 'ext-modules = ["a",')),
        ("pyproject.toml", "[tool]\nsetuptools = 'ext-modules'\n"),
        ("pyproject.toml", "ext-modules = ["),
        ("CMakeLists.txt", "pybind11_add_module(_C ${SOURCES})\nset(SOURCES ${SOURCES})\n"),
        ("CMakeLists.txt", "pybind11_add_module(${NAME} csrc/bind.cpp csrc/scale.cu)\n"),
        ("CMakeLists.txt", "pybind11_add_module(\nadd_library()\nset()\nfile(GLOB)\n"),
        ("CMakeLists.txt", "# " + CMAKE.replace("\n", "\n# ")),
        ("CMakeLists.txt", "add_subdirectory(.)\n"),
        ("meson.build", "# " + MESON.replace("\n", "\n# ")),
        ("meson.build", "py.extension_module(name, 'csrc/bind.cpp')\n"),
    ],
)
def test_what_does_not_say_it(tmp_path: Path, name: str, text: str) -> None:
    assert len(found(tmp_path, {name: text})) == ('"a",' in text)


# -- operators ------------------------------------------------------------------------------------

FILL = """\
#include <torch/library.h>
#include "launch.h"

void fill({types}) {{
  launch(params(x.data_ptr(), {to}));
}}

TORCH_LIBRARY(mine, m) {{
  m.def("fill({schema}) -> ()");
}}

TORCH_LIBRARY_IMPL(mine, CUDA, m) {{
  m.impl("fill", &fill);
}}
"""
FILLING = """\
import torch


def fill(x, scale):
    y = torch.empty_like(x)
    torch.ops.mine.fill(y, x, scale)
    return y


def fill_(y, x, scale):
    torch.ops.mine.fill(y, x, scale)
    return y
"""


@pytest.mark.parametrize(
    ("types", "to", "schema", "count"),
    [
        (
            "at::Tensor& y, at::Tensor x, double scale",
            "y.data_ptr()",
            "Tensor(a!) y, Tensor x, float scale",
            2,
        ),
        (
            "at::Tensor& y, at::Tensor x, double scale",
            "y.mutable_data_ptr<float>()",
            "Tensor(y!) y, Tensor x, float scale=1.0",
            2,
        ),
        (
            "at::Tensor& y, at::Tensor x, double scale",
            "y.data_ptr()",
            "Tensor y, Tensor x, float scale",
            0,
        ),
        (
            "at::Tensor& y, at::Tensor x, double scale",
            "y.const_data_ptr()",
            "Tensor(a!) y, Tensor x, float scale",
            0,
        ),
        (
            "at::Tensor& y, at::Tensor x, double scale",
            "y.mul_(x)",
            "Tensor(a!) y, Tensor x, float scale",
            0,
        ),
    ],
)
def test_what_a_schema_says_is_written(
    tmp_path: Path, types: str, to: str, schema: str, count: int
) -> None:
    source = FILL.format(types=types, to=to, schema=schema)
    texts = {"CMakeLists.txt": CMAKE, "csrc/bind.cpp": source, "mine/layer.py": FILLING}
    messages = found(tmp_path, texts)
    assert len(messages) == count
    if count:
        assert messages[0] == (
            "TRN108 `torch.ops.mine.fill` fills `y` below autograd (`csrc/bind.cpp:5`): no gradient "
            "reaches its inputs."
        )
        assert messages[1].startswith(
            "TRN108 `torch.ops.mine.fill` writes `y` below autograd (`csrc/bind.cpp:5`): `y` keeps"
        )
