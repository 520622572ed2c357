"""Errors on rows that have set no constant: those of an odd hash, and of a source left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from seqplan.costs.analytic.validation.published_runs import list_runs, predict_run
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow, judges

CANDIDATES = tuple(round(1 + 0.01 * step, 2) for step in range(31))
"""Rates of products of a stack over that of the device, among which one is fitted."""


def check_odd_rows(tables: Sequence[TableCheck]) -> list[TableCheck]:
    """Collect the judging rows by stack, device and precision; those with three or more."""
    collected: dict[str, list[ValidatedRow]] = {}
    for check in tables:
        for row in check.rows:
            if row.identifier and row.stack and judges(row.identifier):
                kind = " ".join(row.label.split(",")[0].split()[:2])
                collected.setdefault(f"{row.stack}, {kind}", []).append(row)
    return [
        TableCheck(
            name=name,
            what="rows of an odd hash",
            unit="tokens/s per GPU",
            larger_is_better=True,
            rows=tuple(rows),
            compete=False,
        )
        for name, rows in sorted(collected.items())
        if len(rows) >= 3
    ]


SCALES, LEAST_LOSS = (128, 512, 1024), 0.002
"""GPUs whose runs are compared, and the published loss from which a pair counts."""

_SAME = ("model", "source", "tp", "precision", "recomputation", "micro-batch", "hardware")


def list_scaling_pairs() -> list[tuple[float, float]]:
    """List pairs of runs that differ in GPUs alone: published and predicted loss of the larger.

    Tokens/s per GPU of the smaller over those of the larger − 1, where the published loss is at
    least ``LEAST_LOSS``. Batches grow with the GPUs. Not of GB200, which has nodes of 64.
    """
    by_model: dict[tuple[object, ...], list[ValidatedRow]] = {}
    for run in list_runs():
        if run["GPUs"] in SCALES and run["hardware"] != "gb200-186gb":
            key = (*(run[name] for name in _SAME), run["sequences"] / run["GPUs"])
            by_model.setdefault(key, []).append(predict_run(run))
    pairs = [
        (small.published / large.published - 1, small.predicted / large.predicted - 1)
        for rows in by_model.values()
        for small, large in pairwise(rows)
    ]
    return [pair for pair in pairs if pair[0] > LEAST_LOSS]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A source whose rows set nothing: the rate fitted without it, and its rows' median error."""

    source: str
    rows: int
    products: float
    median_error: float


def leave_sources_out(stack: str = "megatron", hardware: str = "h100-80gb") -> list[LeftOut]:
    """Fit the rate of products without each source, and compare its rows.

    Fitted on rows of an even hash.
    """
    runs = [run for run in list_runs() if (run["stack"], run["hardware"]) == (stack, hardware)]
    errors = np.array([[_error(run, products) for products in CANDIDATES] for run in runs])
    setting = np.array([not judges(run["id"]) for run in runs])
    sources = np.array([run["source"] for run in runs])
    left_out = []
    for source in sorted({run["source"] for run in runs}):
        others = setting & (sources != source)
        best = int(np.argmin(np.abs(np.median(errors[others], axis=0))))
        errors_of = errors[sources == source, best]
        left_out.append(
            LeftOut(source, len(errors_of), CANDIDATES[best], float(np.median(np.abs(errors_of))))
        )
    return left_out


def _error(run: dict[str, Any], products: float) -> float:
    row = predict_run(run, products=products)
    return row.predicted / row.published - 1
