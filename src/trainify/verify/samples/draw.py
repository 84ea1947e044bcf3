"""Random shapes, strides and values, and the table of who draws for which function."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

Values = dict[str, Any]


class NoInputs(Exception):
    """Nothing is known of what an argument should be."""


class Draw:
    """Random shapes, strides and values, the same for the same seed.

    ``strides`` is ``contiguous``, ``rows`` (the last dimension is contiguous) or ``any``; ``large``
    sizes are such that kernels take them.  ``fixed`` are parameters that have to have a value, and
    what is in ``never_none`` is given.
    """

    def __init__(
        self,
        seed: int,
        dtype: torch.dtype,
        device: str = "cpu",
        *,
        large: bool = False,
        strides: str = "any",
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.device = device
        self.large = large
        self.strides = strides
        self.fixed = dict(fixed or {})
        self.never_none: set[str] = set()
        self.features = self.random.choice((64, 256, 1024) if large else (4, 6))
        self.head_dim = self.random.choice((64, 128)) if large else 4
        self.count = self.random.choice((1, 3, 33) if large else (1, 2, 3))
        self.rows: tuple[int, ...] = (self.count,)
        if not large and self.flag():
            self.rows = (self.count, self.size(1, 2))
        self.scale = self.pick("magnitude", 2.0, 0.02)
        self._sizes: dict[str, int] = {}

    def size(self, low: int = 1, high: int = 4) -> int:
        return self.random.randint(low, high)

    def flag(self) -> bool:
        return self.random.random() < 0.5

    def pick(self, name: str, *choices: Any) -> Any:
        """A value for a parameter; seed 0 takes the first."""
        if name in self.fixed:
            return self.fixed[name]
        allowed = [c for c in choices if c is not None or name not in self.never_none]
        return allowed[0] if self.seed == 0 else self.random.choice(allowed)

    def maybe(self, name: str, value: Any) -> Any:
        """The value of a parameter, or None where that is allowed."""
        return self.pick(name, value, None)

    def tensor(
        self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        kind = self.strides
        if kind == "any":
            kind = self.random.choice(("contiguous", "rows", "transposed"))
        if kind == "rows" and len(shape) > 1:
            x = self._randn(*shape[:-1], shape[-1] + 8)
        elif kind == "transposed" and len(shape) > 1:
            x = self._randn(shape[1], shape[0], *shape[2:]).transpose(0, 1)
        else:
            x = self._randn(*shape)
        x = (x * scale).to(dtype or self.dtype).to(self.device)
        return x[..., : shape[-1]] if kind == "rows" and len(shape) > 1 else x

    def sizes(self, letters: str) -> tuple[int, ...]:
        """A size for each letter, always the same for the same one; k and n can be large."""
        for letter in letters:
            unit = 32 if self.large and letter in "kn" else 1
            self._sizes.setdefault(letter, unit * self.size(3, 5))
        return tuple(self._sizes[letter] for letter in letters)

    def shaped(self, /, **shapes: str) -> Values:
        """Tensors by name, with a letter for each dimension: ``x="mk", weight="nk"``."""
        return {name: self.tensor(*self.sizes(shape)) for name, shape in shapes.items()}

    def _randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    @property
    def wide(self) -> torch.dtype:
        """float32, or float64 where that is what is drawn."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        drawn = torch.randint(high, shape, generator=self.generator)
        return drawn.to(self.device, dtype)

    def chosen(self, rows: int, of: int, count: int) -> torch.Tensor:
        """For each row ``count`` different numbers below ``of``, int32."""
        drawn = [torch.randperm(of, generator=self.generator)[:count] for _ in range(rows)]
        return torch.stack(drawn).to(self.device, torch.int32)

    def words(self, *shape: int) -> torch.Tensor:
        """int32 of which every bit is random: codes of a few bits, packed."""
        drawn = torch.randint(-(2**31), 2**31, shape, generator=self.generator)
        return drawn.to(self.device, torch.int32)

    def whole(self, values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, device=self.device, dtype=dtype)

    def starts(self, lengths: list[int]) -> torch.Tensor:
        """Where each of packed sequences begins, and where the last one ends."""
        return self.whole([sum(lengths[:i]) for i in range(len(lengths) + 1)])

    def angles(
        self, *shape: int, dtype: torch.dtype | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of random angles."""
        drawn, dtype = self._randn(*shape) * 3, dtype or self.dtype
        return drawn.cos().to(self.device, dtype), drawn.sin().to(self.device, dtype)


Maker = Callable[[Draw], Values]
_MAKERS: dict[Callable[..., Any], Maker] = {}


def draws_for(*functions: Callable[..., Any]) -> Callable[[Maker], Maker]:
    """Make a function the one that draws arguments for these reference functions."""

    def add(maker: Maker) -> Maker:
        _MAKERS.update(dict.fromkeys(functions, maker))
        return maker

    return add


def sample(function: Callable[..., Any], draw: Draw) -> Values:
    """Arguments for a reference function, by name and in the order of its parameters.

    What its maker says nothing of is left at its default.  Raises :class:`NoInputs`.
    """
    if function not in _MAKERS:
        raise NoInputs(f"no inputs are known for {function.__name__}")
    parameters = inspect.signature(function).parameters
    draw.never_none |= {n for n, p in parameters.items() if "None" not in str(p.annotation)}
    made = {**_MAKERS[function](draw), **draw.fixed}
    values = {}
    for name, parameter in parameters.items():
        if name not in made and parameter.default is parameter.empty:
            raise NoInputs(f"no input is known for {name!r} of {function.__name__}")
        values[name] = made.get(name, parameter.default)
    return values
