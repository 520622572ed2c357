"""A planner is ready when it is made: its first step takes no longer than it must."""

from pathlib import Path

import numpy as np
import pytest
from fresh_python import run_python
from step_lengths import CODE

from seqplan import Batch, Plan, StepPlanner, Workload, find_profile, make_proposal, to_json
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.sync.choice import choose_sync
from seqplan.plans.lint import lint

SCRIPT = """
import sys
from pathlib import Path
from seqplan import Batch, Proposal, StepPlanner
planner = StepPlanner(Proposal.load(Path(sys.argv[1])))
before = set(sys.modules)
planner.plan(Batch(0, tuple(range(40)), (700, 2900) * 20))
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize(("profile", "gpus"), [("llama-7b-a800-80gb", 2), ("gpt-7b-a100-40gb", 8)])
def test_the_first_step_imports_nothing(tmp_path: Path, profile: str, gpus: int) -> None:
    path, lengths = tmp_path / "proposal.json", np.array([700, 2900] * 50)
    workload = Workload(gpus, 4096, 8000)
    path.write_text(make_proposal(find_profile(profile), workload, lengths).to_json())
    assert run_python("-c", SCRIPT, path).split() == []


def test_a_plan_handed_out_first_is_proven_later() -> None:
    profile = find_profile("llama-32b-a800-80gb").restrict(layout=(8, 1))
    workload = Workload(64, 32_768, 200_000)
    document = make_proposal(profile, workload, CODE, sync=choose_sync(profile, 64))
    planner, quick = StepPlanner(document), StepPlanner(document, PlanningOptions(prove=False))
    closer = []
    for batch in Sampler(CODE, 200_000, 32_768, 5).batches(6):
        at_once, whole = quick.plan(batch), planner.plan(batch)
        assert lint(at_once, planner.problem.models) == []
        assert to_json(quick.plan(batch)) == to_json(at_once)
        proven = planner.prove(at_once)
        assert to_json(quick.prove(at_once)) == to_json(proven)
        assert lint(proven, planner.problem.models) == []
        assert proven.pipelines == at_once.pipelines
        assert at_once.lower_bound_ms <= proven.lower_bound_ms <= proven.predicted_ms
        assert at_once.predicted_ms <= whole.predicted_ms * 1.01
        assert to_json(planner.prove(proven)) == to_json(proven)
        if at_once.regroups:
            assert proven is at_once
        closer.append(proven.gap < at_once.gap / 2)
    assert sum(closer) >= 2, closer


def test_a_plan_of_another_profile_is_not_proven() -> None:
    lengths = np.array([700, 2900] * 50)

    def planned(name: str) -> tuple[StepPlanner, Plan]:
        profile = find_profile(name).restrict(measured=True)
        planner = StepPlanner(make_proposal(profile, Workload(4, 4096, 8000), lengths))
        return planner, planner.plan(Batch(0, tuple(range(40)), (700, 2900) * 20))

    dense, plan = planned("llama-7b-a800-80gb")
    micro_steps, of_micro_steps = planned("gpt-7b-a100-40gb")
    for planner, made in ((micro_steps, of_micro_steps), (dense, plan)):
        proven = planner.prove(made)
        assert proven.pipelines == made.pipelines
        assert proven.lower_bound_ms >= made.lower_bound_ms
    with pytest.raises(ValueError, match=r"step 0: planned with profile sha256:.* not this"):
        dense.prove(of_micro_steps)
