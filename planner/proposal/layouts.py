"""Which layout a proposal's candidates have, why, and when that would change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayoutRow:
    """What was found of one layout: ``expected_ms`` of its best strategy per batch, with exchange."""

    tp: int
    pp: int
    exchange_ms: float
    expected_ms: float


@dataclass(frozen=True)
class LayoutChoice:
    """The layout of all candidates (None: several together) and sentences that say why.

    ``rows``: the layouts that were searched, fastest first; those that a bound proves slower are
    not among them. ``static``: the best homogeneous strategy for all batches, None without one.
    """

    chosen: str | None
    why: tuple[str, ...]
    rows: tuple[LayoutRow, ...]
    static: str | None
