"""Steps of any strategies side by side on real ranks, other ones next step, against one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ranks import run_ranks
from staged_runs import CONFIG, GATES, Case, Outcome, differences, staged

BFLOAT16 = Case(4, 9, torch.bfloat16, steps=3)

CASES = {
    "8 ranks": Case(8, 1),
    "4 ranks, fp32, groups": Case(4, 18, torch.float32, by_messages=False),
    "6 ranks, tp 3 and 6": Case(
        6, 3, config=replace(CONFIG, hidden=96, heads=12, kv_heads=3, ffn=100, layers=3)
    ),
    "4 ranks, one key head, tied": Case(
        4, 4, config=replace(CONFIG, heads=4, kv_heads=1, tied=True, checkpointing="full")
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_training_is_that_of_one_process(case: Case) -> None:
    schemes = {pipeline.scheme for plan in case.plans() for pipeline in plan.pipelines}
    assert any(scheme.tp > 1 for scheme in schemes)
    assert any(scheme.pp > 1 for scheme in schemes)
    assert any(scheme.sp > 1 for scheme in schemes)
    outcomes = run_ranks(staged, case.ranks, case, timeout_s=150)
    worst = differences(case, outcomes)
    assert all(one <= gate for one, gate in zip(worst, GATES[case.dtype], strict=True)), worst


def in_bfloat16(rank: int, world_size: int) -> list[Outcome]:
    return [staged(rank, world_size, case) for case in (BFLOAT16, replace(BFLOAT16, whole=True))]


def test_bfloat16_errs_as_it_does_with_whole_parameters() -> None:
    """Against fp32: at most twice the difference of the same batches at tp = pp = 1."""
    outcomes = run_ranks(in_bfloat16, BFLOAT16.ranks, timeout_s=150)
    cut = differences(BFLOAT16, [outcome[0] for outcome in outcomes])
    whole = differences(replace(BFLOAT16, whole=True), [outcome[1] for outcome in outcomes])
    assert all(one <= 2 * other for one, other in zip(cut, whole, strict=True)), (cut, whole)
