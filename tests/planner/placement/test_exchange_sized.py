"""Exchanges between micro-batches of given sizes: compiled as in Python, down to every bit."""

from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from native_extension import compiled, compute_both

from seqplan.planner.placement.draws import Draws
from seqplan.planner.placement.fill import fill_kernel
from seqplan.planner.placement.shapes.exchange_sized import NOTHING, SizedBatches, exchange_sized


def make_batches(seed: int) -> SizedBatches:
    """Three pipelines of two classes, each with one to three micro-batches of two sizes."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(10, 400, 40).astype(np.float64)
    padded = np.stack([lengths, 8 * np.ceil(lengths / 8)])
    row = np.array([0, 1, 1])
    pipeline = np.repeat(np.arange(3), rng.integers(1, 4, 3))
    places = len(pipeline)
    owner = rng.integers(0, places, len(lengths))
    tokens = np.bincount(owner, padded[row[pipeline[owner]], np.arange(40)], places)
    a = rng.uniform(1e-5, 2e-5, places)
    return SizedBatches(
        padded=padded,
        squares=lengths**2,
        owner=owner,
        pipeline=pipeline,
        sizes=rng.choice([900.0, 1500.0], places),
        tokens=tokens,
        a=a,
        weight=rng.uniform(0.1, 0.2, places),
        row=row,
        gpus=np.array([1.0, 2.0, 2.0]),
        largest=np.full(3, 1500.0),
        fixed_ms=rng.uniform(5.0, 9.0, 3),
        work_ms=np.bincount(pipeline[owner], a[owner] * lengths**2, 3),
        settled=np.zeros(3, dtype=np.int64),
    )


def exchange_all(seed: int) -> list[object]:
    batches, draws = make_batches(seed), Draws()
    limit_ms = float((batches.work_ms + batches.fixed_ms).mean())
    before = sum(batches.compute_excess(p, limit_ms) for p in range(3))
    done: list[object] = []
    for most in (1, 5, 50):
        stuck, made = exchange_sized(batches, limit_ms, most, draws)
        if stuck != NOTHING:
            batches.settled[stuck] = 1
        done += [stuck, made, draws.state]
    assert sum(batches.compute_excess(p, limit_ms) for p in range(3)) < before
    held = batches.padded[batches.row[batches.pipeline[batches.owner]], np.arange(40)]
    assert np.bincount(batches.owner, held, len(batches.sizes)) == pytest.approx(batches.tokens)
    return [*done, *(getattr(batches, field.name).tolist() for field in fields(batches))]


@compiled
def test_compiled_exchanges_are_those_of_python() -> None:
    for seed in range(6):
        ours, reference = compute_both(partial(exchange_all, seed))
        assert ours == reference


@compiled
def test_arrays_that_do_not_agree_are_rejected() -> None:
    arrays = list(vars(make_batches(0)).values())
    limits, numbers = (1.0, 3.0, 1e-9, 1e-7), (10, 10, 10, 1)
    wrong = [
        (2, arrays[2] + 100),
        (3, arrays[3][::-1].copy()),
        (4, arrays[4][:-1].copy()),
        (8, arrays[8] + 2),
        (0, arrays[0][:, :-1].copy()),
    ]
    for place, array in wrong:
        with pytest.raises(ValueError, match="not micro-batches of sizes"):
            fill_kernel.exchange_sized(
                (*arrays[:place], array, *arrays[place + 1 :]), limits, numbers
            )
