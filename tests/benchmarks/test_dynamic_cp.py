"""Megatron's published benchmark of dynamic context parallelism, replayed."""

import numpy as np
import pytest

from benchmarks.analytic_model import PUBLISHED_MS, draw_lengths, pack_in_order, replay


def test_times_are_near_those_published() -> None:
    errors = [error for gpus in PUBLISHED_MS for error in replay(gpus).errors]
    assert np.sqrt(np.mean(np.square(errors))) <= 0.12


def test_lengths_are_long_tailed() -> None:
    lengths = draw_lengths()
    assert (lengths.min(), lengths.max()) == (128, 8192)
    assert np.median(lengths) < 0.5 * lengths.mean()


@pytest.mark.parametrize(
    ("batch", "replicas", "packs"),
    [
        ([4096, 4096, 16], 1, [[4096, 4096], [16]]),
        ([8192, 128, 128], 2, [[8192], [128, 128]]),
        ([128, 128, 128], 2, [[128, 128], [128]]),
    ],
)
def test_packs_are_a_multiple_of_replicas(
    batch: list[int], replicas: int, packs: list[list[int]]
) -> None:
    assert pack_in_order(batch, replicas) == packs
