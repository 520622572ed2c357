"""Spans of an iteration sorted into the rows of a Gantt chart: ranks that do the same are one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seqplan.planner.simulation.iteration import Iteration, Span

ROWS = 200
"""Rows of a chart, at most one more: stages of fewer ranks than this leaves share a row."""


@dataclass(frozen=True)
class GanttRow:
    """Consecutive ranks [low, high) of ``stages`` stages; the spans are those of the busiest.

    A stage here is a range of ranks that do the same throughout the iteration; ``shown`` is the
    half-open range of the one whose spans these are.
    """

    low: int
    high: int
    stages: int
    shown: tuple[int, int]
    spans: tuple[Span, ...]

    def spent_ms(self, *kinds: str) -> float:
        """Time in spans of these kinds; an overlap counts for each."""
        return sum(span.end_ms - span.start_ms for span in self.spans if span.kind in kinds)

    @property
    def covered_ms(self) -> float:
        """Time in which something runs."""
        covered = end = 0.0
        for span in self.spans:
            covered += max(0.0, span.end_ms - max(span.start_ms, end))
            end = max(end, span.end_ms)
        return covered


@dataclass(frozen=True)
class GanttBlock:
    """A drawn piece: one span, or several that are too short to draw apart."""

    kind: str
    micro_batch: int | None
    start_ms: float
    end_ms: float


def rows_of(iteration: Iteration, limit: int = ROWS) -> list[GanttRow]:
    """The rows from rank 0 up, every rank in one of them, spans by start."""
    world = len(iteration.rank_busy_ms)
    edges = {0, world}
    for span in iteration.spans:
        edges.update(min(max(rank, 0), world) for rank in span.ranks)
    cuts = sorted(edges)
    stages: list[list[Span]] = [[] for _ in cuts[1:]]
    for span in iteration.spans:
        for at in range(bisect_left(cuts, span.ranks[0]), bisect_left(cuts, span.ranks[1])):
            if at < len(stages):
                stages[at].append(span)
    rows = []
    gathered: list[int] = []
    for at in range(len(stages)):
        gathered.append(at)
        low, high = cuts[gathered[0]], cuts[at + 1]
        if (high - low) * limit >= world or at == len(stages) - 1:
            rows.append(_row(low, high, gathered, cuts, stages))
            gathered = []
    return rows


def _row(
    low: int, high: int, gathered: Sequence[int], cuts: Sequence[int], stages: list[list[Span]]
) -> GanttRow:
    def work_ms(at: int) -> float:
        return sum(s.end_ms - s.start_ms for s in stages[at] if s.kind in ("forward", "backward"))

    busiest = max(gathered, key=work_ms)
    spans = sorted(stages[busiest], key=lambda span: (span.start_ms, span.end_ms, span.kind))
    shown = (cuts[busiest], cuts[busiest + 1])
    return GanttRow(low, high, len(gathered), shown, tuple(spans))


def blocks(spans: Iterable[Span], shortest_ms: float) -> list[GanttBlock]:
    """Spans in order, those shorter than ``shortest_ms`` joined with what they touch.

    A joined piece has the kind that takes most of it, so that no piece is too small to see and a
    chart has a bounded number of them.
    """
    joined: list[GanttBlock] = []
    open_spans: list[Span] = []

    def close() -> None:
        if open_spans:
            joined.append(_join_blocks(open_spans))
            open_spans.clear()

    for span in spans:
        if open_spans:
            begin, end = open_spans[0].start_ms, open_spans[-1].end_ms
            if end - begin >= shortest_ms or span.start_ms - end > shortest_ms / 2:
                close()
        open_spans.append(span)
    close()
    return joined


def _join_blocks(spans: Sequence[Span]) -> GanttBlock:
    first = spans[0]
    if len(spans) == 1:
        return GanttBlock(first.kind, first.micro_batch, first.start_ms, first.end_ms)
    times: dict[str, float] = {}
    for span in spans:
        times[span.kind] = times.get(span.kind, 0.0) + span.end_ms - span.start_ms
    kind = max(times, key=lambda name: times[name])
    return GanttBlock(kind, None, first.start_ms, max(span.end_ms for span in spans))
