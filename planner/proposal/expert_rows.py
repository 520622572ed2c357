"""What each degree of expert parallelism costs and saves, in a proposal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqplan.plans.percent import percent

PRICED_BATCHES = 2
"""Batches that are planned with each degree."""


@dataclass(frozen=True)
class ExpertRow:
    """One degree E: the mean time of ``PRICED_BATCHES`` steps (ms), of which ``sync_ms`` is sync.

    Both are None if no scheme holds the data, or if ``lower_bound_ms`` shows that another degree
    is faster. ``longest``: tokens of the longest sequence that some scheme holds.
    """

    expert_parallel: int
    expected_ms: float | None
    sync_ms: float | None
    longest: int
    lower_bound_ms: float | None = None


def explain_degrees(rows: Sequence[ExpertRow], chosen: int) -> list[str]:
    """Describe what each degree costs and saves compared with the chosen one, as sentences."""
    (best,) = (row for row in rows if row.expert_parallel == chosen)
    texts = [
        (
            f"Experts on {chosen} ranks: {best.expected_ms or 0:,.0f} ms a step (mean of "
            f"{PRICED_BATCHES} batches), of which {best.sync_ms or 0:,.0f} ms sync; the longest "
            f"sequence is {best.longest:,} tokens."
        )
    ]
    for row in rows:
        if row is best:
            continue
        place = "Experts not split" if row.expert_parallel == 1 else f"On {row.expert_parallel}"
        if row.lower_bound_ms is not None and best.expected_ms is not None:
            least = row.lower_bound_ms / best.expected_ms - 1
            texts.append(
                f"{place}: at least {percent(least, 1, '+')} time, longest {row.longest:,} tokens."
            )
            continue
        if row.expected_ms is None or best.expected_ms is None:
            why = f"the longest sequence is {row.longest:,} tokens" if row.longest else "no scheme"
            texts.append(f"{place}: not possible on these GPUs, {why}.")
            continue
        sync = (row.sync_ms or 0.0) - (best.sync_ms or 0.0)
        texts.append(
            f"{place}: {percent(row.expected_ms / best.expected_ms - 1, 1, '+')} time, "
            f"{sync:+,.0f} ms of it sync, longest {row.longest:,} tokens."
        )
    return texts
