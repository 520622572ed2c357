"""Gantt charts of single steps: what every stage does when, ours above another system."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seqplan.api.report.drawing.markup import element, section, table, text
from seqplan.api.report.drawing.numbers import duration, milliseconds, percent, whole
from seqplan.api.report.drawing.rows import figure, legend, percent_of, scale
from seqplan.api.report.sections.pick import describe_simulation, fastest, shown_rival, slowest
from seqplan.planner.comparison.results import Comparison, System
from seqplan.planner.simulation.iteration import Iteration, Span
from seqplan.plans.ranges import ranges_text

KINDS = ("forward", "backward", "sync", "optimizer", "switch")

WIDTH = 880
"""Units of a chart across; a page stretches it to its width."""

PIECES = 4000
"""Pieces of a chart, about, so that the file stays small."""

NUMBERED = 150
"""Micro-batch numbers in a chart, at most."""


@dataclass(frozen=True)
class Extent:
    """What the charts of one step share: the end of the time axis and the height of a GPU (px)."""

    end_ms: float
    gpu: float


def gantt(comparison: Comparison) -> str:
    """Our slowest and our fastest step, and the best other system on the same batches."""
    rival = shown_rival(comparison)
    systems = [comparison.ours] if rival is None else [comparison.ours, rival[1]]
    steps = [("slowest", slowest(comparison.ours))]
    if len(comparison.ours.iterations) > 1:
        steps.append(("fastest", fastest(comparison.ours)))
    parts = []
    for word, at in steps:
        # One time axis for a step, so that lengths can be compared between systems.
        end = max(system.iterations[at].total_ms for system in systems)
        # Enough height for the rows of either, and the same height for a GPU in both.
        rows = [rows_of(system.iterations[at]) for system in systems]
        height = min(620.0, max(120.0, 34.0 * max(map(len, rows))))
        for system, system_rows in zip(systems, rows, strict=True):
            scale = Extent(end, height / system_rows[-1].high)
            parts.append(
                _chart(comparison, system, system.iterations[at], word, system_rows, scale)
            )
    against = ""
    if rival is not None:
        against = f" and those of {rival[1].name}, {rival[0]}, on the same batches"
    return section(
        "gantt",
        "Where the time goes",
        f"Our slowest and our fastest step{against}: what every rank does when. Heights are GPUs "
        "and widths are time, so an empty area is GPU-time lost.",
        *parts,
    )


def _chart(
    comparison: Comparison,
    system: System,
    iteration: Iteration,
    word: str,
    rows: Sequence[GanttRow],
    extent: Extent,
) -> str:
    title = f"Our {word} step ({iteration.step:,}): {system.name}"
    if not iteration.spans:
        return element("figure", element("h3", text(title)), element("p", "Not recorded."))
    several = max(row.stages for row in rows)
    caption = (
        f"{describe_simulation(comparison)} {duration(iteration.total_ms)}, bubble "
        f"{percent(iteration.bubble_ratio)}, strategy {iteration.strategy}. Numbers are "
        "micro-batches; passes too short to see are drawn together."
    )
    if several > 1:
        caption += f" Up to {several:,} stages share a row, which shows the busiest of them."
    about = (
        "Rows are ranks from 0 up, time runs to the right; the iteration takes "
        f"{milliseconds(iteration.total_ms)} ms. The table has the times of every row."
    )
    drawing = _draw(rows, iteration.total_ms, extent, about)
    return figure(title, caption, *drawing) + _table(title, rows, iteration.total_ms)


def _draw(
    rows: Sequence[GanttRow], total_ms: float, extent: Extent, about: str
) -> tuple[str, str, str]:
    """Return the legend, the passes of every row, and the scale."""
    across = WIDTH / extent.end_ms
    height = rows[-1].high * extent.gpu
    paths: dict[str, list[str]] = {kind: [] for kind in KINDS}
    ranks: list[str] = []
    numbers: list[str] = []
    named = -100.0
    for row, row_blocks in zip(rows, _pieces(rows, extent.end_ms), strict=True):
        top, row_height = row.low * extent.gpu, (row.high - row.low) * extent.gpu
        if top - named >= 13:
            ranks.append(element("span", f"{row.low:,}", style=f"top:{top:.0f}px"))
            named = top
        for block in row_blocks:
            begin, size = block.start_ms * across, (block.end_ms - block.start_ms) * across
            size = max(size - (0.6 if size > 3 else 0), 0.3)
            drawn = row_height - min(1.0, row_height / 6)
            paths[block.kind].append(f"M{begin:.1f} {top:.1f}h{size:.1f}v{drawn:.1f}h-{size:.1f}z")
            if row_height >= 11 and len(numbers) < NUMBERED:
                numbers += _write_number(block, begin, size, top + row_height / 2)
    kinds = [kind for kind in KINDS if paths[kind]]
    idle = element("path", d=f"M0 0h{total_ms * across:.1f}v{height:.1f}H0z", class_="stage")
    passes = element(
        "svg",
        idle,
        *(element("path", d="".join(paths[kind]), class_=kind) for kind in kinds),
        element("path", d=f"M{total_ms * across:.1f} 0v{height:.1f}", class_="mark"),
        viewBox=f"0 0 {WIDTH} {height:.1f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=about,
    )
    plane = element("div", passes, *numbers, class_="plane")
    return (
        legend([*((kind, kind) for kind in kinds), ("stage", "idle")]),
        element("div", *ranks, plane, class_="gantt", style=f"height:{height:.0f}px"),
        scale("0 ms", *(duration(extent.end_ms * at / 4) for at in range(1, 5))),
    )


def _pieces(rows: Sequence[GanttRow], end_ms: float) -> list[list[GanttBlock]]:
    """Return the blocks to draw of each row, merged to fit the chart's limit."""
    shortest = end_ms / WIDTH
    while True:
        pieces = [blocks(row.spans, shortest) for row in rows]
        if sum(map(len, pieces)) <= max(PIECES, 2 * len(rows)) or shortest > end_ms:
            return pieces
        shortest *= 1.5


