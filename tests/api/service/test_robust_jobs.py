"""Jobs planned for costs that may be off by a share."""

from itertools import islice

import numpy as np
from measuring_ranks import plan_of
from stocked_service import DATA, MAX_LEN, WORLD, Stocked

from seqplan import Proposal, StepPlanner, Workload, explain, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.problem import PlanningOptions

STEPS = 3


def test_plans_are_those_of_the_planner_and_state_the_share(stocked: Stocked) -> None:
    served = stocked.served
    job = {"proposal": stocked.proposal, "lengths": stocked.lengths, "steps": STEPS}
    for name, robust in (("robust", 0.1), ("plain", 0.0)):
        served.ok("POST", "/v1/jobs", {**job, "id": name, "robust": robust})
    text = served.send("GET", f"/v1/proposals/{stocked.proposal}/document").body.decode()
    proposal = Proposal.from_json(text, "proposal")
    planner = StepPlanner(proposal, PlanningOptions(robust=0.1))
    sampler = Sampler(np.load(DATA), proposal.workload.tokens, MAX_LEN, 0)
    for step, batch in enumerate(islice(sampler.batches(STEPS), STEPS)):
        plan = plan_of(served, "robust", step)
        assert plan == planner.plan(batch)
        assert plan.provenance.robust == 0.1
        assert "a, b or c of the costs that are off by 10 %" in explain(plan)
        assert plan_of(served, "plain", step).provenance.robust == 0.0
    assert served.ok("GET", "/v1/jobs/robust")["robust"] == 0.1
    again = {"id": "again", "proposal": stocked.proposal, "robust": 0.1}
    served.ok("POST", "/v1/jobs", {**again, "continues": {"job": "robust", "step": 1}})
    assert plan_of(served, "again", 1) == plan_of(served, "robust", 1)


def test_loads_are_not_pushed_to_a_robust_job(stocked: Stocked) -> None:
    job = {"id": "pushed", "proposal": stocked.proposal, "robust": 0.1}
    stocked.served.ok("POST", "/v1/jobs", job)
    load = {"name": "vision", "tokens": [9], "work_ms": [1.0]}
    batch = {"step": 0, "ids": [0], "lengths": [100], "loads": [load]}
    problem = stocked.served.problem("POST", "/v1/jobs/pushed/batches", {"batches": [batch]})
    assert "job pushed: robust with loads: not supported. Leave robust" in problem["detail"]


def test_a_proposal_in_lockstep_is_rejected(stocked: Stocked) -> None:
    profile = load_shipped("llama-7b-a800-80gb").restrict(measured=True)
    workload = Workload(gpus=WORLD, max_len=MAX_LEN, tokens=8000)
    document = make_proposal(profile, workload, np.load(DATA), sync=None, execution="lockstep")
    served = stocked.served
    lockstep = served.ok("POST", "/v1/proposals/documents", document.to_json().encode())["id"]
    job = {"id": "first", "lengths": stocked.lengths, "steps": 500, "robust": 0.1}
    message = "robust is for pipelines: the problem is in lockstep. Leave robust out"
    problem = served.problem("POST", "/v1/jobs", {**job, "proposal": lockstep})
    assert problem["detail"] == message
    served.ok("POST", "/v1/jobs", {**job, "proposal": stocked.proposal})
    problem = served.problem("PUT", "/v1/jobs/first/proposal", {"proposal": lockstep})
    assert problem["detail"] == message
