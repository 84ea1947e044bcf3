"""exllamav2's extension: ``exllamav2/exllamav2_ext``.  The output stands last, or is the input."""

from . import FusedOp

_EXLLAMA = "exllamav2/exllamav2_ext"

OPS = (
    FusedOp(
        names=("exllamav2_ext.rms_norm", "exllamav2.ext.exllamav2_ext.rms_norm"),
        schema="rms_norm(Tensor x, Tensor w, Tensor(a!) y, float epsilon) -> ()",
        equivalent="y = rms_norm_clamped(x, w, epsilon)",
        source=_EXLLAMA,
    ),
    FusedOp(
        names=("exllamav2_ext.rms_norm_", "exllamav2.ext.exllamav2_ext.rms_norm_"),
        schema="rms_norm_(Tensor(a!) x, Tensor w, float epsilon) -> ()",
        equivalent="x = rms_norm_clamped(x, w, epsilon)",
        source=_EXLLAMA,
    ),
    FusedOp(
        names=("exllamav2_ext.layer_norm", "exllamav2.ext.exllamav2_ext.layer_norm"),
        schema="layer_norm(Tensor x, Tensor w, Tensor b, Tensor(a!) y, float epsilon) -> ()",
        equivalent="y = layer_norm(x, w, b, epsilon)",
        source=_EXLLAMA,
    ),
    FusedOp(
        names=("exllamav2_ext.layer_norm_", "exllamav2.ext.exllamav2_ext.layer_norm_"),
        schema="layer_norm_(Tensor(a!) x, Tensor w, Tensor b, float epsilon) -> ()",
        equivalent="x = layer_norm(x, w, b, epsilon)",
        source=_EXLLAMA,
    ),
    FusedOp(
        names=("exllamav2_ext.softcap_", "exllamav2.ext.exllamav2_ext.softcap_"),
        schema="softcap_(Tensor(a!) x, float scale) -> ()",
        equivalent="x = soft_cap(x, scale)",
        source=_EXLLAMA,
    ),
)
