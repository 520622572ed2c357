"""Which layout a proposal's candidates have, why, and when that would change."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from seqplan.planner.proposal.scenarios import LayoutTimes, Scenarios, flips
from seqplan.planner.sync.times import Layout, SyncTimes, layout_text
from seqplan.plans.percent import percent

ONE_LAYOUT = 0.005
"""Layouts within this share of the fastest are a tie, and so is one with several together, which
is simpler and stays better at other costs."""

STANDARD_ERRORS = 2.0
"""How many standard errors of the sampled batches a tie's edge is wide."""

BEHIND_STATIC = 0.001
"""By what share a layout may be slower than the best static strategy to be chosen all the same."""


@dataclass(frozen=True)
class LayoutRow:
    """Results of one layout: ``expected_ms`` of its best strategy per batch, with sync.

    ``sync_ms``: its part that is not hidden.
    """

    tp: int
    pp: int
    sync_ms: float
    expected_ms: float


@dataclass(frozen=True)
class LayoutChoice:
    """The layout of all candidates (None: several together) and the reasons, as sentences.

    With experts over ranks that of groups smaller than a block, if they are faster in another one.

    ``rows``: the layouts that were searched, fastest first; those that a bound proves slower are
    not among them. ``static``: the best homogeneous strategy for all batches and ``static_ms`` its
    expected time; None without one.
    """

    chosen: str | None
    why: tuple[str, ...]
    rows: tuple[LayoutRow, ...]
    static: str | None
    static_ms: float | None


def choose_layout(times: LayoutTimes, scenarios: Scenarios) -> Layout | None:
    """Choose the layout for all candidates; None if several together are better.

    Several are better by more than ``ONE_LAYOUT``. Of layouts within that, the one that loses least
    at other costs, unless it is behind the best static strategy by more than ``BEHIND_STATIC``.
    """
    fastest_ms = min(times.by_layout.values(), default=inf)
    if fastest_ms > times.several_ms * (1 + ONE_LAYOUT):
        return None
    limit = times.several_ms * (1 + ONE_LAYOUT)
    near = [layout for layout, ms in sorted(times.by_layout.items()) if ms <= limit]
    if times.static is not None:
        enough = times.static[1] * (1 + BEHIND_STATIC)
        near = [layout for layout in near if times.by_layout[layout] <= enough] or near
    return min(near, key=lambda layout: (scenarios.worst_ratio(layout, times), layout))


def explain_choice(
    chosen: Layout | None, times: LayoutTimes, scenarios: Scenarios, sync: SyncTimes
) -> LayoutChoice:
    """Describe which layout was chosen, why, and at which costs another one would be better."""
    ranked = sorted(times.by_layout.items(), key=lambda entry: (entry[1], entry[0]))
    best_ms = times.several_ms if chosen is None else times.by_layout[chosen]
    why = []
    if chosen is None:
        alone = f"the best alone, {layout_text(ranked[0][0])}, takes " if ranked else ""
        more = (
            f"{percent(ranked[0][1] / best_ms - 1)} longer" if ranked else "none runs all batches"
        )
        why.append(f"several layouts, together or in turn: {alone}{more}.")
        nearest = ranked[0][0] if ranked else None
    else:
        gain = best_ms / times.several_ms - 1
        why.append(
            f"one layout, {layout_text(chosen)}: pipelines differ in Ulysses and ring only; "
            f"several layouts, together or in turn, were found to gain {percent(gain)}."
        )
        nearest = chosen
        if others := [entry for entry in ranked if entry[0] != chosen]:
            layout, other_ms = others[0]
            more = percent(other_ms / best_ms - 1, 1, "+")
            why.append(f"The next is {layout_text(layout)}, {more} in time.")
    if nearest is not None and (edge := _tie_edge(nearest, times)):
        why.insert(1, edge)
    why.append(flips(chosen, times, scenarios, ONE_LAYOUT))
    rows = tuple(
        LayoutRow(*layout, round(sync.compute_exposed_ms([layout]), 3), round(ms, 3))
        for layout, ms in ranked
    )
    return LayoutChoice(
        None if chosen is None else layout_text(chosen),
        tuple(why),
        rows,
        None if times.static is None else str(times.static[0]),
        None if times.static is None else round(times.static[1], 3),
    )


def _tie_edge(layout: Layout, times: LayoutTimes) -> str:
    """Describe where other batches could decide otherwise between a layout and several together."""
    error = times.standard_error_ms.get(layout, 0.0) / times.several_ms
    behind = times.by_layout[layout] / times.several_ms - 1
    if abs(behind - ONE_LAYOUT) > STANDARD_ERRORS * error:
        return ""
    sampled = (
        f"{percent(behind)} ± {percent(error)}"
        if isfinite(error)
        else f"{percent(behind)} on one batch"
    )
    return (
        f"That is {sampled}, and one layout is taken up to {percent(ONE_LAYOUT)}: other batches "
        "(another seed) may decide otherwise."
    )


def compare_static(choice: LayoutChoice, expected_ms: float) -> str:
    """Compare strategies that take ``expected_ms`` with the best static one."""
    if choice.static is None or choice.static_ms is None:
        return "No static strategy holds the longest sequence."
    gain = choice.static_ms / expected_ms - 1
    if gain <= ONE_LAYOUT:
        least = percent(ONE_LAYOUT)
        return f"Nothing is {least} faster than the static {choice.static}: that will do."
    return (
        f"The best static strategy, {choice.static}, takes {choice.static_ms:,.0f} ms: these are "
        f"{1 + gain:.2f} times as fast."
    )
