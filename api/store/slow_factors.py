"""Slow and lost ranks of a job, as the column ``slowdown`` has them."""

from __future__ import annotations

import json

SlowFactors = tuple[tuple[int, float | None], ...]
"""(rank, factor) of ranks that are slower than the profile has it, None for a lost one."""


def read_slowdown(text: str | None) -> SlowFactors:
    """Read the slow ranks of a row."""
    return () if text is None else tuple((rank, factor) for rank, factor in json.loads(text))


def write_slowdown(slowdown: SlowFactors) -> str | None:
    """Write slow ranks for a row."""
    return json.dumps(slowdown) if slowdown else None


def list_lost(slowdown: SlowFactors) -> tuple[int, ...]:
    """List the lost ranks, for which nothing waits."""
    return tuple(rank for rank, factor in slowdown if factor is None)
