"""What a case gives, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Tokens, turns and requests of the cases."""

    prefix: int = 2048
    tail: int = 32
    turns: int = 8
    turn_tokens: int = 48
    system_tokens: int = 512
    requests: int = 64
    request_prefix: int = 512
    new_tokens: int = 16
    decode_batch: int = 8
    decode_steps: int = 64
    speculated: int = 192
    repeats: int = 3
    loop_repeats: int = 9

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(
            self.prefix + self.tail + self.new_tokens,
            self.system_tokens + self.turns * (self.turn_tokens + self.new_tokens),
            self.request_prefix + self.tail + self.new_tokens,
            self.tail + self.speculated,
        )


QUICK = Sizes(128, 8, 3, 10, 64, 6, 64, 4, 3, 8, 24, 2, 2)


@dataclass(frozen=True)
class Measured:
    """One case: seconds with and without what is measured, or a share, and what is demanded."""

    case: str
    without_s: float
    with_s: float
    unit: str
    value: float
    demand: str
