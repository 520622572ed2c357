"""The list-order schedule: waiting for the last rank, micro-steps, slack."""

from dataclasses import replace

from hypothesis import given
from plan_builder import pipeline as pipeline_of
from plan_builder import plan_of
from plan_strategies import plans

from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline
from seqplan.plans.schedule import (
    list_idle_ranks,
    makespan_ms,
    predict_rank_times,
    schedule,
    stages_of_micro_steps,
)
from seqplan.plans.scheme import Scheme


def busy(ranks: tuple[int, ...], time_ms: float, round: int | None = None) -> PlannedPipeline:
    return PlannedPipeline(Scheme(ulysses=len(ranks)), ranks, (), time_ms, round)


def test_a_pipeline_waits_for_its_last_rank() -> None:
    times = schedule([busy((0,), 3.0), busy((1,), 5.0), busy((0, 1), 2.0), busy((2,), 1.0)])
    assert times.start_ms == (0.0, 0.0, 5.0, 0.0)
    assert times.end_ms == (3.0, 5.0, 7.0, 1.0)
    assert times.slack_ms == (2.0, 0.0, 0.0, 6.0)
    assert times.makespan_ms == 7.0


def test_micro_steps_wait_for_the_whole_world() -> None:
    times = schedule([busy((0,), 3.0, 0), busy((1,), 5.0, 0), busy((0,), 2.0, 1)])
    assert times.start_ms == (0.0, 0.0, 5.0)
    assert times.slack_ms == (2.0, 0.0, 0.0)
    assert times.makespan_ms == 7.0


def test_micro_steps_with_stages_follow_each_other_through_them() -> None:
    scheme = Scheme(pp=2)

    def on(first: int, time_ms: float, round: int) -> PlannedPipeline:
        return PlannedPipeline(scheme, (first, first + 2), (), time_ms, round)

    times = schedule([on(0, 4.0, 0), on(1, 10.0, 0), on(0, 6.0, 1), on(1, 2.0, 1)])
    # At a stage the micro-steps last 5 and 3 ms, and the drain 5.
    assert times.makespan_ms == 13.0
    assert times.start_ms == (0.0, 0.0, 5.0, 5.0)
    assert times.slack_ms == (6.0, 0.0, 0.0, 4.0)


def test_durations_may_be_others() -> None:
    assert schedule([busy((0,), 3.0), busy((0,), 3.0)], [1.0, 1.5]).makespan_ms == 2.5


def micro(time_ms: float) -> MicroBatch:
    return MicroBatch((), 0, 0, time_ms)


def test_ranks_with_stages_measure_the_waits_for_the_others() -> None:
    staged = pipeline_of(Scheme(pp=2), (0, 1), micro(3.0), micro(5.0))
    alone = pipeline_of(Scheme(), (2,), micro(3.0), micro(5.0))
    plan = plan_of((staged, alone, pipeline_of(Scheme(), (3,))), (1,), 13.0, world_size=5)
    assert predict_rank_times(plan) == {0: 13.0, 1: 13.0, 2: 8.0}
    assert list_idle_ranks(plan) == (3, 4)


def test_ranks_without_stages_measure_computing_alone() -> None:
    first, second = pipeline_of(Scheme(), (0,), micro(3.0)), pipeline_of(Scheme(), (1,), micro(5.0))
    together = pipeline_of(Scheme(ulysses=2), (0, 1), micro(2.0))
    plan = plan_of((first, second, together), (1,), 7.0)
    assert predict_rank_times(plan) == {0: 5.0, 1: 7.0}
    in_lockstep = tuple(
        replace(each, micro_step=step) for each, step in zip(plan.pipelines, (0, 0, 1), strict=True)
    )
    assert predict_rank_times(replace(plan, pipelines=in_lockstep)) == {0: 5.0, 1: 7.0}


def test_ranks_measure_micro_steps_through_stages_as_a_whole() -> None:
    scheme = Scheme(pp=2)
    groups = [
        pipeline_of(scheme, (first, first + 2), micro(time_ms), micro_step=step)
        for first, time_ms, step in ((0, 2.0, 0), (1, 5.0, 0), (0, 3.0, 1), (1, 1.0, 1))
    ]
    plan = plan_of(tuple(groups), (1,), 13.0)
    assert makespan_ms(plan) == 13.0
    assert predict_rank_times(plan) == dict.fromkeys(range(4), 13.0)


def test_nothing_takes_no_time() -> None:
    assert schedule([]).makespan_ms == 0.0


@given(plans())
def test_slack_is_the_delay_a_pipeline_can_take(plan: Plan) -> None:
    times = schedule(plan.pipelines)
    end = times.makespan_ms
    assert makespan_ms(plan) == end
    assert end == max(times.end_ms, default=0.0)
    for index, pipeline in enumerate(plan.pipelines):
        assert times.slack_ms[index] >= -1e-6
        for more, later in ((0.0, False), (1.0, True)):
            slower = replace(pipeline, predicted_ms=times.slack_ms[index] + more)
            slower = replace(slower, predicted_ms=slower.predicted_ms + pipeline.predicted_ms)
            changed = [*plan.pipelines[:index], slower, *plan.pipelines[index + 1 :]]
            # A micro-step that goes through stages may last longer at one than it binds the step.
            least = end + more / stages_of_micro_steps(plan.pipelines) if later else end
            latest = end + more if later else end
            assert least - 1e-6 <= schedule(changed).makespan_ms <= latest + 1e-6
