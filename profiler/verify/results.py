"""Results of a check: figures with their limits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that was measured.

    ``group``: the row of the table that it is in; ``name``: which of that row. ``least`` and
    ``most``: its limits, None for a figure that is only shown;
    ``assumed``: the analytic model's value, None if it has none. ``unit``: % for
    a share, of which ``value`` is a part of 1.
    """

    group: str
    name: str
    value: float
    unit: str = ""
    least: float | None = None
    most: float | None = None
    assumed: float | None = None

    @classmethod
    def near_one(cls, group: str, name: str, ratio: float, error: float | None) -> Figure:
        """Return a ratio that may be off 1 by ``error``, by any if None."""
        limits = (None, None) if error is None else (1 - error, 1 + error)
        return cls(group, name, ratio, "", *limits)

    @property
    def missed(self) -> bool:
        """Whether it is beyond a limit; NaN is beyond every one."""
        if self.least is None and self.most is None:
            return False
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        return not low <= self.value <= high

    @property
    def strain(self) -> float:
        """How much of its limit it takes up: above 1 it is missed; 0 if there is none."""
        if math.isnan(self.value):
            return math.inf
        if self.least is not None and self.most is not None:
            middle = (self.least + self.most) / 2
            return abs(self.value - middle) / max(self.most - middle, 1e-300)
        if self.most is not None:
            return self.value / self.most if self.most > 0 else float(self.value > self.most) * 2
        if self.least is not None:
            return self.least / self.value if self.value > 0 else math.inf
        return 0.0

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it; NaN and infinities are null."""
        value = self.value if math.isfinite(self.value) else None
        limits = {
            name: limit
            for name in ("least", "most", "assumed")
            if (limit := getattr(self, name)) is not None
        }
        unit = {"unit": self.unit} if self.unit else {}
        return {"group": self.group, "name": self.name, "value": value, **unit, **limits} | {
            "missed": self.missed
        }


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check's figures, the seconds that it took, and its notes.

    ``skipped``: why it was not run, None if it was.
    """

    name: str
    figures: tuple[Figure, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def misses(self) -> list[Figure]:
        """List the figures beyond their limits."""
        return [figure for figure in self.figures if figure.missed]

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "check": self.name,
            "seconds": round(self.seconds, 3),
            "missed": len(self.misses),
            "skipped": self.skipped,
            "notes": list(self.notes),
            "figures": [figure.document() for figure in self.figures],
        }


def by_group(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    """Collect figures by group, in the order of their first."""
    groups: dict[str, list[Figure]] = {}
    for figure in figures:
        groups.setdefault(figure.group, []).append(figure)
    return groups
