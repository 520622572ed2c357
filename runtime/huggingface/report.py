"""Report of a step for callbacks."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.runtime.training.run_step import MicroBatchReport


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step's outcome on this rank; ``loss`` and ``gradient_norm`` are the same on every rank.

    ``learning_rates``: of the optimizer's groups, as the step used them; ``predicted_ms``: of this
    rank's pipelines, by the plan; ``measured_ms``: what it spent on their micro-batches, None where
    it had none; ``step_ms``: the whole step; ``micro_batches``: of this rank, if they are counted.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rates: tuple[float, ...]
    predicted_ms: float
    measured_ms: float | None
    step_ms: float
    micro_batches: tuple[MicroBatchReport, ...] = ()
