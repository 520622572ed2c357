"""slime's schedule, planned: its invariants, its steps, and fallbacks to slime."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seqplan import Cost
from seqplan.integrations.slime import Schedule, figures, plan_schedule

COST = Cost(2e-6, 0.1, 60.0)


def parallel(ranks: int, degree: int = 1, stages: int = 1, group: int = 1) -> dict[str, int]:
    return {
        "dp_size": ranks,
        "cp_size": degree,
        "vpp_size": stages,
        "microbatch_group_size_per_vp_stage": group,
    }


def arguments(tokens: int, dynamic: bool = True) -> SimpleNamespace:
    return SimpleNamespace(use_dynamic_batch_size=dynamic, max_tokens_per_gpu=tokens)


def check(schedule: Schedule, lengths: list[int], ranks: int, capacity: int, size: int) -> None:
    """Equal counts, places that tile each rank's samples, tokens, and every sample once a step."""
    partitions, places, counts, sizes = schedule
    assert sizes == [size] * len(counts)
    for partition, of_rank in zip(partitions, places, strict=True):
        assert len(of_rank) == sum(counts)
        assert [i for micro in of_rank for i in micro] == list(range(len(partition)))
        for micro in of_rank:
            assert micro
            assert sum(lengths[partition[i]] for i in micro) <= capacity
    assert len(partitions) == ranks


@settings(max_examples=67)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=2, max_size=60),
    ranks=st.sampled_from([1, 2, 4]),
    degree=st.sampled_from([1, 2]),
    group=st.integers(1, 2),
    rollouts=st.integers(1, 3),
    room=st.integers(0, 300),
)
def test_the_hosts_invariants(
    lengths: list[int], ranks: int, degree: int, group: int, rollouts: int, room: int
) -> None:
    of_samples = [i // rollouts for i in range(len(lengths))]
    size = max(1, (of_samples[-1] + 1) // 2)
    tokens = -(-max(lengths) // degree) + room
    try:
        schedule = plan_schedule(
            arguments(tokens),
            parallel(ranks, degree, 2, group),
            lengths,
            COST,
            global_batch_size=size,
            rollout_indices=of_samples,
        )
    except ValueError as error:
        assume("too few" in str(error))
        return
    check(schedule, lengths, ranks, tokens * degree, size)
    partitions, _, counts, _ = schedule
    assert all(count % group == 0 for count in counts)
    scheduled = [i for i, rollout in enumerate(of_samples) if rollout < size * len(counts)]
    assert sorted(i for members in partitions for i in members) == scheduled


def test_a_step_has_its_rollouts_only() -> None:
    lengths = np.random.default_rng(0).integers(100, 4_000, 64).tolist()
    partitions, places, counts, _ = plan_schedule(
        arguments(8_192),
        parallel(4),
        lengths,
        COST,
        global_batch_size=16,
        rollout_indices=[i // 2 for i in range(64)],
    )
    assert len(counts) == 2
    for partition, of_rank in zip(partitions, places, strict=True):
        first = [partition[i] for micro in of_rank[: counts[0]] for i in micro]
        assert max(first) < 32 <= min(set(partition) - set(first))
    assert figures["gap"] < 0.05


def test_unplanned_steps_are_named() -> None:
    def message_of(args: SimpleNamespace, lengths: list[int], size: int = 4) -> str:
        with pytest.raises(ValueError, match=r".") as raised:
            plan_schedule(
                args,
                parallel(2),
                lengths,
                COST,
                global_batch_size=size,
                rollout_indices=list(range(len(lengths))),
            )
        return str(raised.value)

    assert "fixed number of samples" in message_of(arguments(100, dynamic=False), [10] * 4)
    assert "a micro-batch holds 100" in message_of(arguments(100), [10, 10, 10, 101])
    assert "3 rollouts for steps of 4" in message_of(arguments(100), [10] * 3)
    assert "too few for 2 ranks" in message_of(arguments(100), [10], 1)
