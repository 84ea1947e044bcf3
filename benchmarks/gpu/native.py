"""Call a compiled library's kernels on PyTorch's tensors."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int64: 3, torch.int32: 4}


class TensorArg(ctypes.Structure):  # as in glue/include/tensor.h
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
    ]


class Library:
    """A library of glue/: ``call`` runs one of its ops, writing into the tensors as that does."""

    def __init__(self, path: Path):
        self._call = ctypes.CDLL(str(path)).call_kernel
        self._call.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]

    def call(self, op: str, *tensors: torch.Tensor, numbers: tuple[float, ...] = ()) -> None:
        args = (TensorArg * 8)(*(describe(tensor) for tensor in tensors))
        values = (ctypes.c_double * 8)(*numbers)
        if tensors[0].is_cuda:
            torch.cuda.synchronize()
        status = self._call(op.encode(), args, values)
        if status:
            raise RuntimeError(f"{op}: {'the library has no such op' if status == 1 else 'failed'}")


def describe(tensor: torch.Tensor) -> TensorArg:
    sizes, strides = (ctypes.c_int64 * 4)(*tensor.shape), (ctypes.c_int64 * 4)(*tensor.stride())
    return TensorArg(tensor.data_ptr(), DTYPES[tensor.dtype], tensor.dim(), sizes, strides)
