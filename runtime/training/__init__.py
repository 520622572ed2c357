"""Training steps by plans: the preparation of a step, and the step itself.

Read ``run_step`` first, a whole step; then ``prepare`` (work ahead of it), ``sequence_values`` (a
value for each token, without training), ``averaging`` (of parameters over steps) and ``lost_ranks``
(a job's end if a rank dies).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.training.averaging import (
        ExponentialMovingAverage as ExponentialMovingAverage,
    )
    from seqplan.runtime.training.lost_ranks import watch_ranks as watch_ranks
    from seqplan.runtime.training.run_step import StepResult as StepResult
    from seqplan.runtime.training.sequence_values import SequenceValues as SequenceValues
    from seqplan.runtime.training.sequence_values import token_values as token_values

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, __all__ = lazy_names(__name__, __file__)
