"""bitsandbytes' ops; ``bitsandbytes.matmul`` and its relatives above them have a backward."""

from . import FusedOp, opaque
from .reasons import CODED, CODES, UNPACK

_READ = "bitsandbytes 95f9af309d4d"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("torch.ops.bitsandbytes.gemv_4bit",),
        schema="gemv_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, "
        "int blocksize) -> Tensor",
        equivalent="bnb_4bit_matmul(A, B, shapeB, absmax, code, blocksize)",
        codes=("B",),
        source="bitsandbytes/backends/default/ops.py",
        look_at="B must be as in a checkpoint: for CPUs with AVX512 it is packed anew",
    ),
    FusedOp(
        names=("torch.ops.bitsandbytes.gemv_4bit.out",),
        schema="gemv_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, "
        "int blocksize, Tensor(a!) out) -> ()",
        equivalent="out = bnb_4bit_matmul(A, B, shapeB, absmax, code, blocksize)",
        codes=("B",),
        source="bitsandbytes/backends/default/ops.py",
        look_at="B must be as in a checkpoint: for CPUs with AVX512 it is packed anew",
    ),
    FusedOp(
        names=("torch.ops.bitsandbytes.gemm_4bit",),
        schema="gemm_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str "
        "quant_type, Tensor? bias=None, Tensor? absmax_8bit=None, Tensor? absmax_code=None, "
        "Tensor? absmax_offset=None) -> Tensor",
        equivalent="bnb_4bit_linear(A, B, shapeB, absmax, blocksize, quant_type, bias, "
        "absmax_8bit, absmax_code, absmax_offset)",
        codes=("B",),
        source="bitsandbytes/backends/default/ops.py",
        look_at="FP4 has the values of the CUDA kernel, of which those for CPUs are rounded",
    ),
)

# Without an equivalent.
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    torch.ops.bitsandbytes.int8_vectorwise_quant(Tensor A, float threshold=0.0) -> (Tensor,
        Tensor, Tensor?)
    torch.ops.bitsandbytes.int8_double_quant(Tensor A, float threshold=0.0) -> (Tensor, Tensor,
        Tensor, Tensor, Tensor?)
    torch.ops.bitsandbytes.quantize_4bit(Tensor A, int blocksize, str quant_type,
        ScalarType quant_storage) -> (Tensor, Tensor)
    torch.ops.bitsandbytes.quantize_blockwise(Tensor A, Tensor code, int blocksize) -> (Tensor,
        Tensor)
    """,
)
OPS += opaque(
    "quantize",
    UNPACK,
    _READ,
    """
    torch.ops.bitsandbytes.int8_vectorwise_dequant(Tensor A, Tensor stats) -> Tensor
    torch.ops.bitsandbytes.int8_mm_dequant(Tensor A, Tensor row_stats, Tensor col_stats,
        ScalarType? dtype=None, Tensor? bias=None) -> Tensor
    torch.ops.bitsandbytes.dequantize_4bit(Tensor A, Tensor absmax, int blocksize,
        str quant_type, int[] shape, ScalarType dtype) -> Tensor
    torch.ops.bitsandbytes.dequantize_4bit.out(Tensor A, Tensor absmax, int blocksize,
        str quant_type, int[] shape, ScalarType dtype, Tensor! out) -> ()
    torch.ops.bitsandbytes.dequantize_blockwise(Tensor A, Tensor absmax, Tensor code,
        int blocksize, ScalarType dtype) -> Tensor
    torch.ops.bitsandbytes.dequantize_blockwise.out(Tensor A, Tensor absmax, Tensor code,
        int blocksize, ScalarType dtype, Tensor! out) -> ()
    """,
)
OPS += opaque(
    "matmul",
    CODED,
    _READ,
    """
    torch.ops.bitsandbytes.int8_mixed_scaled_mm(Tensor A, Tensor CA, Tensor CB, Tensor SCA,
        Tensor SCB, Tensor? outlier_cols=None, Tensor? bias=None) -> (Tensor, Tensor?)
    torch.ops.bitsandbytes.int8_scaled_mm(Tensor A, Tensor B, Tensor row_stats,
        Tensor col_stats, Tensor? bias=None, ScalarType? dtype=None) -> Tensor
    torch.ops.bitsandbytes.int8_linear_matmul(Tensor A, Tensor B) -> Tensor
    torch.ops.bitsandbytes.int8_linear_matmul.out(Tensor A, Tensor B, Tensor! out) -> ()
    """,
)
