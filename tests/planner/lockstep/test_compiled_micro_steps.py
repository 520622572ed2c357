"""Micro-steps filled by the native extension are those that Python fills."""

from functools import partial

import numpy as np
import pytest
from instances import add_modes, batch_of
from native_extension import compiled, compute_both, measure_growth

from seqplan.planner.lockstep.bounds.micro_step_bounds import Sequences
from seqplan.planner.lockstep.filling.filler import Begun, MicroStepsFiller
from seqplan.planner.lockstep.filling.search import common_target, improve_targets
from seqplan.planner.lockstep.filling.two_micro_steps import TwoMicroSteps
from seqplan.planner.placement.fill import fill_kernel
from seqplan.planner.placement.fleet import PipelineClass


def make_filler(seed: int, *, one_each: bool = False) -> MicroStepsFiller:
    """Groups of 8, 4, 2 and 1 ranks, some with modes, for long-tailed lengths."""
    rng = np.random.default_rng(seed)
    batch = batch_of(seed, int(rng.integers(20, 100)))
    classes = []
    for gpus in (8, 4, 2, 1):
        capacity = int(batch.longest * gpus * rng.uniform(0.15, 0.4))
        capacity = max(capacity, batch.longest) if gpus == 8 else capacity
        a, b = float(rng.choice([0.0, 1e-6])) / gpus, 0.01 / gpus
        k = PipelineClass(1, a, b, float(rng.choice([0.0, 2.0])), capacity, gpus, 1, gpus)
        classes.append(add_modes(k, rng) if rng.random() < 0.4 else k)
    sequences = Sequences(batch.distinct, batch.multiplicity)
    return MicroStepsFiller(classes, sequences, int(rng.choice([8, 16])), one_each=one_each)


def describe(begun: Begun) -> object:
    """Everything of filled micro-steps, with every bit of their times."""
    times = [time.hex() for time in begun.filled.times_ms]
    return begun.filled.bins(), times, begun.counts.tolist()


def fill_all(seed: int, *, one_each: bool) -> list[object]:
    filler, rng = make_filler(seed, one_each=one_each), np.random.default_rng(seed)
    least_ms = filler.area_ms / 4
    filled: list[object] = []
    for number in (1, 3, 8):
        targets = (least_ms * rng.uniform(0.05, 2.0, number)).tolist()
        begun = filler.begin(targets)
        filled += [describe(begun), describe(filler.begin(targets, begun))]
        whole = filler.fill([10 * least_ms], begun)
        filled.append(None if whole is None else (whole.bins(), whole.times_ms))
    least_waste = filler.fill_with_least_waste()
    filled.append(None if least_waste is None else least_waste.bins())
    start = common_target(filler, 4, 0.0)
    filled.append(
        None if start is None else improve_targets(filler, start, 0.0, 60, in_common=True).bins()
    )
    two = TwoMicroSteps(filler.classes, filler.sequences, filler.ranks, one_each=one_each)
    together = two.search(6 * least_ms)
    filled.append(None if together is None else (together.bins(), together.times_ms))
    return filled


@compiled
@pytest.mark.parametrize("one_each", [False, True])
def test_compiled_micro_steps_are_those_of_python(one_each: bool) -> None:
    for seed in range(8):
        ours, reference = compute_both(partial(fill_all, seed, one_each=one_each))
        assert ours == reference


@compiled
def test_bad_arguments_are_rejected() -> None:
    filler = make_filler(1)
    classes, counts = filler._compiled.args[0], filler.sequences.counts
    targets, alone, number = np.array([5.0]), filler._alone, (1, np.array([]))
    assert fill_kernel.fill_micro_steps(classes, 8, counts.copy(), targets, alone, *number)[0]
    short = counts[:-1].copy()
    for arguments, message in [
        (((), 8, counts.copy(), targets, alone), "no classes"),
        ((((classes[0][0], 0),), 8, counts.copy(), targets, alone), "must have ranks"),
        ((classes, 8, short, targets, alone[:-1].copy()), "costs of all lengths"),
        ((classes, 8, short, targets, alone), "one size"),
        ((classes, -1, counts.copy(), targets, alone), "one size"),
        ((classes, 8, -1 - counts, targets, alone), "in range"),
        ((classes, 8, counts.copy(), np.array([np.nan]), alone), "in range"),
        ((classes, 8, counts.copy(), targets, alone * np.inf), "in range"),
        ((((object(), 1),), 8, counts.copy(), targets, alone), "Capsule"),
    ]:
        with pytest.raises(ValueError, match=message):
            fill_kernel.fill_micro_steps(*arguments, *number)  # type: ignore[arg-type]
    two = np.array([5.0, 5.0])
    for of_both, shares in [(targets, np.zeros(4)), (two, np.zeros(3)), (two, np.full(4, 1.1))]:
        with pytest.raises(ValueError, match="in range"):
            fill_kernel.fill_micro_steps(classes, 8, counts.copy(), of_both, alone, 1, shares)


@compiled
def test_they_keep_no_memory() -> None:
    filler = make_filler(2)
    assert measure_growth(filler.fill_with_least_waste, 30) < 20_000
