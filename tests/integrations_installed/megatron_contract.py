"""What Megatron demands of a schedule, and the time that it takes."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from seqplan import Cost

CODE = np.load(Path(__file__).parents[2] / "examples" / "data" / "code.npy")
COST = Cost(2e-6, 0.1, 60.0)
CAPACITY = 8_192


def drawn(sequences: int, seed: int = 0, longest: int = 32_768) -> list[int]:
    """Lengths of source files."""
    return np.minimum(np.random.default_rng(seed).choice(CODE, sequences), longest).tolist()


def members(of_ranks: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """Ranks by the samples that they share, in a micro-batch."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, ids in enumerate(of_ranks):
        groups.setdefault(tuple(ids), []).append(rank)
    return groups


def check(
    micro_batches: Sequence[Sequence[Sequence[int]]],
    lengths: Sequence[int],
    ranks: int,
    *,
    one_each: bool = False,
    least: int = 1,
    formed: Collection[int] = (),
) -> None:
    """Each sample once, no rank without, groups in one piece and aligned, tokens within ranks."""
    samples: list[int] = []
    for of_ranks in micro_batches:
        assert len(of_ranks) == ranks
        for ids, group in members(of_ranks).items():
            assert ids
            samples += ids
            size = len(group)
            assert group == list(range(group[0], group[0] + size))
            assert group[0] % size == 0
            power = size & (size - 1) == 0 and size >= least
            assert size in formed or size == ranks or power
            tokens = [lengths[i] for i in ids]
            assert (max(tokens) if one_each else sum(tokens)) <= CAPACITY * size
    assert sorted(samples) == list(range(len(lengths)))


def time_ms(
    micro_batches: Sequence[Sequence[Sequence[int]]],
    lengths: Sequence[int],
    costs: Mapping[int, Cost],
    *,
    one_each: bool = False,
) -> float:
    """Σ over micro-batches of the slowest group; ``one_each``: of its samples one after another.

    With ``one_each`` a rank may have samples on groups of different sizes.
    """
    total = 0.0
    for of_ranks in micro_batches:
        if one_each:
            sizes: dict[int, int] = {}
            for ids in of_ranks:
                for i in ids:
                    sizes[i] = sizes.get(i, 0) + 1
            total += max(
                sum(costs[sizes[i]].micro_batch_ms([lengths[i]]) for i in ids) for ids in of_ranks
            )
        else:
            total += max(
                costs[len(ranks)].micro_batch_ms([lengths[i] for i in ids])
                for ids, ranks in members(of_ranks).items()
            )
    return total
