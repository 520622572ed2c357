"""The plan that a micro-batch is measured under is sound and leaves few ranks idle."""

import pytest

from seqplan.plans.lint import lint
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.bench import make_full_plan


@pytest.mark.parametrize("world_size", [6, 7, 12])
@pytest.mark.parametrize("text", ["tp1", "tp2", "u2", "pp3", "tp2.pp2", "r4", "tp2.u3"])
def test_ranks_are_filled_with_pipelines(text: str, world_size: int) -> None:
    scheme = Scheme.parse(text)
    plan = make_full_plan(scheme, (100, 7, 1), world_size)
    assert not lint(plan, None)
    assert len(plan.idle_ranks) == world_size % scheme.gpus
    for pipeline in plan.pipelines:
        # tp groups are made once, of neighboring ranks from a multiple of their degree on.
        assert pipeline.ranks[0] % scheme.tp == 0
        (batch,) = pipeline.micro_batches
        assert [plan.lengths[position] for position in batch.sequences] == [100, 7, 1]
