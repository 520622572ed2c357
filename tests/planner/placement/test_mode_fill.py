"""Placement when each micro-batch has the cheapest recomputation mode that holds it."""

from dataclasses import replace

import numpy as np
import pytest
from instances import fleet, random_case_with_modes, time_placed
from oracles.exhaustive import step_optimum

from seqplan import Batch, Scheme
from seqplan.planner.bounds.gpu_time import cheap_bound_ms
from seqplan.planner.placement.assembly import plan_pipeline
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.exchange import exchange_sequences
from seqplan.planner.placement.fill import Filler, Filling
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import ClassMode, PipelineClass
from seqplan.planner.simulation.one_f_one_b import simulate_micro_batches_ms
from seqplan.plans.recomputation import MODES, window_share

LIGHT = ClassMode(a=0.0, b=1.0, c=2.0, capacity=40, name="none", kept_share=1.0)
HEAVY = ClassMode(a=0.0, b=1.4, c=2.0, capacity=400, name="full", kept_share=0.2)


def _class(pp: int = 1, count: int = 2) -> PipelineClass:
    return PipelineClass(
        pp, HEAVY.a, HEAVY.b, HEAVY.c, HEAVY.capacity, 1, count, pp, (LIGHT, HEAVY)
    )


def _check(
    classes: tuple[PipelineClass, ...], batch: Batch, filling: Filling, *, in_order: bool
) -> None:
    """Every sequence is placed once, every micro-batch is held, and times are exact."""
    lengths = batch.distinct.tolist()
    placed = np.zeros(len(lengths), dtype=np.int64)
    for k, pipelines, times in zip(classes, filling.bins, filling.pipeline_ms, strict=True):
        for bins, time in zip(pipelines, times, strict=True):
            for micro in bins:
                for i, n in micro:
                    placed[i] += n
                assert sum(n * k.pad(lengths[i]) for i, n in micro) <= k.capacity
            costs = FillTables.from_batch(batch).find_costs(k)
            assert time_placed(costs, bins, in_order=in_order) == pytest.approx(time)
    assert placed.tolist() == batch.multiplicity.tolist()


@pytest.mark.parametrize("seed", range(60))
def test_dispatch_is_sound_and_near_the_optimum(seed: int) -> None:
    classes, batch = random_case_with_modes(np.random.default_rng(seed))
    optimum = step_optimum(classes, batch)
    if not np.isfinite(optimum):
        return
    whole = fleet(classes)
    filling = dispatch(Filler(whole, batch), cheap_bound_ms(classes, batch))
    assert filling is not None
    exchanged = exchange_sequences(whole, batch, filling, 0.0)
    for placed in (filling, exchanged):
        _check(classes, batch, placed, in_order=placed is exchanged)
    assert optimum / (1 + 1e-9) <= filling.objective_ms
    # Estimates may be too short.
    assert exchanged.objective_ms <= 1.6 * optimum
    assert step_optimum(classes, batch, least=True) / (1 + 1e-9) <= exchanged.objective_ms


def test_short_sequences_do_not_pay_for_the_long_one() -> None:
    """Only the micro-batch of the long sequence recomputes."""
    k = _class(count=1)
    batch = Batch.from_lengths([300, *[20] * 10])
    filling = dispatch(Filler(fleet((k,)), batch), cheap_bound_ms((k,), batch))
    lengths = batch.distinct.tolist()
    ((bins,),) = filling.bins
    modes = [k.choose_mode([lengths[i] for i, n in micro for _ in range(n)]) for micro in bins]
    assert sorted(mode.name or "" for mode in modes) == ["full", *["none"] * 5]
    assert filling.objective_ms == pytest.approx(300 * 1.4 + 200 * 1.0 + 6 * 2.0)


def test_the_cheapest_mode_that_holds_a_micro_batch_is_chosen() -> None:
    k = _class()
    assert k.choose_mode([20, 20]).name == "none"
    assert k.choose_mode([20, 21]).name == "full"
    # More than any mode holds: the one of largest MaxLen, which the invariants then name.
    assert k.choose_mode([500]).name == "full"


def test_micro_batches_in_flight_together_fit_the_memory() -> None:
    """A full one has its whole transient in backward, while light ones keep their share."""
    k = _class(pp=2, count=1)
    batch = Batch.from_lengths([400, 40, 40, 40])
    micro_batches = [[0], [1], [2], [3]]
    pipeline = plan_pipeline(
        Scheme(pp=2), k, (0, 1), micro_batches, batch, {"none": 1 / 3, "full": 1 / 4}
    )
    modes = {mode.name: mode for mode in k.modes}
    parts = [
        (micro.padded_tokens / modes[micro.recompute].capacity, modes[micro.recompute].kept_share)
        for micro in pipeline.micro_batches
    ]
    assert window_share([(1.0, 0.2), (1.0, 1.0)], 2) == pytest.approx(1.4)
    assert all(window_share(parts[j : j + 2], 2) <= 1 for j in range(3))
    assert {micro.recompute for micro in pipeline.micro_batches} == {"none", "full"}
    for micro in pipeline.micro_batches:
        lengths = [batch.lengths[i] for i in micro.sequences]
        assert micro.cost_ms == pytest.approx(modes[micro.recompute].micro_batch_ms(lengths))


@pytest.mark.parametrize("seed", range(30))
def test_a_prediction_is_never_below_its_simulation(seed: int) -> None:
    """With stages forward's share differs by mode, and form S alone may be too short."""
    rng = np.random.default_rng(seed)
    (k, *_), batch = random_case_with_modes(rng)
    names = list(MODES[: len(k.all_modes)])
    modes = tuple(
        replace(mode, name=name, kept_share=float(rng.uniform(0.1, 1)))
        for mode, name in zip(k.all_modes, names, strict=True)
    )
    k = replace(k, pp=3, modes=modes if len(modes) > 1 else (), mode=modes[0].name, unit=1)
    held = [i for i, n in enumerate(batch.lengths) if n <= k.capacity]
    shares = {name: float(rng.uniform(0.2, 0.4)) for name in names}
    pipeline = plan_pipeline(Scheme(pp=3), k, (0, 1, 2), [[i] for i in held], batch, shares)
    simulated = simulate_micro_batches_ms(pipeline.micro_batches, 3, shares)
    if len(modes) > 1:
        assert pipeline.predicted_ms >= simulated - 1e-3


def test_modes_are_chosen_for_micro_batches_as_full_as_stages_leave_them() -> None:
    """A mode of more tokens than a stage has time for saves no overhead, and costs more work."""
    light = ClassMode(a=1.3e-6, b=0.0550, c=24.2, capacity=7768, name="none")
    more = ClassMode(a=1.3e-6, b=0.0558, c=24.2, capacity=11164, name="elementwise")
    full = ClassMode(a=1.6e-6, b=0.0729, c=32.9, capacity=125_780, name="full")
    batch = Batch.from_lengths(np.random.default_rng(0).integers(50, 1000, 300).tolist())

    def place(*modes: ClassMode) -> float:
        k = PipelineClass(2, full.a, full.b, full.c, full.capacity, 4, 1, 8, modes)
        return dispatch(Filler(fleet((k,)), batch), cheap_bound_ms((k,), batch)).objective_ms

    assert place(light, more, full) <= place(light, full) * 1.001
