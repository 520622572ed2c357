"""Each invariant of a plan, broken once; sound plans pass."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from plan_builder import batch, pipeline, plan_of
from plan_strategies import Cost, Costed, costed_plans

from seqplan.plans.groups import process_groups
from seqplan.plans.lint import lint
from seqplan.plans.plan import Considered, MicroBatch, Plan
from seqplan.plans.scheme import Scheme, Strategy

TP2, PP2, RING2 = Scheme(tp=2), Scheme(pp=2), Scheme(ring=2)
COSTS = {
    TP2: Cost(0.001, 0.5, 2.0, 100),
    PP2: Cost(0.002, 1.0, 1.0, 60),
    RING2: Cost(0.001, 0.5, 2.0, 100),
    Scheme(): Cost(0.004, 1.0, 0.5, 50),
}


def sound() -> Plan:
    """Two ranks that serve a tp pipeline, two that regroup, one idle in between."""
    return plan_of(
        (
            pipeline(TP2, (0, 1), batch(COSTS, TP2, {2: 10, 0: 20})),
            pipeline(PP2, (3, 4), batch(COSTS, PP2, {1: 30}), batch(COSTS, PP2, {3: 7})),
            pipeline(RING2, (6, 5), batch(COSTS, RING2, {4: 5})),
            pipeline(Scheme(), (5,), batch(COSTS, Scheme(), {5: 6})),
            pipeline(Scheme(), (6,)),
        ),
        (20, 30, 10, 7, 5, 6),
        100.0,
        selection=(
            Considered(Strategy.from_counts({TP2: 1}), 10.0, 20.0),
            Considered(Strategy.from_counts({PP2: 1}), 10.0, None),
        ),
    )


def test_micro_batches_without_a_mode_next_to_others_are_named() -> None:
    """Plans have a mode for each micro-batch if their profile has several."""
    plan = sound()
    moded = replace(plan.pipelines[0].micro_batches[0], recompute="full")
    plan = swap(plan, 0, micro_batches=(moded,))
    line = "pipeline 1 micro-batch 0: has no recomputation mode, and others have one"
    assert lint(plan, None) == [line]


def in_lockstep() -> Plan:
    """Two ranks in two micro-steps: together, then each alone."""
    return plan_of(
        (
            pipeline(RING2, (0, 1), batch(COSTS, RING2, {0: 20}), micro_step=0),
            pipeline(Scheme(), (1,), batch(COSTS, Scheme(), {1: 4}), micro_step=1),
            pipeline(Scheme(), (0,), batch(COSTS, Scheme(), {2: 8}), micro_step=1),
        ),
        (20, 4, 8),
        30.0,
        world_size=3,
        idle_ranks=(2,),
    )


def swap(plan: Plan, index: int, **fields: Any) -> Plan:
    """The plan with fields of one pipeline changed, its groups derived again."""
    pipelines = list(plan.pipelines)
    pipelines[index] = replace(pipelines[index], **fields)
    return replace(plan, pipelines=tuple(pipelines), groups=process_groups(pipelines))


def swap_batch(plan: Plan, index: int, number: int, **fields: Any) -> Plan:
    batches = list(plan.pipelines[index].micro_batches)
    batches[number] = replace(batches[number], **fields)
    return swap(plan, index, micro_batches=tuple(batches))


def test_sound_plans_pass() -> None:
    assert lint(sound(), COSTS) == []
    assert lint(sound(), None) == []
    assert lint(in_lockstep(), COSTS) == []


@given(costed_plans())
def test_random_sound_plans_pass(costed: Costed) -> None:
    assert lint(costed.plan, costed.costs) == []
    assert lint(costed.plan, None) == []


S, R = sound(), in_lockstep()
MORE = (*S.pipelines, pipeline(PP2, (4, 3)))
AT_0, AT_2 = (f"pipeline {place} micro-batch 0" for place in (0, 2))
OF_100 = "predicted_ms = 100.0"
BROKEN = [
    (replace(S, ids=(1,)), "sequences: 1 ids but 6 lengths"),
    (replace(R, lengths=(20, 4, 0)), "sequence 2: length 0 is not positive"),
    (swap_batch(S, 2, 0, sequences=(9,)), f"{AT_2}: position 9 is outside the 6 sequences"),
    (swap_batch(S, 2, 0, sequences=(-1,)), f"{AT_2}: position -1 is outside the 6 sequences"),
    (swap(S, 2, micro_batches=()), "sequence 4: is in no micro-batch, not in exactly one"),
    (swap_batch(S, 2, 0, sequences=(5,)), "sequence 5: is in 2 micro-batches, not in exactly one"),
    (replace(S, tokens=79), "tokens: 79, but the lengths sum to 78"),
    (replace(S, loss_tokens=79), "loss_tokens: 79 is outside 0 … tokens = 78"),
    (replace(S, loss_tokens=-1), "loss_tokens: -1 is outside 0 … tokens = 78"),
    (
        swap(S, 4, micro_batches=(MicroBatch((), 0, 0, 0.5),)),
        "pipeline 4 micro-batch 0: has no sequences; leave it out",
    ),
    (swap_batch(S, 0, 0, tokens=31), f"{AT_0}: tokens 31, but its lengths sum to 30"),
    (
        swap_batch(S, 2, 0, padded_tokens=5),
        f"{AT_2}: padded_tokens 5, but r2 pads its lengths to 8",
    ),
    (replace(R, world_size=0), "world_size: 0 is not positive"),
    (swap(S, 0, ranks=(0, 1, 2)), "pipeline 0: 3 ranks, but tp2 runs on 2"),
    (swap(S, 0, ranks=(0, 0)), "pipeline 0: a rank is listed twice"),
    (swap(S, 0, ranks=(0, 7)), "pipeline 0: ranks 0 … 7 are not all in 0 … 6"),
    (replace(S, idle_ranks=(2, 2)), "idle_ranks: a rank is listed twice"),
    (replace(S, idle_ranks=(2, 7)), "idle_ranks: 2 … 7 are not all in 0 … 6"),
    (replace(S, idle_ranks=(2, 5)), "idle_ranks: rank 5 is in a pipeline"),
    (
        replace(S, world_size=10**15),
        "rank 7: is in no pipeline and not idle (999999999999993 such ranks)",
    ),
    (
        swap(S, 4, scheme=TP2, ranks=(6, 5), predicted_ms=0.0),
        "rank 6: tp 1, pp 1 in pipeline 2, but tp 2, pp 1 in pipeline 4",
    ),
    (
        replace(S, pipelines=MORE, groups=process_groups(MORE)),
        "rank 4: tp index 0, stage 1 in pipeline 1, but tp index 0, stage 0 in pipeline 5",
    ),
    (swap(R, 1, micro_step=None), "micro-steps: pipeline 1 has none, others have"),
    (
        replace(R, pipelines=R.pipelines[::-1], groups=process_groups(R.pipelines[::-1])),
        "micro-steps: they descend in list order",
    ),
    (
        swap(swap(R, 1, micro_step=2), 2, micro_step=2),
        "micro-steps: they are not 0 … 2 without a gap",
    ),
    (
        swap(R, 0, micro_batches=R.pipelines[0].micro_batches * 2, predicted_ms=24.8),
        "pipeline 0: 2 micro-batches in micro-step 0, at most one",
    ),
    (swap(R, 2, ranks=(1,)), "pipeline 2: rank 1 is already in use in micro-step 1"),
    (replace(S, groups=S.groups[1:]), "groups: [0, 1] is missing (1 such groups)"),
    (
        replace(S, groups=(*S.groups, tuple(range(9)))),
        "groups: [0, …, 8] is of no pipeline (1 such groups)",
    ),
    (replace(S, groups=S.groups * 2), "groups: a group is listed twice"),
    (replace(S, groups=S.groups[::-1]), "groups: they are not in creation order"),
    (swap_batch(S, 0, 0, cost_ms=17.502), f"{AT_0}: cost_ms 17.502, but the profile gives 17.500"),
    (swap_batch(S, 0, 0, cost_ms=np.nan), f"{AT_0}: cost_ms nan, but the profile gives 17.500"),
    (
        swap(S, 1, predicted_ms=65.59),
        "pipeline 1: predicted_ms 65.59 is below its micro-batches' 65.600",
    ),
    (
        replace(S, predicted_ms=73.696, lower_bound_ms=36.848),
        "predicted_ms: 73.696 is below the schedule of the pipelines, 73.697",
    ),
    (
        replace(R, predicted_ms=21.15, lower_bound_ms=10.575),
        "predicted_ms: 21.15 is below the schedule of the pipelines, 21.155",
    ),
    (replace(S, lower_bound_ms=101.0), f"lower_bound_ms: 101.0 is outside 0 … {OF_100}"),
    (replace(S, lower_bound_ms=0.0), f"lower_bound_ms: 0 bounds nothing of {OF_100}"),
    (replace(S, gap=1.00001), "gap: 1.00001, but predicted_ms / lower_bound_ms − 1 is 1.0000000"),
    (
        replace(S, selection=(replace(S.selection[0], predicted_ms=9.0),)),
        "selection 0 (1×tp2): predicted_ms 9.0 is below its lower_bound_ms 10.0",
    ),
    (
        replace(S, selection=(replace(S.selection[1], lower_bound_ms=-1.0),)),
        "selection 0 (1×pp2): lower_bound_ms -1.0 is negative",
    ),
    (
        replace(S, selection=(Considered(Strategy.from_counts({TP2: 4}), 1.0, None),)),
        "selection 0 (4×tp2): needs 8 GPUs, the world has 7",
    ),
]


@pytest.mark.parametrize(("plan", "line"), BROKEN, ids=[line for _, line in BROKEN])
def test_each_rule_names_its_violation(plan: Plan, line: str) -> None:
    assert line in lint(plan, COSTS)


def test_capacity_and_missing_schemes_need_the_profile() -> None:
    tight = COSTS | {RING2: replace(COSTS[RING2], max_len=7)}
    assert lint(sound(), tight) == [
        "pipeline 2 micro-batch 0: 8 padded tokens exceed MaxLen 7 of r2"
    ]
    without = {scheme: cost for scheme, cost in COSTS.items() if scheme != RING2}
    assert lint(sound(), without) == ["pipeline 2: the profile has no scheme r2"]


def test_a_gap_without_times() -> None:
    empty = plan_of((pipeline(TP2, (0, 1)),), (), 0.0, gap=0.0, selection=())
    assert lint(empty, COSTS) == []
    assert lint(replace(empty, gap=0.5), COSTS) == [
        "gap: 0.5, but predicted_ms and lower_bound_ms are both 0"
    ]
