"""The launcher of multi-rank tests: results in order, failures reported, nothing left behind."""

import multiprocessing
import os
import sys
import time

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks, run_ranks_expecting_failure


def summed(rank: int, world_size: int, offset: int) -> int:
    value = torch.tensor([rank + offset])
    dist.all_reduce(value)
    assert torch.get_num_threads() == 1
    return int(value) * 10 + rank


def failing(rank: int, world_size: int, which: int) -> None:
    if rank == which:
        raise ValueError(f"rank {rank} has had enough")
    dist.barrier()


def all_failing(rank: int, world_size: int) -> None:
    raise KeyError(rank)


def dying(rank: int, world_size: int) -> None:
    os._exit(7)


def sleeping(rank: int, world_size: int) -> None:
    if rank == 1:
        time.sleep(600)


def preloaded(rank: int, world_size: int) -> bool:
    return {"torch._dynamo", "seqplan.runtime.training.run_step"} <= sys.modules.keys()


def test_ranks_find_their_imports() -> None:
    assert run_ranks(preloaded, 2) == [True, True]


def test_results_come_in_rank_order() -> None:
    assert run_ranks(summed, 2, 5) == [110, 111]
    assert not multiprocessing.active_children()


def test_a_failure_is_reported_and_the_others_are_ended() -> None:
    with pytest.raises(AssertionError, match=r"(?s)rank 1 failed:.*rank 1 has had enough"):
        run_ranks(failing, 2, 1)
    assert not multiprocessing.active_children()


def test_expected_failures() -> None:
    assert run_ranks_expecting_failure(all_failing, 2) == ["KeyError: 0", "KeyError: 1"]
    with pytest.raises(AssertionError, match="rank 0 did not fail"):
        run_ranks_expecting_failure(summed, 1, 0)


def test_a_death_and_a_silence_are_reported() -> None:
    with pytest.raises(AssertionError, match="rank 0 died, exit code 7"):
        run_ranks(dying, 1)
    with pytest.raises(AssertionError, match=r"ranks \[1\] are silent after 12 s"):
        run_ranks(sleeping, 2, timeout_s=12)
    assert not multiprocessing.active_children()
