"""The order of collectives: shared events agree, and waiting for all members never blocks."""

from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from plan_strategies import plans
from test_rank_view import one_pipeline

from seqplan import Plan, Scheme, rank_view
from seqplan.plans.plan import MicroBatch, PlannedPipeline
from seqplan.plans.views.collectives import Event, collectives


def orders(plan: Plan) -> list[tuple[Event, ...]]:
    return [collectives(rank_view(plan, rank)) for rank in range(plan.world_size)]


def of_micro_batches(scheme: Scheme, count: int) -> Plan:
    """One pipeline of ``count`` micro-batches with one sequence each."""
    plan = one_pipeline(scheme, (7,) * count, scheme.gpus)
    batches = tuple(MicroBatch((at,), 7, scheme.pad_micro_batch([7]), 1.0) for at in range(count))
    return replace(plan, pipelines=(replace(plan.pipelines[0], micro_batches=batches),))


def assert_runs_to_its_end(everyone: list[tuple[Event, ...]]) -> None:
    """Play the step with every event a rendezvous: it happens when all members are at it."""
    at = [0] * len(everyone)
    moved = True
    while moved:
        moved = False
        for rank, events in enumerate(everyone):
            while at[rank] < len(events):
                event = events[at[rank]]
                assert rank in event.group
                if not all(
                    at[member] < len(everyone[member]) and everyone[member][at[member]] == event
                    for member in event.group
                ):
                    break
                for member in event.group:
                    at[member] += 1
                moved = True
    assert at == [len(events) for events in everyone]


@given(plans())
@settings(max_examples=53)
def test_shared_events_agree_and_nothing_blocks(plan: Plan) -> None:
    everyone = orders(plan)
    for events in everyone:
        assert len(set(events)) == len(events)
    for first, other in combinations(range(plan.world_size), 2):
        shared_by_one = [event for event in everyone[first] if other in event.group]
        assert shared_by_one == [event for event in everyone[other] if first in event.group]
    assert_runs_to_its_end(everyone)


@given(st.integers(1, 6), st.integers(0, 9), st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 3)]))
def test_deep_pipelines(pp: int, count: int, degrees: tuple[int, int, int]) -> None:
    scheme = Scheme(degrees[0], pp, degrees[1], degrees[2])
    assert_runs_to_its_end(orders(of_micro_batches(scheme, count)))


def test_a_middle_stage_receives_before_it_sends_back() -> None:
    plan = of_micro_batches(Scheme(pp=3), 3)
    events = [(event.phase, event.micro_batch, event.group) for event in orders(plan)[1]]
    assert events == [
        ("activations", 0, (0, 1)),
        ("activations", 0, (1, 2)),
        ("activations", 1, (0, 1)),
        ("activations", 1, (1, 2)),
        ("gradients", 0, (1, 2)),
        ("activations", 2, (0, 1)),
        ("gradients", 0, (0, 1)),
        ("activations", 2, (1, 2)),
        ("gradients", 1, (1, 2)),
        ("gradients", 1, (0, 1)),
        ("gradients", 2, (1, 2)),
        ("gradients", 2, (0, 1)),
    ]


@given(plans(micro_steps=True))
def test_every_rank_goes_through_every_micro_step(plan: Plan) -> None:
    micro_steps = {pipeline.micro_step for pipeline in plan.pipelines}
    one_stage = all(pipeline.scheme.pp == 1 for pipeline in plan.pipelines)
    for events in orders(plan):
        gathers = [event.micro_batch for event in events if event.phase == "micro_step"]
        assert gathers == (sorted(micro_steps) if one_stage else [])  # type: ignore[type-var]


def test_micro_steps_with_stages_follow_each_other_as_micro_batches_do() -> None:
    """A rank without work in micro-step 0 keeps its place all the same."""
    pair, alone = Scheme(pp=2, ring=2), Scheme(pp=2)
    plan = one_pipeline(pair, (7,) * 3, 4)
    micro = [MicroBatch((at,), 7, pair.pad_micro_batch([7]), 1.0) for at in range(3)]
    pipelines = (
        PlannedPipeline(alone, (0, 2), (replace(micro[0], padded_tokens=7),), 2.0, 0),
        PlannedPipeline(pair, (0, 1, 2, 3), (micro[1],), 2.0, 1),
        PlannedPipeline(pair, (0, 1, 2, 3), (micro[2],), 2.0, 2),
    )
    everyone = orders(replace(plan, pipelines=pipelines))
    assert_runs_to_its_end(everyone)
    passes = [(event.phase, event.pipeline) for event in everyone[1] if event.group == (0, 1)]
    assert passes == [("forward", 1), ("forward", 2), ("backward", 1), ("backward", 2)]
