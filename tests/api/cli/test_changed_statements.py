"""Statements of a plan that its proposal contradicts are found, whatever its digest."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import call, complaint, succeeded
from planned_files import PlannedFiles

from seqplan import Plan, read_plans, write_plans


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda plan: replace(plan, sync_ms=0.5), "sync_ms: 0.5, by the proposal "),
        (lambda plan: replace(plan, sync_ms=None), "sync_ms: null, by the proposal "),
        (lambda plan: replace(plan, expert_parallel=2), "expert_parallel: 2, the profile has 1"),
    ],
)
def test_a_changed_statement_is_a_broken_rule(
    dense: PlannedFiles, tmp_path: Path, change: Callable[[Plan], Plan], line: str
) -> None:
    first, *others = read_plans(dense.plans)
    changed = tmp_path / "changed.jsonl"
    with write_plans(changed) as write:
        for plan in (change(first), *others):
            write(plan)
    outcome = call("check", "plans", changed, "--proposal", dense.proposal, "--json")
    assert outcome.code == 1
    rules = [entry["rule"] for entry in json.loads(outcome.out)["broken"]]
    assert any(rule.startswith(line) for rule in rules), rules
    succeeded(call("check", "plans", dense.plans, "--proposal", dense.proposal))


def test_another_profile_than_the_proposals_is_rejected(
    dense: PlannedFiles, tmp_path: Path
) -> None:
    first, *_ = read_plans(dense.plans)
    foreign = replace(first, provenance=replace(first.provenance, profile="sha256:" + "0" * 64))
    changed = tmp_path / "changed.jsonl"
    with write_plans(changed) as write:
        write(foreign)
    outcome = call("check", "plans", changed, "--proposal", dense.proposal)
    assert "step 0 was planned from another profile than" in complaint(outcome)
