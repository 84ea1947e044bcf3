"""Run reference functions in float64 throughout.

Casts to float32, and to codes of 8 bits, are part of what a reference function means, but they
blunt finite differences: under :class:`exact_in_double` a float64 tensor stays float64 where the
text says otherwise, so ``torch.autograd.gradcheck`` sees the formula and not its rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CODES = ((torch.float8_e4m3fn,), (torch.int8,))


class exact_in_double(TorchFunctionMode):
    """A context in which rounding float64, to float32 or to 8 bits, does nothing.

    With ``codes``, those of 8 bits are kept: what is computed from them is what they stand for.
    ``coded`` says afterwards whether there was more than float32 to round to.
    """

    coded = False

    def __init__(self, *, codes: bool = False) -> None:
        super().__init__()
        self._codes = codes

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            if func is torch.Tensor.to and args[1:] == (torch.float32,):
                return args[0]
            rounds = func is torch.Tensor.round or (func is torch.Tensor.to and args[1:] in _CODES)
            if rounds and not self._codes:
                self.coded = True
                return args[0]
            if kwargs.get("dtype") is torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)
