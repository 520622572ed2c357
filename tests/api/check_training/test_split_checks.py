"""Training checks of plans that split experts, and the sync that they report."""

from dataclasses import replace
from pathlib import Path

import pytest
from expert_runs import RoutedCase
from plan_builder import write_file
from random_plans import one_pipeline_plan

from seqplan import Scheme
from seqplan.api.check_training.check import count_step_gathered, first_plans, size_model


def test_steps_of_several_degrees_are_rejected(tmp_path: Path) -> None:
    plans = RoutedCase(4, 4, expert_parallel=2, steps=2).plans()
    path = write_file(tmp_path / "plans.jsonl", [plans[0], replace(plans[1], expert_parallel=4)])
    with pytest.raises(ValueError, match="expert_parallel 4, the steps before 2"):
        first_plans(path, 4, 2)


def test_a_rank_gathers_its_part_of_the_experts() -> None:
    plan = replace(one_pipeline_plan(Scheme(ulysses=4), [9, 4]), expert_parallel=4)
    sizes = size_model([plan])
    assert sizes.architecture.experts == 8
    # All four ranks hold different experts, which no one else owns: nothing of them moves.
    shared = sizes.parameters - sizes.expert_parameters
    assert count_step_gathered(plan, sizes).elements == pytest.approx(shared * 3 / 4, rel=1e-3)
    halves = replace(plan, expert_parallel=2)
    sizes = size_model([halves])
    shared = sizes.parameters - sizes.expert_parameters
    experts = sizes.expert_parameters / 2 / 2
    expected = shared * 3 / 4 + experts
    assert count_step_gathered(halves, sizes).elements == pytest.approx(expected, rel=1e-3)
    staged = replace(one_pipeline_plan(Scheme(ulysses=2, pp=2), [9, 4]), expert_parallel=2)
    gathered = count_step_gathered(staged, size_model([staged]))
    assert gathered.messages
    assert gathered.elements < count_step_gathered(halves, sizes).elements
