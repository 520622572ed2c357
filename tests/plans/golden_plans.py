"""The plans of the golden files, and how to write the files again: ``python golden_plans.py``.

The files fix the format: a change that alters them needs a new schema version, and the old files
stay and stay readable.
"""

from dataclasses import replace
from pathlib import Path

from plan_builder import batch, pipeline, plan_of
from plan_strategies import Cost

from seqplan import Plan, Scheme, Strategy, write_plans
from seqplan.plans.plan import Considered

FOLDER = Path(__file__).parent / "golden"

TP4, PP3, RING3, U2, ONE = Scheme(tp=4), Scheme(pp=3), Scheme(ring=3), Scheme(ulysses=2), Scheme()
COSTS = {
    TP4: Cost(0.0001, 0.05, 2.0, 4096),
    PP3: Cost(0.0002, 0.1, 1.0, 1024),
    RING3: Cost(0.0002, 0.05, 2.0, 2048),
    U2: Cost(0.0003, 0.1, 1.5, 1024),
    ONE: Cost(0.0004, 0.2, 1.0, 512),
}


def heterogeneous() -> list[Plan]:
    """A long-sequence and a short-sequence scheme side by side, an idle rank; two steps."""
    strategy = Strategy.from_counts({TP4: 1, PP3: 1})
    first = plan_of(
        (
            pipeline(TP4, (0, 1, 2, 3), batch(COSTS, TP4, {1: 2001, 3: 130})),
            pipeline(PP3, (4, 5, 6), batch(COSTS, PP3, {0: 512, 4: 1}), batch(COSTS, PP3, {2: 65})),
        ),
        (512, 2001, 65, 130, 1),
        600.0,
        step=16,
        world_size=8,
        idle_ranks=(7,),
        ids=(90210, 3, 77, 4, 8),
        selection=(
            Considered(strategy, 300.0, 600.0),
            Considered(Strategy.from_counts({PP3: 2}), 700.5, None),
        ),
    )
    second = plan_of(
        (pipeline(TP4, (0, 1, 2, 3), batch(COSTS, TP4, {0: 100})), pipeline(PP3, (4, 5, 6))),
        (100,),
        10.125,
        step=17,
        world_size=8,
        idle_ranks=(7,),
        loss_tokens=0,
        selection=(Considered(strategy, 5.063, 10.125),),
    )
    return [first, replace(second, lower_bound_ms=10.125, gap=0.0)]


def regrouping() -> list[Plan]:
    """Six ranks that serve one long sequence together, then in smaller groups; an empty step."""
    long_one = pipeline(RING3, (0, 1, 2), batch(COSTS, RING3, {4: 1500}))
    pipelines = (
        long_one,
        pipeline(U2, (3, 4), batch(COSTS, U2, {0: 600, 5: 333})),
        pipeline(U2, (0, 1), batch(COSTS, U2, {3: 777})),
        pipeline(ONE, (2,), batch(COSTS, ONE, {1: 200}), batch(COSTS, ONE, {2: 301})),
        pipeline(U2, (4, 5), batch(COSTS, U2, {6: 41})),
    )
    lengths = (600, 200, 301, 777, 1500, 333, 41)
    empty = plan_of((pipeline(ONE, (0,)),), (), 0.0, gap=0.0, step=1, world_size=6)
    return [plan_of(pipelines, lengths, 790.5), empty]


def micro_steps() -> list[Plan]:
    """ZeRO-3: two micro-steps in lockstep, a rank without work in the second."""
    pipelines = (
        pipeline(RING3, (0, 1, 2), batch(COSTS, RING3, {0: 7}), micro_step=0),
        pipeline(ONE, (3,), batch(COSTS, ONE, {1: 65}), micro_step=0),
        pipeline(U2, (2, 3), batch(COSTS, U2, {2: 200, 3: 3}), micro_step=1),
        pipeline(ONE, (0,), batch(COSTS, ONE, {4: 12}), micro_step=1),
    )
    return [plan_of(pipelines, (7, 65, 200, 3, 12), 60.75)]


FILES = {
    "heterogeneous.jsonl": heterogeneous,
    "regrouping.jsonl": regrouping,
    "micro-steps.jsonl": micro_steps,
}


if __name__ == "__main__":
    for name, build in FILES.items():
        with write_plans(FOLDER / name) as write:
            for plan in build():
                write(plan)
