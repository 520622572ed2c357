"""Numbers as the report writes them: thousands separators, few digits, a dash for the unknown."""

from __future__ import annotations

from collections.abc import Iterable

from seqplan.plans.percent import percent as plans_percent

UNKNOWN = "—"


def whole(value: float) -> str:
    """An integer: ``12,345``."""
    return f"{value:,.0f}"


def milliseconds(value: float | None) -> str:
    """Milliseconds without the unit, which the column or axis has: ``3,410.2``."""
    return UNKNOWN if value is None else f"{value:,.1f}"


def duration(value_ms: float) -> str:
    """A time with its unit: ``3.41 s``, ``812 ms``, ``0.52 ms``."""
    if value_ms >= 1000:
        return f"{value_ms / 1000:,.2f} s"
    return f"{value_ms:,.0f} ms" if value_ms >= 10 else f"{value_ms:.2f} ms"


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage: ``12.3 %``."""
    return UNKNOWN if share is None else plans_percent(share, digits)


def factor(value: float) -> str:
    """A ratio: ``1.43×``."""
    return f"{value:,.2f}×"


def ratio(value: float | None) -> str:
    """An imbalance: ``0.083``."""
    return UNKNOWN if value is None else f"{value:,.3f}"


def coefficient(value: float) -> str:
    """A fitted coefficient with four significant digits: ``1.234e-06``, ``0.0457``."""
    return f"{value:.4g}"


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean, None without values or with an unknown one."""
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return sum(known) / len(known) if known else None
