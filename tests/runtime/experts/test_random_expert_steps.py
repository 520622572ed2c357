"""A thousand random steps with split experts, recorded on ranks and replayed."""

import os

import pytest
from expert_runs import RoutedCase
from nccl_rules import Trace, recorded, replay
from ranks import run_ranks
from staged_runs import sequence_parallel, staged

RUNS = {
    "module, E 2": (sequence_parallel, RoutedCase(4, 11, expert_parallel=2, steps=250)),
    "module, E 4, each micro-batch": (
        sequence_parallel,
        RoutedCase(4, 12, expert_parallel=4, steps=250, reduce="micro-batch"),
    ),
    "tp, E 2, modes": (
        staged,
        RoutedCase(4, 13, expert_parallel=2, steps=250, tensor=True, modes=True),
    ),
    "tp, E 4": (staged, RoutedCase(4, 14, expert_parallel=4, steps=250, tensor=True)),
}


def _trace(rank: int, world_size: int, name: str) -> Trace:
    run, case = RUNS[name]
    trace = Trace(rank)
    with recorded(trace):
        run(rank, world_size, case)
    return trace


@pytest.mark.skipif("SEQPLAN_LONG" not in os.environ, reason="takes minutes: SEQPLAN_LONG=1")
@pytest.mark.parametrize("name", RUNS)
def test_every_random_step_comes_to_its_end(name: str) -> None:
    """With one exchange at a time, and with a queue for each group."""
    traces = run_ranks(_trace, 4, name, timeout_s=300)
    for one_queue in (False, True):
        assert replay(traces, one_queue=one_queue) is None