def _write_number(block: GanttBlock, begin: float, size: float, middle: float) -> list[str]:
    """The micro-batch's number if there is room for it."""
    name = f"{block.micro_batch:,}" if block.micro_batch is not None else ""
    if block.kind not in ("forward", "backward") or not name or size < 6 * len(name) + 4:
        return []
    place = f"left:{percent_of(begin / WIDTH)};width:{percent_of(size / WIDTH)};top:{middle:.0f}px"
    return [element("b", name, class_=f"on-{block.kind}", style=place)]


def _table(title: str, rows: Sequence[GanttRow], total_ms: float) -> str:
    """Return the times of every row, without empty columns."""
    kinds = [kind for kind in KINDS if any(row.spent_ms(kind) > 0 for row in rows)]
    shared = any(row.stages > 1 for row in rows)
    header = ["Ranks", *(["Stages", "Shown"] if shared else []), "Micro-batches"]
    header += [f"{kind.capitalize()} (ms)" for kind in kinds]
    header += ["Idle (ms)", "Work begins (ms)", "Work ends (ms)"]
    body = []
    for row in rows:
        work = [span for span in row.spans if span.kind in ("forward", "backward")]
        passes = sum(span.kind == "forward" for span in work)
        body.append(
            [
                ranges_text(range(row.low, row.high), ","),
                *([whole(row.stages), ranges_text(range(*row.shown), ",")] if shared else []),
                whole(passes),
                *(milliseconds(row.spent_ms(kind)) for kind in kinds),
                milliseconds(max(0.0, total_ms - row.covered_ms)),
                milliseconds(min((span.start_ms for span in work), default=None)),
                milliseconds(max((span.end_ms for span in work), default=None)),
            ]
        )
    return table(f"{title}, by stage", header, body)


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
