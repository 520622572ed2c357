"""Planned bins in NeMo-RL itself, which is not on PyPI: with a checkout on PYTHONPATH."""

from importlib.util import find_spec

import numpy as np
import pytest

from seqplan import Cost
from seqplan.integrations import nemo_rl

pytestmark = pytest.mark.skipif(find_spec("nemo_rl") is None, reason="no nemo_rl on PYTHONPATH")

COST = Cost(2e-6, 0.1, 60.0)
RANKS, CAPACITY = 8, 8192


def lockstep_ms(bins: list[list[int]], lengths: list[int]) -> float:
    """Σ over the bins that run together of the slowest."""
    times = [COST.micro_batch_ms([lengths[i] for i in members]) for members in bins]
    return sum(max(times[first : first + RANKS]) for first in range(0, len(bins), RANKS))


def test_bins_of_a_batch_over_ranks_are_planned() -> None:
    from nemo_rl.data import packing

    nemo_rl.install(COST)
    planned, original = packing.get_packer, packing.get_packer.host_function
    nemo_rl.install(COST)
    assert packing.get_packer.host_function is original
    assert not isinstance(packing.get_packer("concatenative", CAPACITY), nemo_rl.PlannedPacker)
    drawn = np.random.default_rng(0).lognormal(7, 1, 256).astype(int) + 1
    lengths = np.minimum(drawn, CAPACITY).tolist()
    settings = (CAPACITY, False, RANKS, RANKS)
    ours = planned("modified_first_fit_decreasing", *settings).pack(lengths)
    for algorithm in packing.PackingAlgorithm:
        theirs = original(algorithm, *settings).pack(lengths)
        assert len(theirs) % RANKS == 0
        assert lockstep_ms(ours, lengths) <= lockstep_ms(theirs, lengths)
