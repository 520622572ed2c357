"""Which layout a proposal's candidates have, why, and when that would change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.with_exchange import quick_bound_ms
from seqplan.planner.exchange.times import Exchange, Layout, layout_text, layouts_of
from seqplan.planner.placement.fleet import Models, PipelineClass
from seqplan.plans.scheme import Scheme, Strategy

ONE_LAYOUT = 0.01
"""One layout is chosen where several together are not better by more than this share."""

BEHIND_STATIC = 0.001
"""By what share a layout may be slower than the best static strategy to be chosen all the same."""


@dataclass(frozen=True)
class Scenario:
    """Costs other than stated: by how much context parallelism and the exchange take longer."""

    text: str
    context_parallel: float = 1.0
    exchange: float = 1.0


SCENARIOS = (
    Scenario("context parallelism takes 15 % longer", context_parallel=1.15),
    Scenario("context parallelism takes 30 % longer", context_parallel=1.3),
    Scenario("the exchange takes half as long", exchange=0.5),
    Scenario("the exchange takes twice as long", exchange=2.0),
)


@dataclass(frozen=True)
class LayoutRow:
    """What was found of one layout: ``expected_ms`` of its best strategy per batch, with exchange.

    ``exchange_ms``: its part that is not hidden.
    """

    tp: int
    pp: int
    exchange_ms: float
    expected_ms: float


@dataclass(frozen=True)
class LayoutChoice:
    """The layout of all candidates (None: several together) and sentences that say why.

    ``rows``: the layouts that were searched, fastest first; those that a bound proves slower are
    not among them. ``static``: the best homogeneous strategy for all batches and ``static_ms`` its
    expected time; None without one.
    """

    chosen: str | None
    why: tuple[str, ...]
    rows: tuple[LayoutRow, ...]
    static: str | None
    static_ms: float | None


@dataclass(frozen=True)
class LayoutTimes:
    """Mean time over the judged batches, with exchange, of the best strategy per batch (ms).

    ``by_layout``: of one layout alone, those that hold the longest sequence and were not proven
    slower before they were searched; ``several_ms``: of any layouts together; ``static``: the best
    homogeneous strategy for all batches and its time.
    """

    by_layout: Mapping[Layout, float]
    several_ms: float
    static: tuple[Strategy, float] | None


class Scenarios:
    """What layouts would take at other costs, estimated from their bounds.

    A layout's propagation exceeds its bound by as much as what was found of it at the stated costs
    did; where a search was not worth it, by as much as that of the layout which exceeds it least,
    of those with stages or of those without. ``derived``: the schemes whose
    context parallelism nobody has measured; where there are none, its scenarios are left out.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        models: Models,
        gpus: int,
        max_len: int,
        exchange: Exchange,
        derived: Collection[Scheme],
    ) -> None:
        self._batches, self._models, self._gpus = batches, models, gpus
        self._exchange, self._derived = exchange, frozenset(derived)
        uncertain = any(scheme.sp > 1 for scheme in derived)
        self.scenarios = [s for s in SCENARIOS if uncertain or s.context_parallel == 1.0]
        self.layouts = [
            layout
            for layout in sorted(layouts_of(models))
            if max(m.max_sequence for s, m in models.items() if (s.tp, s.pp) == layout) >= max_len
        ]
        self._bounds = {
            (factor, layout): self._bound_ms(factor, layout)
            for factor in {1.0, *(scenario.context_parallel for scenario in self.scenarios)}
            for layout in self.layouts
        }

    def estimates(self, scenario: Scenario, times: LayoutTimes) -> dict[Layout, float]:
        """Estimate the mean time of each layout in a scenario (ms, with exchange)."""
        excess = {
            layout: (ms - self._exchange.exposed_ms([layout])) / self._bounds[1.0, layout]
            for layout, ms in times.by_layout.items()
        }
        return {
            layout: self._bounds[scenario.context_parallel, layout]
            * excess.get(layout, _usual(excess, layout))
            + self._exchange.exposed_ms([layout]) * scenario.exchange
            for layout in self.layouts
        }

    def worst_ratio(self, layout: Layout, times: LayoutTimes) -> float:
        """Return the layout's time over that of the best one, in the scenario where it is worst."""
        worst = 1.0
        for scenario in self.scenarios:
            estimates = self.estimates(scenario, times)
            worst = max(worst, estimates[layout] / min(estimates.values()))
        return worst

    def _bound_ms(self, factor: float, layout: Layout) -> float:
        """Bound the mean propagation of a layout, derived context parallelism dearer (ms)."""
        classes = []
        for scheme, model in sorted(self._models.items()):
            if (scheme.tp, scheme.pp) != layout:
                continue
            pipeline_class = PipelineClass.of(model, 1)
            if scheme.sp > 1 and scheme in self._derived:
                a, b, c = (factor * coefficient for coefficient in (model.a, model.b, model.c))
                pipeline_class = replace(pipeline_class, a=a, b=b, c=c)
            classes.append(pipeline_class)
        bounds = [quick_bound_ms(classes, batch, self._gpus) for batch in self._batches]
        return float(np.mean(bounds))


