"""Expert parallelism in plans: components, their micro-steps, their time, and one order for all."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_builder import plan_of
from plan_strategies import Cost

from seqplan import Plan, Scheme, construct_plan, explain, from_json, rank_view, to_json
from seqplan.plans.experts import ExpertSchedule, expert_group, expert_replicas, holds_whole_blocks
from seqplan.plans.format.codec import PlanError
from seqplan.plans.groups import process_groups
from seqplan.plans.lint import lint
from seqplan.plans.plan import MicroBatch, PlannedPipeline
from seqplan.plans.schedule import predict_rank_times, schedule
from seqplan.plans.views.collectives import collectives
from seqplan.plans.views.decode_view import decode_view
from seqplan.plans.views.rank_view import rank_views, views_json


def pipeline(first: int, width: int, *works: tuple[float, float]) -> PlannedPipeline:
    """A Ulysses group from rank ``first`` on; ``works``: local and shared ms of micro-batches."""
    batches = tuple(
        MicroBatch((), 0, 0, local + shared, shared_ms=shared) for local, shared in works
    )
    return PlannedPipeline(
        Scheme(ulysses=width),
        tuple(range(first, first + width)),
        batches,
        sum(sum(work) for work in works),
    )


def test_time_of_a_coupled_component_by_hand() -> None:
    """Each micro-step takes the slowest block: its longest local work and its mean shared work."""
    pipelines = [
        pipeline(0, 1, (10.0, 4.0), (1.0, 2.0)),
        pipeline(1, 1, (3.0, 8.0)),
        pipeline(2, 2, (6.0, 2.0), (5.0, 2.0), (1.0, 1.0)),
    ]
    steps = ExpertSchedule(pipelines, 2)
    assert [component.coupled for component in steps.components] == [True, False]
    times = schedule(pipelines, expert_parallel=2)
    assert steps.time_micro_steps(steps.components[0], [1.0] * 3) == [10 + (4 + 8) / 2, 1 + 2 / 2]
    assert times.end_ms == (18.0, 16.0, 17.0)
    assert times.makespan_ms == 18.0
    assert times.slack_ms == (0.0, 7.0, 1.0)


def test_ranks_that_share_experts_measure_the_time_of_their_component() -> None:
    pipelines = (
        pipeline(0, 1, (10.0, 4.0), (1.0, 2.0)),
        pipeline(1, 1, (3.0, 8.0)),
        pipeline(2, 2, (6.0, 0.0)),
    )
    plan = plan_of(pipelines, (1,), 18.0, expert_parallel=2)
    assert predict_rank_times(plan) == {0: 18.0, 1: 18.0, 2: 6.0, 3: 6.0}


def test_whole_blocks_in_lockstep_measure_computing_alone() -> None:
    pipelines = [
        replace(pipeline(first, 2, (time_ms, 0.0)), micro_step=step)
        for first, time_ms, step in ((0, 3.0, 0), (2, 5.0, 0), (0, 4.0, 1), (2, 1.0, 1))
    ]
    plan = plan_of(tuple(pipelines), (1,), 9.0, expert_parallel=2)
    assert predict_rank_times(plan) == {0: 7.0, 1: 7.0, 2: 6.0, 3: 6.0}


def test_blocks_that_a_pipeline_connects_take_the_slowest() -> None:
    pipelines = [
        pipeline(0, 1, (1.0, 2.0)),
        PlannedPipeline(
            Scheme(ulysses=2), (1, 2), (MicroBatch((), 0, 0, 5.0, shared_ms=1.0),), 5.0
        ),
        pipeline(3, 1, (0.0, 9.0)),
    ]
    (component,) = ExpertSchedule(pipelines, 2).components
    assert component.blocks == (0, 1)
    assert schedule(pipelines, expert_parallel=2).makespan_ms == 4 + (1 + 9) / 2


@st.composite
def steps_with_experts(draw: st.DrawFn) -> Plan:
    """A step of several pipelines with any ranks, some in two pipelines one after another."""
    degree = draw(st.sampled_from([2, 4, 8]))
    world = degree * draw(st.integers(1, 16 // degree))
    pipelines: list[PlannedPipeline] = []
    for _ in range(draw(st.integers(1, 2))):
        order = draw(st.permutations(range(world)) | st.just(list(range(world))))
        first = 0
        while first < world:
            width = draw(st.integers(1, min(4, world - first)))
            count = draw(st.integers(0, 3))
            scheme = Scheme(ulysses=width) if draw(st.booleans()) else Scheme(ring=width)
            batches = tuple(MicroBatch((), 0, 0, 1.0) for _ in range(count))
            ranks = tuple(order[first : first + width])
            if draw(st.integers(0, 9)):
                pipelines.append(PlannedPipeline(scheme, ranks, batches, float(count)))
            first += width
    plan = construct_plan([1], {"tp1": [[[0]]]}, world_size=world)
    return replace(
        plan,
        pipelines=tuple(pipelines),
        groups=process_groups(pipelines),
        expert_parallel=degree,
        world_size=world,
    )


@given(steps_with_experts())
@settings(max_examples=100)
def test_every_step_runs_to_its_end(plan: Plan) -> None:
    """Each exchange waits for all its members, and a rank can be in only one at a time."""
    everyone = [collectives(rank_view(plan, rank)) for rank in range(plan.world_size)]
    at = [0] * len(everyone)
    moved = True
    while moved:
        moved = False
        for rank, events in enumerate(everyone):
            while at[rank] < len(events) and all(
                at[member] < len(everyone[member])
                and everyone[member][at[member]] == events[at[rank]]
                for member in events[at[rank]].group
            ):
                for member in events[at[rank]].group:
                    at[member] += 1
                moved = True
                if at[rank] >= len(events):
                    break
    assert at == [len(events) for events in everyone]


@given(steps_with_experts())
@settings(max_examples=53)
def test_views_state_micro_steps_of_the_component(plan: Plan) -> None:
    views = rank_views(plan)
    for view, text in zip(views, views_json(plan), strict=True):
        assert view.experts is not None
        numbers, total, world = view.experts
        assert len(numbers) == sum(len(mine.micro_batches) for mine in view.pipelines)
        assert all(before < after for before, after in pairwise((-1, *numbers, total)))
        assert total <= world
        for other in expert_group(view.rank, plan.expert_parallel):
            assert views[other].experts.total == total
        assert decode_view(json.loads(text)) == view
    coupled = {
        index: component.coupled
        for component in ExpertSchedule(plan.pipelines, plan.expert_parallel).components
        for index in component.pipelines
    }
    for index, planned in enumerate(plan.pipelines):
        by_block: dict[int, set[tuple[int, ...]]] = {}
        for rank in planned.ranks:
            view = views[rank]
            assert view.experts is not None
            begin = 0
            for mine in view.pipelines:
                stop = begin + len(mine.micro_batches)
                if mine.index == index:
                    # Blocks that nothing couples number their micro-batches apart.
                    block = 0 if coupled[index] else rank // plan.expert_parallel
                    stated = view.experts.micro_steps[begin:stop]
                    by_block.setdefault(block, set()).add(stated)
                begin = stop
        assert all(len(stated) == 1 for stated in by_block.values())


@given(steps_with_experts())
@settings(max_examples=53)
def test_whole_blocks_are_timed_as_without_experts(plan: Plan) -> None:
    """Others are never shorter than the longest of their pipelines, if nothing is shared."""
    times = schedule(plan.pipelines, expert_parallel=plan.expert_parallel)
    plain = schedule(plan.pipelines)
    whole = all(
        holds_whole_blocks(planned.scheme, planned.ranks, plan.expert_parallel)
        for planned in plan.pipelines
    )
    if whole:
        assert times == plain
    else:
        assert times.makespan_ms >= plain.makespan_ms - 1e-9


@given(steps_with_experts())
@settings(max_examples=53)
def test_changes_of_groups_make_no_step_shorter(plan: Plan) -> None:
    """Costs of changes are added to the times that pipelines have with experts."""
    pipelines = []
    for index, planned in enumerate(plan.pipelines):  # of unequal times, so that they wait
        costs_ms = [100.0 * (1 + (3 * index + k) % 4) for k in range(len(planned.micro_batches))]
        batches = tuple(MicroBatch((), 0, 0, cost_ms) for cost_ms in costs_ms)
        pipelines.append(replace(planned, micro_batches=batches, predicted_ms=sum(costs_ms)))
    later = re.search(
        r"the pipelines would end (.+)% later", explain(replace(plan, pipelines=tuple(pipelines)))
    )
    assert later is None or float(later[1]) >= 0


def test_groups_of_experts() -> None:
    assert expert_group(6, 4) == (4, 5, 6, 7)
    assert expert_replicas(6, 4, 12) == (2, 6, 10)


def coupled() -> Plan:
    """Two ranks of one block, each with a replica."""
    return replace(construct_plan([5, 3, 4], {"tp1": [[[0], [1]], [[2]]]}), expert_parallel=2)


def test_the_format_holds_the_degree() -> None:
    plan = coupled()
    assert from_json(to_json(plan)) == plan
    assert lint(plan, None) == []
    assert '"expert_parallel":2' in to_json(plan)
    assert "expert_parallel" not in to_json(replace(plan, expert_parallel=1))
    assert "experts on 2 ranks" in explain(plan)
    with pytest.raises(PlanError, match="expert_parallel: is 1"):
        from_json(to_json(plan).replace('"expert_parallel":2', '"expert_parallel":1'))


def test_lint_rejects_degrees_that_do_not_fit() -> None:
    assert lint(replace(coupled(), expert_parallel=4), None) == [
        "expert_parallel: 4 does not divide the 2 ranks"
    ]
    stages = construct_plan([4, 4], {"pp2": [[[0]], [[1]]]})
    assert lint(replace(stages, expert_parallel=2), None) == [
        f"pipeline {index}: a stage of pp2 does not consist of whole blocks of 2 ranks"
        for index in (0, 1)
    ]
    whole = construct_plan([4], {"u2": [[[0]]]})
    shared = replace(
        whole.pipelines[0],
        micro_batches=(replace(whole.pipelines[0].micro_batches[0], cost_ms=2.0, shared_ms=1.0),),
        predicted_ms=2.0,
    )
    wrong = replace(whole, pipelines=(shared,), expert_parallel=2, predicted_ms=2.0)
    assert any("shared_ms" in line for line in lint(wrong, None))


def test_lint_rejects_modes_that_exchange_differently() -> None:
    plan = coupled()
    mixed = [
        replace(
            pipeline,
            micro_batches=tuple(replace(b, recompute=mode) for b in pipeline.micro_batches),
        )
        for pipeline, mode in zip(plan.pipelines, ("none", "elementwise"), strict=True)
    ]
    costs = {Scheme(): Cost(0.0, 0.0, 0.0, 100)}
    (line,) = lint(replace(plan, pipelines=tuple(mixed)), costs)
    assert line.startswith("block 0 micro-step 0: some recomputation modes repeat the exchanges")
