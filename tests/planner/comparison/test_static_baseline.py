"""One static baseline: proposals and comparisons hold the same rule for it."""

from functools import cache

import numpy as np
import pytest
from settings_made import CODE

from seqplan import Proposal, Scheme, Strategy, Workload, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.comparison.results import Comparison
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.proposal.layout_times import layout_times
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import GivenSyncTimes

CLUSTER = Workload(8, 131_072, 30_000)
LONGEST = 75_000
RARE = np.append(CODE.clip(max=4096), LONGEST)
"""Short sequences, and one that few schemes hold and sampled batches may lack."""


@cache
def both(execution: ExecutionKind) -> tuple[Proposal, Comparison]:
    whole = load_shipped("llama-7b-a800-80gb")
    profile = whole.keep_schemes({scheme for scheme in whole.by_scheme if scheme.pp == 1})
    sync = choose_sync(profile, CLUSTER.gpus)
    proposal = make_proposal(profile, CLUSTER, RARE, sync=sync, execution=execution)
    options = Options(("static",))
    compared = compare(profile, CLUSTER, RARE, 2, sync, options=options, execution=execution)
    return proposal, compared


@pytest.mark.parametrize("execution", ["regroup", "lockstep"])
def test_static_baseline_holds_the_longest_sequence_everywhere(execution: ExecutionKind) -> None:
    proposal, compared = both(execution)
    models = CLUSTER.models(proposal.profile)
    of_proposal = Scheme.parse(proposal.layouts.static.partition("×")[2])
    (static,) = (system for system in compared.systems if system.key == "static")
    ((of_comparison, _),) = static.iterations[0].schemes
    for scheme in (of_proposal, of_comparison):
        assert models[scheme].max_sequence >= LONGEST
    assert of_proposal == of_comparison
    assert any(model.max_sequence < LONGEST for model in models.values())


def test_static_times_count_only_strategies_that_hold_the_longest_sequence() -> None:
    """Also if another homogeneous strategy runs every batch that was drawn, and faster."""
    times = np.array([[5.0, 6.0], [8.0, 9.0], [4.0, 4.0]])
    short, long = (Strategy.from_counts({Scheme(ulysses=u): 8 // u}) for u in (2, 4))
    mixed = Strategy.from_counts({Scheme(ulysses=2): 2, Scheme(ulysses=4): 1})
    sync = GivenSyncTimes(1.0, 1.0, "given", 0.0, 0.0)
    holds = [False, True, True]
    compared = layout_times(times, [short, long, mixed], holds, {}, {}, sync, ())
    assert compared.static == (long, 8.5)
    compared = layout_times(times, [short, long, mixed], [False, False, True], {}, {}, sync, ())
    assert compared.static is None
