"""Comparisons made by hand, of any size, and a reader that checks and takes apart the report."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from seqplan.planner.comparison.results import Comparison, System
from seqplan.planner.simulation.iteration import Iteration, Span
from seqplan.planner.simulation.one_f_one_b import simulate_ms, timeline
from seqplan.plans.scheme import Scheme, Strategy

ODD = 'Mega<b>tron & "co" </table>'

Pipelines = list[tuple[Scheme, list[float]]]


CHART = re.compile(r'<div class="chart"><script type="application/json">(.*?)</script></div>')


def charts(document: str) -> list[dict[str, Any]]:
    """The descriptions of the charts of a page."""
    return [json.loads(found) for found in CHART.findall(document)]


def iteration(step: int, pipelines: Pipelines, ours: bool = True) -> Iteration:
    """An iteration of pipelines, each a scheme with its micro-batches' costs (ms), side by side."""
    spans: list[Span] = []
    busy: list[float] = []
    end: list[float] = []
    for scheme, costs in pipelines:
        width, first = scheme.stage_gpus, len(busy)
        for event in timeline(costs, scheme.pp):
            low = first + event.stage * width
            kind = "forward" if event.phase == "F" else "backward"
            times = event.start_ms, event.end_ms
            spans.append(Span((low, low + width), kind, event.micro_batch, *times))
        busy += [sum(costs)] * scheme.gpus
        end += [simulate_ms(costs, scheme.pp)] * scheme.gpus
    compute = max(end)
    spans.append(Span((0, len(busy)), "sync", None, compute, compute + 40.25))
    spans.append(Span((0, len(busy)), "optimizer", None, compute + 40.25, compute + 52.75))
    counts: dict[Scheme, int] = {}
    for scheme, _ in pipelines:
        counts[scheme] = counts.get(scheme, 0) + 1
    return Iteration(
        step=step,
        strategy=str(Strategy.from_counts(counts)),
        schemes=tuple(sorted(counts.items())),
        tokens=123_456 + step,
        sequences=321 + step,
        longest=8_000 + step,
        compute_ms=compute,
        sync_ms=40.25,
        optimizer_ms=12.5,
        rank_busy_ms=tuple(busy),
        rank_end_ms=tuple(end),
        bubble_ratio=1 - sum(busy) / compute / len(busy),
        imbalance=max(end) / min(end) - 1,
        mfu=None if ours else 0.3712,
        gap=0.0123 if ours else None,
        planning_ms=17.25 + step if ours else None,
        spans=tuple(spans),
    )


def micro_steps_iteration(step: int, times_ms: list[float]) -> Iteration:
    """An iteration of 4 ranks in micro-steps: all together, in pairs, all together again."""
    groups = [[(0, 4)], [(0, 2), (2, 4)], [(0, 4)]]
    spans, clock = [], 0.0
    for number, (ranks, time) in enumerate(zip(groups, times_ms, strict=True)):
        for pair in ranks:
            middle = clock + time / 3
            spans.append(Span(pair, "forward", number, clock, middle))
            spans.append(Span(pair, "backward", number, middle, clock + time))
        clock += time
    plain = iteration(step, [(Scheme(ulysses=4), [clock])])
    sync = [span for span in plain.spans if span.kind in ("sync", "optimizer")]
    return Iteration(**{**vars(plain), "spans": tuple(spans + sync), "strategy": "u4 | 2×u2"})


def comparison_of(*systems: System, gpus: int) -> Comparison:
    return Comparison(
        profile="made-profile<1>",
        hardware="GPU & Co",
        gpus=gpus,
        max_len=32_768,
        tokens=200_000,
        seed=5,
        sequences=9_999,
        histogram=((512, 7_001, 1_234_567), (1024, 2_000, 1_765_432), (32_768, 998, 7_654_321)),
        systems=systems,
        left_out=(("FlexSP-like", "the profile has no <ulysses> schemes"),),
        advice="A static strategy will do & that's that.",
        assumptions=("Forward takes a third of a micro-batch.",),
    )


def pipelined() -> Comparison:
    """Three systems on 16 ranks with pipeline stages, odd names, three steps."""
    big, small, deep = Scheme(tp=8), Scheme(tp=2, pp=2), Scheme(tp=2, pp=4)
    ours = [
        iteration(k, [(big, [901.5 + k]), (small, [200.0, 251.25 + k]), (small, [410.0])])
        for k in range(3)
    ]
    ours[1] = iteration(1, [(small, [333.0, 111.0 * at]) for at in range(1, 5)])
    static = [iteration(k, [(deep, [500.0, 131.5, 77.0 * k + 5])] * 2, False) for k in range(3)]
    balanced = [iteration(k, [(deep, [400.0, 121.5])] * 2, False) for k in range(3)]
    return comparison_of(
        System("ours", "seqplan", "Chosen per step.", True, tuple(ours)),
        System("megatron", ODD, "A window & a <script>alert(1)</script>.", False, tuple(static)),
        System("megatron-balanced", f"{ODD}, balanced", "With ours.", True, tuple(balanced)),
        gpus=16,
    )


def in_lockstep() -> Comparison:
    """Two systems on 4 ranks that form new groups within a step."""
    ours = [micro_steps_iteration(k, [100.0 + k, 50.0, 25.0]) for k in range(2)]
    other = [iteration(k, [(Scheme(ulysses=4), [300.0])], False) for k in range(2)]
    return comparison_of(
        System("ours", "seqplan", "Micro-steps.", True, tuple(ours)),
        System("sp", "Static SP", "One degree.", False, tuple(other)),
        gpus=4,
    )


VOID = {"meta", "br", "hr", "img", "link", "input"}


@dataclass
class Page(HTMLParser):
    """Parses a report; ``faults``: places of unclosed elements, ``tables``: the cells."""

    faults: list[str] = field(default_factory=list)
    open_tags: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    tables: list[list[list[str]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def of(cls, document: str) -> Page:
        page = cls()
        page.feed(document)
        page.close()
        if page.open_tags:
            page.faults.append(f"left open: {page.open_tags}")
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if len(dict(attrs)) < len(attrs):
            self.faults.append(f"<{tag}> has an attribute twice")
        if tag not in VOID:
            self.open_tags.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if not self.open_tags or self.open_tags.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} closes nothing")

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open_tags and self.open_tags[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def table(self, *header: str) -> list[list[str]]:
        """Rows of the first table whose header begins with these cells."""
        matching = (table for table in self.tables if table[0][: len(header)] == list(header))
        return next(matching)[1:]
