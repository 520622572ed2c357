"""Placements with stages: exchanged, or made anew with the sizes of ramps."""

import pytest
from instances import fleet
from step_lengths import draw

from seqplan import Batch
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.exchange import exchange_sequences
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.strategies.polishing import ROUGHLY, exchange, polish, polish_stages


@pytest.mark.parametrize("tokens", [100_000, 400_000, 3_000_000])
@pytest.mark.parametrize("pp", [2, 4])
def test_a_placement_with_stages_gets_the_better_sizes(pp: int, tokens: int) -> None:
    """Few sequences fill equal micro-batches better, many those of ramps."""
    batch = Batch.from_lengths(draw(tokens, 3))
    number = max(tokens // 200_000, 1)
    classes = (
        PipelineClass(pp, 3e-6, 0.02, 5.0, 32_768, 1, number, 4),
        PipelineClass(pp, 6e-6, 0.04, 5.0, 16_384, 1, number, 2),
    )
    some = fleet(classes)
    lower_ms = single_bound_ms(classes, batch)
    filling = dispatch(Filler(some, batch), lower_ms)
    assert filling is not None
    even = Placement(some, filling)
    roughly = exchange(batch, even, effort=ROUGHLY)
    ramped = dispatch(Filler(some, batch, ramped=True), lower_ms)
    polished = polish_stages(batch, even)
    assert polished.objective_ms <= min(roughly.objective_ms, ramped.objective_ms) * (1 + 1e-3)
    alone = exchange_sequences(some, batch, filling, lower_ms)
    assert polished.objective_ms <= alone.objective_ms * 1.002
    if tokens == 100_000:
        assert ramped.objective_ms > alone.objective_ms * 1.02
    if tokens == 400_000:
        assert polished.objective_ms < alone.objective_ms * 0.99
    proven, bound_ms = polish(batch, even, prove=True)
    assert proven.filling.bins == polished.filling.bins
    _, cheap_ms = polish(batch, even, prove=False)
    assert lower_ms <= cheap_ms <= bound_ms <= proven.objective_ms
