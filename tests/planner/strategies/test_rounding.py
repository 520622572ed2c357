"""Integer strategies from fractional pipeline counts."""

import numpy as np
import pytest
from instances import LLAMA_32B

from seqplan.planner.strategies.rounding import round_strategies
from seqplan.plans.scheme import Scheme


@pytest.mark.parametrize("longest", [1000, 20000, 32768])
def test_rounded_strategies_hold_the_longest_sequence_within_the_gpus(longest: int) -> None:
    schemes = sorted(LLAMA_32B)
    pipelines = np.array([11.3 if scheme == Scheme(tp=4) else 0.4 for scheme in schemes])
    strategies = round_strategies(schemes, pipelines, LLAMA_32B, 64, longest)
    assert strategies
    for strategy in strategies:
        assert strategy.gpus <= 64
        assert max(LLAMA_32B[scheme].max_sequence for scheme, _ in strategy.counts) >= longest
