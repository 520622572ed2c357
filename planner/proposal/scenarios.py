"""What layouts would take at other costs than stated, and which of them would be chosen then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from seqplan.planner.placement.fleet import Models
from seqplan.planner.sync.times import Layout, layout_text, layouts_of
from seqplan.plans.percent import percent
from seqplan.plans.scheme import Scheme, Strategy


@dataclass(frozen=True)
class Scenario:
    """Costs other than stated: by how much context parallelism and the sync take longer."""

    text: str
    context_parallel: float = 1.0
    sync: float = 1.0


SCENARIOS = (
    Scenario("context parallelism takes 15 % longer", context_parallel=1.15),
    Scenario("context parallelism takes 30 % longer", context_parallel=1.3),
    Scenario("the sync takes half as long", sync=0.5),
    Scenario("the sync takes twice as long", sync=2.0),
)


@dataclass(frozen=True)
class LayoutTimes:
    """Mean time over the evaluated batches, with sync, of the best strategy per batch (ms).

    ``by_layout``: of one layout alone, those that hold the longest sequence and were not proven
    slower before they were searched; ``several_ms``: of any layouts together; ``static``: the best
    homogeneous strategy for all batches and its time. ``exposed_ms``: the part of ``by_layout``
    that is sync; if a layout lacks it, what groups that stay expose. ``standard_error_ms``:
    of ``by_layout`` less ``several_ms``, as other batches of the data would have it.
    """

    by_layout: Mapping[Layout, float]
    several_ms: float
    static: tuple[Strategy, float] | None
    exposed_ms: Mapping[Layout, float] = field(default_factory=dict)
    standard_error_ms: Mapping[Layout, float] = field(default_factory=dict)


class Scenarios:
    """Times of layouts at other costs, estimated from their bounds.

    A layout's forward and backward exceed its bound by as much as its result at the stated costs
    did; if a search was not worth it, by as much as that of the layout which exceeds it least,
    of those with stages or of those without. ``bound_ms``: bounds the mean forward and backward of
    the schemes of one layout; ``exposed_ms``: the part of its sync that is not hidden. ``derived``:
    the schemes whose context parallelism nobody has measured; if there are none, its scenarios
    are left out.
    """

    def __init__(
        self,
        models: Models,
        max_len: int,
        bound_ms: Callable[[Models], float],
        exposed_ms: Callable[[Layout], float],
        derived: Collection[Scheme],
    ) -> None:
        uncertain = any(scheme.sp > 1 for scheme in derived)
        self.scenarios = [s for s in SCENARIOS if uncertain or s.context_parallel == 1.0]
        of_layouts: dict[Layout, Models] = {
            layout: {s: m for s, m in sorted(models.items()) if (s.tp, s.pp) == layout}
            for layout in sorted(layouts_of(models))
        }
        self.layouts = [
            layout
            for layout, of_layout in of_layouts.items()
            if max(model.max_sequence for model in of_layout.values()) >= max_len
        ]
        self._exposed_ms = {layout: exposed_ms(layout) for layout in self.layouts}
        self._bounds = {
            (factor, layout): bound_ms(
                _raise_cp_costs(of_layouts[layout], factor, frozenset(derived))
            )
            for factor in {1.0, *(scenario.context_parallel for scenario in self.scenarios)}
            for layout in self.layouts
        }

    def estimates(self, scenario: Scenario, times: LayoutTimes) -> dict[Layout, float]:
        """Estimate the mean time of each layout in a scenario (ms, with sync)."""
        exposed_ms = {**self._exposed_ms, **times.exposed_ms}
        excess = {
            layout: (ms - exposed_ms[layout]) / self._bounds[1.0, layout]
            for layout, ms in times.by_layout.items()
        }
        return {
            layout: self._bounds[scenario.context_parallel, layout]
            * excess.get(layout, _usual(excess, layout))
            + exposed_ms[layout] * scenario.sync
            for layout in self.layouts
        }

    def worst_ratio(self, layout: Layout, times: LayoutTimes) -> float:
        """Return the most, over scenarios, of the layout's time over the best one's."""
        worst = 1.0
        for scenario in self.scenarios:
            estimates = self.estimates(scenario, times)
            worst = max(worst, estimates[layout] / min(estimates.values()))
        return worst


def flips(chosen: Layout | None, times: LayoutTimes, scenarios: Scenarios, tie: float) -> str:
    """Describe in which scenarios another layout is better by more than the share ``tie``."""
    if not scenarios.scenarios or len(scenarios.layouts) < 2:
        return "There is no other layout to choose."
    better = []
    nominal = chosen or min(times.by_layout, key=lambda layout: times.by_layout[layout])
    for scenario in scenarios.scenarios:
        estimates = scenarios.estimates(scenario, times)
        best = min(estimates, key=lambda layout: (estimates[layout], layout))
        if estimates[best] < estimates[nominal] * (1 - tie):
            share = estimates[nominal] / estimates[best] - 1
            better.append(f"{layout_text(best)} where {scenario.text} (by {percent(share)})")
    if not better:
        costs = "context parallelism 15 or 30 % more expensive, the sync halved or doubled"
        if len(scenarios.scenarios) < len(SCENARIOS):
            costs = "the sync halved or doubled"
        return f"The choice stays within {percent(tie)} of the best with {costs}."
    return "It would be " + ", ".join(better) + "."


def _raise_cp_costs(models: Models, factor: float, derived: frozenset[Scheme]) -> Models:
    """Make derived schemes with context parallelism slower by a factor."""
    if factor == 1.0:
        return models
    return {
        scheme: replace(
            model,
            latency=model.latency.scale(factor),
            modes=tuple(replace(mode, latency=mode.latency.scale(factor)) for mode in model.modes),
        )
        if scheme.sp > 1 and scheme in derived
        else model
        for scheme, model in models.items()
    }


def _usual(excess: Mapping[Layout, float], layout: Layout) -> float:
    """Return by how much layouts like this one exceed their bound; stages add bubbles."""
    similar = [ratio for other, ratio in excess.items() if (other[1] > 1) == (layout[1] > 1)]
    return min(similar or excess.values(), default=1.0)
