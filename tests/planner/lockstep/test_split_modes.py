"""Micro-steps of few groups run what does not need the longest sequence's mode in another one."""

import numpy as np
import pytest

from seqplan import Batch, Planner, Workload, find_profile
from seqplan.planner.lockstep.best_layout import Finalist, LayoutMicroSteps, split_finalist
from seqplan.planner.lockstep.micro_steps import MicroSteps
from seqplan.planner.lockstep.plan_micro_steps import list_choices, plan_best_choice
from seqplan.planner.lockstep.split_modes import split_modes
from seqplan.planner.sync.times import GATHERED_SHARE, GivenSyncTimes
from seqplan.plans.lint import lint

NAME, LONGEST = "qwen3-32b-h200-141gb", 131_072
HIDDEN = 1 - GATHERED_SHARE
"""Share of a sync that is hidden in one micro-step and not in several, with all overlap."""

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
    return best.micro_steps, batch


def list_positions(micro_steps: MicroSteps) -> list[int]:
    """List the positions of all sequences."""
    return sorted(i for step in micro_steps.micro_steps for _, of in step.groups for i in of)


def test_several_groups_are_split_together() -> None:
    lengths = [2364, 71_644, 15_466, 4269, 1742, 1036, 2452, 1187, 82_389, 66_694, 3804, 15_651]
    before, batch = find_best([*lengths, 11_597], 16, (2, 2))
    after = split_modes(before, batch)
    assert list_positions(after) == list_positions(before)
    groups = ([len(step.groups) for step in some.micro_steps] for some in (before, after))
    assert [sorted(of) for of in groups] == [[1, 1, 1, 2], [1, 1, 1, 2, 2]]
    assert before.lower_bound_ms <= after.lower_bound_ms <= after.objective_ms
    assert after.objective_ms < before.objective_ms


def test_splits_keep_the_multiple_and_pay_the_sync_of_several_micro_steps() -> None:
    before, batch = find_best(MIXED, 8)
    after = split_modes(before, batch)
    assert len(after.micro_steps) == 3
    assert split_modes(before, batch, 2) is before
    assert split_modes(before, batch, 3) == after
    gain_ms, layout = before.objective_ms - after.objective_ms, (4, 1)
    for whole_ms, splits in ((gain_ms / HIDDEN * 0.99, True), (gain_ms / HIDDEN * 1.01, False)):
        sync = GivenSyncTimes(1.0, 0.0, "", whole_ms, whole_ms)
        planned = Finalist(before, LayoutMicroSteps(layout, before, 0.0))
        split = split_finalist(planned, batch, sync, 1)
        assert split.found is before
        assert (split.start.micro_steps == after) is splits
        assert split.start.total_ms <= before.objective_ms


@pytest.mark.parametrize("number", [60, 300])
def test_steps_of_many_micro_steps_are_split_as_well(number: int) -> None:
    """Neither search is always the better one: pairs are planned anew from both."""
    draw = np.random.default_rng(number).lognormal(8, 1.2, number)
    lengths = np.minimum(draw.astype(int) + 16, LONGEST).tolist()
    plan = Planner.from_profile(NAME, 8, LONGEST, execution="lockstep", sync=None).plan(lengths)
    assert lint(plan, Workload(8, LONGEST, LONGEST).models(find_profile(NAME))) == []
    assert plan.predicted_ms < {60: 38_800, 300: 149_200}[number]
