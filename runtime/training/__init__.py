"""Training steps by plans: the preparation of a step, and the step itself.

Read ``run_step`` first, a whole step; then ``prepare`` (work ahead of it), ``sequence_values`` (a
value for each token, without training), ``averaging`` (of parameters over steps) and ``lost_ranks``
(a job's end if a rank dies).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.training.averaging import ExponentialMovingAverage
    from seqplan.runtime.training.lost_ranks import watch_ranks
    from seqplan.runtime.training.run_step import StepResult
    from seqplan.runtime.training.sequence_values import SequenceValues, token_values

_HOMES = {
    "averaging": ("ExponentialMovingAverage",),
    "lost_ranks": ("watch_ranks",),
    "run_step": ("StepResult",),
    "sequence_values": ("SequenceValues", "token_values"),
}

__all__ = [
    "ExponentialMovingAverage",
    "SequenceValues",
    "StepResult",
    "token_values",
    "watch_ranks",
]

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__ = lazy_names(__name__, _HOMES)
