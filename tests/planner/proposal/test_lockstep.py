"""Proposals in lockstep: micro-steps for any profile, by layout, and rejected options."""

import json
from dataclasses import replace

import numpy as np
import pytest
from step_lengths import CODE

from seqplan import (
    Batch,
    Infeasible,
    Planner,
    Profile,
    Proposal,
    StepPlanner,
    Workload,
    explain,
    find_profile,
    make_proposal,
)
from seqplan.planner.placement.fill import VARIABLE
from seqplan.planner.proposal.document import ProposalError
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import LayoutSyncTimes
from seqplan.planner.workers.produce import produce
from seqplan.plans.format.canonical import canonical_json, digest_of
from seqplan.plans.lint import lint

LLAMA = find_profile("llama-7b-a800-80gb")
CLUSTER = Workload(16, 16_384, 60_000)


def proposed(profile: Profile = LLAMA, multiple: int = 1) -> Proposal:
    return make_proposal(
        profile,
        CLUSTER,
        CODE[:400],
        sync=choose_sync(profile, CLUSTER.gpus),
        execution="lockstep",
        micro_step_multiple=multiple,
    )


@pytest.fixture(scope="module")
def document() -> Proposal:
    return proposed()


def batch(step: int = 0, count: int = 60) -> Batch:
    lengths = np.minimum(CODE[step * 60 : step * 60 + count], CLUSTER.max_len).tolist()
    return replace(Batch.from_lengths(lengths), step=step)


def test_every_step_is_in_lockstep_of_one_layout(document: Proposal) -> None:
    models = CLUSTER.models(LLAMA)
    planner = StepPlanner(document)
    assert document.layouts is not None
    for step in range(3):
        plan = planner.plan(batch(step))
        assert lint(plan, models) == []
        assert all(pipeline.micro_step is not None for pipeline in plan.pipelines)
        assert {f"tp{p.scheme.tp}" for p in plan.pipelines} == {document.layouts.chosen}
        assert plan.sync_ms == document.layouts.rows[0].sync_ms
        assert simulate_plan_ms(plan, LLAMA.forward_fraction) <= plan.predicted_ms + 1e-6
        for number in range(max(p.micro_step or 0 for p in plan.pipelines) + 1):
            used = [r for p in plan.pipelines if p.micro_step == number for r in p.ranks]
            assert sorted(used) == list(range(CLUSTER.gpus))


def test_the_document_states_the_execution(document: Proposal) -> None:
    again = Proposal.from_json(document.to_json(), "here")
    assert again.in_lockstep
    assert again == document
    regrouping = replace(document, execution="regroup")
    assert not regrouping.in_lockstep
    assert not StepPlanner(regrouping).plan(batch()).pipelines[0].micro_step
    zero_3 = replace(regrouping, profile=find_profile("gpt-7b-a100-40gb"))
    with pytest.raises(ProposalError, match=r"here: execution regroup: .* is of ZeRO"):
        Proposal.from_json(zero_3.to_json(), "here")
    raw = json.loads(document.to_json()) | {"execution": "micro-steps"}
    del raw["digest"]
    changed = json.dumps({**raw, "digest": digest_of(canonical_json(raw))})
    with pytest.raises(
        ProposalError, match=r"here: execution: must be one of uniform, .*micro-steps"
    ):
        Proposal.from_json(changed, "here")


def test_candidates_are_its_static_groups_and_none_is_faster(document: Proposal) -> None:
    assert all(candidate.strategy.homogeneous for candidate in document.candidates)
    assert len({(s.tp, s.pp) for c in document.candidates for s, _ in c.strategy.counts}) == 1
    times = [c.expected_ms for c in document.candidates if c.runs == 1 and c.expected_ms]
    assert document.expected_ms <= min(times) + 1e-3
    assert document.lower_bound_ms <= document.expected_ms


def test_the_same_plans_whoever_plans(document: Proposal, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [batch(step, count=30) for step in range(2)]
    here = [planned.line for planned in produce(document, batches)]
    assert [planned.line for planned in produce(document, batches, workers=2)] == here
    monkeypatch.setenv(VARIABLE, "python")
    assert [planned.line for planned in produce(document, batches)] == here


def test_micro_steps_come_in_multiples() -> None:
    planner = Planner.from_profile(
        LLAMA, 16, 16_384, layout="tp2.pp2", execution="lockstep", micro_step_multiple=3
    )
    plan = planner.plan(batch().lengths)
    micro_steps = {pipeline.micro_step for pipeline in plan.pipelines}
    assert len(micro_steps) % 3 == 0
    assert {pipeline.scheme.pp for pipeline in plan.pipelines} == {2}
    assert f"in {len(micro_steps)} micro-steps through 2 stages" in explain(plan)
    assert lint(plan, CLUSTER.models(LLAMA)) == []
    few = "2 sequences cannot fill 3 micro-batches, in multiples of 3; give larger steps"
    with pytest.raises(Infeasible, match=few):
        planner.plan([900, 100])
    short = Workload(16, 16_384, 1_000)
    with pytest.raises(Infeasible, match="step 0: 1 sequence cannot fill 4 micro-batches"):
        make_proposal(LLAMA, short, [900] * 9, execution="lockstep", micro_step_multiple=4)


def test_fewer_sequences_than_groups_leave_ranks_idle() -> None:
    plan = Planner.from_profile(LLAMA, 16, 16_384, layout="tp8", execution="lockstep").plan([4_000])
    (pipeline,) = plan.pipelines
    assert pipeline.scheme.gpus == 16
    alone = Planner.from_profile(
        LLAMA.restrict(measured=True), 16, 16_384, layout="tp8", execution="lockstep"
    )
    assert alone.plan([4_000]).idle_ranks == tuple(range(8, 16))


def test_zero_3_has_no_sync_and_a_separate_memory_model() -> None:
    gpt = find_profile("gpt-7b-a100-40gb")
    lockstep_plan = Planner.from_profile(gpt, 16, 16_384, execution="lockstep").plan(
        batch().lengths
    )
    implied = Planner.from_profile(gpt, 16, 16_384).plan(batch().lengths)
    assert lockstep_plan.sync_ms is None
    assert lockstep_plan.pipelines == implied.pipelines


def test_an_sync_that_one_micro_step_hides_counts_for_nothing() -> None:
    # Once it counted for static groups, and for every layout at other costs.
    hidden = choose_sync(LLAMA, CLUSTER.gpus, overlap=1.0)
    document = make_proposal(LLAMA, CLUSTER, CODE[:400], sync=hidden, execution="lockstep")
    row = document.layouts.rows[0]
    assert row.sync_ms < 0.1 * row.expected_ms
    assert document.layouts.static_ms < 1.1 * row.expected_ms
    assert "where the sync takes" not in document.layouts.why[-1]


def test_costs_at_which_another_layout_wins_are_stated() -> None:
    several = LLAMA.keep_schemes({e.scheme for e in LLAMA.schemes if e.scheme.tp > 1})
    document = proposed(several)
    assert "tp8 where the sync takes twice as long" in document.layouts.why[-1]
    derived = choose_sync(several, CLUSTER.gpus)
    assert isinstance(derived, LayoutSyncTimes)
    doubled = replace(derived, by_layout_ms=tuple((k, 2 * ms) for k, ms in derived.by_layout_ms))
    dear = make_proposal(several, CLUSTER, CODE[:400], sync=doubled, execution="lockstep")
    assert document.layouts.chosen == "tp4"
    assert dear.layouts.chosen == "tp8"
