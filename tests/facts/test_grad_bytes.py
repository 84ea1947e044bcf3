"""Whether a class under no_grad may hold modules is seen in its bytes, by what it is given."""

from __future__ import annotations

import pytest

from trainify.facts.grad_bytes import makes_modules

CLASS = b"""
class Holder(nn.Module):
    def __init__(self, %s):
        super().__init__()
        self.first = first
        self.second = second

    @torch.no_grad()
    def forward(self, x, %s):
        return self.first(self.second(x))
"""


@pytest.mark.parametrize(
    ("given", "later", "may"),
    [
        (b"first: Encoder, second: Decoder", b"mask", True),
        (b"first: Optional[Encoder], second: 'Decoder | None'", b"mask", True),
        (b"first: None | Encoder, second: nn.Linear", b"mask", True),
        (b"first: int, second: int | None = None", b"second: int | None = None", False),
        (b"first: Optional[int], second: Optional[float]", b"mask", False),
        (b"first: Config, second: int", b"first: Config", False),
    ],
)
def test_arguments_that_may_be_modules(given: bytes, later: bytes, may: bool) -> None:
    source = CLASS % (given, later)
    assert makes_modules(source, source.index(b"@torch")) is may
