"""The cheap bounds of many strategies for one batch, on ranks of equal speed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import single_bound_ms, weigh_work_ms
from seqplan.planner.placement.fleet import Floats, Models, PipelineClass
from seqplan.plans.scheme import Scheme, Strategy


@dataclass
class StrategyBounds:
    """Bounds of strategies of ``models``: what depends on a scheme alone is computed once."""

    batch: Batch
    models: Models
    _of_scheme: dict[Scheme, tuple[float, Floats]] = field(default_factory=dict)

    def bound_ms(self, strategy: Strategy) -> float:
        """Bound the step on a strategy (ms), as ``cheap_bound_ms``; inf if it is too long."""
        known = [self._compute(scheme) for scheme, _ in strategy.counts]
        single_ms = min(single for single, _ in known)
        if single_ms == np.inf:
            return single_ms
        counts = [count for _, count in strategy.counts]
        return max(single_ms, weigh_work_ms(np.stack([w for _, w in known]), counts, self.batch))

    def _compute(self, scheme: Scheme) -> tuple[float, Floats]:
        """Compute the longest sequence's time alone (ms), and the work of each length."""
        if scheme not in self._of_scheme:
            of_one = PipelineClass.from_model(self.models[scheme], 1)
            work = of_one.work_with_overhead_ms(self.batch.distinct)
            self._of_scheme[scheme] = single_bound_ms([of_one], self.batch), work
        return self._of_scheme[scheme]
