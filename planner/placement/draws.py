"""Random numbers of which Python and C have the same bits."""

from __future__ import annotations

_BITS = 2**64 - 1


class Draws:
    """Draws numbers in [0, 1) by xorshift64* (Vigna, 2014), whose bits C has as well."""

    def __init__(self) -> None:
        self.state = 0x9E3779B97F4A7C15

    def __call__(self) -> float:
        """Draw the next."""
        state = self.state
        state ^= state >> 12
        state ^= state << 25 & _BITS
        state ^= state >> 27
        self.state = state
        return float((state * 0x2545F4914F6CDD1D & _BITS) >> 11) * 2.0**-53
