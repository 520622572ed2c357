"""The same inputs give the same bytes: in every process, whatever the workers and hash seeds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import call, complaint, fresh_process, succeeded
from planned_files import PlannedFiles, propose

from seqplan.plans.format.plan_file import read_plans


@pytest.fixture(params=["dense", "lockstep"])
def plan_files(request: pytest.FixtureRequest) -> PlannedFiles:
    return request.getfixturevalue(request.param)


def plan(plan_files: PlannedFiles, output: Path, *more: str | int, hash_seed: str) -> bytes:
    """The plan file that a separate process writes."""
    arguments = (*plan_files.plan_arguments, "-o", output, *more)
    succeeded(fresh_process(*arguments, environment={"PYTHONHASHSEED": hash_seed}))
    return output.read_bytes()


def test_plans(plan_files: PlannedFiles, tmp_path: Path) -> None:
    # Made in this process, by one worker.
    expected = plan_files.plans.read_bytes()
    assert plan(plan_files, tmp_path / "plans.jsonl", "--workers", 3, hash_seed="1") == expected


def test_plans_without_compiled_code(dense: PlannedFiles, tmp_path: Path) -> None:
    output, python = tmp_path / "plans.jsonl", {"SEQPLAN_KERNEL": "python"}
    printed = succeeded(fresh_process(*dense.plan_arguments, "-o", output, environment=python))
    assert output.read_bytes() == dense.plans.read_bytes()
    assert "\nfill: Python (SEQPLAN_KERNEL=python); planning takes longer" in printed


def test_exact_answers_are_never_worse(
    lockstep: PlannedFiles, lengths: Path, tmp_path: Path
) -> None:
    options = ("--profile", "llama-7b-a800-80gb", "--gpus", 4, "--tokens", 8000)
    proposal = tmp_path / "proposal.json"
    succeeded(propose(lengths, proposal, *options, "--sync", "none", "--schemes", "measured"))
    few = replace(lockstep, proposal=proposal, steps=5)
    searched = succeeded(call(*few.plan_arguments, "-o", tmp_path / "searched.jsonl"))
    exact = succeeded(call(*few.plan_arguments, "--exact", "-o", tmp_path / "exact.jsonl"))
    again = plan(few, tmp_path / "again.jsonl", "--exact", "--workers", 2, hash_seed="1")
    assert (tmp_path / "exact.jsonl").read_bytes() == again
    succeeded(call("check", "plans", tmp_path / "exact.jsonl", "--proposal", proposal))
    before, after = (list(read_plans(tmp_path / f"{name}.jsonl")) for name in ("searched", "exact"))
    for old, new in zip(before, after, strict=True):
        assert new.predicted_ms <= old.predicted_ms
        assert new.lower_bound_ms >= old.lower_bound_ms
        assert new == old or old.gap > 0.01 > new.gap
    assert any(new.predicted_ms < old.predicted_ms for old, new in zip(before, after, strict=True))
    above = sum(plan.gap > 0.01 for plan in before)
    assert f"gap above 1 %: {above} step" in searched
    assert "; --exact solves those of few sequences" in searched
    left = sum(plan.gap > 0.01 for plan in after)
    assert left < above
    assert f"gap above 1 %: {left} step{'s' * (left != 1)} left with --exact\n" in exact
    assert "--exact" not in succeeded(
        call(*lockstep.plan_arguments, "-o", tmp_path / "other.jsonl")
    )
    rejected = call("plan", "--proposal", lockstep.proposal, lengths, "--exact")
    assert "--exact is for pipelines: profile gpt-7b-a100-40gb is of ZeRO-3" in complaint(rejected)


def test_proposals(plan_files: PlannedFiles, tmp_path: Path) -> None:
    output = tmp_path / "proposal.json"
    arguments = (*plan_files.propose_arguments, "--schemes", "measured", "-o", output)
    succeeded(fresh_process(*arguments, environment={"PYTHONHASHSEED": "12345"}))
    assert output.read_bytes() == plan_files.proposal.read_bytes()


def test_another_seed_draws_other_batches(plan_files: PlannedFiles) -> None:
    def drawn(seed: int) -> list[tuple[int, ...]]:
        lines = succeeded(call(*plan_files.plan_arguments, "--seed", seed)).splitlines()
        return [tuple(json.loads(line)["sequences"]["ids"]) for line in lines]

    assert drawn(0) == drawn(0) == [step.ids for step in read_plans(plan_files.plans)]
    assert not set(drawn(1)) & set(drawn(0))


def test_more_steps_begin_with_the_same(plan_files: PlannedFiles) -> None:
    """Without a file, plans are on stdout and the summary is not."""
    steps = plan_files.steps + 2
    given = ("--proposal", plan_files.proposal, plan_files.lengths, "--steps", steps)
    outcome = call("plan", *given)
    assert succeeded(outcome).startswith(plan_files.plans.read_text())
    assert outcome.out.count("\n") == steps
    assert "steps planned and checked" in outcome.err


def test_a_proposal_of_another_seed_is_judged_on_other_batches(
    lockstep: PlannedFiles, tmp_path: Path
) -> None:
    path = tmp_path / "proposal.json"
    succeeded(call(*lockstep.propose_arguments, "--seed", 1, "-o", path))
    ours, other = (json.loads(p.read_text()) for p in (lockstep.proposal, path))
    assert ours["expected_ms"] != other["expected_ms"]
    assert ours["lengths"] == other["lengths"]
    assert ours["digest"] != other["digest"]