def _usual(excess: Mapping[Layout, float], layout: Layout) -> float:
    """Return by how much layouts like this one exceed their bound; stages add bubbles."""
    alike = [ratio for other, ratio in excess.items() if (other[1] > 1) == (layout[1] > 1)]
    return min(alike or excess.values(), default=1.0)


def choose_layout(times: LayoutTimes, scenarios: Scenarios) -> Layout | None:
    """Choose the layout for all candidates; None where several together are better.

    One layout wins ties within ``ONE_LAYOUT``; among such, the one that loses least at other costs,
    unless it is behind the best static strategy by more than ``BEHIND_STATIC``.
    """
    limit = times.several_ms * (1 + ONE_LAYOUT)
    near = [layout for layout, ms in sorted(times.by_layout.items()) if ms <= limit]
    if not near:
        return None
    if times.static is not None:
        enough = times.static[1] * (1 + BEHIND_STATIC)
        near = [layout for layout in near if times.by_layout[layout] <= enough] or near
    return min(near, key=lambda layout: (scenarios.worst_ratio(layout, times), layout))


def explain_choice(
    chosen: Layout | None, times: LayoutTimes, scenarios: Scenarios, exchange: Exchange
) -> LayoutChoice:
    """Say which layout was chosen, why, and at which costs another one would be better."""
    ranked = sorted(times.by_layout.items(), key=lambda entry: (entry[1], entry[0]))
    best_ms = times.several_ms if chosen is None else times.by_layout[chosen]
    why = []
    if chosen is None:
        alone = f"the best alone, {layout_text(ranked[0][0])}, takes " if ranked else ""
        more = f"{ranked[0][1] / best_ms - 1:.1%} longer" if ranked else "none runs all batches"
        why.append(f"several layouts, together or in turn: {alone}{more}.")
    else:
        gain = best_ms / times.several_ms - 1
        why.append(
            f"one layout, {layout_text(chosen)}: pipelines differ in Ulysses and ring only; "
            f"several layouts, together or in turn, were found to gain {gain:.1%}."
        )
        if others := [entry for entry in ranked if entry[0] != chosen]:
            layout, other_ms = others[0]
            why.append(f"The next is {layout_text(layout)}, {other_ms / best_ms - 1:+.1%} in time.")
    why.append(against_static(best_ms, times))
    why.append(_flips(chosen, times, scenarios))
    rows = tuple(
        LayoutRow(*layout, round(exchange.exposed_ms([layout]), 3), round(ms, 3))
        for layout, ms in ranked
    )
    return LayoutChoice(
        None if chosen is None else layout_text(chosen),
        tuple(why),
        rows,
        None if times.static is None else str(times.static[0]),
        None if times.static is None else round(times.static[1], 3),
    )


def against_static(best_ms: float, times: LayoutTimes) -> str:
    if times.static is None:
        return "No static strategy runs all batches."
    strategy, static_ms = times.static
    gain = static_ms / best_ms - 1
    if gain <= ONE_LAYOUT:
        return f"Nothing is {ONE_LAYOUT:.0%} faster than the static {strategy}: that will do."
    return (
        f"The best static strategy, {strategy}, takes {static_ms:,.0f} ms: these are "
        f"{1 + gain:.2f} times as fast."
    )


def _flips(chosen: Layout | None, times: LayoutTimes, scenarios: Scenarios) -> str:
    """Say in which scenarios another layout is better, by the estimates."""
    if not scenarios.scenarios or len(scenarios.layouts) < 2:
        return "There is no other layout to choose."
    flips = []
    for scenario in scenarios.scenarios:
        estimates = scenarios.estimates(scenario, times)
        best = min(estimates, key=lambda layout: (estimates[layout], layout))
        nominal = chosen or min(times.by_layout, key=lambda layout: times.by_layout[layout])
        if estimates[best] < estimates[nominal] * (1 - ONE_LAYOUT):
            share = estimates[nominal] / estimates[best] - 1
            flips.append(f"{layout_text(best)} where {scenario.text} (by {share:.1%})")
    if not flips:
        costs = "context parallelism 15 or 30 % dearer, the exchange halved or doubled"
        if len(scenarios.scenarios) < len(SCENARIOS):
            costs = "the exchange halved or doubled"
        return f"The choice stays within {ONE_LAYOUT:.0%} of the best with {costs}."
    return "It would be " + ", ".join(flips) + "."
