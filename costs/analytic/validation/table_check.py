"""Predictions of the analytic model next to published figures, and their distance."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray


def judges(identifier: str) -> bool:
    """Return whether the row of this identifier judges: rows of an even hash may set constants."""
    return sha256(identifier.encode()).digest()[0] % 2 == 1


@dataclass(frozen=True, slots=True)
class ValidatedRow:
    """One published figure; rows of one ``group`` compete, as they do the same work.

    ``identifier``, ``stack`` and ``source`` of a training run; empty for other figures.
    """

    group: str
    label: str
    predicted: float
    published: float
    identifier: str = ""
    stack: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class TableCheck:
    """A table of figures; ``missing``: which effects explain the misses, a line each.

    ``assumed``: what the source does not state.

    ``compete``: whether rows of a group do the same work, so that one of them is best.
    """

    name: str
    what: str
    unit: str
    larger_is_better: bool
    rows: tuple[ValidatedRow, ...]
    missing: str = ""
    compete: bool = True
    assumed: str = ""

    @property
    def rank_correlation(self) -> float:
        """Spearman's rank correlation of predicted and published; 0 if either is constant."""
        predicted, published = self._columns()
        if np.ptp(predicted) == 0 or np.ptp(published) == 0:
            return 0.0
        return float(np.corrcoef(_ranks(predicted), _ranks(published))[0, 1])

    @property
    def median_ratio(self) -> float:
        """Median of predicted / published: 1 where the scale is right too; nothing is scaled."""
        predicted, published = self._columns()
        return float(np.median(predicted / published))

    @property
    def median_error(self) -> float:
        """Median of |predicted / published − 1|."""
        predicted, published = self._columns()
        return float(np.median(np.abs(predicted / published - 1)))

    @property
    def p90_error(self) -> float:
        """What nine tenths of |predicted / published − 1| are within."""
        predicted, published = self._columns()
        return float(np.quantile(np.abs(predicted / published - 1), 0.9))

    def winners(self) -> dict[str, tuple[str, str, float]]:
        """Return predicted best, published best and loss of each group of two or more.

        Lost is how much worse than the published best the predicted one is as published, a share.
        """
        sign = 1 if self.larger_is_better else -1
        by_group: dict[str, tuple[str, str, float]] = {}
        if not self.compete:
            return by_group
        for group in dict.fromkeys(row.group for row in self.rows):
            rows = [row for row in self.rows if row.group == group]
            if len(rows) < 2:
                continue
            ours = max(rows, key=lambda row: sign * row.predicted)
            best = max(rows, key=lambda row: sign * row.published)
            by_group[group] = (ours.label, best.label, abs(1 - ours.published / best.published))
        return by_group

    def _columns(self) -> tuple[Any, Any]:
        return (
            np.array([row.predicted for row in self.rows]),
            np.array([row.published for row in self.rows]),
        )


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank the values, equal ones by the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def make_check(table: str, rows: Iterable[ValidatedRow], **values: object) -> TableCheck:
    """Make the check of a table by its texts in ``figures/tables.toml``.

    ``values``: those in the texts' braces.
    """
    tables = _read_tables()
    texts: dict[str, Any] = {
        key: text.format_map(tables["shared"] | values) if isinstance(text, str) else text
        for key, text in tables[table].items()
    }
    return TableCheck(**{"name": table, **texts}, rows=tuple(rows))


@cache
def _read_tables() -> dict[str, dict[str, Any]]:
    folder = resources.files("seqplan.costs.analytic.validation")
    return tomllib.loads(folder.joinpath("figures", "tables.toml").read_text("utf-8"))
