"""Sizes chosen and sequences assigned to them: compiled as in Python, down to every bit."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from native_extension import compiled, compute_both

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fill import fill_kernel
from seqplan.planner.placement.fleet import ClassMode, PipelineClass
from seqplan.planner.placement.shapes.assign_shapes import SizedClass, assign_sizes
from seqplan.planner.placement.shapes.change_sizes import change_sizes
from seqplan.planner.placement.shapes.exchange_sized import SizedBatches

MODES = (ClassMode(8e-4, 0.08, 2.0, 900), ClassMode(1e-3, 0.1, 2.0, 1_500))
SIZES = (300, 500, 900, 1_500)
LIMIT_MS = 900.0


def make_case(seed: int) -> tuple[list[SizedClass], Batch, list[list[list[int]]]]:
    """Two classes, one of them with modes, and sequences in turn on five pipelines."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(5.0, 1.0, 70), 1_400).astype(int).tolist()
    of_modes = PipelineClass(1, 1e-3, 0.1, 2.0, 1_500, 8, 1, 2, MODES)
    plain = PipelineClass(1, 2e-3, 0.2, 3.0, 1_500, 1, 1, 1)
    classes = [SizedClass(of_modes, SIZES)] * 3 + [SizedClass(plain, SIZES)] * 2
    placed: list[list[list[int]]] = [[[], []] for _ in classes]
    for i in range(len(lengths)):
        placed[i % 5][i // 5 % 2].append(i)
    return classes, Batch(0, tuple(range(len(lengths))), tuple(lengths)), placed


def fill_all(seed: int) -> list[Any]:
    classes, batch, placed = make_case(seed)
    done: list[Any] = []
    for slack in (1e-3, 0.3):
        done.append(assign_sizes(classes, batch, placed, slack, LIMIT_MS))
    lengths = np.array(batch.lengths)
    for number in (1, 2, 3, 5):
        for limit_ms in (0.0, 700.0, 1e9):
            batches = make_pipeline(classes[0], lengths, number)
            order = np.argsort(-batches.padded[0], kind="stable")
            sizes = (SIZES[0],) * number
            done.append(change_sizes(classes[0], batches, order, 0, sizes, limit_ms))
    return done


def make_pipeline(k: SizedClass, lengths: Any, number: int) -> SizedBatches:
    """One pipeline of equal sizes, far too small, and another for the rest."""
    padded = k.pipeline_class.padded(lengths).astype(np.float64)
    owner = np.arange(len(lengths)) % (4 * number)
    owner = np.where(owner < number, owner, number)
    places = number + 1
    a = np.full(places, MODES[0].a)
    return SizedBatches(
        padded=padded[None],
        squares=lengths.astype(np.float64) ** 2,
        owner=owner,
        pipeline=np.array([0] * number + [1]),
        sizes=np.full(places, float(SIZES[0])),
        tokens=np.bincount(owner, padded, places),
        a=a,
        weight=np.full(places, 2 * MODES[0].b),
        row=np.zeros(2, dtype=np.int64),
        gpus=np.full(2, 2.0),
        largest=np.full(2, float(SIZES[-1])),
        fixed_ms=np.full(2, number * 26.0),
        work_ms=np.array([a[0] * float((lengths[owner < number] ** 2).sum()), 0.0]),
        settled=np.zeros(2, dtype=np.int64),
    )


@compiled
def test_compiled_choices_are_those_of_python() -> None:
    chosen = 0
    for seed in range(4):
        ours, reference = compute_both(partial(fill_all, seed))
        assert ours == reference
        chosen += sum(of is not None for of in ours[2:])
    assert 20 < chosen <= 48


def test_chosen_sizes_hold_the_sequences_with_least_excess() -> None:
    """300 and 500 hold 500 + 300 exactly; the others would have tokens above or padding."""
    k = SizedClass(PipelineClass(1, 0.0, 1.0, 1.0, 1_500, 1, 1, 1), SIZES)
    batches = make_pipeline(k, np.array([300, 500]), 1)
    batches.owner[:], batches.tokens[:], batches.work_ms[:], batches.weight[:] = 0, (800, 0), 0, 2
    changed = change_sizes(k, batches, np.array([1, 0]), 0, (300,), 802.0)
    assert changed == ((500, 300), [[1], [0]])


def test_few_tokens_above_a_size_change_it_if_larger_sizes_are_free() -> None:
    """304 tokens in a size of 300: one of 500 costs more than these 4 tokens."""
    k = SizedClass(PipelineClass(1, 0.0, 1.0, 1.0, 1_500, 1, 1, 1), SIZES)
    batches = make_pipeline(k, np.array([304]), 1)
    batches.work_ms[:] = 0
    order = np.array([0])
    assert change_sizes(k, batches, order, 0, (300,), 900.0) is None
    assert change_sizes(k, batches, order, 0, (300,), 900.0, 0.0) == ((500,), [[0]])


@compiled
def test_arrays_of_choices_that_do_not_agree_are_rejected() -> None:
    k = make_case(0)[0][0]
    choices = k.list_choices(2)
    order = np.arange(5)[::-1].copy()
    ones = np.ones(5)
    arrays = [ones, ones, np.zeros(5, dtype=np.int64), order, choices.places, choices.sums]
    arrays += [choices.fixed_ms, k.tokens, k.a, k.b]
    limits, numbers = (1.0,) * 8, (0, 1, 12)
    wrong = [(3, order + 1), (4, choices.places + 9), (5, choices.sums[1:].copy()), (8, k.a[1:])]
    for place, array in wrong:
        with pytest.raises(ValueError, match="not choices of sizes"):
            fill_kernel.choose_sizes(
                (*arrays[:place], array.copy(), *arrays[place + 1 :]), limits, numbers
            )
    with pytest.raises(ValueError, match="not choices of sizes"):
        fill_kernel.choose_sizes(tuple(arrays), limits, (0, 1, 65))
    rooms = [ones, ones, ones, np.full(5, 1), ones, np.ones(1), np.ones(1), order]
    with pytest.raises(ValueError, match="not micro-batches of sizes"):
        fill_kernel.assign_sized(tuple(rooms), 1.0)
