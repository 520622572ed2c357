"""The certificate of a plan against the optimum."""

import numpy as np
from hypothesis import given, settings
from instances import Case, cases, fleet
from oracles.exhaustive import step_optimum
from scipy.optimize import linprog

from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify, certify_relaxed
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.workload import Workload
from seqplan.plans.scheme import Scheme


@settings(max_examples=60)
@given(cases())
def test_a_certificate_is_a_bound_on_every_placement_of_the_fleet(case: Case) -> None:
    classes, batch = case
    some = fleet(classes)
    filling = dispatch(Filler(some, batch), single_bound_ms(some.classes, batch))
    if filling is not None:
        proven = certify(some, batch, filling.objective_ms)
        assert proven <= step_optimum(some.classes, batch, least=True) * (1 + 1e-9)


LENGTHS = (37048, 23773, 18758, 18704, 15570, 5222, 5139, 4851, 4779, 4163, 4091, 3602, 3368)


def test_a_sequence_that_takes_a_whole_pipeline_leaves_the_others_a_price() -> None:
    """One length is above half of what the large pipeline can do by the time that is proven."""
    batch = Batch.from_lengths([*LENGTHS, *[2100] * 22])
    ring = PipelineClass(1, 1.22e-7, 0.00668, 156.2, 239616, 8, 1, 32)
    others = PipelineClass(1, 5.25e-7, 0.01733, 149.1, 59904, 1, 4, 8)
    some = fleet((ring, others))
    filling = dispatch(Filler(some, batch), single_bound_ms(some.classes, batch))
    assert filling is not None
    # Sequences in parts, each pipeline with one micro-batch.
    work = [k.work_ms(np.array(batch.lengths)) for k in (ring, *[others] * 4)]
    limits = np.zeros((5, 5 * len(batch.lengths) + 1))
    for pipeline, of_pipeline in enumerate(work):
        first = pipeline * len(batch.lengths)
        limits[pipeline, first : first + len(batch.lengths)] = of_pipeline
    limits[:, -1] = -1
    whole = np.hstack([np.tile(np.eye(len(batch.lengths)), 5), np.zeros((len(batch.lengths), 1))])
    relaxed = linprog(
        np.eye(limits.shape[1])[-1],
        A_ub=limits,
        b_ub=[-ring.c, *[-others.c] * 4],
        A_eq=whole,
        b_eq=np.ones(len(batch.lengths)),
    )
    proven = certify(some, batch, filling.objective_ms)
    assert relaxed.fun * 0.999 <= proven <= filling.objective_ms


def test_stages_with_modes_hold_tokens_or_save_work_not_both() -> None:
    """Eight micro-batches that recompute little, or five that recompute much: 23 % above."""
    profile = load_shipped("qwen3-235b-a22b-h200-141gb").at_expert_parallel(8)
    scheme = Scheme(tp=8, pp=2)
    model = Workload(128, 16_384, 400_000).models(profile)[scheme]
    some = fleet((PipelineClass.from_model(model, 8),))
    batch = Batch.from_lengths([500] * 800)
    filling = dispatch(Filler(some, batch), single_bound_ms(some.classes, batch))
    proven = certify(some, batch, filling.objective_ms)
    coarse = certify_relaxed(some, batch, filling.objective_ms)
    assert coarse * 1.01 < proven <= filling.objective_ms
