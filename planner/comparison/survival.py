"""What stays of our gain over the best static strategy if the profile's costs are off."""

from __future__ import annotations

from dataclasses import dataclass, field

from seqplan.costs.cost_errors import list_corners
from seqplan.costs.profile import Profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import Models
from seqplan.planner.placement.recost import simulate_at_costs_ms
from seqplan.planner.simulation.iteration import Execution, Iteration
from seqplan.planner.systems.setting import Setting

ERROR = 0.1
"""Share by which a, b and c are off, one at a time, if plans are robust against none."""

OURS, STATIC = "ours", "static"


@dataclass(frozen=True)
class Survival:
    """Times at other costs: of our plans and of the best static strategy.

    Plans stay as they were made. ``models``: by key of the system, at each error of the costs.
    """

    names: tuple[str, ...]
    models: dict[str, tuple[Models, ...]]
    fractions: dict[str, float | dict[str, float]]
    totals: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def start(cls, setting: Setting, profile: Profile, error: float) -> Survival:
        """Prepare for our plans with ``profile`` and the other system with the setting's."""
        corners = list_corners(error)
        profiles = {OURS: profile, STATIC: setting.profile}
        return cls(
            tuple(corner.name for corner in corners),
            {
                key: tuple(setting.workload.models(corner.apply(of)) for corner in corners)
                for key, of in profiles.items()
            },
            {key: of.forward_fraction for key, of in profiles.items()},
        )

    def add(self, key: str, batch: Batch, execution: Execution, iteration: Iteration) -> None:
        """Add a step of a system; of other systems nothing."""
        if key not in self.models:
            return
        apart = iteration.total_ms - iteration.compute_ms
        times = [iteration.total_ms]
        for models in self.models[key]:
            times.append(
                apart
                + sum(
                    simulate_at_costs_ms(
                        phase,
                        batch.lengths,
                        models,
                        self.fractions[key],
                        execution.expert_parallel,
                    )
                    for phase in execution.phases
                )
            )
        known = self.totals.setdefault(key, [0.0] * len(times))
        self.totals[key] = [total + ms for total, ms in zip(known, times, strict=True)]

    def list_gains(self) -> tuple[tuple[str, float], ...]:
        """List the gain over the static strategy by error of the costs; empty without one."""
        if not {OURS, STATIC} <= set(self.totals):
            return ()
        pairs = zip(self.totals[STATIC], self.totals[OURS], strict=True)
        gains = [static / ours - 1 for static, ours in pairs]
        return tuple(zip(("the profile's costs", *self.names), gains, strict=True))
