"""Micro-steps of few groups run what does not need the longest sequence's mode in another one."""

import pytest

from seqplan import Batch, Planner, Workload, find_profile
from seqplan.planner.lockstep.micro_steps import MicroSteps
from seqplan.planner.lockstep.plan_micro_steps import (
    list_choices,
    plan_best_choice,
    plan_micro_steps,
)
from seqplan.planner.lockstep.split_modes import split_modes
from seqplan.plans.lint import lint

NAME, LONGEST = "qwen3-32b-h200-141gb", 131_072
MIXED = [27_043, 116_605, 25_152]


@pytest.mark.parametrize(
    ("lengths", "without_sync"), [(MIXED, True), ([119_308, 1452, 450, 568, 1044, 2312], False)]
)
def test_one_group_in_lockstep_is_no_slower_than_a_static_pipeline(
    lengths: list[int], *, without_sync: bool
) -> None:
    options = {"sync": None} if without_sync else {}
    lockstep, static = (
        Planner.from_profile(NAME, 8, LONGEST, execution=execution, **options).plan(lengths)
        for execution in ("lockstep", "static")
    )
    assert lint(lockstep, Workload(8, LONGEST, LONGEST).models(find_profile(NAME))) == []
    assert lockstep.lower_bound_ms <= lockstep.predicted_ms
    assert lockstep.predicted_ms + (lockstep.sync_ms or 0.0) <= (
        static.predicted_ms + (static.sync_ms or 0.0) + 1e-3
    )


def find_best(
    lengths: list[int], gpus: int, layout: tuple[int, int] = (4, 1)
) -> tuple[MicroSteps, Batch]:
    """Return micro-steps as they are without splits."""
    models = list(Workload(gpus, LONGEST, LONGEST).models(find_profile(NAME)).values())
    of_layout = [model for model in models if (model.scheme.tp, model.scheme.pp) == layout]
    batch = Batch.from_lengths(lengths)
    best = plan_best_choice(batch, of_layout, list_choices(of_layout), gpus)
    assert best is not None
    planned = plan_micro_steps(batch, of_layout, gpus)
    assert planned is not None
    assert planned.objective_ms <= best.micro_steps.objective_ms
    return best.micro_steps, batch


def list_positions(micro_steps: MicroSteps) -> list[int]:
    """List the positions of all sequences."""
    return sorted(i for step in micro_steps.micro_steps for _, of in step.groups for i in of)


def test_several_groups_are_split_together() -> None:
    lengths = [2364, 71_644, 15_466, 4269, 1742, 1036, 2452, 1187, 82_389, 66_694, 3804, 15_651]
    before, batch = find_best([*lengths, 11_597], 16, (2, 2))
    after = split_modes(before, batch, 1, 0.0)
    assert list_positions(after) == list_positions(before)
    groups = ([len(step.groups) for step in some.micro_steps] for some in (before, after))
    assert [sorted(of) for of in groups] == [[1, 1, 1, 2], [1, 1, 1, 2, 2]]
    assert before.lower_bound_ms <= after.lower_bound_ms <= after.objective_ms
    assert after.objective_ms < before.objective_ms


def test_splits_keep_the_multiple_and_pay_the_sync_of_several_micro_steps() -> None:
    before, batch = find_best(MIXED, 8)
    after = split_modes(before, batch, 1, 0.0)
    assert len(after.micro_steps) == 3
    gain_ms = before.objective_ms - after.objective_ms
    assert split_modes(before, batch, 2, 0.0) == before
    assert split_modes(before, batch, 3, gain_ms * 0.99) == after
    assert split_modes(before, batch, 1, gain_ms * 1.01) == before
