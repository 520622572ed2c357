"""The micro-steps of a step on schemes of one layout, and a bound over all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seqplan.planner.lockstep.bounds.micro_step_bounds import in_stages_ms
from seqplan.planner.lockstep.filling.busy_ranks import Group
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class MicroStep:
    """Groups of one micro-step, largest first, and how long they take at one stage (ms)."""

    groups: tuple[Group, ...]
    time_ms: float


@dataclass(frozen=True)
class MicroSteps:
    """A step's micro-steps of one layout and a proven lower bound over all (ms).

    Groups are of ``classes``, as one stage sees them, whose ``schemes`` they run;
    ``bounded``: the classes of all schemes that the bound holds for; ``ranks``: of a stage.
    """

    classes: tuple[PipelineClass, ...]
    schemes: tuple[Scheme, ...]
    bounded: tuple[PipelineClass, ...]
    ranks: int
    micro_steps: tuple[MicroStep, ...]
    lower_bound_ms: float

    @property
    def stages(self) -> int:
        """Return the stages that the micro-steps go through one after another."""
        return self.schemes[0].pp

    @property
    def objective_ms(self) -> float:
        """Return Σ micro-steps, and (stages − 1) times the longest."""
        return in_stages_ms([micro_step.time_ms for micro_step in self.micro_steps], self.stages)

    def with_bound(self, bound_ms: float) -> MicroSteps:
        """Return these with another lower bound (ms); it differs from them by rounding at least."""
        return replace(self, lower_bound_ms=min(bound_ms, self.objective_ms))
