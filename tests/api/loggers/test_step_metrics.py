"""The record of a step: shares and rates follow from the plan and the measured times."""

from dataclasses import replace

import pytest
from plan_builder import pipeline as pipeline_of
from plan_builder import plan_of
from planned_files import PlannedFiles

from seqplan import Plan, Planner, Scheme, find_profile, read_plans
from seqplan.api.loggers.step_metrics import StepMetrics
from seqplan.planner.simulation.flops import model_flops, peak_flops
from seqplan.plans.plan import MicroBatch


def busy_ms(plan: Plan) -> dict[int, float]:
    """Predicted times (ms) of the micro-batches of each rank with work."""
    times: dict[int, float] = {}
    for pipeline in plan.pipelines:
        for batch in pipeline.micro_batches:
            for rank in pipeline.ranks:
                times[rank] = times.get(rank, 0.0) + batch.cost_ms
    return times


@pytest.mark.parametrize("kind", ["dense", "lockstep"])
def test_a_slower_step_has_lower_rates(kind: str, request: pytest.FixtureRequest) -> None:
    files: PlannedFiles = request.getfixturevalue(kind)
    plan = next(iter(read_plans(files.plans)))
    profile = find_profile(files.profile)
    times = busy_ms(plan)
    slowest = 1.25 * max(times.values())
    record = StepMetrics.from_plan(
        plan, profile=profile, measured_ms=slowest, ranks_measured=len(times)
    )
    assert record.error == pytest.approx(0.25)
    seconds = (1.25 * plan.predicted_ms + (plan.sync_ms or 0.0)) / 1000
    assert record.tokens_per_s == pytest.approx(plan.tokens / seconds)
    assert record.tokens_per_s < record.predicted_tokens_per_s
    flops, peak = model_flops(profile.shape, plan.lengths), peak_flops(profile)
    if flops is None or peak is None:
        assert record.mfu is None
        return
    assert record.predicted_mfu is not None
    assert record.mfu * peak * plan.world_size * seconds == pytest.approx(flops)
    assert 0 < record.mfu < record.predicted_mfu < 1


def test_predictions_include_the_slowdown_of_ranks() -> None:
    slowdown = [1.0] * 7 + [1.5]
    planner = Planner.from_profile("llama3-8b-h100-80gb", 8, 8_192, sync=None, slowdown=slowdown)
    plan = planner.plan([4_000, 900] * 16)
    slowest = max(busy_ms(plan).values())
    record = StepMetrics.from_plan(plan, measured_ms=slowest, ranks_measured=8)
    assert record.error == pytest.approx(0.0)


def test_measured_times_of_stages_include_the_waits_for_the_others() -> None:
    profile = find_profile("llama-7b-a800-80gb")
    planner = Planner.from_profile(profile, 16, 16_384, layout="tp2.pp2")
    plan = planner.plan([4_000, 900, 6_000] * 4)
    assert plan.predicted_ms > 1.05 * max(busy_ms(plan).values())
    record = StepMetrics.from_plan(
        plan, profile=profile, measured_ms=plan.predicted_ms, ranks_measured=16
    )
    assert record.error == pytest.approx(0.0, abs=1e-6)
    assert record.tokens_per_s == pytest.approx(record.predicted_tokens_per_s)
    assert record.mfu == pytest.approx(record.predicted_mfu)


def test_pipelines_that_share_experts_are_compared_with_their_component() -> None:
    shared = [MicroBatch((0,), 8, 8, 14.0, shared_ms=4.0), MicroBatch((1,), 8, 8, 11.0, None, 8.0)]
    pipelines = tuple(pipeline_of(Scheme(), (rank,), batch) for rank, batch in enumerate(shared))
    plan = plan_of(pipelines, (8, 8), 16.0, expert_parallel=2)
    record = StepMetrics.from_plan(plan, measured_ms=16.0, ranks_measured=2)
    assert record.error == 0
    assert record.tokens_per_s == record.predicted_tokens_per_s


def test_lost_ranks_have_no_part_in_the_peak() -> None:
    slowdown = [1.0] * 5 + [None] * 3
    planner = Planner.from_profile("llama3-8b-h100-80gb", 8, 8_192, sync=None, slowdown=slowdown)
    record = StepMetrics.from_plan(
        planner.plan([4_000, 900] * 16), profile=find_profile("llama3-8b-h100-80gb")
    )
    assert record.predicted_mfu is not None
    assert record.predicted_mfu > 0.35


def test_attention_counts_by_the_square_of_each_length(dense: PlannedFiles) -> None:
    plan = next(iter(read_plans(dense.plans)))
    profile = find_profile(dense.profile)
    one = replace(plan, lengths=(plan.tokens,))
    shares = [StepMetrics.from_plan(which, profile=profile).predicted_mfu for which in (plan, one)]
    assert shares[1] > shares[0]


def test_shares_are_those_of_the_micro_batches(lockstep: PlannedFiles) -> None:
    for plan in read_plans(lockstep.plans):
        record = StepMetrics.from_plan(plan)
        padded = sum(b.padded_tokens for p in plan.pipelines for b in p.micro_batches)
        assert record.padding == pytest.approx((padded - plan.tokens) / padded)
        assert record.imbalance >= 0
        modes = {b.recompute for p in plan.pipelines for b in p.micro_batches} - {None}
        assert set(record.recomputation) == modes
        assert sum(record.recomputation.values()) == pytest.approx(1 if modes else 0)


def test_a_partly_measured_step_has_no_measured_rate(dense: PlannedFiles) -> None:
    plan = next(iter(read_plans(dense.plans)))
    record = StepMetrics.from_plan(plan, measured_ms=100.0, ranks_measured=1)
    assert record.measured_ms == 100.0
    assert record.error is None
    assert record.tokens_per_s is None
    assert "mfu" not in record.scalars()
    assert record.predicted_mfu is None
