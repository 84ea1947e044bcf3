"""Run reference functions in float64 throughout.

Casts to float32 are part of what a reference function means, but they blunt finite differences:
under :class:`exact_in_double` a float64 tensor stays float64 where the text says float32, so
``torch.autograd.gradcheck`` sees the formula and not its rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class exact_in_double(TorchFunctionMode):
    """A context in which casting float64 to float32 does nothing."""

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
            if kwargs.get("dtype") is torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)
